// Package approval is a human's word that one thing may be done: signed, bound to
// every byte that decides what is done, good for a while and for a number of times.
//
// A Bound says what would be done, resolved: two are equal exactly if the same thing
// would happen. A Statement is a Bound, who approves it, and when and how often it may
// be done. It travels in an envelope of package signed. Verify holds an envelope
// against what is about to be done, before anything of that has begun; Burn then uses
// up one of its runs, on disk, before the start: after a crash in between, a run is
// lost and never made twice.
package approval

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/direct-oci/engine/capability/jsjson"
	"github.com/direct-oci/engine/capability/signed"
)

// Bound is everything that decides what is done. Lists are sorted.
type Bound struct {
	Capability  string   `json:"capability"`
	Project     string   `json:"project"`
	Environment string   `json:"environment"`
	Digest      string   `json:"digest"` // of the arguments, see the capability
	Manifest    string   `json:"manifest"`
	Files       []File   `json:"files"`
	Command     []string `json:"command"`
	Image       string   `json:"image"`
	ImageDigest string   `json:"imageDigest"`
	Runtime     string   `json:"runtime"`
	Egress      []string `json:"egress"` // grants as they are written, "internet" among them
	Secrets     []string `json:"secrets"`
	Limits      Limits   `json:"limits"`
	Lock        string   `json:"lock"` // digest of the dependency lock, empty without dependencies
}

// File is one file that is brought into the sandbox.
type File struct {
	Path   string `json:"path"`
	Mode   uint32 `json:"mode"`
	SHA256 string `json:"sha256"`
}

// Limits are those in force, after clamping.
type Limits struct {
	CPUs           float64 `json:"cpus"`
	MemoryBytes    int64   `json:"memoryBytes"`
	Pids           int64   `json:"pids"`
	TimeoutSeconds float64 `json:"timeoutSeconds"`
	TmpBytes       int64   `json:"tmpBytes"`
	WorkspaceBytes int64   `json:"workspaceBytes"`
}

// Strong is the stronger digest: SHA-256 of the RFC 8785 form of all of it.
func (b Bound) Strong() (string, error) {
	v, err := value(b)
	if err != nil {
		return "", err
	}
	text, err := jsjson.Canonical(v)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

func value(x any) (any, error) {
	data, err := json.Marshal(x)
	if err != nil {
		return nil, err
	}
	return jsjson.Parse(data)
}

// Difference names the first field in which two differ, "" if none does.
func (b Bound) Difference(other Bound) string {
	x, err := value(b)
	y, err2 := value(other)
	if err != nil || err2 != nil {
		return "/"
	}
	return difference("", x, y)
}

func difference(at string, x, y any) string {
	switch x := x.(type) {
	case map[string]any:
		y, _ := y.(map[string]any)
		keys := make([]string, 0, len(x))
		for k := range x {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for _, k := range keys {
			if d := difference(at+"/"+k, x[k], y[k]); d != "" {
				return d
			}
		}
		return ""
	case []any:
		y, _ := y.([]any)
		for i := range min(len(x), len(y)) {
			if d := difference(at+"/"+strconv.Itoa(i), x[i], y[i]); d != "" {
				return d
			}
		}
		if len(x) != len(y) {
			return at
		}
		return ""
	default:
		if x != y {
			return at
		}
		return ""
	}
}

// Statement is what an approver signs.
type Statement struct {
	Version     int       `json:"version"` // 1
	Title       string    `json:"title"`   // as it was shown; decides nothing
	Digest      string    `json:"digest"`
	Capability  string    `json:"capability"`
	Project     string    `json:"project"`
	Approver    string    `json:"approver"`
	NotBefore   time.Time `json:"notBefore"`
	NotAfter    time.Time `json:"notAfter"`
	Nonce       string    `json:"nonce"` // 32 hexadecimal digits
	MaxRuns     int       `json:"maxRuns"`
	BoundDigest string    `json:"boundDigest"` // of Bound: the stronger digest
	Bound       Bound     `json:"bound"`
}

// Bounds of what can be approved at once.
const (
	MaxRuns = 1000
	MaxTime = 366 * 24 * time.Hour
)

// New makes a statement about b with a nonce of its own.
func New(b Bound, title, approver string, notBefore, notAfter time.Time, maxRuns int) (Statement, error) {
	strong, err := b.Strong()
	if err != nil {
		return Statement{}, err
	}
	nonce := make([]byte, 16)
	rand.Read(nonce)
	s := Statement{
		Version: 1, Title: title, Digest: b.Digest, Capability: b.Capability, Project: b.Project, Approver: approver,
		NotBefore: notBefore.UTC().Truncate(time.Second), NotAfter: notAfter.UTC().Truncate(time.Second),
		Nonce: hex.EncodeToString(nonce), MaxRuns: maxRuns, BoundDigest: strong, Bound: b,
	}
	return s, s.check()
}

// Sign puts the statement into an envelope.
func (s Statement) Sign(key ed25519.PrivateKey) (signed.Envelope, error) {
	payload, err := json.Marshal(s)
	if err != nil {
		return signed.Envelope{}, err
	}
	return signed.Sign(signed.Approval, key, payload), nil
}

// check refuses a statement that nobody should have signed.
func (s Statement) check() error {
	bad := func(field, why string) error { return &signed.FieldError{Field: field, Why: why} }
	nonce, err := hex.DecodeString(s.Nonce)
	switch {
	case s.Version != 1:
		return bad("version", "is not 1")
	case err != nil || len(nonce) != 16 || strings.ToLower(s.Nonce) != s.Nonce:
		return bad("nonce", "is not 32 hexadecimal digits")
	case s.MaxRuns < 1 || s.MaxRuns > MaxRuns:
		return bad("maxRuns", fmt.Sprintf("is not between 1 and %d", MaxRuns))
	case !s.NotBefore.Before(s.NotAfter):
		return bad("notAfter", "is not later than notBefore")
	case s.NotAfter.Sub(s.NotBefore) > MaxTime:
		return bad("notAfter", fmt.Sprintf("is more than %d days after notBefore", int(MaxTime.Hours()/24)))
	}
	return nil
}

// Verify returns the statement of an envelope if one of the approvers signed it, it is
// about exactly b, and now is in its time. The error is a *signed.FieldError that names
// what is not as approved.
//
// SECURITY: what runs is, byte for byte, what a human approved.
// A reviewed script that is exchanged before it runs has every right of the reviewed one.
// Holds because: the capability makes b of the very bytes that it then runs, the signature
// covers all of b, and the comparison comes before the first of them is unpacked.
// Not covered: a human who does not look. Checked by: TestOneBitIsEnough.
func Verify(e signed.Envelope, approvers map[string]ed25519.PublicKey, b Bound, now time.Time) (Statement, error) {
	bad := func(field, why string) (Statement, error) {
		return Statement{}, &signed.FieldError{Field: field, Why: why}
	}
	name, key, ok := owner(approvers, e.KeyID)
	if !ok {
		return bad("keyId", "names no key of an approver of this project")
	}
	payload, err := e.Open(signed.Approval, key)
	if err != nil {
		return Statement{}, err
	}
	var s Statement
	dec := json.NewDecoder(bytes.NewReader(payload))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&s); err != nil || dec.More() {
		return bad("payload", "is not a statement of this version")
	}
	if err := s.check(); err != nil {
		return Statement{}, err
	}
	strong, err := b.Strong()
	if err != nil {
		return bad("bound", "has no digest: "+err.Error())
	}
	switch {
	case s.Approver != name:
		return bad("approver", "is not the owner of the key")
	case s.Capability != b.Capability:
		return bad("capability", "is another than the approved one")
	case s.Project != b.Project:
		return bad("project", "is another than the approved one")
	}
	if field := s.Bound.Difference(b); field != "" {
		return bad(field, "is not as it was approved")
	}
	switch {
	case s.Digest != b.Digest:
		return bad("digest", "is not the approved one")
	case s.BoundDigest != strong:
		return bad("boundDigest", "is not the approved one")
	case now.Before(s.NotBefore):
		return bad("notBefore", "is "+s.NotBefore.Format(time.RFC3339)+": it is too early")
	case now.After(s.NotAfter):
		return bad("notAfter", "was "+s.NotAfter.Format(time.RFC3339)+": the approval has expired")
	}
	return s, nil
}

func owner(approvers map[string]ed25519.PublicKey, keyID string) (string, ed25519.PublicKey, bool) {
	for name, key := range approvers {
		if signed.KeyID(key) == keyID {
			return name, key, true
		}
	}
	return "", nil, false
}
