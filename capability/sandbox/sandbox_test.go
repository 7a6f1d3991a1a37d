package sandbox

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/netns/egress"
)

func policy(t *testing.T, grants ...string) egress.Policy {
	t.Helper()
	p, err := ParseGrants(grants)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestResolve(t *testing.T) {
	ceiling := policy(t, "api.example.com:443", "*.example.org", "192.0.2.0/24:5432", "10.0.0.7/32:*", "198.51.100.0/24:53/udp")
	tests := []struct {
		name string
		ask  any
		want string // joined by a space; "!" followed by the kind of a refusal
	}{
		{"absent", nil, ""},
		{"false", false, ""},
		{"true is all of the ceiling", true, "*.example.org:443 *.example.org:80 10.0.0.7/32:* 192.0.2.0/24:5432 198.51.100.0/24:53/udp api.example.com:443"},
		{"one name", "api.example.com:443", "api.example.com:443"},
		{"a name without a port means two", "api.example.com", "!egress_refused"},
		{"a name below a wildcard", []any{"a.b.example.org:80"}, "a.b.example.org:80"},
		{"the wildcard's own base", "example.org:80", "!egress_refused"},
		{"a name that ends alike", "badexample.org:80", "!egress_refused"},
		{"the wildcard itself", "*.example.org:443", "*.example.org:443"},
		{"a wider wildcard", "*.com:443", "!bad_network"},
		{"a range within", []string{"192.0.2.128/25:5432"}, "192.0.2.128/25:5432"},
		{"a range around", "192.0.0.0/16:5432", "!egress_refused"},
		{"another port", "192.0.2.0/24:22", "!egress_refused"},
		{"any port of one address", "10.0.0.7/32:22", "10.0.0.7/32:22"},
		{"another protocol", "198.51.100.0/24:53", "!egress_refused"},
		{"internet", "internet", "!egress_refused"},
		{"no grant", "a b", "!bad_network"},
		{"an empty grant", []any{""}, "!bad_network"},
		{"metadata", "169.254.169.254/32:80", "!bad_network"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Resolve(tt.ask, ceiling, "sandbox.egress")
			text := strings.Join(Grants(got), " ")
			var e *engine.Error
			if errors.As(err, &e) {
				text = "!" + e.Kind
			}
			if text != tt.want {
				t.Errorf("Resolve(%v) = %s, %v, want %s", tt.ask, text, err, tt.want)
			}
		})
	}
	if _, err := Resolve(true, egress.Policy{}, "sandbox.egress"); err == nil {
		t.Error("egress is granted without a ceiling")
	}
	internet := policy(t, "internet")
	for _, ask := range []any{true, "internet", "example.com:22"} {
		if _, err := Resolve(ask, internet, "sandbox.egress"); err != nil {
			t.Errorf("Resolve(%v) under internet: %v", ask, err)
		}
	}
	if _, err := Resolve("10.0.0.1/32:22", internet, "sandbox.egress"); err == nil {
		t.Error("a private address is granted as public")
	}
}

func TestClamp(t *testing.T) {
	p := Profile{Max: DefaultMax}
	for _, tt := range []struct {
		name string
		ask  Limits
		cpus float64
		mib  int64
		wall time.Duration
	}{
		{"nothing", Limits{}, 1, 512, 120 * time.Second},
		{"less", Limits{CPUs: 0.5, MemoryMB: 64, TimeoutSeconds: 1.5}, 0.5, 64, 1500 * time.Millisecond},
		{"more", Limits{CPUs: 64, MemoryMB: 1 << 20, TimeoutSeconds: 1e9}, 1, 512, 120 * time.Second},
		{"without end", Limits{CPUs: math.Inf(1), MemoryMB: math.Inf(1), TimeoutSeconds: math.Inf(1)}, 1, 512, 120 * time.Second},
		{"pids cannot be asked for", Limits{Pids: 10000}, 1, 512, 120 * time.Second},
	} {
		l := p.clamp(tt.ask)
		if l.CPUs != tt.cpus || l.Memory != tt.mib<<20 || l.Timeout != tt.wall || l.Pids != 256 {
			t.Errorf("%s: %+v", tt.name, l)
		}
		if l.WorkspaceSize > l.Memory/2 || l.TmpSize > l.Memory/4 {
			t.Errorf("%s: scratch space above the memory: %+v", tt.name, l)
		}
	}
}

func TestReadLines(t *testing.T) {
	var got []string
	ReadLines(strings.NewReader("a\r\nb\xff\n\n"+strings.Repeat("x", maxLine+5)+"\nend"), func(l string) { got = append(got, l) })
	want := []string{"a", "b\ufffd", "", strings.Repeat("x", maxLine), "xxxxx", "end"}
	if !slices.Equal(got, want) {
		t.Errorf("lines = %.100q", got)
	}
}
