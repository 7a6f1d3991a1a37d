package firestore

import (
	"errors"
	"fmt"
	"slices"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
)

// Mask is fields that nobody may see.
type Mask struct {
	Collection string   // id of the collections it is about, at any depth; "" is all
	Fields     []string // field paths; what is below them is masked too
}

// Check says what is wrong with a mask.
func (m Mask) Check() error {
	if m.Collection != "" {
		if id, err := collectionPath(m.Collection); err != nil || id != m.Collection {
			return errors.New("collection is not the id of a collection, without slashes")
		}
	}
	if len(m.Fields) == 0 {
		return errors.New("fields is empty")
	}
	for i, f := range m.Fields {
		path, err := parseField(f)
		if err == nil && path[0] == documentID {
			err = errors.New("is the name of documents, which cannot be masked")
		}
		if err != nil {
			return fmt.Errorf("fields[%d] %w", i, err)
		}
	}
	return nil
}

// masked returns the paths that are masked in collections of this id.
func (c Config) masked(collection string) [][]string {
	var paths [][]string
	for _, m := range c.Masks {
		if m.Collection != "" && m.Collection != collection {
			continue
		}
		for _, f := range m.Fields {
			if path, err := parseField(f); err == nil { // Check has seen to it
				paths = append(paths, path)
			}
		}
	}
	return paths
}

// touches reports whether a query that looks at path learns of a masked field: of the
// field itself, of one below it, or of a map that holds it.
//
// SECURITY: a masked field cannot be probed.
// A filter on it, or an order by it, tells its value bit by bit, though no result shows
// it; a map that holds it compares with it.
// Holds because: every path of a filter, an order and a selection comes through here
// before a query exists. Not covered: names of documents, and how long a query takes.
// Checked by: TestMaskedFieldsAreNotProbed.
func touches(masked [][]string, path []string) bool {
	return slices.ContainsFunc(masked, func(m []string) bool {
		n := min(len(m), len(path))
		return slices.Equal(m[:n], path[:n])
	})
}

// within reports whether path is a masked field or below one. A map that holds one may
// be selected: the field is then left out of it.
func within(masked [][]string, path []string) bool {
	return slices.ContainsFunc(masked, func(m []string) bool {
		return len(m) <= len(path) && slices.Equal(m, path[:len(m)])
	})
}

// remove takes the masked fields out of a document. It looks through arrays, too: a
// field of a map is masked wherever the map is.
func remove(masked [][]string, fields map[string]*pb.Value) {
	for _, path := range masked {
		removeFrom(fields, path)
	}
}

func removeFrom(fields map[string]*pb.Value, path []string) {
	if len(path) == 1 {
		delete(fields, path[0])
		return
	}
	removeBelow(fields[path[0]], path[1:])
}

func removeBelow(v *pb.Value, path []string) {
	switch x := v.GetValueType().(type) {
	case *pb.Value_MapValue:
		removeFrom(x.MapValue.GetFields(), path)
	case *pb.Value_ArrayValue:
		for _, e := range x.ArrayValue.GetValues() {
			removeBelow(e, path)
		}
	}
}

// project returns what is selected of a document.
func project(selected [][]string, fields map[string]*pb.Value) map[string]*pb.Value {
	out := map[string]*pb.Value{}
	for _, path := range selected {
		if v := valueAt(fields, path); v != nil {
			put(out, path, v)
		}
	}
	return out
}

// valueAt returns the value at path, nil if there is none.
func valueAt(fields map[string]*pb.Value, path []string) *pb.Value {
	v := fields[path[0]]
	for _, name := range path[1:] {
		v = v.GetMapValue().GetFields()[name]
	}
	return v
}

// put sets the value at path, with maps where there are none. What is selected whole
// stays whole.
func put(fields map[string]*pb.Value, path []string, v *pb.Value) {
	if len(path) == 1 {
		fields[path[0]] = v
		return
	}
	below := fields[path[0]]
	if below == nil {
		below = mapValue(map[string]*pb.Value{})
		fields[path[0]] = below
	}
	put(below.GetMapValue().GetFields(), path[1:], v)
}
