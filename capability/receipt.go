package capability

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"time"

	"github.com/direct-oci/engine/capability/approval"
	"github.com/direct-oci/engine/capability/audit"
	"github.com/direct-oci/engine/capability/jsjson"
	"github.com/direct-oci/engine/capability/signed"
	"github.com/direct-oci/engine/engine"
)

// Receipt is what a runner signs about a run: what was approved, what ran, and what
// the host saw. It holds hashes of the output, not the output.
type Receipt struct {
	Version     int            `json:"version"` // 1
	Call        string         `json:"call"`
	Title       string         `json:"title"`
	Authorised  Authorised     `json:"authorised"`
	Digest      string         `json:"digest"`
	BoundDigest string         `json:"boundDigest"`
	Bound       approval.Bound `json:"bound"`
	Began       time.Time      `json:"began"`
	Ended       time.Time      `json:"ended"`
	Observed    Observed       `json:"observed"`
	Audit       audit.Head     `json:"audit"` // the run's last line in the audit log
	Engine      string         `json:"engine"`
}

// Observed is what the host saw of a run.
type Observed struct {
	Run          string              `json:"run"`    // id of the engine's record; "" without a sandbox
	Reason       string              `json:"reason"` // "" where it never started, or without a sandbox
	ExitCode     *int                `json:"exitCode"`
	Image        engine.ImageInfo    `json:"image"`
	Layers       []engine.LayerInfo  `json:"layers"` // of dependencies, over the image
	Runtime      engine.RuntimeInfo  `json:"runtime"`
	Limits       engine.ResultLimits `json:"limits"`
	Unenforced   []string            `json:"unenforced"`
	Network      engine.NetworkInfo  `json:"network"` // policy, connections made and denied
	Actuals      engine.Usage        `json:"actuals"`
	DurationMs   float64             `json:"durationMs"`
	StdoutSHA256 string              `json:"stdoutSha256"` // of what was kept, before redaction
	StderrSHA256 string              `json:"stderrSha256"`
	StdoutBytes  int64               `json:"stdoutBytes"` // as written, also what was not kept
	StderrBytes  int64               `json:"stderrBytes"`
	OutputSHA256 string              `json:"outputSha256"` // of the line of JSON that the caller got
	Error        string              `json:"error"`        // kind of the failure, "" without one
}

func newReceipt(c *call, p Prepared, auth Authorised, strong string) *Receipt {
	return &Receipt{
		Version: 1, Call: c.id, Title: p.Title, Authorised: auth, Digest: p.Bound.Digest, BoundDigest: strong,
		Bound: p.Bound, Engine: engine.Version,
	}
}

// observe takes in what came of the run.
func (r *Receipt) observe(out Outcome, runErr error) error {
	o := Observed{Unenforced: []string{}, Layers: []engine.LayerInfo{}, Network: engine.NetworkInfo{Mode: "none", Denied: []engine.Denied{}, Allowed: []engine.Allowed{}}}
	if runErr != nil {
		o.Error = engine.AsError(runErr).Kind
	}
	output, err := EncodeOutput(out.Output)
	if err != nil {
		return engine.Failed("internal", "internal error: the output has no JSON form: %w", err)
	}
	o.OutputSHA256 = hash(output)
	if res := out.Result; res != nil {
		o.Layers = append(o.Layers, res.Layers...)
		o.Run, o.ExitCode, o.Image, o.Runtime, o.Limits = res.ID, res.ExitCode, res.Image, res.Runtime, res.Limits
		o.Unenforced, o.Network, o.Actuals, o.DurationMs = res.Unenforced, res.Network, res.Actuals, res.DurationMs
		o.StdoutSHA256, o.StderrSHA256 = hash([]byte(res.Stdout)), hash([]byte(res.Stderr))
		o.StdoutBytes, o.StderrBytes = res.StdoutBytes, res.StderrBytes
		if res.Reason != nil {
			o.Reason = string(*res.Reason)
		}
	}
	r.Observed = o
	return nil
}

// EncodeOutput writes the output of a call: one line of JSON. It is what every edge gives
// to callers, to the byte, for a receipt holds its hash: so it has no character that a
// terminal obeys.
func EncodeOutput(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return []byte(jsjson.Printable(b.String())), err
}

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func (r *Receipt) sign(key ed25519.PrivateKey) (signed.Envelope, error) {
	payload, err := json.Marshal(r)
	if err != nil {
		return signed.Envelope{}, err
	}
	return signed.Sign(signed.Receipt, key, payload), nil
}

// OpenReceipt verifies a receipt by the runner's public key, without the runner.
func OpenReceipt(e signed.Envelope, key ed25519.PublicKey) (Receipt, error) {
	payload, err := e.Open(signed.Receipt, key)
	if err != nil {
		return Receipt{}, err
	}
	var r Receipt
	if err := json.Unmarshal(payload, &r); err != nil || r.Version != 1 {
		return Receipt{}, &signed.FieldError{Field: "payload", Why: "is not a receipt of this version"}
	}
	strong, err := r.Bound.Strong()
	if err != nil || strong != r.BoundDigest || r.Bound.Digest != r.Digest {
		return Receipt{}, errors.Join(&signed.FieldError{Field: "boundDigest", Why: "is not that of what was bound"}, err)
	}
	return r, nil
}
