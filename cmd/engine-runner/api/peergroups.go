package api

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxPeerGroups is the kernel's own bound of a process's groups.
const maxPeerGroups = 65536

// peerGroups are the supplementary groups of whoever has connected, as they were then.
// The library has no wrapper for an option of variable length.
func peerGroups(fd int) ([]uint32, error) {
	for size := uint32(64 * 4); size <= maxPeerGroups*4; {
		buf := make([]byte, size)
		length := size
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&length)), 0)
		switch {
		case errno == unix.ERANGE && length > size:
			size = length
			continue
		case errno != 0:
			return nil, fmt.Errorf("cannot read the peer's groups: %w", errno)
		}
		groups := make([]uint32, 0, length/4)
		for i := uint32(0); i+4 <= length; i += 4 {
			groups = append(groups, binary.NativeEndian.Uint32(buf[i:]))
		}
		return groups, nil
	}
	return nil, fmt.Errorf("cannot read the peer's groups: there are more than %d", maxPeerGroups)
}
