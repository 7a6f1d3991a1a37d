package firestore

import (
	"math"
	"strings"
	"testing"
	"time"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/genproto/googleapis/type/latlng"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/direct-oci/engine/capability/jsjson"
)

var testCodec = codec{testRoot}

func at(text string) *pb.Value {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		panic(err)
	}
	return &pb.Value{ValueType: &pb.Value_TimestampValue{TimestampValue: timestamppb.New(t)}}
}

// TestValues writes values and reads them back.
func TestValues(t *testing.T) {
	tests := []struct {
		value *pb.Value
		want  string
	}{
		{nullValue(), `null`},
		{boolValue(true), `true`},
		{stringValue("a\"\u2028<\x00é"), `"a\"` + "\u2028<" + `\u0000é"`},
		{intValue(-5), `-5`},
		{intValue(maxSafe), `9007199254740991`},
		{intValue(maxSafe + 1), `{"$int":"9007199254740992"}`},
		{intValue(math.MinInt64), `{"$int":"-9223372036854775808"}`},
		{doubleValue(0.5), `0.5`},
		{doubleValue(1e-7), `1e-07`},
		{doubleValue(1e300), `{"$double":"1e+300"}`},
		{doubleValue(math.Inf(1)), `{"$double":"Infinity"}`},
		{doubleValue(math.Inf(-1)), `{"$double":"-Infinity"}`},
		{doubleValue(math.NaN()), `{"$double":"NaN"}`},
		{at("2026-01-02T03:04:05.000006Z"), `{"$timestamp":"2026-01-02T03:04:05.000006Z"}`},
		{at("0001-01-01T00:00:00Z"), `{"$timestamp":"0001-01-01T00:00:00Z"}`},
		{bytesValue([]byte{0, 1, 255}), `{"$bytes":"AAH/"}`},
		{referenceValue(testRoot + "/users/u1"), `{"$reference":"users/u1"}`},
		{referenceValue("projects/other/databases/d/documents/a/b"), `{"$reference":"projects/other/databases/d/documents/a/b"}`},
		{&pb.Value{ValueType: &pb.Value_GeoPointValue{GeoPointValue: &latlng.LatLng{Latitude: -1.5, Longitude: 180}}}, `{"$geoPoint":{"latitude":-1.5,"longitude":180.0}}`},
		{arrayValue([]*pb.Value{intValue(1), mapValue(map[string]*pb.Value{"b": nullValue(), "a": arrayValue(nil)})}), `[1,{"a":[],"b":null}]`},
		{mapValue(map[string]*pb.Value{"$a": intValue(1), "b": intValue(2)}), `{"$a":1,"b":2}`},
		{mapValue(map[string]*pb.Value{"$int": intValue(1)}), `{"$map":{"$int":1}}`},
		{mapValue(map[string]*pb.Value{typeKey: stringValue(vectorType), vectorKey: arrayValue([]*pb.Value{doubleValue(1), doubleValue(0.25)})}), `{"$vector":[1.0,0.25]}`},
		{mapValue(map[string]*pb.Value{"__oid__": stringValue("0123")}), `{"__oid__":"0123"}`},
	}
	for _, tt := range tests {
		text, err := testCodec.append(nil, tt.value)
		if err != nil || string(text) != tt.want {
			t.Errorf("%v = %s, %v; want %s", tt.value, text, err, tt.want)
			continue
		}
		v, err := jsjson.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		back, wrong := testCodec.decode(v)
		if wrong != nil || !proto.Equal(back, tt.value) && !strings.Contains(tt.want, "NaN") {
			t.Errorf("%s read back = %v, %v; want %v", text, back, wrong, tt.value)
		}
	}
	// A whole double comes back as the integer that Firestore takes for the same.
	if text, err := testCodec.append(nil, doubleValue(5)); string(text) != "5.0" || err != nil {
		t.Errorf("5.0 = %s, %v", text, err)
	}
}

func TestValuesThatAreRefused(t *testing.T) {
	deep := strings.Repeat(`{"a":`, maxDepth+1) + "1" + strings.Repeat("}", maxDepth+1)
	for text, want := range map[string]string{
		`9007199254740993`:                       "may have been rounded",
		`[1, {"a": 1e300}]`:                      "/1/a may have been rounded",
		`"\ud800"`:                               "half of a surrogate pair",
		`{"": 1}`:                                "has a key that is empty",
		`{"$date": 1}`:                           "/$date is no type: known are",
		`{"$int": 5}`:                            "/$int is not a string",
		`{"$int": "5.5"}`:                        "is not an integer of 64 bits",
		`{"$int": "9223372036854775808"}`:        "is not an integer of 64 bits",
		`{"$double": "0x1p4"}`:                   "is neither a number nor",
		`{"$double": "nan"}`:                     "is neither a number nor",
		`{"$double": "1e999"}`:                   "is neither a number nor",
		`{"$timestamp": "yesterday"}`:            "is not a time like",
		`{"$timestamp": "0000-01-01T00:00:00Z"}`: "is not in the years",
		`{"$bytes": "A"}`:                        "is not base64",
		`{"$reference": "users"}`:                "is the path of a collection",
		`{"$reference": "users//x"}`:             "has an id that is empty",
		`{"$geoPoint": {"latitude": 91, "longitude": 0}}`: "is not on earth",
		`{"$geoPoint": [1, 2]}`:                           `is not {"latitude"`,
		`{"$vector": [1, "x"]}`:                           "/$vector/1 is neither a number",
		`{"$map": 1}`:                                     "is not an object",
		deep:                                              "nested more deeply",
	} {
		v, err := jsjson.Parse([]byte(text))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if got, wrong := testCodec.decode(v); wrong == nil || !strings.Contains(wrong.Error(), want) {
			t.Errorf("%.60s = %v, %v; want %q", text, got, wrong, want)
		}
	}
}

// FuzzValueInJSON reads any JSON as a value. What is one is written and read back as
// the same.
func FuzzValueInJSON(f *testing.F) {
	for _, s := range []string{
		`null`, `[1, 1.5, "x", {"a": {"$int": "9223372036854775807"}}]`, `{"$map": {"$map": 1}}`, `{"$double": "-Infinity"}`,
		`{"$vector": [1, {"$double": "NaN"}]}`, `{"__type__": "__vector__", "value": [1.5]}`, `{"$geoPoint": {"latitude": 0, "longitude": -0.0}}`,
		`{"$timestamp": "9999-12-31T23:59:59.999999999+14:00"}`, `{"$reference": "projects/p/databases/d/documents/a/b"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := jsjson.Parse(data)
		if err != nil {
			return
		}
		value, wrong := testCodec.decode(v)
		if wrong != nil {
			return
		}
		same(t, value)
	})
}

// FuzzValue takes any value off the wire. It is written, and what is written is read
// back as the same, as far as arguments may hold it.
func FuzzValue(f *testing.F) {
	for _, v := range []*pb.Value{intValue(math.MaxInt64), doubleValue(math.Copysign(0, -1)), mapValue(map[string]*pb.Value{"$x": arrayValue([]*pb.Value{bytesValue(nil)})})} {
		data, err := proto.Marshal(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var v pb.Value
		if proto.Unmarshal(data, &v) != nil {
			return
		}
		text, err := testCodec.append(nil, &v)
		if err != nil {
			return // a kind that no database keeps, or a time that is none
		}
		parsed, err := jsjson.Parse(text)
		if err != nil {
			t.Fatalf("%v is written as %q: %v", &v, text, err)
		}
		if back, wrong := testCodec.decode(parsed); wrong == nil {
			same(t, back)
		}
	})
}

// same writes and reads a value until nothing changes, which is at once: a whole double
// was an integer from the beginning.
func same(t *testing.T, value *pb.Value) {
	t.Helper()
	text, err := testCodec.append(nil, value)
	if err != nil {
		t.Fatalf("%v cannot be written: %v", value, err)
	}
	v, err := jsjson.Parse(text)
	if err != nil {
		t.Fatalf("%v is written as %q: %v", value, text, err)
	}
	back, wrong := testCodec.decode(v)
	if wrong != nil {
		t.Fatalf("%s cannot be read back: %v", text, wrong)
	}
	again, err := testCodec.append(nil, back)
	if err != nil || strings.ReplaceAll(string(again), ".0", "") != strings.ReplaceAll(string(text), ".0", "") {
		t.Fatalf("%s was read back as %s (%v)\n%s", text, again, err, protojson.Format(value))
	}
}
