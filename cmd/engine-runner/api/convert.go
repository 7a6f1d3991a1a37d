package api

import (
	"github.com/direct-oci/engine/capability/sandbox"
	"github.com/direct-oci/engine/client/wire"
	"github.com/direct-oci/engine/engine"
)

// runOf is a record as the API shows it.
func runOf(r engine.Record) wire.Run {
	run := wire.Run{
		ID: r.ID, State: string(r.State), Alive: r.Alive, Created: r.Created, Started: r.Started,
		Request: specOf(r.Request), Problems: list(r.Problems),
	}
	if r.Result != nil {
		result := resultOf(*r.Result)
		run.Result = &result
	}
	return run
}

// list makes an empty list of none, which is what prints as one.
func list[T any](l []T) []T {
	if l == nil {
		return []T{}
	}
	return l
}

func specOf(q engine.Request) wire.RunSpec {
	spec := wire.RunSpec{
		Image: q.Image, Rootfs: q.Rootfs, Runtime: q.Runtime, Command: list(q.Command), Env: list(q.Env),
		Workdir: q.Workdir, UID: q.UID, GID: q.GID, Labels: map[string]string{},
		Limits: wire.Limits{
			CPUs: q.Limits.CPUs, MemoryMB: float64(q.Limits.Memory) / (1 << 20), Pids: q.Limits.Pids,
			TimeoutSeconds: q.Limits.Timeout.Seconds(), TmpMB: float64(q.Limits.TmpSize) / (1 << 20),
			WorkspaceMB: float64(q.Limits.WorkspaceSize) / (1 << 20), OutputKeptBytes: q.Limits.OutputKept, OutputMaxBytes: q.Limits.OutputMax,
		},
		Egress: sandbox.Grants(q.Egress), SecretNames: list(q.SecretNames), Files: []wire.FileDigest{},
	}
	for k, v := range q.Labels {
		spec.Labels[k] = v
	}
	for _, f := range q.Files {
		spec.Files = append(spec.Files, wire.FileDigest{Path: f.Path, Mode: f.Mode, Size: f.Size, SHA256: f.SHA256})
	}
	return spec
}

// resultOf is a result as the API shows it: the same fields, in types that a client has
// without the engine.
func resultOf(r engine.Result) wire.Result {
	w := wire.Result{
		ID: r.ID, OK: r.OK, ExitCode: r.ExitCode, Signal: r.Signal, TimedOut: r.TimedOut, OOMKilled: r.OOMKilled,
		Stdout: r.Stdout, Stderr: r.Stderr, StdoutBytes: r.StdoutBytes, StderrBytes: r.StderrBytes,
		StdoutTruncated: r.StdoutTruncated, StderrTruncated: r.StderrTruncated, DurationMs: r.DurationMs,
		Timing:  wire.Timing{SandboxMs: r.Timing.SandboxMs, FirstOutputMs: r.Timing.FirstOutputMs, TotalMs: r.Timing.TotalMs, Phases: []wire.Phase{}},
		Actuals: wire.Usage(r.Actuals), Limits: wire.ResultLimits(r.Limits), Unenforced: list(r.Unenforced),
		Runtime: wire.RuntimeInfo(r.Runtime), Image: wire.ImageInfo(r.Image),
		Network: wire.NetworkInfo{Mode: r.Network.Mode, Denied: []wire.Denied{}, Allowed: []wire.Allowed{}},
		Layers:  []wire.LayerInfo{}, Changes: []wire.FileChange{}, Digest: r.Digest,
	}
	if r.Reason != nil {
		reason := string(*r.Reason)
		w.Reason = &reason
	}
	for _, l := range r.Layers {
		w.Layers = append(w.Layers, wire.LayerInfo(l))
	}
	for _, p := range r.Timing.Phases {
		w.Timing.Phases = append(w.Timing.Phases, wire.Phase(p))
	}
	for _, d := range r.Network.Denied {
		w.Network.Denied = append(w.Network.Denied, wire.Denied(d))
	}
	for _, a := range r.Network.Allowed {
		w.Network.Allowed = append(w.Network.Allowed, wire.Allowed(a))
	}
	for _, c := range r.Changes {
		w.Changes = append(w.Changes, wire.FileChange(c))
	}
	if r.Error != nil {
		e := wireError(r.Error)
		w.Error = &e
	}
	return w
}
