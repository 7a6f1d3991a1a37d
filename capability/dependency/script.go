package dependency

import (
	"net/url"
	"path"
	"strings"
)

// Job is a program that an installer's sandbox runs: a shell with files below its
// working directory. What it is for goes to standard output, all else to standard error.
type Job struct {
	Command []string
	Files   map[string]string // text, by path below /workload
}

const (
	caFile  = ".registry-ca.pem"
	workdir = "/workload"
)

// prologue leaves standard output to what is asked for: installers print on both.
const prologue = "set -eu\nexec 3>&1 1>&2\ncd " + workdir + "\n"

// apart keeps the installer, and what it runs, away from what is asked for.
const apart = " 3>&-"

// Fetch is the job that installs a locked set and writes an archive of its Top. ca is
// PEM, "" for what the image trusts.
func (s Set) Fetch(ca string) Job {
	return s.job(ca, s.install()+"\nmkdir -p "+s.Top()+"\ntar -cf - "+s.Top()+" >&3\n")
}

// Resolve is the job that makes a lock for a set that has none, see WithLock.
func (s Set) Resolve(ca string) Job {
	if s.Kind == Pip {
		return s.job(ca, s.pip("install --quiet --dry-run --ignore-installed --report .report.json -r "+pipManifest)+"\ncat .report.json >&3\n")
	}
	return s.job(ca, s.npm("install --package-lock-only --ignore-scripts")+"\ncat "+npmLock+" >&3\n")
}

// WithLock is the set with what Resolve wrote, and that as a file of the program: its
// path and text. The error is an *Error.
func (s Set) WithLock(resolved string) (locked Set, file, text string, err error) {
	if s.Kind == Pip {
		if text, err = pipReport(resolved); err != nil {
			return Set{}, "", "", &Error{"what pip resolved", err.Error(), ""}
		}
		locked, err = ReadPip(text, s.Registry, s.Scripts)
		return locked, pipManifest, text, err
	}
	locked, err = ReadNPM(s.manifest, resolved, s.Registry, s.Scripts)
	return locked, npmLock, resolved, err
}

func (s Set) install() string {
	if s.Kind == Pip {
		return s.pip("install --require-hashes --no-compile --target " + path.Join(workdir, s.Top()) + " -r " + pipManifest)
	}
	return s.npm("ci")
}

// npm is a command line that leaves nothing to the configuration of the image or to
// the files of the program.
func (s Set) npm(do string) string {
	line := "npm " + do + " --omit=dev --no-audit --no-fund --no-progress --loglevel=warn --registry " + quote(s.Registry.URL)
	if !s.Scripts {
		line += " --ignore-scripts"
	}
	return "export npm_config_cache=" + workdir + "/.cache npm_config_userconfig=/dev/null npm_config_update_notifier=false\n" + line + apart
}

func (s Set) pip(do string) string {
	line := "python3 -m pip --isolated --disable-pip-version-check --no-input --no-cache-dir " + do + " --index-url " + quote(s.Registry.URL)
	if !s.Scripts {
		line += " --only-binary :all:"
	}
	if u, err := url.Parse(s.Registry.URL); err == nil && u.Scheme == "http" {
		line += " --trusted-host " + quote(u.Host)
	}
	return "export PIP_CONFIG_FILE=/dev/null TMPDIR=" + workdir + "/.tmp\nmkdir -p \"$TMPDIR\"\n" + line + apart
}

func (s Set) job(ca, script string) Job {
	files := map[string]string{}
	switch s.Kind {
	case Pip:
		files[pipManifest] = s.manifest
	case NPM:
		files[npmManifest] = s.manifest
		if s.Locked() {
			files[npmLock] = s.lock
		}
	}
	if ca != "" {
		files[caFile] = ca
		at := path.Join(workdir, caFile)
		script = "export NODE_EXTRA_CA_CERTS=" + at + " PIP_CERT=" + at + " SSL_CERT_FILE=" + at + "\n" + script
		if s.Kind == Pip {
			script = strings.Replace(script, " --index-url", " --cert "+at+" --index-url", 1)
		}
	}
	return Job{Command: []string{"sh", "-c", prologue + script}, Files: files}
}

// quote makes one word of text for the shell. A registry that was checked holds no
// quote.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
