package oci

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// writeBundle makes a bundle folder with an empty root file system.
func writeBundle(t testing.TB, config []byte) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "rootfs"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// foreign reads what a tool wrote; testdata/bundles holds one of each.
func foreign(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "bundles", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// edit sets one place of a config to a JSON value. A place is written like
// process.user.uid; the last name of a list's place is its index, or + for one more.
func edit(t testing.TB, config []byte, place, value string) []byte {
	t.Helper()
	var doc, v any
	if err := json.Unmarshal(config, &doc); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(value), &v); err != nil {
		t.Fatalf("%s: %v", value, err)
	}
	names := strings.Split(place, ".")
	current := doc.(map[string]any)
	for _, name := range names[:len(names)-1] {
		if names[len(names)-1] == "+" && name == names[len(names)-2] {
			list, _ := current[name].([]any)
			current[name] = append(list, v)
			v = nil
			break
		}
		next, ok := current[name].(map[string]any)
		if !ok {
			next = map[string]any{}
			current[name] = next
		}
		current = next
	}
	if last := names[len(names)-1]; last != "+" {
		if v == nil {
			delete(current, last)
		} else {
			current[last] = v
		}
	}
	out, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestReadBundleOfTools(t *testing.T) {
	for _, tool := range []string{"runc", "runc-rootless", "umoci", "umoci-rootless"} {
		t.Run(tool, func(t *testing.T) {
			dir := writeBundle(t, foreign(t, tool))
			got, changes, err := ReadBundle(dir, false)
			if err != nil {
				t.Fatal(err)
			}
			want := Bundle{Root: filepath.Join(dir, "rootfs"), Args: []string{"sh"}, Env: got.Env, Cwd: "/workload", UID: 65532, GID: 65532}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("bundle = %+v, want %+v", got, want)
			}
			if !slices.ContainsFunc(got.Env, func(e string) bool { return strings.HasPrefix(e, "PATH=") }) {
				t.Errorf("environment = %v, want the bundle's PATH", got.Env)
			}
			golden := filepath.Join("testdata", "bundles", tool+".changes")
			text, _ := json.MarshalIndent(changes, "", " ")
			if *update {
				if err := os.WriteFile(golden, append(text, '\n'), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			wanted, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(append(text, '\n'), wanted) {
				t.Errorf("changes differ from %s: got %s", golden, text)
			}
		})
	}
}

func TestReadBundleAsIs(t *testing.T) {
	config := foreign(t, "runc")
	for place, value := range map[string]string{
		"process.cwd":         `"/"`,
		"process.env":         `["HOME=/root","LD_PRELOAD=/x.so","NOVALUE"]`,
		"process.user":        `{"uid":1000,"gid":7,"umask":18,"additionalGids":[4]}`,
		"process.rlimits":     `[{"type":"RLIMIT_NOFILE","soft":64,"hard":128},{"type":"RLIMIT_CORE","soft":9,"hard":9}]`,
		"hostname":            `"box"`,
		"process.terminal":    `true`,
		"linux.resources":     `{"pids":{"limit":5}}`,
		"mounts.+":            `{"destination":"/run/","type":"tmpfs","source":"tmpfs","options":["size=64k"]}`,
		"annotations":         `{"com.example.note":"hello"}`,
		"process.oomScoreAdj": `-1000`,
	} {
		config = edit(t, config, place, value)
	}
	dir := writeBundle(t, config)
	umask := uint32(18)
	want := Bundle{
		Root: filepath.Join(dir, "rootfs"), Args: []string{"sh"}, Env: []string{"HOME=/root", "LD_PRELOAD=/x.so"}, Cwd: "/",
		UID: 1000, GID: 7, Hostname: "box", Umask: &umask, Tmpfs: []Tmpfs{{"/run", 64 << 10}},
		Rlimits: []Rlimit{{"RLIMIT_NOFILE", 64, 128}, {"RLIMIT_CORE", 9, 9}},
	}
	got, changes, err := ReadBundle(dir, true)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("bundle = %+v, want %+v", got, want)
	}
	var fields []string
	for _, c := range changes {
		fields = append(fields, c.Field)
		if c.Why == "" {
			t.Errorf("change of %s says no reason", c.Field)
		}
	}
	for _, field := range []string{
		"process.terminal", "process.env[2]", "process.user.additionalGids", "process.capabilities.bounding", "process.rlimits[1]",
		"process.oomScoreAdj", "mounts[0]", "annotations[com.example.note]", "linux.namespaces", "linux.resources",
	} {
		if !slices.Contains(fields, field) {
			t.Errorf("changes %v do not name %s", fields, field)
		}
	}
	for _, field := range []string{"hostname", "process.cwd", "process.user.uid", "process.user.umask"} {
		if slices.Contains(fields, field) {
			t.Errorf("%s was changed though the bundle is run as it is", field)
		}
	}

	got, changes, err = ReadBundle(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	want = Bundle{Root: want.Root, Args: want.Args, Env: []string{"LD_PRELOAD=/x.so"}, Cwd: "/workload", UID: 65532, GID: 65532}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("bundle in the engine's own way = %+v, want %+v", got, want)
	}
	if len(changes) < 15 {
		t.Errorf("only %d changes said", len(changes))
	}
}

// TestReadBundleRefuses spoils a good bundle in one place each.
func TestReadBundleRefuses(t *testing.T) {
	tests := []struct{ place, value, field string }{
		{"ociVersion", `"2.0.0"`, "ociVersion"},
		{"vm", `{"kernel":{"path":"/x"}}`, "vm"},
		{"windows", `{"layerFolders":["x"]}`, "windows"},
		{"solaris", `{}`, "solaris"},
		{"zos", `{}`, "zos"},
		{"freebsd", `{}`, "freebsd"},
		{"root", `null`, "root.path"},
		{"root.path", `""`, "root.path"},
		{"root.path", `"/"`, "root.path"},
		{"root.path", `"/etc"`, "root.path"},
		{"root.path", `".."`, "root.path"},
		{"root.path", `"rootfs/../../etc"`, "root.path"},
		{"root.path", `"."`, "root.path"},
		{"root.path", `"absent"`, "root.path"},
		{"root.path", `"config.json"`, "root.path"},
		{"root.path", `"root\u0000fs"`, "root.path"},
		{"process", `null`, "process"},
		{"process.args", `[]`, "process.args"},
		{"process.args", `[""]`, "process.args"},
		{"process.args", `["a","b\u0000c"]`, "process.args[1]"},
		{"process.args", `"sh"`, "process.args"},
		{"process.env", `["A=\u0000"]`, "process.env[0]"},
		{"process.commandLine", `"cmd.exe"`, "process.commandLine"},
		{"process.cwd", `"/proc/self/fd/8"`, "process.cwd"},
		{"process.cwd", `"/sys"`, "process.cwd"},
		{"process.cwd", `"/dev/shm"`, "process.cwd"},
		{"process.cwd", `"app"`, "process.cwd"},
		{"process.cwd", `"/app/../proc"`, "process.cwd"},
		{"process.cwd", `""`, "process.cwd"},
		{"process.user.uid", `65536`, "process.user.uid"},
		{"process.user.gid", `4294967295`, "process.user.gid"},
		{"process.user.uid", `4294967296`, "process.user.uid"},
		{"process.user.uid", `-1`, "process.user.uid"},
		{"process.user.username", `"root"`, "process.user.username"},
		{"process.user.umask", `512`, "process.user.umask"},
		{"process.rlimits", `[{"type":"RLIMIT_X","soft":1,"hard":1}]`, "process.rlimits[0].type"},
		{"process.rlimits", `[{"type":"RLIMIT_CPU","soft":2,"hard":1}]`, "process.rlimits[0].soft"},
		{"process.selinuxLabel", `"x"`, "process.selinuxLabel"},
		{"process.scheduler", `{"policy":"SCHED_FIFO"}`, "process.scheduler"},
		{"process.ioPriority", `{"class":"IOPRIO_CLASS_RT","priority":0}`, "process.ioPriority"},
		{"process.execCPUAffinity", `{"initial":"0"}`, "process.execCPUAffinity"},
		{"hooks.prestart", `[{"path":"/bin/sh"}]`, "hooks.prestart"},
		{"hooks.createRuntime", `[{"path":"/bin/sh"}]`, "hooks.createRuntime"},
		{"hooks.createContainer", `[{"path":"/bin/sh"}]`, "hooks.createContainer"},
		{"hooks.startContainer", `[{"path":"/bin/sh"}]`, "hooks.startContainer"},
		{"hooks.poststart", `[{"path":"/bin/sh"}]`, "hooks.poststart"},
		{"HOOKS.Poststop", `[{"path":"/bin/sh"}]`, "hooks.poststop"},
		{"annotations", `{"dev.gvisor.flag.network":"host"}`, "annotations[dev.gvisor.flag.network]"},
		{"annotations", `{"run.oci.handler":"krun"}`, "annotations[run.oci.handler]"},
		{"annotations", `{"org.systemd.property.ExecStopPost":"x"}`, "annotations[org.systemd.property.ExecStopPost]"},
		{"annotations", `{"org.criu.config":"/x"}`, "annotations[org.criu.config]"},
		{"linux", `null`, "linux"},
		{"linux.devices", `[{"path":"/dev/sda","type":"b","major":8,"minor":0}]`, "linux.devices"},
		{"linux.netDevices", `{"eth0":{}}`, "linux.netDevices"},
		{"linux.sysctl", `{"kernel.core_pattern":"|/x"}`, "linux.sysctl"},
		{"linux.mountLabel", `"x"`, "linux.mountLabel"},
		{"linux.intelRdt", `{"closID":"x"}`, "linux.intelRdt"},
		{"linux.memoryPolicy", `{"mode":"MPOL_BIND"}`, "linux.memoryPolicy"},
		{"linux.personality", `{"domain":"LINUX32"}`, "linux.personality"},
		{"linux.timeOffsets", `{"boottime":{"secs":1}}`, "linux.timeOffsets"},
		{"linux.rootfsPropagation", `"shared"`, "linux.rootfsPropagation"},
		{"linux.rootfsPropagation", `"rshared"`, "linux.rootfsPropagation"},
		{"linux.uidMappings", `[` + strings.Repeat(`{"containerID":0,"hostID":0,"size":1},`, 340) + `{}]`, "linux.uidMappings"},
		{"linux.namespaces", `[{"type":"pid","path":"/proc/1/ns/pid"},{"type":"mount"}]`, "linux.namespaces[0].path"},
		{"linux.namespaces", `[{"type":"mount"},{"type":"network"}]`, "linux.namespaces"},
		{"linux.namespaces", `[{"type":"pid"},{"type":"network"}]`, "linux.namespaces"},
		{"linux.namespaces", `[]`, "linux.namespaces"},
		{"linux.namespaces", `[{"type":"pid"},{"type":"mount"},{"type":"host"}]`, "linux.namespaces[2].type"},
		{"linux.namespaces", `[{"type":"pid"},{"type":"mount"},{"type":"pid"}]`, "linux.namespaces[2].type"},
		{"mounts.+", `{"destination":"/mnt","type":"bind","source":"/","options":["rbind"]}`, "mounts[7].source"},
		{"mounts.+", `{"destination":"/mnt","type":"none","source":"/etc","options":["bind","ro"]}`, "mounts[7].source"},
		{"mounts.+", `{"destination":"/mnt","source":"/etc","options":["rbind"]}`, "mounts[7].source"},
		{"mounts.+", `{"destination":"/etc/hosts","type":"bind","source":"/etc/shadow"}`, "mounts[7].source"},
		{"mounts.+", `{"destination":"/proc","type":"bind","source":"/proc"}`, "mounts[7].source"},
		{"mounts.+", `{"destination":"/sys/../proc","type":"tmpfs"}`, "mounts[7].destination"},
		{"mounts.+", `{"destination":"/proc","type":"tmpfs","source":"tmpfs"}`, "mounts[7].destination"},
		{"mounts.+", `{"destination":"/proc/sys","type":"tmpfs","source":"tmpfs"}`, "mounts[7].destination"},
		{"mounts.+", `{"destination":"/sys/kernel/debug","type":"debugfs"}`, "mounts[7].destination"},
		{"mounts.+", `{"destination":"/dev/pts/x","type":"tmpfs"}`, "mounts[7].destination"},
		{"mounts.+", `{"destination":"/mnt","type":"proc","source":"proc"}`, "mounts[7].type"},
		{"mounts.+", `{"destination":"/mnt","type":"ext4","source":"/dev/sda1"}`, "mounts[7].type"},
		{"mounts.+", `{"destination":"/mnt","type":"overlay","options":["lowerdir=/etc"]}`, "mounts[7].type"},
		{"mounts.+", `{"destination":"mnt","type":"tmpfs"}`, "mounts[7].destination"},
		{"mounts.+", `{"destination":"/","type":"tmpfs"}`, "mounts[7].destination"},
		{"mounts.+", `{"destination":"/.engine/x","type":"tmpfs"}`, "mounts[7].destination"},
		{"mounts.+", `{"destination":"/x","type":"tmpfs","options":["rshared"]}`, "mounts[7].options"},
		{"mounts.+", `{"destination":"/x","type":"tmpfs","options":["idmap"]}`, "mounts[7].options"},
		{"mounts.+", `{"destination":"/x","type":"tmpfs","options":["size=lots"]}`, "mounts[7].options"},
		{"mounts.+", `{"destination":"/x","type":"tmpfs","uidMappings":[{"containerID":0,"hostID":0,"size":1}]}`, "mounts[7].uidMappings"},
		{"mounts", `[` + strings.Repeat(`{"destination":"/x","type":"tmpfs"},`, 256) + `{}]`, "mounts"},
	}
	good := foreign(t, "runc")
	for _, tt := range tests {
		t.Run(tt.place+"="+text(tt.value), func(t *testing.T) {
			_, _, err := ReadBundle(writeBundle(t, edit(t, good, tt.place, tt.value)), true)
			var refusal *BundleError
			if !errors.As(err, &refusal) {
				t.Fatalf("ReadBundle = %v, want it refused for %s", err, tt.field)
			}
			if refusal.Field != tt.field || refusal.Why == "" || refusal.Fix == "" {
				t.Errorf("refused for %+v, want the field %s, a reason and a cure", refusal, tt.field)
			}
		})
	}
}

func TestReadBundleRefusesFiles(t *testing.T) {
	good := foreign(t, "runc")
	tests := []struct {
		name, field string
		spoil       func(dir string) error
	}{
		{"no config", "config.json", func(dir string) error { return os.Remove(filepath.Join(dir, "config.json")) }},
		{"config is a link", "config.json", func(dir string) error {
			return errors.Join(os.Rename(filepath.Join(dir, "config.json"), filepath.Join(dir, "other")), os.Symlink("other", filepath.Join(dir, "config.json")))
		}},
		{"config is a FIFO", "config.json", func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, "config.json")), syscall.Mkfifo(filepath.Join(dir, "config.json"), 0o600))
		}},
		{"config too long", "config.json", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "config.json"), slices.Concat(good, bytes.Repeat([]byte(" "), maxConfig)), 0o600)
		}},
		{"config too deep", "config.json", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"x":`+strings.Repeat("[", 1<<20)), 0o600)
		}},
		{"two documents", "config.json", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "config.json"), slices.Concat(good, good), 0o600)
		}},
		{"not an object", "config.json", func(dir string) error { return os.WriteFile(filepath.Join(dir, "config.json"), []byte(`[]`), 0o600) }},
		{"root is a link", "root.path", func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, "rootfs")), os.Symlink("/etc", filepath.Join(dir, "rootfs")))
		}},
		{"root is a file", "root.path", func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, "rootfs")), os.WriteFile(filepath.Join(dir, "rootfs"), nil, 0o600))
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := writeBundle(t, good)
			if err := tt.spoil(dir); err != nil {
				t.Fatal(err)
			}
			_, _, err := ReadBundle(dir, false)
			var refusal *BundleError
			if !errors.As(err, &refusal) || refusal.Field != tt.field {
				t.Errorf("ReadBundle = %v, want it refused for %s", err, tt.field)
			}
		})
	}
}

func TestReadBundleTakesAbsoluteRoot(t *testing.T) {
	dir := writeBundle(t, foreign(t, "runc"))
	root := filepath.Join(dir, "rootfs")
	path, _ := json.Marshal(root)
	if err := os.WriteFile(filepath.Join(dir, "config.json"), edit(t, foreign(t, "runc"), "root.path", string(path)), 0o600); err != nil {
		t.Fatal(err)
	}
	got, _, err := ReadBundle(dir, false)
	if err != nil || got.Root != root {
		t.Errorf("root = %q, %v, want %q", got.Root, err, root)
	}
}

// FuzzReadBundle holds what is accepted against what Render demands: a bundle that
// is read can be rendered, for every runtime.
func FuzzReadBundle(f *testing.F) {
	for _, tool := range []string{"runc", "runc-rootless", "umoci", "umoci-rootless"} {
		f.Add(foreign(f, tool), true)
		f.Add(foreign(f, tool), false)
	}
	f.Add(edit(f, foreign(f, "runc"), "mounts.+", `{"destination":"/run","type":"tmpfs","options":["size=1m"]}`), true)
	f.Add(edit(f, foreign(f, "runc"), "process.rlimits", `[{"type":"RLIMIT_CPU","soft":1,"hard":2}]`), true)
	f.Fuzz(func(t *testing.T, config []byte, asIs bool) {
		r := reader{asIs: asIs}
		if err := r.read(config); err != nil {
			var refusal *BundleError
			if !errors.As(err, &refusal) || refusal.Field == "" || refusal.Fix == "" {
				t.Errorf("refusal %v names no field or cure", err)
			}
			return
		}
		in := plain()
		in.Args, in.Env, in.Cwd, in.UID, in.GID, in.Umask = r.bundle.Args, r.bundle.Env, r.bundle.Cwd, r.bundle.UID, r.bundle.GID, r.bundle.Umask
		in.Hostname, in.Rlimits, in.Tmpfs, in.SecretFiles = r.bundle.Hostname, r.bundle.Rlimits, nil, false
		for _, m := range r.bundle.Tmpfs {
			in.Tmpfs = append(in.Tmpfs, Tmpfs{m.Path, max(m.Size, 1)})
		}
		for _, rt := range Runtimes() {
			spec, err := Render(rt, in)
			if err != nil {
				t.Fatalf("bundle was read and cannot be rendered for %s: %v", rt, err)
			}
			if broken := brokenPromises(rt, in, spec); len(broken) > 0 {
				t.Error(strings.Join(broken, "\n"))
			}
		}
	})
}
