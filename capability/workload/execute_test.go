package workload

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/capability/dependency"
	"github.com/direct-oci/engine/capability/install"
	"github.com/direct-oci/engine/capability/jsjson"
	"github.com/direct-oci/engine/capability/sandbox"
	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/netns/egress"
	"github.com/direct-oci/engine/rootfs/image"
	"github.com/direct-oci/engine/rootfs/image/intake"
)

// execute is the capability with an image that nothing is run in.
func execute(t testing.TB) Execute {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it imports an image")
	}
	dir := t.TempDir()
	src := filepath.Join(dir, "src")
	if err := os.MkdirAll(filepath.Join(src, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := intake.Import(context.Background(), intake.Options{Store: image.Store{Dir: filepath.Join(dir, "images")}, Name: "box"}, src); err != nil {
		t.Fatal(err)
	}
	return Execute{Profile: sandbox.Profile{
		Host: engine.Host{StateDir: dir}, Image: "box", Runtime: "runsc", Max: sandbox.DefaultMax,
		Ceiling: egress.Policy{Internet: true},
	}}
}

func prepare(x Execute, text string) (capability.Prepared, error) {
	v, err := jsjson.Parse([]byte(text))
	if err != nil {
		return capability.Prepared{}, err
	}
	return x.Prepare(context.Background(), capability.Ask{Project: "shop", Args: v})
}

func quoted(s string) string { return string(jsjson.AppendString(nil, s)) }

func one(path, contents string) string {
	return `{"files":[{"path":` + quoted(path) + `,"contents":` + quoted(contents) + `}],"entrypoint":` + quoted(path) + `}`
}

func TestSchemaIsAccepted(t *testing.T) {
	if _, err := capability.CompileSchema(Execute{}.Info().Params); err != nil {
		t.Fatal(err)
	}
}

func TestEntrypoint(t *testing.T) {
	x := execute(t)
	for path, want := range map[string]string{
		"a.ts": "tsx /workload/a.ts", "a.tsx": "tsx /workload/a.tsx", "a.js": "node /workload/a.js", "a.mjs": "node /workload/a.mjs",
		"a.cjs": "node /workload/a.cjs", "d/a.py": "python3 /workload/d/a.py", "a.sh": "sh /workload/a.sh", "-x.sh": "sh /workload/-x.sh",
	} {
		p, err := prepare(x, one(path, ""))
		if err != nil || strings.Join(p.Bound.Command, " ") != want {
			t.Errorf("%s runs %q, %v, want %s", path, p.Bound.Command, err, want)
		}
	}
	p, err := prepare(x, one("tool", "#!/bin/sh\n"))
	if err != nil || !slices.Equal(p.Bound.Command, []string{"/workload/tool"}) || p.Bound.Files[0].Mode != 0o755 {
		t.Errorf("a script runs %q, %v", p.Bound.Command, err)
	}
}

func TestRefusals(t *testing.T) {
	x := execute(t)
	tests := []struct{ name, text, kind string }{
		{"an absolute path", one("/a.sh", ""), "bad_path"},
		{"a path above", one("../a.sh", ""), "bad_path"},
		{"dots in between", one("a/../b.sh", ""), "bad_path"},
		{"an empty name", one("a//b.sh", ""), "bad_path"},
		{"a backslash", one(`a\b.sh`, ""), "bad_path"},
		{"a NUL", one("a\x00.sh", ""), "bad_path"},
		{"half of a pair in a path", `{"files":[{"path":"\ud800.sh","contents":""}],"entrypoint":"\ud800.sh"}`, "bad_path"},
		{"the same file twice", `{"files":[{"path":"a.sh","contents":""},{"path":"a.sh","contents":"x"}],"entrypoint":"a.sh"}`, "bad_file"},
		{"a file for a directory", `{"files":[{"path":"a","contents":""},{"path":"a/b.sh","contents":"x"}],"entrypoint":"a/b.sh"}`, "bad_file"},
		{"an entrypoint that is no file", `{"files":[{"path":"a.sh","contents":""}],"entrypoint":"b.sh"}`, "bad_entrypoint"},
		{"an entrypoint that nothing runs", one("a.txt", "x"), "bad_entrypoint"},
		{"dependencies", `{"files":[{"path":"a.js","contents":""},{"path":"package.json","contents":"{\"dependencies\":{\"x\":\"1\"}}"}],"entrypoint":"a.js"}`, "no_dependencies"},
		{"requirements", `{"files":[{"path":"a.py","contents":""},{"path":"requirements.txt","contents":"# \nrequests\n"}],"entrypoint":"a.py"}`, "no_dependencies"},
		{"a private address", strings.TrimSuffix(one("a.sh", ""), "}") + `,"egress":"10.0.0.1/32:80"}`, "egress_refused"},
		{"a grant that is none", strings.TrimSuffix(one("a.sh", ""), "}") + `,"egress":["a b"]}`, "bad_network"},
		{"too little memory", strings.TrimSuffix(one("a.sh", ""), "}") + `,"limits":{"memoryMb":0.001}}`, "bad_limit"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := prepare(x, tt.text)
			var e *engine.Error
			if !errors.As(err, &e) || e.Kind != tt.kind || e.Class != engine.ClassRequest {
				t.Errorf("error = %v, want a refusal of kind %s", err, tt.kind)
			}
		})
	}
}

// TestLockIsBound proves that what is installed is approved, and the digest that other
// programs compute is as it was.
func TestLockIsBound(t *testing.T) {
	x := execute(t)
	r := dependency.Registry{URL: "https://registry.example.org/"}
	lock := `{"lockfileVersion":3,"packages":{"":{},"node_modules/a":{"version":"1.0.0","integrity":"sha512-` + strings.Repeat("A", 86) + `=="}}}`
	text := `{"title":"t","files":[{"path":"a.js","contents":""},{"path":"package.json","contents":"{\"dependencies\":{\"a\":\"1\"}}"},{"path":"package-lock.json","contents":` + quoted(lock) + `}],"entrypoint":"a.js"`
	bound := func(in *install.Installer, more string) capability.Prepared {
		t.Helper()
		p, err := prepare(Execute{x.Profile, in}, text+more+"}")
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	p := bound(&install.Installer{NPM: &r, Scripts: true, Max: sandbox.Limits{MemoryMB: 4096, Pids: 1}}, "")
	if p.Room.Memory != 4096<<20 || p.Room.Pids <= 1 || p.Room.CPUs <= 0 {
		t.Errorf("room = %+v, want the most of both phases", p.Room)
	}
	if !strings.HasPrefix(p.Bound.Lock, "npm:") || len(p.Documents) != 4 || !strings.Contains(p.Documents[3].Text, "a 1.0.0 sha512-") {
		t.Errorf("lock = %q, documents = %+v", p.Bound.Lock, p.Documents)
	}
	for name, q := range map[string]capability.Prepared{
		"scripts":          bound(&install.Installer{NPM: &r, Scripts: true}, `,"dependencies":{"scripts":true}`),
		"another registry": bound(&install.Installer{NPM: &dependency.Registry{URL: "https://registry.example.net/"}}, ""),
	} {
		if q.Bound.Digest != p.Bound.Digest || p.Bound.Difference(q.Bound) != "/lock" {
			t.Errorf("%s: the difference is %q, want /lock", name, p.Bound.Difference(q.Bound))
		}
	}
	if _, err := prepare(Execute{x.Profile, &install.Installer{Pip: &r}}, text+"}"); err == nil {
		t.Error("npm's dependencies are taken for pip's")
	}
}

func TestBound(t *testing.T) {
	x := execute(t)
	base := `{"title":"t","files":[{"path":"b.js","contents":"x\ud800"},{"path":"a.js","contents":""},{"path":"package.json","contents":"{\"type\":\"module\"}"}],
		"entrypoint":"a.js","secrets":["B","A","B"],"egress":true,"limits":{"cpus":8,"memoryMb":64},"extra":1}`
	p, err := prepare(x, base)
	if err != nil {
		t.Fatal(err)
	}
	b := p.Bound
	if !slices.Equal(b.Secrets, []string{"A", "B"}) || !slices.Equal(b.Egress, []string{"internet"}) || b.Limits.CPUs != 1 ||
		b.Limits.MemoryBytes != 64<<20 || b.Limits.Pids != 256 || b.ImageDigest == "" || b.Runtime != "runsc" || len(b.Files) != 3 || b.Files[0].Path != "a.js" {
		t.Errorf("bound = %+v", b)
	}
	if len(p.Warnings) != 1 || !strings.HasPrefix(p.Warnings[0], "/extra ") || p.Title != "t" {
		t.Errorf("warnings = %q, title = %q", p.Warnings, p.Title)
	}
	if p.Room.Memory != 64<<20 || p.Room.CPUs != 1 || p.Room.Pids != 256 {
		t.Errorf("room = %+v, want the limits", p.Room)
	}
	if b.Lock != "" {
		t.Errorf("nothing is installed, and the lock is %s", b.Lock)
	}
	// The title and what means nothing decide nothing.
	q, err := prepare(x, strings.Replace(strings.Replace(base, `"t"`, `"other"`, 1), `"extra":1`, `"more":2`, 1))
	if err != nil || q.Bound.Difference(b) != "" || q.Bound.Digest != b.Digest {
		t.Errorf("another title makes another digest: %v", err)
	}
	for from, field := range map[string]string{`"x\ud800"`: "/digest", `"cpus":8`: "/digest", `["B","A","B"]`: "/digest"} {
		q, err := prepare(x, strings.Replace(base, from, map[string]string{`"x\ud800"`: `"x\ufffd"`, `"cpus":8`: `"cpus":9`, `["B","A","B"]`: `["B"]`}[from], 1))
		if err != nil || q.Bound.Difference(b) != field {
			t.Errorf("with another %s the difference is %q, %v, want %s", from, q.Bound.Difference(b), err, field)
		}
	}
}

// TestUnknownKeysStayInTheirLine wants warnings of keys that are many, long, or of
// several lines to be few, short and of one line.
func TestUnknownKeysStayInTheirLine(t *testing.T) {
	args := map[string]any{"a\nwarning: b": 1.0, strings.Repeat("\xed\xa0\x80", 1000): 1.0, "files": []any{}}
	for i := range 1000 {
		args["k"+strconv.Itoa(i)] = 1.0
	}
	warnings := unknownKeys(args)
	if len(warnings) != maxWarnings+1 || !strings.HasPrefix(warnings[0], `/a\nwarning: b means nothing`) || warnings[maxWarnings] != "982 more keys mean nothing and are left out" {
		t.Errorf("%d warnings, the first %q, the last %q", len(warnings), warnings[0], warnings[len(warnings)-1])
	}
	for _, w := range append(warnings, unknownKeys(map[string]any{strings.Repeat("\xed\xa0\x80", 1000): 1.0})...) {
		if len(w) > 500 || strings.Contains(w, "\n") || !utf8.ValidString(w) {
			t.Errorf("warning %q", w)
		}
	}
}
