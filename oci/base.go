package oci

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

const (
	blockSize   = 65536   // host uids and gids of one run
	cpuPeriod   = 100000  // microseconds
	secretsSize = 8 << 20 // above all that the engine accepts
	rlimitSlack = 1 << 20

	defaultHostname = "sandbox"
	defaultUmask    = 0o077
	oomScoreAdj     = 500

	// noDomain is what a kernel answers when nobody has set a domain name.
	noDomain = "(none)"
)

// The directories every sandbox has.
const (
	workDir    = "/workload"
	tmpDir     = "/tmp"
	secretsDir = "/run/secrets"
)

// cgroup2 goes straight on the empty, read-only /sys of the root: Go and the JVM
// read the limits there, and no file of sysfs is shown.
func cgroup2() specs.Mount {
	return specs.Mount{
		Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup",
		Options: []string{"nosuid", "noexec", "nodev", "relatime", "ro"},
	}
}

// syntheticSys is gVisor's own /sys, which it mounts writable unless told. Asked
// for a cgroup mount it would add version 1 files of its own making.
func syntheticSys() specs.Mount {
	return specs.Mount{
		Destination: "/sys", Type: "sysfs", Source: "sysfs",
		Options: []string{"nosuid", "noexec", "nodev", "ro"},
	}
}

// SECURITY: files of the kernel that tell about the host or other sandboxes are masked.
// Side channels (interrupts, timers), addresses (kallsyms, iomem) and triggers (sysrq) are among them.
// Holds because: runc, crun and libcontainer cover each; gVisor has none of them, but a
// command line that is the same everywhere.
// Not covered: /proc/uptime, /proc/loadavg, /proc/version and the id of the boot. Checked by: TestRenderKeepsBaseline.
var maskedPaths = []string{
	"/proc/acpi",
	"/proc/allocinfo",
	"/proc/asound",
	"/proc/bootconfig",
	"/proc/buddyinfo",
	"/proc/cmdline",
	"/proc/config.gz",
	"/proc/diskstats",
	"/proc/interrupts",
	"/proc/iomem",
	"/proc/ioports",
	"/proc/kallsyms",
	"/proc/kcore",
	"/proc/key-users",
	"/proc/keys",
	"/proc/kmsg",
	"/proc/kpagecgroup",
	"/proc/kpagecount",
	"/proc/kpageflags",
	"/proc/latency_stats",
	"/proc/modules",
	"/proc/pagetypeinfo",
	"/proc/partitions",
	"/proc/pressure",
	"/proc/sched_debug",
	"/proc/schedstat",
	"/proc/scsi",
	"/proc/slabinfo",
	"/proc/softirqs",
	"/proc/sysrq-trigger",
	"/proc/timer_list",
	"/proc/timer_stats",
	"/proc/vmallocinfo",
	"/proc/vmstat",
	"/proc/zoneinfo",
}

// addTerminals gives the sandbox pseudo-terminals: a file system of its own, in which it
// sees no other's, and the right to open its devices.
//
// SECURITY: terminals of a sandbox are not the host's, and are few.
// All sandboxes share one number of terminals with the host (kernel.pty.max).
// Holds because: every mount of devpts is an instance of its own, with its own maximum; what
// could be typed into another's terminal, TIOCSTI, is refused by the filter.
// Not covered: several programs of one sandbox, which are one user. Checked by: TestTerminals.
func addTerminals(spec *specs.Spec) {
	at := slices.IndexFunc(spec.Mounts, func(m specs.Mount) bool { return m.Destination == "/dev" }) + 1
	spec.Mounts = slices.Insert(spec.Mounts, at, specs.Mount{
		Destination: "/dev/pts", Type: "devpts", Source: "devpts",
		Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5", "max=64"},
	})
	for _, d := range terminalDevices {
		spec.Linux.Resources.Devices = append(spec.Linux.Resources.Devices, specs.LinuxDeviceCgroup{
			Allow: true, Type: "c", Major: &d.major, Minor: d.minor, Access: "rw",
		})
	}
}

// terminalDevices are ptmx and the terminals that it makes.
var terminalDevices = []struct {
	major int64
	minor *int64 // nil: all
}{{5, new(int64(2))}, {136, nil}}

var readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys"}

// allowedDevices are, by major and minor, null, zero, full, random, urandom
// and tty.
var allowedDevices = [][2]int64{{1, 3}, {1, 5}, {1, 7}, {1, 8}, {1, 9}, {5, 0}}

// base is the part of the spec that every runtime is given.
func base(in Intent) *specs.Spec {
	umask := uint32(defaultUmask)
	if in.Umask != nil {
		umask = *in.Umask
	}
	oom := oomScoreAdj
	spec := &specs.Spec{
		Root:     &specs.Root{Path: in.Root, Readonly: true},
		Hostname: cmp.Or(in.Hostname, defaultHostname),
		// Unset, the host's would show.
		Domainname: noDomain,
		Mounts:     mounts(in),
		Process: &specs.Process{
			User: specs.User{UID: in.UID, GID: in.GID, Umask: &umask},
			Args: slices.Clone(in.Args),
			Env:  slices.Clone(in.Env),
			Cwd:  in.Cwd,
			// Absent sets would mean the runtime's own choice.
			Capabilities: &specs.LinuxCapabilities{
				Bounding: []string{}, Effective: []string{}, Inheritable: []string{}, Permitted: []string{}, Ambient: []string{},
			},
			Rlimits:         rlimits(in),
			NoNewPrivileges: true,
			OOMScoreAdj:     &oom,
		},
		Linux: &specs.Linux{
			UIDMappings:       []specs.LinuxIDMapping{{ContainerID: 0, HostID: in.HostID, Size: blockSize}},
			GIDMappings:       []specs.LinuxIDMapping{{ContainerID: 0, HostID: in.HostID, Size: blockSize}},
			Namespaces:        namespaces(in.NetNS),
			CgroupsPath:       in.CgroupsPath,
			RootfsPropagation: "private",
			MaskedPaths:       slices.Clone(maskedPaths),
			ReadonlyPaths:     slices.Clone(readonlyPaths),
			Resources:         resources(in),
		},
	}
	if in.Seccomp {
		spec.Linux.Seccomp = Profile()
	}
	return spec
}

// namespaces lists what the runtime makes. The network namespace is joined by
// its path: it belongs to the host's user namespace, so nothing inside can
// change it.
func namespaces(netNS string) []specs.LinuxNamespace {
	return []specs.LinuxNamespace{
		{Type: specs.PIDNamespace},
		{Type: specs.MountNamespace},
		{Type: specs.IPCNamespace},
		{Type: specs.UTSNamespace},
		{Type: specs.CgroupNamespace},
		{Type: specs.UserNamespace},
		{Type: specs.NetworkNamespace, Path: netNS},
	}
}

// mounts are in the order in which they are made: a place below another one
// comes after it.
func mounts(in Intent) []specs.Mount {
	list := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev", "hidepid=2"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "noexec", "strictatime", "mode=755", "size=64k", "ro"}},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", size(in.ShmSize), inodes(in.ShmSize)}},
		{Destination: tmpDir, Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "mode=1777", size(in.TmpSize), inodes(in.TmpSize)}},
		owned(in, workDir, in.WorkspaceSize),
	}
	extra := slices.Clone(in.Tmpfs)
	slices.SortStableFunc(extra, func(a, b Tmpfs) int { return cmp.Compare(a.Path, b.Path) })
	for _, t := range extra {
		list = append(list, owned(in, t.Path, t.Size))
	}
	list = append(list, hostMounts(in)...)
	if in.SecretFiles {
		secrets := owned(in, secretsDir, secretsSize)
		secrets.Options = append(secrets.Options, "noexec")
		list = append(list, secrets)
	}
	binds := slices.Clone(in.Binds)
	slices.SortStableFunc(binds, func(a, b Bind) int { return cmp.Compare(a.Destination, b.Destination) })
	for _, b := range binds {
		list = append(list, specs.Mount{
			Destination: b.Destination, Type: "bind", Source: b.Source,
			Options: []string{"bind", "ro", "nosuid", "nodev", "noexec"},
		})
	}
	return list
}

// hostMounts are the directories of the host, in an order in which none hides another.
func hostMounts(in Intent) []specs.Mount {
	var list []specs.Mount
	mounts := slices.Clone(in.Mounts)
	slices.SortStableFunc(mounts, func(a, b Mount) int { return cmp.Compare(a.Path, b.Path) })
	for _, m := range mounts {
		mount := specs.Mount{Destination: m.Path, Type: "bind", Source: m.Source, Options: []string{"bind", "nosuid", "nodev"}}
		if !m.Writable {
			mount.Options = append(mount.Options, "ro")
		}
		if m.Owner != nil {
			mount.UIDMappings = []specs.LinuxIDMapping{{ContainerID: m.Owner.UID, HostID: in.HostID + in.UID, Size: 1}}
			mount.GIDMappings = []specs.LinuxIDMapping{{ContainerID: m.Owner.GID, HostID: in.HostID + in.GID, Size: 1}}
		}
		list = append(list, mount)
	}
	return list
}

// owned is a tmpfs that the job's user, and no other, may use.
func owned(in Intent, path string, bytes int64) specs.Mount {
	return specs.Mount{Destination: path, Type: "tmpfs", Source: "tmpfs", Options: []string{
		"nosuid", "nodev", "mode=0700", fmt.Sprintf("uid=%d", in.UID), fmt.Sprintf("gid=%d", in.GID), size(bytes), inodes(bytes),
	}}
}

func size(bytes int64) string { return "size=" + strconv.FormatInt(bytes, 10) }

// inodes bounds a tmpfs's files as well as its bytes: an empty file costs the
// kernel about a kilobyte that size= does not count.
func inodes(bytes int64) string {
	return "nr_inodes=" + strconv.FormatInt(min(max(bytes/4096, 1024), 1<<20), 10)
}

// rlimits are the engine's own, lowered by the intent's.
func rlimits(in Intent) []specs.POSIXRlimit {
	largest := max(in.TmpSize, in.WorkspaceSize, in.ShmSize)
	for _, t := range in.Tmpfs {
		largest = max(largest, t.Size)
	}
	list := []specs.POSIXRlimit{
		// SECURITY: no core dump of the job reaches the host.
		// With 0 the kernel still feeds a core_pattern that is a pipe; 1 stops that too, and is too small for a file.
		// Holds because: rlimits only go down, and the limit is hard. Checked by: TestRenderKeepsBaseline.
		{Type: "RLIMIT_CORE", Soft: 1, Hard: 1},
		// A little above the largest tmpfs, so that a full one says ENOSPC rather than SIGXFSZ.
		{Type: "RLIMIT_FSIZE", Soft: uint64(largest) + rlimitSlack, Hard: uint64(largest) + rlimitSlack},
		{Type: "RLIMIT_MEMLOCK", Soft: 64 << 10, Hard: 64 << 10},
		{Type: "RLIMIT_MSGQUEUE"},
		{Type: "RLIMIT_NICE"},
		{Type: "RLIMIT_NOFILE", Soft: 4096, Hard: 4096},
		{Type: "RLIMIT_RTPRIO"},
		{Type: "RLIMIT_SIGPENDING", Soft: 1024, Hard: 1024},
		{Type: "RLIMIT_STACK", Soft: 8 << 20, Hard: 8 << 20},
	}
	for _, r := range in.Rlimits {
		list = lower(list, r)
	}
	return list
}

// lower applies r where it is below what list has, and keeps list sorted.
func lower(list []specs.POSIXRlimit, r Rlimit) []specs.POSIXRlimit {
	i, found := slices.BinarySearchFunc(list, r.Type, func(have specs.POSIXRlimit, t string) int { return cmp.Compare(have.Type, t) })
	if !found {
		return slices.Insert(list, i, specs.POSIXRlimit{Type: r.Type, Soft: r.Soft, Hard: r.Hard})
	}
	list[i].Hard = min(list[i].Hard, r.Hard)
	list[i].Soft = min(list[i].Soft, r.Soft, list[i].Hard)
	return list
}

// resources repeats in the runtime's leaf what the engine wrote into its parent,
// and says which devices may be opened.
func resources(in Intent) *specs.LinuxResources {
	r := &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}}
	for _, d := range allowedDevices {
		r.Devices = append(r.Devices, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &d[0], Minor: &d[1], Access: "rw"})
	}
	if in.Memory > 0 {
		limit := in.Memory
		// Swap counts memory and swap together: equal means no swap.
		r.Memory = &specs.LinuxMemory{Limit: &limit, Swap: &limit}
		r.Unified = map[string]string{"memory.oom.group": "1"}
	}
	if in.CPUs > 0 || in.CPUSet != "" {
		r.CPU = &specs.LinuxCPU{Cpus: in.CPUSet}
	}
	if in.CPUs > 0 {
		quota, period := int64(math.Ceil(in.CPUs*cpuPeriod)), uint64(cpuPeriod)
		r.CPU.Quota, r.CPU.Period = &quota, &period
	}
	if in.Pids > 0 {
		limit := in.Pids
		r.Pids = &specs.LinuxPids{Limit: &limit}
	}
	return r
}

// namespaceSysctls let nothing inside make a further namespace, behind the
// filter that refuses the calls anyway.
func namespaceSysctls() map[string]string {
	values := map[string]string{}
	for _, kind := range []string{"cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"} {
		values["user.max_"+kind+"_namespaces"] = "0"
	}
	return values
}
