package engine

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/direct-oci/engine/rootfs/image"
)

// putImage writes the records of an image without layers.
func putImage(t *testing.T, h Host, name, digit, platform string, c image.Config) {
	t.Helper()
	id := "sha256-" + strings.Repeat(digit, 64)
	dir := filepath.Join(h.imageDir(), ".images", id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for path, v := range map[string]any{
		filepath.Join(dir, "image.json"):  map[string]any{"digest": "sha256:" + strings.Repeat(digit, 64), "platform": platform, "config": c},
		filepath.Join(h.imageDir(), name): map[string]string{"id": id},
	} {
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSettle proves that an image fills in what its caller left open, and no more.
func TestSettle(t *testing.T) {
	h := Host{StateDir: t.TempDir()}
	config := image.Config{Entrypoint: []string{"/entry"}, Cmd: []string{"arg"}, Env: []string{"A=image", "B=image"}, Workdir: "/srv", User: "1000:2000"}
	host := "linux/" + runtime.GOARCH
	putImage(t, h, "full", "a", host, config)
	putImage(t, h, "bare", "b", "", image.Config{User: "root", Workdir: "/proc/self/fd/7"})
	putImage(t, h, "foreign", "c", "linux/s390x", config)
	base := func(name string, edit func(*Request)) Request {
		r := validRequest()
		r.Image, r.Rootfs, r.Command, r.Env, r.Workdir, r.UID, r.GID = name, "", nil, nil, "", 0, 0
		edit(&r)
		return r
	}
	tests := []struct {
		name   string
		req    Request
		want   func(*Request)
		refuse string
	}{
		{"everything is the image's", base("full", func(*Request) {}), func(r *Request) {
			r.Command, r.Env, r.Workdir, r.UID, r.GID = []string{"/entry", "arg"}, []string{"A=image", "B=image"}, "/srv", 1000, 2000
		}, ""},
		{"the caller's goes first", base("full", func(r *Request) {
			r.Command, r.Env, r.Workdir, r.UID, r.GID = []string{"x"}, []string{"A=caller"}, "/tmp", 5, 6
		}), func(r *Request) {
			r.Command, r.Env, r.Workdir, r.UID, r.GID = []string{"x"}, []string{"B=image", "A=caller"}, "/tmp", 5, 6
		}, ""},
		{"a user's name and a place of the kernel's are not taken", base("bare", func(r *Request) { r.Command = []string{"x"} }), func(r *Request) {
			r.Command, r.UID, r.GID = []string{"x"}, DefaultUID, DefaultUID
		}, ""},
		{"no command anywhere", base("bare", func(*Request) {}), nil, "names no default command"},
		{"another machine's image", base("foreign", func(*Request) {}), nil, "linux/s390x: " + host + " is wanted"},
		{"no such image", base("none", func(*Request) {}), nil, "there is no such image"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.req.settle(h)
			if tt.refuse != "" {
				if err == nil || !strings.Contains(err.Error(), tt.refuse) {
					t.Errorf("settle() = %v, want a refusal with %q", err, tt.refuse)
				}
				return
			}
			want := tt.req
			tt.want(&want)
			want.ImageID, want.Limits = got.ImageID, want.Limits.Sized()
			if err != nil || !sameSettled(got, want) || got.ImageID == "" {
				t.Errorf("settle() = %+v, %v, want %+v", got, err, want)
			}
		})
	}
	// What a name stands for is settled once.
	first, err := base("full", func(*Request) {}).settle(h)
	if err != nil {
		t.Fatal(err)
	}
	putImage(t, h, "full", "d", host, image.Config{Cmd: []string{"/other"}})
	again, err := findImage(h, first)
	if err != nil || again.ID() != first.ImageID {
		t.Errorf("after the name was given to another image, the request leads to %s, %v, want %s", again.ID(), err, first.ImageID)
	}
}

func sameSettled(a, b Request) bool {
	env := func(kv []string) map[string]bool {
		set := map[string]bool{}
		for _, s := range kv {
			set[s] = true
		}
		return set
	}
	ok := reflect.DeepEqual(env(a.Env), env(b.Env))
	a.Env, b.Env = nil, nil
	return ok && reflect.DeepEqual(a, b)
}
