package wire

import "time"

// FileInfo is what a sandbox says about one of its files. Names of files are bytes, and
// those that are no UTF-8 come twice: readable, and as they are.
type FileInfo struct {
	Name      string    `json:"name"`
	NameBytes []byte    `json:"nameBytes,omitempty" doc:"the name, if it is no UTF-8: in name U+FFFD stands for each byte that is none"`
	Type      string    `json:"type" doc:"file, directory, symlink or other"`
	Mode      uint32    `json:"mode" doc:"permissions as a number"`
	Size      int64     `json:"size"`
	UID       uint32    `json:"uid" doc:"inside"`
	GID       uint32    `json:"gid"`
	ModTime   time.Time `json:"modTime"`
}

// FileList is a page of a directory, in no order. A directory that changes meanwhile may
// show a file twice or not at all.
type FileList struct {
	Entries []FileInfo `json:"entries"`
	Next    string     `json:"next" doc:"give it as after for the next page; empty: this was the last"`
}

// MkdirRequest makes a directory.
type MkdirRequest struct {
	Path      string `json:"path,omitempty" doc:"absolute, inside"`
	PathBytes []byte `json:"pathBytes,omitempty" doc:"instead of path, for one that is no UTF-8"`
	Mode      uint32 `json:"mode,omitempty" doc:"default 0755"`
	Parents   bool   `json:"parents,omitempty" doc:"make those above it too; one that is there is fine"`
}

// MoveRequest moves a file or directory.
type MoveRequest struct {
	From      string `json:"from,omitempty"`
	FromBytes []byte `json:"fromBytes,omitempty" doc:"instead of from, for one that is no UTF-8"`
	To        string `json:"to,omitempty"`
	ToBytes   []byte `json:"toBytes,omitempty" doc:"likewise"`
	Replace   bool   `json:"replace,omitempty"`
}

// FilePath names a file.
type FilePath struct {
	Path      string `json:"path"`
	PathBytes []byte `json:"pathBytes,omitempty" doc:"the path, if it is no UTF-8"`
}

// FileEvent is one thing that happened to a file.
type FileEvent struct {
	Type      string `json:"type" doc:"created, modified, written, changed, removed, moved_from, moved_to, or overflow: look for yourself"`
	Path      string `json:"path"`
	PathBytes []byte `json:"pathBytes,omitempty" doc:"the path, if it is no UTF-8"`
	Directory bool   `json:"directory"`
	Cookie    uint32 `json:"cookie" doc:"the same for the two halves of one move"`
}

// Archived says what went into a sandbox.
type Archived struct {
	Entries int       `json:"entries"`
	Bytes   int64     `json:"bytes"`
	Skipped []Skipped `json:"skipped" doc:"the first hundred"`
}

// Skipped is one path that was left out.
type Skipped struct {
	Path      string `json:"path"`
	PathBytes []byte `json:"pathBytes,omitempty" doc:"the path, if it is no UTF-8"`
	Why       string `json:"why"`
}
