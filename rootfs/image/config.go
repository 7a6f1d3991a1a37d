package image

import (
	"path"
	"strconv"
	"strings"
)

// Config is what a run takes over from an image where its caller says nothing. An
// image's volumes, labels, ports, hooks, stop signals and health checks are not in it
// and have no effect.
type Config struct {
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
	Env        []string `json:"env,omitempty"`
	Dropped    []string `json:"envDropped,omitempty"` // names of variables that no image may set
	Workdir    string   `json:"workdir,omitempty"`
	User       string   `json:"user,omitempty"` // as the image has it
}

const (
	maxArgs  = 4096
	maxWords = 128 << 10 // bytes of the command, and of the environment
)

// Sanitize returns the part of an image's configuration that a run may use.
//
// SECURITY: an image decides nothing but the default command, its directory, its user's number and harmless variables.
// A variable may load code into every program (LD_PRELOAD, NODE_OPTIONS, PYTHONPATH), a user's
// name is looked up in a file of the image's, a label has steered daemons (CVE-2026-53488).
// Holds because: only these fields are ever decoded, and each passes a filter here.
// Not covered: what the command itself does. Checked by: TestConfigIsFiltered.
func (c Config) Sanitize() (Config, error) {
	if err := checkWords("command", append(append([]string{}, c.Entrypoint...), c.Cmd...)); err != nil {
		return Config{}, err
	}
	if err := checkWords("environment", c.Env); err != nil {
		return Config{}, err
	}
	clean := Config{Entrypoint: c.Entrypoint, Cmd: c.Cmd, User: c.User}
	if len(c.User) > 64 || !printable(c.User) {
		clean.User = ""
	}
	for _, kv := range c.Env {
		name, _, ok := strings.Cut(kv, "=")
		switch {
		case !ok || !envName(name):
			continue
		case steers(name):
			clean.Dropped = append(clean.Dropped, name)
		default:
			clean.Env = append(clean.Env, kv)
		}
	}
	// Docker takes a relative one from the root too.
	if dir := path.Join("/", c.Workdir); dir != "/" && len(dir) < 4000 && printable(dir) {
		clean.Workdir = dir
	}
	return clean, nil
}

func checkWords(what string, words []string) error {
	size := 0
	for _, w := range words {
		if size += len(w) + 1; strings.IndexByte(w, 0) >= 0 {
			return &FormatError{What: "configuration", Why: "its " + what + " holds a NUL byte"}
		}
	}
	if len(words) > maxArgs || size > maxWords {
		return &FormatError{What: "configuration", Why: "its " + what + " is longer than " + strconv.Itoa(maxWords) + " bytes"}
	}
	return nil
}

func printable(text string) bool {
	return strings.IndexFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f || r == 0xfffd }) < 0
}

func envName(name string) bool {
	for i, c := range []byte(name) {
		letter := c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

// Variables that make interpreters, loaders and shells run or fetch something, or that
// are the engine's to set.
var (
	steeringPrefixes = []string{"LD_", "DYLD_", "PYTHON", "BASH_", "MALLOC_", "GLIBC_", "NODE_OPTIONS", "NODE_REPL_", "NODE_EXTRA_", "GCONV_", "PERL5", "RUBY", "JAVA_TOOL_", "JDK_JAVA_", "DOTNET_STARTUP_", "COR_", "CORECLR_", "GIT_", "ENGINE_"}
	steeringNames    = []string{"ENV", "IFS", "PS4", "SHELLOPTS", "BASHOPTS", "PROMPT_COMMAND", "CDPATH", "GLOBIGNORE", "_JAVA_OPTIONS", "NLSPATH", "LOCPATH", "HOSTALIASES", "RESOLV_HOST_CONF", "RES_OPTIONS", "TERMINFO", "NODE_PATH", "PERLLIB", "HOME", "TMPDIR", "HOSTNAME", "OPENSSL_CONF", "OPENSSL_ENGINES", "OPENSSL_MODULES"}
)

func steers(name string) bool {
	for _, p := range steeringPrefixes {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	for _, n := range steeringNames {
		if name == n {
			return true
		}
	}
	return strings.HasSuffix(strings.ToLower(name), "_proxy")
}

// Command is the image's default command; nil when it has none.
func (c Config) Command() []string {
	return append(append([]string(nil), c.Entrypoint...), c.Cmd...)
}

// IDs returns the image's user by number, and whether it has one that a program may
// be: a number, or two with a colon between, from 1 to 65535.
func (c Config) IDs() (uid, gid uint32, ok bool) {
	user, group, hasGroup := strings.Cut(c.User, ":")
	if !hasGroup {
		group = user
	}
	u, uerr := strconv.ParseUint(user, 10, 16)
	g, gerr := strconv.ParseUint(group, 10, 16)
	if uerr != nil || gerr != nil || u == 0 || g == 0 {
		return 0, 0, false
	}
	return uint32(u), uint32(g), true
}
