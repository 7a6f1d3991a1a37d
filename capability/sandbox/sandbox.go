// Package sandbox is how capabilities run programs: it turns what was asked for into
// what is granted, under the maxima of the runner's config, and runs that on the
// engine.
//
// A Plan is complete: it names the image by digest, every file by its bytes, the
// egress and the limits after clamping. What an approval binds is a Plan, and what
// Run runs is the same one.
package sandbox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"math"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/direct-oci/engine/capability/approval"
	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/netns/egress"
)

// Profile is what a runner's config says about sandboxes.
type Profile struct {
	Host             engine.Host
	Image            string // name of an imported image
	Runtime          string // not auto: an approval names it
	Max              Limits
	Ceiling          egress.Policy
	BestEffortLimits bool
}

// Limits are those that may be asked for; zero is not asked for.
type Limits struct {
	CPUs           float64
	MemoryMB       float64 // MiB
	Pids           int64
	TimeoutSeconds float64
}

// DefaultMax are the maxima of a config that names none.
var DefaultMax = Limits{CPUs: 1, MemoryMB: 512, Pids: 256, TimeoutSeconds: 120}

// Ask is what a program wants.
type Ask struct {
	Command []string
	Files   []engine.File
	Secrets []string
	Egress  any // see Resolve
	Limits  Limits
}

// Plan is what it gets.
type Plan struct {
	Command     []string
	Files       []engine.File // sorted by path
	Secrets     []string      // names, sorted, each once
	Egress      egress.Policy
	Limits      engine.Limits
	ImageDigest string
}

// Plan resolves what was asked for. The error is an *engine.Error.
func (p Profile) Plan(ask Ask) (Plan, error) {
	policy, err := Resolve(ask.Egress, p.Ceiling, "sandbox.egress")
	if err != nil {
		return Plan{}, err
	}
	digest, err := p.Host.ImageDigest(p.Image)
	if err != nil {
		return Plan{}, err
	}
	plan := Plan{
		Command: ask.Command, Files: slices.Clone(ask.Files), Secrets: slices.Clone(ask.Secrets),
		Egress: policy, Limits: p.clamp(ask.Limits), ImageDigest: digest,
	}
	slices.SortFunc(plan.Files, func(a, b engine.File) int {
		if a.Path < b.Path {
			return -1
		}
		return 1
	})
	slices.Sort(plan.Secrets)
	plan.Secrets = slices.Compact(plan.Secrets)
	if err := p.request(plan, nil).Validate(); err != nil {
		return Plan{}, err
	}
	return plan, nil
}

// clamp grants what was asked for, and never more than the maxima.
func (p Profile) clamp(ask Limits) engine.Limits {
	least := func(ask, most float64) float64 {
		if ask <= 0 {
			return most
		}
		return math.Min(ask, most)
	}
	l := engine.DefaultLimits()
	l.CPUs = least(ask.CPUs, p.Max.CPUs)
	l.Memory = int64(least(ask.MemoryMB, p.Max.MemoryMB) * (1 << 20))
	l.Pids = p.Max.Pids
	l.Timeout = time.Duration(least(ask.TimeoutSeconds, p.Max.TimeoutSeconds) * float64(time.Second))
	return l.Sized()
}

func (p Profile) request(plan Plan, labels map[string]string) engine.Request {
	return engine.Request{
		Runtime: p.Runtime, Image: p.Image, ImageDigest: plan.ImageDigest, Command: plan.Command, Workdir: "/workload",
		UID: engine.DefaultUID, GID: engine.DefaultUID, Labels: labels, Egress: plan.Egress,
		Limits: plan.Limits, BestEffortLimits: p.BestEffortLimits, Files: plan.Files, SecretNames: plan.Secrets,
	}
}

// Bind writes the plan into what an approval binds.
func (p Profile) Bind(plan Plan, b approval.Bound) approval.Bound {
	b.Command, b.Secrets, b.Egress = plan.Command, plan.Secrets, Grants(plan.Egress)
	b.Image, b.ImageDigest, b.Runtime = p.Image, plan.ImageDigest, p.Runtime
	b.Files = []approval.File{}
	for _, f := range plan.Files {
		sum := sha256.Sum256(f.Data)
		b.Files = append(b.Files, approval.File{Path: f.Path, Mode: f.Mode, SHA256: hex.EncodeToString(sum[:])})
	}
	l := plan.Limits
	b.Limits = approval.Limits{
		CPUs: l.CPUs, MemoryBytes: l.Memory, Pids: l.Pids, TimeoutSeconds: l.Timeout.Seconds(),
		TmpBytes: l.TmpSize, WorkspaceBytes: l.WorkspaceSize,
	}
	return b
}

// Job is what a run is given beside its plan.
type Job struct {
	ID      string            // of the run; "": chosen
	Secrets map[string][]byte // by the names of the plan
	Stdin   []byte
	Labels  map[string]string
	Layers  []engine.Layer    // over the image, see package install
	Env     []string          // K=V, which those layers need
	Log     func(line string) // of the program's stderr, as it comes; may be nil
}

// Run runs a plan to its end, and cancels it when ctx ends. The result is that of the
// program. The error, an *engine.Error, is the engine's, or the request's where its
// command cannot be run; the result then says how far it came.
func (p Profile) Run(ctx context.Context, plan Plan, job Job) (engine.Result, error) {
	var secrets []engine.Secret
	for _, name := range plan.Secrets {
		secrets = append(secrets, engine.Secret{Name: name, Value: slices.Clone(job.Secrets[name])})
	}
	req := p.request(plan, job.Labels)
	req.Layers, req.Env = job.Layers, job.Env
	req.ID = job.ID
	req.SecretNames = nil // Start takes them from the secrets
	// Before the start: what is there afterwards may be another one.
	sum, err := p.Host.RuntimeSHA256(ctx, p.Runtime)
	if err != nil {
		return engine.Result{}, err
	}
	s, err := openStreams(job)
	if err != nil {
		return engine.Result{}, err
	}
	run, err := p.Host.Start(ctx, req, secrets, engine.Stdio{In: s.in, Err: s.err})
	for _, s := range secrets {
		clear(s.Value)
	}
	s.started()
	if err != nil {
		s.wait()
		return engine.Result{}, err
	}
	stop := context.AfterFunc(ctx, run.Cancel)
	result, err := run.Wait()
	stop()
	s.wait()
	if err != nil {
		return engine.Result{ID: run.ID()}, err
	}
	result.Runtime.SHA256 = &sum
	p.Host.FillOutput(&result)
	return result, failure(result)
}

// Resume waits for the end of a run that a process which has died began, and cancels it
// when ctx ends. It starts nothing: a run that never came on record is an error.
func (p Profile) Resume(ctx context.Context, id string) (engine.Result, error) {
	stop := context.AfterFunc(ctx, func() {
		bound, cancel := context.WithTimeout(context.Background(), killBound)
		defer cancel()
		p.Host.Kill(bound, id) // what it came to is on record, and read below
	})
	record, err := p.Host.Await(context.WithoutCancel(ctx), id)
	stop()
	if err != nil {
		return engine.Result{ID: id}, err
	}
	result := *record.Result
	p.Host.FillOutput(&result)
	return result, failure(result)
}

// killBound is what a run that is to end may take for it.
const killBound = time.Minute

// failure is the error of a result that is none of the program's.
func failure(r engine.Result) error {
	switch {
	case r.Error != nil:
		return r.Error
	case r.Reason == nil:
		return engine.Failed("lost", "cannot tell what became of run=%s", r.ID)
	case *r.Reason == engine.ReasonLost || *r.Reason == engine.ReasonInterrupted || *r.Reason == engine.ReasonInternal:
		return engine.Failed("lost", "cannot tell what became of run=%s: it ended %s", r.ID, *r.Reason)
	}
	return nil
}

// streams are the near ends of a program's streams.
type streams struct {
	in, err *os.File // the far ends, which a started run has copies of
	work    sync.WaitGroup
}

func openStreams(job Job) (*streams, error) {
	s := &streams{}
	if job.Stdin != nil {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, engine.Failed("no_descriptors", "cannot make a pipe for input: %w", err)
		}
		s.in = r
		s.work.Go(func() {
			defer w.Close()
			w.Write(job.Stdin) // a program need not read all of it
		})
	}
	if job.Log != nil {
		r, w, err := os.Pipe()
		if err != nil {
			s.started()
			return nil, engine.Failed("no_descriptors", "cannot make a pipe for output: %w", err)
		}
		s.err = w
		s.work.Go(func() {
			defer r.Close()
			ReadLines(r, job.Log)
		})
	}
	return s, nil
}

// started closes the far ends.
func (s *streams) started() {
	for _, f := range []*os.File{s.in, s.err} {
		if f != nil {
			f.Close()
		}
	}
}

func (s *streams) wait() { s.work.Wait() }
