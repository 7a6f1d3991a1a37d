package config

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/engine"
)

const publicKey = "ntdRmwCAiWzh0OCWF9GMYLX5D34HC915872+Qkcvfgk="

const whole = `# a comment
development: true
stateDir: /srv/engine
redact: false
approvers:
  alice: {publicKey: ` + publicKey + `}
  bob:
    publicKey: |
      -----BEGIN PUBLIC KEY-----
      MCowBQYDK2VwAyEA+J8+GpkIMR6JP7Av8ymPMT+6+BQl9pukI6tVIrwde3Q=
      -----END PUBLIC KEY-----
secrets:
  SHARED: hunter2-shared
  FILE: {file: /etc/engine/file}
  BOTH: hunter2-runner
projects:
  shop:
    environments:
      production:
        firestore:
          project: shop-live
          credentials: {value: hunter2-key}
          limits: {rows: 50, bytes: 100000, timeoutSeconds: 2.5}
          masks: [{collection: users, fields: [ssn, profile.birth]}, {fields: [password]}]
      test: {firestore: {project: shop-test, database: eu-test, emulator: "localhost:8080"}}
    secrets:
      BOTH: {value: hunter2-project}
      CRED: {credential: db}
      CMD: {command: [/usr/bin/pass, hunter2-arg]}
    approvers: [alice]
    actions: /etc/engine/actions/shop
  "80": {}
sandbox:
  image: node
  limits: {cpus: 2, memoryMb: 256.5, pids: 64}
  dependencies:
    npm: {registry: "https://registry.example.org/npm/"}
    pip: {registry: "https://registry.example.org/simple/", hosts: [files.example.org]}
    limits: {memoryMb: 2048}
    keepDays: 7
  egress:
    allow: [api.example.com:443, 192.0.2.0/24:5432]
service:
  socket: /run/engine/other.sock
  access:
    - {user: build, allow: run, tenant: shop}
    - {group: "4", allow: read}
  tcp:
    listen: 127.0.0.1:7443
    certificate: /etc/engine/tls.crt
    key: /etc/engine/tls.key
    clientCA: /etc/engine/ca.crt
    clients: {panel: {allow: read}}
    tokens:
      ci: {sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08, allow: run, tenant: shop}
  limits: {cpus: 2, memoryMb: 1024}
  egress: {internet: true}
controlPlane: {url: "wss://control.example.com/link", identity: r1, signingSecret: hunter2-signing-secret}
`

func TestParse(t *testing.T) {
	c, err := Parse("test", []byte(whole))
	if err != nil {
		t.Fatal(err)
	}
	i := c.Installer()
	if i.Max.MemoryMB != 2048 || i.Max.CPUs != 2 || i.Max.Pids != 64 || i.KeepFor != 7*24*time.Hour || i.MaxBytes != 1<<30 || i.NPM.URL != "https://registry.example.org/npm/" || len(i.Pip.Grants()) != 2 || i.Scripts || i.Unlocked || i.Shared {
		t.Errorf("installer = %+v", i)
	}
	p := c.Profile()
	if p.Runtime != "runsc" || p.Max.CPUs != 2 || p.Max.MemoryMB != 256.5 || p.Max.Pids != 64 || p.Max.TimeoutSeconds != 120 || len(p.Ceiling.Names) != 1 || len(p.Ceiling.CIDRs) != 1 {
		t.Errorf("profile = %+v", p)
	}
	r := c.Runner(nil, "")
	shop := r.Projects["shop"]
	if len(shop.Approvers) != 1 || len(r.Projects["80"].Approvers) != 2 || r.Redact || !r.Development || shop.Load == nil {
		t.Errorf("runner = %+v", r)
	}
	value, err := shop.Secrets["BOTH"].Read(context.Background(), "")
	if err != nil || string(value) != "hunter2-project" || len(shop.Secrets) != 5 {
		t.Errorf("the project's secret = %q, %v; want it to win over the runner's", value, err)
	}
	live, dev := c.Projects["shop"].Environments["production"].Firestore, c.Projects["shop"].Environments["test"].Firestore
	if live.Limits.TimeoutSeconds != 2.5 || len(live.Masks) != 2 || dev.Emulator != "localhost:8080" || len(shop.Credentials) != 1 {
		t.Errorf("firestore = %+v, %+v, credentials of %d", live, dev, len(shop.Credentials))
	}
	if credentials, err := shop.Credentials["firestore of production"].Read(context.Background(), ""); string(credentials) != "hunter2-key" || err != nil {
		t.Errorf("credentials = %v", err)
	}
	// The same in JSON.
	asJSON, err := yaml.YAMLToJSON([]byte(whole))
	if err != nil {
		t.Fatal(err)
	}
	again, err := Parse("test", asJSON)
	one, err1 := json.Marshal(c)
	two, err2 := json.Marshal(again)
	if errors.Join(err, err1, err2) != nil || !bytes.Equal(one, two) {
		t.Errorf("in JSON: %v\n%+v\n%+v", err, again, c)
	}
}

func TestNothingIsShown(t *testing.T) {
	c, err := Parse("test", []byte(whole))
	if err != nil {
		t.Fatal(err)
	}
	dump, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	if shown := string(dump) + fmt.Sprintf("%v %+v %#v", c, c, c.Projects); strings.Contains(shown, "hunter2") {
		t.Errorf("a secret is shown: %s", shown)
	}
	// Nor by an error, whichever byte is wrong.
	for i := range whole {
		for _, c := range []byte{0, '{', '"', ':', '\t', '*', '&', '!', '%', '\n'} {
			b := []byte(whole)
			b[i] = c
			if _, err := Parse("test", b); err != nil && strings.Contains(err.Error()+err.(*Error).Remedy(), "hunter2") {
				t.Fatalf("byte %d as %q: %v", i, c, err)
			}
		}
	}
}

func TestProblems(t *testing.T) {
	tests := []struct{ name, text, want, fix string }{
		{"an unknown key", "development: true\nsandbox:\n  image: x\n  runtme: runsc\n", "line 4: sandbox.runtme is no key of a config", "did you mean runtime?"},
		{"a key in other letters", "Development: true", "line 1: Development is no key", "did you mean development?"},
		{"a key that comes twice", "development: true\ndevelopment: false\n", "line 2: the key development comes twice", ""},
		{"a number for a string", "stateDir: 5", "line 1: stateDir is not a string", ""},
		{"a string for a number", "sandbox: {image: x, limits: {cpus: many}}", "sandbox.limits.cpus is not a number", ""},
		{"half a process", "sandbox: {image: x, limits: {pids: 1.5}}", "is not a whole number", ""},
		{"yes for true", "development: yes please", "is not true or false", ""},
		{"a list for a mapping", "projects: [a]", "projects is not a mapping", ""},
		{"a mapping for a list", "sandbox: {image: x, egress: {allow: {a: b}}}", "is not a list", ""},
		{"no image", "sandbox: {}", "sandbox.image is missing", ""},
		{"an unknown runtime", "sandbox: {image: x, runtime: runcs}", "sandbox.runtime is none of", "did you mean run"},
		{"auto", "sandbox: {image: x, runtime: auto}", "sandbox.runtime is none of", ""},
		{"two sources", "secrets: {A: {value: x, file: /y}}", "secrets.A is no source", ""},
		{"an unknown source", "secrets: {A: {env: HOME}}", "secrets.A.? is no key", "known are value, file"},
		{"a secret's bad name", "secrets: {a-b: x}", "line 1: secrets has a name of a secret", "letters"},
		{"an unknown approver", "approvers: {alice: {publicKey: " + publicKey + "}}\nprojects: {p: {approvers: [alcie]}}", "is none of the approvers", "did you mean alice?"},
		{"a bad key", "approvers: {a: {publicKey: x}}", "cannot read public key", "keygen"},
		{"one key for two", "approvers: {a: {publicKey: " + publicKey + "}, b: {publicKey: " + publicKey + "}}", "approvers.b.publicKey is the key of a too", "keygen"},
		{"brackets without end", "a: " + strings.Repeat("[", 1<<20), "line 1: it is nested deeper than 100 levels", ""},
		{"mappings without end", "a:\n  " + strings.Repeat("{b: ", 1<<18), "line 2: it is nested deeper than 100 levels", ""},
		{"lists without end", strings.Repeat("- ", 1<<20), "it is nested deeper than 100 levels", ""},
		{"keys of keys without end", strings.Repeat("? ", 1<<20), "it is nested deeper than 100 levels", ""},
		{"tags of tags without end", strings.Repeat("!a\n", 1<<20), "line 101: it is nested deeper than 100 levels", ""},
		{"a bomb of aliases", "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", "a is no key", ""},
		{"a bad slug", "projects: {A b: {}}", "projects.A b is no slug", ""},
		{"actions without a sandbox", "projects: {p: {actions: /a}}", "needs a sandbox", ""},
		{"a bad grant", "sandbox: {image: x, egress: {allow: ['a b']}}", "sandbox.egress.allow is no list of grants", ""},
		{"dependencies from nowhere", "sandbox: {image: x, dependencies: {}}", "line 1: sandbox.dependencies names no registry", "for npm"},
		{"a registry without its URL", "sandbox: {image: x, dependencies: {npm: {}}}", "sandbox.dependencies.npm.registry is missing", ""},
		{"a registry's mistyped key", "sandbox: {image: x, dependencies: {npm: {registri: 'https://registry.example.org'}}}", "npm.registri is no key", "did you mean registry?"},
		{"a mistyped installer", "sandbox: {image: x, dependencies: {nmp: {registry: 'https://registry.example.org'}}}", "dependencies.nmp is no key", "did you mean npm?"},
		{"a registry that is no URL", "sandbox: {image: x, dependencies: {npm: {registry: registry.example.org}}}", "is no URL", "https://registry.example.org"},
		{"a registry with a password", "sandbox: {image: x, dependencies: {npm: {registry: 'https://u:hunter2@registry.example.org'}}}", "holds credentials", ""},
		{"a metadata service", "sandbox: {image: x, dependencies: {pip: {registry: 'http://169.254.169.254/'}}}", "pip cannot be reached", ""},
		{"a bad host", "sandbox: {image: x, dependencies: {pip: {registry: 'https://registry.example.org', hosts: ['a b']}}}", "pip cannot be reached", ""},
		{"no lock and no encryption", "sandbox: {image: x, dependencies: {unlocked: true, npm: {registry: 'http://registry.example.org'}}}", "is not encrypted", "use https"},
		{"a relative ca", "sandbox: {image: x, dependencies: {ca: ca.pem, npm: {registry: 'https://registry.example.org'}}}", "sandbox.dependencies.ca is not an absolute path", ""},
		{"a negative limit", "sandbox: {image: x, dependencies: {keepMb: -1, limits: {cpus: -1}, npm: {registry: 'https://registry.example.org'}}}", "keepMb is negative", ""},
		{"a firestore without a project", "projects: {p: {environments: {e: {firestore: {emulator: 'h:1'}}}}}", "firestore.project is missing", ""},
		{"a firestore by no credentials", "projects: {p: {environments: {e: {firestore: {project: shop}}}}}", "firestore wants credentials, or an emulator", ""},
		{"a firestore by two ways", "projects: {p: {environments: {e: {firestore: {project: shop, credentials: x, emulator: 'h:1'}}}}}", "wants credentials, or an emulator", ""},
		{"a mistyped firestore", "projects: {p: {environments: {e: {firestor: {project: shop}}}}}", "environments.e.firestor is no key", "did you mean firestore?"},
		{"a mistyped mask", "projects: {p: {environments: {e: {firestore: {project: shop, emulator: 'h:1', masks: [{colection: x, fields: [a]}]}}}}}", "masks[0].colection is no key", "did you mean collection?"},
		{"a mask of nothing", "projects: {p: {environments: {e: {firestore: {project: shop, emulator: 'h:1', masks: [{fields: [a..b]}]}}}}}", "masks[0] masks nothing: fields[0] has a name that is empty", ""},
		{"an emulator without a port", "projects: {p: {environments: {e: {firestore: {project: shop, emulator: localhost}}}}}", "emulator is not HOST:PORT", "localhost:8080"},
		{"a project by its name", "projects: {p: {environments: {e: {firestore: {project: My Shop, emulator: 'h:1'}}}}}", "project is no id", "the id"},
		{"a bad database", "projects: {p: {environments: {e: {firestore: {project: shop, database: A b, emulator: 'h:1'}}}}}", "database is no id of a database", "(default)"},
		{"too many rows", "projects: {p: {environments: {e: {firestore: {project: shop, emulator: 'h:1', limits: {rows: 1000001}}}}}}", "limits.rows is not between 0, for the default, and 100000", ""},
		{"less than no room", "minFreeDiskMb: -2", "minFreeDiskMb is neither", ""},
		{"a minimum that is no number", "minFreeMemoryMb: .nan", "minFreeMemoryMb", ""},
		{"an anchor", "stateDir: &a /x\nrunDir: *a\n", "has an anchor", ""},
		{"a tag", "stateDir: !!str x", "has an anchor, an alias or a tag", ""},
		{"no YAML", "a: [", "line 1: it is neither YAML nor JSON", ""},
		{"nothing", " \n", "is empty", ""},
		{"two documents", "development: true\n---\ndevelopment: false\n", "want one document", ""},
		{"an unknown class", "service: {access: [{user: a, allow: reed}]}", "service.access[0].allow is none of", "did you mean read?"},
		{"access for nobody", "service: {access: [{allow: read}]}", "service.access[0] names nobody", "a user"},
		{"a token in the clear", "service: {tcp: {listen: ':1', certificate: /c, key: /k, tokens: {ci: {sha256: secret, allow: run}}}}", "service.tcp.tokens.ci.sha256 is not 64", "engine config token"},
		{"clients without a CA", "service: {tcp: {listen: ':1', certificate: /c, key: /k, clients: {ci: {allow: run}}}}", "needs clientCA", ""},
		{"an address without TLS", "service: {tcp: {listen: ':1'}}", "service.tcp.certificate is missing", ""},
		{"a mistyped key of the service", "service: {sokcet: /x}", "service.sokcet is no key", "did you mean socket?"},
		{"records kept too short", "service: {keepRunsSeconds: 60}\n", "line 1: service.keepRunsSeconds is less than an hour", "come back for a result"},
		{"all at once", "developmnt: true\nstateDir: 5\nservice: {gcSeconds: -1}\n", "line 1: developmnt is no key of a config (did you mean development?); line 2: stateDir is not a string: put it into quotes; line 3: service.gcSeconds is negative", ""},
		{"a short secret of the link", "controlPlane: {url: 'wss://h/l', identity: a, signingSecret: short}", "line 1: controlPlane.signingSecret has less than 16 bytes", "32 random"},
		{"a list for a string", "stateDir: [a]", "stateDir is not a string", ""},
		{"nothing said of what could not be read", "service: {access: [{grop: engine, allow: run}]}", "line 1: service.access[0].grop is no key", "did you mean group?"},
		{"nothing said of what was meant", "sandbox: {imag: box}", "line 1: sandbox.imag is no key", "did you mean image?"},
		{"a runtime of sandboxes", "service: {sandboxes: {runtime: runcs}}", "service.sandboxes.runtime is none of auto, ", "did you mean run"},
		{"a tenant's name", "service: {sandboxes: {tenants: {A b: {weight: 1}}}}", "is no name of a tenant", "lower-case"},
		{"more than the most", "service: {sandboxes: {ttlSeconds: 20, maxTtlSeconds: 10}}", "service.sandboxes.ttlSeconds is more than maxTtlSeconds", ""},
		{"a step's directory elsewhere", "service: {sandboxes: {stores: {stepDirs: [input, ../x]}}}", "stores.stepDirs[1] leads out of the step", "input"},
		{"an address for a range", "service: {sandboxes: {callbacks: {allow: [10.1.2.3]}}}", "callbacks.allow[0] is no range of addresses", "10.1.2.3/32"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse("test", []byte(tt.text))
			var bad *Error
			if !errors.As(err, &bad) || !strings.Contains(err.Error(), tt.want) || !strings.Contains(bad.Remedy(), tt.fix) {
				t.Errorf("error = %v, fix %q; want %q and %q", err, bad.Remedy(), tt.want, tt.fix)
			}
		})
	}
}

// TestSchema holds the schema against configs, by the validator that others use.
func TestSchema(t *testing.T) {
	text, err := json.Marshal(Schema())
	if err != nil {
		t.Fatal(err)
	}
	schema, err := capability.CompileSchema(text)
	if err != nil {
		t.Fatal(err)
	}
	valid := func(config string) bool {
		asJSON, err := yaml.YAMLToJSON([]byte(config))
		if err != nil {
			t.Fatal(err)
		}
		var v any
		if err := json.Unmarshal(asJSON, &v); err != nil {
			t.Fatal(err)
		}
		return schema.Validate(v) == nil
	}
	if !valid(whole) {
		t.Error("a good config does not fit the schema")
	}
	for _, bad := range []string{"x: 1", "sandbox: {}", "secrets: {A: {value: x, file: /y}}", "development: 1", "projects: {p: {approver: []}}"} {
		if valid(bad) {
			t.Errorf("%s fits the schema", bad)
		}
	}
}

// TestRoom proves that what is to be kept free reaches every run: 0 is the default, below
// it none.
func TestRoom(t *testing.T) {
	c, err := Parse("test", []byte("minFreeDiskMb: 1.5\nminFreeMemoryMb: -1\nsandbox: {image: x}"))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range []engine.Host{c.Host(), c.Profile().Host} {
		if h.MinFreeDisk != 3<<19 || h.MinFreeMemory >= 0 {
			t.Errorf("room = %d and %d, want 1.5 MiB and none", h.MinFreeDisk, h.MinFreeMemory)
		}
	}
}

func TestLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte("development: true"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, value := range []string{path, "development: true", `{"development":true}`} {
		t.Setenv(Variable, value)
		if c, err := Load(""); err != nil || !c.Development {
			t.Errorf("$%s=%s: %+v, %v", Variable, value, c, err)
		}
	}
	if _, err := Load("/nowhere"); err == nil || !strings.Contains(err.Error(), "config=/nowhere: cannot be read: no such file") {
		t.Errorf("a missing file: %v", err)
	}
}

// TestReloadKeepsWhatWorks changes a config under a live runner.
func TestReloadKeepsWhatWorks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("projects: {one: {}}")
	read := func() (Config, error) { return Load(path) }
	c, err := read()
	if err != nil {
		t.Fatal(err)
	}
	accept := func(c Config) error {
		if _, ok := c.Projects["unwelcome"]; ok {
			return errors.New("not this one")
		}
		return nil
	}
	l := NewLive(c, read, accept, Means{Receipts: ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, 32))})
	first := l.Runner()
	write("projects: {one: {}, two: {bad: 1}}")
	if err := l.Reload(); err == nil || l.Runner() != first {
		t.Errorf("a bad config: error = %v, and the old one is gone", err)
	}
	write("projects: {unwelcome: {}}")
	if err := l.Reload(); err == nil || l.Runner() != first {
		t.Errorf("a config that is not accepted: error = %v, and the old one is gone", err)
	}
	write("projects: {two: {}}")
	if err := l.Reload(); err != nil {
		t.Fatal(err)
	}
	if _, ok := l.Runner().Projects["two"]; !ok {
		t.Error("the new config is not in force")
	}
	if _, ok := first.Projects["one"]; !ok {
		t.Error("a call under way has lost its project")
	}
}

// TestOnlyWhatIsConfiguredIsOffered wants the capabilities of Firestore where there is
// one, and nowhere else.
func TestOnlyWhatIsConfiguredIsOffered(t *testing.T) {
	c, err := Parse("test", []byte(whole))
	if err != nil {
		t.Fatal(err)
	}
	r := c.Runner(ed25519.NewKeyFromSeed(make([]byte, 32)), "")
	names := func(project string) string {
		t.Helper()
		list, problems, err := r.Capabilities(project)
		if err != nil || len(problems) > 0 && project == "80" {
			t.Fatalf("%v, %v", problems, err)
		}
		var all []string
		for _, c := range list {
			all = append(all, c.Name)
		}
		return strings.Join(all, " ")
	}
	if got := names("shop"); got != "firestore.count firestore.get firestore.listCollections firestore.query workload.execute" {
		t.Errorf("shop offers %s", got)
	}
	if got := names("80"); got != "workload.execute" {
		t.Errorf("a project without Firestore offers %s", got)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(whole))
	f.Add([]byte("a: &b [*b]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse("test", data)
		if err == nil {
			c.Runner(nil, "")
			c.Serve()
		}
	})
}
