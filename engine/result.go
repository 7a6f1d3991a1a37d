package engine

// Reason says why a sandbox stopped. The first event of several sets it.
type Reason string

// The reasons. Lost and Interrupted are written afterwards, by whoever finds a
// run whose monitor is gone: in this boot of the host, or in an earlier one. They have
// ExitCode or Signal as well if the program had ended by then; that is no success.
const (
	ReasonExited      Reason = "exited"      // the program ended by itself, ExitCode is set
	ReasonSignal      Reason = "signal"      // a signal ended the program, Signal is set
	ReasonTimeout     Reason = "timeout"     // the deadline passed
	ReasonIdle        Reason = "idle"        // nobody used the session for its idle timeout
	ReasonOOM         Reason = "oom"         // the memory limit was reached
	ReasonOutput      Reason = "output"      // more output than OutputMax
	ReasonCancelled   Reason = "cancelled"   // the caller, or engine kill, ended it
	ReasonLost        Reason = "lost"        // its monitor died
	ReasonInterrupted Reason = "interrupted" // the host rebooted
	ReasonInternal    Reason = "internal"    // the engine or the host failed, Error says how
)

// Result is what a run came to: one value, the same under every runtime, whose
// JSON form is fixed. Times are milliseconds, sizes bytes, CPU seconds; a nil
// pointer is unknown and prints as null, zero was measured.
type Result struct {
	ID        string  `json:"id"`
	OK        bool    `json:"ok"`     // the program exited with status 0
	Reason    *Reason `json:"reason"` // nil when the run never started: Error says why
	ExitCode  *int    `json:"exitCode"`
	Signal    *string `json:"signal"` // "SIGSEGV"
	TimedOut  bool    `json:"timedOut"`
	OOMKilled bool    `json:"oomKilled"`

	// Stdout and Stderr hold what was kept, invalid UTF-8 as U+FFFD.
	Stdout          string `json:"stdout"`
	Stderr          string `json:"stderr"`
	StdoutBytes     int64  `json:"stdoutBytes"` // as written by the program
	StderrBytes     int64  `json:"stderrBytes"`
	StdoutTruncated bool   `json:"stdoutTruncated"`
	StderrTruncated bool   `json:"stderrTruncated"`

	DurationMs float64 `json:"durationMs"` // of the program itself
	Timing     Timing  `json:"timing"`
	Actuals    Usage   `json:"actuals"`

	Limits     ResultLimits `json:"limits"`
	Unenforced []string     `json:"unenforced"` // limits nobody enforced, under BestEffortLimits
	Runtime    RuntimeInfo  `json:"runtime"`
	Image      ImageInfo    `json:"image"`
	Layers     []LayerInfo  `json:"layers"`
	Network    NetworkInfo  `json:"network"`
	Changes    []FileChange `json:"changes"`
	Digest     *string      `json:"digest"`
	Error      *Error       `json:"error"`
}

// Timing is where the wall clock went, counted from the caller's request.
type Timing struct {
	SandboxMs     *float64 `json:"sandboxMs"`     // until the sandbox was ready for its program
	FirstOutputMs *float64 `json:"firstOutputMs"` // from then to the first byte of output
	TotalMs       float64  `json:"totalMs"`       // until the result was on record
	Phases        []Phase  `json:"phases"`
}

// Phase is one step of a run. Phases may overlap.
type Phase struct {
	Name    string  `json:"name"`
	StartMs float64 `json:"startMs"`
	Ms      float64 `json:"ms"`
}

// Usage is what the host's kernel charged to the whole sandbox, read after its
// last process had gone. Under gVisor that includes the Sentry.
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
	MemoryMB       float64 `json:"memoryMb"` // MiB
	Pids           int64   `json:"pids"`
	TimeoutSeconds float64 `json:"timeoutSeconds"`
}

// RuntimeInfo names the OCI runtime that ran the bundle.
type RuntimeInfo struct {
	Name    string  `json:"name"`
	Version string  `json:"version"`
	SHA256  *string `json:"sha256"` // of its program; nil but for governed runs
}

// ImageInfo names the file system the run started from.
type ImageInfo struct {
	Ref    string  `json:"ref"`
	Digest *string `json:"digest"` // nil: a directory or an image that has none
}

// LayerInfo names a layer that lay over the image.
type LayerInfo struct {
	Name   string `json:"name"`
	Digest string `json:"digest"`
}

// NetworkInfo is the egress policy, and what became of what was tried.
type NetworkInfo struct {
	Mode    string    `json:"mode"` // none, or names, cidr and internet joined by +
	Denied  []Denied  `json:"denied"`
	Allowed []Allowed `json:"allowed"`
}

// Denied is one destination that the policy refused, Count times.
type Denied struct {
	Host  string `json:"host"`
	Port  uint16 `json:"port"`
	Proto string `json:"proto"`
	Rule  string `json:"rule"`
	Count int64  `json:"count"`
}

// Allowed is one destination that was reached, by Count connections. The bytes are
// payload, without headers, as the gateway passed them on.
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
