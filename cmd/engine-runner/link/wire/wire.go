// Package wire is the language of the link between a runner and its control plane: the
// messages, how strictly they are read, and what is signed of them.
//
// A message is one WebSocket text frame with one JSON object, whose member type says
// which. What schema.json does not describe is no message. Both ends use this package;
// docs/LINK.md says it in words, for those who write another end.
package wire

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/capability/approval"
	"github.com/direct-oci/engine/capability/signed"
	"github.com/direct-oci/engine/engine"
)

// Protocol is the version of the protocol, and Subprotocol its name to WebSocket.
const (
	Protocol    = 1
	Subprotocol = "engine.link.v1"
)

// Bounds of messages, in bytes. A body travels in base64.
const (
	MaxMessage  = 32 << 20
	MaxBody     = 23 << 20
	MaxGreeting = 64 << 10 // before both have proved themselves; the proof itself may be long
)

// Types of messages.
const (
	TypeHello        = "hello"        // runner: who it says it is
	TypeChallenge    = "challenge"    // plane: proves itself, and asks for the runner's proof
	TypeProof        = "proof"        // runner: proves itself, and says what it offers
	TypeWelcome      = "welcome"      // plane: the link is up
	TypeInvoke       = "invoke"       // plane, signed: do this, once
	TypeReview       = "review"       // plane, signed: what would this do?
	TypeCancel       = "cancel"       // plane, signed: end this
	TypeAck          = "ack"          // plane, signed: the result is kept, forget it
	TypeState        = "state"        // runner: how far an invocation is
	TypeRefused      = "refused"      // runner: a request has had no effect, and why
	TypeLog          = "log"          // runner: progress
	TypeResult       = "result"       // runner, signed: what came of it
	TypeReviewed     = "reviewed"     // runner, signed: what it would do
	TypeCapacity     = "capacity"     // runner: how much more it takes
	TypeCapabilities = "capabilities" // runner: what it offers has changed
)

// Hello is the first message of a connection. It tells nothing but a name: the plane
// has not proved itself yet.
type Hello struct {
	Type      string `json:"type"`
	Protocols []int  `json:"protocols"`
	Identity  string `json:"identity"`
	Nonce     string `json:"nonce"` // 64 hexadecimal digits
	Version   string `json:"version"`
}

// Challenge answers Hello.
type Challenge struct {
	Type     string `json:"type"`
	Protocol int    `json:"protocol"`
	Nonce    string `json:"nonce"`
	MAC      string `json:"mac"`
}

// Proof answers Challenge.
type Proof struct {
	Type         string              `json:"type"`
	MAC          string              `json:"mac"`
	Capabilities []capability.Listed `json:"capabilities"`
	Capacity     Room                `json:"capacity"`
}

// Welcome answers Proof.
type Welcome struct {
	Type string `json:"type"`
	Time int64  `json:"time"` // the plane's, in milliseconds since 1970
}

// Room is how much a runner takes.
type Room struct {
	Max         int   `json:"max"`     // invocations at once
	Running     int   `json:"running"` // of them
	Draining    bool  `json:"draining"`
	OutboxBytes int64 `json:"outboxBytes"` // of what is not acknowledged
	OutboxMax   int64 `json:"outboxMax"`
}

// Capacity tells Room anew.
type Capacity struct {
	Type string `json:"type"`
	Room
}

// Capabilities tells anew what is offered.
type Capabilities struct {
	Type         string              `json:"type"`
	Capabilities []capability.Listed `json:"capabilities"`
}

// Request is a signed message of the plane: invoke, review or cancel.
type Request struct {
	Type  string `json:"type"`
	ID    string `json:"id"`    // of the invocation or review
	Time  int64  `json:"time"`  // when it was signed, in milliseconds since 1970
	Nonce string `json:"nonce"` // 32 hexadecimal digits, never used again
	Body  []byte `json:"body"`  // JSON of a Call, in base64; empty in a cancel
	MAC   string `json:"mac"`
}

// Call is the body of invoke and review.
type Call struct {
	Project     string           `json:"project"`
	Capability  string           `json:"capability"`
	Environment string           `json:"environment,omitempty"`
	Args        json.RawMessage  `json:"args,omitempty"`
	Approval    *signed.Envelope `json:"approval,omitempty"`
	Caller      string           `json:"caller,omitempty"` // for whom the plane asks: its claim, for the audit log
}

// States of an invocation.
const (
	Running  = "running"
	Answered = "answered" // its result is on its way
)

// State tells how far an invocation is.
type State struct {
	Type  string `json:"type"`
	ID    string `json:"id"`
	State string `json:"state"`
}

// Refused says that a request has had no effect.
type Refused struct {
	Type    string        `json:"type"`
	ID      string        `json:"id"`
	Request string        `json:"request"` // type of what is refused
	Error   *engine.Error `json:"error"`
}

// Log is progress of an invocation. What is missing is gone.
type Log struct {
	Type    string   `json:"type"`
	ID      string   `json:"id"`
	First   int64    `json:"first"` // number of the first line, from 1
	Lines   []string `json:"lines"`
	Dropped int64    `json:"dropped"` // of all lines so far, how many were given up
}

// Sealed is a signed message of the runner: result or reviewed.
type Sealed struct {
	Type string `json:"type"`
	ID   string `json:"id"`
	Body []byte `json:"body"` // JSON of a Result or a Review, in base64
	MAC  string `json:"mac"`
}

// Result is the body of result: either an output, or an error and no output.
type Result struct {
	Call    string           `json:"call"` // id of the call in the runner's audit log, and of its run
	Output  json.RawMessage  `json:"output"`
	Error   *engine.Error    `json:"error"`
	Receipt *signed.Envelope `json:"receipt"` // null where nothing was run
	Resumed bool             `json:"resumed"` // the runner died meanwhile; this is from its records
	Lines   int64            `json:"lines"`   // of progress there were
}

// Review is the body of reviewed: what an approver has to see, and to sign.
type Review struct {
	Hazard      capability.Hazard `json:"hazard"`
	Title       string            `json:"title"`
	Digest      string            `json:"digest"`
	BoundDigest string            `json:"boundDigest"`
	Bound       approval.Bound    `json:"bound"`
	Text        string            `json:"text"` // for a terminal
}

// Ack acknowledges a result.
type Ack struct {
	Type string `json:"type"`
	ID   string `json:"id"`
	MAC  string `json:"mac"`
}

// End is one of the two ends of a link.
type End int

// The ends.
const (
	Runner End = iota
	Plane
)

// empty returns a message of the type, and nil if from does not send it.
func empty(from End, typ string) any {
	if from == Plane {
		switch typ {
		case TypeChallenge:
			return &Challenge{}
		case TypeWelcome:
			return &Welcome{}
		case TypeInvoke, TypeReview, TypeCancel:
			return &Request{}
		case TypeAck:
			return &Ack{}
		}
		return nil
	}
	switch typ {
	case TypeHello:
		return &Hello{}
	case TypeProof:
		return &Proof{}
	case TypeState:
		return &State{}
	case TypeRefused:
		return &Refused{}
	case TypeLog:
		return &Log{}
	case TypeResult, TypeReviewed:
		return &Sealed{}
	case TypeCapacity:
		return &Capacity{}
	case TypeCapabilities:
		return &Capabilities{}
	}
	return nil
}

// Encode writes a message.
func Encode(m any) ([]byte, error) {
	data, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("internal error: a message has no JSON form: %w", err)
	}
	if len(data) > MaxMessage {
		return nil, fmt.Errorf("cannot send a message of %d bytes: the limit is %d", len(data), MaxMessage)
	}
	return data, nil
}

// Decode reads a message that the end from has sent: a pointer to one of this package's
// structs. Whatever schema.json does not describe is an error.
func Decode(from End, data []byte) (any, error) {
	if len(data) > MaxMessage {
		return nil, fmt.Errorf("cannot read a message of %d bytes: the limit is %d", len(data), MaxMessage)
	}
	typ, err := validate("", data)
	if err != nil {
		return nil, err
	}
	m := empty(from, typ)
	if m == nil {
		return nil, fmt.Errorf("cannot read a message: this end does not send type=%.40q", typ)
	}
	if err := json.Unmarshal(data, m); err != nil {
		return nil, errors.New("cannot read a message of type " + typ + ": its base64 is wrong, or a number is out of range")
	}
	return m, nil
}

// DecodeCall reads the body of invoke and review.
func DecodeCall(body []byte) (c Call, err error) { return c, decodeBody("call", body, &c) }

// DecodeResult reads the body of result.
func DecodeResult(body []byte) (r Result, err error) { return r, decodeBody("resultBody", body, &r) }

// DecodeReview reads the body of reviewed.
func DecodeReview(body []byte) (r Review, err error) { return r, decodeBody("reviewBody", body, &r) }

func decodeBody(name string, body []byte, v any) error {
	if _, err := validate(name, body); err != nil {
		return err
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("cannot read a body: %w", err)
	}
	return nil
}
