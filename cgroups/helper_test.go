package cgroups

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// helperVar makes the test binary one of the helpers below.
const helperVar = "ENGINE_CGROUPS_HELPER"

// helpers are what runs in the groups under test. Each gets one argument.
var helpers = map[string]func(arg string){
	"sleep": func(string) { pause() },
	"tree": func(arg string) { // n processes that ignore what can be ignored
		n, _ := strconv.Atoi(arg)
		for range n {
			_, _ = rawFork()
		}
		announce()
		pause()
	},
	"burn": func(arg string) { // CPU time, by the process's own clock
		limit, _ := time.ParseDuration(arg)
		for used := time.Duration(0); used < limit; {
			for i := range 100_000 {
				_ = i * i
			}
			var ts unix.Timespec
			_ = unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts)
			used = time.Duration(ts.Nano())
		}
	},
	"touch": func(arg string) { // bytes of anonymous memory
		n, _ := strconv.Atoi(arg)
		m, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		for i := 0; i < n; i += 4096 {
			m[i] = 1
		}
	},
	"fork": func(arg string) { // tries n forks; the exit status is how many succeeded
		n, _ := strconv.Atoi(arg)
		made := uintptr(0)
		for range n {
			if _, errno := rawFork(); errno == 0 {
				made++
			}
		}
		for { // os.Exit may want a thread
			_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, made, 0, 0)
		}
	},
	"write": func(path string) { // 8 MiB that reach the device
		f, err := os.Create(path)
		if err == nil {
			_, err = f.Write(make([]byte, 8<<20))
		}
		if err == nil {
			err = f.Sync()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	},
	"cpus": func(string) { // the exit status is how many CPUs it may run on
		var set unix.CPUSet
		_ = unix.SchedGetaffinity(0, &set)
		os.Exit(set.Count())
	},
	"warm": func(dir string) { // until stdin ends
		stop, done := make(chan struct{}), make(chan error)
		go func() { done <- Group{Dir: dir}.WarmMigration(stop) }()
		announce()
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(stop)
		if err := <-done; err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	},
}

// pause sleeps until a signal ends the process.
func pause() {
	for {
		_ = unix.Pause()
	}
}

// announce tells start that the helper is where it should be.
func announce() { fmt.Println("ready") }

// rawFork makes a process that sleeps. It uses nothing of Go's runtime, of which
// only this thread exists there.
func rawFork() (int, syscall.Errno) {
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	for errno == 0 && pid == 0 {
		_, _, _ = unix.RawSyscall(unix.SYS_PAUSE, 0, 0, 0)
	}
	return int(pid), errno
}

// root is the engine's directory for this run of the tests.
var root = "engine-cgroups-test-" + strconv.Itoa(os.Getpid())

func TestMain(m *testing.M) {
	if name, arg, ok := strings.Cut(os.Getenv(helperVar), "="); ok {
		helpers[name](arg)
		os.Exit(0)
	}
	os.Exit(runAndCheck(m))
}

// runAndCheck fails when the tests leave a cgroup, and disables in the mount what
// Open enabled there.
func runAndCheck(m *testing.M) int {
	mount, dir, err := locate(root)
	if err != nil || os.Geteuid() != 0 {
		return m.Run()
	}
	control := mount + "/cgroup.subtree_control"
	before, _ := readFields(control)
	code := m.Run()
	if names, _ := children(dir + "/" + runs); len(names) > 0 {
		fmt.Fprintf(os.Stderr, "tests left the cgroups %v in %s/%s\n", names, dir, runs)
		code = 1
	}
	if err := (Group{Dir: dir}).Remove(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	after, _ := readFields(control)
	for _, c := range after {
		if !slices.Contains(before, c) {
			_ = write(control, "-"+c) // refused while somebody else uses it
		}
	}
	return code
}

// open opens the hierarchy. It skips where there is no cgroup v2 or no root, and
// where cgroup v2 does not have the controllers asked for. Those that it has must be
// in force: a failure of Open is no reason to skip.
func open(t testing.TB, controllers ...string) Hierarchy {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if _, _, err := locate(root); err != nil {
		t.Skipf("needs cgroup v2: %v", err)
	}
	h, err := Open(root)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	for _, c := range controllers {
		if slices.Contains(h.Controllers, c) {
			continue
		}
		available, err := readFields(h.Mount + "/cgroup.controllers")
		if err != nil || slices.Contains(available, c) {
			t.Fatalf("controllers = %v, want %s, since the mount has %v, %v", h.Controllers, c, available, err)
		}
		t.Skipf("needs the %s controller, which cgroup v2 does not have here", c)
	}
	return h
}

// create makes run/<name of the test> and removes it at the end.
func create(t testing.TB, h Hierarchy, l Limits) Group {
	t.Helper()
	g, unenforced, err := h.Create(groupName(t), l)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	if len(unenforced) > 0 {
		t.Fatalf("Create leaves %v unenforced", unenforced)
	}
	t.Cleanup(func() { destroy(t, g) })
	return g
}

func groupName(t testing.TB) string {
	return "run/" + strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-"))
}

func destroy(t testing.TB, g Group) {
	t.Helper()
	if err := g.Kill(); err != nil {
		t.Errorf("Kill: %v", err)
	}
	if err := g.WaitEmpty(bounded(t)); err != nil {
		t.Errorf("WaitEmpty: %v", err)
	}
	if err := g.Remove(); err != nil {
		t.Errorf("Remove: %v", err)
	}
}

// prepare returns a helper's command, to be started in the group.
func prepare(t testing.TB, g Group, helper, arg string) *exec.Cmd {
	t.Helper()
	dir, err := g.Open()
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() { dir.Close() })
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{helperVar + "=" + helper + "=" + arg}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	return cmd
}

// start starts a helper in the group.
func start(t testing.TB, g Group, helper, arg string) *exec.Cmd {
	t.Helper()
	cmd := prepare(t, g, helper, arg)
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", helper, err)
	}
	return cmd
}

// startReady starts a helper that announces itself, and waits for that.
func startReady(t testing.TB, g Group, helper, arg string) (*exec.Cmd, io.Closer) {
	t.Helper()
	cmd := prepare(t, g, helper, arg)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", helper, err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
		t.Fatalf("helper %s: %v, %v", helper, err, cmd.Wait())
	}
	return cmd, in
}
