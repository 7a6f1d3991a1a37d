package engine

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/direct-oci/engine/engine/journal"
)

// TestStatesOnlyMoveForward goes through every sequence of records that a run can
// leave, whatever step it died at, and wants the state never to fall back.
func TestStatesOnlyMoveForward(t *testing.T) {
	order := []State{Creating, Created, Running, Stopped, Removed}
	steps := []string{journal.Intent, journal.Created, journal.Started, journal.Exit, journal.Cleaned}
	// Exit may follow any record, Cleaned follows Exit.
	for died := range steps {
		stateDir := t.TempDir()
		run, err := journal.Create(stateDir, journal.NewID())
		if err != nil {
			t.Fatal(err)
		}
		before := Creating
		for _, name := range slices.Concat(steps[:died], []string{journal.Exit, journal.Cleaned}) {
			if err := run.Write(name, struct{}{}, false); err != nil {
				t.Fatal(err)
			}
			last, problems := run.Last()
			got := stateOf[last]
			if len(problems) > 0 || slices.Index(order, got) < slices.Index(order, before) {
				t.Errorf("after %s a run that was %s is %s (problems: %v)", name, before, got, problems)
			}
			before = got
		}
		if before != Removed {
			t.Errorf("a run that died after %d records ended as %s, want removed", died, before)
		}
		run.Close()
	}
}

// TestDiagramNamesEveryState keeps the diagram in records.go and the table equal.
func TestDiagramNamesEveryState(t *testing.T) {
	src, err := os.ReadFile("records.go")
	if err != nil {
		t.Fatal(err)
	}
	diagram, _, ok := strings.Cut(string(src), "type State string")
	if !ok {
		t.Fatal("records.go has no type State")
	}
	_, diagram, _ = strings.Cut(diagram, "// State is how far")
	for _, s := range stateOf {
		if !strings.Contains(diagram, string(s)) {
			t.Errorf("the diagram above State does not show %q", s)
		}
	}
}
