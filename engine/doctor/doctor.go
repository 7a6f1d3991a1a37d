// Package doctor looks whether a host can run sandboxes, how well it keeps them
// in, and what would repair it where it does not.
//
// It changes nothing but the engine's own cgroups, which it makes as a run would:
// only the kernel can tell which controllers they get. Everything else is read.
// Without root it sees less, and says so.
package doctor

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/direct-oci/engine/cgroups"
)

// Status is how one check came out.
type Status string

// The statuses. Only Fail keeps a run from working.
const (
	OK   Status = "ok"
	Warn Status = "warn"
	Fail Status = "fail"
)

// Finding is what one check found.
type Finding struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	Found  string `json:"found"`
	Why    string `json:"why"` // why it matters
	Fix    string `json:"fix"` // a command, or what to do; empty when all is well
}

// Report is all that was found.
type Report struct {
	Fit    bool      `json:"fit"`   // a run would work
	Score  int       `json:"score"` // of 100: a warning counts half of what a check does
	Checks []Finding `json:"checks"`

	// Runtimes can be asked for by a run on this host.
	Runtimes []string `json:"runtimes"`
}

// Options say where to look. Empty directories are not the defaults: give those.
type Options struct {
	StateDir   string
	RunDir     string
	CgroupRoot string // "" lets it be found
	Beside     string // directory of the running program, where the other programs are looked for first
}

// host is what the checks look at. Its parts can be put on for a test.
type host struct {
	Options
	root    string // before every path in /proc, /sys, /etc, /lib and the like
	euid    int
	release string // of the kernel, "6.12.1-amd64"
	now     time.Time
	cgroups func(root string) (cgroups.Hierarchy, error)
}

// Check looks at the host that it runs on.
func Check(ctx context.Context, o Options) Report {
	return check(ctx, host{
		Options: o,
		root:    "/",
		euid:    os.Geteuid(),
		release: kernelRelease(),
		now:     time.Now(),
		cgroups: cgroups.Open,
	})
}

func check(ctx context.Context, h host) Report {
	var findings []Finding
	for _, check := range []func() []Finding{
		h.privilege, h.kernel, h.container,
		h.control, h.overlay, h.namespaces, h.seccomp,
		h.programs, h.directories,
		h.sysctls, h.swap, h.modules, h.corePattern, h.clock,
	} {
		findings = append(findings, check()...)
	}
	runtimes, checks := h.runtimes(ctx)
	r := Sum(append(findings, checks...))
	r.Runtimes = runtimes
	return r
}

// Sum makes a report of findings.
func Sum(findings []Finding) Report {
	r := Report{Fit: true, Checks: findings}
	points := 0.0
	for _, f := range findings {
		switch f.Status {
		case OK:
			points++
		case Warn:
			points += 0.5
		case Fail:
			r.Fit = false
		}
	}
	if len(findings) > 0 {
		// 100 is for a host without a single remark.
		r.Score = int(math.Floor(100 * points / float64(len(findings))))
	}
	return r
}

// one is a check that found one thing. What repairs it is left out if it is ok.
func one(name string, status Status, found, why, fix string) []Finding {
	if status == OK {
		fix = ""
	}
	return []Finding{{name, status, found, why, fix}}
}

// status is OK if good, and otherwise as bad as the check is.
func status(good bool, otherwise Status) Status {
	if good {
		return OK
	}
	return otherwise
}

// read returns a small file of the host without the space around it. A file
// that cannot be read is "", false: the kernel lacks the feature, or hides it.
func (h host) read(path string) (string, bool) {
	data, err := os.ReadFile(filepath.Join(h.root, path))
	if err != nil {
		return "", false
	}
	return strings.TrimSpace(string(data)), true
}

// exists says whether a path of the host is there.
func (h host) exists(path string) bool {
	_, err := os.Stat(filepath.Join(h.root, path))
	return err == nil
}

// bytes writes a size for a person.
func bytes(n uint64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%d bytes", n)
}
