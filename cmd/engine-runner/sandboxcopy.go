package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/direct-oci/engine/client"
	"github.com/direct-oci/engine/client/wire"
	"github.com/direct-oci/engine/cmd/cli"
	"github.com/direct-oci/engine/cmd/engine-runner/archive"
	"github.com/direct-oci/engine/engine"
)

func (a *app) sandboxCopyCommand(f *serviceFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "cp SRC DST",
		Short: "copy a file or directory into a sandbox, or out of one",
		Long: "cp copies a file, or a directory with all that is below. One of SRC and DST is in a\n" +
			"sandbox: NAME:/PATH. Into a directory that is there it is copied under its own name, or,\n" +
			"if SRC ends in /., only what is in it; otherwise DST is what it will be called.\n\n" +
			"Permissions and times of files are kept, owners are not. Links are copied as links, if\n" +
			"they stay inside the directory; they and what is no file are otherwise left out, which is\n" +
			"told on stderr. Nothing that comes out of a sandbox is written outside DST.",
		Example: "  engine sandbox cp ./src dev:/workload\n  engine sandbox cp dev:/workload/out/. ./results",
		Args:    cli.Exactly(2),
		RunE: a.onService(f, func(ctx context.Context, c *client.Client, args []string) error {
			from, to := parsePlace(args[0]), parsePlace(args[1])
			if (from.sandbox == "") == (to.sandbox == "") {
				return engine.Refused("bad_arguments", "cannot copy from %s to %s: one of them has to be in a sandbox", args[0], args[1]).
					WithFix("write NAME:/PATH for a path in a sandbox")
			}
			if from.sandbox != "" {
				return a.copyOut(ctx, c, from, to.path)
			}
			return a.copyIn(ctx, c, from.path, to)
		}),
	}
}

// place is a path on this host, or in a sandbox.
type place struct{ sandbox, path string }

// parsePlace takes NAME:/PATH for one in a sandbox. No name has a slash, many a colon.
func parsePlace(text string) place {
	name, below, found := strings.Cut(text, ":/")
	if !found || name == "" || strings.ContainsAny(name, "/") || name[0] == '.' {
		return place{path: text}
	}
	return place{name, "/" + below}
}

// contents says that a path ends in /.: what is in it is meant, not itself.
func contents(p string) bool { return strings.HasSuffix(p, "/.") || p == "." }

// copyOut copies out of a sandbox.
func (a *app) copyOut(ctx context.Context, c *client.Client, from place, to string) error {
	info, err := c.StatFile(ctx, from.sandbox, path.Clean(from.path), true)
	if err != nil {
		return err
	}
	if there, err := os.Stat(to); err == nil && there.IsDir() && !(info.Type == "directory" && contents(from.path)) {
		to = filepath.Join(to, path.Base(path.Clean(from.path)))
	}
	switch info.Type {
	case "file":
		return a.copyFileOut(ctx, c, from, to, info)
	case "directory":
		return a.copyDirectoryOut(ctx, c, from, to)
	}
	return engine.Refused("bad_path", "cannot copy %s: it is neither a file nor a directory", from.path)
}

// copyFileOut writes a file, which appears complete in place of what was there.
func (a *app) copyFileOut(ctx context.Context, c *client.Client, from place, to string, info wire.FileInfo) error {
	content, err := c.ReadFile(ctx, from.sandbox, path.Clean(from.path))
	if err != nil {
		return err
	}
	defer content.Close() // it was only read
	temp, err := os.CreateTemp(filepath.Dir(to), ".engine-cp-*")
	if err != nil {
		return notCopied(to, err)
	}
	defer os.Remove(temp.Name()) // it has gone if all went well
	_, err = io.Copy(temp, content)
	if err == nil {
		err = temp.Chmod(fs.FileMode(info.Mode) & fs.ModePerm)
	}
	if err = errors.Join(err, temp.Close()); err == nil {
		err = os.Chtimes(temp.Name(), info.ModTime, info.ModTime)
	}
	if err == nil {
		err = os.Rename(temp.Name(), to)
	}
	return notCopied(to, err)
}

func (a *app) copyDirectoryOut(ctx context.Context, c *client.Client, from place, to string) error {
	content, err := c.ExportFiles(ctx, from.sandbox, path.Clean(from.path))
	if err != nil {
		return err
	}
	defer content.Close() // it was only read
	if err := os.Mkdir(to, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return notCopied(to, err)
	}
	root, err := os.OpenRoot(to)
	if err != nil {
		return notCopied(to, err)
	}
	defer root.Close() // nothing was written to it
	return notCopied(to, archive.Unpack(root, content, a.leftOut))
}

// leftOut tells of a path that was not copied.
func (a *app) leftOut(path, why string) {
	a.Say(fmt.Sprintf("%s is left out: %s", path, why), "")
}

func notCopied(to string, err error) error {
	var known *engine.Error
	switch {
	case err == nil || errors.As(err, &known):
		return err
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission), errors.Is(err, fs.ErrExist), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EISDIR):
		return engine.Refused("bad_path", "cannot copy to %s: %w", to, err)
	}
	return engine.Failed("not_copied", "cannot copy to %s: %w", to, err)
}

// copyIn copies into a sandbox.
func (a *app) copyIn(ctx context.Context, c *client.Client, from string, to place) error {
	info, err := os.Stat(from)
	if err != nil {
		return engine.Refused("bad_path", "cannot copy: %w", err)
	}
	target := path.Clean(to.path)
	there, err := c.StatFile(ctx, to.sandbox, target, true)
	switch {
	case client.IsKind(err, "no_file"):
	case err != nil:
		return err
	case there.Type == "directory" && !(info.IsDir() && contents(from)):
		abs, err := filepath.Abs(from)
		if err != nil {
			return engine.Failed("bad_root", "cannot copy: %w", err)
		}
		target = path.Join(target, filepath.Base(abs))
	}
	if info.IsDir() {
		return a.copyDirectoryIn(ctx, c, from, place{to.sandbox, target})
	}
	if !info.Mode().IsRegular() {
		return engine.Refused("bad_path", "cannot copy %s: it is neither a file nor a directory", from)
	}
	file, err := os.Open(from)
	if err != nil {
		return engine.Refused("bad_path", "cannot copy: %w", err)
	}
	defer file.Close() // it was only read
	mode := uint32(info.Mode().Perm())
	_, err = c.WriteFile(ctx, to.sandbox, target, file, client.WriteOptions{Mode: &mode})
	return err
}

func (a *app) copyDirectoryIn(ctx context.Context, c *client.Client, from string, to place) error {
	root, err := os.OpenRoot(from)
	if err != nil {
		return engine.Refused("bad_path", "cannot copy: %w", err)
	}
	defer root.Close() // it was only read
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := archive.Pack(root, w, a.leftOut)
		w.CloseWithError(err)
		packed <- err
	}()
	done, err := c.ImportFiles(ctx, to.sandbox, to.path, r)
	r.Close() // so that whoever packs has an end
	if packErr := <-packed; packErr != nil && !errors.Is(packErr, io.ErrClosedPipe) {
		return engine.Refused("bad_path", "cannot copy %s: %w", from, packErr)
	}
	for _, s := range done.Skipped {
		a.leftOut(s.Path, s.Why)
	}
	return err
}
