package sessions

import (
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
)

// askVariable makes this program ask the socket that it names to resume.
const askVariable = "ENGINE_SESSIONS_ASK"

func TestMain(m *testing.M) {
	if path := os.Getenv(askVariable); path != "" {
		ask(path)
		return
	}
	os.Exit(m.Run())
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
