// Command session goes through the life of a session: it starts one, has it run two
// programs, renews it and ends it. The fault tests build it with failpoints, and ask it
// again for the same id to see that nothing happens twice.
//
//	session -state DIR -run DIR -cgroup NAME -runtime NAME -rootfs DIR -id ID
//
// The other programs of the engine are those beside it. It prints what the programs
// wrote and, a line each, how they ended; then it exits 7. An error of the engine's is
// printed as engine does, with status 125.
package main

import (
	"context"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/engine/journal"
)

func main() {
	var h engine.Host
	var r engine.Request
	flag.StringVar(&h.StateDir, "state", "", "state `directory`")
	flag.StringVar(&h.RunDir, "run", "", "run `directory`")
	flag.StringVar(&h.CgroupRoot, "cgroup", "", "the engine's `cgroup`")
	flag.StringVar(&r.Runtime, "runtime", "", "`name` of the runtime")
	flag.StringVar(&r.Rootfs, "rootfs", "", "root `directory` of the sandbox")
	flag.StringVar(&r.ID, "id", "", "`id` of the session")
	flag.Parse()
	self, err := os.Executable()
	if err == nil {
		dir := filepath.Dir(self)
		h.Monitor, h.Init, h.Guest = filepath.Join(dir, "engine-monitor"), filepath.Join(dir, "engine-init"), filepath.Join(dir, "engine-guest")
		h.MinFreeDisk, h.MinFreeMemory = -1, -1
		err = live(h, r)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "engine: %v\n", err)
		os.Exit(125)
	}
	os.Exit(7)
}

// live is the session's life.
func live(h engine.Host, r engine.Request) error {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Second)
	defer cancel()
	r.Session, r.Limits, r.BestEffortLimits = &engine.Session{}, engine.DefaultLimits(), true
	r.Limits.Memory, r.Limits.Timeout = 256<<20, 10*time.Minute
	run, err := h.Start(ctx, r, nil, engine.Stdio{})
	if err != nil {
		return err
	}
	if _, err := h.AwaitReady(ctx, run.ID()); err != nil {
		return err
	}
	for _, e := range []engine.Exec{
		{ID: "token", Command: []string{"sh", "-c", `head -c 8 /dev/urandom | od -A n -t x1; sleep 0.05; exit 7`}},
		{ID: "input", Command: []string{"sh", "-c", `read a; echo "$a" >&2; exit 7`}, Stdin: true, Timeout: 30 * time.Second}, // a connection that fails keeps words back
	} {
		if err := execute(ctx, h, run.ID(), e); err != nil {
			return err
		}
	}
	if _, err := h.Renew(ctx, run.ID(), time.Hour); err != nil {
		return err
	}
	if err := h.Kill(ctx, run.ID()); err != nil {
		return err
	}
	_, err = run.Wait()
	return err
}

func execute(ctx context.Context, h engine.Host, session string, e engine.Exec) error {
	c, err := h.Exec(ctx, session, e)
	if err != nil {
		return err
	}
	defer c.Close()
	if e.Stdin {
		// The program, or all of it, may be gone: its result tells.
		_, _ = c.Write([]byte("words\n"))
	}
	r, err := c.Wait(ctx)
	if err != nil {
		return err
	}
	out, err := journal.ReadOutput(h.ExecOutputPath(session, e.ID), math.MaxInt64)
	if err != nil {
		return err
	}
	fmt.Print(out.Stdout)
	if r.Reason != engine.ReasonExited || r.ExitCode == nil || *r.ExitCode != 7 {
		return fmt.Errorf("the program of run %s, exec=%s, ended as %s: %v", session, e.ID, r.Reason, r.Error)
	}
	fmt.Println(e.ID, "exited")
	return nil
}
