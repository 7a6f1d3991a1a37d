package jsjson

import (
	"fmt"
	"strconv"
	"unicode/utf8"
)

// SyntaxError is why bytes are not JSON. It quotes nothing of them: they may hold
// what nobody should see.
type SyntaxError struct {
	Line   int // from 1
	Column int // bytes from 1
	Why    string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("line %d, column %d: %s", e.Line, e.Column, e.Why)
}

// maxDepth keeps hostile input from using up the stack, and maxValues the memory: a
// value of two bytes becomes many times that.
const (
	maxDepth  = 1000
	maxValues = 1 << 21
)

// Parse reads one JSON value as JSON.parse does: of equal keys the last counts, and a
// number too large is infinite. It returns nil, bool, float64, string (in WTF-8), []any
// and map[string]any. Input that is not UTF-8 is refused, and so is more than anybody
// has: values nested deeper than 1000 levels, or more than two million of them. The error
// is a *SyntaxError.
func Parse(data []byte) (any, error) { return ParseAtMost(data, maxValues) }

// ParseAtMost is Parse with a bound of its own on the number of values, for callers that
// spend more on each.
func ParseAtMost(data []byte, values int) (any, error) {
	return parse(&parser{in: data, values: values, left: values})
}

// ParseUnique is Parse that refuses equal keys: for what has to mean the same to whoever
// else reads it.
func ParseUnique(data []byte) (any, error) {
	return parse(&parser{in: data, values: maxValues, left: maxValues, unique: true})
}

func parse(p *parser) (v any, err error) {
	defer func() {
		if e := recover(); e != nil {
			syntax, ok := e.(*SyntaxError)
			if !ok {
				panic(e)
			}
			v, err = nil, syntax
		}
	}()
	if !utf8.Valid(p.in) {
		p.fail("it is not UTF-8")
	}
	p.space()
	v = p.value(0)
	p.space()
	if p.at < len(p.in) {
		p.fail("something follows the value")
	}
	return v, nil
}

// parser reads from in at at. It gives up by a panic with a *SyntaxError, which Parse
// returns.
type parser struct {
	in     []byte
	at     int
	values int // that it may hold
	left   int // of them
	unique bool
}

func (p *parser) fail(why string) {
	e := &SyntaxError{Line: 1, Column: 1, Why: why}
	for _, c := range p.in[:min(p.at, len(p.in))] {
		if e.Column++; c == '\n' {
			e.Line, e.Column = e.Line+1, 1
		}
	}
	panic(e)
}

// peek is the next byte, 0 at the end. A NUL byte is nowhere accepted.
func (p *parser) peek() byte {
	if p.at == len(p.in) {
		return 0
	}
	return p.in[p.at]
}

func (p *parser) space() {
	for p.at < len(p.in) {
		switch p.in[p.at] {
		case ' ', '\t', '\n', '\r':
			p.at++
		default:
			return
		}
	}
}

func (p *parser) word(word string, v any) any {
	if len(p.in)-p.at < len(word) || string(p.in[p.at:p.at+len(word)]) != word {
		p.fail("a value is expected here")
	}
	p.at += len(word)
	return v
}

func (p *parser) value(depth int) any {
	if depth > maxDepth {
		p.fail(fmt.Sprintf("it is nested deeper than %d levels", maxDepth))
	}
	if p.left--; p.left < 0 {
		p.fail(fmt.Sprintf("it holds more than %d values", p.values))
	}
	switch c := p.peek(); {
	case c == '{':
		return p.object(depth)
	case c == '[':
		return p.array(depth)
	case c == '"':
		return p.text()
	case c == 't':
		return p.word("true", true)
	case c == 'f':
		return p.word("false", false)
	case c == '-' || c >= '0' && c <= '9':
		return p.number()
	default:
		return p.word("null", nil)
	}
}

func (p *parser) object(depth int) any {
	members := map[string]any{}
	p.at++
	for first := true; ; first = false {
		p.space()
		if p.peek() == '}' && first {
			break
		}
		if p.peek() != '"' {
			p.fail("a key in quotes is expected here")
		}
		key := p.text()
		if _, there := members[key]; there && p.unique {
			p.fail("a key comes twice")
		}
		p.space()
		if p.peek() != ':' {
			p.fail("a colon is expected here")
		}
		p.at++
		p.space()
		members[key] = p.value(depth + 1)
		p.space()
		if p.peek() == '}' {
			break
		}
		if p.peek() != ',' {
			p.fail("a comma or a closing brace is expected here")
		}
		p.at++
	}
	p.at++
	return members
}

func (p *parser) array(depth int) any {
	list := []any{}
	p.at++
	p.space()
	for p.peek() != ']' {
		if len(list) > 0 {
			if p.peek() != ',' {
				p.fail("a comma or a closing bracket is expected here")
			}
			p.at++
			p.space()
		}
		list = append(list, p.value(depth+1))
		p.space()
	}
	p.at++
	return list
}

func (p *parser) number() any {
	start := p.at
	digits := func() {
		if c := p.peek(); c < '0' || c > '9' {
			p.fail("a digit is expected here")
		}
		for c := p.peek(); c >= '0' && c <= '9'; c = p.peek() {
			p.at++
		}
	}
	if p.peek() == '-' {
		p.at++
	}
	if p.peek() == '0' {
		p.at++
	} else {
		digits()
	}
	if p.peek() == '.' {
		p.at++
		digits()
	}
	if c := p.peek(); c == 'e' || c == 'E' {
		p.at++
		if c := p.peek(); c == '+' || c == '-' {
			p.at++
		}
		digits()
	}
	// Out of range it returns an infinity or zero, as JavaScript does.
	f, _ := strconv.ParseFloat(string(p.in[start:p.at]), 64)
	return f
}

// text reads a string from its opening quote to behind its closing one.
func (p *parser) text() string {
	p.at++
	var out []byte
	for {
		start := p.at
		for p.at < len(p.in) && p.in[p.at] >= ' ' && p.in[p.at] != '"' && p.in[p.at] != '\\' {
			p.at++
		}
		out = append(out, p.in[start:p.at]...)
		switch c := p.peek(); {
		case p.at == len(p.in):
			p.fail("the string is not closed")
		case c == '"':
			p.at++
			return string(out)
		case c == '\\':
			p.at++
			out = p.escape(out)
		default:
			p.fail("a control character in a string must be escaped")
		}
	}
}

// escape reads what follows a backslash.
func (p *parser) escape(out []byte) []byte {
	c := p.peek()
	p.at++
	switch c {
	case '"', '\\', '/':
		return append(out, c)
	case 'b':
		return append(out, '\b')
	case 'f':
		return append(out, '\f')
	case 'n':
		return append(out, '\n')
	case 'r':
		return append(out, '\r')
	case 't':
		return append(out, '\t')
	case 'u':
	default:
		p.at--
		p.fail("there is no such escape")
	}
	unit := p.unit()
	if unit>>10 == 0xd800>>10 && p.at+1 < len(p.in) && p.in[p.at] == '\\' && p.in[p.at+1] == 'u' {
		back := p.at
		p.at += 2
		if low := p.unit(); low>>10 == 0xdc00>>10 {
			return utf8.AppendRune(out, 0x10000+((unit&0x3ff)<<10|low&0x3ff))
		}
		p.at = back
	}
	if unit>>11 == 0xd800>>11 {
		return append(out, 0xed, 0x80|byte(unit>>6&0x3f), 0x80|byte(unit&0x3f))
	}
	return utf8.AppendRune(out, unit)
}

func (p *parser) unit() rune {
	if len(p.in)-p.at < 4 {
		p.at = len(p.in)
		p.fail("four hexadecimal digits are expected here")
	}
	var unit rune
	for range 4 {
		c := p.peek()
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			p.fail("a hexadecimal digit is expected here")
		}
		unit = unit<<4 | rune(c)
		p.at++
	}
	return unit
}
