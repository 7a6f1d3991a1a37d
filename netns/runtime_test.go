package netns

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// probe is run inside of a sandbox. It prints what each of its arguments, such as
// tcp/198.18.0.7:443, answers; sent/ADDRESS sends there.
func probe() error {
	for _, arg := range strings.Fields(os.Getenv("NETNS_TEST_PROBES")) {
		network, address, _ := strings.Cut(arg, "/")
		start := time.Now()
		var got string
		var err error
		if network == "sent" {
			got, err = sendHere(address)
		} else {
			got, err = talkHere(network, address)
		}
		switch {
		case errors.Is(err, unix.ECONNREFUSED):
			got = "refused"
		case errors.Is(err, unix.ENETUNREACH):
			got = "unreachable"
		case err != nil:
			got = err.Error()
		}
		if took := time.Since(start); took > time.Second {
			got += fmt.Sprintf(" after %v", took)
		}
		fmt.Printf("%s %s\n", arg, got)
	}
	return nil
}

const probeBytes = 16 << 20

func sendHere(address string) (string, error) {
	c, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(4 * patience))
	if _, err := c.Read(make([]byte, 256)); err != nil { // whom it is for
		return "", err
	}
	go c.Write(make([]byte, probeBytes))
	buf := make([]byte, 64<<10)
	for n := 0; n < probeBytes; {
		m, err := c.Read(buf)
		if err != nil {
			return "", err
		}
		n += m
	}
	return "came back", nil
}

// TestUnderRuntimes runs a program under each runtime that is there, joined to a
// gateway by its descriptor.
func TestUnderRuntimes(t *testing.T) {
	requireRoot(t)
	tests := []struct {
		name string
		args []string
	}{
		{"runc", nil},
		{"crun", nil},
		{"runsc", []string{"--ignore-cgroups", "--network=sandbox", "--platform=systrap"}},
	}
	want := []string{
		"tcp/198.18.0.7:443 198.18.0.7:443",
		"tcp/203.0.113.9:443 203.0.113.9:443",
		"tcp/9.9.9.9:8443 9.9.9.9:8443",
		"tcp/100.64.0.1:53 100.64.0.1:53",
		"udp/203.0.113.9:1053 hello for 203.0.113.9:1053",
		"udp/100.64.0.1:53 hello for 100.64.0.1:53",
		"tcp/198.18.0.7:22 refused",
		"tcp/9.9.9.9:80 refused",
		"tcp/169.254.169.254:80 refused",
		"tcp/10.0.0.1:443 refused",
		"udp/9.9.9.9:9 refused",
		"udp/169.254.169.254:53 refused",
		"tcp/[2001:db8::1]:443 unreachable",
		"sent/198.18.0.7:443 came back",
	}
	var probes []string
	for _, w := range want {
		p, _, _ := strings.Cut(w, " ")
		probes = append(probes, p)
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			binary := runtimeBinary(t, tt.name)
			g := newGateway(t, GatewayConfig{Policy: mixed, Limits: Limits{Connections: 64}})
			for _, address := range []string{"0.0.0.0:1", "0.0.0.0:53"} {
				echo(t, g, address)
				echoPackets(t, g, address)
			}
			fd := packetSocket(t, g.own, unix.ETH_P_ALL, gatewayIndex)
			out := runProbe(t, g, binary, tt.args, probes)
			if got := strings.TrimSpace(out); got != strings.Join(want, "\n") {
				t.Errorf("the sandbox saw\n%s\nwant\n%s", got, strings.Join(want, "\n"))
			}
			var tx, rx uint64
			packets(fd, func(b []byte, outgoing bool) {
				if outgoing {
					rx += uint64(len(b)) - 14
				} else {
					tx += uint64(len(b)) - 14
				}
			})
			stats, err := unix.GetsockoptTpacketStats(fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
			if err != nil {
				t.Fatal(err)
			}
			c, err := g.Counters()
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%+v; captured: sent %d, received %d", c, tx, rx)
			if stats.Drops == 0 && (!near(c.Tx.Bytes, tx) || !near(c.Rx.Bytes, rx)) || c.Tx.Bytes < probeBytes || c.Rx.Bytes < probeBytes {
				t.Errorf("counted %+v, captured %d and %d", c, tx, rx)
			}
		})
	}
}

// runtimeBinary finds a runtime in $ENGINE_BIN, in the module's bin, or in PATH.
func runtimeBinary(t *testing.T, name string) string {
	t.Helper()
	var fs unix.Statfs_t
	if err := unix.Statfs("/sys/fs/cgroup", &fs); err != nil || fs.Type != unix.CGROUP2_SUPER_MAGIC {
		t.Skip("needs pure cgroup v2")
	}
	for _, dir := range []string{os.Getenv("ENGINE_BIN"), "../bin"} {
		path, err := filepath.Abs(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(path); dir != "" && err == nil {
			return path
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skip("needs " + name)
	}
	return path
}

// runProbe runs this binary as probe in a sandbox that has the host's /usr.
func runProbe(t *testing.T, g *Gateway, runtime string, args, probes []string) string {
	t.Helper()
	dir := t.TempDir()
	t.Cleanup(func() { unix.Unmount(filepath.Join(dir, "state", "null-netns"), unix.MNT_DETACH) }) // runsc's
	rootfs := filepath.Join(dir, "rootfs")
	for _, d := range []string{"proc", "dev", "usr", "bin"} {
		if err := os.MkdirAll(filepath.Join(rootfs, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range []string{"lib", "lib64"} {
		if err := os.Symlink("usr/"+l, filepath.Join(rootfs, l)); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	type object = map[string]any
	spec := object{
		"ociVersion": "1.0.2",
		"root":       object{"path": rootfs, "readonly": true},
		"process": object{
			"args": []string{"/bin/probe"}, "cwd": "/", "user": object{"uid": 0, "gid": 0}, "noNewPrivileges": true,
			"env": []string{childEnv + "=probe", "NETNS_TEST_PROBES=" + strings.Join(probes, " ")},
		},
		"mounts": []object{
			{"destination": "/proc", "type": "proc", "source": "proc"},
			{"destination": "/usr", "type": "bind", "source": "/usr", "options": []string{"rbind", "ro"}},
			{"destination": "/bin/probe", "type": "bind", "source": self, "options": []string{"bind", "ro"}},
		},
		"linux": object{
			"cgroupsPath": fmt.Sprintf("/netns-test-%d", os.Getpid()),
			"namespaces": []object{
				{"type": "pid"},
				{"type": "mount"},
				{"type": "ipc"},
				{"type": "uts"},
				{"type": "network", "path": fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), g.Sandbox().Fd())},
			},
		},
	}
	data, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), data, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(rootfs, "bin", "probe"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	args = append([]string{"--root", filepath.Join(dir, "state")}, args...)
	args = append(args, "run", "--bundle", dir, fmt.Sprintf("netns-test-%d", os.Getpid()))
	out, err := exec.Command(runtime, args...).Output()
	if err != nil {
		var e *exec.ExitError
		if errors.As(err, &e) {
			t.Fatalf("%s: %v: %s%s", runtime, err, out, e.Stderr)
		}
		t.Fatal(err)
	}
	return string(out)
}
