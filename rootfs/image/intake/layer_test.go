package intake_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/rootfs/image"
	"github.com/direct-oci/engine/rootfs/image/intake"
	"github.com/direct-oci/engine/rootfs/image/tree"
)

func sum(data []byte) string {
	s := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(s[:])
}

func zip(t testing.TB, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(data)
	must(t, err, w.Close())
	return b.Bytes()
}

const (
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	indexType    = "application/vnd.oci.image.index.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// ociLayout is a layout that tests make, piece by piece.
type ociLayout struct {
	t   testing.TB
	dir string
}

func newLayout(t testing.TB) ociLayout {
	t.Helper()
	l := ociLayout{t, t.TempDir()}
	must(t, os.MkdirAll(filepath.Join(l.dir, "blobs/sha256"), 0o755),
		os.WriteFile(filepath.Join(l.dir, "oci-layout"), []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644))
	return l
}

type desc map[string]any

func (l ociLayout) blob(mediaType string, data []byte) desc {
	l.t.Helper()
	digest := sum(data)
	must(l.t, os.WriteFile(l.path(digest), data, 0o644))
	return desc{"mediaType": mediaType, "digest": digest, "size": len(data)}
}

func (l ociLayout) path(digest string) string {
	return filepath.Join(l.dir, "blobs/sha256", strings.TrimPrefix(digest, "sha256:"))
}

func (l ociLayout) json(mediaType string, v any) desc {
	l.t.Helper()
	data, err := json.Marshal(v)
	must(l.t, err)
	return l.blob(mediaType, data)
}

// image writes an image of these layers and returns its manifest's descriptor.
func (l ociLayout) image(arch string, config map[string]any, layers ...[]byte) desc {
	l.t.Helper()
	var blobs []desc
	ids := []string{}
	for _, plain := range layers {
		blobs = append(blobs, l.blob(layerType, zip(l.t, plain)))
		ids = append(ids, sum(plain))
	}
	c := l.json(configType, map[string]any{
		"os": "linux", "architecture": arch, "config": config, "rootfs": map[string]any{"type": "layers", "diff_ids": ids},
	})
	return l.json(manifestType, map[string]any{"schemaVersion": 2, "mediaType": manifestType, "config": c, "layers": blobs})
}

// index writes index.json.
func (l ociLayout) index(manifests ...desc) {
	l.t.Helper()
	data, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": indexType, "manifests": manifests})
	must(l.t, err, os.WriteFile(filepath.Join(l.dir, "index.json"), data, 0o644))
}

// inMounts runs the calling test again in a mount namespace of its own, and reports
// whether this is that process.
func inMounts(t *testing.T) bool {
	t.Helper()
	requireRoot(t)
	const env = "ENGINE_INTAKE_TEST_MOUNTS"
	if os.Getenv(env) == t.Name() {
		must(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
		return true
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v=true")
	cmd.Env = append(os.Environ(), env+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	t.Logf("in a mount namespace of its own:\n%s", out)
	if err != nil {
		t.Fatalf("in a mount namespace of its own: %v", err)
	}
	return false
}

// overlay mounts an image as a run does, less the engine's own layer, and returns
// where.
func overlay(t *testing.T, img image.Image) string {
	t.Helper()
	target, empty := t.TempDir(), t.TempDir()
	must(t, os.Chmod(empty, 0o755))
	ctx, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	must(t, err)
	defer unix.Close(ctx)
	for _, o := range [][2]string{{"redirect_dir", "nofollow"}, {"metacopy", "off"}, {"index", "off"}, {"xino", "off"}} {
		must(t, unix.FsconfigSetString(ctx, o[0], o[1]))
	}
	for _, dir := range append([]string{empty}, img.Lowers...) {
		must(t, unix.FsconfigSetString(ctx, "lowerdir+", dir))
	}
	must(t, unix.FsconfigCreate(ctx))
	mnt, err := unix.Fsmount(ctx, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_RDONLY)
	must(t, err)
	defer unix.Close(mnt)
	must(t, unix.MoveMount(mnt, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH))
	t.Cleanup(func() { must(t, unix.Unmount(target, unix.MNT_DETACH)) })
	return target
}

// names lists every file below dir that can be looked up or is listed.
func names(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	must(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err // also for a name that is listed and cannot be looked up
		}
		if _, err := os.Lstat(path); err != nil {
			return err
		}
		if path != dir {
			all = append(all, strings.TrimPrefix(path, dir+"/"))
		}
		return nil
	}))
	slices.Sort(all)
	return all
}

// TestLayerMarks mounts images whose layers remove what is below them, in every way
// there is, and looks at what is left.
func TestLayerMarks(t *testing.T) {
	if !inMounts(t) {
		return
	}
	o := newOutside(t)
	base := []item{dir("d"), file("d/a", "1"), file("d/b", "1"), dir("d/e"), file("d/e/x", "1"), file("f", "1"), dir("tmp"), symlink("l", "d")}
	base[6].Mode = 0o1777
	tests := []struct {
		name   string
		layers [][]item
		want   string
	}{
		{"a file", [][]item{base, {file("d/.wh.a", "")}}, "d d/b d/e d/e/x f l tmp"},
		{"a directory", [][]item{base, {file(".wh.d", "")}}, "f l tmp"},
		{"a directory and what comes in its place", [][]item{base, {file(".wh.d", ""), dir("d"), file("d/n", "2")}}, "d d/n f l tmp"},
		{"the same in the other order", [][]item{base, {dir("d"), file("d/n", "2"), file(".wh.d", "")}}, "d d/n f l tmp"},
		{"the same with a directory nobody names", [][]item{base, {file(".wh.d", ""), file("d/n", "2")}}, "d d/n f l tmp"},
		{"a directory deep below one that was removed", [][]item{base, {file(".wh.d", ""), file("d/e/n", "2")}}, "d d/e d/e/n f l tmp"},
		{"a file in place of a directory", [][]item{base, {file(".wh.d", ""), file("d", "2")}}, "d f l tmp"},
		{"a file and its mark, either order", [][]item{base, {file("f", "2"), file(".wh.f", "")}}, "d d/a d/b d/e d/e/x f l tmp"},
		{"opaque", [][]item{base, {dir("d"), file("d/.wh..wh..opq", ""), file("d/n", "2")}}, "d d/n f l tmp"},
		{"opaque, said last", [][]item{base, {dir("d"), file("d/n", "2"), file("d/.wh..wh..opq", "")}}, "d d/n f l tmp"},
		{"opaque with marks inside", [][]item{base, {dir("d"), file("d/.wh..wh..opq", ""), file("d/.wh.a", ""), file("d/n", "2")}}, "d d/n f l tmp"},
		{"opaque top", [][]item{base, {file(".wh..wh..opq", ""), file("n", "2")}}, "n"},
		{"a mark of nothing, in the lowest layer", [][]item{{dir("d"), file("d/.wh.a", ""), file("d/b", "1")}}, "d d/b"},
		{"removed, made again, removed", [][]item{base, {file("d/.wh.a", "")}, {file("d/a", "3")}, {file("d/.wh.a", "")}}, "d d/b d/e d/e/x f l tmp"},
		{"a directory removed and a mark in its successor", [][]item{base, {file(".wh.d", "")}, {dir("d"), file("d/.wh.a", ""), file("d/n", "3")}}, "d d/n f l tmp"},
		{"the same layer twice", [][]item{base, {file("d/.wh.a", "")}, base}, "d d/a d/b d/e d/e/x f l tmp"},
		{"marks below a file", [][]item{base, {file("d", "2"), file("d/.wh.a", "")}}, "d f l tmp"},
		{"marks, then a file above them", [][]item{base, {file("d/e/.wh.x", ""), file("d/.wh.a", ""), file("d", "2")}}, "d f l tmp"},
		{"AUFS's own files", [][]item{base, {file(".wh..wh.aufs", ""), dir(".wh..wh.plnk")}}, "d d/a d/b d/e d/e/x f l tmp"},
		{"an empty layer", [][]item{base, {}}, "d d/a d/b d/e d/e/x f l tmp"},
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLayout(t)
			var layers [][]byte
			for _, items := range tt.layers {
				layers = append(layers, archive(t, items...))
			}
			l.index(l.image(runtime.GOARCH, nil, layers...))
			img, err := take(context.Background(), o.store, l.dir, fmt.Sprint("marks", i))
			if err != nil {
				t.Fatal(err)
			}
			root := overlay(t, img)
			if got := strings.Join(names(t, root), " "); got != tt.want {
				t.Errorf("the image shows %q, want %q", got, tt.want)
			}
			if st, err := os.Stat(filepath.Join(root, "tmp")); err == nil && st.Mode() != os.ModeDir|os.ModeSticky|0o777 {
				t.Errorf("tmp has mode %v", st.Mode())
			}
		})
	}
}

// TestImpliedDirectories proves that a layer which names a file alone does not change
// how the directories above it look.
func TestImpliedDirectories(t *testing.T) {
	if !inMounts(t) {
		return
	}
	o := newOutside(t)
	sticky, owned := dir("tmp"), dir("srv/own")
	sticky.Mode, owned.Mode, owned.Uid, owned.Gid = 0o1777, 0o750, 7, 8
	l := newLayout(t)
	l.index(l.image(runtime.GOARCH, nil,
		archive(t, sticky, dir("srv"), owned, file("srv/own/a", "1")),
		archive(t, file("tmp/x", "2"), file("srv/own/b", "2"), file("new/c", "2")),
		archive(t, file("tmp/y", "3"), file(".wh.new", ""), file("new/d", "3"))))
	img, err := take(context.Background(), o.store, l.dir, "implied")
	if err != nil {
		t.Fatal(err)
	}
	root := overlay(t, img)
	if got, want := strings.Join(names(t, root), " "), "new new/d srv srv/own srv/own/a srv/own/b tmp tmp/x tmp/y"; got != want {
		t.Errorf("the image shows %q, want %q", got, want)
	}
	for path, want := range map[string]unix.Stat_t{
		"tmp": {Mode: unix.S_IFDIR | 0o1777}, "srv/own": {Mode: unix.S_IFDIR | 0o750, Uid: 7, Gid: 8}, "srv": {Mode: unix.S_IFDIR | 0o755}, "new": {Mode: unix.S_IFDIR | 0o755},
	} {
		var st unix.Stat_t
		must(t, unix.Lstat(filepath.Join(root, path), &st))
		if st.Mode != want.Mode || st.Uid != want.Uid || st.Gid != want.Gid {
			t.Errorf("%s has mode %o and belongs to %d:%d, want %o and %d:%d", path, st.Mode, st.Uid, st.Gid, want.Mode, want.Uid, want.Gid)
		}
	}
}

// TestHostileLayers gives the corpus of hostile archives to the reader of layers.
func TestHostileLayers(t *testing.T) {
	o := newOutside(t)
	must(t, os.Mkdir(o.store.Dir, 0o700))
	host := o.base
	up := strings.Repeat("../", 40)
	tests := []struct {
		name   string
		items  []item
		refuse string // "" when it is imported
	}{
		{"leads upwards", []item{file("../canary", "x")}, "leads upwards"},
		{"mark leads upwards", []item{file(up+host+"/.wh.canary", "")}, "leads upwards"},
		{"mark through an absolute link", []item{symlink("out", host), file("out/.wh.canary", "")}, "link to nothing"},
		{"mark through a link upwards", []item{symlink("out", "../../.."), file("out/.wh.canary", "")}, ""},
		{"opaque through a link", []item{symlink("out", host), file("out/.wh..wh..opq", "")}, "link to nothing"},
		{"opaque, then a link in its place", []item{dir("d"), file("d/.wh..wh..opq", ""), file(".wh.d", ""), symlink("e", host)}, ""},
		{"mark of the directory above", []item{file(".wh...", "")}, "mark of no file"},
		{"mark of the directory itself", []item{file(".wh..", "")}, "mark of no file"},
		{"mark of nothing", []item{file(".wh.", "")}, "mark of no file"},
		{"file inside a mark", []item{dir(".wh.x"), file(".wh.x/f", "")}, "inside the mark"},
		{"hard link to a mark", []item{file(".wh.x", ""), hardlink("y", "x")}, "not there"},
		{"hard link to the lower layer", []item{hardlink("y", "f")}, "not there"},
		{"hard link to the host", []item{hardlink("l", host+"/canary")}, "not there"},
		{"link, then a file through it", []item{symlink("out", host), file("out/canary", "x")}, "link to nothing"},
		{"whiteout device in the archive", []item{special(0x33, "null")}, ""},
		{"attributes of overlayfs", []item{pax(file("f", "x"), "trusted.overlay.redirect", "/etc"), pax(dir("d"), "trusted.overlay.opaque", "y")}, ""},
		{"more marks than entries allowed", manyMarks(1100), "more than 1000 entries"},
	}
	before := o.state(t)
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLayout(t)
			l.index(l.image(runtime.GOARCH, nil, archive(t, file("f", "1")), archive(t, tt.items...)))
			img, err := take(context.Background(), o.store, l.dir, fmt.Sprint("hostile", i))
			if tt.refuse == "" && err != nil || tt.refuse != "" && (err == nil || !strings.Contains(err.Error(), tt.refuse)) {
				t.Errorf("Import = %v, want an error with %q", err, tt.refuse)
			}
			if after := o.state(t); after != before {
				t.Errorf("files outside changed:\n%s\nwere\n%s", after, before)
			}
			for _, lower := range img.Lowers {
				checkPlain(t, lower)
			}
		})
	}
	checkNoRest(t, o.store)
}

func pax(i item, attribute, value string) item {
	i.PAXRecords = map[string]string{"SCHILY.xattr." + attribute: value}
	return i
}

func manyMarks(n int) []item {
	var all []item
	for i := range n {
		all = append(all, file(fmt.Sprint(".wh.", i), ""))
	}
	return all
}

// checkPlain proves that a layer holds no devices, set-id files or attributes that
// steer, but for the marks.
func checkPlain(t *testing.T, dir string) {
	t.Helper()
	root, err := os.Open(dir)
	must(t, err)
	defer root.Close()
	_, err = tree.Walk(root, func(f tree.Found) error {
		kind := f.Kind()
		if kind != unix.S_IFREG && kind != unix.S_IFDIR && kind != unix.S_IFLNK && !f.IsWhiteout() || f.Stat.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 {
			t.Errorf("layer holds %s of mode %o", f.Path, f.Stat.Mode)
		}
		list := make([]byte, 4096)
		n, err := unix.Llistxattr(filepath.Join(dir, f.Path), list)
		for _, name := range strings.Split(string(list[:max(n, 0)]), "\x00") {
			if name != "" && !strings.HasPrefix(name, "user.") && name != "trusted.overlay.opaque" && name != "trusted.overlay.origin" {
				t.Errorf("%s has the attribute %s", f.Path, name)
			}
		}
		return err
	})
	must(t, err)
}

// TestUnpackerIsConfined looks at the child from outside, while it waits for input.
func TestUnpackerIsConfined(t *testing.T) {
	o := newOutside(t)
	stage, err := o.store.Begin()
	must(t, err)
	defer stage.Close()
	target := t.TempDir()
	r, w, err := os.Pipe()
	must(t, err)
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, err := unpacker().Unpack(ctx, target, tree.Limits{Layer: true}, stage.Lock(), r)
		done <- err
	}()
	pid := childOf(t, "engine-image-unpack")
	status := procFile(t, pid, "status")
	for _, want := range []string{"CapPrm:\t000000000000000b", "CapEff:\t000000000000000b", "CapBnd:\t000000000000000b", "CapInh:\t0000000000000000", "CapAmb:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2", "Seccomp_filters:\t1"} {
		waitFor(t, want, func() bool { status = procFile(t, pid, "status"); return strings.Contains(status, want) })
	}
	for _, ns := range []string{"user", "mnt", "pid", "net", "ipc", "uts"} {
		own, err := os.Readlink("/proc/self/ns/" + ns)
		must(t, err)
		theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, ns))
		if err != nil || own == theirs {
			t.Errorf("%s namespace of the child is %s, %v, want another than %s", ns, theirs, err, own)
		}
	}
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	must(t, err)
	for _, task := range tasks {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/status", pid, task.Name()))
		for _, want := range []string{"CapEff:\t000000000000000b", "Seccomp:\t2"} {
			if err == nil && !strings.Contains(string(data), want) {
				t.Errorf("a thread of the child has other rights, want %q:\n%s", want, data)
			}
		}
	}
	if mounts := procFile(t, pid, "mountinfo"); strings.Count(mounts, "\n") != 1 || !strings.Contains(mounts, "nosuid,nodev,noexec") {
		t.Errorf("the child sees these mounts, want its root alone:\n%s", mounts)
	}
	rootStat, err := os.Stat(fmt.Sprintf("/proc/%d/root", pid))
	must(t, err)
	targetStat, err := os.Stat(target)
	must(t, err)
	if !os.SameFile(rootStat, targetStat) {
		t.Error("the child's root is not the directory it fills")
	}
	if env := procFile(t, pid, "environ"); strings.Contains(env, "PATH") || strings.Contains(env, "HOME") {
		t.Errorf("the child has the environment %q", env)
	}
	cancel()
	must(t, w.Close())
	if err := <-done; err == nil {
		t.Error("a cancelled unpacking reports success")
	}
}

func procFile(t *testing.T, pid int, name string) string {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// childOf waits for a child of this process with this first argument.
func childOf(t *testing.T, name string) int {
	t.Helper()
	found := 0
	waitFor(t, "a child called "+name, func() bool {
		entries, err := filepath.Glob("/proc/self/task/*/children")
		must(t, err)
		for _, e := range entries {
			data, err := os.ReadFile(e)
			if err != nil {
				continue
			}
			for _, field := range strings.Fields(string(data)) {
				args, err := os.ReadFile("/proc/" + field + "/cmdline")
				if err == nil && strings.HasPrefix(string(args), name+"\x00") {
					_, err = fmt.Sscan(field, &found)
					return err == nil
				}
			}
		}
		return false
	})
	return found
}

// TestPruneKeepsWhatIsNeeded removes names while runs hold images that share layers.
func TestPruneKeepsWhatIsNeeded(t *testing.T) {
	o := newOutside(t)
	ctx := context.Background()
	base := archive(t, file("base", "1"))
	make := func(name, content string) image.Image {
		l := newLayout(t)
		l.index(l.image(runtime.GOARCH, nil, base, archive(t, file("top", content))))
		img, err := take(ctx, o.store, l.dir, name)
		must(t, err)
		return img
	}
	a, b := make("a", "a"), make("b", "b")
	if list, err := o.store.List(); err != nil || len(list) != 2 || list[0].Shared == 0 || list[0].Shared >= list[0].Size {
		t.Errorf("List = %+v, %v, want two images that share a part", list, err)
	}
	hold, err := a.Hold()
	must(t, err)
	if _, err := o.store.Prune(true); err != nil {
		t.Fatal(err)
	}
	if _, err := o.store.Open("b"); err == nil {
		t.Error("an image that nobody holds survived")
	}
	for _, lower := range a.Lowers {
		if _, err := os.Stat(lower); err != nil {
			t.Errorf("a held image lost a layer: %v", err)
		}
	}
	if _, err := os.Stat(b.Lowers[0]); err == nil {
		t.Error("a layer of no image survived")
	}
	must(t, hold.Close())
	freed, err := o.store.Prune(true)
	if err != nil || freed.Images != 1 || freed.Layers != 2 || len(freed.Names) != 1 {
		t.Errorf("Prune = %+v, %v, want one name, one image and two layers", freed, err)
	}
	left, err := filepath.Glob(filepath.Join(o.store.Dir, ".layers", "*"))
	if err != nil || len(left) != 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
}

// TestLimitsSpanLayers proves that an image cannot get past its limits layer by layer.
func TestLimitsSpanLayers(t *testing.T) {
	o := newOutside(t)
	l := newLayout(t)
	var layers [][]byte
	for i := range 3 {
		layers = append(layers, archive(t, manyFiles(i, 400)...))
	}
	l.index(l.image(runtime.GOARCH, nil, layers...))
	var limit *tree.LimitError
	if _, err := take(context.Background(), o.store, l.dir, "x"); !errors.As(err, &limit) || limit.What != "entries" {
		t.Errorf("Import of 1200 entries with a limit of 1000 = %v, want a *LimitError", err)
	}
	checkNoRest(t, o.store)
}

func manyFiles(layer, n int) []item {
	var all []item
	for i := range n {
		all = append(all, file(fmt.Sprintf("f%d-%d", layer, i), ""))
	}
	return all
}

// TestLayerBomb unpacks a layer that is far larger than its blob.
func TestLayerBomb(t *testing.T) {
	o := newOutside(t)
	for name, records := range map[string]string{"content": "", "a header": strings.Repeat("v", 900<<10)} {
		l := newLayout(t)
		bombed := file("f", strings.Repeat("\x00", 64<<20))
		if records != "" {
			bombed = pax(file("f", ""), "user.note", records)
		}
		l.index(l.image(runtime.GOARCH, nil, archive(t, bombed)))
		if _, err := take(context.Background(), o.store, l.dir, "x"); err == nil {
			t.Errorf("a bomb of %s was imported", name)
		}
	}
	checkNoRest(t, o.store)
}

// TestFullDisk imports into a file system that is too small.
func TestFullDisk(t *testing.T) {
	if !inMounts(t) {
		return
	}
	dir := t.TempDir()
	must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"))
	defer func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) }()
	s := image.Store{Dir: filepath.Join(dir, "images"), Limits: tree.Limits{MaxBytes: 1 << 30}}
	src := filepath.Join(t.TempDir(), "src.tar")
	must(t, os.WriteFile(src, archive(t, file("f", strings.Repeat("x", 8<<20))), 0o600))
	_, err := take(context.Background(), s, src, "x")
	var space *intake.SpaceError
	if !errors.As(err, &space) || !strings.Contains(space.Remedy(), "prune") {
		t.Errorf("Import = %v, want a *SpaceError that says what to do", err)
	}
	checkNoRest(t, s)
}
