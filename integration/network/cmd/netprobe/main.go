// Command netprobe is what the network's tests run inside sandboxes: it tries what it
// is told to on stdin, a line each, and prints a line of JSON for each.
//
//	tcp HOST:PORT              connect, read the server's first line
//	udp HOST:PORT              send a datagram, read the answer
//	name HOST                  look a name up
//	connect|socks HOST:PORT    through the gateway's proxy
//	http URL                   an absolute-form request to the proxy
//	hold HOST:PORT             connect, talk until the connection breaks
//	upload|download HOST:PORT BYTES
//	send HOST:PORT BASE64...   connect, send each part by itself, read until the end or a silence
//	listen PORT                answer on that port, in the background
//	raw KIND                   what an ordinary program must not: packet, icmp, raw
//	sync                       wait for everything before
//	say WORDS                  print them
//
// Lines are tried side by side, as many as -j says.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

// finding is what became of one line.
type finding struct {
	Probe string  `json:"probe"`
	Got   string  `json:"got"` // ok, refused, nxdomain, timeout, reset, or the error
	Text  string  `json:"text,omitempty"`
	Ms    float64 `json:"ms"`
}

var probes = map[string]func(args []string) (string, error){
	"tcp": tcp, "udp": udp, "name": name, "connect": connect, "socks": socks, "http": absolute,
	"hold": hold, "upload": upload, "download": download, "listen": listen, "raw": raw, "send": send,
}

func main() {
	side := flag.Int("j", 1, "lines to try at once")
	flag.Parse()
	var wg sync.WaitGroup
	slots := make(chan struct{}, *side)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		line := lines.Text()
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
		case words[0] == "sync":
			wg.Wait()
		case words[0] == "say":
			wg.Wait()
			tell(finding{Probe: line, Got: "ok"})
		default:
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				try(line, words)
			})
		}
	}
	wg.Wait()
}

func try(line string, words []string) {
	probe := probes[words[0]]
	if probe == nil || len(words) < 2 {
		tell(finding{Probe: line, Got: "no such probe"})
		return
	}
	start := time.Now()
	text, err := probe(words[1:])
	tell(finding{line, verdict(err), text, float64(time.Since(start).Microseconds()) / 1000})
}

var out sync.Mutex

func tell(f finding) {
	out.Lock()
	defer out.Unlock()
	json.NewEncoder(os.Stdout).Encode(f)
}

func verdict(err error) string {
	var dns interface{ Timeout() bool }
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "reset"
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.EADDRNOTAVAIL):
		return "unreachable"
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES):
		return "forbidden"
	case strings.Contains(err.Error(), "no such host"):
		return "nxdomain"
	case errors.As(err, &dns) && dns.Timeout():
		return "timeout"
	default:
		return fmt.Sprint(err)
	}
}
