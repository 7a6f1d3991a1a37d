package vm

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// initramfs returns the first file system of the guest: its first process and
// the driver for its disks.
func initramfs(cache, guest string, k kernel) (string, error) {
	init, err := os.ReadFile(guest)
	if err != nil {
		return "", fmt.Errorf("cannot read the guest's first process: %w", err)
	}
	driver, err := os.ReadFile(k.disk)
	if err != nil {
		return "", err
	}
	var b bytes.Buffer
	const dir, file = 0o040755, 0o100755
	for _, d := range []string{"dev", "proc", "sys", "modules", "newroot"} {
		cpioFile(&b, d, dir, nil)
	}
	cpioFile(&b, "init", file, init)
	cpioFile(&b, "modules/virtio_blk.ko", file, driver)
	cpioFile(&b, "TRAILER!!!", 0, nil)
	sum := sha256.Sum256(b.Bytes())
	path := filepath.Join(cache, "initramfs-"+hex.EncodeToString(sum[:8]))
	now := time.Now()
	if os.Chtimes(path, now, now) == nil {
		return path, nil
	}
	if err := prune(cache, "initramfs"); err != nil {
		return "", err
	}
	return path, writeFile(path, b.Bytes())
}

// cpioFile appends one file in the "newc" form that the kernel unpacks.
func cpioFile(b *bytes.Buffer, name string, mode int, data []byte) {
	const links = 1
	// magic, inode, mode, uid, gid, links, mtime, size, device, rdevice, name's size, checksum
	fmt.Fprintf(b, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		b.Len(), mode, 0, 0, links, 0, len(data), 0, 0, 0, 0, len(name)+1, 0)
	b.WriteString(name)
	b.WriteByte(0)
	pad(b)
	b.Write(data)
	pad(b)
}

func pad(b *bytes.Buffer) {
	for b.Len()%4 != 0 {
		b.WriteByte(0)
	}
}
