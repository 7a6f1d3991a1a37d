package archive

import (
	"archive/tar"
	"bytes"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// outside is a directory beside the one that is unpacked into, which must stay as it is.
func outside(t testing.TB) (root *os.Root, check func()) {
	t.Helper()
	top := t.TempDir()
	for _, dir := range []string{"inside", "outside"} {
		if err := os.Mkdir(filepath.Join(top, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	canary := filepath.Join(top, "outside/canary")
	if err := os.WriteFile(canary, []byte("alive"), 0o640); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(filepath.Join(top, "inside"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root, func() {
		t.Helper()
		above, _ := os.ReadDir(top)
		beside, _ := os.ReadDir(filepath.Join(top, "outside"))
		text, err := os.ReadFile(canary)
		info, statErr := os.Stat(filepath.Join(top, "outside"))
		if len(above) != 2 || len(beside) != 1 || err != nil || string(text) != "alive" || statErr != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("outside are %v and %v, the canary is %q (%v)", above, beside, text, err)
		}
		filepath.WalkDir(filepath.Join(top, "inside"), func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Type()&^(fs.ModeDir|fs.ModeSymlink) != 0 {
				t.Errorf("%s is of type %v", path, d.Type())
			}
			return nil
		})
	}
}

func archiveOf(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		h.Mode |= 0o600
		if h.Typeflag == tar.TypeReg {
			h.Size = 4
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			io.WriteString(w, "evil")
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

var hostileArchives = map[string][]tar.Header{
	"a name that rises":         {{Name: "../outside/canary", Typeflag: tar.TypeReg}},
	"one that rises later":      {{Name: "a/../../outside/canary", Typeflag: tar.TypeReg}},
	"an absolute name":          {{Name: "/tmp/evil-of-an-archive", Typeflag: tar.TypeReg}},
	"through a link":            {{Name: "way", Typeflag: tar.TypeSymlink, Linkname: "../outside"}, {Name: "way/evil", Typeflag: tar.TypeReg}},
	"through a link in two":     {{Name: "a/b", Typeflag: tar.TypeSymlink, Linkname: ".."}, {Name: "c", Typeflag: tar.TypeSymlink, Linkname: "a/b/../outside"}, {Name: "c/evil", Typeflag: tar.TypeReg}},
	"a link in place of a link": {{Name: "d/", Typeflag: tar.TypeDir}, {Name: "up", Typeflag: tar.TypeSymlink, Linkname: "d"}, {Name: "up", Typeflag: tar.TypeSymlink, Linkname: ".."}, {Name: "up/outside/canary", Typeflag: tar.TypeReg}},
	"a mode through a link":     {{Name: "way/", Typeflag: tar.TypeDir, Mode: 0o111}, {Name: "way", Typeflag: tar.TypeSymlink, Linkname: "../outside"}},
	"the top as a link":         {{Name: "./", Typeflag: tar.TypeSymlink, Linkname: "../outside"}},
	"a second name":             {{Name: "x", Typeflag: tar.TypeLink, Linkname: "../outside/canary"}, {Name: "x", Typeflag: tar.TypeReg}},
	"devices":                   {{Name: "x", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}, {Name: "y", Typeflag: tar.TypeFifo}},
}

// TestUnpackIsSafe unpacks archives that want to write elsewhere.
func TestUnpackIsSafe(t *testing.T) {
	for name, headers := range hostileArchives {
		t.Run(name, func(t *testing.T) {
			root, check := outside(t)
			left := 0
			err := Unpack(root, bytes.NewReader(archiveOf(t, headers...)), func(string, string) { left++ })
			check()
			if err == nil && left == 0 {
				t.Error("all of it was taken")
			}
			if _, err := os.Lstat("/tmp/evil-of-an-archive"); err == nil {
				t.Error("an absolute name was followed")
			}
		})
	}
}

func FuzzUnpack(f *testing.F) {
	for _, headers := range hostileArchives {
		f.Add(archiveOf(f, headers...))
	}
	f.Fuzz(func(t *testing.T, archive []byte) {
		root, check := outside(t)
		_ = Unpack(root, bytes.NewReader(archive), func(string, string) {})
		check()
	})
}

// TestPackAndUnpack takes a directory there and back.
func TestPackAndUnpack(t *testing.T) {
	from := t.TempDir()
	for _, dir := range []string{"a/deep", "closed"} {
		if err := os.MkdirAll(filepath.Join(from, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	when := time.Unix(1234567890, 0)
	for name, mode := range map[string]fs.FileMode{"a/deep/run": 0o751, "closed/file": 0o440} {
		path := filepath.Join(from, name)
		if err := os.WriteFile(path, []byte(strings.Repeat(name, 1000)), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, when, when); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../deep/run", filepath.Join(from, "a/deep/link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(from, "closed"), 0o550); err != nil {
		t.Fatal(err)
	}
	source, err := os.OpenRoot(from)
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	var packed bytes.Buffer
	told := func(path, why string) { t.Errorf("%s is left out: %s", path, why) }
	if err := Pack(source, &packed, told); err != nil {
		t.Fatal(err)
	}
	root, _ := outside(t)
	for range 2 { // the second time over what is there
		if err := Unpack(root, bytes.NewReader(packed.Bytes()), told); err != nil {
			t.Fatal(err)
		}
	}
	for name, mode := range map[string]fs.FileMode{"a/deep/run": 0o751, "closed/file": 0o440, "closed": 0o550 | fs.ModeDir} {
		info, err := root.Stat(name)
		if err != nil || info.Mode() != mode || !info.IsDir() && !info.ModTime().Equal(when) {
			t.Errorf("%s is %v (%v), want mode %v and its time", name, info, err, mode)
		}
	}
	if text, err := root.ReadFile("a/deep/link"); err != nil || !strings.HasPrefix(string(text), "a/deep/run") {
		t.Errorf("the link leads to %.20q, %v", text, err)
	}
	defer root.Chmod("closed", 0o750)
}
