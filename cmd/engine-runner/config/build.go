package config

import (
	"crypto/ed25519"
	"path/filepath"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/capability/action"
	"github.com/direct-oci/engine/capability/approval"
	"github.com/direct-oci/engine/capability/audit"
	"github.com/direct-oci/engine/capability/sandbox"
	"github.com/direct-oci/engine/capability/secret"
	"github.com/direct-oci/engine/capability/signed"
	"github.com/direct-oci/engine/capability/workload"
	"github.com/direct-oci/engine/engine"
)

// DefaultStateDir is where records are unless the config says otherwise.
const DefaultStateDir = "/var/lib/engine"

// State is the directory of the config's records.
func (c Config) State() string {
	if c.StateDir == "" {
		return DefaultStateDir
	}
	return c.StateDir
}

// Files in the state directory.
const (
	auditName    = "audit.jsonl"
	burnedName   = "approvals/used"
	approvedName = "approvals/last"
	receiptsName = "receipts"
)

// AuditPath is the audit log.
func (c Config) AuditPath() string { return filepath.Join(c.State(), auditName) }

// ReceiptDir is where receipts are, one file for each call, and the key that signs them.
func (c Config) ReceiptDir() string { return filepath.Join(c.State(), receiptsName) }

// Runner makes what dispatches calls by this config. It does not read secrets yet.
// credentials is systemd's directory, "" without one.
func (c Config) Runner(receipts ed25519.PrivateKey, credentials string) *capability.Runner {
	r := &capability.Runner{
		Projects:    map[string]capability.Project{},
		Audit:       audit.Log{Path: c.AuditPath()},
		Burned:      approval.Burned{Dir: filepath.Join(c.State(), burnedName)},
		Approved:    capability.Approved{Dir: filepath.Join(c.State(), approvedName)},
		Receipts:    receipts,
		Development: c.Development,
		Redact:      c.Redact == nil || *c.Redact,
		Credentials: credentials,
	}
	for slug, p := range c.Projects {
		r.Projects[slug] = c.project(slug, p)
	}
	return r
}

func (c Config) project(slug string, p Project) capability.Project {
	project := capability.Project{
		Slug: slug, Environments: keys(p.Environments),
		Approvers: map[string]ed25519.PublicKey{}, Secrets: map[string]secret.Source{},
	}
	names := p.Approvers
	if names == nil {
		names = keys(c.Approvers)
	}
	for _, name := range names {
		if key, err := signed.ParsePublicKey(c.Approvers[name].PublicKey); err == nil { // check has seen to it
			project.Approvers[name] = key
		}
	}
	for _, secrets := range []map[string]secret.Source{c.Secrets, p.Secrets} {
		for name, s := range secrets {
			project.Secrets[name] = s
		}
	}
	if c.Sandbox == nil {
		return project
	}
	profile, installer := c.Profile(), c.Installer()
	project.Built = []capability.Capability{workload.Execute{Profile: profile, Install: installer}}
	if p.Actions != "" {
		project.Load = func() ([]capability.Capability, []capability.Problem) {
			return action.Load(p.Actions, profile, installer)
		}
	}
	return project
}

// Profile is how programs are run. The config has a sandbox.
func (c Config) Profile() sandbox.Profile {
	s := *c.Sandbox
	p := sandbox.Profile{
		Host:  engine.Host{StateDir: c.State(), RunDir: c.RunDir, CgroupRoot: c.CgroupRoot},
		Image: s.Image, Runtime: s.Runtime, Max: sandbox.DefaultMax, BestEffortLimits: s.BestEffortLimits,
	}
	if p.Runtime == "" {
		p.Runtime = "runsc"
	}
	if s.Limits.CPUs > 0 {
		p.Max.CPUs = s.Limits.CPUs
	}
	if s.Limits.MemoryMB > 0 {
		p.Max.MemoryMB = s.Limits.MemoryMB
	}
	if s.Limits.TimeoutSeconds > 0 {
		p.Max.TimeoutSeconds = s.Limits.TimeoutSeconds
	}
	if s.Limits.Pids > 0 {
		p.Max.Pids = s.Limits.Pids
	}
	if ceiling, err := sandbox.ParseGrants(s.Egress.Allow); err == nil { // check has seen to it
		p.Ceiling = ceiling
	}
	p.Ceiling.Internet = p.Ceiling.Internet || s.Egress.Internet
	return p
}
