package doctor

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "" // which the check reports as unknown
	}
	return unix.ByteSliceToString(u.Release[:])
}

// neededCaps are the Linux capabilities without which no sandbox can be made, by
// their numbers in linux/capability.h.
var neededCaps = []struct {
	name string
	bit  uint
}{
	{"CAP_CHOWN", 0},
	{"CAP_DAC_OVERRIDE", 1},
	{"CAP_FOWNER", 3},
	{"CAP_KILL", 5},
	{"CAP_SETGID", 6},
	{"CAP_SETUID", 7},
	{"CAP_SETPCAP", 8},
	{"CAP_NET_ADMIN", 12},
	{"CAP_SYS_CHROOT", 18},
	{"CAP_SYS_PTRACE", 19},
	{"CAP_SYS_ADMIN", 21},
}

func (h host) privilege() []Finding {
	const why = "namespaces, mounts and cgroups of a sandbox are made by root"
	if h.euid != 0 {
		return one("root", Fail, fmt.Sprintf("uid %d", h.euid), why, "sudo engine doctor")
	}
	caps, err := strconv.ParseUint(h.ownStatus("CapEff"), 16, 64)
	if err != nil {
		return one("root", Fail, "the capabilities in /proc/self/status cannot be read", why, "mount -t proc proc /proc")
	}
	var missing []string
	for _, c := range neededCaps {
		if caps&(1<<c.bit) == 0 {
			missing = append(missing, c.name)
		}
	}
	if len(missing) > 0 {
		return one("root", Fail, "root without "+strings.Join(missing, ", "), why,
			"give the process these capabilities: in a service, CapabilityBoundingSet=~ with nothing after it; in a container, --privileged")
	}
	return one("root", OK, "root with all capabilities that are needed", why, "")
}

// ownStatus is a field of /proc/self/status.
func (h host) ownStatus(field string) string {
	text, _ := h.read("/proc/self/status")
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(line, field+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

func (h host) kernel() []Finding {
	const name = "kernel"
	const fix = "install a newer kernel, on Debian apt install linux-image-$(dpkg --print-architecture), and reboot"
	major, minor, ok := kernelVersion(h.release)
	at := func(wantMajor, wantMinor int) bool {
		return major > wantMajor || major == wantMajor && minor >= wantMinor
	}
	switch {
	case !ok:
		return one(name, Fail, fmt.Sprintf("version %q", h.release), "the engine needs Linux 5.14", fix)
	case !at(5, 14):
		return one(name, Fail, h.release, "a whole sandbox can be killed at once from Linux 5.14 on", fix)
	case !at(5, 19):
		return one(name, Warn, h.release, "peak memory is reported from Linux 5.19 on; before, the result has null", fix)
	}
	return one(name, OK, h.release, "the engine needs Linux 5.14, and reports all figures from 5.19 on", "")
}

func kernelVersion(release string) (major, minor int, ok bool) {
	n, err := fmt.Sscanf(release, "%d.%d", &major, &minor)
	return major, minor, err == nil && n == 2
}

func (h host) container() []Finding {
	const name = "not in a container"
	const why = "a container's filter, mounts and cgroups come before ours, and may forbid what a sandbox needs"
	var signs []string
	for _, file := range []string{"/.dockerenv", "/run/.containerenv", "/run/systemd/container"} {
		if h.exists(file) {
			signs = append(signs, file)
		}
	}
	if mode := h.ownStatus("Seccomp"); mode != "" && mode != "0" {
		signs = append(signs, "a seccomp filter on this process")
	}
	if m, _ := h.read("/proc/self/uid_map"); m != "" && !slices.Equal(strings.Fields(m), []string{"0", "0", "4294967295"}) {
		signs = append(signs, "a user namespace of its own")
	}
	if len(signs) > 0 {
		return one(name, Warn, "found "+strings.Join(signs, ", "), why, "run the engine on the host itself, or in a virtual machine")
	}
	return one(name, OK, "no sign of one", why, "")
}

func (h host) control() []Finding {
	const name = "cgroup2"
	const why = "every limit and every figure of a run is a cgroup v2 file"
	hierarchy, err := h.cgroups(h.CgroupRoot)
	if err != nil {
		fix := "boot with the kernel parameter systemd.unified_cgroup_hierarchy=1"
		if h.euid != 0 {
			fix = "sudo engine doctor"
		} else if r := remedy(err); r != "" {
			fix = r
		}
		return one(name, Fail, err.Error(), why, fix)
	}
	findings := one(name, OK, hierarchy.Root, why, "")
	for _, c := range []struct {
		controller string
		limit      string // as cgroups names it, "" if none needs it
		missing    Status
		why        string
	}{
		{"memory", "memory", Fail, "without it no run has a memory limit"},
		{"cpu", "cpus", Fail, "without it one run can take every processor"},
		{"pids", "pids", Fail, "without it a fork bomb takes the host down"},
		{"io", "", Warn, "without it the bytes read from and written to disks are not reported"},
		{"cpuset", "", Warn, "without it gVisor sizes itself for all processors, not for the share of the run"},
	} {
		f := Finding{Name: "cgroup2 " + c.controller, Status: OK, Found: "enabled", Why: c.why}
		if !slices.Contains(hierarchy.Controllers, c.controller) {
			f.Status, f.Found = c.missing, "missing below "+hierarchy.Root
			f.Fix = h.controllerFix(c.controller)
			if c.limit != "" {
				if r := hierarchy.Unsupported(c.limit).Remedy(); r != "" {
					f.Fix = r
				}
			}
		}
		findings = append(findings, f)
	}
	return findings
}

// controllerFix tells where a controller went by what /proc/cgroups says of it.
func (h host) controllerFix(controller string) string {
	if controller == "io" {
		controller = "blkio" // its name there
	}
	text, _ := h.read("/proc/cgroups")
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) != 4 || f[0] != controller {
			continue
		}
		if f[3] == "0" {
			return "remove cgroup_disable=" + controller + " from the kernel's command line and reboot"
		}
		if f[1] != "0" {
			return "boot with the kernel parameter systemd.unified_cgroup_hierarchy=1: cgroup v1 has it"
		}
	}
	return "set Delegate=yes in the unit that the engine runs in, and restart it"
}

// remedy is the cure that an error of a leaf package knows.
func remedy(err error) string {
	var r interface{ Remedy() string }
	if errors.As(err, &r) {
		return r.Remedy()
	}
	return ""
}

func (h host) overlay() []Finding {
	const name = "overlayfs"
	const why = "a sandbox's root is a read-only overlay of its image"
	known, _ := h.read("/proc/filesystems")
	switch {
	case slices.Contains(strings.Fields(known), "overlay"):
		return one(name, OK, "in the kernel", why, "")
	case h.loadable("overlay"):
		return one(name, OK, "a module, loaded when it is needed", why, "")
	}
	return one(name, Fail, "missing", why, "modprobe overlay")
}

func (h host) namespaces() []Finding {
	const why = "a sandbox has namespaces of its own, with a block of user ids nobody else has"
	var missing []string
	for _, ns := range []string{"cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"} {
		if !h.exists("/proc/self/ns/" + ns) {
			missing = append(missing, ns)
		}
	}
	if len(missing) > 0 {
		return one("namespaces", Fail, "the kernel lacks "+strings.Join(missing, ", "), why, "install a kernel built with CONFIG_NAMESPACES and all below it")
	}
	findings := one("namespaces", OK, "all eight kinds", why, "")
	for _, kind := range []string{"user", "net", "mnt", "pid"} {
		path := "/proc/sys/user/max_" + kind + "_namespaces"
		text, ok := h.read(path)
		limit, err := strconv.Atoi(text)
		if !ok || err != nil || limit >= 1000 {
			continue
		}
		f := Finding{
			Name: kind + " namespaces", Status: Warn, Found: fmt.Sprintf("at most %d", limit),
			Why: "each run needs one", Fix: "sysctl -w user.max_" + kind + "_namespaces=15000",
		}
		if limit == 0 {
			f.Status = Fail
		}
		findings = append(findings, f)
	}
	return findings
}

func (h host) seccomp() []Finding {
	const name = "seccomp"
	const why = "a program is kept from the system calls it does not need"
	actions, _ := h.read("/proc/sys/kernel/seccomp/actions_avail")
	if h.ownStatus("Seccomp") == "" || !slices.Contains(strings.Fields(actions), "errno") {
		return one(name, Fail, "missing", why, "install a kernel built with CONFIG_SECCOMP_FILTER")
	}
	return one(name, OK, "with filters", why, "")
}
