package registry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/publicsuffix"
)

// refusedError is a request that was not sent.
type refusedError struct{ why, fix string }

func (e *refusedError) Error() string { return e.why }

// guard is what every request passes last.
//
// SECURITY: credentials go to the registry they belong to and its token service, over TLS; and
// nothing that a registry says leads into this host or its neighbours' management.
// A registry names the place where tokens are had, and redirects to where blobs are; either may be
// somebody else's, or an address that trusts whoever can reach it.
// Holds because: whatever the layers above do, a request that carries credentials or a form to a host
// that is neither named nor of the registry's domain is refused, a token is taken off it; plain HTTP goes
// to hosts that were named for it alone; loopback and link-local addresses are dialled for named hosts only.
// Not covered: private addresses, which registries of one's own redirect to. Checked by: TestCredentialsStay.
type guard struct {
	inner   *http.Transport
	plain   map[string]bool // host:port for which plain HTTP is allowed
	tokens  map[string]bool // host names that may be given credentials
	domains map[string]bool // of the registries

	mu    sync.Mutex
	named map[string]bool // host:port that the caller named: registries, mirrors, proxies
	tls   map[string]error
}

func newGuard(o Options, hosts []string) (*guard, error) {
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool()
	}
	if o.CAFile != "" {
		pem, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, err
		}
		if !roots.AppendCertsFromPEM(pem) {
			return nil, errors.New(o.CAFile + " holds no certificate")
		}
	}
	g := &guard{plain: map[string]bool{}, tokens: map[string]bool{}, domains: map[string]bool{}, named: map[string]bool{}, tls: map[string]error{}}
	for _, h := range o.PlainHTTP {
		g.plain[withPort(h, "http")] = true
		g.plain[withPort(h, "https")] = true // a test of the other scheme comes first
	}
	for _, h := range o.TokenHosts {
		g.tokens[hostname(h)] = true
		g.named[withPort(h, "https")] = true
	}
	for _, h := range hosts {
		g.named[withPort(h, "https")] = true
		if g.plain[withPort(h, "http")] {
			g.named[withPort(h, "http")] = true
		}
		if d := domain(h); d != "" {
			g.domains[d] = true
		}
	}
	g.inner = &http.Transport{
		Proxy:                 g.proxy,
		DialContext:           g.dial,
		TLSClientConfig:       &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: 60 * time.Second,
		IdleConnTimeout:       30 * time.Second,
		DisableCompression:    true, // a blob is what its digest says, as it is
		ForceAttemptHTTP2:     true,
		MaxIdleConnsPerHost:   4,
	}
	return g, nil
}

// RoundTrip implements http.RoundTripper.
func (g *guard) RoundTrip(req *http.Request) (*http.Response, error) {
	at := withPort(req.URL.Host, req.URL.Scheme)
	if req.URL.Scheme != "https" && (req.URL.Scheme != "http" || !g.plain[at]) {
		if err := g.tlsError(req.URL.Host); err != nil {
			return nil, err
		}
		return nil, &refusedError{
			"it leads to " + req.URL.Scheme + "://" + req.URL.Host + ", which is not encrypted",
			"if that is meant, write --plain-http " + req.URL.Host,
		}
	}
	if g.isNamed(at) || g.tokens[req.URL.Hostname()] || g.domains[domain(req.URL.Host)] {
		resp, err := g.inner.RoundTrip(req)
		if err != nil && req.URL.Scheme == "https" {
			g.mu.Lock()
			g.tls[req.URL.Host] = err
			g.mu.Unlock()
		}
		return resp, err
	}
	header := req.Header.Get("Authorization")
	if req.Body != nil && req.Body != http.NoBody || header != "" && !strings.HasPrefix(header, "Bearer ") {
		return nil, &refusedError{
			"the registry wants its credentials to be sent to " + req.URL.Host,
			"if that host is its token service, write --token-host " + req.URL.Hostname(),
		}
	}
	if header != "" {
		req = req.Clone(req.Context())
		req.Header.Del("Authorization")
	}
	return g.inner.RoundTrip(req)
}

// tlsError is what went wrong when this host was spoken to over TLS. For hosts of a
// private network the layer above tries without TLS then, which is no news to anybody.
func (g *guard) tlsError(host string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.tls[host]
}

func (g *guard) isNamed(at string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.named[at]
}

// proxy is what the environment says; a proxy may well be on this host.
func (g *guard) proxy(req *http.Request) (*url.URL, error) {
	u, err := http.ProxyFromEnvironment(req)
	if err == nil && u != nil {
		g.mu.Lock()
		g.named[withPort(u.Host, u.Scheme)] = true
		g.mu.Unlock()
	}
	return u, err
}

func (g *guard) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: 15 * time.Second, KeepAlive: 15 * time.Second}
	if !g.isNamed(addr) {
		d.ControlContext = func(_ context.Context, _, address string, _ syscall.RawConn) error {
			ap, err := netip.ParseAddrPort(address)
			if err != nil {
				return err
			}
			if ip := ap.Addr().Unmap(); ip.IsLoopback() || ip.IsLinkLocalUnicast() || ip.IsUnspecified() || ip.IsMulticast() {
				return &refusedError{"the registry leads to " + addr + ", an address of this host's own", ""}
			}
			return nil
		}
	}
	return d.DialContext(ctx, network, addr)
}

// domain is the part of a host's name that somebody owns as a whole; "" for addresses.
func domain(host string) string {
	name := hostname(host)
	if _, err := netip.ParseAddr(name); err == nil {
		return ""
	}
	d, err := publicsuffix.EffectiveTLDPlusOne(name)
	if err != nil {
		return ""
	}
	return d
}

func hostname(host string) string {
	u := url.URL{Host: host}
	return strings.ToLower(u.Hostname())
}

func withPort(host, scheme string) string {
	u := url.URL{Host: host}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443", "socks5": "1080"}[scheme]
	}
	return net.JoinHostPort(strings.ToLower(u.Hostname()), port)
}

// stalled ends a request that no byte has come from for a while.
type stalled struct {
	cancel context.CancelCauseFunc
	timer  *time.Timer
}

const stallBound = 60 * time.Second

func watchStall(ctx context.Context) (context.Context, *stalled) {
	ctx, cancel := context.WithCancelCause(ctx)
	s := &stalled{cancel: cancel}
	s.timer = time.AfterFunc(stallBound, func() { cancel(fmt.Errorf("no byte came for %v", stallBound)) })
	return ctx, s
}

func (s *stalled) alive() { s.timer.Reset(stallBound) }

func (s *stalled) stop() {
	s.timer.Stop()
	s.cancel(nil)
}
