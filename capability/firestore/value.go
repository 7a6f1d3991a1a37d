package firestore

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/genproto/googleapis/type/latlng"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/direct-oci/engine/capability/jsjson"
)

// A value of Firestore in JSON. null, true and strings are themselves, and so are
// arrays, maps, and numbers within ±2^53, a whole double with ".0" at its end. The rest:
//
//	{"$int": "9223372036854775807"}       an integer beyond ±2^53
//	{"$double": "NaN"}                    also Infinity, -Infinity, and doubles beyond ±2^53
//	{"$timestamp": "2026-01-02T03:04:05.000006Z"}
//	{"$bytes": "AAEC"}                    base64
//	{"$reference": "users/u1"}            in another database by its full name
//	{"$geoPoint": {"latitude": 1.5, "longitude": 2.5}}
//	{"$vector": [1.0, 2.5]}
//	{"$map": {"$any": 1}}                 a map with one key that begins with a dollar sign

// maxSafe is the largest integer that every reader of JSON keeps exactly.
const maxSafe = 1<<53 - 1

// maxDepth is how deeply Firestore lets values nest.
const maxDepth = 20

// codec turns values into JSON and back. root is what names of documents begin with.
type codec struct{ root string }

// append writes a value.
func (c codec) append(dst []byte, v *pb.Value) ([]byte, error) {
	switch x := v.GetValueType().(type) {
	case *pb.Value_NullValue:
		return append(dst, "null"...), nil
	case *pb.Value_BooleanValue:
		return strconv.AppendBool(dst, x.BooleanValue), nil
	case *pb.Value_StringValue:
		return jsjson.AppendString(dst, x.StringValue), nil
	case *pb.Value_IntegerValue:
		if i := x.IntegerValue; i < -maxSafe || i > maxSafe {
			return tagged(dst, "$int", strconv.FormatInt(i, 10)), nil
		}
		return strconv.AppendInt(dst, x.IntegerValue, 10), nil
	case *pb.Value_DoubleValue:
		return appendDouble(dst, x.DoubleValue), nil
	case *pb.Value_TimestampValue:
		if err := x.TimestampValue.CheckValid(); err != nil {
			return dst, err
		}
		return tagged(dst, "$timestamp", x.TimestampValue.AsTime().Format(time.RFC3339Nano)), nil
	case *pb.Value_BytesValue:
		return tagged(dst, "$bytes", base64.StdEncoding.EncodeToString(x.BytesValue)), nil
	case *pb.Value_ReferenceValue:
		return tagged(dst, "$reference", relative(c.root, x.ReferenceValue)), nil
	case *pb.Value_GeoPointValue:
		dst = appendDouble(append(dst, `{"$geoPoint":{"latitude":`...), x.GeoPointValue.GetLatitude())
		dst = appendDouble(append(dst, `,"longitude":`...), x.GeoPointValue.GetLongitude())
		return append(dst, "}}"...), nil
	case *pb.Value_ArrayValue:
		return c.appendArray(dst, x.ArrayValue.GetValues())
	case *pb.Value_MapValue:
		return c.appendMap(dst, x.MapValue.GetFields())
	default:
		return dst, fmt.Errorf("no JSON is known for a value of type %T", x)
	}
}

func (c codec) appendArray(dst []byte, list []*pb.Value) ([]byte, error) {
	var err error
	dst = append(dst, '[')
	for i, e := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		if dst, err = c.append(dst, e); err != nil {
			return dst, err
		}
	}
	return append(dst, ']'), nil
}

func (c codec) appendMap(dst []byte, m map[string]*pb.Value) ([]byte, error) {
	var err error
	if list, ok := vectorOf(m); ok {
		dst, err = c.appendArray(append(dst, `{"$vector":`...), list)
		return append(dst, '}'), err
	}
	keys := slices.Sorted(maps.Keys(m))
	escape := len(keys) == 1 && strings.HasPrefix(keys[0], "$")
	if escape {
		dst = append(dst, `{"$map":`...)
	}
	dst = append(dst, '{')
	for i, k := range keys {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(jsjson.AppendString(dst, k), ':')
		if dst, err = c.append(dst, m[k]); err != nil {
			return dst, err
		}
	}
	if escape {
		dst = append(dst, '}')
	}
	return append(dst, '}'), nil
}

// A vector is kept as a map of this form.
const (
	typeKey    = "__type__"
	vectorType = "__vector__"
	vectorKey  = "value"
)

// vectorOf returns the numbers of a map that is a vector.
func vectorOf(m map[string]*pb.Value) ([]*pb.Value, bool) {
	list, ok := m[vectorKey].GetValueType().(*pb.Value_ArrayValue)
	if !ok || len(m) != 2 || m[typeKey].GetStringValue() != vectorType {
		return nil, false
	}
	for _, e := range list.ArrayValue.GetValues() {
		if _, ok := e.GetValueType().(*pb.Value_DoubleValue); !ok {
			return nil, false
		}
	}
	return list.ArrayValue.GetValues(), true
}

func tagged(dst []byte, tag, text string) []byte {
	dst = append(jsjson.AppendString(append(dst, '{'), tag), ':')
	return append(jsjson.AppendString(dst, text), '}')
}

func appendDouble(dst []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return tagged(dst, "$double", "NaN")
	case math.IsInf(f, 0):
		return tagged(dst, "$double", map[bool]string{true: "Infinity", false: "-Infinity"}[f > 0])
	case math.Abs(f) > maxSafe:
		return tagged(dst, "$double", strconv.FormatFloat(f, 'g', -1, 64))
	}
	text := strconv.FormatFloat(f, 'g', -1, 64)
	if !strings.ContainsAny(text, ".e") {
		text += ".0"
	}
	return append(dst, text...)
}

// The kinds of value.
func nullValue() *pb.Value { return &pb.Value{ValueType: &pb.Value_NullValue{}} }

func boolValue(b bool) *pb.Value {
	return &pb.Value{ValueType: &pb.Value_BooleanValue{BooleanValue: b}}
}

func stringValue(s string) *pb.Value {
	return &pb.Value{ValueType: &pb.Value_StringValue{StringValue: s}}
}

func intValue(i int64) *pb.Value {
	return &pb.Value{ValueType: &pb.Value_IntegerValue{IntegerValue: i}}
}

func doubleValue(f float64) *pb.Value {
	return &pb.Value{ValueType: &pb.Value_DoubleValue{DoubleValue: f}}
}

func referenceValue(n string) *pb.Value {
	return &pb.Value{ValueType: &pb.Value_ReferenceValue{ReferenceValue: n}}
}

func bytesValue(b []byte) *pb.Value { return &pb.Value{ValueType: &pb.Value_BytesValue{BytesValue: b}} }

func arrayValue(l []*pb.Value) *pb.Value {
	return &pb.Value{ValueType: &pb.Value_ArrayValue{ArrayValue: &pb.ArrayValue{Values: l}}}
}

func mapValue(m map[string]*pb.Value) *pb.Value {
	return &pb.Value{ValueType: &pb.Value_MapValue{MapValue: &pb.MapValue{Fields: m}}}
}

// valueError is what is wrong with a value, at which place below it.
type valueError struct{ pointer, message string }

func (e *valueError) Error() string { return strings.TrimSpace(e.pointer + " " + e.message) }

func wrong(at, format string, args ...any) *valueError {
	return &valueError{at, fmt.Sprintf(format, args...)}
}

// decode reads a value of an argument, as jsjson.Parse returns it.
func (c codec) decode(v any) (*pb.Value, *valueError) { return c.at("", v, 0) }

func (c codec) at(at string, v any, depth int) (*pb.Value, *valueError) {
	if depth > maxDepth {
		return nil, wrong(at, "is nested more deeply than the %d levels of Firestore", maxDepth)
	}
	switch v := v.(type) {
	case nil:
		return nullValue(), nil
	case bool:
		return boolValue(v), nil
	case string:
		if !utf8.ValidString(v) {
			return nil, wrong(at, "has half of a surrogate pair")
		}
		return stringValue(v), nil
	case float64:
		return number(at, v)
	case []any:
		list := make([]*pb.Value, len(v))
		for i, e := range v {
			var err *valueError
			if list[i], err = c.at(fmt.Sprintf("%s/%d", at, i), e, depth+1); err != nil {
				return nil, err
			}
		}
		return arrayValue(list), nil
	case map[string]any:
		for k, e := range v {
			if strings.HasPrefix(k, "$") && len(v) == 1 {
				return c.tag(at+pointerTo(k), k, e, depth)
			}
		}
		return c.fields(at, v, depth)
	default:
		return nil, wrong(at, "is no JSON value")
	}
}

func (c codec) fields(at string, v map[string]any, depth int) (*pb.Value, *valueError) {
	m := make(map[string]*pb.Value, len(v))
	for _, k := range slices.Sorted(maps.Keys(v)) {
		if k == "" || !utf8.ValidString(k) {
			return nil, wrong(at, "has a key that is empty or has half of a surrogate pair")
		}
		e, err := c.at(at+pointerTo(k), v[k], depth+1)
		if err != nil {
			return nil, err
		}
		m[k] = e
	}
	return mapValue(m), nil
}

func number(at string, f float64) (*pb.Value, *valueError) {
	switch {
	case math.Abs(f) > maxSafe:
		return nil, wrong(at, `may have been rounded: write {"$int": "..."} or {"$double": "..."}`)
	case f == math.Trunc(f):
		return intValue(int64(f)), nil
	}
	return doubleValue(f), nil
}

const tags = "$int, $double, $timestamp, $bytes, $reference, $geoPoint, $vector and $map"

// tag reads what JSON has no form for.
func (c codec) tag(at, tag string, v any, depth int) (*pb.Value, *valueError) {
	var value *pb.Value
	var err error
	switch tag {
	case "$map":
		if m, ok := v.(map[string]any); ok {
			return c.fields(at, m, depth)
		}
		err = errors.New("is not an object")
	case "$geoPoint":
		value, err = geoPoint(v)
	case "$vector":
		return vector(at, v)
	case "$double":
		var f float64
		f, err = double(v)
		value = doubleValue(f)
	case "$int", "$timestamp", "$bytes", "$reference":
		value, err = c.text(tag, v)
	default:
		err = fmt.Errorf(`is no type: known are %s; a map with such a key is written {"$map": {...}}`, tags)
	}
	if err != nil {
		return nil, wrong(at, "%v", err)
	}
	return value, nil
}

// text reads the types whose values are strings.
func (c codec) text(tag string, v any) (*pb.Value, error) {
	text, ok := v.(string)
	if !ok || !utf8.ValidString(text) {
		return nil, errors.New("is not a string")
	}
	switch tag {
	case "$int":
		i, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, errors.New("is not an integer of 64 bits")
		}
		return intValue(i), nil
	case "$timestamp":
		t, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			return nil, errors.New("is not a time like 2026-01-02T03:04:05.000006Z")
		}
		stamp := timestamppb.New(t)
		if stamp.CheckValid() != nil {
			return nil, errors.New("is not in the years 1 to 9999")
		}
		return &pb.Value{ValueType: &pb.Value_TimestampValue{TimestampValue: stamp}}, nil
	case "$bytes":
		b, err := base64.StdEncoding.Strict().DecodeString(text)
		if err != nil {
			return nil, errors.New("is not base64")
		}
		return bytesValue(b), nil
	default: // $reference
		name, err := reference(c.root, text)
		return referenceValue(name), err
	}
}

// double reads a number, or a string with one.
func double(v any) (float64, error) {
	switch v := v.(type) {
	case float64:
		return v, nil
	case string:
		switch v {
		case "NaN":
			return math.NaN(), nil
		case "Infinity":
			return math.Inf(1), nil
		case "-Infinity":
			return math.Inf(-1), nil
		}
		if strings.ContainsAny(v, "xXpP_iInN") { // what Go knows and JSON does not
			break
		}
		if f, err := strconv.ParseFloat(v, 64); err == nil {
			return f, nil
		}
	}
	return 0, errors.New("is neither a number nor a string with one, NaN, Infinity or -Infinity")
}

func geoPoint(v any) (*pb.Value, error) {
	m, _ := v.(map[string]any)
	latitude, ok1 := m["latitude"].(float64)
	longitude, ok2 := m["longitude"].(float64)
	if !ok1 || !ok2 || len(m) != 2 {
		return nil, errors.New(`is not {"latitude": number, "longitude": number}`)
	}
	if math.Abs(latitude) > 90 || math.Abs(longitude) > 180 {
		return nil, errors.New("is not on earth")
	}
	point := &latlng.LatLng{Latitude: latitude, Longitude: longitude}
	return &pb.Value{ValueType: &pb.Value_GeoPointValue{GeoPointValue: point}}, nil
}

func vector(at string, v any) (*pb.Value, *valueError) {
	list, ok := v.([]any)
	if !ok {
		return nil, wrong(at, "is not an array of numbers")
	}
	numbers := make([]*pb.Value, len(list))
	for i, e := range list {
		if m, ok := e.(map[string]any); ok && len(m) == 1 && m["$double"] != nil {
			e = m["$double"]
		}
		f, err := double(e)
		if err != nil {
			return nil, wrong(fmt.Sprintf("%s/%d", at, i), "%v", err)
		}
		numbers[i] = doubleValue(f)
	}
	return mapValue(map[string]*pb.Value{typeKey: stringValue(vectorType), vectorKey: arrayValue(numbers)}), nil
}

// pointerTo is one step of a JSON pointer.
func pointerTo(token string) string {
	return "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(jsjson.Text(token))
}
