package journal

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

type value struct {
	Name string   `json:"name"`
	Args []string `json:"args"`
	N    int      `json:"n"`
}

func TestWriteThenRead(t *testing.T) {
	r := create(t, t.TempDir(), idA)
	want := value{"näme\x00<>", []string{"a", ""}, 7}
	for _, sync := range []bool{true, false} {
		if err := r.Write(Intent, want, sync); err != nil {
			t.Fatal(err)
		}
		var got value
		h, err := r.Read(Intent, &got)
		if err != nil {
			t.Fatal(err)
		}
		if got.Name != want.Name || !slices.Equal(got.Args, want.Args) || got.N != want.N {
			t.Errorf("Read = %+v, want %+v", got, want)
		}
		boot, err := BootID()
		if err != nil {
			t.Fatal(err)
		}
		if h.BootID != boot || h.Run != idA || h.Record != Intent || time.Since(h.Time) > time.Minute {
			t.Errorf("header = %+v, want this run's, of now and of boot %s", h, boot)
		}
	}
	if got := names(t, r.Dir()); !slices.Equal(got, []string{"intent.json", "lock"}) {
		t.Errorf("the run holds %q, want no temporary files", got)
	}
}

func TestWriteRefuses(t *testing.T) {
	r := create(t, t.TempDir(), idA)
	if err := r.Write("../x", 1, false); err == nil {
		t.Error("Write took a name that is no record")
	}
	if err := r.Write(Intent, func() {}, false); err == nil {
		t.Error("Write took a value without a JSON form")
	}
	if err := r.Write(Intent, strings.Repeat("x", maxRecord), false); err == nil {
		t.Error("Write took a record that Read would refuse")
	}
	if got, problems := r.Last(); got != "" || problems != nil {
		t.Errorf("Last() = %q, %v after failed writes, want nothing", got, problems)
	}
}

func TestLastIsTheFurthestReadable(t *testing.T) {
	r := create(t, t.TempDir(), idA)
	if got, problems := r.Last(); got != "" || problems != nil {
		t.Errorf("Last() of a run without records = %q, %v", got, problems)
	}
	for _, name := range order {
		if err := r.Write(name, name, false); err != nil {
			t.Fatal(err)
		}
		if got, problems := r.Last(); got != name || problems != nil {
			t.Errorf("Last() = %q, %v, want %q", got, problems, name)
		}
	}
}

// TestTornAtEveryByte cuts the newest record at every length a crash could
// leave, under its final and under its temporary name.
func TestTornAtEveryByte(t *testing.T) {
	r := create(t, t.TempDir(), idA)
	if err := r.Write(Intent, 1, false); err != nil {
		t.Fatal(err)
	}
	if err := r.Write(Exit, value{"x", []string{"}"}, 1}, false); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(r.Dir(), "exit.json")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	body := len(whole) - 1 // the newline at the end is no part of the value
	for n := range body {
		if err := os.WriteFile(path, whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		var torn *RecordError
		if _, err := r.Read(Exit, nil); !errors.As(err, &torn) {
			t.Fatalf("Read of %d bytes of %d = %v, want *RecordError", n, body, err)
		}
		if got, problems := r.Last(); got != Intent || len(problems) != 1 {
			t.Fatalf("Last() with %d bytes of %d = %q, %v, want intent and one problem", n, body, got, problems)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	for n := range len(whole) {
		if err := os.WriteFile(path+".tmp", whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		if got, problems := r.Last(); got != Intent || problems != nil {
			t.Fatalf("Last() with a temporary file of %d bytes = %q, %v", n, got, problems)
		}
	}
	if err := r.Write(Exit, value{}, true); err != nil {
		t.Fatalf("Write over what a crash left: %v", err)
	}
}

func TestReadRefuses(t *testing.T) {
	r := create(t, t.TempDir(), idA)
	head := `{"schema":1,"run":"` + idA + `","record":"intent"`
	tests := []struct{ name, text, want string }{
		{"empty", "", "torn"},
		{"zeros, as a power failure leaves them", "\x00\x00\x00\x00", "torn"},
		{"null", "null", "schema 0"},
		{"schema of the future", `{"schema":2,"run":"` + idA + `","record":"intent","value":1}`, "schema 2"},
		{"record of another run", `{"schema":1,"run":"` + idB + `","record":"intent","value":1}`, idB},
		{"record under another name", `{"schema":1,"run":"` + idA + `","record":"exit","value":1}`, `"exit"`},
		{"no value", head + `}`, "no value"},
		{"value of another type", head + `,"value":"text"}`, "cannot unmarshal"},
		{"two records", head + `,"value":{}}{}`, "something follows"},
		{"oversized", head + `,"value":{"x":"` + strings.Repeat("x", maxRecord) + `"}}`, "larger"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := os.WriteFile(filepath.Join(r.Dir(), "intent.json"), []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			var v value
			_, err := r.Read(Intent, &v)
			var bad *RecordError
			if !errors.As(err, &bad) || !strings.Contains(bad.Error(), tt.want) {
				t.Errorf("Read = %v, want *RecordError with %q", err, tt.want)
			}
		})
	}
	if _, err := r.Read(Exit, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Read of a record that was never written = %v, want fs.ErrNotExist", err)
	}
}

func FuzzReadRecord(f *testing.F) {
	f.Add([]byte(`{"schema":1,"run":"` + idA + `","record":"intent","bootId":"b","time":"2026-01-02T03:04:05Z","value":{"n":1}}`))
	f.Add([]byte(`{"schema":1,"run":"` + idA + `","record":"intent","value":null}` + "\n"))
	f.Add([]byte(`{"schema":1e0}`))
	f.Add([]byte(`{"schema":1,"value":`))
	f.Add([]byte("\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := parseRecord(idA, Intent, data)
		var bad *RecordError
		if err != nil && !errors.As(err, &bad) {
			t.Errorf("parseRecord = %v, want *RecordError", err)
		}
		if err == nil && (e.Run != idA || e.Record != Intent || e.Schema != schema || len(e.Value) == 0) {
			t.Errorf("parseRecord took %q as %+v", data, e)
		}
	})
}

// TestStrangersAreTold writes every file that a run may have, and some that it may not.
func TestStrangersAreTold(t *testing.T) {
	r := create(t, t.TempDir(), idA)
	for _, name := range append([]string{Deadline, Ended}, order...) {
		if err := r.Write(name, 1, false); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(r.Reserve(), r.SetCgroup("/cgroup/run/"+idA)); err != nil {
		t.Fatal(err)
	}
	if dir := CgroupDir(filepath.Dir(filepath.Dir(r.Dir())), idA); dir != "/cgroup/run/"+idA {
		t.Errorf("CgroupDir = %q", dir)
	}
	if got, err := r.Strangers(); err != nil || len(got) > 0 {
		t.Errorf("Strangers = %q, %v, want none", got, err)
	}
	for _, name := range []string{"exit", "moved.json", "output.log.1", ".swp"} {
		if err := os.WriteFile(filepath.Join(r.Dir(), name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := r.Strangers(); err != nil || !slices.Equal(got, []string{".swp", "exit", "moved.json", "output.log.1"}) {
		t.Errorf("Strangers = %q, %v, want those that are no record", got, err)
	}
}
