package doctor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/direct-oci/engine/cgroups"
)

var allControllers = []string{"cpu", "cpuset", "io", "memory", "pids"}

// good is a host where all is well, made of files that a test may change.
func good(t *testing.T) host {
	t.Helper()
	h := host{
		Options: Options{StateDir: t.TempDir(), RunDir: t.TempDir(), Beside: t.TempDir()},
		root:    t.TempDir(),
		release: "6.12.1-amd64",
		now:     time.Date(2026, 5, 4, 0, 0, 0, 0, time.UTC),
		cgroups: func(string) (cgroups.Hierarchy, error) {
			return cgroups.Hierarchy{Mount: "/sys/fs/cgroup", Root: "/sys/fs/cgroup/engine", Controllers: allControllers}, nil
		},
	}
	h.write(t, "/proc/self/status", "Name:\tengine\nCapEff:\t000001ffffffffff\nSeccomp:\t0\n")
	h.write(t, "/proc/self/uid_map", "         0          0 4294967295\n")
	h.write(t, "/proc/filesystems", "nodev\tproc\nnodev\toverlay\n\text4\n")
	for _, ns := range []string{"cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"} {
		h.write(t, "/proc/self/ns/"+ns, "")
	}
	h.write(t, "/proc/sys/kernel/seccomp/actions_avail", "kill_process errno allow\n")
	h.write(t, "/proc/swaps", "Filename\tType\tSize\tUsed\tPriority\n")
	h.write(t, "/proc/sys/kernel/core_pattern", "core\n")
	for name, value := range map[string]string{
		"kernel/yama/ptrace_scope": "1", "kernel/io_uring_disabled": "2", "kernel/unprivileged_bpf_disabled": "2",
		"kernel/kptr_restrict": "1", "kernel/dmesg_restrict": "1", "vm/overcommit_memory": "0", "user/max_user_namespaces": "60000",
	} {
		h.write(t, "/proc/sys/"+name, value+"\n")
	}
	for _, name := range []string{"engine-monitor", "engine-init", "engine-guest", "engine-launch"} {
		if err := os.WriteFile(filepath.Join(h.Beside, name), []byte("x"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

func (h host) write(t *testing.T, path, text string) {
	t.Helper()
	path = filepath.Join(h.root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// ours are the findings that do not depend on the machine the test runs on.
func ours(r Report) map[string]Finding {
	m := map[string]Finding{}
	for _, f := range r.Checks {
		switch f.Name {
		case "runsc", "runc", "crun", "clock", "state directory", "run directory":
		default:
			m[f.Name] = f
		}
	}
	return m
}

func TestGoodHost(t *testing.T) {
	r := check(t.Context(), good(t))
	for name, f := range ours(r) {
		if f.Status != OK || f.Fix != "" {
			t.Errorf("%s = %+v, want ok and nothing to fix", name, f)
		}
	}
}

func TestShortcomings(t *testing.T) {
	tests := []struct {
		name   string // of the case
		spoil  func(*testing.T, *host)
		check  string
		status Status
		found  string // part of it
		fix    string // part of it
	}{
		{"not root", func(_ *testing.T, h *host) { h.euid = 1000 }, "root", Fail, "uid 1000", "sudo"},
		{"root without its power", func(t *testing.T, h *host) {
			h.write(t, "/proc/self/status", "CapEff:\t00000000a80425fb\nSeccomp:\t0\n")
		}, "root", Fail, "CAP_SYS_ADMIN", "--privileged"},
		{"kernel too old", func(_ *testing.T, h *host) { h.release = "5.10.0-30-amd64" }, "kernel", Fail, "5.10", "linux-image"},
		{"kernel without peak memory", func(_ *testing.T, h *host) { h.release = "5.15.0" }, "kernel", Warn, "5.15", "linux-image"},
		{"kernel of the future", func(_ *testing.T, h *host) { h.release = "10.0-rc1" }, "kernel", OK, "10.0", ""},
		{"kernel without a version", func(_ *testing.T, h *host) { h.release = "custom" }, "kernel", Fail, "custom", "linux-image"},
		{"inside docker", func(t *testing.T, h *host) { h.write(t, "/.dockerenv", "") }, "not in a container", Warn, ".dockerenv", "host itself"},
		{"inside a user namespace", func(t *testing.T, h *host) { h.write(t, "/proc/self/uid_map", "0 100000 65536") }, "not in a container", Warn, "user namespace", "host itself"},
		{"no cgroup2", func(_ *testing.T, h *host) {
			h.cgroups = func(string) (cgroups.Hierarchy, error) {
				return cgroups.Hierarchy{}, errors.New("no cgroup2 mount")
			}
		}, "cgroup2", Fail, "no cgroup2", "systemd.unified_cgroup_hierarchy=1"},
		{"no memory controller", func(_ *testing.T, h *host) { h.without("memory") }, "cgroup2 memory", Fail, "missing", ""},
		{"no io controller, taken by v1", func(t *testing.T, h *host) {
			h.without("io")
			h.write(t, "/proc/cgroups", "#subsys_name\thierarchy\tnum_cgroups\tenabled\nblkio\t7\t1\t1\n")
		}, "cgroup2 io", Warn, "missing", "cgroup v1 has it"},
		{"controller switched off at boot", func(t *testing.T, h *host) {
			h.without("cpuset")
			h.write(t, "/proc/cgroups", "cpuset\t0\t1\t0\n")
		}, "cgroup2 cpuset", Warn, "missing", "cgroup_disable=cpuset"},
		{"no overlayfs", func(t *testing.T, h *host) { h.write(t, "/proc/filesystems", "\text4\n") }, "overlayfs", Fail, "missing", "modprobe overlay"},
		{"overlayfs as a module", func(t *testing.T, h *host) {
			h.write(t, "/proc/filesystems", "\text4\n")
			h.write(t, "/lib/modules/6.12.1-amd64/modules.dep", "kernel/fs/overlayfs/overlay.ko.xz:\n")
		}, "overlayfs", OK, "module", ""},
		{"no time namespace", func(t *testing.T, h *host) {
			if err := os.Remove(filepath.Join(h.root, "/proc/self/ns/time")); err != nil {
				t.Fatal(err)
			}
		}, "namespaces", Fail, "time", "CONFIG_NAMESPACES"},
		{"user namespaces forbidden", func(t *testing.T, h *host) { h.write(t, "/proc/sys/user/max_user_namespaces", "0\n") }, "user namespaces", Fail, "at most 0", "sysctl -w user.max_user_namespaces="},
		{"few network namespaces", func(t *testing.T, h *host) { h.write(t, "/proc/sys/user/max_net_namespaces", "10\n") }, "net namespaces", Warn, "at most 10", "sysctl -w user.max_net_namespaces="},
		{"no seccomp", func(t *testing.T, h *host) { h.write(t, "/proc/sys/kernel/seccomp/actions_avail", "") }, "seccomp", Fail, "missing", "CONFIG_SECCOMP_FILTER"},
		{"no monitor", func(t *testing.T, h *host) { h.Beside = t.TempDir() }, "engine-monitor", Fail, "missing", "beside engine"},
		{"ptrace forbidden", func(t *testing.T, h *host) { h.write(t, "/proc/sys/kernel/yama/ptrace_scope", "3") }, "kernel.yama.ptrace_scope", Warn, "3", "kernel.yama.ptrace_scope=1"},
		{"io_uring open", func(t *testing.T, h *host) { h.write(t, "/proc/sys/kernel/io_uring_disabled", "0") }, "kernel.io_uring_disabled", Warn, "0", "kernel.io_uring_disabled=2"},
		{"no overcommit", func(t *testing.T, h *host) { h.write(t, "/proc/sys/vm/overcommit_memory", "2") }, "vm.overcommit_memory", Warn, "2", "vm.overcommit_memory=0"},
		{"swap in the clear", func(t *testing.T, h *host) { h.write(t, "/proc/swaps", "Filename Type\n/dev/sdz9 partition 1 0 -2\n") }, "swap", Warn, "/dev/sdz9", "swapoff"},
		{"swap encrypted", func(t *testing.T, h *host) {
			h.write(t, "/proc/swaps", "Filename Type\n/dev/dm-77 partition 1 0 -2\n")
			h.write(t, "/sys/class/block/dm-77/dm/uuid", "CRYPT-PLAIN-swap\n")
		}, "swap", OK, "encrypted", ""},
		{"swap in memory", func(t *testing.T, h *host) {
			h.write(t, "/proc/swaps", "Filename Type\n/dev/zram0 partition 1 0 100\n")
		}, "swap", OK, "in memory", ""},
		{"risky modules", func(t *testing.T, h *host) {
			h.write(t, "/lib/modules/6.12.1-amd64/modules.dep", "kernel/net/sctp/sctp.ko.xz: kernel/lib/x.ko\nkernel/crypto/algif_aead.ko:\n")
			h.write(t, "/etc/modprobe.d/x.conf", "# install algif_aead\ninstall sctp /bin/false\nblacklist algif_aead\n")
		}, "risky modules", Warn, "algif_aead can", "algif_aead > /etc/modprobe.d"},
		{"modules locked", func(t *testing.T, h *host) {
			h.write(t, "/lib/modules/6.12.1-amd64/modules.dep", "kernel/net/sctp/sctp.ko.xz:\n")
			h.write(t, "/proc/sys/kernel/modules_disabled", "1\n")
		}, "risky modules", OK, "no module", ""},
		{"core dumps to a program", func(t *testing.T, h *host) {
			h.write(t, "/proc/sys/kernel/core_pattern", "|/usr/share/apport/apport %p\n")
		}, "core dumps", Warn, "/usr/share/apport/apport", "core_pattern=core"},
		{"clock at the beginning of time", func(_ *testing.T, h *host) { h.now = time.Unix(0, 0) }, "clock", Warn, "1970", "timedatectl"},
		{"a state directory that is a file", func(t *testing.T, h *host) {
			h.StateDir = filepath.Join(t.TempDir(), "f")
			if err := os.WriteFile(h.StateDir, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "state directory", Fail, "not a directory", "--state-dir"},
		{"a state directory that others write to", func(_ *testing.T, h *host) {
			if err := os.Chmod(h.StateDir, 0o777); err != nil {
				panic(err)
			}
		}, "state directory", Fail, "", ""}, // whose it is comes first, where the test is not root
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := good(t)
			tt.spoil(t, &h)
			for _, f := range check(t.Context(), h).Checks {
				if f.Name != tt.check {
					continue
				}
				if f.Status != tt.status || !strings.Contains(f.Found, tt.found) || !strings.Contains(f.Fix, tt.fix) {
					t.Errorf("%+v\nwant %s, found …%s…, fix …%s…", f, tt.status, tt.found, tt.fix)
				}
				if f.Why == "" || f.Status != OK && f.Fix == "" {
					t.Errorf("%+v says not why it matters, or not what to do", f)
				}
				return
			}
			t.Errorf("no check is called %q", tt.check)
		})
	}
}

// without takes a controller away.
func (h *host) without(controller string) {
	h.cgroups = func(string) (cgroups.Hierarchy, error) {
		left := cgroups.Hierarchy{Mount: "/sys/fs/cgroup", Root: "/sys/fs/cgroup/engine"}
		for _, c := range allControllers {
			if c != controller {
				left.Controllers = append(left.Controllers, c)
			}
		}
		return left, nil
	}
}

func TestDirectoryThatIsNotThereYet(t *testing.T) {
	h := good(t)
	h.StateDir = filepath.Join(h.StateDir, "not", "yet")
	for _, f := range h.directories() {
		if os.Geteuid() == 0 && f.Status == Fail {
			t.Errorf("%+v, want it judged by where it would be made", f)
		}
	}
}

func TestScore(t *testing.T) {
	of := func(statuses ...Status) Report {
		var findings []Finding
		for _, s := range statuses {
			findings = append(findings, Finding{Status: s})
		}
		return Sum(findings)
	}
	tests := []struct {
		got   Report
		score int
		fit   bool
	}{
		{of(OK, OK), 100, true},
		{of(OK, Warn), 75, true},
		{of(OK, Fail), 50, false},
		{of(OK, OK, Warn), 83, true},
	}
	for _, tt := range tests {
		if tt.got.Score != tt.score || tt.got.Fit != tt.fit {
			t.Errorf("%v: score %d, fit %v, want %d, %v", tt.got.Checks, tt.got.Score, tt.got.Fit, tt.score, tt.fit)
		}
	}
}

// TestThisHost only proves that looking at a real host works.
func TestThisHost(t *testing.T) {
	h := host{Options: Options{StateDir: t.TempDir(), RunDir: t.TempDir()}, root: "/", euid: 1, release: kernelRelease(), now: time.Now(), cgroups: func(string) (cgroups.Hierarchy, error) {
		return cgroups.Hierarchy{}, errors.New("not looked at: it would be made")
	}}
	r := check(t.Context(), h)
	if r.Fit || len(r.Checks) < 15 {
		t.Errorf("report = %+v", r)
	}
}
