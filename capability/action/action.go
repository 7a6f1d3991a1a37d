package action

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/capability/approval"
	"github.com/direct-oci/engine/capability/dependency"
	"github.com/direct-oci/engine/capability/install"
	"github.com/direct-oci/engine/capability/jsjson"
	"github.com/direct-oci/engine/capability/sandbox"
	"github.com/direct-oci/engine/engine"
)

// Action is one installed action.
type Action struct {
	dir      string
	profile  sandbox.Profile
	install  *install.Installer
	manifest manifest
}

// Load returns the actions in dir, one directory each, and what is wrong with others.
// Directories whose names begin with a dot, and files, are left out.
func Load(dir string, profile sandbox.Profile, in *install.Installer) ([]capability.Capability, []capability.Problem) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, []capability.Problem{{Name: filepath.Base(dir), Message: "cannot read actions: " + err.Error()}}
	}
	var actions []capability.Capability
	var problems []capability.Problem
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") || e.Type().IsRegular() {
			continue
		}
		if !e.IsDir() {
			problems = append(problems, capability.Problem{Name: e.Name(), Message: "it is no directory: links are not followed"})
			continue
		}
		a, err := Open(filepath.Join(dir, e.Name()), profile, in)
		if err != nil {
			problems = append(problems, capability.Problem{Name: e.Name(), Message: err.Error()})
			continue
		}
		actions = append(actions, a)
	}
	return actions, problems
}

// Open reads one action and checks all of it that can be checked without running it.
func Open(dir string, profile sandbox.Profile, in *install.Installer) (*Action, error) {
	m, _, err := read(dir)
	if err != nil {
		return nil, err
	}
	return &Action{dir, profile, in, m}, nil
}

// Info implements capability.Capability.
func (a *Action) Info() capability.Info {
	return capability.Info{
		Name: a.manifest.Name, Description: a.manifest.Description, Hazard: a.manifest.Hazard,
		Kind: capability.Action, Params: a.manifest.Input,
	}
}

// Output is what an action came to.
type Output struct {
	Digest     string        `json:"digest"`
	OK         bool          `json:"ok"`       // it exited with 0, in time, and its output fits the schema
	Output     any           `json:"output"`   // null unless OK
	Problem    string        `json:"problem"`  // why it is not OK
	ExitCode   int           `json:"exitCode"` // -1: it did not exit
	TimedOut   bool          `json:"timedOut"`
	DurationMs float64       `json:"durationMs"`
	Run        string        `json:"run"` // id of the engine's record
	Reason     engine.Reason `json:"reason"`
}

// Prepare implements capability.Capability. The manifest counts as it is now, and not
// as it was when the action was loaded.
func (a *Action) Prepare(_ context.Context, ask capability.Ask) (capability.Prepared, error) {
	m, files, err := read(a.dir)
	if err != nil {
		return capability.Prepared{}, engine.Failed("broken_capability", "cannot use action=%s: %w", a.manifest.Name, err)
	}
	if m.Name != a.manifest.Name || m.Hazard != a.manifest.Hazard || !bytes.Equal(m.Input, a.manifest.Input) {
		return capability.Prepared{}, engine.Failed("broken_capability", "cannot use action=%s: it was exchanged a moment ago", a.manifest.Name)
	}
	return (&Action{a.dir, a.profile, a.install, m}).prepare(ask, files)
}

func (a *Action) prepare(ask capability.Ask, files []engine.File) (capability.Prepared, error) {
	m := a.manifest
	input, err := jsjson.Canonical(ask.Args)
	if err != nil {
		return capability.Prepared{}, engine.Refused("bad_arguments", "cannot accept the arguments of %s: %w", m.Name, err)
	}
	command, err := m.command(files)
	if err != nil {
		return capability.Prepared{}, engine.Failed("broken_capability", "cannot use action=%s: %w", m.Name, err)
	}
	sets, err := a.dependencies(files)
	if err != nil {
		return capability.Prepared{}, err
	}
	plan, err := a.profile.Plan(sandbox.Ask{
		Command: command, Files: files, Secrets: m.secretNames(), Egress: m.Egress,
		Limits: sandbox.Limits{CPUs: m.Limits.CPUs, MemoryMB: m.Limits.MemoryMB, TimeoutSeconds: m.Limits.TimeoutSeconds},
	})
	if err != nil {
		return capability.Prepared{}, err
	}
	bound := a.profile.Bind(plan, approval.Bound{Environment: ask.Environment, Lock: install.Lock(sets, plan.ImageDigest)})
	if bound.Manifest, err = digest(fileList(bound.Files)); err != nil {
		return capability.Prepared{}, engine.Failed("internal", "internal error: %w", err)
	}
	bound.Digest, err = digest(map[string]any{
		"capability": m.Name, "project": ask.Project, "environment": ask.Environment,
		"manifestDigest": bound.Manifest, "args": ask.Args,
	})
	if err != nil {
		return capability.Prepared{}, engine.Refused("bad_arguments", "cannot accept the arguments of %s: %w", m.Name, err)
	}
	p := capability.Prepared{
		Bound: bound, Title: m.Name, Room: a.install.Room(plan.Limits, sets),
		Documents: []capability.Document{{Name: "arguments (stdin)", Text: string(input)}},
	}
	for _, f := range plan.Files {
		p.Documents = append(p.Documents, capability.Document{Name: f.Path, Text: strings.ToValidUTF8(string(f.Data), "\ufffd")})
	}
	for _, s := range sets {
		name, text := s.Document()
		p.Documents = append(p.Documents, capability.Document{Name: name, Text: text})
		p.Warnings = append(p.Warnings, s.Warnings...)
	}
	p.Run = func(ctx context.Context, env capability.Env) (capability.Outcome, error) {
		labels := map[string]string{"call": env.Call, "project": ask.Project, "capability": m.Name}
		laid, err := a.install.Lay(ctx, install.Ask{Project: ask.Project, ImageDigest: plan.ImageDigest, Sets: sets, Labels: labels, Log: env.Log})
		if err != nil {
			return capability.Outcome{}, err
		}
		defer laid.Close()
		result, err := a.profile.Run(ctx, plan, sandbox.Job{
			ID: env.Call, Secrets: env.Secrets, Log: env.Log, Stdin: append(input, '\n'), Labels: labels, Layers: laid.Layers, Env: laid.Env,
		})
		return a.outcome(bound.Digest, result, err, env)
	}
	p.Resume = func(ctx context.Context, env capability.Env) (capability.Outcome, error) {
		result, err := a.profile.Resume(ctx, env.Call)
		return a.outcome(bound.Digest, result, err, env)
	}
	return p, nil
}

func (a *Action) outcome(digest string, r engine.Result, err error, env capability.Env) (capability.Outcome, error) {
	if err != nil {
		return capability.Outcome{Result: &r}, err
	}
	return capability.Outcome{Output: a.output(digest, r, env.Redact), Result: &r}, nil
}

// dependencies are what the action's manifests ask for, if it says that they are to be
// installed: it may as well have brought the modules along.
func (a *Action) dependencies(files []engine.File) ([]dependency.Set, error) {
	d := a.manifest.Dependencies
	if d == nil {
		return nil, nil
	}
	texts := map[string]string{}
	for _, f := range files {
		if slices.Contains(dependency.Files(), f.Path) {
			texts[f.Path] = string(f.Data)
		}
	}
	return a.install.Read(texts, strings.HasSuffix(a.manifest.Entrypoint, ".py"), d.Scripts)
}

// digest is SHA-256, in hexadecimal, of the RFC 8785 form of v.
func digest(v any) (string, error) {
	text, err := jsjson.Canonical(v)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

func fileList(files []approval.File) any {
	list := []any{}
	for _, f := range files {
		list = append(list, map[string]any{"path": f.Path, "mode": float64(f.Mode), "sha256": f.SHA256})
	}
	return list
}

// output holds what the action printed against its schema.
func (a *Action) output(digest string, r engine.Result, redact func(string) string) Output {
	o := Output{Digest: digest, ExitCode: -1, TimedOut: r.TimedOut, DurationMs: r.DurationMs, Run: r.ID, Reason: *r.Reason}
	if r.ExitCode != nil {
		o.ExitCode = *r.ExitCode
	}
	switch {
	case !r.OK && r.ExitCode != nil:
		o.Problem = fmt.Sprintf("it exited with status %d", *r.ExitCode)
	case !r.OK:
		o.Problem = "it ended by " + string(*r.Reason)
	case r.StdoutTruncated:
		o.Problem = fmt.Sprintf("its output of %d bytes is more than is kept", r.StdoutBytes)
	default:
		o.Output, o.Problem = a.parse(redact(r.Stdout))
		o.OK = o.Problem == ""
	}
	return o
}

func (a *Action) parse(stdout string) (any, string) {
	v, err := jsjson.ParseAtMost([]byte(stdout), capability.MaxValues)
	if err != nil {
		return nil, "its output is not JSON: " + err.Error()
	}
	schema, err := capability.CompileSchema(a.manifest.Output)
	if err != nil {
		return nil, err.Error()
	}
	if wrong := schema.Validate(v); wrong != nil {
		return nil, "its output does not fit its schema: " + wrong.Error()
	}
	return plain(v), ""
}

// plain makes UTF-8 of all strings, for encoding/json.
func plain(v any) any {
	switch v := v.(type) {
	case string:
		return jsjson.Text(v)
	case []any:
		for i := range v {
			v[i] = plain(v[i])
		}
		return v
	case map[string]any:
		out := map[string]any{}
		for k, e := range v {
			out[jsjson.Text(k)] = plain(e)
		}
		return out
	default:
		return v
	}
}

// Succeeded reports whether the action did.
func (o Output) Succeeded() bool { return o.OK }
