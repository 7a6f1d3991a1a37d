package firestore

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// server is a Firestore in memory, behind the published protocol. It knows what queries
// need: filters, orders, cursors, offsets, projections, groups. It records every call.
type server struct {
	pb.UnimplementedFirestoreServer
	addr string

	mu    sync.Mutex
	docs  map[string]*pb.Document
	calls []string        // methods, as on the wire
	last  proto.Message   // request
	fail  error           // what every call ends with, if not nil
	after int             // with fail: after so many documents
	hang  <-chan struct{} // a query waits for it after its first document
}

func newServer(t testing.TB) *server {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{addr: listener.Addr().String(), docs: map[string]*pb.Document{}}
	g := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		s.record(info.FullMethod, req)
		return handle(ctx, req)
	}), grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
		s.record(info.FullMethod, nil)
		return handle(srv, stream)
	}))
	pb.RegisterFirestoreServer(g, s)
	go g.Serve(listener)
	t.Cleanup(g.Stop)
	return s
}

func (s *server) record(method string, req any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, method)
	if m, ok := req.(proto.Message); ok {
		s.last = m
	}
}

func (s *server) set(m proto.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = m
}

// methods are the different calls that were made.
func (s *server) methods() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Compact(slices.Sorted(slices.Values(s.calls)))
}

const (
	testRoot = "projects/shop/databases/(default)/documents"
	when     = "2026-01-02T03:04:05.000006Z"
)

func (s *server) put(path string, fields map[string]*pb.Value) {
	at, err := time.Parse(time.RFC3339Nano, when)
	if err != nil {
		panic(err)
	}
	stamp := timestamppb.New(at)
	s.docs[testRoot+"/"+path] = &pb.Document{Name: testRoot + "/" + path, Fields: fields, CreateTime: stamp, UpdateTime: stamp}
}

func (s *server) failed(sent int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil && sent >= s.after {
		return s.fail
	}
	return nil
}

func (s *server) RunQuery(req *pb.RunQueryRequest, stream pb.Firestore_RunQueryServer) error {
	s.set(req)
	if req.GetConsistencySelector() != nil {
		return status.Error(codes.InvalidArgument, "a transaction was asked for")
	}
	if err := stream.Send(&pb.RunQueryResponse{SkippedResults: 1}); err != nil { // progress
		return err
	}
	for i, d := range s.find(req.GetParent(), req.GetStructuredQuery()) {
		if err := s.failed(i); err != nil {
			return err
		}
		if i == 1 && s.hang != nil {
			<-s.hang
		}
		if err := stream.Send(&pb.RunQueryResponse{Document: d, ReadTime: d.GetUpdateTime()}); err != nil {
			return err
		}
	}
	return s.failed(1 << 30)
}

func (s *server) RunAggregationQuery(req *pb.RunAggregationQueryRequest, stream pb.Firestore_RunAggregationQueryServer) error {
	s.set(req)
	if err := s.failed(0); err != nil {
		return err
	}
	a := req.GetStructuredAggregationQuery()
	n := len(s.find(req.GetParent(), a.GetStructuredQuery()))
	return stream.Send(&pb.RunAggregationQueryResponse{
		Result:   &pb.AggregationResult{AggregateFields: map[string]*pb.Value{a.GetAggregations()[0].GetAlias(): intValue(int64(n))}},
		ReadTime: timestamppb.Now(),
	})
}

func (s *server) BatchGetDocuments(req *pb.BatchGetDocumentsRequest, stream pb.Firestore_BatchGetDocumentsServer) error {
	s.set(req)
	if err := s.failed(0); err != nil {
		return err
	}
	for _, name := range req.GetDocuments() {
		r := &pb.BatchGetDocumentsResponse{ReadTime: timestamppb.Now(), Result: &pb.BatchGetDocumentsResponse_Missing{Missing: name}}
		if d := s.docs[name]; d != nil {
			r.Result = &pb.BatchGetDocumentsResponse_Found{Found: proto.CloneOf(d)}
		}
		if err := stream.Send(r); err != nil {
			return err
		}
	}
	return nil
}

func (s *server) ListCollectionIds(_ context.Context, req *pb.ListCollectionIdsRequest) (*pb.ListCollectionIdsResponse, error) {
	if err := s.failed(0); err != nil {
		return nil, err
	}
	ids := map[string]bool{}
	for name := range s.docs {
		if rest, ok := strings.CutPrefix(name, req.GetParent()+"/"); ok {
			id, _, _ := strings.Cut(rest, "/")
			ids[id] = true
		}
	}
	var all []string
	for id := range ids {
		if id > req.GetPageToken() {
			all = append(all, id)
		}
	}
	slices.Sort(all)
	r := &pb.ListCollectionIdsResponse{CollectionIds: all}
	if n := min(int(req.GetPageSize()), 2); len(all) > n { // small pages of its own
		r.CollectionIds, r.NextPageToken = all[:n], all[n-1]
	}
	return r, nil
}

// find is what a query gives.
func (s *server) find(parent string, q *pb.StructuredQuery) []*pb.Document {
	from := q.GetFrom()[0]
	var found []*pb.Document
	for name, d := range s.docs {
		collection, _ := name[:strings.LastIndexByte(name, '/')], 0
		direct := collection == parent+"/"+from.GetCollectionId()
		below := from.GetAllDescendants() && strings.HasPrefix(collection, parent+"/") && strings.HasSuffix(collection, "/"+from.GetCollectionId())
		if (direct || below) && matches(d, q.GetWhere()) && hasAll(d, q.GetOrderBy()) {
			found = append(found, d)
		}
	}
	orders := q.GetOrderBy()
	slices.SortFunc(found, func(a, b *pb.Document) int {
		for _, o := range orders {
			if c := directed(compare(fieldOfDoc(a, o.GetField()), fieldOfDoc(b, o.GetField())), o); c != 0 {
				return c
			}
		}
		c := strings.Compare(a.GetName(), b.GetName())
		if len(orders) > 0 {
			return directed(c, orders[len(orders)-1])
		}
		return c
	})
	found = slices.DeleteFunc(found, func(d *pb.Document) bool {
		if c := q.GetStartAt(); c != nil {
			if at := against(d, c, orders); at < 0 || at == 0 && !c.GetBefore() {
				return true
			}
		}
		if c := q.GetEndAt(); c != nil {
			if at := against(d, c, orders); at > 0 || at == 0 && c.GetBefore() {
				return true
			}
		}
		return false
	})
	found = found[min(len(found), int(q.GetOffset())):]
	if q.GetLimit() != nil {
		found = found[:min(len(found), int(q.GetLimit().GetValue()))]
	}
	for i, d := range found {
		found[i] = selected(d, q.GetSelect())
	}
	return found
}

func directed(c int, o *pb.StructuredQuery_Order) int {
	if o.GetDirection() == pb.StructuredQuery_DESCENDING {
		return -c
	}
	return c
}

// against compares a document with a cursor, which may have fewer values than the order.
func against(d *pb.Document, c *pb.Cursor, orders []*pb.StructuredQuery_Order) int {
	for i, v := range c.GetValues() {
		if at := directed(compare(fieldOfDoc(d, orders[i].GetField()), v), orders[i]); at != 0 {
			return at
		}
	}
	return 0
}

func selected(d *pb.Document, p *pb.StructuredQuery_Projection) *pb.Document {
	out := proto.CloneOf(d)
	if p == nil {
		return out
	}
	out.Fields = map[string]*pb.Value{}
	for _, f := range p.GetFields() {
		if path := serverPath(f); path[0] != documentID {
			if v := valueAt(d.GetFields(), path); v != nil {
				put(out.Fields, path, proto.CloneOf(v))
			}
		}
	}
	return out
}

func serverPath(f *pb.StructuredQuery_FieldReference) []string {
	path, err := parseField(f.GetFieldPath())
	if err != nil {
		panic(err)
	}
	return path
}

func fieldOfDoc(d *pb.Document, f *pb.StructuredQuery_FieldReference) *pb.Value {
	path := serverPath(f)
	if path[0] == documentID {
		return referenceValue(d.GetName())
	}
	return valueAt(d.GetFields(), path)
}

func hasAll(d *pb.Document, orders []*pb.StructuredQuery_Order) bool {
	return !slices.ContainsFunc(orders, func(o *pb.StructuredQuery_Order) bool { return fieldOfDoc(d, o.GetField()) == nil })
}

func matches(d *pb.Document, f *pb.StructuredQuery_Filter) bool {
	switch x := f.GetFilterType().(type) {
	case nil:
		return true
	case *pb.StructuredQuery_Filter_CompositeFilter:
		and := x.CompositeFilter.GetOp() == pb.StructuredQuery_CompositeFilter_AND
		for _, f := range x.CompositeFilter.GetFilters() {
			if matches(d, f) != and {
				return !and
			}
		}
		return and
	case *pb.StructuredQuery_Filter_UnaryFilter:
		v := fieldOfDoc(d, x.UnaryFilter.GetField())
		null, nan := rank(v) == 1, rank(v) == 3
		return map[pb.StructuredQuery_UnaryFilter_Operator]bool{
			pb.StructuredQuery_UnaryFilter_IS_NULL: null, pb.StructuredQuery_UnaryFilter_IS_NOT_NULL: v != nil && !null,
			pb.StructuredQuery_UnaryFilter_IS_NAN: nan, pb.StructuredQuery_UnaryFilter_IS_NOT_NAN: v != nil && !nan,
		}[x.UnaryFilter.GetOp()]
	default:
		return holds(fieldOfDoc(d, f.GetFieldFilter().GetField()), f.GetFieldFilter())
	}
}

func holds(v *pb.Value, f *pb.StructuredQuery_FieldFilter) bool {
	if v == nil {
		return false
	}
	list := f.GetValue().GetArrayValue().GetValues()
	is := func(v *pb.Value) func(*pb.Value) bool {
		return func(w *pb.Value) bool { return compare(v, w) == 0 }
	}
	same := rank(v) == rank(f.GetValue())
	switch c := compare(v, f.GetValue()); f.GetOp() {
	case pb.StructuredQuery_FieldFilter_EQUAL:
		return c == 0
	case pb.StructuredQuery_FieldFilter_NOT_EQUAL:
		return c != 0 && rank(v) != 1
	case pb.StructuredQuery_FieldFilter_LESS_THAN:
		return same && c < 0
	case pb.StructuredQuery_FieldFilter_LESS_THAN_OR_EQUAL:
		return same && c <= 0
	case pb.StructuredQuery_FieldFilter_GREATER_THAN:
		return same && c > 0
	case pb.StructuredQuery_FieldFilter_GREATER_THAN_OR_EQUAL:
		return same && c >= 0
	case pb.StructuredQuery_FieldFilter_IN:
		return slices.ContainsFunc(list, is(v))
	case pb.StructuredQuery_FieldFilter_NOT_IN:
		return !slices.ContainsFunc(list, is(v))
	case pb.StructuredQuery_FieldFilter_ARRAY_CONTAINS:
		return slices.ContainsFunc(v.GetArrayValue().GetValues(), is(f.GetValue()))
	case pb.StructuredQuery_FieldFilter_ARRAY_CONTAINS_ANY:
		return slices.ContainsFunc(v.GetArrayValue().GetValues(), func(e *pb.Value) bool { return slices.ContainsFunc(list, is(e)) })
	}
	panic(fmt.Sprint("operator ", f.GetOp()))
}

// rank is the order of types.
func rank(v *pb.Value) int {
	switch x := v.GetValueType().(type) {
	case *pb.Value_NullValue:
		return 1
	case *pb.Value_BooleanValue:
		return 2
	case *pb.Value_DoubleValue:
		if x.DoubleValue != x.DoubleValue {
			return 3
		}
		return 4
	case *pb.Value_IntegerValue:
		return 4
	case *pb.Value_TimestampValue:
		return 5
	case *pb.Value_StringValue:
		return 6
	case *pb.Value_BytesValue:
		return 7
	case *pb.Value_ReferenceValue:
		return 8
	case *pb.Value_GeoPointValue:
		return 9
	case *pb.Value_ArrayValue:
		return 10
	case *pb.Value_MapValue:
		return 11
	}
	return 0
}

func compare(a, b *pb.Value) int {
	if c := cmp.Compare(rank(a), rank(b)); c != 0 {
		return c
	}
	number := func(v *pb.Value) float64 {
		if d, ok := v.GetValueType().(*pb.Value_DoubleValue); ok {
			return d.DoubleValue
		}
		return float64(v.GetIntegerValue())
	}
	switch rank(a) {
	case 2:
		return cmp.Compare(fmt.Sprint(a.GetBooleanValue()), fmt.Sprint(b.GetBooleanValue()))
	case 4:
		if c := cmp.Compare(number(a), number(b)); c != 0 {
			return c
		}
		return cmp.Compare(a.GetIntegerValue(), b.GetIntegerValue())
	case 5:
		return a.GetTimestampValue().AsTime().Compare(b.GetTimestampValue().AsTime())
	case 6:
		return strings.Compare(a.GetStringValue(), b.GetStringValue())
	case 8:
		return strings.Compare(a.GetReferenceValue(), b.GetReferenceValue())
	case 1, 3:
		return 0
	default:
		left, err := codec{testRoot}.append(nil, a)
		right, err2 := codec{testRoot}.append(nil, b)
		if err != nil || err2 != nil {
			panic(err)
		}
		return bytes.Compare(left, right)
	}
}
