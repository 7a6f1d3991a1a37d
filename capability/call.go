package capability

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/direct-oci/engine/capability/approval"
	"github.com/direct-oci/engine/capability/audit"
	"github.com/direct-oci/engine/capability/jsjson"
	"github.com/direct-oci/engine/capability/secret"
	"github.com/direct-oci/engine/capability/signed"
	"github.com/direct-oci/engine/engine"
)

// Runner dispatches calls. It is not changed after it was made: a new config is a new
// Runner, and calls that are under way end with the old one.
type Runner struct {
	Projects    map[string]Project
	Audit       audit.Log
	Burned      approval.Burned
	Approved    Approved // what was approved last
	Receipts    ed25519.PrivateKey
	Development bool   // approvals may be left out, by ApproveLocally
	Redact      bool   // exact values of secrets are taken out of what is returned
	Credentials string // systemd's directory of credentials; "" without one
	// Admit waits until the host has room for a call of the project, which it holds until
	// leave is called. The error is an *engine.Error. nil: nobody has to wait.
	Admit func(ctx context.Context, id, project string, room engine.Limits) (leave func(), err error)
}

// Call is one request.
type Call struct {
	ID          string // 16 hexadecimal digits that no other call has; "": chosen
	Project     string
	Capability  string
	Environment string
	Args        []byte           // JSON; empty is {}
	Approval    *signed.Envelope // nil: none was given
	// ApproveLocally stands for an approval, in development mode alone.
	ApproveLocally bool
	Caller         string       // who asks, for the audit log
	Log            func(string) // progress, as it comes; may be nil
}

// Reply is what came of a call.
type Reply struct {
	ID      string          // of the call
	Output  any             // of JSON
	Receipt signed.Envelope // of a run that began
}

// maxArgs bounds the arguments of a call, before they are read.
const maxArgs = 64 << 20

// MaxValues bounds the values of JSON that are held against a schema: each one of them
// may be wrong, and is then explained.
const MaxValues = 1 << 17

// Of what others wrote, this much is noted in the audit log.
const (
	maxNotedName    = 200
	maxNotedMessage = 4 << 10
)

// shorten cuts a text that is too long, and says so.
func shorten(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + fmt.Sprintf("... (%d bytes)", len(text))
}

// call is a Call on its way.
type call struct {
	Call
	runner  *Runner
	id      string
	project Project
	entry   entry
	redact  secret.Redactor
}

// Call does what is asked for. After an error the reply may hold a receipt: the run
// began, and came to nothing.
func (r *Runner) Call(ctx context.Context, ask Call) (Reply, error) {
	c, err := r.newCall(ask)
	if err != nil {
		return Reply{ID: c.id}, err
	}
	sum := sha256.Sum256(c.Args)
	presented := map[string]any{
		"caller": c.Caller, "environment": shorten(c.Environment, maxNotedName), "argsSha256": hex.EncodeToString(sum[:]), "argsBytes": len(c.Args),
		"approvalGiven": c.Approval != nil, "approveLocally": c.ApproveLocally,
	}
	if err := c.note(audit.Entry{Event: "dispatch", Presented: presented}); err != nil {
		return Reply{ID: c.id}, err
	}
	reply, err := c.do(ctx)
	return c.answer(reply, err)
}

var idForm = regexp.MustCompile(`^[0-9a-f]{16}$`)

func (r *Runner) newCall(ask Call) (*call, error) {
	c := &call{Call: ask, runner: r, id: ask.ID}
	if c.Log == nil {
		c.Log = func(string) {}
	}
	if c.id == "" {
		c.id = newID()
	}
	if !idForm.MatchString(c.id) {
		return c, engine.Refused("bad_id", "cannot accept id=%q of a call: want 16 hexadecimal digits", c.id)
	}
	return c, nil
}

// answer notes an error in the audit log.
func (c *call) answer(reply Reply, err error) (Reply, error) {
	reply.ID = c.id
	if err == nil {
		return reply, nil
	}
	e := engine.AsError(err)
	return reply, errors.Join(e, c.note(audit.Entry{Event: "refused", Observed: map[string]any{"class": e.Class, "kind": e.Kind, "message": shorten(c.redact.Text(e.Message), maxNotedMessage)}}))
}

func newID() string {
	b := make([]byte, 8)
	rand.Read(b)
	return hex.EncodeToString(b)
}

// note writes one line of the audit log. What cannot be audited is not done.
func (c *call) note(e audit.Entry) error {
	e.Call, e.Project, e.Capability = c.id, shorten(c.Project, maxNotedName), shorten(c.Capability, maxNotedName)
	if _, err := c.runner.Audit.Append(e); err != nil {
		return engine.Failed("no_audit", "%w", err).WithFix("make room for the audit log, and have it looked at with engine audit verify")
	}
	return nil
}

// Prepare resolves what a call would do, and does nothing. It is the first half of
// Call, for a reviewer.
func (r *Runner) Prepare(ctx context.Context, ask Call) (Prepared, Info, error) {
	c := &call{Call: ask, runner: r}
	prepared, err := c.prepare(ctx)
	return prepared, c.entry.info, err
}

func (c *call) prepare(ctx context.Context) (Prepared, error) {
	var err error
	if c.project, c.entry, err = c.runner.find(c.Project, c.Capability); err != nil {
		return Prepared{}, err
	}
	environment, err := c.project.environment(c.Environment)
	if err != nil {
		return Prepared{}, err
	}
	if len(c.Args) > maxArgs {
		return Prepared{}, engine.Refused("bad_arguments", "cannot accept arguments of %d bytes: the limit is %d", len(c.Args), maxArgs)
	}
	text := c.Args
	if len(text) == 0 {
		text = []byte("{}")
	}
	args, err := jsjson.ParseAtMost(text, MaxValues)
	if err != nil {
		return Prepared{}, engine.Refused("bad_arguments", "cannot read the arguments of %s: %w", c.Capability, err)
	}
	if v := c.entry.schema.Validate(args); v != nil {
		return Prepared{}, invalidArguments(c.Capability, v)
	}
	prepared, err := c.entry.Prepare(ctx, Ask{Project: c.Project, Environment: environment, Args: args})
	if err != nil {
		return Prepared{}, err
	}
	prepared.Bound.Capability, prepared.Bound.Project, prepared.Bound.Environment = c.Capability, c.Project, environment
	for _, name := range prepared.Bound.Secrets {
		if _, ok := c.project.Secrets[name]; !ok {
			return Prepared{}, c.missing(name, errors.New("project "+c.Project+" has no secret of this name"))
		}
	}
	if name := prepared.Credentials; name != "" {
		if _, ok := c.project.Credentials[name]; !ok {
			return Prepared{}, engine.Failed("internal", "internal error: project=%s has no credentials=%q", c.Project, name)
		}
	}
	return prepared, nil
}

// admit waits for room, if what runs takes any.
func (c *call) admit(ctx context.Context, p Prepared) (leave func(), err error) {
	if c.runner.Admit == nil || p.Room == (engine.Limits{}) {
		return func() {}, nil
	}
	return c.runner.Admit(ctx, c.id, c.Project, p.Room)
}

func (c *call) missing(name string, why error) *engine.Error {
	return engine.Refused("no_secret", "cannot get secret=%s: %w", name, why).
		WithFix("configure it for the project, or do not ask for it")
}

func (c *call) do(ctx context.Context) (Reply, error) {
	p, err := c.prepare(ctx)
	if err != nil {
		return Reply{}, err
	}
	for _, w := range p.Warnings {
		c.Log("warning: " + w)
	}
	auth, burn, err := c.verify(p)
	if err != nil {
		return Reply{}, errors.Join(err, c.note(audit.Entry{Event: "approval", Authorised: map[string]any{"refused": shorten(err.Error(), maxNotedMessage)}}))
	}
	// No room is held and no secret read for a call that nobody approved, and no run of an
	// approval is used up for one that finds no room or whose secrets are not to be had.
	leave, err := c.admit(ctx, p)
	if err != nil {
		return Reply{}, err
	}
	defer leave()
	env, err := c.secrets(ctx, p)
	if err != nil {
		return Reply{}, err
	}
	defer env.forget()
	if auth, err = c.authorise(p, auth, burn); err != nil {
		return Reply{}, err
	}
	used := p.Bound.Secrets
	if p.Credentials != "" {
		used = append(slices.Clone(used), p.Credentials)
	}
	if len(used) > 0 {
		if err := c.note(audit.Entry{Event: "secret", Attempted: map[string]any{"names": used}}); err != nil {
			return Reply{}, err
		}
	}
	return c.run(ctx, p, auth, env)
}

// secrets reads the values of the project's secrets, and a connector's credentials.
//
// SECURITY: a program gets the secrets that it declares, of its own project or the
// runner's, and none else. The replaced system fell back to the runner's environment.
// Holds because: this is the only place that reads values, and it looks into the
// project's table alone. Not covered: one value under two names.
// Checked by: TestSecretsAreOfTheProject.
func (c *call) secrets(ctx context.Context, p Prepared) (Env, error) {
	env := Env{Secrets: map[string][]byte{}}
	for _, name := range p.Bound.Secrets {
		value, err := c.project.Secrets[name].Read(ctx, c.runner.Credentials)
		if err != nil {
			return Env{}, c.missing(name, err)
		}
		env.Secrets[name] = value
	}
	hidden := maps.Clone(env.Secrets)
	if name := p.Credentials; name != "" {
		value, err := c.project.Credentials[name].Read(ctx, c.runner.Credentials)
		if err != nil {
			return Env{}, engine.Failed("no_credentials", "cannot get the credentials %q of project=%s: %w", name, c.Project, err).
				WithFix("look at them in the config, and with engine config check --secrets")
		}
		env.Credentials, hidden[name] = value, value
	}
	if c.runner.Redact {
		c.redact = secret.NewRedactor(hidden)
	}
	return env, nil
}

// Authorised is who agreed to a run. The zero value is a read's.
type Authorised struct {
	Approver string `json:"approver"` // "" where nobody had to agree
	KeyID    string `json:"keyId"`
	Nonce    string `json:"nonce"`
	Run      int    `json:"run"` // which one of maxRuns
	MaxRuns  int    `json:"maxRuns"`
	Approved string `json:"approved"` // SHA-256 of the approval's payload
	Local    bool   `json:"local"`    // nobody agreed: development mode
}

// authorise uses up one run of the approval, if there is one, and notes who agreed.
func (c *call) authorise(p Prepared, auth Authorised, burn func() (int, error)) (Authorised, error) {
	var err error
	if burn != nil {
		auth.Run, err = burn()
	}
	line := audit.Entry{Event: "approval", Authorised: auth}
	if err != nil {
		err = c.approvalError(err)
		line.Authorised = map[string]any{"refused": shorten(err.Error(), maxNotedMessage)}
	}
	if err := errors.Join(err, c.note(line)); err != nil {
		return auth, err
	}
	if auth.Approver != "" {
		// For the next reviewer to compare with. It decides nothing, so a full disk does
		// not keep the run from happening.
		if err := c.runner.Approved.Save(p); err != nil {
			c.Log("warning: cannot keep what was approved for the next review: " + err.Error())
		}
	}
	return auth, nil
}

// verify decides whether the run may begin. burn, which is nil where there is no
// approval, uses up one run of it.
func (c *call) verify(p Prepared) (auth Authorised, burn func() (int, error), err error) {
	info := c.entry.info
	switch {
	case info.Hazard == Read && c.Approval == nil:
		return Authorised{}, nil, nil
	case c.Approval == nil && c.ApproveLocally && c.runner.Development:
		c.Log("warning: development mode: nobody has approved this")
		return Authorised{Local: true}, nil, nil
	case c.Approval == nil && c.ApproveLocally:
		return Authorised{}, nil, engine.Refused("not_approved", "cannot approve %s locally: this runner is not in development mode", info.Name).
			WithFix("get an approval with engine approve")
	case c.Approval == nil:
		return Authorised{}, nil, engine.Refused("not_approved", "cannot run %s of project=%s without an approval: its hazard is %s", info.Name, c.Project, info.Hazard).
			WithFix("get an approval with engine approve, and give it with --approval")
	}
	s, err := approval.Verify(*c.Approval, c.project.Approvers, p.Bound, time.Now())
	if err != nil {
		return Authorised{}, nil, c.approvalError(err)
	}
	sum := sha256.Sum256(c.Approval.Payload)
	auth = Authorised{Approver: s.Approver, KeyID: c.Approval.KeyID, Nonce: s.Nonce, MaxRuns: s.MaxRuns, Approved: hex.EncodeToString(sum[:])}
	return auth, func() (int, error) {
		// It may have expired while the call waited.
		if _, err := approval.Verify(*c.Approval, c.project.Approvers, p.Bound, time.Now()); err != nil {
			return 0, err
		}
		return c.runner.Burned.Burn(*c.Approval, s)
	}, nil
}

// approvalError says why an approval does not help.
func (c *call) approvalError(err error) *engine.Error {
	var field *signed.FieldError
	switch {
	case errors.As(err, &field):
		return engine.Refused("approval_refused", "cannot run %s with this approval: %w", c.Capability, err).
			WithFix("get an approval of exactly this with engine approve")
	case errors.Is(err, approval.ErrUsedUp):
		return engine.Refused("approval_used", "cannot run %s with this approval: %w", c.Capability, err).
			WithFix("get a new approval with engine approve")
	default:
		return engine.Failed("no_record", "%w", err)
	}
}

// run runs what was authorised, and writes the receipt of it.
func (c *call) run(ctx context.Context, p Prepared, auth Authorised, env Env) (Reply, error) {
	strong, err := p.Bound.Strong()
	if err != nil {
		return Reply{}, engine.Failed("internal", "internal error: %w", err)
	}
	if err := c.note(audit.Entry{Event: "start", Attempted: map[string]any{"digest": p.Bound.Digest, "boundDigest": strong}}); err != nil {
		return Reply{}, err
	}
	began := time.Now()
	out, runErr := p.Run(ctx, c.complete(env))
	return c.conclude(out, runErr, newReceipt(c, p, auth, strong), began)
}

// forget clears the values of secrets.
func (e Env) forget() {
	for _, v := range e.Secrets {
		clear(v)
	}
	clear(e.Credentials)
}

// complete adds what every run is given.
func (c *call) complete(env Env) Env {
	env.Call, env.Redact = c.id, c.redact.Text
	env.Log = func(line string) { c.Log(c.redact.Text(line)) }
	return env
}

// conclude notes how a run ended, and signs its receipt.
func (c *call) conclude(out Outcome, runErr error, receipt *Receipt, began time.Time) (Reply, error) {
	receipt.Began, receipt.Ended = began.UTC(), time.Now().UTC()
	if err := receipt.observe(out, runErr); err != nil {
		return Reply{}, err
	}
	head, err := c.runner.Audit.Append(audit.Entry{
		Event: "end", Call: c.id, Project: c.Project, Capability: c.Capability, Observed: receipt.Observed,
	})
	if err != nil {
		return Reply{}, errors.Join(runErr, engine.Failed("no_audit", "%w", err))
	}
	receipt.Audit = head
	envelope, err := receipt.sign(c.runner.Receipts)
	if err != nil {
		return Reply{}, errors.Join(runErr, engine.Failed("internal", "internal error: %w", err))
	}
	return Reply{Output: out.Output, Receipt: envelope}, runErr
}
