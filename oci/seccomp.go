package oci

import (
	"encoding/json"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

//go:generate go run ./filtergen -dir .

// Profile is the seccomp profile of this architecture, for linux.seccomp: Docker's
// default for a container without capabilities, narrowed. It does not depend on
// the running kernel. Each call returns a copy of its own.
//
// A bundle has this alone. It leaves the program's PID 1 unguarded, since there
// the program is PID 1.
func Profile() *specs.LinuxSeccomp {
	var p specs.LinuxSeccomp
	if err := json.Unmarshal(profileJSON, &p); err != nil {
		panic("internal error: built-in seccomp profile: " + err.Error())
	}
	return &p
}

// Filter is the program that engine-init attaches to itself before it becomes the
// job: struct sock_filter, 8 bytes each, in this architecture's byte order. It
// says what Profile says, kills a call of a foreign ABI, answers ENOSYS to calls
// it does not know, and shields PID 1 from the job.
//
// SECURITY: a job cannot signal, slow or starve engine-init, which has the same user.
// gVisor does not protect a namespace's PID 1, and Linux not its limits and priority.
// Holds because: every call that names a process is refused for PID 1, or altogether where
// the kernel reads the name from memory, and for a whole user. Only the low 32 bits of an
// argument are compared: the kernel ignores the others. Not covered: load on the machine itself.
// Checked by: TestFilterAgreesWithPolicy.
func Filter() []byte { return slices.Clone(filterProgram) }
