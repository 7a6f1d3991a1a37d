package engine

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/direct-oci/engine/engine/guest"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestSessionMessagesStay holds the messages of version 1 against a file. It may get new
// lines and no other ones: monitors live for months, and have to get along with whoever
// was installed meanwhile.
func TestSessionMessagesStay(t *testing.T) {
	code, cpu := 3, 0.25
	deadline := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	exec := Exec{
		ID: "a.b", Command: []string{"sh", "-c", "x"}, Env: []string{"A=1"}, Workdir: "/tmp", Timeout: time.Second,
		TTY: &WindowSize{24, 80}, Stdin: true, OutputKept: 1000,
	}
	result := ExecResult{
		Reason: ReasonExited, ExitCode: &code, StdoutBytes: 5, StderrBytes: 6, StdoutTruncated: true, DurationMs: 1.5, CPUSecs: &cpu,
	}
	messages := []any{
		sessionRequest{Version: 1, Op: opExec, Exec: &exec},
		sessionRequest{Version: 1, Op: opExec, Exec: &Exec{Command: []string{"x"}, Raw: true}},
		sessionRequest{Version: 1, Op: opAttach, ID: "a.b"},
		sessionRequest{Version: 1, Op: opSignal, ID: "a.b", Signal: 15},
		sessionRequest{Version: 1, Op: opResize, ID: "a.b", Size: &WindowSize{24, 80}},
		sessionRequest{Version: 1, Op: opPause},
		sessionRequest{Version: 1, Op: opResume},
		sessionRequest{Version: 1, Op: opRenew, TTLMs: 60000},
		sessionRequest{Version: 1, Op: opStdin, Data: []byte("x\x00\xff")},
		sessionRequest{Version: 1, Op: opCloseStdin},
		sessionEvent{Version: 1, Event: eventStarted, ID: "a.b", Joined: true},
		sessionEvent{Version: 1, Event: eventChanged},
		sessionEvent{Version: 1, Event: eventExit, ID: "a.b", Result: &result},
		sessionEvent{Version: 1, Event: eventExit, ID: "a.b", Result: &ExecResult{Reason: ReasonTimeout, TimedOut: true}},
		sessionEvent{Version: 1, Event: eventExit, ID: "a.b", Result: &ExecResult{Reason: ReasonSignal, Signal: "SIGSEGV"}},
		sessionEvent{Version: 1, Event: eventDone, Deadline: &deadline},
		sessionEvent{Version: 1, Event: eventDone},
		sessionEvent{Version: 1, Event: eventError, Error: Refused("paused", "cannot start").WithFix("resume it")},
	}
	var got []byte
	for _, m := range messages {
		line, err := encodeLine(m)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, line...)
	}
	path := filepath.Join("testdata", "session-v1.jsonl")
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("messages are\n%s\nwant\n%s", got, want)
	}
	lines := newLineReader(bufio.NewScanner(bytes.NewReader(want)))
	for _, m := range messages {
		read := reflect.New(reflect.TypeOf(m))
		if err := lines.next(read.Interface()); err != nil {
			t.Fatal(err)
		}
		if a, b := jsonOf(t, m), jsonOf(t, read.Interface()); a != b {
			t.Errorf("read back = %s, want %s", b, a)
		}
	}
}

func jsonOf(t *testing.T, v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestNewerMessagesAreUnderstood reads what a later version may add.
func TestNewerMessagesAreUnderstood(t *testing.T) {
	lines := newLineReader(bufio.NewScanner(strings.NewReader(
		`{"version":1,"event":"exit","id":"x","result":{"reason":"exited","exitCode":0,"future":[1]},"more":{}}` + "\n" + "not JSON\n")))
	var e sessionEvent
	if err := lines.next(&e); err != nil || e.Result == nil || *e.Result.ExitCode != 0 {
		t.Errorf("event = %+v, %v", e, err)
	}
	if lines.next(&e) == nil {
		t.Error("a line that is no message was taken for one")
	}
	if err := lines.next(&e); err != errLineEnd {
		t.Errorf("error = %v at the end", err)
	}
}

// FuzzSessionRequest feeds a monitor's parser. Whatever it accepts it can check.
func FuzzSessionRequest(f *testing.F) {
	f.Add([]byte(`{"version":1,"op":"exec","exec":{"command":["x"],"tty":{"rows":1}}}`))
	f.Add([]byte(`{"op":"stdin","data":"AAAA"}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		lines := newLineReader(bufio.NewScanner(bytes.NewReader(line)))
		var q sessionRequest
		for lines.next(&q) == nil {
			if q.Exec != nil && q.Exec.validate() == nil {
				e := q.Exec.settle()
				if err := e.validate(); err != nil || e.ID == "" || !sameExec(e, e.settle()) {
					t.Errorf("exec %+v settles to %+v: %v", *q.Exec, e, err)
				}
			}
			_ = validSignal(syscall.Signal(q.Signal))
		}
	})
}

func TestExecIsChecked(t *testing.T) {
	good := Exec{Command: []string{"x"}}
	tests := map[string]struct {
		change func(*Exec)
		kind   string
	}{
		"good":              {func(*Exec) {}, ""},
		"longest id":        {func(e *Exec) { e.ID = strings.Repeat("a", 128) }, ""},
		"too long an id":    {func(e *Exec) { e.ID = strings.Repeat("a", 129) }, "bad_id"},
		"id with a slash":   {func(e *Exec) { e.ID = "a/b" }, "bad_id"},
		"hidden id":         {func(e *Exec) { e.ID = ".a" }, "bad_id"},
		"no command":        {func(e *Exec) { e.Command = nil }, "bad_command"},
		"empty command":     {func(e *Exec) { e.Command = []string{""} }, "bad_command"},
		"NUL":               {func(e *Exec) { e.Command = []string{"a\x00"} }, "bad_command"},
		"bad variable":      {func(e *Exec) { e.Env = []string{"=x"} }, "bad_env"},
		"many variables":    {func(e *Exec) { e.Env = make([]string, 5000) }, "bad_env"},
		"relative workdir":  {func(e *Exec) { e.Workdir = "x" }, "bad_workdir"},
		"workdir in /proc":  {func(e *Exec) { e.Workdir = "/proc/self" }, "bad_workdir"},
		"negative timeout":  {func(e *Exec) { e.Timeout = -1 }, "bad_limit"},
		"timeout of a life": {func(e *Exec) { e.Timeout = 1 << 62 }, "bad_limit"},
		"negative output":   {func(e *Exec) { e.OutputKept = -1 }, "bad_limit"},
		"raw terminal":      {func(e *Exec) { e.Raw, e.TTY = true, &WindowSize{} }, "bad_session"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			e := good
			tt.change(&e)
			got := ""
			if err := e.validate(); err != nil {
				got = AsError(err).Kind
			}
			if got != tt.kind {
				t.Errorf("kind = %q, want %q", got, tt.kind)
			}
		})
	}
}

// TestStdinRecords reads what a terminal's helper is sent.
func TestStdinRecords(t *testing.T) {
	ours, theirs, err := programPipe(true, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	p := &stdinPipe{pipe: ours, terminal: guest.NewPTYWriter(ours)}
	p.resize(WindowSize{24, 80})
	p.write([]byte("ab"))
	// A size that comes while a record is being written follows it, the last one alone.
	p.writing.Lock()
	p.resize(WindowSize{1, 2})
	p.resize(WindowSize{3, 4})
	p.writing.Unlock()
	p.write([]byte("c"))
	p.finish()
	p.close()
	var got bytes.Buffer
	if _, err := got.ReadFrom(theirs); err != nil {
		t.Fatal(err)
	}
	want := "R\x04\x00\x00\x00\x18\x00\x50\x00" + "D\x02\x00\x00\x00ab" + "R\x04\x00\x00\x00\x03\x00\x04\x00" + "D\x01\x00\x00\x00c" + "E\x00\x00\x00\x00"
	if got.String() != want {
		t.Errorf("records = %q, want %q", got.String(), want)
	}
	p.write([]byte("late")) // is dropped
}
