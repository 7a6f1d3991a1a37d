package install

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/direct-oci/engine/capability/dependency"
	"github.com/direct-oci/engine/capability/sandbox"
	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/netns/egress"
	"github.com/direct-oci/engine/rootfs/image"
	"github.com/direct-oci/engine/rootfs/image/job"
)

const (
	maxLock  = 32 << 20 // bytes of a lock that is made here
	maxCA    = 1 << 20
	page     = 4 << 10
	overhead = 1 << 30 // what an archive may have besides the content of its files
)

// resolve makes the lock of a set that has none.
func (i *Installer) resolve(ctx context.Context, ask Ask, s dependency.Set, done *Installed) (dependency.Set, error) {
	ask.Log(string(s.Kind) + ": there is no lock: asking the registry for one")
	ca, err := i.ca()
	if err != nil {
		return s, err
	}
	var out bytes.Buffer
	if err := i.run(ctx, ask, s, s.Resolve(ca), &limited{&out, maxLock}, done); err != nil {
		return s, err
	}
	locked, path, text, err := s.WithLock(out.String())
	if err != nil {
		return s, engine.Refused("bad_lock", "%w", err)
	}
	done.Generated = &Generated{path, text}
	ask.Log(fmt.Sprintf("%s: it locks %d packages; add it to the files as %s, so that an approval binds it", s.Kind, len(locked.Packages), path))
	return locked, nil
}

// fetch makes a layer of what the installer brings, under its name.
//
// SECURITY: a layer appears only if the installer ended well, and all of its archive came.
// Half an installation under the name of a whole one would be used from then on.
// Holds because: the sealing program sees the end of its input only after the sandbox's result
// is known to be good, and is killed otherwise; names appear by rename.
// Not covered: an installer that is content with less. Checked by: TestDependencies.
func (i *Installer) fetch(ctx context.Context, ask Ask, s dependency.Set, store image.Store, name string, done *Installed) error {
	ask.Log(fmt.Sprintf("%s: installing %d packages", s.Kind, len(s.Packages)))
	ca, err := i.ca()
	if err != nil {
		return err
	}
	sealing, err := startSealing(ctx, job.Job{
		Do: job.Seal, Store: store.Dir, Name: name, Source: string(s.Kind) + " dependencies", Top: s.Top(),
		MaxBytes: i.MaxBytes, MaxEntries: i.MaxFiles, Quiet: true,
	})
	if err != nil {
		return err
	}
	err = i.run(ctx, ask, s, s.Fetch(ca), sealing, done)
	if err != nil && !sealing.refused {
		sealing.abort()
		return err
	}
	if sealed := sealing.finish(); sealed != nil {
		return sealed
	}
	return err
}

func (i *Installer) ca() (string, error) {
	if i.CAFile == "" {
		return "", nil
	}
	data, err := os.ReadFile(i.CAFile)
	if err == nil && len(data) > maxCA {
		err = fmt.Errorf("it is larger than %d bytes", maxCA)
	}
	if err != nil {
		return "", engine.Failed("bad_config", "cannot use sandbox.dependencies.ca=%s: %w", i.CAFile, err)
	}
	return string(data), nil
}

// run runs a job of the first phase. Its standard output goes to out; a writer that
// fails ends it. The error is an *engine.Error.
//
// SECURITY: an installer has nothing that is worth stealing, and nowhere to bring it.
// Packages run code when they are installed, if scripts are approved, and may be made to
// without them by a fault of the installer.
// Holds because: the request has no secrets, the environment and the files are those of the job
// alone, and the policy is the registry's grants.
// Not covered: what a registry does with the names that it is asked for. Checked by: TestDependenciesKeepSecrets.
func (i *Installer) run(ctx context.Context, ask Ask, s dependency.Set, j dependency.Job, out io.Writer, done *Installed) error {
	policy, err := sandbox.ParseGrants(s.Registry.Grants())
	if err != nil {
		return err
	}
	req := i.request(ask, j, policy)
	outR, outW, err := os.Pipe()
	if err != nil {
		return engine.Failed("no_descriptors", "cannot make a pipe: %w", err)
	}
	errR, errW, err := os.Pipe()
	if err != nil {
		outR.Close()
		outW.Close()
		return engine.Failed("no_descriptors", "cannot make a pipe: %w", err)
	}
	said := &tail{}
	var streams sync.WaitGroup
	streams.Go(func() {
		defer outR.Close() // a program whose reader has gone ends
		io.Copy(out, outR) // what went wrong is the writer's to say, or the result's
	})
	streams.Go(func() {
		defer errR.Close()
		sandbox.ReadLines(errR, func(line string) {
			if line = strings.TrimSpace(line); line != "" {
				said.add(line)
				ask.Log(string(s.Kind) + ": " + line)
			}
		})
	})
	started, err := i.Profile.Host.Start(ctx, req, nil, engine.Stdio{Out: outW, Err: errW})
	outW.Close()
	errW.Close()
	if err != nil {
		streams.Wait()
		return err
	}
	done.Runs = append(done.Runs, started.ID())
	stop := context.AfterFunc(ctx, started.Cancel)
	result, err := started.Wait()
	stop()
	streams.Wait()
	if err != nil {
		return err
	}
	return failure(s.Kind, result, said.text())
}

// limits are those of the first phase.
func (i *Installer) limits() engine.Limits {
	l := engine.DefaultLimits()
	l.CPUs, l.Memory, l.Pids = i.Max.CPUs, int64(i.Max.MemoryMB*(1<<20)), i.Max.Pids
	l.Timeout = time.Duration(i.Max.TimeoutSeconds * float64(time.Second))
	// Both are memory, and what is installed lies in the second.
	l.TmpSize, l.WorkspaceSize = l.Memory/8&^(page-1), l.Memory/4*3&^(page-1)
	l.OutputKept, l.OutputMax = 64<<10, i.MaxBytes+overhead
	return l
}

func (i *Installer) request(ask Ask, j dependency.Job, policy egress.Policy) engine.Request {
	labels := maps.Clone(ask.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels["phase"] = "dependencies"
	p := i.Profile
	req := engine.Request{
		Runtime: p.Runtime, Image: p.Image, ImageDigest: ask.ImageDigest, Command: j.Command, Workdir: "/workload",
		UID: engine.DefaultUID, GID: engine.DefaultUID, Labels: labels, Egress: policy, Limits: i.limits(), BestEffortLimits: p.BestEffortLimits,
	}
	for path, text := range j.Files {
		req.Files = append(req.Files, engine.File{Path: path, Data: []byte(text), Mode: 0o644})
	}
	return req
}

// failure says why a job of the first phase came to nothing; nil if it did not.
func failure(kind dependency.Kind, r engine.Result, said string) error {
	switch {
	case r.Error != nil:
		return r.Error
	case r.OK:
		return nil
	}
	for _, d := range r.Network.Denied {
		said += fmt.Sprintf("; %s port %d was out of reach: %s", d.Host, d.Port, d.Rule)
	}
	if r.ExitCode != nil {
		e := engine.Refused("fetch_failed", "cannot install the %s dependencies: exit status %d: %s", kind, *r.ExitCode, said)
		if *r.ExitCode == 127 { // a shell's, for a program that is not there
			return e.WithFix("use an image that has " + map[dependency.Kind]string{dependency.NPM: "npm", dependency.Pip: "python3 with pip"}[kind] + ", sh and tar")
		}
		return e
	}
	why := "lost"
	if r.Reason != nil {
		why = string(*r.Reason)
	}
	return engine.Failed("fetch_failed", "cannot install the %s dependencies: the installer ended by %s: %s", kind, why, said).
		WithFix("raise sandbox.dependencies.limits in the runner's config, or install less")
}

// tail keeps the last lines of what an installer says.
type tail struct{ lines []string }

func (t *tail) add(line string) {
	const most, long = 12, 240
	t.lines = append(t.lines, line[:min(len(line), long)])
	t.lines = t.lines[max(0, len(t.lines)-most):]
}

func (t *tail) text() string {
	return strings.ToValidUTF8(strings.Join(t.lines, " | "), "\ufffd")
}

// limited refuses more than a number of bytes.
type limited struct {
	w    io.Writer
	left int
}

func (l *limited) Write(p []byte) (int, error) {
	if l.left -= len(p); l.left < 0 {
		return 0, errors.New("too long")
	}
	return l.w.Write(p)
}

// sealing is engine-image at work on an archive that is written to it.
type sealing struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	answer  bytes.Buffer
	words   bytes.Buffer
	refused bool // it wants no more: it has found a fault
}

func startSealing(ctx context.Context, j job.Job) (*sealing, error) {
	program, err := engine.Program("engine-image")
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(j)
	if err != nil {
		return nil, engine.Failed("internal", "internal error: %w", err)
	}
	s := &sealing{cmd: exec.CommandContext(ctx, program, string(text))}
	s.cmd.Stdout, s.cmd.Stderr, s.cmd.Env, s.cmd.Dir = &s.answer, &limited{&s.words, 64 << 10}, []string{}, "/"
	s.cmd.WaitDelay = 10 * time.Second
	if s.in, err = s.cmd.StdinPipe(); err == nil {
		err = s.cmd.Start()
	}
	if err != nil {
		return nil, engine.Failed("not_installed", "cannot start %s: %w", program, err)
	}
	return s, nil
}

func (s *sealing) Write(p []byte) (int, error) {
	n, err := s.in.Write(p)
	s.refused = s.refused || err != nil
	return n, err
}

// abort ends it before it sees the end of its input.
func (s *sealing) abort() {
	s.cmd.Process.Kill() // one that has ended is not harmed
	s.cmd.Wait()         // nor asked
}

// finish lets it see the end, and waits for what it makes of it.
func (s *sealing) finish() error {
	closeErr := s.in.Close()
	waitErr := s.cmd.Wait()
	var answer job.Answer
	if err := json.Unmarshal(s.answer.Bytes(), &answer); err != nil {
		return engine.Failed("image_store", "engine-image ended without an answer: %w %s", errors.Join(waitErr, closeErr, err), s.words.String())
	}
	if f := answer.Failure; f != nil {
		class := engine.ClassEngine
		if f.Request {
			class = engine.ClassRequest
		}
		return &engine.Error{Class: class, Kind: f.Kind, Message: f.Message, Fix: f.Fix}
	}
	return nil
}
