package seccomp

// A rule decides about one system call by its arguments. The forms are the
// Action itself, and the three structs below, which lead to further rules.
//
// Except in ifNull, only the low 32 bits of an argument are looked at. That is
// right for parameters that the kernel declares int or unsigned int, or cuts
// to 32 bits before use: comparing all 64 would let junk in the upper half
// carry a refused value past the filter. The policy looks at no others, but
// for the arguments of prctl, where the kernel itself refuses such junk.
type rule interface{ isRule() }

// match decides by the value of argument arg under mask.
type match struct {
	arg   int
	mask  uint32 // 0 means all bits
	cases []when // values are in at most one case
	other rule
}

// when is one case of a match.
type when struct {
	values []uint32
	then   rule
}

// ifBits decides by whether argument arg has any of the bits.
type ifBits struct {
	arg  int
	bits uint32
	then rule
	not  rule
}

// ifNull decides by whether argument arg, a pointer, is null.
type ifNull struct {
	arg  int
	then rule
	not  rule
}

func (Action) isRule() {}
func (match) isRule()  {}
func (ifBits) isRule() {}
func (ifNull) isRule() {}

// lets reports whether a rule allows the call for some arguments.
func lets(r rule) bool {
	switch r := r.(type) {
	case Action:
		return r == Allow
	case match:
		for _, c := range r.cases {
			if lets(c.then) {
				return true
			}
		}
		return lets(r.other)
	case ifBits:
		return lets(r.then) || lets(r.not)
	case ifNull:
		return lets(r.then) || lets(r.not)
	}
	return false
}
