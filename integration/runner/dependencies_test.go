package runner

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/direct-oci/engine/integration/testenv"
)

// installing is a bed whose image has something that plays npm, and a registry.
type installing struct {
	*bed
	registry *registry
}

func newInstalling(t *testing.T, runtime, more string) *installing {
	t.Helper()
	testenv.RequireRoot(t)
	ownNetwork(t)
	r := newRegistry(t, false)
	i := &installing{newBed(t, runtime, "  dependencies:\n    npm: "+r.config("/npm/")+"\n    limits: {memoryMb: 128}\n"+more), r}
	npm, err := os.ReadFile("testdata/npm")
	if err != nil {
		t.Fatal(err)
	}
	root := testenv.CopyOfRoot(t)
	if err := os.WriteFile(filepath.Join(root, "bin/npm"), npm, 0o755); err != nil {
		t.Fatal(err)
	}
	i.image(root)
	return i
}

// image puts another root in the place of the bed's.
func (b *bed) image(root string) {
	b.t.Helper()
	b.engine(0, "image", "rm", "--state-dir", b.path("state"), "box")
	b.engine(0, "image", "import", "--state-dir", b.path("state"), root, "box")
}

// job writes the arguments of a workload with these files, main.* being what runs.
func (b *bed) job(more string, files map[string]string) string {
	b.t.Helper()
	type file struct {
		Path     string `json:"path"`
		Contents string `json:"contents"`
	}
	var list []file
	entrypoint := ""
	for path, text := range files {
		list = append(list, file{path, text})
		if strings.HasPrefix(path, "main.") {
			entrypoint = path
		}
	}
	text, err := json.Marshal(list)
	if err != nil {
		b.t.Fatal(err)
	}
	return b.write("job.json", `{"title":"job","files":`+string(text)+`,"entrypoint":"`+entrypoint+`"`+more+`}`)
}

// installed is what a call says of its dependencies.
type installed struct {
	output
	Dependencies []struct {
		Kind      string
		Lock      string
		Layer     string
		Packages  int
		Fetched   bool
		Ms        float64
		Runs      []string
		Generated *struct{ Path, Contents string }
	}
}

// callFor approves a call of project and makes it.
func (b *bed) callFor(status int, project, spec string) (installed, testenv.Result) {
	b.t.Helper()
	approval := b.path("approval.json")
	b.governed(0, "approve", project, "workload.execute", "@"+spec, "--key", b.path("alice.pem"), "--approver", "alice", "-o", approval)
	call := b.governed(status, "call", project, "workload.execute", "@"+spec, "--approval", approval, "--receipt", b.path("receipt.json"), "--json")
	var o installed
	if err := json.Unmarshal([]byte(call.Stdout), &o); err != nil {
		b.t.Fatalf("%s\n%v", call, err)
	}
	return o, call
}

// wantRefusal approves and makes a call that is to fail so.
func (b *bed) wantRefusal(project, spec string, words ...string) {
	b.t.Helper()
	_, call := b.callFor(125, project, spec)
	for _, w := range words {
		if !strings.Contains(call.Stdout, w) {
			b.t.Errorf("%s\nwant %q", call, w)
		}
	}
}

const lists = `cat /node_modules/*/index.js; stat -c '%n %a %u' /node_modules /node_modules/a/index.js
test -e /node_modules/b/ran && echo a script ran
touch /node_modules/x 2>/dev/null && echo writable
wget -qO- "$REGISTRY" 2>/dev/null && echo reached
exit 0`

// TestDependencies goes from a lock to a layer, and to the same layer again.
func TestDependencies(t *testing.T) {
	for _, rt := range runtimes {
		t.Run(rt, func(t *testing.T) {
			i := newInstalling(t, rt, "")
			r := i.registry
			r.pack("a", map[string]string{"index.js": "this is a\n"})
			r.pack("b", map[string]string{"index.js": "this is b\n", "package.json": `{"name":"b","version":"1.0.0","scripts":{"install":"touch ran"}}`})
			files := map[string]string{"main.sh": strings.ReplaceAll(lists, "$REGISTRY", r.url), "package.json": manifest("a", "b"), "package-lock.json": r.lock("https://elsewhere.example", "a", "b")}
			spec := i.job("", files)
			review := i.governed(0, "approve", "shop", "workload.execute", "@"+spec).Stdout
			for _, want := range []string{"dependencies (npm)", "registry: " + r.url, "install scripts: not run", "a 1.0.0 sha512-", "elsewhere.example"} {
				if !strings.Contains(review, want) {
					t.Errorf("the review lacks %q:\n%s", want, review)
				}
			}
			o, call := i.callFor(0, "shop", spec)
			// The host's root is nobody inside.
			want := "this is a\nthis is b\n/node_modules 555 65534\n/node_modules/a/index.js 444 65534\n"
			if o.Stdout != want || o.Network.Mode != "none" {
				t.Errorf("%s\nwant stdout %q", call, want)
			}
			if len(o.Dependencies) != 1 || !o.Dependencies[0].Fetched || o.Dependencies[0].Packages != 2 || len(o.Dependencies[0].Runs) != 1 {
				t.Fatalf("%s\nwant two packages fetched", call)
			}
			if !strings.Contains(call.Stderr, "npm: added packages") || strings.Contains(o.Stdout+o.Stderr, "noise") {
				t.Errorf("%s\nwant the installer's words as progress, and nowhere else", call)
			}
			d := o.Dependencies[0]
			receipt := i.engine(0, "verify", i.path("receipt.json"), "--key", i.path("state/receipts/key.pub"), "--json").Stdout
			for _, want := range []string{`"lock":"npm:` + d.Lock + `"`, `"layers":[{"name":"npm-` + d.Lock + `","digest":"` + d.Layer + `"}]`} {
				if !strings.Contains(receipt, want) {
					t.Errorf("the receipt lacks %s: %s", want, receipt)
				}
			}
			r.visits("")
			again, call := i.callFor(0, "shop", spec)
			if e := again.Dependencies[0]; e.Fetched || e.Layer != d.Layer || len(e.Runs) != 0 || r.visits("") != 0 {
				t.Errorf("%s\nwant the same layer without a visit", call)
			}
			other, call := i.callFor(0, "other", spec)
			if e := other.Dependencies[0]; !e.Fetched || e.Layer != d.Layer || r.visits(".tgz") != 2 {
				t.Errorf("%s\nwant another project to fetch for itself", call)
			}
			i.refuseOtherLocks(t, spec, files)
			i.refuseDamage(t, i.job("", files))
		})
	}
}

// refuseOtherLocks proves that an approval is of one lock from one registry.
func (i *installing) refuseOtherLocks(t *testing.T, spec string, files map[string]string) {
	t.Helper()
	approval := i.approve("workload.execute", spec)
	refused := func(want string, spec string) {
		t.Helper()
		call := i.governed(125, "call", "shop", "workload.execute", "@"+spec, "--approval", approval, "--json")
		if !strings.Contains(call.Stdout, `"kind":"approval_refused"`) || !strings.Contains(call.Stdout, want) {
			t.Errorf("%s\nwant a refusal that names %s", call, want)
		}
	}
	lock := files["package-lock.json"]
	files["package-lock.json"] = strings.Replace(lock, "sha512-", "sha512-A", 1)
	at := strings.Index(files["package-lock.json"], "sha512-A") + len("sha512-A")
	files["package-lock.json"] = files["package-lock.json"][:at] + files["package-lock.json"][at+1:]
	refused("/digest", i.job("", files))
	files["package-lock.json"] = lock
	same := i.job("", files)
	config, err := os.ReadFile(i.path("config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	i.write("config.yaml", strings.Replace(string(config), "/npm/'", "/npm/./'", 1))
	refused("/lock is not as it was approved", same)
	i.write("config.yaml", strings.Replace(string(config), "    npm:", "    scripts: true\n    npm:", 1))
	refused("/lock is not as it was approved", i.job(`,"dependencies":{"scripts":true}`, files))
	i.write("config.yaml", string(config))
}

// refuseDamage changes one byte of a layer on the disk.
func (i *installing) refuseDamage(t *testing.T, spec string) {
	t.Helper()
	found, err := filepath.Glob(i.path("state/deps/project-shop/.layers/*/tree/node_modules/a/index.js"))
	if err != nil || len(found) != 1 {
		t.Fatalf("layers: %q, %v", found, err)
	}
	if err := os.WriteFile(found[0], []byte("this is x\n"), 0o444); err != nil {
		t.Fatal(err)
	}
	i.wantRefusal("shop", spec, `"kind":"damaged_layer"`, "not what was sealed")
	if o, call := i.callFor(0, "other", spec); !strings.Contains(o.Stdout, "this is a\n") {
		t.Errorf("%s\nwant another project's layer to be whole", call)
	}
}

// TestDependenciesKeepSecrets has the installer print all that it is given.
func TestDependenciesKeepSecrets(t *testing.T) {
	i := newInstalling(t, "embedded", "    scripts: true\n")
	r := i.registry
	r.pack("a", map[string]string{"index.js": "", "package.json": `{"name":"a","version":"1.0.0","scripts":{"install":"env >env; cat /run/secrets/* >>env 2>/dev/null; cat /proc/*/environ >>env 2>/dev/null; wget -T 3 -qO- http://198.51.100.7/ || echo nobody else >>env"}}`})
	spec := i.job(`,"secrets":["TOKEN","KEY"],"dependencies":{"scripts":true}`, map[string]string{
		"main.sh": `cat /node_modules/a/env; test -n "$TOKEN" && test -s "$KEY" && echo has them`, "package.json": manifest("a"), "package-lock.json": r.lock(r.url, "a"),
	})
	review := i.governed(0, "approve", "shop", "workload.execute", "@"+spec).Stdout
	if !strings.Contains(review, "INSTALL SCRIPTS ARE RUN") {
		t.Errorf("the review does not warn of scripts:\n%s", review)
	}
	o, call := i.callFor(0, "shop", spec)
	if !strings.HasSuffix(o.Stdout, "nobody else\nhas them\n") || !strings.Contains(o.Stdout, "HOME=/workload") || strings.Contains(call.Stdout+call.Stderr, "canary") {
		t.Errorf("%s\nwant a script's environment without secrets", call)
	}
	record := i.engine(0, "inspect", "--state-dir", i.path("state"), o.Dependencies[0].Runs[0]).Stdout
	for _, want := range []string{`"mode": "names+cidr"`, `"phase": "dependencies"`} {
		if !strings.Contains(record, want) {
			t.Errorf("the installer's record lacks %s:\n%s", want, record)
		}
	}
	i.search(t, "after an installation")
}

// TestDependenciesAttack has packages try to leave more behind than files.
func TestDependenciesAttack(t *testing.T) {
	i := newInstalling(t, "embedded", "    scripts: true\n    maxMb: 1\n    maxFiles: 100\n")
	r := i.registry
	attack := func(script string) string {
		r.pack("a", map[string]string{"index.js": "x", "package.json": `{"name":"a","version":"1.0.0","scripts":{"install":"` + script + `"}}`})
		return i.job(`,"dependencies":{"scripts":true}`, map[string]string{
			"main.sh": "stat -c %a /node_modules/a/su; ls /node_modules", "package.json": manifest("a"), "package-lock.json": r.lock(r.url, "a"),
		})
	}
	for name, tt := range map[string]struct{ script, want string }{
		"a link to the root's files": {"ln -s /etc/shadow shadow", "leads out"},
		"a link upwards":             {"ln -s ../../../etc etc", "leads out"},
		"a link to the image":        {"ln -s ../../bin/sh sh", "leads out"},
		"a fifo":                     {"mkfifo pipe", "devices, fifos"},
		"a link in place of the top": {"cd ../..; mv node_modules real; ln -s real node_modules", "not the directory node_modules alone"},
		"more bytes than are taken":  {"dd if=/dev/zero of=big bs=1M count=3 2>/dev/null", "more than 1048576 bytes"},
		"more files than are taken":  {"for n in $(seq 200); do touch f$n; done", "more than 100 entries"},
		"a script that fails":        {"echo so sorry >&2; exit 3", "so sorry"},
		"a script that kills":        {"kill -9 $PPID", `"kind":"fetch_failed"`},
		"more memory than there is":  {"dd if=/dev/zero of=/workload/big bs=1M count=900", `"kind":"fetch_failed"`},
		"garbage in the archive":     {"for p in /proc/[0-9]*; do echo garbage >$p/fd/3; done; echo garbage >&3", `Bad file descriptor`},
	} {
		t.Log(name) // on this thread, which is where the registry is
		i.wantRefusal("shop", attack(tt.script), tt.want)
	}
	if names, err := filepath.Glob(i.path("state/deps/project-shop/npm-*")); err != nil || len(names) != 0 {
		t.Errorf("of what was refused there is %q, %v", names, err)
	}
	o, call := i.callFor(0, "shop", attack("touch su; chmod 6755 su"))
	if o.Stdout != "555\na\n" {
		t.Errorf("%s\nwant set-id bits dropped", call)
	}
	// The registry gives another tarball than the one that was locked.
	r.pack("b", map[string]string{"index.js": "good"})
	spec := i.job("", map[string]string{"main.sh": "", "package.json": manifest("b"), "package-lock.json": r.lock(r.url, "b")})
	r.pack("b", map[string]string{"index.js": "evil"})
	i.wantRefusal("shop", spec, `"kind":"fetch_failed"`, "EINTEGRITY")
	i.wantNoRests(t)
}

// wantNoRests proves that nothing unfinished is on the disk.
func (b *bed) wantNoRests(t *testing.T) {
	t.Helper()
	b.engine(0, "gc", "--state-dir", b.path("state"), "--run-dir", b.path("run"), "--cgroup-root", b.groups.Root)
	err := filepath.WalkDir(b.path("state/deps"), func(path string, d fs.DirEntry, err error) error {
		if strings.HasPrefix(d.Name(), ".tmp-") {
			t.Errorf("%s is left", path)
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// TestDependenciesAtOnce has several calls want the same: one of them fetches it.
func TestDependenciesAtOnce(t *testing.T) {
	i := newInstalling(t, "embedded", "")
	r := i.registry
	r.pack("a", map[string]string{"index.js": "this is a\n"})
	spec := i.job("", map[string]string{"main.sh": "cat /node_modules/a/index.js", "package.json": manifest("a"), "package-lock.json": r.lock(r.url, "a")})
	approval := i.path("approval.json")
	i.governed(0, "approve", "shop", "workload.execute", "@"+spec, "--key", i.path("alice.pem"), "--approver", "alice", "-o", approval, "--max-runs", "4")
	var calls []*testenv.Process
	for range 4 {
		calls = append(calls, testenv.Start(t, nil, "engine", "call", "shop", "workload.execute", "@"+spec, "--approval", approval, "--config", i.path("config.yaml")))
	}
	var wait sync.WaitGroup
	for _, c := range calls {
		wait.Go(func() {
			if call := c.Wait(t); call.Status != 0 || !strings.Contains(call.Stdout, `"stdout":"this is a\n"`) {
				t.Errorf("%s", call)
			}
		})
	}
	wait.Wait()
	if n := r.visits(".tgz"); n != 1 {
		t.Errorf("four calls fetched a package %d times", n)
	}
}

// TestSharedDependencies lets projects share, but for what ran scripts.
func TestSharedDependencies(t *testing.T) {
	i := newInstalling(t, "embedded", "    shared: true\n    scripts: true\n")
	r := i.registry
	r.pack("a", map[string]string{"index.js": "this is a\n"})
	files := map[string]string{"main.sh": "cat /node_modules/a/index.js", "package.json": manifest("a"), "package-lock.json": r.lock(r.url, "a")}
	for _, tt := range []struct {
		more, project string
		fetched       bool
	}{
		{"", "shop", true},
		{"", "other", false},
		{`,"dependencies":{"scripts":true}`, "shop", true},
		{`,"dependencies":{"scripts":true}`, "other", true},
		{`,"dependencies":{"scripts":true}`, "other", false},
	} {
		if o, call := i.callFor(0, tt.project, i.job(tt.more, files)); o.Stdout != "this is a\n" || o.Dependencies[0].Fetched != tt.fetched {
			t.Errorf("%s\nwant fetched = %v", call, tt.fetched)
		}
	}
}

// TestDependenciesAreTidiedUp proves that what nobody uses goes when something is
// installed, from the stores of all projects.
func TestDependenciesAreTidiedUp(t *testing.T) {
	i := newInstalling(t, "embedded", "    keepDays: 2\n")
	r := i.registry
	r.pack("a", map[string]string{"index.js": "this is a\n"})
	r.pack("b", map[string]string{"index.js": "this is b\n"})
	job := func(name string) string {
		return i.job("", map[string]string{"main.sh": "cat /node_modules/*/index.js", "package.json": manifest(name), "package-lock.json": r.lock(r.url, name)})
	}
	i.callFor(0, "shop", job("a"))
	i.callFor(0, "other", job("a"))
	i.callFor(0, "other", job("b"))
	names, err := filepath.Glob(i.path("state/deps/project-*/npm-*"))
	if err != nil || len(names) != 3 {
		t.Fatalf("layers: %q, %v", names, err)
	}
	long := time.Now().Add(-50 * time.Hour)
	for _, name := range names {
		if err := os.Chtimes(name, long, long); err != nil {
			t.Fatal(err)
		}
	}
	if o, call := i.callFor(0, "other", job("b")); o.Dependencies[0].Fetched {
		t.Errorf("%s\nwant it to be there still", call)
	}
	i.callFor(0, "shop", job("b"))
	left, err := filepath.Glob(i.path("state/deps/project-*/npm-*"))
	if err != nil || len(left) != 2 {
		t.Errorf("left are %q of %q, %v: want b in both stores", left, names, err)
	}
}

// TestDependenciesKilled kills the runner in the middle of an installation.
func TestDependenciesKilled(t *testing.T) {
	i := newInstalling(t, "embedded", "")
	r := i.registry
	r.pack("a", map[string]string{"index.js": "this is a\n"})
	spec := i.job("", map[string]string{"main.sh": "cat /node_modules/a/index.js", "package.json": manifest("a"), "package-lock.json": r.lock(r.url, "a")})
	approval := i.approve("workload.execute", spec)
	r.hold = make(chan struct{})
	p := testenv.Start(t, nil, "engine", "call", "shop", "workload.execute", "@"+spec, "--approval", approval, "--config", i.path("config.yaml"))
	testenv.WaitFor(t, testenv.Patience, "the installer to ask for a package", func() bool { return r.visits(".tgz") > 0 })
	p.Signal(t, os.Kill)
	p.Wait(t)
	close(r.hold)
	o, call := i.callFor(0, "shop", spec)
	if o.Stdout != "this is a\n" || !o.Dependencies[0].Fetched {
		t.Errorf("%s\nwant it installed anew", call)
	}
	i.wantNoRests(t)
}

// TestDependenciesRefused proves what is refused before anything starts.
func TestDependenciesRefused(t *testing.T) {
	i := newInstalling(t, "embedded", "")
	r := i.registry
	r.pack("a", map[string]string{"index.js": ""})
	lock := r.lock(r.url, "a")
	for name, tt := range map[string]struct {
		more  string
		files map[string]string
		kind  string
	}{
		"no lock":              {"", map[string]string{"main.sh": "", "package.json": manifest("a")}, "no_lock"},
		"a lock of a git":      {"", map[string]string{"main.sh": "", "package.json": manifest("a"), "package-lock.json": strings.Replace(lock, "http:", "git+http:", 1)}, "bad_lock"},
		"scripts":              {`,"dependencies":{"scripts":true}`, map[string]string{"main.sh": "", "package.json": manifest("a"), "package-lock.json": lock}, "no_scripts"},
		"a kind without place": {"", map[string]string{"main.py": "", "requirements.txt": "a==1\n"}, "no_dependencies"},
	} {
		call := i.governed(125, "approve", "shop", "workload.execute", "@"+i.job(tt.more, tt.files), "--json")
		if !strings.Contains(call.Stdout, `"kind":"`+tt.kind+`"`) {
			t.Errorf("%s: %s\nwant kind %s", name, call, tt.kind)
		}
	}
	if n := r.visits(""); n != 0 {
		t.Errorf("the registry was asked %d times", n)
	}
}

// TestActionDependencies installs what an action names, if it says so.
func TestActionDependencies(t *testing.T) {
	i := newInstalling(t, "embedded", "")
	r := i.registry
	r.pack("a", map[string]string{"index.js": `{"from":"a"}`})
	i.write("actions/ask/main.sh", "cat /node_modules/a/index.js")
	i.write("actions/ask/package.json", manifest("a"))
	i.write("actions/ask/package-lock.json", r.lock(r.url, "a"))
	i.write("actions/ask/action.json", `{"name":"ask","description":"d","hazard":"read","input":{},"output":{},"entrypoint":"main.sh"}`)
	if call := i.governed(1, "call", "shop", "ask"); r.visits("") != 0 {
		t.Errorf("%s\nwant nothing installed unasked", call)
	}
	i.write("actions/ask/action.json", `{"name":"ask","description":"d","hazard":"read","input":{},"output":{},"entrypoint":"main.sh","dependencies":{}}`)
	if call := i.governed(0, "call", "shop", "ask"); !bytes.Contains([]byte(call.Stdout), []byte(`"output":{"from":"a"}`)) {
		t.Errorf("%s\nwant the module's words", call)
	}
}
