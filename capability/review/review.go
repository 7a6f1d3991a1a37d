package review

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/direct-oci/engine/capability"
)

// Write writes what a reviewer has to see: the authority that is asked for, every
// document, whole or, if last is not nil, as the difference from it, and every
// character that could deceive. Text is safe to be shown on a terminal.
func Write(b *strings.Builder, info capability.Info, p capability.Prepared, last *capability.Version) error {
	strong, err := p.Bound.Strong()
	if err != nil {
		return err
	}
	line := func(label, format string, args ...any) {
		fmt.Fprintf(b, "%-14s %s\n", label, Visible(fmt.Sprintf(format, args...)))
	}
	bound := p.Bound
	line("capability", "%s of project %s, %s/%s", bound.Capability, bound.Project, info.Kind, info.Hazard)
	if bound.Environment != "" {
		line("environment", "%s", bound.Environment)
	}
	if p.Title != "" {
		line("title", "%s", p.Title)
	}
	line("digest", "%s", bound.Digest)
	line("stronger", "%s", strong)
	b.WriteString("\nIt asks for\n")
	if info.Kind == capability.Connector {
		line("  reading", "by the runner itself, without a sandbox, over the host's own network")
	} else {
		line("  command", "%q", bound.Command)
		line("  image", "%s, %s", bound.Image, bound.ImageDigest)
		line("  runtime", "%s", bound.Runtime)
		line("  network", "%s", orNone(bound.Egress))
		line("  secrets", "%s", orNone(bound.Secrets))
		l := bound.Limits
		line("  limits", "%v cpus, %d MiB, %v s, %d processes", l.CPUs, l.MemoryBytes>>20, l.TimeoutSeconds, l.Pids)
	}
	for _, w := range p.Warnings {
		line("  warning", "%s", w)
	}
	writeDocuments(b, p.Documents, last)
	writeFindings(b, p)
	return nil
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}

func writeDocuments(b *strings.Builder, documents []capability.Document, last *capability.Version) {
	if last == nil {
		b.WriteString("\nNothing was approved under this title before. All of it:\n")
	} else {
		b.WriteString("\nThe difference from what was approved last under this title:\n")
	}
	old := map[string]string{}
	if last != nil {
		for _, d := range last.Documents {
			old[d.Name] = d.Text
		}
	}
	same := 0
	for _, d := range documents {
		before, known := old[d.Name]
		delete(old, d.Name)
		switch {
		case !known:
			fmt.Fprintf(b, "\n=== %s (%d bytes)%s\n", Visible(d.Name), len(d.Text), map[bool]string{true: ", new"}[last != nil])
			writeNumbered(b, d.Text)
		case before == d.Text:
			same++
		default:
			b.WriteString("\n" + Visible(string(diff.Diff("approved/"+d.Name, []byte(before), "now/"+d.Name, []byte(d.Text)))))
		}
	}
	gone := make([]string, 0, len(old))
	for name := range old {
		gone = append(gone, name)
	}
	slices.Sort(gone)
	for _, name := range gone {
		fmt.Fprintf(b, "\n=== %s is gone\n", Visible(name))
	}
	if same > 0 {
		fmt.Fprintf(b, "\n%d of %d files are as they were approved.\n", same, len(documents))
	}
}

func writeNumbered(b *strings.Builder, text string) {
	n := 0
	for line := range strings.Lines(text) {
		n++
		fmt.Fprintf(b, "%5d  %s\n", n, Visible(strings.TrimSuffix(line, "\n")))
	}
}

// Suspicious returns what Find finds in each document and in its name, and in the title.
func Suspicious(p capability.Prepared) map[string][]Finding {
	all := map[string][]Finding{}
	if f := Find(p.Title); f != nil {
		all["(title)"] = f
	}
	for _, d := range p.Documents {
		if f := append(Find(d.Name), Find(d.Text)...); len(f) > 0 {
			all[d.Name] = f
		}
	}
	return all
}

func writeFindings(b *strings.Builder, p capability.Prepared) {
	all := Suspicious(p)
	if len(all) == 0 {
		b.WriteString("\nNo bidirectional, invisible or confusable characters.\n")
		return
	}
	b.WriteString("\nCHARACTERS THAT ARE NOT WHAT THEY SEEM\n")
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		for i, f := range all[name] {
			if i == 20 {
				fmt.Fprintf(b, "  %s: and %d more\n", Visible(name), len(all[name])-i)
				break
			}
			fmt.Fprintf(b, "  %s: %s\n", Visible(name), f)
		}
	}
}
