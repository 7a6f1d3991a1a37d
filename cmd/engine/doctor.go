package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/direct-oci/engine/cmd/cli"
	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/engine/doctor"
)

func (a *app) doctorCommand() *cobra.Command {
	try := false
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "check whether this host can run sandboxes, and how well it keeps them in",
		Long: "doctor checks this host. Each check that is not ok comes with why it matters and the\n" +
			"command that repairs it. It exits with 0 only if a run would work.",
		Args: cli.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.doctor(cmd.Context(), try) },
	}
	cmd.Flags().BoolVar(&a.json, "json", false, "print the report as JSON")
	cmd.Flags().BoolVar(&try, "run", false, "if no check failed, end with a run under each runtime")
	return cmd
}

func (a *app) doctor(ctx context.Context, try bool) error {
	beside := ""
	if self, err := os.Executable(); err == nil {
		beside = filepath.Dir(self)
	}
	report := doctor.Check(ctx, doctor.Options{
		StateDir: a.host.StateDir, RunDir: a.host.RunDir, CgroupRoot: a.host.CgroupRoot, Beside: beside,
	})
	if try && report.Fit {
		runs, err := a.tryRuns(ctx, report.Runtimes)
		if err != nil {
			return err
		}
		runtimes := report.Runtimes
		report = doctor.Sum(append(report.Checks, runs...))
		report.Runtimes = runtimes
	}
	if !report.Fit {
		a.status = statusUnfit
	}
	if a.json {
		return a.PrintJSON(report)
	}
	return a.Print(checkup(report))
}

// checkup shows a report.
func checkup(r doctor.Report) string {
	var b strings.Builder
	count := map[doctor.Status]int{}
	width := 0
	for _, f := range r.Checks {
		width = max(width, len(f.Name))
	}
	for _, f := range r.Checks {
		count[f.Status]++
		fmt.Fprintf(&b, "%-4s  %-*s  %s\n", f.Status, width, f.Name, cli.Escape(f.Found))
		if f.Status != doctor.OK {
			fmt.Fprintf(&b, "%*s  why: %s\n%*s  fix: %s\n", width+6, "", cli.Escape(f.Why), width+6, "", cli.Escape(f.Fix))
		}
	}
	fmt.Fprintf(&b, "\nscore %d of 100: %d ok, %d to improve, %d failed; %s\n",
		r.Score, count[doctor.OK], count[doctor.Warn], count[doctor.Fail], outlook(r))
	return b.String()
}

// outlook says whether a run would work.
func outlook(r doctor.Report) string {
	if r.Fit {
		return "a run would work on this host"
	}
	for _, f := range r.Checks {
		// Controllers can be done without, where somebody says so.
		if f.Status == doctor.Fail && !strings.HasPrefix(f.Name, "cgroup2 ") {
			return "no run would work on this host"
		}
	}
	return "no run would work on this host, except with --best-effort-limits and without the limits that failed"
}

// tryRuns runs a program under each runtime that is here: this one, which is
// static and needs nothing beside it in its root.
func (a *app) tryRuns(ctx context.Context, runtimes []string) (findings []doctor.Finding, err error) {
	root, err := os.MkdirTemp("", "engine-doctor-")
	if err != nil {
		return nil, engine.Failed("no_directory", "cannot make a root to run in: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(root)) }()
	program, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.WriteFile(filepath.Join(root, "engine"), program, 0o755)
	}
	if err == nil {
		err = os.Chmod(root, 0o755)
	}
	if err != nil {
		return nil, engine.Failed("no_directory", "cannot make a root to run in: %w", err)
	}
	for _, runtime := range runtimes {
		findings = append(findings, a.tryRun(ctx, root, runtime))
	}
	return findings, nil
}

// tryRun runs the program in root, and removes the run's record if all went well.
func (a *app) tryRun(ctx context.Context, root, runtime string) doctor.Finding {
	f := doctor.Finding{Name: "run under " + runtime, Status: doctor.Warn, Why: "a run with --runtime " + runtime + " fails"}
	if runtime == "embedded" {
		f.Status = doctor.Fail // it is what remains where no other runtime is
	}
	r := newRequest()
	r.Rootfs, r.Runtime, r.Command = root, runtime, []string{"/engine", "version"}
	run, err := a.host.Start(ctx, r.Request, nil, engine.Stdio{})
	var res engine.Result
	if err == nil {
		res, err = run.Wait()
	}
	switch {
	case err != nil:
		e := cli.AsError(err)
		f.Found, f.Fix = e.Message, e.Fix
	case !res.OK:
		message, fix := verdict(res, r.Limits)
		if message == "" {
			a.host.FillOutput(&res)
			message = strings.TrimSpace(res.Stderr)
		}
		f.Found, f.Fix = message, fix
	default:
		f.Status, f.Found = doctor.OK, fmt.Sprintf("%.0f ms", res.Timing.TotalMs)
		if err := a.remove(ctx, res.ID); err != nil {
			f.Status, f.Found, f.Why = doctor.Warn, cli.AsError(err).Message, "the record of this run is left"
		}
	}
	if f.Fix == "" && f.Status != doctor.OK {
		f.Fix = "engine ps, then engine inspect on the run that failed"
	}
	return f
}
