package main

import (
	"fmt"
	"strings"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/oci"
)

// report prints a result and takes the exit status from it.
func (a *app) report(res engine.Result, limits engine.Limits) error {
	a.status = engine.ExitStatus(res)
	if len(res.Unenforced) > 0 {
		a.Say("not enforced on this host: "+strings.Join(res.Unenforced, ", "), "")
	}
	message, fix := verdict(res, limits)
	switch {
	case res.Error != nil:
		a.complain(message, fix)
	case message != "":
		a.Say(message, fix)
	}
	if a.json {
		a.host.FillOutput(&res)
		return a.PrintJSON(res)
	}
	return nil
}

// verdict is what is worth saying about a run that did not end by itself, and
// what to do about it. It is empty for one that did, whatever its exit status.
func verdict(res engine.Result, limits engine.Limits) (message, fix string) {
	if res.Error != nil {
		return res.Error.Message, res.Error.Fix
	}
	if res.Reason == nil {
		return "", ""
	}
	switch *res.Reason {
	case engine.ReasonTimeout:
		return fmt.Sprintf("run %s was ended at its deadline of %s", res.ID, limits.Timeout), "raise it with --timeout"
	case engine.ReasonOOM:
		return fmt.Sprintf("run %s ran out of its %s of memory", res.ID, sizeOf(limits.Memory)), "raise it with --memory"
	case engine.ReasonOutput:
		return fmt.Sprintf("run %s was ended after %s of output", res.ID, sizeOf(limits.OutputMax)), "raise it with --output-max"
	case engine.ReasonSignal:
		name := "a signal"
		if res.Signal != nil {
			name = *res.Signal
		}
		return fmt.Sprintf("the program of run %s was ended by %s", res.ID, name), ""
	case engine.ReasonCancelled:
		return fmt.Sprintf("run %s was cancelled", res.ID), ""
	case engine.ReasonLost:
		return fmt.Sprintf("run %s is lost: its monitor died", res.ID), ""
	case engine.ReasonInterrupted:
		return fmt.Sprintf("run %s was interrupted: the host rebooted", res.ID), ""
	case engine.ReasonInternal:
		return fmt.Sprintf("run %s failed inside the engine", res.ID), "engine inspect " + res.ID
	}
	return "", ""
}

// sizeOf writes a limit as it was most likely given.
func sizeOf(n int64) string {
	for _, u := range []struct {
		name string
		size int64
	}{{"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}} {
		if n > 0 && n%u.size == 0 {
			return fmt.Sprintf("%d%s", n/u.size, u.name)
		}
	}
	return oci.FormatSize(n)
}

// refusal is the result of a run that never started.
func refusal(e *engine.Error) engine.Result {
	return engine.Result{
		Timing:     engine.Timing{Phases: []engine.Phase{}},
		Unenforced: []string{},
		Network:    engine.NetworkInfo{Mode: "none", Denied: []engine.Denied{}, Allowed: []engine.Allowed{}},
		Changes:    []engine.FileChange{},
		Layers:     []engine.LayerInfo{},
		Error:      e,
	}
}
