package wire

import "time"

// SandboxRequest asks for a sandbox that stays, or for the one that its owner has under
// this name already.
type SandboxRequest struct {
	Name        string            `json:"name" doc:"unique on the host, or in the caller's tenant: letters, digits and ._:-, at most 128"`
	Owner       string            `json:"owner,omitempty" doc:"who may adopt it; default the caller's tenant, or name"`
	Image       string            `json:"image,omitempty" doc:"of the store; default the config's"`
	Rootfs      string            `json:"rootfs,omitempty" doc:"absolute path of a directory on the host; for admin alone"`
	Runtime     string            `json:"runtime,omitempty"`
	CPUs        float64           `json:"cpus,omitempty" doc:"cpus and memoryMb must be given, or follow from class or inputs"`
	MemoryMB    int64             `json:"memoryMb,omitempty" doc:"MiB"`
	Pids        int64             `json:"pids,omitempty" doc:"processes and threads; default 512"`
	Class       string            `json:"class,omitempty" doc:"small, large, heavy, or what the config names"`
	Inputs      []InputFile       `json:"inputs,omitempty" doc:"what it will work on, for the estimate of its size"`
	TTLSeconds  float64           `json:"ttlSeconds,omitempty" doc:"time to live from readiness"`
	IdleSeconds float64           `json:"idleSeconds,omitempty" doc:"ends it after so long without anything to do; negative: never"`
	Env         map[string]string `json:"env,omitempty" doc:"of every program in it"`
	Labels      map[string]string `json:"labels,omitempty"`
	Egress      []string          `json:"egress,omitempty" doc:"as of a run"`
	Secrets     map[string]string `json:"secrets,omitempty" doc:"values that its programs see and no record has"`
	Mounts      *Mounts           `json:"mounts,omitempty" doc:"which of the host's directories it sees"`
	Callback    *Callback         `json:"callback,omitempty" doc:"where its events are sent to"`
}

// Mounts says which of the host's directories a sandbox sees, by the config's stores.
type Mounts struct {
	Resource   string `json:"resource,omitempty" doc:"a tree, at /RESOURCE, read-only"`
	Step       string `json:"step,omitempty" doc:"its own directory inside that, to be written: ids, joined by /"`
	ReadOnly   bool   `json:"readOnly,omitempty" doc:"there is no writable step"`
	Library    bool   `json:"library,omitempty" doc:"the library store at /mnt/libs, where it is whole"`
	References bool   `json:"references,omitempty" doc:"the reference store at /mnt/refs"`
}

// InputFile is a file as an estimate sees it.
type InputFile struct {
	Name string `json:"name"`
	Size int64  `json:"size" doc:"bytes"`
}

// Callback is an address for events.
type Callback struct {
	URL    string `json:"url"`
	Secret []byte `json:"secret" doc:"base64 of 16 bytes to 4 KiB: the key of the signatures"`
}

// Sandbox is what is known of a sandbox that stays.
type Sandbox struct {
	ID        string            `json:"id" doc:"of its run"`
	Name      string            `json:"name"`
	Owner     string            `json:"owner"`
	State     string            `json:"state" doc:"queued, starting, ready, paused or ended"`
	Image     string            `json:"image"`
	Rootfs    string            `json:"rootfs"`
	Runtime   string            `json:"runtime"`
	Labels    map[string]string `json:"labels"`
	Limits    SandboxLimits     `json:"limits"`
	Clamped   []Clamped         `json:"clamped" doc:"what was asked for above the ceilings"`
	Estimate  *Estimate         `json:"estimate" doc:"null: nothing was estimated"`
	CreatedAt time.Time         `json:"createdAt"`
	Deadline  *time.Time        `json:"deadline" doc:"when its time to live is over; null until it is ready"`
	Alive     bool              `json:"alive"`
	OOMKilled bool              `json:"oomKilled"`
	Result    *Result           `json:"result" doc:"null until it has ended"`
}

// SandboxLimits are those in force.
type SandboxLimits struct {
	CPUs        float64 `json:"cpus"`
	MemoryMB    int64   `json:"memoryMb"`
	Pids        int64   `json:"pids"`
	TTLSeconds  float64 `json:"ttlSeconds"`
	IdleSeconds float64 `json:"idleSeconds" doc:"0: never"`
}

// Clamped is one limit that was granted lower than it was asked for.
type Clamped struct {
	Limit   string  `json:"limit" doc:"its key in limits"`
	Asked   float64 `json:"asked"`
	Granted float64 `json:"granted"`
}

// Estimate is the size that files ask for.
type Estimate struct {
	CPUs     float64 `json:"cpus"`
	MemoryGB int64   `json:"memoryGb" doc:"10^9 bytes"`
}

// EstimateRequest asks for one.
type EstimateRequest struct {
	Inputs []InputFile `json:"inputs"`
}

// SandboxList is sandboxes, the newest first.
type SandboxList struct {
	Sandboxes []Sandbox `json:"sandboxes"`
}

// Removed says how much was torn down.
type Removed struct {
	Count int `json:"count" doc:"what was there; none is a success too"`
}

// Liveness is the arbiter when a sandbox has gone quiet.
type Liveness struct {
	Alive     bool `json:"alive"`
	OOMKilled bool `json:"oomKilled"`
}

// RenewRequest gives a sandbox a time to live from now on.
type RenewRequest struct {
	TTLSeconds float64 `json:"ttlSeconds,omitempty" doc:"default that which it was created with"`
}

// Renewed is its new deadline.
type Renewed struct {
	Deadline time.Time `json:"deadline"`
}

// Stats are what a sandbox used until now, and what it uses now.
type Stats struct {
	Time        time.Time `json:"time"`
	Usage       Usage     `json:"usage"`
	MemoryBytes *int64    `json:"memoryBytes" doc:"now"`
	Pids        *int64    `json:"pids" doc:"processes and threads, now"`
	Paused      bool      `json:"paused"`
}

// WindowSize is a terminal's, in characters.
type WindowSize struct {
	Rows    uint16 `json:"rows"`
	Columns uint16 `json:"columns"`
}

// ExecRequest asks for a program in a sandbox. It is idempotent for its id.
type ExecRequest struct {
	ID              string            `json:"id,omitempty" doc:"letters, digits and ._:-, at most 128; chosen if it is not given"`
	Command         []string          `json:"command"`
	Env             map[string]string `json:"env,omitempty" doc:"added to the sandbox's"`
	Workdir         string            `json:"workdir,omitempty"`
	TimeoutSeconds  float64           `json:"timeoutSeconds,omitempty" doc:"from its start; default the sandbox's end"`
	TTY             *WindowSize       `json:"tty,omitempty" doc:"a terminal of this size; its output is all stdout then"`
	Stdin           bool              `json:"stdin,omitempty" doc:"it will be written to; otherwise it reads /dev/null"`
	OutputKeptBytes int64             `json:"outputKeptBytes,omitempty" doc:"of each stream; default 1000000"`
}

// Exec is what is known of a program in a sandbox.
type Exec struct {
	ID      string      `json:"id"`
	Command []string    `json:"command"`
	Env     []string    `json:"env" doc:"NAME=VALUE"`
	Workdir string      `json:"workdir"`
	TTY     *WindowSize `json:"tty"`
	Stdin   bool        `json:"stdin"`
	Started time.Time   `json:"started"`
	Result  *ExecResult `json:"result" doc:"null while it runs"`
}

// ExecResult is what a program came to.
type ExecResult struct {
	Reason          string   `json:"reason" doc:"as of a run; empty: it was never started, error says why"`
	ExitCode        *int     `json:"exitCode" doc:"null unless reason is exited"`
	Signal          string   `json:"signal" doc:"SIGKILL; empty unless reason is signal"`
	TimedOut        bool     `json:"timedOut"`
	StdoutBytes     int64    `json:"stdoutBytes" doc:"as written, kept or not; likewise of stderr"`
	StderrBytes     int64    `json:"stderrBytes"`
	StdoutTruncated bool     `json:"stdoutTruncated" doc:"more was written than is on record; likewise of stderr"`
	StderrTruncated bool     `json:"stderrTruncated"`
	DurationMs      float64  `json:"durationMs"`
	CPUSecs         *float64 `json:"cpuSecs" doc:"of the program and what it waited for; null: not known"`
	Error           *Error   `json:"error"`
}

// ExecList is the programs of a sandbox in the order in which they began.
type ExecList struct {
	Execs []Exec `json:"execs"`
}

// ExecEvent is one thing that a program wrote, or that became of it.
type ExecEvent struct {
	Cursor  string      `json:"cursor" doc:"of what follows"`
	Kind    string      `json:"kind" doc:"data; tail: the last of what was dropped; dropped: bytes that are missing here; exit, the last one"`
	Stream  string      `json:"stream,omitempty" doc:"stdout or stderr"`
	Seq     uint64      `json:"seq,omitempty" doc:"over both streams"`
	Time    time.Time   `json:"time"`
	Data    []byte      `json:"data,omitempty" doc:"base64"`
	Dropped int64       `json:"dropped,omitempty" doc:"bytes"`
	Result  *ExecResult `json:"result,omitempty" doc:"of exit; missing if nobody knows"`
}

// ExecEvents is a part of a program's events.
type ExecEvents struct {
	Events []ExecEvent `json:"events"`
	Next   string      `json:"next" doc:"cursor of what follows"`
	Done   bool        `json:"done" doc:"nothing will follow"`
}

// ExecDone ends a stream of events to which nothing will be added.
type ExecDone struct {
	Next string `json:"next"`
}

// StdinReply says how much of the program's stdin was passed on.
type StdinReply struct {
	Bytes int64 `json:"bytes"`
}

// SignalRequest sends a signal to a program's process group.
type SignalRequest struct {
	Signal string `json:"signal" doc:"SIGTERM, TERM, or a number"`
}

// Control is what a client says on a WebSocket beside stdin, which comes in binary
// messages.
type Control struct {
	Type    string `json:"type" doc:"resize, signal or close: no more stdin"`
	Rows    uint16 `json:"rows,omitempty"`
	Columns uint16 `json:"columns,omitempty"`
	Signal  string `json:"signal,omitempty"`
}
