// Package config reads the runner's config: strictly, with the line of everything that
// is wrong and the key that was probably meant, and without ever printing a secret.
//
// A config is YAML, of which JSON is a part. Parse reads it, Schema describes it to
// other tools, Runner makes of it what dispatches calls.
package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/direct-oci/engine/capability/secret"
)

// Config is the whole config. The tag doc is what Schema says of a key.
type Config struct {
	Development     bool                     `json:"development" doc:"development mode: calls may do without an approval, by --approve-locally"`
	StateDir        string                   `json:"stateDir" doc:"directory of records, images, the audit log and used approvals; default /var/lib/engine"`
	RunDir          string                   `json:"runDir" doc:"directory of what does not outlive a boot; default /run/engine"`
	CgroupRoot      string                   `json:"cgroupRoot" doc:"cgroup of all runs; default engine, below the cgroup2 mount"`
	MinFreeDiskMB   float64                  `json:"minFreeDiskMb" doc:"MiB free in stateDir and in runDir below which no run starts; default 64, -1 for none"`
	MinFreeMemoryMB float64                  `json:"minFreeMemoryMb" doc:"MiB of memory available on the host below which no run starts; default 64, -1 for none"`
	Redact          *bool                    `json:"redact" doc:"take exact values of secrets out of returned output and logs, as a help against accidents; default true"`
	Approvers       map[string]Approver      `json:"approvers" doc:"who may approve, by name"`
	Secrets         map[string]secret.Source `json:"secrets" doc:"secrets of all projects, by name"`
	Projects        map[string]Project       `json:"projects" doc:"projects, by slug"`
	Sandbox         *Sandbox                 `json:"sandbox" doc:"how programs are run; without it there is no workload.execute and no action"`
	ControlPlane    *ControlPlane            `json:"controlPlane" doc:"the service that may call this runner"`
	Service         *Service                 `json:"service" doc:"how engine serve listens, and to whom"`

	lines map[string]int // of every key, by its path
}

// Approver is somebody whose signature counts.
type Approver struct {
	PublicKey string `json:"publicKey" doc:"of ed25519: PEM, or base64 of its 32 bytes; see engine approve keygen" required:"true"`
}

// Project is one customer.
type Project struct {
	Environments map[string]Environment   `json:"environments" doc:"environments, by name"`
	Secrets      map[string]secret.Source `json:"secrets" doc:"secrets of this project, which win over the runner's"`
	Approvers    []string                 `json:"approvers" doc:"who of the approvers may approve here; default all"`
	Actions      string                   `json:"actions" doc:"directory of the project's actions, one directory each"`
}

// Environment is one place of a project's data.
type Environment struct {
	Firestore *Firestore `json:"firestore" doc:"the environment's Firestore; with it the project has the capabilities firestore.*"`
}

// Firestore is a database that is read, and never written.
type Firestore struct {
	Project     string         `json:"project" doc:"id of the Google Cloud project" required:"true"`
	Database    string         `json:"database" doc:"id of the database; default (default)"`
	Credentials *secret.Source `json:"credentials" doc:"JSON of a service account's key; roles/datastore.viewer is enough"`
	Emulator    string         `json:"emulator" doc:"HOST:PORT of an emulator, instead of credentials"`
	Limits      ReadLimits     `json:"limits" doc:"the most that one call reads"`
	Masks       []Mask         `json:"masks" doc:"fields that are never returned, and cannot be used in filters, orders and selections"`
}

// ReadLimits are maxima of what is read.
type ReadLimits struct {
	Rows           int64   `json:"rows" doc:"documents, or names of collections; default 1000"`
	Bytes          int64   `json:"bytes" doc:"of JSON; default 4194304"`
	TimeoutSeconds float64 `json:"timeoutSeconds" doc:"default 30"`
}

// Mask is fields that nobody may see.
type Mask struct {
	Collection string   `json:"collection" doc:"id of the collections it is about, at any depth; default all"`
	Fields     []string `json:"fields" doc:"field paths: names with dots between; what is below them is masked too" required:"true"`
}

// Sandbox is how programs are run.
type Sandbox struct {
	Image            string        `json:"image" doc:"name of an imported image, see engine image import" required:"true"`
	Runtime          string        `json:"runtime" doc:"runsc, direct, embedded, runc or crun; default runsc"`
	Limits           Limits        `json:"limits" doc:"maxima; a call may ask for less"`
	Egress           Egress        `json:"egress" doc:"the most that a program can be granted; default nothing"`
	Dependencies     *Dependencies `json:"dependencies" doc:"what programs may have installed before they run; without it nothing"`
	BestEffortLimits bool          `json:"bestEffortLimits" doc:"run even where this host cannot enforce a limit; results list which"`
}

// Limits are maxima.
type Limits struct {
	CPUs           float64 `json:"cpus" doc:"default 1"`
	MemoryMB       float64 `json:"memoryMb" doc:"MiB; default 512"`
	TimeoutSeconds float64 `json:"timeoutSeconds" doc:"default 120"`
	Pids           int64   `json:"pids" doc:"processes and threads; default 256"`
}

// Egress is a ceiling.
type Egress struct {
	Internet bool     `json:"internet" doc:"everything public"`
	Allow    []string `json:"allow" doc:"HOST[:PORT] and CIDR:PORT[/udp]"`
}

// ControlPlane is the service that may call this runner.
type ControlPlane struct {
	URL           string        `json:"url" doc:"wss://HOST[:PORT]/PATH; ws:// only to this very host" required:"true"`
	Identity      string        `json:"identity" doc:"what this runner calls itself: letters, digits and . _ : @ -" required:"true"`
	SigningSecret secret.Source `json:"signingSecret" doc:"shared beforehand, never sent; 16 bytes at least, better 32 random ones" required:"true"`

	CAFile           string  `json:"caFile" doc:"certificates, in PEM, that may have signed the control plane's; default the system's"`
	MaxConcurrent    int64   `json:"maxConcurrent" doc:"invocations at once; default 8"`
	MaxOutboxMB      float64 `json:"maxOutboxMb" doc:"MiB on disk of invocations and results that are not acknowledged; default 1024"`
	ClockSkewSeconds float64 `json:"clockSkewSeconds" doc:"how far the control plane's clock may be from this host's; default 300"`
}

// Problem is one thing that is wrong with a config.
type Problem struct {
	Line    int    `json:"line"` // 0: none in particular
	Key     string `json:"key"`
	Message string `json:"message"`
	Fix     string `json:"fix"`
}

// Error is everything that is wrong with a config.
type Error struct {
	Source   string // its file, or where else it came from
	Problems []Problem
}

func (e *Error) Error() string {
	var texts []string
	for _, p := range e.Problems {
		at := ""
		if p.Line > 0 {
			at = fmt.Sprintf("line %d: ", p.Line)
		}
		if p.Key != "" {
			at += p.Key + " "
		}
		if p.Fix != "" && len(e.Problems) > 1 { // each beside what it cures
			p.Message += " (" + p.Fix + ")"
		}
		texts = append(texts, at+p.Message)
	}
	return "cannot use config=" + e.Source + ": " + strings.Join(texts, "; ")
}

// Remedy is that of the only problem. Those of several stand beside them.
func (e *Error) Remedy() string {
	if len(e.Problems) != 1 {
		return ""
	}
	return e.Problems[0].Fix
}

// Variable is the environment variable of the config: the path of its file, or all of
// it. A config never begins with a slash.
const Variable = "ENGINE_CONFIG"

// DefaultPath is where the config is unless something else is said.
const DefaultPath = "/etc/engine/config.yaml"

// maxConfig bounds a config's size.
const maxConfig = 4 << 20

// Load reads the config from path, from $ENGINE_CONFIG if path is empty, or from its
// usual place. The error is an *Error if something is wrong with it.
func Load(path string) (Config, error) {
	text := ""
	if path == "" {
		text = os.Getenv(Variable)
		if text == "" {
			path = DefaultPath
		} else if strings.HasPrefix(text, "/") {
			path, text = text, ""
		}
	}
	if text != "" {
		return Inline([]byte(text))
	}
	f, err := os.Open(path)
	if err != nil {
		return Config{}, &Error{path, []Problem{{Message: "cannot be read: " + cause(err), Fix: "name a config with --config or in $" + Variable}}}
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o002 != 0 {
		// Whoever writes it names commands that the runner starts as itself.
		return Config{}, &Error{path, []Problem{{Message: "can be changed by everybody", Fix: "run chmod o-w " + path}}}
	}
	data, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err != nil {
		return Config{}, &Error{path, []Problem{{Message: "cannot be read: " + cause(err)}}}
	}
	return Parse(path, data)
}

// Inline reads a config that is the value of $ENGINE_CONFIG. The error is an *Error.
func Inline(text []byte) (Config, error) {
	c, err := Parse("$"+Variable, text)
	var bad *Error
	if errors.As(err, &bad) && !bytes.ContainsAny(text, ":{") { // no mapping: it was meant for a path
		bad.Problems[0].Fix = "give the path of the file from / on"
	}
	return c, err
}

func cause(err error) string {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}

// Parse reads a config; source is what errors call it. The error is an *Error.
func Parse(source string, data []byte) (Config, error) {
	var c Config
	d := &decoder{lines: map[string]int{}}
	switch {
	case len(data) > maxConfig:
		d.problem(0, "", fmt.Sprintf("is larger than %d bytes", maxConfig), "")
	case len(bytes.TrimSpace(data)) == 0:
		d.problem(0, "", "is empty", "see engine config schema")
	default:
		d.document(data, &c)
	}
	c.lines = d.lines
	if _, read := d.lines[""]; read {
		d.problems = append(d.problems, d.others(c.check())...)
		sortProblems(d.problems)
	}
	if len(d.problems) > 0 {
		return Config{}, &Error{source, d.problems}
	}
	return c, nil
}
