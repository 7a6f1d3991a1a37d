package dependency

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"sort"
	"strings"

	"github.com/direct-oci/engine/capability/jsjson"
)

const maxPackages = 20000

// NPMNeeds reports whether npm would install anything. A package.json that only says
// what kind of modules there are is common.
func NPMNeeds(manifest string) bool {
	v, err := jsjson.Parse([]byte(manifest))
	m, ok := v.(map[string]any)
	if err != nil || !ok {
		return true // to be refused, with a reason
	}
	for _, key := range []string{"dependencies", "optionalDependencies", "peerDependencies", "bundleDependencies", "bundledDependencies", "workspaces"} {
		switch v := m[key].(type) {
		case nil:
		case map[string]any:
			if len(v) > 0 {
				return true
			}
		default:
			return true
		}
	}
	return false
}

// OwnScripts warns of scripts in a package.json that npm would run when it installs.
func OwnScripts(manifest string) (warnings []string) {
	v, err := jsjson.Parse([]byte(manifest))
	if err != nil {
		return nil
	}
	m, _ := v.(map[string]any)
	scripts, _ := m["scripts"].(map[string]any)
	for _, name := range []string{"preinstall", "install", "postinstall", "prepare"} {
		if _, ok := scripts[name]; ok {
			warnings = append(warnings, npmManifest+": the program's own script "+name+" is not run")
		}
	}
	return warnings
}

// ReadNPM reads a package.json and a package-lock.json, "" without one. The error is an
// *Error.
func ReadNPM(manifest, lock string, registry Registry, scripts bool) (Set, error) {
	s := Set{Kind: NPM, Registry: registry, Scripts: scripts}
	if err := s.readManifest(manifest); err != nil {
		return Set{}, err
	}
	if lock == "" {
		return s, nil
	}
	l := npmReader{set: &s, others: map[string]bool{}}
	if err := l.read(lock); err != nil {
		return Set{}, &Error{npmLock, err.Error(), "write it anew: npm install --package-lock-only, with npm 7 or later"}
	}
	return s, nil
}

// keptKeys are those of a package.json that decide what is installed.
var keptKeys = []string{"name", "version", "dependencies", "devDependencies", "optionalDependencies", "peerDependencies", "peerDependenciesMeta", "overrides"}

// readManifest keeps of a package.json what decides what is installed. Its own scripts
// are never run: they are the program's, and the program is not there yet.
func (s *Set) readManifest(text string) error {
	bad := func(format string, args ...any) error {
		return &Error{npmManifest, fmt.Sprintf(format, args...), "depend on packages of the registry, by name and version"}
	}
	v, err := jsjson.Parse([]byte(text))
	if err != nil {
		return bad("%v", err)
	}
	m, ok := v.(map[string]any)
	if !ok {
		return bad("it is not an object")
	}
	kept := map[string]any{}
	for _, key := range keptKeys {
		if v, ok := m[key]; ok {
			kept[key] = v
		}
	}
	for _, key := range []string{"workspaces", "bundleDependencies", "bundledDependencies"} {
		if m[key] != nil {
			return bad("%s are not supported", key)
		}
	}
	for _, key := range keptKeys[2:] {
		if key == "peerDependenciesMeta" {
			continue
		}
		if at, spec := foreignSpec(kept[key], 0); at != "" {
			return bad("%s%s asks for %s, which is no version in a registry", key, at, bound(spec))
		}
	}
	out, err := jsjson.Canonical(kept)
	s.manifest = string(out)
	if err != nil {
		return bad("%v", err)
	}
	return nil
}

// foreignSpec finds the first wish, at any depth, that names a place and no version.
func foreignSpec(v any, depth int) (at, spec string) {
	const deepest = 32
	switch v := v.(type) {
	case nil:
		return "", ""
	case string:
		version := v
		if alias, ok := strings.CutPrefix(v, "npm:"); ok {
			version = strings.Replace(strings.TrimPrefix(alias, "@"), "/", "", 1) // of a scope
		}
		if strings.ContainsAny(version, ":/\\") || v == ".." || v == "." {
			return " ", v
		}
		return "", ""
	case map[string]any:
		if depth > deepest {
			return " ", "something too deep"
		}
		names := make([]string, 0, len(v))
		for name := range v {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			if at, spec := foreignSpec(v[name], depth+1); at != "" {
				return strings.TrimSuffix("/"+bound(name)+at, " "), spec
			}
		}
		return "", ""
	default:
		return " ", "no text"
	}
}

// npmReader reads a lock of version 2 or 3, of which only the packages count.
type npmReader struct {
	set    *Set
	others map[string]bool // hosts besides the registry
}

var (
	npmPlace = regexp.MustCompile(`^(?:node_modules/(?:@[A-Za-z0-9._~-]+/)?[A-Za-z0-9_~-][A-Za-z0-9._~-]*(?:/|$))+$`)
	npmHash  = regexp.MustCompile(`^sha(?:256|384|512)-[A-Za-z0-9+/]{43,88}={0,2}$`)
)

func (r npmReader) read(text string) error {
	v, err := jsjson.Parse([]byte(text))
	if err != nil {
		return err
	}
	m, _ := v.(map[string]any)
	if version, _ := m["lockfileVersion"].(float64); version != 2 && version != 3 {
		return fmt.Errorf("its lockfileVersion is neither 2 nor 3")
	}
	packages, ok := m["packages"].(map[string]any)
	if !ok || len(packages) > maxPackages {
		return fmt.Errorf("it has no packages, or more than %d", maxPackages)
	}
	out := map[string]any{}
	for at, p := range packages {
		p, ok := p.(map[string]any)
		if !ok {
			return fmt.Errorf("packages/%s is no object", bound(at))
		}
		if at == "" {
			if p["workspaces"] != nil {
				return fmt.Errorf("workspaces are not supported")
			}
		} else if err := r.entry(at, p); err != nil {
			return fmt.Errorf("packages/%s %w", bound(at), err)
		}
		out[at] = p
	}
	sort.Slice(r.set.Packages, func(i, j int) bool {
		a, b := r.set.Packages[i], r.set.Packages[j]
		return a.Name+" "+a.Version < b.Name+" "+b.Version
	})
	r.set.Packages = slices.Compact(r.set.Packages)
	if len(r.others) > 0 {
		hosts := make([]string, 0, len(r.others))
		for h := range r.others {
			hosts = append(hosts, h)
		}
		slices.Sort(hosts)
		r.set.Warnings = append(r.set.Warnings, fmt.Sprintf("%s: packages of %s are taken from the registry instead, by their hashes", npmLock, bound(strings.Join(hosts, ", "))))
	}
	whole := map[string]any{"lockfileVersion": 3.0, "requires": true, "packages": out}
	for _, key := range []string{"name", "version"} {
		if text, ok := m[key].(string); ok {
			whole[key] = text
		}
	}
	lock, err := jsjson.Canonical(whole)
	r.set.lock = string(lock)
	return err
}

// entry checks one package, and takes out of it where it comes from, unless that is the
// registry itself: npm then asks the registry.
//
// SECURITY: a lock does not decide whom an installer asks, nor what it takes for the package.
// A lock may name any host, a repository or a directory for a well-known name, and a
// reviewer does not see it among thousands of lines.
// Holds because: only packages that have a strong hash are let through, addresses that are not
// the registry's are dropped before npm sees them, and the sandbox reaches nobody else.
// Not covered: a registry that is itself taken over, for what is not locked. Checked by: TestReadNPM.
func (r npmReader) entry(at string, p map[string]any) error {
	if !npmPlace.MatchString(at) || strings.HasSuffix(at, "/") {
		return fmt.Errorf("is no place of a package")
	}
	if link, _ := p["link"].(bool); link {
		return fmt.Errorf("is a link to a directory")
	}
	bundled, _ := p["inBundle"].(bool)
	switch resolved := p["resolved"].(type) {
	case nil:
	case string:
		u, err := url.Parse(resolved)
		if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.User != nil {
			return fmt.Errorf("comes from %s, which is no registry", bound(resolved))
		}
		if !r.set.Registry.under(resolved) {
			delete(p, "resolved")
			r.others[u.Host] = true
		}
	default:
		return fmt.Errorf("does not say where it comes from")
	}
	version, _ := p["version"].(string)
	if version == "" || strings.ContainsAny(version, ":/\\ ") {
		return fmt.Errorf("has no version: %s", bound(version))
	}
	integrity, _ := p["integrity"].(string)
	if !bundled || integrity != "" {
		if !strong(integrity) {
			return fmt.Errorf("has no hash of SHA-256 or better: %s", bound(integrity))
		}
	}
	name, _ := p["name"].(string) // of an alias
	if name == "" {
		name = at[strings.LastIndex(at, "node_modules/")+len("node_modules/"):]
	}
	script, _ := p["hasInstallScript"].(bool)
	r.set.Packages = append(r.set.Packages, Package{jsjson.Text(name), jsjson.Text(version), integrity, script})
	return nil
}

// strong reports whether every hash is one that nobody can forge.
func strong(integrity string) bool {
	hashes := strings.Fields(integrity)
	for _, h := range hashes {
		if !npmHash.MatchString(h) {
			return false
		}
	}
	return len(hashes) > 0
}
