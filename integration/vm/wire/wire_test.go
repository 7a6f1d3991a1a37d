package wire_test

import (
	"bytes"
	"io"
	"testing"

	"github.com/direct-oci/engine/integration/vm/wire"
)

func TestFramesKeepTheirOrder(t *testing.T) {
	var b bytes.Buffer
	frames := []struct {
		kind    wire.Kind
		payload string
	}{{wire.Hello, ""}, {wire.Stdout, "one"}, {wire.Stderr, "two"}, {wire.Stdin, ""}}
	for _, f := range frames {
		if err := wire.Write(&b, f.kind, []byte(f.payload)); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range frames {
		kind, payload, err := wire.Read(&b)
		if err != nil || kind != want.kind || string(payload) != want.payload {
			t.Errorf("Read = %d, %q, %v, want %d, %q", kind, payload, err, want.kind, want.payload)
		}
	}
	if _, _, err := wire.Read(&b); err != io.EOF {
		t.Errorf("error after the last frame = %v, want io.EOF", err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{1, 0, 0, 0, 0})
	f.Add([]byte{6, 3, 0, 0, 0, 'a', 'b'})
	f.Add([]byte{6, 255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bytes.NewReader(data)
		for {
			before := r.Len()
			kind, payload, err := wire.Read(r)
			if err != nil {
				return
			}
			var b bytes.Buffer
			if err := wire.Write(&b, kind, payload); err != nil {
				t.Fatal(err)
			}
			if used := data[len(data)-before:][:before-r.Len()]; !bytes.Equal(b.Bytes(), used) {
				t.Fatalf("frame % x is written as % x", used, b.Bytes())
			}
		}
	})
}
