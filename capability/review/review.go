package review

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/capability/approval"
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
		fmt.Fprintf(b, "%-14s %s\n", label, Line(fmt.Sprintf(format, args...)))
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
		writeAuthority(line, bound, last)
	}
	for _, w := range p.Warnings {
		line("  warning", "%s", w)
	}
	writeDocuments(b, p, last)
	writeFindings(b, p)
	return nil
}

// writeAuthority writes what is asked for beside the files, and what of it was approved
// otherwise the last time: files that are all as they were say nothing about it.
func writeAuthority(line func(label, format string, args ...any), now approval.Bound, last *capability.Version) {
	var before [][2]string
	if last != nil {
		before = authority(last.Bound)
	}
	for i, a := range authority(now) {
		line("  "+a[0], "%s", a[1])
		if before != nil && before[i] != a {
			line("    CHANGED", "it was approved last with: %s", before[i][1])
		}
	}
}

func authority(b approval.Bound) [][2]string {
	l := b.Limits
	return [][2]string{
		{"command", fmt.Sprintf("%q", b.Command)},
		{"image", b.Image + ", " + b.ImageDigest},
		{"runtime", b.Runtime},
		{"network", orNone(b.Egress)},
		{"secrets", orNone(b.Secrets)},
		{"limits", fmt.Sprintf("%v cpus, %d MiB, %v s, %d processes", l.CPUs, l.MemoryBytes>>20, l.TimeoutSeconds, l.Pids)},
	}
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}

func writeDocuments(b *strings.Builder, p capability.Prepared, last *capability.Version) {
	if last == nil {
		b.WriteString("\nNothing was approved under this title before. All of it:\n")
	} else {
		b.WriteString("\nThe difference from what was approved last under this title:\n")
	}
	old, files, oldFiles := map[string]string{}, byPath(p.Bound), map[string]approval.File{}
	if last != nil {
		oldFiles = byPath(last.Bound)
		for _, d := range last.Documents {
			old[d.Name] = d.Text
		}
	}
	same := 0
	for _, d := range p.Documents {
		before, known := old[d.Name]
		delete(old, d.Name)
		switch {
		case !known:
			fmt.Fprintf(b, "\n=== %s (%d bytes)%s\n", Line(d.Name), len(d.Text), map[bool]string{true: ", new"}[last != nil])
			writeNumbered(b, d.Text)
		case before == d.Text && files[d.Name] != oldFiles[d.Name]:
			writeUnseen(b, files[d.Name], oldFiles[d.Name])
		case before == d.Text:
			same++
		default:
			b.WriteString("\n" + Visible(string(diff.Diff("approved/"+Line(d.Name), []byte(before), "now/"+Line(d.Name), []byte(d.Text)))))
		}
	}
	gone := make([]string, 0, len(old))
	for name := range old {
		gone = append(gone, name)
	}
	slices.Sort(gone)
	for _, name := range gone {
		fmt.Fprintf(b, "\n=== %s is gone\n", Line(name))
	}
	if same > 0 {
		fmt.Fprintf(b, "\n%d of %d files are as they were approved.\n", same, len(p.Documents))
	}
}

func byPath(b approval.Bound) map[string]approval.File {
	files := map[string]approval.File{}
	for _, f := range b.Files {
		files[f.Path] = f
	}
	return files
}

// writeUnseen tells of a file that has changed though its text is the same: in its mode,
// or in bytes that are no text, which all look alike.
func writeUnseen(b *strings.Builder, now, before approval.File) {
	fmt.Fprintf(b, "\n=== %s HAS CHANGED, its text has not\n", Line(now.Path))
	if now.Mode != before.Mode {
		fmt.Fprintf(b, "    its mode is %04o, and was %04o\n", now.Mode, before.Mode)
	}
	if now.SHA256 != before.SHA256 {
		fmt.Fprintf(b, "    its bytes are sha256:%s, and were sha256:%s\n", now.SHA256, before.SHA256)
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
	if f := findInName(p.Title); f != nil {
		all["(title)"] = f
	}
	for _, d := range p.Documents {
		if f := append(findInName(d.Name), Find(d.Text)...); len(f) > 0 {
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
				fmt.Fprintf(b, "  %s: and %d more\n", Line(name), len(all[name])-i)
				break
			}
			fmt.Fprintf(b, "  %s: %s\n", Line(name), f)
		}
	}
}
