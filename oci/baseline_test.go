package oci

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// TestRenderKeepsBaseline renders ten thousand intents for every runtime. Each
// spec is valid by the runtime-spec's own schema and as hard as promised.
func TestRenderKeepsBaseline(t *testing.T) {
	schema := specSchema(t)
	for _, rt := range Runtimes() {
		t.Run(rt, func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(1, 2))
			count := 10000
			if testing.Short() {
				count = 500
			}
			for i := range count {
				in := randomIntent(rng)
				before := fmt.Sprintf("%#v", in)
				spec, err := Render(rt, in)
				if err != nil {
					t.Fatalf("valid intent refused: %v\n%s", err, before)
				}
				if after := fmt.Sprintf("%#v", in); after != before {
					t.Fatalf("Render changed its argument\nfrom %s\nto   %s", before, after)
				}
				broken := brokenPromises(rt, in, spec)
				if i > 100 {
					// The profile is always the same, and most of the work.
					spec.Linux.Seccomp = nil
				}
				data, err := Marshal(spec)
				if err != nil {
					t.Fatal(err)
				}
				document, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
				if err != nil {
					t.Fatal(err)
				}
				if err := schema.Validate(document); err != nil {
					t.Fatalf("spec is not valid: %v\n%s", err, data)
				}
				broken = append(broken, brokenCapabilities(document)...)
				if len(broken) > 0 {
					t.Fatalf("%s\n%s", strings.Join(broken, "\n"), data)
				}
			}
		})
	}
}

func specSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/opencontainers/runtime-spec").Output()
	if err != nil {
		t.Fatalf("cannot find the runtime-spec's schema: %v", err)
	}
	compiler := jsonschema.NewCompiler()
	// The parts of the schema do not say which draft they are; the whole says 4.
	compiler.DefaultDraft(jsonschema.Draft4)
	compiler.UseLoader(schemaFiles{})
	schema, err := compiler.Compile(filepath.Join(strings.TrimSpace(string(dir)), "schema", "config-schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// schemaFiles loads the schema, in which some references lack a slash.
type schemaFiles struct{}

func (schemaFiles) Load(url string) (any, error) {
	data, err := os.ReadFile(strings.TrimPrefix(url, "file://"))
	if err != nil {
		return nil, err
	}
	return jsonschema.UnmarshalJSON(bytes.NewReader(bytes.ReplaceAll(data, []byte("#definitions/"), []byte("#/definitions/"))))
}

// brokenPromises holds a spec against the baseline, word by word and without the
// tables that it was made from.
func brokenPromises(rt string, in Intent, s *specs.Spec) []string {
	var broken []string
	promise := func(kept bool, format string, args ...any) {
		if !kept {
			broken = append(broken, fmt.Sprintf(format, args...))
		}
	}
	p, l := s.Process, s.Linux
	promise(p.NoNewPrivileges, "noNewPrivileges is off")
	promise(!p.Terminal, "terminal is on")
	promise(p.User.UID != 0 && p.User.GID != 0 && len(p.User.AdditionalGids) == 0, "user = %+v, want no root and no further group", p.User)
	promise(in.Umask != nil || *p.User.Umask == 0o077, "umask = %o", *p.User.Umask)
	promise(*p.OOMScoreAdj == 500, "oomScoreAdj = %d", *p.OOMScoreAdj)
	promise(p.SelinuxLabel == "" && p.ApparmorProfile == "" && p.Scheduler == nil && p.IOPriority == nil && p.ExecCPUAffinity == nil, "process asks for more than it may")
	promise(s.Domainname == "(none)" && (in.Hostname != "" || s.Hostname == "sandbox"), "names = %q, %q, want none of the host", s.Hostname, s.Domainname)
	promise(s.Root.Readonly, "root is writable")
	promise(s.Hooks == nil && s.Annotations == nil, "hooks or annotations are set")
	promise(l.RootfsPropagation == "private", "rootfsPropagation = %q", l.RootfsPropagation)
	promise(len(l.Devices) == 0 && len(l.NetDevices) == 0 && l.IntelRdt == nil && l.Personality == nil && len(l.TimeOffsets) == 0 && l.MountLabel == "", "linux asks for more than it may")
	for _, m := range [][]specs.LinuxIDMapping{l.UIDMappings, l.GIDMappings} {
		promise(reflect.DeepEqual(m, []specs.LinuxIDMapping{{ContainerID: 0, HostID: in.HostID, Size: 65536}}), "mapping = %v", m)
	}
	for _, path := range []string{"/proc/kcore", "/proc/keys", "/proc/kallsyms", "/proc/interrupts", "/proc/sysrq-trigger", "/proc/timer_list", "/proc/kmsg", "/proc/scsi"} {
		promise(slices.Contains(l.MaskedPaths, path), "%s is not masked", path)
	}
	promise(slices.Equal(l.ReadonlyPaths, []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys"}), "readonlyPaths = %v", l.ReadonlyPaths)
	promise((l.Seccomp != nil) == (in.Seccomp || rt == "bundle"), "seccomp = %v", l.Seccomp)
	return slices.Concat(broken, brokenMounts(rt, in, s), brokenNamespaces(rt, in, s), brokenLimits(rt, in, s))
}

// brokenCapabilities looks at the JSON: there, an absent set would leave the
// choice to the runtime.
func brokenCapabilities(document any) []string {
	var broken []string
	sets := document.(map[string]any)["process"].(map[string]any)["capabilities"].(map[string]any)
	for _, set := range []string{"bounding", "effective", "inheritable", "permitted", "ambient"} {
		if caps, there := sets[set].([]any); !there || len(caps) != 0 {
			broken = append(broken, fmt.Sprintf("capability set %s = %v, want it there and empty", set, sets[set]))
		}
	}
	return broken
}

func brokenMounts(rt string, in Intent, s *specs.Spec) []string {
	var broken []string
	host := map[string]Mount{}
	for _, m := range in.Mounts {
		host[m.Path] = m
	}
	seen := map[string]bool{}
	for _, m := range s.Mounts {
		has := func(o string) bool { return slices.Contains(m.Options, o) }
		for _, o := range m.Options {
			if slices.Contains([]string{"suid", "dev", "exec", "rw", "rbind", "shared", "rshared", "slave", "rslave", "idmap"}, o) {
				broken = append(broken, fmt.Sprintf("mount %s has option %s", m.Destination, o))
			}
		}
		// Devices of /dev are mounts of their own.
		if !has("nosuid") || !has("nodev") && m.Destination != "/dev" && m.Type != "devpts" {
			broken = append(broken, fmt.Sprintf("mount %s = %v, want nosuid and nodev", m.Destination, m.Options))
		}
		switch m.Type {
		case "bind":
			if asked, ok := host[m.Destination]; ok {
				mapped := asked.Owner != nil && rt == "bundle"
				if has("ro") == asked.Writable || m.Source != asked.Source || len(m.UIDMappings) > 0 != mapped || len(m.GIDMappings) > 0 != mapped {
					broken = append(broken, fmt.Sprintf("bind on %s = %+v, want %+v", m.Destination, m, asked))
				}
				break
			}
			if !has("ro") || !has("noexec") {
				broken = append(broken, fmt.Sprintf("bind on %s = %v, want ro and noexec", m.Destination, m.Options))
			}
		case "tmpfs":
			if !slices.ContainsFunc(m.Options, func(o string) bool { return strings.HasPrefix(o, "size=") && o != "size=0" }) {
				broken = append(broken, fmt.Sprintf("tmpfs on %s = %v, want a size", m.Destination, m.Options))
			}
		case "devpts":
			if m.Destination != "/dev/pts" || rt == "runsc" || !has("noexec") || !has("newinstance") || !has("max=64") {
				broken = append(broken, fmt.Sprintf("devpts on %s = %v", m.Destination, m.Options))
			}
		case "proc":
			if !has("hidepid=2") || !has("noexec") {
				broken = append(broken, fmt.Sprintf("/proc = %v, want hidepid=2 and noexec", m.Options))
			}
		case "cgroup", "sysfs":
			if !has("ro") || !has("noexec") || (m.Type == "sysfs") != (rt == "runsc") {
				broken = append(broken, fmt.Sprintf("%s on %s = %v", m.Type, m.Destination, m.Options))
			}
		default:
			broken = append(broken, fmt.Sprintf("mount %s of type %s", m.Destination, m.Type))
		}
		for above := range seen {
			if strings.HasPrefix(above, m.Destination+"/") || above == m.Destination {
				broken = append(broken, fmt.Sprintf("mount %s hides %s, made before", m.Destination, above))
			}
		}
		seen[m.Destination] = true
	}
	for _, want := range []string{"/proc", "/dev", "/dev/shm", "/tmp", "/workload"} {
		if !seen[want] {
			broken = append(broken, "no mount on "+want)
		}
	}
	return broken
}

func brokenNamespaces(rt string, in Intent, s *specs.Spec) []string {
	want := []string{"pid:", "mount:", "ipc:", "uts:", "cgroup:", "user:", "network:" + in.NetNS}
	switch rt {
	case "bundle":
		want[6] = "network:"
	case "runc", "crun", "direct", "embedded":
		want = append(want, "time:")
	}
	var got []string
	for _, ns := range s.Linux.Namespaces {
		got = append(got, string(ns.Type)+":"+ns.Path)
	}
	if !slices.Equal(got, want) {
		return []string{fmt.Sprintf("namespaces = %v, want %v", got, want)}
	}
	return nil
}

func brokenLimits(rt string, in Intent, s *specs.Spec) []string {
	var broken []string
	limits := map[string]specs.POSIXRlimit{}
	for _, r := range s.Process.Rlimits {
		if _, twice := limits[r.Type]; twice || r.Soft > r.Hard {
			broken = append(broken, fmt.Sprintf("rlimit %v twice, or soft above hard", r))
		}
		limits[r.Type] = r
	}
	for kind, most := range map[string]uint64{
		"RLIMIT_CORE": 1, "RLIMIT_NOFILE": 4096, "RLIMIT_MEMLOCK": 65536, "RLIMIT_MSGQUEUE": 0, "RLIMIT_NICE": 0, "RLIMIT_RTPRIO": 0, "RLIMIT_SIGPENDING": 1024, "RLIMIT_STACK": 8 << 20,
	} {
		if r, there := limits[kind]; !there || r.Hard > most {
			broken = append(broken, fmt.Sprintf("%s = %v, want at most %d", kind, r, most))
		}
	}
	for _, r := range in.Rlimits {
		if got := limits[r.Type]; got.Soft > r.Soft || got.Hard > r.Hard {
			broken = append(broken, fmt.Sprintf("%s = %v, want at most %v", r.Type, got, r))
		}
	}
	nproc, there := limits["RLIMIT_NPROC"]
	if rt == "runsc" && in.Pids > 0 && (!there || nproc.Hard > uint64(in.Pids)) {
		broken = append(broken, fmt.Sprintf("RLIMIT_NPROC = %v, want at most %d", nproc, in.Pids))
	}
	res := s.Linux.Resources
	for i, d := range res.Devices {
		if i == 0 && (d.Allow || d.Type != "" || d.Access != "rwm") || i > 0 && (!d.Allow || d.Type != "c" || d.Access != "rw") {
			broken = append(broken, fmt.Sprintf("device rule %d = %+v", i, d))
		}
	}
	rules := 7
	if in.Terminals && rt != "runsc" {
		rules = 9
	}
	if len(res.Devices) != rules {
		broken = append(broken, fmt.Sprintf("%d device rules, want %d", len(res.Devices), rules))
	}
	if (res.Memory != nil) != (in.Memory > 0) || res.Memory != nil && (*res.Memory.Limit != in.Memory || *res.Memory.Swap != in.Memory) {
		broken = append(broken, "memory is not what was asked for, or there is swap")
	}
	if (res.Pids != nil) != (in.Pids > 0 && rt != "runsc") {
		broken = append(broken, "pids is not what was asked for")
	}
	return broken
}

// randomIntent is any intent that Render must accept.
func randomIntent(rng *rand.Rand) Intent {
	in := plain()
	coin := func() bool { return rng.IntN(2) == 0 }
	size := func() int64 { return 1 + rng.Int64N(int64(1)<<(10+rng.IntN(40))) }
	word := func() string {
		b := make([]byte, 1+rng.IntN(12))
		for i := range b {
			b[i] = "abcdefghijklmnopqrstuvwxyz0123456789"[rng.IntN(36)]
		}
		return string(b)
	}
	in.UID, in.GID = 1+rng.Uint32N(65535), 1+rng.Uint32N(65535)
	in.HostID = 65536 + rng.Uint32N(1<<31-3*65536)
	in.TmpSize, in.WorkspaceSize, in.ShmSize = size(), size(), size()
	in.SecretFiles, in.Seccomp, in.Terminals = coin(), rng.IntN(100) == 0, coin()
	in.Args, in.Env = []string{"/" + word()}, nil
	for range rng.IntN(5) {
		in.Args = append(in.Args, word()+" \"\x01\xff<é"+word())
		in.Env = append(in.Env, word()+"="+word()+"\n$(x)")
	}
	if coin() {
		in.Cwd = "/app-" + word() + "/" + word()
	}
	if coin() {
		in.Hostname = word()
	}
	if coin() {
		in.NetNS = ""
	}
	if coin() {
		umask := rng.Uint32N(0o1000)
		in.Umask = &umask
	}
	in.Tmpfs, in.Binds, in.Rlimits = nil, nil, nil
	taken := map[string]bool{"/tmp": true, "/workload": true, "/run": true, "/proc": true, "/sys": true, "/dev": true}
	for range rng.IntN(4) {
		if p := "/" + word(); !taken[p] {
			in.Tmpfs = append(in.Tmpfs, Tmpfs{p + "/" + word(), size()}, Tmpfs{p, size()})
			taken[p] = true
		}
		if p := "/bind-" + word(); !taken[p] {
			in.Binds = append(in.Binds, Bind{"/" + word(), p})
			taken[p] = true
		}
	}
	for range rng.IntN(3) {
		if p := "/mount-" + word(); !taken[p] {
			in.Mounts = append(in.Mounts, Mount{Source: "/srv/" + word(), Path: p + "/" + word(), Writable: coin()}, Mount{Source: "/srv/" + word(), Path: p})
			taken[p] = true
		}
	}
	if coin() {
		in.Binds = append(in.Binds, Bind{"/run/x/meminfo", "/proc/meminfo"})
	}
	for _, kind := range rlimitTypes {
		if rng.IntN(4) == 0 {
			hard := rng.Uint64() >> rng.IntN(64)
			in.Rlimits = append(in.Rlimits, Rlimit{kind, hard >> rng.IntN(3), hard})
		}
	}
	in.Memory, in.Pids, in.CPUs, in.CPUSet = 0, 0, 0, ""
	if coin() {
		in.Memory, in.Pids = size(), 1+rng.Int64N(100000)
	}
	if coin() {
		in.CPUs = 0.01 + rng.Float64()*64
	}
	if coin() {
		in.CPUSet = fmt.Sprintf("%d,%d-%d", rng.IntN(8), rng.IntN(8), 8+rng.IntN(8))
	}
	return in
}
