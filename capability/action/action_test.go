package action

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/capability/jsjson"
	"github.com/direct-oci/engine/capability/sandbox"
	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/rootfs/image"
	"github.com/direct-oci/engine/rootfs/image/intake"
)

func write(t testing.TB, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

const good = `{"name":"orders.refund","description":"d","input":{"type":"object"},"output":{"type":"object","required":["ok"]},"entrypoint":"main.sh"}`

func TestNewIsGood(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "hello")
	if err := New(dir, "hello"); err != nil {
		t.Fatal(err)
	}
	a, err := Open(dir, sandbox.Profile{}, nil)
	if err != nil || a.Info().Name != "hello" {
		t.Errorf("Open = %+v, %v", a, err)
	}
	if err := New(dir, "hello"); err == nil {
		t.Error("an action is written over another")
	}
}

func TestBrokenOnesAreReported(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "good/action.json", good)
	write(t, dir, "good/main.sh", "")
	broken := map[string]string{
		"no manifest":          "",
		"not JSON":             "{",
		"unknown key":          strings.Replace(good, `"name"`, `"nmae":1,"name"`, 1),
		"bad hazard":           strings.Replace(good, `"name"`, `"hazard":"harmless","name"`, 1),
		"bad schema":           strings.Replace(good, `{"type":"object"}`, `{"type":"nothing"}`, 1),
		"missing entrypoint":   strings.Replace(good, "main.sh", "other.sh", 1),
		"unknown entrypoint":   strings.Replace(good, "main.sh", "action.json", 1),
		"bad secret's name":    strings.Replace(good, `"name"`, `"secrets":{"a b":"x"},"name"`, 1),
		"secret without why":   strings.Replace(good, `"name"`, `"secrets":{"A":""},"name"`, 1),
		"entrypoint elsewhere": strings.Replace(good, "main.sh", "../good/main.sh", 1),
	}
	for name, manifest := range broken {
		write(t, dir, name+"/main.sh", "")
		if manifest != "" {
			write(t, dir, name+"/action.json", manifest)
		}
	}
	write(t, dir, "link/action.json", good)
	write(t, dir, "link/main.sh", "")
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "link", "passwd")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "good"), filepath.Join(dir, "linked")); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "README", "no action")
	actions, problems := Load(dir, sandbox.Profile{}, nil)
	if len(actions) != 1 || actions[0].Info().Name != "orders.refund" {
		t.Errorf("actions = %+v", actions)
	}
	if len(problems) != len(broken)+2 {
		t.Errorf("%d problems, want %d: %+v", len(problems), len(broken)+2, problems)
	}
	if _, problems := Load(filepath.Join(dir, "none"), sandbox.Profile{}, nil); len(problems) != 1 {
		t.Errorf("a directory that is missing: %+v", problems)
	}
}

func TestHazardIsWriteUnlessDeclared(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "action.json", good)
	write(t, dir, "main.sh", "")
	a, err := Open(dir, sandbox.Profile{}, nil)
	if err != nil || a.Info().Hazard != capability.Write || a.Info().Kind != capability.Action {
		t.Errorf("info = %+v, %v", a.Info(), err)
	}
}

// TestPrepareTakesTheFilesAsTheyAre changes an action after it was loaded.
func TestPrepareTakesTheFilesAsTheyAre(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it imports an image")
	}
	state, dir := t.TempDir(), t.TempDir()
	write(t, state, "src/bin/sh", "")
	if _, err := intake.Import(context.Background(), intake.Options{Store: image.Store{Dir: filepath.Join(state, "images")}, Name: "box"}, filepath.Join(state, "src")); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "action.json", strings.Replace(good, `"name"`, `"secrets":{"TOKEN":"to ask"},"name"`, 1))
	write(t, dir, "main.sh", "echo 1")
	a, err := Open(dir, sandbox.Profile{Host: engine.Host{StateDir: state}, Image: "box", Runtime: "runsc", Max: sandbox.DefaultMax}, nil)
	if err != nil {
		t.Fatal(err)
	}
	prepare := func(args string) capability.Prepared {
		v, err := jsjson.Parse([]byte(args))
		if err != nil {
			t.Fatal(err)
		}
		p, err := a.Prepare(context.Background(), capability.Ask{Project: "shop", Environment: "test", Args: v})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	first, same, other := prepare(`{"a":1,"b":2}`), prepare(`{"b":2.0,"a":1}`), prepare(`{"a":1}`)
	if first.Bound.Digest != same.Bound.Digest || first.Bound.Digest == other.Bound.Digest || first.Bound.Manifest != other.Bound.Manifest {
		t.Errorf("digests = %s, %s, %s", first.Bound.Digest, same.Bound.Digest, other.Bound.Digest)
	}
	if strings.Join(first.Bound.Secrets, " ") != "TOKEN" {
		t.Errorf("secrets = %q", first.Bound.Secrets)
	}
	write(t, dir, "main.sh", "echo 2")
	if after := prepare(`{"a":1,"b":2}`); after.Bound.Manifest == first.Bound.Manifest || after.Bound.Digest == first.Bound.Digest {
		t.Error("another program has the same digest")
	}
}

func TestOutputIsHeldAgainstItsSchema(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "action.json", good)
	write(t, dir, "main.sh", "")
	a, err := Open(dir, sandbox.Profile{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for stdout, good := range map[string]bool{`{"ok":1,"more":"\ud800"}` + "\n": true, `{}`: false, `[]`: false, ``: false, `{"ok":1} x`: false, "\xff": false} {
		if v, problem := a.parse(stdout); (problem == "") != good || good == (v == nil) {
			t.Errorf("output %q gives %v, problem %q", stdout, v, problem)
		}
	}
}
