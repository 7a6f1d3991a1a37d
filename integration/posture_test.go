package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/direct-oci/engine/integration/testenv"
)

// maskedPaths must show nothing, where they exist at all.
var maskedPaths = []string{
	"/proc/acpi", "/proc/allocinfo", "/proc/asound", "/proc/bootconfig", "/proc/buddyinfo", "/proc/cmdline",
	"/proc/config.gz", "/proc/diskstats", "/proc/interrupts", "/proc/iomem", "/proc/ioports", "/proc/kallsyms",
	"/proc/kcore", "/proc/key-users", "/proc/keys", "/proc/kmsg", "/proc/kpagecgroup", "/proc/kpagecount",
	"/proc/kpageflags", "/proc/latency_stats", "/proc/modules", "/proc/pagetypeinfo", "/proc/partitions",
	"/proc/pressure", "/proc/sched_debug", "/proc/schedstat", "/proc/scsi", "/proc/slabinfo", "/proc/softirqs",
	"/proc/sysrq-trigger", "/proc/timer_list", "/proc/timer_stats", "/proc/vmallocinfo", "/proc/vmstat",
	"/proc/zoneinfo", "/sys/firmware", "/sys/devices/virtual/powercap", "/sys/module/nf_tables", "/sys/kernel/security",
	"/sys/kernel/debug",
}

// scratch are the only places that can be written.
var scratch = []string{"/dev/shm", "/tmp", "/workload"}

// devices are those a program may use.
var devices = []string{"/dev/full", "/dev/null", "/dev/random", "/dev/tty", "/dev/urandom", "/dev/zero"}

// sentryDevices are gVisor's own, which it always has: its kernel answers for them, and
// needs capabilities for whatever they do.
var sentryDevices = []string{"/dev/fuse", "/dev/net/tun", "/dev/ptmx", "/dev/pts/ptmx"}

// environment is all that a program gets unasked.
var environment = []string{
	"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/workload", "LANG=C.UTF-8", "TMPDIR=/tmp",
	"XDG_CACHE_HOME=/tmp/.cache", "PIP_CACHE_DIR=/tmp/.cache/pip", "npm_config_cache=/tmp/.cache/npm", "npm_config_update_notifier=false",
	"YARN_CACHE_FOLDER=/tmp/.cache/yarn", "GOCACHE=/tmp/.cache/go-build", "PYTHONDONTWRITEBYTECODE=1",
}

// inside is one sandbox seen from inside.
type inside struct {
	report
	runtime  string
	sections map[string]string

	// bare: without engine-init, from a bundle that somebody else's runtime ran.
	bare bool
}

func (in inside) gvisor() bool { return in.runtime == "runsc" }

// status returns one line of /proc/self/status.
func (in inside) status(name string) string {
	for _, line := range in.report["status"] {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.Join(strings.Fields(value), " ")
		}
	}
	return "(none)"
}

// TestPosture holds what a sandbox looks like from inside against what is promised,
// under every runtime.
func TestPosture(t *testing.T) {
	begin(t)
	if testenv.InVM() {
		swapFile(t, "/proc/sys/kernel/domainname", "host.canary")
	}
	checks := []struct {
		name  string
		check func(t *testing.T, in inside)
	}{
		{"three descriptors and no more", checkDescriptors},
		{"an ordinary user without any privilege", checkIdentity},
		{"nothing of the caller's environment", checkEnvironment},
		{"namespaces of its own", checkNamespaces},
		{"the limits are the machine", checkMachine},
		{"resource limits", checkRlimits},
		{"mounts and their flags", checkMounts},
		{"sizes of what can be written", checkSizes},
		{"masked files", checkMasked},
		{"nothing else can be written", checkWritable},
		{"calls that are refused", checkSyscalls},
		{"PID 1 is out of reach", checkGuards},
		{"no other process", checkStrangers},
	}
	eachRuntime(t, func(t *testing.T, runtime string) {
		command := slices.Concat([]string{"/probe", "posture", "+", "strangers", "+", "masked"}, maskedPaths,
			[]string{"+", "writable", "+", "syscalls", "+", "guards"})
		r := run(t, runtime, []string{"--memory", "256MiB", "--cpus", "1", "--pids", "64", "--tmp-size", "8MiB", "--workspace-size", "16MiB"}, command...)
		r.want(t, "exited", 0)
		in := inside{runtime: runtime, sections: sections(r.Stdout)}
		in.report = parse(in.sections["posture"])
		for _, c := range checks {
			t.Run(c.name, func(t *testing.T) { c.check(t, in) })
		}
	})
}

// swapFile writes a value into a file of the kernel's for the time of the test.
func swapFile(t *testing.T, path, value string) {
	t.Helper()
	old, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, []byte(value), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(path, old, 0o644); err != nil {
			t.Error(err)
		}
	})
}

func checkDescriptors(t *testing.T, in inside) {
	same(t, "descriptors", in.report["fd"], []string{"0", "1", "2"})
}

func checkIdentity(t *testing.T, in inside) {
	parent := "1"
	if in.bare {
		parent = "0" // it is PID 1 itself
	}
	for key, want := range map[string]string{
		"uid": "65532 65532", "gid": "65532 65532", "groups": "0", "umask": "0077", "hostname": "sandbox", "cwd": "/workload", "ppid": parent, "signals": "",
	} {
		same(t, key, in.report[key], []string{want})
	}
	if name := in.report["domainname"]; !slices.Contains([]string{"", "(none)"}, name[0]) {
		t.Errorf("domainname = %q, want none", name)
	}
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		if got, want := in.status(set), "0000000000000000"; got != want {
			t.Errorf("%s = %s, want %s", set, got, want)
		}
	}
	// The filter is attached inside, so gVisor has it too.
	for name, want := range map[string]string{"NoNewPrivs": "1", "Seccomp": "2", "Threads": "1", "TracerPid": "0"} {
		if got := in.status(name); got != want {
			t.Errorf("%s = %s, want %s", name, got, want)
		}
	}
	if oom := in.report["oom"]; !in.gvisor() { // which shows its own
		same(t, "oom_score_adj", oom, []string{"500"})
	}
}

func checkEnvironment(t *testing.T, in inside) {
	same(t, "environment", in.report["env"], environment)
	same(t, "first line of /etc/passwd", in.report["passwd"][:1], []string{"root:x:0:0:root:/root:/bin/sh"})
	same(t, "/etc/resolv.conf", in.report["resolv"], []string{"# No resolver: this sandbox has no network."})
}

func checkNamespaces(t *testing.T, in inside) {
	same(t, "network interfaces", in.report["link"], []string{"lo up"})
	if in.gvisor() {
		return // numbers its own; TestProcessesOfASandbox looks from outside
	}
	if got := len(in.report["ns"]); got != 8 {
		t.Errorf("namespaces = %q, want all eight kinds", in.report["ns"])
	}
	for _, ns := range in.report["ns"] {
		kind, _, _ := strings.Cut(ns, ":")
		host, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil || ns == host {
			t.Errorf("namespace %s is the host's (%v)", ns, err)
		}
	}
	fields := strings.Fields(in.report["uidmap"][0])
	if len(in.report["uidmap"]) != 1 || fields[0] != "0" || fields[2] != "65536" || len(fields[1]) < 6 {
		t.Errorf("uid_map = %q, want one block of 65536 high ids", in.report["uidmap"])
	}
	if groups := in.report["cgroup"]; groups[len(groups)-1] != "0::/" {
		t.Errorf("cgroup = %q, want the root of its own namespace", groups)
	}
}

func checkMachine(t *testing.T, in inside) {
	same(t, "CPUs in the affinity mask", in.report["affinity"], []string{"1"})
	count := func(key, prefix string) (n int) {
		for _, line := range in.report[key] {
			if strings.HasPrefix(line, prefix) {
				n++
			}
		}
		return n
	}
	if got := count("cpuinfo", "processor"); got != 1 {
		t.Errorf("/proc/cpuinfo has %d processors, want 1", got)
	}
	if got := count("stat", "cpu"); got != 2 {
		t.Errorf("/proc/stat has %d cpu lines, want the sum and one", got)
	}
	for name, want := range map[string]string{"MemTotal": "262144 kB", "SwapTotal": "0 kB"} {
		i := slices.IndexFunc(in.report["meminfo"], func(l string) bool { return strings.HasPrefix(l, name+":") })
		if i < 0 || strings.Join(strings.Fields(in.report["meminfo"][i])[1:], " ") != want {
			t.Errorf("/proc/meminfo: %s is not %s: %q", name, want, in.report["meminfo"])
		}
	}
	if in.gvisor() || !controlled() {
		return
	}
	same(t, "limits in /sys/fs/cgroup", in.report["cgroupfile"], []string{"memory.max 268435456", "cpu.max 100000 100000", "pids.max 65"})
}

func checkRlimits(t *testing.T, in inside) {
	same(t, "rlimits", in.report["rlimit"], []string{
		"core 1 1", "nofile 4096 4096", "memlock 65536 65536", "stack 8388608 8388608", "msgqueue 0 0", "nice 0 0", "rtprio 0 0", "sigpending 1024 1024",
	})
}

// mountPromise is what each mount that is not one device or mask must be.
var mountPromise = map[string]struct{ fstype, flags string }{
	"/":              {"overlay", "ro,nosuid,nodev"},
	"/proc":          {"proc", "nosuid,nodev,noexec"},
	"/proc/bus":      {"proc", "ro,nosuid,nodev,noexec"},
	"/proc/fs":       {"proc", "ro,nosuid,nodev,noexec"},
	"/proc/irq":      {"proc", "ro,nosuid,nodev,noexec"},
	"/proc/sys":      {"proc", "ro,nosuid,nodev,noexec"},
	"/proc/cpuinfo":  {"", "ro,nosuid,nodev,noexec"},
	"/proc/meminfo":  {"", "ro,nosuid,nodev,noexec"},
	"/proc/stat":     {"", "ro,nosuid,nodev,noexec"},
	"/sys/fs/cgroup": {"cgroup2", "ro,nosuid,nodev,noexec"},
	"/dev":           {"tmpfs", "ro,nosuid,noexec"},
	"/dev/shm":       {"tmpfs", "rw,nosuid,nodev,noexec"},
	"/tmp":           {"tmpfs", "rw,nosuid,nodev"},
	"/workload":      {"tmpfs", "rw,nosuid,nodev"},
}

// sentryPromise is the same for gVisor, which opens no device of the host anywhere and
// so knows no nodev, and no program of a read-only root that gains by set-id bits.
var sentryPromise = map[string]struct{ fstype, flags string }{
	"/":             {"9p", "ro"},
	"/proc":         {"proc", "nosuid,noexec"},
	"/proc/cpuinfo": {"9p", "ro,nosuid,noexec"},
	"/proc/meminfo": {"9p", "ro,nosuid,noexec"},
	"/proc/stat":    {"9p", "ro,nosuid,noexec"},
	"/sys":          {"sysfs", "ro,nosuid,noexec"},
	"/dev":          {"dev", "ro,nosuid,noexec"},
	"/dev/pts":      {"devpts", ""},
	"/dev/shm":      {"tmpfs", "rw,nosuid,noexec"},
	"/tmp":          {"tmpfs", "rw,nosuid"},
	"/workload":     {"tmpfs", "rw,nosuid"},
}

func checkMounts(t *testing.T, in inside) {
	promise := mountPromise
	if in.gvisor() {
		promise = sentryPromise
	}
	seen := map[string]bool{}
	for _, line := range in.report["mount"] {
		mount, super, _ := strings.Cut(line, " - ")
		fields := strings.Fields(mount)
		source, target, flags := fields[3], fields[4], strings.Split(fields[5], ",")
		fstype := strings.Fields(super)[0]
		want, promised := promise[target]
		switch {
		case promised:
			seen[target] = true
			if want.fstype != "" && fstype != want.fstype {
				t.Errorf("mount of type %s at %s, want %s", fstype, target, want.fstype)
			}
			if in.runtime == "crun" && strings.HasPrefix(want.flags, "ro,") && fstype == "proc" {
				want.flags = "ro" // crun 1.8 drops the others there, where no program or device is
			}
			for flag := range strings.SplitSeq(want.flags, ",") {
				if flag != "" && !slices.Contains(flags, flag) {
					t.Errorf("mount at %s is %q, want %s", target, flags, flag)
				}
			}
		case in.gvisor():
			t.Errorf("unexpected mount: %s", line)
		case slices.Contains(devices, target) && source == "/"+filepath.Base(target) && fstype == "devtmpfs":
		case slices.Contains(maskedPaths, target) && (source == "/null" || slices.Contains(flags, "ro") && fstype == "tmpfs"):
		default:
			t.Errorf("unexpected mount: %s", line)
		}
		if len(fields) > 6 && strings.Contains(strings.Join(fields[6:], " "), "shared:") {
			t.Errorf("mount at %s is shared with others: %s", target, line)
		}
	}
	for target := range promise {
		if !seen[target] {
			t.Errorf("nothing is mounted at %s", target)
		}
	}
}

func checkSizes(t *testing.T, in inside) {
	want := map[string][2]int{"/tmp": {8 << 20, 2048}, "/workload": {16 << 20, 4096}, "/dev/shm": {64 << 20, 16384}}
	for _, line := range in.report["size"] {
		var path string
		var size, files int
		fmt.Sscanf(line, "%s %d files %d", &path, &size, &files)
		w, ok := want[path]
		if ok && (size != w[0] || files != w[1] && !in.gvisor()) { // gVisor bounds no number of files
			t.Errorf("%s holds %d bytes in %d files, want %d in %d", path, size, files, w[0], w[1])
		}
	}
}

func checkMasked(t *testing.T, in inside) {
	lines := strings.Split(strings.TrimSpace(in.sections["masked"]), "\n")
	if len(lines) != len(maskedPaths) {
		t.Fatalf("the probe reports on %d paths, want %d", len(lines), len(maskedPaths))
	}
	for _, line := range lines {
		if f := strings.Fields(line); f[1] != "error" && f[2] != "0" && (!in.gvisor() || f[0] != "/proc/cmdline") { // which tells of no machine
			t.Errorf("%s can be read", line)
		}
	}
}

// checkWritable wants every path that can be written, of the whole tree, to be scratch,
// a device, or a mask, which is /dev/null.
func checkWritable(t *testing.T, in inside) {
	found := map[string]bool{}
	for line := range strings.Lines(in.sections["writable"]) {
		kind, path, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case kind == "creatable" && slices.Contains(scratch, path), kind == "mkdirable" && slices.Contains(scratch, path):
			found[path] = true
		case kind == "device" && slices.Contains(devices, path):
		case kind == "device" && slices.Contains(maskedPaths, path) && !in.gvisor():
		case kind == "device" && slices.Contains(sentryDevices, path) && in.gvisor():
		default:
			t.Errorf("%s is %s", path, kind)
		}
	}
	for _, path := range scratch {
		if !found[path] {
			t.Errorf("nothing can be made in %s", path)
		}
	}
}

// bareCalls are answered otherwise in a bundle of somebody else's runtime. The guard of
// PID 1 is not in its profile, where the program is PID 1; and libseccomp, where it is
// older than a call, lets runc answer that there is none.
var bareCalls = map[string][]string{"pidfd_send_signal": {"Bad file descriptor"}, "statmount": {"ENOSYS"}, "listmount": {"ENOSYS"}}

// checkSyscalls wants every call refused: as not permitted, or, where a C library then
// falls back to an older one, as not there.
func checkSyscalls(t *testing.T, in inside) {
	calls := 0
	for line := range strings.Lines(in.sections["syscalls"]) {
		line = strings.TrimSpace(line)
		if call, ok := strings.CutPrefix(line, "call "); ok {
			calls++
			name, got, _ := strings.Cut(call, ": ")
			want := "EPERM"
			if name == "clone3" || strings.HasPrefix(name, "number ") {
				want = "ENOSYS"
			}
			if in.bare && slices.Contains(bareCalls[name], got) {
				continue
			}
			if got != want {
				t.Errorf("%s is answered with %q, want %s", name, got, want)
			}
		}
		if abi, ok := strings.CutPrefix(line, "abi "); ok && !strings.Contains(abi, "signal 31") && !strings.Contains(abi, "signal 11") {
			t.Errorf("a call by the ABI %s, want death by SIGSYS", abi)
		}
	}
	if want := strconv.Itoa(calls); calls < 60 || !strings.Contains(in.sections["syscalls"], "calls "+want+"\n") {
		t.Errorf("the probe made %d calls, want at least 60, and all of them", calls)
	}
}

func checkGuards(t *testing.T, in inside) {
	lines := strings.Split(strings.TrimSpace(in.sections["guards"]), "\n")
	if len(lines) != 34 {
		t.Errorf("the probe made %d attempts, want 34", len(lines))
	}
	for _, line := range lines {
		what, got, _ := strings.Cut(line, ": ")
		ok := got == "EPERM"
		switch {
		case strings.HasPrefix(what, "read "):
			ok = got == "Permission denied" || got == "No such file or directory"
		case what == "kill -1 KILL":
			ok = got == "0" // reaches its own children, and neither PID 1 nor itself
		case what == "child":
			ok = got == "signal 9"
		}
		if !ok {
			t.Errorf("%s: %s", what, got)
		}
	}
}

func checkStrangers(t *testing.T, in inside) {
	if got, want := strings.TrimSpace(in.sections["strangers"]), "process 1"; got != want {
		t.Errorf("a program sees %q besides itself, want %q", got, want)
	}
}
