package wire

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/capability/jsjson"
)

// Schema is the JSON Schema of all messages and bodies, of draft 2020-12.
//
//go:embed schema.json
var Schema []byte

// schemas are those of each message and body, by their names in $defs.
var schemas = sync.OnceValue(func() map[string]capability.Schema {
	var whole struct {
		Defs map[string]json.RawMessage `json:"$defs"`
	}
	if err := json.Unmarshal(Schema, &whole); err != nil {
		panic("internal error: the schema of the link is no JSON: " + err.Error())
	}
	all := map[string]capability.Schema{}
	for name := range whole.Defs {
		text, err := json.Marshal(map[string]any{"$ref": "#/$defs/" + name, "$defs": whole.Defs})
		if err != nil {
			panic("internal error: " + err.Error())
		}
		if all[name], err = capability.CompileSchema(text); err != nil {
			panic("internal error: the schema of the link's " + name + ": " + err.Error())
		}
	}
	return all
})

// validate holds JSON against the schema of this name, or against that of its own type,
// which it returns.
func validate(name string, data []byte) (string, error) {
	v, err := jsjson.ParseUnique(data)
	if err != nil {
		return "", fmt.Errorf("cannot read a message: it is not JSON: %w", err)
	}
	if name == "" {
		m, _ := v.(map[string]any)
		name, _ = m["type"].(string)
		if empty(Runner, name) == nil && empty(Plane, name) == nil {
			return "", fmt.Errorf("cannot read a message: there is no type=%.40q", name)
		}
	}
	if wrong := schemas()[name].Validate(v); wrong != nil {
		return "", fmt.Errorf("cannot read a %s: %.300s", name, wrong.Error()) // it may quote a body
	}
	return name, nil
}
