package netrule

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// request is a compiled [HTTP].
type request struct {
	methods []string
	paths   []pathPattern
}

// pathPattern is a path whose last segment may be **, and others *.
type pathPattern struct {
	text     string // without /**
	below    bool   // it ended in /**
	stars    bool   // has a segment *
	nonempty bool
}

func compileRequest(h HTTP) (request, error) {
	var q request
	for _, m := range h.Methods {
		if err := CheckMethod(m); err != nil {
			return q, fmt.Errorf("method %q %w", m, err)
		}
	}
	q.methods = h.Methods
	for _, p := range h.Paths {
		if err := CheckPath(p); err != nil {
			return q, fmt.Errorf("path %q %w", p, err)
		}
		text, below := strings.CutSuffix(p, "/**")
		q.paths = append(q.paths, pathPattern{text: text, below: below, stars: slices.Contains(strings.Split(text, "/"), "*"), nonempty: text != ""})
	}
	return q, nil
}

// CheckMethod refuses what is not a method in upper case.
func CheckMethod(m string) error {
	if m == "" || len(m) > 32 {
		return errors.New("is not a method")
	}
	for i := 0; i < len(m); i++ {
		if c := m[i]; !('A' <= c && c <= 'Z' || c == '-' || c == '_') {
			return errors.New("is not a method: write it in capitals, such as GET")
		}
	}
	return nil
}

// CheckPath refuses what is not a pattern for paths.
func CheckPath(p string) error {
	switch {
	case !strings.HasPrefix(p, "/"):
		return errors.New("does not begin with /")
	case len(p) > 1024:
		return errors.New("is longer than 1024 bytes")
	case strings.ContainsAny(p, "?#"):
		return errors.New("has a query or fragment: rules speak of paths only")
	}
	parts := strings.Split(p[1:], "/")
	for i, s := range parts {
		last := i == len(parts)-1
		switch {
		case s == "**" && !last:
			return errors.New("has ** before its end")
		case s == "*", s == "**":
		case strings.Contains(s, "*"):
			return errors.New("has * as a part of a segment: it stands for a whole one")
		case s == "" && !last:
			return errors.New("has an empty segment")
		}
	}
	if !plainPath(strings.ReplaceAll(p, "*", "x")) {
		return errors.New("can be read in more than one way: write it without . and .. segments, backslashes and needless percent signs")
	}
	return nil
}

// match reports whether a request is meant. What can be read in more than one way
// is not allowed by a rule that names paths, and is denied by one.
func (q *request) match(method, path string, plain, deny bool) bool {
	if len(q.methods) > 0 {
		ok := false
		for _, m := range q.methods {
			if m == method || deny && strings.EqualFold(m, method) {
				ok = true
				break
			}
		}
		if !ok {
			return false
		}
	}
	if len(q.paths) == 0 {
		return true
	}
	if !plain {
		return deny
	}
	path = pathOf(path)
	for i := range q.paths {
		if q.paths[i].match(path) {
			return true
		}
	}
	return false
}

// pathOf cuts off query and fragment.
func pathOf(path string) string {
	if i := strings.IndexAny(path, "?#"); i >= 0 {
		return path[:i]
	}
	return path
}

func (p *pathPattern) match(path string) bool {
	if !p.stars {
		if !strings.HasPrefix(path, p.text) {
			return false
		}
		rest := path[len(p.text):]
		return rest == "" && p.nonempty || p.below && rest != "" && rest[0] == '/'
	}
	pat := p.text
	for pat != "" {
		if path == "" {
			return false
		}
		var want, have string
		want, pat = segment(pat)
		have, path = segment(path)
		if want != have && (want != "*" || have == "") {
			return false
		}
	}
	return path == "" || p.below
}

// segment splits "/a/b" into "a" and "/b".
func segment(s string) (first, rest string) {
	s = s[1:]
	if i := strings.IndexByte(s, '/'); i >= 0 {
		return s[:i], s[i:]
	}
	return s, ""
}

// plainPath reports whether every server reads a path in the same way: no dot
// segments (with parameters neither), empty segments, backslashes, control or
// non-ASCII bytes, and no percent sign before what needs none.
func plainPath(path string) bool {
	path = pathOf(path)
	if path == "" || path[0] != '/' {
		return false
	}
	start := 1
	for i := 1; i <= len(path); i++ {
		if i < len(path) && path[i] != '/' {
			c := path[i]
			if c <= ' ' || c >= 0x7f || c == '\\' {
				return false
			}
			if c == '%' {
				if i+2 >= len(path) {
					return false
				}
				hi, lo := unhex(path[i+1]), unhex(path[i+2])
				if hi < 0 || lo < 0 || !needsPercent(byte(hi<<4|lo)) {
					return false
				}
			}
			continue
		}
		s := path[start:i]
		if j := strings.IndexByte(s, ';'); j >= 0 {
			s = s[:j]
		}
		if s == "." || s == ".." || s == "" && i < len(path) || s == "" && start < i {
			return false
		}
		start = i + 1
	}
	return true
}

func unhex(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// needsPercent reports whether a byte may stand encoded: neither one that means
// the same unencoded, nor one that some server takes for a separator afterwards.
func needsPercent(c byte) bool {
	if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' {
		return false
	}
	return c >= ' ' && c != 0x7f && strings.IndexByte("-._~/\\%;", c) < 0
}
