// Package review shows code to a human who is to approve it, so that what is seen is
// what runs: characters that change the order of others, that cannot be seen, or that
// look like others are found and named, and text is compared with what was approved
// before. It is pure.
package review

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// Finding is a character that is not what it seems, or cannot be seen.
type Finding struct {
	Line   int    `json:"line"`   // from 1
	Column int    `json:"column"` // characters, from 1
	Char   string `json:"char"`   // "U+202E"
	Kind   string `json:"kind"`   // bidirectional, invisible, control, confusable
	Why    string `json:"why"`
}

func (f Finding) String() string {
	return fmt.Sprintf("line %d, column %d: %s is %s: %s", f.Line, f.Column, f.Char, f.Kind, f.Why)
}

// MaxFindings bounds what Find returns for one text.
const MaxFindings = 1000

// Find returns the characters of a text that could deceive a reader.
//
// SECURITY: what a reviewer sees is what runs (CVE-2021-42574).
// Characters that reorder or hide text make code look like other code.
// Holds because: every character that is neither printable nor one of the usual spaces is
// found by its class and not by a list. Not covered: letters that look alike outside the
// scripts listed here, and fonts. Checked by: TestFind.
func Find(text string) []Finding {
	var all []Finding
	line, column := 1, 0
	word := word{}
	flush := func() {
		all = append(all, word.findings()...)
		word.reset()
	}
	for i, r := range text {
		if len(all) >= MaxFindings {
			return all[:MaxFindings]
		}
		column++
		if kind, why := suspicious(r, text[i:]); kind != "" {
			all = append(all, Finding{line, column, name(r), kind, why})
		}
		if unicode.IsLetter(r) || unicode.IsMark(r) || unicode.IsDigit(r) || r == '_' {
			word.add(r, line, column)
			continue
		}
		flush()
		if r == '\n' {
			line, column = line+1, 0
		}
	}
	flush()
	return all[:min(len(all), MaxFindings)]
}

func name(r rune) string { return fmt.Sprintf("U+%04X", r) }

// suspicious judges one character by itself.
func suspicious(r rune, rest string) (kind, why string) {
	switch {
	case r == utf8.RuneError:
		return "invisible", "it stands for what is not text"
	case r == '\n' || r == '\t' || r >= ' ' && r < 0x7f:
		return "", ""
	case r == '\r':
		if strings.HasPrefix(rest, "\r\n") {
			return "", ""
		}
		return "control", "a terminal writes what follows over the line"
	case unicode.Is(unicode.Bidi_Control, r):
		return "bidirectional", "it changes the order in which text is shown"
	case unicode.IsControl(r):
		return "control", "a terminal obeys it"
	case unicode.In(r, unicode.Cf, unicode.Co, unicode.Cs, unicode.Zl, unicode.Zp, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point) || r == 0x2800:
		return "invisible", "it takes part in the text and is not seen"
	case unicode.Is(unicode.Zs, r):
		return "invisible", "it looks like a space and is none to a program"
	case !unicode.IsPrint(r):
		return "invisible", "it may not be shown"
	}
	if plain := norm.NFKC.String(string(r)); plain != string(r) && isASCII(plain) {
		return "confusable", fmt.Sprintf("it looks like %q", plain)
	}
	if twin, ok := signs[r]; ok {
		return "confusable", fmt.Sprintf("it looks like %q", string(twin))
	}
	return "", ""
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

// signs look like signs that mean something in code, and NFKC does not say so.
var signs = map[rune]rune{
	0x01c3: '!', 0x02d0: ':', 0x0589: ':', 0x05c3: ':', 0xa789: ':', 0x2236: ':',
	0x2044: '/', 0x2215: '/', 0x29f8: '/', 0x2216: '\\', 0x29f5: '\\', 0x2217: '*', 0x204e: '*',
	0x2010: '-', 0x2012: '-', 0x2212: '-', 0x02d7: '-', 0x201a: ',', 0x066b: ',', 0x0660: '.',
	0x2223: '|', 0x01c0: '|', 0x2039: '<', 0x203a: '>', 0x02c2: '<', 0x02c3: '>', 0x2018: '\'', 0x2019: '\'', 0x02bc: '\'',
	0x201c: '"', 0x201d: '"', 0x02ba: '"', 0x2768: '(', 0x2769: ')', 0x2774: '{', 0x2775: '}',
}

// letters look like Latin ones.
var letters = map[rune]rune{
	// Cyrillic
	'а': 'a', 'ԁ': 'd', 'е': 'e', 'һ': 'h', 'і': 'i', 'ј': 'j', 'о': 'o', 'р': 'p', 'ԛ': 'q', 'с': 'c', 'ѕ': 's', 'у': 'y', 'ѵ': 'v', 'ԝ': 'w', 'х': 'x', 'ӏ': 'l',
	'А': 'A', 'В': 'B', 'С': 'C', 'Е': 'E', 'Н': 'H', 'І': 'I', 'Ј': 'J', 'К': 'K', 'М': 'M', 'О': 'O', 'Р': 'P', 'Ѕ': 'S', 'Т': 'T', 'Х': 'X', 'У': 'Y',
	// Greek
	'α': 'a', 'γ': 'y', 'ι': 'i', 'κ': 'k', 'ν': 'v', 'ο': 'o', 'ρ': 'p', 'υ': 'u',
	'Α': 'A', 'Β': 'B', 'Ε': 'E', 'Ζ': 'Z', 'Η': 'H', 'Ι': 'I', 'Κ': 'K', 'Μ': 'M', 'Ν': 'N', 'Ο': 'O', 'Ρ': 'P', 'Τ': 'T', 'Υ': 'Y', 'Χ': 'X',
	// Armenian and others
	'օ': 'o', 'ո': 'n', 'ս': 'u', 'հ': 'h', 'ց': 'g', 'զ': 'q', 'ı': 'i', 'ɑ': 'a', 'ɡ': 'g', 'ɩ': 'i', 'ʋ': 'v',
}

// word is a run of letters and digits. Letters of other scripts are suspicious where
// they stand among Latin ones, or where a whole word of them could be a Latin one.
type word struct {
	twins []Finding
	latin int
	other int // letters without a Latin twin, of other scripts
}

func (w *word) add(r rune, line, column int) {
	switch twin, ok := letters[r]; {
	case ok:
		w.twins = append(w.twins, Finding{line, column, name(r), "confusable", fmt.Sprintf("it looks like %q", string(twin))})
	case unicode.Is(unicode.Latin, r):
		w.latin++
	case unicode.IsLetter(r):
		w.other++
	}
}

func (w *word) findings() []Finding {
	if w.latin > 0 || w.other == 0 {
		return w.twins
	}
	return nil
}

func (w *word) reset() { *w = word{twins: w.twins[:0]} }

// findInName is Find for what has to be in one line.
func findInName(text string) []Finding {
	found := Find(text)
	column := 0
	for _, r := range text {
		if column++; r == '\n' {
			found = append(found, Finding{1, column, name(r), "control", "a name has one line"})
		}
	}
	return found[:min(len(found), MaxFindings)]
}

var inOneLine = strings.NewReplacer("\n", "<U+000A>", "\r", "<U+000D>")

// Line is Visible for what has to stay in one line: a title, a path, whatever is not to
// look like lines of our own.
//
// SECURITY: nothing that a caller names can pass for a part of the review.
// A title with line ends could say that no secret is asked for, above the line that says it is.
// Holds because: every such text goes through here, and a file's own lines have a number or a
// sign before them. Checked by: TestNamesStayInTheirLine.
func Line(text string) string { return Visible(inOneLine.Replace(text)) }

// Visible makes text harmless to show on a terminal: characters that Find takes for
// bidirectional, invisible or control are written by their numbers.
func Visible(text string) string {
	var b strings.Builder
	for i, r := range text {
		if kind, _ := suspicious(r, text[i:]); kind != "" && kind != "confusable" {
			fmt.Fprintf(&b, "<%s>", name(r))
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}
