package firestore

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// documentID is the field path that stands for a document's name.
const documentID = "__name__"

// maxName bounds names of fields, collections and documents, as Firestore does.
const maxName = 1500

// simpleName is the form of names that need no backquotes.
var simpleName = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z_0-9]*$`)

// parseField reads a field path: names with dots between. A name that holds a dot or a
// backquote stands in backquotes, with a backslash before backquotes and backslashes.
func parseField(unsafe string) ([]string, error) {
	if !utf8.ValidString(unsafe) {
		return nil, errors.New("is not UTF-8")
	}
	var path []string
	for rest := unsafe; ; {
		name, after, err := fieldName(rest)
		if err != nil {
			return nil, err
		}
		if name == "" || len(name) > maxName {
			return nil, errors.New("has a name that is empty or longer than 1500 bytes")
		}
		path = append(path, name)
		if after == "" {
			break
		}
		rest = after[1:]
	}
	if slices.Contains(path, documentID) && len(path) > 1 {
		return nil, errors.New("has __name__ in it, which stands alone")
	}
	return path, nil
}

// fieldName takes one name off a field path. What remains is empty or begins with a dot.
func fieldName(s string) (name, rest string, err error) {
	if !strings.HasPrefix(s, "`") {
		end := strings.IndexByte(s, '.')
		if end < 0 {
			end = len(s)
		}
		if strings.ContainsAny(s[:end], "`\\") {
			return "", "", errors.New("has a backquote or backslash outside of backquotes")
		}
		return s[:end], s[end:], nil
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\' && i+1 < len(s) && (s[i+1] == '`' || s[i+1] == '\\'):
			i++
			b.WriteByte(s[i])
		case c == '\\':
			return "", "", errors.New("has a backslash that is not before a backquote or a backslash")
		case c != '`':
			b.WriteByte(c)
		case i+1 < len(s) && s[i+1] != '.':
			return "", "", errors.New("has something after a name in backquotes")
		default:
			return b.String(), s[i+1:], nil
		}
	}
	return "", "", errors.New("has a backquote without its end")
}

// segments reads the path of a collection or document: ids with slashes between.
func segments(unsafe string) ([]string, error) {
	if !utf8.ValidString(unsafe) {
		return nil, errors.New("is not UTF-8")
	}
	ids := strings.Split(unsafe, "/")
	for _, id := range ids {
		if id == "" || id == "." || id == ".." || len(id) > maxName {
			return nil, errors.New("has an id that is empty, \".\", \"..\" or longer than 1500 bytes")
		}
	}
	if len(ids) > 200 {
		return nil, errors.New("has more than 200 ids")
	}
	return ids, nil
}

// collectionPath checks the path of a collection, and returns the collection's id.
func collectionPath(unsafe string) (id string, err error) {
	ids, err := segments(unsafe)
	if err == nil && len(ids)%2 == 0 {
		err = errors.New("is the path of a document, not of a collection")
	}
	if err != nil {
		return "", err
	}
	return ids[len(ids)-1], nil
}

// documentPath checks the path of a document.
func documentPath(unsafe string) error {
	ids, err := segments(unsafe)
	if err == nil && len(ids)%2 != 0 {
		err = errors.New("is the path of a collection, not of a document")
	}
	return err
}

// root is the name under which the documents of a database are.
func (c Config) root() string {
	return c.database() + "/documents"
}

// database is the name of the database.
func (c Config) database() string { return "projects/" + c.Project + "/databases/" + c.Database }

// reference makes the full name of a document of a path below the root, or takes one
// of any database that is full already. The two cannot be mistaken for each other: one
// has an even number of parts, the other an odd one.
func reference(root, unsafe string) (string, error) {
	ids, err := segments(unsafe)
	if err != nil {
		return "", err
	}
	full := len(ids) >= 7 && ids[0] == "projects" && ids[2] == "databases" && ids[4] == "documents"
	switch {
	case len(ids)%2 == 0:
		return root + "/" + unsafe, nil
	case full:
		return unsafe, nil
	}
	return "", errors.New("is the path of a collection, not of a document")
}

// relative is a document's path below the root, or its full name if it is of another
// database.
func relative(root, name string) string { return strings.TrimPrefix(name, root+"/") }

// quoted is a field path as Firestore reads it.
func quoted(path []string) string {
	parts := make([]string, len(path))
	for i, name := range path {
		parts[i] = name
		if name != documentID && !simpleName.MatchString(name) {
			parts[i] = "`" + strings.NewReplacer("\\", "\\\\", "`", "\\`").Replace(name) + "`"
		}
	}
	return strings.Join(parts, ".")
}
