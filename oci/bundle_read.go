package oci

import (
	"fmt"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// defaultID is the user and group of a program that asked for root.
const defaultID = 65532

// reader checks one spec and collects what becomes of it.
type reader struct {
	asIs    bool
	spec    *specs.Spec
	bundle  Bundle
	changes []Change
}

func (r *reader) change(field string, was, now any, why string) {
	r.changes = append(r.changes, Change{field, text(was), text(now), why})
}

// text shortens a value for a human reader.
func text(v any) string {
	s := fmt.Sprint(v)
	if len(s) > 200 {
		s = strings.ToValidUTF8(s[:200], "") + "…"
	}
	return s
}

func refused(field string, value any, why, fix string) error {
	return &BundleError{field, text(value), why, fix}
}

// read checks the parts in the order of config.json.
func (r *reader) read(data []byte) error {
	spec, err := parse(data)
	if err != nil {
		return err
	}
	r.spec = spec
	for _, part := range []func() error{
		r.platform, r.root, r.process, r.privileges, r.limits, r.hostname, r.mounts, r.steering, r.linux, r.namespaces, r.replaced,
	} {
		if err := part(); err != nil {
			return err
		}
	}
	return nil
}

// platform refuses bundles for other kernels than Linux.
func (r *reader) platform() error {
	s := r.spec
	if !strings.HasPrefix(s.Version, "1.") {
		return refused("ociVersion", s.Version, "not a version 1 bundle", "write the bundle for runtime-spec 1.0 or later")
	}
	for _, section := range []struct {
		name  string
		there bool
	}{
		{"solaris", s.Solaris != nil},
		{"windows", s.Windows != nil},
		{"vm", s.VM != nil},
		{"zos", s.ZOS != nil},
		{"freebsd", s.FreeBSD != nil},
	} {
		if section.there {
			return refused(section.name, "", "the bundle is for another platform", "remove the section "+section.name)
		}
	}
	return nil
}

func (r *reader) root() error {
	root := r.spec.Root
	if root == nil || root.Path == "" {
		return refused("root.path", "", "no root file system is named", "set root.path, for example to rootfs")
	}
	if strings.ContainsRune(root.Path, 0) {
		return refused("root.path", root.Path, "a NUL byte", "remove it")
	}
	if !root.Readonly {
		r.change("root.readonly", false, true, "the root is shared and never written to; /workload and /tmp are writable")
	}
	return nil
}

// process checks what is run: arguments, environment and working directory.
func (r *reader) process() error {
	p := r.spec.Process
	if p == nil {
		return refused("process", "", "nothing to run", "add a process with args and cwd")
	}
	if p.CommandLine != "" {
		return refused("process.commandLine", p.CommandLine, "only Windows has it", "use process.args")
	}
	if len(p.Args) == 0 || p.Args[0] == "" {
		return refused("process.args", p.Args, "no command", "name the command in process.args[0]")
	}
	if err := noNUL("process.args", p.Args); err != nil {
		return err
	}
	if err := noNUL("process.env", p.Env); err != nil {
		return err
	}
	r.bundle.Args = p.Args
	if p.Terminal {
		r.change("process.terminal", true, false, "the program has the caller's streams, and no terminal of the host")
	}
	r.environment()
	return r.cwd()
}

func noNUL(field string, list []string) error {
	for i, s := range list {
		if strings.ContainsRune(s, 0) {
			return refused(fmt.Sprintf("%s[%d]", field, i), s, "a NUL byte, where the kernel would end it", "remove it")
		}
	}
	return nil
}

func (r *reader) environment() {
	for i, e := range r.spec.Process.Env {
		field := fmt.Sprintf("process.env[%d]", i)
		name, _, ok := strings.Cut(e, "=")
		switch {
		case !ok || name == "":
			r.change(field, e, "", "not NAME=VALUE")
		case !r.asIs && (name == "HOME" || name == "TMPDIR"):
			r.change(field, e, "", "the engine sets it to a writable folder")
		default:
			r.bundle.Env = append(r.bundle.Env, e)
		}
	}
}

func (r *reader) cwd() error {
	cwd := r.spec.Process.Cwd
	if !isAbsolute(cwd) {
		return refused("process.cwd", cwd, "not a clean absolute path", "name a folder of the root file system, like /app")
	}
	// A folder of /proc can lead to what the runtime has open on the host.
	if isKernelPath(cwd) {
		return refused("process.cwd", cwd, "below /proc, /sys or /dev", "name a folder of the root file system, like /app")
	}
	r.bundle.Cwd = cwd
	if cwd == "/" && !r.asIs {
		r.change("process.cwd", cwd, workDir, "nothing can be written in /")
		r.bundle.Cwd = workDir
	}
	return nil
}

// privileges settles the user and takes every right away.
func (r *reader) privileges() error {
	p := r.spec.Process
	if p.User.Username != "" {
		return refused("process.user.username", p.User.Username, "only Windows has it", "use process.user.uid")
	}
	var err error
	if r.bundle.UID, err = r.identity("process.user.uid", p.User.UID); err != nil {
		return err
	}
	if r.bundle.GID, err = r.identity("process.user.gid", p.User.GID); err != nil {
		return err
	}
	if p.User.Umask != nil {
		if *p.User.Umask > 0o777 {
			return refused("process.user.umask", *p.User.Umask, "above 0777", "write at most 511")
		}
		if r.asIs {
			r.bundle.Umask = p.User.Umask
		} else if *p.User.Umask != defaultUmask {
			r.change("process.user.umask", fmt.Sprintf("%04o", *p.User.Umask), "0077", "files are the run's own")
		}
	}
	if len(p.User.AdditionalGids) > 0 {
		r.change("process.user.additionalGids", p.User.AdditionalGids, "none", "groups open files that the user alone could not")
	}
	if c := p.Capabilities; c != nil {
		for _, set := range []struct {
			name string
			caps []string
		}{{"bounding", c.Bounding}, {"effective", c.Effective}, {"inheritable", c.Inheritable}, {"permitted", c.Permitted}, {"ambient", c.Ambient}} {
			if len(set.caps) > 0 {
				r.change("process.capabilities."+set.name, strings.Join(set.caps, " "), "none", "a sandbox has no capability")
			}
		}
	}
	if !p.NoNewPrivileges {
		r.change("process.noNewPrivileges", false, true, "no program gains rights by being executed")
	}
	return nil
}

func (r *reader) identity(field string, id uint32) (uint32, error) {
	switch {
	case id > maxID:
		return 0, refused(field, id, "above 65535, the last of the run's block", "use an id from 1 to 65535")
	case id == 0:
		r.change(field, id, defaultID, "nothing runs as root, not even inside")
	case !r.asIs && id != defaultID:
		r.change(field, id, defaultID, "a program has the engine's user; --as-is keeps this one")
	default:
		return id, nil
	}
	return defaultID, nil
}

// limits keeps the resource limits that lower the engine's.
func (r *reader) limits() error {
	p := r.spec.Process
	seen := map[string]bool{}
	for i, l := range p.Rlimits {
		field := fmt.Sprintf("process.rlimits[%d]", i)
		was := fmt.Sprintf("%s %d:%d", l.Type, l.Soft, l.Hard)
		if !slices.Contains(rlimitTypes, l.Type) || seen[l.Type] {
			return refused(field+".type", l.Type, "unknown, or given twice", "remove the limit")
		}
		if l.Soft > l.Hard {
			return refused(field+".soft", l.Soft, "above the hard limit", "lower it")
		}
		seen[l.Type] = true
		if !r.asIs {
			r.change(field, was, "the engine's", "--as-is keeps limits that are lower")
			continue
		}
		r.bundle.Rlimits = append(r.bundle.Rlimits, Rlimit{l.Type, l.Soft, l.Hard})
		if raises(l) {
			r.change(field, was, "the engine's, where it is lower", "a bundle cannot raise a limit")
		}
	}
	if p.OOMScoreAdj != nil && *p.OOMScoreAdj != oomScoreAdj {
		r.change("process.oomScoreAdj", *p.OOMScoreAdj, oomScoreAdj, "a sandbox goes before the host's own processes")
	}
	return nil
}

// raises reports whether l is above the engine's own, whatever the sizes of a run.
func raises(l specs.POSIXRlimit) bool {
	for _, own := range rlimits(Intent{}) {
		if own.Type == l.Type && own.Type != "RLIMIT_FSIZE" {
			return l.Soft > own.Soft || l.Hard > own.Hard
		}
	}
	return false
}

func (r *reader) hostname() error {
	s := r.spec
	switch {
	case s.Hostname == "" || s.Hostname == defaultHostname:
	case !r.asIs:
		r.change("hostname", s.Hostname, defaultHostname, "every sandbox has this name; --as-is keeps the bundle's")
	case !isHostname(s.Hostname):
		return refused("hostname", s.Hostname, "not a host name", "use at most 64 letters, digits, dots and hyphens")
	default:
		r.bundle.Hostname = s.Hostname
	}
	if s.Domainname != "" {
		r.change("domainname", s.Domainname, "none", "a sandbox has no domain")
	}
	return nil
}

// parseTmpfsSize reads the last size= of mount options, 0 if there is none.
// A share of the host's memory, like 50%, says nothing inside a limit.
func parseTmpfsSize(options []string) (int64, error) {
	for _, o := range slices.Backward(options) {
		if value, ok := strings.CutPrefix(o, "size="); ok && !strings.HasSuffix(value, "%") {
			return ParseSize(value)
		}
	}
	return 0, nil
}
