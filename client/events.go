package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strings"
	"time"
)

// event is one server-sent event.
type event struct{ id, name, data string }

// maxEvent bounds one line of a stream: a megabyte of output in base64, and what is around.
const maxEvent = 8 << 20

// readEvents calls f for each event until the stream ends, or f returns an error.
func readEvents(r io.Reader, f func(event) error) error {
	scan := bufio.NewScanner(r)
	scan.Buffer(make([]byte, 0, 64<<10), maxEvent)
	var e event
	for scan.Scan() {
		line := scan.Text()
		if line == "" {
			if e.name != "" || e.data != "" {
				if err := f(e); err != nil {
					return err
				}
			}
			e = event{}
			continue
		}
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch name {
		case "id":
			e.id = value
		case "event":
			e.name = value
		case "data":
			if e.data != "" {
				e.data += "\n"
			}
			e.data += value
		}
	}
	return scan.Err() // a half event is not one
}

// errDone is the end of a stream to which nothing will be added.
var errDone = errors.New("done")

// follow yields the events of one name from a cursor on. A stream that was cut is taken up
// again behind the last event that was seen, as long as the client's patience lasts.
func follow[T any](ctx context.Context, c *Client, path, name, cursor string) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var zero T
		for {
			var last error
			progress := false
			for range c.tries(ctx) {
				last = c.stream(ctx, path, cursor, func(e event) error {
					switch e.name {
					case "done":
						return errDone
					case "error":
						return failureOf(&http.Response{}, []byte(e.data))
					case name:
						var v T
						if err := json.Unmarshal([]byte(e.data), &v); err != nil {
							return badEvent(err)
						}
						if !yield(v, nil) {
							return errStop
						}
						progress = true
						if e.id != "" {
							cursor = e.id
						}
					}
					return nil
				})
				var failure *Error
				switch {
				case errors.Is(last, errDone), errors.Is(last, errStop):
					return
				case errors.As(last, &failure) && failure.Kind != "draining":
					yield(zero, last)
					return
				}
				if progress {
					break // the service is there: patience begins anew
				}
			}
			if ctx.Err() != nil {
				yield(zero, ctx.Err())
				return
			}
			if !progress {
				yield(zero, fmt.Errorf("cannot follow %s: %w", path, last))
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// stream reads one stream until it ends. A nil error is a stream that was cut.
func (c *Client) stream(ctx context.Context, path, cursor string, f func(event) error) error {
	header := http.Header{"Accept": {"text/event-stream"}, "Last-Event-Id": {cursor}}
	res, err := c.send(ctx, request{method: http.MethodGet, path: path, header: header})
	if err != nil {
		return err
	}
	if res.StatusCode >= 400 {
		_, err := readAll(res)
		return err
	}
	defer res.Body.Close()
	return readEvents(res.Body, f)
}
