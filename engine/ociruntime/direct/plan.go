package direct

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/engine/ociruntime"
)

// steps is a plan as engine-launch reads it; cmd/engine-launch/launch.c says what each
// step does. It is built in the order in which it is done.
type steps struct {
	text []byte
	err  error // the first
}

// add appends a step: its letter, then its strings and numbers.
func (s *steps) add(letter byte, args ...any) {
	s.string(string(letter))
	for _, a := range args {
		switch a := a.(type) {
		case string:
			s.string(a)
		case uint64:
			s.string(strconv.FormatUint(a, 10))
		}
	}
}

func (s *steps) string(text string) {
	if strings.ContainsRune(text, 0) && s.err == nil {
		s.err = fmt.Errorf("cannot pass on %q: it holds a NUL", text)
	}
	s.text = append(append(s.text, text...), 0)
}

// devices are what every sandbox finds in /dev, besides the links.
var devices = []string{"null", "zero", "full", "random", "urandom", "tty"}

var deviceLinks = [][2]string{{"/proc/self/fd", "fd"}, {"/proc/self/fd/0", "stdin"}, {"/proc/self/fd/1", "stdout"}, {"/proc/self/fd/2", "stderr"}, {"pts/ptmx", "ptmx"}}

// plan works out the steps that make the sandbox of a spec. A spec that asks for
// anything that is not done is refused.
func plan(spec *specs.Spec) ([]byte, error) {
	if err := known(spec); err != nil {
		return nil, err
	}
	s := &steps{}
	s.add('h', spec.Hostname)
	s.add('d', spec.Domainname)
	s.add('p', spec.Root.Path)
	if err := s.mounts(spec.Mounts); err != nil {
		return nil, err
	}
	s.add('n')
	for _, p := range spec.Linux.MaskedPaths {
		s.add('x', p)
	}
	for _, name := range slices.Sorted(maps.Keys(spec.Linux.Sysctl)) {
		s.add('w', "/proc/sys/"+strings.ReplaceAll(name, ".", "/"), spec.Linux.Sysctl[name])
	}
	if adj := spec.Process.OOMScoreAdj; adj != nil {
		s.add('w', "/proc/self/oom_score_adj", strconv.Itoa(*adj))
	}
	for _, p := range spec.Linux.ReadonlyPaths {
		s.add('o', p)
	}
	s.add('a', "/", uint64(unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV))
	s.add('q')
	for _, l := range spec.Process.Rlimits {
		n, err := ociruntime.RlimitNumber(l.Type)
		if err != nil {
			return nil, err
		}
		s.add('r', uint64(n), l.Soft, l.Hard)
	}
	u := spec.Process.User
	s.add('u', uint64(u.UID), uint64(u.GID), uint64(*u.Umask))
	s.add('e', spec.Process.Cwd)
	for _, list := range [][]string{spec.Process.Args, spec.Process.Env} {
		for _, text := range list {
			if text == "" {
				return nil, errors.New("cannot pass on an empty argument or variable")
			}
			s.string(text)
		}
		s.string("")
	}
	return s.text, s.err
}

// known refuses a spec with a field that would have no effect here.
//
// SECURITY: nothing that a spec asks for is left undone without a word.
// A profile or a namespace that a runtime ignores is a hole that nobody sees.
// Holds because: the fields that are understood are taken out, and nothing may be left.
// Checked by: TestRefuses.
func known(spec *specs.Spec) error {
	rest, process, linux := *spec, *spec.Process, *spec.Linux
	rest.Version, rest.Hostname, rest.Domainname, rest.Mounts, rest.Process, rest.Linux, rest.Root = "", "", "", nil, nil, nil, nil
	caps := process.Capabilities
	if caps == nil || len(caps.Bounding)+len(caps.Effective)+len(caps.Inheritable)+len(caps.Permitted)+len(caps.Ambient) > 0 {
		return errors.New("cannot start a process with Linux capabilities")
	}
	if !process.NoNewPrivileges || process.User.Umask == nil || process.User.UID == 0 || process.User.GID == 0 || len(process.User.AdditionalGids) > 0 {
		return errors.New("cannot start a process that may gain privileges, that is root or in further groups, or without a umask")
	}
	process.Args, process.Env, process.Cwd, process.Rlimits, process.OOMScoreAdj = nil, nil, "", nil, nil
	process.User, process.Capabilities, process.NoNewPrivileges = specs.User{}, nil, false
	if err := knownNamespaces(linux.Namespaces); err != nil {
		return err
	}
	if spec.Root == nil || !spec.Root.Readonly || linux.RootfsPropagation != "private" || linux.Resources == nil || linux.CgroupsPath == "" {
		return errors.New("cannot start without a read-only root, private mounts and a cgroup")
	}
	linux.Namespaces, linux.UIDMappings, linux.GIDMappings, linux.Sysctl, linux.Resources = nil, nil, nil, nil, nil
	linux.CgroupsPath, linux.RootfsPropagation, linux.MaskedPaths, linux.ReadonlyPaths = "", "", nil, nil
	for part, v := range map[string]any{"spec": rest, "process": process, "linux": linux} {
		if fields := left(v); fields != "" {
			return fmt.Errorf("cannot keep these fields of %s: %s", part, fields)
		}
	}
	return nil
}

// knownNamespaces wants all that there are. The clocks' may be left out: it hides nothing.
func knownNamespaces(list []specs.LinuxNamespace) error {
	want := map[specs.LinuxNamespaceType]bool{
		specs.PIDNamespace: true, specs.MountNamespace: true, specs.IPCNamespace: true, specs.UTSNamespace: true,
		specs.CgroupNamespace: true, specs.UserNamespace: true, specs.NetworkNamespace: true,
	}
	for _, ns := range list {
		if (ns.Path != "") != (ns.Type == specs.NetworkNamespace) {
			return fmt.Errorf("cannot make %s namespace of path=%q", ns.Type, ns.Path)
		}
		if !want[ns.Type] && ns.Type != specs.TimeNamespace {
			return fmt.Errorf("cannot make %s namespace: it is named twice, or unknown", ns.Type)
		}
		delete(want, ns.Type)
	}
	if len(want) > 0 {
		return fmt.Errorf("cannot start without namespaces of its own: %d are missing", len(want))
	}
	return nil
}

// mountFlags are the options that are flags of mount(2) and of mount_setattr(2).
var mountFlags = map[string]struct{ mount, attr uint64 }{
	"ro":          {unix.MS_RDONLY, unix.MOUNT_ATTR_RDONLY},
	"nosuid":      {unix.MS_NOSUID, unix.MOUNT_ATTR_NOSUID},
	"nodev":       {unix.MS_NODEV, unix.MOUNT_ATTR_NODEV},
	"noexec":      {unix.MS_NOEXEC, unix.MOUNT_ATTR_NOEXEC},
	"relatime":    {unix.MS_RELATIME, 0},
	"strictatime": {unix.MS_STRICTATIME, unix.MOUNT_ATTR_STRICTATIME},
	"bind":        {0, 0},
}

func (s *steps) mounts(list []specs.Mount) error {
	closed := false // /dev is made read-only when all is there
	for i, m := range list {
		if len(m.UIDMappings)+len(m.GIDMappings) > 0 || !path.IsAbs(m.Destination) || path.Clean(m.Destination) != m.Destination {
			return fmt.Errorf("cannot mount on %q: not a clean absolute path, or with owners mapped", m.Destination)
		}
		if !slices.Contains(m.Options, "nosuid") {
			return fmt.Errorf("cannot mount on %s without nosuid", m.Destination)
		}
		var flags, attr uint64
		var data []string
		for _, o := range m.Options {
			f, ok := mountFlags[o]
			if !ok {
				data = append(data, o)
			}
			flags, attr = flags|f.mount, attr|f.attr
		}
		s.mountPoint(list[:i], m.Destination)
		switch kind := m.Type; {
		case kind == "bind" && len(data) == 0 && path.IsAbs(m.Source):
			s.add('b', m.Source, m.Destination, attr)
		case kind == "tmpfs" && m.Destination == "/dev":
			closed = flags&unix.MS_RDONLY != 0
			s.add('m', kind, m.Destination, flags&^unix.MS_RDONLY, strings.Join(data, ","))
			s.devices()
		case kind == "cgroup":
			s.add('m', "cgroup2", m.Destination, flags, strings.Join(data, ","))
		case kind == "tmpfs", kind == "proc", kind == "devpts":
			s.add('m', kind, m.Destination, flags, strings.Join(data, ","))
		default:
			return fmt.Errorf("cannot mount type=%q from %q on %s with %v", m.Type, m.Source, m.Destination, m.Options)
		}
	}
	if closed {
		s.add('a', "/dev", uint64(unix.MOUNT_ATTR_RDONLY))
	}
	return nil
}

// mountPoint makes the directories of a place that lies on a tmpfs mounted before, and
// so cannot be there yet. Everywhere else the root has them, or the step fails.
func (s *steps) mountPoint(before []specs.Mount, place string) {
	for _, m := range slices.Backward(before) {
		rest, below := strings.CutPrefix(place, m.Destination+"/")
		if !below {
			continue
		}
		if m.Type != "tmpfs" {
			return
		}
		dir := m.Destination
		for name := range strings.SplitSeq(rest, "/") {
			dir = path.Join(dir, name)
			s.add('k', dir)
		}
		return
	}
}

func (s *steps) devices() {
	for _, name := range devices {
		s.add('f', "/dev/"+name)
		s.add('b', "/dev/"+name, "/dev/"+name, uint64(unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC))
	}
	for _, l := range deviceLinks {
		s.add('l', l[0], "/dev/"+l[1])
	}
}

// cgroupSettings are the files of a leaf and their values, and the controllers that
// they need.
func cgroupSettings(r *specs.LinuxResources) (settings [][2]string, controllers []string, err error) {
	rest := *r
	if m := r.Memory; m != nil && m.Limit != nil && m.Swap != nil && *m.Limit == *m.Swap {
		settings = append(settings, [2]string{"memory.max", strconv.FormatInt(*m.Limit, 10)}, [2]string{"memory.swap.max", "0"})
		controllers = append(controllers, "memory")
		rest.Memory = nil
	}
	if c := r.CPU; c != nil && c.Quota != nil && c.Period != nil && c.Cpus == "" {
		settings = append(settings, [2]string{"cpu.max", fmt.Sprintf("%d %d", *c.Quota, *c.Period)})
		controllers = append(controllers, "cpu")
		rest.CPU = nil
	}
	if p := r.Pids; p != nil && p.Limit != nil {
		settings = append(settings, [2]string{"pids.max", strconv.FormatInt(*p.Limit, 10)})
		controllers = append(controllers, "pids")
		rest.Pids = nil
	}
	for _, name := range slices.Sorted(maps.Keys(r.Unified)) {
		settings = append(settings, [2]string{name, r.Unified[name]})
	}
	rest.Unified, rest.Devices = nil, nil
	if fields := left(rest); fields != "" {
		return nil, nil, fmt.Errorf("cannot keep these limits: %s", fields)
	}
	return settings, controllers, nil
}

// left names the fields of a struct that are set.
func left(v any) string {
	var names []string
	for field, value := range reflect.ValueOf(v).Fields() {
		if !value.IsZero() {
			names = append(names, field.Name)
		}
	}
	return strings.Join(names, ", ")
}
