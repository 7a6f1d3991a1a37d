package registry_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/direct-oci/engine/rootfs/image/job"
)

// layerOf is a layer of one file of n bytes that do not compress, the same for the
// same seed.
func layerOf(t testing.TB, seed uint64, n int) v1.Layer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	content := make([]byte, n)
	_, err := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(content)
	must(t, err)
	must(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprint("f", seed), Mode: 0o644, Size: int64(n)}))
	_, err = w.Write(content)
	must(t, err, w.Close())
	data := b.Bytes()
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil })
	must(t, err)
	return l
}

func imageOf(t testing.TB, layers ...v1.Layer) v1.Image {
	t.Helper()
	img, err := mutate.AppendLayers(empty.Image, layers...)
	must(t, err)
	c, err := img.ConfigFile()
	must(t, err)
	c.OS, c.Architecture = "linux", runtime.GOARCH
	c.Config.Cmd = []string{"/bin/true"}
	img, err = mutate.ConfigFile(img, c)
	must(t, err)
	return img
}

func TestPull(t *testing.T) {
	s := newServer(t)
	c := s.client(t)
	img := imageOf(t, layerOf(t, 1, 100_000), layerOf(t, 2, 1000))
	ref := s.push(t, "team/app:1", img)
	digest, err := img.Digest()
	must(t, err)
	a := c.pull(t, ref)
	if a.Failure != nil || a.Image.Digest != digest.String() || a.Image.Source != ref || len(a.Image.Layers) != 2 {
		t.Fatalf("answer = %+v %+v, want the image %s", a.Failure, a.Image, digest)
	}
	stored, err := c.store.Open("x")
	must(t, err)
	st, err := os.Stat(filepath.Join(stored.Lowers[0], "f2"))
	if err != nil || st.Size() != 1000 {
		t.Errorf("the top layer's file is %v, %v", st, err)
	}
	s.set(func() { clear(s.counts) })
	again := c.pull(t, s.host+"/team/app@"+digest.String(), func(j *job.Job) { j.Name = "" })
	if again.Failure != nil || again.Image.Digest != digest.String() || again.Image.Name != s.host+"/team/app@"+digest.String() {
		t.Errorf("pull by digest = %+v %+v", again.Failure, again.Image)
	}
	s.set(func() {
		for blob, n := range s.counts {
			if m, err := img.Manifest(); err != nil || blob != m.Config.Digest.String() {
				t.Errorf("blob %s of an image that is there was asked for %d times", blob, n)
			}
		}
	})
	start := time.Now()
	if a := c.pull(t, ref); a.Failure != nil || a.Image.Digest != digest.String() {
		t.Errorf("second pull = %+v %+v", a.Failure, a.Image)
	}
	t.Logf("second pull of an image that is there: %v, with the start of a process, TLS and a token", time.Since(start))
	c.checkClean(t, s.host+"/team/app@"+digest.String(), "x")
	// A tag that moves takes the name along; the old image is of no use any more.
	s.push(t, "team/app:1", imageOf(t, layerOf(t, 3, 1000)))
	if a := c.pull(t, ref); a.Failure != nil || a.Image.Digest == digest.String() {
		t.Errorf("pull of a moved tag = %+v %+v", a.Failure, a.Image)
	}
	_, err = c.store.Remove(s.host + "/team/app@" + digest.String())
	must(t, err)
	c.checkClean(t, "x")
}

func TestPullRefused(t *testing.T) {
	s := newServer(t)
	c := s.client(t)
	ref := s.push(t, "team/app:1", imageOf(t, layerOf(t, 1, 1000)))
	bare, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	closed := bare.Addr().String()
	must(t, bare.Close())
	wrong := filepath.Join(t.TempDir(), "config.json")
	must(t, os.WriteFile(wrong, []byte(`{"auths":{"`+s.host+`":{"auth":"Ym9iOm5vdC1pdA=="}}}`), 0o600))
	plain := newPlain(t)
	tests := []struct {
		name, ref, kind, fix string
		change               func(*job.Job)
	}{
		{"without credentials", ref, "unauthorised", "log in to " + s.host, func(j *job.Job) { j.AuthFile = emptyAuth(t) }},
		{"with wrong ones", ref, "unauthorised", "still valid", func(j *job.Job) { j.AuthFile = wrong }},
		{"no such tag", s.host + "/team/app:2", "not_found", "the tag", nil},
		{"no such repository", s.host + "/team/other:1", "not_found", "check the name", nil},
		{"nobody listens", closed + "/a:1", "no_route", "--mirror", nil},
		{"no such host", "nothing.invalid/a:1", "no_route", "", nil},
		{"a certificate of nobody's", ref, "not_trusted", "--ca-file", func(j *job.Job) { j.CAFile = "" }},
		{"plain HTTP", plain + "/a:1", "not_trusted", "--plain-http " + plain, nil},
		{"no reference", "Not A Reference", "bad_image", "lower-case", nil},
		{"no reference, under another name", "Not A Reference", "bad_reference", "node:20", func(j *job.Job) { j.Name = "x" }},
		{"no certificate file", ref, "bad_reference", "", func(j *job.Job) { j.CAFile = "/nonexistent" }},
		{"another machine", ref, "bad_image", "linux/s390x", func(j *job.Job) { j.Platform = "linux/s390x" }},
		{"no platform", ref, "bad_image", "linux/amd64", func(j *job.Job) { j.Platform = "plan9/!" }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := c.pull(t, tt.ref, func(j *job.Job) { j.Name = "" }, func(j *job.Job) {
				if tt.change != nil {
					tt.change(j)
				}
			})
			checkKind(t, a, tt.kind, tt.fix)
			t.Log(a.Failure.Message)
		})
	}
	if a := c.pull(t, plain+"/a:1", func(j *job.Job) { j.PlainHTTP = []string{plain} }); a.Failure == nil || a.Failure.Kind != "not_found" {
		t.Errorf("plain HTTP to a host that was named = %+v, want to hear that it has no such image", a.Failure)
	}
}

func emptyAuth(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.json")
	must(t, os.WriteFile(path, []byte("{}"), 0o600))
	return path
}

// newPlain is a registry without encryption and without images.
func newPlain(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v2/" {
			http.Error(w, `{"errors":[{"code":"MANIFEST_UNKNOWN"}]}`, http.StatusNotFound)
		}
	})}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	return l.Addr().String()
}

// elsewhere is a server of somebody else's, at an address that is not loopback.
type elsewhere struct {
	url  string
	mu   sync.Mutex
	seen []http.Header
}

func newElsewhere(t *testing.T, a authority, h http.HandlerFunc) *elsewhere {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	must(t, err)
	for _, addr := range addrs {
		ip, ok := addr.(*net.IPNet)
		if !ok || ip.IP.IsLoopback() || ip.IP.To4() == nil || ip.IP.IsLinkLocalUnicast() {
			continue
		}
		e := &elsewhere{}
		s := a.serve(t, ip.IP.String(), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			e.mu.Lock()
			e.seen = append(e.seen, r.Header.Clone())
			e.mu.Unlock()
			h(w, r)
		}))
		e.url = s.URL
		return e
	}
	t.Skip("this host has no address but loopback, so nothing is elsewhere")
	return nil
}

func (e *elsewhere) checkNoSecrets(t *testing.T, atLeast int) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.seen) < atLeast {
		t.Errorf("the other host was asked %d times, want %d at least", len(e.seen), atLeast)
	}
	for _, h := range e.seen {
		if h.Get("Authorization") != "" || h.Get("Cookie") != "" {
			t.Errorf("the other host was given %v", h)
		}
	}
}

// TestCredentialsStay proves that no credentials leave the registry they belong to.
func TestCredentialsStay(t *testing.T) {
	s := newServer(t)
	c := s.client(t)
	img := imageOf(t, layerOf(t, 1, 1000))
	ref := s.push(t, "app:1", img)
	blobs := map[string][]byte{}
	layers, err := img.Layers()
	must(t, err)
	for _, l := range layers {
		d, err := l.Digest()
		must(t, err)
		r, err := l.Compressed()
		must(t, err)
		data, err := io.ReadAll(r)
		must(t, err)
		blobs[d.String()] = data
	}
	other := newElsewhere(t, s.authority, func(w http.ResponseWriter, r *http.Request) {
		if data, ok := blobs[r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]]; ok {
			_, _ = w.Write(data)
			return
		}
		w.Header().Set("WWW-Authenticate", "Basic realm=x")
		http.Error(w, "who are you", http.StatusUnauthorized)
	})
	redirect := func(to string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if d := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]; blobs[d] != nil && r.Method == http.MethodGet {
				http.Redirect(w, r, to+"/blob/"+d, http.StatusTemporaryRedirect)
				return true
			}
			return false
		}
	}
	t.Run("a blob elsewhere", func(t *testing.T) {
		s.set(func() { s.tamper = redirect(other.url) })
		if a := c.pull(t, ref); a.Failure != nil {
			t.Errorf("pull = %+v", a.Failure)
		}
		other.checkNoSecrets(t, 1)
		_, err := c.store.Remove("x")
		must(t, err)
	})
	t.Run("a blob elsewhere that is asked for without encryption", func(t *testing.T) {
		s.set(func() { s.tamper = redirect(strings.Replace(other.url, "https", "http", 1)) })
		checkKind(t, c.pull(t, ref), "not_trusted", "--plain-http")
	})
	t.Run("a blob at the host's own address", func(t *testing.T) {
		hidden := newPlain(t)
		s.set(func() { s.tamper = redirect("https://" + hidden) })
		a := c.pull(t, ref)
		checkKind(t, a, "not_trusted", "")
		if a.Failure != nil && !strings.Contains(a.Failure.Message, "address of this host's own") {
			t.Errorf("message = %s", a.Failure.Message)
		}
	})
	t.Run("everything elsewhere", func(t *testing.T) {
		s.set(func() {
			s.tamper = func(w http.ResponseWriter, r *http.Request) bool {
				http.Redirect(w, r, other.url+r.URL.Path, http.StatusFound)
				return true
			}
		})
		checkKind(t, c.pull(t, ref), "unauthorised", "")
		other.checkNoSecrets(t, 2)
	})
	t.Run("tokens elsewhere", func(t *testing.T) {
		s.set(func() { s.tamper, s.realm = nil, other.url+"/token" })
		a := c.pull(t, ref)
		if a.Failure == nil || a.Failure.Kind != "not_trusted" && a.Failure.Kind != "no_route" {
			t.Errorf("pull with a token service elsewhere = %+v, want it to be refused", a.Failure)
		}
		other.checkNoSecrets(t, 2)
	})
}

func TestCredentialHelper(t *testing.T) {
	s := newServer(t)
	c := s.client(t)
	ref := s.push(t, "app:1", imageOf(t, layerOf(t, 1, 1000)))
	dir := t.TempDir()
	helper := "#!/bin/sh\nread host\n[ \"$host\" = " + s.host + " ] || exit 1\necho '{\"ServerURL\":\"'$host'\",\"Username\":\"" + user + "\",\"Secret\":\"" + password + "\"}'\n"
	config := filepath.Join(dir, "config.json")
	must(t, os.WriteFile(filepath.Join(dir, "docker-credential-engine-test"), []byte(helper), 0o755),
		os.WriteFile(config, []byte(`{"credHelpers":{"`+s.host+`":"engine-test"}}`), 0o600))
	c.env = []string{"PATH=" + dir + ":" + os.Getenv("PATH")}
	if a := c.pull(t, ref, func(j *job.Job) { j.AuthFile = config }); a.Failure != nil {
		t.Errorf("pull with a helper's credentials = %+v", a.Failure)
	}
	// The usual place is looked at when no file is named.
	c.env = append(c.env, "DOCKER_CONFIG="+dir)
	if a := c.pull(t, ref, func(j *job.Job) { j.AuthFile, j.Name = "", "y" }); a.Failure != nil {
		t.Errorf("pull with the credentials of DOCKER_CONFIG = %+v", a.Failure)
	}
}

func TestMirror(t *testing.T) {
	s := newServer(t)
	c := s.client(t)
	s.push(t, "library/app:1", imageOf(t, layerOf(t, 1, 1000)))
	a := c.pull(t, "app:1", func(j *job.Job) { j.Mirrors, j.Name = []string{s.host}, "" })
	if a.Failure != nil || a.Image.Name != "app:1" {
		t.Errorf("pull through a mirror = %+v %+v", a.Failure, a.Image)
	}
}

// TestDamagedBlobs serves what is not what its digest says.
func TestDamagedBlobs(t *testing.T) {
	s := newServer(t)
	img := imageOf(t, layerOf(t, 1, 300_000))
	ref := s.push(t, "app:1", img)
	layers, err := img.Layers()
	must(t, err)
	r, err := layers[0].Compressed()
	must(t, err)
	data, err := io.ReadAll(r)
	must(t, err)
	serve := func(change func(w http.ResponseWriter, r *http.Request)) func(http.ResponseWriter, *http.Request) bool {
		digest, err := layers[0].Digest()
		must(t, err)
		return func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, "/blobs/"+digest.String()) {
				return false
			}
			change(w, r)
			return true
		}
	}
	send := func(b []byte) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(b) }
	}
	flipped := bytes.Clone(data)
	flipped[len(flipped)/2] ^= 1
	tests := []struct {
		name, kind string
		change     func(http.ResponseWriter, *http.Request)
	}{
		{"nothing", "bad_image", send(nil)},
		{"half of it", "bad_image", send(data[:len(data)/2])},
		{"more than it", "bad_image", send(append(bytes.Clone(data), 0))},
		{"one bit of it changed", "bad_image", send(flipped)},
		{"something else", "bad_image", send([]byte(strings.Repeat("x", len(data))))},
		{"an error", "busy", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "x", http.StatusBadGateway) }},
		{"a refusal", "unauthorised", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "x", http.StatusForbidden) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := s.client(t)
			s.set(func() { s.tamper = serve(tt.change) })
			checkKind(t, c.pull(t, ref), tt.kind, "")
			if tt.kind == "busy" { // what was finished is kept for the next pull
				_, err := c.store.Prune(false)
				must(t, err)
			}
			c.checkClean(t)
		})
	}
	t.Run("a connection that breaks is taken up again", func(t *testing.T) {
		c := s.client(t)
		var ranges []string
		s.set(func() {
			s.tamper = serve(func(w http.ResponseWriter, r *http.Request) {
				from := 0
				if h := r.Header.Get("Range"); h != "" {
					ranges = append(ranges, h)
					if _, err := fmt.Sscanf(h, "bytes=%d-", &from); err != nil {
						t.Error(err)
					}
					w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(data)-1, len(data)))
					w.WriteHeader(http.StatusPartialContent)
				} else {
					w.Header().Set("Content-Length", fmt.Sprint(len(data)))
				}
				end := min(from+100_000, len(data))
				_, _ = w.Write(data[from:end])
				if end < len(data) {
					panic(http.ErrAbortHandler)
				}
			})
		})
		if a := c.pull(t, ref); a.Failure != nil || len(ranges) != 3 {
			t.Errorf("pull = %+v, asked for %v, want it to go on three times", a.Failure, ranges)
		}
		c.checkClean(t, "x")
	})
}

// TestConcurrentPulls lets several processes pull images that share layers.
func TestConcurrentPulls(t *testing.T) {
	s := newServer(t)
	c := s.client(t)
	shared := []v1.Layer{layerOf(t, 1, 3_000_000), layerOf(t, 2, 3_000_000), layerOf(t, 3, 3_000_000)}
	var refs []string
	for i := range 3 {
		// The same layers in another order, so that each process needs what another is at.
		layers := append(append([]v1.Layer{}, shared[i:]...), shared[:i]...)
		refs = append(refs, s.push(t, fmt.Sprint("app", i, ":1"), imageOf(t, append(layers, layerOf(t, uint64(10+i), 1000))...)))
	}
	s.set(func() { clear(s.counts) })
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			a := c.pull(t, refs[i%3], func(j *job.Job) { j.Name = fmt.Sprint("x", i) })
			if a.Failure != nil {
				t.Errorf("pull %d = %+v", i, a.Failure)
			}
		})
	}
	wg.Wait()
	for _, l := range shared {
		d, err := l.Digest()
		must(t, err)
		s.set(func() {
			if n := s.counts[d.String()]; n != 1 {
				t.Errorf("a shared layer was fetched %d times, want once", n)
			}
		})
	}
	c.checkClean(t, "x0", "x1", "x2", "x3", "x4", "x5")
}

// TestKilledPulls kills pulls at random points. Nothing half-made is ever seen, and the
// next pull goes through.
func TestKilledPulls(t *testing.T) {
	s := newServer(t)
	c := s.client(t)
	img := imageOf(t, layerOf(t, 1, 4_000_000), layerOf(t, 2, 4_000_000), layerOf(t, 3, 4_000_000), layerOf(t, 4, 1000))
	ref := s.push(t, "app:1", img)
	digest, err := img.Digest()
	must(t, err)
	start := time.Now()
	if a := c.pull(t, ref); a.Failure != nil {
		t.Fatal(a.Failure)
	}
	whole := time.Since(start)
	finished := 0
	const rounds = 40
	for range rounds {
		_, err := c.store.Prune(true)
		must(t, err)
		cmd := c.command(ref)
		must(t, cmd.Start())
		timer := time.AfterFunc(time.Duration(rand.Int64N(int64(whole)*5/4)), func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait() // killed, or came to its end before
		timer.Stop()
		if img, err := c.store.Open("x"); err == nil {
			finished++
			if img.Digest != digest.String() {
				t.Errorf("a killed pull left the image %s, want %s", img.Digest, digest)
			}
			for _, lower := range img.Lowers {
				if entries, err := os.ReadDir(lower); err != nil || len(entries) != 1 {
					t.Errorf("a layer holds %v, %v, want one file", entries, err)
				}
			}
		}
	}
	t.Logf("%d of %d pulls came to an end", finished, rounds)
	if a := c.pull(t, ref); a.Failure != nil {
		t.Errorf("pull after all that = %+v", a.Failure)
	}
	_, err = c.store.Prune(false)
	must(t, err)
	c.checkClean(t, "x")
}

// TestInterruptedPull interrupts pulls as a terminal does.
func TestInterruptedPull(t *testing.T) {
	s := newServer(t)
	layer := layerOf(t, 1, 2_000_000)
	ref := s.push(t, "app:1", imageOf(t, layerOf(t, 2, 1000), layer))
	digest, err := layer.Digest()
	must(t, err)
	r, err := layer.Compressed()
	must(t, err)
	data, err := io.ReadAll(r)
	must(t, err)
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		c := s.client(t)
		begun, end := make(chan struct{}), make(chan struct{})
		var once sync.Once
		s.set(func() {
			s.tamper = func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, "/blobs/"+digest.String()) {
					return false
				}
				w.Header().Set("Content-Length", fmt.Sprint(len(data)))
				_, _ = w.Write(data[:len(data)/2])
				w.(http.Flusher).Flush()
				once.Do(func() { close(begun) })
				<-end
				return true
			}
		})
		cmd := c.command(ref)
		var out bytes.Buffer
		cmd.Stdout = &out
		must(t, cmd.Start())
		<-begun
		must(t, cmd.Process.Signal(sig))
		err := cmd.Wait()
		close(end)
		if err != nil || !strings.Contains(out.String(), `"cancelled"`) {
			t.Errorf("interrupted pull ended with %v and said %s, want cancelled", err, out.String())
		}
		c.checkClean(t)
	}
}

// TestPullIsBounded measures the memory of a pull of a large image.
func TestPullIsBounded(t *testing.T) {
	s := newServer(t)
	c := s.client(t)
	layers := []v1.Layer{}
	for i := range 5 {
		layers = append(layers, layerOf(t, uint64(i), 40_000_000))
	}
	cmd := c.command(s.push(t, "big:1", imageOf(t, layers...)))
	var out bytes.Buffer
	cmd.Stdout = &out
	must(t, cmd.Start())
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	peaks := map[string]int{}
	for {
		// Its own peak, then those of the children that unpack.
		for _, pid := range append(childrenOf(cmd.Process.Pid), fmt.Sprint(cmd.Process.Pid)) {
			if data, err := os.ReadFile("/proc/" + pid + "/status"); err == nil {
				if _, rest, ok := strings.Cut(string(data), "VmHWM:"); ok {
					var kib int
					if _, err := fmt.Sscan(rest, &kib); err == nil && !strings.HasPrefix(string(data), "Name:\tregistry.test") {
						peaks[pid] = max(peaks[pid], kib)
					}
				}
			}
		}
		select {
		case err := <-done:
			if err != nil || strings.Contains(out.String(), "failure") {
				t.Fatalf("pull: %v %s", err, out.String())
			}
			t.Logf("peaks of the processes in KiB: %v", peaks)
			for pid, kib := range peaks {
				if kib >= 100<<10 {
					t.Errorf("process %s of a pull of 200 MB took %d KiB, want less than 100 MiB", pid, kib)
				}
			}
			return
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func childrenOf(pid int) []string {
	var all []string
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return nil
	}
	for _, list := range lists {
		if data, err := os.ReadFile(list); err == nil {
			all = append(all, strings.Fields(string(data))...)
		}
	}
	return all
}
