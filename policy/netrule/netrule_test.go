package netrule

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func set(t testing.TB, rules ...Rule) *Set {
	t.Helper()
	s, err := Compile(rules)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func port(n uint16) netip.AddrPort { return netip.AddrPortFrom(netip.Addr{}, n) }

func addr(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

var web = []Ports{{80, 80}, {443, 443}}

func TestDecide(t *testing.T) {
	rules := []Rule{
		{At: "p:1", Domain: "api.example.com", Ports: web},
		{At: "p:2", Domain: "*.example.org", Ports: []Ports{{443, 443}}},
		{At: "p:3", Domain: "bad.example.org", Deny: true},
		{At: "p:4", CIDR: netip.MustParsePrefix("10.1.0.0/16"), Ports: []Ports{{5432, 5432}}},
		{At: "p:5", CIDR: netip.MustParsePrefix("10.1.2.0/24"), Deny: true},
		{At: "p:6", Domain: "rest.example.net", TLS: Intercept, HTTP: []HTTP{{Methods: []string{"GET"}, Paths: []string{"/v1/**", "/u/*/name"}}}, Inject: &Injection{Secret: "key", As: "header"}},
		{At: "p:7", Domain: "plain.example.net", HTTP: []HTTP{{Methods: []string{"GET", "HEAD"}}}},
		{At: "p:8", Domain: "shop.example.net"},
		{At: "p:9", Domain: "shop.example.net", Deny: true, TLS: Intercept, HTTP: []HTTP{{Paths: []string{"/admin/**"}}}},
		{At: "p:10", Domain: "old.example.net"},
		{At: "p:11", Domain: "old.example.net", Deny: true, HTTP: []HTTP{{Methods: []string{"DELETE"}}}},
		{At: "p:12", CIDR: netip.MustParsePrefix("2001:db8::/32")},
		{At: "p:13", CIDR: netip.MustParsePrefix("::ffff:192.168.7.0/120")},
	}
	s := set(t, rules...)
	for _, c := range []struct {
		name string
		conn Conn
		want Decision
	}{
		{"name", Conn{Name: "api.example.com", Addr: port(443)}, Decision{Allow: true, Rule: "p:1"}},
		{"resolve", Conn{Name: "api.example.com"}, Decision{Allow: true, Rule: "p:1"}},
		{"other port", Conn{Name: "api.example.com", Addr: port(22)}, Decision{}},
		{"other name", Conn{Name: "example.com", Addr: port(443)}, Decision{}},
		{"below a name", Conn{Name: "x.api.example.com", Addr: port(443)}, Decision{}},
		{"wildcard", Conn{Name: "a.example.org", Addr: port(443)}, Decision{Allow: true, Rule: "p:2"}},
		{"deep wildcard", Conn{Name: "a.b.example.org", Addr: port(443)}, Decision{Allow: true, Rule: "p:2"}},
		{"wildcard without label", Conn{Name: "example.org", Addr: port(443)}, Decision{}},
		{"wildcard is whole labels", Conn{Name: "badexample.org", Addr: port(443)}, Decision{}},
		{"deny beats wildcard", Conn{Name: "bad.example.org", Addr: port(443)}, Decision{Rule: "p:3"}},
		{"deny of all ports denies the name", Conn{Name: "bad.example.org"}, Decision{Rule: "p:3"}},
		{"not normalised", Conn{Name: "API.example.com", Addr: port(443)}, Decision{}},
		{"trailing dot", Conn{Name: "api.example.com.", Addr: port(443)}, Decision{}},
		{"nothing", Conn{}, Decision{}},
		{"public address of a name", Conn{Name: "api.example.com", Addr: addr("93.184.216.34:443")}, Decision{Allow: true, Rule: "p:1"}},
		{"loopback address of a name", Conn{Name: "api.example.com", Addr: addr("127.0.0.1:443")}, Decision{}},
		{"metadata address of a name", Conn{Name: "api.example.com", Addr: addr("169.254.169.254:80")}, Decision{}},
		{"mapped address of a name", Conn{Name: "api.example.com", Addr: addr("[::ffff:10.0.0.1]:443")}, Decision{}},
		{"NAT64 address of a name", Conn{Name: "api.example.com", Addr: addr("[64:ff9b::a00:1]:443")}, Decision{}},
		{"denied address of a name", Conn{Name: "api.example.com", Addr: addr("10.1.2.3:443")}, Decision{Rule: "p:5"}},
		{"network", Conn{Addr: addr("10.1.9.9:5432")}, Decision{Allow: true, Rule: "p:4"}},
		{"mapped in network", Conn{Addr: addr("[::ffff:10.1.9.9]:5432")}, Decision{Allow: true, Rule: "p:4"}},
		{"network, other port", Conn{Addr: addr("10.1.9.9:22")}, Decision{}},
		{"network, denied part", Conn{Addr: addr("10.1.2.9:5432")}, Decision{Rule: "p:5"}},
		{"v6 network", Conn{Addr: addr("[2001:db8::1]:22")}, Decision{Allow: true, Rule: "p:12"}},
		{"v6 outside", Conn{Addr: addr("[2001:db9::1]:22")}, Decision{}},
		{"v6 zone", Conn{Addr: addr("[2001:db8::1%eth0]:22")}, Decision{}},
		{"mapped network", Conn{Addr: addr("192.168.7.3:1")}, Decision{Allow: true, Rule: "p:13"}},
		{"address without a rule", Conn{Addr: addr("93.184.216.34:443")}, Decision{}},
		{"TLS with http rule", Conn{Name: "rest.example.net", Addr: port(443), TLS: true}, Decision{Allow: true, Rule: "p:6", HTTP: true, Intercept: true, Inject: "key", Injection: rules[5].Inject}},
		{"request", Conn{Name: "rest.example.net", Addr: port(443), TLS: true, Method: "GET", Path: "/v1/a?x=/.."}, Decision{Allow: true, Rule: "p:6", HTTP: true, Intercept: true, Inject: "key", Injection: rules[5].Inject}},
		{"request, star", Conn{Name: "rest.example.net", Addr: port(443), Method: "GET", Path: "/u/7/name"}, Decision{Allow: true, Rule: "p:6", HTTP: true, Inject: "key", Injection: rules[5].Inject}},
		{"request, star is one segment", Conn{Name: "rest.example.net", Method: "GET", Path: "/u/7/8/name"}, Decision{}},
		{"request, other path", Conn{Name: "rest.example.net", Method: "GET", Path: "/v10"}, Decision{}},
		{"request, other method", Conn{Name: "rest.example.net", Method: "POST", Path: "/v1/a"}, Decision{}},
		{"request, lower case", Conn{Name: "rest.example.net", Method: "get", Path: "/v1/a"}, Decision{}},
		{"request, dots", Conn{Name: "rest.example.net", Method: "GET", Path: "/v1/../admin"}, Decision{}},
		{"request, encoded dots", Conn{Name: "rest.example.net", Method: "GET", Path: "/v1/%2e%2E/admin"}, Decision{}},
		{"request, dots with parameter", Conn{Name: "rest.example.net", Method: "GET", Path: "/v1/..;x/admin"}, Decision{}},
		{"plain HTTP only", Conn{Name: "plain.example.net", Addr: port(80)}, Decision{Allow: true, Rule: "p:7", HTTP: true}},
		{"plain HTTP only, TLS", Conn{Name: "plain.example.net", Addr: port(443), TLS: true}, Decision{}},
		{"denied requests intercept", Conn{Name: "shop.example.net", Addr: port(443), TLS: true}, Decision{Allow: true, Rule: "p:8", HTTP: true, Intercept: true}},
		{"denied request", Conn{Name: "shop.example.net", TLS: true, Method: "GET", Path: "/admin"}, Decision{Rule: "p:9"}},
		{"denied request, encoded", Conn{Name: "shop.example.net", TLS: true, Method: "GET", Path: "/%61dmin"}, Decision{Rule: "p:9"}},
		{"other request", Conn{Name: "shop.example.net", TLS: true, Method: "GET", Path: "/"}, Decision{Allow: true, Rule: "p:8", HTTP: true}},
		{"unseen requests", Conn{Name: "old.example.net", Addr: port(443), TLS: true}, Decision{Rule: "p:11"}},
		{"denied method, lower case", Conn{Name: "old.example.net", Method: "delete", Path: "/"}, Decision{Rule: "p:11"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := s.Decide(c.conn)
			if c.name == "other request" {
				got.Intercept = false // of the connection, decided before
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestAny(t *testing.T) {
	s := set(t, Rule{At: "a", Any: true, Ports: web}, Rule{At: "d", Domain: "*.bank.example", Deny: true})
	for _, c := range []struct {
		conn  Conn
		allow bool
	}{
		{Conn{Name: "x.example", Addr: port(443)}, true},
		{Conn{Name: "x.example", Addr: port(25)}, false},
		{Conn{Name: "my.bank.example", Addr: port(443)}, false},
		{Conn{Addr: addr("93.184.216.34:443")}, true},
		{Conn{Addr: addr("[2606:2800:220:1::1]:443")}, true},
		{Conn{Addr: addr("192.168.0.1:443")}, false},
		{Conn{Addr: addr("[fd00::1]:443")}, false},
		{Conn{Addr: addr("[::1]:443")}, false},
		{Conn{Addr: addr("[2002:a00:1::]:443")}, false},
	} {
		if got := s.Decide(c.conn); got.Allow != c.allow {
			t.Errorf("%+v: %+v", c.conn, got)
		}
	}
}

func TestName(t *testing.T) {
	for in, want := range map[string]string{
		"Example.COM": "example.com", "a.b.": "a.b", "bücher.example": "xn--bcher-kva.example", "XN--bcher-KVA.example": "xn--bcher-kva.example",
		"faß.example": "xn--fa-hia.example", "localhost": "localhost", "_dmarc.example.com": "_dmarc.example.com", "a。b": "a.b",
		"": "", ".": "", "a..b": "", "..": "", "-a.b": "", "a-.b": "", "a b": "", "a\x00b": "", "a%00.b": "", "a/b": "", "u@h": "", "h:80": "", "[::1]": "",
		"1.2.3.4": "", "127.1": "", "0x7f.1": "", "0x7f000001": "", "2130706433": "", "1.2.3.4.": "", "xn--a": "", "*.a": "", "a\u200db.example": "", "\x94": "",
		strings.Repeat("a", 64) + ".b": "", strings.Repeat("a.", 127) + "bb": "", "１.２.３.４": "",
	} {
		got, err := Name(in)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v; want %q", in, got, err, want)
		}
	}
}

func FuzzName(f *testing.F) {
	for _, s := range []string{"Example.COM.", "bücher.example", "xn--bcher-kva.example", "1.2.3.4", "a\x00b", "a%2eb", "０x7f.1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := Name(s)
		if err != nil {
			return
		}
		if !Canonical(n) {
			t.Fatalf("%q became %q, which is not canonical", s, n)
		}
		if again, err := Name(n); err != nil || again != n {
			t.Fatalf("%q became %q and then %q, %v", s, n, again, err)
		}
		if _, err := netip.ParseAddr(n); err == nil {
			t.Fatalf("%q became the address %q", s, n)
		}
	})
}

func TestPlainPath(t *testing.T) {
	for p, want := range map[string]bool{
		"/": true, "/a/b": true, "/a/": true, "/a%20b": true, "/a?x=//..": true, "/a;v=1/b": true, "/.well-known/x": true, "/a..b": true, "/%C3%A9": true,
		"": false, "a": false, "//": false, "/a//b": false, "/..": false, "/./a": false, "/a/%2e%2e/b": false, "/a%2Fb": false, "/a\\b": false, "/a%5cb": false,
		"/%61": false, "/a%": false, "/a%0": false, "/a%00": false, "/é": false, "/a b": false, "/..;/b": false, "/a%3b": false, "*": false, "/%25": false,
	} {
		if got := plainPath(p); got != want {
			t.Errorf("%q: %t", p, got)
		}
	}
}

func TestCompileRefuses(t *testing.T) {
	many := make([]Rule, maxPerDestination+1)
	for i := range many {
		many[i] = Rule{At: fmt.Sprint("m:", i), Domain: "a.example"}
	}
	for want, rules := range map[string][]Rule{
		"0 destinations":                {{At: "x"}},
		"2 destinations":                {{At: "x", Any: true, Domain: "a.b"}},
		"not a normalised name":         {{At: "x", Domain: "A.b"}},
		"bits set behind":               {{At: "x", CIDR: netip.MustParsePrefix("10.0.0.1/8")}},
		"end before they begin":         {{At: "x", Any: true, Ports: []Ports{{2, 1}}}},
		"tls is":                        {{At: "x", Any: true, TLS: "off"}},
		"is not a method":               {{At: "x", Any: true, HTTP: []HTTP{{Methods: []string{"get"}}}}},
		"has ** before its end":         {{At: "x", Any: true, HTTP: []HTTP{{Paths: []string{"/**/a"}}}}},
		"more than one way":             {{At: "x", Any: true, HTTP: []HTTP{{Paths: []string{"/../a"}}}}},
		"more than 64 rules and paths ": many,
	} {
		if _, err := Compile(rules); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestNetworkIsData(t *testing.T) {
	n := Network{Version: Version, Budget: Budget{BytesOut: 5, PerName: map[string]int64{"a.b": 1}}, Rules: []Rule{
		{At: "p:1", Domain: "a.b", Ports: web, HTTP: []HTTP{{Methods: []string{"GET"}}}, TLS: Intercept, Inject: &Injection{Secret: "s", As: "basic", Name: "u"}},
		{At: "p:2", CIDR: netip.MustParsePrefix("10.0.0.0/8"), Deny: true},
	}}
	data, err := json.Marshal(n)
	if err != nil {
		t.Fatal(err)
	}
	var back Network
	if err := json.Unmarshal(data, &back); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(n, back, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); d != "" {
		t.Error(d)
	}
}

// naive decides by looking at every rule, in words as close to the documentation as
// code can be.
func naive(rules []Rule, c Conn) bool {
	a := c.Addr.Addr().Unmap()
	matches := func(r Rule) bool {
		hit := false
		switch {
		case r.Any:
			hit = r.Deny || c.Name != "" || Public(a)
		case strings.HasPrefix(r.Domain, "*."):
			hit = c.Name != "" && strings.HasSuffix(c.Name, r.Domain[1:])
		case r.Domain != "":
			hit = c.Name == r.Domain
		default:
			hit = a.IsValid() && Unmap(r.CIDR).Contains(a) && (r.Deny || c.Name == "")
		}
		return hit && portIn(r.Ports, c.Addr.Port())
	}
	allowed, named := false, false
	for _, r := range rules {
		if r.Deny && matches(r) {
			return false
		}
		allowed = allowed || matches(r)
		named = named || !r.Deny && r.CIDR.IsValid() && a.IsValid() && Unmap(r.CIDR).Contains(a) && portIn(r.Ports, c.Addr.Port())
	}
	if c.Name != "" && a.IsValid() && !Public(a) && !named {
		return false
	}
	return allowed
}

func portIn(list []Ports, p uint16) bool {
	for _, r := range list {
		if r.First <= p && p <= r.Last {
			return true
		}
	}
	return len(list) == 0
}

func genRule(i int) *rapid.Generator[Rule] {
	label := rapid.SampledFrom([]string{"a", "b", "c"})
	return rapid.Custom(func(t *rapid.T) Rule {
		r := Rule{At: fmt.Sprint("r:", i), Deny: rapid.Bool().Draw(t, "deny")}
		name := func() string { return strings.Join(rapid.SliceOfN(label, 1, 4).Draw(t, "labels"), ".") }
		switch rapid.IntRange(0, 9).Draw(t, "kind") {
		case 0:
			r.Any = true
		case 1, 2, 3:
			r.Domain = "*." + name()
		case 4, 5, 6:
			r.Domain = name()
		default:
			r.CIDR = genAddr(t).Prefix2(rapid.IntRange(0, 32).Draw(t, "bits"))
		}
		if rapid.Bool().Draw(t, "ports") {
			f := rapid.Uint16Range(1, 4).Draw(t, "first")
			r.Ports = []Ports{{f, rapid.Uint16Range(f, 5).Draw(t, "last")}}
		}
		return r
	})
}

type anAddr struct{ netip.Addr }

// Prefix2 is a network of this address's family with so many of 32 parts of its bits.
func (a anAddr) Prefix2(n int) netip.Prefix {
	p, _ := a.Prefix(n * a.BitLen() / 32)
	return p
}

func genAddr(t *rapid.T) anAddr {
	some := []string{"10.0.0.1", "10.1.0.1", "11.0.0.1", "93.184.216.34", "93.184.0.1", "127.0.0.1", "2606:2800::1", "2606:2801::1", "fd00::1", "::1"}
	return anAddr{netip.MustParseAddr(rapid.SampledFrom(some).Draw(t, "addr"))}
}

// TestAgainstNaive compares with an evaluator that looks at every rule.
func TestAgainstNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 20).Draw(t, "n")
		rules := make([]Rule, n)
		for i := range rules {
			rules[i] = genRule(i).Draw(t, "rule")
		}
		s, err := Compile(rules)
		if err != nil {
			t.Fatal(err)
		}
		for range 10 {
			c := Conn{Addr: netip.AddrPortFrom(netip.Addr{}, rapid.Uint16Range(1, 5).Draw(t, "port"))}
			kind := rapid.IntRange(0, 2).Draw(t, "what")
			if kind != 1 {
				c.Name = strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c"}), 1, 5).Draw(t, "name"), ".")
			}
			if kind != 0 {
				c.Addr = netip.AddrPortFrom(genAddr(t).Addr, c.Addr.Port())
			}
			if got, want := s.Decide(c).Allow, naive(rules, c); got != want {
				t.Fatalf("%+v: %t, want %t by %+v", c, got, want, rules)
			}
		}
		// What a covering deny rule covers is never allowed.
		for i := range rules {
			if r := &rules[i]; !r.Deny && r.Domain != "" && !strings.HasPrefix(r.Domain, "*.") && s.Covering(r, true) != nil {
				p := uint16(9)
				if len(r.Ports) > 0 {
					p = r.Ports[0].First
				}
				if d := s.Decide(Conn{Name: r.Domain, Addr: port(p)}); d.Allow {
					t.Fatalf("%+v is covered and allowed: %+v", r, d)
				}
			}
		}
	})
}

func big(n int) []Rule {
	rules := make([]Rule, 0, n)
	for i := range n {
		r := Rule{At: fmt.Sprint("p:", i), Ports: web, Deny: i%7 == 0}
		switch i % 3 {
		case 0:
			r.Domain = fmt.Sprintf("h%d.example.com", i)
		case 1:
			r.Domain = fmt.Sprintf("*.d%d.example.org", i)
		default:
			r.CIDR = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)
		}
		rules = append(rules, r)
	}
	return rules
}

func TestDecideTakesNoMemory(t *testing.T) {
	s := set(t, append(big(1000), Rule{At: "x", Domain: "rest.example.net", TLS: Intercept, HTTP: []HTTP{{Methods: []string{"GET"}, Paths: []string{"/v1/**", "/u/*/name"}}}})...)
	conns := []Conn{
		{Name: "h3.example.com", Addr: addr("93.184.216.34:443")},
		{Name: "a.b.c.d.e.f.d4.example.org", Addr: addr("[2606:2800::1]:443")},
		{Addr: addr("10.0.5.9:443")},
		{Name: "rest.example.net", TLS: true, Method: "GET", Path: "/u/7/name?q"},
	}
	for _, c := range conns {
		if n := testing.AllocsPerRun(100, func() { s.Decide(c) }); n != 0 {
			t.Errorf("%+v: %v allocations", c, n)
		}
	}
}

func BenchmarkDecide(b *testing.B) {
	for _, n := range []int{10, 1000, 100_000} {
		s := set(b, big(n)...)
		for name, c := range map[string]Conn{
			"name": {Name: "h3.example.com", Addr: addr("93.184.216.34:443")}, "wildcard": {Name: "a.b.c.d.d4.example.org", Addr: addr("93.184.216.34:443")},
			"address": {Addr: addr("10.0.5.9:443")}, "none": {Name: "www.other.example", Addr: addr("93.184.216.34:443")},
		} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					s.Decide(c)
				}
			})
		}
	}
}
