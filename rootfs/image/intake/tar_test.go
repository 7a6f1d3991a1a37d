package intake_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/rootfs/image"
	"github.com/direct-oci/engine/rootfs/image/intake"
	"github.com/direct-oci/engine/rootfs/image/tree"
)

func requireRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// item is one entry of a test archive.
type item struct {
	tar.Header
	content string
}

func file(name, content string) item {
	return item{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}, content}
}

func dir(name string) item {
	return item{tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755}, ""}
}

func symlink(name, target string) item {
	return item{tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target}, ""}
}

func hardlink(name, target string) item {
	return item{tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target}, ""}
}

func special(kind byte, name string) item {
	return item{tar.Header{Typeflag: kind, Name: name, Mode: 0o666, Devmajor: 1, Devminor: 3}, ""}
}

func archive(t testing.TB, items ...item) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, i := range items {
		h := i.Header
		h.Size = int64(len(i.content))
		if h.ModTime.IsZero() {
			h.ModTime = time.Unix(1700000000, 0)
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatalf("header of %q: %v", h.Name, err)
		}
		if _, err := io.WriteString(w, i.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// outside is a directory with a store in it and files beside it that no import may
// touch.
type outside struct {
	base  string
	store image.Store
}

func newOutside(t testing.TB) outside {
	t.Helper()
	requireRoot(t)
	base := t.TempDir()
	for _, name := range []string{"canary", "etc/shadow", "dir/file"} {
		path := filepath.Join(base, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte("host"), 0o640)); err != nil {
			t.Fatal(err)
		}
	}
	return outside{base, image.Store{Dir: filepath.Join(base, "images"), Limits: tree.Limits{MaxBytes: 8 << 20, MaxEntries: 1000}}}
}

// state describes everything that is not the store's.
func (o outside) state(t testing.TB) string {
	t.Helper()
	var b strings.Builder
	err := filepath.Walk(o.base, func(path string, _ os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		if path == o.store.Dir {
			return filepath.SkipDir
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s ino %d mode %o nlink %d uid %d size %d ", path, st.Ino, st.Mode, st.Nlink, st.Uid, st.Size)
		if path != o.base { // the store's own directory appears in it
			fmt.Fprintf(&b, "mtime %d ctime %d", st.Mtim.Nano(), st.Ctim.Nano())
		}
		b.WriteByte('\n')
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func (o outside) importBytes(t testing.TB, name string, data []byte) (image.Image, error) {
	t.Helper()
	src := filepath.Join(t.TempDir(), "src.tar")
	if err := os.WriteFile(src, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return take(context.Background(), o.store, src, name)
}

func TestHostileTars(t *testing.T) {
	o := newOutside(t)
	if err := os.Mkdir(o.store.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	up := strings.Repeat("../", 40)
	host := o.base // an absolute path that really leads to the host's files
	long := strings.Repeat("n", 256)
	var deep, many []item
	for i := range 300 {
		deep = append(deep, dir(strings.Repeat("d/", i+1)))
	}
	for i := range 1100 {
		many = append(many, file(fmt.Sprint("f", i), ""))
	}
	pax := func(i item, records map[string]string) item {
		i.PAXRecords, i.Format = records, tar.FormatPAX
		return i
	}
	tests := []struct {
		name   string
		items  []item
		refuse string            // part of the error; "" when it is imported
		want   map[string]string // what the image then holds: content, "-> target" or "dir"
	}{
		{"leads upwards", []item{file("../canary", "x")}, "leads upwards", nil},
		{"leads upwards in the middle", []item{dir("a"), file("a/../../canary", "x")}, "leads upwards", nil},
		{"leads far upwards", []item{file(up+host+"/canary", "x")}, "leads upwards", nil},
		{"absolute name stays inside", []item{file(host+"/canary", "x")}, "", map[string]string{host + "/canary": "x"}},
		{"dots in names are fine", []item{file("a..b/...", "x")}, "", map[string]string{"a..b/...": "x"}},
		{"file through an absolute link stays inside", []item{symlink("out", host), dir(host), file("out/canary", "x")}, "", map[string]string{host + "/canary": "x"}},
		{"file through an absolute link to nothing", []item{symlink("out", host), file("out/canary", "x")}, "link to nothing", nil},
		{"file through a link upwards stays inside", []item{symlink("out", up), file("out/canary", "x")}, "", map[string]string{"canary": "x"}},
		{"file through a chain of links stays inside", []item{dir("a"), symlink("a/b", ".."), symlink("c", "a/b/../.."), file("c/canary", "x")}, "", map[string]string{"canary": "x"}},
		{"file through a link in proc", []item{symlink("out", "/proc/self/root"+host), file("out/canary", "x")}, "link to nothing", nil},
		{"file through a link to itself", []item{symlink("l", "l"), file("l/canary", "x")}, "link to itself", nil},
		{"file replaces a link", []item{symlink("f", host+"/canary"), file("f", "x")}, "", map[string]string{"f": "x"}},
		{"file replaces a link of the host's name", []item{symlink("canary", "../../../canary"), file("canary", "x")}, "", map[string]string{"canary": "x"}},
		{"directory replaces a link", []item{symlink("d", host), dir("d"), file("d/canary", "x")}, "", map[string]string{"d": "dir", "d/canary": "x"}},
		{"mode through a link", []item{symlink("f", host+"/canary"), hardlink("g", "f"), file("f", "")}, "", map[string]string{"g": "-> " + host + "/canary"}},
		{"hard link to the host", []item{hardlink("l", host+"/canary")}, "not there", nil},
		{"hard link upwards", []item{hardlink("l", up+host+"/canary")}, "leads upwards", nil},
		{"hard link through a link", []item{symlink("out", host), hardlink("l", "out/canary")}, "not there", nil},
		{"hard link to a directory", []item{dir("d"), hardlink("l", "d")}, "operation not permitted", nil},
		{"hard link to the top", []item{hardlink("l", ".")}, "hard link to a directory", nil},
		{"hard link then another file", []item{file("a", "one"), hardlink("b", "a"), file("a", "two")}, "", map[string]string{"a": "two", "b": "one"}},
		{"hard link to itself", []item{file("a", "x"), hardlink("a", "a")}, "not there", nil},
		{"top is a link", []item{symlink(".", host)}, "not a directory", nil},
		{"top is a link by another name", []item{symlink("./", host), file("canary", "x")}, "not a directory", nil},
		{"slash is a link", []item{symlink("/", host)}, "not a directory", nil},
		{"top is a hard link", []item{file("a", ""), hardlink(".", "a")}, "not a directory", nil},
		{"file as a parent", []item{file("a", "x"), file("a/b", "y")}, "not a directory", nil},
		{"file in place of a full directory", []item{file("d/f", "x"), file("d", "y")}, "has content", nil},
		{"file in place of an empty directory", []item{dir("d"), file("d", "y")}, "", map[string]string{"d": "y"}},
		{"last of several", []item{file("a", "1"), file("a", "2"), file("./a", "3"), file("/a", "4")}, "", map[string]string{"a": "4"}},
		{"whiteouts are names like others", []item{file("d/.wh..wh..opq", ""), file(".wh.canary", "")}, "", map[string]string{"d/.wh..wh..opq": "", ".wh.canary": ""}},
		{"devices, pipes", []item{special(tar.TypeChar, "null"), special(tar.TypeBlock, "sda"), special(tar.TypeFifo, "pipe"), file("f", "x")}, "", map[string]string{"f": "x"}},
		{"name with a newline", []item{file("a\nb", "x")}, "", map[string]string{"a\nb": "x"}},
		{"name that is not UTF-8", []item{file("a\xff\xfeb", "x")}, "", map[string]string{"a\xff\xfeb": "x"}},
		{"name that is too long", []item{file(long, "x")}, "file name too long", nil},
		{"path that is too long", []item{file(strings.Repeat("abc/", 1100)+"f", "x")}, "", nil},
		{"too deep", deep, "more than 256 directories", nil},
		{"too many", many, "more than 1000 entries", nil},
		{"too many parents", []item{file(strings.Repeat("p/", 200)+"f", ""), file("a/"+strings.Repeat("p/", 250)+"f", ""), file("b/"+strings.Repeat("p/", 250)+"f", ""), file("c/"+strings.Repeat("p/", 250)+"f", ""), file("d/"+strings.Repeat("p/", 250)+"f", "")}, "more than 1000 entries", nil},
		{"too large", []item{file("f", strings.Repeat("x", 9<<20))}, "more than 8388608 bytes", nil},
		{"attributes that steer", []item{pax(file("f", "x"), map[string]string{"SCHILY.xattr.trusted.overlay.redirect": "/etc", "SCHILY.xattr.user.overlay.opaque": "y", "SCHILY.xattr.security.capability": "\x01", "SCHILY.xattr.user.note": "kept"})}, "", map[string]string{"f": "x"}},
		{"huge attribute", []item{pax(file("f", "x"), map[string]string{"SCHILY.xattr.user.note": strings.Repeat("v", 512<<10)})}, "", nil},
		{"owner out of range", []item{pax(item{tar.Header{Typeflag: tar.TypeReg, Name: "f", Uid: 1 << 40}, ""}, nil)}, "owner", nil},
		{"owner minus one", []item{pax(item{tar.Header{Typeflag: tar.TypeReg, Name: "f", Uid: 1<<32 - 1}, ""}, nil)}, "owner", nil},
		{"time out of range", []item{pax(item{tar.Header{Typeflag: tar.TypeReg, Name: "f", ModTime: time.Unix(1<<50, 0)}, ""}, nil)}, "", map[string]string{"f": ""}},
		{"layers in place of a tree", []item{file("oci-layout", "{}"), file("index.json", "{}"), dir("blobs")}, "neither an index nor a manifest", nil},
	}
	before := o.state(t)
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			img, err := o.importBytes(t, fmt.Sprintf("hostile%d", i), archive(t, tt.items...))
			switch {
			case tt.refuse != "" && (err == nil || !strings.Contains(err.Error(), tt.refuse)):
				t.Errorf("Import = %v, want an error with %q", err, tt.refuse)
			case tt.refuse == "" && tt.want != nil && err != nil:
				t.Errorf("Import: %v", err)
			}
			if err == nil {
				checkTree(t, img, tt.want)
			}
			if after := o.state(t); after != before {
				t.Errorf("files outside changed:\n%s\nwere\n%s", after, before)
			}
		})
	}
	checkNoRest(t, o.store)
}

func checkTree(t *testing.T, img image.Image, want map[string]string) {
	t.Helper()
	for path, content := range want {
		full := filepath.Join(img.Lowers[0], path)
		st, err := os.Lstat(full)
		if err != nil {
			t.Errorf("image lacks %s: %v", path, err)
			continue
		}
		got := ""
		switch {
		case st.IsDir():
			got = "dir"
		case st.Mode()&os.ModeSymlink != 0:
			target, err := os.Readlink(full)
			if err != nil {
				t.Error(err)
			}
			got = "-> " + target
		default:
			data, err := os.ReadFile(full)
			if err != nil {
				t.Error(err)
			}
			got = string(data)
		}
		if got != content {
			t.Errorf("image has %s = %q, want %q", path, got, content)
		}
	}
}

func checkNoRest(t testing.TB, s image.Store) {
	t.Helper()
	rest, err := filepath.Glob(filepath.Join(s.Dir, ".tmp-*"))
	if err != nil || len(rest) != 0 {
		t.Errorf("unfinished images left: %v, %v", rest, err)
	}
}

func TestImportDropsPrivileges(t *testing.T) {
	o := newOutside(t)
	su := file("su", "x")
	su.Mode, su.Uid = 0o6755, 1234
	su.PAXRecords = map[string]string{"SCHILY.xattr.security.capability": "\x01\x00\x00\x02", "SCHILY.xattr.user.note": "kept"}
	shared := dir("shared")
	shared.Mode = 0o3777
	img, err := o.importBytes(t, "x", archive(t, su, shared, special(tar.TypeChar, "null"), special(tar.TypeFifo, "pipe")))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]uint32{"su": unix.S_IFREG | 0o755, "shared": unix.S_IFDIR | 0o1777} {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(img.Lowers[0], path), &st); err != nil || st.Mode != want {
			t.Errorf("%s has mode %o, %v, want %o", path, st.Mode, err, want)
		}
		if path == "su" && st.Uid != 1234 {
			t.Errorf("su belongs to %d, want 1234", st.Uid)
		}
	}
	list := make([]byte, 1024)
	n, err := unix.Llistxattr(filepath.Join(img.Lowers[0], "su"), list)
	if err != nil || string(list[:n]) != "user.note\x00" {
		t.Errorf("su has the attributes %q, %v, want user.note alone", list[:n], err)
	}
	c := img.Counts
	if c.SetID != 2 || c.Devices != 1 || c.Pipes != 1 || c.Xattrs != 1 {
		t.Errorf("counts = %+v, want 2 set-id, 1 device, 1 pipe, 1 attribute", c)
	}
}

func compress(t testing.TB, kind string, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser
	var err error
	switch kind {
	case "tar":
		return data
	case "tar+gzip":
		w = gzip.NewWriter(&b)
	case "tar+zstd":
		w, err = zstd.NewWriter(&b)
	case "tar+xz":
		w, err = xz.NewWriter(&b)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestCompressions(t *testing.T) {
	o := newOutside(t)
	plain := archive(t, dir("./"), file("./etc/os-release", "NAME=x\n"), symlink("./lib", "usr/lib"))
	digest := ""
	for i, kind := range []string{"tar", "tar+gzip", "tar+zstd", "tar+xz"} {
		data := compress(t, kind, plain)
		img, err := o.importBytes(t, fmt.Sprint("c", i), data)
		if err != nil {
			t.Errorf("Import of %s: %v", kind, err)
			continue
		}
		if img.Kind != kind {
			t.Errorf("kind = %s, want %s", img.Kind, kind)
		}
		if digest == "" {
			digest = img.Digest
		}
		if img.Digest != digest {
			t.Errorf("digest of %s = %s, want %s as of the others", kind, img.Digest, digest)
		}
		var bad *intake.SourceError
		if _, err := o.importBytes(t, fmt.Sprint("cut", i), data[:len(data)/2]); !errors.As(err, &bad) {
			t.Errorf("Import of half of %s = %v, want a *SourceError", kind, err)
		}
	}
	for name, data := range map[string][]byte{"nothing": nil, "text": []byte(strings.Repeat("hello\n", 1000)), "zeros": make([]byte, 4096)} {
		var bad *intake.SourceError
		if _, err := o.importBytes(t, name, data); !errors.As(err, &bad) {
			t.Errorf("Import of %s = %v, want a *SourceError", name, err)
		}
	}
	checkNoRest(t, o.store)
}

// zeros is an endless file.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// bomb writes an archive of one file of n zero bytes.
func bomb(t *testing.T, w io.WriteCloser, n int64) {
	t.Helper()
	tw := tar.NewWriter(w)
	err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "zeros", Size: n, Mode: 0o644})
	if err == nil {
		_, err = io.Copy(tw, io.LimitReader(zeros{}, n))
	}
	if err := errors.Join(err, tw.Close(), w.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestBombs(t *testing.T) {
	o := newOutside(t)
	src := filepath.Join(t.TempDir(), "bomb")
	f, err := os.Create(src)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewWriterLevel(f, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	bomb(t, z, 1<<30)
	for _, limit := range []int64{8 << 20, 64 << 20} {
		o.store.Limits.MaxBytes = limit
		peak := intake.WatchHeap(t, func() {
			_, err := take(context.Background(), o.store, src, fmt.Sprint("bomb", limit))
			var large *tree.LimitError
			if !errors.As(err, &large) {
				t.Errorf("Import of 1 GiB with a limit of %d = %v, want a *LimitError", limit, err)
			}
		})
		if peak > 64<<20 {
			t.Errorf("Import of a bomb with a limit of %d took %d MiB of heap, want at most 64", limit, peak>>20)
		}
	}
}

func FuzzImportTar(f *testing.F) {
	requireRoot(f)
	f.Add(archive(f, dir("d"), file("d/f", "x"), symlink("d/l", "/"), hardlink("h", "d/f")))
	f.Add(archive(f, symlink("out", "../../.."), file("out/canary", "x")))
	f.Add(archive(f, symlink("a", "b"), symlink("b", ".."), hardlink("c", "a/canary"), file("c", "x")))
	f.Add(archive(f, special(tar.TypeChar, "null"), file("d/.wh.x", ""), symlink(".", "/tmp")))
	f.Add(compress(f, "tar+gzip", archive(f, file("../canary", "x"))))
	f.Add(compress(f, "tar+xz", archive(f, file("f", "x"))))
	f.Add(compress(f, "tar+zstd", archive(f, file("f", "x"))))
	o := newOutside(f)
	o.store.Limits.MaxBytes = 1 << 20
	if err := os.Mkdir(o.store.Dir, 0o700); err != nil {
		f.Fatal(err)
	}
	before := o.state(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		_, err := o.importBytes(t, "fuzzed", data)
		if after := o.state(t); after != before {
			t.Fatalf("Import = %v, and files outside changed:\n%s\nwere\n%s", err, after, before)
		}
		if err == nil {
			_, err = o.store.Remove("fuzzed")
			if err != nil {
				t.Errorf("Remove: %v", err)
			}
		}
		checkNoRest(t, o.store)
	})
}
