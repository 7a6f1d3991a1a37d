package image

import (
	"strings"
)

const (
	maxName   = 150 // of repository and tag: with a digest and the store's spelling it stays a file name
	maxTag    = 128
	digestLen = len("sha256:") + 64
)

// CanonicalName checks a name and returns its one spelling: the tag "latest" and the
// registry docker.io, with its library, are implied and left out. It returns
// *NameError for what is no name.
//
// A name is a path of lower-case components, the first of which may have a port, then
// a tag, a digest or both: team/node:20, registry.example:5000/app@sha256:…. No
// component can be "." or "..", or start with the dot that marks the store's own files.
func CanonicalName(unsafeName string) (string, error) {
	bad := &NameError{Name: unsafeName}
	rest, digest, hasDigest := strings.Cut(unsafeName, "@")
	if hasDigest && !ValidDigest(digest) || len(rest) > maxName {
		return "", bad
	}
	repo, tag := rest, ""
	if i := strings.LastIndexByte(rest, ':'); i > strings.LastIndexByte(rest, '/') {
		repo, tag = rest[:i], rest[i+1:]
		if !validTag(tag) {
			return "", bad
		}
	}
	components := strings.Split(repo, "/")
	for i, c := range components {
		if host, port, ok := strings.Cut(c, ":"); ok && i == 0 && len(components) > 1 && validPort(port) {
			c = host
		}
		if !validComponent(c) {
			return "", bad
		}
	}
	for _, hub := range []string{"docker.io/library/", "index.docker.io/library/", "docker.io/", "index.docker.io/"} {
		if short, ok := strings.CutPrefix(repo, hub); ok {
			repo = short
			break
		}
	}
	if tag != "" && tag != "latest" {
		repo += ":" + tag
	}
	if hasDigest {
		repo += "@" + digest
	}
	return repo, nil
}

// ValidDigest reports whether text is a SHA-256 digest, the only kind that is taken.
func ValidDigest(text string) bool {
	hex, ok := strings.CutPrefix(text, "sha256:")
	return ok && len(text) == digestLen && strings.Trim(hex, "0123456789abcdef") == ""
}

func validPort(text string) bool {
	return text != "" && len(text) <= 5 && strings.Trim(text, "0123456789") == ""
}

func validTag(tag string) bool {
	if tag == "" || len(tag) > maxTag || tag[0] == '.' || tag[0] == '-' {
		return false
	}
	for _, c := range []byte(tag) {
		if !isLower(c) && (c < 'A' || c > 'Z') && c != '_' && c != '.' && c != '-' {
			return false
		}
	}
	return true
}

// validComponent accepts lower-case letters and digits, joined by a dot, one or two
// underscores, or any number of dashes.
func validComponent(c string) bool {
	if c == "" || !isLower(c[0]) || !isLower(c[len(c)-1]) {
		return false
	}
	for i := 0; i < len(c); {
		if isLower(c[i]) {
			i++
			continue
		}
		start := i
		for i < len(c) && c[i] == c[start] {
			i++
		}
		n := i - start
		if c[start] != '-' && (c[start] != '.' || n > 1) && (c[start] != '_' || n > 2) || !isLower(c[i]) {
			return false
		}
	}
	return true
}

func isLower(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }

// toFile and fromFile map a canonical name to a file name and back. None of the
// characters that stand for others occurs in a name, so no two names share a file.
var (
	toFile   = strings.NewReplacer("/", "+", ":", "%", "@", "=")
	fromFile = strings.NewReplacer("+", "/", "%", ":", "=", "@")
)
