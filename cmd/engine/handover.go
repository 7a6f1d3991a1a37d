package main

import (
	"os"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/engine/ociruntime"
)

const runnerProgram = "engine-runner"

// handedOver are the commands that the governed runner does, a program of its own: what
// it links would cost every start of this one.
var handedOver = []struct{ name, short string }{
	{"capabilities", "list what the governed runner may be asked for"},
	{"call", "do one thing of what may be asked for, and print its JSON result"},
	{"approve", "show what a call would do, and approve exactly that"},
	{"verify", "verify the receipt of a governed run"},
	{"audit", "check the log of everything that was asked for, decided and done"},
	{"action", "make, check and test capabilities of your own"},
	{"config", "check the governed runner's config, or print its schema"},
	{"serve", "the service: an API to start and follow runs, for programs"},
	{"sandbox", "sandboxes that stay, over the service: make them, work in them, end them"},
	{"digest", "print the digest of a workload spec"},
	{"controlplane", "a control plane for development, and calls through it"},
}

func (a *app) handedOverCommands() []*cobra.Command {
	var commands []*cobra.Command
	for _, c := range handedOver {
		commands = append(commands, &cobra.Command{
			Use:                c.name,
			Short:              c.short,
			DisableFlagParsing: true,
			RunE:               func(*cobra.Command, []string) error { return a.handOver() },
		})
	}
	return commands
}

// handOver lets the runner's program take the place of this one, with the same
// arguments, environment and streams.
func (a *app) handOver() error {
	var beside []string
	if self, err := os.Executable(); err == nil {
		beside = []string{filepath.Dir(self)}
	}
	path, err := ociruntime.Look(runnerProgram, beside)
	if err != nil {
		return engine.Failed("not_installed", "cannot find %s beside this program or in the system's directories", runnerProgram).
			WithFix("install " + runnerProgram + " beside engine")
	}
	err = syscall.Exec(path, append([]string{"engine"}, a.args...), os.Environ())
	return engine.Failed("not_installed", "cannot start %s=%s: %w", runnerProgram, path, err)
}
