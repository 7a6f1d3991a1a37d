// Command demo gives two programs the same orders, each under two runtimes, and
// prints what came out, what it cost and what held the program in: not as promised
// but as measured, inside by examples/probe.sh and from the host while it ran.
//
//	demo -engine bin/engine -state-dir DIR -orders orders.csv
//
// It needs root, pure cgroup v2, and in the state directory the image "demo" that
// hack/image.sh makes. Exit status 1: a program failed, the summaries differ, or a
// promise was not kept.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// job is one run of the demo.
type job struct {
	program, runtime string
	argv             []string
}

var jobs = []job{
	{"summary.ts", "runsc", []string{"tsx", "/opt/examples/orders/summary.ts"}},
	{"summary.ts", "embedded", []string{"tsx", "/opt/examples/orders/summary.ts"}},
	{"summary.py", "runsc", []string{"python3", "/opt/examples/orders/summary.py"}},
	{"summary.py", "embedded", []string{"python3", "/opt/examples/orders/summary.py"}},
}

// outcome is what is known of a job afterwards.
type outcome struct {
	job
	result  result
	summary summary
	inside  map[string]string // what probe.sh told
	outside view
}

// result is as much of the engine's JSON as is shown.
type result struct {
	OK         bool    `json:"ok"`
	Reason     string  `json:"reason"`
	ExitCode   *int    `json:"exitCode"`
	Stdout     string  `json:"stdout"`
	Stderr     string  `json:"stderr"`
	DurationMs float64 `json:"durationMs"`
	Timing     struct {
		SandboxMs float64 `json:"sandboxMs"`
	} `json:"timing"`
	Actuals struct {
		BusyCPUSecs  float64 `json:"busyCpuSecs"`
		PeakMemBytes float64 `json:"peakMemBytes"`
	} `json:"actuals"`
	Unenforced []string `json:"unenforced"`
	Runtime    struct {
		Version string `json:"version"`
	} `json:"runtime"`
	Error *struct {
		Message string `json:"message"`
		Fix     string `json:"fix"`
	} `json:"error"`
}

// summary is as much of the programs' JSON as is shown.
type summary struct {
	Rows         int    `json:"rows"`
	Counted      int    `json:"counted"`
	RejectedRows int    `json:"rejectedRows"`
	TotalEUR     string `json:"totalEur"`
	TopCustomers []struct {
		Customer string `json:"customer"`
	} `json:"topCustomers"`
}

func main() {
	engine := flag.String("engine", "bin/engine", "the engine's command line, a `program`")
	stateDir := flag.String("state-dir", "build/demo/state", "`directory` with the image")
	orders := flag.String("orders", "examples/orders/orders.csv", "`file` with the orders")
	flag.Parse()
	if err := demo(*engine, *stateDir, *orders); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func demo(engine, stateDir, orders string) error {
	var outcomes []outcome
	for i, j := range jobs {
		fmt.Printf("%d/%d  engine run --image demo --runtime %s -- %s < orders.csv\n", i+1, len(jobs), j.runtime, strings.Join(j.argv, " "))
		o, err := j.run(engine, stateDir, orders)
		if err != nil {
			return fmt.Errorf("%s under %s: %w", j.program, j.runtime, err)
		}
		outcomes = append(outcomes, o)
	}
	head, _, _ := strings.Cut(outcomes[0].result.Stdout, `"months"`)
	fmt.Printf("\n%s...\n\n", head)
	printTable(os.Stdout, outcomes)
	fmt.Println()
	if err := check(outcomes); err != nil {
		return err
	}
	fmt.Printf("All %d summaries are the same %d bytes, and each promise above was measured and kept.\n", len(outcomes), len(outcomes[0].result.Stdout))
	return nil
}

// run runs the job to its end, with the probe in front.
func (j job) run(engine, stateDir, orders string) (outcome, error) {
	o := outcome{job: j}
	in, err := os.Open(orders)
	if err != nil {
		return o, err
	}
	defer in.Close()
	args := []string{"run", "--state-dir", stateDir, "--image", "demo", "--runtime", j.runtime, "--timeout", "10m", "--json", "--"}
	args = append(args, "sh", "/opt/examples/probe.sh")
	cmd := exec.Command(engine, append(args, j.argv...)...)
	var stdout bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &stdout, os.Stderr

	watch := startWatch()
	err = cmd.Run()
	o.outside = watch.stop()
	if e := json.Unmarshal(stdout.Bytes(), &o.result); e != nil {
		return o, errors.Join(err, fmt.Errorf("no result: %w", e))
	}
	if e := o.result.Error; e != nil {
		return o, fmt.Errorf("%s %s", e.Message, e.Fix)
	}
	if !o.result.OK {
		return o, fmt.Errorf("ended with reason %s:\n%s", o.result.Reason, o.result.Stderr)
	}
	if err := json.Unmarshal([]byte(o.result.Stdout), &o.summary); err != nil {
		return o, fmt.Errorf("printed no summary: %w", err)
	}
	o.inside = map[string]string{}
	for line := range strings.Lines(o.result.Stderr) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			o.inside[key] = value
		}
	}
	return o, nil
}
