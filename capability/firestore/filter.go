package firestore

import (
	"fmt"
	"math"
	"slices"
	"strings"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
)

// operators are those of a condition, in the words of every Firestore client.
var operators = map[string]pb.StructuredQuery_FieldFilter_Operator{
	"==":                 pb.StructuredQuery_FieldFilter_EQUAL,
	"!=":                 pb.StructuredQuery_FieldFilter_NOT_EQUAL,
	"<":                  pb.StructuredQuery_FieldFilter_LESS_THAN,
	"<=":                 pb.StructuredQuery_FieldFilter_LESS_THAN_OR_EQUAL,
	">":                  pb.StructuredQuery_FieldFilter_GREATER_THAN,
	">=":                 pb.StructuredQuery_FieldFilter_GREATER_THAN_OR_EQUAL,
	"in":                 pb.StructuredQuery_FieldFilter_IN,
	"not-in":             pb.StructuredQuery_FieldFilter_NOT_IN,
	"array-contains":     pb.StructuredQuery_FieldFilter_ARRAY_CONTAINS,
	"array-contains-any": pb.StructuredQuery_FieldFilter_ARRAY_CONTAINS_ANY,
}

// filter reads a filter and all below it.
func (d *decoder) filter(at string, v any, q *query, depth int) *pb.StructuredQuery_Filter {
	m, _ := v.(map[string]any)
	if depth > maxFilters {
		d.bad(at, "is nested more deeply than %d levels", maxFilters)
		return nil
	}
	for _, op := range []pb.StructuredQuery_CompositeFilter_Operator{pb.StructuredQuery_CompositeFilter_AND, pb.StructuredQuery_CompositeFilter_OR} {
		key := strings.ToLower(op.String())
		list, ok := m[key].([]any)
		if !ok {
			continue
		}
		if len(m) > 1 {
			d.bad(at, "has other keys beside %s", key)
			return nil
		}
		var filters []*pb.StructuredQuery_Filter
		for i, f := range list {
			filters = append(filters, d.filter(fmt.Sprintf("%s/%s/%d", at, key, i), f, q, depth+1))
		}
		return composite(op, filters)
	}
	if d.conditions++; d.conditions == maxConditions+1 {
		d.bad("/where", "has more than %d conditions", maxConditions)
	}
	return d.condition(at, m, q)
}

func composite(op pb.StructuredQuery_CompositeFilter_Operator, filters []*pb.StructuredQuery_Filter) *pb.StructuredQuery_Filter {
	return &pb.StructuredQuery_Filter{FilterType: &pb.StructuredQuery_Filter_CompositeFilter{
		CompositeFilter: &pb.StructuredQuery_CompositeFilter{Op: op, Filters: filters},
	}}
}

// all holds where each of the filters does. Without any it is nil.
func all(filters []*pb.StructuredQuery_Filter) *pb.StructuredQuery_Filter {
	switch len(filters) {
	case 0:
		return nil
	case 1:
		return filters[0]
	}
	return composite(pb.StructuredQuery_CompositeFilter_AND, filters)
}

// condition reads {field, op, value}.
func (d *decoder) condition(at string, m map[string]any, q *query) *pb.StructuredQuery_Filter {
	name, _ := m["op"].(string)
	op, known := operators[name]
	v, hasValue := m["value"]
	if _, hasField := m["field"]; !hasField || !known || !hasValue {
		d.bad(at, "wants field, op and value, or one of and and or")
		return nil
	}
	path := d.field(at+"/field", m["field"], touches)
	if path == nil {
		return nil
	}
	switch name {
	case "<", "<=", ">", ">=", "!=", "not-in":
		if !slices.ContainsFunc(q.unequal, func(p []string) bool { return slices.Equal(p, path) }) {
			q.unequal = append(q.unequal, path)
		}
	}
	var value *pb.Value
	switch name {
	case "in", "not-in", "array-contains-any":
		value = d.list(at+"/value", v, path, q)
	default:
		value = d.operand(at+"/value", v, path, q)
		if unary := d.unary(at, name, path, value); unary != nil {
			return unary
		}
	}
	return &pb.StructuredQuery_Filter{FilterType: &pb.StructuredQuery_Filter_FieldFilter{
		FieldFilter: &pb.StructuredQuery_FieldFilter{Field: fieldOf(path), Op: op, Value: value},
	}}
}

func fieldOf(path []string) *pb.StructuredQuery_FieldReference {
	return &pb.StructuredQuery_FieldReference{FieldPath: quoted(path)}
}

// operand reads what a field is compared with.
func (d *decoder) operand(at string, v any, path []string, q *query) *pb.Value {
	if path[0] == documentID {
		return d.name(at, v, q)
	}
	return d.value(at, v)
}

func (d *decoder) list(at string, v any, path []string, q *query) *pb.Value {
	list, ok := v.([]any)
	if !ok || len(list) == 0 {
		d.bad(at, "is not an array with at least one value")
		return nil
	}
	values := make([]*pb.Value, len(list))
	for i, e := range list {
		values[i] = d.operand(fmt.Sprintf("%s/%d", at, i), e, path, q)
	}
	return arrayValue(values)
}

// unary is the filter of a comparison with null or NaN, which has a form of its own;
// nil if it is not one.
func (d *decoder) unary(at, name string, path []string, value *pb.Value) *pb.StructuredQuery_Filter {
	var is, isNot pb.StructuredQuery_UnaryFilter_Operator
	switch x := value.GetValueType().(type) {
	case *pb.Value_NullValue:
		is, isNot = pb.StructuredQuery_UnaryFilter_IS_NULL, pb.StructuredQuery_UnaryFilter_IS_NOT_NULL
	case *pb.Value_DoubleValue:
		if !math.IsNaN(x.DoubleValue) {
			return nil
		}
		is, isNot = pb.StructuredQuery_UnaryFilter_IS_NAN, pb.StructuredQuery_UnaryFilter_IS_NOT_NAN
	default:
		return nil
	}
	switch name {
	case "==":
	case "!=":
		is = isNot
	case "array-contains":
		return nil
	default:
		d.bad(at+"/op", "cannot compare with null or NaN: want == or !=")
	}
	return &pb.StructuredQuery_Filter{FilterType: &pb.StructuredQuery_Filter_UnaryFilter{
		UnaryFilter: &pb.StructuredQuery_UnaryFilter{
			Op:          is,
			OperandType: &pb.StructuredQuery_UnaryFilter_Field{Field: fieldOf(path)},
		},
	}}
}
