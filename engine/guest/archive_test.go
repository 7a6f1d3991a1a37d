package guest

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// checkArchive wants nothing in an archive that could do harm where it is unpacked.
func checkArchive(t *testing.T, data []byte) (names []string) {
	t.Helper()
	links := map[string]bool{}
	for in := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := in.Next()
		if err != nil {
			return names
		}
		name := strings.TrimSuffix(h.Name, "/")
		names = append(names, name)
		if !fs.ValidPath(name) || name == "." {
			t.Errorf("a file called %q", h.Name)
		}
		for dir := name; dir != "."; dir = path.Dir(dir) {
			if links[dir] {
				t.Errorf("%q is a link, or below one", h.Name)
			}
		}
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.Mode&^0o777 != 0 {
			t.Errorf("%q has owner %d:%d %q and mode %o", h.Name, h.Uid, h.Gid, h.Uname, h.Mode)
		}
		switch h.Typeflag {
		case tar.TypeReg, tar.TypeDir:
		case tar.TypeSymlink:
			links[name] = true
			if path.IsAbs(h.Linkname) || !fs.ValidPath(path.Join(path.Dir(name), h.Linkname)) {
				t.Errorf("the link %q leads to %q", h.Name, h.Linkname)
			}
		default:
			t.Errorf("%q is of type %c", h.Name, h.Typeflag)
		}
	}
}

// tree makes a directory of all kinds of things.
func tree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.MkdirAll(dir+"/src/deep/er", 0o755))
	must(t, os.WriteFile(dir+"/src/main", bytes.Repeat([]byte("x"), 700_000), 0o640))
	must(t, os.WriteFile(dir+"/src/deep/er/"+strings.Repeat("long", 60), []byte("text"), 0o755))
	must(t, os.WriteFile(dir+"/empty", nil, 0o600))
	must(t, os.Chtimes(dir+"/empty", time.Time{}, time.Unix(1234567890, 0)))
	must(t, os.Mkdir(dir+"/closed", 0o555))
	for link, target := range map[string]string{
		"near": "src/main", "src/deep/up": "../main", "src/deep/er/top": "../../../empty",
	} {
		must(t, os.Symlink(target, filepath.Join(dir, link)))
	}
	return dir
}

func TestArchivesGoBothWays(t *testing.T) {
	f, ctx := newFiles(t), within(t)
	from, to := tree(t), filepath.Join(t.TempDir(), "a/new/place")
	var first, second bytes.Buffer
	done, err := f.Export(ctx, from, &first, ArchiveLimits{})
	if err != nil || len(done.Skipped) > 0 || done.Entries != 10 || done.Bytes != 700_004 {
		t.Fatalf("Export = %+v, %v", done, err)
	}
	checkArchive(t, first.Bytes())
	if in, err := f.Import(ctx, to, bytes.NewReader(first.Bytes()), ArchiveLimits{}); err != nil || in.Bytes != 700_004 || in.Entries != 10 {
		t.Fatalf("Import = %+v, %v", in, err)
	}
	// Once more, over what is there now.
	if in, err := f.Import(ctx, to, bytes.NewReader(first.Bytes()), ArchiveLimits{}); err != nil {
		t.Fatalf("a second Import = %+v, %v", in, err)
	}
	if _, err := f.Export(ctx, to, &second, ArchiveLimits{}); err != nil {
		t.Fatal(err)
	}
	// Directories have other times.
	if a, b := summary(t, first.Bytes()), summary(t, second.Bytes()); !slices.Equal(a, b) {
		t.Errorf("what came back is\n%s\nwant\n%s", strings.Join(b, "\n"), strings.Join(a, "\n"))
	}
}

func summary(t *testing.T, data []byte) []string {
	t.Helper()
	var lines []string
	for in := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := in.Next()
		if err == io.EOF {
			return lines
		}
		must(t, err)
		content, err := io.ReadAll(in)
		must(t, err)
		when := h.ModTime.Unix()
		if h.Typeflag != tar.TypeReg {
			when = 0
		}
		lines = append(lines, fmt.Sprintf("%s %c %o %d %d %s", h.Name, h.Typeflag, h.Mode, len(content), when, h.Linkname))
	}
}

// TestExportIsSafe exports what leads out, and what is no file.
func TestExportIsSafe(t *testing.T) {
	f, ctx := newFiles(t), within(t)
	dir, outside := tree(t), t.TempDir()
	must(t, os.WriteFile(outside+"/secret", []byte("secret"), 0o600))
	for link, target := range map[string]string{
		"absolute": outside, "out": "..", "src/deep/out": "../../..", "src/tricky": "deep/../../..", "src/sly": "./../..", "self": "/proc/self/cwd",
	} {
		must(t, os.Symlink(target, filepath.Join(dir, link)))
	}
	must(t, syscall.Mkfifo(dir+"/pipe", 0o600))
	must(t, os.Chmod(dir+"/empty", 0o755|fs.ModeSetuid))
	if os.Getuid() == 0 {
		if err := syscall.Mknod(dir+"/device", syscall.S_IFCHR|0o666, 1<<8|3); err != nil {
			t.Log("no device can be made here")
		}
	}
	var out bytes.Buffer
	done, err := f.Export(ctx, dir, &out, ArchiveLimits{})
	if err != nil {
		t.Fatal(err)
	}
	names := checkArchive(t, out.Bytes())
	if len(names) != 10 || bytes.Contains(out.Bytes(), []byte("secret")) || len(done.Skipped) < 7 {
		t.Errorf("the archive holds %q, left out %v", names, done.Skipped)
	}
	// The directory itself may be reached through a link; that is what was asked for.
	must(t, os.Symlink(dir, outside+"/dir"))
	if done, err := f.Export(ctx, outside+"/dir", io.Discard, ArchiveLimits{}); err != nil || done.Entries != 10 {
		t.Errorf("Export through a link = %+v, %v", done, err)
	}
	_, err = f.Export(ctx, dir+"/src/main", io.Discard, ArchiveLimits{})
	wantErrno(t, "Export of a file", err, syscall.ENOTDIR)
	var large *ArchiveError
	for _, l := range []ArchiveLimits{{Entries: 3}, {Bytes: 1000}} {
		if _, err := f.Export(ctx, dir, io.Discard, l); !errors.As(err, &large) {
			t.Errorf("Export with %+v = %v, want an *ArchiveError", l, err)
		}
	}
}

// archive packs headers.
func archive(t *testing.T, headers ...tar.Header) io.Reader {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		h.Mode |= 0o644
		if h.Typeflag == tar.TypeReg {
			h.Size = 4
		}
		must(t, w.WriteHeader(&h))
		if h.Size > 0 {
			io.WriteString(w, "evil")
		}
	}
	must(t, w.Close())
	return &b
}

// TestHostileArchives imports archives that want to write elsewhere.
func TestHostileArchives(t *testing.T) {
	f, ctx := newFiles(t), within(t)
	for name, headers := range map[string][]tar.Header{
		"a name that rises":              {{Name: "../evil", Typeflag: tar.TypeReg}},
		"one that rises later":           {{Name: "a/../../evil", Typeflag: tar.TypeReg}},
		"an absolute name":               {{Name: "/tmp/evil", Typeflag: tar.TypeReg}},
		"a file in place of the top":     {{Name: "./", Typeflag: tar.TypeSymlink, Linkname: "/tmp"}},
		"a second name for what is out":  {{Name: "evil", Typeflag: tar.TypeLink, Linkname: "../outside/canary"}},
		"a second name for the absolute": {{Name: "evil", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}},
		"through a link":                 {{Name: "way", Typeflag: tar.TypeSymlink, Linkname: "../outside"}, {Name: "way/evil", Typeflag: tar.TypeReg}},
		"a directory through a link":     {{Name: "way", Typeflag: tar.TypeSymlink, Linkname: "../outside"}, {Name: "way/evil/", Typeflag: tar.TypeDir}},
		"a link through a link":          {{Name: "way", Typeflag: tar.TypeSymlink, Linkname: "../outside"}, {Name: "way/evil", Typeflag: tar.TypeSymlink, Linkname: "x"}},
		"over the target of a link":      {{Name: "canary", Typeflag: tar.TypeSymlink, Linkname: "../outside/canary"}, {Name: "canary", Typeflag: tar.TypeReg}},
		"a mode through a link":          {{Name: "way/", Typeflag: tar.TypeDir, Mode: 0o444}, {Name: "way", Typeflag: tar.TypeSymlink, Linkname: "../outside"}},
		"devices":                        {{Name: "evil", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}, {Name: "evil2", Typeflag: tar.TypeBlock}, {Name: "evil3", Typeflag: tar.TypeFifo}},
	} {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			must(t, os.Mkdir(top+"/outside", 0o755))
			must(t, os.WriteFile(top+"/outside/canary", []byte("alive"), 0o640))
			done, err := f.Import(ctx, top+"/inside", archive(t, headers...), ArchiveLimits{})
			if err == nil && name != "devices" && name != "over the target of a link" {
				t.Errorf("Import = %+v, want an error", done)
			}
			if name == "devices" && (err != nil || len(done.Skipped) != 3) {
				t.Errorf("Import = %+v, %v, want all skipped", done, err)
			}
			left, _ := os.ReadDir(top + "/outside")
			st, statErr := os.Stat(top + "/outside")
			got, readErr := os.ReadFile(top + "/outside/canary")
			if len(left) != 1 || statErr != nil || st.Mode().Perm() != 0o755 || readErr != nil || string(got) != "alive" {
				t.Errorf("outside: %v, mode %v, canary %q", left, st.Mode(), got)
			}
			for _, evil := range []string{top + "/evil", "/tmp/evil"} {
				if _, err := os.Lstat(evil); err == nil {
					t.Errorf("%s was written", evil)
				}
			}
		})
	}
	var bad *ArchiveError
	for _, l := range []ArchiveLimits{{Entries: 1}, {Bytes: 5}} {
		two := archive(t, tar.Header{Name: "a", Typeflag: tar.TypeReg}, tar.Header{Name: "b", Typeflag: tar.TypeReg})
		if _, err := f.Import(ctx, t.TempDir(), two, l); !errors.As(err, &bad) {
			t.Errorf("Import with %+v = %v, want an *ArchiveError", l, err)
		}
	}
	if _, err := f.Import(ctx, t.TempDir(), strings.NewReader(strings.Repeat("no archive", 100)), ArchiveLimits{}); !errors.As(err, &bad) {
		t.Errorf("Import of no archive = %v, want an *ArchiveError", err)
	}
}

// TestImportHardLinks makes one file of two names.
func TestImportHardLinks(t *testing.T) {
	f, ctx, dir := newFiles(t), within(t), t.TempDir()
	in := archive(t, tar.Header{Name: "a/one", Typeflag: tar.TypeReg}, tar.Header{Name: "b/two", Typeflag: tar.TypeLink, Linkname: "a/one"})
	if _, err := f.Import(ctx, dir, in, ArchiveLimits{}); err != nil {
		t.Fatal(err)
	}
	one, err := os.Stat(dir + "/a/one")
	must(t, err)
	two, err := os.Stat(dir + "/b/two")
	must(t, err)
	if !os.SameFile(one, two) {
		t.Error("the two names are two files")
	}
}

func FuzzImport(f *testing.F) {
	f.Add([]byte("x"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for in := tar.NewReader(bytes.NewReader(data)); ; {
			h, err := in.Next()
			if err != nil {
				return
			}
			if rel, err := relative(h.Name); err == nil && (rel != "." && !fs.ValidPath(strings.ToValidUTF8(rel, "x"))) {
				t.Errorf("%q is taken as %q", h.Name, rel)
			}
		}
	})
}
