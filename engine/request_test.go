package engine

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/direct-oci/engine/netns/egress"
)

func validRequest() Request {
	return Request{Runtime: "auto", Image: "x", Command: []string{"true"}, UID: 1, GID: 1, Limits: DefaultLimits()}
}

func TestValidateRefusesWithTheRequestsClass(t *testing.T) {
	if err := validRequest().Validate(); err != nil {
		t.Fatalf("a plain request is refused: %v", err)
	}
	tests := []struct {
		name string
		kind string
		edit func(*Request)
	}{
		{"an id of another form", "bad_id", func(r *Request) { r.ID = "../../etc/passwd" }},
		{"a runtime nobody knows", "bad_runtime", func(r *Request) { r.Runtime = "docker" }},
		{"neither image nor directory", "bad_root", func(r *Request) { r.Image = "" }},
		{"both image and directory", "bad_root", func(r *Request) { r.Rootfs = "/x" }},
		{"the host's own root", "bad_root", func(r *Request) { r.Image, r.Rootfs = "", "/../" }},
		{"a relative directory", "bad_root", func(r *Request) { r.Image, r.Rootfs = "", "root" }},
		{"a grant without a port", "bad_network", func(r *Request) { r.Egress.Names = []egress.NameRule{{Host: "example.com"}} }},
		{"no command, and no image that could name one", "bad_command", func(r *Request) { r.Command, r.Image, r.Rootfs = nil, "", "/srv" }},
		{"an empty command", "bad_command", func(r *Request) { r.Command = []string{""} }},
		{"a NUL in an argument", "bad_command", func(r *Request) { r.Command = []string{"a", "b\x00c"} }},
		{"a command of two megabytes", "bad_command", func(r *Request) { r.Command = []string{strings.Repeat("x", 2<<20)} }},
		{"an environment of two megabytes", "bad_env", func(r *Request) { r.Env = []string{"A=" + strings.Repeat("x", 2<<20)} }},
		{"a variable without a value", "bad_env", func(r *Request) { r.Env = []string{"PATH"} }},
		{"a variable whose name is a function", "bad_env", func(r *Request) { r.Env = []string{"BASH_FUNC_x%%=() { :; }"} }},
		{"a secret whose name is a path", "bad_secret", func(r *Request) { r.SecretNames = []string{"../x"} }},
		{"a working directory among descriptors", "bad_workdir", func(r *Request) { r.Workdir = "/proc/self/fd/7" }},
		{"a working directory that gets there by dots", "bad_workdir", func(r *Request) { r.Workdir = "/tmp/../proc/1" }},
		{"a relative working directory", "bad_workdir", func(r *Request) { r.Workdir = "work" }},
		{"root", "bad_user", func(r *Request) { r.UID = 0 }},
		{"root's group", "bad_user", func(r *Request) { r.GID = 0 }},
		{"a uid outside the block", "bad_user", func(r *Request) { r.UID = 65536 }},
		{"a label with a newline in its name", "bad_label", func(r *Request) { r.Labels = map[string]string{"a\nb": ""} }},
		{"no cpu at all", "bad_limit", func(r *Request) { r.Limits.CPUs = 0 }},
		{"memory below any program's need", "bad_limit", func(r *Request) { r.Limits.Memory = 4096 }},
		{"a /tmp larger than memory", "bad_limit", func(r *Request) { r.Limits.TmpSize = r.Limits.Memory + 1 }},
		{"a /workload larger than memory", "bad_limit", func(r *Request) { r.Limits.WorkspaceSize = r.Limits.Memory + 1 }},
		{"a /tmp below a page", "bad_limit", func(r *Request) { r.Limits.TmpSize = 1 }},
		{"no processes", "bad_limit", func(r *Request) { r.Limits.Pids = 0 }},
		{"no time", "bad_limit", func(r *Request) { r.Limits.Timeout = 0 }},
		{"time without end", "bad_limit", func(r *Request) { r.Limits.Timeout = 1000 * 24 * time.Hour }},
		{"a tmpfs over devices", "bad_mount", func(r *Request) { r.Tmpfs = []Tmpfs{{"/dev/x", 1 << 20}} }},
		{"a relative source", "bad_mount", func(r *Request) { r.Mounts = []Mount{{Source: "srv", Path: "/mnt"}} }},
		{"a source with dots", "bad_mount", func(r *Request) { r.Mounts = []Mount{{Source: "/srv/../etc", Path: "/mnt"}} }},
		{"the whole host for a source", "bad_mount", func(r *Request) { r.Mounts = []Mount{{Source: "/", Path: "/mnt"}} }},
		{"a mount over the kernel's files", "bad_mount", func(r *Request) { r.Mounts = []Mount{{Source: "/srv", Path: "/proc/self"}} }},
		{"a mount over the engine's files", "bad_mount", func(r *Request) { r.Mounts = []Mount{{Source: "/srv", Path: "/.engine"}} }},
		{"a mount that hides secrets", "bad_mount", func(r *Request) { r.Mounts = []Mount{{Source: "/srv", Path: "/run"}} }},
		{"a mount over the workspace", "bad_mount", func(r *Request) { r.Mounts = []Mount{{Source: "/srv", Path: "/workload"}} }},
		{"a mount twice", "bad_mount", func(r *Request) { r.Mounts = []Mount{{Source: "/srv", Path: "/mnt"}, {Source: "/usr", Path: "/mnt"}} }},
		{"a mount over a tmpfs", "bad_mount", func(r *Request) {
			r.Mounts, r.Tmpfs = []Mount{{Source: "/srv", Path: "/mnt"}}, []Tmpfs{{"/mnt/deep", 1 << 20}}
		}},
		{"a mount for root", "bad_mount", func(r *Request) { r.Mounts = []Mount{{Source: "/srv", Path: "/mnt", Owner: &Owner{0, 7}}} }},
		{"too many mounts", "bad_mount", func(r *Request) { r.Mounts = make([]Mount, maxMounts+1) }},
		{"a file above the workspace", "bad_file", func(r *Request) { r.Files = []File{{Path: "../x"}} }},
		{"an absolute file", "bad_file", func(r *Request) { r.Files = []File{{Path: "/x"}} }},
		{"a file without a name", "bad_file", func(r *Request) { r.Files = []File{{Path: "a//b"}} }},
		{"a file with a backslash", "bad_file", func(r *Request) { r.Files = []File{{Path: `a\b`}} }},
		{"a file of a name too long", "bad_file", func(r *Request) { r.Files = []File{{Path: strings.Repeat("x", 256)}} }},
		{"a setuid file", "bad_file", func(r *Request) { r.Files = []File{{Path: "x", Mode: 0o4755}} }},
		{"a file twice", "bad_file", func(r *Request) { r.Files = []File{{Path: "x"}, {Path: "x"}} }},
		{"a file for a directory", "bad_file", func(r *Request) { r.Files = []File{{Path: "a/b/c"}, {Path: "a"}} }},
		{"too many files", "bad_file", func(r *Request) { r.Files = make([]File, maxFiles+1) }},
		{"files larger than the workspace", "bad_file", func(r *Request) {
			r.Limits.WorkspaceSize, r.Files = 8192, []File{{Path: "a", Data: make([]byte, 8193)}}
		}},
		{"a host name with a slash", "bad_hostname", func(r *Request) { r.Hostname = "a/b" }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := validRequest()
			tt.edit(&r)
			err := r.Validate()
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("Validate() = %v, want a refusal of kind %s", err, tt.kind)
			}
			if e.Kind != tt.kind || e.Class != ClassRequest {
				t.Errorf("refused as %s of class %s (%s), want %s of class request", e.Kind, e.Class, e.Message, tt.kind)
			}
		})
	}
}

func TestExitStatus(t *testing.T) {
	reason := func(r Reason) Result { var res Result; res.setReason(r); return res }
	code, sig, odd := 7, "SIGSEGV", "SIG40"
	exited, signalled, realtime := reason(ReasonExited), reason(ReasonSignal), reason(ReasonSignal)
	exited.ExitCode, signalled.Signal, realtime.Signal = &code, &sig, &odd
	tests := []struct {
		name string
		give Result
		want int
	}{
		{"the program's own", exited, 7},
		{"a signal", signalled, 128 + 11},
		{"a signal without a name", realtime, 128 + 40},
		{"the deadline", reason(ReasonTimeout), 124},
		{"cancelled", reason(ReasonCancelled), 130},
		{"out of memory", reason(ReasonOOM), 137},
		{"too much output", reason(ReasonOutput), 153},
		{"lost", reason(ReasonLost), 125},
		{"interrupted", reason(ReasonInterrupted), 125},
		{"the engine's failure", reason(ReasonInternal), 125},
		{"refused", Result{Error: Refused("bad_user", "x")}, 125},
		{"not found", Result{Error: Refused("command_not_found", "x")}, 127},
		{"not executable", Result{Error: Refused("command_not_executable", "x")}, 126},
	}
	for _, tt := range tests {
		if got := ExitStatus(tt.give); got != tt.want {
			t.Errorf("exit status of %s = %d, want %d", tt.name, got, tt.want)
		}
	}
}

func TestErrorsLendTheirCause(t *testing.T) {
	cause := Refused("inner", "inner").WithFix("do this")
	got := Failed("outer", "cannot x: %w", cause)
	if got.Fix != "do this" || !errors.Is(got, cause) {
		t.Errorf("fix = %q, wraps its cause: %t; want the cause's fix, and that it is wrapped", got.Fix, errors.Is(got, cause))
	}
	if got := AsError(errors.New("x")); got.Class != ClassEngine || got.Kind != "internal" {
		t.Errorf("a foreign error is %s of class %s, want internal of class engine", got.Kind, got.Class)
	}
}

func TestEnvironLaterWins(t *testing.T) {
	got := strings.Join(environ([]string{"A=1", "B=2"}, []string{"A=3", "C=4"}), " ")
	if want := "A=3 B=2 C=4"; got != want {
		t.Errorf("environ = %q, want %q", got, want)
	}
}

// A value of one line is a variable, one of several lines a file that the variable
// names.
func TestSecretsOfSeveralLinesBecomeFiles(t *testing.T) {
	env, files := secretEnv([]Secret{{"TOKEN", []byte("abc\n")}, {"KEY", []byte("-----BEGIN\nx\n")}})
	if got, want := strings.Join(env, " "), "TOKEN=abc KEY=/run/secrets/KEY"; got != want {
		t.Errorf("environment = %q, want %q", got, want)
	}
	if len(files) != 1 || files[0].Path != "/run/secrets/KEY" || string(files[0].Data) != "-----BEGIN\nx\n" {
		t.Errorf("files = %v, want KEY alone with its value whole", files)
	}
}

// TestDirectoriesAreSizedByMemory proves that a directory whose size nobody gave is
// full before memory ends.
func TestDirectoriesAreSizedByMemory(t *testing.T) {
	tests := []struct {
		name         string
		limits, want Limits
	}{
		{"much memory", Limits{Memory: 2 << 30}, Limits{Memory: 2 << 30, TmpSize: 64 << 20, WorkspaceSize: 256 << 20}},
		{"the default", Limits{Memory: 512 << 20}, Limits{Memory: 512 << 20, TmpSize: 64 << 20, WorkspaceSize: 256 << 20}},
		{"little memory", Limits{Memory: 64 << 20}, Limits{Memory: 64 << 20, TmpSize: 16 << 20, WorkspaceSize: 32 << 20}},
		{"memory of no whole pages", Limits{Memory: 5e6}, Limits{Memory: 5e6, TmpSize: 1249280, WorkspaceSize: 2498560}},
		{"what was asked for stays", Limits{Memory: 64 << 20, TmpSize: 1, WorkspaceSize: 2}, Limits{Memory: 64 << 20, TmpSize: 1, WorkspaceSize: 2}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.limits.Sized(); got != tt.want {
				t.Errorf("Sized() = %+v, want %+v", got, tt.want)
			}
		})
	}
	r := validRequest()
	r.Limits.Memory, r.Limits.TmpSize, r.Limits.WorkspaceSize = minMemory, 0, 0
	if err := r.Validate(); err != nil {
		t.Errorf("the smallest memory with the default sizes is refused: %v", err)
	}
}

// TestSizesAreSaidWithTheirUnits proves that who forgot the unit is told of it.
func TestSizesAreSaidWithTheirUnits(t *testing.T) {
	r := validRequest()
	r.Limits.Memory = 64
	var e *Error
	if err := r.Validate(); !errors.As(err, &e) || !strings.Contains(e.Message, "memory=64B: want 4MiB to 1024TiB") || !strings.Contains(e.Fix, "unit") {
		t.Errorf("Validate() of 64 bytes = %v, want the bounds and a fix that names the unit", err)
	}
}
