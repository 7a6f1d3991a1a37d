package cli

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestEscape(t *testing.T) {
	tests := []struct{ name, in, want string }{
		{"text of many scripts", "héllo, wörld \u4e16\u754c \U0001f600\n\tx", "héllo, wörld \u4e16\u754c \U0001f600\n\tx"},
		{"colours and cursor", "\x1b[31mred\x1b[2J", `\x1b[31mred\x1b[2J`},
		{"window title and clipboard", "\x1b]0;t\x07\x1b]52;c;YQ==\x07", `\x1b]0;t\x07\x1b]52;c;YQ==\x07`},
		{"carriage return and backspace hide text", "good\rbad\b\b", `good\rbad\x08\x08`},
		{"NUL and delete", "\x00\x7f", `\x00\x7f`},
		{"C1 controls", "\u009b31m\u0085", `\u009b31m\u0085`},
		{"C1 controls as bytes", "\x9b31m", `\x9b31m`},
		{"text turned around", "\u202eevil\u202c\u2066x\u2069\u200f", `\u202eevil\u202c\u2066x\u2069\u200f`},
		{"invisible", "a\u200bb\ufeff\u2028\u00ad\U000e0041", `a\u200bb\ufeff\u2028\u00ad\U000e0041`},
		{"other spaces", "a\u00a0b\u3000c", "a\u00a0b\u3000c"},
		{"broken UTF-8", "a\xffb\xc3(\xed\xa0\x80", `a\xffb\xc3(\xed\xa0\x80`},
		{"incomplete at the end", "a\xe2\x82", `a\xe2\x82`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Escape(tt.in); got != tt.want {
				t.Errorf("Escape(%q) = %q, want %q", tt.in, got, tt.want)
			}
			// Byte by byte it comes to the same.
			var e Escaper
			var b strings.Builder
			for i := range len(tt.in) {
				b.WriteString(e.Add([]byte{tt.in[i]}))
			}
			if got := b.String() + e.End(); got != tt.want {
				t.Errorf("in single bytes: %q, want %q", got, tt.want)
			}
		})
	}
}

func FuzzEscape(f *testing.F) {
	f.Add("a\x1b[0m\u202e\xff\r\n", 3)
	f.Fuzz(func(t *testing.T, s string, cut int) {
		got := Escape(s)
		for _, r := range got {
			if r != '\n' && r != '\t' && (r < ' ' || r >= 0x7f && r < 0xa0 || r == '\ufeff' || r >= '\u200b' && r <= '\u200f' || r >= '\u2028' && r <= '\u202e' || r >= '\u2066' && r <= '\u2069') {
				t.Fatalf("Escape(%q) lets %q through", s, r)
			}
		}
		if cut < 0 || cut > len(s) {
			return
		}
		var e Escaper
		if parts := e.Add([]byte(s[:cut])) + e.Add([]byte(s[cut:])) + e.End(); parts != got {
			t.Fatalf("cut at %d: %q, want %q", cut, parts, got)
		}
	})
}

// TestJSONSteersNoTerminal proves that an answer in JSON has no character that a terminal
// obeys, and says the same to whoever reads it as JSON.
func TestJSONSteersNoTerminal(t *testing.T) {
	for _, text := range []string{"\x1b[31m", "\u009b31m\u0085", "\x7f", "\u202eevil\u202c", "a\u200bb\ufeff\u2028\u00ad\U000e0041", "h\u00e9llo \u4e16 \U0001f600", `\\u009b`, "a\"b\\c\n\t"} {
		var b strings.Builder
		o := Output{Stdout: &b}
		if err := o.PrintJSON(map[string]string{"stdout": text}); err != nil {
			t.Fatal(err)
		}
		printed := strings.TrimSuffix(b.String(), "\n")
		if got := Escape(printed); got != printed {
			t.Errorf("%q is printed as %q", text, printed)
		}
		var back map[string]string
		if err := json.Unmarshal([]byte(printed), &back); err != nil || back["stdout"] != text {
			t.Errorf("%q is read back as %q (%v)", text, back["stdout"], err)
		}
	}
}
