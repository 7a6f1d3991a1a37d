package service

import (
	"log/slog"
	"time"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/netns/egress"
	"github.com/direct-oci/engine/service/admission"
	"github.com/direct-oci/engine/service/callback"
)

// Spec is what somebody wants of a sandbox. It is plain data, and holds one secret,
// that of its callback, which goes into a file of its own.
type Spec struct {
	// Name is unique on the host and chosen by the owner: letters, digits and ._:-,
	// the first one a letter or digit, at most 128. Owner is who may adopt it.
	Name  string
	Owner string
	// Tenant is whose quota it counts against; empty: the owner.
	Tenant string

	Image   string // of the store; this or Rootfs
	Rootfs  string // absolute path on the host
	Runtime string // empty: the config's

	// CPUs and MemoryMB (MiB) must both be declared, or follow from Class or from
	// Files, in this order.
	CPUs     float64
	MemoryMB int64
	Pids     int64       // zero: the config's
	Class    string      // small, large, heavy, or what the config names
	Files    []InputFile // what it will work on

	TTL  time.Duration // from readiness; zero: the config's
	Idle time.Duration // zero: the config's; negative: never

	Env     map[string]string
	Labels  map[string]string
	Egress  egress.Policy
	Mounts  Plan
	Secrets []engine.Secret // of the session's programs; on no disk

	Callback *Callback
}

// InputFile is a file as Estimate sees it.
type InputFile struct {
	Name string `json:"name"`
	Size int64  `json:"size"` // bytes
}

// Plan says which of the host's directories a sandbox sees. Ids are checked before
// they become paths.
type Plan struct {
	Resource   string `json:"resource,omitempty"`   // the tree TREES/<resource>, at /<resource>, read-only; empty: none
	Step       string `json:"step,omitempty"`       // its own directory inside that: ids, joined by /
	ReadOnly   bool   `json:"readOnly,omitempty"`   // there is no writable step
	Library    bool   `json:"library,omitempty"`    // the library store at /mnt/libs, where it is whole
	References bool   `json:"references,omitempty"` // the reference store at /mnt/refs
}

// Callback is where a sandbox's events are sent to.
type Callback struct {
	URL    string
	Secret []byte // 16 bytes to 4 KiB: the key of the signatures
}

// State is what a sandbox is doing.
type State string

// The states. A sandbox only moves forward, but between ready and paused.
const (
	Queued   State = "queued"   // on record, waiting for room
	Starting State = "starting" // there is room, and it does not answer yet
	Ready    State = "ready"    // it answers
	Paused   State = "paused"   // frozen; its deadlines go on
	Ended    State = "ended"    // Result says why
)

// Sandbox is what is known of one, put together from what is on record.
type Sandbox struct {
	ID        string            `json:"id"` // of the engine's run
	Name      string            `json:"name"`
	Owner     string            `json:"owner"`
	Tenant    string            `json:"tenant"`
	State     State             `json:"state"`
	Image     string            `json:"image,omitempty"`
	Rootfs    string            `json:"rootfs,omitempty"`
	Runtime   string            `json:"runtime"`
	Labels    map[string]string `json:"labels"`
	Limits    Limits            `json:"limits"`
	Clamped   []Clamped         `json:"clamped"`  // what was asked for above the ceilings
	Estimate  *Estimated        `json:"estimate"` // nil: nothing was estimated
	Mounts    []engine.Mount    `json:"mounts"`
	CreatedAt time.Time         `json:"createdAt"`
	Deadline  *time.Time        `json:"deadline"` // when its time to live is over; nil until it is ready
	Alive     bool              `json:"alive"`
	OOMKilled bool              `json:"oomKilled"`
	Result    *engine.Result    `json:"result"` // nil until it has ended
}

// Limits are those in force.
type Limits struct {
	CPUs        float64 `json:"cpus"`
	MemoryMB    int64   `json:"memoryMb"`
	Pids        int64   `json:"pids"`
	TTLSeconds  float64 `json:"ttlSeconds"`
	IdleSeconds float64 `json:"idleSeconds"` // 0: never
}

// Clamped is one limit that was granted lower than it was asked for.
type Clamped struct {
	Limit   string  `json:"limit"` // a name of Limits' JSON form
	Asked   float64 `json:"asked"`
	Granted float64 `json:"granted"`
}

// Liveness is the arbiter when a sandbox has gone quiet.
type Liveness struct {
	Alive     bool `json:"alive"`
	OOMKilled bool `json:"oomKilled"`
}

// Managed is one line of what a reaper of orphans looks at.
type Managed struct {
	SandboxID   string `json:"sandboxId"`
	Owner       string `json:"owner"`
	CreatedAtMs int64  `json:"createdAtMs"`
}

// Filter chooses sandboxes. A field that is empty chooses all.
type Filter struct {
	Owner  string
	Tenant string
	Labels map[string]string // all of them
	States []State           // one of them
}

// Config is the operator's. New completes what is zero.
type Config struct {
	StateDir string // of the engine's host: records go into sandboxes below it

	Image   string // of a Spec without one; empty: it must name one
	Runtime string // empty: auto

	// Ceilings are what no sandbox gets more of. Zero: 64 CPUs, 256 GiB, 4096
	// processes, 24 hours, and no idle time.
	MaxCPUs     float64
	MaxMemoryMB int64
	MaxPids     int64
	MaxTTL      time.Duration
	TTL         time.Duration // of a Spec without one; zero: an hour
	Idle        time.Duration // of a Spec without one; zero: never
	Pids        int64         // of a Spec without any; zero: 512

	Classes map[string]Class // nil: DefaultClasses
	Stores  Stores
	// EgressCeiling judges a policy that somebody asks for; nil: every valid one is granted.
	EgressCeiling func(tenant string, p egress.Policy) error

	// BestEffortLimits lets sandboxes start where a cgroup controller is missing.
	BestEffortLimits bool

	// Admission without totals has those of the host and of the cgroup at Cgroup, a path
	// in the file system, which may be empty.
	Admission admission.Config
	Cgroup    string
	Callbacks callback.Config

	// KeepEnded is how long a sandbox that has ended stays on record; zero: an hour,
	// negative: until it is torn down or created again.
	KeepEnded time.Duration
	// StartWithin bounds the wait for a sandbox to answer; zero: a minute.
	StartWithin time.Duration

	Log *slog.Logger // nil: none
}

// Stores are the host's directories that plans refer to. An empty one is not offered.
type Stores struct {
	Trees      string   // holds a directory for each resource
	Steps      string   // inside a tree, where the steps' directories are; empty: "steps"
	StepDirs   []string // made in each step before it starts; nil: DefaultStepDirs
	Libraries  string   // its "current" leads to a directory with packages.txt and meta.json
	References string
	// UID and GID own what is made for steps in a tree that is root's. A sandbox cannot
	// write to what root owns. Zero: the tree's own user, and a tree of root's has no steps.
	UID, GID uint32
}

// DefaultStepDirs are the fixed sub-directories of a step.
var DefaultStepDirs = []string{"input", "output", "tmp"}
