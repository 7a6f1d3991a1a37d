// Package dependency reads what a program depends on, out of its manifest and its lock,
// and says how that is fetched. It is pure: it runs nothing and reaches nothing.
//
// A Set is one manifest with its lock, for npm or for pip. Nothing of either reaches an
// installer as it was written: both are read strictly and written anew, so that no
// option, no address and no path in them decides where anything comes from. What is
// locked names the content of every package by its hash.
package dependency

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/direct-oci/engine/capability/jsjson"
)

// Kind is an installer.
type Kind string

// The kinds.
const (
	NPM Kind = "npm"
	Pip Kind = "pip"
)

// Files of a program that name its dependencies.
const (
	npmManifest = "package.json"
	npmLock     = "package-lock.json"
	pipManifest = "requirements.txt" // and its own lock, if it has hashes
)

// Files are those that Read looks at.
func Files() []string { return []string{npmManifest, npmLock, pipManifest} }

// Registry is where packages of one kind come from.
type Registry struct {
	URL   string   // http or https, without credentials
	Hosts []string // HOST[:PORT] and CIDR:PORT from which files may come besides
}

// Package is one package of a lock.
type Package struct {
	Name      string
	Version   string
	Integrity string // its hashes, as the lock has them
	Script    bool   // it wants to run a script when it is installed
}

// Set is what one manifest and its lock ask for.
type Set struct {
	Kind     Kind
	Registry Registry
	Scripts  bool      // install scripts run
	Packages []Package // of the lock, sorted
	Warnings []string

	manifest string // as the installer is given it
	lock     string // likewise; "" without one
}

// Error is a manifest or a lock that is refused.
type Error struct {
	File string
	Why  string
	Fix  string
}

func (e *Error) Error() string { return "cannot accept " + e.File + ": " + e.Why }

// Remedy returns the cure, or "" when none is known.
func (e *Error) Remedy() string { return e.Fix }

// Locked reports whether the content of every package is known beforehand.
func (s Set) Locked() bool { return s.lock != "" }

// Top is the directory in which the packages are, at the top of the sandbox's root:
// where node looks for modules after the program's own directories, and a name that
// Python is told of.
func (s Set) Top() string {
	if s.Kind == Pip {
		return "python_modules"
	}
	return "node_modules"
}

// Env is what a program needs to find its packages.
func (s Set) Env() []string {
	if s.Kind == Pip {
		return []string{"PYTHONPATH=/" + s.Top()}
	}
	return nil
}

// Digest is SHA-256, in hexadecimal, of all that decides what is installed into the
// image of this digest: it names what comes of it if the set is locked.
func (s Set) Digest(imageDigest string) string {
	text, err := jsjson.Canonical(map[string]any{
		"version": 1.0, "kind": string(s.Kind), "manifest": hash(s.manifest), "lock": hash(s.lock),
		"registry": s.Registry.URL, "scripts": s.Scripts, "image": imageDigest,
	})
	if err != nil {
		panic("internal error: " + err.Error()) // strings of our own and two that were checked
	}
	return hash(string(text))
}

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// Document is the set as a reviewer has to see it: one package a line.
func (s Set) Document() (name, text string) {
	var b strings.Builder
	fmt.Fprintf(&b, "registry: %s\n", s.Registry.URL)
	if len(s.Registry.Hosts) > 0 {
		fmt.Fprintf(&b, "files also from: %s\n", strings.Join(s.Registry.Hosts, ", "))
	}
	if s.Scripts {
		b.WriteString("INSTALL SCRIPTS ARE RUN: code of every package, before the program, with the registry in reach\n")
	} else {
		b.WriteString("install scripts: not run\n")
	}
	if !s.Locked() {
		b.WriteString("NOT LOCKED: the packages are whatever the registry has when this is run\n" + s.manifest)
	}
	for _, p := range s.Packages {
		fmt.Fprintf(&b, "%s %s %s", p.Name, p.Version, p.Integrity)
		if p.Script {
			b.WriteString(" (has an install script)")
		}
		b.WriteString("\n")
	}
	return "dependencies (" + string(s.Kind) + ")", b.String()
}

// Check says what is wrong with a registry, "" if nothing is.
func (r Registry) Check() string {
	u, err := url.Parse(r.URL)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return "is no URL that begins with https:// or http://"
	case u.User != nil:
		return "holds credentials: nothing secret is given to an installer"
	case u.RawQuery != "" || u.Fragment != "":
		return "has a query or a fragment"
	case strings.ContainsAny(r.URL, "'\\ \t\n") || strings.ContainsFunc(r.URL, func(c rune) bool { return c < ' ' || c > '~' }):
		return "holds characters that no registry's has"
	}
	return ""
}

// Grants are what the installer has to reach, as grants are written. The registry is
// in order.
func (r Registry) Grants() []string {
	u, err := url.Parse(r.URL)
	if err != nil {
		return nil
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"https": "443", "http": "80"}[u.Scheme]
	}
	grant := u.Hostname() + ":" + port
	if addr, err := netip.ParseAddr(u.Hostname()); err == nil {
		grant = netip.PrefixFrom(addr, addr.BitLen()).String() + ":" + port
		if addr.Is6() {
			grant = "[" + netip.PrefixFrom(addr, addr.BitLen()).String() + "]:" + port
		}
	}
	return append([]string{grant}, r.Hosts...)
}

// Encrypted reports whether what comes from the registry is known to come from it.
func (r Registry) Encrypted() bool { return strings.HasPrefix(r.URL, "https://") }

// under reports whether a URL leads to the registry itself.
func (r Registry) under(text string) bool {
	return strings.HasPrefix(text, strings.TrimSuffix(r.URL, "/")+"/")
}

// bound shortens a text that a message quotes.
func bound(text string) string {
	const most = 200
	if len(text) > most {
		text = text[:most] + "..."
	}
	return strconv.QuoteToASCII(text)
}
