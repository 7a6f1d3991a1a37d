package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// knob is a setting of the kernel that makes it harder, or impossible, to get out
// of a sandbox through a hole in the kernel.
type knob struct {
	name     string // of the sysctl
	good     func(int) bool
	set      int
	why      string
	optional bool // older kernels lack it
}

var knobs = []knob{
	{
		"kernel.yama.ptrace_scope", func(v int) bool { return v == 1 }, 1,
		"0 lets a process look into its neighbours; 2 and 3 forbid gVisor to trace its own", true,
	},
	{
		"kernel.io_uring_disabled", func(v int) bool { return v >= 1 }, 2,
		"no sandbox reaches io_uring, but it is the kernel's most attacked part: a second lock", true,
	},
	{
		"kernel.unprivileged_bpf_disabled", func(v int) bool { return v >= 1 }, 1,
		"no sandbox reaches bpf, but the verifier was a way into the kernel: a second lock", true,
	},
	{
		"kernel.kptr_restrict", func(v int) bool { return v >= 1 }, 1,
		"addresses of the kernel help whoever attacks it", false,
	},
	{
		"kernel.dmesg_restrict", func(v int) bool { return v >= 1 }, 1,
		"the kernel's log holds addresses and secrets of the host", false,
	},
	{
		"vm.overcommit_memory", func(v int) bool { return v != 2 }, 0,
		"gVisor, Go and Java reserve far more memory than they use, which 2 forbids", false,
	},
}

func (h host) sysctls() []Finding {
	var findings []Finding
	for _, k := range knobs {
		text, ok := h.read("/proc/sys/" + strings.ReplaceAll(k.name, ".", "/"))
		value, err := strconv.Atoi(text)
		if !ok || err != nil {
			if !k.optional {
				findings = append(findings, one(k.name, Warn, "cannot be read", k.why, "sudo engine doctor")...)
			}
			continue
		}
		findings = append(findings, one(k.name, status(k.good(value), Warn), text, k.why, fmt.Sprintf("sysctl -w %s=%d", k.name, k.set))...)
	}
	return findings
}

func (h host) swap() []Finding {
	const name = "swap"
	const why = "a sandbox's memory is never swapped, but the engine's own, with secrets in it, may reach the disk"
	text, _ := h.read("/proc/swaps")
	var plain []string
	for i, line := range strings.Split(text, "\n") {
		f := strings.Fields(line)
		if i > 0 && len(f) > 0 && !h.sealed(f[0]) {
			plain = append(plain, f[0])
		}
	}
	if len(plain) > 0 {
		return one(name, Warn, "in the clear on "+strings.Join(plain, ", "), why, "swapoff -a, and remove it from /etc/fstab; or encrypt it")
	}
	return one(name, OK, "off, encrypted, or in memory", why, "")
}

// sealed says whether what is written to the swap device cannot be read from a
// disk later: it is compressed memory, or encrypted.
func (h host) sealed(device string) bool {
	target, err := filepath.EvalSymlinks(device)
	if err != nil {
		target = device
	}
	base := filepath.Base(target)
	if strings.HasPrefix(base, "zram") {
		return true
	}
	uuid, _ := h.read("/sys/class/block/" + base + "/dm/uuid")
	return strings.HasPrefix(uuid, "CRYPT-")
}

// riskyModules are loaded by the kernel when any user asks for their protocol, and
// have had more than their share of holes. The engine's filter keeps sandboxes
// from asking; a host that does not use them loses nothing by refusing as well.
var riskyModules = []string{"algif_aead", "rxrpc", "esp4", "esp6", "tipc", "sctp", "dccp"}

func (h host) modules() []Finding {
	const name = "risky modules"
	const why = "any user can have the kernel load them, and they have had holes that lead to root"
	if v, _ := h.read("/proc/sys/kernel/modules_disabled"); v == "1" {
		return one(name, OK, "no module can be loaded any more", why, "")
	}
	var open []string
	for _, m := range riskyModules {
		if h.loadable(m) && !h.blocked(m) {
			open = append(open, m)
		}
	}
	if len(open) == 0 {
		return one(name, OK, "none can be loaded", why, "")
	}
	return one(name, Warn, strings.Join(open, ", ")+" can be loaded", why,
		`printf 'install %s /bin/false\n' `+strings.Join(open, " ")+" > /etc/modprobe.d/engine.conf")
}

// loadable says whether a module is on disk for the running kernel.
func (h host) loadable(module string) bool {
	for _, lib := range []string{"/lib/modules/", "/usr/lib/modules/"} {
		deps, _ := h.read(lib + h.release + "/modules.dep")
		for line := range strings.Lines(deps) {
			path, _, _ := strings.Cut(line, ":")
			base, _, _ := strings.Cut(filepath.Base(path), ".")
			if strings.ReplaceAll(base, "-", "_") == module {
				return true
			}
		}
	}
	return false
}

// blocked says whether modprobe was told to run something else, which for these
// is only ever done to fail. A blacklist alone does not stop loading by name.
func (h host) blocked(module string) bool {
	for _, dir := range []string{"/etc/modprobe.d", "/run/modprobe.d", "/usr/local/lib/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d"} {
		entries, err := os.ReadDir(filepath.Join(h.root, dir))
		if err != nil {
			continue
		}
		for _, e := range entries {
			text, _ := h.read(filepath.Join(dir, e.Name()))
			for line := range strings.Lines(text) {
				f := strings.Fields(line)
				if len(f) >= 3 && f[0] == "install" && strings.ReplaceAll(f[1], "-", "_") == module {
					return true
				}
			}
		}
	}
	return false
}

func (h host) corePattern() []Finding {
	const name = "core dumps"
	const why = "a crash has the host run this as root; no sandbox may dump core, so this is a second lock"
	pattern, ok := h.read("/proc/sys/kernel/core_pattern")
	if ok && strings.HasPrefix(pattern, "|") {
		program, _, _ := strings.Cut(strings.TrimPrefix(pattern, "|"), " ")
		return one(name, Warn, "piped to "+program, why, "sysctl -w kernel.core_pattern=core")
	}
	return one(name, OK, "not piped to a program", why, "")
}

func (h host) clock() []Finding {
	const name = "clock"
	const why = "records carry the time, and are sorted by it"
	if h.now.Year() < 2025 {
		return one(name, Warn, h.now.Format("2006-01-02 15:04"), why, "timedatectl set-ntp true")
	}
	var tx unix.Timex
	if state, err := unix.Adjtimex(&tx); err == nil && state == unix.TIME_ERROR {
		return one(name, Warn, "not synchronised", why, "timedatectl set-ntp true")
	}
	return one(name, OK, "synchronised", why, "")
}
