package workload

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/direct-oci/engine/capability/jsjson"
)

// digestJS is the digest as a JavaScript program computes it.
const digestJS = `
const {createHash} = require('node:crypto');
const order = (a, b) => a < b ? -1 : a > b ? 1 : 0;
for (const line of require('node:fs').readFileSync(0, 'utf8').split('\n')) {
	if (line === '') continue;
	const s = JSON.parse(line), limits = {};
	for (const k of ['cpus', 'memoryMb', 'timeoutSeconds'])
		if (s.limits?.[k] !== undefined) limits[k] = s.limits[k];
	const text = JSON.stringify({
		files: s.files.map(({path, contents}) => ({path, contents})).sort((a, b) => order(a.path, b.path)),
		entrypoint: s.entrypoint,
		secrets: [...(s.secrets ?? [])].sort(order),
		egress: s.egress ?? false,
		limits,
	});
	console.log(createHash('sha256').update(text).digest('hex'));
}`

// TestDigestIsJavaScripts compares thousands of random specs with Node.
func TestDigestIsJavaScripts(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("node is missing")
		}
		t.Skip("node is missing: install nodejs")
	}
	seed := uint64(time.Now().UnixNano())
	g := generator{rand.New(rand.NewPCG(seed, 6))}
	n := 10000
	if testing.Short() {
		n = 1000
	}
	var in bytes.Buffer
	var lines []string
	for range n {
		lines = append(lines, g.spec())
		in.WriteString(lines[len(lines)-1] + "\n")
	}
	cmd := exec.Command(node, "-e", digestJS)
	cmd.Stdin, cmd.Stderr = &in, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("seed %d: node: %v", seed, err)
	}
	want := strings.Fields(string(out))
	if len(want) != n {
		t.Fatalf("seed %d: node printed %d digests of %d", seed, len(want), n)
	}
	for i, line := range lines {
		spec := mustParse(t, line)
		if got := spec.Digest(); got != want[i] {
			t.Fatalf("seed %d: digest = %s, want %s of %s\nwritten as %s", seed, got, want[i], line, spec.appendDigested(nil))
		}
	}
}

func mustParse(t *testing.T, text string) Spec {
	t.Helper()
	v, err := jsjson.Parse([]byte(text))
	if err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	spec, err := ParseSpec(v)
	if err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return spec
}

type generator struct{ *rand.Rand }

func (g generator) pick(of ...string) string { return of[g.IntN(len(of))] }

// spec writes a random spec as JSON text, keys in any order.
func (g generator) spec() string {
	var files []string
	for range 1 + g.IntN(4) {
		files = append(files, g.object(`"path":`+g.text(), `"contents":`+g.text(), g.junk()))
	}
	members := []string{
		`"files":[` + strings.Join(files, ", ") + "]", `"entrypoint":` + g.text(), g.junk(),
	}
	if g.IntN(2) == 0 {
		members = append(members, `"title":`+g.text())
	}
	if g.IntN(2) == 0 {
		members = append(members, `"secrets":`+g.texts())
	}
	if g.IntN(2) == 0 {
		members = append(members, `"egress":`+g.pick("true", "false", g.text(), g.texts()))
	}
	if g.IntN(2) == 0 {
		var limits []string
		for _, k := range []string{"cpus", "memoryMb", "timeoutSeconds", "pids", "other"} {
			if g.IntN(2) == 0 {
				limits = append(limits, strconv.Quote(k)+":"+g.number())
			}
		}
		members = append(members, `"limits":`+g.object(limits...))
	}
	return g.object(members...)
}

func (g generator) object(members ...string) string {
	g.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	return "{" + strings.Join(members, g.pick(",", " ,\t")) + "}"
}

// junk is a member that no digest knows, sometimes of a known name that comes again.
func (g generator) junk() string {
	name := g.pick("x"+strconv.Itoa(g.IntN(1000)), "__proto__", "constructor", "toString", "prototype")
	return strconv.Quote(name) + ":" + g.pick(`{"secrets":["x"],"egress":true,"limits":{"cpus":3},"contents":"x"}`, "null", "[[]]", `{"path":1}`, g.text(), g.number())
}

func (g generator) texts() string {
	var list []string
	for range g.IntN(4) {
		list = append(list, g.text())
	}
	return "[" + strings.Join(list, ",") + "]"
}

// text writes a string whose units come from everywhere, raw or escaped.
func (g generator) text() string {
	var b strings.Builder
	b.WriteByte('"')
	for range g.IntN(8) {
		switch g.IntN(10) {
		case 0:
			fmt.Fprintf(&b, `\u%04x`, 0xd800+g.IntN(0x800)) // half a pair, or with luck a whole one
		case 1:
			fmt.Fprintf(&b, `\ud83d\ude%02X`, g.IntN(256))
		case 2:
			b.WriteRune(rune(0x10000 + g.IntN(0x100000)))
		case 3:
			b.WriteRune(rune(0xe000 + g.IntN(0x1fff)))
		case 4:
			fmt.Fprintf(&b, `\u%04X`, g.IntN(0x80))
		case 5:
			b.WriteString(g.pick(`\"`, `\\`, `\/`, `\b`, `\f`, `\n`, `\r`, `\t`, "\u2028", "\u2029", "\x7f", "\u0080", "\ufeff", "\ufffd", "<", ">", "&"))
		default:
			b.WriteByte(byte('a' + g.IntN(4)))
		}
	}
	b.WriteByte('"')
	return b.String()
}

func (g generator) number() string {
	switch g.IntN(6) {
	case 0:
		return g.pick("0", "-0", "0.1", "1e21", "999999999999999900000", "1e-6", "1e-7", "1e400", "-1e400", "5e-324", "1e-400",
			"9007199254740993", "123456789012345678901234567890", "0.1e1", "1E+2", "1.0", "4.35", "1.7976931348623157e308", "2.2250738585072011e-308")
	case 1:
		return strconv.Itoa(g.IntN(5000))
	case 2:
		return strconv.FormatFloat(float64(g.IntN(100000))/1000, 'f', 3, 64)
	default:
		f := math.Float64frombits(g.Uint64())
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return "1"
		}
		return strconv.FormatFloat(f, "eEf"[g.IntN(3)], g.IntN(20)-1, 64)
	}
}

// TestDigest holds the digest against values computed elsewhere, so that it is fixed
// where there is no Node.
func TestDigest(t *testing.T) {
	text := `{"limits":{"memoryMb":256,"cpus":1.0,"pids":3},"title":"t","secrets":["b","a"],"files":[` +
		`{"path":"\uff61","contents":"<\u2028\ud800>"},{"path":"\ud83d\ude00","contents":""}],"entrypoint":"a.sh"}`
	want := `{"files":[{"path":"😀","contents":""},{"path":"｡","contents":"<` + "\u2028" + `\ud800>"}],` +
		`"entrypoint":"a.sh","secrets":["a","b"],"egress":false,"limits":{"cpus":1,"memoryMb":256}}`
	if got := string(mustParse(t, text).appendDigested(nil)); got != want {
		t.Errorf("digested = %s\nwant       %s", got, want)
	}
}

func TestParseSpecRefuses(t *testing.T) {
	for text, pointer := range map[string]string{
		`[]`: "/", `{}`: "/files", `{"files":{}}`: "/files",
		`{"files":[1],"entrypoint":""}`:                           "/files/0",
		`{"files":[{"path":"a"}],"entrypoint":""}`:                "/files/0/contents",
		`{"files":[{"path":null,"contents":""}],"entrypoint":""}`: "/files/0/path",
		`{"files":[]}`: "/entrypoint",
		`{"files":[],"entrypoint":"","secrets":"a"}`:                  "/secrets",
		`{"files":[],"entrypoint":"","secrets":null}`:                 "/secrets",
		`{"files":[],"entrypoint":"","secrets":[1]}`:                  "/secrets/0",
		`{"files":[],"entrypoint":"","egress":null}`:                  "/egress",
		`{"files":[],"entrypoint":"","egress":{}}`:                    "/egress",
		`{"files":[],"entrypoint":"","egress":["a",1]}`:               "/egress/1",
		`{"files":[],"entrypoint":"","limits":null}`:                  "/limits",
		`{"files":[],"entrypoint":"","limits":{"cpus":"1"}}`:          "/limits/cpus",
		`{"files":[],"entrypoint":"","limits":{"memoryMb":null}}`:     "/limits/memoryMb",
		`{"files":[],"entrypoint":"","limits":{"timeoutSeconds":[]}}`: "/limits/timeoutSeconds",
	} {
		v, err := jsjson.Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		_, err = ParseSpec(v)
		wrong, ok := err.(*TypeError)
		if !ok || wrong.Pointer != pointer {
			t.Errorf("ParseSpec(%s): error = %v, want one about %s", text, err, pointer)
		}
	}
}
