package intake_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/direct-oci/engine/rootfs/image"
	"github.com/direct-oci/engine/rootfs/image/intake"
)

// TestDocuments gives the reader of manifests what no honest tool writes.
func TestDocuments(t *testing.T) {
	o := newOutside(t)
	layer := archive(t, file("f", "1"))
	type edit struct {
		name   string
		make   func(l ociLayout)
		refuse string
	}
	manifest := func(l ociLayout) (map[string]any, desc) {
		blob := l.blob(layerType, zip(t, layer))
		config := l.json(configType, map[string]any{"os": "linux", "architecture": runtime.GOARCH, "rootfs": map[string]any{"type": "layers", "diff_ids": []string{sum(layer)}}})
		return map[string]any{"schemaVersion": 2, "config": config, "layers": []desc{blob}}, blob
	}
	with := func(change func(l ociLayout, m map[string]any, blob desc)) func(l ociLayout) {
		return func(l ociLayout) {
			m, blob := manifest(l)
			change(l, m, blob)
			l.index(l.json(manifestType, m))
		}
	}
	raw := func(text string) func(l ociLayout) {
		return func(l ociLayout) { l.index(l.blob(manifestType, []byte(text))) }
	}
	tests := []edit{
		{"an honest one", with(func(ociLayout, map[string]any, desc) {}), ""},
		{"an index and a manifest at once", with(func(_ ociLayout, m map[string]any, _ desc) { m["manifests"] = []desc{} }), "at once"},
		{"the same with null", with(func(_ ociLayout, m map[string]any, _ desc) { m["manifests"] = nil }), "at once"},
		{"a key in other letters", with(func(_ ociLayout, m map[string]any, _ desc) { m["Manifests"] = []desc{} }), "others take for manifests"},
		{"a key with a long s", with(func(_ ociLayout, m map[string]any, _ desc) { m["manifeſts"] = []desc{} }), "it has the key"},
		{"Docker's first kind", with(func(_ ociLayout, m map[string]any, _ desc) { m["fsLayers"] = []desc{} }), "first kind"},
		{"a key twice", raw(`{"schemaVersion":2,"layers":[],"layers":[]}`), "twice"},
		{"two keys that differ by case", raw(`{"schemaVersion":2,"layers":[],"config":{"digest":"a","Digest":"b"}}`), "twice"},
		{"a type that contradicts", with(func(_ ociLayout, m map[string]any, _ desc) { m["mediaType"] = indexType }), "what leads to it says"},
		{"an index as a manifest", raw(`{"schemaVersion":2,"manifests":[]}`), "is of type"},
		{"no JSON", raw(`layers`), "invalid character"},
		{"JSON and more", raw(`{"schemaVersion":2,"layers":[]}{}`), "more after its end"},
		{"very deep JSON", raw(`{"layers":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}`), "nested too deep"},
		{"five megabytes", raw(`{"layers":"` + strings.Repeat("x", 5<<20) + `"}`), "more than the"},
		{"no layers", with(func(_ ociLayout, m map[string]any, _ desc) { m["layers"] = []desc{} }), "0 layers"},
		{"a thousand layers", with(func(_ ociLayout, m map[string]any, b desc) { m["layers"] = slices.Repeat([]desc{b}, 1000) }), "1000 layers"},
		{"a layer from elsewhere", with(func(_ ociLayout, _ map[string]any, b desc) {
			b["mediaType"] = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"
		}), "no unpacker knows"},
		{"an encrypted layer", with(func(_ ociLayout, _ map[string]any, b desc) { b["mediaType"] = layerType + "+encrypted" }), "no unpacker knows"},
		{"no image", with(func(_ ociLayout, m map[string]any, _ desc) { m["config"].(desc)["mediaType"] = "application/x" }), "no image"},
		{"a digest that is a path", with(func(_ ociLayout, _ map[string]any, b desc) { b["digest"] = "sha256:../../../../etc/passwd" }), "no SHA-256"},
		{"another kind of digest", with(func(_ ociLayout, _ map[string]any, b desc) { b["digest"] = "md5:" + strings.Repeat("0", 32) }), "no SHA-256"},
		{"a negative size", with(func(_ ociLayout, _ map[string]any, b desc) { b["size"] = -1 }), "-1 bytes"},
		{"a size one too small", with(func(_ ociLayout, _ map[string]any, b desc) { b["size"] = b["size"].(int) - 1 }), "longer than"},
		{"a size one too large", with(func(_ ociLayout, _ map[string]any, b desc) { b["size"] = b["size"].(int) + 1 }), "ends after"},
		{"other content", with(func(l ociLayout, _ map[string]any, b desc) {
			path := l.path(b["digest"].(string))
			data, err := os.ReadFile(path)
			must(t, err)
			data[4]++ // the time in gzip's header: what it unpacks to stays
			must(t, os.WriteFile(path, data, 0o600))
		}), "its digest is"},
		{"a blob that is missing", with(func(l ociLayout, _ map[string]any, b desc) { must(t, os.Remove(l.path(b["digest"].(string)))) }), "lacks it"},
		{"a blob that is a link", with(func(l ociLayout, _ map[string]any, b desc) {
			path := l.path(b["digest"].(string))
			must(t, os.Rename(path, path+"x"), os.Symlink(path+"x", path))
		}), "too many levels"},
		{"another layer than the configuration says", func(l ociLayout) {
			m, _ := manifest(l)
			m["layers"] = []desc{l.blob(layerType, zip(t, archive(t, file("g", "2"))))}
			l.index(l.json(manifestType, m))
		}, "unpacks to"},
		{"more layers than the configuration says", with(func(_ ociLayout, m map[string]any, b desc) { m["layers"] = []desc{b, b} }), "speaks of 1 layers"},
		{"another machine", func(l ociLayout) { l.index(l.image("s390x", nil, layer)) }, "linux/s390x: linux/" + runtime.GOARCH + " is wanted"},
		{"an index without end", func(l ociLayout) {
			d := l.json(indexType, map[string]any{"schemaVersion": 2, "manifests": []desc{}})
			for range 6 {
				d = l.json(indexType, map[string]any{"schemaVersion": 2, "manifests": []desc{d}})
			}
			l.index(d)
		}, "without end"},
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLayout(t)
			tt.make(l)
			s := o.store
			s.Dir = filepath.Join(t.TempDir(), "images")
			_, err := take(context.Background(), s, l.dir, fmt.Sprint("doc", i))
			if tt.refuse == "" && err != nil || tt.refuse != "" && (err == nil || !strings.Contains(err.Error(), tt.refuse)) {
				t.Errorf("Import = %v, want an error with %q", err, tt.refuse)
			}
			checkNoRest(t, s)
			if left, err := filepath.Glob(filepath.Join(s.Dir, ".layers", "*-*")); tt.refuse != "" && slices.ContainsFunc(left, func(p string) bool { return !strings.HasSuffix(p, ".lock") }) {
				t.Errorf("a refused image left layers: %v, %v", left, err)
			}
		})
	}
}

// TestConfigIsFiltered proves that an image decides nothing but a few defaults.
func TestConfigIsFiltered(t *testing.T) {
	o := newOutside(t)
	l := newLayout(t)
	labels := map[string]string{}
	for i := range 200 {
		labels[fmt.Sprint("org.systemd.property.x", i)] = "y"
		labels[fmt.Sprint("run.oci.hooks.", i)] = "/bin/sh"
	}
	l.index(l.image(runtime.GOARCH, map[string]any{
		"Entrypoint": []string{"/e"}, "Cmd": []string{"c"}, "User": "root:wheel", "WorkingDir": "srv/x/../y",
		"Env":    []string{"PATH=/p", "A=1", "LD_PRELOAD=x", "NODE_OPTIONS=--require x", "PYTHONPATH=/x", "BASH_ENV=x", "BASH_FUNC_a%%=x", "ENV=x", "http_proxy=x", "HOME=/root", "noequals", "NODE_VERSION=20"},
		"Labels": labels, "Volumes": map[string]any{"/etc": map[string]any{}}, "ExposedPorts": map[string]any{"1/tcp": map[string]any{}},
		"OnBuild": []string{"x"}, "Healthcheck": map[string]any{"Test": []string{"CMD", "x"}}, "StopSignal": "SIGKILL", "Shell": []string{"x"},
	}, archive(t, file("f", "1"))))
	img, err := take(context.Background(), o.store, l.dir, "c")
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(img.Config)
	must(t, err)
	want := `{"entrypoint":["/e"],"cmd":["c"],"env":["PATH=/p","A=1","NODE_VERSION=20"],"envDropped":["LD_PRELOAD","NODE_OPTIONS","PYTHONPATH","BASH_ENV","ENV","http_proxy","HOME"],"workdir":"/srv/y","user":"root:wheel"}`
	if string(got) != want {
		t.Errorf("configuration = %s, want %s", got, want)
	}
	if _, _, ok := img.Config.IDs(); ok {
		t.Error("a user's name is taken for a number")
	}
	for user, ok := range map[string]bool{"": false, "0": false, "0:0": false, "1000": true, "1000:0": false, "1:2": true, "65536": false, "a": false, "1:a": false, "-1": false} {
		if _, _, got := (image.Config{User: user}).IDs(); got != ok {
			t.Errorf("user %q is accepted: %v, want %v", user, got, ok)
		}
	}
}

// TestPlatforms imports one of several variants of an image.
func TestPlatforms(t *testing.T) {
	o := newOutside(t)
	l := newLayout(t)
	variants := []desc{}
	for _, p := range []string{"s390x", runtime.GOARCH, "riscv64"} {
		d := l.image(p, nil, archive(t, file("arch", p)))
		d["platform"] = desc{"os": "linux", "architecture": p}
		variants = append(variants, d)
	}
	l.index(l.json(indexType, map[string]any{"schemaVersion": 2, "manifests": variants}))
	img, err := take(context.Background(), o.store, l.dir, "host")
	if err != nil || img.Platform != "linux/"+runtime.GOARCH || img.Digest != variants[1]["digest"] || img.Index == "" {
		t.Errorf("image = %+v, %v, want this host's variant of an index", img, err)
	}
	img, err = take(context.Background(), o.store, l.dir, "pinned", func(o *intake.Options) { o.Platform = intake.Platform{OS: "linux", Architecture: "s390x"} })
	if err != nil || img.Platform != "linux/s390x" {
		t.Errorf("image = %+v, %v, want the variant for s390x", img, err)
	}
	_, err = take(context.Background(), o.store, l.dir, "absent", func(o *intake.Options) { o.Platform = intake.Platform{OS: "linux", Architecture: "mips"} })
	var platform *image.PlatformError
	if !errors.As(err, &platform) || platform.Want != "linux/mips" || len(platform.Has) != 3 {
		t.Errorf("Import for mips = %v, want a *PlatformError that lists what there is", err)
	}
}
