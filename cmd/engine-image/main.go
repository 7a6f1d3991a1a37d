// Engine-image pulls, imports and exports images. It is started by engine, which tells
// it one job, and never by hand; see package job. Interrupted, it removes what it has
// begun. It is its own confined child too: what takes foreign archives apart, without
// rights on the host.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/rootfs/image"
	"github.com/direct-oci/engine/rootfs/image/intake"
	"github.com/direct-oci/engine/rootfs/image/job"
	"github.com/direct-oci/engine/rootfs/image/registry"
	"github.com/direct-oci/engine/rootfs/image/tree"
)

func main() {
	if intake.IsConfined() {
		os.Exit(intake.Confined())
	}
	os.Exit(run())
}

func run() int {
	var j job.Job
	if len(os.Args) != 2 || json.Unmarshal([]byte(os.Args[1]), &j) != nil {
		fmt.Fprintln(os.Stderr, "engine-image: this program is started by engine, see engine image --help")
		return 2
	}
	debug.SetMemoryLimit(intake.MemoryLimit)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// When engine is killed there is nobody left to interrupt this process.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGTERM), 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, "engine-image: cannot follow engine's death:", err)
		return 1
	}
	answer, err := do(ctx, j)
	if err != nil {
		answer = job.Answer{Failure: describe(err)}
		err = forget(j, *answer.Failure)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "engine-image: cannot remove what was begun:", err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
		return 1
	}
	return 0
}

// forget removes the layers of an image that did not come to be. Those of one that may
// come yet, from a registry that does not answer now, are kept: the next pull goes on
// from there, and a removal deletes them.
func forget(j job.Job, f job.Failure) error {
	if j.Do == job.Export || f.Kind == string(registry.NoRoute) || f.Kind == string(registry.Busy) {
		return nil
	}
	_, err := image.Store{Dir: j.Store}.Prune(false)
	return err
}

func do(ctx context.Context, j job.Job) (job.Answer, error) {
	if j.Do == job.Export {
		digest, err := intake.Export(ctx, image.Store{Dir: j.Store}, j.Name, j.Output)
		return job.Answer{Digest: digest}, err
	}
	self, err := os.Executable()
	if err != nil {
		return job.Answer{}, fmt.Errorf("cannot find this program: %w", err)
	}
	o := intake.Options{
		Store: image.Store{Dir: j.Store}, Unpacker: intake.Unpacker{Program: self}, Name: j.Name, Ref: j.Ref,
	}
	if j.Platform != "" {
		if o.Platform, err = intake.ParsePlatform(j.Platform); err != nil {
			return job.Answer{}, err
		}
	}
	show := newProgress(os.Stderr, j.Quiet)
	o.Notify = show.event
	defer show.end()
	var img image.Image
	switch j.Do {
	case job.Pull:
		img, err = pull(ctx, o, j)
	case job.Seal:
		o.Origin = j.Source
		o.Store.Limits = tree.Limits{MaxBytes: j.MaxBytes, MaxEntries: j.MaxEntries}
		img, err = intake.TakeSealed(ctx, o, os.Stdin, j.Top)
	default:
		img, err = intake.Import(ctx, o, j.Source)
	}
	return job.Answer{Image: &img}, err
}

func pull(ctx context.Context, o intake.Options, j job.Job) (image.Image, error) {
	if o.Name == "" {
		o.Name = j.Source
	}
	name, err := image.CanonicalName(o.Name)
	if err != nil {
		return image.Image{}, err
	}
	o.Name, o.Origin = name, j.Source
	src, err := registry.Open(j.Source, registry.Options{
		AuthFile: j.AuthFile, Mirrors: j.Mirrors, CAFile: j.CAFile, PlainHTTP: j.PlainHTTP, TokenHosts: j.TokenHosts,
	})
	if err != nil {
		return image.Image{}, err
	}
	return intake.Take(ctx, o, src, "registry", true)
}
