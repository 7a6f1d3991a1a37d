package engine_test

import (
	"bytes"
	"encoding/json"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/direct-oci/engine/"

// allowed is the import table: each package, and those of ours that it may import.
// Imports only go down this table. A package that is not in it, or that is in it and
// gone, fails the test, so the table cannot rot.
var allowed = map[string]struct {
	imports []string
	why     string
}{
	"cgroups":                  {nil, "a leaf: limits and usage, it knows no run"},
	"netns":                    {nil, "a leaf: namespaces, it knows no run"},
	"netns/egress":             {[]string{"netns"}, "decides and carries; the kernel side is the gateway it is given"},
	"oci/filtergen":            {[]string{"oci"}, "writes the files that oci embeds; no program links it"},
	"oci":                      {nil, "pure: the same input gives the same bytes on any machine"},
	"rootfs":                   {nil, "a leaf: mounts, it knows no run"},
	"rootfs/image/tree":        {nil, "a leaf: writes and reads one directory tree"},
	"rootfs/image":             {[]string{"rootfs/image/tree"}, "the image store: it mounts nothing and parses nothing foreign"},
	"rootfs/image/intake":      {[]string{"oci", "rootfs/image", "rootfs/image/tree"}, "takes images apart; decompressors must stay out of every start of engine"},
	"rootfs/image/registry":    {[]string{"rootfs/image/intake", "rootfs/image/tree"}, "the network; it never touches the store"},
	"rootfs/image/job":         {[]string{"rootfs/image"}, "what engine and engine-image say to each other"},
	"engine/journal":           {nil, "records hold what their callers say; it knows no run's meaning"},
	"engine/initwire":          {nil, "the protocol with engine-init and nothing else"},
	"engine/guest":             {nil, "the protocols with engine-guest; what comes from it is nobody's word"},
	"engine/ociruntime":        {nil, "a runtime starts a bundle; who made it is not its matter"},
	"engine/ociruntime/inproc": {[]string{"engine/ociruntime"}, "libcontainer needs cgo and must stay out of every other program"},
	"engine/ociruntime/direct": {[]string{"engine/ociruntime"}, "the engine's own runtime; its library for the kernel's programs must stay out of every other program"},
	"engine": {
		[]string{"cgroups", "netns", "netns/egress", "oci", "rootfs", "rootfs/image", "rootfs/image/tree", "engine/guest", "engine/journal", "engine/initwire", "engine/ociruntime"},
		"one run from start to finish; it is told its embedded runtime and so needs no cgo",
	},
	"engine/spelling":          {nil, "words and nothing else"},
	"engine/doctor":            {[]string{"cgroups", "rootfs", "engine", "engine/ociruntime"}, "looks at the host as a run would"},
	"cmd/cli":                  {[]string{"capability/jsjson", "engine", "engine/spelling"}, "how a command line answers and what it says of typing errors; it knows no command"},
	"cmd/engine":               {[]string{"cgroups", "cmd/cli", "engine", "engine/doctor", "engine/journal", "engine/ociruntime", "engine/spelling", "netns", "netns/egress", "oci", "rootfs/image", "rootfs/image/job"}, "an edge: words to values and back, no policy"},
	"capability/jsjson":        {nil, "pure: JavaScript's JSON"},
	"capability/signed":        {[]string{"capability/jsjson"}, "keys and envelopes, it knows nothing that is signed"},
	"capability/approval":      {[]string{"capability/jsjson", "capability/signed"}, "what a human agreed to; it runs nothing"},
	"capability/audit":         {nil, "a leaf: lines that hang together"},
	"capability/secret":        {nil, "a leaf: values and how not to show them"},
	"capability":               {[]string{"capability/approval", "capability/audit", "capability/jsjson", "capability/secret", "capability/signed", "engine"}, "who may ask for what; it knows no capability by name"},
	"capability/sandbox":       {[]string{"capability/approval", "engine", "netns/egress"}, "what was asked for, what is granted, and a run of that"},
	"capability/dependency":    {[]string{"capability/jsjson"}, "pure: what a lock says, and what an installer is told"},
	"capability/install":       {[]string{"capability/dependency", "capability/sandbox", "engine", "netns/egress", "rootfs/image", "rootfs/image/job", "rootfs/image/tree"}, "the first phase of a run, and the stores of what comes of it"},
	"capability/workload":      {[]string{"capability", "capability/approval", "capability/dependency", "capability/install", "capability/jsjson", "capability/sandbox", "engine"}, "a capability: knows no config, no edge and no other one"},
	"capability/action":        {[]string{"capability", "capability/approval", "capability/dependency", "capability/install", "capability/jsjson", "capability/sandbox", "engine"}, "a capability: knows no config, no edge and no other one"},
	"capability/firestore":     {[]string{"capability", "capability/approval", "capability/jsjson", "engine"}, "a capability: the only package that links Firestore's client, and only to read"},
	"capability/review":        {[]string{"capability", "capability/approval"}, "pure: text for a human"},
	"service/outbox":           {nil, "a leaf: messages in a file, it knows no sandbox"},
	"service/admission":        {[]string{"engine"}, "who may start now; of the engine it needs the form of errors"},
	"service/callback":         {[]string{"engine", "netns/egress", "service/outbox"}, "signs and posts; it knows no sandbox but by its id"},
	"service":                  {[]string{"engine", "engine/guest", "engine/journal", "netns/egress", "service/admission", "service/callback", "service/outbox"}, "sandboxes with names and owners; it starts them by the engine and knows no edge"},
	"cmd/engine-runner/config": {[]string{"capability", "capability/action", "capability/approval", "capability/audit", "capability/dependency", "capability/firestore", "capability/install", "capability/sandbox", "capability/secret", "capability/signed", "capability/workload", "cmd/engine-runner/link/wire", "engine", "engine/spelling", "service", "service/admission", "service/callback"}, "the one place that makes a runner of a file"},
	"cmd/engine-runner":        {[]string{"capability", "capability/action", "capability/approval", "capability/audit", "capability/jsjson", "capability/review", "capability/sandbox", "capability/secret", "capability/signed", "capability/workload", "client", "client/wire", "cmd/cli", "cmd/engine-runner/api", "cmd/engine-runner/archive", "cmd/engine-runner/config", "cmd/engine-runner/link", "cmd/engine-runner/link/devplane", "cmd/engine-runner/link/wire", "cmd/engine-runner/lock", "engine", "oci", "service"}, "an edge: words to values and back, no policy"},
	"client/wire":              {nil, "values alone: whoever has them has nothing of the engine"},
	"client":                   {[]string{"client/wire"}, "goes into programs of others, and brings nothing of the engine along"},
	"cmd/engine-runner/api":    {[]string{"capability", "capability/sandbox", "capability/signed", "client/wire", "cmd/engine-runner/config", "cmd/engine-runner/link", "engine", "engine/guest", "engine/journal", "engine/spelling", "netns/egress", "rootfs/image", "service", "service/admission"}, "an edge: bytes to values and back, no policy of runs"},
	"cmd/engine-monitor":       {[]string{"engine", "engine/ociruntime", "engine/ociruntime/direct", "engine/ociruntime/inproc"}, "the only program that links libcontainer"},
	"cmd/engine-image":         {[]string{"rootfs/image", "rootfs/image/intake", "rootfs/image/registry", "rootfs/image/job", "rootfs/image/tree"}, "the only program that links a registry's client and decompressors"},
	"cmd/engine-runner/archive": {
		nil,
		"a leaf: files that others named, it knows no sandbox",
	},
	"cmd/engine-runner/lock": {nil, "a leaf: one file, one lock"},
	"cmd/engine-runner/link": {
		[]string{"capability", "capability/audit", "capability/review", "cmd/engine-runner/link/wire", "cmd/engine-runner/lock", "engine"},
		"an edge: messages to calls and back, each once, no policy",
	},
	"cmd/engine-runner/link/devplane": {
		[]string{"capability", "cmd/engine-runner/link/wire", "engine"},
		"the other end, for development: it knows the language and no runner",
	},
	"cmd/engine-runner/link/wire": {
		[]string{"capability", "capability/approval", "capability/jsjson", "capability/signed", "engine"},
		"messages and what is signed of them: the language of both ends",
	},
}

// exempt are folders of tests and tools, which may import what they test.
var exempt = []string{"integration", "examples", "hack"}

type pkg struct {
	ImportPath string
	Imports    []string
	Deps       []string
	Doc        string
}

func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps=false", "-json=ImportPath,Imports,Deps,Doc", "./...")
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=1")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("cannot list packages: %v", err)
	}
	var list []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := dec.Decode(&p); err == io.EOF {
			return list
		} else if err != nil {
			t.Fatalf("cannot read the list of packages: %v", err)
		}
		list = append(list, p)
	}
}

func ours(path string) (string, bool) { return strings.CutPrefix(path, module) }

func isExempt(name string) bool {
	for _, dir := range exempt {
		if name == dir || strings.HasPrefix(name, dir+"/") {
			return true
		}
	}
	return false
}

func TestImportsOnlyGoDown(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range packages(t) {
		name, ok := ours(p.ImportPath)
		if !ok || isExempt(name) {
			continue
		}
		row, ok := allowed[name]
		if !ok {
			t.Errorf("package %s is not in the import table: add it to layout_test.go with what it may import, and why", name)
			continue
		}
		seen[name] = true
		for _, imp := range p.Imports {
			dep, ok := ours(imp)
			if ok && !slices.Contains(row.imports, dep) {
				t.Errorf("package %s must not import %s: %s", name, dep, row.why)
			}
		}
	}
	for name := range allowed {
		if !seen[name] {
			t.Errorf("the import table has %s, which does not exist any more", name)
		}
	}
}

// TestOnlyTheMonitorNeedsCgo keeps the command line lean and static.
func TestOnlyTheMonitorNeedsCgo(t *testing.T) {
	heavy := []string{"github.com/opencontainers/runc", "net/http", "google.golang.org/grpc", "k8s.io", "cloud.google.com", "github.com/google/go-containerregistry", "github.com/klauspost/compress", "github.com/therootcompany/xz"}
	for _, p := range packages(t) {
		name, ok := ours(p.ImportPath)
		if !ok || name != "cmd/engine" {
			continue
		}
		for _, dep := range p.Deps {
			for _, h := range heavy {
				if dep == h || strings.HasPrefix(dep, h+"/") {
					t.Errorf("cmd/engine links %s: every command line start would pay for it", dep)
				}
			}
		}
	}
}

// TestOnlyTheRunnerLinksFirestore keeps a client that could write, and all that comes
// with it, in one program, behind one package.
func TestOnlyTheRunnerLinksFirestore(t *testing.T) {
	linking := map[string]bool{"capability/firestore": true, "cmd/engine-runner/config": true, "cmd/engine-runner/api": true, "cmd/engine-runner": true}
	for _, p := range packages(t) {
		name, ok := ours(p.ImportPath)
		if !ok || isExempt(name) {
			continue
		}
		has := func(list []string) bool {
			return slices.ContainsFunc(list, func(dep string) bool { return strings.HasPrefix(dep, "cloud.google.com/go/firestore") })
		}
		if has(p.Imports) && name != "capability/firestore" {
			t.Errorf("package %s imports Firestore's client: only capability/firestore does, where a test sees to it that nothing is written", name)
		}
		if has(p.Deps) != linking[name] {
			t.Errorf("package %s links Firestore's client: %v, want %v", name, has(p.Deps), linking[name])
		}
	}
}

// TestEveryPackageHasADoc wants one sentence at least that says what a package is.
func TestEveryPackageHasADoc(t *testing.T) {
	for _, p := range packages(t) {
		if name, ok := ours(p.ImportPath); ok && p.Doc == "" {
			t.Errorf("package %s has no doc comment", name)
		}
	}
}
