package sessions

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/direct-oci/engine/engine"
)

// askVariable makes this program ask the socket that it names to resume.
const askVariable = "ENGINE_SESSIONS_ASK"

func TestMain(m *testing.M) {
	if path := os.Getenv(askVariable); path != "" {
		ask(path)
		return
	}
	if text := os.Getenv(clientVariable); text != "" {
		beClient(text)
		return
	}
	os.Exit(m.Run())
}

// clientVariable makes this program a client of a session: it starts an exec, writes to
// it, says so, and waits to be killed.
const clientVariable = "ENGINE_SESSIONS_CLIENT"

type client struct {
	Host    engine.Host
	Version string
	Session string
	Exec    engine.Exec
}

func beClient(text string) {
	var c client
	err := json.Unmarshal([]byte(text), &c)
	engine.Version = c.Version
	var conn *engine.ExecConn
	if err == nil {
		conn, err = c.Host.Exec(context.Background(), c.Session, c.Exec)
	}
	if err == nil {
		_, err = conn.Write([]byte("from the first\n"))
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("started")
	time.Sleep(time.Minute)
}

func ask(path string) {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return // refused, as well
	}
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	io.WriteString(conn, `{"version":1,"op":"resume"}`+"\n")
	answer, _ := io.ReadAll(conn) // a connection that is cut says nothing
	fmt.Print(string(answer))
}

// askAs is what a process of the user hears from the socket at path.
func askAs(t *testing.T, uid uint32, path string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "ask")
	data, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.WriteFile(program, data, 0o755)
	}
	for dir := filepath.Dir(program); err == nil && dir != os.TempDir(); dir = filepath.Dir(dir) {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Dir = "/"
	cmd.Env = []string{askVariable + "=" + path}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}
