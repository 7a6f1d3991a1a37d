package oci

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
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
		{"mount over proc", func(in *Intent) { in.Mounts = []Mount{{Source: "/srv", Path: "/proc/x"}} }, "Mounts="},
		{"mount over a tmpfs", func(in *Intent) { in.Mounts = []Mount{{Source: "/srv", Path: "/var"}} }, "Mounts="},
		{"mount twice", func(in *Intent) { in.Mounts = []Mount{{Source: "/srv", Path: "/m"}, {Source: "/usr", Path: "/m"}} }, "Mounts="},
		{"mount of the host's root", func(in *Intent) { in.Mounts = []Mount{{Source: "/", Path: "/m"}} }, "Mounts="},
		{"mount of root's files", func(in *Intent) { in.Mounts = []Mount{{Source: "/srv", Path: "/m", Owner: &Owner{0, 5}}} }, "Mounts="},
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
