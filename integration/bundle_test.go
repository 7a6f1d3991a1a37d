package integration

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/direct-oci/engine/integration/testenv"
)

// spec is a bundle's config.json while a test changes it.
type spec map[string]any

// at returns the object at a path of names, which it makes where it is not there.
func (s spec) at(path ...string) map[string]any {
	m := map[string]any(s)
	for _, name := range path {
		next, ok := m[name].(map[string]any)
		if !ok {
			next = map[string]any{}
			m[name] = next
		}
		m = next
	}
	return m
}

func (s spec) addMount(destination, kind, source string, options ...string) {
	list, _ := s["mounts"].([]any)
	s["mounts"] = append(list, map[string]any{"destination": destination, "type": kind, "source": source, "options": options})
}

// newBundle makes a bundle with runc's own spec, changed by edit.
func newBundle(t *testing.T, edit func(s spec)) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o755))
	cmd := exec.Command(testenv.Binary(t, "runc"), "spec")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("runc spec: %v: %s", err, out)
	}
	must(t, os.Mkdir(dir+"/rootfs", 0o755))
	must(t, copyFile(root+"/probe", dir+"/rootfs/probe", 0o755))
	data, err := os.ReadFile(dir + "/config.json")
	must(t, err)
	s := spec{}
	must(t, json.Unmarshal(data, &s))
	s.at("process")["args"] = []string{"/probe", "posture"}
	edit(s)
	data, err = json.Marshal(s)
	must(t, err)
	must(t, os.WriteFile(dir+"/config.json", data, 0o644))
	return dir
}

func execArgs(flags ...string) []string {
	args := []string{"exec", "--json"}
	if !controlled() {
		args = append(args, "--best-effort-limits")
	}
	return append(args, flags...)
}

// umoci adds to runc's spec what umoci writes into its bundles.
func umoci(s spec) {
	s["annotations"] = map[string]string{"org.opencontainers.image.os": "linux", "org.opencontainers.image.ref.name": "latest"}
	s["hostname"] = "umoci-default"
	s.at("process")["rlimits"] = []map[string]any{{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}}
	s.addMount("/etc/resolv.conf", "none", "/etc/resolv.conf", "bind", "ro")
	s.addMount("/run", "tmpfs", "tmpfs", "nosuid", "size=65536k")
	s.at("linux")["uidMappings"] = []map[string]any{{"containerID": 0, "hostID": 1000, "size": 1}}
}

// TestExecBundle proves that bundles of other tools run in the same sandbox as any
// program, and that what is changed is told.
func TestExecBundle(t *testing.T) {
	begin(t)
	plain := newBundle(t, func(spec) {})
	other := newBundle(t, umoci)
	eachRuntime(t, func(t *testing.T, runtime string) {
		for _, dir := range []string{plain, other} {
			r := decode(t, testenv.Exec(t, execArgs("--runtime", runtime, dir)...))
			r.want(t, "exited", 0)
			in := inside{runtime: runtime, report: parse(r.Stdout)}
			checkIdentity(t, in)
			checkDescriptors(t, in)
			checkRlimits(t, in)
			checkMounts(t, in)
			for _, words := range []string{"process.terminal", "process.user.uid", "process.capabilities.bounding", "instead of"} {
				if !strings.Contains(r.call.Stderr, words) {
					t.Errorf("%s\ndoes not tell of %s", r, words)
				}
			}
			if !strings.Contains(strings.Join(in.report["env"], " "), "TERM=xterm") {
				t.Errorf("environment = %q, want the bundle's TERM", in.report["env"])
			}
		}
	})
}

// TestExecAsIs proves that --as-is keeps what takes no guarantee away, and no more.
func TestExecAsIs(t *testing.T) {
	begin(t)
	dir := newBundle(t, func(s spec) {
		umoci(s)
		s.at("process", "user")["uid"], s.at("process", "user")["gid"] = 1234, 4321
		s["hostname"] = "own-name"
		s.addMount("/scratch", "tmpfs", "tmpfs", "size=1048576")
	})
	absent := decode(t, testenv.Exec(t, execArgs("--runtime", "embedded", "--as-is", dir)...))
	absent.want(t, "null", 125)
	if e := absent.Error; e.Class != "request" || e.Kind != "bad_mount" || !strings.Contains(e.Message, "/scratch") {
		t.Errorf("error = %+v, want the mount refused whose place the root does not have", *e)
	}
	must(t, os.Mkdir(dir+"/rootfs/scratch", 0o755))
	r := decode(t, testenv.Exec(t, execArgs("--runtime", "embedded", "--as-is", dir)...))
	r.want(t, "exited", 0)
	in := inside{runtime: "embedded", report: parse(r.Stdout)}
	for key, want := range map[string]string{"uid": "1234 1234", "gid": "4321 4321", "hostname": "own-name"} {
		same(t, key, in.report[key], []string{want})
	}
	if got := in.status("CapBnd"); got != "0000000000000000" {
		t.Errorf("CapBnd = %s, want none, whatever the bundle says", got)
	}
	if mounts := strings.Join(in.report["mount"], "\n"); !strings.Contains(mounts, " /scratch ") || !strings.Contains(mounts, "size=1024k") {
		t.Errorf("mounts are\n%s\nwant /scratch with its size", mounts)
	}
	if limits := in.report["rlimit"]; limits[1] != "nofile 1024 1024" {
		t.Errorf("rlimits = %q, want the bundle's nofile", limits)
	}
}

// TestExecRefuses proves that a bundle which reaches for the host, or gives orders to
// the runtime, is refused with the name of the field.
func TestExecRefuses(t *testing.T) {
	begin(t)
	hook := []map[string]any{{"path": "/bin/sh", "args": []string{"sh", "-c", "touch /tmp/hooked"}}}
	tests := []struct {
		field string
		edit  func(s spec)
	}{
		{"mounts[7].destination", func(s spec) { s.addMount("/proc", "tmpfs", "tmpfs") }},
		{"mounts[7].destination", func(s spec) { s.addMount("/proc/sys", "tmpfs", "tmpfs") }},
		{"mounts[7].destination", func(s spec) { s.addMount("/workload/../../etc", "tmpfs", "tmpfs") }},
		{"mounts[7].source", func(s spec) { s.addMount("/host", "bind", "/", "rbind", "rw") }},
		{"mounts[7].source", func(s spec) { s.addMount("/host", "none", "/etc", "bind") }},
		{"mounts[7].source", func(s spec) { s.addMount("/etc/resolv.conf", "bind", "/etc/shadow", "bind") }},
		{"mounts[7].type", func(s spec) { s.addMount("/data", "ext4", "/dev/vda") }},
		{"mounts[7].type", func(s spec) { s.addMount("/data", "overlay", "overlay", "lowerdir=/") }},
		{"mounts[7].options", func(s spec) { s.addMount("/data", "tmpfs", "tmpfs", "rshared") }},
		{"hooks.prestart", func(s spec) { s.at("hooks")["prestart"] = hook }},
		{"hooks.createRuntime", func(s spec) { s.at("hooks")["createRuntime"] = hook }},
		{"hooks.poststop", func(s spec) { s.at("hooks")["poststop"] = hook }},
		{"linux.devices", func(s spec) {
			s.at("linux")["devices"] = []map[string]any{{"path": "/dev/mem", "type": "c", "major": 1, "minor": 1}}
		}},
		{"linux.sysctl", func(s spec) { s.at("linux")["sysctl"] = map[string]string{"kernel.core_pattern": "|/bin/sh"} }},
		{"linux.namespaces[0].path", func(s spec) {
			s.at("linux")["namespaces"] = []map[string]string{{"type": "pid", "path": "/proc/1/ns/pid"}, {"type": "mount"}}
		}},
		{"linux.namespaces", func(s spec) { s.at("linux")["namespaces"] = []map[string]string{{"type": "mount"}} }},
		{"annotations[run.oci.hooks.stderr]", func(s spec) { s.at("annotations")["run.oci.hooks.stderr"] = "/etc/passwd" }},
		{"annotations[dev.gvisor.flag.host-uds]", func(s spec) { s.at("annotations")["dev.gvisor.flag.host-uds"] = "all" }},
		{"annotations[org.systemd.property.ExecStart]", func(s spec) { s.at("annotations")["org.systemd.property.ExecStart"] = "x" }},
		{"process.cwd", func(s spec) { s.at("process")["cwd"] = "/proc/self/fd/7" }},
		{"process.cwd", func(s spec) { s.at("process")["cwd"] = "/app/../proc/self" }},
		{"process.args", func(s spec) { s.at("process")["args"] = []string{} }},
		{"process.user.uid", func(s spec) { s.at("process", "user")["uid"] = 65536 }},
		{"process.selinuxLabel", func(s spec) { s.at("process")["selinuxLabel"] = "system_u:system_r:spc_t:s0" }},
		{"root.path", func(s spec) { s.at("root")["path"] = "/" }},
		{"root.path", func(s spec) { s.at("root")["path"] = "/etc" }},
		{"root.path", func(s spec) { s.at("root")["path"] = "../../.." }},
		{"ociVersion", func(s spec) { s["ociVersion"] = "2.0.0" }},
		{"windows", func(s spec) { s.at("windows")["layerFolders"] = []string{"C:"} }},
	}
	for _, tt := range tests {
		call := testenv.Exec(t, execArgs("--runtime", "embedded", "--as-is", newBundle(t, tt.edit))...)
		r := decode(t, call)
		r.want(t, "null", 125)
		if e := r.Error; e.Class != "request" || e.Kind != "bad_bundle" || !strings.Contains(e.Message, tt.field) || e.Fix == "" {
			t.Errorf("error = %+v, want class request, kind bad_bundle, the field %s and a fix", *e, tt.field)
		}
	}
	link := newBundle(t, func(spec) {})
	must(t, os.RemoveAll(link+"/rootfs"))
	must(t, os.Symlink("/", link+"/rootfs"))
	for _, dir := range []string{link, t.TempDir(), "/nowhere"} {
		r := decode(t, testenv.Exec(t, execArgs("--runtime", "embedded", dir)...))
		if r.call.Status != 125 || r.Error == nil || r.Reason != nil {
			t.Errorf("%s\nwant a refusal", r)
		}
	}
	if fileExists("/tmp/hooked") {
		t.Error("a hook of a bundle ran")
	}
}

// TestBundleRunsElsewhere proves that the bundle which the engine writes is one that
// runc runs, in a sandbox like the engine's own, behind the same filter.
func TestBundleRunsElsewhere(t *testing.T) {
	begin(t)
	requireLimits(t)
	dir := filepath.Join(t.TempDir(), "bundle")
	must(t, os.Chmod(filepath.Dir(dir), 0o755))
	must(t, os.Chmod(filepath.Dir(filepath.Dir(dir)), 0o755))
	args := append([]string{"bundle", "-o", dir}, runArgs("embedded", nil, "/probe", "posture", "+", "syscalls")[3:]...)
	if call := testenv.Exec(t, args...); call.Status != 0 {
		t.Fatal(call)
	}
	if call := testenv.Exec(t, args...); call.Status != 125 {
		t.Errorf("%s\nwant a bundle that exists refused", call)
	}
	state := t.TempDir()
	cmd := exec.Command(testenv.Binary(t, "runc"), "--root", state, "run", "--bundle", dir, "suite")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("runc run: %v: %s", err, cmd.Stderr)
	}
	parts := sections(string(out))
	in := inside{runtime: "runc", bare: true, sections: parts, report: parse(parts["posture"])}
	checkIdentity(t, in)
	checkDescriptors(t, in)
	checkRlimits(t, in)
	checkSyscalls(t, in)
	same(t, "network interfaces", in.report["link"], []string{"lo up"})
	if env := strings.Join(in.report["env"], " "); env != strings.Join(environment, " ") {
		t.Errorf("environment = %q, want the engine's", env)
	}
}
