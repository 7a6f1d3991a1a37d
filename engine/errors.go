package engine

import (
	"errors"
	"fmt"
)

// Class separates whose turn it is after a failure. A program that failed is in
// neither class: that is a Result.
type Class string

// The classes.
const (
	ClassRequest Class = "request" // the request was wrong: change it
	ClassEngine  Class = "engine"  // the engine or the host failed: the operator's turn
)

// Error is a refused request or a failure of the engine or its host.
type Error struct {
	Class   Class  `json:"class"`
	Kind    string `json:"kind"`    // stable, one row each in docs/OPERATIONS.md
	Message string `json:"message"` // "cannot <verb> <object>=<value>: <cause>"
	Fix     string `json:"fix"`     // one imperative sentence; empty when no cure is known
	cause   error
}

func (e *Error) Error() string  { return e.Message }
func (e *Error) Unwrap() error  { return e.cause }
func (e *Error) Remedy() string { return e.Fix }

// remedied is an error of a leaf package that knows its cure.
type remedied interface{ Remedy() string }

// Refused reports a wrong request. The format is fmt.Errorf's; an argument
// wrapped by %w that has a Remedy method lends it to the error.
func Refused(kind, format string, args ...any) *Error {
	return newError(ClassRequest, kind, format, args...)
}

// Failed reports a failure of the engine or the host, in the form of Refused.
func Failed(kind, format string, args ...any) *Error {
	return newError(ClassEngine, kind, format, args...)
}

func newError(class Class, kind, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	e := &Error{Class: class, Kind: kind, Message: err.Error(), cause: errors.Unwrap(err)}
	var r remedied
	if errors.As(err, &r) {
		e.Fix = r.Remedy()
	}
	return e
}

// WithFix returns e with the cure set.
func (e *Error) WithFix(fix string) *Error {
	e.Fix = fix
	return e
}

// AsError returns err as an *Error: itself if it is one, otherwise a failure of
// the engine of kind "internal".
func AsError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return Failed("internal", "%w", err)
}
