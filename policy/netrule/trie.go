package netrule

import "net/netip"

// trie holds networks of one family, a bit per level: a look-up visits at most as
// many nodes as an address has bits, however many networks there are.
type trie struct {
	nodes []node
}

type node struct {
	next   [2]int32 // 0: none, since the root is nobody's child
	bucket *bucket
}

// bitAt returns bit i of an address, the highest first.
func bitAt(a *[16]byte, i int) int { return int(a[i>>3]>>(7-i&7)) & 1 }

// bits returns the address left-aligned.
func bits(a netip.Addr) (b [16]byte) {
	if a.Is4() {
		v4 := a.As4()
		copy(b[:], v4[:])
		return b
	}
	return a.As16()
}

// insert returns the bucket of a network.
func (t *trie) insert(p netip.Prefix) *bucket {
	if len(t.nodes) == 0 {
		t.nodes = append(t.nodes, node{})
	}
	a := bits(p.Addr())
	at := int32(0)
	for i := range p.Bits() {
		b := bitAt(&a, i)
		if t.nodes[at].next[b] == 0 {
			t.nodes[at].next[b] = int32(len(t.nodes))
			t.nodes = append(t.nodes, node{})
		}
		at = t.nodes[at].next[b]
	}
	if t.nodes[at].bucket == nil {
		t.nodes[at].bucket = &bucket{}
	}
	return t.nodes[at].bucket
}

// permits returns the rule of the smallest network that allows; refuses the rule
// of the largest that forbids.
func (t *trie) permits(q *query, addr netip.Addr) *Rule {
	var found *Rule
	t.walk(addr, func(b *bucket) bool {
		if r := b.allows(q); r != nil {
			found = r
		}
		return true
	})
	return found
}

func (t *trie) refuses(q *query, addr netip.Addr) *Rule {
	var found *Rule
	t.walk(addr, func(b *bucket) bool {
		found = b.refuses(q)
		return found == nil
	})
	return found
}

// walk visits the networks that hold an address, the largest first.
func (t *trie) walk(addr netip.Addr, f func(*bucket) bool) {
	if len(t.nodes) == 0 {
		return
	}
	a := bits(addr)
	at := int32(0)
	for i := 0; ; i++ {
		if b := t.nodes[at].bucket; b != nil && !f(b) {
			return
		}
		if i == addr.BitLen() {
			return
		}
		if at = t.nodes[at].next[bitAt(&a, i)]; at == 0 {
			return
		}
	}
}

// notPublic4 and notPublic6 are the special purposes of the IANA registries
// (RFC 6890 and its successors), and what IPv6 carries of IPv4.
var (
	notPublic4 = prefixes("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
		"192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3")
	notPublic6 = prefixes("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
	global6    = netip.MustParsePrefix("2000::/3")
)

func prefixes(list ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(list))
	for i, s := range list {
		out[i] = netip.MustParsePrefix(s)
	}
	return out
}

// Public reports whether an address is one of the public Internet: not private,
// loopback, link-local, shared, reserved, for documentation, multicast, nor one
// that stands for an IPv4 address by translation (NAT64, 6to4, Teredo).
func Public(a netip.Addr) bool {
	a = a.Unmap()
	list := notPublic4
	if !a.Is4() {
		if !global6.Contains(a) {
			return false
		}
		list = notPublic6
	}
	for _, p := range list {
		if p.Contains(a) {
			return false
		}
	}
	return true
}
