package config

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"path/filepath"
	"time"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/capability/action"
	"github.com/direct-oci/engine/capability/approval"
	"github.com/direct-oci/engine/capability/audit"
	"github.com/direct-oci/engine/capability/firestore"
	"github.com/direct-oci/engine/capability/sandbox"
	"github.com/direct-oci/engine/capability/secret"
	"github.com/direct-oci/engine/capability/signed"
	"github.com/direct-oci/engine/capability/workload"
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
		r.Projects[slug] = c.project(slug, p, pageKey(receipts))
	}
	return r
}

func (c Config) project(slug string, p Project, pageKey []byte) capability.Project {
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
	databases := databasesOf(p, pageKey)
	project.Built = firestore.Connectors(databases)
	project.Credentials = map[string]secret.Source{}
	for name, e := range p.Environments {
		if e.Firestore != nil && e.Firestore.Credentials != nil {
			project.Credentials[firestore.CredentialsOf(name)] = *e.Firestore.Credentials
		}
	}
	if c.Sandbox == nil {
		return project
	}
	profile, installer := c.Profile(), c.Installer()
	project.Built = append(project.Built, workload.Execute{Profile: profile, Install: installer})
	if p.Actions != "" {
		project.Load = func() ([]capability.Capability, []capability.Problem) {
			return action.Load(p.Actions, profile, installer)
		}
	}
	return project
}

// databasesOf makes the databases of a project's environments, by name.
func databasesOf(p Project, pageKey []byte) map[string]*firestore.Database {
	databases := map[string]*firestore.Database{}
	for name, e := range p.Environments {
		f := e.Firestore
		if f == nil {
			continue
		}
		c := firestore.Config{
			Project: f.Project, Database: firestore.DefaultDatabase, Emulator: f.Emulator,
			Rows: firestore.DefaultRows, Bytes: firestore.DefaultBytes, Timeout: firestore.DefaultTimeout,
		}
		if f.Database != "" {
			c.Database = f.Database
		}
		if f.Limits.Rows > 0 {
			c.Rows = int(f.Limits.Rows)
		}
		if f.Limits.Bytes > 0 {
			c.Bytes = int(f.Limits.Bytes)
		}
		if f.Limits.TimeoutSeconds > 0 {
			c.Timeout = time.Duration(f.Limits.TimeoutSeconds * float64(time.Second))
		}
		for _, m := range f.Masks {
			c.Masks = append(c.Masks, firestore.Mask(m))
		}
		databases[name] = &firestore.Database{Config: c, PageKey: pageKey}
	}
	return databases
}

// pageKey is the secret by which a runner knows its own page tokens: made of the key of
// its receipts, which it keeps anyway.
func pageKey(receipts ed25519.PrivateKey) []byte {
	mac := hmac.New(sha256.New, receipts)
	mac.Write([]byte("page tokens v1"))
	return mac.Sum(nil)
}

// Profile is how programs are run. The config has a sandbox.
func (c Config) Profile() sandbox.Profile {
	s := *c.Sandbox
	p := sandbox.Profile{
		Host:  c.Host(),
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
