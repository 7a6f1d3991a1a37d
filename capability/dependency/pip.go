package dependency

import (
	"fmt"
	"regexp"
	"sort"
	"strings"

	"github.com/direct-oci/engine/capability/jsjson"
)

// PipNeeds reports whether a requirements.txt names anything.
func PipNeeds(manifest string) bool {
	for line := range strings.Lines(manifest) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			return true
		}
	}
	return false
}

var (
	pipName  = `[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?`
	pipSpec  = `(?:===|==|~=|!=|<=|>=|<|>)\s*[A-Za-z0-9.*+!_-]+`
	pipLine  = regexp.MustCompile(`^(` + pipName + `)\s*(\[[A-Za-z0-9._, -]*\])?\s*(?:\(?\s*(` + pipSpec + `(?:\s*,\s*` + pipSpec + `)*)\s*\)?)?\s*(;[A-Za-z0-9_.'"<>=!~ ()+,-]*)?$`)
	pipHash  = regexp.MustCompile(`^sha(?:256:[0-9a-f]{64}|384:[0-9a-f]{96}|512:[0-9a-f]{128})$`)
	pipExact = regexp.MustCompile(`^==\s*[A-Za-z0-9.+!_-]+$`)
	comment  = regexp.MustCompile(`(?:^|\s)#.*$`)
)

// ReadPip reads a requirements.txt, which is its own lock if every line has an exact
// version and hashes. The error is an *Error.
func ReadPip(manifest string, registry Registry, scripts bool) (Set, error) {
	s := Set{Kind: Pip, Registry: registry, Scripts: scripts}
	var lines []string
	hashed := 0
	for number, line := range joined(manifest) {
		if line == "" || line == "--require-hashes" {
			continue
		}
		p, text, err := requirement(line)
		if err != nil {
			return Set{}, &Error{pipManifest, fmt.Sprintf("line %d %v", number+1, err), "name packages of the registry, as NAME==VERSION --hash=sha256:..."}
		}
		if p.Integrity != "" {
			hashed++
		}
		s.Packages = append(s.Packages, p)
		lines = append(lines, text)
	}
	if hashed > 0 && hashed < len(lines) || len(lines) > maxPackages {
		return Set{}, &Error{pipManifest, fmt.Sprintf("%d of its %d packages have hashes", hashed, len(lines)), "give hashes to all of them, for example with pip-compile --generate-hashes"}
	}
	sort.Strings(lines)
	sort.Slice(s.Packages, func(i, j int) bool { return s.Packages[i].Name < s.Packages[j].Name })
	s.manifest = strings.Join(lines, "\n") + "\n"
	if hashed > 0 {
		s.lock = s.manifest
	} else {
		s.Packages = nil
	}
	return s, nil
}

// joined are the lines of a requirements.txt, without comments, continued ones as one
// at the place where they begin.
func joined(text string) []string {
	var lines []string
	continued := -1
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		lines = append(lines, "")
		at := len(lines) - 1
		if continued >= 0 {
			at = continued
		}
		body, more := strings.CutSuffix(line, `\`)
		lines[at] = strings.TrimSpace(lines[at] + " " + strings.TrimSpace(comment.ReplaceAllString(body, "")))
		if continued = -1; more {
			continued = at
		}
	}
	return lines
}

// requirement reads one line, and writes it anew.
func requirement(line string) (Package, string, error) {
	body, hashes, found := strings.Cut(line, " --hash")
	m := pipLine.FindStringSubmatch(strings.TrimSpace(body))
	if m == nil {
		return Package{}, "", fmt.Errorf("is no package with a version: %s", bound(line))
	}
	p := Package{Name: strings.ToLower(m[1]), Version: strings.Join(strings.Fields(m[3]), " ")}
	text := m[1] + m[2] + p.Version
	if marker := strings.TrimSpace(m[4]); marker != "" {
		text += " " + marker
	}
	if !found {
		return p, text, nil
	}
	if !pipExact.MatchString(p.Version) || strings.Contains(p.Version, "*") {
		return Package{}, "", fmt.Errorf("has hashes and no exact version: %s", bound(line))
	}
	for h := range strings.SplitSeq(hashes, " --hash") {
		h = strings.TrimSpace(strings.TrimLeft(h, "= "))
		if !pipHash.MatchString(h) {
			return Package{}, "", fmt.Errorf("has a hash that is not of SHA-256 or better: %s", bound(h))
		}
		text += " --hash=" + h
		p.Integrity = strings.TrimSpace(p.Integrity + " " + h)
	}
	p.Version = strings.TrimSpace(strings.TrimPrefix(p.Version, "=="))
	return p, text, nil
}

// pipReport makes a lock out of what pip says it would install.
func pipReport(report string) (string, error) {
	v, err := jsjson.Parse([]byte(report))
	if err != nil {
		return "", err
	}
	top, _ := v.(map[string]any)
	list, ok := top["install"].([]any)
	if !ok {
		return "", fmt.Errorf("it lists no packages")
	}
	var lines []string
	for _, e := range list {
		item, _ := e.(map[string]any)
		meta, _ := item["metadata"].(map[string]any)
		from, _ := item["download_info"].(map[string]any)
		archive, _ := from["archive_info"].(map[string]any)
		hashes, _ := archive["hashes"].(map[string]any)
		name, _ := meta["name"].(string)
		version, _ := meta["version"].(string)
		sum, _ := hashes["sha256"].(string)
		line := name + "==" + version + " --hash=sha256:" + sum
		if _, _, err := requirement(line); err != nil {
			return "", fmt.Errorf("it lists a package without name, version or hash: %s", bound(line))
		}
		lines = append(lines, line)
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n") + "\n", nil
}
