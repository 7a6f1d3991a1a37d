// Package lock takes the locks that keep a second runner away from what one of them has.
package lock

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// patience is for the lock of a runner that was killed: what it was about to start holds
// it too until it has become another program.
const patience = 2 * time.Second

// ErrHeld is that another runner has the lock, and does not give it up.
var ErrHeld = errors.New("another runner is using it")

// Hold takes the lock of an open file, for as long as that is open, and waits a moment for
// one that a killed runner has left.
func Hold(file *os.File) error {
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err != unix.EWOULDBLOCK && err != unix.EINTR:
			return err
		case time.Now().After(end):
			return ErrHeld
		}
	}
}
