package netns

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// The statements that the rules of a gateway are made of, each as nft compiles it.

const (
	nfDrop   = 0 // NF_DROP
	nfAccept = 1 // NF_ACCEPT

	registerValue = unix.NFT_REG_1
)

// expr writes one expression.
func (w *writer) expr(name string, data func()) {
	w.nest(unix.NFTA_LIST_ELEM, func() {
		w.text(unix.NFTA_EXPR_NAME, name)
		w.nest(unix.NFTA_EXPR_DATA, data)
	})
}

func (w *writer) loadMeta(key, register uint32) {
	w.expr("meta", func() {
		w.be32(unix.NFTA_META_DREG, register)
		w.be32(unix.NFTA_META_KEY, key)
	})
}

func (w *writer) loadPayload(base, offset, size, register uint32) {
	w.expr("payload", func() {
		w.be32(unix.NFTA_PAYLOAD_DREG, register)
		w.be32(unix.NFTA_PAYLOAD_BASE, base)
		w.be32(unix.NFTA_PAYLOAD_OFFSET, offset)
		w.be32(unix.NFTA_PAYLOAD_LEN, size)
	})
}

func (w *writer) compare(op uint32, value []byte) {
	w.expr("cmp", func() {
		w.be32(unix.NFTA_CMP_SREG, registerValue)
		w.be32(unix.NFTA_CMP_OP, op)
		w.nest(unix.NFTA_CMP_DATA, func() { w.attr(unix.NFTA_DATA_VALUE, value) })
	})
}

func (w *writer) mask(value []byte) {
	w.expr("bitwise", func() {
		w.be32(unix.NFTA_BITWISE_SREG, registerValue)
		w.be32(unix.NFTA_BITWISE_DREG, registerValue)
		w.be32(unix.NFTA_BITWISE_LEN, uint32(len(value)))
		w.nest(unix.NFTA_BITWISE_MASK, func() { w.attr(unix.NFTA_DATA_VALUE, value) })
		w.nest(unix.NFTA_BITWISE_XOR, func() { w.attr(unix.NFTA_DATA_VALUE, make([]byte, len(value))) })
	})
}

func (w *writer) lookup(set string) {
	w.expr("lookup", func() {
		w.text(unix.NFTA_LOOKUP_SET, set)
		w.be32(unix.NFTA_LOOKUP_SREG, registerValue)
	})
}

func (w *writer) equalMeta(key uint32, value ...byte) {
	w.loadMeta(key, registerValue)
	w.compare(unix.NFT_CMP_EQ, value)
}

// The conditions on which nft makes those on a header depend.
func (w *writer) isEther()   { w.equalMeta(unix.NFT_META_IIFTYPE, native16(unix.ARPHRD_ETHER)...) }
func (w *writer) isIPFrame() { w.equalMeta(unix.NFT_META_PROTOCOL, 0x08, 0x00) } // by the frame's type: a netdev table
func (w *writer) isIP()      { w.equalMeta(unix.NFT_META_NFPROTO, unix.NFPROTO_IPV4) }

func native16(v uint16) []byte { return binary.NativeEndian.AppendUint16(nil, v) }

const (
	linkHeader      = unix.NFT_PAYLOAD_LL_HEADER
	networkHeader   = unix.NFT_PAYLOAD_NETWORK_HEADER
	transportHeader = unix.NFT_PAYLOAD_TRANSPORT_HEADER
)

// etherNot matches frames whose 6 bytes at offset are not the address.
func etherNot(field string, offset uint32, mac [6]byte) stmt {
	return stmt{fmt.Sprintf("ether %s != %s", field, net.HardwareAddr(mac[:])), func(w *writer) {
		w.isEther()
		w.loadPayload(linkHeader, offset, 6, registerValue)
		w.compare(unix.NFT_CMP_NEQ, mac[:])
	}}
}

// etherTypeNotIP matches frames of other types, and all that have a VLAN's tag.
func etherTypeNotIP() stmt {
	return stmt{"ether type != ip", func(w *writer) {
		w.isEther()
		w.loadPayload(linkHeader, 12, 2, registerValue)
		w.compare(unix.NFT_CMP_NEQ, []byte{0x08, 0x00})
	}}
}

// ipBits matches packets by some bits of their IPv4 header, in a netdev table.
func ipBits(text string, offset uint32, mask []byte, op uint32, value []byte) stmt {
	return stmt{text, func(w *writer) {
		w.isIPFrame()
		w.loadPayload(networkHeader, offset, uint32(len(value)), registerValue)
		if mask != nil {
			w.mask(mask)
		}
		w.compare(op, value)
	}}
}

const (
	offsetSource      = 12
	offsetDestination = 16
)

// to matches the destination, in an inet table.
func to(a netip.Addr) stmt {
	return stmt{"ip daddr " + a.String(), func(w *writer) { w.destination(a.AsSlice(), unix.NFT_CMP_EQ) }}
}

func notTo(a netip.Addr) stmt {
	return stmt{"ip daddr != " + a.String(), func(w *writer) { w.destination(a.AsSlice(), unix.NFT_CMP_NEQ) }}
}

// toPrefix matches a prefix of whole bytes.
func toPrefix(p netip.Prefix) stmt {
	return stmt{"ip daddr " + p.String(), func(w *writer) { w.destination(p.Addr().AsSlice()[:p.Bits()/8], unix.NFT_CMP_EQ) }}
}

func (w *writer) destination(value []byte, op uint32) {
	w.isIP()
	w.loadPayload(networkHeader, offsetDestination, uint32(len(value)), registerValue)
	w.compare(op, value)
}

func from(a netip.Addr) stmt {
	return stmt{"ip saddr " + a.String(), func(w *writer) {
		w.isIP()
		w.loadPayload(networkHeader, offsetSource, 4, registerValue)
		w.compare(unix.NFT_CMP_EQ, a.AsSlice())
	}}
}

// toIn matches the destination by a set.
func toIn(set string) stmt {
	return stmt{"ip daddr @" + set, func(w *writer) {
		w.isIP()
		w.loadPayload(networkHeader, offsetDestination, 4, registerValue)
		w.lookup(set)
	}}
}

// tuple loads destination, protocol and port as one key.
func (w *writer) tuple() {
	w.isIP()
	w.loadPayload(networkHeader, offsetDestination, 4, registerValue)
	w.loadMeta(unix.NFT_META_L4PROTO, unix.NFT_REG32_01)
	w.loadPayload(transportHeader, 2, 2, unix.NFT_REG32_02)
}

const tupleText = "ip daddr . meta l4proto . th dport"

func tupleIn(set string) stmt {
	return stmt{tupleText + " @" + set, func(w *writer) {
		w.tuple()
		w.lookup(set)
	}}
}

// note counts the packet's destination in a dynamic set, while there is room.
func note(set string) stmt {
	return stmt{"update @" + set + " { " + tupleText + " counter }", func(w *writer) {
		w.tuple()
		w.expr("dynset", func() {
			w.text(unix.NFTA_DYNSET_SET_NAME, set)
			w.be32(unix.NFTA_DYNSET_OP, unix.NFT_DYNSET_OP_UPDATE)
			w.be32(unix.NFTA_DYNSET_SREG_KEY, registerValue)
			w.nest(unix.NFTA_DYNSET_EXPR, func() {
				w.text(unix.NFTA_EXPR_NAME, "counter")
				w.nest(unix.NFTA_EXPR_DATA, func() {})
			})
		})
	}}
}

// portsIn matches protocol and port by a set.
func portsIn(set string) stmt {
	return stmt{"meta l4proto . th dport @" + set, func(w *writer) {
		w.loadMeta(unix.NFT_META_L4PROTO, registerValue)
		w.loadPayload(transportHeader, 2, 2, unix.NFT_REG32_01)
		w.lookup(set)
	}}
}

func isProtocol(p Protocol) stmt {
	return stmt{"meta l4proto " + p.String(), func(w *writer) { w.equalMeta(unix.NFT_META_L4PROTO, byte(p)) }}
}

// port matches a port of the transport header: the one to, or the one from.
func port(p Protocol, field string, offset uint32, number uint16) stmt {
	return stmt{fmt.Sprintf("%s %s %d", p, field, number), func(w *writer) {
		w.equalMeta(unix.NFT_META_L4PROTO, byte(p))
		w.loadPayload(transportHeader, offset, 2, registerValue)
		w.compare(unix.NFT_CMP_EQ, binary.BigEndian.AppendUint16(nil, number))
	}}
}

func portIn(p Protocol, set string) stmt {
	return stmt{fmt.Sprintf("%s dport @%s", p, set), func(w *writer) {
		w.equalMeta(unix.NFT_META_L4PROTO, byte(p))
		w.loadPayload(transportHeader, 2, 2, registerValue)
		w.lookup(set)
	}}
}

func tcpReset() stmt {
	return stmt{"tcp flags rst", func(w *writer) {
		w.equalMeta(unix.NFT_META_L4PROTO, byte(TCP))
		w.loadPayload(transportHeader, 13, 1, registerValue)
		w.mask([]byte{4})
		w.compare(unix.NFT_CMP_NEQ, []byte{0})
	}}
}

func device(word string, key uint32, op uint32, name string) stmt {
	text := fmt.Sprintf("%s %q", word, name)
	if op == unix.NFT_CMP_NEQ {
		text = fmt.Sprintf("%s != %q", word, name)
	}
	return stmt{text, func(w *writer) {
		w.loadMeta(key, registerValue)
		padded := make([]byte, unix.IFNAMSIZ)
		copy(padded, name)
		w.compare(op, padded)
	}}
}

func notFromLink() stmt {
	return device("iifname", unix.NFT_META_IIFNAME, unix.NFT_CMP_NEQ, gatewayLink)
}

func fromLink() stmt { return device("iifname", unix.NFT_META_IIFNAME, unix.NFT_CMP_EQ, gatewayLink) }

func toLink() stmt { return device("oifname", unix.NFT_META_OIFNAME, unix.NFT_CMP_EQ, gatewayLink) }

func newConnection() stmt {
	const stateNew = 8
	return stmt{"ct state new", func(w *writer) {
		w.expr("ct", func() {
			w.be32(unix.NFTA_CT_DREG, registerValue)
			w.be32(unix.NFTA_CT_KEY, unix.NFT_CT_STATE)
		})
		w.mask(binary.NativeEndian.AppendUint32(nil, stateNew))
		w.compare(unix.NFT_CMP_NEQ, make([]byte, 4))
	}}
}

func connectionsOver(n int) stmt {
	return stmt{fmt.Sprintf("ct count over %d", n), func(w *writer) {
		w.expr("connlimit", func() {
			w.be32(nftaConnlimitCount, uint32(n))
			w.be32(nftaConnlimitFlags, nftConnlimitInv)
		})
	}}
}

func packetsOver(perSec int) stmt {
	return stmt{fmt.Sprintf("limit rate over %d/second burst %d packets", perSec, perSec), func(w *writer) {
		w.limit(uint64(perSec), uint32(perSec), unix.NFT_LIMIT_PKTS)
	}}
}

func bytesOver(perSec, burst int64) stmt {
	return stmt{fmt.Sprintf("limit rate over %d bytes/second burst %d bytes", perSec, burst), func(w *writer) {
		w.limit(uint64(perSec), uint32(burst), unix.NFT_LIMIT_PKT_BYTES)
	}}
}

func (w *writer) limit(rate uint64, burst, kind uint32) {
	w.expr("limit", func() {
		w.be64(unix.NFTA_LIMIT_RATE, rate)
		w.be64(unix.NFTA_LIMIT_UNIT, 1)
		w.be32(unix.NFTA_LIMIT_BURST, burst)
		w.be32(unix.NFTA_LIMIT_TYPE, kind)
		w.be32(unix.NFTA_LIMIT_FLAGS, nftLimitInv)
	})
}

func count(name string) stmt {
	return stmt{fmt.Sprintf("counter name %q", name), func(w *writer) { w.object(unix.NFT_OBJECT_COUNTER, name) }}
}

// quotaOver counts the packet against the quota and matches once it is used up.
func quotaOver(name string) stmt {
	return stmt{fmt.Sprintf("quota name %q", name), func(w *writer) { w.object(unix.NFT_OBJECT_QUOTA, name) }}
}

func (w *writer) object(kind uint32, name string) {
	w.expr("objref", func() {
		w.be32(unix.NFTA_OBJREF_IMM_TYPE, kind)
		w.text(unix.NFTA_OBJREF_IMM_NAME, name)
	})
}

func untracked() stmt { return stmt{"notrack", func(w *writer) { w.expr("notrack", func() {}) }} }

// proxied gives the packet to the transparent socket on port, wherever it goes.
func proxied(number uint16) stmt {
	return stmt{fmt.Sprintf("tproxy ip to :%d", number), func(w *writer) {
		w.expr("immediate", func() {
			w.be32(unix.NFTA_IMMEDIATE_DREG, registerValue)
			w.nest(unix.NFTA_IMMEDIATE_DATA, func() {
				w.attr(unix.NFTA_DATA_VALUE, binary.BigEndian.AppendUint16(nil, number))
			})
		})
		w.expr("tproxy", func() {
			w.be32(nftaTproxyFamily, unix.NFPROTO_IPV4)
			w.be32(nftaTproxyRegPort, registerValue)
		})
	}}
}

func reset() stmt {
	return stmt{"reject with tcp reset", func(w *writer) { w.reject(unix.NFT_REJECT_TCP_RST, 0) }}
}

func portUnreachable() stmt {
	return stmt{"reject with icmpx port-unreachable", func(w *writer) {
		w.reject(unix.NFT_REJECT_ICMPX_UNREACH, unix.NFT_REJECT_ICMPX_PORT_UNREACH)
	}}
}

func (w *writer) reject(kind uint32, code byte) {
	w.expr("reject", func() {
		w.be32(unix.NFTA_REJECT_TYPE, kind)
		w.u8(unix.NFTA_REJECT_ICMP_CODE, code)
	})
}

func accept() stmt { return stmt{"accept", func(w *writer) { w.verdict(nfAccept, "") }} }
func drop() stmt   { return stmt{"drop", func(w *writer) { w.verdict(nfDrop, "") }} }

func jumpAway(chain string) stmt {
	return stmt{"goto " + chain, func(w *writer) { w.verdict(unix.NFT_GOTO, chain) }}
}

func (w *writer) verdict(code int32, chain string) {
	w.expr("immediate", func() {
		w.be32(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
		w.nest(unix.NFTA_IMMEDIATE_DATA, func() {
			w.nest(unix.NFTA_DATA_VERDICT, func() {
				w.be32(unix.NFTA_VERDICT_CODE, uint32(code))
				if chain != "" {
					w.text(unix.NFTA_VERDICT_CHAIN, chain)
				}
			})
		})
	})
}
