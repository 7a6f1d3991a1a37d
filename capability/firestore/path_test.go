package firestore

import (
	"slices"
	"strings"
	"testing"
)

func TestFieldPaths(t *testing.T) {
	for text, want := range map[string]string{
		"a": "a", "a.b.c": "a|b|c", "first-name": "first-name", "`a.b`.c": "a.b|c", "`a``": "!", "`\\`\\\\`": "`\\", "__name__": "__name__",
		"": "!", ".a": "!", "a.": "!", "a..b": "!", "`a": "!", "a`b": "!", "`a`b": "!", "`\\a`": "!", "a.__name__": "!", "\xff": "!", "``": "!",
	} {
		got, err := parseField(text)
		if err != nil {
			got = []string{"!"}
		}
		if strings.Join(got, "|") != want {
			t.Errorf("%s = %q, %v; want %q", text, got, err, want)
		}
	}
	if got := quoted([]string{"a", "b.c", "x`\\", "é"}); got != "a.`b.c`.`x\\`\\\\`.`é`" {
		t.Errorf("quoted = %s", got)
	}
}

func FuzzFieldPath(f *testing.F) {
	for _, s := range []string{"a.b", "`a.b`.c", "`\\``", "__name__", "é.x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		path, err := parseField(text)
		if err != nil {
			return
		}
		again, err := parseField(quoted(path))
		if err != nil || !slices.Equal(again, path) {
			t.Fatalf("%q is %q, quoted %q and read back %q, %v", text, path, quoted(path), again, err)
		}
	})
}

func TestCollectionAndDocumentPaths(t *testing.T) {
	for path, want := range map[string]string{
		"users": "users", "users/u1/orders": "orders", "users/u1": "", "": "", "/users": "", "users/": "", "a//b": "", "a/../b": "", "a/./b": "",
		strings.Repeat("x", 1501): "", strings.Repeat("a/b/", 200) + "c": "",
	} {
		if id, err := collectionPath(path); id != want || (err == nil) != (want != "") {
			t.Errorf("collection %.20q = %q, %v; want %q", path, id, err, want)
		}
	}
	for path, ok := range map[string]bool{"users/u1": true, "users": false, "users/u1/orders": false, "users/..": false, "": false} {
		if err := documentPath(path); (err == nil) != ok {
			t.Errorf("document %q: %v", path, err)
		}
	}
}
