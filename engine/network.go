package engine

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/direct-oci/engine/netns"
	"github.com/direct-oci/engine/netns/egress"
)

// network is what a run has of one: its namespace and, where its policy grants
// anything, the gateway on the far side and the server that decides there. All of it
// is held by descriptors of the monitor alone: when the monitor dies, every
// connection of the sandbox is gone.
type network struct {
	sandbox *os.File // the sandbox's namespace
	gateway *netns.Gateway
	audit   *audit
	stop    chan struct{} // closed when the counters need not be noted any more

	mu     sync.Mutex
	server *egress.Server // guarded by mu until the sandbox starts, read alone after
}

// traffic is what the gateway counted, in bytes of IP packets.
type traffic struct {
	Rx int64 `json:"rx"` // towards the sandbox
	Tx int64 `json:"tx"` // from it
}

// trafficInterval is how often the counters are noted for whoever has to write the
// result of a run whose monitor died.
const trafficInterval = 2 * time.Second

// openNetwork makes the namespaces and serves the policy. The sandbox's link comes up
// closed, and nothing passes before the policy is in force.
func (sb *sandbox) openNetwork() (err error) {
	n := &sb.network
	policy := sb.Request.Egress
	if policy.Mode() == "none" {
		n.sandbox, err = netns.New()
		return err
	}
	if n.gateway, err = netns.NewGateway(netns.GatewayConfig{Policy: policy.Kernel(), Limits: policy.KernelLimits()}); err != nil {
		return err
	}
	n.sandbox = n.gateway.Sandbox()
	if n.audit, err = openAudit(sb.record.AuditPath()); err != nil {
		return err
	}
	server, err := egress.Serve(egress.Config{Gateway: n.gateway, Policy: policy, Sink: n.audit})
	if err != nil {
		return err
	}
	n.mu.Lock()
	n.server = server
	n.mu.Unlock()
	n.stop = make(chan struct{})
	go n.watch(sb.dir(trafficName))
	return nil
}

const trafficName = "traffic.json"

// watch notes the counters now and then.
func (n *network) watch(path string) {
	tick := time.NewTicker(trafficInterval)
	defer tick.Stop()
	for {
		select {
		case <-n.stop:
			return
		case <-tick.C:
			if t, err := n.count(); err == nil {
				noteTraffic(path, t)
			}
		}
	}
}

// noteTraffic is for the case that this process dies. What cannot be written is
// unknown then.
func noteTraffic(path string, t traffic) {
	data, err := json.Marshal(t)
	if err != nil {
		return
	}
	if os.WriteFile(path+".tmp", data, 0o600) == nil {
		os.Rename(path+".tmp", path)
	}
}

// lastTraffic is what was noted last of a run, nil if nothing was.
func (h Host) lastTraffic(req Request) *traffic {
	if req.Egress.Mode() == "none" {
		return &traffic{}
	}
	data, err := os.ReadFile(filepath.Join(h.runDir(req.ID), trafficName))
	var t traffic
	if err != nil || json.Unmarshal(data, &t) != nil {
		return nil
	}
	return &t
}

func (n *network) count() (traffic, error) {
	c, err := n.gateway.Counters()
	if err != nil {
		return traffic{}, err
	}
	return traffic{Rx: int64(c.Rx.Bytes), Tx: int64(c.Tx.Bytes)}, nil
}

// report is what came of the network, read when the sandbox is dead. It ends all
// connections. A run without a gateway moved no bytes.
func (n *network) report(info *NetworkInfo, used *Usage) error {
	if n.gateway == nil || n.server == nil {
		var none int64
		used.RxBytes, used.TxBytes = &none, &none
		return nil
	}
	close(n.stop)
	closeErr := n.server.Close() // what is still on its way is counted when it ends
	t, err := n.count()
	if err == nil {
		used.RxBytes, used.TxBytes = &t.Rx, &t.Tx
	}
	stats, statsErr := n.server.Stats()
	for _, d := range stats.Denied {
		info.Denied = append(info.Denied, Denied{d.Host, d.Port, d.Proto, d.Rule, d.Count})
	}
	for _, d := range stats.Allowed {
		info.Allowed = append(info.Allowed, Allowed{d.Host, d.Port, d.Proto, d.Rule, d.Count, d.RxBytes, d.TxBytes})
	}
	return errors.Join(closeErr, err, statsErr, n.audit.close())
}

// close gives the namespaces back, and ends what report did not.
func (n *network) close() error {
	var errs []error
	if n.server != nil {
		errs = append(errs, n.server.Close())
	}
	if n.gateway != nil {
		return errors.Join(append(errs, n.gateway.Close())...) // the sandbox's namespace with it
	}
	if n.sandbox != nil {
		errs = append(errs, n.sandbox.Close())
	}
	return errors.Join(errs...)
}

// audit is the record of every decision, one line of JSON each. Decisions come from
// connections that must not wait for a disk: what does not fit into the queue is
// counted, and said in the last line.
type audit struct {
	queue chan auditLine
	done  chan error

	mu      sync.Mutex
	dropped int64
	closed  bool
}

type auditLine struct {
	Time time.Time `json:"time"`
	egress.Decision
}

func openAudit(path string) (*audit, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	a := &audit{queue: make(chan auditLine, 4096), done: make(chan error, 1)}
	go func() {
		enc := json.NewEncoder(f)
		enc.SetEscapeHTML(false)
		var first error
		for line := range a.queue {
			if err := enc.Encode(line); err != nil && first == nil {
				first = err
			}
		}
		if a.dropped > 0 {
			first = errors.Join(first, enc.Encode(map[string]int64{"dropped": a.dropped}))
		}
		a.done <- errors.Join(first, f.Close())
	}()
	return a, nil
}

// Decision implements egress.Sink.
func (a *audit) Decision(d egress.Decision) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return
	}
	select {
	case a.queue <- auditLine{time.Now(), d}:
	default:
		a.dropped++
	}
}

// close returns when every line is written.
func (a *audit) close() error {
	a.mu.Lock()
	if !a.closed {
		a.closed = true
		close(a.queue)
	}
	a.mu.Unlock()
	return <-a.done
}

// resolverFiles are the run's own /etc files where it has a network: the layer's say
// that there is none.
func (sb *sandbox) resolverFiles() error {
	if sb.Request.Egress.Mode() == "none" {
		return nil
	}
	hostname := sb.Request.Hostname
	if hostname == "" {
		hostname = "sandbox"
	}
	for name, content := range map[string]string{"resolv.conf": egress.ResolvConf(), "hosts": egress.Hosts(hostname)} {
		path := sb.dir("proc", name)
		if err := os.WriteFile(path, []byte(content), 0o444); err != nil {
			return err
		}
		if err := os.Chmod(path, 0o444); err != nil {
			return err
		}
		sb.etc = append(sb.etc, name)
	}
	return nil
}
