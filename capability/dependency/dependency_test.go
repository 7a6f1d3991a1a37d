package dependency

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

var registry = Registry{URL: "https://registry.example.org/npm/"}

const sum = "sha512-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=="

// lockOf is a lock with one entry.
func lockOf(at, entry string) string {
	return `{"name":"job","lockfileVersion":3,"packages":{"":{"dependencies":{"a":"1"}},"` + at + `":{` + entry + `}}}`
}

const good = `"version":"1.0.0","integrity":"` + sum + `"`

// TestReadNPM proves what of a manifest and a lock reaches npm.
func TestReadNPM(t *testing.T) {
	manifest := `{"name":"job","dependencies":{"a":"^1"},"scripts":{"postinstall":"id"},"publishConfig":{"registry":"https://evil.example"}}`
	tests := []struct{ name, manifest, lock, refuse string }{
		{"a package", manifest, lockOf("node_modules/a", good), ""},
		{"a scoped one below another", manifest, lockOf("node_modules/@x/a/node_modules/b.c", good), ""},
		{"no lock", manifest, "", ""},
		{"a repository", manifest, lockOf("node_modules/a", good+`,"resolved":"git+ssh://git@example.org/a.git#1"`), "which is no registry"},
		{"a file", manifest, lockOf("node_modules/a", good+`,"resolved":"file:../a.tgz"`), "which is no registry"},
		{"credentials", manifest, lockOf("node_modules/a", good+`,"resolved":"https://u:p@registry.example.org/a.tgz"`), "which is no registry"},
		{"a strange origin", manifest, lockOf("node_modules/a", good+`,"resolved":true`), "does not say"},
		{"a link", manifest, lockOf("node_modules/a", `"link":true,"resolved":"a"`), "is a link"},
		{"a workspace", manifest, lockOf("packages/a", good), "is no place"},
		{"upwards", manifest, lockOf("node_modules/../a", good), "is no place"},
		{"a hidden place", manifest, lockOf("node_modules/.bin", good), "is no place"},
		{"a place within", manifest, lockOf("node_modules/a/lib", good), "is no place"},
		{"no hash", manifest, lockOf("node_modules/a", `"version":"1.0.0"`), "no hash"},
		{"a weak hash", manifest, lockOf("node_modules/a", `"version":"1.0.0","integrity":"sha1-AAAAAAAAAAAAAAAAAAAAAAAAAAA="`), "no hash"},
		{"a weak hash beside a strong one", manifest, lockOf("node_modules/a", `"version":"1.0.0","integrity":"`+sum+` sha1-AAAAAAAAAAAAAAAAAAAAAAAAAAA="`), "no hash"},
		{"no version", manifest, lockOf("node_modules/a", `"integrity":"`+sum+`"`), "has no version"},
		{"an address for a version", manifest, lockOf("node_modules/a", `"version":"https://evil.example/a","integrity":"`+sum+`"`), "has no version"},
		{"a bundled one", manifest, lockOf("node_modules/a", `"version":"1.0.0","inBundle":true`), ""},
		{"an old lock", manifest, `{"lockfileVersion":1,"dependencies":{}}`, "neither 2 nor 3"},
		{"no packages", manifest, `{"lockfileVersion":3}`, "no packages"},
		{"no JSON", manifest, `{`, "package-lock.json"},
		{"workspaces", `{"workspaces":["a"]}`, "", "not supported"},
		{"workspaces in the lock", manifest, `{"lockfileVersion":3,"packages":{"":{"workspaces":["a"]}}}`, "not supported"},
		{"a repository in the manifest", `{"dependencies":{"a":"git+https://example.org/a"}}`, "", "no version in a registry"},
		{"a short repository", `{"devDependencies":{"a":"somebody/a"}}`, "", "no version in a registry"},
		{"a directory", `{"dependencies":{"a":".."}}`, "", "no version in a registry"},
		{"an override", `{"overrides":{"a":{"b":"file:x"}}}`, "", "no version in a registry"},
		{"an alias", `{"dependencies":{"a":"npm:@s/b@^1"}}`, "", ""},
		{"an alias of an address", `{"dependencies":{"a":"npm:https://example.org/x"}}`, "", "no version in a registry"},
		{"ranges and tags", `{"dependencies":{"a":">=1 <2 || ^3.0.0-rc.1","b":"latest","c":"*","d":""}}`, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := ReadNPM(tt.manifest, tt.lock, registry, false)
			var bad *Error
			if tt.refuse == "" {
				if err != nil || s.Locked() != (tt.lock != "") || strings.Contains(s.manifest+s.lock, "evil") || strings.Contains(s.manifest, "postinstall") {
					t.Errorf("set = %+v, %v", s, err)
				}
			} else if !errors.As(err, &bad) || !strings.Contains(err.Error(), tt.refuse) {
				t.Errorf("error = %v, want %q", err, tt.refuse)
			}
		})
	}
	if w := OwnScripts(manifest); len(w) != 1 || !strings.Contains(w[0], "postinstall") || OwnScripts(`{"scripts":{"test":"x"}}`) != nil {
		t.Errorf("warnings = %q", w)
	}
	own := `,"resolved":"https://registry.example.org/npm/a/-/a-1.0.0.tgz"`
	s, err := ReadNPM(manifest, lockOf("node_modules/a", good+own), registry, false)
	if err != nil || !strings.Contains(s.lock, "a-1.0.0.tgz") || len(s.Warnings) != 0 {
		t.Errorf("the registry's own address is not kept: %+v, %v", s, err)
	}
	for _, other := range []string{"https://evil.example/a.tgz", "https://registry.example.org/npm-evil/a.tgz", "https://registry.example.org.evil.example/npm/a.tgz", "http://registry.example.org/npm/a.tgz"} {
		s, err := ReadNPM(manifest, lockOf("node_modules/a", good+`,"resolved":"`+other+`"`), registry, false)
		if err != nil || strings.Contains(s.lock, "resolved") || len(s.Warnings) != 1 {
			t.Errorf("%s reaches npm: %s, %q, %v", other, s.lock, s.Warnings, err)
		}
	}
}

// TestReadPip proves what of a requirements.txt reaches pip.
func TestReadPip(t *testing.T) {
	h := " --hash=sha256:" + strings.Repeat("a", 64)
	tests := []struct {
		name, text, want, refuse string
		locked                   bool
	}{
		{"a hashed package", "# why\nB == 1.0" + h + "\n", "B== 1.0" + h + "\n", "", true},
		{"continued lines", "a[x,y]==1.0 \\\n   --hash=sha256:" + strings.Repeat("a", 64) + " \\\n --hash=sha512:" + strings.Repeat("b", 128) + "  # via b\n", "", "", true},
		{"a marker", `a==1; python_version < "3.9" and sys_platform == 'linux'` + h, "", "", true},
		{"no hashes", "a==1\nb>=2,<3\nc\n", "", "", false},
		{"some hashes", "a==1" + h + "\nb==2\n", "", "1 of its 2 packages", false},
		{"hashes without a version", "a>=1" + h, "", "no exact version", false},
		{"hashes and a wildcard", "a==1.*" + h, "", "no exact version", false},
		{"hashes and two versions", "a==1,==2" + h, "", "no exact version", false},
		{"a weak hash", "a==1 --hash=md5:" + strings.Repeat("a", 32), "", "SHA-256", false},
		{"a short hash", "a==1 --hash=sha256:aa", "", "SHA-256", false},
		{"another index", "--index-url https://evil.example\na==1\n", "", "line 1 is no package", false},
		{"one more index", "a==1\n--extra-index-url=https://evil.example\n", "", "line 2 is no package", false},
		{"another file", "-r other.txt\n", "", "is no package", false},
		{"an editable one", "-e .\n", "", "is no package", false},
		{"an address", "a @ https://evil.example/a.whl\n", "", "is no package", false},
		{"a bare address", "https://evil.example/a.whl\n", "", "is no package", false},
		{"a directory", "./a\n", "", "is no package", false},
		{"an option behind a package", "a==1 --install-option=x\n", "", "is no package", false},
		{"an option hidden by a continuation", "a==1 \\\n--index-url=https://evil.example\n", "", "is no package", false},
		{"a variable", "a==${HOME}\n", "", "is no package", false},
		{"require-hashes", "--require-hashes\na==1" + h, "a==1" + h + "\n", "", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := ReadPip(tt.text, registry, false)
			if tt.refuse != "" {
				if err == nil || !strings.Contains(err.Error(), tt.refuse) {
					t.Errorf("error = %v, want %q", err, tt.refuse)
				}
				return
			}
			if err != nil || s.Locked() != tt.locked || tt.want != "" && s.manifest != tt.want {
				t.Errorf("manifest = %q, locked %v, %v; want %q, %v", s.manifest, s.Locked(), err, tt.want, tt.locked)
			}
		})
	}
	report := `{"install":[{"metadata":{"name":"b","version":"2"},"download_info":{"archive_info":{"hashes":{"sha256":"` + strings.Repeat("c", 64) + `"}}}}]}`
	open, err := ReadPip("b\n", registry, false)
	if err != nil {
		t.Fatal(err)
	}
	s, file, text, err := open.WithLock(report)
	if err != nil || !s.Locked() || file != "requirements.txt" || text != "b==2 --hash=sha256:"+strings.Repeat("c", 64)+"\n" {
		t.Errorf("a lock of a report: %+v, %s, %q, %v", s, file, text, err)
	}
	if _, _, _, err := open.WithLock(`{"install":[{"metadata":{"name":"b","version":"2"}}]}`); err == nil {
		t.Error("a report without a hash makes a lock")
	}
}

// TestDigest proves that everything which decides what is installed is in the digest.
func TestDigest(t *testing.T) {
	base := func() (string, string, Registry, bool, string) {
		return `{"dependencies":{"a":"1"}}`, lockOf("node_modules/a", good), registry, false, "sha256:1"
	}
	digest := func(manifest, lock string, r Registry, scripts bool, image string) string {
		s, err := ReadNPM(manifest, lock, r, scripts)
		if err != nil {
			t.Fatal(err)
		}
		return s.Digest(image)
	}
	m, l, r, sc, im := base()
	all := []string{
		digest(m, l, r, sc, im), digest(`{"dependencies":{"a":"2"}}`, l, r, sc, im), digest(m, strings.Replace(l, "1.0.0", "1.0.1", 1), r, sc, im),
		digest(m, strings.Replace(l, "-AAA", "-AAB", 1), r, sc, im), digest(m, l, Registry{URL: "https://other.example"}, sc, im),
		digest(m, l, r, true, im), digest(m, l, r, sc, "sha256:2"), digest(m, "", r, sc, im),
	}
	slices.Sort(all)
	if len(slices.Compact(all)) != 8 {
		t.Errorf("two of these have one digest: %q", all)
	}
	if digest(m, l, r, sc, im) != digest(" "+m+"\n", strings.Replace(l, ",", " , ", 1), r, sc, im) {
		t.Error("space changes the digest")
	}
}

func TestRegistry(t *testing.T) {
	for url, want := range map[string]string{
		"https://registry.example.org": "registry.example.org:443", "http://registry.example.org/simple/": "registry.example.org:80",
		"https://192.0.2.7:8443/": "192.0.2.7/32:8443", "https://[2001:db8::1]/x": "[2001:db8::1/128]:443",
	} {
		if r := (Registry{URL: url}); r.Check() != "" || r.Grants()[0] != want {
			t.Errorf("%s: %q, %q; want %s", url, r.Check(), r.Grants(), want)
		}
	}
	for _, url := range []string{"", "registry.example.org", "ftp://x", "https://u:p@x/", "https://x/?a", "https://x/#a", "https://x/'a", "https://x/a b", "https:///a", "https://x/\n"} {
		if (Registry{URL: url}).Check() == "" {
			t.Errorf("%q is a registry", url)
		}
	}
}

// FuzzRead proves that nothing of a manifest or lock becomes an option or a line of its
// own, and that reading ends.
func FuzzRead(f *testing.F) {
	f.Add(`{"dependencies":{"a":"1"}}`, lockOf("node_modules/a", good))
	f.Add("a==1 \\\n --hash=sha256:"+strings.Repeat("a", 64), "")
	f.Fuzz(func(t *testing.T, manifest, lock string) {
		if s, err := ReadNPM(manifest, lock, registry, false); err == nil {
			s.Digest("sha256:1")
			if s.lock != "" {
				again, err := ReadNPM(s.manifest, s.lock, registry, false)
				if err != nil || again.lock != s.lock || again.manifest != s.manifest {
					t.Errorf("what was written anew is read otherwise: %v\n%s\n%s", err, s.lock, again.lock)
				}
			}
		}
		s, err := ReadPip(manifest, registry, false)
		if err != nil {
			return
		}
		for line := range strings.Lines(s.manifest) {
			if strings.HasPrefix(line, "-") || strings.ContainsAny(line, "@/\\$") {
				t.Errorf("%q reaches pip", line)
			}
		}
	})
}
