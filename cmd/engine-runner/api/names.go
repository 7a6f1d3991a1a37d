package api

import (
	"unicode/utf8"

	"github.com/direct-oci/engine/client/wire"
	"github.com/direct-oci/engine/engine"
)

// Names of files are bytes, and strings of JSON are not. One that is no UTF-8 goes out
// twice, readable and as it is, and comes in as bytes, so that what is listed can be read,
// moved and removed. In a query any byte can be written.

// rawName is a name, or a path, that a string of JSON cannot carry; nil: it can.
func rawName(name string) []byte {
	if utf8.ValidString(name) {
		return nil
	}
	return []byte(name)
}

// pathOf is a path of a body, which has it as text or as bytes.
func pathOf(key, text string, raw []byte) (string, error) {
	if (text == "") == (len(raw) == 0) {
		return "", engine.Refused("bad_body", "cannot tell which file is meant: want one of the keys %s and %sBytes", key, key)
	}
	return text + string(raw), nil
}

func filePath(path string) wire.FilePath { return wire.FilePath{Path: path, PathBytes: rawName(path)} }
