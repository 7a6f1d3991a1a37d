package registry_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	ggcr "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/direct-oci/engine/rootfs/image"
	"github.com/direct-oci/engine/rootfs/image/job"
)

// program is engine-image, built as it is for use.
var program string

func TestMain(m *testing.M) { os.Exit(withProgram(m)) }

func withProgram(m *testing.M) int {
	dir, err := os.MkdirTemp("", "registry-test-")
	if err == nil {
		defer os.RemoveAll(dir)
		cmd := exec.Command("go", "build", "-buildvcs=false", "-o", dir, "github.com/direct-oci/engine/cmd/engine-image")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
		err = cmd.Run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cannot build engine-image:", err)
		return 1
	}
	program = filepath.Join(dir, "engine-image")
	return m.Run()
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func requireRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// authority signs the certificates of a test's servers.
type authority struct {
	file string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t testing.TB) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	cert, err := x509.ParseCertificate(der)
	must(t, err)
	a := authority{filepath.Join(t.TempDir(), "ca.pem"), cert, key, x509.NewCertPool()}
	a.pool.AddCert(cert)
	must(t, os.WriteFile(a.file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	return a
}

// serve starts a TLS server at an address of this host.
func (a authority) serve(t testing.TB, ip string, h http.Handler) *httptest.Server {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(2), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.ParseIP(ip)}}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	must(t, err)
	l, err := net.Listen("tcp", net.JoinHostPort(ip, "0"))
	must(t, err)
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: h, ErrorLog: log.New(io.Discard, "", 0)}, TLS: &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

const user, password = "alice", "s3cret-password"

// server is a registry that wants a token, which it gives for a password.
type server struct {
	*httptest.Server
	authority
	host string

	mu      sync.Mutex
	counts  map[string]int // requests for each blob
	realm   string         // where tokens are had; empty: here
	tamper  func(w http.ResponseWriter, r *http.Request) bool
	anybody bool // nobody needs a token
}

func newServer(t testing.TB) *server {
	t.Helper()
	requireRoot(t)
	s := &server{authority: newAuthority(t), counts: map[string]int{}}
	inner := ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0)))
	s.Server = s.authority.serve(t, "127.0.0.1", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.handle(inner, w, r) }))
	s.host = s.Listener.Addr().String()
	return s
}

const token = "token-for-alice"

func (s *server) handle(inner http.Handler, w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	realm, tamper, anybody := s.realm, s.tamper, s.anybody
	if i := strings.Index(r.URL.Path, "/blobs/sha256:"); i >= 0 && r.Method == http.MethodGet {
		s.counts[r.URL.Path[i+len("/blobs/"):]]++
	}
	s.mu.Unlock()
	if r.URL.Path == "/token" {
		u, p, ok := r.BasicAuth()
		if !ok || u != user || p != password {
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		fmt.Fprintf(w, `{"token":%q}`, token)
		return
	}
	if !anybody && r.Header.Get("Authorization") != "Bearer "+token {
		if realm == "" {
			realm = s.URL + "/token"
		}
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm=%q,service="test"`, realm))
		http.Error(w, `{"errors":[{"code":"UNAUTHORIZED"}]}`, http.StatusUnauthorized)
		return
	}
	if tamper != nil && tamper(w, r) {
		return
	}
	inner.ServeHTTP(w, r)
}

func (s *server) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// push puts an image into the registry, and returns its reference.
func (s *server) push(t testing.TB, repo string, img v1.Image) string {
	t.Helper()
	ref, err := name.ParseReference(s.host + "/" + repo)
	must(t, err)
	must(t, remote.Write(ref, img, remote.WithTransport(&http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.pool}}),
		remote.WithAuth(&authn.Basic{Username: user, Password: password})))
	return ref.String()
}

// authFile is a config.json with the password for hosts.
func authFile(t testing.TB, hosts ...string) string {
	t.Helper()
	auths := map[string]any{}
	for _, h := range hosts {
		auths[h] = map[string]string{"auth": base64.StdEncoding.EncodeToString([]byte(user + ":" + password))}
	}
	data, err := json.Marshal(map[string]any{"auths": auths})
	must(t, err)
	path := filepath.Join(t.TempDir(), "config.json")
	must(t, os.WriteFile(path, data, 0o600))
	return path
}

// client is a store with what it takes to reach a server.
type client struct {
	job.Job
	store image.Store
	env   []string
}

func (s *server) client(t testing.TB) client {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "images")
	return client{job.Job{Do: job.Pull, Store: dir, AuthFile: authFile(t, s.host), CAFile: s.file, Name: "x"}, image.Store{Dir: dir}, nil}
}

// command is one process that pulls.
func (c client) command(reference string, change ...func(*job.Job)) *exec.Cmd {
	j := c.Job
	j.Source = reference
	for _, f := range change {
		f(&j)
	}
	text, err := json.Marshal(j)
	if err != nil {
		panic(err)
	}
	cmd := exec.Command(program, string(text))
	cmd.Env = append(append(os.Environ(), "HOME=/nonexistent", "HTTPS_PROXY=", "https_proxy=", "HTTP_PROXY=", "http_proxy="), c.env...)
	return cmd
}

// pull runs one process that pulls, and returns its answer.
func (c client) pull(t testing.TB, reference string, change ...func(*job.Job)) job.Answer {
	t.Helper()
	cmd := c.command(reference, change...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var a job.Answer
	if jerr := json.Unmarshal(out.Bytes(), &a); err != nil || jerr != nil {
		t.Fatalf("engine-image: %v, %v\n%s%s", err, jerr, out.String(), errs.String())
	}
	return a
}

// checkKind checks why a pull was refused, and that it says what to do.
func checkKind(t testing.TB, a job.Answer, kind, inFix string) {
	t.Helper()
	if a.Failure == nil {
		t.Errorf("the pull worked, want a failure of kind %s", kind)
		return
	}
	if a.Failure.Kind != kind || !strings.Contains(a.Failure.Fix, inFix) {
		t.Errorf("failure = %+v, want kind %s and a fix with %q", *a.Failure, kind, inFix)
	}
	if strings.Contains(a.Failure.Message, password) || strings.Contains(a.Failure.Message, token) {
		t.Errorf("the message holds a secret: %s", a.Failure.Message)
	}
}

// checkClean proves that a store holds nothing but these images.
func (c client) checkClean(t testing.TB, names ...string) {
	t.Helper()
	images, err := c.store.List()
	must(t, err)
	needed := map[string]bool{}
	var got []string
	for _, img := range images {
		got = append(got, img.Name)
		for _, l := range img.Layers {
			needed[l.Key] = true
			if _, err := os.Stat(c.store.Tree(l.Key)); err != nil {
				t.Errorf("image %s lacks a layer: %v", img.Name, err)
			}
		}
	}
	if strings.Join(got, " ") != strings.Join(names, " ") {
		t.Errorf("the store has the images %v, want %v", got, names)
	}
	entries, err := os.ReadDir(filepath.Join(c.store.Dir, ".layers"))
	must(t, err)
	for _, e := range entries {
		if !needed[strings.TrimSuffix(e.Name(), ".lock")] {
			t.Errorf("the store has the layer %s of no image", e.Name())
		}
	}
	if temps, err := filepath.Glob(filepath.Join(c.store.Dir, ".tmp-*")); err != nil || len(temps) != 0 {
		t.Errorf("left over: %v, %v", temps, err)
	}
}
