package netns

import (
	"flag"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files anew")

var goldens = []struct {
	name string // of a file in testdata
	cfg  GatewayConfig
}{
	{"closed", GatewayConfig{}},
	{"mixed", GatewayConfig{Policy: mixed}},
	{"limits", GatewayConfig{
		Policy: Policy{Names: []Ports{{TCP, 443, 443}}},
		Limits: Limits{Connections: 256, ConnectionsPerSec: 100, Bytes: 1 << 30, BytesPerSec: 10 << 20},
	}},
	{"everything", GatewayConfig{Policy: Policy{
		Services: []uint16{3128},
		Names:    []Ports{{TCP, 0, 65535}, {UDP, 0, 65535}},
		Allowed:  []Allow{{everything, Ports{TCP, 0, 65535}}, {everything, Ports{UDP, 0, 65535}}},
	}}},
	{"overlaps", GatewayConfig{Policy: Policy{Allowed: []Allow{
		{netip.MustParsePrefix("203.0.113.0/24"), Ports{TCP, 80, 90}},
		{netip.MustParsePrefix("203.0.113.128/25"), Ports{TCP, 85, 95}},
		{netip.MustParsePrefix("203.0.114.0/24"), Ports{TCP, 80, 90}},
		{netip.MustParsePrefix("203.0.113.7/32"), Ports{UDP, 85, 85}},
		{netip.MustParsePrefix("10.0.0.0/8"), Ports{TCP, 22, 22}},
		{netip.MustParsePrefix("10.1.0.0/16"), Ports{TCP, 1, 100}},
		{netip.MustParsePrefix("0.0.0.0/0"), Ports{TCP, 88, 88}},
	}}}},
}

func TestRules(t *testing.T) {
	for _, tt := range goldens {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Rules(tt.cfg)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("testdata", tt.name+".nft")
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o666); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("rules differ from %s; go test -update writes it. Got:\n%s", path, got)
			}
		})
	}
}

// TestKernelHoldsTheText has nft load the text in one namespace and compares what it
// lists there with what it lists in a gateway, whose rules never were text.
func TestKernelHoldsTheText(t *testing.T) {
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("needs nft")
	}
	for _, tt := range goldens {
		t.Run(tt.name, func(t *testing.T) {
			g := newGateway(t, tt.cfg)
			text, err := Rules(tt.cfg)
			if err != nil {
				t.Fatal(err)
			}
			other := newGateway(t, GatewayConfig{}) // for its link, which the text names
			nft(t, other.own, "flush ruleset")
			nft(t, other.own, text)
			got, want := nft(t, g.own, "list ruleset"), nft(t, other.own, "list ruleset")
			if got != want {
				t.Errorf("the kernel holds\n%s\nwant\n%s", got, want)
			}
			if err := g.SetPolicy(mixed); err != nil {
				t.Fatal(err)
			}
			cfg := GatewayConfig{Policy: mixed, Limits: tt.cfg.Limits}
			if text, err = Rules(cfg); err != nil {
				t.Fatal(err)
			}
			nft(t, other.own, "flush ruleset\n"+text)
			if got, want := nft(t, g.own, "list ruleset"), nft(t, other.own, "list ruleset"); got != want {
				t.Errorf("after a change, the kernel holds\n%s\nwant\n%s", got, want)
			}
		})
	}
}

func nft(t *testing.T, ns *os.File, script string) string {
	t.Helper()
	cmd := exec.Command("nsenter", "--net=/proc/self/fd/3", "nft", "-f", "-")
	cmd.ExtraFiles = []*os.File{ns}
	cmd.Stdin = strings.NewReader(script)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("nft: %v: %s", err, out)
	}
	return string(out)
}
