package intake

import (
	"context"
	"errors"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/rootfs/image/tree"
)

// merged are the layers of an image, from bottom to top, seen as an overlay would
// show them.
type merged []mergedLayer

type mergedLayer struct {
	root     *os.File
	implied  map[string]bool
	hidesAll bool
}

// maxLookups bounds what an image of many layers with many implied directories costs.
const maxLookups = 4_000_000

func (m merged) close() {
	for _, l := range m {
		l.root.Close() // only read
	}
}

// differing returns the implied directories that would not look as the layers below
// say, with those above them, parents first.
func (m merged) differing(ctx context.Context) ([]tree.Entry, error) {
	all := map[string]bool{}
	for _, l := range m {
		maps.Copy(all, l.implied)
	}
	if len(all)*len(m) > maxLookups {
		return nil, &tree.LimitError{What: "directories that layers imply", Limit: int64(maxLookups / len(m))}
	}
	wanted := map[string]tree.Entry{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		e, implied, err := m.look(name)
		if err != nil {
			return nil, err
		}
		if !implied || isDefault(e) {
			continue
		}
		wanted[name] = e
		for at := path.Dir(name); at != "."; at = path.Dir(at) {
			if _, ok := wanted[at]; ok {
				break
			}
			if wanted[at], _, err = m.look(at); err != nil {
				return nil, err
			}
		}
	}
	var list []tree.Entry
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		list = append(list, wanted[name])
	}
	return list, nil
}

// look returns the directory name as the topmost layer that says how it looks has it,
// and whether a layer above that one only implies it. Where no layer says anything it
// looks as a Writer makes it.
func (m merged) look(name string) (e tree.Entry, implied bool, err error) {
	made := tree.Entry{UnsafePath: name, Kind: unix.S_IFDIR, Mode: 0o755}
	for _, l := range slices.Backward(m) {
		dir, hides, err := l.find(name)
		if err != nil {
			return made, false, err
		}
		if dir != nil && l.implied[name] {
			implied = true
			dir.Close() // only looked at
		} else if dir != nil {
			e, err := directoryEntry(dir, name)
			return e, implied, err
		}
		if hides || l.hidesAll {
			break
		}
	}
	return made, implied, nil
}

// find opens a directory of one layer, if it has it. It also says whether the layer
// hides what is below it at this place.
func (l mergedLayer) find(name string) (dir *os.File, hides bool, err error) {
	at := ""
	for component := range strings.SplitSeq(name, "/") {
		at = path.Join(at, component)
		if dir != nil {
			dir.Close() // only passed through
			dir = nil
		}
		fd, err := unix.Openat2(int(l.root.Fd()), at, &unix.OpenHow{
			Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
		})
		switch {
		case err == nil:
		case errors.Is(err, unix.ENOENT):
			return nil, hides, nil
		case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
			return nil, true, nil // a file, a link or a whiteout
		default:
			return nil, false, err
		}
		dir = os.NewFile(uintptr(fd), at)
		hides = hides || tree.IsOpaque(dir)
	}
	return dir, hides, nil
}

func directoryEntry(dir *os.File, name string) (tree.Entry, error) {
	defer dir.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return tree.Entry{}, err
	}
	e := tree.Entry{UnsafePath: name, Kind: unix.S_IFDIR, Mode: st.Mode & 0o7777, UID: st.Uid, GID: st.Gid, Mtime: st.Mtim, Xattrs: map[string]string{}}
	err := tree.Xattrs(dir, func(name string, value []byte) error {
		if tree.KeepXattr(name) {
			e.Xattrs[name] = string(value)
		}
		return nil
	})
	return e, err
}

// isDefault reports whether a directory looks as a Writer makes one unasked.
func isDefault(e tree.Entry) bool {
	return e.Mode == 0o755 && e.UID == 0 && e.GID == 0 && e.Mtime == (unix.Timespec{}) && len(e.Xattrs) == 0
}
