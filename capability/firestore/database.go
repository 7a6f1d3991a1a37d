package firestore

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	apiv1 "cloud.google.com/go/firestore/apiv1"
	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"github.com/googleapis/gax-go/v2"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Config is the Firestore of one environment.
type Config struct {
	Project  string
	Database string
	Emulator string // HOST:PORT of an emulator; "": the service itself, with credentials
	Masks    []Mask

	// The most that one call reads.
	Rows    int           // documents, or names of collections
	Bytes   int           // of JSON
	Timeout time.Duration // for all of it
}

// The maxima unless something else is said.
const (
	DefaultDatabase = "(default)"
	DefaultRows     = 1000
	DefaultBytes    = 4 << 20
	DefaultTimeout  = 30 * time.Second
)

// Database is a Firestore and the connection to it.
type Database struct {
	Config
	PageKey []byte // secret of the runner, by which it knows its own page tokens

	mu     sync.Mutex
	live   *connection // nil: none yet
	closed bool
}

// reader is all that is used of a client.
//
// SECURITY: no write to a database is reachable.
// A connector needs no approval because it only reads; the client could write.
// Holds because: what dial makes is kept as a reader, and readOnly lets no other call
// than these four onto the wire, whoever makes it. Not covered: rights that the
// credentials have beyond reading, which somebody else may use.
// Checked by: TestOnlyReadsAreReachable, TestWritesDoNotReachTheWire.
type reader interface {
	RunQuery(context.Context, *pb.RunQueryRequest, ...gax.CallOption) (pb.Firestore_RunQueryClient, error)
	RunAggregationQuery(context.Context, *pb.RunAggregationQueryRequest, ...gax.CallOption) (pb.Firestore_RunAggregationQueryClient, error)
	BatchGetDocuments(context.Context, *pb.BatchGetDocumentsRequest, ...gax.CallOption) (pb.Firestore_BatchGetDocumentsClient, error)
	ListCollectionIds(context.Context, *pb.ListCollectionIdsRequest, ...gax.CallOption) *apiv1.StringIterator
}

const service = "/google.firestore.v1.Firestore/"

// reads are the calls that may reach the wire.
var reads = []string{service + "RunQuery", service + "RunAggregationQuery", service + "BatchGetDocuments", service + "ListCollectionIds"}

// readOnly refuses every other call.
func readOnly(method string) error {
	if slices.Contains(reads, method) {
		return nil
	}
	return status.Error(codes.PermissionDenied, "internal error: "+method+" is no read, and connectors only read")
}

func unaryReads(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if err := readOnly(method); err != nil {
		return err
	}
	return invoke(ctx, method, req, reply, conn, opts...)
}

func streamReads(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if err := readOnly(method); err != nil {
		return nil, err
	}
	return open(ctx, desc, conn, method, opts...)
}

// connection is a client and the calls that use it.
type connection struct {
	reader
	shut    func() error
	sum     [sha256.Size]byte // of the credentials
	calls   int
	retired bool // no call begins with it any more
}

// use returns a client for one call, which says by done that it has ended. Calls share
// one client until the credentials change.
func (d *Database) use(ctx context.Context, credentials []byte) (client reader, done func(), err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	sum := sha256.Sum256(credentials)
	if d.live != nil && d.live.sum != sum {
		d.retire()
	}
	if d.live == nil {
		client, shut, err := dial(ctx, d.Config, credentials)
		if err != nil {
			return nil, nil, err
		}
		d.live = &connection{reader: client, shut: shut, sum: sum}
	}
	c := d.live
	c.calls++
	return c.reader, func() { d.done(c) }, nil
}

func (d *Database) done(c *connection) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c.calls--
	if d.closed && c == d.live {
		d.retire()
	} else if c.retired && c.calls == 0 {
		_ = c.shut() // it has served: nothing depends on how it ends
	}
}

// retire lets go of the connection once its last call has ended. d.mu is held.
func (d *Database) retire() {
	c := d.live
	d.live, c.retired = nil, true
	if c.calls == 0 {
		_ = c.shut()
	}
}

// Close closes the connection once the last call that uses it has ended. A call that
// begins afterwards has one of its own. It may be called twice.
func (d *Database) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	if d.live != nil {
		d.retire()
	}
	return nil
}

// dial makes a client. Nothing is connected to before its first call.
func dial(ctx context.Context, c Config, credentials []byte) (reader, func() error, error) {
	options := []option.ClientOption{
		// The library logs requests, tokens among them, where a variable of the environment
		// tells it to.
		option.WithLogger(slog.New(slog.DiscardHandler)),
		option.WithTelemetryDisabled(),
		option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(unaryReads)),
		option.WithGRPCDialOption(grpc.WithChainStreamInterceptor(streamReads)),
	}
	if c.Emulator != "" {
		conn, err := grpc.NewClient(c.Emulator, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithPerRPCCredentials(emulatorOwner{}),
			grpc.WithChainUnaryInterceptor(unaryReads), grpc.WithChainStreamInterceptor(streamReads))
		if err != nil {
			return nil, nil, err
		}
		options = append(options, option.WithGRPCConn(conn))
	} else {
		kind, err := credentialsKind(credentials)
		if err != nil {
			return nil, nil, err
		}
		options = append(options, option.WithAuthCredentialsJSON(kind, slices.Clone(credentials)))
	}
	// The client outlives the call that makes it.
	client, err := apiv1.NewClient(context.WithoutCancel(ctx), options...)
	if err != nil {
		return nil, nil, err
	}
	return client, client.Close, nil
}

// credentialsKind reads what kind of credentials they are. Only such are taken that
// hold a key: others name programs to run and addresses to ask.
func credentialsKind(credentials []byte) (option.CredentialsType, error) {
	var c struct{ Type string }
	if err := json.Unmarshal(credentials, &c); err != nil {
		return "", errors.New("they are not the JSON of a key")
	}
	switch kind := option.CredentialsType(c.Type); kind {
	case option.ServiceAccount, option.AuthorizedUser:
		return kind, nil
	}
	return "", errors.New("they are neither of type service_account nor authorized_user")
}

// emulatorOwner is what an emulator takes for somebody who may do anything.
type emulatorOwner struct{}

func (emulatorOwner) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer owner"}, nil
}

func (emulatorOwner) RequireTransportSecurity() bool { return false }

// routed adds what the service finds a database by.
func (c Config) routed(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx,
		"google-cloud-resource-prefix", c.database(),
		"x-goog-request-params", fmt.Sprintf("project_id=%s&database_id=%s", c.Project, c.Database))
}

// attempts is how often a call is made that the service does not answer.
const attempts = 5

// again is how calls are repeated: the client would go on until the time is over, and
// then say that the time is over.
func again() gax.CallOption {
	left := attempts
	policy := gax.OnCodes([]codes.Code{codes.Unavailable}, gax.Backoff{Initial: 100 * time.Millisecond, Max: time.Second, Multiplier: 2})
	return gax.WithRetry(func() gax.Retryer { return retryer{policy, &left} })
}

type retryer struct {
	policy gax.Retryer
	left   *int
}

func (r retryer) Retry(err error) (time.Duration, bool) {
	if *r.left--; *r.left <= 0 {
		return 0, false
	}
	return r.policy.Retry(err)
}
