package api

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/engine/spelling"
)

// body reads the request's body, which is JSON, into v.
func (x *exchange) body(v any) error {
	data, err := x.readAll()
	if err != nil {
		return err
	}
	return decode(data, v)
}

// readAll reads the whole body, in bounded time and size.
func (x *exchange) readAll() ([]byte, error) {
	size := x.r.ContentLength
	if size < 0 {
		size = x.route.maxBody
	}
	if err := x.room(size); err != nil {
		return nil, err
	}
	x.deadline(x.server.timeouts.Body)
	data, err := io.ReadAll(x.r.Body)
	if err == nil {
		x.deadline(0)
	}
	return data, bodyError(err, x.route.maxBody)
}

func bodyError(err error, limit int64) error {
	var large *http.MaxBytesError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &large):
		return tooLarge(limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return engine.Refused("bad_body", "cannot read the body: it came too slowly")
	}
	return engine.Refused("bad_body", "cannot read the body: %w", err)
}

// decode reads one JSON value strictly: a key that v does not have, or that comes twice,
// is refused with its place and the key that was probably meant. No data is {}.
func decode(data []byte, v any) error {
	if len(bytes.TrimSpace(data)) == 0 {
		data = []byte("{}")
	}
	if !utf8.Valid(data) { // encoding/json would put something else in the place of what is none
		return engine.Refused("bad_body", "cannot read the body: it is no UTF-8").
			WithFix("send bytes that are no text in base64: paths of files have a key of their own for that")
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err := checkKeys(dec, reflect.TypeOf(v).Elem(), "", 0, nil); err != nil {
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return engine.Refused("bad_body", "cannot read the body: something follows the JSON value")
	}
	err := json.Unmarshal(data, v)
	var mistyped *json.UnmarshalTypeError
	if errors.As(err, &mistyped) {
		return engine.Refused("bad_body", "cannot accept %s as %s: want %s", article(mistyped.Value), orBody(mistyped.Field), plainType(mistyped.Type))
	}
	if err == nil {
		return nil
	}
	var corrupt base64.CorruptInputError
	if errors.As(err, &corrupt) { // which of them it does not say
		if found := checkKeys(json.NewDecoder(bytes.NewReader(data)), reflect.TypeOf(v).Elem(), "", 0, checkBytes); found != nil {
			return found
		}
	}
	return engine.Refused("bad_body", "cannot read the body: %w", err)
}

// article puts one before what encoding/json calls a value.
func article(value string) string {
	if strings.HasPrefix(value, "a") || strings.HasPrefix(value, "o") {
		return "an " + value
	}
	return "a " + value
}

func orBody(path string) string {
	if path == "" {
		return "the body"
	}
	return path
}

// plainType says what JSON a Go type is written as.
func plainType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "a string of base64"
		}
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Float64:
		return "a number"
	}
	return "a whole number in range"
}

// maxDepth bounds how deep what has a type may nest.
const maxDepth = 32

var rawType = reflect.TypeFor[json.RawMessage]()

// notJSON says why a body is none.
func notJSON(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return engine.Refused("bad_body", "cannot read the body as JSON: it ends too early")
	}
	return engine.Refused("bad_body", "cannot read the body as JSON: %w", err)
}

// checkKeys walks one value beside the type that it is for, and asks leaf, if there is
// one, about each that is no list and no object.
func checkKeys(dec *json.Decoder, t reflect.Type, at string, depth int, leaf func(json.Token, reflect.Type, string) error) error {
	token, err := dec.Token()
	if err != nil {
		return notJSON(err)
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	delim, nested := token.(json.Delim)
	if !nested && leaf != nil {
		return leaf(token, t, at)
	}
	if !nested {
		return nil
	}
	structured := t != rawType && (delim == '{' && (t.Kind() == reflect.Struct || t.Kind() == reflect.Map) || delim == '[' && t.Kind() == reflect.Slice)
	if !structured {
		return skip(dec) // of any form, or of a wrong one, which Unmarshal says
	}
	if depth > maxDepth {
		return engine.Refused("bad_body", "cannot read the body: %s nests too deep", at)
	}
	if delim == '[' {
		for i := 0; dec.More(); i++ {
			if err := checkKeys(dec, t.Elem(), at+"["+strconv.Itoa(i)+"]", depth+1, leaf); err != nil {
				return err
			}
		}
	} else if err := checkObject(dec, t, at, depth, leaf); err != nil {
		return err
	}
	if _, err := dec.Token(); err != nil {
		return notJSON(err)
	}
	return nil
}

// checkBytes wants base64 for bytes.
func checkBytes(token json.Token, t reflect.Type, at string) error {
	text, is := token.(string)
	if !is || t == rawType || t.Kind() != reflect.Slice || t.Elem().Kind() != reflect.Uint8 {
		return nil
	}
	if _, err := base64.StdEncoding.DecodeString(text); err != nil {
		return engine.Refused("bad_body", "cannot accept the string as %s: it is no base64", orBody(at)).WithFix("write its bytes in base64, with padding")
	}
	return nil
}

func checkObject(dec *json.Decoder, t reflect.Type, at string, depth int, leaf func(json.Token, reflect.Type, string) error) error {
	seen := map[string]bool{}
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return notJSON(err)
		}
		key := token.(string)
		path := strings.TrimPrefix(at+"."+key, ".")
		if seen[key] {
			return engine.Refused("bad_body", "cannot accept the key %q twice", clip(path))
		}
		seen[key] = true
		elem, known := memberType(t, key)
		if !known {
			names := jsonNames(t)
			e := engine.Refused("bad_body", "cannot accept the key %q: there is none of this name", clip(path))
			if best := nearest(key, names); best != "" {
				return e.WithFix("did you mean " + best + "?")
			}
			return e.WithFix("known are " + strings.Join(names, ", "))
		}
		if err := checkKeys(dec, elem, path, depth+1, leaf); err != nil {
			return err
		}
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	for i := range t.NumField() {
		if name, optional := jsonName(t.Field(i)); name != "" && !optional && !seen[name] {
			return engine.Refused("bad_body", "cannot do without the key %q", strings.TrimPrefix(at+"."+name, "."))
		}
	}
	return nil
}

// nearest is spelling.Nearest for what a stranger wrote: nothing long is like a name.
func nearest(typed string, names []string) string {
	if len(typed) > 200 {
		return ""
	}
	return spelling.Nearest(typed, names)
}

// clip shortens what a stranger wrote.
func clip(text string) string {
	if len(text) > 100 {
		return strings.ToValidUTF8(text[:100], "") + "…"
	}
	return text
}

// skip passes the rest of a value whose first token was taken.
func skip(dec *json.Decoder) error {
	for depth := 1; depth > 0; {
		token, err := dec.Token()
		if err != nil {
			return notJSON(err)
		}
		switch token {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
	}
	return nil
}

// memberType is the type of a key's value.
func memberType(t reflect.Type, key string) (reflect.Type, bool) {
	if t.Kind() == reflect.Map {
		return t.Elem(), true
	}
	for i := range t.NumField() {
		if name, _ := jsonName(t.Field(i)); name == key {
			return t.Field(i).Type, true
		}
	}
	return nil, false
}

func jsonName(f reflect.StructField) (name string, optional bool) {
	name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name, strings.Contains(options, "omit")
}

func jsonNames(t reflect.Type) []string {
	var names []string
	for i := range t.NumField() {
		if name, _ := jsonName(t.Field(i)); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// checkQuery refuses parameters that the route does not have.
func (x *exchange) checkQuery() error {
	if x.r.URL.RawQuery == "" {
		return nil
	}
	var known []string
	for _, p := range x.route.query {
		known = append(known, p.name)
	}
	values, err := url.ParseQuery(x.r.URL.RawQuery)
	if err != nil { // what cannot be read would be left out
		return engine.Refused("bad_parameter", "cannot read the parameters: %w", err).WithFix("write % and ; as %25 and %3B")
	}
	for name := range values {
		if slices.Contains(known, name) {
			continue
		}
		e := engine.Refused("bad_parameter", "cannot accept the parameter %q: %s has none of this name", clip(name), x.route.path)
		if best := nearest(name, known); best != "" {
			return e.WithFix("did you mean " + best + "?")
		}
		if len(known) == 0 {
			return e.WithFix("leave it out")
		}
		return e.WithFix("known are " + strings.Join(known, ", "))
	}
	return nil
}

// number reads a parameter that is a whole number from 0 to most.
func (x *exchange) number(name string, otherwise, most int64) (int64, error) {
	text := x.r.URL.Query().Get(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > most {
		return 0, engine.Refused("bad_parameter", "cannot accept %s=%q: want a whole number from 0 to %d", name, clip(text), most)
	}
	return n, nil
}

// flag reads a parameter that is true or false.
func (x *exchange) flag(name string) (bool, error) {
	switch text := x.r.URL.Query().Get(name); text {
	case "", "false":
		return false, nil
	case "true":
		return true, nil
	default:
		return false, engine.Refused("bad_parameter", "cannot accept %s=%q: want true or false", name, clip(text))
	}
}
