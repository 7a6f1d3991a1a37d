package service

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/direct-oci/engine/client"
	"github.com/direct-oci/engine/client/wire"
)

// TestRuns goes through the life of a run by the Go client.
func TestRuns(t *testing.T) {
	b := newBed(t, "")
	c, ctx := b.start(), patient(t)
	ask := script(`echo "$A$SECRET"; cat in; echo out >&2; sleep 1; exit 3`)
	ask.ID, ask.Env, ask.Labels = client.NewRunID(), map[string]string{"A": "a"}, map[string]string{"job": "one"}
	ask.Secrets, ask.Files = map[string]string{"SECRET": "canary-in-a-request"}, []wire.File{{Path: "in", Data: []byte("in\n")}}
	run, err := c.StartRun(ctx, ask)
	if err != nil {
		t.Fatal(err)
	}
	if run.ID != ask.ID || run.Result != nil || run.Request.SecretNames[0] != "SECRET" || run.Request.Files[0].Size != 3 {
		t.Errorf("started %+v", run)
	}
	if again, err := c.StartRun(ctx, ask); err != nil || again.ID != run.ID || !again.Created.Equal(run.Created) {
		t.Errorf("the same again: %+v, %v", again, err)
	}
	other := ask
	other.Command = []string{"true"}
	if _, err := c.StartRun(ctx, other); !client.IsKind(err, "exists") {
		t.Errorf("another with the same id: %v", err)
	}
	if err := c.DeleteRun(ctx, run.ID); !client.IsKind(err, "running") {
		t.Errorf("deleted a live run: %v", err)
	}
	var out, errs strings.Builder
	for rec, err := range c.FollowRun(ctx, run.ID, 0) {
		if err != nil {
			t.Fatal(err)
		}
		(map[string]io.Writer{"stdout": &out, "stderr": &errs, "": io.Discard})[rec.Stream].Write(rec.Data)
	}
	if out.String() != "acanary-in-a-request\nin\n" || errs.String() != "out\n" {
		t.Errorf("followed %q and %q", out.String(), errs.String())
	}
	run, err = c.WaitRun(ctx, run.ID)
	if err != nil || run.Result.ExitCode == nil || *run.Result.ExitCode != 3 || run.Result.Stdout != out.String() {
		t.Fatalf("waited for %+v, %v", run.Result, err)
	}
	page, err := c.RunOutput(ctx, run.ID, 0)
	paged := ""
	for _, rec := range page.Records {
		if rec.Stream == "stdout" {
			paged += string(rec.Data)
		}
	}
	if err != nil || !page.Done || paged != out.String() {
		t.Errorf("output %+v, %v", page, err)
	}
	if rest, err := c.RunOutput(ctx, run.ID, page.Records[0].Next); err != nil || len(rest.Records) != len(page.Records)-1 {
		t.Errorf("output from a cursor: %+v, %v", rest, err)
	}
	if _, err := c.RunOutput(ctx, run.ID, 21); !client.IsKind(err, "bad_parameter") {
		t.Errorf("output from no cursor: %v", err)
	}
	if list, err := c.Runs(ctx, client.RunFilter{Label: "job=one"}); err != nil || len(list.Runs) != 1 || list.Runs[0].ID != run.ID {
		t.Errorf("found by its label: %+v, %v", list, err)
	}
	if list, err := c.Runs(ctx, client.RunFilter{Label: "job=two"}); err != nil || len(list.Runs) != 0 {
		t.Errorf("found by another label: %+v, %v", list, err)
	}
	if err := c.DeleteRun(ctx, run.ID); err != nil {
		t.Error(err)
	}
	if _, err := c.Run(ctx, run.ID); !client.IsKind(err, "not_found") {
		t.Errorf("it is still there: %v", err)
	}
	if strings.Contains(b.log.String(), "canary") {
		t.Errorf("the log has a secret:\n%s", b.log)
	}
}

// TestKilledRuns ends a run that would go on, and refuses to end it twice.
func TestKilledRuns(t *testing.T) {
	b := newBed(t, "")
	c, ctx := b.start(), patient(t)
	run, err := c.StartRun(ctx, script("sleep 100"))
	if err != nil {
		t.Fatal(err)
	}
	if run, err = c.KillRun(ctx, run.ID); err != nil || run.Result == nil || *run.Result.Reason != "cancelled" {
		t.Errorf("killed: %+v, %v", run.Result, err)
	}
	b.until("its monitor is gone", func() bool { run, err = c.Run(ctx, run.ID); return err == nil && !run.Alive })
	if _, err := c.KillRun(ctx, run.ID); !client.IsKind(err, "not_running") {
		t.Errorf("killed twice: %v", err)
	}
}

// TestStreamsSurviveTheService follows output while the service is killed again and
// again: no byte is lost, none comes twice, and the run does not notice.
func TestStreamsSurviveTheService(t *testing.T) {
	b := newBed(t, "")
	c, ctx := b.start(), patient(t)
	ask := script(`i=0; while [ $i -lt 4000 ]; do echo "line $i of the stream"; i=$((i+1)); [ $((i % 40)) = 0 ] && sleep 0.05; done; echo end >&2`)
	run, err := c.StartRun(ctx, ask)
	if err != nil {
		t.Fatal(err)
	}
	got, want := sha256.New(), sha256.New()
	for i := range 4000 {
		fmt.Fprintf(want, "line %d of the stream\n", i)
	}
	followed := make(chan error, 1)
	var seen sync.WaitGroup
	seen.Add(1)
	go func() {
		first := true
		for rec, err := range c.FollowRun(ctx, run.ID, 0) {
			if err != nil {
				followed <- err
				return
			}
			if rec.Stream == "stdout" {
				got.Write(rec.Data)
			}
			if first {
				first = false
				seen.Done()
			}
		}
		followed <- nil
	}()
	seen.Wait()
	for range 4 {
		b.kill()
		b.start()
		select {
		case <-time.After(300 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	if err := <-followed; err != nil {
		t.Fatal(err)
	}
	if fmt.Sprintf("%x", got.Sum(nil)) != fmt.Sprintf("%x", want.Sum(nil)) {
		t.Error("what was followed is not what was written")
	}
	run, err = c.WaitRun(ctx, run.ID)
	if err != nil || !run.Result.OK {
		t.Errorf("the run came to %+v, %v", run.Result, err)
	}
}

// TestTheServiceLeavesRunsAlone stops it in order while a stream is open, and starts
// another, which finds the run and counts its end.
func TestTheServiceLeavesRunsAlone(t *testing.T) {
	b := newBed(t, "")
	c, ctx := b.start(), patient(t)
	run, err := c.StartRun(ctx, script("echo begun; sleep 4; echo over"))
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	followed := make(chan error, 1)
	go func() {
		for rec, err := range c.FollowRun(ctx, run.ID, 0) {
			if err != nil {
				followed <- err
				return
			}
			text.Write(rec.Data)
		}
		followed <- nil
	}()
	b.until("the run has begun", func() bool {
		page, err := c.RunOutput(ctx, run.ID, 0)
		return err == nil && len(page.Records) > 0
	})
	began := time.Now()
	b.stop()
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %v to stop", took)
	}
	c = b.start()
	if err := <-followed; err != nil || text.String() != "begun\nover\n" {
		t.Errorf("followed %q, %v", text.String(), err)
	}
	b.until("the end is counted", func() bool {
		figures, err := c.Metrics(ctx)
		return err == nil && strings.Contains(string(figures), `engine_runs_ended_total{reason="exited",runtime="embedded"} 1`)
	})
}

// TestDeadMonitorsAreCollected kills a monitor: the service gives the run its end.
func TestDeadMonitorsAreCollected(t *testing.T) {
	b := newBed(t, "  gcSeconds: 1\n")
	c, ctx := b.start(), patient(t)
	run, err := c.StartRun(ctx, script("sleep 100"))
	if err != nil {
		t.Fatal(err)
	}
	b.until("it runs", func() bool { run, err = c.Run(ctx, run.ID); return err == nil && run.Started != nil })
	killMonitor(t, b)
	if run, err = c.WaitRun(ctx, run.ID); err != nil || *run.Result.Reason != "lost" {
		t.Errorf("the run came to %+v, %v", run.Result, err)
	}
}

// TestWaitIsBounded answers when the time is over, though the run goes on.
func TestWaitIsBounded(t *testing.T) {
	b := newBed(t, "")
	c, ctx := b.start(), patient(t)
	run, err := c.StartRun(ctx, script("sleep 100"))
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if _, err := c.WaitRun(short, run.ID); err == nil {
		t.Error("waited for a run that goes on")
	}
	if _, err := c.KillRun(ctx, run.ID); err != nil {
		t.Error(err)
	}
}

// TestCallsShareTheRoom checks that the programs of calls count against the quota of their
// project, beside sandboxes, and that one after the other finds room.
func TestCallsShareTheRoom(t *testing.T) {
	b := newBed(t, "  sandboxes: {tenants: {shop: {sandboxes: 1}}}\n")
	c, ctx := b.start(), patient(t)
	call := func(text string, progress func(string)) error {
		args := fmt.Sprintf(`{"files":[{"path":"main.sh","contents":%q}],"entrypoint":"main.sh"}`, text)
		_, err := c.Call(ctx, "shop", "workload.execute", wire.Call{ApproveLocally: true, Args: []byte(args)}, progress)
		return err
	}
	ask := box("one")
	ask.Owner = "shop"
	if _, err := c.CreateSandbox(ctx, ask); err != nil {
		t.Fatal(err)
	}
	if err := call("true", nil); !client.IsKind(err, "quota") {
		t.Errorf("a call beside a sandbox, where one is allowed: %v", err)
	}
	if err := c.RemoveSandbox(ctx, "one"); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := call("true", nil); err != nil {
			t.Errorf("one call after the other: %v", err)
		}
	}
	met := false
	err := call("echo begun >&2; sleep 2", func(line string) {
		if met || line != "begun" {
			return
		}
		met = true
		if _, err := c.CreateSandbox(ctx, ask); !client.IsKind(err, "quota") {
			t.Errorf("a sandbox beside a call, where one is allowed: %v", err)
		}
	})
	if err != nil || !met {
		t.Errorf("a call that takes its time: %v, and it was met: %v", err, met)
	}
}
