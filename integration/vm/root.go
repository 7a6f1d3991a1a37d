package vm

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// tools are taken from the host, with the libraries they need, where it has them.
// The others are busybox's.
var tools = []string{
	"bash", "busybox", "crun", "ip", "ss", "tc", "nft", "strace", "jq", "mount", "umount", "findmnt", "unshare", "nsenter",
	"setpriv", "taskset", "prlimit", "lsns", "ps", "timeout", "stat", "dd", "od", "cat", "env", "seq", "sleep", "sha256sum", "tar",
	"node",
}

// indispensable are the tools without which the root cannot be made.
var indispensable = []MissingError{{"bash", "bash"}, {"busybox", "busybox-static"}, {"crun", "crun"}, {"ip", "iproute2"}, {"nft", "nftables"}}

// rootFree is the room on the root file system: run directories, small images.
const rootFree = 3 << 30

// rootImage returns the image of the guest's root: the host's own tools, merged
// into one /usr, and the few files of /etc that they read.
func rootImage(cache string) (string, error) {
	for _, t := range indispensable {
		if _, err := lookTool(t.Tool); err != nil {
			return "", &t
		}
	}
	r := root{files: map[string]entry{}}
	for _, link := range []string{"bin", "sbin", "lib", "lib64"} {
		r.add(entry{name: link, mode: fs.ModeSymlink, text: "usr/" + link})
	}
	r.add(entry{name: "var/run", mode: fs.ModeSymlink, text: "/run"})
	for _, dir := range []string{"usr/lib", "usr/lib64", "usr/lib/modules", "dev", "proc", "sys", "run", "var/lib", "var/tmp", "root", "mnt", "home", strings.TrimPrefix(BinDir, "/"), strings.TrimPrefix(JobDir, "/")} {
		r.add(entry{name: dir, mode: fs.ModeDir | 0o755})
	}
	r.add(entry{name: "tmp", mode: fs.ModeDir | fs.ModeSticky | 0o777})
	for name, text := range map[string]string{
		"passwd":        "root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000:user:/home:/bin/bash\nnobody:x:65534:65534:nobody:/:/bin/false\n",
		"group":         "root:x:0:\ntty:x:5:\nuser:x:1000:\nnogroup:x:65534:\n",
		"hosts":         "127.0.0.1 localhost vm\n::1 localhost\n",
		"hostname":      "vm\n",
		"resolv.conf":   "",
		"nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
		"os-release":    "ID=engine-test-machine\nPRETTY_NAME=\"engine test machine\"\n",
	} {
		r.add(entry{name: "etc/" + name, mode: 0o644, text: text})
	}
	for _, name := range tools {
		if err := r.addTool(name); err != nil {
			return "", err
		}
	}
	r.add(entry{name: "usr/bin/sh", mode: fs.ModeSymlink, text: "bash"})
	if err := r.addApplets(); err != nil {
		return "", err
	}
	return cachedImage(cache, "root", r.entries(), rootFree)
}

// root collects files by their name in the image; the first of a name wins.
type root struct{ files map[string]entry }

func (r root) add(e entry) {
	if _, taken := r.files[e.name]; !taken {
		r.files[e.name] = e
	}
}

// entries returns the files with directories before what is in them.
func (r root) entries() []entry {
	var all []entry
	for _, e := range r.files {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	return all
}

// addTool adds a program of the host and the libraries it is linked with. One
// that the host does not have is left to busybox.
func (r root) addTool(name string) error {
	file, err := lookTool(name)
	if err != nil {
		return nil
	}
	dir := "usr/bin"
	if path.Base(path.Dir(file)) == "sbin" {
		dir = "usr/sbin"
	}
	r.add(entry{name: path.Join(dir, name), mode: 0o755, source: file})
	return r.addLibraries(file)
}

// addLibraries asks the host's loader what a program is linked with.
func (r root) addLibraries(file string) error {
	out, err := exec.Command("ldd", file).CombinedOutput()
	if err != nil {
		if strings.Contains(string(out), "not a dynamic executable") {
			return nil
		}
		return fmt.Errorf("cannot list libraries of %s: %w: %s", file, err, out)
	}
	for field := range strings.FieldsSeq(string(out)) {
		if !strings.HasPrefix(field, "/") {
			continue
		}
		name := strings.TrimPrefix(path.Clean(field), "/")
		if !strings.HasPrefix(name, "usr/") {
			name = "usr/" + name
		}
		r.add(entry{name: name, mode: 0o755, source: field})
		if strings.HasPrefix(path.Base(name), "libc.so") {
			// Loaded by name when a thread is cancelled, so no list has it.
			r.addFile(path.Join(path.Dir(field), "libgcc_s.so.1"))
		}
		if strings.HasPrefix(path.Base(name), "libnode.so") {
			if err := r.addScripts(field); err != nil {
				return err
			}
		}
	}
	return nil
}

// addScripts adds the files that Debian's node has outside of its library and does not
// start without. The library holds their paths.
func (r root) addScripts(library string) error {
	data, err := os.ReadFile(library)
	if err != nil {
		return err
	}
	const dir = "/usr/share/nodejs/"
	for _, piece := range bytes.Split(data, []byte(dir))[1:] {
		if name, _, ended := bytes.Cut(piece, []byte{0}); ended {
			r.addFile(dir + string(name))
		}
	}
	return nil
}

func (r root) addFile(file string) {
	if _, err := os.Stat(file); err == nil {
		name := "usr/" + strings.TrimPrefix(strings.TrimPrefix(file, "/"), "usr/")
		r.add(entry{name: name, mode: 0o755, source: file})
	}
}

// addApplets links what busybox can do to where the host's tools have left a gap.
func (r root) addApplets() error {
	busybox, err := lookTool("busybox")
	if err != nil {
		return err
	}
	list, err := output("/", busybox, "--list-full")
	if err != nil {
		return err
	}
	for applet := range strings.FieldsSeq(list) {
		applet = strings.TrimPrefix(applet, "usr/")
		dir, name := path.Split(applet)
		if dir != "bin/" && dir != "sbin/" {
			continue
		}
		_, bin := r.files["usr/bin/"+name]
		_, sbin := r.files["usr/sbin/"+name]
		if !bin && !sbin {
			r.add(entry{name: "usr/" + applet, mode: fs.ModeSymlink, text: "/usr/bin/busybox"})
		}
	}
	return nil
}

// binImage returns the image of the files directly in dir.
func binImage(cache, dir string) (string, error) {
	files, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	var entries []entry
	for _, f := range files {
		if f.Type().IsRegular() {
			entries = append(entries, entry{name: f.Name(), mode: 0o755, source: filepath.Join(dir, f.Name())})
		}
	}
	return cachedImage(cache, "bin", entries, 0)
}

// filesImage makes an image of the caller's files, for one machine.
func filesImage(cache string, files []File) (string, error) {
	r := root{files: map[string]entry{}}
	for _, f := range files {
		name := f.Name
		if name == "" {
			name = filepath.Base(f.Host)
		}
		if err := r.addTree(f.Host, name); err != nil {
			return "", err
		}
	}
	return newImage(cache, r.entries(), 64<<20)
}

// addTree adds a file, or a directory with all below it.
func (r root) addTree(host, name string) error {
	return filepath.WalkDir(host, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return fmt.Errorf("cannot add %s: %w", host, err)
		}
		rel, err := filepath.Rel(host, file)
		if err != nil {
			return err
		}
		info, err := os.Lstat(file)
		if file == host {
			info, err = os.Stat(file) // a link given by name means what it points to
		}
		if err != nil {
			return err
		}
		e := entry{name: path.Join(name, filepath.ToSlash(rel)), mode: info.Mode()}
		switch {
		case info.Mode().IsRegular():
			e.source = file
		case info.Mode()&fs.ModeSymlink != 0:
			if e.text, err = os.Readlink(file); err != nil {
				return err
			}
		case !info.IsDir():
			return fmt.Errorf("cannot add %s: neither file, directory nor link", file)
		}
		r.add(e)
		return nil
	})
}
