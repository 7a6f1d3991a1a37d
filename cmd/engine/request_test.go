package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/direct-oci/engine/engine"
)

// parse gives args to the flags of run.
func parse(t *testing.T, args ...string) (*request, []string, error) {
	t.Helper()
	r := newRequest()
	flags := pflag.NewFlagSet("run", pflag.ContinueOnError)
	flags.SetInterspersed(false)
	r.addProgramFlags(flags)
	r.addLimitFlags(flags)
	if err := flags.Parse(args); err != nil {
		return r, nil, err
	}
	return r, flags.Args(), r.finish()
}

func TestFlagsBecomeTheRequest(t *testing.T) {
	base := newRequest().Request
	tests := []struct {
		name string
		args string
		want func(*engine.Request)
	}{
		{"nothing asked for gives the defaults", "", func(*engine.Request) {}},
		{"an image and a runtime", "--image team/node:20 --runtime=runsc", func(r *engine.Request) { r.Image, r.Runtime = "team/node:20", "runsc" }},
		{"an absolute directory", "--rootfs /srv/root/", func(r *engine.Request) { r.Rootfs = "/srv/root" }},
		{"sizes in docker's, Kubernetes' and our units", "--memory 256m --tmp-size 1Gi --workspace-size 1MB", func(r *engine.Request) {
			r.Limits.Memory, r.Limits.TmpSize, r.Limits.WorkspaceSize = 256<<20, 1<<30, 1e6
		}},
		{"output limits", "--output-limit 0 --output-max 2GB", func(r *engine.Request) { r.Limits.OutputKept, r.Limits.OutputMax = 0, 2e9 }},
		{"numbers", "--cpus 0.25 --pids 12", func(r *engine.Request) { r.Limits.CPUs, r.Limits.Pids = 0.25, 12 }},
		{"a time with a unit", "--timeout 1m30s", func(r *engine.Request) { r.Limits.Timeout = 90 * time.Second }},
		{"a time in seconds", "--timeout 90", func(r *engine.Request) { r.Limits.Timeout = 90 * time.Second }},
		{"a time in parts of a second", "--timeout .5", func(r *engine.Request) { r.Limits.Timeout = time.Second / 2 }},
		{"user and group", "--user 1000:2000", func(r *engine.Request) { r.UID, r.GID = 1000, 2000 }},
		{"a user is its own group", "--user 1000", func(r *engine.Request) { r.UID, r.GID = 1000, 1000 }},
		{"environment in order, with = and nothing", "--env B=x=y --env A=", func(r *engine.Request) { r.Env = []string{"B=x=y", "A="} }},
		{"a comma splits nothing", "--env A=1,2 --label l=a,b", func(r *engine.Request) {
			r.Env, r.Labels = []string{"A=1,2"}, map[string]string{"l": "a,b"}
		}},
		{"the last label of a name counts", "--label k=1 --label k=2", func(r *engine.Request) { r.Labels = map[string]string{"k": "2"} }},
		{"where to start, and best effort", "--workdir /tmp --best-effort-limits", func(r *engine.Request) { r.Workdir, r.BestEffortLimits = "/tmp", true }},
		{"mounts", "--mount /srv/a:/mnt/a --mount /srv/b:c:/mnt/b:rw --mount /srv/d/:/mnt/d:ro", func(r *engine.Request) {
			r.Mounts = []engine.Mount{{Source: "/srv/a", Path: "/mnt/a"}, {Source: "/srv/b:c", Path: "/mnt/b", Writable: true}, {Source: "/srv/d", Path: "/mnt/d"}}
		}},
		{"terminals", "--terminals", func(r *engine.Request) { r.Terminals = true }},
		{"no network, said aloud", "--network none", func(*engine.Request) {}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, _, err := parse(t, strings.Fields(tt.args)...)
			if err != nil {
				t.Fatal(err)
			}
			want := base
			tt.want(&want)
			if !reflect.DeepEqual(got.Request, want) {
				t.Errorf("%s = %+v\nwant %+v", tt.args, got.Request, want)
			}
		})
	}
}

func TestRelativeRootfsIsMadeAbsolute(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	got, _, err := parse(t, "--rootfs", "root")
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(dir, "root"); got.Rootfs != want {
		t.Errorf("rootfs = %q, want %q", got.Rootfs, want)
	}
}

func TestFlagsEndAtTheCommand(t *testing.T) {
	for _, line := range []string{
		"--memory 1g ls --memory 2g -l",
		"--memory 1g -- ls --memory 2g -l",
	} {
		got, rest, err := parse(t, strings.Fields(line)...)
		if err != nil {
			t.Fatal(err)
		}
		if want := []string{"ls", "--memory", "2g", "-l"}; !reflect.DeepEqual(rest, want) || got.Limits.Memory != 1<<30 {
			t.Errorf("%s leaves %q with memory %d, want %q with 1 GiB", line, rest, got.Limits.Memory, want)
		}
	}
}

func TestFlagsAreRefusedAsRequests(t *testing.T) {
	for _, line := range []string{
		"--memory 1.0000001KiB", "--memory -1", "--timeout -5", "--timeout NaN", "--timeout 1e300", "--pids 1.5",
		"--user 0", "--user 1000:0", "--user 65536", "--user 4294967296", "--user 1:2:3", "--user :", "--user -1", "--user nobody",
		"--env =x", "--env A-B=x", "--env PATH", "--label =x", "--network host",
		"--secret =@f", "--secret A=@", "--secret A=", "--apply", "--apply=false",
	} {
		_, _, err := parse(t, strings.Fields(line)...)
		var e *engine.Error
		if !errors.As(err, &e) || e.Class != engine.ClassRequest {
			t.Errorf("%s = %v, want an error of class request", line, err)
		}
	}
}

func TestSecretsAreReadAsTheyStand(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	want := []byte("-----BEGIN KEY-----\nabc\n\x00\xff\n")
	if err := os.WriteFile(path, want, 0o600); err != nil {
		t.Fatal(err)
	}
	r, _, err := parse(t, "--secret", "KEY=@"+path)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.secrets) != 1 || r.secrets[0].Name != "KEY" || !bytes.Equal(r.secrets[0].Value, want) {
		t.Errorf("secrets = %q, want KEY with the file's bytes", r.secrets)
	}
	if len(r.Env) != 0 {
		t.Errorf("the request's environment holds %q", r.Env)
	}
	if err := os.WriteFile(path, make([]byte, maxSecret+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := parse(t, "--secret", "KEY=@"+path); err == nil || !strings.Contains(err.Error(), "larger") {
		t.Errorf("a secret that is too large = %v", err)
	}
}

func TestSecretsAreNotTakenFromArgv(t *testing.T) {
	const hidden = "hunter2"
	for _, arg := range []string{"KEY=" + hidden, "KEY=@@" + hidden, "bad name=" + hidden, hidden + "-not-a-name", "KEY=" + hidden + "@file"} {
		r, _, err := parse(t, "--secret", arg)
		if err == nil {
			t.Errorf("--secret %s was taken", arg)
			continue
		}
		var e *engine.Error
		// What stands after @ is a file's name, and said aloud.
		if errors.As(err, &e) && strings.Contains(e.Message+e.Fix, hidden) && !strings.Contains(arg, "=@") {
			t.Errorf("--secret %s is repeated in %q", arg, e.Message)
		}
		if len(r.secrets) != 0 {
			t.Errorf("--secret %s left a secret", arg)
		}
	}
}
