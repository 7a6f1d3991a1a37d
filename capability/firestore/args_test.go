package firestore

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/capability/jsjson"
)

// TestArgumentsAreRefusedAtOnce wants everything that is wrong, each with its place,
// and nothing connected to.
func TestArgumentsAreRefusedAtOnce(t *testing.T) {
	b := newBed(t, nil)
	_, err := b.call(t, "firestore.query", `{"collection": "users/u1", "where": [
		{"field": "a..b", "op": "==", "value": 1}, {"field": "a", "op": "in", "value": []}, {"field": "a", "op": "<", "value": null},
		{"field": "a", "op": "==", "value": [{"$date": "x"}]}, {"and": [{"field": "b", "op": "=="}]}, {"or": [{"field": "b", "op": "==", "value": 1}], "field": "x"}],
		"orderBy": [{"field": "a"}, {"field": "a"}], "startAt": [1, 2, 3], "endAt": [1], "endBefore": [1], "select": ["x."]}`)
	var v capability.Violations
	if kind(err) != "request bad_arguments" || !errors.As(err, &v) {
		t.Fatalf("error = %v", err)
	}
	var places []string
	for _, x := range v {
		places = append(places, x.Pointer)
	}
	slices.Sort(places)
	want := "/collection /endAt /orderBy/1/field /select/0 /startAt /where/0/field /where/1/value /where/2/op /where/3/value/0/$date /where/4/and/0 /where/5"
	if got := strings.Join(places, " "); got != want {
		t.Errorf("wrong at %s\nwant     %s\n%v", got, want, v)
	}
	for name, args := range map[string]string{
		"an unknown key":          `{"collection": "c", "were": []}`,
		"an unknown operator":     `{"collection": "c", "where": [{"field": "a", "op": "=~", "value": 1}]}`,
		"a limit of nothing":      `{"collection": "c", "limit": 0}`,
		"half a document":         `{"collection": "c", "limit": 1.5}`,
		"a group by its path":     `{"collection": "a/b/c", "group": true}`,
		"an id for a group":       `{"collection": "c", "group": true, "where": [{"field": "__name__", "op": "==", "value": "x"}]}`,
		"a number for an id":      `{"collection": "c", "where": [{"field": "__name__", "op": "==", "value": 5}]}`,
		"an id with a slash":      `{"collection": "c", "orderBy": [{"field": "__name__"}], "startAt": ["a/b/c"]}`,
		"filters nested too deep": `{"collection": "c", "where": [` + strings.Repeat(`{"and":[`, 12) + `{"field":"a","op":"==","value":1}` + strings.Repeat("]}", 12) + `]}`,
		"too many conditions":     `{"collection": "c", "where": [` + strings.Repeat(`{"field":"a","op":"==","value":1},`, 100) + `{"field":"a","op":"==","value":1}]}`,
	} {
		if _, err := b.call(t, "firestore.query", args); kind(err) != "request bad_arguments" {
			t.Errorf("%s: %v", name, err)
		}
	}
	for call, args := range map[string]string{
		"firestore.get":             `{"collection": "c", "id": "a/b"}`,
		"firestore.count":           `{"collection": "c/d"}`,
		"firestore.listCollections": `{"document": "c"}`,
	} {
		if _, err := b.call(t, call, args); kind(err) != "request bad_arguments" {
			t.Errorf("%s: %v", call, err)
		}
	}
	if got := b.methods(); len(got) > 0 {
		t.Errorf("the server was asked for %q", got)
	}
}

var masks = []Mask{{Collection: "users", Fields: []string{"ssn", "profile.birth", "cards.number"}}, {Fields: []string{"password"}}}

const secretive = `{"name": "Ann", "ssn": "canary-1", "password": "canary-2", "profile": {"birth": "canary-3", "city": "Bonn"},
	"cards": [{"number": "canary-4", "kind": "x"}, [{"number": "canary-5"}], {"more": {"number": "shown"}}], "others": {"ssn": "shown"}}`

// TestMaskedFieldsAreNeverReturned looks for them in all that any call gives.
func TestMaskedFieldsAreNeverReturned(t *testing.T) {
	b := newBed(t, func(c *Config) { c.Masks = masks })
	b.put("users/u1", of(t, secretive))
	b.put("teams/t1/users/u2", of(t, secretive))
	b.put("users/u1/notes/n1", of(t, `{"ssn": "of another collection", "password": "canary-6"}`))
	want := `{"cards":[{"kind":"x"},[{}],{"more":{"number":"shown"}}],"name":"Ann","others":{"ssn":"shown"},"profile":{"city":"Bonn"}}`
	for _, call := range [][2]string{
		{"firestore.query", `{"collection": "users"}`},
		{"firestore.query", `{"collection": "teams/t1/users"}`},
		{"firestore.query", `{"collection": "users", "group": true, "limit": 1}`},
		{"firestore.query", `{"collection": "users", "select": ["profile", "cards", "name", "others"], "limit": 1}`},
		{"firestore.get", `{"collection": "users", "id": "u1"}`},
		{"firestore.get", `{"collection": "users", "id": "u1", "select": ["profile", "cards", "name", "others"]}`},
	} {
		out := b.must(t, call[0], call[1])
		doc, _ := out["document"].(map[string]any)
		if list, ok := out["documents"].([]any); ok {
			doc = list[0].(map[string]any)
		}
		data, err := json.Marshal(doc["data"])
		if err != nil || string(data) != want {
			t.Errorf("%s = %s (%v)\nwant %s", call, data, err, want)
		}
		if all := fmt.Sprint(out, b.log); strings.Contains(all, "canary") {
			t.Errorf("%s gives %s", call, all)
		}
	}
	if out := fmt.Sprint(b.must(t, "firestore.query", `{"collection": "users/u1/notes"}`)); strings.Contains(out, "canary") || !strings.Contains(out, "of another collection") {
		t.Errorf("another collection = %s", out)
	}
}

// TestMaskedFieldsAreNotProbed tries every part of a query that depends on a field.
func TestMaskedFieldsAreNotProbed(t *testing.T) {
	b := newBed(t, func(c *Config) { c.Masks = masks })
	b.put("users/u1", of(t, secretive))
	for _, field := range []string{"ssn", "ssn.digits", "profile.birth", "profile.birth.year", "profile", "cards", "cards.number", "password", "`ssn`", "profile.`birth`"} {
		uses := map[string][]string{"firestore.query": {
			`"where": [{"field": %q, "op": "==", "value": "x"}]`, `"where": [{"field": %q, "op": "!=", "value": null}]`,
			`"where": [{"or": [{"field": "a", "op": "==", "value": 1}, {"and": [{"field": %q, "op": "in", "value": ["x"]}]}]}]`,
			`"where": [{"field": %q, "op": "array-contains", "value": {"number": "canary-4"}}]`, `"orderBy": [{"field": %q}]`,
			`"orderBy": [{"field": "name"}, {"field": %q, "direction": "desc"}], "startAt": ["A", "x"]`,
		}, "firestore.count": {`"where": [{"field": %q, "op": ">", "value": "x"}]`}}
		if field != "profile" && field != "cards" { // which are shown without it
			uses["firestore.query"] = append(uses["firestore.query"], `"select": [%q]`)
			uses["firestore.get"] = []string{`"id": "u1", "select": [%q]`}
		}
		for call, all := range uses {
			for _, use := range all {
				for _, collection := range []string{`"users"`, `"teams/t1/users"`, `"users", "group": true`} {
					if call == "firestore.get" && strings.Contains(collection, "group") {
						continue
					}
					args := `{"collection": ` + collection + `, ` + fmt.Sprintf(use, field) + `}`
					if _, err := b.call(t, call, args); kind(err) != "request masked_field" {
						t.Errorf("%s %s: %v", call, args, err)
					}
				}
			}
		}
	}
	if got := b.methods(); len(got) > 0 {
		t.Errorf("the server was asked for %q", got)
	}
	// What only looks alike is free.
	b.must(t, "firestore.query", `{"collection": "users", "where": [{"field": "profile.city", "op": "==", "value": "Bonn"}], "orderBy": [{"field": "ss"}]}`)
	b.must(t, "firestore.query", `{"collection": "notes", "where": [{"field": "ssn", "op": "==", "value": "x"}]}`)
}

func TestMasksAreChecked(t *testing.T) {
	for _, m := range []Mask{{}, {Fields: []string{""}}, {Fields: []string{"a..b"}}, {Fields: []string{"__name__"}}, {Collection: "a/b/c", Fields: []string{"x"}}} {
		if m.Check() == nil {
			t.Errorf("%+v is taken for a mask", m)
		}
	}
	for _, m := range masks {
		if err := m.Check(); err != nil {
			t.Error(err)
		}
	}
}

// FuzzArguments decodes whatever fits a schema, and whatever does not. What is accepted
// never looks at a masked field.
func FuzzArguments(f *testing.F) {
	for _, s := range []string{
		`{"collection": "users", "where": [{"field": "a", "op": "in", "value": [1, {"$int": "5"}]}], "orderBy": [{"field": "a"}], "startAt": [1]}`,
		`{"collection": "users", "where": [{"or": [{"field": "ssn", "op": "==", "value": 1}]}]}`, `{"collection": "users", "select": ["profile"]}`,
		`{"collection": "c", "group": true, "where": [{"field": "__name__", "op": ">", "value": "a/b"}]}`, `{"collection": 5, "where": 1}`, `[]`,
	} {
		f.Add([]byte(s))
	}
	c := Config{Project: "shop", Database: "(default)", Masks: masks, Rows: 10, Bytes: 1000, Timeout: time.Second}
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := jsjson.Parse(data)
		if err != nil {
			return
		}
		args, _ := v.(map[string]any)
		for _, plan := range []func(map[string]any, Config) (work, error){planQuery, planGet, planCount, planList} {
			if _, err := plan(args, c); err != nil && kind(err) != "request bad_arguments" && kind(err) != "request masked_field" {
				t.Fatalf("%q: %v", data, err)
			}
		}
		d := &decoder{codec: codec{c.root()}}
		q := d.query(c, args)
		if d.err("x") != nil {
			return
		}
		if looked := fmt.Sprint(q.where) + fmt.Sprint(q.full()); q.id == "users" && (strings.Contains(looked, `"ssn"`) || strings.Contains(looked, "[ssn]")) {
			t.Fatalf("%q looks at a masked field: %s", data, looked)
		}
	})
}
