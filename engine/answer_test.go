package engine

import (
	"bufio"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// connection is both ends of a session's connection.
func connection(t *testing.T) (client, server *net.UnixConn) {
	t.Helper()
	address := &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"}
	l, err := net.ListenUnix("unix", address)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if client, err = net.DialUnix("unix", nil, address); err != nil {
		t.Fatal(err)
	}
	if server, err = l.AcceptUnix(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

// TestHangUpIsSeen has a client leave while the program does not read: that is noticed,
// and the program gets what the client had written once it reads.
func TestHangUpIsSeen(t *testing.T) {
	client, server := connection(t)
	theirs, ours, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	x := &execution{stdin: &stdinPipe{pipe: ours}}
	left, heard := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(heard)
		x.input(server, newLineReader(bufio.NewScanner(server)), left)
		x.stdin.close()
	}()
	const pieces, size = 3, 40 << 10 // more than the pipe holds
	for range pieces {
		line, err := encodeLine(sessionRequest{Version: sessionVersion, Op: opStdin, Data: make([]byte, size)})
		if err == nil {
			_, err = client.Write(line)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-left:
		t.Fatal("a client that is there is taken for one that has left")
	case <-time.After(2*hangUpCheck + hangUpCheck/2):
	}
	client.Close()
	select {
	case <-left:
	case <-time.After(10 * hangUpCheck):
		t.Fatal("nobody noticed that the client has left")
	}
	data, err := io.ReadAll(theirs)
	<-heard
	if err != nil || len(data) != pieces*size {
		t.Errorf("the program read %d bytes, %v; want %d", len(data), err, pieces*size)
	}
}
