package api

import (
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/direct-oci/engine/client/wire"
	"github.com/direct-oci/engine/engine"
)

// object is one of JSON.
type object = map[string]any

func (s *Server) openAPI(x *exchange) error {
	text, err := s.describe()
	if err != nil {
		return engine.Failed("internal", "internal error: the API cannot be described: %w", err)
	}
	x.w.Header().Set("Content-Type", "application/json")
	// There is nobody else to tell.
	_, _ = x.w.Write(text)
	return nil
}

// describe is the OpenAPI document of the routes: made of the same table as the handlers.
func describe() ([]byte, error) {
	d := &describer{schemas: object{}}
	paths := object{}
	for _, rt := range routes() {
		path := strings.ReplaceAll(rt.path, "...}", "}")
		if paths[path] == nil {
			paths[path] = object{}
		}
		paths[path].(object)[strings.ToLower(rt.method)] = d.operation(rt)
	}
	return json.Marshal(object{
		"openapi": "3.1.0",
		"info": object{
			"title": "engine", "version": wire.Version,
			"description": "Sandboxes for programs that nobody has reason to trust. Every failure has the form of Failure, and a kind that is stable.",
		},
		"servers": []any{object{"url": "/", "description": "the service's Unix socket, whatever host is named; or its address"}},
		"paths":   paths,
		"components": object{
			"schemas": d.schemas,
			"securitySchemes": object{
				"token":       object{"type": "http", "scheme": "bearer", "description": "over TCP; over the Unix socket a caller is who the kernel says"},
				"certificate": object{"type": "mutualTLS"},
			},
		},
		"security": []any{object{"token": []any{}}, object{"certificate": []any{}}, object{}},
	})
}

// describer collects the schemas of the types that it meets.
type describer struct{ schemas object }

func (d *describer) operation(rt route) object {
	content := object{}
	if rt.reply != nil {
		content["application/json"] = object{"schema": d.schema(reflect.TypeOf(rt.reply))}
	}
	if rt.plain != "" {
		content[rt.plain] = object{}
	}
	if rt.events != nil {
		content["text/event-stream"] = object{"x-events": d.events(rt.events)}
	}
	op := object{
		"operationId": operationID(rt), "summary": rt.summary, "x-class": rt.class.String(), "parameters": d.parameters(rt),
		"responses": object{
			statusText(rt.status): object{"description": "done", "content": content},
			"default":             object{"description": "refused, or failed", "content": object{"application/json": object{"schema": d.schema(reflect.TypeFor[wire.Failure]())}}},
		},
	}
	for _, other := range rt.also {
		op["responses"].(object)[statusText(other)] = object{"description": "see the summary", "content": content}
	}
	if rt.body != nil {
		op["requestBody"] = object{"required": true, "content": object{"application/json": object{"schema": d.schema(reflect.TypeOf(rt.body))}}}
	}
	if rt.bytes {
		op["requestBody"] = object{"required": true, "content": object{"application/octet-stream": object{}}}
	}
	return op
}

func statusText(status int) string { return strconv.Itoa(status) }

// operationID names an operation by its method and path.
func operationID(rt route) string {
	id := strings.ToLower(rt.method)
	for _, part := range strings.FieldsFunc(rt.path, func(r rune) bool { return strings.ContainsRune("/{}.", r) }) {
		id += strings.ToUpper(part[:1]) + part[1:]
	}
	return id
}

func (d *describer) parameters(rt route) []any {
	all := []any{}
	add := func(in string, p parameter, required bool) {
		all = append(all, object{"name": p.name, "in": in, "required": required, "description": p.doc, "schema": object{"type": p.typ}})
	}
	for _, part := range strings.Split(rt.path, "/") {
		if name, ok := strings.CutPrefix(part, "{"); ok {
			add("path", parameter{strings.TrimRight(name, ".}"), "string", ""}, true)
		}
	}
	for _, p := range rt.query {
		add("query", p, false)
	}
	for _, p := range rt.headers {
		add("header", p, false)
	}
	return all
}

func (d *describer) events(list []event) object {
	all := object{}
	for _, e := range list {
		all[e.name] = object{"description": e.doc, "schema": d.schema(reflect.TypeOf(e.data))}
	}
	return all
}

var (
	timeType  = reflect.TypeFor[time.Time]()
	bytesType = reflect.TypeFor[[]byte]()
)

// schema is the JSON Schema of a type, by reference where it has a name.
func (d *describer) schema(t reflect.Type) object {
	switch {
	case t == timeType:
		return object{"type": "string", "format": "date-time"}
	case t == rawType:
		return object{}
	case t == bytesType:
		return object{"type": "string", "contentEncoding": "base64"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return object{"anyOf": []any{d.schema(t.Elem()), object{"type": "null"}}}
	case reflect.Struct:
		if d.schemas[t.Name()] == nil {
			d.schemas[t.Name()] = object{} // it may hold itself
			d.schemas[t.Name()] = d.objectOf(t)
		}
		return object{"$ref": "#/components/schemas/" + t.Name()}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": d.schema(t.Elem())}
	case reflect.Slice:
		return object{"type": "array", "items": d.schema(t.Elem())}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Float64:
		return object{"type": "number"}
	case reflect.String:
		return object{"type": "string"}
	}
	return object{"type": "integer"}
}

func (d *describer) objectOf(t reflect.Type) object {
	properties, required := object{}, []any{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, optional := jsonName(f)
		if name == "" {
			continue
		}
		s := d.schema(f.Type)
		if doc := f.Tag.Get("doc"); doc != "" {
			s["description"] = doc
		}
		properties[name] = s
		if !optional {
			required = append(required, name)
		}
	}
	return object{"type": "object", "properties": properties, "required": required, "additionalProperties": false}
}
