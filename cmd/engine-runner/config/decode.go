package config

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"sort"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/direct-oci/engine/capability/secret"
	"github.com/direct-oci/engine/engine/spelling"
)

// decoder turns a YAML document into a Config and notes all that does not fit. It
// quotes keys and never values: any value may be a secret that has got into the wrong
// place.
type decoder struct {
	problems []Problem
	lines    map[string]int
	misnamed []string // keys that are missing because another, which was written, was meant for them
}

func (d *decoder) problem(line int, key, message, fix string) {
	d.problems = append(d.problems, Problem{line, key, message, fix})
}

func (d *decoder) document(data []byte, c *Config) {
	tokens := lexer.Tokenize(string(data))
	if line := tooDeep(tokens); line > 0 {
		d.problem(line, "", fmt.Sprintf("it is nested deeper than %d levels", maxDepth), "")
		return
	}
	file, err := parser.Parse(tokens, 0)
	if err != nil {
		d.syntax(err)
		return
	}
	if len(file.Docs) != 1 || file.Docs[0].Body == nil {
		d.problem(0, "", "want one document", "")
		return
	}
	d.value("", file.Docs[0].Body, reflect.ValueOf(c).Elem())
}

// syntax notes why a document cannot be read.
func (d *decoder) syntax(err error) {
	line, message := 0, "it is neither YAML nor JSON"
	var e yaml.Error
	if errors.As(err, &e) {
		if t := e.GetToken(); t != nil && t.Position != nil {
			line = t.Position.Line
		}
		switch why := e.GetMessage(); {
		case strings.HasPrefix(why, "mapping key "):
			message = "a key comes twice"
			if name := quotedKey.FindStringSubmatch(why); name != nil && keyForm.MatchString(name[1]) {
				message = "the key " + name[1] + " comes twice"
			}
		case !strings.Contains(why, `"`): // the others quote
			message += ": " + why
		}
	}
	d.problem(line, "", message, "")
}

var quotedKey = regexp.MustCompile(`^mapping key "([^"]*)"`)

// others are those problems of values that are not about, around or below a key which
// could not be read: what is wrong there may be just that.
func (d *decoder) others(problems []Problem) []Problem {
	unread := slices.Clone(d.misnamed)
	for _, p := range d.problems {
		unread = append(unread, p.Key)
	}
	return slices.DeleteFunc(problems, func(p Problem) bool {
		return slices.ContainsFunc(unread, func(key string) bool { return within(p.Key, key) || within(key, p.Key) })
	})
}

// within tells whether a key is another or below it.
func within(key, other string) bool {
	rest, found := strings.CutPrefix(key, other)
	return found && (rest == "" || other == "" || rest[0] == '.' || rest[0] == '[')
}

// maxDepth is more than any config has. The parser has no bound of its own, and takes a
// kilobyte and more for each level: a file of a few megabytes could end the process.
const maxDepth = 100

// tooDeep returns the line in which tokens are nested deeper than maxDepth, or 0. In
// brackets depth is counted; of what a parser may take for nested without them, how much
// there is in one line, and of what no config has, how much at all; and what is nested by lines that stand further in and further in
// is few for its size.
func tooDeep(tokens token.Tokens) int {
	brackets, line, inLine, marks := 0, 0, 0, 0
	for _, t := range tokens {
		if t.Position.Line != line {
			line, inLine = t.Position.Line, 0
		}
		switch t.Type {
		case token.MappingStartType, token.SequenceStartType:
			brackets++
		case token.MappingEndType, token.SequenceEndType:
			brackets = max(brackets-1, 0)
		case token.SequenceEntryType, token.MappingKeyType:
			inLine++
		case token.AnchorType, token.TagType:
			marks++
		}
		if max(brackets, inLine, marks) > maxDepth {
			return line
		}
	}
	return 0
}

func lineOf(n ast.Node) int {
	if t := n.GetToken(); t != nil && t.Position != nil {
		return t.Position.Line
	}
	return 0
}

var sourceType = reflect.TypeFor[secret.Source]()

// value puts a node into v. at is its path in the config.
func (d *decoder) value(at string, n ast.Node, v reflect.Value) {
	d.lines[at] = lineOf(n)
	if v.Type() == sourceType {
		if s, ok := text(n); ok { // the value itself
			v.Set(reflect.ValueOf(secret.Source{Value: s}))
			return
		}
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.value(at, n, v.Elem())
	case reflect.Struct:
		d.object(at, n, v)
	case reflect.Map:
		d.mapping(at, n, v)
	case reflect.Slice:
		d.list(at, n, v)
	default:
		if want := scalar(n, v); want != "" {
			d.problem(lineOf(n), at, "is not "+want, "")
		}
	}
}

// text is the content of a node that is a string.
func text(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	}
	return "", false
}

// scalar sets v, or returns what was wanted instead.
func scalar(n ast.Node, v reflect.Value) string {
	switch v.Kind() {
	case reflect.String:
		s, ok := text(n)
		if _, plain := n.(ast.ScalarNode); !ok && plain {
			return "a string: put it into quotes"
		}
		if !ok {
			return "a string"
		}
		v.SetString(s)
	case reflect.Bool:
		b, ok := n.(*ast.BoolNode)
		if !ok {
			return "true or false"
		}
		v.SetBool(b.Value)
	case reflect.Int64:
		f, ok := number(n)
		if !ok || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
			return "a whole number"
		}
		v.SetInt(int64(f))
	case reflect.Float64:
		f, ok := number(n)
		if !ok {
			return "a number"
		}
		v.SetFloat(f)
	default:
		return "internal error: a type that no config has"
	}
	return ""
}

func number(n ast.Node) (float64, bool) {
	switch n := n.(type) {
	case *ast.FloatNode:
		return n.Value, true
	case *ast.IntegerNode:
		switch i := n.Value.(type) {
		case int64:
			return float64(i), true
		case uint64:
			return float64(i), true
		}
	}
	return 0, false
}

// keyForm is that of keys which are shown in messages.
var keyForm = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// pairs are the members of a mapping, of which a key may come once.
func (d *decoder) pairs(at string, n ast.Node) []*ast.MappingValueNode {
	var all []*ast.MappingValueNode
	switch n := n.(type) {
	case *ast.MappingNode:
		all = n.Values
	case *ast.MappingValueNode:
		all = []*ast.MappingValueNode{n}
	case *ast.NullNode:
	default:
		d.problem(lineOf(n), at, "is not a mapping of keys to values", "")
	}
	return all
}

// key is the key of a pair, and its path below at.
func (d *decoder) key(at string, p *ast.MappingValueNode, seen map[string]bool) (name, path string, ok bool) {
	name, ok = text(p.Key)
	if !ok {
		if token := p.Key.GetToken(); token != nil {
			name = token.Value // 80: a number, and as a key as good as a name
		}
	}
	path = strings.TrimPrefix(at+"."+name, ".")
	if !keyForm.MatchString(name) {
		path = strings.TrimPrefix(at+".?", ".") // perhaps a value in the wrong place
	}
	if _, merge := p.Key.(*ast.MergeKeyNode); merge || name == "" {
		d.problem(lineOf(p.Key), at, "has a key that is no plain name", "")
		return "", "", false
	}
	if seen[name] {
		d.problem(lineOf(p.Key), path, "comes twice", "")
		return "", "", false
	}
	seen[name] = true
	return name, path, true
}

func (d *decoder) object(at string, n ast.Node, v reflect.Value) {
	fields := map[string]int{}
	var names []string
	for i := range v.NumField() {
		if name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ","); name != "" {
			fields[name] = i
			names = append(names, name)
		}
	}
	seen := map[string]bool{}
	for _, p := range d.pairs(at, n) {
		name, path, ok := d.key(at, p, seen)
		if !ok {
			continue
		}
		i, known := fields[name]
		if !known {
			fix := "known are " + strings.Join(names, ", ")
			if best := spelling.Nearest(name, names); best != "" {
				fix = "did you mean " + best + "?"
				d.misnamed = append(d.misnamed, strings.TrimPrefix(at+"."+best, "."))
			}
			if v.Type() == sourceType && !strings.HasPrefix(fix, "did") {
				path = at + ".?" // perhaps the value itself
			}
			d.problem(lineOf(p.Key), path, "is no key of a config", fix)
			continue
		}
		if !d.plain(path, p.Value) {
			continue
		}
		d.value(path, p.Value, v.Field(i))
		d.lines[path] = lineOf(p.Key)
	}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name := f.Tag.Get("json")
		path := strings.TrimPrefix(at+"."+name, ".")
		if f.Tag.Get("required") == "true" && !seen[name] && !slices.Contains(d.misnamed, path) {
			d.problem(lineOf(n), path, "is missing", "")
		}
	}
}

// plain refuses anchors, aliases and tags: a config says what it says.
func (d *decoder) plain(at string, n ast.Node) bool {
	switch n.(type) {
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode:
		d.problem(lineOf(n), at, "has an anchor, an alias or a tag, which a config cannot have", "")
		return false
	}
	return true
}

func (d *decoder) mapping(at string, n ast.Node, v reflect.Value) {
	m := reflect.MakeMap(v.Type())
	seen := map[string]bool{}
	for _, p := range d.pairs(at, n) {
		name, path, ok := d.key(at, p, seen)
		if !ok || !d.plain(path, p.Value) {
			continue
		}
		e := reflect.New(v.Type().Elem()).Elem()
		d.value(path, p.Value, e)
		d.lines[path] = lineOf(p.Key)
		m.SetMapIndex(reflect.ValueOf(name), e)
	}
	v.Set(m)
}

func (d *decoder) list(at string, n ast.Node, v reflect.Value) {
	s, ok := n.(*ast.SequenceNode)
	if !ok {
		d.problem(lineOf(n), at, "is not a list", "")
		return
	}
	list := reflect.MakeSlice(v.Type(), len(s.Values), len(s.Values))
	for i, e := range s.Values {
		if path := fmt.Sprintf("%s[%d]", at, i); d.plain(path, e) {
			d.value(path, e, list.Index(i))
		}
	}
	v.Set(list)
}

// sortProblems orders them as a reader finds them.
func sortProblems(list []Problem) {
	sort.SliceStable(list, func(i, j int) bool { return list[i].Line < list[j].Line })
}
