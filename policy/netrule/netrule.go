// Package netrule decides which destinations a sandbox may speak to.
//
// A [Network] is what a policy says about destinations, as plain data that can be
// sent to another process; [Compile] turns its rules into a [Set], which answers in
// a time that does not grow with their number. The package knows names, addresses,
// ports, methods and paths; it opens no connection, asks no resolver, and does not
// know how a request is parsed: whoever asks hands over what was really seen.
//
// Deny beats allow, and allow beats the default, which is deny. Rules are looked for
// by name (exact, then *.suffix from the longest to the shortest, then any) or, for
// destinations that were given as an address, by the networks that hold it.
package netrule

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Version is the version of [Network] as data.
const Version = 1

// Network is what a policy says about destinations.
type Network struct {
	Version int    `json:"version"`
	Rules   []Rule `json:"rules,omitempty"`
	Budget  Budget `json:"budget,omitzero"`
}

// Budget bounds what leaves a sandbox. Zero means no bound.
type Budget struct {
	BytesOut    int64            `json:"bytesOut,omitempty"`    // in all
	PerName     map[string]int64 `json:"perName,omitempty"`     // bytes to a destination: a name as Name returns it, or an address
	Requests    int64            `json:"requests,omitempty"`    // HTTP requests
	Connections int64            `json:"connections,omitempty"` // opened in all
}

// What a rule says about TLS.
const (
	Passthrough = "passthrough" // the default: TLS stays end to end
	Intercept   = "intercept"   // TLS ends at the egress, so that requests can be seen
)

// Rule allows or denies destinations: exactly one of Domain, CIDR and Any is set.
type Rule struct {
	At     string       `json:"at"`               // where it is written, file:line
	Deny   bool         `json:"deny,omitempty"`   //
	Domain string       `json:"domain,omitempty"` // a name, or *.name: every name below it, but not itself
	CIDR   netip.Prefix `json:"cidr,omitzero"`
	Any    bool         `json:"any,omitempty"`   // every name; allowed addresses are public ones
	Ports  []Ports      `json:"ports,omitempty"` // empty: all
	HTTP   []HTTP       `json:"http,omitempty"`  // requests, when not all of them
	TLS    string       `json:"tls,omitempty"`
	Inject *Injection   `json:"inject,omitempty"`
}

// Ports is a range of ports, both ends included.
type Ports struct {
	First uint16 `json:"first"`
	Last  uint16 `json:"last"`
}

func (p Ports) String() string {
	if p.First == p.Last {
		return strconv.Itoa(int(p.First))
	}
	return fmt.Sprintf("%d-%d", p.First, p.Last)
}

// HTTP describes requests. Empty Methods or Paths mean all.
type HTTP struct {
	Methods []string `json:"methods,omitempty"`
	Paths   []string `json:"paths,omitempty"` // /a/b, /a/*/c (one segment), /a/** (a, and what is below)
}

// Injection says how a secret is attached to a request.
type Injection struct {
	Secret string `json:"secret"`
	As     string `json:"as"`               // "header", "query" or "basic"
	Name   string `json:"name,omitempty"`   // of the header or the parameter, or the user
	Format string `json:"format,omitempty"` // of a header's value; {} stands for the secret
}

// Destination is what a rule's first field says: "api.example.com", "10.0.0.0/8", "any".
func (r *Rule) Destination() string {
	switch {
	case r.Domain != "":
		return r.Domain
	case r.Any:
		return "any"
	}
	return r.CIDR.String()
}

// Conn is what is known of a connection or request. Every field may be unknown,
// and what is unknown is not held against it: Decide is asked again when more is known.
type Conn struct {
	Name   string         // as [Name] returns it; empty when the program gave an address
	Addr   netip.AddrPort // port asked for, and the address given or resolved
	Method string         // of a request; empty before there is one
	Path   string         // of that request, as sent; query and fragment are ignored
	TLS    bool           // it speaks, or is about to speak, TLS with the destination
}

// Decision is the answer.
type Decision struct {
	Allow     bool
	Rule      string     // file:line of the rule that decided; empty: no rule did
	HTTP      bool       // allowed as HTTP only: each request has to be asked for
	Intercept bool       // TLS has to be intercepted
	Inject    string     // name of the secret to attach
	Injection *Injection // and how; nil: none
}

// maxPerDestination bounds what has to be looked at for one destination.
const maxPerDestination = 64

// entry is a compiled rule.
type entry struct {
	rule  *Rule
	ports []Ports
	http  []request
}

// bucket holds the rules of one destination.
type bucket struct {
	entries []entry
	weight  int
}

// side holds all allow or all deny rules.
type side struct {
	exact, below map[string]*bucket
	any          *bucket
	v4, v6       trie
}

// Set is a compiled list of rules. It does not change and may be used by many.
type Set struct {
	allow, deny side
}

// Compile compiles rules. It refuses what is malformed, and more than 64 rules or
// paths for one and the same destination, which would have to be looked at one by one.
func Compile(rules []Rule) (*Set, error) {
	s := &Set{}
	for _, d := range []*side{&s.allow, &s.deny} {
		d.exact, d.below, d.any = map[string]*bucket{}, map[string]*bucket{}, &bucket{}
	}
	for i := range rules {
		r := &rules[i]
		d := &s.allow
		if r.Deny {
			d = &s.deny
		}
		b, err := d.bucketOf(r)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.At, err)
		}
		if err := b.add(r); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", r.At, r.Destination(), err)
		}
	}
	for _, d := range []*side{&s.allow, &s.deny} {
		d.settle()
	}
	return s, nil
}

// bucketOf returns the bucket of a rule's destination.
func (d *side) bucketOf(r *Rule) (*bucket, error) {
	kinds := 0
	for _, is := range []bool{r.Domain != "", r.CIDR.IsValid(), r.Any} {
		if is {
			kinds++
		}
	}
	if kinds != 1 {
		return nil, fmt.Errorf("%d destinations, not one", kinds)
	}
	in := func(m map[string]*bucket, name string) (*bucket, error) {
		if !Canonical(name) {
			return nil, fmt.Errorf("%q is not a normalised name", name)
		}
		if m[name] == nil {
			m[name] = &bucket{}
		}
		return m[name], nil
	}
	suffix, wild := strings.CutPrefix(r.Domain, "*.")
	switch {
	case r.Any:
		return d.any, nil
	case wild:
		return in(d.below, suffix)
	case r.Domain != "":
		return in(d.exact, r.Domain)
	}
	p := Unmap(r.CIDR)
	if p != p.Masked() {
		return nil, fmt.Errorf("%s has bits set behind its prefix", r.CIDR)
	}
	if p.Addr().Is4() {
		return d.v4.insert(p), nil
	}
	return d.v6.insert(p), nil
}

// Unmap returns the IPv4 network that an IPv4-mapped IPv6 network stands for.
func Unmap(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p
}

func (b *bucket) add(r *Rule) error {
	e := entry{rule: r, ports: r.Ports}
	w := 1
	for _, h := range r.HTTP {
		q, err := compileRequest(h)
		if err != nil {
			return err
		}
		e.http = append(e.http, q)
		w += max(1, len(h.Paths))
	}
	for _, p := range r.Ports {
		if p.First > p.Last {
			return fmt.Errorf("ports %s end before they begin", p)
		}
	}
	if r.TLS != "" && r.TLS != Intercept && r.TLS != Passthrough {
		return fmt.Errorf("tls is %q", r.TLS)
	}
	b.entries = append(b.entries, e)
	if b.weight += w; b.weight > maxPerDestination {
		return fmt.Errorf("more than %d rules and paths for one destination", maxPerDestination)
	}
	return nil
}

// settle puts rules that intercept before others of the same destination, so that
// a wider one beside them does not make them void.
func (d *side) settle() {
	order := func(b *bucket) {
		slices.SortStableFunc(b.entries, func(x, y entry) int {
			return bit(y.rule.TLS == Intercept) - bit(x.rule.TLS == Intercept)
		})
	}
	for _, m := range []map[string]*bucket{d.exact, d.below} {
		for _, b := range m {
			order(b)
		}
	}
	order(d.any)
	for _, t := range []*trie{&d.v4, &d.v6} {
		for i := range t.nodes {
			if b := t.nodes[i].bucket; b != nil {
				order(b)
			}
		}
	}
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// MayResolve answers whether a name may be looked up at all: whether some
// connection to it could be allowed.
func (s *Set) MayResolve(name string) Decision { return s.Decide(Conn{Name: name}) }

// Decide answers. It takes no memory.
func (s *Set) Decide(c Conn) Decision {
	if c.Name != "" && !Canonical(c.Name) {
		return Decision{}
	}
	addr := c.Addr.Addr()
	if addr.IsValid() {
		if addr.Zone() != "" {
			return Decision{} // the interface is not the sandbox's to choose
		}
		addr = addr.Unmap()
	}
	if c.Name == "" && !addr.IsValid() {
		return Decision{}
	}
	var q query
	q.conn, q.port, q.plain = &c, c.Addr.Port(), c.Method != "" && plainPath(c.Path)
	// Deny: by name and by address, whichever is known.
	if r := s.deny.refuses(&q, c.Name, addr); r != nil {
		return Decision{Rule: r.At}
	}
	var r *Rule
	if c.Name != "" {
		r = s.allow.named(&q, c.Name)
		if r != nil && addr.IsValid() && !Public(addr) && s.allow.at(addr).permits(&q, addr) == nil {
			return Decision{} // a name is no way around what addresses are denied
		}
	} else {
		r = s.allow.at(addr).permits(&q, addr)
		if r == nil && Public(addr) {
			r = s.allow.any.allows(&q)
		}
	}
	if r == nil {
		return Decision{}
	}
	d := Decision{Allow: true, Rule: r.At, HTTP: q.http || len(r.HTTP) > 0 || r.Inject != nil, Intercept: c.TLS && (q.intercept || r.TLS == Intercept)}
	if r.Inject != nil {
		d.Inject, d.Injection = r.Inject.Secret, r.Inject
	}
	return d
}

// query is a connection while it is being decided.
type query struct {
	conn  *Conn
	port  uint16
	plain bool // the path means one thing only
	// Found on the way: a deny rule needs to see requests, or needs TLS intercepted for that.
	http, intercept bool
}

func (e *entry) port(q *query) bool {
	if q.port == 0 || len(e.ports) == 0 {
		return true
	}
	for _, p := range e.ports {
		if p.First <= q.port && q.port <= p.Last {
			return true
		}
	}
	return false
}

// allows returns the first rule that permits.
func (b *bucket) allows(q *query) *Rule {
	for i := range b.entries {
		e := &b.entries[i]
		if !e.port(q) {
			continue
		}
		if len(e.http) > 0 {
			if q.conn.TLS && e.rule.TLS != Intercept {
				continue // requests in there cannot be seen
			}
			if q.conn.Method != "" && !e.requests(q, false) {
				continue
			}
		}
		return e.rule
	}
	return nil
}

// refuses returns the first rule that forbids.
func (b *bucket) refuses(q *query) *Rule {
	for i := range b.entries {
		e := &b.entries[i]
		if q.port == 0 && len(e.ports) > 0 || !e.port(q) {
			continue // a name is denied when all of its ports are
		}
		switch {
		case len(e.http) == 0:
			return e.rule
		case q.conn.Method != "":
			if e.requests(q, true) {
				return e.rule
			}
		case q.conn.TLS && e.rule.TLS != Intercept:
			return e.rule // what cannot be seen cannot be told apart
		case q.conn.TLS:
			q.intercept = true
		}
		q.http = true
	}
	return nil
}

func (e *entry) requests(q *query, deny bool) bool {
	for i := range e.http {
		if e.http[i].match(q.conn.Method, q.conn.Path, q.plain, deny) {
			return true
		}
	}
	return false
}

// named looks for a rule that allows a name, the most specific first.
func (d *side) named(q *query, name string) *Rule {
	if b := d.exact[name]; b != nil {
		if r := b.allows(q); r != nil {
			return r
		}
	}
	if len(d.below) > 0 {
		for i := 0; i < len(name); i++ {
			if name[i] != '.' {
				continue
			}
			if b := d.below[name[i+1:]]; b != nil {
				if r := b.allows(q); r != nil {
					return r
				}
			}
		}
	}
	return d.any.allows(q)
}

// refuses looks for a rule that denies a name or an address.
func (d *side) refuses(q *query, name string, addr netip.Addr) *Rule {
	if r := d.any.refuses(q); r != nil {
		return r
	}
	if name != "" {
		if b := d.exact[name]; b != nil {
			if r := b.refuses(q); r != nil {
				return r
			}
		}
		if len(d.below) > 0 {
			for i := 0; i < len(name); i++ {
				if name[i] != '.' {
					continue
				}
				if b := d.below[name[i+1:]]; b != nil {
					if r := b.refuses(q); r != nil {
						return r
					}
				}
			}
		}
	}
	if addr.IsValid() {
		return d.at(addr).refuses(q, addr)
	}
	return nil
}

// at returns the networks that may hold an address.
func (d *side) at(addr netip.Addr) *trie {
	if addr.Is4() {
		return &d.v4
	}
	return &d.v6
}
