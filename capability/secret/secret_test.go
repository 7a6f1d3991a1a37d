package secret

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSourceNeverShowsItsValue(t *testing.T) {
	for _, s := range []Source{{Value: "hunter2"}, {Command: []string{"/bin/echo", "hunter2"}}} {
		b, err := json.Marshal(map[string]any{"a": s, "b": &s})
		if err != nil {
			t.Fatal(err)
		}
		shown := string(b) + fmt.Sprintf("%v %+v %#v %s %q %x %d", s, s, s, s, s, s, s) + fmt.Sprintf("%+v", struct{ S Source }{s}) + fmt.Sprintln(&s)
		if strings.Contains(shown, "hunter2") || strings.Contains(shown, "68756e74657232") {
			t.Errorf("%s shows its value: %s", s, shown)
		}
	}
}

func TestRead(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	tests := []struct {
		name string
		give Source
		want string // "": an error
	}{
		{"inline", Source{Value: " a\n"}, " a\n"},
		{"a file's last newline is not part of it", Source{File: write("a", "hunter2\n")}, "hunter2"},
		{"several lines stay whole", Source{File: write("b", "a\nb\n")}, "a\nb\n"},
		{"an empty file", Source{File: write("c", "")}, ""},
		{"a file of a newline", Source{File: write("d", "\n")}, ""},
		{"a missing file", Source{File: dir + "/none"}, ""},
		{"a directory", Source{File: dir}, ""},
		{"a file too large", Source{File: write("e", strings.Repeat("x", maxValue+1))}, ""},
		{"a credential", Source{Credential: "a"}, "hunter2"},
		{"a missing credential", Source{Credential: "none"}, ""},
		{"a command", Source{Command: []string{"/bin/echo", "from a command"}}, "from a command"},
		{"a command that fails", Source{Command: []string{"/bin/sh", "-c", "echo x; exit 3"}}, ""},
		{"a command that prints for ever", Source{Command: []string{"/usr/bin/yes"}}, ""},
		{"a command that is missing", Source{Command: []string{"/nowhere"}}, ""},
		{"nothing of our environment", Source{Command: []string{"/bin/sh", "-c", "echo \"<$HOME$SECRET_TEST>\""}}, "<>"},
	}
	t.Setenv("SECRET_TEST", "x")
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.give.Read(context.Background(), dir)
			if string(got) != tt.want || (err == nil) != (tt.want != "") {
				t.Errorf("Read = %q, %v, want %q", got, err, tt.want)
			}
		})
	}
	if _, err := (Source{Credential: "a"}).Read(context.Background(), ""); err == nil {
		t.Error("a credential is found without a directory of credentials")
	}
}

func TestCheck(t *testing.T) {
	for _, s := range []Source{
		{}, {Value: "a", File: "/b"}, {File: "relative"}, {Credential: "../x"}, {Credential: ".."}, {Command: []string{"sh"}},
	} {
		if s.Check() == nil {
			t.Errorf("%+v is accepted", plain(s))
		}
	}
}

func TestRedactor(t *testing.T) {
	r := NewRedactor(map[string][]byte{
		"A": []byte("hunter2"), "B": []byte("hunter2-and-more"), "C": []byte("abc"),
		"KEY": []byte("-----BEGIN-----\nMIIEvQIBADANBgkq\nx\n-----END-----\n"),
	})
	give := "hunter2 hunter2-and-more abc MIIEvQIBADANBgkq x hunter"
	want := "[redacted:A] [redacted:B] abc [redacted:KEY] x hunter"
	if got := r.Text(give); got != want {
		t.Errorf("Text = %q, want %q", got, want)
	}
	if got := (Redactor{}).Text(give); got != give {
		t.Errorf("zero redactor: %q", got)
	}
}
