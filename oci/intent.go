// Package oci turns what the engine wants of a sandbox into a runtime-spec
// bundle, and reads the bundles of others.
//
// Render knows the dialect of each runtime: what it honours, ignores or refuses.
// Profile and Filter are the system calls a program may make, as the
// runtime-spec says it and as a prebuilt program for the kernel. ReadBundle
// checks a foreign bundle and says what it changes. ParseSize reads sizes as
// people write them.
//
// The package is pure: the same input gives the same bytes on any machine. Only
// ReadBundle and WriteBundle touch files, and only those in the bundle's folder.
package oci

// Intent is what the engine wants of a sandbox, before any runtime's dialect.
// It is plain data and complete: Render adds nothing that depends on the host.
type Intent struct {
	ID       string // container ID, 16 lower-case letters and digits
	Root     string // absolute path of the finished, read-only root
	Hostname string // "" means "sandbox"

	// PID 1. Usually engine-init, which starts the program.
	Args []string
	Env  []string
	Cwd  string
	UID  uint32 // inside the user namespace
	GID  uint32

	Umask *uint32 // nil means 0077

	HostID uint32 // first host uid and gid of the run's block of 65536

	NetNS       string // path of the network namespace; "" lets the runtime make an empty one
	CgroupsPath string // cgroup of the runtime's leaf, from the cgroup2 mount, "/engine/run/<id>/ctr"; "" in a bundle for others

	TmpSize       int64 // bytes of /tmp
	WorkspaceSize int64 // bytes of /workload
	ShmSize       int64 // bytes of /dev/shm
	SecretFiles   bool  // mount a small private tmpfs at /run/secrets
	Tmpfs         []Tmpfs
	Terminals     bool // pseudo-terminals of the sandbox's own
	Mounts        []Mount
	Binds         []Bind // read-only files of the engine, /proc/meminfo and its kin

	Memory int64   // bytes; 0: not set in the leaf (controller missing)
	CPUs   float64 // 0: not set
	Pids   int64   // 0: not set
	CPUSet string  // "0-1"; "" : not set

	Rlimits []Rlimit // on top of, and never above, the engine's own

	// Seccomp puts the profile into linux.seccomp. The engine leaves it out,
	// since engine-init attaches the prebuilt filter; a bundle written for
	// others has it.
	Seccomp bool
}

// Bind is one file or directory of the host shown inside, always read-only.
type Bind struct {
	Source      string // absolute, on the host
	Destination string // absolute, inside
}

// Mount is a directory of the host's that the request asks for. Programs may run from it.
type Mount struct {
	Source   string // absolute, on the host
	Path     string // absolute, inside
	Writable bool
	// Owner, in a bundle for others, is whose files the program's user owns; nil: nobody's.
	// The engine's own Source is a mount that shows them so already.
	Owner *Owner
}

// Owner is a user and a group of the host.
type Owner struct{ UID, GID uint32 }

// Tmpfs is a writable directory of its own.
type Tmpfs struct {
	Path string // absolute, inside
	Size int64  // bytes
}

// Rlimit is setrlimit(2)'s, by the runtime-spec's name.
type Rlimit struct {
	Type string
	Soft uint64
	Hard uint64
}
