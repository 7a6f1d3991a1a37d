package guest

import (
	"bufio"
	"context"
	"errors"
	"io"
	"sync"
	"syscall"
	"time"
)

// maxWaiting is how many requests may be on their way.
const maxWaiting = 32

// silence is how long a guest may have nothing to say while somebody waits for it. What
// takes longest is one request for the removal of a large tree.
const silence = 2 * time.Minute

// News are read so many at a time. They cost a hostile guest next to nothing, and this
// side more: what comes faster waits in the kernel's queue inside, which says what it lost.
const (
	maxNews   = 4096
	newsEvery = 100 * time.Millisecond
)

// Files reaches the files of one sandbox, through one guest. It is safe for use by
// any number of callers at once; the guest answers them in turn.
type Files struct {
	rw    io.ReadWriteCloser
	ready chan struct{} // closed when the guest has said who it is
	gone  chan struct{} // closed at the end of the conversation, after err is set
	out   chan []byte   // to the writer
	slots chan struct{} // one for each request on its way

	mu      sync.Mutex
	err     error
	closing bool
	next    uint32
	waiting map[uint32]*pending
	watches watches
	asking  int       // callers inside ask
	heard   time.Time // of the guest last, or since when it has been waited for
}

// pending is a request that is not answered yet.
type pending struct {
	op     op
	answer chan answer
	// givenUp: nobody waits for the answer any more.
	givenUp bool
	// settle, if any, is called by the reader, before it reads on: for what the next
	// message may already be about.
	settle func(answer) error
}

// NewFiles speaks to `/.engine/guest files`, whose stdin is written to rw and whose
// stdout is read from it. It returns at once; the first call waits for the guest.
// Close ends the conversation.
func NewFiles(rw io.ReadWriteCloser) *Files { return converse(rw, silence) }

func converse(rw io.ReadWriteCloser, silence time.Duration) *Files {
	f := &Files{
		rw: rw, ready: make(chan struct{}), gone: make(chan struct{}), out: make(chan []byte), slots: make(chan struct{}, maxWaiting),
		waiting: map[uint32]*pending{}, watches: watches{live: map[*Watcher]bool{}, of: map[uint32]map[*Watcher]string{}},
	}
	go f.read()
	go f.write()
	go f.watchdog(silence)
	return f
}

// watchdog ends a conversation in which the guest has fallen silent: any program of the
// sandbox can stop it.
func (f *Files) watchdog(silence time.Duration) {
	tick := time.NewTicker(silence / 4)
	defer tick.Stop()
	for {
		select {
		case <-f.gone:
			return
		case <-tick.C:
		}
		f.mu.Lock()
		late := (f.asking > 0 || len(f.waiting) > 0) && time.Since(f.heard) > silence
		f.mu.Unlock()
		if late {
			f.end(ErrSilent)
			return
		}
	}
}

// Close ends the conversation, and with it the guest. Files that were not committed are
// gone then; callers that wait are given up.
func (f *Files) Close() error {
	f.end(errClosed)
	return nil
}

var errClosed = errors.New("cannot reach the sandbox's files: closed by this side")

// end gives up, with the first reason that there was.
func (f *Files) end(reason error) {
	f.mu.Lock()
	if f.closing {
		f.mu.Unlock()
		return
	}
	f.closing, f.err = true, reason
	f.watches.end(reason)
	close(f.gone)
	f.mu.Unlock()
	f.rw.Close()
}

// Err returns why the conversation ended, nil while it goes on.
func (f *Files) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// write sends what callers have to ask. One that gives up while its request is being
// sent leaves it whole.
func (f *Files) write() {
	for {
		select {
		case b := <-f.out:
			if _, err := f.rw.Write(b); err != nil {
				f.end(ErrGone)
				return
			}
		case <-f.gone:
			return
		}
	}
}

// read hands out what the guest says, and never waits for anybody but the guest.
func (f *Files) read() {
	in := bufio.NewReaderSize(f.rw, 64<<10)
	hello := make([]byte, helloSize)
	if _, err := io.ReadFull(in, hello); err != nil {
		f.end(ErrGone)
		return
	}
	if err := parseHello(hello); err != nil {
		f.end(&ProtocolError{err.Error()})
		return
	}
	close(f.ready)
	header := make([]byte, headerSize)
	for news := 0; ; {
		if _, err := io.ReadFull(in, header); err != nil {
			f.end(ErrGone)
			return
		}
		a, size, err := parseHeader(header)
		if err != nil {
			f.end(&ProtocolError{err.Error()})
			return
		}
		a.payload = make([]byte, size)
		if _, err := io.ReadFull(in, a.payload); err != nil {
			f.end(ErrGone)
			return
		}
		if err := f.deliver(a); err != nil {
			f.end(&ProtocolError{err.Error()})
			return
		}
		if a.kind != kindEvent {
			continue
		}
		if news++; news%maxNews == 0 {
			select {
			case <-time.After(newsEvery):
			case <-f.gone:
				return
			}
		}
	}
}

func (f *Files) deliver(a answer) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if a.kind == kindEvent {
		return f.watches.deliver(a)
	}
	p := f.waiting[a.id]
	if p == nil {
		return errUnasked
	}
	f.retire(a.id)
	f.heard = time.Now()
	if p.settle != nil {
		if err := p.settle(a); err != nil {
			return err
		}
	}
	if p.givenUp && a.kind == kindDone && (p.op == opOpen || p.op == opCreate) {
		go f.always(context.Background(), "", request{op: opClose, base: a.value})
	}
	p.answer <- a
	return nil
}

var errUnasked = errors.New("an answer to what nobody asked")

// retire gives back the place of a request, once: a guest can answer one that it was not
// sent yet, and whose caller then gives up. Preconditions: mu is held.
func (f *Files) retire(id uint32) {
	if f.waiting[id] != nil {
		delete(f.waiting, id)
		<-f.slots
	}
}

// ask sends a request and waits for its answer. about is the path that an error names.
// A caller that gives up leaves a request that is answered all the same.
func (f *Files) ask(ctx context.Context, about string, r request, settle func(answer) error) (answer, error) {
	f.mu.Lock()
	if f.asking == 0 && len(f.waiting) == 0 {
		f.heard = time.Now()
	}
	f.asking++
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.asking--
		f.mu.Unlock()
	}()
	select {
	case <-f.ready:
	case <-f.gone:
		return answer{}, f.Err()
	case <-ctx.Done():
		return answer{}, ctx.Err()
	}
	select {
	case f.slots <- struct{}{}:
	case <-f.gone:
		return answer{}, f.Err()
	case <-ctx.Done():
		return answer{}, ctx.Err()
	}
	p := &pending{op: r.op, answer: make(chan answer, 1), settle: settle}
	f.mu.Lock()
	f.next++
	id := f.next
	f.waiting[id] = p
	f.mu.Unlock()
	select {
	case f.out <- r.encode(id):
	case <-f.gone:
		return answer{}, f.Err()
	case <-ctx.Done():
		f.mu.Lock()
		f.retire(id)
		f.mu.Unlock()
		return answer{}, ctx.Err()
	}
	a, err := f.wait(ctx, p)
	if err == nil && a.kind == kindError {
		err = &Error{r.op.String(), about, syscall.Errno(a.value)}
	}
	return a, err
}

func (f *Files) wait(ctx context.Context, p *pending) (answer, error) {
	select {
	case a := <-p.answer:
		return a, nil
	case <-f.gone:
		return answer{}, f.Err()
	case <-ctx.Done():
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case a := <-p.answer: // it came at the last moment
		return a, nil
	default:
		p.givenUp = true
		return answer{}, ctx.Err()
	}
}

// always sends a request also when ctx is over before it could be: what it ends would
// stay otherwise. ctx bounds only the wait.
func (f *Files) always(ctx context.Context, about string, r request) error {
	done := make(chan error, 1)
	go func() {
		_, err := f.ask(context.Background(), about, r, nil)
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// distrust ends the conversation over an answer that none should be.
func (f *Files) distrust(err error) error {
	broken := &ProtocolError{err.Error()}
	f.end(broken)
	return broken
}
