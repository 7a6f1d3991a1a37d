package network

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/integration/testenv"
)

// forBenchmarks skips a benchmark that nobody asked for.
func forBenchmarks(b *testing.B) *bed {
	b.Helper()
	if os.Getenv("ENGINE_NETWORK") != "bench" {
		b.Skip("takes long, as root: run it with make bench-network")
	}
	bed := newBed(b)
	bed.world.sniffer.close(b) // it would take its share of the processors
	return bed
}

func median(list []float64) float64 {
	list = slices.Sorted(slices.Values(list))
	return list[len(list)/2]
}

// BenchmarkSetUp is the network's part of an embedded run, with a gateway and without,
// in turn.
func BenchmarkSetUp(b *testing.B) {
	bed := forBenchmarks(b)
	ways := map[string][]string{"none": nil, "names": {"--allow", "ok.test"}, "cidr": {"--allow-cidr", "203.0.113.0/24:443"}, "internet": {"--network", "internet"}}
	phase, whole := map[string][]float64{}, map[string][]float64{}
	for b.Loop() {
		for range 40 {
			for name, flags := range ways {
				r := bed.startProgram("embedded", flags, "/bin/busybox", "true").end()
				if r.ExitCode == nil || *r.ExitCode != 0 {
					b.Fatal(why(r))
				}
				i := slices.IndexFunc(r.Timing.Phases, func(p engine.Phase) bool { return p.Name == "netns" })
				phase[name] = append(phase[name], r.Timing.Phases[i].Ms)
				whole[name] = append(whole[name], r.Timing.TotalMs)
			}
		}
	}
	for name := range ways {
		b.ReportMetric(median(phase[name]), name+"-ms")
		b.ReportMetric(slices.Min(phase[name]), name+"-least-ms")
		b.ReportMetric(median(whole[name]), name+"-run-ms")
	}
}

const benchBytes = 1 << 30

// BenchmarkThroughput is one stream of TCP: by a plain veth, and through the gateway.
func BenchmarkThroughput(b *testing.B) {
	for _, runtime := range []string{"embedded", "runsc"} {
		for _, way := range []string{"plain", "cidr", "names"} {
			for _, direction := range []string{"upload", "download"} {
				b.Run(runtime+"/"+way+"/"+direction, func(b *testing.B) {
					bed := forBenchmarks(b)
					port := map[string]int{"upload": sinkPort, "download": sourcePort}[direction]
					var rates []float64
					for b.Loop() {
						for range 3 {
							rates = append(rates, bed.rate(runtime, way, fmt.Sprintf("%s %%s:%d %d", direction, port, benchBytes)))
						}
					}
					b.ReportMetric(median(rates)/1000, "Gbit/s")
				})
			}
		}
	}
}

// rate moves bytes one way and returns megabits in a second, by the program's clock.
func (b *bed) rate(runtime, way, line string) float64 {
	b.t.Helper()
	var f finding
	switch way {
	case "plain":
		f = b.plainRate(runtime, fmt.Sprintf(line, "203.0.113.10"))
	case "cidr", "names":
		host := map[string]string{"cidr": "203.0.113.10", "names": "ok.test"}[way]
		s := b.start(runtime, "--cpus", "2", "--allow", fmt.Sprintf("ok.test:%d", sinkPort), "--allow", fmt.Sprintf("ok.test:%d", sourcePort),
			"--allow-cidr", fmt.Sprintf("203.0.113.0/24:%d", sinkPort), "--allow-cidr", fmt.Sprintf("203.0.113.0/24:%d", sourcePort))
		f = s.ask(fmt.Sprintf(line, host))
		s.end()
	}
	n, err := strconv.ParseFloat(f.Text, 64)
	if f.Got != "ok" || err != nil {
		b.t.Fatalf("%v", f)
	}
	return n
}

// plainRate runs the probe in a namespace with a veth straight to the internet: as it
// is, or under gVisor without an engine.
func (b *bed) plainRate(runtime, line string) finding {
	b.t.Helper()
	p := newPlace(b.t, func() error { return nil })
	b.world.internet.do(b.t, func() error {
		name := fmt.Sprintf("far%d", os.Getpid()%1000)
		if old, err := netlink.LinkByName(name); err == nil {
			netlink.LinkDel(old)
		}
		if err := netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: name, HardwareAddr: farMAC},
			PeerName:  "eth0", PeerHardwareAddr: nearMAC, PeerNamespace: netlink.NsFd(int(p.ns.Fd())),
		}); err != nil {
			return err
		}
		link, err := up(name, nil, map[string]net.HardwareAddr{"203.0.113.2": nearMAC})
		if err != nil {
			return err
		}
		return netlink.RouteReplace(&netlink.Route{Dst: ipNet("203.0.113.2/32"), LinkIndex: link.Attrs().Index, Table: 255, Type: 1, Scope: netlink.SCOPE_LINK})
	})
	p.do(b.t, func() error {
		link, err := up("eth0", []string{"203.0.113.2/24"}, map[string]net.HardwareAddr{"203.0.113.10": farMAC})
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{Dst: ipNet("0.0.0.0/0"), Gw: net.ParseIP("203.0.113.10"), LinkIndex: link.Attrs().Index})
	})
	args := []string{"netprobe"}
	if runtime == "runsc" {
		args = b.bareBundle(p)
	}
	var f finding
	enter := []string{"nsenter", fmt.Sprintf("--net=/proc/%d/fd/%d", os.Getpid(), p.ns.Fd()), testenv.Binary(b.t, args[0])}
	proc := testenv.Start(b.t, strings.NewReader(line+"\n"), append(enter, args[1:]...)...)
	r := proc.Wait(b.t)
	if err := json.Unmarshal([]byte(r.Stdout), &f); err != nil {
		b.t.Fatalf("%s\n%v", r, err)
	}
	return f
}

// bareBundle is the command line of runsc for a probe in the place.
func (b *bed) bareBundle(p *place) []string {
	b.t.Helper()
	dir, err := os.MkdirTemp(b.dir, "bundle-")
	if err != nil {
		b.t.Fatal(err)
	}
	type object = map[string]any
	data, err := json.Marshal(object{
		"ociVersion": "1.0.2", "root": object{"path": b.root, "readonly": true},
		"process": object{"args": []string{"/bin/netprobe"}, "cwd": "/", "user": object{"uid": 0, "gid": 0}},
		"mounts":  []object{{"destination": "/proc", "type": "proc", "source": "proc"}},
		"linux": object{"namespaces": []object{
			{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"},
			{"type": "network", "path": fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), p.ns.Fd())},
		}},
	})
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), data, 0o644); err != nil {
		b.t.Fatal(err)
	}
	state := filepath.Join(dir, "state")
	b.t.Cleanup(func() { unmount(filepath.Join(state, "null-netns")) })
	return []string{"runsc", "--root", state, "--ignore-cgroups", "--network=sandbox", "--platform=systrap", "run", "--bundle", dir, filepath.Base(dir)}
}
