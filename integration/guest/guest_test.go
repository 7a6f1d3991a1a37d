package guest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/direct-oci/engine/engine/guest"
	"github.com/direct-oci/engine/integration/testenv"
)

// TestFilesWithoutAnyProgram reaches the files of a sandbox whose image holds no program,
// with the sandbox's rights and no more.
func TestFilesWithoutAnyProgram(t *testing.T) {
	eachRuntime(t, func(t *testing.T, b *bed) {
		conn, wait := b.converse(b.run(b.empty(), nil, guest.FilesCommand()...))
		f := guest.NewFiles(conn)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		data := bytes.Repeat([]byte("0123456789abcdef"), 20_000)
		_, err := f.Write(ctx, "/workload/a/b/file", bytes.NewReader(data), guest.WriteOptions{Parents: true})
		must(err)
		if got, err := f.Read(ctx, "/workload/a/b/file", 0, 10<<20); err != nil || !bytes.Equal(got, data) {
			t.Errorf("Read = %d bytes, %v, want the %d written", len(got), err, len(data))
		}
		if info, err := f.Stat(ctx, "/workload/a/b/file"); err != nil || info.UID != 65532 || info.GID != 65532 || info.Mode != 0o644 {
			t.Errorf("Stat = %+v, %v, want a file of the sandbox's user", info, err)
		}
		if got, err := f.Read(ctx, "/image", 0, 100); err != nil || string(got) != "of the image" {
			t.Errorf("a file of the image = %q, %v", got, err)
		}
		for _, path := range []string{"/image", "/etc/passwd", "/.engine/init", "/.engine/new", "/dev/null"} {
			if _, err := f.Write(ctx, path, strings.NewReader("x"), guest.WriteOptions{}); err == nil {
				t.Errorf("%s was written", path)
			}
		}
		if got, err := f.Read(ctx, "/proc/1/environ", 0, 100); !errors.Is(err, fs.ErrPermission) && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("PID 1's environment = %q, %v", got, err)
		}
		must(f.Rename(ctx, "/workload/a/b/file", "/workload/a/moved", false))
		must(f.Symlink(ctx, "moved", "/workload/a/link"))
		must(f.Chmod(ctx, "/workload/a/moved", 0o600))
		var archive bytes.Buffer
		done, err := f.Export(ctx, "/workload", &archive, guest.ArchiveLimits{})
		if err != nil || done.Entries != 4 || len(done.Skipped) > 0 {
			t.Errorf("Export = %+v, %v, want four entries", done, err)
		}
		_, err = f.Import(ctx, "/tmp/copy", bytes.NewReader(archive.Bytes()), guest.ArchiveLimits{})
		must(err)
		if got, err := f.Read(ctx, "/tmp/copy/a/link", 0, 10<<20); err != nil || !bytes.Equal(got, data) {
			t.Errorf("the copy = %d bytes, %v", len(got), err)
		}
		must(f.Remove(ctx, "/workload/a", true))
		if p, err := f.List(ctx, "/workload", 0, 0); err != nil || len(p.Entries) != 0 {
			t.Errorf("List = %+v, %v, want nothing", p, err)
		}
		checkWatch(t, ctx, f)
		f.Close()
		if got := wait(); got != 0 {
			t.Errorf("status = %d, want 0 at the end of the conversation", got)
		}
	})
}

func checkWatch(t *testing.T, ctx context.Context, f *guest.Files) {
	t.Helper()
	w, err := f.Watch(ctx, "/tmp", true)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(ctx, "/tmp/watched", strings.NewReader("x"), guest.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	for e := range w.Events() {
		if e.Path == "/tmp/watched" && e.Type == guest.MovedTo {
			return
		}
	}
	t.Errorf("the file is not told: %v", w.Err())
}

// TestTerminals gives a program a terminal: of its size, alive to keys and signals, and
// the sandbox's own.
func TestTerminals(t *testing.T) {
	eachRuntime(t, func(t *testing.T, b *bed) {
		root := testenv.BusyboxRoot(t)
		script := `tty; stty size; trap 'stty size' WINCH; echo ready; until read line; do :; done; echo "got $line"; trap 'echo caught; exit 3' INT; while :; do sleep 1; done`
		conn, wait := b.converse(b.run(root, []string{"--terminals"}, guest.PTYCommand(40, 100, []string{"/bin/busybox", "sh", "-c", script})...))
		keys := guest.NewPTYWriter(conn)
		shown := &screen{t: t, from: conn}
		shown.until("ready")
		if got := strings.Fields(shown.seen.String()); !slices.Equal(got, []string{"/dev/pts/0", "40", "100", "ready"}) {
			t.Errorf("shown: %q, want the sandbox's first terminal of 40 by 100", got)
		}
		if err := keys.Resize(50, 132); err != nil {
			t.Fatal(err)
		}
		shown.until("50 132")
		io.WriteString(keys, "hello\n")
		shown.until("got hello")
		time.Sleep(200 * time.Millisecond) // for the shell to set its trap
		io.WriteString(keys, "\x03")
		shown.until("caught")
		if got := wait(); got != 3 {
			t.Errorf("status = %d, want the program's 3", got)
		}
	})
}

// screen is what a terminal shows.
type screen struct {
	t    *testing.T
	from io.Reader
	seen bytes.Buffer
}

func (s *screen) until(text string) {
	s.t.Helper()
	for !strings.Contains(s.seen.String(), text) {
		chunk := make([]byte, 4096)
		n, err := s.from.Read(chunk)
		s.seen.Write(chunk[:n])
		if err != nil {
			s.t.Fatalf("%v before %q was shown; shown: %q", err, text, s.seen.String())
		}
	}
}

// TestTerminalsAreFewAndAsked has a program take terminals that nobody granted, and more
// than there are.
func TestTerminalsAreFewAndAsked(t *testing.T) {
	eachRuntime(t, func(t *testing.T, b *bed) {
		if b.gvisor() {
			t.Skip("gVisor's terminals are of its own kernel, and always there")
		}
		nested := func(n int) []string {
			var command []string
			for range n {
				command = append(command, guest.Path, "pty", "--")
			}
			return append(command, "/bin/busybox", "echo", "deep")
		}
		root := testenv.BusyboxRoot(t)
		for _, tt := range []struct {
			name   string
			flags  []string
			depth  int
			status int
			want   string
		}{
			{"not asked for", nil, 1, 125, "cannot open /dev/ptmx: No such file or directory"},
			{"one in the other", []string{"--terminals"}, 2, 0, "deep"},
			{"as many as there are", []string{"--terminals"}, 64, 0, "deep"},
			{"one more", []string{"--terminals"}, 65, 125, "cannot open /dev/ptmx: No space left on device"},
		} {
			if tt.depth > 2 && testenv.InVM() {
				continue // an emulated processor copies each byte as often
			}
			call := testenv.Exec(t, b.run(root, tt.flags, nested(tt.depth)...)...)
			if call.Status != tt.status || !strings.Contains(call.Stdout+call.Stderr, tt.want) {
				t.Errorf("%s: %s\nwant status %d and %q", tt.name, call, tt.status, tt.want)
			}
		}
		call := testenv.Exec(t, b.run(root, []string{"--terminals"}, "/bin/busybox", "sh", "-c", "ls /dev/pts; grep -c 'devpts.*max=64' /proc/self/mountinfo")...)
		if call.Stdout != "ptmx\n1\n" {
			t.Errorf("%s\nwant a /dev/pts without anybody's terminal", call)
		}
	})
}
