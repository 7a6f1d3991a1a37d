package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/rootfs/image"
	"github.com/direct-oci/engine/rootfs/image/job"
)

// imageJob lets engine-image do a job on the image store. An interrupt reaches both
// programs, or this one alone, which then passes it on; this one waits until the other
// has cleaned up.
func (a *app) imageJob(ctx context.Context, j job.Job) (job.Answer, error) {
	none := job.Answer{}
	if os.Geteuid() != 0 {
		return none, engine.Failed("not_root", "cannot change images as uid=%d: the engine needs root", os.Geteuid()).WithFix("run it with sudo")
	}
	program, err := engine.Program("engine-image")
	if err != nil {
		return none, err
	}
	j.Store, j.Quiet = a.images().Dir, a.Quiet
	text, err := json.Marshal(j)
	if err != nil {
		return none, engine.Failed("internal", "cannot encode the job: %w", err)
	}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, program, string(text))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.stdin, &out, a.stderr
	if err := cmd.Start(); err != nil {
		return none, engine.Failed("not_installed", "cannot start %s: %w", program, err)
	}
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			select {
			case <-signals:
				// One that has ended needs no signal any more.
				_ = cmd.Process.Signal(syscall.SIGTERM)
			case <-done:
				return
			}
		}
	}()
	waitErr := cmd.Wait()
	var answer job.Answer
	if err := json.Unmarshal(out.Bytes(), &answer); err != nil {
		return none, engine.Failed("image_store", "engine-image ended without an answer: %w", errors.Join(waitErr, err))
	}
	if f := answer.Failure; f != nil {
		e := engine.Failed(f.Kind, "%s", f.Message)
		if f.Request {
			e = engine.Refused(f.Kind, "%s", f.Message)
		}
		if f.Kind == "cancelled" {
			a.failStatus = statusCancelled
		}
		return none, e.WithFix(f.Fix)
	}
	return answer, nil
}

// imageError says whose turn it is: the caller's where the store knows what is
// wrong with what it was given.
func imageError(err error) error {
	var (
		name *image.NameError
		none *image.NotFoundError
		held *image.HeldError
	)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &none):
		return engine.Refused("not_found", "%w", err).WithFix("list the images with engine image ls")
	case errors.As(err, &name), errors.As(err, &held):
		return engine.Refused("bad_image", "%w", err)
	}
	return engine.Failed("image_store", "%w", err)
}
