package firestore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/capability/jsjson"
	"github.com/direct-oci/engine/engine"
)

// bed is the connectors of one environment with a server behind them.
type bed struct {
	*server
	db  *Database
	log []string
}

func newBed(t testing.TB, edit func(*Config)) *bed {
	t.Helper()
	s := newServer(t)
	c := Config{Project: "shop", Database: "(default)", Emulator: s.addr, Rows: 100, Bytes: 1 << 20, Timeout: 30 * time.Second}
	if edit != nil {
		edit(&c)
	}
	b := &bed{server: s, db: &Database{Config: c, PageKey: []byte("key")}}
	t.Cleanup(func() { _ = b.db.Close() })
	return b
}

// call does what a runner does with arguments, and returns the output in JSON.
func (b *bed) call(t testing.TB, name, args string) (map[string]any, error) {
	t.Helper()
	return callOf(t, b.db, name, args, nil, func(l string) { b.log = append(b.log, l) })
}

func callOf(t testing.TB, db *Database, name, args string, credentials []byte, log func(string)) (map[string]any, error) {
	t.Helper()
	all := Connectors(map[string]*Database{"test": db})
	i := slices.IndexFunc(all, func(c capability.Capability) bool { return c.Info().Name == name })
	schema, err := capability.CompileSchema(all[i].Info().Params)
	if err != nil {
		t.Fatal(err)
	}
	v, err := jsjson.Parse([]byte(args))
	if err != nil {
		t.Fatalf("%s: %v", args, err)
	}
	if wrong := schema.Validate(v); wrong != nil {
		return nil, engine.Refused("bad_arguments", "schema: %w", wrong)
	}
	p, err := all[i].Prepare(context.Background(), capability.Ask{Project: "p", Environment: "test", Args: v})
	if err != nil {
		return nil, err
	}
	out, err := p.Run(context.Background(), capability.Env{
		Credentials: credentials, Log: log, Redact: func(s string) string { return s },
	})
	if err != nil {
		return nil, err
	}
	text, err := capability.EncodeOutput(out.Output)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&m); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return m, nil
}

// must is call, which has to work.
func (b *bed) must(t testing.TB, name, args string) map[string]any {
	t.Helper()
	out, err := b.call(t, name, args)
	if err != nil {
		t.Fatalf("%s %s: %v", name, args, err)
	}
	return out
}

// ids are those of the documents of a page.
func ids(page map[string]any) []string {
	list := []string{}
	for _, d := range page["documents"].([]any) {
		list = append(list, d.(map[string]any)["path"].(string))
	}
	return list
}

func kind(err error) string {
	var e *engine.Error
	if err == nil || !errors.As(err, &e) {
		return ""
	}
	return string(e.Class) + " " + e.Kind
}

func fix(err error) string { return engine.AsError(err).Fix }

// of makes fields of JSON with the types of value.go.
func of(t testing.TB, text string) map[string]*pb.Value {
	t.Helper()
	v, err := jsjson.Parse([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	value, wrong := codec{testRoot}.decode(v)
	if wrong != nil {
		t.Fatalf("%s: %v", text, wrong)
	}
	return value.GetMapValue().GetFields()
}
