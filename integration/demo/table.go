package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// row is one line of the table. A row with a check fails the demo where a run does
// not pass it.
type row struct {
	name  string
	value func(outcome) string
	check func(outcome) bool
}

const (
	firstUID = 1 << 16 // users of the host are below
	memory   = 512 << 20
)

var noCaps = strings.Repeat("0", 16)

var sections = []struct {
	title string
	rows  []row
}{
	{"RUNTIME", []row{
		{"version", func(o outcome) string { return shortVersion(o.result.Runtime.Version) }, nil},
		{"kernel seen inside", inside("kernel"), nil},
	}},
	{"RESULT", []row{
		{"rows read", func(o outcome) string { return strconv.Itoa(o.summary.Rows) }, nil},
		{"orders counted", func(o outcome) string { return strconv.Itoa(o.summary.Counted) }, nil},
		{"rows rejected", func(o outcome) string { return strconv.Itoa(o.summary.RejectedRows) }, nil},
		{"total in EUR", func(o outcome) string { return o.summary.TotalEUR }, nil},
		{"best customer", best, nil},
	}},
	{"COST", []row{
		{"sandbox ready after", func(o outcome) string { return fmt.Sprintf("%.0f ms", o.result.Timing.SandboxMs) }, nil},
		{"time of the program", func(o outcome) string { return fmt.Sprintf("%.2f s", o.result.DurationMs/1000) }, nil},
		{"CPU", func(o outcome) string { return fmt.Sprintf("%.2f s", o.result.Actuals.BusyCPUSecs) }, used},
		{"peak memory", func(o outcome) string { return mebibytes(o.result.Actuals.PeakMemBytes) }, used},
	}},
	{"ISOLATION, seen inside", []row{
		{"user", inside("uid"), is("uid", "65532")},
		{"Linux caps, all sets", caps, func(o outcome) bool { return caps(o) == "none" }},
		{"no new privileges", inside("NoNewPrivs"), is("NoNewPrivs", "1")},
		{"seccomp mode", inside("Seccomp"), is("Seccomp", "2")},
		{"network", inside("interfaces"), is("interfaces", "lo")},
		{"processes visible", inside("processes"), nil},
		{"writable", inside("writable"), is("writable", "/tmp /workload")},
	}},
	{"ISOLATION, seen from the host", []row{
		{"user", uids, func(o outcome) bool { return len(o.outside.uids) > 0 && slices.Min(keys(o.outside.uids)) >= firstUID }},
		{"seccomp mode", modes, func(o outcome) bool { return modes(o) == "2" }},
		{"memory, swap", limits, func(o outcome) bool { return o.outside.limits["memory.max"] == strconv.Itoa(memory) }},
		{"cpu.max", outside("cpu.max"), func(o outcome) bool { return o.outside.limits["cpu.max"] == "100000 100000" }},
		{"pids.max", outside("pids.max"), func(o outcome) bool { n, err := strconv.Atoi(o.outside.limits["pids.max"]); return err == nil && n > 0 }},
	}},
}

func inside(key string) func(outcome) string { return func(o outcome) string { return o.inside[key] } }

func outside(file string) func(outcome) string {
	return func(o outcome) string { return o.outside.limits[file] }
}

func is(key, want string) func(outcome) bool {
	return func(o outcome) bool { return o.inside[key] == want }
}

func used(o outcome) bool {
	return o.result.Actuals.BusyCPUSecs > 0 && o.result.Actuals.PeakMemBytes > 0 && len(o.result.Unenforced) == 0
}

func best(o outcome) string {
	if len(o.summary.TopCustomers) == 0 {
		return ""
	}
	return o.summary.TopCustomers[0].Customer
}

// caps is "none", or the first set that is not empty.
func caps(o outcome) string {
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		if o.inside[set] != noCaps {
			return set + " " + o.inside[set]
		}
	}
	return "none"
}

func uids(o outcome) string {
	var text []string
	for _, uid := range keys(o.outside.uids) {
		text = append(text, strconv.Itoa(uid))
	}
	return strings.Join(text, " ")
}

func modes(o outcome) string { return strings.Join(keys(o.outside.seccomp), " ") }

func limits(o outcome) string {
	bytes, err := strconv.ParseFloat(o.outside.limits["memory.max"], 64)
	if err != nil {
		return o.outside.limits["memory.max"]
	}
	return mebibytes(bytes) + ", " + o.outside.limits["memory.swap.max"]
}

// shortVersion leaves out the commit.
func shortVersion(version string) string {
	parts := strings.SplitN(version, "-", 3)
	return strings.Join(parts[:min(2, len(parts))], "-")
}

func mebibytes(n float64) string { return fmt.Sprintf("%.0f MiB", n/(1<<20)) }

func keys[K int | string](set map[K]bool) []K { return slices.Sorted(maps.Keys(set)) }

func printTable(out io.Writer, outcomes []outcome) {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 3, ' ', 0)
	line := func(name string, value func(outcome) string) {
		fmt.Fprint(w, name)
		for _, o := range outcomes {
			fmt.Fprint(w, "\t", value(o))
		}
		fmt.Fprintln(w)
	}
	line("", func(o outcome) string { return o.program })
	line("", func(o outcome) string { return o.runtime })
	for _, s := range sections {
		line(s.title, func(outcome) string { return "" })
		for _, r := range s.rows {
			line("  "+r.name, r.value)
		}
	}
	w.Flush() // into memory
	for line := range strings.Lines(text.String()) {
		fmt.Fprintln(out, strings.TrimRight(line, " \n"))
	}
}

// check holds the outcomes against each other and against what was promised.
func check(outcomes []outcome) error {
	var errs []error
	for _, o := range outcomes {
		where := o.program + " under " + o.runtime
		if o.result.Stdout != outcomes[0].result.Stdout {
			errs = append(errs, fmt.Errorf("%s: its summary differs from the first", where))
		}
		for _, s := range sections {
			for _, r := range s.rows {
				if r.check != nil && !r.check(o) {
					errs = append(errs, fmt.Errorf("%s: %s is %q", where, r.name, r.value(o)))
				}
			}
		}
	}
	return errors.Join(errs...)
}
