// Package install brings what a program depends on into sealed layers, which its
// sandbox then has below its own files.
//
// It works in two phases. The first is a sandbox of its own: it reaches the registries
// of the config and nothing else, has no secret of anybody, and does not run install
// scripts unless that was approved. It writes an archive, which becomes a layer of
// root's, read-only, under a name that is the digest of everything which decided it: the
// lock, the image, the registry. The second phase is the program's own run, which
// reaches no registry. A layer that is there already saves the first phase; it is read
// and compared with its digest before it is used.
//
// Each project has a store of layers of its own, unless the config says that all may
// share one. Layers that nobody has used for long are removed.
package install

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/capability/dependency"
	"github.com/direct-oci/engine/capability/sandbox"
	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/rootfs/image"
	"github.com/direct-oci/engine/rootfs/image/tree"
)

// Installer is what a runner's config says about dependencies.
type Installer struct {
	Profile  sandbox.Profile      // image, runtime and places are those of the programs
	NPM, Pip *dependency.Registry // nil: such are not installed
	CAFile   string               // PEM, of what signs the registries; empty: what the image trusts
	Scripts  bool                 // install scripts may be asked for
	Unlocked bool                 // a program may do without a lock
	Shared   bool                 // one store for all projects
	Max      sandbox.Limits       // of the first phase
	MaxBytes int64                // of the files of one layer
	MaxFiles int64                // files, directories and links of one layer

	KeepBytes int64         // of all layers of a store
	KeepFor   time.Duration // without being used
}

// Ask is what a run needs.
type Ask struct {
	Project     string
	ImageDigest string
	Sets        []dependency.Set
	Labels      map[string]string
	Log         func(line string) // what the installer says; never nil
}

// Installed is what came of one set.
type Installed struct {
	Kind      dependency.Kind `json:"kind"`
	Lock      string          `json:"lock"`     // digest of what decided the layer
	Layer     string          `json:"layer"`    // digest of its files
	Packages  int             `json:"packages"` // of the lock
	Fetched   bool            `json:"fetched"`  // false: the layer was there
	Ms        float64         `json:"ms"`       // until the layer was ready
	Runs      []string        `json:"runs"`     // ids of the records of the first phase
	Generated *Generated      `json:"generated"`
}

// Generated is a lock that was made because the program had none. With it among the
// files an approval binds what is installed.
type Generated struct {
	Path     string `json:"path"`
	Contents string `json:"contents"`
}

// Laid are the layers of a run. They are held until Close.
type Laid struct {
	Layers    []engine.Layer
	Env       []string
	Installed []Installed

	holds []*os.File
}

// Close lets go of the layers.
func (l *Laid) Close() {
	for _, f := range l.holds {
		f.Close() // of a lock alone
	}
	l.holds = nil
}

// Read finds the dependencies among the files of a program, text by path. python says
// that it is Python which runs. The receiver may be nil: nothing is installed. The error
// is an *engine.Error.
func (i *Installer) Read(files map[string]string, python, scripts bool) ([]dependency.Set, error) {
	var sets []dependency.Set
	add := func(file string, kind dependency.Kind, read func(r dependency.Registry) (dependency.Set, error)) error {
		r, err := i.registry(kind, file)
		if err != nil {
			return err
		}
		s, err := read(*r)
		if err != nil {
			return engine.Refused("bad_lock", "%w", err)
		}
		if err := i.permits(s, file); err != nil {
			return err
		}
		sets = append(sets, s)
		return nil
	}
	names := dependency.Files()
	if manifest := files[names[0]]; manifest != "" && dependency.NPMNeeds(manifest) {
		err := add(names[0], dependency.NPM, func(r dependency.Registry) (dependency.Set, error) {
			return dependency.ReadNPM(manifest, files[names[1]], r, scripts)
		})
		if err != nil {
			return nil, err
		}
	}
	if manifest := files[names[2]]; python && dependency.PipNeeds(manifest) {
		err := add(names[2], dependency.Pip, func(r dependency.Registry) (dependency.Set, error) {
			return dependency.ReadPip(manifest, r, scripts)
		})
		if err != nil {
			return nil, err
		}
	}
	return sets, nil
}

func (i *Installer) registry(kind dependency.Kind, file string) (*dependency.Registry, error) {
	var r *dependency.Registry
	if i != nil {
		r = map[dependency.Kind]*dependency.Registry{dependency.NPM: i.NPM, dependency.Pip: i.Pip}[kind]
	}
	if r == nil {
		return nil, engine.Refused("no_dependencies", "cannot install the dependencies in %s: this runner has no registry for %s", file, kind).
			WithFix("have sandbox.dependencies." + string(kind) + ".registry configured, bring the modules along as files, or have them put into the image")
	}
	return r, nil
}

// permits refuses what the config does not allow.
func (i *Installer) permits(s dependency.Set, file string) error {
	if s.Scripts && !i.Scripts {
		return engine.Refused("no_scripts", "cannot run install scripts of the dependencies in %s: this runner does not allow it", file).
			WithFix("ask without dependencies.scripts, or have sandbox.dependencies.scripts configured")
	}
	if !s.Locked() && !i.Unlocked {
		fix := "add package-lock.json to the files: npm install --package-lock-only writes it"
		if s.Kind == dependency.Pip {
			fix = "give every package an exact version and its hashes: pip-compile --generate-hashes writes them"
		}
		return engine.Refused("no_lock", "cannot install the dependencies in %s: they are not locked", file).WithFix(fix)
	}
	return nil
}

// Lock names all that decides what is installed, for an approval; "" is nothing.
func Lock(sets []dependency.Set, imageDigest string) string {
	var names []string
	for _, s := range sets {
		names = append(names, string(s.Kind)+":"+s.Digest(imageDigest))
	}
	return strings.Join(names, " ")
}

// Room is what a call takes of the host that has all sets laid, and then runs under the
// limits of its program: the most of both, which come one after the other.
func (i *Installer) Room(program engine.Limits, sets []dependency.Set) engine.Limits {
	if len(sets) == 0 {
		return program
	}
	first := i.limits()
	program.CPUs, program.Memory, program.Pids = max(program.CPUs, first.CPUs), max(program.Memory, first.Memory), max(program.Pids, first.Pids)
	return program
}

// Recorded is what a run's record tells of its layers.
func Recorded(layers []engine.LayerInfo) []Installed {
	list := []Installed{}
	for _, l := range layers {
		kind, lock, _ := strings.Cut(l.Name, "-")
		list = append(list, Installed{Kind: dependency.Kind(kind), Lock: lock, Layer: l.Digest, Runs: []string{}})
	}
	return list
}

// Lay makes the layers of all sets, or finds them. Close what it returns. The error is
// an *engine.Error, and nothing is held then.
func (i *Installer) Lay(ctx context.Context, ask Ask) (*Laid, error) {
	laid := &Laid{Installed: []Installed{}}
	for _, s := range ask.Sets {
		if err := i.lay(ctx, ask, s, laid); err != nil {
			laid.Close()
			return nil, engine.AsError(err)
		}
	}
	return laid, nil
}

func (i *Installer) lay(ctx context.Context, ask Ask, s dependency.Set, laid *Laid) error {
	began := time.Now()
	done := Installed{Kind: s.Kind, Runs: []string{}}
	if !s.Locked() {
		var err error
		if s, err = i.resolve(ctx, ask, s, &done); err != nil {
			return err
		}
	}
	done.Lock, done.Packages = s.Digest(ask.ImageDigest), len(s.Packages)
	// Whoever may run scripts can make of a layer what it likes.
	at := "project-" + ask.Project
	if i.Shared && !s.Scripts {
		at = "shared"
	}
	name := string(s.Kind) + "-" + done.Lock
	img, hold, err := i.layer(ctx, ask, s, at, name, &done)
	if err != nil {
		return err
	}
	laid.holds = append(laid.holds, hold)
	if done.Layer = img.Digest; !done.Fetched {
		if err := verify(ctx, img); err != nil {
			return err
		}
	}
	done.Ms = float64(time.Since(began).Microseconds()) / 1000
	laid.Layers = append(laid.Layers, engine.Layer{Store: at, Name: name, Digest: img.Digest})
	laid.Env = append(laid.Env, s.Env()...)
	laid.Installed = append(laid.Installed, done)
	return nil
}

// layer finds the layer of this name, or makes it, once for all who want it at the same
// time.
func (i *Installer) layer(ctx context.Context, ask Ask, s dependency.Set, at, name string, done *Installed) (image.Image, *os.File, error) {
	store := image.Store{Dir: i.Profile.Host.LayerStore(at)}
	lock, err := i.turn(ctx, at, name, func() { ask.Log(string(s.Kind) + ": another call is installing the same") })
	if err != nil {
		return image.Image{}, nil, err
	}
	defer lock.Close()
	img, hold, err := open(store, name)
	var none *image.NotFoundError
	if errors.As(err, &none) {
		if err = i.fetch(ctx, ask, s, store, name, done); err != nil {
			return image.Image{}, nil, err
		}
		done.Fetched = true
		img, hold, err = open(store, name)
	}
	if err != nil {
		return image.Image{}, nil, engine.Failed("no_layer", "cannot use the layer of %s dependencies: %w", s.Kind, err)
	}
	err = store.Touch(name)
	if done.Fetched {
		err = errors.Join(err, i.tidy())
	}
	if err != nil {
		ask.Log("warning: cannot tidy up the layers of dependencies: " + err.Error())
	}
	return img, hold, nil
}

// tidy removes what nobody has used for long from all stores, also from those of
// projects that are gone.
func (i *Installer) tidy() error {
	stores, err := i.Profile.Host.LayerStores()
	for _, at := range stores {
		_, e := image.Store{Dir: i.Profile.Host.LayerStore(at)}.Trim(time.Now().Add(-i.KeepFor), i.KeepBytes)
		err = errors.Join(err, e)
	}
	return err
}

func open(store image.Store, name string) (image.Image, *os.File, error) {
	img, err := store.Open(name)
	if err != nil {
		return img, nil, err
	}
	hold, err := img.Hold()
	return img, hold, err
}

// verify reads a layer that was made earlier.
//
// SECURITY: a layer is what was sealed, or it is not used.
// It lies on the disk for weeks, and its code runs with the secrets of whoever uses it.
// Holds because: every byte, owner and mode is compared with the digest of the day it was
// made, after it is held and before a sandbox has it.
// Not covered: root, who can change the digest too; what changes between the look and the run.
// Checked by: TestDependencies.
func verify(ctx context.Context, img image.Image) error {
	damaged := func(why string) error {
		return engine.Failed("damaged_layer", "cannot use the layer %s of dependencies: %s", img.Name, why).
			WithFix("find out who changed files below " + filepath.Dir(filepath.Dir(img.Lowers[0])) + ", then remove that store's directory: the next call installs anew")
	}
	root, err := os.Open(img.Lowers[0])
	if err != nil {
		return damaged(err.Error())
	}
	defer root.Close()
	facts, err := tree.Inspect(ctx, root)
	switch {
	case ctx.Err() != nil:
		return engine.Refused("cancelled", "cannot go on: %w", ctx.Err())
	case err != nil:
		return damaged(err.Error())
	case facts.Digest != img.Digest:
		return damaged("it is not what was sealed: it is " + facts.Digest + ", and was " + img.Digest)
	}
	return nil
}

// turn waits until nobody else works on a layer of this name. The kernel lets go of the
// lock of a process that dies. A few names share a file, so that the files stay few.
func (i *Installer) turn(ctx context.Context, at, name string, waits func()) (*os.File, error) {
	const pause = 20 * time.Millisecond
	dir := filepath.Join(i.Profile.Host.LayerStore(""), ".locks", at)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, engine.Failed("no_directory", "cannot make directory=%s: %w", dir, err)
	}
	_, digest, _ := strings.Cut(name, "-")
	f, err := os.OpenFile(filepath.Join(dir, digest[:2]), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, engine.Failed("no_directory", "cannot open a lock: %w", err)
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return f, nil
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			return nil, errors.Join(engine.Failed("no_directory", "cannot lock %s: %w", f.Name(), err), f.Close())
		}
		if waits != nil {
			waits()
			waits = nil
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(engine.Refused("cancelled", "cannot go on: %w", ctx.Err()), f.Close())
		case <-time.After(pause):
		}
	}
}
