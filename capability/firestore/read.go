package firestore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/api/iterator"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/engine"
)

// What cut a result short, of the runner's maxima.
const (
	byRows  = "rows"
	byBytes = "bytes"
	byTime  = "time"
)

// Document is one document, in JSON.
type Document struct {
	ID         string          `json:"id"`
	Path       string          `json:"path"` // below the database's root
	CreateTime string          `json:"createTime"`
	UpdateTime string          `json:"updateTime"`
	Data       json.RawMessage `json:"data"` // without masked fields
}

// Page is what firestore.query gives.
type Page struct {
	Documents     []json.RawMessage `json:"documents"`     // each a Document
	NextPageToken *string           `json:"nextPageToken"` // null: there is no more
	Truncated     *string           `json:"truncated"`     // rows, bytes or time: the maximum that cut it short; null: none did
	ReadTime      string            `json:"readTime"`
}

// planQuery reads the arguments of firestore.query.
func planQuery(args map[string]any, c Config) (work, error) {
	d := &decoder{codec: codec{c.root()}}
	q := d.query(c, args)
	if err := d.err("firestore.query"); err != nil {
		return work{}, err
	}
	return work{"query collection=" + q.collection, func(ctx context.Context, r reading) (any, int, error) {
		page, err := r.page(ctx, q)
		return page, len(page.Documents), err
	}}, nil
}

// page reads one page. It asks for one document more than it gives, to know whether
// there is more.
func (r reading) page(ctx context.Context, q query) (Page, error) {
	orders := q.ordered()
	if q.token != "" {
		values, err := opened(r.pageKey, r.binding, q.token)
		if err != nil {
			return Page{}, engine.Refused("bad_page_token", "cannot go on from pageToken: %w", err).
				WithFix("give nextPageToken of the page before, with the same arguments, or begin anew without it")
		}
		orders, q.start, q.offset = q.full(), &pb.Cursor{Values: values}, 0
	}
	limit, capped := q.limit, false
	if limit == 0 {
		limit = min(defaultLimit, r.Rows)
	}
	if limit > r.Rows {
		limit, capped = r.Rows, true
	}
	request := r.structured(q, orders)
	request.Limit = wrapperspb.Int32(int32(limit + 1))
	request.Offset = int32(q.offset)
	if q.projected {
		request.Select = projection(q)
	}
	stream, err := r.RunQuery(ctx, &pb.RunQueryRequest{
		Parent: r.parent(q), QueryType: &pb.RunQueryRequest_StructuredQuery{StructuredQuery: request},
	}, again())
	if err != nil {
		return Page{}, err
	}
	return r.collect(ctx, stream, q, limit, capped)
}

// structured is the part of a query that counting has too.
func (r reading) structured(q query, orders []order) *pb.StructuredQuery {
	s := &pb.StructuredQuery{
		From:  []*pb.StructuredQuery_CollectionSelector{{CollectionId: q.id, AllDescendants: q.group}},
		Where: q.where, StartAt: q.start, EndAt: q.end,
	}
	for _, o := range orders {
		direction := pb.StructuredQuery_ASCENDING
		if o.desc {
			direction = pb.StructuredQuery_DESCENDING
		}
		s.OrderBy = append(s.OrderBy, &pb.StructuredQuery_Order{Field: fieldOf(o.path), Direction: direction})
	}
	return s
}

// parent is the name of the document above a collection, or the root.
func (r reading) parent(q query) string {
	if n := len(q.collection) - len(q.id); n > 0 {
		return r.codec.root + "/" + q.collection[:n-1]
	}
	return r.codec.root
}

// projection asks for what is selected, and for what the next page needs.
func projection(q query) *pb.StructuredQuery_Projection {
	p := &pb.StructuredQuery_Projection{}
	for _, path := range q.selected {
		p.Fields = append(p.Fields, fieldOf(path))
	}
	for _, o := range q.full() {
		if !slices.ContainsFunc(q.selected, func(path []string) bool { return slices.Equal(path, o.path) }) {
			p.Fields = append(p.Fields, fieldOf(o.path))
		}
	}
	return p
}

// collect reads the documents of a page until something ends it.
func (r reading) collect(ctx context.Context, stream pb.Firestore_RunQueryClient, q query, limit int, capped bool) (Page, error) {
	page := Page{Documents: []json.RawMessage{}}
	var last *pb.Document // of the page
	size := 0
	end := func(why string) (Page, error) {
		if why != "" {
			page.Truncated = &why
		}
		values, err := place(q.full(), last)
		if err != nil {
			return page, err
		}
		token, err := sealed(r.pageKey, r.binding, values)
		page.NextPageToken = &token
		return page, err
	}
	for {
		response, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return page, nil
		}
		if err != nil {
			if last != nil && ranOut(ctx, err) {
				return end(byTime)
			}
			return page, err
		}
		if t := response.GetReadTime(); t != nil {
			page.ReadTime = stamp(t)
		}
		doc := response.GetDocument()
		if doc == nil {
			continue // it says how far it is
		}
		if len(page.Documents) == limit {
			if capped {
				return end(byRows)
			}
			return end("")
		}
		text, err := r.document(doc, q.selected, q.projected)
		if err != nil {
			return page, err
		}
		if size += len(text); size > r.Bytes {
			if last != nil {
				return end(byBytes)
			}
			return page, r.tooLarge(doc.GetName(), len(text))
		}
		page.Documents = append(page.Documents, text)
		last = doc
	}
}

func (r reading) tooLarge(name string, size int) error {
	return engine.Refused("too_large", "cannot return document=%s: it is %d bytes of JSON, and the maximum is %d", relative(r.codec.root, name), size, r.Bytes).
		WithFix("select fewer fields, or have firestore.limits.bytes of the environment raised")
}

// stamp is a time as text, "" for none.
func stamp(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().Format(time.RFC3339Nano)
}

// document writes a document, as far as it may be seen and is wanted. What the place
// of the next page needs stays in doc.
func (r reading) document(doc *pb.Document, selected [][]string, projected bool) (json.RawMessage, error) {
	fields := doc.GetFields()
	path := relative(r.codec.root, doc.GetName())
	ids, err := segments(path)
	if err != nil || len(ids) < 2 {
		return nil, fmt.Errorf("internal error: a document is called %q", doc.GetName())
	}
	remove(r.masked(ids[len(ids)-2]), fields)
	if projected {
		fields = project(selected, fields)
	}
	data, err := r.append(nil, mapValue(fields))
	if err != nil {
		return nil, fmt.Errorf("cannot read document=%s: %w", path, err)
	}
	text, err := capability.EncodeOutput(Document{
		ID: ids[len(ids)-1], Path: path, CreateTime: stamp(doc.GetCreateTime()), UpdateTime: stamp(doc.GetUpdateTime()), Data: data,
	})
	return bytes.TrimSpace(text), err
}

// Got is what firestore.get gives.
type Got struct {
	Exists   bool            `json:"exists"`
	Document json.RawMessage `json:"document"` // a Document, or null
	ReadTime string          `json:"readTime"`
}

// planGet reads the arguments of firestore.get.
func planGet(args map[string]any, c Config) (work, error) {
	d := &decoder{codec: codec{c.root()}}
	q := d.collection(c, args)
	id, _ := args["id"].(string)
	if ids, err := segments(id); err != nil || len(ids) != 1 {
		d.bad("/id", "is not the id of a document")
	}
	q.selected, q.projected = d.selection(args)
	if err := d.err("firestore.get"); err != nil {
		return work{}, err
	}
	path := q.collection + "/" + id
	return work{"get document=" + path, func(ctx context.Context, r reading) (any, int, error) {
		got, err := r.get(ctx, path, q)
		if got.Exists {
			return got, 1, err
		}
		return got, 0, err
	}}, nil
}

func (r reading) get(ctx context.Context, path string, q query) (Got, error) {
	request := &pb.BatchGetDocumentsRequest{Database: r.database(), Documents: []string{r.codec.root + "/" + path}}
	if q.projected {
		request.Mask = &pb.DocumentMask{}
		for _, path := range q.selected {
			request.Mask.FieldPaths = append(request.Mask.FieldPaths, quoted(path))
		}
	}
	stream, err := r.BatchGetDocuments(ctx, request, again())
	if err != nil {
		return Got{}, err
	}
	response, err := stream.Recv()
	if err != nil {
		return Got{}, err
	}
	got := Got{ReadTime: stamp(response.GetReadTime())}
	doc := response.GetFound()
	if doc == nil {
		return got, nil
	}
	if got.Document, err = r.document(doc, q.selected, q.projected); err != nil {
		return got, err
	}
	if len(got.Document) > r.Bytes {
		return Got{}, r.tooLarge(doc.GetName(), len(got.Document))
	}
	got.Exists = true
	return got, nil
}

// Counted is what firestore.count gives.
type Counted struct {
	Count    int64  `json:"count"`
	ReadTime string `json:"readTime"`
}

// planCount reads the arguments of firestore.count.
func planCount(args map[string]any, c Config) (work, error) {
	d := &decoder{codec: codec{c.root()}}
	q := d.query(c, args)
	if err := d.err("firestore.count"); err != nil {
		return work{}, err
	}
	return work{"count collection=" + q.collection, func(ctx context.Context, r reading) (any, int, error) {
		counted, err := r.count(ctx, q)
		return counted, 1, err
	}}, nil
}

const countAlias = "count"

func (r reading) count(ctx context.Context, q query) (Counted, error) {
	stream, err := r.RunAggregationQuery(ctx, &pb.RunAggregationQueryRequest{
		Parent: r.parent(q),
		QueryType: &pb.RunAggregationQueryRequest_StructuredAggregationQuery{StructuredAggregationQuery: &pb.StructuredAggregationQuery{
			QueryType: &pb.StructuredAggregationQuery_StructuredQuery{StructuredQuery: r.structured(q, nil)},
			Aggregations: []*pb.StructuredAggregationQuery_Aggregation{{
				Alias: countAlias, Operator: &pb.StructuredAggregationQuery_Aggregation_Count_{Count: &pb.StructuredAggregationQuery_Aggregation_Count{}},
			}},
		}},
	}, again())
	if err != nil {
		return Counted{}, err
	}
	for {
		response, err := stream.Recv()
		if err != nil {
			return Counted{}, err
		}
		if n, ok := response.GetResult().GetAggregateFields()[countAlias].GetValueType().(*pb.Value_IntegerValue); ok {
			return Counted{n.IntegerValue, stamp(response.GetReadTime())}, nil
		}
	}
}

// Collections is what firestore.listCollections gives.
type Collections struct {
	Collections []string `json:"collections"`
	Truncated   *string  `json:"truncated"` // as in Page
}

// planList reads the arguments of firestore.listCollections.
func planList(args map[string]any, c Config) (work, error) {
	d := &decoder{codec: codec{c.root()}}
	document, below := args["document"].(string)
	if err := documentPath(document); below && err != nil {
		d.bad("/document", "%v", err)
	}
	if err := d.err("firestore.listCollections"); err != nil {
		return work{}, err
	}
	what, parent := "list collections", c.root()
	if below {
		what, parent = "list collections of document="+document, parent+"/"+document
	}
	return work{what, func(ctx context.Context, r reading) (any, int, error) {
		list, err := r.list(ctx, parent)
		return list, len(list.Collections), err
	}}, nil
}

func (r reading) list(ctx context.Context, parent string) (Collections, error) {
	list := Collections{Collections: []string{}}
	cut := func(why string) (Collections, error) {
		list.Truncated = &why
		return list, nil
	}
	size := 0
	for it := r.ListCollectionIds(ctx, &pb.ListCollectionIdsRequest{Parent: parent, PageSize: int32(min(r.Rows+1, 300))}, again()); ; {
		id, err := it.Next()
		switch {
		case errors.Is(err, iterator.Done):
			return list, nil
		case err != nil && len(list.Collections) > 0 && ranOut(ctx, err):
			return cut(byTime)
		case err != nil:
			return list, err
		case len(list.Collections) == r.Rows:
			return cut(byRows)
		}
		if size += len(id) + 3; size > r.Bytes {
			return cut(byBytes)
		}
		list.Collections = append(list.Collections, id)
	}
}
