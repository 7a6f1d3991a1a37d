package sessions

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/integration/testenv"
)

// command runs engine on the bed's directories.
func (b *bed) command(args ...string) (output string, status int) {
	b.t.Helper()
	args = append(args, "--state-dir", b.StateDir, "--run-dir", b.RunDir, "--cgroup-root", b.CgroupRoot)
	cmd := exec.CommandContext(within(b.t), testenv.Binary(b.t, "engine"), args...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		b.t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// TestCommandsKnowSessions looks at a session, and ends it, by the command line.
func TestCommandsKnowSessions(t *testing.T) {
	b := newBed(t, "embedded")
	id := b.session()
	e := shell("echo out; echo err >&2; exit 3")
	e.ID = "first"
	wantExit(t, b.end(b.exec(id, e)), 3)
	if out, status := b.command("logs", id, "first"); out != "out\nerr\n" && out != "err\nout\n" || status != 0 {
		t.Errorf("logs of the exec: status %d, %q", status, out)
	}
	if out, status := b.command("logs", id); !strings.Contains(out, "first") || status != 125 {
		t.Errorf("logs of the session: status %d, %q, want the names of its execs", status, out)
	}
	if out, _ := b.command("logs", id, "second"); !strings.Contains(out, "cannot find exec=second") {
		t.Errorf("logs of no exec: %q", out)
	}
	if out, _ := b.command("ps"); !strings.Contains(out, id) || !strings.Contains(out, "(session)") {
		t.Errorf("ps: %q", out)
	}
	var r engine.Record
	out, _ := b.command("inspect", id)
	if err := json.Unmarshal([]byte(out), &r); err != nil || r.Deadline == nil || r.Request.Session == nil || !r.Alive {
		t.Errorf("inspect: %v, %s", err, out)
	}
	for _, command := range []string{"kill", "rm"} {
		testenv.WaitFor(t, testenv.Patience, command+" to succeed", func() bool {
			_, status := b.command(command, id)
			return status == 0
		})
	}
	if _, err := b.Load(id); engine.AsError(err).Kind != "not_found" {
		t.Errorf("after rm: %v", err)
	}
}
