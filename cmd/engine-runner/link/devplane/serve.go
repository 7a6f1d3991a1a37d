package devplane

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io/fs"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/direct-oci/engine/cmd/engine-runner/link/wire"
	"github.com/direct-oci/engine/engine"
)

// Files in a plane's directory.
const (
	SecretFile = "secret" // for the config's signingSecret
	TokenFile  = "token"  // for those who ask
	CAFile     = "ca.pem" // for the config's caFile
	keyFile    = "key.pem"
	URLFile    = "url" // of the API; a runner's is the same with wss:// and /link
)

// Options is how a plane is served.
type Options struct {
	Dir    string
	Listen string        // HOST:PORT, the host being a loopback address
	Plain  bool          // ws:// instead of wss://
	Again  time.Duration // until a runner that did not answer is asked again; 2 s
	Log    *slog.Logger
}

// Serve serves a plane until ctx ends. What it needs and does not find in its directory
// it makes. Once it listens it writes where into URLFile, and calls ready.
func Serve(ctx context.Context, o Options, ready func(url string)) error {
	if err := checkListen(o.Listen); err != nil {
		return err
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return engine.Failed("no_directory", "cannot make directory=%s: %w", o.Dir, err)
	}
	secret, err := random(filepath.Join(o.Dir, SecretFile))
	if err != nil {
		return engine.Failed("no_key", "cannot get the signing secret: %w", err)
	}
	token, err := random(filepath.Join(o.Dir, TokenFile))
	if err != nil {
		return engine.Failed("no_key", "cannot get the token: %w", err)
	}
	p, err := open(ctx, o.Dir, []byte(secret), token, o.Log)
	if err != nil {
		return engine.Failed("no_record", "cannot read what an earlier control plane left: %w", err)
	}
	if o.Again > 0 {
		p.again = o.Again
	}
	l, err := net.Listen("tcp", o.Listen)
	if err != nil {
		return engine.Failed("no_socket", "cannot listen at %s: %w", o.Listen, err).WithFix("choose another port with --listen")
	}
	url := "http://" + l.Addr().String()
	if !o.Plain {
		cert, err := certificate(o.Dir)
		if err != nil {
			l.Close()
			return engine.Failed("no_key", "cannot get a certificate: %w", err)
		}
		url = "https://" + l.Addr().String()
		l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}})
	}
	if err := replace(o.Dir, URLFile, []byte(url+"\n")); err != nil {
		l.Close()
		return engine.Failed("no_output", "cannot write where the control plane is: %w", err)
	}
	server := &http.Server{
		Handler: p, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(o.Log.Handler(), slog.LevelWarn),
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	ready(url)
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return engine.Failed("no_socket", "cannot serve: %w", err)
	}
	return nil
}

// RunnerURL is the address that a runner's config has of the plane with this URL.
func RunnerURL(url string) string { return "ws" + strings.TrimPrefix(url, "http") + "/link" }

// checkListen refuses to be reached from elsewhere: whoever has the token can have
// anything done that needs no approval.
func checkListen(address string) error {
	host, _, err := net.SplitHostPort(address)
	if ip := net.ParseIP(host); err != nil || ip == nil || !ip.IsLoopback() {
		return engine.Refused("bad_flag", "cannot listen at %q: want a loopback address and a port", address).WithFix("write 127.0.0.1:7443")
	}
	return nil
}

// random reads a value that nobody can guess, and makes it first if there is none.
func random(path string) (string, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		data = []byte(wire.NewNonce(32) + "\n")
		err = os.WriteFile(path, data, 0o600)
	}
	return strings.TrimSpace(string(data)), err
}

// certificate reads the plane's certificate and key, and makes them first if there are
// none. It has signed itself, so it is also what a runner has to trust.
func certificate(dir string) (tls.Certificate, error) {
	certPath, keyPath := filepath.Join(dir, CAFile), filepath.Join(dir, keyFile)
	if cert, err := tls.LoadX509KeyPair(certPath, keyPath); !errors.Is(err, fs.ErrNotExist) {
		return cert, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "engine controlplane dev"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(2, 0, 0),
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true, IsCA: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return tls.Certificate{}, err
	}
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := errors.Join(os.WriteFile(keyPath, keyPEM, 0o600), os.WriteFile(certPath, certPEM, 0o644)); err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(certPEM, keyPEM)
}
