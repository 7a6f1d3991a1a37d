package vm

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// kernelPackages are Debian's names for a 6.12 kernel built for virtual machines:
// as an addition to Debian 12, and as what Debian 13 has anyway.
var kernelPackages = []string{"linux-image-6.12-cloud-amd64", "linux-image-cloud-amd64"}

// kernel is an unpacked kernel package.
type kernel struct {
	release string
	vmlinux string // uncompressed: unpacking it under emulation would cost a second
	modules string // ext4 image of what belongs at /lib/modules
	disk    string // virtio_blk.ko, which the initramfs needs
}

// findKernel returns the kernel in the cache, and fills the cache when it has none.
func findKernel(cache string) (kernel, error) {
	dirs, err := filepath.Glob(filepath.Join(cache, "kernel-*"))
	if err != nil {
		return kernel{}, err
	}
	if len(dirs) > 0 {
		return kernelIn(slices.Max(dirs)), nil
	}
	tmp, err := os.MkdirTemp(cache, "tmp-")
	if err != nil {
		return kernel{}, err
	}
	defer os.RemoveAll(tmp)
	release, err := downloadKernel(tmp)
	if err != nil {
		return kernel{}, err
	}
	if err := prepareKernel(tmp, release); err != nil {
		return kernel{}, err
	}
	dir := filepath.Join(cache, "kernel-"+release)
	if err := os.Rename(filepath.Join(tmp, "ready"), dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return kernel{}, err // one that exists was made by another harness at the same time
	}
	return kernelIn(dir), nil
}

func kernelIn(dir string) kernel {
	return kernel{
		release: strings.TrimPrefix(filepath.Base(dir), "kernel-"),
		vmlinux: filepath.Join(dir, "vmlinux"),
		modules: filepath.Join(dir, "modules.ext4"),
		disk:    filepath.Join(dir, "virtio_blk.ko"),
	}
}

// downloadKernel unpacks the kernel package to tmp/unpacked and returns its release.
func downloadKernel(tmp string) (string, error) {
	var name string
	for _, meta := range kernelPackages {
		out, err := output(tmp, "apt-cache", "depends", "--important", meta)
		if err != nil {
			continue // unknown to this release of Debian
		}
		for field := range strings.FieldsSeq(out) {
			if strings.HasPrefix(field, "linux-image-6.12.") {
				name = field
			}
		}
		if name != "" {
			break
		}
	}
	if name == "" {
		return "", fmt.Errorf("cannot find a 6.12 kernel in the package lists (%s): run apt-get update, and have Debian's security archive in the sources",
			strings.Join(kernelPackages, ", "))
	}
	if _, err := output(tmp, "apt-get", "download", "-q", name); err != nil {
		return "", err
	}
	debs, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if err != nil || len(debs) != 1 {
		return "", fmt.Errorf("cannot download %s: got %d packages: %v", name, len(debs), err)
	}
	if _, err := output(tmp, "dpkg-deb", "-x", debs[0], filepath.Join(tmp, "unpacked")); err != nil {
		return "", err
	}
	return strings.TrimPrefix(name, "linux-image-"), nil
}

// output runs a tool in dir and returns what it prints; its complaints are the error.
func output(dir, name string, args ...string) (string, error) {
	path, err := lookTool(name)
	if err != nil {
		return "", err
	}
	cmd := exec.Command(path, args...)
	cmd.Dir = dir
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("cannot run %s: %w: %s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.String(), nil
}

// lookTool finds a tool on PATH or in the directories that only root has there.
func lookTool(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", err
}

// prepareKernel makes tmp/ready from tmp/unpacked.
func prepareKernel(tmp, release string) error {
	ready := filepath.Join(tmp, "ready")
	tree := filepath.Join(tmp, "tree")
	if err := errors.Join(os.Mkdir(ready, 0o755), os.Mkdir(tree, 0o755)); err != nil {
		return err
	}
	k := kernelIn(ready)
	if err := extractKernel(filepath.Join(tmp, "unpacked/boot/vmlinuz-"+release), k.vmlinux); err != nil {
		return err
	}
	from := filepath.Join(tmp, "unpacked/lib/modules", release)
	if _, err := os.Stat(from); err != nil {
		from = filepath.Join(tmp, "unpacked/usr/lib/modules", release)
	}
	dir := filepath.Join(tree, release)
	if err := os.Rename(from, dir); err != nil {
		return err
	}
	if _, err := output(dir, "find", "kernel", "-name", "*.ko.xz", "-exec", "xz", "-d", "{}", "+"); err != nil {
		return err
	}
	if err := indexModules(dir); err != nil {
		return err
	}
	if err := copyFile(filepath.Join(dir, "kernel/drivers/block/virtio_blk.ko"), k.disk, 0o644); err != nil {
		return err
	}
	return makeExt4(tree, k.modules, 0)
}

// extractKernel writes the ELF kernel inside a bzImage to target. Where it lies is
// told by the setup header (Documentation/arch/x86/boot.rst).
func extractKernel(bzImage, target string) error {
	image, err := os.ReadFile(bzImage)
	if err != nil {
		return err
	}
	const header, offset, length = 0x202, 0x248, 0x24c
	if len(image) < 0x250 || string(image[header:header+4]) != "HdrS" {
		return fmt.Errorf("cannot read %s: not a bzImage", bzImage)
	}
	sectors := int(image[0x1f1])
	if sectors == 0 {
		sectors = 4
	}
	start := (sectors+1)*512 + int(binary.LittleEndian.Uint32(image[offset:]))
	end := start + int(binary.LittleEndian.Uint32(image[length:]))
	if start >= end || end > len(image) {
		return fmt.Errorf("cannot read %s: payload from %d to %d of %d bytes", bzImage, start, end, len(image))
	}
	vmlinux, err := decompress(image[start:end])
	if err != nil {
		return fmt.Errorf("cannot unpack %s: %w", bzImage, err)
	}
	if !bytes.HasPrefix(vmlinux, []byte(elf.ELFMAG)) {
		return fmt.Errorf("cannot unpack %s: the payload is no ELF file", bzImage)
	}
	return os.WriteFile(target, vmlinux, 0o644)
}

// decompress unpacks a kernel payload, which ends with four bytes of its own.
func decompress(payload []byte) ([]byte, error) {
	magics := []struct{ magic, tool, args string }{
		{"\x28\xb5\x2f\xfd", "zstd", "-dcq"},
		{"\xfd7zXZ\x00", "xz", "-dcq"},
		{"\x1f\x8b", "gzip", "-dcq"},
	}
	for _, m := range magics {
		if !strings.HasPrefix(string(payload), m.magic) {
			continue
		}
		cmd := exec.Command(m.tool, m.args)
		cmd.Stdin = bytes.NewReader(payload)
		out, err := cmd.Output()
		if len(out) == 0 {
			return nil, fmt.Errorf("%s: %w", m.tool, err)
		}
		return out, nil // the tools complain of the four bytes after having written all
	}
	return nil, fmt.Errorf("unknown compression, magic % x", payload[:4])
}

// indexModules writes the files by which modprobe finds a module and what it needs.
func indexModules(dir string) error {
	type module struct {
		path  string
		needs []string
	}
	modules := map[string]module{}
	var aliases []string
	err := filepath.WalkDir(filepath.Join(dir, "kernel"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".ko" {
			return err
		}
		info, err := moduleInfo(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		name := moduleName(strings.TrimSuffix(filepath.Base(path), ".ko"))
		m := module{path: rel}
		for _, kv := range info {
			if needs, ok := strings.CutPrefix(kv, "depends="); ok && needs != "" {
				m.needs = strings.Split(needs, ",")
			}
			if alias, ok := strings.CutPrefix(kv, "alias="); ok {
				aliases = append(aliases, "alias "+alias+" "+name+"\n")
			}
		}
		modules[name] = m
		return nil
	})
	if err != nil {
		return err
	}
	var lines []string
	for _, m := range modules {
		lines = append(lines, m.path+":")
		seen := map[string]bool{}
		var visit func(names []string)
		visit = func(names []string) {
			for _, n := range names {
				n = moduleName(n)
				if dep, ok := modules[n]; ok && !seen[n] {
					seen[n] = true
					lines[len(lines)-1] += " " + dep.path
					visit(dep.needs)
				}
			}
		}
		visit(m.needs)
		lines[len(lines)-1] += "\n"
	}
	slices.Sort(lines)
	slices.Sort(aliases)
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "modules.dep"), []byte(strings.Join(lines, "")), 0o644),
		os.WriteFile(filepath.Join(dir, "modules.alias"), []byte(strings.Join(aliases, "")), 0o644),
	)
}

func moduleName(s string) string { return strings.ReplaceAll(s, "-", "_") }

// moduleInfo returns the key=value strings of a module.
func moduleInfo(path string) ([]string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read module %s: %w", path, err)
	}
	defer f.Close()
	section := f.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("cannot read module %s: it has no .modinfo section", path)
	}
	data, err := section.Data()
	if err != nil {
		return nil, fmt.Errorf("cannot read module %s: %w", path, err)
	}
	return strings.Split(string(data), "\x00"), nil
}
