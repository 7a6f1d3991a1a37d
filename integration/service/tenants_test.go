package service

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/client/wire"
)

// caller asks the service as one user of the host.
type caller struct {
	t    *testing.T
	http http.Client
}

// as is a caller whose connections are made by a thread with this user id.
func (b *bed) as(t *testing.T, uid int) *caller {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		type dialled struct {
			conn net.Conn
			err  error
		}
		done := make(chan dialled, 1)
		go func() {
			runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); errno != 0 {
				done <- dialled{err: errno}
				return
			}
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err == nil {
				err = unix.Connect(fd, &unix.SockaddrUnix{Name: b.socket()})
			}
			if err != nil {
				done <- dialled{err: err}
				return
			}
			f := os.NewFile(uintptr(fd), "socket")
			conn, err := net.FileConn(f)
			f.Close()
			done <- dialled{conn, err}
		}()
		d := <-done
		return d.conn, d.err
	}
	transport := &http.Transport{DialContext: dial}
	t.Cleanup(transport.CloseIdleConnections)
	return &caller{t, http.Client{Transport: transport}}
}

func (c *caller) do(method, path, body string, into any) (int, string) {
	c.t.Helper()
	r, err := http.NewRequestWithContext(patient(c.t), method, "http://engine"+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	if strings.HasSuffix(path, "/attach") {
		for k, v := range map[string]string{"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="} {
			r.Header.Set(k, v)
		}
	}
	res, err := c.http.Do(r)
	if err != nil {
		c.t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		c.t.Fatal(err)
	}
	if into != nil {
		if err := json.Unmarshal(data, into); err != nil {
			c.t.Errorf("%s %s: %s: %v", method, path, data, err)
		}
	}
	return res.StatusCode, string(data)
}

// bodiesOf are the bodies without which a route says no for another reason.
var bodiesOf = map[string]string{
	"POST /execs": `{"command":["id"]}`, "POST /execs/{exec}/signal": `{"signal":"KILL"}`, "POST /execs/{exec}/resize": `{"rows":1,"columns":1}`,
	"POST /renew": `{"ttlSeconds":1}`, "POST /files/mkdir": `{"path":"/tmp/a"}`, "POST /files/move": `{"from":"/tmp/a","to":"/tmp/b"}`,
}

// TestTenantsSeeNothingOfEachOther calls every route about a sandbox, as the API describes
// itself, with the name and the id of another tenant's.
func TestTenantsSeeNothingOfEachOther(t *testing.T) {
	b := newBed(t, "  access:\n    - {user: '4001', allow: run, tenant: alpha}\n    - {user: '4002', allow: run, tenant: beta}\n"+
		"  sandboxes: {tenants: {beta: {sandboxes: 1}}}\n")
	root := b.start()
	alpha, beta := b.as(t, 4001), b.as(t, 4002)
	ask := `{"name":"one","owner":"wf","image":"box","runtime":"embedded","cpus":1,"memoryMb":64,"labels":{"a":"b"}}`
	var theirs, own wire.Sandbox
	if status, text := alpha.do("POST", "/v1/sandboxes", ask, &theirs); status != 201 || theirs.Name != "one" || theirs.Owner != "wf" {
		t.Fatalf("alpha's: %d %s", status, text)
	}
	if status, text := alpha.do("POST", "/v1/sandboxes/one/execs", `{"id":"x","command":["sleep","100"],"stdin":true}`, nil); status != 200 {
		t.Fatalf("alpha's program: %d %s", status, text)
	}
	description, err := root.OpenAPI(patient(t))
	if err != nil {
		t.Fatal(err)
	}
	var api struct {
		Paths map[string]map[string]json.RawMessage `json:"paths"`
	}
	if err := json.Unmarshal(description, &api); err != nil {
		t.Fatal(err)
	}
	tried := 0
	for path, methods := range api.Paths {
		rest, ok := strings.CutPrefix(path, "/v1/sandboxes/{id}")
		if !ok {
			continue
		}
		for method := range methods {
			method = strings.ToUpper(method)
			for _, id := range []string{"one", theirs.ID, "alpha:one", "one:"} {
				tried++
				query := ""
				if strings.HasPrefix(rest, "/files") && rest != "/files/mkdir" && rest != "/files/move" {
					query = "?path=/tmp"
				}
				status, text := beta.do(method, "/v1/sandboxes/"+id+strings.ReplaceAll(rest, "{exec}", "x")+query, bodiesOf[method+" "+rest], nil)
				gone := method == "DELETE" && rest == "" && text == `{"count":0}`+"\n" || rest == "/liveness" && strings.HasPrefix(text, `{"alive":false`)
				if !gone && (status != 404 || !strings.Contains(text, "not_found")) {
					t.Errorf("%s %s of %s: %d %s", method, rest, id, status, text)
				}
			}
		}
	}
	if tried < 80 {
		t.Errorf("only %d requests were tried", tried)
	}
	for _, path := range []string{"/v1/runs/" + theirs.ID, "/v1/runs/" + theirs.ID + "/logs", "/v1/runs/" + theirs.ID + "/wait"} {
		if status, text := beta.do("GET", path, "", nil); status != 404 {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
	var list wire.SandboxList
	for _, filter := range []string{"", "?owner=wf", "?owner=alpha/wf", "?label=a=b", "?label=engine.tenant=alpha"} {
		if beta.do("GET", "/v1/sandboxes"+filter, "", &list); len(list.Sandboxes) != 0 {
			t.Errorf("beta lists %+v with %q", list.Sandboxes, filter)
		}
		if filter != "" {
			if _, text := beta.do("DELETE", "/v1/sandboxes"+filter, "", nil); text != `{"count":0}`+"\n" {
				t.Errorf("beta tears down by %q: %s", filter, text)
			}
		}
	}
	// The same name is another sandbox, and its quota is its own.
	if status, text := beta.do("POST", "/v1/sandboxes", ask, &own); status != 201 || own.ID == theirs.ID {
		t.Fatalf("beta's of the same name: %d %s", status, text)
	}
	if status, text := beta.do("POST", "/v1/sandboxes", strings.Replace(ask, "one", "two", 1), nil); status != 429 || strings.Contains(text, "alpha") {
		t.Errorf("beta's second: %d %s", status, text)
	}
	if status, text := beta.do("POST", "/v1/sandboxes", strings.Replace(ask, "wf", "other", 1), nil); status != 409 || !strings.Contains(text, `"owner":"wf"`) {
		t.Errorf("beta's by another owner: %d %s", status, text)
	}
	for _, who := range []string{own.Owner, "wf"} {
		if beta.do("GET", "/v1/sandboxes?owner="+who, "", &list); len(list.Sandboxes) != 1 || list.Sandboxes[0].ID != own.ID {
			t.Errorf("beta lists %+v by %q", list.Sandboxes, who)
		}
	}
	// A caller who sees all has taken a name that is kept as alpha's.
	if _, err := root.CreateSandbox(patient(t), wire.SandboxRequest{Name: "alpha:taken", Owner: "secret-owner", Image: "box", Runtime: "embedded", CPUs: 1, MemoryMB: 64}); err != nil {
		t.Fatal(err)
	}
	if status, text := alpha.do("POST", "/v1/sandboxes", strings.Replace(ask, "one", "taken", 1), nil); status != 409 || strings.Contains(text, "secret-owner") {
		t.Errorf("a name that somebody else has: %d %s", status, text)
	}
	if _, text := beta.do("DELETE", "/v1/sandboxes/one", "", nil); text != `{"count":1}`+"\n" {
		t.Errorf("beta tears down its own: %s", text)
	}
	var now wire.Sandbox
	if status, text := alpha.do("GET", "/v1/sandboxes/one", "", &now); status != 200 || !now.Alive || now.ID != theirs.ID {
		t.Errorf("alpha's, after all that: %d %s", status, text)
	}
	if alpha.do("GET", "/v1/sandboxes/"+theirs.ID, "", &now); now.Name != "one" {
		t.Errorf("by its id it is called %q", now.Name)
	}
	// What is wrong with it is told to its tenant alone.
	if err := os.WriteFile(b.path("state/sandboxes/alpha:one/sandbox.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if status, text := beta.do("GET", "/v1/sandboxes/alpha:one", "", nil); status != 404 {
		t.Errorf("another's that is damaged: %d %s", status, text)
	}
	if status, text := alpha.do("GET", "/v1/sandboxes/one", "", nil); status != 500 || !strings.Contains(text, "no_record") {
		t.Errorf("alpha's that is damaged: %d %s", status, text)
	}
}
