package intake_test

import (
	"archive/tar"
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/rootfs/image"
	"github.com/direct-oci/engine/rootfs/image/intake"
	"github.com/direct-oci/engine/rootfs/image/tree"
)

func seal(o outside, name string, data []byte) (image.Image, error) {
	options := intake.Options{Store: o.store, Unpacker: unpacker(), Name: name, Origin: "the modules"}
	return intake.TakeSealed(context.Background(), options, bytes.NewReader(data), "mods")
}

// TestSealed proves what becomes of an archive that a sandbox has written.
func TestSealed(t *testing.T) {
	o := newOutside(t)
	var many []item
	for range 1100 {
		many = append(many, dir("mods"))
	}
	if err := os.Mkdir(o.store.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	before := o.state(t)
	for _, tt := range []struct {
		name   string
		items  []item
		refuse string // part of the error; "" when it is taken
	}{
		{"modules", []item{dir("mods"), file("mods/a/index.js", "x"), dir("mods/.bin"), symlink("mods/.bin/a", "../a/index.js"), hardlink("mods/b", "mods/a/index.js")}, ""},
		{"an absolute link", []item{symlink("mods/a", "/bin/sh")}, "link that leads out"},
		{"a link upwards", []item{symlink("mods/a/b", "../../../etc")}, "link that leads out"},
		{"a link to a neighbour of the top", []item{symlink("mods/a", "../bin/sh")}, "link that leads out"},
		{"a link that turns back", []item{symlink("mods/a/b/c", "x/../../../../bin")}, "link that leads out"},
		{"a link to nothing at all", []item{symlink("mods/a", "")}, "link that leads out"},
		{"a hard link to a link", []item{symlink("mods/a/b/c", "../../d"), hardlink("mods/e", "mods/a/b/c")}, "hard link to a symbolic one"},
		{"a hard link to the host", []item{hardlink("mods/e", o.base+"/canary")}, "not there"},
		{"a name upwards", []item{dir("mods"), file("mods/../../x", "x")}, "leads upwards"},
		{"something beside the top", []item{dir("mods"), file("bin/node", "x")}, "not the directory mods alone"},
		{"another top", []item{dir("other")}, "not the directory mods alone"},
		{"a file for a top", []item{file("mods", "x")}, "not the directory mods alone"},
		{"a link for a top", []item{symlink("mods", "mods")}, "not the directory mods alone"},
		{"a device", []item{dir("mods"), special(tar.TypeChar, "mods/null")}, "1 devices"},
		{"a fifo", []item{dir("mods"), special(tar.TypeFifo, "mods/pipe")}, "1 devices"},
		{"an overlay's mark", []item{dir("mods"), {tar.Header{Typeflag: tar.TypeChar, Name: "mods/gone"}, ""}}, "1 devices"},
		{"more bytes than are taken", []item{file("mods/big", strings.Repeat("x", 9<<20))}, "more than 8388608 bytes"},
		{"more entries than are taken", many, "more than 1000 entries"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := seal(o, "x", archive(t, tt.items...))
			if tt.refuse == "" && err != nil || tt.refuse != "" && (err == nil || !strings.Contains(err.Error(), tt.refuse)) {
				t.Errorf("error = %v, want %q", err, tt.refuse)
			}
			checkNoRest(t, o.store)
		})
	}
	whole := archive(t, file("mods/a", "x"), file("mods/b", "y"))
	if _, err := seal(o, "cut", whole[:len(whole)-1024]); err == nil {
		t.Error("half an archive was taken for a whole one")
	}
	if _, err := seal(o, "none", nil); err == nil {
		t.Error("nothing was taken for an archive")
	}
	if after := o.state(t); after != before {
		t.Errorf("the host was\n%s\nand is\n%s", before, after)
	}
}

// TestSealedIsTheSame proves that owners, modes, times and attributes are the store's
// own, and so the digest that of the files.
func TestSealedIsTheSame(t *testing.T) {
	o := newOutside(t)
	first := file("mods/run", "#!/bin/sh\n")
	first.Mode, first.Uid, first.Gid = 0o6777, 65532, 65532
	first.PAXRecords = map[string]string{"SCHILY.xattr.user.note": "x", "SCHILY.xattr.trusted.overlay.redirect": "/etc"}
	plain := file("mods/run", "#!/bin/sh\n")
	plain.Mode = 0o700
	open := dir("mods")
	open.Mode = 0o1777
	a, err := seal(o, "a", archive(t, open, first))
	if err != nil {
		t.Fatal(err)
	}
	b, err := seal(o, "b", archive(t, plain)) // its directory is only implied
	if err != nil {
		t.Fatal(err)
	}
	if a.Digest != b.Digest || a.ID() != b.ID() {
		t.Errorf("the same files have the digests %s and %s", a.Digest, b.Digest)
	}
	for name, want := range map[string]uint32{"mods": unix.S_IFDIR | 0o555, "mods/run": unix.S_IFREG | 0o555} {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(a.Lowers[0], name), &st); err != nil || st.Mode != want || st.Uid != 0 || st.Gid != 0 || st.Mtim.Sec != 0 {
			t.Errorf("%s: mode %o, owner %d:%d, time %d, %v; want %o, 0:0, 0", name, st.Mode, st.Uid, st.Gid, st.Mtim.Sec, err, want)
		}
	}
	if n, err := unix.Llistxattr(filepath.Join(a.Lowers[0], "mods/run"), nil); n != 0 || err != nil {
		t.Errorf("a file has %d bytes of attributes, %v", n, err)
	}
	top, err := os.Open(filepath.Join(a.Lowers[0], "mods"))
	if err != nil {
		t.Fatal(err)
	}
	defer top.Close()
	if !tree.IsOpaque(top) {
		t.Error("the top does not hide one of an image below")
	}
}

// TestTrim proves which images go: the longest unused, and none that a run holds.
func TestTrim(t *testing.T) {
	o := newOutside(t)
	ages := map[string]time.Duration{"a": time.Hour, "b": 30 * time.Hour, "c": 40 * time.Hour, "d": 50 * time.Hour}
	for name, age := range ages {
		if _, err := seal(o, name, archive(t, file("mods/"+name, strings.Repeat(name, 100<<10)))); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(-age)
		if err := os.Chtimes(filepath.Join(o.store.Dir, name), at, at); err != nil {
			t.Fatal(err)
		}
	}
	d, err := o.store.Open("d")
	if err != nil {
		t.Fatal(err)
	}
	hold, err := d.Hold()
	if err != nil {
		t.Fatal(err)
	}
	defer hold.Close()
	trim := func(before time.Duration, most int64, want ...string) {
		t.Helper()
		freed, err := o.store.Trim(time.Now().Add(-before), most)
		if err != nil || !slices.Equal(freed.Names, want) || freed.Images != len(want) || freed.Layers != len(want) {
			t.Errorf("Trim = %+v, %v, want %q gone", freed, err, want)
		}
	}
	trim(100*time.Hour, 1<<30)
	trim(35*time.Hour, 1<<30, "c")
	if err := o.store.Touch("b"); err != nil {
		t.Fatal(err)
	}
	trim(20*time.Hour, 1<<30)
	trim(20*time.Hour, 150<<10, "a")
	hold.Close()
	trim(20*time.Hour, 1<<30, "d")
	if left, err := o.store.List(); err != nil || len(left) != 1 || left[0].Name != "b" {
		t.Errorf("left are %+v, %v, want b", left, err)
	}
}
