package wire

import "time"

// RunRequest asks for one run. It is idempotent if it names its id: the same request with
// the same id is the same run, another request with it is refused.
type RunRequest struct {
	ID      string            `json:"id,omitempty" doc:"16 lower-case letters and digits; chosen if it is not given"`
	Image   string            `json:"image,omitempty" doc:"name of an image in the store; exactly one of image and rootfs"`
	Rootfs  string            `json:"rootfs,omitempty" doc:"absolute path of a directory on the host; for admin alone"`
	Runtime string            `json:"runtime,omitempty" doc:"auto (default), direct, embedded, runc, crun or runsc"`
	Command []string          `json:"command,omitempty" doc:"argv; empty: the image's own"`
	Env     map[string]string `json:"env,omitempty"`
	Workdir string            `json:"workdir,omitempty" doc:"absolute path inside; empty: the image's, or /workload"`
	UID     uint32            `json:"uid,omitempty" doc:"inside, 1 to 65535; 0: the image's if it is a number, or 65532"`
	GID     uint32            `json:"gid,omitempty" doc:"likewise"`
	Labels  map[string]string `json:"labels,omitempty"`
	Limits  Limits            `json:"limits,omitzero"`
	Egress  []string          `json:"egress,omitempty" doc:"what it may reach: HOST[:PORT], CIDR:PORT[/udp], internet; nothing by default"`
	Secrets map[string]string `json:"secrets,omitempty" doc:"values that the program sees and no record has"`
	Files   []File            `json:"files,omitempty" doc:"there when the program starts, below /workload"`
}

// Limits bounds a run; zero is the default.
type Limits struct {
	CPUs            float64 `json:"cpus,omitempty" doc:"of one core; default 1"`
	MemoryMB        float64 `json:"memoryMb,omitempty" doc:"MiB; default 512"`
	Pids            int64   `json:"pids,omitempty" doc:"processes and threads; default 256"`
	TimeoutSeconds  float64 `json:"timeoutSeconds,omitempty" doc:"of wall clock; default 120"`
	TmpMB           float64 `json:"tmpMb,omitempty" doc:"MiB of /tmp; default 64, or a quarter of the memory"`
	WorkspaceMB     float64 `json:"workspaceMb,omitempty" doc:"MiB of /workload; default 256, or half of the memory"`
	OutputKeptBytes int64   `json:"outputKeptBytes,omitempty" doc:"kept of each stream; default 1000000"`
	OutputMaxBytes  int64   `json:"outputMaxBytes,omitempty" doc:"of both streams, after which the run is ended; default none"`
}

// File is a file of the program's own.
type File struct {
	Path string `json:"path" doc:"below /workload"`
	Mode uint32 `json:"mode,omitempty" doc:"permissions as a number; default 0644"`
	Data []byte `json:"data" doc:"base64"`
}

// Run is what is known of one run.
type Run struct {
	ID       string     `json:"id"`
	State    string     `json:"state" doc:"creating, created, running, stopped, removed"`
	Alive    bool       `json:"alive" doc:"a process watches over it"`
	Created  time.Time  `json:"created"`
	Started  *time.Time `json:"started" doc:"of the program; null: not yet"`
	Request  RunSpec    `json:"request"`
	Result   *Result    `json:"result" doc:"null until it has ended. A list has it without output"`
	Problems []string   `json:"problems" doc:"records that cannot be read"`
}

// RunSpec is what was asked for, as it is on record: completed, and without secrets.
type RunSpec struct {
	Image       string            `json:"image"`
	Rootfs      string            `json:"rootfs"`
	Runtime     string            `json:"runtime"`
	Command     []string          `json:"command"`
	Env         []string          `json:"env" doc:"NAME=VALUE"`
	Workdir     string            `json:"workdir"`
	UID         uint32            `json:"uid"`
	GID         uint32            `json:"gid"`
	Labels      map[string]string `json:"labels"`
	Limits      Limits            `json:"limits"`
	Egress      []string          `json:"egress"`
	SecretNames []string          `json:"secretNames"`
	Files       []FileDigest      `json:"files"`
}

// FileDigest is what is on record of a file.
type FileDigest struct {
	Path   string `json:"path"`
	Mode   uint32 `json:"mode"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// RunList is a page of runs, the newest first.
type RunList struct {
	Runs []Run  `json:"runs"`
	Next string `json:"next" doc:"give it as after for the next page; empty: this was the last"`
}

// RunID names a run.
type RunID struct {
	ID string `json:"id"`
}

// Output is a part of what a program wrote, as far as it was kept.
type Output struct {
	Records []OutputRecord `json:"records"`
	Next    int64          `json:"next" doc:"offset of what follows"`
	Done    bool           `json:"done" doc:"nothing will follow"`
}

// OutputDone ends a stream of output to which nothing will be added.
type OutputDone struct {
	Next int64 `json:"next" doc:"offset of the end"`
}

// OutputRecord is one piece of output, or of what is known of it.
type OutputRecord struct {
	Kind    string     `json:"kind" doc:"data; tail: the last of what was dropped; dropped: bytes that are missing here; end"`
	Stream  string     `json:"stream,omitempty" doc:"stdout or stderr"`
	Seq     uint64     `json:"seq,omitempty" doc:"over both streams, from 1"`
	Time    time.Time  `json:"time"`
	Data    []byte     `json:"data,omitempty" doc:"base64, of data and tail"`
	Dropped int64      `json:"dropped,omitempty" doc:"bytes"`
	Stdout  *OutputSum `json:"stdout,omitempty" doc:"of end"`
	Stderr  *OutputSum `json:"stderr,omitempty" doc:"of end"`
	Next    int64      `json:"next" doc:"offset of what follows"`
}

// OutputSum counts one stream, in bytes.
type OutputSum struct {
	Written int64 `json:"written"`
	Kept    int64 `json:"kept"`
}
