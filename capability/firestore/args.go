package firestore

import (
	"fmt"
	"slices"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/engine"
)

// Bounds of a query, beyond which no index and no reader follows.
const (
	maxConditions = 100
	maxFilters    = 10 // how deeply filters nest
	maxOrders     = 32
	defaultLimit  = 100
)

// query is the arguments of query and count.
type query struct {
	collection string // path, or id of a group
	id         string // of the collection
	group      bool
	where      *pb.StructuredQuery_Filter // nil: all
	unequal    [][]string                 // fields that are compared otherwise than for equality
	orders     []order
	selected   [][]string
	projected  bool // only what is selected, which may be nothing
	limit      int  // 0: none was asked for
	offset     int
	start, end *pb.Cursor
	token      string
}

// order is one part of an order.
type order struct {
	path []string
	desc bool
}

// decoder reads arguments that fit their schema, and collects what is wrong with them
// all the same.
type decoder struct {
	codec
	violations capability.Violations
	masked     [][]string // of the collection
	probes     []string   // pointers of masked fields
	conditions int
}

func (d *decoder) bad(at, format string, args ...any) {
	d.violations = append(d.violations, capability.Violation{Pointer: at, Message: fmt.Sprintf(format, args...)})
}

// err is everything that is wrong, nil if nothing is.
func (d *decoder) err(name string) error {
	if len(d.violations) > 0 {
		return engine.Refused("bad_arguments", "cannot accept the arguments of %s: %w", name, d.violations).
			WithFix("see engine capabilities --json for their schema")
	}
	if len(d.probes) > 0 {
		return engine.Refused("masked_field", "cannot use the fields at %q of the arguments of %s: they are masked", d.probes, name).
			WithFix("leave them out; the runner's config says what is masked")
	}
	return nil
}

// collection reads which documents are meant.
func (d *decoder) collection(c Config, args map[string]any) query {
	q := query{}
	q.collection, _ = args["collection"].(string)
	q.group, _ = args["group"].(bool)
	id, err := collectionPath(q.collection)
	if err == nil && q.group && id != q.collection {
		err = fmt.Errorf("is a path; with group it is the id of a collection")
	}
	if err != nil {
		d.bad("/collection", "%v", err)
	}
	q.id = id
	d.masked = c.masked(id)
	return q
}

// query reads the arguments of firestore.query, or of firestore.count, which are some
// of them.
func (d *decoder) query(c Config, args map[string]any) query {
	q := d.collection(c, args)
	where, _ := args["where"].([]any)
	var filters []*pb.StructuredQuery_Filter
	for i, f := range where {
		filters = append(filters, d.filter(fmt.Sprintf("/where/%d", i), f, &q, 1))
	}
	q.where = all(filters)
	orderBy, _ := args["orderBy"].([]any)
	if len(orderBy) > maxOrders {
		d.bad("/orderBy", "has more than %d fields", maxOrders)
	}
	for i, o := range orderBy {
		m, _ := o.(map[string]any)
		at := fmt.Sprintf("/orderBy/%d/field", i)
		path := d.field(at, m["field"], touches)
		if slices.ContainsFunc(q.orders, func(o order) bool { return slices.Equal(o.path, path) }) && path != nil {
			d.bad(at, "comes twice")
		}
		q.orders = append(q.orders, order{path, m["direction"] == "desc"})
	}
	q.selected, q.projected = d.selection(args)
	limit, _ := args["limit"].(float64)
	offset, _ := args["offset"].(float64)
	q.limit, q.offset = int(min(limit, 1<<30)), int(offset)
	q.start = d.cursor(args, &q, "startAt", "startAfter")
	q.end = d.cursor(args, &q, "endBefore", "endAt")
	q.token, _ = args["pageToken"].(string)
	return q
}

// field reads a field path. hidden decides whether it may be used there.
func (d *decoder) field(at string, v any, hidden func(masked [][]string, path []string) bool) []string {
	text, _ := v.(string)
	path, err := parseField(text)
	if err != nil {
		d.bad(at, "%v", err)
		return nil
	}
	if hidden(d.masked, path) {
		d.probes = append(d.probes, at)
	}
	return path
}

// selection reads which fields are wanted.
func (d *decoder) selection(args map[string]any) (paths [][]string, ok bool) {
	list, ok := args["select"].([]any)
	for i, f := range list {
		path := d.field(fmt.Sprintf("/select/%d", i), f, within)
		if path != nil && path[0] != documentID { // names are always there
			paths = append(paths, path)
		}
	}
	return paths, ok
}

// cursor reads where a query begins or ends: at most one of two keys, of which the
// first means just before the given values.
func (d *decoder) cursor(args map[string]any, q *query, before, after string) *pb.Cursor {
	key := before
	list, ok := args[before].([]any)
	other, both := args[after].([]any)
	switch {
	case ok && both:
		d.bad("/"+after, "cannot stand beside %s", before)
	case both:
		key, list = after, other
	case !ok:
		return nil
	}
	if len(list) > len(q.orders) {
		d.bad("/"+key, "has more values than orderBy has fields")
		return nil
	}
	cursor := &pb.Cursor{Before: key == before}
	for i, v := range list {
		at := fmt.Sprintf("/%s/%d", key, i)
		if o := q.orders[i]; o.path != nil && o.path[0] == documentID {
			cursor.Values = append(cursor.Values, d.name(at, v, q))
		} else {
			cursor.Values = append(cursor.Values, d.value(at, v))
		}
	}
	return cursor
}

// value reads a value.
func (d *decoder) value(at string, v any) *pb.Value {
	value, err := d.decode(v)
	if err != nil {
		d.bad(at+err.pointer, "%s", err.message)
		return nullValue()
	}
	return value
}

// name reads the name of a document: its id, its path, or a reference.
func (d *decoder) name(at string, v any, q *query) *pb.Value {
	text, ok := v.(string)
	if !ok {
		value := d.value(at, v)
		if _, ok := value.GetValueType().(*pb.Value_ReferenceValue); !ok && len(d.violations) == 0 {
			d.bad(at, "is neither a document's id nor its path")
		}
		return value
	}
	path := text
	if ids, err := segments(text); err == nil && len(ids) == 1 && !q.group {
		path = q.collection + "/" + text
	}
	full, err := reference(d.root, path)
	if err != nil {
		d.bad(at, "%v", err)
	}
	return referenceValue(full)
}
