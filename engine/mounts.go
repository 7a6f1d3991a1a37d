package engine

import (
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/direct-oci/engine/oci"
	"github.com/direct-oci/engine/rootfs"
)

// validateMounts checks what can be known without looking at the host.
func (r Request) validateMounts() error {
	if len(r.Mounts) > maxMounts {
		return Refused("bad_mount", "cannot accept %d mounts: the limit is %d", len(r.Mounts), maxMounts)
	}
	seen := map[string]bool{}
	for _, m := range r.Mounts {
		if !path.IsAbs(m.Source) || path.Clean(m.Source) != m.Source || m.Source == "/" || strings.ContainsRune(m.Source, 0) || len(m.Source) > 4000 {
			return Refused("bad_mount", "cannot accept mount of source=%q: want a clean absolute path of a directory other than /", m.Source)
		}
		if why := oci.MountRefused(m.Path); why != "" || len(m.Path) > maxPath {
			return Refused("bad_mount", "cannot accept mount on path=%q: %s", m.Path, why)
		}
		if seen[m.Path] {
			return Refused("bad_mount", "cannot accept two mounts on path=%q", m.Path)
		}
		seen[m.Path] = true
		for _, t := range r.Tmpfs {
			if at := path.Clean(t.Path); at == m.Path || strings.HasPrefix(at, m.Path+"/") {
				return Refused("bad_mount", "cannot accept mount on path=%q: it would hide tmpfs=%q", m.Path, t.Path)
			}
		}
		if m.Owner != nil && (m.Owner.UID == 0 || m.Owner.GID == 0) {
			return Refused("bad_mount", "cannot accept mount on path=%q for owner=%d:%d: root's files are nobody's inside", m.Path, m.Owner.UID, m.Owner.GID).
				WithFix("name a user and a group without rights, or leave the owner out")
		}
	}
	return nil
}

// hostMount is a mount whose source is open.
type hostMount struct {
	Mount
	source *rootfs.Source
	owner  Owner // on the host; 0 is nobody
}

// openMounts opens the sources of all mounts, sorted by their paths.
func (r Request) openMounts(h Host) (list []hostMount, err error) {
	defer func() {
		if err != nil {
			closeMounts(list)
		}
	}()
	for _, m := range r.Mounts {
		source, err := rootfs.OpenSource(m.Source, h.StateDir, h.RunDir)
		if err != nil {
			return list, Refused("bad_mount", "%w", err)
		}
		open := hostMount{m, source, Owner{source.UID, source.GID}}
		if m.Owner != nil {
			open.owner = *m.Owner
		}
		list = append(list, open)
	}
	slices.SortFunc(list, func(a, b hostMount) int { return strings.Compare(a.Path, b.Path) })
	for i, m := range list {
		if above, ok := m.above(list[:i]); ok && !above.source.Holds(strings.TrimPrefix(m.Path, above.Path+"/")) {
			return list, Refused("bad_mount", "cannot mount path=%q: source=%s, mounted on %s, has no such directory of its own", m.Path, above.Source, above.Path).
				WithFix("make the directory in " + above.Source)
		}
	}
	return list, nil
}

func closeMounts(list []hostMount) {
	for _, m := range list {
		m.source.Close()
	}
}

// above is the nearest of these mounts that m lies in.
func (m hostMount) above(list []hostMount) (hostMount, bool) {
	for _, other := range slices.Backward(list) {
		if strings.HasPrefix(m.Path, other.Path+"/") {
			return other, true
		}
	}
	return hostMount{}, false
}

// mountPointsOf are the paths for which the root needs a directory: all but those in another
// mount. gVisor needs one also where a tmpfs hides it: it makes the mounts of its gofer,
// which knows no tmpfs, from the root.
func mountPointsOf(list []hostMount) []string {
	var points []string
	for i, m := range list {
		if _, nested := m.above(list[:i]); !nested {
			points = append(points, m.Path)
		}
	}
	return points
}

// mountHost shows the directories of the host where a runtime takes them from, with their
// owners mapped, and makes the places for them that the root lacks.
func (sb *sandbox) mountHost(layer, root string) error {
	if len(sb.Request.Mounts) == 0 {
		return nil
	}
	list, err := sb.Request.openMounts(sb.Host)
	if err != nil {
		return err
	}
	defer closeMounts(list)
	if err := os.Mkdir(sb.dir("mounts"), 0o711); err != nil {
		return err
	}
	for i, m := range list {
		target := sb.dir("mounts", strconv.Itoa(i))
		if err := os.Mkdir(target, 0o711); err != nil {
			return err
		}
		uid := rootfs.IDMap{Host: m.owner.UID, Shown: sb.ids.hostID() + sb.Request.UID}
		gid := rootfs.IDMap{Host: m.owner.GID, Shown: sb.ids.hostID() + sb.Request.GID}
		if sb.isGVisor() {
			uid.Maker, gid.Maker = sb.ids.hostID(), sb.ids.hostID()
		}
		if err := m.source.Attach(target, uid, gid, m.Writable); err != nil {
			return Refused("bad_mount", "%w", err)
		}
		sb.mounts = append(sb.mounts, oci.Mount{Source: target, Path: m.Path, Writable: m.Writable})
	}
	return sb.addPoints(layer, root, mountPointsOf(list))
}

// addPoints mounts the root once more if it lacks a mount point.
func (sb *sandbox) addPoints(layer, root string, points []string) error {
	dir := sb.dir("points")
	needed, err := rootfs.MountPoints(dir, root, points)
	if err != nil {
		return Refused("bad_mount", "%w", err)
	}
	if !needed {
		return nil
	}
	if err := rootfs.Unmount(root); err != nil {
		return err
	}
	return rootfs.MountWith(dir, layer, sb.image.lowers, root)
}

// bundleMounts are the mounts as another runtime is told of them, and the places that they
// need in the bundle's root.
func (r Request) bundleMounts(h Host) (mounts []oci.Mount, points []string, err error) {
	list, err := r.openMounts(h)
	if err != nil {
		return nil, nil, err
	}
	defer closeMounts(list)
	for _, m := range list {
		mount := oci.Mount{Source: m.Source, Path: m.Path, Writable: m.Writable}
		if m.owner.UID != 0 && m.owner.GID != 0 {
			mount.Owner = &oci.Owner{UID: m.owner.UID, GID: m.owner.GID}
		} else if m.Writable {
			return nil, nil, Refused("bad_mount", "cannot let source=%s be written from a sandbox: it is root's", m.Source).
				WithFix("give the directory to a user and group without rights (chown), or mount it read-only")
		}
		mounts = append(mounts, mount)
	}
	return mounts, mountPointsOf(list), nil
}
