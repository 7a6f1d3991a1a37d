package capability

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/direct-oci/engine/capability/approval"
)

// Approved is a directory of what was approved last under each title, for a reviewer
// to see what has changed since. It holds what a reviewer saw, and no secret.
type Approved struct{ Dir string }

// Version is one version of a thing that was approved.
type Version struct {
	Bound     approval.Bound `json:"bound"`
	Documents []Document     `json:"documents"`
}

func (a Approved) path(p Prepared) string {
	b := p.Bound
	return filepath.Join(a.Dir, hash(fmt.Appendf(nil, "%q %q %q %q", b.Project, b.Environment, b.Capability, p.Title))+".json")
}

// Save keeps what was approved. Without a title there is nothing to find it by.
func (a Approved) Save(p Prepared) error {
	if p.Title == "" {
		return nil
	}
	data, err := json.Marshal(Version{p.Bound, p.Documents})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(a.Dir, 0o700); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(a.Dir, "new-")
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	if err = errors.Join(err, tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), a.path(p))
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return nil
}

// Last returns what was approved last under the title of p, and false if nothing was.
func (a Approved) Last(p Prepared) (Version, bool, error) {
	data, err := os.ReadFile(a.path(p))
	if errors.Is(err, fs.ErrNotExist) || p.Title == "" {
		return Version{}, false, nil
	}
	if err != nil {
		return Version{}, false, err
	}
	var v Version
	if err := json.Unmarshal(data, &v); err != nil {
		return Version{}, false, fmt.Errorf("cannot read what was approved last: %w", err)
	}
	return v, true, nil
}
