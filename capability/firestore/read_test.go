package firestore

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestPagesAreBounded wants each maximum to hold, to be told, and to be no dead end.
func TestPagesAreBounded(t *testing.T) {
	b := newBed(t, func(c *Config) { c.Rows, c.Bytes = 3, 1000 })
	for i := range 8 {
		b.put(fmt.Sprintf("c/d%d", i), of(t, `{"n": 1}`))
		b.put(fmt.Sprintf("big/d%d", i), of(t, `{"text": "`+strings.Repeat("x", 300)+`"}`))
	}
	b.put("big/huge", of(t, `{"text": "`+strings.Repeat("x", 2000)+`", "n": 1}`))
	for name, tt := range map[string]struct{ args, documents, truncated string }{
		"none by itself":       {`{"collection": "c"}`, "[c/d0 c/d1 c/d2]", "<nil>"},
		"more than may be":     {`{"collection": "c", "limit": 1000000}`, "[c/d0 c/d1 c/d2]", "rows"},
		"what was asked for":   {`{"collection": "c", "limit": 2}`, "[c/d0 c/d1]", "<nil>"},
		"more bytes than fit":  {`{"collection": "big", "limit": 3}`, "[big/d0 big/d1]", "bytes"},
		"the last, of all few": {`{"collection": "c", "limit": 9, "offset": 6}`, "[c/d6 c/d7]", "<nil>"},
	} {
		page := b.must(t, "firestore.query", tt.args)
		if got := fmt.Sprint(ids(page)); got != tt.documents || fmt.Sprint(page["truncated"]) != tt.truncated {
			t.Errorf("%s: %s, truncated %v; want %s, %s", name, got, page["truncated"], tt.documents, tt.truncated)
		}
		if more := page["nextPageToken"] != nil; more == strings.Contains(name, "few") {
			t.Errorf("%s: next page = %v", name, page["nextPageToken"])
		}
	}
	for _, call := range [][2]string{{"firestore.get", `{"collection": "big", "id": "huge"}`}, {"firestore.query", `{"collection": "big", "where": [{"field": "n", "op": "==", "value": 1}]}`}} {
		if _, err := b.call(t, call[0], call[1]); kind(err) != "request too_large" || !strings.Contains(fix(err), "select") {
			t.Errorf("%s: %v", call, err)
		}
	}
	b.must(t, "firestore.get", `{"collection": "big", "id": "huge", "select": ["n"]}`)
}

// TestTimeIsBounded lets the server stop in the middle.
func TestTimeIsBounded(t *testing.T) {
	b := newBed(t, func(c *Config) { c.Timeout = 2 * time.Second })
	hang := make(chan struct{})
	defer close(hang)
	b.hang = hang
	b.put("c/a", nil)
	b.put("c/b", nil)
	page := b.must(t, "firestore.query", `{"collection": "c"}`)
	if fmt.Sprint(ids(page)) != "[c/a]" || page["truncated"] != "time" || page["nextPageToken"] == nil {
		t.Errorf("page = %v", page)
	}
	b.fail, b.hang = status.Error(codes.DeadlineExceeded, "slow"), nil
	if _, err := b.call(t, "firestore.count", `{"collection": "c"}`); kind(err) != "engine deadline" || !strings.Contains(fix(err), "timeoutSeconds") {
		t.Errorf("error = %v", err)
	}
}

const indexMessage = "The query requires an index. You can create it here: https://console.firebase.google.com/v1/r/project/shop/firestore/indexes?create_composite=Cg5wcm9q"

// TestErrorsSayWhatToDo makes the server fail in every way that it knows.
func TestErrorsSayWhatToDo(t *testing.T) {
	b := newBed(t, nil)
	b.put("c/a", nil)
	tests := []struct {
		code               codes.Code
		message, want, fix string
	}{
		{codes.FailedPrecondition, indexMessage, "request no_index", "https://console.firebase.google.com/v1/r/project/shop/firestore/indexes?create_composite=Cg5wcm9q"},
		{codes.FailedPrecondition, "that is not so", "request bad_query", ""},
		{codes.InvalidArgument, "inequality filter and first sort order must be the same", "request bad_query", ""},
		{codes.PermissionDenied, "Missing or insufficient permissions.", "engine no_permission", "roles/datastore.viewer in project=shop"},
		{codes.Unauthenticated, "invalid credentials", "engine no_credentials", "firestore.credentials"},
		{codes.NotFound, "The database (default) does not exist", "engine no_database", "shop and (default)"},
		{codes.ResourceExhausted, "Quota exceeded.", "engine busy", "later"},
		{codes.Unavailable, "The service is temporarily unavailable.", "engine unavailable", "network"},
		{codes.Internal, "oops", "engine firestore", ""},
	}
	for _, tt := range tests {
		b.fail = status.Error(tt.code, tt.message)
		for call, args := range map[string]string{
			"firestore.query": `{"collection": "c"}`, "firestore.get": `{"collection": "c", "id": "a"}`,
			"firestore.count": `{"collection": "c"}`, "firestore.listCollections": `{}`,
		} {
			began := time.Now()
			_, err := b.call(t, call, args)
			if kind(err) != tt.want || !strings.Contains(err.Error(), tt.message) || !strings.Contains(fix(err), tt.fix) || !strings.Contains(err.Error(), "environment=test") {
				t.Errorf("%v of %s: %v: %v, fix %q", tt.code, call, kind(err), err, fix(err))
			}
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("%v of %s took %v", tt.code, call, took)
			}
		}
	}
	// In the middle of a page it is an error too, and not the end.
	b.fail, b.after = status.Error(codes.Unavailable, "gone"), 1
	b.put("c/b", nil)
	if _, err := b.call(t, "firestore.query", `{"collection": "c"}`); kind(err) != "engine unavailable" {
		t.Errorf("in the middle: %v", err)
	}
}

func TestNobodyListens(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := newBed(t, func(c *Config) { c.Emulator = l.Addr().String() })
	l.Close()
	if _, err := b.call(t, "firestore.get", `{"collection": "c", "id": "x"}`); kind(err) != "engine unavailable" {
		t.Errorf("error = %v", err)
	}
}

func TestCallerGivesUp(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	e := explain(ctx, "query collection=c", "test", Config{}, status.Error(codes.Canceled, "x"))
	if kind(e) != "request cancelled" {
		t.Errorf("error = %v", e)
	}
}

// TestWritesDoNotReachTheWire calls what writes, with the client and the connection that
// reads are made with.
func TestWritesDoNotReachTheWire(t *testing.T) {
	b := newBed(t, nil)
	shop(t, b)
	for call, args := range map[string]string{
		"firestore.query": `{"collection": "users"}`, "firestore.get": `{"collection": "users", "id": "u1"}`,
		"firestore.count": `{"collection": "users"}`, "firestore.listCollections": `{}`,
	} {
		b.must(t, call, args)
	}
	if got, want := strings.Join(b.methods(), " "), service+"BatchGetDocuments "+service+"ListCollectionIds "+service+"RunAggregationQuery "+service+"RunQuery"; got != want {
		t.Errorf("calls on the wire = %s\nwant %s", got, want)
	}
	before := len(b.calls)
	client, done, err := b.db.use(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	tried := writeAll(t.Context(), client)
	if len(tried) < 8 {
		t.Fatalf("only %d writes were tried", len(tried))
	}
	for name, err := range tried {
		if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "is no read") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(b.calls) != before {
		t.Errorf("on the wire: %q", b.calls[before:])
	}
	if b.docs[testRoot+"/users/u1"] == nil {
		t.Error("a document is gone")
	}
}

// TestConnectionsAreShared counts the connections behind calls, rotated credentials and
// a reload.
func TestConnectionsAreShared(t *testing.T) {
	b := newBed(t, nil)
	b.put("c/a", nil)
	use := func(credentials string) (reader, func()) {
		t.Helper()
		client, done, err := b.db.use(t.Context(), []byte(credentials))
		if err != nil {
			t.Fatal(err)
		}
		return client, done
	}
	works := func(client reader) bool {
		stream, err := client.BatchGetDocuments(t.Context(), &pb.BatchGetDocumentsRequest{Database: b.db.database(), Documents: []string{testRoot + "/c/a"}})
		if err == nil {
			_, err = stream.Recv()
		}
		return err == nil
	}
	first, done1 := use("a")
	second, done2 := use("a")
	if first != second {
		t.Error("two calls have not one client")
	}
	rotated, done3 := use("b")
	if rotated == first {
		t.Error("other credentials have the old client")
	}
	done1()
	if !works(second) {
		t.Error("a call under way has lost its client")
	}
	done2()
	if works(first) {
		t.Error("a client with old credentials is open after its last call")
	}
	if err := b.db.Close(); err != nil {
		t.Fatal(err)
	}
	if !works(rotated) {
		t.Error("a call under way at a reload has lost its client")
	}
	done3()
	if works(rotated) {
		t.Error("a client is open after its database was closed")
	}
	late, done4 := use("b") // by a runner that was replaced a moment ago
	if !works(late) {
		t.Error("a late call does not work")
	}
	done4()
	if works(late) || b.db.Close() != nil {
		t.Error("a late call leaves its client open")
	}
	var wait sync.WaitGroup
	for i := range 20 {
		wait.Go(func() {
			client, done, err := b.db.use(t.Context(), []byte{byte(i % 3)})
			if err != nil || !works(client) {
				t.Errorf("side by side: %v", err)
				return
			}
			done()
		})
	}
	wait.Wait()
}

// TestCredentialsAreNeverShown goes the whole way with a key, to a service that refuses
// it, with every log of the libraries switched on.
func TestCredentialsAreNeverShown(t *testing.T) {
	t.Setenv("GOOGLE_SDK_GO_LOGGING_LEVEL", "debug")
	t.Setenv("FIRESTORE_EMULATOR_HOST", "127.0.0.1:1")
	var asked sync.Map
	issuer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Store("token", true)
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"error": "invalid_grant", "error_description": "Invalid JWT Signature."}`)
	}))
	defer issuer.Close()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	private := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	credentials, err := json.Marshal(map[string]string{
		"type": "service_account", "project_id": "shop", "private_key_id": "canary-key-id", "private_key": private,
		"client_email": "reader@shop.test", "token_uri": issuer.URL,
	})
	if err != nil {
		t.Fatal(err)
	}
	var logged bytes.Buffer
	defer slog.SetDefault(slog.Default())
	slog.SetDefault(slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug})))
	stderr := os.Stderr
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	os.Stderr = write
	db := &Database{Config: Config{Project: "shop", Database: "(default)", Rows: 1, Bytes: 1000, Timeout: 5 * time.Second}}
	_, callErr := callOf(t, db, "firestore.get", `{"collection": "c", "id": "x"}`, credentials, func(l string) { logged.WriteString(l) })
	os.Stderr = stderr
	write.Close()
	if _, err := logged.ReadFrom(read); err != nil {
		t.Fatal(err)
	}
	if k := kind(callErr); k != "engine no_credentials" && k != "engine unavailable" && k != "engine deadline" {
		t.Errorf("error = %v", callErr)
	}
	if _, ok := asked.Load("token"); !ok {
		t.Log("nobody asked for a token: the service's name could not be resolved")
	}
	shown := logged.String() + callErr.Error() + fix(callErr)
	for _, secret := range []string{private[40:80], "canary-key-id", "assertion="} {
		if strings.Contains(shown, secret) {
			t.Errorf("%q is shown: %s", secret, shown)
		}
	}
	for _, bad := range []string{"", "{", `{"type": "external_account", "credential_source": {"executable": {"command": "/bin/false canary"}}}`, `{"type": "service_account", "private_key": "canary"}`} {
		if _, err := callOf(t, db, "firestore.get", `{"collection": "c", "id": "x"}`, []byte(bad), func(string) {}); kind(err) != "engine no_credentials" || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
