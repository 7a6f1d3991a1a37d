package capability

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"github.com/direct-oci/engine/engine"
)

// Schema is a compiled JSON Schema.
type Schema struct{ schema *jsonschema.Schema }

// CompileSchema reads a schema of draft 2020-12. It refers to nothing outside itself.
func CompileSchema(text []byte) (Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return Schema{}, fmt.Errorf("cannot read schema: %w", err)
	}
	c := jsonschema.NewCompiler()
	c.UseLoader(noLoader{})
	const name = "mem:schema.json"
	if err := c.AddResource(name, doc); err != nil {
		return Schema{}, fmt.Errorf("cannot use schema: %w", err)
	}
	s, err := c.Compile(name)
	if err != nil {
		return Schema{}, fmt.Errorf("cannot compile schema: %w", err)
	}
	return Schema{s}, nil
}

// noLoader refuses references to files and to the network.
type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, errors.New("references outside the schema are not followed: " + url)
}

// Violation is one thing that is wrong with a value.
type Violation struct {
	Pointer string `json:"pointer"` // RFC 6901; "" is the whole value
	Message string `json:"message"`
}

// Violations are all things that are wrong with a value. It is the cause of the
// *engine.Error that refuses it.
type Violations []Violation

func (v Violations) Error() string {
	texts := make([]string, len(v))
	for i, x := range v {
		texts[i] = strings.TrimSpace(x.Pointer + " " + x.Message)
	}
	return strings.Join(texts, "; ")
}

// maxViolations bounds what is said of one value, and maxViolation each of it: they quote
// what they are about.
const (
	maxViolations = 1000
	maxViolation  = 1000
)

// Validate returns everything that is wrong with a value of jsjson.Parse, in order of
// place, or nil. Of very many things it says the first ones, and how many there are.
func (s Schema) Validate(v any) Violations {
	if all := infinite("", v, nil); all != nil {
		return all.bounded() // no schema has words for them
	}
	err := s.schema.Validate(v)
	if err == nil {
		return nil
	}
	var invalid *jsonschema.ValidationError
	if !errors.As(err, &invalid) {
		return Violations{{"", err.Error()}}
	}
	var all Violations
	collect(invalid, message.NewPrinter(language.English), &all)
	slices.SortStableFunc(all, func(a, b Violation) int { return strings.Compare(a.Pointer, b.Pointer) })
	return slices.Compact(all).bounded()
}

func (v Violations) bounded() Violations {
	if more := len(v) - maxViolations; more > 0 {
		v = append(v[:maxViolations:maxViolations], Violation{"", fmt.Sprintf("and %d more are wrong", more)})
	}
	for i := range v {
		v[i].Pointer, v[i].Message = shorten(v[i].Pointer, maxViolation), shorten(v[i].Message, maxViolation)
	}
	return v
}

func pointerTo(token string) string {
	return "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(strings.ToValidUTF8(token, "\ufffd"))
}

// infinite finds numbers too large for a float64, which JSON may hold.
func infinite(at string, v any, all Violations) Violations {
	switch v := v.(type) {
	case float64:
		if math.IsInf(v, 0) {
			all = append(all, Violation{at, "is out of range"})
		}
	case []any:
		for i, e := range v {
			all = infinite(fmt.Sprintf("%s/%d", at, i), e, all)
		}
	case map[string]any:
		for k, e := range v {
			all = infinite(at+pointerTo(k), e, all)
		}
	}
	return all
}

// collect takes the leaves: what is above them only says that something below is wrong.
func collect(e *jsonschema.ValidationError, p *message.Printer, all *Violations) {
	if len(e.Causes) > 0 {
		for _, c := range e.Causes {
			collect(c, p, all)
		}
		return
	}
	pointer := ""
	for _, token := range e.InstanceLocation {
		pointer += pointerTo(token)
	}
	*all = append(*all, Violation{pointer, strings.ToValidUTF8(e.ErrorKind.LocalizedString(p), "\ufffd")})
}

// invalidArguments refuses arguments for all that is wrong with them.
func invalidArguments(name string, v Violations) *engine.Error {
	return engine.Refused("bad_arguments", "cannot accept the arguments of %s: %w", name, v).
		WithFix("see engine capabilities --json for their schema")
}
