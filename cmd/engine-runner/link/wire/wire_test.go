package wire

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/capability/approval"
	"github.com/direct-oci/engine/capability/jsjson"
	"github.com/direct-oci/engine/capability/signed"
	"github.com/direct-oci/engine/engine"
)

var testKey = NewKey([]byte("0123456789abcdef0123456789abcdef"), "runner-1")

// examples are a message of each type, by the end that sends it.
func examples() map[End][]any {
	listed := []capability.Listed{{Project: "shop", Info: capability.Info{
		Name: "a.b", Description: "d", Hazard: capability.Read, Kind: capability.Connector, Params: json.RawMessage(`{"type":"object"}`),
	}}}
	nonce := strings.Repeat("0a", 32)
	room := Room{Max: 8, Running: 1, OutboxBytes: 5, OutboxMax: 10}
	now := time.UnixMilli(1700000000000)
	return map[End][]any{
		Runner: {
			&Hello{TypeHello, []int{1}, "runner-1", nonce, "v1"},
			&Proof{TypeProof, testKey.Greet(Runner, nonce, nonce), listed, room},
			&State{TypeState, "i", Running}, &State{TypeState, "i", Answered},
			&Refused{TypeRefused, "i", TypeInvoke, engine.Refused("stale", "cannot: %d", 1).WithFix("do")},
			&Log{TypeLog, "i", 1, []string{"a", "\u0000"}, 3},
			ptr(testKey.Seal(TypeResult, "i", exampleResult())), ptr(testKey.Seal(TypeReviewed, "i", exampleReview())),
			&Capacity{TypeCapacity, room}, &Capabilities{TypeCapabilities, listed},
		},
		Plane: {
			&Challenge{TypeChallenge, 1, nonce, testKey.Greet(Plane, nonce, nonce)}, &Welcome{TypeWelcome, now.UnixMilli()},
			ptr(testKey.NewRequest(TypeInvoke, "i:1", now, exampleCall())), ptr(testKey.NewRequest(TypeReview, "i", now, exampleCall())),
			ptr(testKey.NewRequest(TypeCancel, "i", now, nil)), ptr(testKey.Ack("i", exampleResult())),
		},
	}
}

func ptr[T any](v T) *T { return &v }

func encoded(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return data
}

var envelope = &signed.Envelope{Payload: []byte("p"), KeyID: "k", Signature: []byte("s")}

func exampleCall() []byte {
	return encoded(Call{Project: "shop", Capability: "a.b", Environment: "test", Args: json.RawMessage(`{"a":[1,null]}`), Approval: envelope, Caller: "me"})
}

func exampleResult() []byte {
	return encoded(Result{Call: "0011223344556677", Output: json.RawMessage(`{"ok":true}`), Receipt: envelope})
}

func exampleReview() []byte {
	return encoded(Review{Hazard: capability.Write, Digest: "d", BoundDigest: strings.Repeat("0a", 32), Bound: approval.Bound{}, Text: "t"})
}

// compiled is the whole schema, as a validator of others reads it.
func compiled(t *testing.T) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("link.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("link.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSchemaIsTheCodes wants each message that is sent to be one of the schema's, and to
// be read as what it was; and no type to be left out.
func TestSchemaIsTheCodes(t *testing.T) {
	whole := compiled(t)
	seen := map[string]bool{}
	for from, messages := range examples() {
		for _, m := range messages {
			data, err := Encode(m)
			if err != nil {
				t.Fatal(err)
			}
			v, err := jsjson.Parse(data)
			if err != nil {
				t.Fatal(err)
			}
			if err := whole.Validate(v); err != nil {
				t.Errorf("%s\nis not as the schema wants it: %v", data, err)
			}
			got, err := Decode(from, data)
			if err != nil {
				t.Errorf("%s\ncannot be read: %v", data, err)
				continue
			}
			if again := encoded(got); !bytes.Equal(again, data) {
				t.Errorf("read as\n%s\nwant\n%s", again, data)
			}
			if _, err := Decode(1-from, data); err == nil {
				t.Errorf("%s\nis read from the other end", data)
			}
			seen[v.(map[string]any)["type"].(string)] = true
			for _, member := range []string{`"extra":1`, `"Type":"x"`} {
				if _, err := Decode(from, append([]byte("{"+member+","), data[1:]...)); err == nil {
					t.Errorf("%s\nis read with %s", data, member)
				}
			}
		}
	}
	var doc struct {
		OneOf []json.RawMessage `json:"oneOf"`
	}
	if err := json.Unmarshal(Schema, &doc); err != nil || len(doc.OneOf) != len(seen) {
		t.Errorf("the schema has %d messages, the tests %d: %v", len(doc.OneOf), len(seen), err)
	}
	if _, err := DecodeCall(exampleCall()); err != nil {
		t.Error(err)
	}
	if r, err := DecodeResult(exampleResult()); err != nil || string(r.Output) != `{"ok":true}` {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := DecodeReview(exampleReview()); err != nil {
		t.Error(err)
	}
}

// TestMessagesAreDocumented holds docs/LINK.md against the types of messages.
func TestMessagesAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/LINK.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, messages := range examples() {
		for _, m := range messages {
			var typ struct{ Type string }
			if err := json.Unmarshal(encoded(m), &typ); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(page), "`"+typ.Type+"`") {
				t.Errorf("docs/LINK.md does not tell of %s", typ.Type)
			}
		}
	}
	for _, vector := range vectors() {
		if !strings.Contains(string(page), vector) {
			t.Errorf("docs/LINK.md lacks the example %s", vector)
		}
	}
}

// vectors are MACs that another implementation can be held against.
func vectors() []string {
	a, b := strings.Repeat("11", 32), strings.Repeat("22", 32)
	r := Request{Type: TypeInvoke, ID: "i:1", Time: 1700000000000, Nonce: strings.Repeat("33", 16), Body: []byte(`{"project":"shop","capability":"a.b"}`)}
	return []string{
		testKey.Greet(Plane, a, b), testKey.Greet(Runner, a, b), testKey.request(r),
		testKey.Seal(TypeResult, "i:1", []byte("{}")).MAC, testKey.Ack("i:1", []byte("{}")).MAC,
	}
}

// TestEveryBitIsSigned changes each part of what is signed.
func TestEveryBitIsSigned(t *testing.T) {
	r := testKey.NewRequest(TypeInvoke, "id-1", time.Now(), []byte("body"))
	if !testKey.Signed(r) {
		t.Fatal("a request is not its signer's")
	}
	for name, edit := range map[string]func(*Request){
		"type": func(r *Request) { r.Type = TypeReview }, "id": func(r *Request) { r.ID = "id-2" }, "time": func(r *Request) { r.Time++ },
		"nonce": func(r *Request) { r.Nonce = NewNonce(16) }, "body": func(r *Request) { r.Body = []byte("bodz") }, "mac": func(r *Request) { r.MAC = "" },
		"moved": func(r *Request) { r.ID, r.Body = "id-", append([]byte("1"), r.Body...) },
	} {
		changed := r
		if edit(&changed); testKey.Signed(changed) {
			t.Errorf("with another %s it is still signed", name)
		}
	}
	for i := range r.Body {
		for bit := range 8 {
			changed := r
			changed.Body = bytes.Clone(r.Body)
			if changed.Body[i] ^= 1 << bit; testKey.Signed(changed) {
				t.Errorf("byte %d, bit %d of the body is not signed", i, bit)
			}
		}
	}
	if NewKey([]byte("0123456789abcdef0123456789abcdef"), "runner-2").Signed(r) || NewKey([]byte("another secret of some bytes"), "runner-1").Signed(r) {
		t.Error("another key takes it for signed")
	}
	s := testKey.Seal(TypeResult, "id-1", []byte("body"))
	for _, changed := range []Sealed{{TypeReviewed, s.ID, s.Body, s.MAC}, {s.Type, "id-2", s.Body, s.MAC}, {s.Type, s.ID, []byte("x"), s.MAC}} {
		if !testKey.Unbroken(s) || testKey.Unbroken(changed) {
			t.Errorf("%+v is taken for sealed", changed)
		}
	}
	// No MAC is worth anything in another place.
	a := NewNonce(32)
	if testKey.Greeted(Runner, a, a, testKey.Greet(Plane, a, a)) || testKey.Greeted(Plane, a, NewNonce(32), testKey.Greet(Plane, a, a)) || testKey.Greeted(Plane, NewNonce(32), a, testKey.Greet(Plane, a, a)) {
		t.Error("a greeting is worth something elsewhere")
	}
	if testKey.Acknowledged(Ack{TypeAck, "i", testKey.Ack("j", []byte("x")).MAC}, "") {
		t.Error("an ack of another is worth something")
	}
}

// TestEqualKeysAreRefused gives keys twice, of which another reader may take the first: in a
// message, in a body that is signed, and in what it holds.
func TestEqualKeysAreRefused(t *testing.T) {
	for _, body := range []string{
		`{"project":"shop","capability":"a.b","project":"other"}`,
		`{"project":"shop","capability":"a.b","args":{"x":1,"x":2}}`,
		`{"project":"shop","capability":"a.b","args":[{"x":1,"\u0078":2}]}`,
	} {
		if c, err := DecodeCall([]byte(body)); err == nil {
			t.Errorf("%s is read as %+v", body, c)
		}
	}
	ack := encoded(testKey.Ack("i", exampleResult()))
	if m, err := Decode(Plane, append([]byte(`{"id":"j",`), ack[1:]...)); err == nil {
		t.Errorf("an ack of two ids is read as %+v", m)
	}
}

func FuzzDecode(f *testing.F) {
	for _, messages := range examples() {
		for _, m := range messages {
			f.Add(encoded(m))
		}
	}
	f.Add([]byte(`{"type":"invoke","type":"cancel"}`))
	f.Add([]byte(`{"type":"log","id":"i","first":1e3,"lines":[],"dropped":0}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, from := range []End{Runner, Plane} {
			m, err := Decode(from, data)
			if err != nil {
				continue
			}
			again, err := Encode(m)
			if err != nil {
				t.Fatalf("%q was read and cannot be written: %v", data, err)
			}
			if _, err := Decode(from, again); err != nil {
				t.Fatalf("%q was read, written as %q, and cannot be read: %v", data, again, err)
			}
		}
	})
}

func FuzzBodies(f *testing.F) {
	for _, body := range [][]byte{exampleCall(), exampleResult(), exampleReview(), []byte(`{"project":"","capability":""}`)} {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		DecodeCall(data)
		DecodeResult(data)
		DecodeReview(data)
	})
}
