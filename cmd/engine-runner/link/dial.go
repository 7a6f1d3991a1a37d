package link

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/coder/websocket"

	"github.com/direct-oci/engine/cmd/engine-runner/link/wire"
	"github.com/direct-oci/engine/engine"
)

// dialer makes connections to the plane.
type dialer struct {
	url    string
	bound  time.Duration
	client *http.Client
}

func newDialer(s Settings, t times) (*dialer, error) {
	roots, err := Roots(s.CAFile)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: t.dial, KeepAlive: 30 * time.Second}).DialContext,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots},
		TLSHandshakeTimeout:    t.dial,
		ResponseHeaderTimeout:  t.dial,
		MaxResponseHeaderBytes: 64 << 10,
		DisableKeepAlives:      true,
	}
	return &dialer{s.URL, t.dial, &http.Client{
		Transport: transport,
		// Where the runner reports is in its config, and nowhere else.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

const maxCAFile = 4 << 20

// Roots reads the certificates that may have signed a plane's; nil is the system's. The
// error is an *engine.Error.
func Roots(path string) (*x509.CertPool, error) {
	roots, err := readRoots(path)
	if err != nil {
		return nil, engine.Refused("bad_config", "cannot use controlPlane.caFile=%s: %w", path, err)
	}
	return roots, nil
}

// readRoots reads certificates in PEM.
func readRoots(path string) (*x509.CertPool, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxCAFile))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(data) {
		return nil, errors.New("no certificate is in it")
	}
	return roots, nil
}

// dial returns a connection on which nothing has been said yet.
func (d *dialer) dial(ctx context.Context) (*websocket.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.bound)
	defer cancel()
	conn, response, err := websocket.Dial(ctx, d.url, &websocket.DialOptions{
		HTTPClient: d.client, Subprotocols: []string{wire.Subprotocol}, CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil {
		if response != nil && response.StatusCode != http.StatusSwitchingProtocols {
			return nil, because(notAPlane, fmt.Errorf("it answers with HTTP status %d", response.StatusCode))
		}
		if asked := (*url.Error)(nil); errors.As(err, &asked) {
			err = asked.Err // which URL is known
		}
		var verify *tls.CertificateVerificationError
		if errors.As(err, &verify) {
			return nil, because(untrusted, err)
		}
		return nil, because(unreachable, err)
	}
	if conn.Subprotocol() != wire.Subprotocol {
		conn.CloseNow()
		return nil, because(notAPlane, errors.New("it does not speak "+wire.Subprotocol))
	}
	return conn, nil
}

// backoff is how long to wait after failures: longer each time, up to a bound, and each
// time somewhat else, so that runners of one plane do not all come back at once.
type backoff struct {
	least, most time.Duration
	now         time.Duration
}

func (b *backoff) reset() { b.now = 0 }

func (b *backoff) next() time.Duration {
	b.now = min(max(2*b.now, b.least), b.most)
	return b.now/2 + rand.N(b.now/2+1)
}
