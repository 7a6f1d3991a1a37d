// Package cli is what the engine's command lines have in common: how an answer or an
// error is printed, and how what was typed wrong is explained. It needs nothing, and
// leaves nothing behind but what it printed.
package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/direct-oci/engine/capability/jsjson"
	"github.com/direct-oci/engine/engine"
)

// Output is where one invocation of a program answers.
type Output struct {
	Stdout, Stderr io.Writer

	Quiet bool // messages are kept off stderr
}

// Say prints one message of the engine's own, unless it is to be quiet. What it quotes
// may be a program's, so no character of it can steer a terminal.
func (o *Output) Say(message, fix string) {
	if o.Quiet {
		return
	}
	var b strings.Builder
	fmt.Fprintf(&b, "engine: %s\n", Escape(message))
	if fix != "" {
		fmt.Fprintf(&b, "  fix: %s\n", Escape(fix))
	}
	// There is nowhere left to report that stderr cannot be written.
	_, _ = io.WriteString(o.Stderr, b.String())
}

// Print prints text on stdout.
func (o *Output) Print(text string) error {
	_, err := io.WriteString(o.Stdout, text)
	return written(err)
}

// PrintJSON prints v on one line of stdout.
func (o *Output) PrintJSON(v any) error { return o.encode(v, "") }

// PrintIndented prints v on stdout as JSON for people.
func (o *Output) PrintIndented(v any) error { return o.encode(v, "  ") }

func (o *Output) encode(v any, indent string) error {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	if err := enc.Encode(v); err != nil {
		return engine.Failed("internal", "cannot encode the answer: %w", err)
	}
	return o.Print(jsjson.Printable(b.String()))
}

func written(err error) error {
	if err != nil {
		return engine.Failed("no_output", "cannot print the answer: %w", err)
	}
	return nil
}

// AsError makes an *engine.Error of whatever a command or the flag parser returned.
// Where nobody knows a cure, being root is one for what only root may do.
func AsError(err error) *engine.Error {
	var e *engine.Error
	var cured interface{ Remedy() string }
	switch {
	case errors.As(err, &e):
	case errors.As(err, &cured):
		e = engine.Failed("failed", "%w", err)
	default:
		e = engine.AsError(err)
	}
	if e.Fix == "" && errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0 {
		e.Fix = "run it with sudo"
	}
	return e
}

// Given says whether a flag without a value stands among the program's own arguments,
// as far as that can be told without having parsed them.
func Given(args []string, flag string) bool {
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	return slices.Contains(args, flag)
}
