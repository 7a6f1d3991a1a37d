package oci

import (
	"fmt"
	"path"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Bounds on lists, far above what any tool writes.
const (
	maxMounts   = 256
	maxMappings = 340 // the kernel's own
)

// kernelMounts are the mounts that runc, umoci and buildah write by themselves,
// with the types each may have. The engine has its own or none in each place.
var kernelMounts = map[string][]string{
	"/proc":          {"proc"},
	"/dev":           {"tmpfs"},
	"/dev/pts":       {"devpts"},
	"/dev/shm":       {"tmpfs"},
	"/dev/mqueue":    {"mqueue"},
	"/sys":           {"sysfs"},
	"/sys/fs/cgroup": {"cgroup", "cgroup2"},
}

// engineFiles are files of the host that the same tools bind into every
// container. They are not opened: a sandbox has the engine's own.
var engineFiles = []string{"/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/run/.containerenv"}

const ownRoot = "copy the files into the bundle's root, or pass them by other means"

func (r *reader) mounts() error {
	if len(r.spec.Mounts) > maxMounts {
		return refused("mounts", len(r.spec.Mounts), "more mounts than any program needs", "leave at most 256")
	}
	seen := map[string]bool{}
	for i, m := range r.spec.Mounts {
		field := fmt.Sprintf("mounts[%d]", i)
		if strings.ContainsRune(m.Destination, 0) || !strings.HasPrefix(m.Destination, "/") || slices.Contains(strings.Split(m.Destination, "/"), "..") {
			return refused(field+".destination", m.Destination, "not an absolute path without ..", "write where it is mounted, like /run")
		}
		m.Destination = path.Clean(m.Destination)
		if len(m.UIDMappings) > 0 || len(m.GIDMappings) > 0 {
			return refused(field+".uidMappings", m.UIDMappings, "owners are mapped by the engine alone", "remove the mount's mappings")
		}
		for _, o := range m.Options {
			if o == "idmap" || o == "ridmap" || strings.Contains(o, "shared") || strings.Contains(o, "slave") {
				return refused(field+".options", o, "it maps owners, or passes mounts to the host", "remove the option")
			}
		}
		if err := r.mount(field, m, seen); err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) mount(field string, m specs.Mount, seen map[string]bool) error {
	types, standard := kernelMounts[m.Destination]
	was := fmt.Sprintf("%s on %s", m.Type, m.Destination)
	switch {
	case isBind(m):
		return r.bind(field, m)
	case standard && slices.Contains(types, m.Type):
		r.change(field, was, "the engine's", "file systems of the kernel are mounted by the engine, with its options")
	case isKernelPath(m.Destination):
		return refused(field+".destination", m.Destination, fmt.Sprintf("a mount of type %q over /proc, /sys or /dev", m.Type), "remove the mount")
	case m.Type != "tmpfs":
		return refused(field+".type", m.Type, "only tmpfs can be mounted", ownRoot)
	case m.Destination == tmpDir || m.Destination == workDir || m.Destination == secretsDir:
		r.change(field, was, "the engine's", "its size is the run's limit")
	case tmpfsRefused(m.Destination) != "":
		return refused(field+".destination", m.Destination, tmpfsRefused(m.Destination), "remove the mount")
	case seen[m.Destination]:
		return refused(field+".destination", m.Destination, "mounted twice", "remove one of the mounts")
	case !r.asIs:
		r.change(field, was, "none", "/workload and /tmp are writable; --as-is keeps this one")
	default:
		size, err := parseTmpfsSize(m.Options)
		if err != nil {
			return refused(field+".options", m.Options, "its size cannot be read", "write size= with a number of bytes")
		}
		seen[m.Destination] = true
		r.bundle.Tmpfs = append(r.bundle.Tmpfs, Tmpfs{m.Destination, size})
	}
	return nil
}

func isBind(m specs.Mount) bool {
	return m.Type == "bind" || m.Type == "rbind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")
}

// bind refuses files of the host. The two exceptions are not opened either.
func (r *reader) bind(field string, m specs.Mount) error {
	was := fmt.Sprintf("bind of %s on %s", m.Source, m.Destination)
	switch {
	case m.Destination == "/sys" && m.Source == "/sys":
		r.change(field, was, "the engine's", "nothing of the host's /sys is shown")
	case slices.Contains(engineFiles, m.Destination) && path.Base(m.Source) == path.Base(m.Destination):
		r.change(field, was, "the engine's", "a sandbox has its own; the host's file is not shown")
	default:
		return refused(field+".source", m.Source, "a path of the host", ownRoot)
	}
	return nil
}
