package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/engine/doctor"
	"github.com/direct-oci/engine/engine/journal"
)

func reasonOf(r engine.Reason) *engine.Reason { return &r }

func TestTable(t *testing.T) {
	now := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	started := now.Add(-90 * time.Second)
	three, segv := 3, "SIGSEGV"
	request := func(image string, command ...string) engine.Request {
		return engine.Request{Runtime: "auto", Image: image, Command: command}
	}
	got := table([]engine.Record{
		{ID: "aaaaaaaaaaaaaaa1", State: engine.Running, Alive: true, Created: now.Add(-91 * time.Second), Started: &started, Request: request("node:20", "sleep", "100")},
		{ID: "aaaaaaaaaaaaaaa2", State: engine.Running, Created: now.Add(-3 * time.Hour), Request: request("", "x")},
		{ID: "aaaaaaaaaaaaaaa3", State: engine.Removed, Created: now.Add(-72 * time.Hour), Request: request("node:20", "sh", "-c", "a\n\x1b[2Jb"), Result: &engine.Result{
			Reason: reasonOf(engine.ReasonExited), ExitCode: &three, DurationMs: 41.23, Runtime: engine.RuntimeInfo{Name: "runsc"},
		}},
		{ID: "aaaaaaaaaaaaaaa4", State: engine.Stopped, Created: now, Request: request("node:20", strings.Repeat("long ", 20)), Result: &engine.Result{
			Reason: reasonOf(engine.ReasonSignal), Signal: &segv, DurationMs: 2500,
		}},
		{ID: "aaaaaaaaaaaaaaa5", State: engine.Stopped, Created: now, Request: request("node:20", "x"), Result: &engine.Result{Error: engine.Refused("x", "x")}},
	}, now)
	want := strings.TrimPrefix(`
ID                STATE    REASON          RUNTIME  IMAGE    AGE  DURATION  COMMAND
aaaaaaaaaaaaaaa1  running  -               auto     node:20  1m   1m30s     sleep 100
aaaaaaaaaaaaaaa2  running  no monitor      auto     -        3h   -         x
aaaaaaaaaaaaaaa3  removed  exited 3        runsc    node:20  3d   41.2ms    sh -c a\n\x1b[2Jb
aaaaaaaaaaaaaaa4  stopped  signal SIGSEGV  auto     node:20  0s   2.5s      long long long long long long long long long lo…
aaaaaaaaaaaaaaa5  stopped  refused         auto     node:20  0s   0s        x
`, "\n")
	if got != want {
		t.Errorf("table:\n%s\nwant:\n%s", got, want)
	}
}

func TestVerdict(t *testing.T) {
	limits := engine.DefaultLimits()
	limits.OutputMax = 10e6
	segv := "SIGSEGV"
	tests := []struct {
		res  engine.Result
		want string
	}{
		{engine.Result{Reason: reasonOf(engine.ReasonExited)}, "|"},
		{engine.Result{Reason: reasonOf(engine.ReasonTimeout)}, "run r was ended at its deadline of 2m0s|raise it with --timeout"},
		{engine.Result{Reason: reasonOf(engine.ReasonOOM)}, "run r ran out of its 512MiB of memory|raise it with --memory"},
		{engine.Result{Reason: reasonOf(engine.ReasonOutput)}, "run r was ended after 10MB of output|raise it with --output-max"},
		{engine.Result{Reason: reasonOf(engine.ReasonSignal), Signal: &segv}, "the program of run r was ended by SIGSEGV|"},
		{engine.Result{Reason: reasonOf(engine.ReasonCancelled)}, "run r was cancelled|"},
		{engine.Result{Reason: reasonOf(engine.ReasonLost)}, "run r is lost: its monitor died|"},
		{engine.Result{Reason: reasonOf(engine.ReasonInterrupted)}, "run r was interrupted: the host rebooted|"},
		{engine.Result{Reason: reasonOf(engine.ReasonInternal)}, "run r failed inside the engine|engine inspect r"},
		{engine.Result{Error: engine.Refused("command_not_found", "no such command").WithFix("check it")}, "no such command|check it"},
	}
	for _, tt := range tests {
		tt.res.ID = "r"
		message, fix := verdict(tt.res, limits)
		if got := message + "|" + fix; got != tt.want {
			t.Errorf("verdict = %q, want %q", got, tt.want)
		}
	}
}

func TestCheckupPairsEachFailureWithItsRepair(t *testing.T) {
	got := checkup(doctor.Sum([]doctor.Finding{
		{Name: "kernel", Status: doctor.OK, Found: "6.12", Why: "w"},
		{Name: "swap", Status: doctor.Fail, Found: "on", Why: "leaks", Fix: "swapoff -a"},
	}))
	want := strings.TrimPrefix(`
ok    kernel  6.12
fail  swap    on
              why: leaks
              fix: swapoff -a

score 50 of 100: 1 ok, 0 to improve, 1 failed; no run would work on this host
`, "\n")
	if got != want {
		t.Errorf("checkup:\n%s\nwant:\n%s", got, want)
	}
}

// TestOutlook proves that a host which only lacks limits is not called useless.
func TestOutlook(t *testing.T) {
	failed := func(names ...string) doctor.Report {
		var r []doctor.Finding
		for _, n := range names {
			r = append(r, doctor.Finding{Name: n, Status: doctor.Fail})
		}
		return doctor.Sum(r)
	}
	for _, tt := range []struct {
		report doctor.Report
		want   string
	}{
		{failed(), "a run would work on this host"},
		{failed("cgroup2 memory", "cgroup2 pids"), "no run would work on this host, except with --best-effort-limits and without the limits that failed"},
		{failed("cgroup2 memory", "overlayfs"), "no run would work on this host"},
		{failed("cgroup2"), "no run would work on this host"},
	} {
		if got := outlook(tt.report); got != tt.want {
			t.Errorf("outlook = %q, want %q", got, tt.want)
		}
	}
}

func TestSizesForPeople(t *testing.T) {
	for n, want := range map[int64]string{0: "0B", 999: "999B", 1000: "1kB", 1999999: "2MB", 999_600: "1MB", 123_456_789: "123MB", 3 << 40: "3.3TB"} {
		if got := bytesOf(n); got != want {
			t.Errorf("bytesOf(%d) = %s, want %s", n, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0B", 512 << 20: "512MiB", 10e6: "10MB", 1500e6: "1500MB", 1: "1B", 2e9: "2GB"} {
		if got := sizeOf(n); got != want {
			t.Errorf("sizeOf(%d) = %s, want %s", n, got, want)
		}
	}
}

// TestLogs prints a record that was written here.
func TestLogs(t *testing.T) {
	state := t.TempDir()
	run, err := journal.Create(state, "aaaaaaaaaaaaaaa1")
	if err != nil {
		t.Fatal(err)
	}
	w, err := journal.CreateOutput(run.OutputPath(), 12)
	err = errors.Join(err, run.Write(journal.Intent, engine.Request{}, false))
	for s, text := range []string{"", "out \x1b[1m\xff and a lot more of this", "err"} {
		if s > 0 {
			err = errors.Join(err, w.Append(journal.Stream(s), []byte(text)))
		}
	}
	if err = errors.Join(err, w.Close(false)); err != nil {
		t.Fatal(err)
	}
	run.Close()
	tests := []struct{ args, stdout, stderr string }{
		{"", "out \x1b[1m\xff anmore of this", "errengine: 8 bytes of stdout were not kept here\n"},
		{"--follow --quiet", "out \x1b[1m\xff anmore of this", "err"},
		{"--stream stderr", "", "err"},
		{"--stream stdout --raw --quiet", "out \x1b[1m\xff anmore of this", ""},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("logs %s", tt.args), func(t *testing.T) {
			stdout, stderr := file(t), file(t)
			a := newApp(nil, stdout, stderr)
			args := append([]string{"logs", "--state-dir", state}, strings.Fields(tt.args)...)
			if status := a.main(append(args, "aaaa")); status != 0 {
				t.Errorf("status %d", status)
			}
			if got := contents(t, stdout); got != tt.stdout {
				t.Errorf("stdout = %q, want %q", got, tt.stdout)
			}
			if got := contents(t, stderr); got != tt.stderr {
				t.Errorf("stderr = %q, want %q", got, tt.stderr)
			}
		})
	}
}

func file(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func contents(t *testing.T, f *os.File) string {
	t.Helper()
	data, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
