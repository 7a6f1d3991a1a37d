package oci

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// dialect is what one runtime wants otherwise than the rest, found by running it.
type dialect struct {
	ociVersion string

	// timeNamespace: gVisor has one clock per sandbox anyway, and runtimes that
	// others run a bundle with may be older than the namespace.
	timeNamespace bool

	// sys is what is mounted at /sys or below.
	sys func() specs.Mount

	// namespaceSysctls: the runtime writes user.max_*_namespaces in the sandbox's
	// user namespace. crun 1.8 and runc before 1.5 refuse them as the host's.
	namespaceSysctls bool

	// pidsInside: RLIMIT_NPROC is what counts the program's processes. The
	// host's pids.max would count the threads of gVisor's own kernel.
	pidsInside bool

	// terminals: the runtime has pseudo-terminals in any case, of its own kernel.
	terminals bool

	// selfContained: the bundle is run by somebody else, in a place of theirs.
	selfContained bool
}

var dialects = map[string]dialect{
	"direct":   {ociVersion: "1.2.1", timeNamespace: true, sys: cgroup2, namespaceSysctls: true},
	"embedded": {ociVersion: "1.2.1", timeNamespace: true, sys: cgroup2, namespaceSysctls: true},
	"runc":     {ociVersion: "1.2.1", timeNamespace: true, sys: cgroup2, namespaceSysctls: true},
	// crun 1.8 refuses a version above 1.0.
	"crun":   {ociVersion: "1.0.2", timeNamespace: true, sys: cgroup2},
	"runsc":  {ociVersion: "1.2.1", sys: syntheticSys, pidsInside: true, terminals: true},
	"bundle": {ociVersion: "1.0.2", sys: cgroup2, selfContained: true},
}

// Runtimes are the names Render accepts, sorted.
func Runtimes() []string {
	return slices.Sorted(maps.Keys(dialects))
}

// Render writes in as the spec of one runtime: "direct", "embedded", "runc", "crun" or
// "runsc". "bundle" is the form for anybody's runtime: the root is "rootfs"
// beside config.json, the runtime makes the network namespace and chooses the
// cgroup, and the seccomp profile is always part of it.
//
// The result holds no capability, hook or annotation, whatever in says. Every
// mount is nosuid, and nodev but for /dev. An intent that cannot be kept is refused.
func Render(runtime string, in Intent) (*specs.Spec, error) {
	d, ok := dialects[runtime]
	if !ok {
		return nil, fmt.Errorf("cannot render runtime=%q: not one of %s", runtime, strings.Join(Runtimes(), ", "))
	}
	if d.selfContained {
		in.Root, in.NetNS, in.CgroupsPath, in.Seccomp = "rootfs", "", "", true
	}
	if err := in.check(d); err != nil {
		return nil, err
	}
	spec := base(in)
	spec.Version = d.ociVersion
	if d.timeNamespace {
		spec.Linux.Namespaces = append(spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.TimeNamespace})
	}
	spec.Mounts = slices.Insert(spec.Mounts, 1, d.sys())
	if in.Terminals && !d.terminals {
		addTerminals(spec)
	}
	if d.namespaceSysctls {
		spec.Linux.Sysctl = namespaceSysctls()
	}
	if d.pidsInside {
		if in.Pids > 0 {
			spec.Process.Rlimits = lower(spec.Process.Rlimits, Rlimit{"RLIMIT_NPROC", uint64(in.Pids), uint64(in.Pids)})
		}
		spec.Linux.Resources.Pids = nil
	}
	return spec, nil
}
