// Package jsjson reads and writes JSON exactly as JavaScript does, for digests that
// programs of both languages must agree on.
//
// A JavaScript string is a sequence of 16-bit units and may hold half of a surrogate
// pair, which no Go string in UTF-8 can. Here strings are in WTF-8: UTF-8, in which
// such a half is written as the three bytes that its number would take. Text makes
// plain UTF-8 of them, by the rule of every encoder: a lone half becomes U+FFFD.
//
// The package is pure and allocates in proportion to its input.
package jsjson

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Canonical writes v, of the types that Parse returns, by RFC 8785: no space, keys in
// order of their UTF-16 units. Values that RFC 8785 has no form for are an error:
// numbers that are not finite, strings with half of a surrogate pair.
func Canonical(v any) ([]byte, error) { return appendCanonical(nil, v) }

func appendCanonical(dst []byte, v any) ([]byte, error) {
	var err error
	switch v := v.(type) {
	case nil:
		return append(dst, "null"...), nil
	case bool:
		return strconv.AppendBool(dst, v), nil
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, errors.New("a number that is not finite has no canonical form")
		}
		return AppendNumber(dst, v), nil
	case string:
		if !utf8.ValidString(v) {
			return nil, errors.New("a string with half of a surrogate pair has no canonical form")
		}
		return AppendString(dst, v), nil
	case []any:
		dst = append(dst, '[')
		for i, e := range v {
			if i > 0 {
				dst = append(dst, ',')
			}
			if dst, err = appendCanonical(dst, e); err != nil {
				return nil, err
			}
		}
		return append(dst, ']'), nil
	case map[string]any:
		keys := make([]string, 0, len(v))
		for k := range v {
			keys = append(keys, k)
		}
		slices.SortFunc(keys, Compare)
		dst = append(dst, '{')
		for i, k := range keys {
			if i > 0 {
				dst = append(dst, ',')
			}
			if dst, err = appendCanonical(dst, k); err != nil {
				return nil, err
			}
			if dst, err = appendCanonical(append(dst, ':'), v[k]); err != nil {
				return nil, err
			}
		}
		return append(dst, '}'), nil
	default:
		return nil, errors.New("internal error: not a JSON value")
	}
}

// AppendNumber writes f as JSON.stringify does: the fewest digits that read back as
// f, an exponent outside 1e-6..1e21, "0" for both zeros, "null" where there is no number.
func AppendNumber(dst []byte, f float64) []byte {
	switch abs := math.Abs(f); {
	case math.IsNaN(f) || math.IsInf(f, 0):
		return append(dst, "null"...)
	case f == 0:
		return append(dst, '0')
	case abs >= 1e-6 && abs < 1e21:
		return strconv.AppendFloat(dst, f, 'f', -1, 64)
	}
	// Go writes two digits of exponent at least.
	text := strconv.FormatFloat(f, 'e', -1, 64)
	mantissa, exponent, _ := strings.Cut(text, "e")
	dst = append(append(dst, mantissa...), 'e', exponent[0])
	return append(dst, strings.TrimLeft(exponent[1:], "0")...)
}

const hex = "0123456789abcdef"

// AppendString writes s, in WTF-8, as JSON.stringify does: lone halves of surrogate
// pairs as escapes, and nothing else above U+001F but the quote and the backslash.
func AppendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		half := c == 0xed && i+2 < len(s) && s[i+1] >= 0xa0
		if c >= ' ' && c != '"' && c != '\\' && !half {
			continue
		}
		dst = append(dst, s[start:i]...)
		switch {
		case half:
			unit := 0xd000 | uint16(s[i+1]&0x3f)<<6 | uint16(s[i+2]&0x3f)
			dst = append(dst, '\\', 'u', 'd', hex[unit>>8&15], hex[unit>>4&15], hex[unit&15])
			i += 2
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c >= '\b' && c <= '\r' && c != '\v':
			dst = append(dst, '\\', "btn_fr"[c-'\b'])
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
		start = i + 1
	}
	return append(append(dst, s[start:]...), '"')
}

// Printable writes characters of JSON text that could steer a terminal as JSON's own
// escapes, which mean the same to a reader of JSON. Encoders only do so below U+0020; the
// rest of what terminals obey, such as U+009B, they leave as it is. The text is in UTF-8.
func Printable(text string) string {
	var b strings.Builder
	b.Grow(len(text))
	for _, r := range text {
		switch {
		case r == '\n' || unicode.IsPrint(r) || unicode.Is(unicode.Zs, r):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// Compare orders strings as JavaScript's < does, by their UTF-16 units.
func Compare(a, b string) int {
	// Up to the first difference bytes are as good as units.
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	for n > 0 && (n < len(a) && a[n]&0xc0 == 0x80 || n < len(b) && b[n]&0xc0 == 0x80) {
		n--
	}
	return slices.Compare(units(a[n:]), units(b[n:]))
}

// units returns the UTF-16 units of a string in WTF-8.
func units(s string) []uint16 {
	out := make([]uint16, 0, len(s))
	for i := 0; i < len(s); {
		if isHalf(s[i:]) {
			out = append(out, 0xd000|uint16(s[i+1]&0x3f)<<6|uint16(s[i+2]&0x3f))
			i += 3
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if r >= 0x10000 {
			r -= 0x10000
			out = append(out, 0xd800+uint16(r>>10), 0xdc00+uint16(r&0x3ff))
		} else {
			out = append(out, uint16(r))
		}
		i += size
	}
	return out
}

func isHalf(s string) bool { return len(s) > 2 && s[0] == 0xed && s[1] >= 0xa0 }

// Text returns s, in WTF-8, as plain UTF-8.
func Text(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		if isHalf(s[i:]) {
			b.WriteRune(utf8.RuneError)
			i += 3
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		b.WriteRune(r)
		i += size
	}
	return b.String()
}
