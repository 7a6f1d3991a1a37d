package config

import (
	"reflect"
	"strings"

	"github.com/direct-oci/engine/capability/secret"
)

// Schema is the JSON Schema of a config.
func Schema() map[string]any {
	s := schemaOf(reflect.TypeFor[Config]())
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	s["title"] = "config of the governed runner"
	return s
}

func schemaOf(t reflect.Type) map[string]any {
	if t == sourceType {
		return map[string]any{
			"description": "the value itself, or where it comes from: exactly one of value, file, credential and command",
			"anyOf":       []any{map[string]any{"type": "string", "minLength": 1}, objectSchema(reflect.TypeFor[secret.Source]())},
		}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return schemaOf(t.Elem())
	case reflect.Struct:
		return objectSchema(t)
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": schemaOf(t.Elem())}
	case reflect.Slice:
		return map[string]any{"type": "array", "items": schemaOf(t.Elem())}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int64:
		return map[string]any{"type": "integer"}
	case reflect.Float64:
		return map[string]any{"type": "number"}
	default:
		return map[string]any{"type": "string"}
	}
}

func objectSchema(t reflect.Type) map[string]any {
	properties, required := map[string]any{}, []any{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" {
			continue
		}
		s := schemaOf(f.Type)
		if doc := f.Tag.Get("doc"); doc != "" {
			s["description"] = doc
		}
		properties[name] = s
		if f.Tag.Get("required") == "true" {
			required = append(required, name)
		}
	}
	s := map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
	if len(required) > 0 {
		s["required"] = required
	}
	if t == sourceType {
		s["minProperties"], s["maxProperties"] = 1, 1
	}
	return s
}
