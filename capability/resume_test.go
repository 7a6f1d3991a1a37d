package capability

import (
	"context"
	"crypto/ed25519"
	"strings"
	"testing"

	"github.com/direct-oci/engine/capability/audit"
)

const someID = "00112233445566aa"

// died lets a call's runner die while it runs.
func (b *bed) died(t *testing.T, name, args string, edit func(*Call)) {
	t.Helper()
	defer func() { recover() }()
	b.call(name, args, func(c *Call) {
		c.ID = someID
		if edit != nil {
			edit(c)
		}
	})
	t.Fatal("the runner survived")
}

// TestResumeTellsAndStartsNothing answers calls whose runner died at each step.
func TestResumeTellsAndStartsNothing(t *testing.T) {
	b := newBed(t,
		fake{info: Info{Name: "kept", Hazard: Write, Kind: Action}, secrets: []string{"TOKEN"}, dies: true, resumable: true},
		fake{info: Info{Name: "gone", Hazard: Read, Kind: Connector}, dies: true})
	resume := func(name, args string) (Reply, error) {
		return b.Resume(context.Background(), Call{ID: someID, Project: "shop", Capability: name, Args: []byte(args), Caller: "test"})
	}
	if _, err := resume("kept", "{}"); kind(err) != "engine interrupted" || !strings.Contains(err.Error(), "before it began") {
		t.Errorf("never dispatched: %v", err)
	}
	e := b.approval(t, "kept", "{}")
	b.died(t, "kept", "{}", func(c *Call) { c.Approval = &e })
	if _, err := resume("kept", `{"n":1}`); kind(err) != "engine interrupted" {
		t.Errorf("with other arguments: %v", err)
	}
	ran := b.ran
	reply, err := resume("kept", "{}")
	if err != nil || reply.ID != someID || reply.Output != "kept [redacted:TOKEN]" || b.ran != ran {
		t.Fatalf("Resume = %+v, %v after %d more runs, want the output without its secret", reply, err, b.ran-ran)
	}
	receipt, err := OpenReceipt(reply.Receipt, b.key.Public().(ed25519.PublicKey))
	if err != nil || receipt.Authorised.Approver != "alice" || receipt.Authorised.Run != 1 || receipt.Call != someID || receipt.Began.IsZero() {
		t.Errorf("receipt = %+v, %v", receipt, err)
	}
}

func TestResumeOfWhatLeavesNoTrace(t *testing.T) {
	b := newBed(t, fake{info: Info{Name: "gone", Hazard: Read, Kind: Connector}, dies: true})
	b.died(t, "gone", "{}", nil)
	ask := Call{ID: someID, Project: "shop", Capability: "gone"}
	if _, err := b.Resume(context.Background(), ask); kind(err) != "engine interrupted" || b.ran != 1 {
		t.Errorf("error = %v after %d runs, want interrupted after the one", err, b.ran)
	}
}

// TestResumeOfARefusal gives the refusal again that is on record.
func TestResumeOfARefusal(t *testing.T) {
	b := newBed(t, fake{info: Info{Name: "a", Hazard: Write, Kind: Action}, resumable: true})
	if _, err := b.call("a", "{}", func(c *Call) { c.ID = someID }); kind(err) != "request not_approved" {
		t.Fatal(err)
	}
	if _, err := b.Resume(context.Background(), Call{ID: someID, Project: "shop", Capability: "a"}); kind(err) != "request not_approved" {
		t.Errorf("error = %v, want that on record", err)
	}
}

func TestIDsOfCalls(t *testing.T) {
	b := newBed(t, fake{info: Info{Name: "a", Hazard: Read, Kind: Action}})
	for _, id := range []string{"../../../../etc/p", "0", "00112233445566AA"} {
		if _, err := b.call("a", "{}", func(c *Call) { c.ID = id }); kind(err) != "request bad_id" || b.ran != 0 {
			t.Errorf("id=%q: %v", id, err)
		}
	}
	if reply, err := b.call("a", "{}", func(c *Call) { c.ID = someID }); err != nil || reply.ID != someID {
		t.Errorf("Call = %+v, %v", reply, err)
	}
	if entries, err := (audit.Log{Path: b.Audit.Path}).Of(someID); err != nil || len(entries) != 4 {
		t.Errorf("entries = %+v, %v, want four", entries, err)
	}
}
