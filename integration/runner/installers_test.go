package runner

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/direct-oci/engine/integration/testenv"
)

// TestInstallers has real npm and pip install, with locks and without.
func TestInstallers(t *testing.T) {
	root, err := filepath.Abs("../../build/clients/root")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(root + "/usr/bin/npm"); err != nil {
		t.Skip("needs build/clients/root: run hack/clients.sh")
	}
	testenv.RequireRoot(t)
	ownNetwork(t)
	r := newRegistry(t, true)
	b := newBed(t, "embedded", "  dependencies:\n    npm: "+r.config("/npm/")+"\n    pip: "+r.config("/simple/")+"\n"+
		"    unlocked: true\n    limits: {memoryMb: 1024, cpus: 2, pids: 512}\n    ca: "+filepath.Join(t.TempDir(), "ca.pem")+"\n")
	config, err := os.ReadFile(b.path("config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	_, ca, _ := strings.Cut(string(config), "ca: ")
	if err := os.WriteFile(strings.TrimSpace(ca), []byte(r.ca()), 0o600); err != nil {
		t.Fatal(err)
	}
	b.image(root) // takes long, so once: each runtime has a project of its own
	for runtime, project := range map[string]string{"embedded": "shop", "runsc": "other"} {
		t.Log(runtime)
		b.write("config.yaml", strings.Replace(string(config), "runtime: embedded", "runtime: "+runtime, 1))
		b.realNPM(t, r, project)
		b.realPip(t, r, project)
	}
}

// relock makes the call without a lock, then with the one that was reported, which must
// find what the first one has installed.
func (b *bed) relock(t *testing.T, project, want string, files map[string]string) {
	t.Helper()
	open, call := b.callFor(0, project, b.job("", files))
	if open.Stdout != want || len(open.Dependencies) != 1 || open.Dependencies[0].Generated == nil || len(open.Dependencies[0].Runs) != 2 {
		t.Fatalf("%s\nwant %q and a lock", call, want)
	}
	lock := open.Dependencies[0].Generated
	files[lock.Path] = lock.Contents
	locked, call := b.callFor(0, project, b.job("", files))
	if d := locked.Dependencies[0]; locked.Stdout != want || d.Generated != nil || d.Layer != open.Dependencies[0].Layer {
		t.Errorf("%s\nwant the same packages by their lock", call)
	}
	if again, call := b.callFor(0, project, b.job("", files)); again.Dependencies[0].Fetched || again.Stdout != want {
		t.Errorf("%s\nwant them without an installation", call)
	}
}

func (b *bed) realNPM(t *testing.T, r *registry, project string) {
	t.Helper()
	r.pack("one", map[string]string{
		"index.js":     "module.exports = 'one and ' + require('two')",
		"package.json": `{"name":"one","version":"1.0.0","main":"index.js","bin":"index.js","dependencies":{"two":"^1.0.0"},"scripts":{"postinstall":"echo ran >ran"}}`,
	})
	r.pack("two", map[string]string{"index.js": "module.exports = 'two'"})
	program := "import one from 'one'\nimport {createRequire} from 'node:module'\nimport {existsSync} from 'node:fs'\n" +
		"console.log(one, createRequire(import.meta.url)('two'), existsSync('/node_modules/one/ran'))\n"
	b.relock(t, project, "one and two two false\n", map[string]string{"main.mjs": program, "package.json": manifest("one")})
	// With another host in the lock, which npm would ask.
	lock := strings.ReplaceAll(r.lock("https://198.51.100.9", "two"), `"integrity"`, `"engines":{},"integrity"`)
	o, call := b.callFor(0, project, b.job("", map[string]string{"main.js": "console.log(require('two'))", "package.json": manifest("two"), "package-lock.json": lock}))
	if o.Stdout != "two\n" {
		t.Errorf("%s\nwant the registry to be asked", call)
	}
}

func (b *bed) realPip(t *testing.T, r *registry, project string) {
	t.Helper()
	lock := r.wheel("tiny_of_test", "WORD = 'tiny'\n")
	program := map[string]string{"main.py": "import tiny_of_test\nprint(tiny_of_test.WORD)\n", "requirements.txt": "tiny-of-test>=1\n"}
	b.relock(t, project, "tiny\n", program)
	program["requirements.txt"] = strings.Replace(lock, "sha256:", "sha256:"+strings.Repeat("0", 64)+" --hash=sha256:", 1)
	if o, call := b.callFor(0, project, b.job("", program)); o.Stdout != "tiny\n" {
		t.Errorf("%s\nwant one hash of two to do", call)
	}
	program["requirements.txt"] = "tiny_of_test==1.0 --hash=sha256:" + strings.Repeat("0", 64)
	b.wantRefusal(project, b.job("", program), `"kind":"fetch_failed"`, "THESE PACKAGES DO NOT MATCH THE HASHES")
}
