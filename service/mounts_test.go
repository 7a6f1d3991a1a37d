package service

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/direct-oci/engine/integration/testenv"
)

func touch(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// stores has a tree, a whole library store and references.
func stores(t testing.TB) Stores {
	t.Helper()
	testenv.RequireRoot(t) // it gives directories away
	dir := t.TempDir()
	touch(t, filepath.Join(dir, "trees/proj-1/data.csv"), "a,b")
	touch(t, filepath.Join(dir, "libs/v7/packages.txt"), "numpy")
	touch(t, filepath.Join(dir, "libs/v7/meta.json"), "{}")
	touch(t, filepath.Join(dir, "refs/genome.fa"), "ACGT")
	touch(t, filepath.Join(dir, "secret"), "not to be seen")
	if err := os.Symlink("v7", filepath.Join(dir, "libs/current")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(filepath.Join(dir, "trees/proj-1"), 4711, 4712); err != nil {
		t.Fatal(err)
	}
	return Config{Stores: Stores{
		Trees: filepath.Join(dir, "trees"), Libraries: filepath.Join(dir, "libs"), References: filepath.Join(dir, "refs"),
	}}.completed().Stores
}

// plan is what a plan comes to, with the stores' directory left out.
func (s Stores) plan(t testing.TB, p Plan, log *slog.Logger) (string, error) {
	t.Helper()
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	mounts, err := s.mounts(p, log)
	var all []string
	for _, m := range mounts {
		mode := "ro"
		if m.Writable {
			mode = "rw"
		}
		all = append(all, fmt.Sprintf("%s at %s %s", strings.TrimPrefix(m.Source, filepath.Dir(s.Trees)+"/"), m.Path, mode))
	}
	return strings.Join(all, ", "), err
}

func TestPlans(t *testing.T) {
	tests := []struct {
		plan Plan
		want string
	}{
		{Plan{}, ""},
		{Plan{Resource: "proj-1", ReadOnly: true}, "trees/proj-1 at /proj-1 ro"},
		{Plan{Resource: "proj-1", Step: "s1", ReadOnly: true}, "trees/proj-1 at /proj-1 ro"},
		{Plan{Resource: "proj-1", Step: "s1"}, "trees/proj-1 at /proj-1 ro, trees/proj-1/steps/s1 at /proj-1/steps/s1 rw"},
		{Plan{Resource: "proj-1", Step: "run-1/s1"}, "trees/proj-1 at /proj-1 ro, trees/proj-1/steps/run-1/s1 at /proj-1/steps/run-1/s1 rw"},
		{Plan{Library: true, References: true}, "libs at /mnt/libs ro, refs at /mnt/refs ro"},
	}
	for _, tt := range tests {
		s := stores(t)
		got, err := s.plan(t, tt.plan, nil)
		if err != nil || got != tt.want {
			t.Errorf("%+v: got %q, %v, want %q", tt.plan, got, err, tt.want)
		}
		made, _ := filepath.Glob(filepath.Join(s.Trees, "proj-1/steps", tt.plan.Step, "*"))
		if writable := strings.Contains(tt.want, "rw"); writable != (len(made) == len(DefaultStepDirs)) {
			t.Errorf("%+v: made %v", tt.plan, made)
		}
	}
	// What is made belongs to the tree's owner, also where a crash left it root's.
	s := stores(t)
	left := filepath.Join(s.Trees, "proj-1/steps/s1")
	if err := os.MkdirAll(left, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := s.plan(t, Plan{Resource: "proj-1", Step: "s1"}, nil); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{filepath.Dir(left), left, filepath.Join(left, "output")} {
		info, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}
		if st := info.Sys().(*syscall.Stat_t); st.Uid != 4711 || st.Gid != 4712 {
			t.Errorf("%s belongs to %d:%d", dir, st.Uid, st.Gid)
		}
	}
	// A second time everything is there already.
	s = stores(t)
	for range 2 {
		if _, err := s.plan(t, Plan{Resource: "proj-1", Step: "s1"}, nil); err != nil {
			t.Error(err)
		}
	}
}

// TestIdsBecomeNoOtherPaths tries to leave the stores by ids.
func TestIdsBecomeNoOtherPaths(t *testing.T) {
	s := stores(t)
	for _, id := range []string{"..", ".", "../secret", "/etc", "a/b", "a\\b", "a\x00b", ".hidden", "-flag", " ", "a b", "é", "etc", "proc", "mnt", strings.Repeat("x", 129), "missing"} {
		if got, err := s.plan(t, Plan{Resource: id, ReadOnly: true}, nil); err == nil {
			t.Errorf("resource %q gave %q", id, got)
		}
	}
	for _, step := range []string{"..", "a/..", "a/../..", "/a", "a/", "a//b", "./a", "a\x00", "a:b", "a/b/c/d/e/f/g/h/i"} {
		got, err := s.plan(t, Plan{Resource: "proj-1", Step: step}, nil)
		wantKind(t, fmt.Sprintf("step %q, which gave %q,", step, got), err, "bad_mount")
	}
	for _, p := range []Plan{{Step: "s1"}, {Resource: "proj-1"}} {
		_, err := s.plan(t, p, nil)
		wantKind(t, fmt.Sprintf("%+v", p), err, "bad_mount")
	}
	os.Chown(filepath.Join(s.Trees, "proj-1"), 0, 0)
	_, err := s.plan(t, Plan{Resource: "proj-1", Step: "s1"}, nil)
	if e := wantKind(t, "a step in a tree of root's", err, "bad_mount"); e.Fix == "" {
		t.Error("the refusal has no remedy")
	}
	s.UID, s.GID = 1000, 1001
	if _, err := s.plan(t, Plan{Resource: "proj-1", Step: "s1"}, nil); err != nil {
		t.Errorf("a step in a tree of root's, with an owner in the config: %v", err)
	}
	none := Config{}.completed().Stores
	for _, p := range []Plan{{Resource: "x", ReadOnly: true}, {Library: true}, {References: true}} {
		_, err := none.plan(t, p, nil)
		wantKind(t, fmt.Sprintf("%+v without stores", p), err, "bad_mount")
	}
}

// TestLinksInTreesAreRefused puts links where an earlier sandbox could have put them.
func TestLinksInTreesAreRefused(t *testing.T) {
	link := func(t *testing.T, target, path string) {
		t.Helper()
		os.MkdirAll(filepath.Dir(path), 0o755)
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
	}
	for _, target := range []string{"/", "/etc", "../../..", "../other", "."} {
		for _, at := range []string{"trees/linked", "trees/proj-1/steps", "trees/proj-1/steps/s1", "trees/proj-1/steps/s1/s2", "trees/proj-1/steps/s1/s2/output"} {
			s := stores(t)
			dir := filepath.Dir(s.Trees)
			os.MkdirAll(filepath.Join(s.Trees, "other"), 0o755)
			link(t, target, filepath.Join(dir, at))
			p := Plan{Resource: "proj-1", Step: "s1/s2"}
			if at == "trees/linked" {
				p.Resource = "linked"
			}
			got, err := s.plan(t, p, nil)
			wantKind(t, fmt.Sprintf("a link to %s at %s, which gave %q,", target, at, got), err, "bad_mount")
			if made, _ := filepath.Glob(filepath.Join(dir, "*/steps")); len(made) > 0 {
				t.Errorf("a link to %s at %s led to %v being made", target, at, made)
			}
		}
	}
}

// TestLibraryStoreMustBeWhole leaves it out otherwise, and says so in the log.
func TestLibraryStoreMustBeWhole(t *testing.T) {
	tests := []struct {
		name  string
		spoil func(libs string) error
	}{
		{"no current", func(libs string) error { return os.Remove(libs + "/current") }},
		{"a current that leads nowhere", func(libs string) error { return os.Rename(libs+"/v7", libs+"/v8") }},
		{"no packages.txt", func(libs string) error { return os.Remove(libs + "/v7/packages.txt") }},
		{"no meta.json", func(libs string) error { return os.Remove(libs + "/v7/meta.json") }},
		{"meta.json is a directory", func(libs string) error {
			os.Remove(libs + "/v7/meta.json")
			return os.Mkdir(libs+"/v7/meta.json", 0o755)
		}},
		{"a current that leads out", func(libs string) error {
			os.Rename(libs+"/v7", libs+"/../v7")
			os.Remove(libs + "/current")
			return os.Symlink("../v7", libs+"/current")
		}},
		{"no store", func(libs string) error { return os.RemoveAll(libs) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := stores(t)
			if err := tt.spoil(s.Libraries); err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			got, err := s.plan(t, Plan{Library: true, References: true}, slog.New(slog.NewTextHandler(&log, nil)))
			if err != nil || got != "refs at /mnt/refs ro" {
				t.Errorf("got %q, %v, want the references alone", got, err)
			}
			if lines := strings.Count(log.String(), "\n"); lines != 1 || !strings.Contains(log.String(), "library store left out") {
				t.Errorf("the log says %q, want one line", log.String())
			}
		})
	}
}
