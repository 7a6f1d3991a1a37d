// Command engine-runner is the governed runner: it does what its config allows, for
// whom, and with whose approval. engine hands its commands over to it by exec. It reads
// the config and its environment variable, the approvals and receipts in the state
// directory, and nothing else of its surroundings.
package main

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/engine"
)

func main() {
	app := newApp(os.Stdin, os.Stdout, os.Stderr)
	var err error
	if app.inline, err = takeConfig(); err != nil {
		os.Exit(app.refuse(engine.Failed("no_descriptors", "cannot take the config from the environment: %w", err)))
	}
	shield()
	os.Exit(app.main(os.Args[1:]))
}

// shield keeps secrets out of core files, and out of reach of other processes of the
// same user. Where the kernel refuses, nothing is lost that was there before.
func shield() {
	var core unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_CORE, &core) == nil {
		core.Cur = 0 // the hard limit is handed on: a runtime may have to raise it
		unix.Setrlimit(unix.RLIMIT_CORE, &core)
	}
	unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
}
