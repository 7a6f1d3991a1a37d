package capability

import (
	"context"
	"testing"
	"time"

	"github.com/direct-oci/engine/capability/approval"
	"github.com/direct-oci/engine/engine"
)

// TestRoomComesBeforeTheApprovalIsUsed has calls find no room, and wait for it until their
// approval has expired: neither uses it up, and what runs has room until it has ended.
func TestRoomComesBeforeTheApprovalIsUsed(t *testing.T) {
	room := engine.Limits{CPUs: 1, Memory: 1 << 20, Pids: 8}
	b := newBed(t, fake{info: Info{Name: "a", Hazard: Unknown, Kind: Workload}, room: room}, fake{info: Info{Name: "read", Hazard: Read, Kind: Connector}})
	e := b.approval(t, "a", "{}")
	with := func(c *Call) { c.Approval = &e }
	asked, held, ranInRoom := 0, 0, 0
	admit := func(err error) {
		b.Admit = func(_ context.Context, id, project string, got engine.Limits) (func(), error) {
			asked++
			if len(id) != 16 || project != "shop" || got != room {
				t.Errorf("asked for %+v for call=%s of project=%s", got, id, project)
			}
			if err != nil {
				return nil, err
			}
			held++
			ran := b.ran
			return func() {
				held--
				ranInRoom = b.ran - ran
			}, nil
		}
	}
	admit(engine.Failed("queue_full", "no room"))
	if _, err := b.call("a", "{}", nil); kind(err) != "request not_approved" || asked != 0 {
		t.Errorf("without an approval: %v, and room was asked for %d times", err, asked)
	}
	if _, err := b.call("a", "{}", with); kind(err) != "engine queue_full" || b.ran != 0 {
		t.Errorf("without room: %v, and %d ran", err, b.ran)
	}
	if _, err := b.call("read", "{}", nil); err != nil || asked != 1 {
		t.Errorf("what takes no room: %v, and it was asked for %d times", err, asked)
	}
	admit(nil)
	if _, err := b.call("a", "{}", with); err != nil || b.ran != 2 || held != 0 || ranInRoom != 1 {
		t.Errorf("once there was room: %v, %d ran, %d of them in it, %d still hold some", err, b.ran, ranInRoom, held)
	}
	if _, err := b.call("a", "{}", with); kind(err) != "request approval_used" {
		t.Errorf("again: %v", err)
	}
}

// TestApprovalExpiresInTheQueue wants no run of an approval that expired while its call
// waited for room.
func TestApprovalExpiresInTheQueue(t *testing.T) {
	b := newBed(t, fake{info: Info{Name: "a", Hazard: Unknown, Kind: Workload}, room: engine.Limits{CPUs: 1}})
	p, _, err := b.Prepare(t.Context(), Call{Project: "shop", Capability: "a", Args: []byte("{}")})
	if err != nil {
		t.Fatal(err)
	}
	expires := time.Now().Add(2 * time.Second)
	s, err := approval.New(p.Bound, p.Title, "alice", time.Now().Add(-time.Minute), expires, 1)
	if err != nil {
		t.Fatal(err)
	}
	e, err := s.Sign(b.key)
	if err != nil {
		t.Fatal(err)
	}
	b.Admit = func(context.Context, string, string, engine.Limits) (func(), error) {
		<-time.After(time.Until(expires.Add(time.Second)))
		return func() {}, nil
	}
	if _, err := b.call("a", "{}", func(c *Call) { c.Approval = &e }); kind(err) != "request approval_refused" || b.ran != 0 {
		t.Errorf("after it expired: %v, and %d ran", err, b.ran)
	}
}
