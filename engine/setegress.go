package engine

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/direct-oci/engine/engine/journal"
	"github.com/direct-oci/engine/netns/egress"
)

// egressChange is a new policy on its way to a monitor, and the monitor's answer: two
// files in the run's directory, named by a token that goes through the fifo.
type egressChange struct{ ask, answer string }

func egressChangeIn(dir, token string) egressChange {
	base := filepath.Join(dir, "egress-"+token)
	return egressChange{base + ".json", base + ".answer"}
}

// setEgressBound is how long a monitor may take to change a policy.
const setEgressBound = 10 * time.Second

// SetEgress replaces the policy of a live run that was started with one. When it
// returns, no connection is left that the new policy forbids. It does not change what
// is on record of the request.
func (h Host) SetEgress(ctx context.Context, prefix string, policy egress.Policy) error {
	if err := policy.Validate(); err != nil {
		return Refused("bad_network", "%w", err)
	}
	h = h.withDirs()
	rec, err := h.Load(prefix)
	if err != nil {
		return err
	}
	if !rec.Alive || rec.Result != nil {
		return Refused("not_running", "cannot change the network of run=%s: it has ended (%s)", rec.ID, rec.reason())
	}
	if rec.Request.Egress.Mode() == "none" {
		return Refused("bad_network", "cannot change the network of run=%s: it was started without one", rec.ID).
			WithFix("start it with --allow, --allow-cidr or --network")
	}
	data, err := json.Marshal(policy)
	if err != nil {
		return Failed("internal", "cannot write the policy: %w", err)
	}
	token := journal.NewID()
	change := egressChangeIn(h.runDir(rec.ID), token)
	defer os.Remove(change.answer)
	defer os.Remove(change.ask)
	if err := os.WriteFile(change.ask, data, 0o600); err != nil {
		return Failed("no_monitor", "cannot reach the monitor of run=%s: %w", rec.ID, err)
	}
	if err := h.reach(rec.ID, "egress "+token); err != nil {
		return Failed("no_monitor", "cannot reach the monitor of run=%s: %w", rec.ID, err)
	}
	ctx, cancel := context.WithTimeout(ctx, setEgressBound)
	defer cancel()
	return change.await(ctx, rec.ID)
}

// await returns what the monitor answered.
func (c egressChange) await(ctx context.Context, id string) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		text, err := os.ReadFile(c.answer)
		switch {
		case err == nil && len(text) == 0:
			return nil
		case err == nil:
			return Failed("no_network", "cannot change the network of run=%s: %s", id, text)
		case !errors.Is(err, os.ErrNotExist):
			return Failed("no_monitor", "cannot hear the monitor of run=%s: %w", id, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return Failed("no_monitor", "cannot change the network of run=%s: its monitor does not answer: %w", id, ctx.Err())
		}
	}
}

// changeEgress is the monitor's part.
func (sb *sandbox) changeEgress(token string) {
	if !journal.ValidID(token) {
		return
	}
	change := egressChangeIn(sb.dir(), token)
	answer := ""
	if err := sb.network.update(change.ask); err != nil {
		answer = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	// A caller that cannot be answered finds that out by itself.
	if os.WriteFile(change.answer+".tmp", []byte(answer), 0o600) == nil {
		os.Rename(change.answer+".tmp", change.answer)
	}
}

// update puts the policy in the file in force.
func (n *network) update(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var policy egress.Policy
	if err := json.Unmarshal(data, &policy); err != nil {
		return err
	}
	n.mu.Lock()
	server := n.server
	n.mu.Unlock()
	if server == nil {
		return errors.New("the network is not up yet")
	}
	return server.Update(policy)
}
