package api

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/direct-oci/engine/client/wire"
	"github.com/direct-oci/engine/engine"
)

func TestDecode(t *testing.T) {
	tests := []struct{ name, text, want, fix string }{
		{"a mistyped key", `{"comand":["a"]}`, `key "comand": there is none`, "did you mean command?"},
		{"a mistyped key below", `{"limits":{"memoryMB":1}}`, `key "limits.memoryMB"`, "did you mean memoryMb?"},
		{"a key in other letters", `{"Image":"a"}`, `key "Image"`, "did you mean image?"},
		{"a key in a list", `{"files":[{"path":"a","data":""},{"path":"b","data":"","x":1}]}`, `key "files[1].x"`, "known are path, mode, data"},
		{"a key twice", `{"image":"a","image":"b"}`, `key "image" twice`, ""},
		{"a key twice in a map", `{"env":{"A":"a","A":"b"}}`, `key "env.A" twice`, ""},
		{"a key that is missing", `{"files":[{"path":"a"}]}`, `without the key "files[0].data"`, ""},
		{"a string for a list", `{"command":"a"}`, "cannot accept a string as command: want a list", ""},
		{"a number for a string", `{"image":5}`, "as image: want a string", ""},
		{"a number that does not fit", `{"uid":-1}`, "as uid: want a whole number in range", ""},
		{"two values", `{} {}`, "something follows", ""},
		{"half of it", `{"image"`, "as JSON: it ends too early", ""},
		{"no JSON", `{"image":}`, "as JSON: ", ""},
		{"no base64", `{"image":"a","files":[{"path":"a","data":"aGk="},{"path":"b","data":"a"}]}`, "cannot accept the string as files[1].data: it is no base64", "padding"},
		{"a list", `[]`, "cannot accept an array as the body: want an object", ""},
		{"deep", `{"labels":` + strings.Repeat(`{"a":`, 5000) + "1" + strings.Repeat("}", 5000) + "}", "want a string", ""},
		{"no UTF-8", "{\"image\":\"caf\xe9\"}", "no UTF-8", "base64"},
		{"a long key", `{"` + strings.Repeat("x", 1<<20) + `":1}`, "there is none", "known are"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := decode([]byte(tt.text), &wire.RunRequest{})
			var e *engine.Error
			if !errors.As(err, &e) || e.Kind != "bad_body" || !strings.Contains(e.Message, tt.want) || !strings.Contains(e.Fix, tt.fix) {
				t.Errorf("error = %v, want %q and %q", err, tt.want, tt.fix)
			}
		})
	}
	var ask wire.RunRequest
	if err := decode([]byte(`{"image":"a","limits":{"cpus":0.5},"env":{"A":"b"},"files":[{"path":"p","data":"aGk="}]}`), &ask); err != nil {
		t.Fatal(err)
	}
	if ask.Limits.CPUs != 0.5 || ask.Env["A"] != "b" || string(ask.Files[0].Data) != "hi" {
		t.Errorf("read %+v", ask)
	}
	if err := decode(nil, &ask); err != nil {
		t.Errorf("no body: %v", err)
	}
}

// FuzzDecode wants what was accepted to be what encoding/json reads, and of the schema.
func FuzzDecode(f *testing.F) {
	f.Add(`{"image":"a","command":["b"],"limits":{"cpus":1},"files":[{"path":"p","data":"aGk="}]}`)
	f.Add(`{"environment":"e","args":{"a":[1,{"b":null}]},"approval":{"payload":"","keyId":"","signature":""}}`)
	f.Add(`{"a":`)
	f.Fuzz(func(t *testing.T, text string) {
		for _, v := range []any{&wire.RunRequest{}, &wire.Call{}} {
			if err := decode([]byte(text), v); err != nil {
				var e *engine.Error
				if !errors.As(err, &e) || e.Class != engine.ClassRequest {
					t.Errorf("%q: %v", text, err)
				}
				continue
			}
			if strings.TrimSpace(text) == "" {
				continue
			}
			again := reflect.New(reflect.TypeOf(v).Elem()).Interface()
			if err := json.Unmarshal([]byte(text), again); err != nil || !reflect.DeepEqual(again, v) {
				t.Errorf("%q is %+v, and by itself %+v (%v)", text, v, again, err)
			}
		}
	})
}
