package api

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/cmd/engine-runner/config"
	"github.com/direct-oci/engine/engine"
)

// Class is what a caller may do. Each class may do all that the lesser ones may.
type Class int

// The classes.
const (
	None  Class = iota
	Read        // look: lists, records, output, figures
	Run         // start and end things, and reach into them
	Admin       // everything, also what belongs to others, and the host's directories
)

var classNames = []string{"none", "read", "run", "admin"}

func (c Class) String() string { return classNames[c] }

func parseClass(name string) Class { return Class(max(slices.Index(classNames, name), 0)) }

// Caller is who asks.
type Caller struct {
	Name   string // uid 1000, token ci, certificate panel
	Class  Class
	Tenant string // "": not confined to one
}

// sees says whether something that belongs to a tenant is there for the caller.
func (c Caller) sees(tenant string) bool { return c.Tenant == "" || c.Tenant == tenant }

// Policy is who may do what, and the most that they are granted: the service's part of
// a config, resolved on this host.
type Policy struct {
	rules   []socketRule
	tokens  []token
	clients map[string]Caller // by the common name of their certificate
	limits  ceiling

	perSecond float64 // requests of one tenant
}

type socketRule struct {
	uid, gid int64 // -1: any
	Caller
}

type token struct {
	hash [sha256.Size]byte
	Caller
}

// NewPolicy resolves a config's names of users and groups. The error is an *engine.Error.
func NewPolicy(c config.Config) (*Policy, error) {
	p := &Policy{clients: map[string]Caller{}, limits: newCeiling(c), perSecond: c.Serve().PerSecond}
	service := c.Serve()
	for _, a := range service.Access {
		rule := socketRule{uid: -1, gid: -1, Caller: Caller{Class: parseClass(a.Allow), Tenant: a.Tenant}}
		var err error
		if a.User != "" {
			rule.uid, err = lookup(a.User, func(name string) (string, error) {
				u, err := user.Lookup(name)
				if err != nil {
					return "", err
				}
				return u.Uid, nil
			})
		}
		if a.Group != "" && err == nil {
			rule.gid, err = lookup(a.Group, func(name string) (string, error) {
				g, err := user.LookupGroup(name)
				if err != nil {
					return "", err
				}
				return g.Gid, nil
			})
		}
		if err != nil {
			return nil, engine.Refused("bad_config", "cannot use service.access: %w", err).WithFix("make the user or group, or name it by number")
		}
		p.rules = append(p.rules, rule)
	}
	if service.TCP == nil {
		return p, nil
	}
	for name, t := range service.TCP.Tokens {
		entry := token{Caller: Caller{"token " + name, parseClass(t.Allow), t.Tenant}}
		if n, err := hex.Decode(entry.hash[:], []byte(t.SHA256)); err != nil || n != sha256.Size {
			return nil, engine.Refused("bad_config", "cannot use service.tcp.tokens.%s.sha256: want 64 hexadecimal digits", name)
		}
		p.tokens = append(p.tokens, entry)
	}
	for name, c := range service.TCP.Clients {
		p.clients[name] = Caller{"certificate " + name, parseClass(c.Allow), c.Tenant}
	}
	return p, nil
}

// lookup returns the number of a user or group that is given by name or number.
func lookup(name string, find func(string) (string, error)) (int64, error) {
	if n, err := strconv.ParseUint(name, 10, 32); err == nil {
		return int64(n), nil
	}
	text, err := find(name)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(text, 10, 64)
}

// peer is who is at the other end of a Unix socket.
type peer struct {
	uid    uint32
	groups []uint32
	err    error
}

type peerKey struct{}

func peerOf(conn *net.UnixConn) peer {
	raw, err := conn.SyscallConn()
	if err != nil {
		return peer{err: err}
	}
	var p peer
	controlErr := raw.Control(func(fd uintptr) {
		var cred *unix.Ucred
		if cred, p.err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); p.err != nil {
			return
		}
		p.uid = cred.Uid
		p.groups, p.err = peerGroups(int(fd))
		p.groups = append(p.groups, cred.Gid)
	})
	if controlErr != nil {
		p.err = controlErr
	}
	return p
}

// identify says who has sent the request.
//
// SECURITY: a caller is who the kernel says made the connection, who holds a token, or whose certificate the config's CA signed; nobody else is anybody.
// The API starts programs as root's own would: an unknown caller who got a class would own the host's sandboxes.
// Holds because: every other way ends in an error here, tokens are compared by their hashes in
// constant time, and the socket's rules are read from the connection and never from the request.
// Not covered: a caller who hands its connection on. Checked by: TestWhoMayDoWhat, TestTokens.
func (p *Policy) identify(r *http.Request) (Caller, error) {
	if from, ok := r.Context().Value(peerKey{}).(peer); ok {
		return p.bySocket(from)
	}
	if text, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		return p.byToken(text)
	}
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		name := r.TLS.VerifiedChains[0][0].Subject.CommonName
		if c, ok := p.clients[name]; ok {
			return c, nil
		}
		return Caller{Name: "certificate " + clip(name)}, engine.Refused("forbidden", "cannot let certificate=%q do anything: the config does not name it", clip(name)).
			WithFix("name it in service.tcp.clients")
	}
	return Caller{}, engine.Refused("unauthorised", "cannot tell who asks: neither a token nor a client certificate was given").
		WithFix("send Authorization: Bearer TOKEN")
}

func (p *Policy) bySocket(from peer) (Caller, error) {
	if from.err != nil {
		return Caller{}, engine.Failed("no_peer", "cannot ask the kernel who has connected: %w", from.err)
	}
	name := fmt.Sprintf("uid %d", from.uid)
	if from.uid == 0 || int(from.uid) == os.Geteuid() {
		return Caller{Name: name, Class: Admin}, nil
	}
	for _, r := range p.rules {
		if r.uid >= 0 && r.uid != int64(from.uid) {
			continue
		}
		if r.gid >= 0 && !slices.Contains(from.groups, uint32(r.gid)) {
			continue
		}
		return Caller{name, r.Class, r.Tenant}, nil
	}
	return Caller{Name: name}, engine.Refused("forbidden", "cannot let %s do anything: the config grants them nothing", name).
		WithFix("add the user, or one of their groups, to service.access")
}

func (p *Policy) byToken(text string) (Caller, error) {
	hash := sha256.Sum256([]byte(text))
	found := -1
	for i := range p.tokens { // all of them, so that the time does not tell which
		if subtle.ConstantTimeCompare(hash[:], p.tokens[i].hash[:]) == 1 {
			found = i
		}
	}
	if found < 0 {
		return Caller{}, engine.Refused("unauthorised", "cannot accept this token: the config has no such one").
			WithFix("make one with engine config token")
	}
	return p.tokens[found].Caller, nil
}
