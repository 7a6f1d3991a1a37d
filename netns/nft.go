package netns

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
)

// The rules of a gateway are values that are written in two ways: as text that nft
// reads, for people, and as the messages that nft would send, for the kernel. A test
// has nft load the text and compares what the kernel then holds.

type ruleset []table

type table struct {
	family   byte
	name     string
	counters []string
	quota    *quota
	sets     []set
	chains   []chain
}

type quota struct {
	name  string
	bytes int64
}

type set struct {
	name   string
	fields []field // one, or a concatenation
	flags  uint32
	size   int // of a dynamic set
	elems  []elem
}

type field struct {
	name string // as nft calls the type
	kind uint32 // as nft numbers it
	size int
	text func(first, last []byte) string
}

var (
	fieldAddr     = field{"ipv4_addr", 7, 4, addressText}
	fieldProtocol = field{"inet_proto", 12, 1, func(first, _ []byte) string { return Protocol(first[0]).String() }}
	fieldPort     = field{"inet_service", 13, 2, portText}
)

// elem is an element of a set, its fields each padded to a register. end is nil but
// in an interval set, where it belongs to the range.
type elem struct{ key, end []byte }

type chain struct {
	name  string
	hook  *hook
	rules []rule
}

type hook struct {
	name     string // as nft calls it
	number   uint32
	priority int32
	device   string
	drop     bool // what is left over; accept otherwise
}

// rule is a list of statements: conditions, then what happens.
type rule []stmt

type stmt struct {
	text  string
	write func(*writer)
}

// x/sys/unix lacks these numbers of nf_tables.
const (
	nftaTproxyFamily   = 1  // NFTA_TPROXY_FAMILY
	nftaTproxyRegPort  = 3  // NFTA_TPROXY_REG_PORT
	nftaConnlimitCount = 1  // NFTA_CONNLIMIT_COUNT
	nftaConnlimitFlags = 2  // NFTA_CONNLIMIT_FLAGS
	nftConnlimitInv    = 1  // NFT_CONNLIMIT_F_INV
	nftLimitInv        = 1  // NFT_LIMIT_F_INV
	nftQuotaInv        = 1  // NFT_QUOTA_F_INV
	nftaSetElemKeyEnd  = 10 // NFTA_SET_ELEM_KEY_END
	nftaSetDescConcat  = 2  // NFTA_SET_DESC_CONCAT
	nftaSetFieldLen    = 1  // NFTA_SET_FIELD_LEN
	nftSetConcat       = 0x80
	nftDatatypeBits    = 6
	registerSize       = 4
)

var familyNames = map[byte]string{unix.NFPROTO_NETDEV: "netdev", unix.NFPROTO_INET: "inet"}

// String returns the rules as nft reads them.
func (r ruleset) String() string {
	var b strings.Builder
	for _, t := range r {
		fmt.Fprintf(&b, "table %s %s {\n", familyNames[t.family], t.name)
		for _, c := range t.counters {
			fmt.Fprintf(&b, "\tcounter %s {\n\t}\n\n", c)
		}
		if t.quota != nil {
			fmt.Fprintf(&b, "\tquota %s {\n\t\tover %d bytes\n\t}\n\n", t.quota.name, t.quota.bytes)
		}
		for _, s := range t.sets {
			s.print(&b)
		}
		for i, c := range t.chains {
			if i > 0 {
				b.WriteByte('\n')
			}
			c.print(&b)
		}
		b.WriteString("}\n")
	}
	return b.String()
}

func (s set) print(b *strings.Builder) {
	var types, flags, elems []string
	for _, f := range s.fields {
		types = append(types, f.name)
	}
	for _, f := range []struct {
		bit  uint32
		name string
	}{{unix.NFT_SET_INTERVAL, "interval"}, {unix.NFT_SET_EVAL, "dynamic"}} {
		if s.flags&f.bit != 0 {
			flags = append(flags, f.name)
		}
	}
	for _, e := range s.elems {
		elems = append(elems, s.elemText(e))
	}
	fmt.Fprintf(b, "\tset %s {\n\t\ttype %s\n", s.name, strings.Join(types, " . "))
	if s.size > 0 {
		fmt.Fprintf(b, "\t\tsize %d\n", s.size)
	}
	if len(flags) > 0 {
		fmt.Fprintf(b, "\t\tflags %s\n", strings.Join(flags, ","))
	}
	if len(elems) > 0 {
		fmt.Fprintf(b, "\t\telements = { %s }\n", strings.Join(elems, ", "))
	}
	b.WriteString("\t}\n\n")
}

func (s set) elemText(e elem) string {
	var words []string
	at := 0
	for _, f := range s.fields {
		first := e.key[at : at+f.size]
		last := first
		if e.end != nil {
			last = e.end[at : at+f.size]
		}
		words = append(words, f.text(first, last))
		at += registerSize
	}
	return strings.Join(words, " . ")
}

func portText(first, last []byte) string {
	a, b := binary.BigEndian.Uint16(first), binary.BigEndian.Uint16(last)
	if a == b {
		return fmt.Sprint(a)
	}
	return fmt.Sprintf("%d-%d", a, b)
}

// addressText writes an address, a prefix, or both ends of a range.
func addressText(first, last []byte) string {
	a, b := binary.BigEndian.Uint32(first), binary.BigEndian.Uint32(last)
	from := netip.AddrFrom4([4]byte(first))
	switch host := a ^ b; {
	case a == b:
		return from.String()
	case host&(host+1) == 0 && a&host == 0:
		return netip.PrefixFrom(from, bits.LeadingZeros32(host)).String()
	}
	return fmt.Sprintf("%s-%s", from, netip.AddrFrom4([4]byte(last)))
}

func (c chain) print(b *strings.Builder) {
	fmt.Fprintf(b, "\tchain %s {\n", c.name)
	if h := c.hook; h != nil {
		device, policy := "", "accept"
		if h.device != "" {
			device = fmt.Sprintf(" device %q", h.device)
		}
		if h.drop {
			policy = "drop"
		}
		fmt.Fprintf(b, "\t\ttype filter hook %s%s priority %d; policy %s;\n", h.name, device, h.priority, policy)
	}
	for _, r := range c.rules {
		words := make([]string, len(r))
		for i, s := range r {
			words[i] = s.text
		}
		fmt.Fprintf(b, "\t\t%s\n", strings.Join(words, " "))
	}
	b.WriteString("\t}\n")
}

// write writes the messages that load the rules, all or none.
func (r ruleset) write(w *writer) {
	w.transaction(func() {
		for _, t := range r {
			t.write(w)
		}
	})
}

// transaction puts the messages that body writes in one.
func (w *writer) transaction(body func()) {
	edge := func(kind int) {
		w.message("change the rules of a gateway", kind, 0, func() { w.raw(unix.AF_UNSPEC, 0, 0, unix.NFNL_SUBSYS_NFTABLES) })
	}
	edge(unix.NFNL_MSG_BATCH_BEGIN)
	body()
	w.acknowledged() // the last one alone: each answer costs
	edge(unix.NFNL_MSG_BATCH_END)
}

// nft writes one message to nf_tables.
func (w *writer) nft(does string, kind, flags int, family byte, body func()) {
	w.message(does, unix.NFNL_SUBSYS_NFTABLES<<8|kind, flags, func() {
		w.raw(family, unix.NFNETLINK_V0, 0, 0)
		body()
	})
}

func (t table) write(w *writer) {
	add := func(what, name string, kind int, body func()) {
		w.nft("add "+what+" "+name+" to a gateway's rules", kind, unix.NLM_F_CREATE, t.family, body)
	}
	add("table", t.name, unix.NFT_MSG_NEWTABLE, func() { w.text(unix.NFTA_TABLE_NAME, t.name) })
	object := func(name string, kind uint32, data func()) {
		add("object", name, unix.NFT_MSG_NEWOBJ, func() {
			w.text(unix.NFTA_OBJ_TABLE, t.name)
			w.text(unix.NFTA_OBJ_NAME, name)
			w.be32(unix.NFTA_OBJ_TYPE, kind)
			w.nest(unix.NFTA_OBJ_DATA, data)
		})
	}
	for _, c := range t.counters {
		object(c, unix.NFT_OBJECT_COUNTER, func() {})
	}
	if q := t.quota; q != nil {
		object(q.name, unix.NFT_OBJECT_QUOTA, func() {
			w.be64(unix.NFTA_QUOTA_BYTES, uint64(q.bytes))
			w.be32(unix.NFTA_QUOTA_FLAGS, nftQuotaInv)
		})
	}
	for i, s := range t.sets {
		add("set", s.name, unix.NFT_MSG_NEWSET, func() { s.write(w, t.name, i+1) })
		w.elements(t, s)
	}
	for _, c := range t.chains {
		add("chain", c.name, unix.NFT_MSG_NEWCHAIN, func() { c.write(w, t.name) })
	}
	for _, c := range t.chains {
		for _, r := range c.rules {
			w.nft("add a rule to chain "+c.name+" of a gateway", unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, t.family, func() {
				w.text(unix.NFTA_RULE_TABLE, t.name)
				w.text(unix.NFTA_RULE_CHAIN, c.name)
				w.nest(unix.NFTA_RULE_EXPRESSIONS, func() {
					for _, s := range r {
						s.write(w)
					}
				})
			})
		}
	}
}

func (s set) write(w *writer, table string, id int) {
	kind, size := uint32(0), 0
	for _, f := range s.fields {
		kind = kind<<nftDatatypeBits | f.kind
		size += (f.size + registerSize - 1) / registerSize * registerSize
	}
	flags := s.flags
	if len(s.fields) == 1 {
		size = s.fields[0].size
	} else {
		flags |= nftSetConcat
	}
	w.text(unix.NFTA_SET_TABLE, table)
	w.text(unix.NFTA_SET_NAME, s.name)
	w.be32(unix.NFTA_SET_FLAGS, flags)
	w.be32(unix.NFTA_SET_KEY_TYPE, kind)
	w.be32(unix.NFTA_SET_KEY_LEN, uint32(size))
	w.be32(unix.NFTA_SET_ID, uint32(id))
	w.nest(unix.NFTA_SET_DESC, func() {
		if s.size > 0 {
			w.be32(unix.NFTA_SET_DESC_SIZE, uint32(s.size))
		}
		if len(s.fields) == 1 {
			return
		}
		w.nest(nftaSetDescConcat, func() {
			for _, f := range s.fields {
				w.nest(unix.NFTA_LIST_ELEM, func() { w.be32(nftaSetFieldLen, uint32(f.size)) })
			}
		})
	})
	// Without its note on the byte order, nft cannot print an interval set.
	w.attr(unix.NFTA_SET_USERDATA, []byte{0, 4, 2, 0, 0, 0})
}

// elementsInOne is how many elements go in one message, whose list has 16 bits for
// its length.
const elementsInOne = 512

// elements writes the messages that add the set's elements.
func (w *writer) elements(t table, s set) {
	for at := 0; at < len(s.elems); at += elementsInOne {
		w.nft("add elements to set "+s.name+" of a gateway", unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, t.family, func() {
			w.text(unix.NFTA_SET_ELEM_LIST_TABLE, t.name)
			w.text(unix.NFTA_SET_ELEM_LIST_SET, s.name)
			w.nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func() {
				for _, e := range s.elems[at:min(at+elementsInOne, len(s.elems))] {
					w.element(e, len(s.fields) > 1)
				}
			})
		})
	}
}

func (w *writer) element(e elem, concatenated bool) {
	value := func(kind int, v []byte) {
		w.nest(kind, func() { w.attr(unix.NFTA_DATA_VALUE, v) })
	}
	w.nest(unix.NFTA_LIST_ELEM, func() {
		value(unix.NFTA_SET_ELEM_KEY, e.key)
		if e.end != nil && concatenated {
			value(nftaSetElemKeyEnd, e.end)
		}
	})
	if e.end == nil || concatenated {
		return
	}
	// One field: an element of its own marks what no longer belongs to the range.
	after := binary.BigEndian.Uint32(e.end) + 1
	if after == 0 {
		return
	}
	w.nest(unix.NFTA_LIST_ELEM, func() {
		value(unix.NFTA_SET_ELEM_KEY, binary.BigEndian.AppendUint32(nil, after))
		w.be32(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
	})
}

func (c chain) write(w *writer, table string) {
	w.text(unix.NFTA_CHAIN_TABLE, table)
	w.text(unix.NFTA_CHAIN_NAME, c.name)
	h := c.hook
	if h == nil {
		return
	}
	w.nest(unix.NFTA_CHAIN_HOOK, func() {
		w.be32(unix.NFTA_HOOK_HOOKNUM, h.number)
		w.be32(unix.NFTA_HOOK_PRIORITY, uint32(h.priority))
		if h.device != "" {
			w.text(unix.NFTA_HOOK_DEV, h.device)
		}
	})
	verdict := uint32(nfAccept)
	if h.drop {
		verdict = nfDrop
	}
	w.be32(unix.NFTA_CHAIN_POLICY, verdict)
	w.text(unix.NFTA_CHAIN_TYPE, "filter")
}
