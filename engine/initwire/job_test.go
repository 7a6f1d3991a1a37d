package initwire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

// decode is a second reading of the protocol, written for the tests: what
// engine-init has to accept, and nothing else.
func decode(b []byte) (Job, error) {
	le := binary.LittleEndian
	if len(b) < headerSize {
		return Job{}, errors.New("no header")
	}
	word := func(i int) uint32 { return le.Uint32(b[4*i:]) }
	payload, argc, envc, filters, files := word(2), word(3), word(4), word(5), word(7)
	deadline, cpus := le.Uint64(b[32:]), word(10)
	switch {
	case word(0) != jobMagic, word(1) != version, word(6) != 0, !bytes.Equal(b[44:64], make([]byte, 20)):
		return Job{}, errors.New("bad constant")
	case payload > MaxPayload, argc < 1, argc > MaxStrings, envc > MaxStrings, filters > MaxFilter,
		files > MaxFiles, cpus > MaxCPUMask, deadline > uint64(MaxDeadline/time.Millisecond):
		return Job{}, errors.New("over a limit")
	case uint64(payload) > uint64(len(b)-headerSize):
		return Job{}, errors.New("truncated")
	}
	p := payloadReader{b: b[headerSize : headerSize+int(payload)]}
	job := Job{Deadline: time.Duration(deadline) * time.Millisecond}
	job.Cwd = p.text()
	job.Args = p.texts(argc)
	job.Env = p.texts(envc)
	job.Filter = p.bytes(8 * int(filters))
	job.CPUMask = p.bytes(int(cpus))
	for range files {
		path := p.text()
		numbers := p.bytes(8)
		if p.bad {
			break
		}
		mode, size := le.Uint32(numbers), le.Uint32(numbers[4:])
		if !goodPath(path) || mode&^uint32(modeParents|0o777) != 0 {
			return Job{}, errors.New("bad file")
		}
		job.Files = append(job.Files, File{path, p.bytes(int(size)), mode & 0o777, mode&modeParents != 0})
	}
	if p.bad || len(p.b) != 0 || !strings.HasPrefix(job.Cwd, "/") {
		return Job{}, errors.New("parts do not fill the payload")
	}
	return job, nil
}

func goodPath(path string) bool {
	names := strings.Split(path, "/")
	for _, n := range names[1:] {
		if n == "" || n == "." || n == ".." || len(n) > 255 {
			return false
		}
	}
	return names[0] == "" && len(names) > 2
}

type payloadReader struct {
	b   []byte
	bad bool
}

func (p *payloadReader) bytes(n int) []byte {
	if p.bad || n > len(p.b) {
		p.bad = true
		return nil
	}
	out := p.b[:n:n]
	p.b = p.b[n:]
	return out
}

func (p *payloadReader) text() string {
	end := bytes.IndexByte(p.b, 0)
	if p.bad || end < 0 {
		p.bad = true
		return ""
	}
	return string(p.bytes(end + 1)[:end])
}

func (p *payloadReader) texts(n uint32) []string {
	var out []string
	for range n {
		if p.bad {
			break
		}
		out = append(out, p.text())
	}
	return out
}

func fullJob() Job {
	return Job{
		Args:     []string{"sh", "-c", ""},
		Env:      []string{"A=1", "", "NOEQUALS", "A=2"},
		Cwd:      "/workload",
		Filter:   bytes.Repeat([]byte{6, 0, 0, 0, 0, 0, 255, 127}, 3),
		CPUMask:  []byte{3},
		Deadline: 1500 * time.Millisecond,
		Files:    []File{{Path: "/run/secrets/a", Data: []byte("x\x00y")}, {Path: "/run/secrets/b", Data: []byte{}}},
	}
}

func TestEncodeIsReadBack(t *testing.T) {
	minimal := Job{Args: []string{"true"}, Cwd: "/"}
	for _, want := range []Job{fullJob(), minimal} {
		b, err := want.encode(kindJob, 0)
		if err != nil {
			t.Fatal(err)
		}
		got, err := decode(b)
		if err != nil {
			t.Fatalf("job %+v: message is refused: %v", want, err)
		}
		if g, w := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); g != w {
			t.Errorf("job read back = %s, want %s", g, w)
		}
	}
	b, err := Job{Args: []string{"true"}, Cwd: "/", Deadline: 1}.encode(kindJob, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := decode(b); got.Deadline != time.Millisecond {
		t.Errorf("deadline of 1ns = %v, want 1ms: zero would mean none", got.Deadline)
	}
}

func TestEncodeRefuses(t *testing.T) {
	tests := []struct {
		name   string
		change func(*Job)
		field  string
	}{
		{"no arguments", func(j *Job) { j.Args = nil }, "Args"},
		{"NUL in an argument", func(j *Job) { j.Args = []string{"a\x00b"} }, "Args"},
		{"NUL in a variable", func(j *Job) { j.Env = []string{"A=\x00"} }, "Env"},
		{"too many variables", func(j *Job) { j.Env = make([]string, MaxStrings+1) }, "Env"},
		{"relative directory", func(j *Job) { j.Cwd = "workload" }, "Cwd"},
		{"no directory", func(j *Job) { j.Cwd = "" }, "Cwd"},
		{"half an instruction", func(j *Job) { j.Filter = make([]byte, 12) }, "Filter"},
		{"filter too long", func(j *Job) { j.Filter = make([]byte, 8*(MaxFilter+1)) }, "Filter"},
		{"CPU mask too long", func(j *Job) { j.CPUMask = make([]byte, MaxCPUMask+1) }, "CPUMask"},
		{"negative deadline", func(j *Job) { j.Deadline = -1 }, "Deadline"},
		{"deadline out of range", func(j *Job) { j.Deadline = MaxDeadline + 1 }, "Deadline"},
		{"file without directory", func(j *Job) { j.Files = []File{{Path: "/a"}} }, "Files"},
		{"relative file", func(j *Job) { j.Files = []File{{Path: "a/b"}} }, "Files"},
		{"NUL in a path", func(j *Job) { j.Files = []File{{Path: "/a/b\x00"}} }, "Files"},
		{"too many files", func(j *Job) { j.Files = make([]File, MaxFiles+1) }, "Files"},
		{"payload too large", func(j *Job) { j.Files = []File{{Path: "/a/b", Data: make([]byte, MaxPayload)}} }, "payload"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			job := fullJob()
			tt.change(&job)
			_, err := job.encode(kindJob, 0)
			var refused *JobError
			if !errors.As(err, &refused) || refused.Field != tt.field {
				t.Errorf("error = %v, want a JobError about %s", err, tt.field)
			}
		})
	}
}

// TestErrorsHideSecrets checks that no value of the environment is quoted.
func TestErrorsHideSecrets(t *testing.T) {
	_, err := Job{Args: []string{"true"}, Cwd: "/", Env: []string{"TOKEN=hunter2\x00"}}.encode(kindJob, 0)
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("error = %v, want one without the value", err)
	}
}

func FuzzEncode(f *testing.F) {
	f.Add("sh", "A=1", "/", []byte("12345678"), []byte{1}, int64(5), "/a/b", []byte("x"))
	f.Fuzz(func(t *testing.T, arg, env, cwd string, filter, mask []byte, deadline int64, path string, data []byte) {
		want := Job{
			Args: []string{arg}, Env: []string{env}, Cwd: cwd, Filter: filter, CPUMask: mask,
			Deadline: time.Duration(deadline) * time.Millisecond, Files: []File{{Path: path, Data: data}},
		}
		b, err := want.encode(kindJob, 0)
		if err != nil {
			return
		}
		got, err := decode(b)
		if err != nil {
			t.Fatalf("%+v: message is refused: %v", want, err)
		}
		if !reflect.DeepEqual(got.Args, want.Args) || !reflect.DeepEqual(got.Env, want.Env) || got.Cwd != want.Cwd ||
			!bytes.Equal(got.Filter, filter) || !bytes.Equal(got.CPUMask, mask) || got.Deadline != want.Deadline ||
			got.Files[0].Path != path || !bytes.Equal(got.Files[0].Data, data) {
			t.Errorf("job read back = %+v, want %+v", got, want)
		}
	})
}
