package oci

import (
	"bytes"
	"encoding/json"
	"flag"
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

var update = flag.Bool("update", false, "write the golden files")

// plain is an intent as the engine makes it.
func plain() Intent {
	return Intent{
		ID:            "abcdefghij012345",
		Root:          "/run/engine/abcdefghij012345/rootfs",
		Args:          []string{"/.engine/init"},
		Env:           []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/workload"},
		Cwd:           "/workload",
		UID:           65532,
		GID:           65532,
		HostID:        1879048192,
		NetNS:         "/proc/4242/fd/7",
		CgroupsPath:   "/engine/run/abcdefghij012345/ctr",
		TmpSize:       64 << 20,
		WorkspaceSize: 256 << 20,
		ShmSize:       32 << 20,
		SecretFiles:   true,
		Tmpfs:         []Tmpfs{{"/var/cache", 1 << 20}, {"/run", 1 << 20}},
		Binds: []Bind{
			{"/run/engine/abcdefghij012345/proc/meminfo", "/proc/meminfo"},
			{"/run/engine/abcdefghij012345/proc/cpuinfo", "/proc/cpuinfo"},
		},
		Memory:  512 << 20,
		CPUs:    1.5,
		Pids:    256,
		CPUSet:  "0-1",
		Rlimits: []Rlimit{{"RLIMIT_NOFILE", 256, 8192}, {"RLIMIT_CPU", 10, 20}},
	}
}

func TestRenderGolden(t *testing.T) {
	for _, rt := range Runtimes() {
		t.Run(rt, func(t *testing.T) {
			spec, err := Render(rt, plain())
			if err != nil {
				t.Fatal(err)
			}
			got, err := Marshal(spec)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", rt+".json")
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("spec differs from %s; run go test ./oci -update and read the difference\ngot %s", file, got)
			}
		})
	}
}

// TestRenderKeepsBaseline renders ten thousand intents for every runtime. Each
// spec is valid by the runtime-spec's own schema and as hard as promised.
func TestRenderKeepsBaseline(t *testing.T) {
	schema := specSchema(t)
	for _, rt := range Runtimes() {
		t.Run(rt, func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(1, 2))
			for range 10000 {
				in := randomIntent(rng)
				before := fmt.Sprintf("%#v", in)
				spec, err := Render(rt, in)
				if err != nil {
					t.Fatalf("valid intent refused: %v\n%s", err, before)
				}
				if after := fmt.Sprintf("%#v", in); after != before {
					t.Fatalf("Render changed its argument\nfrom %s\nto   %s", before, after)
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
				if broken := brokenPromises(rt, in, spec, data); len(broken) > 0 {
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
func brokenPromises(rt string, in Intent, s *specs.Spec, data []byte) []string {
	var broken []string
	promise := func(kept bool, format string, args ...any) {
		if !kept {
			broken = append(broken, fmt.Sprintf(format, args...))
		}
	}
	p, l := s.Process, s.Linux
	var raw struct {
		Process struct{ Capabilities map[string][]string }
	}
	if err := json.Unmarshal(data, &raw); err != nil {
		return []string{err.Error()}
	}
	for _, set := range []string{"bounding", "effective", "inheritable", "permitted", "ambient"} {
		caps, there := raw.Process.Capabilities[set]
		promise(there && caps != nil && len(caps) == 0, "capability set %s = %v, want it there and empty", set, caps)
	}
	promise(p.NoNewPrivileges, "noNewPrivileges is off")
	promise(!p.Terminal, "terminal is on")
	promise(p.User.UID != 0 && p.User.GID != 0 && len(p.User.AdditionalGids) == 0, "user = %+v, want no root and no further group", p.User)
	promise(in.Umask != nil || *p.User.Umask == 0o077, "umask = %o", *p.User.Umask)
	promise(*p.OOMScoreAdj == 500, "oomScoreAdj = %d", *p.OOMScoreAdj)
	promise(p.SelinuxLabel == "" && p.ApparmorProfile == "" && p.Scheduler == nil && p.IOPriority == nil && p.ExecCPUAffinity == nil, "process asks for more than it may")
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
	return slices.Concat(broken, brokenMounts(rt, s), brokenNamespaces(rt, in, s), brokenLimits(rt, in, s))
}

func brokenMounts(rt string, s *specs.Spec) []string {
	var broken []string
	seen := map[string]bool{}
	for _, m := range s.Mounts {
		has := func(o string) bool { return slices.Contains(m.Options, o) }
		for _, o := range m.Options {
			if slices.Contains([]string{"suid", "dev", "exec", "rw", "rbind", "shared", "rshared", "slave", "rslave", "idmap"}, o) {
				broken = append(broken, fmt.Sprintf("mount %s has option %s", m.Destination, o))
			}
		}
		// Devices of /dev are mounts of their own.
		if !has("nosuid") || !has("nodev") && m.Destination != "/dev" {
			broken = append(broken, fmt.Sprintf("mount %s = %v, want nosuid and nodev", m.Destination, m.Options))
		}
		switch m.Type {
		case "bind":
			if !has("ro") || !has("noexec") {
				broken = append(broken, fmt.Sprintf("bind on %s = %v, want ro and noexec", m.Destination, m.Options))
			}
		case "tmpfs":
			if !slices.ContainsFunc(m.Options, func(o string) bool { return strings.HasPrefix(o, "size=") && o != "size=0" }) {
				broken = append(broken, fmt.Sprintf("tmpfs on %s = %v, want a size", m.Destination, m.Options))
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
	case "runc", "crun", "embedded":
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
	if len(res.Devices) != 7 {
		broken = append(broken, fmt.Sprintf("%d device rules, want 7", len(res.Devices)))
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
	in.SecretFiles, in.Seccomp = coin(), coin()
	in.Args, in.Env = []string{"/" + word()}, nil
	for range rng.IntN(5) {
		in.Args = append(in.Args, word()+" \"\x01\xff<é"+word())
		in.Env = append(in.Env, word()+"="+word()+"\n$(x)")
	}
	if coin() {
		in.Cwd = "/" + word() + "/" + word()
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

func TestRenderRefuses(t *testing.T) {
	tests := []struct {
		name   string
		change func(*Intent)
		want   string // in the message
	}{
		{"id", func(in *Intent) { in.ID = "../../etc" }, "ID="},
		{"relative root", func(in *Intent) { in.Root = "rootfs" }, "Root="},
		{"root with dots", func(in *Intent) { in.Root = "/run/../etc" }, "Root="},
		{"hostname", func(in *Intent) { in.Hostname = "a b" }, "Hostname="},
		{"netns", func(in *Intent) { in.NetNS = "ns" }, "NetNS="},
		{"systemd cgroup", func(in *Intent) { in.CgroupsPath = "system.slice:runc:x" }, "CgroupsPath="},
		{"cgroup above", func(in *Intent) { in.CgroupsPath = "/engine/../x" }, "CgroupsPath="},
		{"no command", func(in *Intent) { in.Args = nil }, "Args="},
		{"empty command", func(in *Intent) { in.Args = []string{""} }, "Args="},
		{"NUL", func(in *Intent) { in.Args = []string{"a\x00b"} }, "NUL"},
		{"environment", func(in *Intent) { in.Env = []string{"=x"} }, "Env="},
		{"cwd in proc", func(in *Intent) { in.Cwd = "/proc/self/fd/7" }, "Cwd="},
		{"relative cwd", func(in *Intent) { in.Cwd = "a" }, "Cwd="},
		{"umask", func(in *Intent) { u := uint32(0o1000); in.Umask = &u }, "Umask="},
		{"root user", func(in *Intent) { in.UID = 0 }, "UID="},
		{"root group", func(in *Intent) { in.GID = 0 }, "GID="},
		{"user outside the block", func(in *Intent) { in.UID = 65536 }, "UID="},
		{"host's own users", func(in *Intent) { in.HostID = 0 }, "HostID="},
		{"block past 2^31", func(in *Intent) { in.HostID = 1<<31 - 1 }, "HostID="},
		{"endless tmpfs", func(in *Intent) { in.TmpSize = 0 }, "TmpSize="},
		{"negative memory", func(in *Intent) { in.Memory = -1 }, "Memory"},
		{"tiny cpu", func(in *Intent) { in.CPUs = 0.001 }, "CPUs="},
		{"cpuset", func(in *Intent) { in.CPUSet = "0;1" }, "CPUSet="},
		{"unknown rlimit", func(in *Intent) { in.Rlimits = []Rlimit{{"RLIMIT_X", 0, 0}} }, "Rlimits="},
		{"soft above hard", func(in *Intent) { in.Rlimits = []Rlimit{{"RLIMIT_CPU", 2, 1}} }, "Rlimits="},
		{"tmpfs over proc", func(in *Intent) { in.Tmpfs = []Tmpfs{{"/proc/sys", 1}} }, "Tmpfs="},
		{"tmpfs over the root", func(in *Intent) { in.Tmpfs = []Tmpfs{{"/", 1}} }, "Tmpfs="},
		{"tmpfs over init", func(in *Intent) { in.Tmpfs = []Tmpfs{{"/.engine", 1}} }, "Tmpfs="},
		{"tmpfs twice", func(in *Intent) { in.Tmpfs = []Tmpfs{{"/tmp", 1}} }, "Tmpfs="},
		{"bind over proc", func(in *Intent) { in.Binds = []Bind{{"/x", "/proc/self/status"}} }, "Binds="},
		{"bind over dev", func(in *Intent) { in.Binds = []Bind{{"/x", "/dev/null"}} }, "Binds="},
		{"relative bind", func(in *Intent) { in.Binds = []Bind{{"x", "/etc/x"}} }, "Binds="},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := plain()
			tt.change(&in)
			if _, err := Render("runc", in); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Render = %v, want an error that names %s", err, tt.want)
			}
		})
	}
	if _, err := Render("docker", plain()); err == nil {
		t.Error("Render for an unknown runtime succeeded")
	}
}

func TestWriteBundle(t *testing.T) {
	dir := t.TempDir()
	spec, err := Render("bundle", plain())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := WriteBundle(dir, spec); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 1 || entries[0].Name() != "config.json" {
		t.Errorf("folder holds %v, want config.json alone", entries)
	}
	info, err := entries[0].Info()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := info.Mode(), os.FileMode(0o600); got != want {
		t.Errorf("mode = %v, want %v", got, want)
	}
	var back specs.Spec
	data, _ := os.ReadFile(filepath.Join(dir, "config.json"))
	if err := json.Unmarshal(data, &back); err != nil || back.Root.Path != "rootfs" || back.Linux.CgroupsPath != "" {
		t.Errorf("bundle = %+v, %v, want root rootfs and no cgroup", back, err)
	}
	if err := WriteBundle(filepath.Join(dir, "absent"), spec); err == nil {
		t.Error("WriteBundle into an absent folder succeeded")
	}
}
