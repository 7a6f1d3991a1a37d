package network

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/direct-oci/engine/engine"
)

// clients are programs as people use them, with no word about a proxy, but for the last
// ones. denied is what they say about a host that does not exist for them.
var clients = []struct {
	name, command, says string
	denied              *regexp.Regexp
}{
	{"curl", `curl -sS --cacert $CA https://web.test/hello`, "served web.test to /hello", regexp.MustCompile(`Could not resolve host`)},
	{"curl, http", `curl -sS http://web.test/hello`, "served web.test to /hello", regexp.MustCompile(`Could not resolve host`)},
	{"node", `NODE_EXTRA_CA_CERTS=$CA node -e 'fetch("https://web.test/hello").then(r => r.text()).then(console.log)'`, "served web.test to /hello", regexp.MustCompile(`ENOTFOUND`)},
	{"python", `SSL_CERT_FILE=$CA python3 -c 'import urllib.request; print(urllib.request.urlopen("https://web.test/hello").read())'`, "served web.test to /hello", regexp.MustCompile(`Name or service not known|No address associated`)},
	{"npm", `cd /tmp && npm install --no-audit --no-fund --fetch-retries 0 --cafile $CA --registry https://web.test/npm/ tiny-of-test && node -e 'console.log(require("tiny-of-test"))'`, "a tiny package", regexp.MustCompile(`ENOTFOUND`)},
	{"pip", `pip3 install --break-system-packages --quiet --disable-pip-version-check --target /tmp/lib --cert $CA --index-url https://web.test/simple/ tiny-of-test && PYTHONPATH=/tmp/lib python3 -c 'import tiny_of_test'`, "a tiny wheel", regexp.MustCompile(`Name or service not known|No address associated|No matching distribution`)},
	{"git", `GIT_SSL_CAINFO=$CA git clone -q https://web.test/git/tiny.git /tmp/tiny && cat /tmp/tiny/README`, "a tiny repository", regexp.MustCompile(`Could not resolve host`)},
	{"curl through the proxy", `curl -sS --cacert $CA --proxy http://100.64.0.1:3128 https://web.test/hello`, "served web.test to /hello", regexp.MustCompile(`403`)},
	{"curl through SOCKS", `curl -sS --cacert $CA --proxy socks5h://100.64.0.1:3128 https://web.test/hello`, "served web.test to /hello", regexp.MustCompile(`\(97\).*\(2\)|not allowed`)},
}

// TestClients runs each where its host is allowed and where it is not.
func TestClients(t *testing.T) {
	image, err := filepath.Abs("../../build/clients/root")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(image + "/usr/bin/npm"); err != nil {
		t.Skip("needs build/clients/root: run make test-network, which has hack/clients.sh make it")
	}
	eachRuntime(t, func(t *testing.T, runtime string) {
		b := newBed(t)
		b.world.web.serveRegistries(t)
		ca, err := os.ReadFile(b.world.web.ca)
		if err != nil {
			t.Fatal(err)
		}
		prelude := "export HOME=/tmp CA=/tmp/ca.pem\ncat >$CA <<'END'\n" + string(ca) + "END\n"
		for _, c := range clients {
			t.Run(c.name, func(t *testing.T) {
				out, r := b.script(runtime, image, []string{"--allow", "web.test"}, prelude+c.command)
				if r.ExitCode == nil || *r.ExitCode != 0 || !strings.Contains(out, c.says) {
					t.Errorf("allowed: %s\n%s", why(r), out)
				}
				out, r = b.script(runtime, image, []string{"--allow", "ok.test"}, prelude+c.command)
				if r.ExitCode == nil || *r.ExitCode == 0 || !c.denied.MatchString(out) || len(r.Network.Denied) == 0 {
					t.Errorf("denied: %s\n%s\nwant it to fail and to say %s", why(r), out, c.denied)
				}
				t.Logf("denied after %.0f ms", r.DurationMs)
			})
		}
	})
}

// script runs a shell script in a sandbox of an image.
func (b *bed) script(runtime, image string, flags []string, script string) (string, engine.Result) {
	b.t.Helper()
	s := b.startProgram(runtime, append([]string{"--rootfs", image, "--memory", "1GiB", "--pids", "512", "--tmp-size", "256MiB"}, flags...), "/bin/sh", "-c", "exec 2>&1\n"+script)
	s.stdin.Close()
	var out strings.Builder
	for line := range s.said {
		fmt.Fprintln(&out, line)
	}
	s.cmd.Wait() // its status is in the result
	return out.String() + s.stderr.String(), s.result()
}

// serveRegistries has the web server offer a package of each kind.
func (w *webServer) serveRegistries(t *testing.T) {
	t.Helper()
	tarball := npmTarball(t)
	sum := sha512.Sum512(tarball)
	meta, err := json.Marshal(map[string]any{
		"name": "tiny-of-test", "dist-tags": map[string]string{"latest": "1.0.0"},
		"versions": map[string]any{"1.0.0": map[string]any{
			"name": "tiny-of-test", "version": "1.0.0",
			"dist": map[string]string{"tarball": "https://web.test/npm/tiny.tgz", "integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:])},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	serve := func(path, kind string, data []byte) {
		w.mux.HandleFunc("GET "+path, func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Type", kind)
			rw.Write(data)
		})
	}
	serve("/npm/tiny-of-test", "application/json", meta)
	serve("/npm/tiny.tgz", "application/octet-stream", tarball)
	const wheel = "tiny_of_test-1.0-py3-none-any.whl"
	serve("/simple/tiny-of-test/", "text/html", []byte(`<!DOCTYPE html><a href="/wheels/`+wheel+`">`+wheel+`</a>`))
	serve("/wheels/"+wheel, "application/octet-stream", pythonWheel(t))
	w.mux.Handle("GET /git/", http.StripPrefix("/git/", http.FileServer(http.Dir(gitRepository(t)))))
}

func npmTarball(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for name, text := range map[string]string{
		"package/package.json": `{"name":"tiny-of-test","version":"1.0.0","main":"index.js"}`,
		"package/index.js":     `module.exports = "a tiny package"`,
	} {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func pythonWheel(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	const info = "tiny_of_test-1.0.dist-info/"
	for name, text := range map[string]string{
		"tiny_of_test/__init__.py": "print('a tiny wheel')\n",
		info + "METADATA":          "Metadata-Version: 2.1\nName: tiny-of-test\nVersion: 1.0\n",
		info + "WHEEL":             "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		info + "RECORD":            "tiny_of_test/__init__.py,,\n" + info + "METADATA,,\n" + info + "WHEEL,,\n" + info + "RECORD,,\n",
	} {
		w, err := z.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// gitRepository makes a repository that can be cloned from a server of plain files.
func gitRepository(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Fatal("git is needed to make a repository")
	}
	dir := t.TempDir()
	script := `git init -q work && cd work && echo 'a tiny repository' >README && git add README &&
		git -c user.name=t -c user.email=t@web.test commit -q -m tiny &&
		git clone -q --bare . ../tiny.git && git --git-dir ../tiny.git update-server-info`
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+dir, "GIT_CONFIG_NOSYSTEM=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cannot make a repository: %v\n%s", err, out)
	}
	return dir
}
