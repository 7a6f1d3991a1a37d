package api

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the types of the TypeScript client anew")

const wireTypes = "../../../clients/typescript/wire.d.ts"

// TestTypeScriptTypesAreTheAPIs compares the types that the TypeScript client comes with
// with those of the API's description.
func TestTypeScriptTypesAreTheAPIs(t *testing.T) {
	text, err := describe()
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Components struct {
			Schemas map[string]schemaText `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("// Values of the API. Made from its description: go test ./cmd/engine-runner/api -run TypeScript -update\n")
	var names []string
	for name := range doc.Components.Schemas {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		s := doc.Components.Schemas[name]
		fmt.Fprintf(&b, "\nexport interface %s {\n", name)
		var keys []string
		for key := range s.Properties {
			keys = append(keys, key)
		}
		slices.Sort(keys)
		for _, key := range keys {
			p := s.Properties[key]
			if p.Description != "" {
				fmt.Fprintf(&b, "  /** %s */\n", p.Description)
			}
			mark := "?"
			if slices.Contains(s.Required, key) {
				mark = ""
			}
			fmt.Fprintf(&b, "  %s%s: %s;\n", key, mark, p.typeScript())
		}
		b.WriteString("}\n")
	}
	if *update {
		if err := os.WriteFile(wireTypes, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(wireTypes)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != b.String() {
		t.Errorf("%s is not of this API: go test ./cmd/engine-runner/api -run TypeScript -update", wireTypes)
	}
}

type schemaText struct {
	Type        string                `json:"type"`
	Ref         string                `json:"$ref"`
	Description string                `json:"description"`
	Properties  map[string]schemaText `json:"properties"`
	Required    []string              `json:"required"`
	Items       *schemaText           `json:"items"`
	AnyOf       []schemaText          `json:"anyOf"`
	Additional  json.RawMessage       `json:"additionalProperties"`
}

func (s schemaText) typeScript() string {
	switch {
	case s.Ref != "":
		return s.Ref[strings.LastIndex(s.Ref, "/")+1:]
	case s.AnyOf != nil:
		var all []string
		for _, one := range s.AnyOf {
			all = append(all, one.typeScript())
		}
		return strings.Join(all, " | ")
	case s.Type == "array":
		return s.Items.typeScript() + "[]"
	case s.Type == "object":
		var values schemaText
		if json.Unmarshal(s.Additional, &values) == nil {
			return "Record<string, " + values.typeScript() + ">"
		}
	case s.Type == "integer":
		return "number"
	case s.Type == "":
		return "unknown"
	}
	return s.Type
}
