package engine

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Each run's user namespace maps to 65536 host ids of its own, so that no two
// sandboxes, nor a sandbox and the host, ever share a uid.
const (
	firstHostID = 0x70000000 // below it are people's, systemd's and other engines' ranges
	blockSize   = 1 << 16
	blocks      = (1<<31 - firstHostID) / blockSize // some tools read uids as signed
)

// idBlock is a block of host ids held by this process.
type idBlock struct {
	slot int
	file *os.File // holds the flock
}

// hostID is the first id of the block.
func (b idBlock) hostID() uint32 { return uint32(firstHostID + b.slot*blockSize) }

// takeIDBlock reserves a block for the run id. The lock ends with this process, but
// the block is not given out again while the run's directory is still there: after a
// kill -9 processes may go on under its ids until gc has ended them.
func takeIDBlock(h Host, id string) (idBlock, error) {
	dir := filepath.Join(h.RunDir, "uids")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return idBlock{}, Failed("no_directory", "cannot make directory=%s: %w", dir, err)
	}
	for slot := range blocks {
		f, err := os.OpenFile(filepath.Join(dir, strconv.Itoa(slot)), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return idBlock{}, Failed("no_uids", "cannot open uid block=%d: %w", slot, err)
		}
		free, err := claimBlock(h, f, id)
		if err != nil {
			f.Close()
			return idBlock{}, Failed("no_uids", "cannot take uid block=%d: %w", slot, err)
		}
		if free {
			return idBlock{slot, f}, nil
		}
		f.Close()
	}
	return idBlock{}, Failed("no_uids", "cannot take a uid block: all %d are in use", blocks).WithFix("wait for a run to end, or run engine gc")
}

func claimBlock(h Host, f *os.File, id string) (bool, error) {
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			return false, nil
		}
		return false, err
	}
	owner := make([]byte, 64)
	n, err := f.ReadAt(owner, 0)
	if err != nil && err != io.EOF {
		return false, err
	}
	if n > 0 && string(owner[:n]) != id {
		if _, err := os.Lstat(h.runDir(filepath.Base(string(owner[:n])))); err == nil {
			return false, nil
		}
	}
	if _, err := f.WriteAt([]byte(id), 0); err != nil {
		return false, fmt.Errorf("cannot note the owner: %w", err)
	}
	return true, f.Truncate(int64(len(id)))
}

// release gives the block back. It must come after the run's directory is gone.
func (b idBlock) release() error {
	if b.file == nil {
		return nil
	}
	return errors.Join(b.file.Truncate(0), b.file.Close())
}
