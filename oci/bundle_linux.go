package oci

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// steeringPrefixes are annotations that runtimes obey: they load modules, change
// flags, name files of the host.
var steeringPrefixes = []string{
	"dev.gvisor.", "run.oci.", "org.systemd.property.", "org.criu.", "io.katacontainers.", "io.kubernetes.cri-o.", "module.wasm.",
}

// steering refuses what gives orders to the runtime: hooks and annotations.
func (r *reader) steering() error {
	if h := r.spec.Hooks; h != nil {
		for _, stage := range []struct {
			name  string
			hooks []specs.Hook
		}{
			//lint:ignore SA1019 deprecated, and still obeyed by runtimes
			{"prestart", h.Prestart},
			{"createRuntime", h.CreateRuntime},
			{"createContainer", h.CreateContainer},
			{"startContainer", h.StartContainer},
			{"poststart", h.Poststart},
			{"poststop", h.Poststop},
		} {
			if len(stage.hooks) > 0 {
				return refused("hooks."+stage.name, stage.hooks[0].Path, "hooks run on the host, as root", "remove the hooks")
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(r.spec.Annotations)) {
		field := fmt.Sprintf("annotations[%s]", text(key))
		for _, prefix := range steeringPrefixes {
			if strings.HasPrefix(strings.ToLower(key), prefix) {
				return refused(field, r.spec.Annotations[key], "it gives orders to the runtime", "remove the annotation")
			}
		}
		r.change(field, r.spec.Annotations[key], "none", "no annotation reaches a runtime")
	}
	return nil
}

// linux refuses what touches the host or what the engine has no form for.
func (r *reader) linux() error {
	p, l := r.spec.Process, r.spec.Linux
	if l == nil {
		return refused("linux", "", "without it there are no namespaces: the program would run in the host's", "add linux.namespaces")
	}
	for _, f := range []struct {
		field string
		there bool
		value any
		why   string
	}{
		{"process.selinuxLabel", p.SelinuxLabel != "", p.SelinuxLabel, "labels are the host's policy, and gVisor has none"},
		{"process.scheduler", p.Scheduler != nil, "", "a priority is taken from others on the host"},
		{"process.ioPriority", p.IOPriority != nil, "", "a priority is taken from others on the host"},
		{"process.execCPUAffinity", p.ExecCPUAffinity != nil, "", "the engine chooses the CPUs"},
		{"linux.devices", len(l.Devices) > 0, len(l.Devices), "a sandbox has null, zero, full, random, urandom and tty"},
		{"linux.netDevices", len(l.NetDevices) > 0, len(l.NetDevices), "devices of the host's network stay there"},
		{"linux.sysctl", len(l.Sysctl) > 0, slices.Sorted(maps.Keys(l.Sysctl)), "settings of the kernel are the engine's"},
		{"linux.mountLabel", l.MountLabel != "", l.MountLabel, "labels are the host's policy, and gVisor has none"},
		{"linux.intelRdt", l.IntelRdt != nil, "", "the host's caches are not divided by a bundle"},
		{"linux.memoryPolicy", l.MemoryPolicy != nil, "", "the engine chooses the memory"},
		{"linux.personality", l.Personality != nil, "", "the program has the kernel's own personality"},
		{"linux.timeOffsets", len(l.TimeOffsets) > 0, len(l.TimeOffsets), "the clocks are the engine's"},
		{"linux.uidMappings", len(l.UIDMappings) > maxMappings, len(l.UIDMappings), "more than the kernel takes"},
		{"linux.gidMappings", len(l.GIDMappings) > maxMappings, len(l.GIDMappings), "more than the kernel takes"},
		{"linux.rootfsPropagation", strings.Contains(l.RootfsPropagation, "shared"), l.RootfsPropagation, "mounts made inside would appear on the host"},
	} {
		if f.there {
			return refused(f.field, f.value, f.why, "remove "+f.field)
		}
	}
	return nil
}

// namespaces insists on those without which the program would share the host's.
func (r *reader) namespaces() error {
	have := map[specs.LinuxNamespaceType]bool{}
	for i, ns := range r.spec.Linux.Namespaces {
		field := fmt.Sprintf("linux.namespaces[%d]", i)
		if ns.Path != "" {
			return refused(field+".path", ns.Path, "a namespace of somebody else's", "remove the path")
		}
		if !slices.Contains(allNamespaces, ns.Type) || have[ns.Type] {
			return refused(field+".type", ns.Type, "unknown, or given twice", "remove the entry")
		}
		have[ns.Type] = true
	}
	for _, needed := range []specs.LinuxNamespaceType{specs.PIDNamespace, specs.MountNamespace} {
		if !have[needed] {
			return refused("linux.namespaces", r.spec.Linux.Namespaces, fmt.Sprintf("no %s namespace: the program would share the host's", needed), fmt.Sprintf("add {\"type\": %q}", needed))
		}
	}
	var added []string
	for _, kind := range allNamespaces {
		if !have[kind] {
			added = append(added, string(kind))
		}
	}
	if len(added) > 0 {
		r.change("linux.namespaces", "without "+strings.Join(added, " "), "all", "a sandbox shares no namespace with the host")
	}
	return nil
}

var allNamespaces = []specs.LinuxNamespaceType{
	specs.PIDNamespace, specs.MountNamespace, specs.IPCNamespace, specs.UTSNamespace,
	specs.CgroupNamespace, specs.UserNamespace, specs.NetworkNamespace, specs.TimeNamespace,
}

// replaced says what is harmless to ask for and is the engine's all the same.
func (r *reader) replaced() error {
	p, l := r.spec.Process, r.spec.Linux
	for _, f := range []struct {
		field string
		there bool
		was   any
		now   string
		why   string
	}{
		{"process.apparmorProfile", p.ApparmorProfile != "", p.ApparmorProfile, "none", "the engine confines by its own means, the same on every host"},
		{"linux.uidMappings", len(l.UIDMappings) > 0, l.UIDMappings, "the run's own block", "no two runs share a user of the host"},
		{"linux.gidMappings", len(l.GIDMappings) > 0, l.GIDMappings, "the run's own block", "no two runs share a group of the host"},
		{"linux.resources", limitsResources(l.Resources), "limits of the bundle", "limits of the run", "give them as flags: --memory, --cpus, --pids"},
		{"linux.cgroupsPath", l.CgroupsPath != "", l.CgroupsPath, "the run's own", "the engine accounts and kills by its own cgroup"},
		{"linux.seccomp", l.Seccomp != nil, "the bundle's profile", "the engine's", "every program runs behind the same filter"},
		{"linux.rootfsPropagation", !slices.Contains([]string{"", "private", "rprivate"}, l.RootfsPropagation), l.RootfsPropagation, "private", "no mount is passed on"},
		{"linux.maskedPaths", !covers(maskedPaths, l.MaskedPaths), "the bundle's list", "the engine's", "every sandbox has the same list"},
		{"linux.readonlyPaths", !covers(slices.Concat(readonlyPaths, maskedPaths), l.ReadonlyPaths), "the bundle's list", "the engine's", "every sandbox has the same list"},
	} {
		if f.there {
			r.change(f.field, f.was, f.now, f.why)
		}
	}
	return nil
}

// limitsResources reports whether resources say more than that devices are denied.
func limitsResources(res *specs.LinuxResources) bool {
	if res == nil {
		return false
	}
	for _, d := range res.Devices {
		if d.Allow {
			return true
		}
	}
	return res.Memory != nil || res.CPU != nil || res.Pids != nil || res.BlockIO != nil ||
		len(res.HugepageLimits) > 0 || res.Network != nil || len(res.Rdma) > 0 || len(res.Unified) > 0
}

// covers reports whether every path of the bundle's list that lies in /proc is on
// ours. The engine shows nothing of the host's /sys, so a mask there is moot.
func covers(own, theirs []string) bool {
	for _, p := range theirs {
		if !isBelow(p, "/sys") && !slices.Contains(own, p) {
			return false
		}
	}
	return true
}
