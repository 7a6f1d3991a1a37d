package cli

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// IsTerminal says whether what is written to fd is shown to a person.
func IsTerminal(fd uintptr) bool {
	_, err := unix.IoctlGetTermios(int(fd), unix.TCGETS)
	return err == nil
}

// Escape makes text that a program chose harmless to show on a terminal.
func Escape(text string) string {
	var e Escaper
	return e.Add([]byte(text)) + e.End()
}

// Escaper makes what a program wrote harmless to show on a terminal, as it
// comes in pieces. A terminal obeys control characters: they hide text, rename
// the window, write to the clipboard, answer as if typed. The engine shows them
// instead, as Go would write them; newline and tab stay.
//
// SECURITY: no byte of a program's output can steer the terminal of who reads it.
// Holds because: only printable characters, newline and tab pass unchanged.
// Not covered: characters that merely look like others. Checked by: TestEscape.
type Escaper struct {
	rest []byte // beginning of a character that is not whole yet
}

// Add returns what can be shown of the output so far.
func (e *Escaper) Add(data []byte) string {
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

// End returns what is left of a character that never became whole.
func (e *Escaper) End() string {
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
