package approval

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/direct-oci/engine/capability/signed"
)

// ErrUsedUp reports an approval whose runs have all been used.
var ErrUsedUp = errors.New("all of its runs have been used")

// Burned is the directory of used nonces: one directory each, in it one file for each
// run. It only grows; what belongs to an approval that has expired may be deleted.
type Burned struct{ Dir string }

// Burn uses up one run of an approval that was verified, and returns which of them it
// is, from 1. When it returns, that is on disk. The error is ErrUsedUp, a
// *signed.FieldError for a nonce that another approval has used, or the host's.
//
// SECURITY: an approval is good for maxRuns starts, whatever crashes.
// Holds because: the file is new (O_EXCL) and synced, with its directories, before the
// start; nothing ever deletes it. Not covered: a state directory that is set back to an
// earlier copy. Checked by: TestBurnedIsBurned.
func (b Burned) Burn(e signed.Envelope, s Statement) (int, error) {
	if err := s.check(); err != nil { // the nonce becomes a path
		return 0, err
	}
	sum := sha256.Sum256(e.Payload)
	mark := hex.EncodeToString(sum[:])
	dir := filepath.Join(b.Dir, s.Nonce)
	if err := makeSynced(dir); err != nil {
		return 0, err
	}
	for run := 1; run <= s.MaxRuns; run++ {
		err := burn(dir, strconv.Itoa(run), mark)
		if err == nil {
			return run, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return 0, fmt.Errorf("cannot note the use of approval=%s: %w", s.Nonce, err)
		}
		old, err := os.ReadFile(filepath.Join(dir, strconv.Itoa(run)))
		if err != nil {
			return 0, fmt.Errorf("cannot read the uses of approval=%s: %w", s.Nonce, err)
		}
		// An empty one is of a crash, or of somebody who is writing it.
		if len(old) > 0 && string(old) != mark {
			return 0, &signed.FieldError{Field: "nonce", Why: "was used by another approval"}
		}
	}
	return 0, ErrUsedUp
}

// makeSynced makes a directory and those above it, and has them on disk.
func makeSynced(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return syncDir(filepath.Dir(dir)) // its maker may not have come so far
	}
	parent := filepath.Dir(dir)
	if parent != dir {
		if err := makeSynced(parent); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDir(parent)
}

func burn(dir, name, mark string) error {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(mark)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
