package guest

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

const busybox = "/bin/busybox"

// terminal is a program on a terminal, seen from outside.
type terminal struct {
	*PTYWriter
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	shown *os.File
	seen  bytes.Buffer
}

// newTerminal starts a shell script on a terminal of 24 rows and 80 columns.
func newTerminal(t *testing.T, command ...string) *terminal {
	t.Helper()
	args := PTYCommand(24, 80, command)
	cmd := guestCommand(t, args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Env = []string{"PATH=/run/none"}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	must(t, err)
	r, w, err := os.Pipe()
	must(t, err)
	cmd.Stdout = w
	must(t, cmd.Start())
	w.Close()
	t.Cleanup(func() {
		in.Close()
		r.Close()
		cmd.Process.Kill()
		cmd.Wait()
	})
	return &terminal{NewPTYWriter(in), t, cmd, in, r, bytes.Buffer{}}
}

func onTerminal(t *testing.T, script string) *terminal {
	return newTerminal(t, busybox, "sh", "-c", script)
}

// until reads what is shown until text is in it.
func (tm *terminal) until(text string) {
	tm.t.Helper()
	tm.shown.SetReadDeadline(time.Now().Add(bound))
	for !strings.Contains(tm.seen.String(), text) {
		chunk := make([]byte, 4096)
		n, err := tm.shown.Read(chunk)
		tm.seen.Write(chunk[:n])
		if err != nil {
			tm.t.Fatalf("%v before %q was shown; shown: %q", err, text, tm.seen.String())
		}
	}
}

// end reads to the end of what is shown, and returns how the program ended.
func (tm *terminal) end() syscall.WaitStatus {
	tm.t.Helper()
	tm.shown.SetReadDeadline(time.Now().Add(bound))
	if _, err := io.Copy(&tm.seen, tm.shown); err != nil {
		tm.t.Fatalf("%v; shown: %q", err, tm.seen.String())
	}
	tm.cmd.Wait()
	return tm.cmd.ProcessState.Sys().(syscall.WaitStatus)
}

func TestTerminalEndsAsItsProgram(t *testing.T) {
	for _, tt := range []struct {
		name   string
		script string
		code   int
		signal syscall.Signal
	}{
		{"success", "exit 0", 0, 0},
		{"failure", "exit 37", 37, 0},
		{"a status of our own is the program's", "exit 125", 125, 0},
		{"signal", "kill -TERM $$", -1, syscall.SIGTERM},
		{"a signal that dumps core", "kill -SEGV $$", -1, syscall.SIGSEGV},
		{"kill", "kill -KILL $$", -1, syscall.SIGKILL},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ws := onTerminal(t, tt.script).end()
			if ws.ExitStatus() != tt.code || ws.Signaled() != (tt.signal != 0) || tt.signal != 0 && ws.Signal() != tt.signal || ws.CoreDump() {
				t.Errorf("status = %v, want code %d, signal %d, no core", ws, tt.code, tt.signal)
			}
		})
	}
	for path, want := range map[string]int{"/nowhere/tool": 127, "tool": 127, "/etc/passwd": 126, "/etc": 126} {
		cmd := guestCommand(t, "pty", "--", path)
		cmd.Env = []string{"PATH=/run/none"}
		out, _ := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != want || !strings.Contains(string(out), "cannot run command="+path) {
			t.Errorf("%s: status %d and %q, want %d", path, got, out, want)
		}
	}
}

func TestTerminalIsOne(t *testing.T) {
	tm := onTerminal(t, `/bin/busybox stty size; test -t 0 -a -t 1 -a -t 2 && echo all three; echo direct >/dev/tty; /bin/busybox ls -l /proc/self/fd 2>/dev/null | /bin/busybox grep -c 'ptmx\|signalfd'`)
	ws := tm.end()
	want := "24 80\r\nall three\r\ndirect\r\n0\r\n" // nothing of the guest's is handed on
	if got := tm.seen.String(); got != want || ws.ExitStatus() != 1 {
		t.Errorf("shown: %q, status %v, want %q", got, ws, want)
	}
}

// TestTerminalShowsAllBeforeItEnds has a program write much and leave at once.
func TestTerminalShowsAllBeforeItEnds(t *testing.T) {
	for range 20 {
		tm := onTerminal(t, "/bin/busybox seq 20000; echo the end")
		if ws := tm.end(); ws.ExitStatus() != 0 {
			t.Fatalf("status = %v", ws)
		}
		lines := strings.Split(strings.TrimSuffix(tm.seen.String(), "\r\n"), "\r\n")
		if len(lines) != 20001 || lines[20000] != "the end" {
			t.Fatalf("%d lines are shown, the last %q", len(lines), lines[len(lines)-1])
		}
	}
}

// TestTerminalDoesNotWaitForTheBackground leaves a program behind that holds the terminal
// and writes for ever.
func TestTerminalDoesNotWaitForTheBackground(t *testing.T) {
	tm := onTerminal(t, `trap '' HUP; while echo noise 2>/dev/null; do :; done & echo the end; exit 3`)
	if ws := tm.end(); ws.ExitStatus() != 3 {
		t.Errorf("status = %v, want 3", ws)
	}
	if !strings.Contains(tm.seen.String(), "the end") {
		t.Error("what the program itself wrote is not shown")
	}
}

func TestTerminalKeysAndSize(t *testing.T) {
	// A signal interrupts read.
	tm := onTerminal(t, `trap '/bin/busybox stty size' WINCH; echo ready
		until read line; do :; done; echo "got $line"; /bin/busybox cat; echo over`)
	tm.until("ready")
	must(t, tm.Resize(50, 132))
	tm.until("50 132")
	must(t, tm.Resize(10, 20))
	tm.until("10 20")
	io.WriteString(tm, "hello\n")
	tm.until("got hello")
	must(t, tm.End())
	if ws := tm.end(); ws.ExitStatus() != 0 || !strings.HasSuffix(tm.seen.String(), "over\r\n") {
		t.Errorf("status = %v, shown: %q", ws, tm.seen.String())
	}
}

// TestTerminalKeysEnd ends the keys at the start of a line, within one, and by the end of
// stdin, for a program that reads to the end; and one end is not two.
func TestTerminalKeysEnd(t *testing.T) {
	for _, tt := range []struct{ typed, want string }{{"", "[]"}, {"a line\n", "[a line]"}, {"no line", "[no line]"}} {
		for _, how := range []string{"frame", "end of stdin"} {
			tm := onTerminal(t, `/bin/busybox stty -echo; echo go; x=$(/bin/busybox cat); echo "[$x]"; read y; echo second`)
			tm.until("go")
			io.WriteString(tm, tt.typed)
			if how == "frame" {
				must(t, tm.End())
			} else {
				tm.in.Close()
			}
			tm.until(tt.want + "\r\n")
			tm.shown.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			if n, err := tm.shown.Read(make([]byte, 100)); err == nil {
				t.Errorf("typed %q, end by %s: %d bytes more are shown: a second reader met an end, too", tt.typed, how, n)
			}
		}
	}
}

func TestTerminalBulkKeys(t *testing.T) {
	tm := onTerminal(t, `/bin/busybox stty raw -echo; echo go; /bin/busybox head -c 300000 | /bin/busybox md5sum`)
	tm.until("go")
	data := bytes.Repeat([]byte("0123456789"), 30000)
	if n, err := tm.Write(data); n != len(data) || err != nil {
		t.Fatalf("Write = %d, %v", n, err)
	}
	want, err := exec.Command(busybox, "sh", "-c", "for i in $(/bin/busybox seq 30000); do printf 0123456789; done | /bin/busybox md5sum").Output()
	must(t, err)
	if ws := tm.end(); ws.ExitStatus() != 0 || !strings.Contains(tm.seen.String(), strings.Fields(string(want))[0]) {
		t.Errorf("status = %v, shown: %q, want %s", ws, tm.seen.String(), want)
	}
}

// TestTerminalSignals sends signals as the keyboard does, and as engine-init does.
func TestTerminalSignals(t *testing.T) {
	t.Run("interrupt by the keyboard", func(t *testing.T) {
		tm := onTerminal(t, "trap 'echo interrupted; exit 9' INT; echo ready; while :; do :; done")
		tm.until("ready")
		io.WriteString(tm, "\x03")
		if ws := tm.end(); ws.ExitStatus() != 9 || !strings.Contains(tm.seen.String(), "interrupted") {
			t.Errorf("status = %v, shown: %q", ws, tm.seen.String())
		}
	})
	t.Run("an interrupt that nobody catches", func(t *testing.T) {
		tm := newTerminal(t, busybox, "sleep", "100")
		for range 100 { // until it has the terminal
			io.WriteString(tm, "\x03")
			time.Sleep(10 * time.Millisecond)
		}
		if ws := tm.end(); !ws.Signaled() || ws.Signal() != syscall.SIGINT {
			t.Errorf("status = %v, want death by SIGINT", ws)
		}
	})
	for name, script := range map[string]string{
		"to the group":                         "",
		"to the group, which a shell has left": "set -m; ", // as every shell does that has job control
	} {
		t.Run(name, func(t *testing.T) {
			tm := onTerminal(t, script+`trap 'echo told; exit 5' TERM; echo ready; while :; do :; done`)
			tm.until("ready")
			must(t, syscall.Kill(-tm.cmd.Process.Pid, syscall.SIGTERM))
			ws := tm.end()
			if ws.ExitStatus() != 5 || strings.Count(tm.seen.String(), "told") != 1 {
				t.Errorf("status = %v, shown: %q, want the trap's, once", ws, tm.seen.String())
			}
		})
	}
	t.Run("kill of the group", func(t *testing.T) {
		tm := onTerminal(t, "echo ready; while :; do :; done")
		tm.until("ready")
		must(t, syscall.Kill(-tm.cmd.Process.Pid, syscall.SIGKILL))
		if ws := tm.end(); ws.Signal() != syscall.SIGKILL {
			t.Errorf("status = %v, want SIGKILL", ws)
		}
	})
}

// TestTerminalRefusesFrames sends what PTYWriter does not.
func TestTerminalRefusesFrames(t *testing.T) {
	for name, frame := range map[string]string{
		"unknown type": "X\x00\x00\x00\x00", "too many keys": "D\x01\x00\x01\x00", "a size of three bytes": "R\x03\x00\x00\x00abc",
		"an end with something": "E\x01\x00\x00\x00x", "far too many": "D\xff\xff\xff\xff",
	} {
		t.Run(name, func(t *testing.T) {
			cmd := guestCommand(t, "pty", "--", busybox, "sleep", "100")
			cmd.Stdin = strings.NewReader(frame)
			out, _ := cmd.CombinedOutput()
			if got := cmd.ProcessState.ExitCode(); got != 125 || !strings.Contains(string(out), "cannot understand") {
				t.Errorf("status = %d, said %q, want 125", got, out)
			}
		})
	}
	for _, args := range [][]string{{"pty"}, {"pty", "--"}, {"pty", "80", "--", "x"}, {"pty", "1x2", "x"}, {"pty", "1x70000", "--", "x"}, {"other"}, {}} {
		cmd := guestCommand(t, args...)
		if cmd.Run(); cmd.ProcessState.ExitCode() != 125 {
			t.Errorf("guest %q: status %d, want 125", args, cmd.ProcessState.ExitCode())
		}
	}
}
