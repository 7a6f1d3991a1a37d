package workload

import (
	"context"
	"encoding/json"
	"fmt"
	"sort"
	"strconv"
	"strings"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/capability/approval"
	"github.com/direct-oci/engine/capability/dependency"
	"github.com/direct-oci/engine/capability/install"
	"github.com/direct-oci/engine/capability/jsjson"
	"github.com/direct-oci/engine/capability/sandbox"
	"github.com/direct-oci/engine/engine"
)

// Name is the capability's.
const Name = "workload.execute"

const description = "run a program that comes with the call, once, in a sandbox of its own"

// Schema is that of the arguments. Keys that it does not name are left out of the
// digest and of the run, with a warning.
const schema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "required": ["files", "entrypoint"],
  "properties": {
    "title": {"type": "string", "maxLength": 200, "description": "for the reviewer; no part of the digest"},
    "files": {
      "type": "array", "minItems": 1, "maxItems": 4096,
      "items": {
        "type": "object",
        "required": ["path", "contents"],
        "properties": {
          "path": {"type": "string", "minLength": 1, "maxLength": 1024, "description": "relative, without \"..\", empty names and backslashes"},
          "contents": {"type": "string"}
        }
      }
    },
    "entrypoint": {"type": "string", "maxLength": 1024, "description": "path of the file to run: .ts and .tsx by tsx, .js, .mjs and .cjs by node, .py by python3, .sh by sh; any other by the interpreter in its first line, after #!"},
    "secrets": {"type": "array", "items": {"type": "string", "maxLength": 256, "pattern": "^[A-Za-z_][A-Za-z0-9_]*$"}, "description": "keys of the project's secrets"},
    "egress": {
      "type": ["boolean", "string", "array"], "maxLength": 1024, "items": {"type": "string", "maxLength": 1024}, "default": false,
      "description": "true: all that the runner grants; otherwise grants like api.example.com:443, 192.0.2.0/24:5432 or internet"
    },
    "limits": {
      "type": "object",
      "description": "less than the runner's maxima may be asked for, never more",
      "properties": {
        "cpus": {"type": "number", "exclusiveMinimum": 0},
        "memoryMb": {"type": "number", "exclusiveMinimum": 0},
        "timeoutSeconds": {"type": "number", "exclusiveMinimum": 0}
      }
    },
    "dependencies": {
      "type": "object",
      "description": "how what package.json and requirements.txt name is installed; no part of the digest, but of what is approved",
      "properties": {"scripts": {"type": "boolean", "default": false, "description": "run the packages' install scripts"}}
    }
  }
}`

// Execute is the capability.
type Execute struct {
	Profile sandbox.Profile
	Install *install.Installer // nil: programs bring all they need
}

// Info implements capability.Capability.
func (x Execute) Info() capability.Info {
	return capability.Info{
		Name: Name, Description: description, Hazard: capability.Unknown, Kind: capability.Workload,
		Params: json.RawMessage(schema),
	}
}

// Output is what a workload came to.
type Output struct {
	Digest     string  `json:"digest"`
	OK         bool    `json:"ok"`       // exit status 0, in time
	ExitCode   int     `json:"exitCode"` // -1: it did not exit
	Stdout     string  `json:"stdout"`
	Stderr     string  `json:"stderr"`
	TimedOut   bool    `json:"timedOut"`
	DurationMs float64 `json:"durationMs"`

	Run             string              `json:"run"` // id of the engine's record
	Reason          engine.Reason       `json:"reason"`
	Signal          *string             `json:"signal"`
	OOMKilled       bool                `json:"oomKilled"`
	StdoutBytes     int64               `json:"stdoutBytes"` // as written
	StderrBytes     int64               `json:"stderrBytes"`
	StdoutTruncated bool                `json:"stdoutTruncated"`
	StderrTruncated bool                `json:"stderrTruncated"`
	Timing          engine.Timing       `json:"timing"`
	Actuals         engine.Usage        `json:"actuals"`
	Limits          engine.ResultLimits `json:"limits"`
	Unenforced      []string            `json:"unenforced"`
	Network         engine.NetworkInfo  `json:"network"`
	Runtime         engine.RuntimeInfo  `json:"runtime"`
	Image           engine.ImageInfo    `json:"image"`

	Dependencies []install.Installed `json:"dependencies"` // in layers over the image
}

// Prepare implements capability.Capability.
func (x Execute) Prepare(_ context.Context, ask capability.Ask) (capability.Prepared, error) {
	spec, err := ParseSpec(ask.Args)
	if err != nil {
		return capability.Prepared{}, engine.Refused("bad_arguments", "%w", err)
	}
	files, command, err := spec.program()
	if err != nil {
		return capability.Prepared{}, err
	}
	sets, err := x.dependencies(spec)
	if err != nil {
		return capability.Prepared{}, err
	}
	plan, err := x.Profile.Plan(sandbox.Ask{
		Command: command, Files: files, Secrets: spec.Secrets, Egress: spec.Egress,
		Limits: sandbox.Limits{CPUs: value(spec.Limits.CPUs), MemoryMB: value(spec.Limits.MemoryMB), TimeoutSeconds: value(spec.Limits.TimeoutSeconds)},
	})
	if err != nil {
		return capability.Prepared{}, err
	}
	digest := spec.Digest()
	p := capability.Prepared{
		Bound: x.Profile.Bind(plan, approval.Bound{Digest: digest, Lock: install.Lock(sets, plan.ImageDigest)}),
		Title: jsjson.Text(spec.Title), Warnings: unknownKeys(ask.Args), Room: x.Install.Room(plan.Limits, sets),
	}
	for _, f := range spec.sortedFiles() {
		p.Documents = append(p.Documents, capability.Document{Name: f.Path, Text: jsjson.Text(f.Contents)})
	}
	for _, f := range spec.Files {
		if f.Path == dependency.Files()[0] {
			p.Warnings = append(p.Warnings, dependency.OwnScripts(f.Contents)...)
		}
	}
	for _, s := range sets {
		name, text := s.Document()
		p.Documents = append(p.Documents, capability.Document{Name: name, Text: text})
		p.Warnings = append(p.Warnings, s.Warnings...)
	}
	p.Run = func(ctx context.Context, env capability.Env) (capability.Outcome, error) {
		labels := map[string]string{"call": env.Call, "project": ask.Project, "capability": Name}
		laid, err := x.Install.Lay(ctx, install.Ask{Project: ask.Project, ImageDigest: plan.ImageDigest, Sets: sets, Labels: labels, Log: env.Log})
		if err != nil {
			return capability.Outcome{}, err
		}
		defer laid.Close()
		env.Log("workload " + digest + " starts under " + x.Profile.Runtime)
		result, err := x.Profile.Run(ctx, plan, sandbox.Job{
			ID: env.Call, Secrets: env.Secrets, Log: env.Log, Labels: labels, Layers: laid.Layers, Env: laid.Env,
		})
		return outcome(digest, result, err, env, laid.Installed)
	}
	p.Resume = func(ctx context.Context, env capability.Env) (capability.Outcome, error) {
		result, err := x.Profile.Resume(ctx, env.Call)
		return outcome(digest, result, err, env, install.Recorded(result.Layers))
	}
	return p, nil
}

func outcome(digest string, r engine.Result, err error, env capability.Env, installed []install.Installed) (capability.Outcome, error) {
	if err != nil {
		return capability.Outcome{Result: &r}, err
	}
	out := output(digest, r, env.Redact)
	out.Dependencies = installed
	return capability.Outcome{Output: out, Result: &r}, nil
}

func value(f *float64) float64 {
	if f == nil {
		return 0
	}
	return *f
}

// program returns the files of the spec as they lie in the sandbox, and what runs the
// entrypoint.
func (s Spec) program() ([]engine.File, []string, error) {
	var files []engine.File
	var command []string
	for i, f := range s.Files {
		if !engine.ValidFilePath(f.Path) {
			return nil, nil, engine.Refused("bad_path", "cannot accept /files/%d/path=%q: want a relative path of names that are neither empty, \".\" nor \"..\", without backslash and NUL", i, jsjson.Text(f.Path))
		}
		program, known := sandbox.Interpreter(f.Path, f.Contents)
		file := engine.File{Path: f.Path, Data: []byte(jsjson.Text(f.Contents)), Mode: 0o644}
		if known && program == "" {
			file.Mode = 0o755
		}
		files = append(files, file)
		if f.Path != s.Entrypoint {
			continue
		}
		if !known {
			return nil, nil, engine.Refused("bad_entrypoint", "cannot run /entrypoint=%q: nothing is known to run it", s.Entrypoint).
				WithFix("name it .ts, .tsx, .js, .mjs, .cjs, .py or .sh, or let it begin with #! and an interpreter")
		}
		command = []string{"/workload/" + f.Path}
		if program != "" {
			command = []string{program, "/workload/" + f.Path}
		}
	}
	if command == nil {
		return nil, nil, engine.Refused("bad_entrypoint", "cannot run /entrypoint=%q: it is none of the files", jsjson.Text(s.Entrypoint)).
			WithFix("name the path of one of the files")
	}
	return files, command, nil
}

// dependencies are what its manifests ask for.
func (x Execute) dependencies(s Spec) ([]dependency.Set, error) {
	files := map[string]string{}
	for _, f := range s.Files {
		files[f.Path] = jsjson.Text(f.Contents)
	}
	return x.Install.Read(files, strings.HasSuffix(s.Entrypoint, ".py"), s.Scripts)
}

// unknownKeys says which keys mean nothing, and what may have been meant.
func unknownKeys(args any) []string {
	var warnings []string
	look := func(at string, v any, known ...string) {
		m, _ := v.(map[string]any)
		for k := range m {
			found := false
			for _, name := range known {
				found = found || k == name
			}
			if !found {
				warnings = append(warnings, fmt.Sprintf("%s/%s means nothing and is left out; known are %s", at, shown(k), strings.Join(known, ", ")))
			}
		}
	}
	look("", args, "title", "files", "entrypoint", "secrets", "egress", "limits", "dependencies")
	top, _ := args.(map[string]any)
	look("/limits", top["limits"], "cpus", "memoryMb", "timeoutSeconds")
	look("/dependencies", top["dependencies"], "scripts")
	files, _ := top["files"].([]any)
	for i, f := range files {
		look(fmt.Sprintf("/files/%d", i), f, "path", "contents")
	}
	sort.Strings(warnings)
	if more := len(warnings) - maxWarnings; more > 0 {
		warnings = append(warnings[:maxWarnings], fmt.Sprintf("%d more keys mean nothing and are left out", more))
	}
	return warnings
}

const maxWarnings = 20

// shown is a key as a message shows it: in one line, and not without end.
func shown(key string) string {
	text := strconv.Quote(jsjson.Text(key[:min(len(key), 100)]))
	return text[1 : len(text)-1]
}

func output(digest string, r engine.Result, redact func(string) string) Output {
	o := Output{
		Digest: digest, OK: r.OK && !r.TimedOut, ExitCode: -1, Stdout: redact(r.Stdout), Stderr: redact(r.Stderr),
		TimedOut: r.TimedOut, DurationMs: r.DurationMs, Run: r.ID, Reason: *r.Reason, Signal: r.Signal, OOMKilled: r.OOMKilled,
		StdoutBytes: r.StdoutBytes, StderrBytes: r.StderrBytes, StdoutTruncated: r.StdoutTruncated, StderrTruncated: r.StderrTruncated,
		Timing: r.Timing, Actuals: r.Actuals, Limits: r.Limits, Unenforced: r.Unenforced, Network: r.Network,
		Runtime: r.Runtime, Image: r.Image,
	}
	if r.ExitCode != nil {
		o.ExitCode = *r.ExitCode
	}
	return o
}

// Succeeded reports whether the program did.
func (o Output) Succeeded() bool { return o.OK }
