package firestore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/capability/approval"
	"github.com/direct-oci/engine/capability/jsjson"
	"github.com/direct-oci/engine/engine"
)

// connector is one of the four capabilities of a project.
type connector struct {
	name, description, schema string

	databases map[string]*Database // by environment
	// plan reads the arguments, and returns what reads the database. Its error is an
	// *engine.Error.
	plan func(args map[string]any, c Config) (work, error)
}

// work reads a database by one call.
type work struct {
	what string // for messages, like "query collection=users"
	run  func(ctx context.Context, r reading) (output any, rows int, err error)
}

// reading is what a work reads with.
type reading struct {
	reader
	Config
	codec
	pageKey []byte
	binding []byte // of page tokens
}

// Connectors are the capabilities of a project whose environments have these
// databases. Without any there are none.
func Connectors(databases map[string]*Database) []capability.Capability {
	if len(databases) == 0 {
		return nil
	}
	var list []capability.Capability
	for _, c := range []connector{
		{name: "firestore.query", description: "read documents of a Firestore collection, a page at a time (to count them: firestore.count)", schema: querySchema, plan: planQuery},
		{name: "firestore.get", description: "read one document of Firestore", schema: getSchema, plan: planGet},
		{name: "firestore.count", description: "count the documents of a Firestore collection that match, all of them, without reading them", schema: countSchema, plan: planCount},
		{name: "firestore.listCollections", description: "list the collections of Firestore at the top level, or of one document", schema: listSchema, plan: planList},
	} {
		c.databases = databases
		list = append(list, &c)
	}
	return list
}

// Info implements capability.Capability.
func (x *connector) Info() capability.Info {
	return capability.Info{
		Name: x.name, Description: x.description, Hazard: capability.Read, Kind: capability.Connector,
		Params: json.RawMessage(x.schema),
	}
}

// Close closes the connections, see Database.Close.
func (x *connector) Close() error {
	for _, d := range x.databases {
		_ = d.Close()
	}
	return nil
}

// Prepare implements capability.Capability.
func (x *connector) Prepare(_ context.Context, ask capability.Ask) (capability.Prepared, error) {
	db, ok := x.databases[ask.Environment]
	if !ok {
		return capability.Prepared{}, engine.Refused("no_firestore", "cannot do %s in environment=%q of project=%s: it has no Firestore", x.name, ask.Environment, ask.Project).
			WithFix("choose one of " + strings.Join(slices.Sorted(maps.Keys(x.databases)), ", "))
	}
	args, _ := ask.Args.(map[string]any) // the schema has seen to it
	work, err := x.plan(args, db.Config)
	if err != nil {
		return capability.Prepared{}, err
	}
	text, err := jsjson.Canonical(ask.Args)
	if err != nil {
		return capability.Prepared{}, engine.Refused("bad_arguments", "cannot accept the arguments of %s: %w", x.name, err)
	}
	p := capability.Prepared{Title: x.name, Documents: []capability.Document{{Name: "arguments", Text: string(text)}}}
	if p.Bound, err = x.bound(ask, db.Config); err != nil {
		return capability.Prepared{}, engine.Failed("internal", "internal error: %w", err)
	}
	if db.Emulator == "" {
		p.Credentials = CredentialsOf(ask.Environment)
	}
	p.Run = func(ctx context.Context, env capability.Env) (capability.Outcome, error) {
		output, err := x.run(ctx, db, ask, args, work, env)
		return capability.Outcome{Output: output}, err
	}
	p.Resume = p.Run // to read once more does nothing that was not to be done
	return p, nil
}

// CredentialsOf is the name of an environment's credentials among those of a project.
func CredentialsOf(environment string) string { return "firestore of " + environment }

// bound is what decides what is read. The manifest is that of the database.
func (x *connector) bound(ask capability.Ask, c Config) (approval.Bound, error) {
	masks := []any{}
	for _, m := range c.Masks {
		fields := []any{}
		for _, f := range m.Fields {
			fields = append(fields, f)
		}
		masks = append(masks, map[string]any{"collection": m.Collection, "fields": fields})
	}
	manifest, err := digest(map[string]any{
		"root": c.root(), "emulator": c.Emulator, "masks": masks,
		"rows": float64(c.Rows), "bytes": float64(c.Bytes), "timeoutSeconds": c.Timeout.Seconds(),
	})
	if err != nil {
		return approval.Bound{}, err
	}
	sum, err := digest(map[string]any{
		"capability": x.name, "project": ask.Project, "environment": ask.Environment,
		"manifestDigest": manifest, "args": ask.Args,
	})
	return approval.Bound{Digest: sum, Manifest: manifest}, err
}

// digest is SHA-256, in hexadecimal, of the RFC 8785 form of v.
func digest(v any) (string, error) {
	text, err := jsjson.Canonical(v)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

// run does the work, within the time that the config gives it.
func (x *connector) run(ctx context.Context, db *Database, ask capability.Ask, args map[string]any, w work, env capability.Env) (any, error) {
	began := time.Now()
	client, done, err := db.use(ctx, env.Credentials)
	if err != nil {
		return nil, engine.Failed("no_credentials", "cannot use the credentials of environment=%s: %s", ask.Environment, env.Redact(err.Error())).
			WithFix("let firestore.credentials be the JSON of a service account's key")
	}
	defer done()
	ctx, cancel := context.WithTimeout(db.routed(ctx), db.Timeout)
	defer cancel()
	bound, err := binding(db.Config, args)
	if err != nil {
		return nil, engine.Failed("internal", "internal error: %w", err)
	}
	output, rows, err := w.run(ctx, reading{client, db.Config, codec{db.root()}, db.PageKey, bound})
	if err != nil {
		e := explained(ctx, w.what, ask.Environment, db.Config, err)
		e.Message, e.Fix = env.Redact(e.Message), env.Redact(e.Fix)
		return nil, e
	}
	env.Log(fmt.Sprintf("%s: %s, %d rows in %v", x.name, w.what, rows, time.Since(began).Round(time.Millisecond)))
	return output, nil
}
