package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/direct-oci/engine/integration/testenv"
)

// cgroupMount is where every place that RequireVM accepts has the hierarchy.
const cgroupMount = "/sys/fs/cgroup"

// root is the file system of nearly all sandboxes here: the probe, busybox, and some
// files that are not programs.
var root string

func TestMain(m *testing.M) {
	if err := makeRoot(); err != nil {
		fmt.Fprintln(os.Stderr, "cannot make a root for the sandboxes:", err)
		os.Exit(1)
	}
	status := m.Run()
	if err := os.RemoveAll(filepath.Dir(root)); err != nil {
		fmt.Fprintln(os.Stderr, "cannot remove the root of the sandboxes:", err)
		status = 1
	}
	os.Exit(status)
}

func makeRoot() error {
	dir, err := os.MkdirTemp("", "engine-integration-")
	if err != nil {
		return err
	}
	root = filepath.Join(dir, "root")
	return os.MkdirAll(filepath.Join(root, "bin"), 0o755)
}

// fillRoot puts the programs into root. It is not done by TestMain: where no test
// runs, the programs need not be there.
func fillRoot(t *testing.T) error {
	t.Helper()
	programs := map[string]string{"/probe": testenv.Binary(t, "probe"), "/bin/busybox": testenv.Binary(t, "busybox")}
	fillOnce.Do(func() {
		for path, program := range programs {
			fillErr = errors.Join(fillErr, copyFile(program, root+path, 0o755))
		}
		for _, applet := range []string{"sh", "cat", "ls", "echo", "true"} {
			fillErr = errors.Join(fillErr, os.Symlink("busybox", filepath.Join(root, "bin", applet)))
		}
		for name, mode := range map[string]os.FileMode{"text": 0o644, "broken": 0o755} {
			fillErr = errors.Join(fillErr, os.WriteFile(filepath.Join(root, name), []byte("neither a program nor a script\n"), mode))
		}
		fillErr = errors.Join(fillErr, os.WriteFile(filepath.Join(root, "orphan"), []byte("#!/bin/nobody\n"), 0o755))
	})
	return fillErr
}

var (
	fillOnce sync.Once
	fillErr  error
)

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func copyFile(from, to string, mode os.FileMode) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, mode)
}

// begin is the first line of every test: it runs only where it may, and the host must
// be the same afterwards.
func begin(t *testing.T) {
	t.Helper()
	testenv.RequireVM(t)
	if err := fillRoot(t); err != nil {
		t.Fatalf("cannot make a root for the sandboxes: %v", err)
	}
	testenv.NothingLeft(t)
}

// eachRuntime runs f under all runtimes, two at a time.
func eachRuntime(t *testing.T, f func(t *testing.T, runtime string)) {
	t.Helper()
	testenv.EachRuntime(t, func(t *testing.T, runtime string) {
		t.Parallel()
		f(t, runtime)
	})
}

// eachRuntimeInTurn is eachRuntime for tests that change what all runs share.
func eachRuntimeInTurn(t *testing.T, f func(t *testing.T, runtime string)) {
	t.Helper()
	testenv.EachRuntime(t, f)
}

// controlled reports whether this kernel can enforce limits. It is false only on a
// host whose owner has given the controllers to something else.
var controlled = sync.OnceValue(func() bool {
	data, err := os.ReadFile(cgroupMount + "/cgroup.controllers")
	if err != nil {
		return false
	}
	have := strings.Fields(string(data))
	return slices.Contains(have, "memory") && slices.Contains(have, "pids") && slices.Contains(have, "cpu")
})

// requireLimits skips the test on a host without controllers; in the test machine it
// fails.
func requireLimits(t *testing.T) {
	t.Helper()
	if controlled() {
		return
	}
	if testenv.InVM() {
		t.Fatal("the test machine has no memory, pids and cpu controllers")
	}
	t.Skip("this host's memory, pids and cpu controllers belong to cgroup v1: run make test-vm")
}

// usage and result are the JSON form of a result, as it is documented.
type usage struct {
	BusyCPUSecs   *float64 `json:"busyCpuSecs"`
	UserCPUSecs   *float64 `json:"userCpuSecs"`
	SystemCPUSecs *float64 `json:"systemCpuSecs"`
	ThrottledSecs *float64 `json:"throttledSecs"`
	PeakMemBytes  *int64   `json:"peakMemBytes"`
	PeakPids      *int64   `json:"peakPids"`
	PidsRefused   *int64   `json:"pidsRefused"`
	OOMKills      *int64   `json:"oomKills"`
	IOReadBytes   *int64   `json:"ioReadBytes"`
	IOWriteBytes  *int64   `json:"ioWriteBytes"`
	RxBytes       *int64   `json:"rxBytes"`
	TxBytes       *int64   `json:"txBytes"`
}

type failure struct {
	Class   string `json:"class"`
	Kind    string `json:"kind"`
	Message string `json:"message"`
	Fix     string `json:"fix"`
}

type result struct {
	ID              string  `json:"id"`
	OK              bool    `json:"ok"`
	Reason          *string `json:"reason"`
	ExitCode        *int    `json:"exitCode"`
	Signal          *string `json:"signal"`
	TimedOut        bool    `json:"timedOut"`
	OOMKilled       bool    `json:"oomKilled"`
	Stdout          string  `json:"stdout"`
	Stderr          string  `json:"stderr"`
	StdoutBytes     int64   `json:"stdoutBytes"`
	StderrBytes     int64   `json:"stderrBytes"`
	StdoutTruncated bool    `json:"stdoutTruncated"`
	StderrTruncated bool    `json:"stderrTruncated"`
	DurationMs      float64 `json:"durationMs"`
	Timing          struct {
		SandboxMs     *float64 `json:"sandboxMs"`
		FirstOutputMs *float64 `json:"firstOutputMs"`
		TotalMs       float64  `json:"totalMs"`
	} `json:"timing"`
	Actuals usage `json:"actuals"`
	Limits  struct {
		CPUs           float64 `json:"cpus"`
		MemoryMB       float64 `json:"memoryMb"`
		Pids           int64   `json:"pids"`
		TimeoutSeconds float64 `json:"timeoutSeconds"`
	} `json:"limits"`
	Unenforced []string `json:"unenforced"`
	Runtime    struct {
		Name    string `json:"name"`
		Version string `json:"version"`
	} `json:"runtime"`
	Image struct {
		Ref    string  `json:"ref"`
		Digest *string `json:"digest"`
	} `json:"image"`
	Error *failure `json:"error"`

	call testenv.Result
}

// String shows a result with the call it came from.
func (r result) String() string { return r.call.String() }

// runArgs is the command line of a run of root. Later flags win.
func runArgs(runtime string, flags []string, command ...string) []string {
	args := []string{"run", "--runtime", runtime, "--rootfs", root}
	if !controlled() {
		args = append(args, "--best-effort-limits")
	}
	return slices.Concat(args, flags, []string{"--"}, command)
}

// run runs a command in a sandbox to its end and returns the JSON result.
func run(t *testing.T, runtime string, flags []string, command ...string) result {
	t.Helper()
	return runInput(t, nil, runtime, flags, command...)
}

func runInput(t *testing.T, stdin io.Reader, runtime string, flags []string, command ...string) result {
	t.Helper()
	args := runArgs(runtime, append([]string{"--json"}, flags...), command...)
	return decode(t, testenv.ExecInput(t, stdin, args...))
}

// decode reads the one JSON result that a call printed.
func decode(t *testing.T, call testenv.Result) result {
	t.Helper()
	r := result{call: call}
	if err := json.Unmarshal([]byte(call.Stdout), &r); err != nil {
		t.Fatalf("%s\nprinted no JSON result: %v", call, err)
	}
	return r
}

// want fails the test unless the run ended for this reason, with this exit status of
// the command line, and every field that follows from the reason agrees.
func (r result) want(t *testing.T, reason string, status int) {
	t.Helper()
	got := "null"
	if r.Reason != nil {
		got = *r.Reason
	}
	if got != reason || r.call.Status != status {
		t.Fatalf("%s\nreason = %s with status %d, want %s with status %d", r, got, r.call.Status, reason, status)
	}
	check := func(field string, ok bool) {
		t.Helper()
		if !ok {
			t.Errorf("%s\nfield %s does not agree with reason %s", r, field, reason)
		}
	}
	check("id", len(r.ID) == 16 || reason == "null")
	check("ok", r.OK == (reason == "exited" && status == 0))
	check("exitCode", (r.ExitCode != nil) == (reason == "exited") && (r.ExitCode == nil || *r.ExitCode == status))
	check("signal", (r.Signal != nil) == (reason == "signal"))
	check("timedOut", r.TimedOut == (reason == "timeout"))
	check("oomKilled", r.OOMKilled == (reason == "oom"))
	check("error", (r.Error != nil) == slices.Contains([]string{"null", "internal", "lost", "interrupted"}, reason))
	if reason != "null" && reason != "lost" {
		check("actuals.busyCpuSecs", r.Actuals.BusyCPUSecs != nil && *r.Actuals.BusyCPUSecs > 0)
	}
}

// record is a run on record, as ps, inspect and wait show it.
type record struct {
	ID      string `json:"id"`
	State   string `json:"state"`
	Alive   bool   `json:"alive"`
	Request struct {
		Labels map[string]string `json:"labels"`
	} `json:"request"`
	Result *result `json:"result"`
}

// records lists the runs on record.
func records(t *testing.T) []record {
	t.Helper()
	call := testenv.Exec(t, "ps", "--json")
	var list []record
	if err := json.Unmarshal([]byte(call.Stdout), &list); err != nil || call.Status != 0 {
		t.Fatalf("%s\nlists no runs: %v", call, err)
	}
	return list
}

func inspect(t *testing.T, id string) record {
	t.Helper()
	call := testenv.Exec(t, "inspect", id)
	var r record
	if err := json.Unmarshal([]byte(call.Stdout), &r); err != nil || call.Status != 0 {
		t.Fatalf("%s\nshows no run: %v", call, err)
	}
	return r
}

// live is a run that is going on.
type live struct {
	*testenv.Process
	id string
}

// start starts a run and returns once its program has been started.
func start(t *testing.T, runtime string, flags []string, command ...string) live {
	t.Helper()
	label := fmt.Sprintf("test=%s-%d", t.Name(), time.Now().UnixNano())
	args := runArgs(runtime, append([]string{"--json", "--label", label}, flags...), command...)
	l := live{Process: testenv.Start(t, nil, append([]string{"engine"}, args...)...)}
	t.Cleanup(func() {
		if t.Failed() && l.id != "" {
			testenv.Exec(t, "kill", l.id) // so that only the test itself is what failed
		}
	})
	testenv.WaitFor(t, testenv.Patience, "the run to be running", func() bool {
		for _, r := range records(t) {
			if "test="+r.Request.Labels["test"] == label {
				l.id = r.ID
				return r.State != "creating" && r.State != "created"
			}
		}
		return false
	})
	return l
}

// says waits until the record of a run's output has these words, and returns stdout.
func (l live) says(t *testing.T, words string) string {
	t.Helper()
	var logs testenv.Result
	testenv.WaitFor(t, testenv.Patience, fmt.Sprintf("run %s to write %q", l.id, words), func() bool {
		logs = testenv.Exec(t, "logs", l.id)
		return strings.Contains(logs.Stdout, words)
	})
	return logs.Stdout
}

// end waits for the end of a run that start has started.
func (l live) end(t *testing.T) result {
	t.Helper()
	return decode(t, l.Wait(t))
}

func (l live) cgroup() string { return filepath.Join(testenv.CgroupRoot, "run", l.id) }

// procs are the processes of the sandbox, and of its runtime, by pid, with the name
// of their program.
func (l live) procs(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, group := range []string{l.cgroup(), l.cgroup() + "/ctr"} {
		data, err := os.ReadFile(group + "/cgroup.procs")
		if err != nil {
			continue // the runtime has made none, or all is gone
		}
		for pid := range strings.FieldsSeq(string(data)) {
			if exe, err := os.Readlink("/proc/" + pid + "/exe"); err == nil {
				found[pid] = filepath.Base(exe)
			}
		}
	}
	return found
}

// monitor is the pid of the run's monitor, 0 when it is gone.
func (l live) monitor(t *testing.T) int {
	t.Helper()
	return testenv.MonitorOf(t, l.id)
}

// report is what the probe printed: the values of each key, in order.
type report map[string][]string

func parse(text string) report {
	r := report{}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		r[key] = append(r[key], value)
	}
	return r
}

// sections splits the output of several commands of the probe.
func sections(text string) map[string]string {
	found := map[string]string{}
	for part := range strings.SplitSeq("\n"+text, "\n== ") {
		name, rest, _ := strings.Cut(part, "\n")
		found[name] = rest
	}
	return found
}

// same fails the test unless both are equal, value for value.
func same(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s = %q, want %q", what, got, want)
	}
}

// removeGroups removes a cgroup that a test had made, and those below it.
func removeGroups(t *testing.T, root string) {
	t.Helper()
	testenv.WaitFor(t, testenv.Patience, "the cgroups below "+root+" to be removable", func() bool {
		for _, dir := range []string{"/run", "/mon", ""} {
			os.Remove(root + dir) // the last one decides
		}
		return !fileExists(root)
	})
}
