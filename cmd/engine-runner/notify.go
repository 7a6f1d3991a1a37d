package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// notifier speaks to systemd, if it listens (sd_notify(3)). What cannot be told is not
// worth an end: systemd finds out by itself.
type notifier struct {
	path     string        // of its socket; "": nobody listens
	watchdog time.Duration // 0: nobody waits for a sign of life
}

// newNotifier takes what systemd has said out of the environment, so that no program
// which is started later believes it is meant.
func newNotifier() notifier {
	n := notifier{path: os.Getenv("NOTIFY_SOCKET")}
	micros, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	pid := os.Getenv("WATCHDOG_PID")
	if err == nil && micros > 0 && (pid == "" || pid == strconv.Itoa(os.Getpid())) {
		n.watchdog = time.Duration(micros) * time.Microsecond
	}
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		os.Unsetenv(name)
	}
	return n
}

// send tells systemd something, in the form of its protocol.
func (n notifier) send(state string) {
	if n.path == "" {
		return
	}
	name := n.path
	if abstract, ok := strings.CutPrefix(name, "@"); ok {
		name = "\x00" + abstract
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		return
	}
	defer conn.Close()
	if conn.SetWriteDeadline(time.Now().Add(time.Second)) == nil {
		_, _ = conn.Write([]byte(state)) // see above
	}
}

// reloading tells since when: systemd compares with its own clock.
func (n notifier) reloading() {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) == nil {
		n.send(fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", ts.Nano()/1000))
	}
}

// watch gives a sign of life as long as alive says so, until ctx ends.
func (n notifier) watch(ctx context.Context, alive func(context.Context) error) {
	if n.watchdog == 0 {
		return
	}
	tick := time.NewTicker(n.watchdog / 3)
	defer tick.Stop()
	for {
		look, cancel := context.WithTimeout(ctx, n.watchdog/3)
		if alive(look) == nil {
			n.send("WATCHDOG=1")
		}
		cancel()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
