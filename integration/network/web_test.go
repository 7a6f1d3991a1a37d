package network

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// webServer speaks HTTP and TLS for every name, with certificates of its own CA.
type webServer struct {
	ca    string // file
	mux   *http.ServeMux
	conns *handover
	tls   *tls.Config
}

// handover is a listener of connections that somebody else accepted.
type handover struct {
	conns chan net.Conn
	done  chan struct{}
}

func (h *handover) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

func (h *handover) Close() error   { return nil }
func (h *handover) Addr() net.Addr { return &net.TCPAddr{} }

func newWeb(t testing.TB, dir string) *webServer {
	t.Helper()
	ca, key := newCA(t)
	leaf, err := newLeaf(ca, key)
	if err != nil {
		t.Fatal(err)
	}
	w := &webServer{
		ca: filepath.Join(dir, "ca.pem"), mux: http.NewServeMux(), tls: &tls.Config{Certificates: []tls.Certificate{leaf}},
		conns: &handover{make(chan net.Conn), make(chan struct{})},
	}
	data := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw})
	if err := os.WriteFile(w.ca, data, 0o644); err != nil {
		t.Fatal(err)
	}
	w.mux.HandleFunc("/", func(rw http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(rw, "served %s to %s\n", r.Host, r.URL.Path)
	})
	server := &http.Server{Handler: w.mux, ErrorLog: log.New(io.Discard, "", 0)}
	go server.Serve(w.conns)
	t.Cleanup(func() { close(w.conns.done); server.Close() })
	return w
}

func (w *webServer) serve(c net.Conn, secure bool) {
	if secure {
		c = tls.Server(c, w.tls)
	}
	select {
	case w.conns.conns <- c:
	case <-w.conns.done:
		c.Close()
	}
}

func template(serial int64, names ...string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: fmt.Sprintf("number %d of the network tests", serial)}, DNSNames: names,
		NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
}

func newCA(t testing.TB) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := template(1)
	c.IsCA, c.BasicConstraintsValid, c.KeyUsage = true, true, x509.KeyUsageCertSign|x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return ca, key
}

func newLeaf(ca *x509.Certificate, caKey *ecdsa.PrivateKey) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	c := template(2, "web.test", "other.test", "*.web.test")
	c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	der, err := x509.CreateCertificate(rand.Reader, c, ca, &key.PublicKey, caKey)
	return tls.Certificate{Certificate: [][]byte{der, ca.Raw}, PrivateKey: key}, err
}
