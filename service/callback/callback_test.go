package callback

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/service/outbox"
)

var secret = []byte("a secret of some length")

// receiver takes callbacks, and answers as it is told.
type receiver struct {
	*httptest.Server
	mu     sync.Mutex
	got    []string // sequence:event
	status func(n int) int
	n      int
	errs   []error
}

func receive(t *testing.T, status func(n int) int) *receiver {
	r := &receiver{status: status}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		data, err := io.ReadAll(req.Body)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.n++
		if err == nil {
			err = Verify(secret, req.Header, data, time.Now(), time.Minute)
		}
		var b body
		if err == nil {
			err = json.Unmarshal(data, &b)
		}
		if err == nil && (b.SandboxID != "sandbox" || req.Header.Get(SandboxHeader) != "sandbox") {
			err = fmt.Errorf("it is of sandbox %q", b.SandboxID)
		}
		if err != nil {
			r.errs = append(r.errs, err)
		}
		code := r.status(r.n)
		if code/100 == 2 {
			r.got = append(r.got, fmt.Sprintf("%d:%s", b.Sequence, b.Event))
		}
		w.WriteHeader(code)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}

// teller notes what it is told.
type teller struct {
	mu       sync.Mutex
	failures []string
}

func (*teller) Dropped(n int) []byte {
	return fmt.Appendf(nil, `{"dropped":%d,"at":%d}`, n, time.Now().Unix())
}

func (tl *teller) Report(err error) {
	tl.mu.Lock()
	defer tl.mu.Unlock()
	tl.failures = append(tl.failures, err.Error())
}

func local(c Config) *Sender {
	c.Allow = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}
	c.HTTP = true
	if c.Pause == 0 {
		c.Pause = 10 * time.Millisecond
	}
	return New(c)
}

func box(t *testing.T, events ...string) *outbox.Box {
	t.Helper()
	b, err := outbox.Open(filepath.Join(t.TempDir(), "box"), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	for _, e := range events {
		if _, err := b.Append([]byte(e), "", nil, false); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func deliver(t *testing.T, s *Sender, url string, b *outbox.Box) *teller {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	done := make(chan struct{})
	close(done)
	tl := &teller{}
	if err := s.Deliver(ctx, Target{Sandbox: "sandbox", URL: url, Secret: secret}, b, done, tl); err != nil {
		t.Fatalf("Deliver = %v; failures: %q", err, tl.failures)
	}
	return tl
}

func now() string { return fmt.Sprintf(`{"at":%d}`, time.Now().Unix()) }

func TestEventsComeSignedInOrderAndAgainUntilTaken(t *testing.T) {
	r := receive(t, func(n int) int {
		if n%3 != 0 {
			return 500
		}
		return 204
	})
	var events, want []string
	for i := range 5 {
		e := fmt.Sprintf(`{"at":%d,"n":%d}`, time.Now().Unix(), i)
		events, want = append(events, e), append(want, fmt.Sprintf("%d:%s", i+1, e))
	}
	tl := deliver(t, local(Config{}), r.URL, box(t, events...))
	if got := r.all(); !slices.Equal(got, want) {
		t.Errorf("received %q, want %q", got, want)
	}
	if len(r.errs) > 0 {
		t.Errorf("what came is not as it should be: %v", r.errs)
	}
	if len(tl.failures) != 10 || !strings.Contains(tl.failures[0], "status 500") {
		t.Errorf("failures = %q, want ten with their status", tl.failures)
	}
}

func TestOldEventsAreDroppedAndSaidSo(t *testing.T) {
	r := receive(t, func(int) int { return 200 })
	b := box(t, `1`, `2`)
	time.Sleep(300 * time.Millisecond)
	for _, e := range []string{`3`, `4`} {
		if _, err := b.Append([]byte(e), "", nil, false); err != nil {
			t.Fatal(err)
		}
	}
	deliver(t, local(Config{GiveUp: 250 * time.Millisecond}), r.URL, b)
	got := r.all()
	if len(got) != 3 || !strings.HasPrefix(got[0], "3:") || !strings.HasPrefix(got[2], `5:{"dropped":2`) {
		t.Errorf("received %q, want the two that are young, and that two were dropped", got)
	}
}

// TestRedirectsAreNotFollowed would reach a neighbour of the receiver through it.
func TestRedirectsAreNotFollowed(t *testing.T) {
	reached := false
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached = true }))
	defer other.Close()
	n := 0
	first := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if n++; n < 3 {
			http.Redirect(w, req, other.URL, http.StatusTemporaryRedirect)
		}
	}))
	defer first.Close()
	tl := deliver(t, local(Config{}), first.URL, box(t, now()))
	if reached {
		t.Error("the redirection was followed")
	}
	if len(tl.failures) != 2 || !strings.Contains(tl.failures[0], "307") {
		t.Errorf("failures = %q, want two of status 307", tl.failures)
	}
}

// TestGuardedAddresses names addresses of the host and of clouds in every way that a URL
// can, and through a name.
func TestGuardedAddresses(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			t.Errorf("somebody connected from %v", conn.RemoteAddr())
			conn.Close()
		}
	}()
	port := listener.Addr().(*net.TCPAddr).Port
	closed := New(Config{HTTP: true, Allow: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}})
	for _, host := range []string{
		"127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "localhost", "localhost.", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "0.0.0.0", "[::]",
		"169.254.169.254", "[::ffff:169.254.169.254]", "[fd00:ec2::254]", "[64:ff9b::169.254.169.254]", "100.100.100.200", "10.0.0.1", "192.168.1.1", "[fe80::1]", "224.0.0.1",
	} {
		target := Target{Sandbox: "sandbox", URL: fmt.Sprintf("http://%s:%d/", host, port), Secret: secret}
		err := closed.Validate(target)
		if err == nil {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			err = closed.post(ctx, target, outbox.Message{Sequence: 1, Body: []byte("{}")})
			cancel()
		}
		if err == nil {
			t.Errorf("%s was posted to", host)
		}
	}
	open := local(Config{})
	if err := open.Validate(Target{Sandbox: "sandbox", URL: "http://127.0.0.1/", Secret: secret}); err != nil {
		t.Errorf("an address that the operator grants: %v", err)
	}
	if err := New(Config{HTTP: true, Allow: []netip.Prefix{netip.MustParsePrefix("169.254.169.254/32")}}).Validate(Target{Sandbox: "sandbox", URL: "http://169.254.169.254/", Secret: secret}); err == nil {
		t.Error("a metadata service was granted")
	}
	if err := New(Config{HTTP: true, Allow: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}).Validate(Target{Sandbox: "sandbox", URL: "http://10.1.2.3/", Secret: secret}); err != nil {
		t.Errorf("a private range that the operator grants: %v", err)
	}
}

func TestTargetsAreRefused(t *testing.T) {
	tests := []struct {
		name   string
		config Config
		target Target
		says   string
	}{
		{"callbacks are off", Config{Off: true}, Target{Sandbox: "s", URL: "https://example.com/", Secret: secret}, "sends none"},
		{"http", Config{}, Target{Sandbox: "s", URL: "http://example.com/", Secret: secret}, "want https"},
		{"another scheme", Config{HTTP: true}, Target{Sandbox: "s", URL: "file:///etc/passwd", Secret: secret}, "want https"},
		{"no host", Config{}, Target{Sandbox: "s", URL: "https:///x", Secret: secret}, "no host"},
		{"a user", Config{}, Target{Sandbox: "s", URL: "https://a:b@example.com/", Secret: secret}, "user"},
		{"a fragment", Config{}, Target{Sandbox: "s", URL: "https://example.com/#x", Secret: secret}, "fragment"},
		{"no URL", Config{}, Target{Sandbox: "s", URL: "https://exa mple.com/%zz", Secret: secret}, "no URL"},
		{"a short secret", Config{}, Target{Sandbox: "s", URL: "https://example.com/", Secret: []byte("short")}, "5 bytes"},
		{"a long URL", Config{}, Target{Sandbox: "s", URL: "https://example.com/" + strings.Repeat("x", 5000), Secret: secret}, "longer"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := New(tt.config).Validate(tt.target)
			var e *engine.Error
			if !errors.As(err, &e) || e.Kind != "bad_callback" || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("Validate = %v, want bad_callback with %q", err, tt.says)
			}
			if strings.Contains(err.Error(), string(secret)) {
				t.Error("the error tells the secret")
			}
		})
	}
	if err := New(Config{}).Validate(Target{Sandbox: "s", URL: "https://example.com/hook?x=1", Secret: secret}); err != nil {
		t.Errorf("Validate of a public address = %v", err)
	}
}

func TestVerify(t *testing.T) {
	at := time.UnixMilli(1700000000123)
	data := []byte(`{"a":1}`)
	header := func() http.Header {
		h := http.Header{}
		h.Set(TimestampHeader, "1700000000123")
		h.Set(SignatureHeader, Sign(secret, "1700000000123", data))
		return h
	}
	// As openssl dgst -sha256 -hmac computes it.
	if got, want := Sign(secret, "1700000000123", data), "v1=1859c74f408e37d74baff681fba4ef47202e666fd07c66ab3fc11e69f05462ab"; got != want {
		t.Errorf("Sign = %q, want %q", got, want)
	}
	if err := Verify(secret, header(), data, at.Add(time.Minute), time.Minute); err != nil {
		t.Errorf("Verify of what was signed = %v", err)
	}
	bad := map[string]error{
		"another body":   Verify(secret, header(), []byte(`{"a":2}`), at, time.Minute),
		"another secret": Verify([]byte("another secret, really"), header(), data, at, time.Minute),
		"too late":       Verify(secret, header(), data, at.Add(61*time.Second), time.Minute),
		"too early":      Verify(secret, header(), data, at.Add(-61*time.Second), time.Minute),
		"no headers":     Verify(secret, http.Header{}, data, at, time.Minute),
	}
	h := header()
	h.Set(TimestampHeader, "1700000000124")
	bad["another time"] = Verify(secret, h, data, at, time.Minute)
	for name, err := range bad {
		if err == nil {
			t.Errorf("%s: Verify took it", name)
		}
	}
}

func TestBackoffGrowsAndIsBounded(t *testing.T) {
	s := New(Config{Pause: 4 * time.Second})
	for n := 1; n < 100; n++ {
		most := min(firstWait<<min(n-1, 20), 4*time.Second)
		for range 20 {
			if d := s.backoff(n, errors.New("x")); d < most/2 || d > most {
				t.Fatalf("after %d failures it waits %v, want %v to %v", n, d, most/2, most)
			}
		}
	}
	if d := s.backoff(1, &refusedError{503, 3 * time.Second}); d != 3*time.Second {
		t.Errorf("with Retry-After it waits %v", d)
	}
}

// TestChangedRulesHoldForWhatIsSent takes an address away from a sender that has a
// connection to it already.
func TestChangedRulesHoldForWhatIsSent(t *testing.T) {
	r := receive(t, func(int) int { return 200 })
	s := local(Config{})
	defer s.Close()
	deliver(t, s, r.URL, box(t, now(), now()))
	s.Change(Config{HTTP: true})
	if err := s.post(t.Context(), Target{Sandbox: "sandbox", URL: r.URL, Secret: secret}, outbox.Message{Sequence: 3, Body: []byte("{}")}); err == nil {
		t.Error("an address that is not allowed any more was posted to")
	}
	if err := s.Validate(Target{Sandbox: "sandbox", URL: r.URL, Secret: secret}); err == nil {
		t.Error("an address that is not allowed any more is accepted")
	}
	s.Change(Config{HTTP: true, Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}})
	deliver(t, s, r.URL, box(t, now()))
	if got := len(r.all()); got != 3 {
		t.Errorf("%d events came, want 3", got)
	}
}
