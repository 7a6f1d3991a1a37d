package service

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/direct-oci/engine/engine"
)

// Where the stores are inside.
const (
	libraryPath   = "/mnt/libs"
	referencePath = "/mnt/refs"
)

// reserved are names at the top of a sandbox that no resource may cover.
var reserved = []string{"bin", "boot", "dev", "etc", "home", "lib", "lib32", "lib64", "media", "mnt", "opt", "proc", "root", "run", "sbin", "srv", "sys", "tmp", "usr", "var", "workload"}

// validID says whether an id may be one component of a path: letters, digits and ._-,
// the first one a letter or digit, at most 128.
func validID(unsafeID string) bool {
	return validName(unsafeID) && !strings.Contains(unsafeID, ":")
}

// mounts turns a plan into mounts, and makes the step's directories. The step's mount
// comes after the tree's, which it lies in.
//
// SECURITY: a plan reaches the directories below the configured stores and no others.
// An id with a separator or dots, or a link that an earlier sandbox left in a directory it could write to, would give a sandbox another tenant's data or the host's.
// Holds because: ids are checked before they are joined, every directory is opened beneath the tree by os.Root, and a component that is no directory of its own is refused.
// Not covered: somebody who can write to the stores' own directories on the host. Checked by: TestIdsBecomeNoOtherPaths, TestLinksInTreesAreRefused.
func (s Stores) mounts(p Plan, log *slog.Logger) ([]engine.Mount, error) {
	mounts := []engine.Mount{}
	tree, err := s.tree(p)
	if err != nil {
		return nil, err
	}
	mounts = append(mounts, tree...)
	if p.Library {
		if s.Libraries == "" {
			return nil, badPlan("library", "", "this service has no library store").WithFix("leave it out, or have service.sandboxes.stores.libraries configured")
		}
		if why := wholeLibrary(s.Libraries); why != nil {
			log.Warn("library store left out", "store", s.Libraries, "why", why)
		} else {
			mounts = append(mounts, engine.Mount{Source: s.Libraries, Path: libraryPath})
		}
	}
	if p.References {
		if s.References == "" {
			return nil, badPlan("references", "", "this service has no reference store").WithFix("leave it out, or have service.sandboxes.stores.references configured")
		}
		mounts = append(mounts, engine.Mount{Source: s.References, Path: referencePath})
	}
	return mounts, nil
}

func badPlan(what, value, format string, args ...any) *engine.Error {
	return engine.Refused("bad_mount", "cannot mount %s=%q: %w", what, value, fmt.Errorf(format, args...))
}

func (s Stores) tree(p Plan) ([]engine.Mount, error) {
	switch {
	case p.Resource == "" && p.Step == "":
		return nil, nil
	case p.Resource == "":
		return nil, badPlan("step", p.Step, "it is a directory of a resource, and none is named").WithFix("name the resource too")
	case s.Trees == "":
		return nil, badPlan("resource", p.Resource, "this service has no trees").WithFix("leave it out, or have service.sandboxes.stores.trees configured")
	case !validID(p.Resource) || slices.Contains(reserved, p.Resource):
		return nil, badPlan("resource", p.Resource, "want an id of letters, digits and ._- that is no directory of an image's")
	case p.Step == "" && !p.ReadOnly:
		return nil, badPlan("resource", p.Resource, "no step is named, and it is not asked for as read-only").WithFix("name a step, or give readOnly: true")
	}
	for id := range strings.SplitSeq(p.Step, "/") {
		if p.Step != "" && !validID(id) {
			return nil, badPlan("step", p.Step, "want ids of letters, digits and ._-, joined by /")
		}
	}
	if strings.Count(p.Step, "/") > 7 {
		return nil, badPlan("step", p.Step, "it is more than 8 ids deep")
	}
	source := filepath.Join(s.Trees, p.Resource)
	root, err := openTree(s.Trees, p.Resource)
	if err != nil {
		return nil, badPlan("resource", p.Resource, "%w", err)
	}
	defer root.Close()
	mounts := []engine.Mount{{Source: source, Path: "/" + p.Resource}}
	if p.ReadOnly || p.Step == "" {
		return mounts, nil
	}
	step := path.Join(s.Steps, p.Step)
	maker, err := s.maker(root)
	if err != nil {
		return nil, badPlan("step", p.Step, "%w", err).
			WithFix("give the tree to a user without rights (chown), or name one in the service's config")
	}
	if err := maker.makeAll(step, s.StepDirs); err != nil {
		return nil, badPlan("step", p.Step, "%w", err)
	}
	return append(mounts, engine.Mount{Source: filepath.Join(source, step), Path: path.Join("/", p.Resource, step), Writable: true}), nil
}

// openTree opens a directory of the store, which must be one itself.
func openTree(trees, name string) (*os.Root, error) {
	store, err := os.OpenRoot(trees)
	if err != nil {
		return nil, err
	}
	defer store.Close()
	if err := ownDir(store, name); err != nil {
		return nil, err
	}
	return store.OpenRoot(name)
}

// maker makes directories of one owner in a tree.
type maker struct {
	root     *os.Root
	uid, gid int
}

// maker is one for a tree. What a sandbox may write to must not be root's.
func (s Stores) maker(root *os.Root) (maker, error) {
	info, err := root.Stat(".")
	if err != nil {
		return maker{}, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return maker{}, errors.New("it has no owner")
	}
	m := maker{root, int(st.Uid), int(st.Gid)}
	if m.uid == 0 || m.gid == 0 {
		m.uid, m.gid = int(s.UID), int(s.GID)
	}
	if m.uid == 0 || m.gid == 0 {
		return maker{}, errors.New("the tree is root's, and so would be the step")
	}
	return m, nil
}

// makeAll makes the step's directory with all on the way, and those inside it.
func (m maker) makeAll(step string, inside []string) error {
	dir := ""
	for part := range strings.SplitSeq(step, "/") {
		dir = path.Join(dir, part)
		if err := m.make(dir); err != nil {
			return err
		}
	}
	for _, name := range inside {
		if err := m.make(path.Join(step, name)); err != nil {
			return err
		}
	}
	return nil
}

// make makes one directory. Root's is taken for one that was made and not given away
// yet: no sandbox can make such a one.
func (m maker) make(dir string) error {
	if err := m.root.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := ownDir(m.root, dir); err != nil {
		return err
	}
	info, err := m.root.Lstat(dir)
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 {
		return nil
	}
	return m.root.Lchown(dir, m.uid, m.gid)
}

// ownDir refuses what is no directory, a link to one included.
func ownDir(root *os.Root, dir string) error {
	info, err := root.Lstat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is no directory", dir)
	}
	return nil
}

// wholeLibrary says why a library store does not count: its current must lead to a
// directory inside it with packages.txt and meta.json.
func wholeLibrary(store string) error {
	root, err := os.OpenRoot(store)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, name := range []string{"packages.txt", "meta.json"} {
		info, err := root.Stat("current/" + name)
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("current/%s is no file", name)
		}
	}
	return nil
}
