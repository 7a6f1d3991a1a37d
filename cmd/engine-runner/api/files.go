package api

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"github.com/direct-oci/engine/client/wire"
	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/engine/guest"
)

// insideError gives the kernel's word inside a sandbox a kind.
func insideError(e *guest.Error) error {
	switch e.Errno {
	case syscall.ENOENT:
		return engine.Refused("no_file", "%w", e)
	case syscall.ENOTEMPTY:
		return engine.Refused("exists", "%w", e).WithFix("remove what is in it first, or all of it with recursive=true")
	case syscall.EEXIST:
		return engine.Refused("exists", "%w", e)
	case syscall.EACCES, syscall.EPERM, syscall.EROFS:
		return engine.Refused("file_denied", "%w", e).WithFix("use a place that the sandbox may write to: /workload, /tmp")
	case syscall.ENOSPC, syscall.EDQUOT, syscall.ENOMEM:
		return engine.Refused("sandbox_full", "%w", e).WithFix("remove something inside, or create the sandbox with more memory")
	}
	return engine.Refused("bad_path", "%w", e)
}

// fileError says in the API's words what the guest said.
func fileError(err error) error {
	var (
		inside  *guest.Error
		request *guest.RequestError
		archive *guest.ArchiveError
		lied    *guest.ProtocolError
		known   *engine.Error
	)
	switch {
	case err == nil, errors.As(err, &known):
		return err
	case errors.As(err, &inside):
		return insideError(inside)
	case errors.As(err, &request):
		return engine.Refused("bad_path", "%w", err)
	case errors.As(err, &archive):
		e := engine.Refused("bad_archive", "%w", err)
		if archive.Path == "" { // nothing in particular
			e = e.WithFix("send a tar archive, without compression")
		}
		return e
	case errors.As(err, &lied), errors.Is(err, guest.ErrSilent):
		return engine.Refused("bad_guest", "%w", err).WithFix("end the program of the sandbox that does so, or the sandbox")
	case errors.Is(err, guest.ErrGone):
		return engine.Refused("not_running", "%w", err)
	}
	return engine.Refused("bad_path", "cannot do this to the sandbox's files: %w", err)
}

// withFiles does something with the files of the sandbox that the path names.
func (s *Server) withFiles(x *exchange, do func(ctx context.Context, f *guest.Files) error) error {
	one, err := x.sandbox()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(x.r.Context())
	defer cancel()
	defer context.AfterFunc(s.stopping, cancel)()
	files, err := s.sandboxes.Files(ctx, one.ID)
	if err != nil {
		return err
	}
	defer files.Close() // it cannot fail
	return fileError(do(ctx, files.Files))
}

func showInfo(i guest.Info) wire.FileInfo {
	w := wire.FileInfo{Name: i.Name, NameBytes: rawName(i.Name), Type: "other", Mode: uint32(i.Mode.Perm()), Size: i.Size, UID: i.UID, GID: i.GID, ModTime: i.ModTime.UTC()}
	switch i.Mode.Type() {
	case 0:
		w.Type = "file"
	case fs.ModeDir:
		w.Type = "directory"
	case fs.ModeSymlink:
		w.Type = "symlink"
	}
	return w
}

// path is the file that the parameters name.
func (x *exchange) path() string { return x.r.URL.Query().Get("path") }

func (s *Server) readFile(x *exchange) error {
	offset, err := x.number("offset", 0, maxCursor)
	if err != nil {
		return err
	}
	limit, err := x.number("limit", maxCursor, maxCursor)
	if err != nil {
		return err
	}
	return s.withFiles(x, func(ctx context.Context, f *guest.Files) error {
		r, err := f.Open(ctx, x.path())
		if err != nil {
			return err
		}
		defer r.Close() // it was only read
		h := x.w.Header()
		h.Set("Content-Type", "application/octet-stream")
		h.Set("X-File-Size", strconv.FormatInt(r.Info.Size, 10))
		h.Set("X-File-Mode", strconv.FormatUint(uint64(r.Info.Mode.Perm()), 8))
		return x.cutUnlessWhole(io.Copy(x.w, io.LimitReader(io.NewSectionReader(r, offset, maxCursor), limit)))
	})
}

// cutUnlessWhole ends the connection if an answer that has begun cannot be finished, so
// that half of it is not taken for the whole.
func (x *exchange) cutUnlessWhole(_ int64, err error) error {
	if err != nil && x.w.status != 0 {
		x.server.log.Warn("an answer was cut", "request", x.id, "message", err.Error())
		panic(http.ErrAbortHandler)
	}
	return err
}

func (s *Server) writeFile(x *exchange) error {
	o, err := x.writeOptions()
	if err != nil {
		return err
	}
	return s.withFiles(x, func(ctx context.Context, f *guest.Files) error {
		if _, err := f.Write(ctx, x.path(), &patientBody{x}, o); err != nil {
			return x.bodyFirst(err)
		}
		info, err := f.Stat(ctx, x.path())
		if err != nil {
			return err
		}
		return x.reply(showInfo(info))
	})
}

// bodyFirst prefers an error of reading the body, which is the cause of the other.
func (x *exchange) bodyFirst(err error) error {
	var large *http.MaxBytesError
	if errors.As(err, &large) || errors.Is(err, io.ErrUnexpectedEOF) {
		return bodyError(err, x.route.maxBody)
	}
	return err
}

func (x *exchange) writeOptions() (guest.WriteOptions, error) {
	var o guest.WriteOptions
	var err error
	if text := x.r.URL.Query().Get("mode"); text != "" {
		mode, err := strconv.ParseUint(text, 8, 32)
		if err != nil || mode > 0o777 {
			return o, engine.Refused("bad_parameter", "cannot accept mode=%q: want permissions as 0644", clip(text))
		}
		m := fs.FileMode(mode)
		o.Mode = &m
	}
	if o.Parents, err = x.flag("parents"); err != nil {
		return o, err
	}
	o.Exclusive, err = x.flag("exclusive")
	return o, err
}

func (s *Server) statFile(x *exchange) error {
	follow, err := x.flag("follow")
	if err != nil {
		return err
	}
	return s.withFiles(x, func(ctx context.Context, f *guest.Files) error {
		stat := f.Lstat
		if follow {
			stat = f.Stat
		}
		info, err := stat(ctx, x.path())
		if err != nil {
			return err
		}
		return x.reply(showInfo(info))
	})
}

func (s *Server) listFiles(x *exchange) error {
	limit, err := x.number("limit", 1000, 1000)
	if err != nil {
		return err
	}
	after, err := strconv.ParseUint("0"+x.r.URL.Query().Get("after"), 10, 64)
	if err != nil {
		return engine.Refused("bad_parameter", "cannot accept after=%q: want next of the page before", clip(x.r.URL.Query().Get("after")))
	}
	return s.withFiles(x, func(ctx context.Context, f *guest.Files) error {
		page, err := f.List(ctx, x.path(), after, int(limit))
		if err != nil {
			return err
		}
		// Only now: a sandbox that does not answer must hold no place of others.
		if err := x.room(bulkBody); err != nil {
			return err
		}
		reply := wire.FileList{Entries: []wire.FileInfo{}}
		for _, i := range page.Entries {
			reply.Entries = append(reply.Entries, showInfo(i))
		}
		if page.More {
			reply.Next = strconv.FormatUint(page.Next, 10)
		}
		return x.reply(reply)
	})
}

func (s *Server) makeDirectory(x *exchange) error {
	var ask wire.MkdirRequest
	if err := x.body(&ask); err != nil {
		return err
	}
	if ask.Mode == 0 {
		ask.Mode = 0o755
	}
	if ask.Mode > 0o777 {
		return engine.Refused("bad_body", "cannot accept mode=%d: want permissions alone", ask.Mode)
	}
	path, err := pathOf("path", ask.Path, ask.PathBytes)
	if err != nil {
		return err
	}
	return s.withFiles(x, func(ctx context.Context, f *guest.Files) error {
		if err := f.Mkdir(ctx, path, fs.FileMode(ask.Mode), ask.Parents); err != nil {
			return err
		}
		return x.reply(filePath(path))
	})
}

func (s *Server) moveFile(x *exchange) error {
	var ask wire.MoveRequest
	if err := x.body(&ask); err != nil {
		return err
	}
	from, err := pathOf("from", ask.From, ask.FromBytes)
	if err != nil {
		return err
	}
	to, err := pathOf("to", ask.To, ask.ToBytes)
	if err != nil {
		return err
	}
	return s.withFiles(x, func(ctx context.Context, f *guest.Files) error {
		if err := f.Rename(ctx, from, to, ask.Replace); err != nil {
			return err
		}
		return x.reply(filePath(to))
	})
}

func (s *Server) removeFile(x *exchange) error {
	all, err := x.flag("recursive")
	if err != nil {
		return err
	}
	return s.withFiles(x, func(ctx context.Context, f *guest.Files) error {
		if err := f.Remove(ctx, x.path(), all); err != nil {
			return err
		}
		return x.reply(filePath(x.path()))
	})
}

// watchFiles tells what happens below a directory, until the client leaves.
func (s *Server) watchFiles(x *exchange) error {
	all, err := x.flag("recursive")
	if err != nil {
		return err
	}
	return s.withFiles(x, func(ctx context.Context, f *guest.Files) error {
		watcher, err := f.Watch(ctx, x.path(), all)
		if err != nil {
			return err
		}
		events := x.stream()
		pulse := time.NewTicker(beat)
		defer pulse.Stop()
		for {
			select {
			case e, more := <-watcher.Events():
				if !more {
					if err := watcher.Err(); err != nil {
						return events.fail(fileError(err))
					}
					return nil
				}
				err = events.send("", "file", wire.FileEvent{Type: e.Type, Path: e.Path, PathBytes: rawName(e.Path), Directory: e.Dir, Cookie: e.Cookie})
				if err == nil && len(watcher.Events()) == 0 {
					err = events.flush()
				}
			case <-pulse.C:
				err = events.comment()
			}
			if err != nil {
				return nil // the client is gone
			}
		}
	})
}

func (s *Server) exportFiles(x *exchange) error {
	return s.withFiles(x, func(ctx context.Context, f *guest.Files) error {
		// Nothing is sent before there is something to send: an error is an answer then.
		x.w.Header().Set("Content-Type", "application/x-tar")
		_, err := f.Export(ctx, x.path(), x.w, guest.ArchiveLimits{})
		return x.cutUnlessWhole(0, err)
	})
}

func (s *Server) importFiles(x *exchange) error {
	return s.withFiles(x, func(ctx context.Context, f *guest.Files) error {
		body := &patientBody{x}
		done, err := f.Import(ctx, x.path(), body, guest.ArchiveLimits{})
		if err != nil {
			return x.bodyFirst(err)
		}
		if _, err := io.Copy(io.Discard, body); err != nil { // what stands behind the archive's end
			return bodyError(err, x.route.maxBody)
		}
		reply := wire.Archived{Entries: done.Entries, Bytes: done.Bytes, Skipped: []wire.Skipped{}}
		for _, skipped := range done.Skipped {
			reply.Skipped = append(reply.Skipped, wire.Skipped{Path: skipped.Path, PathBytes: rawName(skipped.Path), Why: skipped.Why})
		}
		return x.reply(reply)
	})
}
