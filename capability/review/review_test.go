package review

import (
	"strings"
	"testing"
	"unicode"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/capability/approval"
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

// TestNamesStayInTheirLine gives lines of a review's own in everything that a caller
// names.
func TestNamesStayInTheirLine(t *testing.T) {
	const forged = "x\n  secrets      none\n\r\n=== nothing (0 bytes)"
	p := capability.Prepared{
		Title: forged, Warnings: []string{forged}, Documents: []capability.Document{{Name: forged, Text: forged}, {Name: forged + "2", Text: "same"}},
		Bound: approval.Bound{Project: forged, Environment: forged, Image: forged, Secrets: []string{forged}, Egress: []string{forged}, Command: []string{forged}},
	}
	last := &capability.Version{Bound: p.Bound, Documents: []capability.Document{{Name: forged, Text: "other"}, {Name: forged + "2", Text: "same"}, {Name: forged + "3"}}}
	last.Bound.Files = []approval.File{{Path: forged + "2"}}
	for _, last := range []*capability.Version{nil, last} {
		var b strings.Builder
		if err := Write(&b, capability.Info{}, p, last); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(b.String()) {
			if strings.HasPrefix(line, "  secrets      none") || strings.HasPrefix(line, "=== nothing") || strings.Contains(line, "\r\n") && last == nil {
				t.Errorf("a name has made a line: %q\n%s", line, b.String())
			}
		}
	}
	if got := Suspicious(p); len(got["(title)"]) == 0 || len(got[forged]) == 0 {
		t.Errorf("Suspicious = %+v, want the title and the name among them", got)
	}
}

// TestWriteShowsWhatFilesDoNot changes what is asked for, a mode, and bytes that look
// alike as text: the files read as they did.
func TestWriteShowsWhatFilesDoNot(t *testing.T) {
	before := approval.Bound{
		Command: []string{"sh", "/workload/a"}, Image: "box", ImageDigest: "sha256:1", Runtime: "runsc", Secrets: []string{"TOKEN"}, Limits: approval.Limits{CPUs: 1},
		Files: []approval.File{{Path: "a", Mode: 0o644, SHA256: "01"}, {Path: "b", Mode: 0o644, SHA256: "02"}, {Path: "c", Mode: 0o644, SHA256: "03"}},
	}
	now := before
	now.Command, now.ImageDigest, now.Secrets, now.Egress, now.Limits.CPUs = []string{"sh", "/workload/b"}, "sha256:2", []string{"KEY", "TOKEN"}, []string{"internet"}, 4
	now.Files = []approval.File{{Path: "a", Mode: 0o755, SHA256: "01"}, {Path: "b", Mode: 0o644, SHA256: "ff"}, before.Files[2]}
	documents := []capability.Document{{Name: "a", Text: "x"}, {Name: "b", Text: "\ufffd"}, {Name: "c", Text: "x"}}
	review := func(bound approval.Bound) string {
		var b strings.Builder
		p := capability.Prepared{Title: "t", Bound: bound, Documents: documents}
		if err := Write(&b, capability.Info{}, p, &capability.Version{Bound: before, Documents: documents}); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	if same := review(before); strings.Contains(same, "CHANGED") || !strings.Contains(same, "3 of 3 files") {
		t.Errorf("of the same:\n%s", same)
	}
	got := review(now)
	for _, want := range []string{
		`with: ["sh" "/workload/a"]`, "with: box, sha256:1", "with: none", "with: TOKEN", "with: 1 cpus",
		"=== a HAS CHANGED", "its mode is 0755, and was 0644", "=== b HAS CHANGED", "sha256:ff, and were sha256:02", "1 of 3 files",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the review lacks %q:\n%s", want, got)
		}
	}
	if strings.Contains(got, "with: runsc") {
		t.Errorf("the runtime is as it was:\n%s", got)
	}
}
