package link

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/direct-oci/engine/cmd/engine-runner/link/wire"
)

// memory is of invocations that are over: their ids, and the nonces of their requests.
type memory struct {
	path   string
	file   *os.File
	ids    map[string]bool // keys of ids
	nonces map[string]bool
	added  int  // lines since it was opened
	torn   bool // the last line could not be written whole
}

const (
	remembered    = 30 * 24 * time.Hour
	maxRemembered = 200_000 // of them, the latest
)

// openMemory reads the memory at path, and writes it anew without what is too old.
func openMemory(path string, now time.Time) (*memory, error) {
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	m := &memory{path: path, ids: map[string]bool{}, nonces: map[string]bool{}}
	lines := bytes.SplitAfter(data, []byte("\n"))
	var kept bytes.Buffer
	for _, line := range lines[max(0, len(lines)-maxRemembered):] {
		at, id, nonce, ok := parseLine(string(line))
		if !ok || now.Sub(at) > remembered {
			continue
		}
		m.ids[id], m.nonces[nonce] = true, true
		kept.Write(line)
	}
	tmp := path + ".new"
	err = errors.Join(os.WriteFile(tmp, kept.Bytes(), 0o600), fsync(tmp), os.Rename(tmp, path), fsync(filepath.Dir(path)))
	if err != nil {
		return nil, err
	}
	m.file, err = os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0o600)
	return m, err
}

// parseLine reads milliseconds since 1970, key of the id, and nonce. Half a line is of a
// crash or of a full disk, before its invocation was forgotten.
func parseLine(line string) (at time.Time, id, nonce string, ok bool) {
	f := strings.Fields(line)
	if len(f) != 3 || len(f[1]) != 32 || len(f[2]) != 32 || !strings.HasSuffix(line, "\n") {
		return at, "", "", false
	}
	ms, err := strconv.ParseInt(f[0], 10, 64)
	return time.UnixMilli(ms), f[1], f[2], err == nil
}

// add remembers an invocation, on disk.
func (m *memory) add(r wire.Request, now time.Time) error {
	k := key(r.ID)
	line := fmt.Sprintf("%d %s %s\n", now.UnixMilli(), k, r.Nonce)
	if m.torn {
		line = "\n" + line
	}
	_, err := m.file.WriteString(line)
	if err = errors.Join(err, m.file.Sync()); err != nil {
		m.torn = true
		return err
	}
	m.torn, m.ids[k], m.nonces[r.Nonce] = false, true, true
	if m.added++; m.added < maxRemembered {
		return nil
	}
	again, err := openMemory(m.path, now)
	if err != nil {
		return nil // it is remembered; there is only more than need be
	}
	m.file.Close()
	*m = *again
	return nil
}
