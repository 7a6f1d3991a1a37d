package firestore

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
)

// shop fills a bed with documents of many kinds.
func shop(t testing.TB, b *bed) {
	t.Helper()
	for id, fields := range map[string]string{
		"u1": `{"name": "Ann", "age": 31, "tags": ["a", "b"], "score": {"$double": "NaN"}, "boss": {"$reference": "users/u2"}, "a.b": 1}`,
		"u2": `{"name": "Bob", "age": 45, "tags": ["b"], "score": 1.5, "boss": null, "at": {"$timestamp": "2026-01-02T03:04:05Z"}}`,
		"u3": `{"name": "Cid", "age": 31, "tags": [], "score": 9, "address": {"city": "Bonn", "zip": "53111"}}`,
		"u4": `{"name": "Dot", "age": {"$int": "9007199254740993"}, "tags": ["c", "a"], "address": {"city": "Ulm"}}`,
	} {
		b.put("users/"+id, of(t, fields))
	}
	b.put("users/u1/orders/o1", of(t, `{"total": 5}`))
	b.put("users/u2/orders/o2", of(t, `{"total": 7}`))
	b.put("shops/s1/orders/o3", of(t, `{"total": 6}`))
}

func TestQuery(t *testing.T) {
	b := newBed(t, nil)
	shop(t, b)
	tests := []struct{ name, args, want string }{
		{"all", `{"collection": "users"}`, "u1 u2 u3 u4"},
		{"equal", `{"collection": "users", "where": [{"field": "name", "op": "==", "value": "Bob"}]}`, "u2"},
		{"not equal", `{"collection": "users", "where": [{"field": "age", "op": "!=", "value": 31}]}`, "u2 u4"},
		{"less", `{"collection": "users", "where": [{"field": "age", "op": "<", "value": 45}]}`, "u1 u3"},
		{"at most", `{"collection": "users", "where": [{"field": "age", "op": "<=", "value": 45}]}`, "u1 u3 u2"},
		{"more", `{"collection": "users", "where": [{"field": "age", "op": ">", "value": 31.5}]}`, "u2 u4"},
		{"at least", `{"collection": "users", "where": [{"field": "age", "op": ">=", "value": {"$int": "9007199254740993"}}]}`, "u4"},
		{"in", `{"collection": "users", "where": [{"field": "name", "op": "in", "value": ["Ann", "Dot", "Eve"]}]}`, "u1 u4"},
		{"not in", `{"collection": "users", "where": [{"field": "name", "op": "not-in", "value": ["Ann", "Dot"]}]}`, "u2 u3"},
		{"array contains", `{"collection": "users", "where": [{"field": "tags", "op": "array-contains", "value": "a"}]}`, "u1 u4"},
		{"array contains any", `{"collection": "users", "where": [{"field": "tags", "op": "array-contains-any", "value": ["c", "b"]}]}`, "u1 u2 u4"},
		{"null", `{"collection": "users", "where": [{"field": "boss", "op": "==", "value": null}]}`, "u2"},
		{"not null", `{"collection": "users", "where": [{"field": "boss", "op": "!=", "value": null}]}`, "u1"},
		{"no number", `{"collection": "users", "where": [{"field": "score", "op": "==", "value": {"$double": "NaN"}}]}`, "u1"},
		{"a number", `{"collection": "users", "where": [{"field": "score", "op": "!=", "value": {"$double": "NaN"}}]}`, "u2 u3"},
		{"a reference", `{"collection": "users", "where": [{"field": "boss", "op": "==", "value": {"$reference": "users/u2"}}]}`, "u1"},
		{"a time", `{"collection": "users", "where": [{"field": "at", "op": ">", "value": {"$timestamp": "2026-01-01T00:00:00+01:00"}}]}`, "u2"},
		{"a map's field", `{"collection": "users", "where": [{"field": "address.city", "op": "==", "value": "Ulm"}]}`, "u4"},
		{"a name with a dot", "{\"collection\": \"users\", \"where\": [{\"field\": \"`a.b`\", \"op\": \"==\", \"value\": 1}]}", "u1"},
		{"both", `{"collection": "users", "where": [{"field": "age", "op": "==", "value": 31}, {"field": "name", "op": ">", "value": "B"}]}`, "u3"},
		{"either", `{"collection": "users", "where": [{"or": [{"field": "name", "op": "==", "value": "Bob"}, {"and": [{"field": "age", "op": "==", "value": 31}, {"field": "tags", "op": "array-contains", "value": "a"}]}]}]}`, "u1 u2"},
		{"ids", `{"collection": "users", "where": [{"field": "__name__", "op": "in", "value": ["u1", "users/u3"]}]}`, "u1 u3"},
		{"ids from", `{"collection": "users", "where": [{"field": "__name__", "op": ">", "value": "u2"}]}`, "u3 u4"},
		{"ids by reference", `{"collection": "users", "where": [{"field": "__name__", "op": "==", "value": {"$reference": "users/u3"}}]}`, "u3"},
		{"ordered", `{"collection": "users", "orderBy": [{"field": "age", "direction": "desc"}, {"field": "name"}]}`, "u4 u2 u1 u3"},
		{"ordered by a field that not all have", `{"collection": "users", "orderBy": [{"field": "score"}]}`, "u1 u2 u3"},
		{"by id, backwards", `{"collection": "users", "orderBy": [{"field": "__name__", "direction": "desc"}]}`, "u4 u3 u2 u1"},
		{"from", `{"collection": "users", "orderBy": [{"field": "age"}], "startAt": [45]}`, "u2 u4"},
		{"after", `{"collection": "users", "orderBy": [{"field": "age"}], "startAfter": [31]}`, "u2 u4"},
		{"until", `{"collection": "users", "orderBy": [{"field": "age"}], "endAt": [45]}`, "u1 u3 u2"},
		{"before", `{"collection": "users", "orderBy": [{"field": "age"}, {"field": "name"}], "endBefore": [31, "Cid"]}`, "u1"},
		{"by fewer values than fields", `{"collection": "users", "orderBy": [{"field": "age"}, {"field": "name"}], "startAt": [31], "endAt": [31]}`, "u1 u3"},
		{"after an id", `{"collection": "users", "orderBy": [{"field": "__name__"}], "startAfter": ["u2"]}`, "u3 u4"},
		{"skipped", `{"collection": "users", "offset": 3}`, "u4"},
		{"limited", `{"collection": "users", "limit": 2}`, "u1 u2"},
		{"below a document", `{"collection": "users/u1/orders"}`, "orders/o1"},
		{"a group", `{"collection": "orders", "group": true, "orderBy": [{"field": "total"}]}`, "orders/o1 orders/o3 orders/o2"},
		{"a group by names", `{"collection": "orders", "group": true, "where": [{"field": "__name__", "op": ">=", "value": "users/u1/orders/o1"}]}`, "orders/o1 orders/o2"},
		{"nothing", `{"collection": "none"}`, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			page := b.must(t, "firestore.query", tt.args)
			var got []string
			for _, path := range ids(page) {
				if strings.Contains(path, "/orders/") {
					path = path[strings.LastIndex(path, "orders/"):]
				}
				got = append(got, strings.TrimPrefix(path, "users/"))
			}
			want := strings.Fields(tt.want)
			if !strings.Contains(tt.args, "orderBy") && !strings.Contains(tt.args, "limit") { // any order will do
				slices.Sort(got)
				slices.Sort(want)
			}
			if strings.Join(got, " ") != strings.Join(want, " ") {
				t.Errorf("got %q, want %q", got, want)
			}
			// Counting the same gives as many, whatever the page.
			if strings.Contains(tt.args, "orderBy") || strings.Contains(tt.args, "limit") || strings.Contains(tt.args, "offset") {
				return
			}
			if n := b.must(t, "firestore.count", tt.args)["count"].(json.Number); n.String() != fmt.Sprint(len(want)) {
				t.Errorf("count = %v, want %d", n, len(want))
			}
		})
	}
}

func TestGet(t *testing.T) {
	b := newBed(t, nil)
	shop(t, b)
	got := b.must(t, "firestore.get", `{"collection": "users", "id": "u2"}`)
	doc, _ := got["document"].(map[string]any)
	if got["exists"] != true || doc["id"] != "u2" || doc["path"] != "users/u2" || doc["createTime"] != when || doc["data"].(map[string]any)["name"] != "Bob" {
		t.Errorf("get = %v", got)
	}
	got = b.must(t, "firestore.get", `{"collection": "users", "id": "nobody"}`)
	if got["exists"] != false || got["document"] != nil {
		t.Errorf("a document that is not there = %v", got)
	}
	got = b.must(t, "firestore.get", `{"collection": "users", "id": "u3", "select": ["address.city", "name"]}`)
	if data, _ := json.Marshal(got["document"].(map[string]any)["data"]); string(data) != `{"address":{"city":"Bonn"},"name":"Cid"}` {
		t.Errorf("selected = %s", data)
	}
}

func TestListCollections(t *testing.T) {
	b := newBed(t, func(c *Config) { c.Rows = 5 })
	shop(t, b)
	if got := fmt.Sprint(b.must(t, "firestore.listCollections", `{}`)); got != "map[collections:[shops users] truncated:<nil>]" {
		t.Errorf("top level = %s", got)
	}
	if got := fmt.Sprint(b.must(t, "firestore.listCollections", `{"document": "users/u1"}`)["collections"]); got != "[orders]" {
		t.Errorf("of a document = %s", got)
	}
	for i := range 9 {
		b.put(fmt.Sprintf("c%d/x", i), nil)
	}
	if got := fmt.Sprint(b.must(t, "firestore.listCollections", `{}`)); got != "map[collections:[c0 c1 c2 c3 c4] truncated:rows]" {
		t.Errorf("more than may be listed = %s", got)
	}
}

func TestSelect(t *testing.T) {
	b := newBed(t, nil)
	shop(t, b)
	for args, want := range map[string]string{
		`"select": ["name"]`:     `{"name":"Ann"}`,
		`"select": []`:           `{}`,
		`"select": ["__name__"]`: `{}`,
		`"select": ["boss"], "orderBy": [{"field": "name"}]`:                `{"boss":{"$reference":"users/u2"}}`,
		`"select": ["none"], "where": [{"field":"age","op":">","value":0}]`: `{}`,
	} {
		page := b.must(t, "firestore.query", `{"collection": "users", "limit": 1, `+args+`}`)
		data, err := json.Marshal(page["documents"].([]any)[0].(map[string]any)["data"])
		if err != nil || string(data) != want {
			t.Errorf("%s: data = %s, want %s (%v)", args, data, want, err)
		}
		if page["nextPageToken"] == nil {
			t.Errorf("%s: no further page", args)
		}
	}
}

// TestPagesAreTheWhole reads random documents in pages of random size, and wants what
// one page with all of them has.
func TestPagesAreTheWhole(t *testing.T) {
	b := newBed(t, func(c *Config) { c.Rows = 1000 })
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 120 {
		fields := map[string]*pb.Value{"n": intValue(r.Int64N(4)), "s": stringValue(strings.Repeat("x", r.IntN(3))), "m": mapValue(map[string]*pb.Value{"k": intValue(r.Int64N(3))})}
		if r.IntN(3) == 0 {
			fields["n"] = doubleValue(float64(r.IntN(8)) / 2)
		}
		if r.IntN(4) == 0 {
			delete(fields, "s")
		}
		b.put(fmt.Sprintf("c/d%03d/things/t%d", r.IntN(40), i), fields)
	}
	for _, args := range []string{
		`"orderBy": [{"field": "n", "direction": "desc"}]`,
		`"orderBy": [{"field": "s"}, {"field": "n", "direction": "desc"}]`,
		`"orderBy": [{"field": "m"}], "endAt": [{"k": 1}]`,
		`"orderBy": [{"field": "m.k", "direction": "desc"}], "select": ["s"]`,
		`"where": [{"field": "n", "op": ">", "value": 0}, {"field": "m.k", "op": "!=", "value": 2}]`,
		`"where": [{"field": "s", "op": "not-in", "value": ["x"]}], "orderBy": [{"field": "s", "direction": "desc"}], "startAt": ["xx"]`,
		`"where": [{"or": [{"field": "m.k", "op": "==", "value": 1}, {"field": "s", "op": "==", "value": ""}]}]`,
		`"orderBy": [{"field": "__name__", "direction": "desc"}], "offset": 7`,
		`"offset": 3`,
	} {
		base := `{"collection": "things", "group": true, ` + args
		want := ids(b.must(t, "firestore.query", base+`, "limit": 1000}`))
		if len(want) < 10 {
			t.Fatalf("%s: only %d documents", args, len(want))
		}
		var got []string
		token := ""
		for pages := 0; ; pages++ {
			page := b.must(t, "firestore.query", fmt.Sprintf(`%s, "limit": %d%s}`, base, 1+r.IntN(9), token))
			got = append(got, ids(page)...)
			next, more := page["nextPageToken"].(string)
			if !more {
				break
			}
			if pages > 200 {
				t.Fatalf("%s: no end", args)
			}
			token = fmt.Sprintf(`, "pageToken": %q`, next)
		}
		// The order of what was not asked to be ordered is Firestore's own, and the pages'.
		if !strings.Contains(args, "orderBy") {
			slices.Sort(got)
			slices.Sort(want)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s:\npages give %q\nthe whole %q", args, got, want)
		}
	}
}

// TestPageTokenIsBound changes everything that a token stands for.
func TestPageTokenIsBound(t *testing.T) {
	b := newBed(t, nil)
	shop(t, b)
	args := `"collection": "users", "orderBy": [{"field": "name"}], "limit": 1`
	token := b.must(t, "firestore.query", "{"+args+"}")["nextPageToken"].(string)
	with := func(args, token string) string { return fmt.Sprintf(`{%s, "pageToken": %q}`, args, token) }
	if got := ids(b.must(t, "firestore.query", with(strings.Replace(args, `"limit": 1`, `"limit": 2`, 1), token))); fmt.Sprint(got) != "[users/u2 users/u3]" {
		t.Errorf("the next page = %q", got)
	}
	for _, other := range []string{
		`"collection": "shops", "orderBy": [{"field": "name"}]`, `"collection": "users", "orderBy": [{"field": "age"}]`,
		`"collection": "users", "orderBy": [{"field": "name", "direction": "desc"}]`, `"collection": "users"`,
		`"collection": "users", "orderBy": [{"field": "name"}], "where": [{"field": "age", "op": ">", "value": 1}]`,
		`"collection": "users", "orderBy": [{"field": "name"}], "select": ["name"]`, `"collection": "users", "group": true, "orderBy": [{"field": "name"}]`,
	} {
		if _, err := b.call(t, "firestore.query", with(other, token)); kind(err) != "request bad_page_token" {
			t.Errorf("with %s: %v", other, err)
		}
	}
	for i := range token {
		changed := []byte(token)
		changed[i] = "AB"[min(1, int(changed[i]&1))]
		if string(changed) == token {
			changed[i] = 'C'
		}
		if _, err := b.call(t, "firestore.query", with(args, string(changed))); kind(err) != "request bad_page_token" {
			t.Fatalf("with byte %d changed: %v", i, err)
		}
	}
	for _, edit := range []func(){func() { b.db.PageKey = []byte("other") }, func() { b.db.PageKey = []byte("key"); b.db.Database = "other" }} {
		edit()
		if _, err := b.call(t, "firestore.query", with(args, token)); kind(err) != "request bad_page_token" {
			t.Errorf("of another runner or database: %v", err)
		}
	}
}
