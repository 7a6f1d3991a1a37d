package wire

// Result is what a run came to. Its fields are those that OPERATIONS describes.
type Result struct {
	ID              string       `json:"id"`
	OK              bool         `json:"ok" doc:"the program exited with status 0"`
	Reason          *string      `json:"reason" doc:"why it stopped; null: it never started, error says why"`
	ExitCode        *int         `json:"exitCode"`
	Signal          *string      `json:"signal"`
	TimedOut        bool         `json:"timedOut"`
	OOMKilled       bool         `json:"oomKilled"`
	Stdout          string       `json:"stdout" doc:"the first 4 MiB of what was kept, invalid UTF-8 as U+FFFD"`
	Stderr          string       `json:"stderr"`
	StdoutBytes     int64        `json:"stdoutBytes"`
	StderrBytes     int64        `json:"stderrBytes"`
	StdoutTruncated bool         `json:"stdoutTruncated"`
	StderrTruncated bool         `json:"stderrTruncated"`
	DurationMs      float64      `json:"durationMs"`
	Timing          Timing       `json:"timing"`
	Actuals         Usage        `json:"actuals"`
	Limits          ResultLimits `json:"limits"`
	Unenforced      []string     `json:"unenforced"`
	Runtime         RuntimeInfo  `json:"runtime"`
	Image           ImageInfo    `json:"image"`
	Layers          []LayerInfo  `json:"layers"`
	Network         NetworkInfo  `json:"network"`
	Changes         []FileChange `json:"changes"`
	Digest          *string      `json:"digest"`
	Error           *Error       `json:"error"`
}

// Timing is where the wall clock went.
type Timing struct {
	SandboxMs     *float64 `json:"sandboxMs"`
	FirstOutputMs *float64 `json:"firstOutputMs"`
	TotalMs       float64  `json:"totalMs"`
	Phases        []Phase  `json:"phases"`
}

// Phase is one step of a run.
type Phase struct {
	Name    string  `json:"name"`
	StartMs float64 `json:"startMs"`
	Ms      float64 `json:"ms"`
}

// Usage is what the host's kernel charged to the whole sandbox.
type Usage struct {
	BusyCPUSecs   *float64 `json:"busyCpuSecs"`
	UserCPUSecs   *float64 `json:"userCpuSecs"`
	SystemCPUSecs *float64 `json:"systemCpuSecs"`
	ThrottledSecs *float64 `json:"throttledSecs"`
	PeakMemBytes  *int64   `json:"peakMemBytes"`
	PeakPids      *int64   `json:"peakPids"`
	PidsRefused   *int64   `json:"pidsRefused"`
	OOMKills      *int64   `json:"oomKills"`
	IOReadBytes   *int64   `json:"ioReadBytes"`
	IOWriteBytes  *int64   `json:"ioWriteBytes"`
	RxBytes       *int64   `json:"rxBytes"`
	TxBytes       *int64   `json:"txBytes"`
}

// ResultLimits are the limits that were in force.
type ResultLimits struct {
	CPUs           float64 `json:"cpus"`
	MemoryMB       float64 `json:"memoryMb"`
	Pids           int64   `json:"pids"`
	TimeoutSeconds float64 `json:"timeoutSeconds"`
}

// RuntimeInfo names the OCI runtime.
type RuntimeInfo struct {
	Name    string  `json:"name"`
	Version string  `json:"version"`
	SHA256  *string `json:"sha256"`
}

// ImageInfo names the file system the run started from.
type ImageInfo struct {
	Ref    string  `json:"ref"`
	Digest *string `json:"digest"`
}

// LayerInfo names what lay over the image.
type LayerInfo struct {
	Name   string `json:"name"`
	Digest string `json:"digest"`
}

// NetworkInfo is what was granted, and what became of what was tried.
type NetworkInfo struct {
	Mode    string    `json:"mode"`
	Denied  []Denied  `json:"denied"`
	Allowed []Allowed `json:"allowed"`
}

// Denied is one destination that was refused, Count times.
type Denied struct {
	Host  string `json:"host"`
	Port  uint16 `json:"port"`
	Proto string `json:"proto"`
	Rule  string `json:"rule"`
	Count int64  `json:"count"`
}

// Allowed is one destination that was reached, by Count connections.
type Allowed struct {
	Host    string `json:"host"`
	Port    uint16 `json:"port"`
	Proto   string `json:"proto"`
	Rule    string `json:"rule"`
	Count   int64  `json:"count"`
	RxBytes int64  `json:"rxBytes"`
	TxBytes int64  `json:"txBytes"`
}

// FileChange is one file of the workspace that the run changed.
type FileChange struct {
	Path string `json:"path"`
	Kind string `json:"kind"`
	Size int64  `json:"size"`
}
