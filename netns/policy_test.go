package netns

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// FuzzBoxes compares the ranges without overlaps with the list that they are made of.
func FuzzBoxes(f *testing.F) {
	f.Add(uint64(1), uint8(3))
	f.Add(uint64(2), uint8(40))
	f.Fuzz(func(t *testing.T, seed uint64, n uint8) {
		r := rand.New(rand.NewPCG(seed, 0))
		addr := func() netip.Addr { return address(r.Uint32N(8)<<29 | r.Uint32N(4)) }
		var list []Allow
		for range n % 48 {
			first := uint16(r.Uint32N(8)) * 9362
			a := Allow{
				netip.PrefixFrom(addr(), int([]uint32{0, 1, 3, 29, 31, 32}[r.IntN(6)])),
				Ports{[]Protocol{TCP, UDP}[r.IntN(2)], first, uint16(min(uint32(first)+r.Uint32N(3)*9362+r.Uint32N(2), 65535))},
			}
			list = append(list, a)
		}
		got, err := boxes(list)
		if err != nil {
			t.Fatal(err)
		}
		for i, a := range got {
			if a.first > a.last || a.firstPort > a.lastPort {
				t.Errorf("%+v is empty", a)
			}
			for _, b := range got[:i] {
				if a.protocol == b.protocol && a.first <= b.last && b.first <= a.last && a.firstPort <= b.lastPort && b.firstPort <= a.lastPort {
					t.Errorf("%+v and %+v overlap", a, b)
				}
			}
		}
		for range 500 {
			at, protocol, port := addr(), []Protocol{TCP, UDP}[r.IntN(2)], uint16(r.Uint32N(8))*9362+uint16(r.Uint32N(2))
			var inList, inBoxes bool
			for _, a := range list {
				inList = inList || a.Protocol == protocol && a.Prefix.Contains(at) && a.First <= port && port <= a.Last
			}
			for _, b := range got {
				inBoxes = inBoxes || b.protocol == protocol && b.first <= number(at) && number(at) <= b.last && b.firstPort <= port && port <= b.lastPort
			}
			if inList != inBoxes {
				t.Errorf("%s %s:%d is in the list: %v, in the ranges: %v", protocol, at, port, inList, inBoxes)
			}
		}
	})
}

// TestPrivateAndForbidden checks the two lists against each other.
func TestPrivateAndForbidden(t *testing.T) {
	for _, p := range append(forbidden4, private4...) {
		if p != p.Masked() || !p.Addr().Is4() {
			t.Errorf("%s is not an IPv4 prefix in its own form", p)
		}
	}
	s, err := Policy{Allowed: []Allow{
		{netip.MustParsePrefix("10.0.0.0/8"), Ports{TCP, 1, 1}},
		{netip.MustParsePrefix("10.0.0.0/7"), Ports{TCP, 2, 2}},
		{netip.MustParsePrefix("192.168.1.1/32"), Ports{TCP, 3, 3}},
		{everything, Ports{TCP, 4, 4}},
	}}.sets()
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		list []box
		want []uint16
	}{{s.named, []uint16{1, 3}}, {s.allowed, []uint16{2, 4}}} {
		for i, b := range x.list {
			if len(x.list) != len(x.want) || b.firstPort != x.want[i] {
				t.Errorf("ranges = %+v, want ports %v", x.list, x.want)
				break
			}
		}
	}
}

// FuzzAnswers has the readers of the kernel's answers read anything.
func FuzzAnswers(f *testing.F) {
	var w writer
	w.nft("test", unix.NFT_MSG_NEWOBJ, 0, unix.NFPROTO_INET, func() {
		w.text(unix.NFTA_OBJ_NAME, countTx)
		w.be32(unix.NFTA_OBJ_TYPE, unix.NFT_OBJECT_COUNTER)
		w.nest(unix.NFTA_OBJ_DATA, func() { w.be64(unix.NFTA_COUNTER_BYTES, 7) })
	})
	f.Add(w.b)
	f.Fuzz(func(t *testing.T, b []byte) {
		err := each(b, func(_ unix.NlMsghdr, body []byte) error {
			_, _, err := parseObject(body)
			return err
		})
		parseRefused(b)
		if err == nil && len(b) == len(w.b) && string(b) == string(w.b) {
			_, c, err := parseObject(b[unix.NLMSG_HDRLEN:])
			if err != nil || c.Bytes != 7 {
				t.Errorf("read %+v, want 7 bytes: %v", c, err)
			}
		}
	})
}

func address(n uint32) netip.Addr {
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, n)))
}
