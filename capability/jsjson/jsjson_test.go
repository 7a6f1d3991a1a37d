package jsjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func TestParseRefuses(t *testing.T) {
	for _, text := range []string{
		"", " ", "[1,]", "[,1]", "{,}", `{"a":1,}`, `{"a"}`, `{a:1}`, "01", "1.", ".5", "+1", "1e", "- 1", "tru", "nul", `"a`, "\"a\nb\"",
		`"\x"`, `"\u12"`, `"\u12g4"`, "1 2", "\xff", "\ufeff1", "\x00", strings.Repeat("[", 1002) + strings.Repeat("]", 1002),
	} {
		_, err := Parse([]byte(text))
		var syntax *SyntaxError
		if !errors.As(err, &syntax) {
			t.Errorf("Parse(%.40q): error = %v, want a SyntaxError", text, err)
		}
	}
	_, err := Parse([]byte("{\n  \"secret\": hunter2}"))
	if err == nil || strings.Contains(err.Error(), "hunter2") || !strings.HasPrefix(err.Error(), "line 2, column 13:") {
		t.Errorf("error = %v, want one about line 2, column 13, without a quote", err)
	}
}

func TestStrings(t *testing.T) {
	tests := []struct{ in, out, plain string }{
		{`"\ud83d\ude00"`, `"😀"`, "😀"},
		{`"\ud83d"`, `"\ud83d"`, "\ufffd"},
		{`"\ude00\ud83d"`, `"\ude00\ud83d"`, "\ufffd\ufffd"},
		{`"\ud83dx\uDE00"`, `"\ud83dx\ude00"`, "\ufffdx\ufffd"},
		{`"\ud83d\u0041"`, `"\ud83dA"`, "\ufffdA"},
		{`"\ud83d\n"`, `"\ud83d\n"`, "\ufffd\n"},
		{`"\u0000\u001f\u007f\/"`, "\"\\u0000\\u001f\x7f/\"", "\x00\x1f\x7f/"},
		{`"\u2028<>&\ufffd\uffff"`, "\"\u2028<>&\ufffd\uffff\"", "\u2028<>&\ufffd\uffff"},
	}
	for _, tt := range tests {
		v, err := Parse([]byte(tt.in))
		s, _ := v.(string)
		if out := string(AppendString(nil, s)); err != nil || out != tt.out || Text(s) != tt.plain {
			t.Errorf("%s is written as %s and reads %q, %v; want %s and %q", tt.in, out, Text(s), err, tt.out, tt.plain)
		}
	}
}

func TestCompareIsByUnits(t *testing.T) {
	parse := func(text string) string {
		v, err := Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return v.(string)
	}
	// Each before the next.
	list := []string{`""`, `"a"`, `"aa"`, `"é"`, `"\ud7ff"`, `"\ud83d"`, `"\ud83dx"`, `"😀"`, `"😀a"`, `"😁"`, `"\udc00"`, `"\ue000"`, `"\uffff"`}
	for i := range list {
		for j := range list {
			got, want := Compare(parse(list[i]), parse(list[j])), 0
			if i < j {
				want = -1
			} else if i > j {
				want = 1
			}
			if got != want {
				t.Errorf("Compare(%s, %s) = %d, want %d", list[i], list[j], got, want)
			}
		}
	}
}

// TestCanonical uses the example of RFC 8785.
func TestCanonical(t *testing.T) {
	v, err := Parse([]byte(`{"numbers":[333333333.33333329,1E30,4.50,2e-3,0.000000000000000000000000001],
		"string":"\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/","literals":[null,true,false]}`))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}`
	if got, err := Canonical(v); err != nil || string(got) != want {
		t.Errorf("Canonical = %s, %v, want %s", got, err, want)
	}
	for _, text := range []string{`1e400`, `"\ud800"`, `{"\udc00":1}`} {
		if v, _ := Parse([]byte(text)); v == nil {
			t.Fatal(text)
		} else if _, err := Canonical(v); err == nil {
			t.Errorf("%s has a canonical form", text)
		}
	}
}

// FuzzParse checks that no input stops the parser, and that it agrees with Go's own
// wherever that can hold the value.
func FuzzParse(f *testing.F) {
	for _, s := range []string{`{"a":[1,2.5e3,null,true,"\ud83d\ude00\u0000"]}`, `[`, `"\ud800"`, `{"a":1,"a":2}`, "\xff", `-`, `01`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := Parse(data)
		var other any
		otherErr := json.Unmarshal(data, &other)
		if err != nil {
			if otherErr == nil && json.Valid(data) && bytes.Equal(data, bytes.ToValidUTF8(data, nil)) && bytes.Count(data, []byte("[")) < 100 && bytes.Count(data, []byte("{")) < 100 {
				t.Fatalf("%q is refused: %v", data, err)
			}
			return
		}
		if !json.Valid(data) {
			t.Fatalf("%q is accepted", data)
		}
		canonical, err := Canonical(v)
		if err != nil {
			return
		}
		again, err := Parse(canonical)
		if err != nil {
			t.Fatalf("canonical form %q is refused: %v", canonical, err)
		}
		if twice, err := Canonical(again); err != nil || !bytes.Equal(canonical, twice) {
			t.Fatalf("canonical form of %q = %q, %v", canonical, twice, err)
		}
	})
}

func TestParseBoundsValues(t *testing.T) {
	for text, values := range map[string]int{`1`: 1, `[]`: 1, `{"a":1}`: 2, `[[],{"a":[null]},"x"]`: 6} {
		if _, err := ParseAtMost([]byte(text), values); err != nil {
			t.Errorf("%s of %d values: %v", text, values, err)
		}
		if _, err := ParseAtMost([]byte(text), values-1); err == nil {
			t.Errorf("%s has no more than %d values", text, values-1)
		}
	}
	if _, err := Parse([]byte("[" + strings.Repeat("0,", maxValues) + "0]")); err == nil {
		t.Error("values without end are read")
	}
}
