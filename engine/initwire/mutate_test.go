package initwire

import (
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// TestMutatedJobs feeds damaged messages to engine-init. It must end by itself
// every time, never by a signal, and start nothing unless decode, the test's own
// reading of the protocol, accepts the message. It runs as a plain process in an
// empty root, where the only program is a copy of busybox.
func TestMutatedJobs(t *testing.T) {
	rounds := 4000
	if testing.Short() {
		rounds = 300
	}
	root := mutationRoot(t)
	job := Job{
		Args: []string{"/true", "argument"}, Env: []string{"A=1", "PATH=/"}, Cwd: "/",
		Filter: allowAll, CPUMask: []byte{255, 0, 0, 0, 0, 0, 0, 0}, Deadline: 2 * time.Second,
	}
	whole, err := job.encode(kindJob, 0)
	if err != nil {
		t.Fatal(err)
	}
	job.Files = []File{{Path: "/x/secret", Data: []byte("hunter2")}}
	withFile, err := job.encode(kindJob, 0)
	if err != nil {
		t.Fatal(err)
	}
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	var started, refused int
	for i := range rounds {
		message, rights := whole, 3
		if i%4 == 0 {
			message = withFile
		}
		if i > 0 {
			message = mutate(random, message)
			if random.IntN(20) == 0 {
				rights = random.IntN(6)
			}
		}
		_, malformed := decode(message)
		got := feed(t, root, message, rights)
		if got.crashed || got.slow || got.started && (malformed != nil || rights != 3) {
			t.Fatalf("seed %d, round %d: %+v with %d descriptors; decode: %v\nmessage %q", seed, i, got, rights, malformed, message)
		}
		if got.started {
			started++
		} else {
			refused++
		}
	}
	if started == 0 || refused < rounds/2 {
		t.Errorf("seed %d: %d started, %d refused: the mutations are too wild or too tame", seed, started, refused)
	}
}

func mutationRoot(t *testing.T) string {
	root := t.TempDir()
	for d := root; d != os.TempDir(); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(copyFile(root+"/init", buildInit(t)), copyFile(root+"/true", busybox)); err != nil {
		t.Fatal(err)
	}
	return root
}

// mutate returns a changed copy of message.
func mutate(r *rand.Rand, message []byte) []byte {
	b := append([]byte(nil), message...)
	for range 1 + r.IntN(3) {
		if len(b) == 0 {
			break
		}
		at := r.IntN(len(b))
		switch r.IntN(6) {
		case 0:
			b[at] ^= 1 << r.IntN(8)
		case 1: // a header field at the edge of something
			edges := []uint32{0, 1, 2, 3, 7, 8, 64, 255, 4096, 4097, 65536, 65537, 40 << 20, 40<<20 + 1, 1 << 31, 1<<32 - 1, uint32(len(b))}
			if len(b) >= headerSize {
				at = 4 * r.IntN(headerSize/4)
				v := edges[r.IntN(len(edges))]
				b[at], b[at+1], b[at+2], b[at+3] = byte(v), byte(v>>8), byte(v>>16), byte(v>>24)
			}
		case 2:
			b = b[:at]
		case 3:
			b = append(b[:at], append([]byte{byte(r.Uint32())}, b[at:]...)...)
		case 4:
			b[at] = 0
		case 5: // a counter off by one
			if len(b) >= headerSize {
				b[8+4*r.IntN(9)] += byte(1 - 2*r.IntN(2))
			}
		}
	}
	return b
}

// verdict is how engine-init took one message.
type verdict struct {
	started bool
	crashed bool // died of a signal, or its frames are no conversation
	slow    bool
	status  int
	last    Frame
}

// feed starts engine-init, sends it message with a number of descriptors, ends the
// stream, and reads all frames.
func feed(t *testing.T, root string, message []byte, rights int) verdict {
	conn, guest, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	cmd := exec.Command("/init")
	cmd.Env = []string{}
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{guest}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Chroot: root, Credential: &syscall.Credential{Uid: firstUID, Gid: firstUID},
		Pdeathsig: syscall.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	guest.Close()
	go func() {
		files := make([]*os.File, rights)
		for i := range files {
			files[i] = os.Stdin
		}
		var n int
		if len(message) > 0 {
			n, _ = sendRights(conn, message[:min(len(message), headerSize)], files...)
		}
		conn.Write(message[n:]) // engine-init may be gone already: its verdict tells
		conn.CloseWrite()
	}()
	var v verdict
	conn.SetReadDeadline(time.Now().Add(bound))
	for {
		f, err := ReadFrame(conn)
		if err != nil {
			v.slow = errors.Is(err, os.ErrDeadlineExceeded)
			v.crashed = err != io.EOF && !v.slow
			break
		}
		v.started = v.started || f.Type == Started
		v.last = f
	}
	if v.slow {
		cmd.Process.Kill()
	}
	cmd.Wait()
	v.status = cmd.ProcessState.ExitCode()
	v.crashed = v.crashed || v.status < 0 ||
		v.last.Type == Failed && v.status < 125 || v.last.Type == Ready && v.status != 125
	return v
}
