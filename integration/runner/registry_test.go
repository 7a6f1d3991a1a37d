package runner

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The registry, in the tests' own network namespace.
const (
	farAddr = "203.0.113.77"
	farName = "registry.test"
)

// The process's first thread cannot end, so no test may be on it.
func init() { runtime.LockOSThread() }

// ownNetwork puts the calling test, and the programs that it starts, into a network
// namespace with nothing but farAddr, and where farName is known. Its thread ends with
// the test.
func ownNetwork(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	hosts := filepath.Join(t.TempDir(), "hosts")
	err := errors.Join(
		os.WriteFile(hosts, []byte(farAddr+" "+farName+"\n"), 0o644),
		unix.Unshare(unix.CLONE_NEWNET|unix.CLONE_FS|unix.CLONE_NEWNS),
	)
	if err == nil {
		err = errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount(hosts, "/etc/hosts", "", unix.MS_BIND, ""))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount("/etc/hosts", unix.MNT_DETACH) }) // so that the file can be removed
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err == nil {
		err = netlink.AddrAdd(lo, &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(farAddr), Mask: net.CIDRMask(32, 32)}})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// registry serves packages for npm and pip, and notes what it was asked for.
type registry struct {
	t         testing.TB
	server    *httptest.Server
	url       string
	mu        sync.Mutex
	asked     []string
	wheels    map[string][]byte // by name of the file
	npm       map[string][]byte // tarballs, by name
	manifests map[string]string // their package.json
	hold      chan struct{}     // if not nil, tarballs wait for it
}

func newRegistry(t *testing.T, secure bool) *registry {
	t.Helper()
	l, err := net.Listen("tcp", farAddr+":0")
	if err != nil {
		t.Fatal(err)
	}
	r := &registry{t: t, wheels: map[string][]byte{}, npm: map[string][]byte{}, manifests: map[string]string{}}
	r.server = httptest.NewUnstartedServer(http.HandlerFunc(r.serve))
	r.server.Listener.Close()
	r.server.Listener = l
	scheme := "http://"
	if secure {
		scheme = "https://"
		r.server.TLS = tlsFor(t, farName)
		r.server.StartTLS()
	} else {
		r.server.Start()
	}
	t.Cleanup(r.server.Close)
	r.url = fmt.Sprintf("%s%s:%d", scheme, farName, l.Addr().(*net.TCPAddr).Port)
	return r
}

func (r *registry) serve(w http.ResponseWriter, q *http.Request) {
	r.mu.Lock()
	r.asked = append(r.asked, q.URL.Path)
	hold := r.hold
	r.mu.Unlock()
	kind, rest, _ := strings.Cut(strings.TrimPrefix(q.URL.Path, "/"), "/")
	name := strings.TrimSuffix(strings.TrimSuffix(rest, "/"), ".tgz")
	data, known := r.npm[name]
	switch {
	case kind == "npm" && known && strings.HasSuffix(rest, ".tgz"):
		if hold != nil {
			select {
			case <-hold:
			case <-q.Context().Done():
			}
		}
		w.Write(data)
	case kind == "npm" && known:
		version := map[string]any{}
		json.Unmarshal([]byte(r.manifests[name]), &version)
		version["dist"] = map[string]string{"tarball": r.url + "/npm/" + name + ".tgz", "integrity": integrity(data)}
		json.NewEncoder(w).Encode(map[string]any{
			"name": name, "dist-tags": map[string]string{"latest": "1.0.0"}, "versions": map[string]any{"1.0.0": version},
		})
	case kind == "simple":
		w.Header().Set("Content-Type", "text/html")
		for file, data := range r.wheels {
			if strings.HasPrefix(file, strings.ReplaceAll(name, "-", "_")+"-") {
				fmt.Fprintf(w, `<!DOCTYPE html><a href="/wheels/%s#sha256=%s">%s</a>`, file, sum256(data), file)
			}
		}
	case kind == "wheels" && r.wheels[rest] != nil:
		w.Write(r.wheels[rest])
	default:
		http.NotFound(w, q)
	}
}

// config is what a runner's config says of the registry under a key. Its address has to
// be granted too, since it is one of the host's.
func (r *registry) config(path string) string {
	return fmt.Sprintf("{registry: '%s%s', hosts: ['%s/32:%d']}", r.url, path, farAddr, r.server.Listener.Addr().(*net.TCPAddr).Port)
}

// visits are the paths that were asked for with this end since the last call.
func (r *registry) visits(end string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, path := range r.asked {
		if strings.HasSuffix(path, end) {
			n++
		}
	}
	r.asked = nil
	return n
}

// pack adds an npm package of these files, and package.json if that is not among them.
func (r *registry) pack(name string, files map[string]string) {
	r.t.Helper()
	if files["package.json"] == "" {
		files["package.json"] = `{"name":"` + name + `","version":"1.0.0","main":"index.js"}`
	}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for path, text := range files {
		if err := w.WriteHeader(&tar.Header{Name: "package/" + path, Mode: 0o644, Size: int64(len(text))}); err != nil {
			r.t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			r.t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		r.t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		r.t.Fatal(err)
	}
	r.npm[name], r.manifests[name] = b.Bytes(), files["package.json"]
}

// lock is a package-lock.json of these packages. Each says that it comes from host.
func (r *registry) lock(host string, names ...string) string {
	wants := map[string]string{}
	packages := map[string]any{}
	for _, name := range names {
		wants[name] = "1.0.0"
		packages["node_modules/"+name] = map[string]any{
			"version": "1.0.0", "resolved": host + "/npm/" + name + ".tgz", "integrity": integrity(r.npm[name]),
		}
	}
	packages[""] = map[string]any{"name": "job", "dependencies": wants}
	text, err := json.Marshal(map[string]any{"name": "job", "lockfileVersion": 3, "requires": true, "packages": packages})
	if err != nil {
		r.t.Fatal(err)
	}
	return string(text)
}

func manifest(names ...string) string {
	var wants []string
	for _, name := range names {
		wants = append(wants, `"`+name+`":"1.0.0"`)
	}
	return `{"name":"job","dependencies":{` + strings.Join(wants, ",") + `}}`
}

// wheel adds a Python package of one module, and returns its line of a lock.
func (r *registry) wheel(name, code string) string {
	r.t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	info := name + "-1.0.dist-info/"
	for path, text := range map[string]string{
		name + "/__init__.py": code,
		info + "METADATA":     "Metadata-Version: 2.1\nName: " + name + "\nVersion: 1.0\n",
		info + "WHEEL":        "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		info + "RECORD":       name + "/__init__.py,,\n" + info + "METADATA,,\n" + info + "WHEEL,,\n" + info + "RECORD,,\n",
	} {
		w, err := z.Create(path)
		if err != nil {
			r.t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			r.t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		r.t.Fatal(err)
	}
	r.wheels[name+"-1.0-py3-none-any.whl"] = b.Bytes()
	return name + "==1.0 --hash=sha256:" + sum256(b.Bytes()) + "\n"
}

func integrity(data []byte) string {
	sum := sha512.Sum512(data)
	return "sha512-" + base64.StdEncoding.EncodeToString(sum[:])
}

func sum256(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// ca is the certificate of a secure registry, as PEM.
func (r *registry) ca() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.server.Certificate().Raw}))
}
