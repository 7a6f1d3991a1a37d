package approval

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/direct-oci/engine/capability/signed"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func bound() Bound {
	return Bound{
		Capability: "workload.execute", Project: "shop", Environment: "production", Digest: strings.Repeat("ab", 32),
		Manifest: strings.Repeat("cd", 32), Files: []File{{"a.sh", 0o644, strings.Repeat("01", 32)}, {"b/c.sh", 0o755, strings.Repeat("23", 32)}},
		Command: []string{"sh", "/workload/a.sh"}, Image: "box", ImageDigest: "sha256:" + strings.Repeat("45", 32), Runtime: "runsc",
		Egress: []string{"api.example.com:443"}, Secrets: []string{"KEY", "TOKEN"},
		Limits: Limits{1, 512 << 20, 256, 120, 64 << 20, 256 << 20}, Lock: strings.Repeat("67", 32),
	}
}

func keys(t testing.TB, seed byte) (map[string]ed25519.PublicKey, ed25519.PrivateKey) {
	t.Helper()
	key := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, 32))
	return map[string]ed25519.PublicKey{"alice": key.Public().(ed25519.PublicKey)}, key
}

func approve(t testing.TB, edit func(*Statement)) (signed.Envelope, map[string]ed25519.PublicKey) {
	t.Helper()
	approvers, key := keys(t, 1)
	s, err := New(bound(), "title", "alice", now.Add(-time.Hour), now.Add(time.Hour), 2)
	if err != nil {
		t.Fatal(err)
	}
	if edit != nil {
		edit(&s)
	}
	e, err := s.Sign(key)
	if err != nil {
		t.Fatal(err)
	}
	return e, approvers
}

func field(err error) string {
	var f *signed.FieldError
	if !errors.As(err, &f) {
		return fmt.Sprintf("no FieldError: %v", err)
	}
	return f.Field
}

func TestVerify(t *testing.T) {
	e, approvers := approve(t, nil)
	again, err := signed.Parse(e.Encode())
	if err != nil {
		t.Fatal(err)
	}
	if s, err := Verify(again, approvers, bound(), now); err != nil || s.Approver != "alice" || s.MaxRuns != 2 {
		t.Fatalf("Verify = %+v, %v", s, err)
	}
	tests := []struct {
		name string
		edit func(*Statement)
		at   time.Time
		want string // field
	}{
		{"too early", nil, now.Add(-2 * time.Hour), "notBefore"},
		{"too late", nil, now.Add(2 * time.Hour), "notAfter"},
		{"an approver who is not the owner", func(s *Statement) { s.Approver = "bob" }, now, "approver"},
		{"another capability", func(s *Statement) { s.Capability = "x" }, now, "capability"},
		{"another project", func(s *Statement) { s.Project = "x" }, now, "project"},
		{"another digest", func(s *Statement) { s.Digest = "x" }, now, "digest"},
		{"another stronger digest", func(s *Statement) { s.BoundDigest = "x" }, now, "boundDigest"},
		{"no runs", func(s *Statement) { s.MaxRuns = 0 }, now, "maxRuns"},
		{"runs without end", func(s *Statement) { s.MaxRuns = 1 << 30 }, now, "maxRuns"},
		{"a nonce that is a path", func(s *Statement) { s.Nonce = "../../../../../../../../etc/xxxx" }, now, "nonce"},
		{"a nonce in capitals", func(s *Statement) { s.Nonce = strings.ToUpper("ab" + s.Nonce[2:]) }, now, "nonce"},
		{"no nonce", func(s *Statement) { s.Nonce = "" }, now, "nonce"},
		{"a time that ends before it begins", func(s *Statement) { s.NotAfter = s.NotBefore }, now, "notAfter"},
		{"time without end", func(s *Statement) { s.NotAfter = now.AddDate(10, 0, 0) }, now, "notAfter"},
		{"another version", func(s *Statement) { s.Version = 2 }, now, "version"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e, approvers := approve(t, tt.edit)
			if _, err := Verify(e, approvers, bound(), tt.at); field(err) != tt.want {
				t.Errorf("error = %v, want one about %s", err, tt.want)
			}
		})
	}
	stranger, _ := keys(t, 2)
	if _, err := Verify(e, stranger, bound(), now); field(err) != "keyId" {
		t.Errorf("of a stranger: %v", err)
	}
	_, key := keys(t, 1)
	other := signed.Sign(signed.Receipt, key, e.Payload)
	if _, err := Verify(other, approvers, bound(), now); field(err) != "signature" {
		t.Errorf("a receipt's signature: %v", err)
	}
}

// TestOneBitIsEnough changes one bit at a time: of the approval as it lies in its
// file, of its parts, and of everything that is bound. All are refused, and a change of
// what is bound is named.
func TestOneBitIsEnough(t *testing.T) {
	const rounds = 10000
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0))
	e, approvers := approve(t, nil)
	text := e.Encode()
	flip := func(b []byte) []byte {
		b = bytes.Clone(b)
		b[r.IntN(len(b))] ^= 1 << r.IntN(8)
		return b
	}
	for i := range rounds {
		got, b, want := e, bound(), ""
		switch i % 5 {
		case 0:
			parsed, err := signed.Parse(flip(text))
			if err != nil {
				if field(err) == "" {
					t.Fatalf("seed %d: error without a field: %v", seed, err)
				}
				continue
			}
			got = parsed
		case 1:
			got.Payload, want = flip(got.Payload), "signature"
		case 2:
			got.Signature, want = flip(got.Signature), "signature"
		case 3:
			got.KeyID, want = string(flip([]byte(got.KeyID))), "keyId"
		case 4:
			b, want = flipBound(r)
		}
		_, err := Verify(got, approvers, b, now)
		if err == nil || want != "" && field(err) != want {
			t.Fatalf("seed %d, round %d: error = %v, want one about %s\n%+v", seed, i, err, want, b)
		}
	}
}

// flipBound changes one bit of one field of a Bound, and returns its name.
func flipBound(r *rand.Rand) (Bound, string) {
	b := bound()
	text := func(s *string) { // a bit that leaves it ASCII, for JSON has to hold it
		c := []byte(*s)
		c[r.IntN(len(c))] ^= 1 << r.IntN(7)
		*s = string(c)
	}
	whole := func(n *int64) { *n ^= 1 << r.IntN(50) }
	fields := []struct {
		name string
		flip func()
	}{
		{"capability", func() { text(&b.Capability) }},
		{"project", func() { text(&b.Project) }},
		{"/environment", func() { text(&b.Environment) }},
		{"/digest", func() { text(&b.Digest) }},
		{"/manifest", func() { text(&b.Manifest) }},
		{"/files/0/path", func() { text(&b.Files[0].Path) }},
		{"/files/1/sha256", func() { text(&b.Files[1].SHA256) }},
		{"/files/1/mode", func() { b.Files[1].Mode ^= 1 << r.IntN(32) }},
		{"/command/0", func() { text(&b.Command[0]) }},
		{"/command/1", func() { text(&b.Command[1]) }},
		{"/image", func() { text(&b.Image) }},
		{"/imageDigest", func() { text(&b.ImageDigest) }},
		{"/runtime", func() { text(&b.Runtime) }},
		{"/egress/0", func() { text(&b.Egress[0]) }},
		{"/secrets/1", func() { text(&b.Secrets[1]) }},
		{"/limits/cpus", func() { b.Limits.CPUs += 1.0 / 1024 }},
		{"/limits/memoryBytes", func() { whole(&b.Limits.MemoryBytes) }},
		{"/limits/pids", func() { whole(&b.Limits.Pids) }},
		{"/limits/timeoutSeconds", func() { b.Limits.TimeoutSeconds *= 2 }},
		{"/limits/tmpBytes", func() { whole(&b.Limits.TmpBytes) }},
		{"/limits/workspaceBytes", func() { whole(&b.Limits.WorkspaceBytes) }},
		{"/lock", func() { text(&b.Lock) }},
		{"/files", func() { b.Files = append(b.Files, File{"z", 0o644, ""}) }},
		{"/egress", func() { b.Egress = append(b.Egress, "internet") }},
		{"/secrets", func() { b.Secrets = b.Secrets[:1] }},
	}
	f := fields[r.IntN(len(fields))]
	f.flip()
	return b, f.name
}

// TestEveryFieldIsBound fails when a field is added that the stronger digest misses.
func TestEveryFieldIsBound(t *testing.T) {
	before, err := bound().Strong()
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(bound())
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(data, &fields); err != nil {
		t.Fatal(err)
	}
	for name := range fields {
		changed := map[string]any{}
		for k, v := range fields {
			if k != name {
				changed[k] = v
			}
		}
		data, err := json.Marshal(changed)
		if err != nil {
			t.Fatal(err)
		}
		var b Bound
		if err := json.Unmarshal(data, &b); err != nil {
			t.Fatal(err)
		}
		after, err := b.Strong()
		if err != nil || after == before || b.Difference(bound()) == "" {
			t.Errorf("without %s: digest %s, %v", name, after, err)
		}
	}
}

func TestBurnedIsBurned(t *testing.T) {
	b := Burned{filepath.Join(t.TempDir(), "a", "b")}
	e, approvers := approve(t, nil)
	s, err := Verify(e, approvers, bound(), now)
	if err != nil {
		t.Fatal(err)
	}
	for want := 1; want <= 2; want++ {
		if got, err := b.Burn(e, s); err != nil || got != want {
			t.Fatalf("Burn = %d, %v, want %d", got, err, want)
		}
	}
	if _, err := b.Burn(e, s); !errors.Is(err, ErrUsedUp) {
		t.Errorf("third run: error = %v, want %v", err, ErrUsedUp)
	}
	// A crash between making the file and writing it: the run counts as used.
	if err := os.Truncate(filepath.Join(b.Dir, s.Nonce, "1"), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Burn(e, s); !errors.Is(err, ErrUsedUp) {
		t.Errorf("after a crash: error = %v, want %v", err, ErrUsedUp)
	}
	// Another approval with the same nonce does not get what is left of it.
	reused, _ := approve(t, func(other *Statement) { other.Nonce, other.MaxRuns = s.Nonce, 100 })
	other, err := Verify(reused, approvers, bound(), now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Burn(reused, other); field(err) != "nonce" {
		t.Errorf("reused nonce: %v", err)
	}
}

func TestBurnRaceHasAsManyWinnersAsRuns(t *testing.T) {
	b := Burned{t.TempDir()}
	e, approvers := approve(t, nil)
	s, err := Verify(e, approvers, bound(), now)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	won := 0
	for range 20 {
		wg.Go(func() {
			_, err := b.Burn(e, s)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won++
			} else if !errors.Is(err, ErrUsedUp) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if won != 2 {
		t.Errorf("%d runs were given, want 2", won)
	}
}

// TestTamperedRecordsBurnNothing puts what is no record of uses in the place of one: no
// run is given for it, and nothing is written elsewhere.
func TestTamperedRecordsBurnNothing(t *testing.T) {
	e, approvers := approve(t, func(s *Statement) { s.MaxRuns = 1 })
	s, err := Verify(e, approvers, bound(), now)
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	for name, tamper := range map[string]func(dir string) error{
		"a file for the directory": func(dir string) error { return os.WriteFile(dir, nil, 0o600) },
		"a link for the directory": func(dir string) error { return os.Symlink(elsewhere, dir) },
		"a link for the record": func(dir string) error {
			return errors.Join(os.Mkdir(dir, 0o700), os.Symlink(elsewhere, filepath.Join(dir, "1")))
		},
		"a directory for the record": func(dir string) error { return os.MkdirAll(filepath.Join(dir, "1"), 0o700) },
		"an empty record": func(dir string) error {
			return errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "1"), nil, 0o600))
		},
		"a record of somebody else's": func(dir string) error {
			return errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "1"), []byte("x"), 0o600))
		},
	} {
		b := Burned{t.TempDir()}
		if err := tamper(filepath.Join(b.Dir, s.Nonce)); err != nil {
			t.Fatal(err)
		}
		if run, err := b.Burn(e, s); err == nil {
			t.Errorf("%s: run %d was given", name, run)
		}
		if _, err := os.Lstat(elsewhere); err == nil {
			t.Errorf("%s: something was written elsewhere", name)
		}
	}
}

// TestOtherSpellingsAreRefused writes an approval in ways that some readers would take
// for the same.
func TestOtherSpellingsAreRefused(t *testing.T) {
	e, approvers := approve(t, nil)
	text := strings.TrimSpace(string(e.Encode()))
	for name, other := range map[string]string{
		"a key twice":          strings.Replace(text, "{", `{"payload":"e30=",`, 1),
		"one key more":         strings.Replace(text, "{", `{"x":1,`, 1),
		"keys in capitals":     strings.Replace(text, `"keyId"`, `"KeyID"`, 1),
		"a key in capitals":    strings.Replace(text, e.KeyID, strings.ToUpper(e.KeyID), 1),
		"base64 without end":   strings.Replace(text, `=="}`, `"}`, 1),
		"base64 with line end": strings.Replace(text, `=="}`, `==\n"}`, 1),
		"a list":               "[" + text + "]",
		"something behind it":  text + text,
	} {
		got, err := signed.Parse([]byte(other))
		if err == nil {
			_, err = Verify(got, approvers, bound(), now)
		}
		if err == nil {
			t.Errorf("%s: accepted %s", name, other)
		}
	}
}

func FuzzParse(f *testing.F) {
	fixed := func(s *Statement) { s.Nonce = strings.Repeat("00", 16) } // the same in every process of the fuzzer
	e, approvers := approve(f, fixed)
	f.Add(e.Encode())
	f.Add([]byte(`{"payload":"","keyId":"","signature":""}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := signed.Parse(data)
		if err != nil {
			return
		}
		if _, err := Verify(got, approvers, bound(), now); err == nil && !bytes.Equal(got.Payload, e.Payload) {
			t.Fatalf("accepted %s", data)
		}
	})
}
