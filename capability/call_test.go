package capability

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/direct-oci/engine/capability/approval"
	"github.com/direct-oci/engine/capability/audit"
	"github.com/direct-oci/engine/capability/jsjson"
	"github.com/direct-oci/engine/capability/secret"
	"github.com/direct-oci/engine/capability/signed"
	"github.com/direct-oci/engine/engine"
)

// fake is a capability that says what it was given.
type fake struct {
	info    Info
	secrets []string
	ran     *int
	fail    error
	reads   string // name of its credentials
	closed  *bool
	room    engine.Limits

	dies, resumable bool // while it runs; and then something is left of it
}

// Close implements io.Closer.
func (f fake) Close() error {
	if f.closed != nil {
		*f.closed = true
	}
	return nil
}

func (f fake) Info() Info { return f.info }

func (f fake) Prepare(_ context.Context, ask Ask) (Prepared, error) {
	args, err := json.Marshal(ask.Args)
	if err != nil {
		return Prepared{}, err
	}
	p := Prepared{
		Bound: approval.Bound{Digest: string(args), Secrets: f.secrets}, Title: "t", Documents: []Document{{"args", string(args)}},
		Credentials: f.reads, Room: f.room,
		Run: func(_ context.Context, env Env) (Outcome, error) {
			*f.ran++
			if f.dies {
				panic("the runner dies")
			}
			if f.fail != nil {
				return Outcome{}, f.fail
			}
			given := map[string]string{"credentials": env.Redact(string(env.Credentials))}
			for name, v := range env.Secrets {
				env.Log(name + "=" + string(v))
				given[name] = env.Redact(string(v)) + " of " + string(rune('0'+len(v)%10))
			}
			return Outcome{Output: given}, nil
		},
	}
	if f.resumable {
		p.Resume = func(_ context.Context, env Env) (Outcome, error) {
			return Outcome{Output: "kept " + env.Redact("hunter2-token")}, nil
		}
	}
	return p, nil
}

const anyObject = `{"type":"object","properties":{"n":{"type":"integer","minimum":1},"s":{"type":"string"}},"additionalProperties":false}`

type bed struct {
	*Runner
	key ed25519.PrivateKey // of alice
	ran int
	log []string
}

func newBed(t testing.TB, caps ...fake) *bed {
	t.Helper()
	b := &bed{key: ed25519.NewKeyFromSeed(make([]byte, 32))}
	dir := t.TempDir()
	project := Project{
		Slug: "shop", Approvers: map[string]ed25519.PublicKey{"alice": b.key.Public().(ed25519.PublicKey)},
		Secrets: map[string]secret.Source{"TOKEN": {Value: "hunter2-token"}, "GONE": {File: "/nowhere"}},
	}
	for _, c := range caps {
		c.ran = &b.ran
		if c.info.Params == nil {
			c.info.Params = json.RawMessage(anyObject)
		}
		project.Built = append(project.Built, c)
	}
	b.Runner = &Runner{
		Projects: map[string]Project{"shop": project, "other": {Slug: "other", Secrets: map[string]secret.Source{"OTHER": {Value: "x"}}}},
		Audit:    audit.Log{Path: filepath.Join(dir, "audit.jsonl")}, Burned: approval.Burned{Dir: filepath.Join(dir, "used")},
		Approved: Approved{filepath.Join(dir, "last")}, Receipts: b.key, Redact: true,
	}
	return b
}

func (b *bed) call(name, args string, edit func(*Call)) (Reply, error) {
	c := Call{Project: "shop", Capability: name, Args: []byte(args), Caller: "test", Log: func(l string) { b.log = append(b.log, l) }}
	if edit != nil {
		edit(&c)
	}
	return b.Call(context.Background(), c)
}

// approval signs exactly this call.
func (b *bed) approval(t testing.TB, name, args string) signed.Envelope {
	t.Helper()
	p, _, err := b.Prepare(context.Background(), Call{Project: "shop", Capability: name, Args: []byte(args)})
	if err != nil {
		t.Fatal(err)
	}
	s, err := approval.New(p.Bound, p.Title, "alice", time.Now().Add(-time.Minute), time.Now().Add(time.Hour), 1)
	if err != nil {
		t.Fatal(err)
	}
	e, err := s.Sign(b.key)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func kind(err error) string {
	var e *engine.Error
	if err == nil || !errors.As(err, &e) {
		return ""
	}
	return string(e.Class) + " " + e.Kind
}

func TestReadNeedsNoApproval(t *testing.T) {
	b := newBed(t, fake{info: Info{Name: "a.read", Hazard: Read, Kind: Connector}})
	reply, err := b.call("a.read", "", nil)
	if err != nil || b.ran != 1 {
		t.Fatalf("Call = %+v, %v", reply, err)
	}
	receipt, err := OpenReceipt(reply.Receipt, b.key.Public().(ed25519.PublicKey))
	if err != nil || receipt.Authorised != (Authorised{}) || receipt.Call != reply.ID {
		t.Errorf("receipt = %+v, %v", receipt, err)
	}
}

func TestWriteNeedsAnApprovalOfExactlyThis(t *testing.T) {
	for _, hazard := range []Hazard{Write, Unknown} {
		b := newBed(t, fake{info: Info{Name: "a", Hazard: hazard, Kind: Action}}, fake{info: Info{Name: "b", Hazard: hazard, Kind: Action}})
		e := b.approval(t, "a", `{"n":1}`)
		with := func(c *Call) { c.Approval = &e }
		for name, try := range map[string]func() (Reply, error){
			"request not_approved":     func() (Reply, error) { return b.call("a", `{"n":1}`, nil) },
			"request approval_refused": func() (Reply, error) { return b.call("a", `{"n":2}`, with) },
		} {
			if _, err := try(); kind(err) != name {
				t.Errorf("error = %v, want %s", err, name)
			}
		}
		if _, err := b.call("b", `{"n":1}`, with); kind(err) != "request approval_refused" {
			t.Errorf("for another capability: %v", err)
		}
		if _, err := b.call("a", `{"n":1}`, func(c *Call) { c.ApproveLocally = true }); kind(err) != "request not_approved" {
			t.Errorf("locally without development mode: %v", err)
		}
		if b.ran != 0 {
			t.Fatalf("%d ran without an approval", b.ran)
		}
		reply, err := b.call("a", ` { "n" : 1.0 } `, with)
		if err != nil || b.ran != 1 {
			t.Fatalf("with it: %v", err)
		}
		if _, err := b.call("a", `{"n":1}`, with); kind(err) != "request approval_used" || b.ran != 1 {
			t.Errorf("a second time: %v", err)
		}
		receipt, err := OpenReceipt(reply.Receipt, b.key.Public().(ed25519.PublicKey))
		if err != nil || receipt.Authorised.Approver != "alice" || receipt.Authorised.Run != 1 {
			t.Errorf("receipt = %+v, %v", receipt, err)
		}
		if v, ok, err := b.Approved.Last(Prepared{Bound: receipt.Bound, Title: "t"}); !ok || err != nil || v.Documents[0].Text != `{"n":1}` {
			t.Errorf("last approved = %+v, %v, %v", v, ok, err)
		}
	}
}

func TestDevelopmentModeSaysSo(t *testing.T) {
	b := newBed(t, fake{info: Info{Name: "a", Hazard: Unknown, Kind: Workload}})
	b.Development = true
	if _, err := b.call("a", "{}", nil); kind(err) != "request not_approved" {
		t.Errorf("without asking for it: %v", err)
	}
	if _, err := b.call("a", "{}", func(c *Call) { c.ApproveLocally = true }); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(strings.Join(b.log, "\n"), "nobody has approved this") {
		t.Errorf("log = %q", b.log)
	}
}

func TestSecretsAreOfTheProject(t *testing.T) {
	t.Setenv("HOME_SECRET", "from the environment")
	read := Info{Hazard: Read, Kind: Action}
	named := func(name string) Info { i := read; i.Name = name; return i }
	b := newBed(t,
		fake{info: named("own"), secrets: []string{"TOKEN"}}, fake{info: named("others"), secrets: []string{"OTHER"}},
		fake{info: named("env"), secrets: []string{"HOME_SECRET"}}, fake{info: named("gone"), secrets: []string{"GONE"}},
	)
	for _, name := range []string{"others", "env", "gone"} {
		if _, err := b.call(name, "{}", nil); kind(err) != "request no_secret" || b.ran != 0 {
			t.Errorf("%s: error = %v after %d runs, want no_secret before any", name, err, b.ran)
		}
	}
	reply, err := b.call("own", "{}", nil)
	if err != nil {
		t.Fatal(err)
	}
	// It got the value, and what is returned and logged shows its name.
	if got := reply.Output.(map[string]string)["TOKEN"]; got != "[redacted:TOKEN] of 3" {
		t.Errorf("output = %q", got)
	}
	if !slices.Contains(b.log, "TOKEN=[redacted:TOKEN]") {
		t.Errorf("log = %q", b.log)
	}
	data, err := os.ReadFile(b.Audit.Path)
	if err != nil || strings.Contains(string(data)+string(reply.Receipt.Payload), "hunter2") {
		t.Errorf("the secret is in the audit log or the receipt: %v", err)
	}
}

// TestCredentialsAreNobodysSecrets wants a connector to get them, and nobody else.
func TestCredentialsAreNobodysSecrets(t *testing.T) {
	closed := false
	read := Info{Name: "db.read", Hazard: Read, Kind: Connector}
	b := newBed(t, fake{info: read, reads: "db", closed: &closed}, fake{info: Info{Name: "thief", Hazard: Read, Kind: Action}, secrets: []string{"db"}},
		fake{info: Info{Name: "gone", Hazard: Read, Kind: Connector}, reads: "gone"}, fake{info: Info{Name: "none", Hazard: Read, Kind: Connector}, reads: "none"})
	shop := b.Projects["shop"]
	shop.Credentials = map[string]secret.Source{"db": {Value: "canary-credentials"}, "gone": {File: "/nowhere"}}
	b.Projects["shop"] = shop
	reply, err := b.call("db.read", "{}", nil)
	if got := reply.Output.(map[string]string)["credentials"]; err != nil || got != "[redacted:db]" {
		t.Errorf("credentials = %q, %v", got, err)
	}
	for name, want := range map[string]string{"thief": "request no_secret", "gone": "engine no_credentials", "none": "engine internal"} {
		if _, err := b.call(name, "{}", nil); kind(err) != want || b.ran != 1 {
			t.Errorf("%s: %v after %d runs, want %s", name, err, b.ran, want)
		}
	}
	data, err := os.ReadFile(b.Audit.Path)
	if err != nil || strings.Contains(string(data), "canary") || !strings.Contains(string(data), `"names":["db"]`) {
		t.Errorf("audit log = %s, %v", data, err)
	}
	if err := b.Close(); err != nil || !closed {
		t.Errorf("Close = %v, closed %v", err, closed)
	}
}

func TestArgumentsAreRefusedAtOnce(t *testing.T) {
	b := newBed(t, fake{info: Info{Name: "a", Hazard: Read, Kind: Action}})
	_, err := b.call("a", `{"n":0.5,"s":[],"a/b~":1}`, nil)
	var v Violations
	if kind(err) != "request bad_arguments" || !errors.As(err, &v) || len(v) != 3 {
		t.Fatalf("error = %v, want three violations", err)
	}
	var pointers []string
	for _, x := range v {
		pointers = append(pointers, x.Pointer)
	}
	if want := []string{"", "/n", "/s"}; !slices.Equal(pointers, want) {
		t.Errorf("pointers = %q, want %q: %v", pointers, want, v)
	}
	for _, args := range []string{"{", "[]", "1", `{"n":1e999}`, "\xff"} {
		if _, err := b.call("a", args, nil); kind(err) != "request bad_arguments" {
			t.Errorf("%s: %v", args, err)
		}
	}
}

func TestEveryStepIsAudited(t *testing.T) {
	b := newBed(t, fake{info: Info{Name: "a", Hazard: Write, Kind: Action}, secrets: []string{"TOKEN"}},
		fake{info: Info{Name: "bad", Hazard: Read, Kind: Action}, fail: engine.Failed("broken", "the host broke")})
	e := b.approval(t, "a", "{}")
	if _, err := b.call("a", "{}", func(c *Call) { c.Approval = &e }); err != nil {
		t.Fatal(err)
	}
	if _, err := b.call("nothing", "{}", nil); kind(err) != "request no_capability" {
		t.Error(err)
	}
	if _, err := b.call("a", "{}", func(c *Call) { c.Project = "none" }); kind(err) != "request no_project" {
		t.Error(err)
	}
	reply, err := b.call("bad", "{}", nil)
	if kind(err) != "engine broken" || reply.Receipt.Payload == nil {
		t.Errorf("a run that the engine broke: %v, receipt %s", err, reply.Receipt.Payload)
	}
	data, err := os.ReadFile(b.Audit.Path)
	if err != nil {
		t.Fatal(err)
	}
	var events []string
	for line := range strings.Lines(string(data)) {
		var l struct{ Entry audit.Entry }
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatal(err)
		}
		events = append(events, l.Entry.Event)
	}
	want := "dispatch approval secret start end dispatch refused dispatch refused dispatch approval start end refused"
	if got := strings.Join(events, " "); got != want {
		t.Errorf("events = %s\nwant     %s", got, want)
	}
	// Without an audit log nothing is done.
	b.Audit.Path = filepath.Join(t.TempDir(), "a")
	if err := os.Mkdir(b.Audit.Path, 0o700); err != nil {
		t.Fatal(err)
	}
	ran := b.ran
	if _, err := b.call("bad", "{}", nil); kind(err) != "engine no_audit" || b.ran != ran {
		t.Errorf("without an audit log: %v", err)
	}
}

func TestBrokenCapabilitiesHideNoOthers(t *testing.T) {
	b := newBed(t, fake{info: Info{Name: "good", Hazard: Read, Kind: Action}}, fake{info: Info{Name: "good", Hazard: Read, Kind: Action}},
		fake{info: Info{Name: "no name!", Hazard: Read, Kind: Action}}, fake{info: Info{Name: "schema", Hazard: Read, Kind: Action, Params: json.RawMessage(`{"type":"nothing"}`)}},
		fake{info: Info{Name: "remote", Hazard: Read, Kind: Action, Params: json.RawMessage(`{"$ref":"file:///etc/passwd"}`)}},
		fake{info: Info{Name: "writes", Hazard: Write, Kind: Connector}})
	list, problems, err := b.Capabilities("")
	if err != nil || len(list) != 1 || list[0].Name != "good" || len(problems) != 5 {
		t.Errorf("Capabilities = %+v, %+v, %v", list, problems, err)
	}
	if _, err := b.call("schema", "{}", nil); kind(err) != "engine broken_capability" {
		t.Errorf("a broken one: %v", err)
	}
	if _, _, err := b.Capabilities("none"); kind(err) != "request no_project" {
		t.Errorf("an unknown project: %v", err)
	}
}

func TestEnvironment(t *testing.T) {
	p := Project{Environments: []string{"production", "test"}}
	for give, want := range map[string]string{"": "request no_environment", "tset": "request no_environment", "test": ""} {
		if got, err := p.environment(give); kind(err) != want || err == nil && got != give {
			t.Errorf("environment(%q) = %q, %v", give, got, err)
		}
	}
	if got, err := (Project{Environments: []string{"only"}}).environment(""); got != "only" || err != nil {
		t.Errorf("the only one: %q, %v", got, err)
	}
}

func TestReceiptOneBit(t *testing.T) {
	b := newBed(t, fake{info: Info{Name: "a", Hazard: Read, Kind: Action}})
	reply, err := b.call("a", "{}", nil)
	if err != nil {
		t.Fatal(err)
	}
	public := b.key.Public().(ed25519.PublicKey)
	text := reply.Receipt.Encode()
	for i := range text {
		changed := slices.Clone(text)
		changed[i] ^= 1 << (i % 8)
		if e, err := signed.Parse(changed); err == nil {
			if _, err := OpenReceipt(e, public); err == nil {
				t.Fatalf("byte %d: accepted", i)
			}
		}
	}
}

func FuzzArguments(f *testing.F) {
	for _, s := range []string{"", "{}", `{"n":1}`, `{"n":1e999}`, `{"s":"\ud800"}`, "[[[", "\x00", `{"n":-0,"s":null}`} {
		f.Add([]byte(s))
	}
	b := newBed(f, fake{info: Info{Name: "a", Hazard: Read, Kind: Action}})
	f.Fuzz(func(t *testing.T, args []byte) {
		if _, err := b.call("a", string(args), nil); err != nil && kind(err) != "request bad_arguments" {
			t.Fatalf("%q: %v", args, err)
		}
	})
}

// TestHostileArgumentsAreBounded gives arguments in which everything is wrong, and names
// without end: the answer and the line of the audit log stay short, and are there.
func TestHostileArgumentsAreBounded(t *testing.T) {
	list := json.RawMessage(`{"type":"object","properties":{"l":{"type":"array","items":{"type":"string","pattern":"^a*$"}}}}`)
	b := newBed(t, fake{info: Info{Name: "a", Hazard: Read, Kind: Action, Params: list}})
	long := strings.Repeat("x-", 1<<20)
	for name, tt := range map[string]struct {
		project, capability, environment, args string
		violations                             int
	}{
		"very many are wrong":    {"shop", "a", "", `{"l":[` + strings.Repeat("1,", 9999) + `1]}`, maxViolations + 1},
		"too many to look at":    {"shop", "a", "", `{"l":[` + strings.Repeat("1,", MaxValues) + `1]}`, 0},
		"very many out of range": {"shop", "a", "", `{"l":[` + strings.Repeat("1e999,", 9999) + `1]}`, maxViolations + 1},
		"a long one is wrong":    {"shop", "a", "", `{"l":["` + long + `"]}`, 1},
		"a long capability":      {"shop", long, "", `{}`, 0},
		"a long project":         {long, "a", "", `{}`, 0},
		"a long environment":     {"shop", "a", long, `{}`, 0},
		"a line of the log":      {"shop\n{\"hash\":\"", "a\x00\x1b[2J\u2028", "\xff\r\n", `{}`, 0},
	} {
		_, err := b.Call(context.Background(), Call{Project: tt.project, Capability: tt.capability, Environment: tt.environment, Args: []byte(tt.args)})
		var v Violations
		errors.As(err, &v)
		if !strings.HasPrefix(kind(err), "request ") || len(v) != tt.violations {
			t.Errorf("%s: %s, %d violations, want a refusal with %d", name, kind(err), len(v), tt.violations)
		}
		size := 0
		for _, x := range v {
			size += len(x.Pointer) + len(x.Message)
		}
		if size > 200<<10 {
			t.Errorf("%s: violations of %d bytes", name, size)
		}
	}
	f, err := os.Open(b.Audit.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if s, bad := audit.Verify(f); err != nil || bad != nil || s.Lines != 16 || info.Size() > 100<<10 {
		t.Errorf("audit log of %d bytes: %+v, %v, %v; want two short lines for each of eight", info.Size(), s, err, bad)
	}
}

// TestOutputIsTheReceipts wants the bytes that a receipt has the hash of to be those that
// an edge can print as they are.
func TestOutputIsTheReceipts(t *testing.T) {
	const text = "\u202e\u009b\x1b<&>\u2028\U000e0041é\n"
	out, err := EncodeOutput(map[string]string{"stdout": text})
	var back map[string]string
	if err != nil || json.Unmarshal(out, &back) != nil || back["stdout"] != text {
		t.Fatalf("EncodeOutput = %s, %v", out, err)
	}
	if again := jsjson.Printable(string(out)); again != string(out) || strings.ContainsAny(again, "\u202e\u009b\u2028") {
		t.Errorf("a terminal has to be kept from %q", out)
	}
	receipt := &Receipt{}
	if err := receipt.observe(Outcome{Output: map[string]string{"stdout": text}}, nil); err != nil || receipt.Observed.OutputSHA256 != hash(out) {
		t.Errorf("the receipt has %s, %v, want the hash of %s", receipt.Observed.OutputSHA256, err, out)
	}
}
