package netns

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Counter is what matched a rule.
type Counter struct{ Packets, Bytes uint64 }

// Counters are what a gateway has counted since it was made. Bytes are those of IP
// packets with their headers, without the 14 of Ethernet, as the gateway saw them:
// sender and receiver hand on up to 64 KiB of a stream as one packet, whose headers
// are counted once, so a wire of 1500 bytes would have carried up to 3.4 % more.
// Packets say little for the same reason.
type Counters struct {
	Tx        Counter // all that the sandbox sent, refused or not
	Rx        Counter // all that it was sent
	Denied    Counter // refused or dropped because nothing allows it
	Never     Counter // of Denied, to addresses that no policy or no exception opens
	Limited   Counter // over a limit: of connections (of Denied too), bytes or their rate
	Spoofed   Counter // dropped because its source was not the sandbox's
	Fragments Counter // dropped because it was a part of a packet

	// QuotaUsed is how much of Limits.Bytes was used; it goes on counting beyond.
	QuotaUsed uint64
}

// Counters reads the counters. They outlive the sandbox, not the gateway.
func (g *Gateway) Counters() (Counters, error) {
	var c Counters
	counters := map[string]*Counter{
		countTx: &c.Tx, countRx: &c.Rx, countDenied: &c.Denied, countNever: &c.Never,
		countLimited: &c.Limited, countSpoofed: &c.Spoofed, countFrag: &c.Fragments,
	}
	var w writer
	// both tables at once: their families differ, and the answer to this is of all
	w.nft("read the counters of a gateway", unix.NFT_MSG_GETOBJ, unix.NLM_F_DUMP, unix.NFPROTO_UNSPEC, func() {})
	err := g.dump(&w, func(body []byte) error {
		name, value, err := parseObject(body)
		if err != nil {
			return err
		}
		if to := counters[name]; to != nil {
			to.Packets += value.Packets
			to.Bytes += value.Bytes
		}
		if name == allQuota {
			c.QuotaUsed = value.Bytes
		}
		return nil
	})
	return c, err
}

// Refused is a destination that the gateway refused.
type Refused struct {
	Destination netip.AddrPort
	Protocol    Protocol
	Counter
}

// Refused returns what the gateway refused by its destination or a limit, in no
// order: the first thousand or so of different destinations.
func (g *Gateway) Refused() ([]Refused, error) {
	var out []Refused
	var w writer
	w.nft("read what a gateway refused", unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, unix.NFPROTO_INET, func() {
		w.text(unix.NFTA_SET_ELEM_LIST_TABLE, polTable)
		w.text(unix.NFTA_SET_ELEM_LIST_SET, setRefused)
	})
	err := g.dump(&w, func(body []byte) error {
		return attrsOf(body[min(len(body), nfgenSize):], unix.NFTA_SET_ELEM_LIST_ELEMENTS, func(b []byte) error {
			return attrsOf(b, unix.NFTA_LIST_ELEM, func(b []byte) error {
				r, err := parseRefused(b)
				out = append(out, r)
				return err
			})
		})
	})
	return out, err
}

func (g *Gateway) dump(w *writer, visit func(body []byte) error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.rules == nil {
		return errClosed
	}
	return g.rules.dump(w, visit)
}

const nfgenSize = 4 // struct nfgenmsg

// attrsOf calls visit with the value of each attribute of the kind in b.
func attrsOf(b []byte, kind int, visit func(b []byte) error) error {
	return attrs(b, func(k int, v []byte) error {
		if k != kind {
			return nil
		}
		return visit(v)
	})
}

// parseObject reads a counter, or a quota as one that has no packets.
func parseObject(body []byte) (name string, value Counter, err error) {
	kind := uint32(0)
	var data []byte
	err = attrs(body[min(len(body), nfgenSize):], func(k int, v []byte) error {
		switch {
		case k == unix.NFTA_OBJ_NAME:
			name = string(bytes.TrimRight(v, "\x00"))
		case k == unix.NFTA_OBJ_TYPE && len(v) == 4:
			kind = binary.BigEndian.Uint32(v)
		case k == unix.NFTA_OBJ_DATA:
			data = v
		}
		return nil
	})
	if err != nil {
		return "", Counter{}, err
	}
	if kind == unix.NFT_OBJECT_QUOTA {
		err = attrs(data, func(k int, v []byte) error {
			if k == unix.NFTA_QUOTA_CONSUMED && len(v) == 8 {
				value.Bytes = binary.BigEndian.Uint64(v)
			}
			return nil
		})
		return name, value, err
	}
	value, err = parseCounter(data)
	return name, value, err
}

func parseCounter(b []byte) (c Counter, err error) {
	err = attrs(b, func(k int, v []byte) error {
		switch {
		case k == unix.NFTA_COUNTER_PACKETS && len(v) == 8:
			c.Packets = binary.BigEndian.Uint64(v)
		case k == unix.NFTA_COUNTER_BYTES && len(v) == 8:
			c.Bytes = binary.BigEndian.Uint64(v)
		}
		return nil
	})
	return c, err
}

// parseRefused reads an element of the set of refused destinations.
func parseRefused(b []byte) (r Refused, err error) {
	err = attrs(b, func(k int, v []byte) error {
		switch k {
		case unix.NFTA_SET_ELEM_KEY:
			return attrsOf(v, unix.NFTA_DATA_VALUE, func(v []byte) error {
				if len(v) < 10 {
					return unix.EBADMSG
				}
				a := netip.AddrFrom4([4]byte(v))
				r.Destination = netip.AddrPortFrom(a, binary.BigEndian.Uint16(v[8:]))
				r.Protocol = Protocol(v[4])
				return nil
			})
		case unix.NFTA_SET_ELEM_EXPR:
			return attrsOf(v, unix.NFTA_EXPR_DATA, func(v []byte) (err error) {
				r.Counter, err = parseCounter(v)
				return err
			})
		}
		return nil
	})
	return r, err
}
