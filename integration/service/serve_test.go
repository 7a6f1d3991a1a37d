package service

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/direct-oci/engine/client"
	"github.com/direct-oci/engine/client/wire"
	"github.com/direct-oci/engine/integration/testenv"
)

// killMonitor kills the only monitor of the bed.
func killMonitor(t *testing.T, b *bed) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(b.groups.Group("mon").Dir, "cgroup.procs"))
	if err != nil {
		t.Fatal(err)
	}
	pids := strings.Fields(string(data))
	if len(pids) != 1 {
		t.Fatalf("monitors = %q, want one", pids)
	}
	pid, err := strconv.Atoi(pids[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// TestOneServiceForAState refuses a second one by name.
func TestOneServiceForAState(t *testing.T) {
	b := newBed(t, "")
	b.start()
	call := testenv.Exec(t, "serve", "--config", b.path("config.yaml"))
	if call.Status != 125 || !strings.Contains(call.Stderr, fmt.Sprintf("process %d does so already", b.cmd.Process.Pid)) {
		t.Errorf("%s", call)
	}
	// Another state behind the same socket is no better.
	call = testenv.Exec(t, "serve", "--config", b.path("config.yaml"), "--state-dir", b.path("other"))
	if call.Status != 125 || !strings.Contains(call.Stderr, "somebody does so already") {
		t.Errorf("%s", call)
	}
}

// childEnv makes the test's own program ask for the version at this socket and print what
// it is told.
const childEnv = "ENGINE_TEST_PEER"

func TestMain(m *testing.M) {
	if socket := os.Getenv(childEnv); socket != "" {
		os.Exit(askAsPeer(socket))
	}
	if socket := os.Getenv(bareVariable); socket != "" {
		beBareServer(socket)
		return
	}
	if text := os.Getenv(soakClientVariable); text != "" {
		beSoakClient(text)
		return
	}
	os.Exit(m.Run())
}

func askAsPeer(socket string) int {
	c := client.Unix(socket)
	v, err := c.Version(context.Background())
	fmt.Println(v.Caller.Name, v.Caller.Class, v.Caller.Tenant, err)
	if err == nil {
		_, err = c.SetDraining(context.Background(), true)
		fmt.Println(err)
	}
	return 0
}

// TestPeers asks as other users of the host, by processes of theirs.
func TestPeers(t *testing.T) {
	b := newBed(t, "  access:\n    - {user: '4001', allow: read}\n    - {group: '4100', allow: run, tenant: shop}\n")
	b.start()
	program := b.path("peer")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(self)
	if err == nil {
		err = os.WriteFile(program, data, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name   string
		uid    uint32
		groups []uint32
		want   string
	}{
		{"a stranger", 4000, nil, "cannot let uid 4000 do anything"},
		{"a user who may read", 4001, nil, "uid 4001 read  <nil>\ncannot let uid 4001 do this: it needs the class admin"},
		{"a member of a group", 4002, []uint32{4100}, "uid 4002 run shop <nil>\ncannot let uid 4002 do this"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cmd := exec.Command(program)
			cmd.Dir = "/"
			cmd.Env = []string{childEnv + "=" + b.socket()}
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: tt.uid, Gid: tt.uid, Groups: tt.groups}}
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), tt.want) {
				t.Errorf("was told %q (%v), want %q", out, err, tt.want)
			}
		})
	}
}

// TestReload puts a new config into force, and keeps the old one when the new one is wrong
// or cannot be taken over.
func TestReload(t *testing.T) {
	b := newBed(t, "")
	c, ctx := b.start(), patient(t)
	reload := func(says string) {
		t.Helper()
		before := strings.Count(b.log.String(), says)
		if err := b.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		b.until(says, func() bool { return strings.Count(b.log.String(), says) > before })
		if _, err := c.Version(ctx); err != nil {
			t.Errorf("after a reload: %v", err)
		}
	}
	b.configure("  sokcet: /x\n")
	reload("did you mean socket?")
	b.configure("  socket: /elsewhere\n")
	reload("cannot change service.socket")
	b.configure("  access: [{user: no-such-user-here, allow: read}]\n")
	reload("no-such-user-here")
	b.configure("  access: [{user: '4001', allow: read}]\n")
	reload("a new config is in force")
	figures, err := c.Metrics(ctx)
	if err != nil || !strings.Contains(string(figures), `engine_config_reloads_total{result="refused"} 3`) {
		t.Errorf("the refusals are not counted: %v", err)
	}
}

// TestSystemd takes over a socket, and tells what systemd wants to know.
func TestSystemd(t *testing.T) {
	b := newBed(t, "")
	told, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: b.path("notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer told.Close()
	socket, err := net.ListenUnix("unix", &net.UnixAddr{Name: b.path("handed.sock"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	file, err := socket.File()
	if err != nil {
		t.Fatal(err)
	}
	// A shell knows its pid before the service has it.
	cmd := exec.Command("sh", "-c", `LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"`, "sh", testenv.Binary(t, "engine"), "serve", "--config", b.path("config.yaml"))
	cmd.ExtraFiles = []*os.File{file}
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+b.path("notify"), "WATCHDOG_USEC=600000")
	cmd.Stderr = b.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	b.cmd = cmd
	expect := func(want string) {
		t.Helper()
		buf := make([]byte, 4096)
		told.SetReadDeadline(time.Now().Add(testenv.Patience))
		for {
			n, err := told.Read(buf)
			if err != nil {
				t.Fatalf("was never told %s: %v\n%s", want, err, b.log)
			}
			if strings.Contains(string(buf[:n]), want) {
				return
			}
		}
	}
	expect("READY=1")
	c := client.Unix(b.path("handed.sock"))
	defer c.Close()
	if _, err := c.Version(patient(t)); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(b.socket()); err == nil {
		t.Error("it has made a socket of its own too")
	}
	expect("WATCHDOG=1")
	if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	expect("RELOADING=1\nMONOTONIC_USEC=")
	expect("READY=1")
	b.stopExpecting(func() { expect("STOPPING=1") })
	if _, err := os.Stat(b.path("handed.sock")); err != nil {
		t.Errorf("systemd's socket is gone: %v", err)
	}
	// Nobody sees to it any more: the watchdog would bite.
	socket.Close()
}

func (b *bed) stopExpecting(f func()) {
	b.t.Helper()
	if err := b.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		b.t.Fatal(err)
	}
	f()
	if err := b.cmd.Wait(); err != nil {
		b.t.Errorf("the service ended with %v\n%s", err, b.log)
	}
	b.cmd = nil
}

// TestHealthMeansIt tells what keeps runs from starting, each with its reason.
func TestHealthMeansIt(t *testing.T) {
	b := newBed(t, "")
	// Programs of the bed's own, of which one can be replaced.
	bin := b.path("bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	programs, err := filepath.Glob(filepath.Join(filepath.Dir(testenv.Binary(t, "engine")), "engine*"))
	if err != nil || len(programs) < 4 {
		t.Fatalf("found the programs %q (%v)", programs, err)
	}
	for _, path := range programs {
		data, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(filepath.Join(bin, filepath.Base(path)), data, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv(testenv.BinEnv, bin)
	c, ctx := b.start(), patient(t)
	if h, err := c.Ready(ctx); err != nil || !h.OK {
		t.Fatalf("at first: %+v, %v", h, err)
	}
	failing := func(name, kind, fix string) {
		t.Helper()
		h, err := c.Ready(ctx)
		if err != nil || h.OK {
			t.Fatalf("%s: %+v, %v", kind, h, err)
		}
		for _, check := range h.Checks {
			if check.Name == name && !check.OK && check.Kind == kind && strings.Contains(check.Fix, fix) {
				return
			}
		}
		t.Errorf("want the check %s to fail with %s: %+v", name, kind, h)
	}
	if _, err := c.SetDraining(ctx, true); err != nil {
		t.Fatal(err)
	}
	failing("drain", "draining", "PUT /v1/drain")
	if h, err := c.Health(ctx); err != nil || !h.OK {
		t.Errorf("draining is no illness: %+v, %v", h, err)
	}
	if _, err := c.StartRun(ctx, script("true")); !client.IsKind(err, "draining") {
		t.Errorf("started while draining: %v", err)
	}
	if _, err := c.SetDraining(ctx, false); err != nil {
		t.Fatal(err)
	}
	monitor := filepath.Join(bin, "engine-monitor")
	if err := os.Remove(monitor); err != nil {
		t.Fatal(err)
	}
	failing("start", "not_installed", "beside engine")
	if err := os.WriteFile(monitor, []byte("#!/bin/sh\necho another\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	failing("start", "version_mismatch", "together")
}

// TestHealthKnowsTheLimits compares health with a start where limits have to be kept, on
// hosts that can keep them and on those that cannot.
func TestHealthKnowsTheLimits(t *testing.T) {
	b := newBed(t, "")
	b.configure("")
	text, err := os.ReadFile(b.path("config.yaml"))
	if err == nil {
		text = []byte(strings.Replace(string(text), "service:\n  bestEffortLimits: true", "service:\n  bestEffortLimits: false", 1))
		err = os.WriteFile(b.path("config.yaml"), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	c, ctx := b.start(), patient(t)
	h, err := c.Health(ctx)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.StartRun(ctx, script("true"))
	if h.OK != (err == nil) || !h.OK && (h.Checks[0].Kind != "no_limit" || !client.IsKind(err, "no_limit")) {
		t.Errorf("health says %+v, and a start %v", h, err)
	}
}

// TestTCP speaks TLS with a token and with a certificate, and to nobody else.
func TestTCP(t *testing.T) {
	b := newBed(t, "")
	ca := newCA(t, b)
	ca.sign("server", "localhost")
	ca.sign("client", "panel")
	token := "a-token-of-this-test"
	hash := sha256.Sum256([]byte(token))
	port := freePort(t)
	b.configure(fmt.Sprintf(`  tcp:
    listen: 127.0.0.1:%d
    certificate: %s
    key: %s
    clientCA: %s
    clients: {panel: {allow: read}}
    tokens: {ci: {sha256: %s, allow: run, tenant: shop}}
`, port, b.path("server.crt"), b.path("server.key"), b.path("ca.crt"), hex.EncodeToString(hash[:])))
	b.start()
	address, ctx := fmt.Sprintf("localhost:%d", port), patient(t)
	trust := &tls.Config{RootCAs: ca.pool}
	who := func(c *client.Client) (wire.VersionInfo, error) {
		defer c.Close()
		c.Patience = -1
		return c.Version(ctx)
	}
	if v, err := who(client.TLS(address, token, trust)); err != nil || v.Caller != (wire.Caller{Name: "token ci", Class: "run", Tenant: "shop"}) {
		t.Errorf("with a token: %+v, %v", v, err)
	}
	if _, err := who(client.TLS(address, "wrong", trust)); !client.IsKind(err, "unauthorised") {
		t.Errorf("with a wrong token: %v", err)
	}
	if _, err := who(client.TLS(address, "", trust)); !client.IsKind(err, "unauthorised") {
		t.Errorf("with nothing: %v", err)
	}
	pair, err := tls.LoadX509KeyPair(b.path("client.crt"), b.path("client.key"))
	if err != nil {
		t.Fatal(err)
	}
	withCertificate := &tls.Config{RootCAs: ca.pool, Certificates: []tls.Certificate{pair}}
	if v, err := who(client.TLS(address, "", withCertificate)); err != nil || v.Caller.Name != "certificate panel" || v.Caller.Class != "read" {
		t.Errorf("with a certificate: %+v, %v", v, err)
	}
	if res, err := http.Get("http://" + address + "/v1/version"); err == nil {
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != 400 || bytes.Contains(body, []byte("version")) {
			t.Errorf("without TLS: status %d %q", res.StatusCode, body)
		}
	}
	if err := os.WriteFile(b.path("token"), []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	remote := func(verb string, args ...string) testenv.Result {
		return testenv.Exec(t, append([]string{"sandbox", verb, "--url", "https://" + address, "--ca-file", b.path("ca.crt")}, args...)...)
	}
	if r := remote("create", "--token-file", b.path("token"), "one", "--image", "box", "--runtime", "embedded"); r.Status != 0 {
		t.Errorf("engine sandbox with a token: %s", r)
	}
	if r := remote("exec", "--token-file", b.path("token"), "-t", "one", "stty", "size"); r.Status != 0 || r.Stdout != "24 80\r\n" {
		t.Errorf("engine sandbox exec -t with a token: %s", r)
	}
	if r := remote("ls", "--json"); r.Status != 125 || !strings.Contains(r.Stdout, `"kind":"unauthorised"`) || !strings.Contains(r.Stdout, "--token-file") {
		t.Errorf("engine sandbox without one: %s", r)
	}
	if strings.Contains(b.log.String(), token) {
		t.Error("a token is in the log")
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// authority signs certificates of the test.
type authority struct {
	t    *testing.T
	b    *bed
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newCA(t *testing.T, b *bed) *authority {
	t.Helper()
	a := &authority{t: t, b: b, pool: x509.NewCertPool()}
	a.cert, a.key = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, newKey(t)
	a.write("ca", a.cert, a.key)
	data, err := os.ReadFile(b.path("ca.crt"))
	if err != nil || !a.pool.AppendCertsFromPEM(data) {
		t.Fatalf("cannot read the CA: %v", err)
	}
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (a *authority) sign(file, name string) {
	a.write(file, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, newKey(a.t))
}

func (a *authority) write(file string, cert *x509.Certificate, key *ecdsa.PrivateKey) {
	a.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, cert, a.cert, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{".crt": {Type: "CERTIFICATE", Bytes: der}, ".key": {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(a.b.path(file+name), pem.EncodeToMemory(block), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
}

// TestTotalsAreThoseOfTheCgroup gives out no more than the cgroup of all runs may have.
func TestTotalsAreThoseOfTheCgroup(t *testing.T) {
	if !testenv.InVM() {
		t.Skip("needs the memory controller: make test-vm")
	}
	testenv.RequireCgroup(t, "memory")
	b := newBed(t, "")
	if err := os.WriteFile(filepath.Join(b.groups.Root, "memory.max"), []byte("536870912"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, ctx := b.start(), patient(t)
	text, err := c.Metrics(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if want := `engine_admission_total{resource="memory"} 5.36870912e+08`; !strings.Contains(string(text), want) {
		t.Errorf("the totals are not %s", want)
	}
	large := box("large")
	large.MemoryMB = 1024
	if _, err := c.CreateSandbox(ctx, large); !client.IsKind(err, "quota") {
		t.Errorf("more than there is: %v", err)
	}
}
