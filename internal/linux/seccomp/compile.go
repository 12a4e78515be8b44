package seccomp

import (
	"fmt"
	"slices"
)

// A filter is built as a directed acyclic graph of tests whose leaves are
// actions, equal nodes being one node, and then written out. The kernel
// verifies, translates and, per system call number, evaluates the program each
// time it is installed, which is at every execution: hence the care for a
// small number of instructions.

// node is a test on one word of seccomp_data, or a leaf (code == opRet).
type node struct {
	code uint16 // opIfEq, opIfGe, opIfBits or opRet
	off  uint32 // word looked at
	mask uint32 // applied to it; 0 means all bits
	k    uint32
	yes  *node
	no   *node

	placed bool
	pos    int // distance from the program's end
}

type nodeKey struct {
	code    uint16
	off     uint32
	mask    uint32
	k       uint32
	yes, no *node
}

// graph holds the nodes by content.
type graph struct{ nodes map[nodeKey]*node }

func (g *graph) node(k nodeKey) *node {
	if k.yes != nil && k.yes == k.no {
		return k.yes
	}
	n := g.nodes[k]
	if n == nil {
		n = &node{code: k.code, off: k.off, mask: k.mask, k: k.k, yes: k.yes, no: k.no}
		g.nodes[k] = n
	}
	return n
}

func (g *graph) leaf(a Action) *node { return g.node(nodeKey{code: opRet, k: uint32(a)}) }

// rule returns the graph of a rule.
func (g *graph) rule(r rule) *node {
	switch r := r.(type) {
	case Action:
		return g.leaf(r)
	case ifBits:
		return g.node(nodeKey{code: opIfBits, off: loArg(r.arg), k: r.bits, yes: g.rule(r.then), no: g.rule(r.not)})
	case ifNull:
		null, not := g.rule(r.then), g.rule(r.not)
		lo := g.node(nodeKey{code: opIfEq, off: loArg(r.arg), yes: null, no: not})
		return g.node(nodeKey{code: opIfEq, off: hiArg(r.arg), yes: lo, no: not})
	case match:
		m := newSpans(g.rule(r.other))
		for _, c := range r.cases {
			n := g.rule(c.then)
			for _, v := range c.values {
				m.set(v, n)
			}
		}
		return g.search(loArg(r.arg), r.mask, m.merge())
	}
	panic(fmt.Sprintf("seccomp: unknown rule %T", r))
}

// span says that values from first up to the next span's first lead to n.
type span struct {
	first uint32
	n     *node
}

// spans collects where single values lead, and makes of it a partition of all
// 32-bit values.
type spans struct {
	other *node
	items []span
}

func newSpans(other *node) *spans { return &spans{other: other} }

func (s *spans) set(v uint32, n *node) { s.items = append(s.items, span{v, n}) }

// merge returns the partition, neighbours with the same node being one span.
func (s *spans) merge() []span {
	slices.SortFunc(s.items, func(a, b span) int {
		switch {
		case a.first < b.first:
			return -1
		case a.first > b.first:
			return 1
		}
		return 0
	})
	var out []span
	add := func(first uint32, n *node) {
		if len(out) == 0 || out[len(out)-1].n != n {
			out = append(out, span{first, n})
		}
	}
	next := uint64(0)
	for _, it := range s.items {
		if uint64(it.first) > next {
			add(uint32(next), s.other)
		}
		add(it.first, it.n)
		next = uint64(it.first) + 1
	}
	if next <= 0xffffffff {
		add(uint32(next), s.other)
	}
	return out
}

// maxChain is how many single values are compared one after the other at the
// end of a search. More makes the program shorter and its paths longer.
const maxChain = 4

// segment is a part of a partition that is cheap to decide: everything leads
// to base, but for a few single values.
type segment struct {
	first   uint32
	base    *node
	singles []span
}

// search returns the graph that finds a value's span: a balanced binary search
// over segments, then at most maxChain comparisons.
func (g *graph) search(off, mask uint32, part []span) *node {
	single := func(i int) bool { return i+1 < len(part) && part[i+1].first == part[i].first+1 }
	// reach returns how far a segment of the given base can go from span i.
	reach := func(i int, base *node) (int, []span) {
		var singles []span
		for ; i < len(part); i++ {
			switch {
			case part[i].n == base:
			case single(i) && len(singles) < maxChain:
				singles = append(singles, part[i])
			default:
				return i, singles
			}
		}
		return i, singles
	}
	var segments []segment
	for i := 0; i < len(part); {
		base := part[i].n
		end, singles := reach(i, base)
		if single(i) && i+1 < len(part) {
			// The first value may itself be an exception to what follows.
			if e, s := reach(i, part[i+1].n); e > end {
				base, end, singles = part[i+1].n, e, s
			}
		}
		segments = append(segments, segment{part[i].first, base, singles})
		i = end
	}
	return g.bisect(off, mask, segments)
}

func (g *graph) bisect(off, mask uint32, segs []segment) *node {
	if len(segs) == 1 {
		n := segs[0].base
		for _, s := range segs[0].singles {
			n = g.node(nodeKey{code: opIfEq, off: off, mask: mask, k: s.first, yes: s.n, no: n})
		}
		return n
	}
	mid := len(segs) / 2
	return g.node(nodeKey{
		code: opIfGe, off: off, mask: mask, k: segs[mid].first,
		yes: g.bisect(off, mask, segs[mid:]), no: g.bisect(off, mask, segs[:mid]),
	})
}

// x32Bit marks system calls of the x32 ABI, which shares its AUDIT_ARCH value
// with amd64.
const x32Bit = 0x40000000

// compile writes the filter of a policy.
func compile(table map[string]rule, a Arch) (*Program, error) {
	g := &graph{nodes: make(map[nodeKey]*node, 512)}
	unknown, kill := g.leaf(Errno(eNOSYS)), g.leaf(Kill)
	part := newSpans(unknown)
	rules := 0
	for _, s := range syscalls {
		nr := s.nr[a]
		if nr == absent {
			continue
		}
		r, ok := table[s.name]
		if !ok {
			return nil, fmt.Errorf("system call %s is in no list of the policy", s.name)
		}
		if lets(r) {
			rules++
		}
		part.set(uint32(nr), g.rule(r))
	}
	numbers := part.merge()
	if a == AMD64 {
		// The number -1 is nobody's ABI: programs use it to see ENOSYS, and a
		// tracer to skip a call.
		numbers = append(numbers, span{x32Bit, kill}, span{0xffffffff, unknown})
	}
	root := g.node(nodeKey{
		code: opIfEq, off: offArch, k: auditArch[a],
		yes: g.search(offNr, 0, numbers), no: kill,
	})
	insns, err := write(root)
	if err != nil {
		return nil, err
	}
	return newProgram(insns, rules), nil
}

// word is what the accumulator holds; the zero value is nothing known, since
// no test is on offset 0 without saying so in set.
type word struct {
	off, mask uint32
	set       bool
}

// write lays the graph out. Jumps in BPF go forward only, so it writes from
// the end: a node comes after everything that it leads to. Where all tests
// that lead to a node have already loaded the word that it looks at, it does
// not load again.
func write(root *node) ([]insn, error) {
	held := make(map[*node]word)
	seen := map[*node]bool{root: true}
	for _, n := range order(root) { // from the root down
		has := word{n.off, n.mask, true}
		for _, c := range []*node{n.yes, n.no} {
			if c == nil {
				continue
			}
			if !seen[c] {
				seen[c] = true
				held[c] = has
			} else if held[c] != has {
				held[c] = word{}
			}
		}
	}
	w := writer{held: held}
	w.node(root)
	slices.Reverse(w.out)
	if len(w.out) > maxInstructions {
		return nil, fmt.Errorf("%d instructions, the kernel takes %d", len(w.out), maxInstructions)
	}
	return w.out, nil
}

// order returns the tests so that each comes before what it leads to.
func order(root *node) []*node {
	var post []*node
	seen := make(map[*node]bool)
	var visit func(*node)
	visit = func(n *node) {
		if n == nil || seen[n] || n.code == opRet {
			return
		}
		seen[n] = true
		visit(n.yes)
		visit(n.no)
		post = append(post, n)
	}
	visit(root)
	slices.Reverse(post)
	return post
}

// writer appends instructions in reverse order.
type writer struct {
	held map[*node]word
	out  []insn
}

// maxJump is how far a conditional jump reaches.
const maxJump = 255

func (w *writer) node(n *node) {
	if n.placed || n.code == opRet { // leaves are written where they are needed
		return
	}
	w.node(n.no)
	w.node(n.yes)
	// A copy or a relay may itself push the other target out of reach, so ask
	// for room for both.
	w.near(n.no, maxJump-1)
	w.near(n.yes, maxJump)
	at := len(w.out)
	jump := func(to *node) uint8 { return uint8(at - to.pos - 1) }
	w.emit(n, insn{code: n.code, jt: jump(n.yes), jf: jump(n.no), k: n.k})
	if w.held[n] != (word{n.off, n.mask, true}) {
		if n.mask != 0 {
			w.emit(n, insn{code: opAnd, k: n.mask})
		}
		w.emit(n, insn{code: opLoad, k: n.off})
	}
}

// near makes sure that the next instruction reaches n within the distance,
// by a new copy of a leaf or by a relay.
func (w *writer) near(n *node, within int) {
	distance := len(w.out) - n.pos - 1
	if n.placed && distance <= within {
		return
	}
	if n.code == opRet {
		w.emit(n, insn{code: opRet, k: n.k})
		return
	}
	w.emit(n, insn{code: opJump, k: uint32(distance)})
}

// emit writes an instruction, which becomes where jumps to n go.
func (w *writer) emit(n *node, in insn) {
	w.out = append(w.out, in)
	n.placed, n.pos = true, len(w.out)-1
}
