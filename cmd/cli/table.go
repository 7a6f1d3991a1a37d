package cli

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"
)

// Table lays rows out in columns, the first one being their heads.
func Table(rows [][]string) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, cells := range rows {
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	w.Flush() // into memory
	return b.String()
}

// maxCell bounds a column that a request chose the text of.
const maxCell = 48

// Cell makes one line of at most maxCell characters of a text of any kind.
func Cell(text string) string {
	if text == "" {
		return "-"
	}
	text = strings.NewReplacer("\n", `\n`, "\t", `\t`).Replace(Escape(text))
	if utf8.RuneCountInString(text) > maxCell {
		text = string([]rune(text)[:maxCell-1]) + "…"
	}
	return text
}

// Age writes a time in its largest unit.
func Age(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}
