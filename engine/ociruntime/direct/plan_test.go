package direct

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/direct-oci/engine/oci"
)

func spec(t testing.TB) *specs.Spec {
	t.Helper()
	s, err := oci.Render("direct", oci.Intent{
		ID: "abcdefghijklmnop", Root: "/run/engine/x/rootfs", Args: []string{"/.engine/init"}, Env: []string{"PATH=/bin"}, Cwd: "/",
		UID: 65532, GID: 65532, HostID: 1 << 20, NetNS: "/proc/7/fd/9", CgroupsPath: "/engine/run/abcdefghijklmnop/ctr",
		TmpSize: 1 << 20, WorkspaceSize: 1 << 20, ShmSize: 1 << 20, SecretFiles: true, Terminals: true, Memory: 1 << 26, CPUs: 0.5, Pids: 9,
		Tmpfs: []oci.Tmpfs{{Path: "/tmp/a/b", Size: 4096}, {Path: "/srv", Size: 4096}},
		Binds: []oci.Bind{{Source: "/run/engine/x/proc/stat", Destination: "/proc/stat"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// letters are the first strings of the steps, as far as they can be told apart from
// the strings that follow them.
func fields(plan []byte) []string {
	return strings.Split(strings.TrimSuffix(string(plan), "\x00"), "\x00")
}

// TestPlan checks the order on which the sandbox's safety rests.
func TestPlan(t *testing.T) {
	text, err := plan(spec(t))
	if err != nil {
		t.Fatal(err)
	}
	f := fields(text)
	at := func(want ...string) int {
		t.Helper()
		for i := range f {
			if i+len(want) <= len(f) && slices.Equal(f[i:i+len(want)], want) {
				return i
			}
		}
		t.Fatalf("no step %q in %q", want, f)
		return -1
	}
	order := []int{
		at("p", "/run/engine/x/rootfs"),
		at("m", "proc", "/proc"), at("m", "tmpfs", "/dev"), at("f", "/dev/null"), at("b", "/dev/null", "/dev/null"),
		at("k", "/dev/pts"), at("m", "devpts", "/dev/pts"), at("k", "/dev/shm"), at("m", "tmpfs", "/dev/shm"), at("m", "tmpfs", "/tmp"),
		at("m", "tmpfs", "/srv"), at("k", "/tmp/a"), at("k", "/tmp/a/b"), at("m", "tmpfs", "/tmp/a/b"),
		at("b", "/run/engine/x/proc/stat", "/proc/stat"), at("a", "/dev"),
		// Masks need mounts apart, which the values forbid; /proc/sys is closed last.
		at("n"), at("x", "/proc/kcore"), at("w", "/proc/sys/user/max_user_namespaces", "0"), at("w", "/proc/self/oom_score_adj", "500"), at("o", "/proc/sys"),
		// Nothing of the host is in reach when the rights go, and then nothing but the program follows.
		at("a", "/"), at("q"), at("r"), at("u", "65532", "65532", "63"), at("e", "/", "/.engine/init", "", "PATH=/bin", ""),
	}
	if !slices.IsSorted(order) {
		t.Errorf("steps are at %v, want them in this order", order)
	}
	if strings.Contains(string(text), "k\x00/srv") {
		t.Error("makes a directory in the root")
	}
}

// TestRefuses checks that whatever a spec asks for and is not done is refused.
func TestRefuses(t *testing.T) {
	for name, change := range map[string]func(s *specs.Spec){
		"hooks":               func(s *specs.Spec) { s.Hooks = &specs.Hooks{} },
		"annotations":         func(s *specs.Spec) { s.Annotations = map[string]string{"a": "b"} },
		"a terminal":          func(s *specs.Spec) { s.Process.Terminal = true },
		"capabilities":        func(s *specs.Spec) { s.Process.Capabilities.Ambient = []string{"CAP_KILL"} },
		"no capability sets":  func(s *specs.Spec) { s.Process.Capabilities = nil },
		"new privileges":      func(s *specs.Spec) { s.Process.NoNewPrivileges = false },
		"root":                func(s *specs.Spec) { s.Process.User.UID = 0 },
		"root's group":        func(s *specs.Spec) { s.Process.User.GID = 0 },
		"further groups":      func(s *specs.Spec) { s.Process.User.AdditionalGids = []uint32{1} },
		"no umask":            func(s *specs.Spec) { s.Process.User.Umask = nil },
		"a profile":           func(s *specs.Spec) { s.Process.ApparmorProfile = "x" },
		"seccomp":             func(s *specs.Spec) { s.Linux.Seccomp = oci.Profile() },
		"devices":             func(s *specs.Spec) { s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/x"}} },
		"a writable root":     func(s *specs.Spec) { s.Root.Readonly = false },
		"shared mounts":       func(s *specs.Spec) { s.Linux.RootfsPropagation = "shared" },
		"no cgroup":           func(s *specs.Spec) { s.Linux.CgroupsPath = "" },
		"no user namespace":   func(s *specs.Spec) { s.Linux.Namespaces = s.Linux.Namespaces[:5] },
		"a foreign namespace": func(s *specs.Spec) { s.Linux.Namespaces[0].Path = "/proc/1/ns/pid" },
		"a namespace twice":   func(s *specs.Spec) { s.Linux.Namespaces = append(s.Linux.Namespaces, s.Linux.Namespaces[0]) },
		"the host's network":  func(s *specs.Spec) { s.Linux.Namespaces[6].Path = "" },
		"set-id files":        func(s *specs.Spec) { s.Mounts[3].Options = []string{"nodev"} },
		"another file system": func(s *specs.Spec) { s.Mounts[3].Type = "ext4" },
		"a recursive bind":    func(s *specs.Spec) { s.Mounts[len(s.Mounts)-1].Options = []string{"rbind", "nosuid"} },
		"a relative place":    func(s *specs.Spec) { s.Mounts[3].Destination = "tmp" },
		"a place that climbs": func(s *specs.Spec) { s.Mounts[3].Destination = "/tmp/../etc" },
		"owners mapped":       func(s *specs.Spec) { s.Mounts[3].UIDMappings = s.Linux.UIDMappings },
		"an unknown limit":    func(s *specs.Spec) { s.Process.Rlimits[0].Type = "RLIMIT_X" },
		"NUL in an argument":  func(s *specs.Spec) { s.Process.Args[0] = "a\x00b" },
		"an empty argument":   func(s *specs.Spec) { s.Process.Args = append(s.Process.Args, "") },
	} {
		s := spec(t)
		change(s)
		if text, err := plan(s); err == nil {
			t.Errorf("%s: accepted as %q", name, bytes.ReplaceAll(text, []byte{0}, []byte(" ")))
		}
	}
	for name, change := range map[string]func(r *specs.LinuxResources){
		"block I/O":     func(r *specs.LinuxResources) { r.BlockIO = &specs.LinuxBlockIO{} },
		"swap":          func(r *specs.LinuxResources) { more := *r.Memory.Limit + 1; r.Memory.Swap = &more },
		"a set of CPUs": func(r *specs.LinuxResources) { r.CPU.Cpus = "0" },
	} {
		r := spec(t).Linux.Resources
		change(r)
		if settings, _, err := cgroupSettings(r); err == nil {
			t.Errorf("%s: accepted as %q", name, settings)
		}
	}
	for name, change := range map[string]func(list []specs.LinuxDeviceCgroup) []specs.LinuxDeviceCgroup{
		"nothing":               func([]specs.LinuxDeviceCgroup) []specs.LinuxDeviceCgroup { return nil },
		"all allowed":           func(l []specs.LinuxDeviceCgroup) []specs.LinuxDeviceCgroup { l[0].Allow = true; return l },
		"nodes to be made":      func(l []specs.LinuxDeviceCgroup) []specs.LinuxDeviceCgroup { l[1].Access = "rwm"; return l },
		"a block device":        func(l []specs.LinuxDeviceCgroup) []specs.LinuxDeviceCgroup { l[1].Type = "b"; return l },
		"all of a major number": func(l []specs.LinuxDeviceCgroup) []specs.LinuxDeviceCgroup { l[1].Minor = nil; return l },
	} {
		if _, err := deviceProgram(change(spec(t).Linux.Resources.Devices)); err == nil {
			t.Errorf("rules of devices with %s: accepted", name)
		}
	}
}
