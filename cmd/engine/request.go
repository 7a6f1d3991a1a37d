package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/engine/spelling"
)

// maxSecret bounds the file of a secret.
const maxSecret = 1 << 20

// request is what the flags of run, bundle and exec come to.
type request struct {
	engine.Request
	secrets []engine.Secret
}

func newRequest() *request {
	return &request{Request: engine.Request{
		Runtime: "auto",
		Limits:  engine.DefaultLimits(),
	}}
}

// addProgramFlags defines the flags that say what to run. A bundle says it itself.
func (r *request) addProgramFlags(flags *pflag.FlagSet) {
	flags.StringVar(&r.Image, "image", "", "`NAME` of the image to run in, see engine image")
	flags.StringVar(&r.Rootfs, "rootfs", "", "`DIR` to run in instead of an image, seen read-only")
	pairFlag(flags, "env", "K=V", "environment variable of the program; repeatable", r.addEnv)
	flags.Var(&value{typ: "UID[:GID]", set: r.setUser},
		"user", fmt.Sprintf("who the program is inside, by number (default the image's if it is a number, or %d)", engine.DefaultUID))
	flags.StringVar(&r.Workdir, "workdir", "", "`DIR` inside where the program starts (default the image's, or /workload)")
	flags.Var(&value{typ: "SRC:PATH[:rw]", set: r.addMount},
		"mount", "directory of the host to be seen at PATH, read-only unless it ends in :rw; the program owns there what the directory's owner owns; repeatable")
	flags.BoolVar(&r.Terminals, "terminals", false, "let the program make terminals of its own, as tmux, script and expect do; under gVisor any may")
	addNetworkFlags(flags, &r.Egress)
	later(flags, "workspace", "DIR", "this version brings no workspace into a sandbox")
	later(flags, "apply", "", "this version brings no workspace into a sandbox").NoOptDefVal = "true"
}

// addLimitFlags defines the flags that say how to run it.
func (r *request) addLimitFlags(flags *pflag.FlagSet) {
	l := &r.Limits
	flags.Var(&value{typ: "NAME", def: r.Runtime, set: r.setRuntime}, "runtime", strings.Join(engine.Runtimes, ", "))
	sizeFlag(flags, &l.Memory, "memory", "512MiB", "memory of the whole sandbox; no swap")
	numberFlag(flags, &l.CPUs, "cpus", "processors; 0.5 is half of one", parseFloat)
	numberFlag(flags, &l.Pids, "pids", "processes and threads", parseInt)
	durationFlag(flags, &l.Timeout, "timeout", "wall clock after which the run is ended")
	roomFlag(flags, &l.TmpSize, "tmp-size", "size of /tmp, counted as memory when used (default 64MiB, a quarter of a small --memory)")
	roomFlag(flags, &l.WorkspaceSize, "workspace-size", "size of /workload, counted as memory when used (default 256MiB, half of a small --memory)")
	sizeFlag(flags, &l.OutputKept, "output-limit", "1MB", "output kept on record, of each stream; more is passed on and counted")
	sizeFlag(flags, &l.OutputMax, "output-max", "", "output, of both streams, after which the run is ended (default off)")
	pairFlag(flags, "secret", "NAME=@FILE", "secret of the program, from a file: an environment variable, or the path of a file inside if it has several lines; repeatable", r.addSecret)
	pairFlag(flags, "label", "K=V", "label of the run's record; repeatable", r.addLabel)
	flags.StringVar(&r.ID, "id", "", "`ID` of the run, 16 lower-case letters and digits: given twice it is the same run, started once")
	flags.BoolVar(&r.BestEffortLimits, "best-effort-limits", false, "run even where this host cannot enforce a limit; the result lists which")
}

func (r *request) setRuntime(text string) error {
	if !slices.Contains(engine.Runtimes, text) {
		e := engine.Refused("bad_runtime", "cannot accept --runtime=%q: want one of %s", text, strings.Join(engine.Runtimes, ", "))
		if best := spelling.Nearest(text, engine.Runtimes); best != "" {
			e.Fix = "did you mean --runtime " + best + "?"
		}
		return e
	}
	r.Runtime = text
	return nil
}

func (r *request) setUser(text string) error {
	uid, gid, hasGID := strings.Cut(text, ":")
	if !hasGID {
		gid = uid
	}
	for _, id := range []struct {
		text string
		p    *uint32
	}{{uid, &r.UID}, {gid, &r.GID}} {
		n, err := strconv.ParseUint(id.text, 10, 32)
		if err != nil {
			return engine.Refused("bad_user", "cannot accept --user=%q: want numbers, UID or UID:GID; names of an image are not looked up", text)
		}
		if n == 0 || n > 65535 {
			return engine.Refused("bad_user", "cannot accept --user=%q: want ids from 1 to 65535; no program is root inside", text)
		}
		*id.p = uint32(n)
	}
	return nil
}

// addMount takes SRC:PATH, with :ro or :rw behind it. PATH holds no colon.
func (r *request) addMount(text string) error {
	rest, writable := strings.CutSuffix(text, ":rw")
	if !writable {
		rest = strings.TrimSuffix(rest, ":ro")
	}
	at := strings.LastIndexByte(rest, ':')
	if at < 1 || at == len(rest)-1 {
		return engine.Refused("bad_mount", "cannot accept --mount=%q: want SRC:PATH, with :rw behind it if it may be written", text)
	}
	source, err := filepath.Abs(rest[:at])
	if err != nil {
		return engine.Refused("bad_mount", "cannot find --mount of source=%q: %w", rest[:at], err)
	}
	r.Mounts = append(r.Mounts, engine.Mount{Source: source, Path: rest[at+1:], Writable: writable})
	return nil
}

func (r *request) addEnv(key, val string, hasVal bool) error {
	if !engine.ValidEnvName(key) {
		return engine.Refused("bad_env", "cannot accept --env with name=%q: want letters, digits and _", key)
	}
	if !hasVal {
		return engine.Refused("bad_env", "cannot accept --env=%s without a value: nothing of the engine's own environment reaches a program", key).
			WithFix(fmt.Sprintf(`write --env %s="$%s"`, key, key))
	}
	r.Env = append(r.Env, key+"="+val)
	return nil
}

func (r *request) addLabel(key, val string, hasVal bool) error {
	if !hasVal || key == "" {
		return engine.Refused("bad_label", "cannot accept --label=%q: want KEY=VALUE", key)
	}
	if r.Labels == nil {
		r.Labels = map[string]string{}
	}
	r.Labels[key] = val
	return nil
}

// addSecret reads one secret from its file.
//
// SECURITY: no secret is ever taken from the command line, where every user of
// the host could read it in /proc. No message quotes what might be one.
// Holds because: a value that does not name a file is refused.
// Not covered: who else may read the file. Checked by: TestSecretsAreNotTakenFromArgv.
func (r *request) addSecret(name, from string, hasFrom bool) error {
	if !engine.ValidEnvName(name) {
		return engine.Refused("bad_secret", "cannot accept --secret: its name is not an environment variable's").
			WithFix("write --secret NAME=@FILE")
	}
	if !hasFrom {
		return engine.Refused("not_available", "cannot accept --secret=%s without a file: this version has no store of secrets", name).
			WithFix("write --secret " + name + "=@FILE")
	}
	path, isFile := strings.CutPrefix(from, "@")
	if !isFile || path == "" {
		return engine.Refused("bad_secret", "cannot accept a value for --secret=%s: every user of this host can read the command line", name).
			WithFix("put the value into a file, or change it now if it is in use already, and write --secret " + name + "=@FILE")
	}
	for _, s := range r.secrets {
		if s.Name == name {
			return engine.Refused("bad_secret", "cannot accept --secret=%s twice", name)
		}
	}
	val, err := readSecret(path)
	if err != nil {
		return engine.Refused("bad_secret", "cannot read --secret=%s: %w", name, err)
	}
	r.secrets = append(r.secrets, engine.Secret{Name: name, Value: val})
	return nil
}

func readSecret(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	val, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if len(val) > maxSecret {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, maxSecret)
	}
	return val, nil
}

// finish checks what takes more than one flag to see.
func (r *request) finish() error {
	if r.Rootfs != "" {
		abs, err := filepath.Abs(r.Rootfs)
		if err != nil {
			return engine.Failed("bad_root", "cannot find --rootfs=%q: %w", r.Rootfs, err)
		}
		r.Rootfs = abs
	}
	for _, s := range r.secrets {
		for _, kv := range r.Env {
			if strings.HasPrefix(kv, s.Name+"=") {
				return engine.Refused("bad_secret", "cannot accept %s both as --env and as --secret", s.Name)
			}
		}
	}
	return nil
}
