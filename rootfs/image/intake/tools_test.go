package intake_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/rootfs/image/intake"
)

// requireTools skips a test on a host that lacks other tools for images. CI has them.
func requireTools(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("%s is not installed: run make setup", name)
		}
	}
}

// tool runs a program that must succeed.
func tool(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// rich fills a directory with one of everything that a layer can carry.
func rich(t *testing.T, dir string) {
	t.Helper()
	at := func(name string) string { return filepath.Join(dir, name) }
	must(t,
		os.MkdirAll(at("usr/bin"), 0o755), os.MkdirAll(at("etc/d"), 0o750), os.MkdirAll(at("var/cache/x/y"), 0o755), os.Mkdir(at("tmp"), 0o755),
		os.Chmod(at("tmp"), 0o777|os.ModeSticky),
		os.WriteFile(at("usr/bin/a"), []byte(strings.Repeat("a", 5000)), 0o755), os.Link(at("usr/bin/a"), at("usr/bin/b")), os.Link(at("usr/bin/a"), at("etc/c")),
		os.WriteFile(at("usr/bin/su"), []byte("su"), 0o755), os.Chmod(at("usr/bin/su"), 0o755|os.ModeSetuid),
		os.WriteFile(at("etc/passwd"), []byte("root:x:0:0::/:/bin/sh\n"), 0o644), os.WriteFile(at("etc/secret"), []byte("s"), 0o600),
		os.Chown(at("etc/secret"), 12, 34), os.Chown(at("etc/d"), 1000, 1000),
		os.Symlink("/usr/bin/a", at("abs")), os.Symlink("../usr", at("etc/rel")), os.Symlink("nowhere", at("dangling")), os.Lchown(at("dangling"), 5, 6),
		os.WriteFile(at("var/cache/x/y/deep"), nil, 0o400), os.WriteFile(at("etc/d/name with space"), []byte("1"), 0o644),
		unix.Setxattr(at("etc/passwd"), "user.note", []byte("kept\x00\xff"), 0), unix.Setxattr(at("etc/d"), "user.dir", []byte("kept"), 0),
		os.Chtimes(at("etc/passwd"), time.Unix(1, 0), time.Unix(1234567890, 0)), os.Chtimes(at("usr"), time.Unix(1, 0), time.Unix(1111111111, 0)),
	)
}

// byUmoci makes an image with umoci: unpack, change, repack.
func byUmoci(t *testing.T, lay string) {
	t.Helper()
	ref := lay + ":u"
	bundle := t.TempDir() + "/b"
	step := func(change func(root string)) {
		tool(t, "umoci", "unpack", "--image", ref, bundle)
		change(bundle + "/rootfs")
		tool(t, "umoci", "repack", "--image", ref, bundle)
		must(t, os.RemoveAll(bundle))
	}
	tool(t, "umoci", "new", "--image", ref)
	step(func(root string) { rich(t, root) })
	step(func(root string) {
		must(t, os.Remove(root+"/usr/bin/su"), os.RemoveAll(root+"/var/cache/x"), os.WriteFile(root+"/usr/bin/new", []byte("n"), 0o755),
			os.Chmod(root+"/etc/d", 0o700), os.Remove(root+"/abs"), os.Mkdir(root+"/abs", 0o755), os.WriteFile(root+"/abs/in", nil, 0o644))
	})
	step(func(root string) {
		must(t, os.WriteFile(root+"/etc/passwd", []byte("other\n"), 0o644), os.RemoveAll(root+"/abs"), os.WriteFile(root+"/abs", []byte("file"), 0o644),
			os.Mkdir(root+"/var/cache/x", 0o711))
	})
}

// byInsert makes an image with umoci insert, which writes the marks itself.
func byInsert(t *testing.T, lay string) {
	t.Helper()
	ref := lay + ":i"
	src := t.TempDir()
	rich(t, src)
	tool(t, "umoci", "new", "--image", ref)
	for _, dir := range []string{"usr", "etc", "var", "tmp"} {
		tool(t, "umoci", "insert", "--image", ref, filepath.Join(src, dir), "/"+dir)
	}
	more := t.TempDir()
	must(t, os.WriteFile(more+"/only", []byte("o"), 0o644), os.Chmod(more, 0o755))
	tool(t, "umoci", "insert", "--image", ref, "--opaque", more, "/var/cache")
	tool(t, "umoci", "insert", "--image", ref, "--whiteout", "/usr/bin/b")
	tool(t, "umoci", "insert", "--image", ref, "--whiteout", "/etc/d")
	tool(t, "umoci", "insert", "--image", ref, more, "/etc/d/again")
}

// byBuildah makes an image with buildah, four layers.
func byBuildah(t *testing.T, lay string) {
	t.Helper()
	src, state := t.TempDir(), t.TempDir()
	rich(t, src)
	buildah := func(args ...string) string {
		t.Helper()
		return strings.TrimSpace(tool(t, "buildah", append([]string{"--root", state + "/root", "--runroot", state + "/run", "--storage-driver", "vfs"}, args...)...))
	}
	base := "scratch"
	for i, change := range []func(root string){
		func(root string) {},
		func(root string) {
			must(t, os.RemoveAll(root+"/var/cache"), os.Remove(root+"/etc/c"), os.WriteFile(root+"/etc/passwd", []byte("2"), 0o600))
		},
		func(root string) { must(t, os.MkdirAll(root+"/var/cache/z", 0o700), os.Remove(root+"/dangling")) },
		func(root string) {
			must(t, os.RemoveAll(root+"/etc"), os.Mkdir(root+"/etc", 0o755), os.WriteFile(root+"/etc/fresh", nil, 0o644))
		},
	} {
		c := buildah("from", base)
		if i == 0 {
			buildah("copy", c, src, "/")
		}
		change(buildah("mount", c))
		buildah("umount", c)
		base = fmt.Sprint("step", i)
		buildah("commit", "--quiet", c, base)
	}
	buildah("push", "--quiet", base, "oci:"+lay+":b")
}

// described is what two unpackers have to agree on, one line per entry.
func described(t *testing.T, root string) map[string]string {
	t.Helper()
	all := map[string]string{}
	first := map[uint64]string{}
	must(t, filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		line := fmt.Sprintf("mode %o owner %d:%d time %d.%09d", st.Mode, st.Uid, st.Gid, st.Mtim.Sec, st.Mtim.Nsec)
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFLNK:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			line += " -> " + target
		case unix.S_IFREG:
			if st.Nlink > 1 && first[st.Ino] != "" {
				line += " same as " + first[st.Ino]
			} else {
				first[st.Ino] = name
			}
			f, err := os.Open(path)
			if err != nil {
				return err
			}
			defer f.Close()
			h := sha256.New()
			if _, err := io.Copy(h, f); err != nil {
				return err
			}
			line += fmt.Sprintf(" %x", h.Sum(nil))
		}
		list := make([]byte, 4096)
		n, err := unix.Llistxattr(path, list)
		if err != nil {
			return err
		}
		attributes := strings.Split(strings.TrimSuffix(string(list[:n]), "\x00"), "\x00")
		slices.Sort(attributes)
		for _, a := range attributes {
			if strings.HasPrefix(a, "user.") && a != "user.rootlesscontainers" {
				value := make([]byte, 4096)
				n, err := unix.Lgetxattr(path, a, value)
				if err != nil {
					return err
				}
				line += fmt.Sprintf(" %s=%q", a, value[:n])
			}
		}
		all[name] = line
		return nil
	}))
	return all
}

// TestSameAsUmoci compares images of several layers, made in three ways by other
// tools, with what umoci unpacks from them. Three differences are wanted: set-id bits
// are cleared; the top directory is the engine's own in a sandbox; and a directory that
// no layer describes, with the one above it, has the time of the unpacking for umoci,
// and one that is always the same for us.
func TestSameAsUmoci(t *testing.T) {
	requireTools(t, "umoci", "skopeo", "buildah")
	if !inMounts(t) {
		return
	}
	o := newOutside(t)
	lay := filepath.Join(t.TempDir(), "lay")
	tool(t, "umoci", "init", "--layout", lay)
	byUmoci(t, lay)
	byInsert(t, lay)
	byBuildah(t, lay)
	for _, ref := range []string{"u", "i", "b"} {
		t.Run(ref, func(t *testing.T) {
			img, err := take(context.Background(), o.store, lay, "cmp/"+ref, func(o *intake.Options) { o.Ref = ref })
			if err != nil {
				t.Fatal(err)
			}
			if len(img.Layers) < 3 {
				t.Errorf("image has %d layers, want several", len(img.Layers))
			}
			bundle := t.TempDir() + "/b"
			tool(t, "umoci", "unpack", "--image", lay+":"+ref, bundle)
			ours, theirs := described(t, overlay(t, img)), described(t, bundle+"/rootfs")
			if ref == "i" {
				for _, name := range []string{"etc", "etc/d"} { // it inserts etc/d/again and nothing above it
					ours[name], theirs[name] = withoutTime(ours[name]), withoutTime(theirs[name])
				}
			}
			compare(t, ours, theirs)
		})
	}
}

func withoutTime(line string) string {
	before, after, _ := strings.Cut(line, " time ")
	_, rest, _ := strings.Cut(after, " ")
	return before + rest
}

func compare(t *testing.T, ours, theirs map[string]string) {
	t.Helper()
	delete(ours, ".")
	delete(theirs, ".")
	if len(ours) < 8 {
		t.Errorf("only %d entries were compared", len(ours))
	}
	for name, line := range theirs {
		if cleared := strings.Replace(line, "mode 104755", "mode 100755", 1); ours[name] != cleared {
			t.Errorf("%s is\n  %s, umoci has\n  %s", name, ours[name], line)
		}
	}
	for name, line := range ours {
		if _, ok := theirs[name]; !ok {
			t.Errorf("%s is %s, and umoci has none", name, line)
		}
	}
}

// TestOtherToolsRead exports an image and lets other tools read it, and imports what
// they make of it.
func TestOtherToolsRead(t *testing.T) {
	requireTools(t, "umoci", "skopeo")
	if !inMounts(t) {
		return
	}
	o := newOutside(t)
	ctx := context.Background()
	lay := filepath.Join(t.TempDir(), "lay")
	tool(t, "umoci", "init", "--layout", lay)
	byUmoci(t, lay)
	tool(t, "umoci", "config", "--image", lay+":u", "--config.cmd", "/usr/bin/a", "--config.env", "A=1", "--config.user", "12:34", "--config.workingdir", "/srv")
	img, err := take(ctx, o.store, lay, "exp:1")
	must(t, err)
	out := t.TempDir() + "/x.tar"
	digest, err := intake.Export(ctx, o.store, "exp:1", out)
	must(t, err)
	again, err := intake.Export(ctx, o.store, "exp:1", out+"2")
	must(t, err)
	if a, b := hashFile(t, out), hashFile(t, out+"2"); a != b || digest != again {
		t.Errorf("two exports differ: %s %s and %s %s", a, digest, b, again)
	}
	for _, transport := range []string{"oci-archive:", "docker-archive:"} {
		inspected := tool(t, "skopeo", "inspect", "--config", transport+out)
		for _, want := range []string{`"A=1"`, `"/usr/bin/a"`, `"12:34"`, `"/srv"`} {
			if !strings.Contains(inspected, want) {
				t.Errorf("skopeo inspect %s lacks %s:\n%s", transport, want, inspected)
			}
		}
	}
	copied := t.TempDir() + "/copied"
	tool(t, "skopeo", "copy", "oci-archive:"+out, "oci:"+copied+":c")
	bundle := t.TempDir() + "/b"
	tool(t, "umoci", "unpack", "--image", copied+":c", bundle)
	want := described(t, overlay(t, img))
	compare(t, want, described(t, bundle+"/rootfs"))
	for i, form := range []string{"docker-archive:%s:exp:2", "oci-archive:%s:exp", "dir"} {
		src := fmt.Sprintf("%s/%d", t.TempDir(), i)
		if form == "dir" {
			src = copied
		} else {
			tool(t, "skopeo", "copy", "oci:"+lay+":u", fmt.Sprintf(form, src))
		}
		got, err := take(ctx, o.store, src, fmt.Sprint("back", i))
		if err != nil {
			t.Errorf("import of %s: %v", form, err)
			continue
		}
		compare(t, described(t, overlay(t, got)), want)
		if fmt.Sprint(got.Config) != fmt.Sprint(img.Config) {
			t.Errorf("configuration of %s is %+v, want %+v", form, got.Config, img.Config)
		}
	}
	// Compressed, on a pipe, it is the same image.
	zipped := t.TempDir() + "/z"
	data, err := os.ReadFile(out)
	must(t, err, os.WriteFile(zipped, compress(t, "tar+zstd", data), 0o600))
	got, err := take(ctx, o.store, zipped, "zipped")
	if err != nil || got.Digest != digest {
		t.Errorf("import of a compressed export = %v, %v, want %s", got.Digest, err, digest)
	}
}

func hashFile(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	return sum(data)
}
