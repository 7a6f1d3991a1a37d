package sessions

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/engine/guest"
)

// TestOutputTogetherIsBounded asks for more output to be kept than a session may have on
// the host's disk.
func TestOutputTogetherIsBounded(t *testing.T) {
	eachRuntime(t, func(t *testing.T, b *bed) {
		id := b.session()
		large := func(name, script string) engine.Exec {
			e := shell(script)
			e.ID, e.OutputKept = name, 1<<30
			return e
		}
		first := b.exec(id, large("first", "sleep 100"))
		second := b.exec(id, large("second", "sleep 100"))
		defer second.Close()
		_, err := b.Exec(within(t), id, large("third", "true"))
		wantKind(t, err, "too_many")
		again := b.exec(id, large("first", "sleep 100"))
		again.Close()
		if err := first.Signal(unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		b.end(first)
		first.Close()
		for i := range 3 { // each takes what it wrote, and no more
			c := b.exec(id, large(string(rune('a'+i)), "echo x"))
			b.end(c)
			c.Close()
		}
	})
}

// TestCommandsTogetherAreBounded starts programs with environments as large as they may be,
// which whoever lists them has in memory.
func TestCommandsTogetherAreBounded(t *testing.T) {
	eachRuntime(t, func(t *testing.T, b *bed) {
		id := b.session()
		wide := engine.Exec{Command: []string{"sleep", "100"}}
		for i := range 9 {
			wide.Env = append(wide.Env, fmt.Sprintf("A%d=%s", i, strings.Repeat("x", 100<<10)))
		}
		for n := 0; ; n++ {
			c, err := b.Exec(within(t), id, wide)
			if err != nil {
				wantKind(t, err, "too_many")
				if n < 10 {
					t.Errorf("only %d were started", n)
				}
				break
			}
			defer c.Close()
			if n > 50 {
				t.Fatalf("%d run", n)
			}
		}
		if _, text := b.run(id, "echo small"); text != "small\n" {
			t.Errorf("a small one: %q", text)
		}
	})
}

// TestFilesHelperIsOutOfReach has a program write into the memory of the one that reaches the
// sandbox's files, which is of the same user, as far as it can be opened.
func TestFilesHelperIsOutOfReach(t *testing.T) {
	eachRuntime(t, func(t *testing.T, b *bed) {
		id := b.session()
		conn, err := b.Exec(within(t), id, engine.Exec{Command: guest.FilesCommand(), Raw: true})
		if err != nil {
			t.Fatal(err)
		}
		f := guest.NewFiles(conn)
		defer f.Close()
		if _, err := f.Stat(within(t), "/"); err != nil {
			t.Fatal(err)
		}
		if _, found := b.run(id, `i=1; while [ $i -lt 60 ]; do
			[ $i != $$ ] && true 3>>/proc/$i/mem && echo reached $(cat /proc/$i/cmdline | tr '\0' ' ')
			i=$((i+1)); done 2>/dev/null; echo over`); found != "over\n" {
			t.Errorf("a program found %q", found)
		}
	})
}

// TestHostileProgram lets a program do its worst to the session that it runs in: it
// cannot reach process 1, nor see sockets of the engine's, nor keep others from starting
// and ending with results of their own.
func TestHostileProgram(t *testing.T) {
	eachRuntime(t, func(t *testing.T, b *bed) {
		id := b.session()
		other := b.session()
		_, found := b.run(id, `
			for i in 9 19 15 2 17; do kill -$i 1 2>/dev/null && [ $i = 9 ] && echo killed; done
			kill -STOP 1; kill -KILL 1
			for f in environ maps mem; do cat /proc/1/$f >/dev/null 2>&1 && echo read $f; done
			(echo >/proc/1/fd/3) 2>/dev/null && echo wrote to the control socket
			for f in 3 4 5 6 7; do [ -e /proc/self/fd/$f ] && readlink /proc/self/fd/$f; done
			find / -xdev -name '*.sock' 2>/dev/null
			ls /run/engine /var/lib/engine 2>/dev/null
			grep -v Path /proc/net/unix 2>/dev/null | grep session
			echo over`)
		// gVisor takes a signal that it does not deliver for one that it did.
		if got := strings.TrimPrefix(found, "killed\n"); got != "over\n" {
			t.Errorf("a program found %q", got)
		}
		// It stops, kills and fills what it can reach, for ever.
		hog := b.exec(id, shell(`trap '' TERM INT HUP
			(while :; do kill -STOP -1; done) & (while :; do kill -CONT -1; done) &
			while :; do echo "ENG3 fake frames"; done`))
		deadline := time.Now().Add(time.Second)
		for time.Now().Before(deadline) {
			e := engine.Exec{Command: []string{"true"}, Timeout: 2 * time.Second}
			c, err := b.Exec(within(t), id, e)
			if err != nil {
				continue // it was stopped, or killed, before it was a program
			}
			r := b.end(c)
			c.Close()
			if r.Reason != engine.ReasonExited && r.Reason != engine.ReasonTimeout && r.Reason != engine.ReasonSignal {
				t.Fatalf("result = %s", show(r))
			}
		}
		if r, stdout := b.run(other, "echo untouched"); stdout != "untouched\n" {
			t.Errorf("in another session: result = %s, stdout = %q", show(r), stdout)
		}
		if err := hog.Signal(unix.SIGKILL); err != nil {
			t.Error(err)
		}
		if r := b.end(hog); r.Signal != "SIGKILL" {
			t.Errorf("result = %s, want SIGKILL", show(r))
		}
		if err := b.Kill(within(t), id); err != nil {
			t.Fatal(err)
		}
	})
}
