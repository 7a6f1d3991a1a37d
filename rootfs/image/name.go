package image

import (
	"regexp"
	"strings"
)

const maxName = 200 // with the longest file name of 255 bytes in mind

// nameGrammar is a path of lower-case components and a tag. No component can be
// "." or "..", or start with the dot that marks the store's own files.
var nameGrammar = regexp.MustCompile(
	`^[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*)*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?$`)

// canonicalName checks a name and returns its one spelling: the tag "latest" is
// implied and left out.
func canonicalName(unsafeName string) (string, error) {
	if len(unsafeName) > maxName || !nameGrammar.MatchString(unsafeName) {
		return "", &NameError{Name: unsafeName}
	}
	return strings.TrimSuffix(unsafeName, ":latest"), nil
}

// toDir and fromDir map a canonical name to a file name and back. Neither + nor @
// occurs in a name, so no two names share a directory.
var (
	toDir   = strings.NewReplacer("/", "+", ":", "@")
	fromDir = strings.NewReplacer("+", "/", "@", ":")
)
