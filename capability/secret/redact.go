package secret

import (
	"bytes"
	"encoding/json"
	"sort"
	"strings"
)

func marshal(p plain) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(p)
	return bytes.TrimSpace(b.Bytes()), err
}

// minRedacted is the shortest value that is looked for: shorter ones stand in any text.
const minRedacted = 6

// Redactor replaces secrets in text by their names. The zero Redactor replaces nothing.
//
// It finds a value as it is, and each longer line of one of several lines. It is a
// help against accidents and no guard: a program that wants to show a secret encodes
// it, or prints it in two halves.
type Redactor struct{ replace *strings.Replacer }

// NewRedactor makes a redactor of values by name.
func NewRedactor(values map[string][]byte) Redactor {
	type pair struct{ text, name string }
	var pairs []pair
	for name, value := range values {
		if text := string(value); len(text) >= minRedacted {
			pairs = append(pairs, pair{text, name})
		}
		lines := strings.Split(strings.TrimSpace(string(value)), "\n")
		for _, line := range lines {
			if len(lines) > 1 && len(line) >= 2*minRedacted {
				pairs = append(pairs, pair{line, name})
			}
		}
	}
	// The longest first, so that no part of one stays; then by name, so that the same
	// text always comes out the same.
	sort.Slice(pairs, func(i, j int) bool {
		a, b := pairs[i], pairs[j]
		if len(a.text) != len(b.text) {
			return len(a.text) > len(b.text)
		}
		return a.name < b.name
	})
	var list []string
	for _, p := range pairs {
		list = append(list, p.text, "[redacted:"+p.name+"]")
	}
	if list == nil {
		return Redactor{}
	}
	return Redactor{strings.NewReplacer(list...)}
}

// Text returns text without the values.
func (r Redactor) Text(text string) string {
	if r.replace == nil {
		return text
	}
	return r.replace.Replace(text)
}
