package engine

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/oci"
	"github.com/direct-oci/engine/rootfs"
	"github.com/direct-oci/engine/rootfs/image/tree"
)

// Bundle writes the sandbox that a run of req would get as a bundle into the new
// directory dir, for any OCI runtime to run: the root copied, the command in place
// of engine-init, the seccomp profile in the spec. What only the engine can do is
// not in it: the deadline, the output limits, secrets, the files below /proc.
func (h Host) Bundle(ctx context.Context, req Request, dir string) error {
	if err := req.Validate(); err != nil {
		return err
	}
	if len(req.SecretNames) > 0 {
		return Refused("bad_secret", "cannot write secret=%s into a bundle: a bundle is a file that others can read", req.SecretNames[0])
	}
	if req.Egress.Mode() != "none" {
		return Refused("bad_network", "cannot write network=%s into a bundle: only the engine can keep its policy", req.Egress.Mode())
	}
	if len(req.Files) > 0 {
		return Refused("bad_file", "cannot write file=%q into a bundle: only the engine can bring files along", req.Files[0].Path)
	}
	h, err := h.resolved()
	if err != nil {
		return err
	}
	if err := h.prepare(); err != nil {
		return err
	}
	if req, err = req.settle(h); err != nil {
		return err
	}
	img, err := openImage(h, req)
	if err != nil {
		return err
	}
	defer img.release()
	layer, err := rootfs.EnsureLayer(h.RunDir, h.programs())
	if err != nil {
		return Failed("no_sandbox", "%w", err)
	}
	in := bundleIntent(req)
	var points []string
	if in.Mounts, points, err = req.bundleMounts(h); err != nil {
		return err
	}
	spec, err := oci.Render("bundle", in)
	if err != nil {
		return Failed("no_bundle", "cannot render the bundle: %w", err)
	}
	// Users of the sandbox's own block must be able to pass through.
	if err := os.Mkdir(dir, 0o711); err != nil {
		fix := "name a directory that does not exist yet"
		if errors.Is(err, fs.ErrNotExist) {
			fix = "make the directory above it first"
		}
		return Refused("bad_bundle", "cannot make bundle=%s: %w", dir, err).WithFix(fix)
	}
	if err := copyMerged(ctx, layer, img.lowers, dir); err != nil {
		return Failed("no_bundle", "cannot copy the root into bundle=%s: %w", dir, err)
	}
	root := filepath.Join(dir, "rootfs")
	if _, err := rootfs.MountPoints(root, root, points); err != nil {
		return Refused("bad_mount", "%w", err)
	}
	if err := oci.WriteBundle(dir, spec); err != nil {
		return Failed("no_bundle", "%w", err)
	}
	return nil
}

func bundleIntent(req Request) oci.Intent {
	in := baseIntent(req)
	in.Args = req.Command
	in.Env = environ(defaultEnv, req.Env)
	in.Cwd = req.Workdir
	if in.Cwd == "" {
		in.Cwd = workDir
	}
	in.HostID = firstHostID
	in.Memory, in.CPUs, in.Pids = req.Limits.Memory, req.Limits.CPUs, req.Limits.Pids
	return in
}

// copyMerged copies the image with the engine's layer over it to dir/rootfs. It
// mounts the two for that in a namespace that one thread has to itself and takes
// with it.
func copyMerged(ctx context.Context, layer string, lowers []string, dir string) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
				return err
			}
			if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
				return err
			}
			merged := filepath.Join(dir, ".merged")
			if err := os.Mkdir(merged, 0o700); err != nil {
				return err
			}
			if err := rootfs.Mount(layer, lowers, merged); err != nil {
				return err
			}
			err := tree.Copy(ctx, merged, filepath.Join(dir, "rootfs"))
			return errors.Join(err, rootfs.Unmount(merged), os.Remove(merged))
		}()
	}()
	return <-done
}
