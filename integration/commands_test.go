package integration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/integration/testenv"
)

// TestRecords proves the commands that look at runs: ps, inspect, wait, kill, rm and gc.
func TestRecords(t *testing.T) {
	begin(t)
	expect := func(status int, words string, args ...string) testenv.Result {
		t.Helper()
		call := testenv.Exec(t, args...)
		if call.Status != status || !strings.Contains(call.Stdout+call.Stderr, words) {
			t.Errorf("%s\nwant status %d and %q", call, status, words)
		}
		return call
	}
	done := run(t, "embedded", nil, "/probe", "leave", "3")
	done.want(t, "exited", 3)
	l := start(t, "embedded", nil, "/probe", "hold")

	ps := expect(0, "STATE", "ps")
	for id, words := range map[string]string{done.ID: "exited 3", l.id: "running"} {
		i := slices.IndexFunc(strings.Split(ps.Stdout, "\n"), func(line string) bool {
			return strings.HasPrefix(line, id) && strings.Contains(line, words)
		})
		if i < 0 {
			t.Errorf("%s\nwant a line with %s and %q", ps, id, words)
		}
	}
	if list := records(t); list[0].ID != l.id {
		t.Errorf("ps lists %s first, want the newest, %s", list[0].ID, l.id)
	}
	expect(3, `"reason":"exited"`, "wait", "--json", done.ID)
	expect(3, "", "wait", done.ID)
	expect(0, `"state": "running"`, "inspect", l.id[:10])
	expect(125, "cannot find", "inspect", "aaaaaaaaaaaaaaaa")
	expect(125, "cannot find", "wait", "nosuchrun")
	expect(125, "alive", "rm", l.id)
	expect(125, "ended", "kill", done.ID)
	expect(0, "", "gc", "--dry-run")
	expect(0, l.id, "kill", l.id)
	l.end(t).want(t, "cancelled", 130)
	testenv.WaitFor(t, testenv.Patience, "the run to be torn down", func() bool { return inspect(t, l.id).State == "removed" })
	expect(125, "not both", "rm", "--older-than", "1h", l.id)
	expect(0, "", "rm", "--older-than", "1h")
	expect(0, l.id, "rm", l.id)
	expect(125, "cannot find", "inspect", l.id)
	expect(0, done.ID, "rm", "--older-than", "0.001")
	expect(125, "cannot find", "inspect", done.ID)
	if fileExists(testenv.StateDir + "/runs/" + l.id) {
		t.Error("the record of a run is left after engine rm")
	}
}

// documented are the fields of a result.
var documented = []string{
	"id", "ok", "reason", "exitCode", "signal", "timedOut", "oomKilled", "stdout", "stderr", "stdoutBytes", "stderrBytes", "stdoutTruncated",
	"stderrTruncated", "durationMs", "timing", "actuals", "limits", "unenforced", "runtime", "image", "layers", "network", "changes", "digest", "error",
}

// TestFieldsOfAResult proves that results, of runs and of refusals alike, have exactly
// the documented fields, and lists where there are lists.
func TestFieldsOfAResult(t *testing.T) {
	begin(t)
	for _, r := range []result{
		run(t, "embedded", nil, "/probe", "leave", "0"),
		run(t, "embedded", []string{"--memory", "1"}, "/probe", "leave", "0"),
		run(t, "embedded", []string{"--no-such-flag"}, "/probe", "leave", "0"),
	} {
		var fields map[string]json.RawMessage
		must(t, json.Unmarshal([]byte(r.call.Stdout), &fields))
		for _, name := range documented {
			if _, ok := fields[name]; !ok {
				t.Errorf("%s\nhas no field %s", r, name)
			}
			delete(fields, name)
		}
		for name := range fields {
			t.Errorf("%s\nhas a field %s that is not documented", r, name)
		}
		if strings.Contains(r.call.Stdout, `"unenforced":null`) || strings.Contains(r.call.Stdout, `"phases":null`) ||
			strings.Contains(r.call.Stdout, `"denied":null`) || strings.Contains(r.call.Stdout, `"changes":null`) {
			t.Errorf("%s\nhas null in place of a list", r)
		}
		if strings.Count(r.call.Stdout, "\n") != 1 {
			t.Errorf("%s\nwant one line", r)
		}
	}
}

// TestRefusals proves that a wrong request is refused as such, with a word about the
// cure, and before any sandbox exists.
func TestRefusals(t *testing.T) {
	begin(t)
	tests := []struct {
		flags []string
		kind  string
		words string
	}{
		{[]string{"--memory", "1KiB"}, "bad_limit", "memory"},
		{[]string{"--memory", "much"}, "bad_limit", "memory"},
		{[]string{"--cpus", "0"}, "bad_limit", "cpus"},
		{[]string{"--cpus", "NaN"}, "bad_limit", "cpus"},
		{[]string{"--pids", "0"}, "bad_limit", "pids"},
		{[]string{"--timeout", "0"}, "bad_limit", "timeout"},
		{[]string{"--timeout", "-1s"}, "bad_limit", "timeout"},
		{[]string{"--user", "0"}, "bad_user", "root"},
		{[]string{"--user", "65536"}, "bad_user", "65535"},
		{[]string{"--user", "4294967296"}, "bad_user", "number"},
		{[]string{"--user", "nobody"}, "bad_user", "number"},
		{[]string{"--workdir", "/proc/self/fd/3"}, "bad_workdir", "/proc"},
		{[]string{"--workdir", "relative"}, "bad_workdir", "absolute"},
		{[]string{"--workdir", "/tmp/../proc/1"}, "bad_workdir", "/proc"},
		{[]string{"--env", "PATH"}, "bad_env", "PATH"},
		{[]string{"--env", "a b=c"}, "bad_env", "a b"},
		{[]string{"--rootfs", "/"}, "bad_root", "/"},
		{[]string{"--rootfs", "/nowhere"}, "bad_root", "/nowhere"},
		{[]string{"--rootfs", "", "--image", "nosuchimage"}, "no_image", "nosuchimage"},
		{[]string{"--image", "both"}, "bad_root", "exactly one"},
		{[]string{"--runtime", "rumsc"}, "bad_runtime", "runsc"},
		{[]string{"--network", "lan"}, "bad_network", "none or internet"},
		{[]string{"--allow", "bad_name!"}, "bad_network", "bad_name!"},
		{[]string{"--allow-cidr", "300.0.0.0/8:1"}, "bad_network", "address range"},
		{[]string{"--allow-cidr", "169.254.169.254/32:80"}, "bad_network", "metadata"},
		{[]string{"--workspace", "/tmp"}, "not_available", "workspace"},
		{[]string{"--apply"}, "not_available", "workspace"},
		{[]string{"--memmory", "1GiB"}, "unknown_flag", "--memory"},
	}
	for _, tt := range tests {
		r := run(t, "embedded", tt.flags, "/probe", "leave", "0")
		r.want(t, "null", 125)
		if e := r.Error; e.Class != "request" || e.Kind != tt.kind || !strings.Contains(e.Message+e.Fix, tt.words) {
			t.Errorf("%q: error = %+v, want class request, kind %s and the word %q", tt.flags, *e, tt.kind, tt.words)
		}
	}
	for _, args := range [][]string{{"stats"}, {"events"}, {"image", "pull", "x"}, {"serve"}, {"nonsense"}, {"run"}, {"run", "--json", "--"}} {
		if call := testenv.Exec(t, args...); call.Status != 125 || !strings.Contains(call.Stderr, "cannot") {
			t.Errorf("%s\nwant status 125 and a reason", call)
		}
	}
}

// TestDoctorAndVersion proves that doctor finds the test machine fit, in a form that
// programs can read, and what version says.
func TestDoctorAndVersion(t *testing.T) {
	begin(t)
	call := testenv.Exec(t, "doctor", "--json")
	var report struct {
		Fit    bool
		Score  int
		Checks []struct{ Name, Status, Found, Why, Fix string }
	}
	if err := json.Unmarshal([]byte(call.Stdout), &report); err != nil {
		t.Fatalf("%s\nprinted no report: %v", call, err)
	}
	if want := controlled(); report.Fit != want || (call.Status == 0) != want || len(report.Checks) < 10 {
		t.Errorf("%s\nwant fit = %v and an exit status that says so", call, want)
	}
	for _, c := range report.Checks {
		if c.Status != "ok" && (c.Fix == "" || c.Why == "") {
			t.Errorf("check %q is %s, without why and fix: %+v", c.Name, c.Status, c)
		}
	}
	version := testenv.Exec(t, "version")
	if f := strings.Fields(version.Stdout); version.Status != 0 || len(f) != 4 || f[0] != "engine" {
		t.Errorf("%s\nwant engine, its version, Go's and the platform", version)
	}
}

// TestAutoRuntime proves that auto takes gVisor where it is installed, and says so.
func TestAutoRuntime(t *testing.T) {
	begin(t)
	testenv.Binary(t, "runsc")
	r := run(t, "auto", nil, "/probe", "leave", "0")
	r.want(t, "exited", 0)
	if r.Runtime.Name != "runsc" {
		t.Errorf("runtime = %q, want runsc", r.Runtime.Name)
	}
}

// TestOtherDirectories proves that --state-dir, --run-dir and --cgroup-root keep one
// engine apart from another.
func TestOtherDirectories(t *testing.T) {
	begin(t)
	dir := t.TempDir()
	where := []string{"--state-dir", dir + "/state", "--run-dir", dir + "/run", "--cgroup-root", testenv.CgroupRoot + "/other"}
	t.Cleanup(func() { removeGroups(t, testenv.CgroupRoot+"/other") })
	must(t, os.Chmod(filepath.Dir(dir), 0o700))
	shut := run(t, "embedded", where, "/probe", "leave", "0")
	if shut.call.Status != 125 || shut.Error == nil || shut.Error.Kind != "no_directory" || !strings.Contains(shut.Error.Fix, "chmod") {
		t.Errorf("%s\nwant a run directory that the sandbox's users cannot reach refused, with the cure", shut)
	}
	must(t, os.Chmod(filepath.Dir(dir), 0o711))
	must(t, os.Chmod(dir, 0o711))
	eachRuntimeInTurn(t, func(t *testing.T, runtime string) {
		r := run(t, runtime, where, "/probe", "leave", "0")
		r.want(t, "exited", 0)
		if call := testenv.Exec(t, "inspect", r.ID); call.Status != 125 {
			t.Errorf("%s\nwant the run unknown to the engine of other directories", call)
		}
		if call := testenv.Exec(t, append([]string{"inspect", r.ID}, where...)...); call.Status != 0 {
			t.Errorf("%s\nwant the run on record there", call)
		}
	})
}

// TestUmaskOfTheCaller proves that what the engine makes is as open as it has to be, and
// no more, whoever starts it.
func TestUmaskOfTheCaller(t *testing.T) {
	begin(t)
	defer unix.Umask(unix.Umask(0o077))
	eachRuntimeInTurn(t, func(t *testing.T, runtime string) {
		run(t, runtime, nil, "/probe", "leave", "0").want(t, "exited", 0)
	})
}
