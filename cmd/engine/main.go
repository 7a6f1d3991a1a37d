// Command engine runs untrusted programs in sandboxes of their own, and looks
// after the runs known to this host. It needs root for all that touches a run,
// reads nothing from its environment (engine-runner, to which it hands over the
// governed commands, does), and keeps nothing in memory that matters:
// each run belongs to a monitor process and is on record in the state directory.
package main

import "os"

func main() {
	os.Exit(newApp(os.Stdin, os.Stdout, os.Stderr).main(os.Args[1:]))
}
