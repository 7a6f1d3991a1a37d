// Package emulator runs a Firestore emulator for tests: a program of somebody else,
// installed by npm as the lock file beside this pins it.
//
// It has queries, counts and single documents. It has no listing of collections, no
// groups, no integers beyond ±2^53 and no fields of maps; what it has of cursors,
// offsets and filters on names is wrong.
package emulator

import (
	"bufio"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

//go:embed package.json package-lock.json server.js
var files embed.FS

// patience bounds installing and starting, on a host that has much else to do.
const patience = 4 * time.Minute

// Emulator is a running one. It ends with the test.
type Emulator struct {
	Addr string // HOST:PORT
	conn *grpc.ClientConn
}

// Start starts an emulator, and installs it first where that has not been done. Without
// node and npm the test is skipped, and fails where CI=true.
func Start(t testing.TB) *Emulator {
	t.Helper()
	for _, name := range []string{"node", "npm"} {
		if _, err := exec.LookPath(name); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatalf("%s is missing, and this is CI", name)
			}
			t.Skipf("%s is missing, and the emulator needs it: make setup", name)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	dir, err := install(ctx, t)
	if err != nil {
		t.Fatalf("cannot install the emulator: %v", err)
	}
	return start(t, dir)
}

// install returns the directory of the emulator, below build/ of the module.
func install(ctx context.Context, t testing.TB) (string, error) {
	t.Helper()
	sum := sha256.New()
	names, err := fs.Glob(files, "*")
	if err != nil {
		return "", err
	}
	for _, name := range names {
		data, err := files.ReadFile(name)
		if err != nil {
			return "", err
		}
		sum.Write(data)
	}
	build, err := buildDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(build, "emulator-"+hex.EncodeToString(sum.Sum(nil))[:16])
	lock, err := os.OpenFile(filepath.Join(build, "emulator.lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil { // tests of several packages come at once
		return "", err
	}
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	t.Log("installing the emulator by npm, once")
	fresh := dir + ".new"
	if err := errors.Join(os.RemoveAll(fresh), os.MkdirAll(fresh, 0o755)); err != nil {
		return "", err
	}
	for _, name := range names {
		data, err := files.ReadFile(name)
		if err == nil {
			err = os.WriteFile(filepath.Join(fresh, name), data, 0o644)
		}
		if err != nil {
			return "", err
		}
	}
	npm := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
	npm.Dir = fresh
	if out, err := npm.CombinedOutput(); err != nil {
		return "", errors.New(err.Error() + ": " + string(out))
	}
	return dir, os.Rename(fresh, dir)
}

// buildDir is build/ of the module that the test is in.
func buildDir() (string, error) {
	wd, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := wd; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			build := filepath.Join(dir, "build")
			return build, os.MkdirAll(build, 0o755)
		}
	}
	return "", errors.New("this is no module")
}

func start(t testing.TB, dir string) *Emulator {
	t.Helper()
	cmd := exec.Command("node", "server.js")
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	stdin, err := cmd.StdinPipe() // its end is the emulator's
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("cannot start the emulator: %v", err)
	}
	timer := time.AfterFunc(patience, func() { cmd.Process.Kill() })
	t.Cleanup(func() {
		timer.Stop()
		stdin.Close()
		time.AfterFunc(10*time.Second, func() { cmd.Process.Kill() })
		_ = cmd.Wait()
	})
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		if addr, ok := strings.CutPrefix(lines.Text(), "ready "); ok {
			timer.Stop()
			go func() { // what else it says would fill the pipe
				for lines.Scan() {
				}
			}()
			return connect(t, addr)
		}
	}
	t.Fatal("the emulator ended before it was ready")
	return nil
}

func connect(t testing.TB, addr string) *Emulator {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &Emulator{addr, conn}
}

// Put writes a document, by its path, into database (default) of a project.
func (e *Emulator) Put(t testing.TB, project, path string, fields map[string]*pb.Value) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	database := "projects/" + project + "/databases/(default)"
	_, err := pb.NewFirestoreClient(e.conn).Commit(ctx, &pb.CommitRequest{Database: database, Writes: []*pb.Write{{
		Operation: &pb.Write_Update{Update: &pb.Document{Name: database + "/documents/" + path, Fields: fields}},
	}}}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatalf("cannot write document=%s: %v", path, err)
	}
}
