package devplane

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/cmd/engine-runner/link/wire"
	"github.com/direct-oci/engine/engine"
)

// ServeHTTP serves runners at /link, and people and scripts below /v1, who have to show
// the token: any page in a browser on this machine can reach this address too.
func (p *Plane) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/link" {
		p.link(w, r)
		return
	}
	given, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if subtle.ConstantTimeCompare([]byte(given), []byte(p.token)) != 1 {
		fail(w, engine.Refused("unauthorised", "cannot answer: the token is missing or wrong"))
		return
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/runners", p.getRunners)
	mux.HandleFunc("POST /v1/reviews", p.postReview)
	mux.HandleFunc("POST /v1/calls", p.postCall)
	mux.HandleFunc("GET /v1/calls/{id}", p.getCall)
	mux.HandleFunc("POST /v1/calls/{id}/cancel", p.cancelCall)
	mux.ServeHTTP(w, r)
}

// Runner is a runner as it is shown.
type Runner struct {
	Identity     string              `json:"identity"`
	Version      string              `json:"version"`
	Connected    bool                `json:"connected"`
	Since        time.Time           `json:"since"` // when that changed
	Capacity     wire.Room           `json:"capacity"`
	Capabilities []capability.Listed `json:"capabilities"`
}

// Ask is what is asked for.
type Ask struct {
	ID     string    `json:"id,omitempty"`     // "": chosen
	Runner string    `json:"runner,omitempty"` // identity; "": the only one there is
	Call   wire.Call `json:"call"`
}

func (p *Plane) getRunners(w http.ResponseWriter, _ *http.Request) {
	p.mu.Lock()
	list := []Runner{}
	for _, r := range p.runners {
		list = append(list, Runner{r.identity, r.version, r.session != nil, r.since, r.room, r.capabilities})
	}
	p.mu.Unlock()
	slices.SortFunc(list, func(a, b Runner) int { return strings.Compare(a.Identity, b.Identity) })
	reply(w, list)
}

func (p *Plane) postReview(w http.ResponseWriter, r *http.Request) {
	ask, err := readAsk(w, r)
	if err != nil {
		fail(w, err)
		return
	}
	review, err := p.review(r.Context(), ask)
	if err != nil {
		fail(w, err)
		return
	}
	reply(w, review)
}

const reviewBound = 30 * time.Second

// review asks a runner what a call would do.
func (p *Plane) review(ctx context.Context, ask Ask) (wire.Review, error) {
	body, err := json.Marshal(ask.Call)
	if err == nil {
		_, err = wire.DecodeCall(body)
	}
	if err != nil {
		return wire.Review{}, engine.Refused("bad_arguments", "cannot review the call: %w", err)
	}
	p.mu.Lock()
	identity, err := p.choose(ask.Runner)
	var s *session
	if r := p.runners[identity]; err == nil && r != nil {
		s = r.session
	}
	id, answer := wire.NewNonce(8), make(chan reviewed, 1)
	p.reviews[id] = answer
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.reviews, id)
		p.mu.Unlock()
	}()
	if err != nil {
		return wire.Review{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, reviewBound)
	defer cancel()
	if s == nil {
		return wire.Review{}, engine.Refused("no_runner", "cannot ask runner=%s: it is not connected", identity)
	}
	if err := s.put(ctx, s.key.NewRequest(wire.TypeReview, id, time.Now(), body)); err != nil {
		return wire.Review{}, engine.Failed("no_runner", "cannot ask runner=%s: %w", identity, err)
	}
	select {
	case a := <-answer:
		if a.refusal != nil {
			return wire.Review{}, a.refusal
		}
		return a.review, nil
	case <-ctx.Done():
		return wire.Review{}, engine.Failed("no_runner", "cannot get a review from runner=%s: %w", identity, ctx.Err()).WithFix("ask again")
	}
}

func (p *Plane) postCall(w http.ResponseWriter, r *http.Request) {
	ask, err := readAsk(w, r)
	if err != nil {
		fail(w, err)
		return
	}
	c, err := p.ask(ask.ID, ask.Runner, ask.Call)
	if err != nil {
		fail(w, err)
		return
	}
	p.mu.Lock()
	shown := c.snapshot(1)
	p.mu.Unlock()
	reply(w, shown)
}

// getCall shows a call. With wait it waits so many seconds for something new: lines from
// number from on, or its end.
func (p *Plane) getCall(w http.ResponseWriter, r *http.Request) {
	from, _ := strconv.ParseInt(r.FormValue("from"), 10, 64) // what is no number is from the beginning
	wait, _ := strconv.Atoi(r.FormValue("wait"))
	bound := time.After(time.Duration(min(max(wait, 0), 60)) * time.Second)
	for {
		p.mu.Lock()
		c, changed := p.calls[r.PathValue("id")], p.changed
		if c == nil {
			p.mu.Unlock()
			fail(w, engine.Refused("not_found", "cannot find call=%s", r.PathValue("id")))
			return
		}
		shown, over := c.snapshot(from), c.over()
		p.mu.Unlock()
		if over || len(shown.Lines) > 0 || wait <= 0 {
			reply(w, shown)
			return
		}
		select {
		case <-changed:
		case <-bound:
			wait = 0
		case <-r.Context().Done():
			return
		}
	}
}

func (p *Plane) cancelCall(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	c := p.calls[r.PathValue("id")]
	if c == nil {
		p.mu.Unlock()
		fail(w, engine.Refused("not_found", "cannot find call=%s", r.PathValue("id")))
		return
	}
	c.cancel, c.asker = true, nil
	shown := c.snapshot(1)
	p.wake()
	p.mu.Unlock()
	reply(w, shown)
}

func readAsk(w http.ResponseWriter, r *http.Request) (Ask, error) {
	var ask Ask
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, wire.MaxMessage))
	d.DisallowUnknownFields()
	if err := d.Decode(&ask); err != nil {
		return ask, engine.Refused("bad_arguments", "cannot read the body: %w", err)
	}
	return ask, nil
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(v) // whoever is gone needs no answer
}

func fail(w http.ResponseWriter, err error) {
	e := engine.AsError(err)
	status := http.StatusInternalServerError
	switch {
	case e.Kind == "unauthorised":
		status = http.StatusForbidden
	case e.Kind == "not_found":
		status = http.StatusNotFound
	case e.Class == engine.ClassRequest:
		status = http.StatusBadRequest
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]any{"error": e})
}
