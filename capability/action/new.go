package action

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
)

const newManifest = `{
  "name": "NAME",
  "description": "say hello to somebody",
  "tags": [],
  "hazard": "read",
  "input": {
    "type": "object",
    "required": ["name"],
    "additionalProperties": false,
    "properties": {"name": {"type": "string"}}
  },
  "output": {
    "type": "object",
    "required": ["greeting"],
    "properties": {"greeting": {"type": "string"}}
  },
  "secrets": {},
  "egress": false,
  "limits": {"timeoutSeconds": 10},
  "entrypoint": "main.sh"
}
`

const newProgram = `# Arguments come as one line of JSON on stdin, the output goes as JSON to stdout,
# and what is printed on stderr is the progress that the caller sees.
read -r arguments
echo "saying hello" >&2
name=$(printf '%s' "$arguments" | sed -n 's/.*"name":"\([^"]*\)".*/\1/p')
printf '{"greeting":"hello, %s"}\n' "$name"
`

// New writes a small action that works into the new directory dir.
func New(dir, name string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	manifest := strings.Replace(newManifest, "NAME", name, 1)
	return errors.Join(
		os.WriteFile(filepath.Join(dir, ManifestName), []byte(manifest), 0o644),
		os.WriteFile(filepath.Join(dir, "main.sh"), []byte(newProgram), 0o644),
	)
}
