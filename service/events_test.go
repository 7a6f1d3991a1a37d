package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/engine/journal"
)

func talkative(engine.Exec) []piece {
	return []piece{{journal.Stdout, "one "}, {journal.Stderr, "two "}, {journal.Stdout, "three "}, {journal.Stderr, "four"}}
}

// readAll reads from a cursor, and returns what came and each event's cursor.
func readAll(t *testing.T, m *Manager, name, exec, cursor string) (string, []string) {
	t.Helper()
	events, err := m.Events(t.Context(), name, exec, cursor)
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	var all strings.Builder
	var cursors []string
	for {
		ev, err := events.Next(t.Context())
		if errors.Is(err, io.EOF) {
			return all.String(), cursors
		}
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&all, "%s:%s%s|", ev.Kind, ev.Stream, ev.Data)
		cursors = append(cursors, ev.Cursor)
	}
}

// TestEventsFromAnyCursor reads a program's output from the beginning and from each
// cursor, by Managers that know nothing of each other.
func TestEventsFromAnyCursor(t *testing.T) {
	w := newWorld(t)
	w.onExec = talkative
	m := w.manager(t)
	sb := mustCreate(t, m, spec("work", "ann"))
	if _, err := m.Exec(t.Context(), "work", engine.Exec{ID: "wf:1:step:fn", Command: []string{"x"}}); err != nil {
		t.Fatal(err)
	}
	want := "data:stdoutone |data:stderrtwo |data:stdoutthree |data:stderrfour|exit:|"
	got, cursors := readAll(t, m, "work", "wf:1:step:fn", "")
	if got != want {
		t.Fatalf("read %q, want %q", got, want)
	}
	rest := strings.SplitAfter(want, "|")
	for i, c := range cursors {
		if got, _ := readAll(t, w.manager(t), sb.ID, "wf:1:step:fn", c); got != strings.Join(rest[i+1:], "") {
			t.Errorf("from cursor %d it reads %q, want %q", i, got, strings.Join(rest[i+1:], ""))
		}
	}
	if _, err := m.Exec(t.Context(), "work", engine.Exec{ID: "other", Command: []string{"x"}}); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"x", "AAAA", cursors[0] + "A", strings.ToUpper(cursors[0]), "////"} {
		_, err := m.Events(t.Context(), "work", "wf:1:step:fn", bad)
		wantKind(t, "Events from "+bad, err, "bad_cursor")
	}
	_, err := m.Events(t.Context(), "work", "other", cursors[0])
	wantKind(t, "Events from a cursor of another program", err, "bad_cursor")
	_, err = m.Events(t.Context(), "work", "never", "")
	wantKind(t, "Events of a program that there is not", err, "not_found")
}

// TestEventsFollow reads what is written while it reads, and ends with the program, or
// with its sandbox.
func TestEventsFollow(t *testing.T) {
	w := newWorld(t)
	m := w.manager(t)
	sb := mustCreate(t, m, spec("work", "ann"))
	begun, goOn := make(chan struct{}), make(chan struct{})
	w.onExec = func(engine.Exec) []piece {
		close(begun)
		<-goOn
		return talkative(engine.Exec{})
	}
	go m.Exec(t.Context(), "work", engine.Exec{ID: "x", Command: []string{"x"}})
	<-begun
	events, err := m.Events(t.Context(), "work", "x", "")
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	if _, err := events.Poll(); !errors.Is(err, ErrCaughtUp) {
		t.Errorf("Poll before there is anything = %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := events.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Next with a context that ended = %v", err)
	}
	close(goOn)
	var got strings.Builder
	for {
		ev, err := events.Next(t.Context())
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got.Write(ev.Data)
	}
	if got.String() != "one two three four" {
		t.Errorf("followed %q", got.String())
	}
	// A program whose sandbox died has no result, and its output has an end all the same.
	put(w.run(sb.ID, "exec", "lost.rec"), engine.ExecRecord{ID: "lost"})
	w.lose(sb.ID)
	if got, _ := readAll(t, m, "work", "lost", ""); got != "exit:|" {
		t.Errorf("of a lost program it reads %q", got)
	}
}

func FuzzCursor(f *testing.F) {
	f.Add(writeCursor(77, "run", "exec"))
	f.Add("")
	f.Fuzz(func(t *testing.T, cursor string) {
		offset, over, err := readCursor(cursor, "run", "exec")
		if err == nil && cursor != "" {
			if over {
				offset = -1
			}
			if writeCursor(offset, "run", "exec") != cursor {
				t.Errorf("cursor %q is read as %d and written otherwise", cursor, offset)
			}
		}
		if err == nil && offset < -1 {
			t.Errorf("offset = %d", offset)
		}
	})
}
