package firestore

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/direct-oci/engine/integration/testenv/emulator"
)

// TestEmulator asks a server that is not of our own making for what it implements.
func TestEmulator(t *testing.T) {
	e := emulator.Start(t)
	db := &Database{PageKey: []byte("key"), Config: Config{
		Project: "shop", Database: "(default)", Emulator: e.Addr, Rows: 100, Bytes: 1 << 20, Timeout: time.Minute, Masks: []Mask{{Fields: []string{"ssn"}}},
	}}
	defer db.Close()
	values := map[string]string{
		"u1": `{"name": "Ann", "age": 31, "tags": ["a", "b"], "ok": true, "boss": {"$reference": "users/u2"}, "ssn": "canary"}`,
		"u2": `{"name": "Bob", "age": 45, "tags": ["b"], "ok": false, "at": {"$timestamp": "2026-01-02T03:04:05.000006Z"}, "none": null}`,
		"u3": `{"name": "Cid", "age": 31, "tags": ["c"], "half": 0.5, "where": {"$geoPoint": {"latitude": 1.5, "longitude": -2.5}}, "raw": {"$bytes": "AAEC"}, "map": {"a": [1, {"b": "c"}]}}`,
	}
	for id, fields := range values {
		e.Put(t, "shop", "users/"+id, of(t, fields))
	}
	e.Put(t, "shop", "users/u1/orders/o1", of(t, `{"total": 5}`))
	ask := func(name, args string) map[string]any {
		t.Helper()
		out, err := callOf(t, db, name, args, nil, func(string) {})
		if err != nil {
			t.Fatalf("%s %s: %v, fix %q", name, args, err, fix(err))
		}
		return out
	}
	for where, want := range map[string]string{
		`{"field": "name", "op": "==", "value": "Bob"}`:                                                                 "u2",
		`{"field": "age", "op": "!=", "value": 31}`:                                                                     "u2",
		`{"field": "age", "op": "<", "value": 45}`:                                                                      "u1 u3",
		`{"field": "age", "op": "<=", "value": 31}`:                                                                     "u1 u3",
		`{"field": "age", "op": ">", "value": 31}`:                                                                      "u2",
		`{"field": "age", "op": ">=", "value": 31}`:                                                                     "u1 u2 u3",
		`{"field": "name", "op": "in", "value": ["Ann", "Cid"]}`:                                                        "u1 u3",
		`{"field": "name", "op": "not-in", "value": ["Ann", "Cid"]}`:                                                    "u2",
		`{"field": "tags", "op": "array-contains", "value": "b"}`:                                                       "u1 u2",
		`{"field": "tags", "op": "array-contains-any", "value": ["a", "c"]}`:                                            "u1 u3",
		`{"field": "ok", "op": "==", "value": true}`:                                                                    "u1",
		`{"field": "boss", "op": "==", "value": {"$reference": "users/u2"}}`:                                            "u1",
		`{"field": "at", "op": "==", "value": {"$timestamp": "2026-01-02T03:04:05.000006Z"}}`:                           "u2",
		`{"or": [{"field": "name", "op": "==", "value": "Ann"}, {"field": "age", "op": "==", "value": 45}]}`:            "u1 u2",
		`{"and": [{"field": "age", "op": "==", "value": 31}, {"field": "tags", "op": "array-contains", "value": "c"}]}`: "u3",
	} {
		got := ids(ask("firestore.query", `{"collection": "users", "where": [`+where+`]}`))
		slices.Sort(got)
		if text := strings.ReplaceAll(strings.Join(got, " "), "users/", ""); text != want {
			t.Errorf("%s finds %q, want %q", where, text, want)
		}
		n := ask("firestore.count", `{"collection": "users", "where": [`+where+`]}`)["count"]
		if fmt.Sprint(n) != fmt.Sprint(len(strings.Fields(want))) {
			t.Errorf("%s counts %v, want %q", where, n, want)
		}
	}
	if got := ids(ask("firestore.query", `{"collection": "users", "orderBy": [{"field": "age", "direction": "desc"}, {"field": "name", "direction": "desc"}], "limit": 2}`)); fmt.Sprint(got) != "[users/u2 users/u3]" {
		t.Errorf("ordered = %q", got)
	}
	if got := ids(ask("firestore.query", `{"collection": "users/u1/orders"}`)); fmt.Sprint(got) != "[users/u1/orders/o1]" {
		t.Errorf("below a document = %q", got)
	}
	// Every value comes back as it was written.
	for id, fields := range values {
		got := ask("firestore.get", fmt.Sprintf(`{"collection": "users", "id": %q}`, id))
		data, err := json.Marshal(got["document"].(map[string]any)["data"])
		masked := strings.Replace(fields, `, "ssn": "canary"`, "", 1)
		want, err2 := testCodec.append(nil, mapValue(of(t, masked)))
		if err != nil || err2 != nil || string(data) != string(want) {
			t.Errorf("%s = %s\nwant %s", id, data, want)
		}
	}
	if got := ask("firestore.get", `{"collection": "users", "id": "nobody"}`); got["exists"] != false {
		t.Errorf("a document that is not there = %v", got)
	}
	// What it does not implement says so, and does not hang.
	if _, err := callOf(t, db, "firestore.listCollections", `{}`, nil, func(string) {}); err == nil {
		t.Log("the emulator lists collections by now: test it here")
	} else if !strings.HasPrefix(kind(err), "engine ") {
		t.Errorf("listing = %v", err)
	}
}
