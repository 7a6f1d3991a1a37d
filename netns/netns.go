// Package netns gives each sandbox a network namespace of its own, empty or with
// one link to a gateway.
//
// A namespace is held by a descriptor alone: it has no name in the file system,
// so nothing is left of it when its last process and the last copy of the
// descriptor are gone, however they went. Making one needs CAP_SYS_ADMIN,
// CAP_NET_ADMIN for a gateway, and a mounted /proc.
//
//	sandbox's namespace          gateway's namespace
//	eth0 100.64.0.2 ──── veth ──── gw0 100.64.0.1, and every other address
//	default via 100.64.0.1         nft: guard on gw0, then pol
//	hostile                        listeners of this process
//
// A gateway neither forwards nor translates. Every address is local to it, so a
// listener there sees what the sandbox dialled as its own address, and what goes on
// from there is this process's own connection from its own namespace. Nothing is
// made or changed in the caller's namespace.
//
// The package knows ports and prefixes; it knows no names and no meaning.
package netns

import (
	"fmt"
	"os"
)

// New makes a network namespace that holds nothing but its loopback device, which
// is up. A runtime joins it by the path /proc/<pid>/fd/<descriptor>. The namespace
// belongs to the caller's user namespace, so nobody inside of a sandbox's can
// change it. No thread of the caller is in it afterwards.
func New() (*os.File, error) {
	fd := -1
	var err error
	onThread(func() (back bool) {
		back, err = away(func() (err error) {
			if fd, err = enterNew(); err != nil {
				return err
			}
			if err := loopbackUp(); err != nil {
				return fmt.Errorf("cannot set the loopback device of a new network namespace up: %w", err)
			}
			return nil
		})
		return back
	})
	f := file(fd)
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// file owns fd. It is nil, which Close takes, if there is none.
func file(fd int) *os.File {
	if fd < 0 {
		return nil
	}
	return os.NewFile(uintptr(fd), "netns")
}
