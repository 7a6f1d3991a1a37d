package sessions

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/integration/testenv"
)

// TestTerminal gives a program a terminal: it has the size that was asked for, then the
// next one, reads what is typed, and its keys make signals.
func TestTerminal(t *testing.T) {
	eachRuntime(t, func(t *testing.T, b *bed) {
		id := b.session()
		e := shell(`test -t 0 && test -t 1 && test -t 2 && echo terminal; stty size
			read line; echo "read $line"; stty size; exec sleep 600`)
		e.TTY = &engine.WindowSize{Rows: 24, Columns: 80}
		c := b.exec(id, e)
		shows := func(words string) {
			t.Helper()
			var stdout, stderr string
			defer func() {
				if t.Failed() {
					t.Logf("the terminal showed %q; stderr = %q", stdout, stderr)
				}
			}()
			testenv.WaitFor(t, testenv.Patience, "the terminal to show "+words, func() bool {
				stdout, stderr = b.output(id, c.ID())
				return strings.Contains(strings.ReplaceAll(stdout, "\r\n", "\n"), words)
			})
		}
		shows("terminal\n24 80\n")
		if err := c.Resize(engine.WindowSize{Rows: 30, Columns: 100}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte("typed\n")); err != nil {
			t.Fatal(err)
		}
		shows("read typed\n30 100\n")
		if _, err := c.Write([]byte{3}); err != nil { // ^C
			t.Fatal(err)
		}
		r := b.end(c)
		if code := 128 + int(unix.SIGINT); r.Signal != "SIGINT" && (r.ExitCode == nil || *r.ExitCode != code) {
			t.Errorf("result = %s, want the end by SIGINT", show(r))
		}
		if _, stderr := b.output(id, c.ID()); stderr != "" {
			t.Errorf("stderr = %q, want all on stdout", stderr)
		}
	})
}
