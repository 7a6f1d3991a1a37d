package firestore

import (
	"context"
	"go/ast"
	"go/types"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	apiv1 "cloud.google.com/go/firestore/apiv1"
	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"golang.org/x/tools/go/packages"
)

// usable is everything of the client and of the transport that this package may name.
// Nothing of it writes to a database.
var usable = map[string][]string{
	"cloud.google.com/go/firestore/apiv1": {"NewClient", "StringIterator", "StringIterator.Next", "Client.Close"},
	"google.golang.org/grpc": {
		"NewClient", "WithTransportCredentials", "WithPerRPCCredentials", "WithChainUnaryInterceptor", "WithChainStreamInterceptor",
		"ClientConn", "CallOption", "ClientStream", "StreamDesc", "Streamer", "UnaryInvoker",
	},
}

// writing are names of the protocol that have to do with writes, and with transactions,
// in which a write might hide.
var writing = regexp.MustCompile(`(?i)write|commit|create[A-Z].*Request|update[A-Z].*Request|delete|transaction|rollback|transform|listen|consistency|NewFirestoreClient|_ServiceDesc|pipeline`)

// TestOnlyReadsAreReachable goes through every name that this package uses.
func TestOnlyReadsAreReachable(t *testing.T) {
	list, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedSyntax | packages.NeedTypes | packages.NeedTypesInfo | packages.NeedImports,
	}, ".")
	if err != nil || len(list) != 1 || len(list[0].Errors) > 0 || len(list[0].Syntax) < 8 {
		t.Fatalf("cannot load the package: %v, %v", err, list)
	}
	p := list[0]
	seen := map[string]bool{}
	for id, o := range p.TypesInfo.Uses {
		if o.Pkg() == nil {
			continue
		}
		name := nameOf(o)
		switch path := o.Pkg().Path(); {
		case usable[path] != nil:
			seen[path+"."+name] = true
			if !slices.Contains(usable[path], name) {
				t.Errorf("%v: %s.%s is not among what may be used", p.Fset.Position(id.Pos()), path, name)
			}
		case path == "cloud.google.com/go/firestore/apiv1/firestorepb":
			seen[path] = true
			if writing.MatchString(name) {
				t.Errorf("%v: %s has to do with writes", p.Fset.Position(id.Pos()), name)
			}
		case strings.HasPrefix(path, "cloud.google.com/"):
			t.Errorf("%v: %s is another client", p.Fset.Position(id.Pos()), path)
		}
	}
	for path, names := range usable {
		for _, name := range names {
			if !seen[path+"."+name] {
				t.Errorf("%s.%s may be used, and is not: take it off the list", path, name)
			}
		}
	}
	if !seen["cloud.google.com/go/firestore/apiv1/firestorepb"] {
		t.Error("the protocol is not used: is this test looking at the right thing?")
	}
	// The client is never kept as more than a reader: no assertion leads back.
	for _, file := range p.Syntax {
		ast.Inspect(file, func(n ast.Node) bool {
			a, ok := n.(*ast.TypeAssertExpr)
			if ok && strings.Contains(types.TypeString(p.TypesInfo.TypeOf(a.X), nil), "reader") {
				t.Errorf("%v: a reader is made more of", p.Fset.Position(a.Pos()))
			}
			return true
		})
	}
	for _, m := range reads {
		if writing.MatchString(m) {
			t.Errorf("%s may reach the wire", m)
		}
	}
	if n := reflect.TypeFor[reader]().NumMethod(); n != len(reads) {
		t.Errorf("a reader has %d methods, and %d calls may reach the wire", n, len(reads))
	}
}

// nameOf is a name with that of its receiver.
func nameOf(o types.Object) string {
	f, ok := o.(*types.Func)
	if !ok || f.Signature().Recv() == nil {
		return o.Name()
	}
	recv := types.TypeString(f.Signature().Recv().Type(), func(*types.Package) string { return "" })
	return strings.TrimLeft(recv, "*.") + "." + o.Name()
}

// writeAll tries everything that is no read, with the client below a reader.
func writeAll(ctx context.Context, r reader) map[string]error {
	c, ok := r.(*apiv1.Client)
	if !ok {
		return nil
	}
	database, doc := "projects/shop/databases/(default)", &pb.Document{Name: testRoot + "/users/u1"}
	writes := []*pb.Write{{Operation: &pb.Write_Delete{Delete: doc.GetName()}}}
	tried := map[string]error{}
	_, tried["CreateDocument"] = c.CreateDocument(ctx, &pb.CreateDocumentRequest{Parent: testRoot, CollectionId: "users", Document: doc})
	_, tried["UpdateDocument"] = c.UpdateDocument(ctx, &pb.UpdateDocumentRequest{Document: doc})
	tried["DeleteDocument"] = c.DeleteDocument(ctx, &pb.DeleteDocumentRequest{Name: doc.GetName()})
	_, tried["Commit"] = c.Commit(ctx, &pb.CommitRequest{Database: database, Writes: writes})
	_, tried["BatchWrite"] = c.BatchWrite(ctx, &pb.BatchWriteRequest{Database: database, Writes: writes})
	_, tried["BeginTransaction"] = c.BeginTransaction(ctx, &pb.BeginTransactionRequest{Database: database})
	tried["Rollback"] = c.Rollback(ctx, &pb.RollbackRequest{Database: database})
	_, tried["Write"] = c.Write(ctx)
	_, tried["Listen"] = c.Listen(ctx)
	_, tried["ExecutePipeline"] = c.ExecutePipeline(ctx, &pb.ExecutePipelineRequest{Database: database})
	return tried
}
