package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/coder/websocket"

	"github.com/direct-oci/engine/client/wire"
)

// WriteStdin writes to a program's stdin, as it comes, and ends it if last is true. It is
// sent once: when it fails, some of it may have been read.
func (c *Client) WriteStdin(ctx context.Context, id, exec string, stdin io.Reader, last bool) (int64, error) {
	reply, err := upload[wire.StdinReply](ctx, c, request{
		method: http.MethodPost, path: path("sandboxes", id, "execs", exec, "stdin"), query: url.Values{"close": {boolText(last)}},
	}, stdin)
	return reply.Bytes, err
}

// ReadFile reads a file of a sandbox. Close it.
func (c *Client) ReadFile(ctx context.Context, id, file string) (io.ReadCloser, error) {
	return c.download(ctx, path("sandboxes", id, "files", "content"), url.Values{"path": {file}})
}

func (c *Client) download(ctx context.Context, path string, query url.Values) (io.ReadCloser, error) {
	res, err := c.send(ctx, request{method: http.MethodGet, path: path, query: query})
	if err != nil {
		return nil, fmt.Errorf("cannot GET %s: %w", path, err)
	}
	if res.StatusCode >= 400 {
		_, err := readAll(res)
		return nil, err
	}
	return res.Body, nil
}

// WriteOptions say how a file is made.
type WriteOptions struct {
	Mode      *uint32 // permissions; nil: those of what it replaces, or 0644
	Parents   bool    // make the directories that are missing
	Exclusive bool    // nothing may be there yet
}

// WriteFile writes a file of a sandbox: it appears complete, in place of what was there.
func (c *Client) WriteFile(ctx context.Context, id, file string, data io.Reader, o WriteOptions) (wire.FileInfo, error) {
	query := url.Values{"path": {file}, "parents": {boolText(o.Parents)}, "exclusive": {boolText(o.Exclusive)}}
	if o.Mode != nil {
		query.Set("mode", strconv.FormatUint(uint64(*o.Mode), 8))
	}
	info, err := upload[wire.FileInfo](ctx, c, request{method: http.MethodPut, path: path("sandboxes", id, "files", "content"), query: query}, data)
	return named(info), err
}

// named puts the bytes of a name that is no UTF-8 into its place: a string of Go carries
// them, and leads to the file.
func named(i wire.FileInfo) wire.FileInfo {
	if i.NameBytes != nil {
		i.Name = string(i.NameBytes)
	}
	return i
}

// asBytes parts a path into what a string of JSON can carry, and what it cannot.
func asBytes(path string, raw []byte) (string, []byte) {
	if utf8.ValidString(path) {
		return path, raw
	}
	return "", []byte(path)
}

// StatFile looks at a file of a sandbox, or with follow at what a link leads to.
func (c *Client) StatFile(ctx context.Context, id, file string, follow bool) (wire.FileInfo, error) {
	info, err := get[wire.FileInfo](ctx, c, path("sandboxes", id, "files", "stat"), url.Values{"path": {file}, "follow": {boolText(follow)}})
	return named(info), err
}

// ListFiles yields what is in a directory of a sandbox, in no order. A name is what the
// sandbox says, UTF-8 or not.
func (c *Client) ListFiles(ctx context.Context, id, dir string) iter.Seq2[wire.FileInfo, error] {
	return func(yield func(wire.FileInfo, error) bool) {
		for after := ""; ; {
			page, err := get[wire.FileList](ctx, c, path("sandboxes", id, "files", "list"), url.Values{"path": {dir}, "after": {after}})
			if err != nil {
				yield(wire.FileInfo{}, err)
				return
			}
			for _, e := range page.Entries {
				if !yield(named(e), nil) {
					return
				}
			}
			if after = page.Next; after == "" {
				return
			}
		}
	}
}

// Mkdir makes a directory.
func (c *Client) Mkdir(ctx context.Context, id string, ask wire.MkdirRequest) error {
	ask.Path, ask.PathBytes = asBytes(ask.Path, ask.PathBytes)
	_, err := put[wire.FilePath](ctx, c, http.MethodPost, path("sandboxes", id, "files", "mkdir"), ask)
	return err
}

// MoveFile moves a file or directory.
func (c *Client) MoveFile(ctx context.Context, id string, ask wire.MoveRequest) error {
	ask.From, ask.FromBytes = asBytes(ask.From, ask.FromBytes)
	ask.To, ask.ToBytes = asBytes(ask.To, ask.ToBytes)
	body, err := encode(ask)
	if err != nil {
		return err
	}
	return c.do(ctx, request{method: http.MethodPost, path: path("sandboxes", id, "files", "move"), body: body, once: true}, nil)
}

// RemoveFile removes a file, or with recursive a directory with all that is below.
func (c *Client) RemoveFile(ctx context.Context, id, file string, recursive bool) error {
	query := url.Values{"path": {file}, "recursive": {boolText(recursive)}}
	return c.do(ctx, request{method: http.MethodDelete, path: path("sandboxes", id, "files"), query: query}, nil)
}

// WatchFiles yields what happens in a directory until ctx ends. What happens while a
// broken connection is made anew is not told; it ends with an error instead.
func (c *Client) WatchFiles(ctx context.Context, id, dir string, recursive bool) iter.Seq2[wire.FileEvent, error] {
	return func(yield func(wire.FileEvent, error) bool) {
		query := url.Values{"path": {dir}, "recursive": {boolText(recursive)}}
		res, err := c.send(ctx, request{
			method: http.MethodGet, path: path("sandboxes", id, "files", "watch"), query: query, header: http.Header{"Accept": {"text/event-stream"}},
		})
		if err == nil && res.StatusCode >= 400 {
			_, err = readAll(res)
		}
		if err != nil {
			yield(wire.FileEvent{}, err)
			return
		}
		defer res.Body.Close()
		err = readEvents(res.Body, func(e event) error {
			if e.name == "error" {
				return failureOf(res, []byte(e.data))
			}
			var v wire.FileEvent
			if err := json.Unmarshal([]byte(e.data), &v); err != nil {
				return badEvent(err)
			}
			if v.PathBytes != nil {
				v.Path = string(v.PathBytes)
			}
			if !yield(v, nil) {
				return errStop
			}
			return nil
		})
		switch {
		case err == errStop || ctx.Err() != nil:
		case err == nil:
			yield(wire.FileEvent{}, io.ErrUnexpectedEOF)
		default:
			yield(wire.FileEvent{}, err)
		}
	}
}

// ExportFiles returns a tar archive of a directory of a sandbox. Close it.
func (c *Client) ExportFiles(ctx context.Context, id, dir string) (io.ReadCloser, error) {
	return c.download(ctx, path("sandboxes", id, "files", "archive"), url.Values{"path": {dir}})
}

// ImportFiles unpacks a tar archive into a directory of a sandbox.
func (c *Client) ImportFiles(ctx context.Context, id, dir string, archive io.Reader) (wire.Archived, error) {
	done, err := upload[wire.Archived](ctx, c, request{method: http.MethodPut, path: path("sandboxes", id, "files", "archive"), query: url.Values{"path": {dir}}}, archive)
	for i, s := range done.Skipped {
		if s.PathBytes != nil {
			done.Skipped[i].Path = string(s.PathBytes)
		}
	}
	return done, err
}

// Attached is a program on a WebSocket.
type Attached struct{ socket *websocket.Conn }

// Attach joins a program for interactive use, from a cursor on. The program goes on when
// the connection ends; another can begin behind the last event that was seen.
func (c *Client) Attach(ctx context.Context, id, exec, cursor string) (a *Attached, err error) {
	for range c.tries(ctx) {
		a, err = c.attach(ctx, id, exec, cursor)
		var failure *Error
		if err == nil || errors.As(err, &failure) || ctx.Err() != nil {
			break
		}
	}
	return a, err
}

func (c *Client) attach(ctx context.Context, id, exec, cursor string) (*Attached, error) {
	target := c.base + path("sandboxes", id, "execs", exec, "attach")
	if cursor != "" {
		target += "?" + url.Values{"cursor": {cursor}}.Encode()
	}
	header := http.Header{}
	if c.token != "" {
		header.Set("Authorization", "Bearer "+c.token)
	}
	socket, res, err := websocket.Dial(ctx, target, &websocket.DialOptions{HTTPClient: c.http, HTTPHeader: header})
	if err != nil {
		if res != nil && res.StatusCode >= 400 {
			_, failure := readAll(res)
			return nil, failure
		}
		return nil, fmt.Errorf("cannot attach to exec=%s: %w", exec, err)
	}
	socket.SetReadLimit(maxEvent)
	return &Attached{socket}, nil
}

// Next returns the next event; after the exit it returns io.EOF.
func (a *Attached) Next(ctx context.Context) (wire.ExecEvent, error) {
	_, data, err := a.socket.Read(ctx)
	if websocket.CloseStatus(err) == websocket.StatusNormalClosure {
		return wire.ExecEvent{}, io.EOF
	}
	var e wire.ExecEvent
	if err != nil {
		return e, fmt.Errorf("cannot read from the program: %w", err)
	}
	err = json.Unmarshal(data, &e)
	return e, err
}

// attachPiece is how much of stdin goes into one message: a service takes no large ones.
const attachPiece = 64 << 10

// Write writes to the program's stdin.
func (a *Attached) Write(ctx context.Context, data []byte) error {
	for piece := range slices.Chunk(data, attachPiece) {
		if err := a.socket.Write(ctx, websocket.MessageBinary, piece); err != nil {
			return err
		}
	}
	return nil
}

// Control resizes, signals, or ends stdin.
func (a *Attached) Control(ctx context.Context, control wire.Control) error {
	data, err := encode(control)
	if err != nil {
		return err
	}
	return a.socket.Write(ctx, websocket.MessageText, data)
}

// Close ends the connection.
func (a *Attached) Close() error { return a.socket.CloseNow() }
