package workload

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/direct-oci/engine/capability/jsjson"
)

// Spec is what a workload is asked to be: arguments of workload.execute whose types
// are right. Strings are in WTF-8, see package jsjson.
type Spec struct {
	Title      string // for the reviewer; no part of the digest
	Files      []File
	Entrypoint string
	Secrets    []string
	Egress     any // bool, string or []any of strings
	Limits     Limits
	Scripts    bool // install scripts of its dependencies are to run; no part of the digest
}

// File is a file of a workload. It has no mode.
type File struct {
	Path     string
	Contents string
}

// Limits are those that were asked for; nil: not asked for.
type Limits struct {
	CPUs           *float64
	MemoryMB       *float64 // MiB
	TimeoutSeconds *float64
}

// TypeError is a value of the wrong type, or one that is missing.
type TypeError struct {
	Pointer string // RFC 6901
	Want    string
}

func (e *TypeError) Error() string {
	return fmt.Sprintf("cannot accept %s: want %s", e.Pointer, e.Want)
}

// ParseSpec takes a spec from a value that jsjson.Parse returned. Keys that it does
// not know are left out. It checks types alone: what a sandbox would be given is
// checked later, and a spec nobody would run has a digest too. The error is a
// *TypeError.
func ParseSpec(v any) (Spec, error) {
	r := reader{}
	top := r.object("", v)
	spec := Spec{Egress: false, Files: []File{}, Secrets: []string{}}
	spec.Title = r.text("/title", top["title"], true)
	for i, f := range r.list("/files", top["files"], false) {
		at := fmt.Sprintf("/files/%d", i)
		file := r.object(at, f)
		spec.Files = append(spec.Files, File{
			Path:     r.text(at+"/path", file["path"], false),
			Contents: r.text(at+"/contents", file["contents"], false),
		})
	}
	spec.Entrypoint = r.text("/entrypoint", top["entrypoint"], false)
	_, asks := top["secrets"]
	for i, s := range r.list("/secrets", top["secrets"], !asks) {
		spec.Secrets = append(spec.Secrets, r.text(fmt.Sprintf("/secrets/%d", i), s, false))
	}
	if e, asks := top["egress"]; asks {
		spec.Egress = r.egress(e)
	}
	if l, asks := top["limits"]; asks {
		limits := r.object("/limits", l)
		spec.Limits.CPUs = r.number("/limits/cpus", limits, "cpus")
		spec.Limits.MemoryMB = r.number("/limits/memoryMb", limits, "memoryMb")
		spec.Limits.TimeoutSeconds = r.number("/limits/timeoutSeconds", limits, "timeoutSeconds")
	}
	if d, asks := top["dependencies"]; asks {
		scripts, there := r.object("/dependencies", d)["scripts"]
		ok := false
		if spec.Scripts, ok = scripts.(bool); there && !ok {
			r.want("/dependencies/scripts", "true or false")
		}
	}
	if r.err != nil {
		return Spec{}, r.err
	}
	return spec, nil
}

// reader takes values of a type and remembers the first that has another.
type reader struct{ err error }

func (r *reader) want(pointer, want string) {
	if r.err == nil {
		if pointer == "" {
			pointer = "/"
		}
		r.err = &TypeError{pointer, want}
	}
}

func (r *reader) object(pointer string, v any) map[string]any {
	m, ok := v.(map[string]any)
	if !ok {
		r.want(pointer, "an object")
	}
	return m
}

func (r *reader) list(pointer string, v any, optional bool) []any {
	l, ok := v.([]any)
	if !ok && !(optional && v == nil) {
		r.want(pointer, "an array")
	}
	return l
}

func (r *reader) text(pointer string, v any, optional bool) string {
	s, ok := v.(string)
	if !ok && !(optional && v == nil) {
		r.want(pointer, "a string")
	}
	return s
}

func (r *reader) number(pointer string, m map[string]any, key string) *float64 {
	v, there := m[key]
	if !there {
		return nil
	}
	f, ok := v.(float64)
	if !ok {
		r.want(pointer, "a number")
	}
	return &f
}

func (r *reader) egress(v any) any {
	switch v := v.(type) {
	case bool, string:
		return v
	case []any:
		for i, e := range v {
			r.text(fmt.Sprintf("/egress/%d", i), e, false)
		}
		return v
	default:
		r.want("/egress", "true, false, a string, or an array of strings")
		return false
	}
}

// Digest is the name of a spec: the SHA-256, in hexadecimal, of what JSON.stringify
// writes for an object of files (sorted by path), entrypoint, secrets (sorted),
// egress and limits, in this order. Sorted is by UTF-16 units.
func (s Spec) Digest() string {
	sum := sha256.Sum256(s.appendDigested(nil))
	return hex.EncodeToString(sum[:])
}

func (s Spec) appendDigested(b []byte) []byte {
	b = append(b, `{"files":[`...)
	for i, f := range s.sortedFiles() {
		if i > 0 {
			b = append(b, ',')
		}
		b = jsjson.AppendString(append(b, `{"path":`...), f.Path)
		b = jsjson.AppendString(append(b, `,"contents":`...), f.Contents)
		b = append(b, '}')
	}
	b = jsjson.AppendString(append(b, `],"entrypoint":`...), s.Entrypoint)
	secrets := slices.Clone(s.Secrets)
	slices.SortStableFunc(secrets, jsjson.Compare)
	b = appendStrings(append(b, `,"secrets":`...), secrets)
	b = append(b, `,"egress":`...)
	switch e := s.Egress.(type) {
	case bool:
		b = fmt.Append(b, e)
	case string:
		b = jsjson.AppendString(b, e)
	case []any:
		list := make([]string, len(e))
		for i := range e {
			list[i], _ = e[i].(string) // ParseSpec lets nothing else through
		}
		b = appendStrings(b, list)
	}
	b = append(b, `,"limits":{`...)
	comma := ""
	for _, l := range []struct {
		name  string
		value *float64
	}{{"cpus", s.Limits.CPUs}, {"memoryMb", s.Limits.MemoryMB}, {"timeoutSeconds", s.Limits.TimeoutSeconds}} {
		if l.value != nil {
			b = append(b, comma+`"`+l.name+`":`...)
			b = jsjson.AppendNumber(b, *l.value)
			comma = ","
		}
	}
	return append(b, "}}"...)
}

func appendStrings(b []byte, list []string) []byte {
	b = append(b, '[')
	for i, s := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = jsjson.AppendString(b, s)
	}
	return append(b, ']')
}

func (s Spec) sortedFiles() []File {
	files := slices.Clone(s.Files)
	slices.SortStableFunc(files, func(a, b File) int { return jsjson.Compare(a.Path, b.Path) })
	return files
}
