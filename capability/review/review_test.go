package review

import (
	"strings"
	"testing"
	"unicode"

	"github.com/direct-oci/engine/capability"
)

func TestFind(t *testing.T) {
	tests := []struct {
		name, text string
		want       string // kinds, joined
	}{
		{"code", "if (a < b) { return \"x\"; }\r\n\tok\n", ""},
		{"other languages", "// Привет, мир: Καλημέρα κόσμε, 日本語, naïve, שלום, 한국어\n", ""},
		{"right-to-left override", "a\u202eb", "bidirectional"},
		{"isolates", "/*\u2066 } \u2069*/", "bidirectional bidirectional"},
		{"left-to-right mark", "a\u200eb", "bidirectional"},
		{"zero-width space", "a\u200bb", "invisible"},
		{"zero-width joiner", "a\u200db", "invisible"},
		{"byte order mark", "\ufeffa", "invisible"},
		{"soft hyphen", "a\u00adb", "invisible"},
		{"variation selectors hide data", "a\U000E0101\ufe0f", "invisible invisible"},
		{"tags", "\U000E0041", "invisible"},
		{"hangul filler", "a\u3164", "invisible"},
		{"blank braille", "\u2800", "invisible"},
		{"no-break space", "a\u00a0b", "invisible"},
		{"line separator", "a\u2028b", "invisible"},
		{"private use", "\ue000", "invisible"},
		{"not text", "a\xffb", "invisible"},
		{"escape sequence", "\x1b[2K", "control"},
		{"carriage return alone", "a\rb", "control"},
		{"C1 control", "\u009b", "control"},
		{"a Cyrillic letter in a Latin word", "p\u0430ypal", "confusable"},
		{"a word of nothing but twins", "\u0441\u043e\u0440\u0443", "confusable confusable confusable confusable"},
		{"a Russian word with twins", "\u0441\u0442\u043e\u043b", ""},
		{"full width", "\uff45val", "confusable"},
		{"mathematical letters", "\U0001d41aa", "confusable"},
		{"Greek question mark", "a\u037e", "confusable"},
		{"division slash", "a\u2215b", "confusable"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var kinds []string
			for _, f := range Find(tt.text) {
				kinds = append(kinds, f.Kind)
			}
			if got := strings.Join(kinds, " "); got != tt.want {
				t.Errorf("Find(%q) = %q, want %q", tt.text, got, tt.want)
			}
		})
	}
}

func TestFindTellsWhere(t *testing.T) {
	got := Find("ok\nx \u202e")
	if len(got) != 1 || got[0].Line != 2 || got[0].Column != 3 || got[0].Char != "U+202E" {
		t.Errorf("Find = %+v, want line 2, column 3", got)
	}
}

func FuzzVisible(f *testing.F) {
	f.Add("a\u202e\x1b[2J\xff\r")
	f.Fuzz(func(t *testing.T, text string) {
		for _, r := range Visible(text) {
			if r != '\n' && r != '\t' && r != '\r' && !unicode.IsPrint(r) {
				t.Fatalf("Visible(%q) shows %U", text, r)
			}
		}
		Find(text)
	})
}

func TestWriteShowsTheDifference(t *testing.T) {
	p := capability.Prepared{Title: "t", Documents: []capability.Document{{Name: "a.sh", Text: "one\ntwo\n"}, {Name: "b.sh", Text: "same\n"}, {Name: "new.sh", Text: "x\u202e\n"}}}
	var first, second strings.Builder
	if err := Write(&first, capability.Info{}, p, nil); err != nil {
		t.Fatal(err)
	}
	last := &capability.Version{Documents: []capability.Document{{Name: "a.sh", Text: "one\n"}, {Name: "b.sh", Text: "same\n"}, {Name: "gone.sh"}}}
	if err := Write(&second, capability.Info{}, p, last); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"All of it", "    2  two", "x<U+202E>", "U+202E is bidirectional", "secrets      none"} {
		if !strings.Contains(first.String(), want) {
			t.Errorf("first review lacks %q:\n%s", want, first.String())
		}
	}
	for _, want := range []string{"+two", "new.sh (5 bytes), new", "gone.sh is gone", "1 of 3 files"} {
		if !strings.Contains(second.String(), want) {
			t.Errorf("second review lacks %q:\n%s", want, second.String())
		}
	}
}
