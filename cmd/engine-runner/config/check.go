package config

import (
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"

	"github.com/direct-oci/engine/capability/firestore"
	"github.com/direct-oci/engine/capability/sandbox"
	"github.com/direct-oci/engine/capability/secret"
	"github.com/direct-oci/engine/capability/signed"
	"github.com/direct-oci/engine/cmd/engine-runner/link/wire"
	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/engine/spelling"
)

var slugForm = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,99}$`)

// checker collects what is wrong with values of the right types.
type checker struct {
	config   *Config
	problems []Problem
}

func (c *checker) bad(key, message, fix string) {
	c.problems = append(c.problems, Problem{c.config.lines[key], key, message, fix})
}

// check says what is wrong with the config, as far as can be told without the host.
func (c *Config) check() []Problem {
	k := &checker{config: c}
	k.approvers()
	k.secrets("secrets", c.Secrets)
	for slug, p := range c.Projects {
		k.project(slug, p)
	}
	if c.Sandbox != nil {
		k.sandbox(*c.Sandbox)
	}
	if c.ControlPlane != nil {
		k.controlPlane(*c.ControlPlane)
	}
	if c.Service != nil {
		k.service(*c.Service)
	}
	for key, dir := range map[string]string{"stateDir": c.StateDir, "runDir": c.RunDir} {
		if dir != "" && !filepath.IsAbs(dir) {
			k.bad(key, "is not an absolute path", "")
		}
	}
	for key, mb := range map[string]float64{"minFreeDiskMb": c.MinFreeDiskMB, "minFreeMemoryMb": c.MinFreeMemoryMB} {
		if !(mb >= 0 && mb <= 1e9) && mb != -1 {
			k.bad(key, "is neither a number of MiB nor -1", "")
		}
	}
	sortProblems(k.problems)
	return k.problems
}

// approvers wants a key for each of them: an approval names its key, and has to tell who
// agreed.
func (k *checker) approvers() {
	owners := map[string]string{}
	for _, name := range keys(k.config.Approvers) {
		at := "approvers." + name + ".publicKey"
		key, err := signed.ParsePublicKey(k.config.Approvers[name].PublicKey)
		if err != nil {
			k.bad(at, err.Error(), "make a pair with engine approve keygen")
			continue
		}
		if other, taken := owners[signed.KeyID(key)]; taken {
			k.bad(at, "is the key of "+other+" too", "make a pair for each with engine approve keygen")
		}
		owners[signed.KeyID(key)] = name
	}
}

func (k *checker) secrets(at string, sources map[string]secret.Source) {
	for name, s := range sources {
		key := at + "." + name
		if !engine.ValidEnvName(name) {
			// What stands in the place of a name may be a value.
			k.problems = append(k.problems, Problem{
				k.config.lines[key], at, "has a name of a secret that cannot be an environment variable's", "use letters, digits and _",
			})
			continue
		}
		if err := s.Check(); err != nil {
			k.bad(key, "is no source of a secret: "+err.Error(), "")
		}
	}
}

func (k *checker) controlPlane(p ControlPlane) {
	k.secrets("controlPlane", map[string]secret.Source{"signingSecret": p.SigningSecret})
	if value := p.SigningSecret.Value; value != "" && len(value) < wire.MinSecret {
		k.bad("controlPlane.signingSecret", fmt.Sprintf("has less than %d bytes", wire.MinSecret), "take 32 random ones")
	}
	if err := wire.CheckURL(p.URL); err != nil {
		k.bad("controlPlane.url", err.Error(), "")
	}
	if !wire.ValidName(p.Identity) {
		k.bad("controlPlane.identity", "is no name of a runner", "use at most 128 letters, digits and . _ : @ -")
	}
	if p.CAFile != "" && !filepath.IsAbs(p.CAFile) {
		k.bad("controlPlane.caFile", "is not an absolute path", "")
	}
	for _, n := range []struct {
		key                string
		value, least, most float64
	}{
		{"maxConcurrent", float64(p.MaxConcurrent), 1, 1000},
		{"maxOutboxMb", p.MaxOutboxMB, 64, 1 << 20},
		{"clockSkewSeconds", p.ClockSkewSeconds, 1, 3600},
	} {
		if n.value != 0 && (n.value < n.least || n.value > n.most) {
			k.bad("controlPlane."+n.key, fmt.Sprintf("is not between %v and %v", n.least, n.most), "")
		}
	}
}

func (k *checker) project(slug string, p Project) {
	at := "projects." + slug
	if !slugForm.MatchString(slug) {
		k.bad(at, "is no slug", "use lower-case letters, digits, dots, _ and -")
	}
	k.secrets(at+".secrets", p.Secrets)
	for i, name := range p.Approvers {
		if _, ok := k.config.Approvers[name]; !ok {
			fix := "add it to approvers"
			if best := spelling.Nearest(name, keys(k.config.Approvers)); best != "" {
				fix = "did you mean " + best + "?"
			}
			k.bad(fmt.Sprintf("%s.approvers[%d]", at, i), "is none of the approvers", fix)
		}
	}
	for name, e := range p.Environments {
		if !slugForm.MatchString(name) {
			k.bad(at+".environments."+name, "is no name of an environment", "use lower-case letters, digits, dots, _ and -")
		}
		if e.Firestore != nil {
			k.firestore(at+".environments."+name+".firestore", *e.Firestore)
		}
	}
	if p.Actions != "" && !filepath.IsAbs(p.Actions) {
		k.bad(at+".actions", "is not an absolute path", "")
	}
	if p.Actions != "" && k.config.Sandbox == nil {
		k.bad(at+".actions", "needs a sandbox to run in", "configure sandbox")
	}
}

var (
	cloudProject  = regexp.MustCompile(`^[a-z][a-z0-9.:-]{2,99}$`)
	cloudDatabase = regexp.MustCompile(`^(\(default\)|[a-z][a-z0-9-]{2,61}[a-z0-9])$`)
)

func (k *checker) firestore(at string, f Firestore) {
	if !cloudProject.MatchString(f.Project) {
		k.bad(at+".project", "is no id of a Google Cloud project", "take the id, not the name or the number")
	}
	if f.Database != "" && !cloudDatabase.MatchString(f.Database) {
		k.bad(at+".database", "is no id of a database", "leave it out for the database that is called (default)")
	}
	switch {
	case (f.Credentials == nil) == (f.Emulator == ""):
		k.bad(at, "wants credentials, or an emulator instead", "")
	case f.Credentials != nil:
		if err := f.Credentials.Check(); err != nil {
			k.bad(at+".credentials", "is no source of a secret: "+err.Error(), "")
		}
	default:
		if host, port, err := net.SplitHostPort(f.Emulator); err != nil || host == "" || port == "" {
			k.bad(at+".emulator", "is not HOST:PORT", "write it as localhost:8080")
		}
	}
	l := f.Limits
	for name, v := range map[string]struct{ asked, most float64 }{
		"rows": {float64(l.Rows), 100_000}, "bytes": {float64(l.Bytes), 1 << 30}, "timeoutSeconds": {l.TimeoutSeconds, 3600},
	} {
		if v.asked < 0 || v.asked > v.most {
			k.bad(at+".limits."+name, fmt.Sprintf("is not between 0, for the default, and %.0f", v.most), "")
		}
	}
	for i, m := range f.Masks {
		if err := firestore.Mask(m).Check(); err != nil {
			k.bad(fmt.Sprintf("%s.masks[%d]", at, i), "masks nothing: "+err.Error(), "write fields as name or map.name")
		}
	}
}

func (k *checker) sandbox(s Sandbox) {
	if s.Image == "" {
		k.bad("sandbox.image", "is empty", "name an imported image, see engine image ls")
	}
	k.runtime("sandbox.runtime", s.Runtime, engine.Runtimes[1:]) // auto would leave open what an approval has to name
	k.limits("sandbox.limits", s.Limits)
	if s.Dependencies != nil {
		k.dependencies(*s.Dependencies)
	}
	if _, err := sandbox.ParseGrants(s.Egress.Allow); err != nil {
		k.bad("sandbox.egress.allow", "is no list of grants: "+err.Error(), engine.AsError(err).Fix)
	}
}

// runtime wants one of known, or nothing.
func (k *checker) runtime(at, name string, known []string) {
	if name == "" || slices.Contains(known, name) {
		return
	}
	fix := ""
	if best := spelling.Nearest(name, known); best != "" {
		fix = "did you mean " + best + "?"
	}
	k.bad(at, "is none of "+strings.Join(known, ", "), fix)
}

func keys[T any](m map[string]T) []string {
	list := make([]string, 0, len(m))
	for k := range m {
		list = append(list, k)
	}
	sort.Strings(list)
	return list
}
