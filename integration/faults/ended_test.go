package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/engine/journal"
	"github.com/direct-oci/engine/integration/testenv"
)

// ending is what the record tells of a program's end.
func ending(r *engine.Record) string {
	switch {
	case r == nil || r.Result == nil || r.Result.Reason == nil:
		return "nothing"
	case r.Result.ExitCode != nil && r.Result.Signal == nil:
		return fmt.Sprintf("%s %d", *r.Result.Reason, *r.Result.ExitCode)
	case r.Result.Signal != nil && r.Result.ExitCode == nil:
		return fmt.Sprintf("%s %s", *r.Result.Reason, *r.Result.Signal)
	}
	return string(*r.Result.Reason)
}

// TestEndIsKept kills the monitor between the program's end and the result. The run is
// lost, and the record has the program's status, whoever writes it: the caller, or gc.
func TestEndIsKept(t *testing.T) {
	scope(t)
	b := newFailpointBed(t)
	kill := []string{"ENGINE_FAILPOINT=after-note-ended@monitor"}
	for _, runtime := range runtimes {
		jobs := map[string]string{"exit 7": "lost 7"}
		if runtime == "embedded" {
			jobs["exit 0"], jobs["kill -SEGV $$"] = "lost 0", "lost SIGSEGV"
		}
		for job, want := range jobs {
			id := journal.NewID()
			o := b.engine(kill, b.startJob(runtime, id, job)...)
			r := b.record(id)
			if got := ending(r); got != want || o.status != 125 || !strings.Contains(o.stderr, "after the program had ended") {
				t.Errorf("%s of %q under %s, want %s and status 125\n%s", got, job, runtime, want, o)
				continue
			}
			if r.Result.OK || r.Result.DurationMs <= 0 {
				t.Errorf("ok = %t after %v ms, want no success and a duration", r.Result.OK, r.Result.DurationMs)
			}
			b.quiet(id)
		}
	}
	for want, prepare := range map[string]func(id string){
		"lost 7": func(string) {},
		"lost":   func(id string) { b.edit(id, "ended", func(text string) string { return text[:len(text)/2] }) },
	} {
		id := journal.NewID()
		b.engine(kill, append([]string{"run", "--detach"}, b.start("embedded", id)[1:]...)...)
		b.quiet(id)
		prepare(id)
		b.gc()
		r := b.record(id)
		if got := ending(r); got != want {
			t.Errorf("gc made it %s, want %s", got, want)
		}
		if torn := strings.Contains(r.Result.Error.Message, "cannot read record ended"); torn != (want == "lost") {
			t.Errorf("error = %v", r.Result.Error)
		}
		if files := b.list("state/runs/" + id); slices.Contains(files, "ended.json") {
			t.Errorf("%q is left of a run that is cleaned", files)
		}
	}
	b.clean()
}

// TestNoProgramEndsWithoutItsMonitor asks the kernel, by descriptors opened before, how
// the processes of a sandbox ended whose monitor was killed. None had a status of its own
// to tell: the program was killed with engine-init, which ends with its monitor.
func TestNoProgramEndsWithoutItsMonitor(t *testing.T) {
	scope(t)
	if old := before615(t); old != "" {
		t.Skipf("Linux %s does not tell how a process ended through a pidfd: 6.15 does", old)
	}
	b := newBed(t)
	for _, runtime := range []string{"direct", "embedded", "runc"} {
		id := journal.NewID()
		detached := append([]string{"run", "--detach"}, b.startJob(runtime, id, "echo up; sleep 20; exit 7")[1:]...)
		if o := b.engine(nil, detached...); o.status != 0 {
			t.Fatalf("%s", o)
		}
		testenv.WaitFor(t, patience(), "the program to run", func() bool { return b.engine(nil, "logs", id).stdout == "up\n" })
		pidfds := b.pidfds(id)
		monitor := testenv.MonitorOf(t, id)
		if monitor == 0 {
			t.Fatal("there is no monitor")
		}
		if err := unix.Kill(monitor, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		statuses := map[string]int{}
		for _, fd := range pidfds {
			statuses[exitOf(t, fd)]++
		}
		// engine-init's own is told once the host's first process has reaped it.
		if statuses["killed"] < 2 || statuses["killed"]+statuses["exited 125"]+statuses["not reaped"] != len(pidfds) || statuses["exited 125"]+statuses["not reaped"] > 1 {
			t.Errorf("the sandbox under %s ended with %v, want the program killed and engine-init with 125", runtime, statuses)
		}
		b.engine(nil, "gc")
		if got := ending(b.record(id)); got != "lost" {
			t.Errorf("the record says %s, want lost", got)
		}
	}
	b.clean()
}

// pidfds are descriptors of all processes of a run's sandbox.
func (b *bed) pidfds(id string) []int {
	b.t.Helper()
	var fds []int
	err := filepath.WalkDir(b.groups.Group("run/"+id).Dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil || filepath.Base(path) != "cgroup.procs" {
			return err
		}
		list, err := os.ReadFile(path)
		for field := range strings.FieldsSeq(string(list)) {
			pid, _ := strconv.Atoi(field)
			fd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				return err
			}
			b.t.Cleanup(func() { unix.Close(fd) })
			fds = append(fds, fd)
		}
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return fds
}

// exitOf is how a process ended, told by the kernel itself.
func exitOf(t *testing.T, pidfd int) string {
	t.Helper()
	poll := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	if n, err := unix.Poll(poll, int(patience()/time.Millisecond)); n != 1 {
		t.Fatalf("a process of the sandbox goes on: %v", err)
	}
	info := unix.PidfdInfo{}
	for end := time.Now().Add(2 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		info.Mask = unix.PIDFD_INFO_EXIT
		err := unix.IoctlPidfdInfo(pidfd, &info)
		if err != nil {
			t.Fatalf("cannot ask the kernel how a process ended: %v", err)
		}
		if info.Mask&unix.PIDFD_INFO_EXIT != 0 {
			break
		}
		if time.Now().After(end) {
			return "not reaped"
		}
	}
	switch status := unix.WaitStatus(info.Exit_code); {
	case status.Signaled() && status.Signal() == unix.SIGKILL:
		return "killed"
	case status.Exited():
		return fmt.Sprintf("exited %d", status.ExitStatus())
	default:
		return fmt.Sprintf("status %#x", info.Exit_code)
	}
}

// before615 is the kernel's version if it is before 6.15.
func before615(t *testing.T) string {
	t.Helper()
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	release := unix.ByteSliceToString(name.Release[:])
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		t.Fatalf("cannot read the kernel's version=%q: %v", release, err)
	}
	if major > 6 || major == 6 && minor >= 15 {
		return ""
	}
	return release
}
