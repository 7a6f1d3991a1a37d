package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	"github.com/direct-oci/engine/integration/testenv"
	"github.com/direct-oci/engine/integration/testenv/emulator"
)

// text is a value of the protocol.
func text(s string) *pb.Value {
	return &pb.Value{ValueType: &pb.Value_StringValue{StringValue: s}}
}

// configured writes a config into a new directory, with a state directory in it.
func configured(t *testing.T, projects string) (dir, config string) {
	t.Helper()
	dir = t.TempDir()
	config = filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(config, []byte("stateDir: "+filepath.Join(dir, "state")+"\nprojects:\n"+projects), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir, config
}

// run runs the built engine, which must end with this status.
func run(t *testing.T, status int, args ...string) testenv.Result {
	t.Helper()
	r := testenv.Exec(t, args...)
	if r.Status != status {
		t.Fatalf("%s\nwant status %d", r, status)
	}
	return r
}

// events are the lines of the audit log, in short.
func events(t *testing.T, dir string) (list []string, all string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "state", "audit.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		var l struct {
			Entry struct{ Event string }
		}
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatal(err)
		}
		list = append(list, l.Entry.Event)
	}
	return list, string(data)
}

// TestFirestoreEndToEnd calls the built programs, with an emulator behind them.
func TestFirestoreEndToEnd(t *testing.T) {
	e := emulator.Start(t)
	for i, name := range []string{"Ann", "Bob", "Cid"} {
		e.Put(t, "shop-test", fmt.Sprintf("users/u%d", i), map[string]*pb.Value{"name": text(name), "ssn": text("canary-ssn")})
	}
	dir, config := configured(t, `
  shop:
    environments:
      test: {firestore: {project: shop-test, emulator: "`+e.Addr+`", masks: [{collection: users, fields: [ssn]}]}}
      bare: {}
  other: {environments: {test: {}}}
`)
	if got := run(t, 0, "capabilities", "--config", config).Stdout; strings.Count(got, "[shop] firestore.") != 4 || strings.Contains(got, "[other]") || !strings.Contains(got, "[shop] firestore.query  [connector/read]") {
		t.Errorf("capabilities = %s", got)
	}
	receipt := filepath.Join(dir, "receipt.json")
	call := run(t, 0, "call", "shop", "firestore.query", `{"collection": "users", "where": [{"field": "name", "op": ">=", "value": "Bob"}]}`,
		"--environment", "test", "--receipt", receipt, "--config", config)
	var page struct {
		Documents []struct {
			ID   string
			Data map[string]string
		}
	}
	if err := json.Unmarshal([]byte(call.Stdout), &page); err != nil || len(page.Documents) != 2 || page.Documents[0].ID != "u1" || page.Documents[1].Data["name"] != "Cid" {
		t.Errorf("%s\n%v", call, err)
	}
	if !strings.Contains(call.Stderr, "firestore.query: query collection=users, 2 rows in") {
		t.Errorf("no progress: %s", call)
	}
	// Nobody had to agree, and every step is on record.
	got, all := events(t, dir)
	if want := []string{"dispatch", "approval", "start", "end"}; !slices.Equal(got, want) {
		t.Errorf("audit log has %q, want %q", got, want)
	}
	if got := run(t, 0, "verify", receipt, "--config", config).Stdout; !strings.Contains(got, "not needed") || !strings.Contains(got, "firestore.query of project shop") || !strings.Contains(got, "well at") {
		t.Errorf("receipt = %s", got)
	}
	if strings.Contains(call.Stdout+call.Stderr+all, "canary") {
		t.Errorf("a masked field is shown: %s", call)
	}
	for args, want := range map[string]string{
		`firestore.query {"collection":"users","orderBy":[{"field":"ssn"}]} test`: "masked_field",
		`firestore.count {"collection":"users"} bare`:                             "no_firestore",
		`firestore.count {"collection":"users"}`:                                  "no_environment",
		`firestore.set {"collection":"users"} test`:                               "no_capability",
	} {
		words := strings.Fields(args)
		command := []string{"call", "shop", words[0], words[1], "--json", "--config", config}
		if len(words) > 2 {
			command = append(command, "--environment", words[2])
		}
		if r := run(t, 125, command...); !strings.Contains(r.Stdout, `"kind":"`+want+`"`) {
			t.Errorf("%s\nwant %s", r, want)
		}
	}
	if r := run(t, 0, "call", "shop", "firestore.count", `{"collection": "users"}`, "--environment", "test", "--config", config); !strings.Contains(r.Stdout, `"count":3`) {
		t.Errorf("%s", r)
	}
	if r := run(t, 0, "approve", "shop", "firestore.count", `{"collection": "users"}`, "--environment", "test", "--config", config); !strings.Contains(r.Stdout, "the host's own network") {
		t.Errorf("%s", r)
	}
	run(t, 0, "audit", "verify", "--receipt", receipt, "--config", config)
}

// service is Firestore as it would answer behind its own name.
type service struct {
	pb.UnimplementedFirestoreServer
	bearer chan string
}

func (s *service) ListCollectionIds(ctx context.Context, _ *pb.ListCollectionIdsRequest) (*pb.ListCollectionIdsResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	s.bearer <- strings.Join(md.Get("authorization"), " ") + " | " + strings.Join(md.Get("x-goog-request-params"), " ")
	return &pb.ListCollectionIdsResponse{CollectionIds: []string{"users"}}, nil
}

// TestFirestoreCredentials goes the way of a real service: by its name, over TLS, with a
// key that signs for each call. The way leads through a proxy to a server of the test's
// own. All logs of the libraries are on; the key is shown by none.
func TestFirestoreCredentials(t *testing.T) {
	certificate, authority := certificateFor(t, "firestore.googleapis.com")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &service{bearer: make(chan string, 10)}
	g := grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(&certificate)))
	pb.RegisterFirestoreServer(g, s)
	go g.Serve(listener)
	defer g.Stop()
	t.Setenv("HTTPS_PROXY", "http://"+proxyTo(t, listener.Addr().String()))
	t.Setenv("SSL_CERT_FILE", authority)
	t.Setenv("GOOGLE_SDK_GO_LOGGING_LEVEL", "debug")
	t.Setenv("GRPC_GO_LOG_SEVERITY_LEVEL", "info")
	t.Setenv("GRPC_GO_LOG_VERBOSITY_LEVEL", "99")
	t.Setenv("FIRESTORE_EMULATOR_HOST", "127.0.0.1:1") // the config decides, and not this
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere")
	key, secrets := serviceAccount(t)
	dir, config := configured(t, `
  shop: {environments: {production: {firestore: {project: shop-live, database: europe, credentials: {file: `+key+`}}}}}
`)
	call := run(t, 0, "call", "shop", "firestore.listCollections", "--config", config)
	if strings.TrimSpace(call.Stdout) != `{"collections":["users"],"truncated":null}` {
		t.Errorf("%s", call)
	}
	sent := <-s.bearer
	if !strings.HasPrefix(sent, "Bearer ey") || !strings.Contains(sent, "project_id=shop-live&database_id=europe") {
		t.Errorf("the service was sent %q", sent)
	}
	got, all := events(t, dir)
	if want := []string{"dispatch", "approval", "secret", "start", "end"}; !slices.Equal(got, want) || !strings.Contains(all, `"names":["firestore of production"]`) {
		t.Errorf("audit log = %s", all)
	}
	secrets = append(secrets, strings.Fields(sent)[1])
	shown := call.Stdout + call.Stderr
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		shown += string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range secrets {
		if strings.Contains(shown, s) {
			t.Errorf("%.12s… is shown or on disk", s)
		}
	}
	// A key that is none is the operator's matter, and is not quoted.
	if err := os.WriteFile(key, []byte(`{"type": "service_account", "private_key": "canary"`), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := run(t, 125, "call", "shop", "firestore.listCollections", "--json", "--config", config); !strings.Contains(r.Stdout, `"class":"engine","kind":"no_credentials"`) || strings.Contains(r.String(), "canary") {
		t.Errorf("%s", r)
	}
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	if r := run(t, 125, "config", "check", "--secrets", "--config", config); !strings.Contains(r.Stderr, "projects.shop.environments.production.firestore.credentials") {
		t.Errorf("%s", r)
	}
}

// serviceAccount writes a key's file, and returns what of it must not be seen.
func serviceAccount(t *testing.T) (path string, secrets []string) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	private := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	data, err := json.Marshal(map[string]string{
		"type": "service_account", "project_id": "shop-live", "private_key_id": "canary-key-id", "private_key": private,
		"client_email": "reader@shop.test", "token_uri": "https://token.test/token",
	})
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "key.json")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(private, "\n")
	return path, []string{lines[3], lines[10], "canary-key-id"}
}

// certificateFor makes a certificate for a name, and the file of who signed it.
func certificateFor(t *testing.T, name string) (tls.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "authority.pem")
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, path
}

// proxyTo is a proxy that leads every CONNECT to one address.
func proxyTo(t *testing.T, addr string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	serve := func(c net.Conn) {
		defer c.Close()
		in := bufio.NewReader(c)
		if r, err := http.ReadRequest(in); err != nil || r.Host != "firestore.googleapis.com:443" {
			return
		}
		far, err := net.Dial("tcp", addr)
		if err != nil {
			return
		}
		defer far.Close()
		io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
		go io.Copy(far, in)
		io.Copy(c, far)
	}
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
	return listener.Addr().String()
}
