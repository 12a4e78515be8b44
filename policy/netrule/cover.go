package netrule

import (
	"slices"
	"strings"
)

// Covering returns a rule of one side of the set, other than r itself, that speaks
// of everything that r speaks of; nil: there is none.
func (s *Set) Covering(r *Rule, deny bool) *Rule {
	d := &s.allow
	if deny {
		d = &s.deny
	}
	var found *Rule
	in := func(b *bucket) bool {
		if b != nil && found == nil {
			for i := range b.entries {
				if o := b.entries[i].rule; o != r && covers(o, r) {
					found = o
					break
				}
			}
		}
		return found == nil
	}
	name, wild := strings.CutPrefix(r.Domain, "*.")
	switch {
	case r.Domain != "":
		if wild {
			in(d.below[name])
		} else {
			in(d.exact[name])
		}
		for i := 0; i < len(name); i++ {
			if name[i] == '.' {
				in(d.below[name[i+1:]])
			}
		}
	case r.CIDR.IsValid():
		p := Unmap(r.CIDR)
		d.at(p.Addr()).walk(p.Addr(), in)
	}
	// A network may hold addresses that are not public, which allowing any does not allow.
	if deny || !r.CIDR.IsValid() {
		in(d.any)
	}
	return found
}

// Same reports whether two allow rules treat what both allow in the same way.
func Same(a, b *Rule) bool {
	tls := func(r *Rule) bool { return r.TLS == Intercept }
	if tls(a) != tls(b) || (a.Inject == nil) != (b.Inject == nil) {
		return false
	}
	return a.Inject == nil || *a.Inject == *b.Inject
}

// covers compares ports and requests, and the sizes of networks; that the
// destination of a holds that of b is known otherwise.
func covers(a, b *Rule) bool {
	if a.CIDR.IsValid() && b.CIDR.IsValid() && Unmap(a.CIDR).Bits() > Unmap(b.CIDR).Bits() {
		return false
	}
	return coverPorts(a.Ports, b.Ports) && coverHTTP(a.HTTP, b.HTTP)
}

func coverPorts(a, b []Ports) bool {
	if len(a) == 0 {
		return true
	}
	if len(b) == 0 {
		b = []Ports{{0, 65535}}
	}
	for _, p := range b {
		if !slices.ContainsFunc(a, func(o Ports) bool { return o.First <= p.First && p.Last <= o.Last }) {
			return false
		}
	}
	return true
}

func coverHTTP(a, b []HTTP) bool {
	if len(a) == 0 {
		return true
	}
	if len(b) == 0 {
		return false
	}
	for _, h := range b {
		if !slices.ContainsFunc(a, func(o HTTP) bool { return coverRequest(o, h) }) {
			return false
		}
	}
	return true
}

func coverRequest(a, b HTTP) bool {
	if len(a.Methods) > 0 {
		if len(b.Methods) == 0 || slices.ContainsFunc(b.Methods, func(m string) bool { return !slices.Contains(a.Methods, m) }) {
			return false
		}
	}
	if len(a.Paths) == 0 {
		return true
	}
	if len(b.Paths) == 0 {
		return slices.Contains(a.Paths, "/**")
	}
	for _, p := range b.Paths {
		if !slices.ContainsFunc(a.Paths, func(o string) bool { return coverPath(o, p) }) {
			return false
		}
	}
	return true
}

func coverPath(a, b string) bool {
	if a == b {
		return true
	}
	dir, below := strings.CutSuffix(a, "/**")
	if !below || strings.Contains(dir, "*") {
		return false
	}
	b = strings.TrimSuffix(b, "/**")
	return b == dir && dir != "" || strings.HasPrefix(b, dir+"/")
}
