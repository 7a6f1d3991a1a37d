package engine

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/direct-oci/engine/engine/initwire"
	"github.com/direct-oci/engine/oci"
	"github.com/direct-oci/engine/rootfs"
)

const (
	workDir    = "/workload"
	secretsDir = "/run/secrets"
	initPath   = "/.engine/init"
	shmSize    = 64 << 20
)

// defaultEnv is all the environment a program gets unasked. Home and the caches of
// the usual tools are in scratch space, because the root is read-only and tools that
// cannot write there do not start.
var defaultEnv = []string{
	"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	"HOME=" + workDir,
	"LANG=C.UTF-8",
	"TMPDIR=/tmp",
	"XDG_CACHE_HOME=/tmp/.cache",
	"PIP_CACHE_DIR=/tmp/.cache/pip",
	"npm_config_cache=/tmp/.cache/npm",
	"npm_config_update_notifier=false",
	"YARN_CACHE_FOLDER=/tmp/.cache/yarn",
	"GOCACHE=/tmp/.cache/go-build",
	"PYTHONDONTWRITEBYTECODE=1",
}

// environ merges lists of K=V, later ones winning, each name once, in order of first
// appearance.
func environ(lists ...[]string) []string {
	var out []string
	at := map[string]int{}
	for _, list := range lists {
		for _, kv := range list {
			name, _, _ := strings.Cut(kv, "=")
			if i, ok := at[name]; ok {
				out[i] = kv
				continue
			}
			at[name] = len(out)
			out = append(out, kv)
		}
	}
	return out
}

// job is what engine-init is to start.
func (sb *sandbox) job() initwire.Job {
	s := sb.shared()
	return initwire.Job{
		Args:     sb.Request.Command,
		Env:      s.Env,
		Cwd:      sb.workdir(),
		Filter:   s.Filter,
		CPUMask:  s.CPUMask,
		Deadline: s.Deadline,
		Files:    s.Files,
	}
}

// shared is what a job has in common with a session.
func (sb *sandbox) shared() initwire.Session {
	env, files := secretEnv(sb.Secrets)
	for i, f := range sb.Request.Files {
		files = append(files, initwire.File{Path: path.Join(workDir, f.Path), Data: sb.FileData[i], Mode: f.Mode, Parents: true})
	}
	return initwire.Session{
		Env:      environ(defaultEnv, sb.Request.Env, env),
		Filter:   oci.Filter(),
		CPUMask:  sb.cpuMask(),
		Deadline: min(sb.Request.Limits.Timeout+initGrace, initwire.MaxDeadline),
		Files:    files,
	}
}

// workdir is where programs start that are not told otherwise.
func (sb *sandbox) workdir() string {
	if sb.Request.Workdir == "" {
		return workDir
	}
	return sb.Request.Workdir
}

// cpuMask is the affinity of the program, which is what nproc and language runtimes
// count. gVisor numbers the CPUs it was given from 0.
func (sb *sandbox) cpuMask() []byte {
	if !sb.isGVisor() {
		return rootfs.CPUMask(sb.Plan.CPUs)
	}
	first := make([]int, len(sb.Plan.CPUs))
	for i := range first {
		first[i] = i
	}
	return rootfs.CPUMask(first)
}

// maxEnvSecret is the longest value that becomes a variable: the kernel takes no
// string of more than 128 KiB, and no program expects one.
const maxEnvSecret = 32 << 10

// secretEnv splits secrets into environment variables and files. A value of several
// lines (a key, a certificate) becomes a file of mode 0400, and its variable holds
// the path, because many programs mangle newlines in their environment. So does a
// long one.
func secretEnv(secrets []Secret) (env []string, files []initwire.File) {
	for _, s := range secrets {
		value := bytes.TrimSuffix(s.Value, []byte("\n"))
		if len(value) <= maxEnvSecret && !bytes.ContainsAny(value, "\n\x00") {
			env = append(env, s.Name+"="+string(value))
			continue
		}
		file := path.Join(secretsDir, s.Name)
		env = append(env, s.Name+"="+file)
		files = append(files, initwire.File{Path: file, Data: s.Value, Mode: 0o400})
	}
	return env, files
}

// intent is the sandbox as the renderers see it.
func (sb *sandbox) intent() oci.Intent {
	in := baseIntent(sb.Request)
	in.Root = sb.dir("rootfs")
	in.Args = []string{initPath}
	in.HostID = sb.ids.hostID()
	in.NetNS = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), sb.network.sandbox.Fd())
	in.CgroupsPath = path.Join(sb.Hierarchy.Path(runGroup(sb.Request.ID)), "ctr")
	for _, s := range sb.Secrets {
		_, files := secretEnv([]Secret{s})
		in.SecretFiles = in.SecretFiles || len(files) > 0
	}
	in.Mounts = sb.mounts
	for _, b := range sb.binds {
		in.Binds = append(in.Binds, oci.Bind{Source: b.Source, Destination: b.Destination})
	}
	for _, name := range sb.etc {
		in.Binds = append(in.Binds, oci.Bind{Source: sb.dir("proc", name), Destination: "/etc/" + name})
	}
	// The leaf repeats what the run's own cgroup holds, where it can: gVisor sizes
	// the machine that it shows from its leaf.
	if sb.controls("memory") {
		in.Memory = sb.Request.Limits.Memory
	}
	if sb.controls("cpu") {
		in.CPUs = sb.Request.Limits.CPUs
	}
	if sb.controls("pids") || sb.isGVisor() {
		in.Pids = sb.Request.Limits.Pids + 1 // engine-init
	}
	return in
}

// baseIntent is what the request alone decides.
func baseIntent(r Request) oci.Intent {
	in := oci.Intent{
		ID:            r.ID,
		Hostname:      r.Hostname,
		Env:           defaultEnv[:1],
		Cwd:           "/",
		UID:           r.UID,
		GID:           r.GID,
		TmpSize:       r.Limits.TmpSize,
		WorkspaceSize: r.Limits.WorkspaceSize,
		ShmSize:       min(shmSize, r.Limits.Memory/4),
		Terminals:     r.Terminals || r.Session != nil, // any exec may ask for one
	}
	for _, t := range r.Tmpfs {
		in.Tmpfs = append(in.Tmpfs, oci.Tmpfs(t))
	}
	for _, l := range r.Rlimits {
		in.Rlimits = append(in.Rlimits, oci.Rlimit(l))
	}
	return in
}
