package integration

import (
	"archive/tar"
	"bytes"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/direct-oci/engine/integration/testenv"
)

// layer is a layer with these entries, in this order.
func layer(t *testing.T, headers ...tar.Header) v1.Layer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		content := []byte(h.PAXRecords["content"])
		h.PAXRecords, h.Size = nil, int64(len(content))
		must(t, w.WriteHeader(&h))
		_, err := w.Write(content)
		must(t, err)
	}
	must(t, w.Close())
	data := b.Bytes()
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil })
	must(t, err)
	return l
}

func entry(path, content string, mode int64) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: path, Mode: mode, PAXRecords: map[string]string{"content": content}}
}

// TestPulledImage proves that an image without a shell and without a library, pulled
// from a registry, runs under every runtime as its configuration says, layers laid over
// each other, and that the result names what was run.
func TestPulledImage(t *testing.T) {
	begin(t)
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	probe, err := os.ReadFile(root + "/probe")
	must(t, err)
	img, err := mutate.AppendLayers(empty.Image,
		layer(t, entry("bin/probe", string(probe), 0o4755), entry("data/old", "old", 0o644), entry("data/both", "below", 0o644)),
		layer(t, entry("data/.wh.old", "", 0o644), entry("data/both", "laid over", 0o644)),
		layer(t, entry("gone/.wh..wh..opq", "", 0o644), entry("gone/new", "new", 0o644)),
	)
	must(t, err)
	config, err := img.ConfigFile()
	must(t, err)
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config = v1.Config{Entrypoint: []string{"probe"}, Cmd: []string{"posture", "+", "masked", "/data/old", "/data/both", "/gone/new"}, Env: []string{"PATH=/bin", "FROM=image", "LD_PRELOAD=/x"}, WorkingDir: "/data", User: "4000:4001"}
	img, err = mutate.ConfigFile(img, config)
	must(t, err)
	reference := host + "/suite/pulled:1"
	tag, err := name.ParseReference(reference, name.Insecure)
	must(t, err)
	must(t, remote.Write(tag, img))
	digest, err := img.Digest()
	must(t, err)

	pull := []string{"image", "pull", "--quiet", "--plain-http", host, reference, "suite/pulled:1"}
	if got := testenv.Exec(t, pull...); got.Status != 0 || !strings.Contains(got.Stdout, digest.String()) {
		t.Fatalf("%s\nwant %s", got, digest)
	}
	defer testenv.Exec(t, "image", "rm", "suite/pulled:1")
	server.Close() // what is there needs nobody any more
	eachRuntimeInTurn(t, func(t *testing.T, runtime string) {
		r := run(t, runtime, []string{"--rootfs", "", "--image", "suite/pulled:1"})
		r.want(t, "exited", 0)
		if r.Image.Digest == nil || *r.Image.Digest != digest.String() {
			t.Errorf("image = %+v, want %s", r.Image, digest)
		}
		parts := sections(r.Stdout)
		in := parse(parts["posture"])
		if want := "/data/old error 2\n/data/both bytes 9\n/gone/new bytes 3\n"; parts["masked"] != want {
			t.Errorf("files of the layers:\n%swant\n%s", parts["masked"], want)
		}
		same(t, "uid", in["uid"], []string{"4000 4000"})
		same(t, "cwd", in["cwd"], []string{"/data"})
		if env := strings.Join(in["env"], " "); !strings.Contains(env, "FROM=image") || strings.Contains(env, "LD_PRELOAD") {
			t.Errorf("environment = %s, want the image's, without what steers the loader", env)
		}
	})
}
