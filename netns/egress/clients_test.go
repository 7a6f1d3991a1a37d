package egress

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// program runs a program of this host in the sandbox's namespace, with the
// sandbox's resolv.conf and hosts, and returns what it printed.
func (w *world) program(t *testing.T, args ...string) string {
	t.Helper()
	path, err := exec.LookPath(args[0])
	if err != nil {
		t.Skipf("needs %s", args[0])
	}
	dir := t.TempDir()
	files := map[string]string{"/etc/resolv.conf": ResolvConf(), "/etc/hosts": Hosts("sandbox")}
	var out []byte
	w.in(t, w.gateway.Sandbox(), func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
			return err
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
		for target, text := range files {
			source := filepath.Join(dir, filepath.Base(target))
			if err := os.WriteFile(source, []byte(text), 0o644); err != nil {
				return err
			}
			if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
				return err
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, path, args[1:]...)
		cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + dir}
		out, _ = cmd.CombinedOutput()
		return nil
	})
	return string(out)
}

// selfSigned is a certificate for a test's server.
func selfSigned(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"web.example"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func TestProgramsNeedNoSetting(t *testing.T) {
	w := newWorld(t, policy(t, "web.example", "203.0.113.40/32:80"))
	w.dns.set("web.example", "203.0.113.1")
	hello := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { rw.Write([]byte("hello " + r.Host + "\n")) })
	for _, port := range []string{"80", "443"} {
		server := &http.Server{Handler: hello, TLSConfig: &tls.Config{Certificates: []tls.Certificate{selfSigned(t)}}}
		t.Cleanup(func() { server.Close() })
		var l net.Listener
		w.in(t, w.internet, func() (err error) { l, err = net.Listen("tcp", "[::]:"+port); return err })
		if port == "443" {
			go server.ServeTLS(l, "", "")
		} else {
			go server.Serve(l)
		}
	}
	const python = `import urllib.request, ssl
print(urllib.request.urlopen("https://web.example/", context=ssl._create_unverified_context()).read().decode())`
	tests := []struct {
		name string
		args []string
		want string
	}{
		{"curl http", []string{"curl", "-sS", "http://web.example/"}, "hello web.example"},
		{"curl https", []string{"curl", "-sSk", "https://web.example/"}, "hello web.example"},
		{"curl, address", []string{"curl", "-sS", "http://203.0.113.40/"}, "hello 203.0.113.40"},
		{"curl, CONNECT", []string{"curl", "-sSk", "-x", "http://100.64.0.1:3128", "https://web.example/"}, "hello web.example"},
		{"curl, proxied http", []string{"curl", "-sS", "-x", "http://100.64.0.1:3128", "http://web.example/"}, "hello web.example"},
		{"curl, SOCKS", []string{"curl", "-sSk", "--socks5-hostname", "100.64.0.1:3128", "https://web.example/"}, "hello web.example"},
		{"curl, denied name", []string{"curl", "-sS", "http://evil.example/"}, "Could not resolve host"},
		{"curl, denied address", []string{"curl", "-sS", "http://203.0.113.41/"}, "Couldn't connect"},
		{"curl, denied by CONNECT", []string{"curl", "-sSk", "-x", "http://100.64.0.1:3128", "https://evil.example/"}, "403"},
		{"curl, denied by the proxy", []string{"curl", "-sS", "-x", "http://100.64.0.1:3128", "http://evil.example/"}, "--allow evil.example:80"},
		{"curl, denied by SOCKS", []string{"curl", "-sSk", "--socks5-hostname", "100.64.0.1:3128", "https://evil.example/"}, "(2)"},
		{"curl, denied host", []string{"curl", "-sS", "-H", "Host: evil.example", "http://web.example/"}, "reset"},
		{"python", []string{"python3", "-c", python}, "hello web.example"},
		{"getent", []string{"getent", "ahostsv4", "web.example"}, "198.18.0.1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			began := time.Now()
			if got := w.program(t, tt.args...); !strings.Contains(got, tt.want) {
				t.Errorf("%q printed %q, want %q in it", tt.args, got, tt.want)
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}
