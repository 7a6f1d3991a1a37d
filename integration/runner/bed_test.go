package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/direct-oci/engine/cgroups"
	"github.com/direct-oci/engine/integration/testenv"
)

// runtimes are those that the proofs go through.
var runtimes = []string{"embedded", "runsc"}

func eachRuntime(t *testing.T, f func(t *testing.T, b *bed)) {
	t.Helper()
	for _, rt := range runtimes {
		t.Run(rt, func(t *testing.T) { f(t, newBed(t, rt, "")) })
	}
}

// bed is a runner with a config, a key and an image of its own.
type bed struct {
	t       testing.TB
	dir     string
	runtime string
	groups  cgroups.Hierarchy
}

// Secrets of the project shop. The key has several lines.
const (
	token = "canary-token-4d1f0c"
	key   = "-----BEGIN KEY-----\ncanary-line-9b2e77\n-----END KEY-----\n"
)

// newBed makes a bed; more is added to the config.
func newBed(t testing.TB, runtime, more string) *bed {
	t.Helper()
	testenv.RequireRoot(t)
	dir, err := os.MkdirTemp("", "runner-")
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{t: t, dir: dir, runtime: runtime}
	t.Cleanup(b.remove)
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	if b.groups, err = cgroups.Open(filepath.Base(dir)); err != nil {
		t.Fatal(err)
	}
	b.write("token", token+"\n")
	b.write("key", key)
	public := strings.TrimSpace(b.engine(0, "approve", "keygen", b.path("alice.pem")).Stdout)
	b.write("config.yaml", fmt.Sprintf(`stateDir: %s
runDir: %s
cgroupRoot: %s
approvers:
  alice: {%s}
projects:
  shop:
    secrets:
      TOKEN: {file: %s}
      KEY: {file: %s}
    actions: %s
  other:
    secrets: {OTHER: nothing}
sandbox:
  image: box
  runtime: %s
  limits: {memoryMb: 256}
  bestEffortLimits: true
%s`, b.path("state"), b.path("run"), b.groups.Root, public, b.path("token"), b.path("key"), b.path("actions"), runtime, more))
	if err := os.Mkdir(b.path("actions"), 0o700); err != nil {
		t.Fatal(err)
	}
	b.engine(0, "image", "import", "--state-dir", b.path("state"), testenv.BusyboxRoot(t), "box")
	return b
}

func (b *bed) path(name string) string { return filepath.Join(b.dir, name) }

func (b *bed) write(name, text string) string {
	b.t.Helper()
	path := b.path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
	return path
}

// engine runs one command, which must end with this status.
func (b *bed) engine(status int, args ...string) testenv.Result {
	b.t.Helper()
	call := testenv.Exec(b.t, args...)
	if call.Status != status {
		b.t.Fatalf("%s\nwant status %d", call, status)
	}
	return call
}

// governed is engine with the bed's config.
func (b *bed) governed(status int, args ...string) testenv.Result {
	b.t.Helper()
	return b.engine(status, append(args, "--config", b.path("config.yaml"))...)
}

// spec writes the arguments of a workload of one script into a file.
func (b *bed) spec(script, more string) string {
	b.t.Helper()
	contents, err := json.Marshal(script)
	if err != nil {
		b.t.Fatal(err)
	}
	return b.write("job.json", fmt.Sprintf(`{"title":"job","files":[{"path":"main.sh","contents":%s}],"entrypoint":"main.sh"%s}`, contents, more))
}

// approve signs exactly this call, and returns the approval's file.
func (b *bed) approve(name, args string) string {
	b.t.Helper()
	path := b.path("approval.json")
	b.governed(0, "approve", "shop", name, "@"+args, "--key", b.path("alice.pem"), "--approver", "alice", "-o", path)
	return path
}

// output is what workload.execute gives.
type output struct {
	Digest          string  `json:"digest"`
	OK              bool    `json:"ok"`
	ExitCode        int     `json:"exitCode"`
	Stdout          string  `json:"stdout"`
	Stderr          string  `json:"stderr"`
	TimedOut        bool    `json:"timedOut"`
	DurationMs      float64 `json:"durationMs"`
	Reason          string  `json:"reason"`
	StdoutBytes     int64   `json:"stdoutBytes"`
	StdoutTruncated bool    `json:"stdoutTruncated"`
	Actuals         struct {
		BusyCPUSecs *float64 `json:"busyCpuSecs"`
	} `json:"actuals"`
	Network struct {
		Mode string `json:"mode"`
	} `json:"network"`
	Timing struct {
		SandboxMs *float64 `json:"sandboxMs"`
	} `json:"timing"`
}

// run approves a workload and runs it, which must end with this status.
func (b *bed) run(status int, script, more string) (output, testenv.Result) {
	b.t.Helper()
	spec := b.spec(script, more)
	approval := b.approve("workload.execute", spec)
	call := b.governed(status, "call", "shop", "workload.execute", "@"+spec, "--approval", approval, "--receipt", b.path("receipt.json"))
	var o output
	if err := json.Unmarshal([]byte(call.Stdout), &o); err != nil && status != 125 {
		b.t.Fatalf("%s\nprinted no result: %v", call, err)
	}
	return o, call
}

// remove ends whatever a failed test has left.
func (b *bed) remove() {
	b.groups.Group("").Kill()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	err := errors.Join(b.groups.Group("").WaitEmpty(ctx), b.groups.Group("").Remove(), os.RemoveAll(b.dir))
	if err != nil {
		b.t.Errorf("cannot remove the bed: %v", err)
	}
}
