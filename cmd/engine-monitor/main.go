// Engine-monitor watches over one run from its intent to the last trace of it. It
// is started by the engine package, on inherited descriptors, and never by hand; see
// engine.Monitor. By hand it tells its version and nothing else. It is a program of its
// own because libcontainer starts its own program again as the container's init: what is
// linked here is loaded twice for every run, so it stays small.
package main

import (
	"os"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/engine/ociruntime"
	"github.com/direct-oci/engine/engine/ociruntime/direct"
	"github.com/direct-oci/engine/engine/ociruntime/inproc"
)

func main() {
	if inproc.IsInit() {
		inproc.Init()
	}
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		os.Stdout.WriteString(engine.Version + "\n")
		return
	}
	os.Exit(engine.Monitor(linked))
}

func linked(info ociruntime.Info) ociruntime.Runtime {
	switch info.Name {
	case "direct":
		return direct.Runtime{Path: info.Path, Version: info.Version}
	case "embedded":
		return inproc.Runtime{}
	}
	return nil
}
