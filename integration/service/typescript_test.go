package service

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/direct-oci/engine/integration/testenv"
	"github.com/direct-oci/engine/integration/vm"
)

// TestTypeScriptClient goes through the API by the TypeScript client under Node, also
// while the service is killed.
func TestTypeScriptClient(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		if os.Getenv("CI") == "true" || testenv.InVM() {
			t.Fatal("node is missing")
		}
		t.Skip("node is missing: install nodejs")
	}
	b := newBed(t, "")
	b.start()
	client, err := filepath.Abs("../../clients/typescript/index.js")
	if err != nil {
		t.Fatal(err)
	}
	if testenv.InVM() {
		client = vm.JobDir + "/clients/typescript/index.js"
	}
	var stderr bytes.Buffer
	cmd := exec.CommandContext(patient(t), node, "testdata/contract.mjs", client, b.socket())
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	last := ""
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if last = lines.Text(); last == "kill" {
			b.kill()
			b.start()
		}
	}
	if err := cmd.Wait(); err != nil || last != "done" {
		t.Errorf("node ended with %v, and last said %q\n%s", err, last, stderr.String())
	}
}
