package inproc

import (
	"os"
	"strings"
	"testing"
)

// The version in a result is the one that go.mod pins.
func TestVersionIsThePinnedOne(t *testing.T) {
	mod, err := os.ReadFile("../../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if want := "github.com/opencontainers/runc v" + Version; !strings.Contains(string(mod), want) {
		t.Errorf("go.mod does not have %q", want)
	}
}
