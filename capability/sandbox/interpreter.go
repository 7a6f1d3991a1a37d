package sandbox

import "strings"

// Interpreter is what runs a file: by the end of its name, or by its own first line,
// then "". It is not known for every file.
func Interpreter(path, contents string) (program string, known bool) {
	for _, i := range []struct{ ending, program string }{
		{".ts", "tsx"},
		{".tsx", "tsx"},
		{".js", "node"},
		{".mjs", "node"},
		{".cjs", "node"},
		{".py", "python3"},
		{".sh", "sh"},
	} {
		if strings.HasSuffix(path, i.ending) {
			return i.program, true
		}
	}
	return "", strings.HasPrefix(contents, "#!")
}
