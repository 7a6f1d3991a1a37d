package capability

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/direct-oci/engine/capability/secret"
	"github.com/direct-oci/engine/engine"
)

// Project is what a runner does for one customer, and what with.
type Project struct {
	Slug         string
	Environments []string                     // sorted
	Approvers    map[string]ed25519.PublicKey // who must agree to what is no read
	Secrets      map[string]secret.Source     // its own and the runner's; its own win
	// Credentials are what connectors read with. They are no secrets that anybody can ask
	// for, and have names of their own.
	Credentials map[string]secret.Source

	// Built are capabilities that come with the program. Load, if not nil, returns
	// those that the customer installed, as they are now, and what is wrong with others.
	Built []Capability
	Load  func() ([]Capability, []Problem)
}

// Problem is a capability that cannot be offered.
type Problem struct {
	Project string `json:"project"`
	Name    string `json:"name"`
	Message string `json:"message"`
}

var nameForm = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9_-]*(\.[a-zA-Z0-9_-]+)*$`)

// entry is a capability with its schema.
type entry struct {
	Capability
	info   Info
	schema Schema
}

// list returns the capabilities of the project, sorted by name. One that is broken is
// a problem and hides no other.
func (p Project) list() ([]entry, []Problem) {
	all, problems := p.Built, []Problem{}
	if p.Load != nil {
		loaded, broken := p.Load()
		all = append(slices.Clone(all), loaded...)
		problems = append(problems, broken...)
	}
	var entries []entry
	for _, c := range all {
		info := c.Info()
		e, err := newEntry(c, info)
		if err == nil && slices.ContainsFunc(entries, func(e entry) bool { return e.info.Name == info.Name }) {
			err = fmt.Errorf("another capability has this name")
		}
		if err != nil {
			problems = append(problems, Problem{p.Slug, info.Name, err.Error()})
			continue
		}
		entries = append(entries, e)
	}
	for i := range problems {
		problems[i].Project = p.Slug
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.info.Name, b.info.Name) })
	return entries, problems
}

func newEntry(c Capability, info Info) (entry, error) {
	if !nameForm.MatchString(info.Name) || len(info.Name) > 100 {
		return entry{}, fmt.Errorf("%q is no name: want letters, digits, _ and -, in parts with dots between", info.Name)
	}
	if info.Kind == Connector && info.Hazard != Read {
		return entry{}, fmt.Errorf("internal error: a connector that is no read")
	}
	schema, err := CompileSchema(info.Params)
	return entry{c, info, schema}, err
}

// Listed is a capability as the list of all shows it.
type Listed struct {
	Project string `json:"project"`
	Info
}

// Capabilities lists what may be asked for, in all projects or in one, and what cannot
// be offered. An unknown project is an *engine.Error.
func (r *Runner) Capabilities(project string) ([]Listed, []Problem, error) {
	list, problems := []Listed{}, []Problem{}
	for _, slug := range r.slugs() {
		if project != "" && slug != project {
			continue
		}
		entries, broken := r.Projects[slug].list()
		for _, e := range entries {
			list = append(list, Listed{slug, e.info})
		}
		problems = append(problems, broken...)
	}
	if _, ok := r.Projects[project]; !ok && project != "" {
		return nil, nil, r.noProject(project)
	}
	return list, problems, nil
}

// Close closes what capabilities keep open between calls. Calls that are under way end
// as they would have.
func (r *Runner) Close() error {
	var errs []error
	for _, p := range r.Projects {
		for _, c := range p.Built {
			if open, ok := c.(io.Closer); ok {
				errs = append(errs, open.Close())
			}
		}
	}
	return errors.Join(errs...)
}

func (r *Runner) slugs() []string {
	var slugs []string
	for slug := range r.Projects {
		slugs = append(slugs, slug)
	}
	slices.Sort(slugs)
	return slugs
}

func (r *Runner) noProject(slug string) *engine.Error {
	fix := "configure a project"
	if slugs := r.slugs(); len(slugs) > 0 {
		fix = "choose one of " + strings.Join(slugs, ", ")
	}
	return engine.Refused("no_project", "cannot find project=%q: the runner's config has none of this name", slug).WithFix(fix)
}

// find returns a project and one of its capabilities.
func (r *Runner) find(project, name string) (Project, entry, error) {
	p, ok := r.Projects[project]
	if !ok {
		return Project{}, entry{}, r.noProject(project)
	}
	entries, problems := p.list()
	var names []string
	for _, e := range entries {
		if e.info.Name == name {
			return p, e, nil
		}
		names = append(names, e.info.Name)
	}
	for _, b := range problems {
		if b.Name == name {
			return Project{}, entry{}, engine.Failed("broken_capability", "cannot offer capability=%s of project=%s: %s", name, project, b.Message).
				WithFix("have it repaired; engine action check says what is wrong with an action")
		}
	}
	e := engine.Refused("no_capability", "cannot find capability=%q in project=%s", name, project)
	if len(names) > 0 {
		e.Fix = "choose one of " + strings.Join(names, ", ")
	}
	return Project{}, entry{}, e
}

// environment checks the environment that a call names.
func (p Project) environment(name string) (string, error) {
	switch {
	case name == "" && len(p.Environments) > 1:
		return "", engine.Refused("no_environment", "cannot choose between the environments of project=%s", p.Slug).
			WithFix("name one with --environment: " + strings.Join(p.Environments, ", "))
	case name == "" && len(p.Environments) == 1:
		return p.Environments[0], nil
	case name != "" && !slices.Contains(p.Environments, name):
		return "", engine.Refused("no_environment", "cannot find environment=%q of project=%s", name, p.Slug)
	}
	return name, nil
}
