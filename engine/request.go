package engine

import (
	"time"

	"github.com/direct-oci/engine/netns/egress"
)

// Request says what to run, from what, and what it may use. It is plain data:
// it is written to the run's record as it stands, so it never holds a secret.
// Check a Request with Validate before it is used; Start does so itself.
type Request struct {
	ID      string `json:"id"`      // 16 lower-case letters and digits; empty: Start chooses one
	Runtime string `json:"runtime"` // auto, direct, embedded, runc, crun or runsc

	// Exactly one of Image and Rootfs names the file system.
	Image  string `json:"image,omitempty"`  // name of an image in the store
	Rootfs string `json:"rootfs,omitempty"` // absolute path of a directory on the host
	// ImageDigest, if not empty, is what Image has to be, or the run is refused.
	ImageDigest string `json:"imageDigest,omitempty"`
	// ImageID says which image it was that the name stood for. Start sets it.
	ImageID string `json:"imageId,omitempty"`
	// Layers lie over the image or the directory, the first one topmost.
	Layers []Layer `json:"layers,omitempty"`

	Command  []string          `json:"command"`            // argv, searched on the PATH inside; empty: the image's own
	Env      []string          `json:"env,omitempty"`      // K=V, added to the engine's own few
	Workdir  string            `json:"workdir,omitempty"`  // absolute path inside; empty: the image's, or /workload
	UID      uint32            `json:"uid"`                // inside, 1..65535; both 0: the image's if it is a number, or DefaultUID
	GID      uint32            `json:"gid"`                // inside, 1..65535
	Hostname string            `json:"hostname,omitempty"` // empty: "sandbox"
	Labels   map[string]string `json:"labels,omitempty"`
	Tmpfs    []Tmpfs           `json:"tmpfs,omitempty"`   // further writable directories; only a bundle asks for them
	Rlimits  []Rlimit          `json:"rlimits,omitempty"` // lower than the engine's own; only a bundle asks for them

	// Mounts are directories of the host, shown inside.
	Mounts []Mount `json:"mounts,omitempty"`

	// Terminals gives the sandbox pseudo-terminals of its own, for programs that make some.
	Terminals bool `json:"terminals,omitempty"`

	Egress egress.Policy `json:"egress,omitzero"` // what it may reach; the zero value is nothing
	Limits Limits        `json:"limits"`
	// BestEffortLimits lets the run start where a cgroup controller that a
	// limit needs is missing; Result.Unenforced then names the limit.
	BestEffortLimits bool `json:"bestEffortLimits,omitempty"`

	// Files are there when the program starts, below /workload.
	Files []File `json:"files,omitempty"`

	// Session, if not nil, makes the run one without a command: programs are started in
	// it by Exec. Limits.Timeout is its time to live then.
	Session *Session `json:"session,omitempty"`

	// SecretNames are the names, without values, of the secrets of this run.
	SecretNames []string `json:"secretNames,omitempty"`
}

// Limits bounds one run. Every field must be positive, except OutputMax, where
// zero means that output may be of any length, and the sizes of directories,
// where zero is what Sized gives them.
type Limits struct {
	CPUs          float64       `json:"cpus"`          // of one core: 0.5 is half of it
	Memory        int64         `json:"memory"`        // bytes, the whole sandbox, tmpfs included; no swap
	Pids          int64         `json:"pids"`          // processes and threads of the program
	Timeout       time.Duration `json:"timeout"`       // nanoseconds of wall clock, from the program's start
	TmpSize       int64         `json:"tmpSize"`       // bytes of /tmp
	WorkspaceSize int64         `json:"workspaceSize"` // bytes of /workload
	OutputKept    int64         `json:"outputKept"`    // bytes kept of each stream; more is counted and streamed, not kept
	OutputMax     int64         `json:"outputMax"`     // bytes of both streams after which the run is ended
}

// Tmpfs is a writable directory of its own inside the sandbox.
type Tmpfs struct {
	Path string `json:"path"` // absolute, inside
	Size int64  `json:"size"` // bytes
}

// Mount shows a directory of the host inside the sandbox, without what is mounted below
// it there. The program's user owns what Owner owns on the host, and what the program
// makes is Owner's; files of all others are nobody's, and only what everybody may read
// can be read. Root's files are nobody's too.
type Mount struct {
	Source   string `json:"source"` // absolute, on the host, without symbolic links
	Path     string `json:"path"`   // absolute, inside; made where the image lacks it, except below another mount
	Writable bool   `json:"writable,omitempty"`
	Owner    *Owner `json:"owner,omitempty"` // nil: the owner of the directory
}

// Owner is a user and a group of the host, by number.
type Owner struct {
	UID uint32 `json:"uid"`
	GID uint32 `json:"gid"`
}

// Rlimit is setrlimit(2)'s, by the name the runtime-spec uses ("RLIMIT_NOFILE").
type Rlimit struct {
	Type string `json:"type"`
	Soft uint64 `json:"soft"`
	Hard uint64 `json:"hard"`
}

// File is a file of the program's own. It reaches the sandbox as secrets do, without
// a trace on the host's disk; the run's record holds its digest.
type File struct {
	Path   string `json:"path"`   // below /workload, relative, without empty names, "." or ".."
	Mode   uint32 `json:"mode"`   // permissions; missing directories on the way get 0755
	Size   int64  `json:"size"`   // of Data; set by Start
	SHA256 string `json:"sha256"` // of Data, in hexadecimal; set by Start
	Data   []byte `json:"-"`
}

// Secret is a value that the program sees and nobody else. It travels from the
// caller to engine-init through inherited sockets alone, never through argv, an
// environment, a bundle or a file.
type Secret struct {
	Name  string `json:"name"` // an environment variable's name
	Value []byte `json:"value"`
}

// DefaultLimits are the limits of a run that asked for none.
func DefaultLimits() Limits {
	return Limits{
		CPUs:       1,
		Memory:     512 << 20,
		Pids:       256,
		Timeout:    120 * time.Second,
		OutputKept: 1e6,
	}
}

// Sizes of the writable directories of a run that asked for none.
const (
	tmpSize       = 64 << 20
	workspaceSize = 256 << 20
)

// Sized returns l with the sizes of /tmp and /workload where it gives none: the
// usual ones, or a part of a memory that is smaller. What is written there counts
// as memory, and a program that fills its disk is to be told so, not to be killed.
func (l Limits) Sized() Limits {
	const page = 4096
	if l.TmpSize == 0 {
		l.TmpSize = min(tmpSize, l.Memory/4&^(page-1))
	}
	if l.WorkspaceSize == 0 {
		l.WorkspaceSize = min(workspaceSize, l.Memory/2&^(page-1))
	}
	return l
}

// DefaultUID is the user and group a program runs as unless it asks for another.
const DefaultUID = 65532
