package api

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/engine/guest"
	"github.com/direct-oci/engine/service"
)

// guests are the programs inside sandboxes by which their files are reached: one for each
// sandbox, started when it is needed, shared by all requests, and ended soon after the
// last one, because a sandbox in which a program runs is not idle.
type guests struct {
	sandboxes *service.Manager

	mu   sync.Mutex
	open map[string]*openGuest // by run id
}

type openGuest struct {
	ready chan struct{} // closed when files or err is set
	files *guest.Files
	err   error
	users int
	close *time.Timer
}

// linger is how long a guest is kept that nobody uses.
const linger = 2 * time.Second

// guestOutput is what is kept of what a guest has to say: it says nothing.
const guestOutput = 4 << 10

func newGuests(m *service.Manager) *guests {
	return &guests{sandboxes: m, open: map[string]*openGuest{}}
}

// use returns the files of a sandbox, and what is to be called when they are not needed
// any more.
func (g *guests) use(ctx context.Context, id string) (*guest.Files, func(), error) {
	g.mu.Lock()
	o := g.open[id]
	if o != nil && o.files != nil && o.files.Err() != nil {
		delete(g.open, id) // it has ended: another is started
		o = nil
	}
	if o == nil {
		o = &openGuest{ready: make(chan struct{})}
		g.open[id] = o
		go g.start(id, o)
	}
	o.users++
	if o.close != nil {
		o.close.Stop()
		o.close = nil
	}
	g.mu.Unlock()
	select {
	case <-o.ready:
	case <-ctx.Done():
		g.leave(id, o)
		return nil, nil, engine.Refused("cancelled", "cannot reach the files of run=%s: %w", id, ctx.Err())
	}
	if o.err != nil {
		g.leave(id, o)
		return nil, nil, o.err
	}
	return o.files, func() { g.leave(id, o) }, nil
}

// startBound is for a program of the engine's own to start in a sandbox that lives.
const startBound = 30 * time.Second

func (g *guests) start(id string, o *openGuest) {
	ctx, cancel := context.WithTimeout(context.Background(), startBound)
	defer cancel()
	conn, err := g.sandboxes.Exec(ctx, id, engine.Exec{Command: guest.FilesCommand(), Raw: true, OutputKept: guestOutput})
	g.mu.Lock()
	defer g.mu.Unlock()
	if err != nil {
		o.err = err
		if g.open[id] == o {
			delete(g.open, id)
		}
	} else {
		o.files = guest.NewFiles(conn)
	}
	close(o.ready)
	if o.users == 0 {
		g.retire(id, o)
	}
}

func (g *guests) leave(id string, o *openGuest) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if o.users--; o.users == 0 && o.files != nil {
		g.retire(id, o)
	}
}

// retire ends a guest unless somebody comes soon. Preconditions: mu is held.
func (g *guests) retire(id string, o *openGuest) {
	if o.files == nil {
		return
	}
	o.close = time.AfterFunc(linger, func() {
		g.mu.Lock()
		if o.users > 0 {
			g.mu.Unlock()
			return
		}
		if g.open[id] == o {
			delete(g.open, id)
		}
		g.mu.Unlock()
		o.files.Close()
	})
}

// forget ends the guest of a sandbox that is about to go.
func (g *guests) forget(id string) {
	g.mu.Lock()
	o := g.open[id]
	delete(g.open, id)
	g.mu.Unlock()
	if o != nil && o.files != nil {
		o.files.Close()
	}
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
		return engine.Refused("bad_archive", "%w", err)
	case errors.As(err, &lied):
		return engine.Refused("bad_guest", "%w", err).WithFix("end the program of the sandbox that does so, or the sandbox")
	case errors.Is(err, guest.ErrGone):
		return engine.Refused("not_running", "%w", err)
	}
	return engine.Refused("bad_path", "cannot do this to the sandbox's files: %w", err)
}
