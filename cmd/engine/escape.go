package main

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// isTerminal says whether what is written to fd is shown to a person.
func isTerminal(fd uintptr) bool {
	_, err := unix.IoctlGetTermios(int(fd), unix.TCGETS)
	return err == nil
}

// escape makes text that a program chose harmless to show on a terminal.
func escape(text string) string {
	var e escaper
	return e.add([]byte(text)) + e.end()
}

// escaper makes what a program wrote harmless to show on a terminal, as it
// comes in pieces. A terminal obeys control characters: they hide text, rename
// the window, write to the clipboard, answer as if typed. The engine shows them
// instead, as Go would write them; newline and tab stay.
//
// SECURITY: no byte of a program's output can steer the terminal of who reads it.
// Holds because: only printable characters, newline and tab pass unchanged.
// Not covered: characters that merely look like others. Checked by: TestEscape.
type escaper struct {
	rest []byte // beginning of a character that is not whole yet
}

// add returns what can be shown of the output so far.
func (e *escaper) add(data []byte) string {
	data = append(e.rest, data...)
	var b strings.Builder
	b.Grow(len(data))
	for len(data) > 0 && utf8.FullRune(data) {
		r, size := utf8.DecodeRune(data)
		if r == utf8.RuneError && size == 1 {
			fmt.Fprintf(&b, `\x%02x`, data[0])
		} else {
			writeEscaped(&b, r)
		}
		data = data[size:]
	}
	e.rest = append([]byte(nil), data...)
	return b.String()
}

// end returns what is left of a character that never became whole.
func (e *escaper) end() string {
	var b strings.Builder
	for _, c := range e.rest {
		fmt.Fprintf(&b, `\x%02x`, c)
	}
	e.rest = nil
	return b.String()
}

func writeEscaped(b *strings.Builder, r rune) {
	switch {
	case r == '\n' || r == '\t':
		b.WriteRune(r)
	case r == '\r':
		b.WriteString(`\r`)
	case r < 0x20 || r == 0x7f:
		fmt.Fprintf(b, `\x%02x`, r)
	case unicode.IsPrint(r): // letters, marks, numbers, punctuation, symbols, space
		b.WriteRune(r)
	case unicode.Is(unicode.Zs, r): // the other spaces are no danger
		b.WriteRune(r)
	case r > 0xffff:
		fmt.Fprintf(b, `\U%08x`, r)
	default: // C1 controls, bidirectional and invisible formatting, line separators
		fmt.Fprintf(b, `\u%04x`, r)
	}
}
