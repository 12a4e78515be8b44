package netrule

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/idna"
)

// Name returns a host name in the one form in which names are compared: lower
// case, IDN as A-labels (UTS 46, non-transitional), no dot at the end. It refuses what is not a
// host name, above all what parsers are known to read in different ways: NUL, percent
// signs, white space, user and port parts, and what somebody may take for an address
// (1.2.3.4, 127.1, 0x7f.1).
func Name(s string) (string, error) {
	if len(s) > 1024 || !utf8.ValidString(s) {
		return "", errors.New("is longer than any name, or not UTF-8")
	}
	s = strings.TrimSuffix(s, ".")
	plain := true
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c >= 0x80:
			plain = false
		case c <= ' ' || c == 0x7f || strings.IndexByte("%/\\@:?#[]<>|^`{}\"'*!$&()+,;=~", c) >= 0:
			return "", fmt.Errorf("has %q in it, which no name has", c)
		}
	}
	if !plain || strings.Contains(strings.ToLower(s), "xn--") {
		a, err := idna.Lookup.ToASCII(s)
		if err != nil {
			return "", fmt.Errorf("is not an international name: %w", err)
		}
		// What is not read back the same could be read in two ways.
		if again, err := idna.Lookup.ToASCII(a); err != nil || again != a {
			return "", errors.New("is not an international name")
		}
		s = strings.TrimSuffix(a, ".")
	}
	s = strings.ToLower(s)
	if !Canonical(s) {
		return "", errors.New("is not a host name")
	}
	return s, nil
}

// Canonical reports whether s has the form that [Name] returns. A-labels are not
// decoded again.
func Canonical(s string) bool {
	if s == "" || len(s) > 253 {
		return false
	}
	start := 0
	for i := 0; i <= len(s); i++ {
		if i < len(s) && s[i] != '.' {
			c := s[i]
			if !('a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_') {
				return false
			}
			continue
		}
		if n := i - start; n == 0 || n > 63 || s[start] == '-' || s[i-1] == '-' {
			return false
		}
		if i == len(s) && numeric(s[start:]) {
			return false
		}
		start = i + 1
	}
	return true
}

// numeric reports whether a last label makes a name an address for inet_aton(3)
// and for the URL standard.
func numeric(label string) bool {
	hex := strings.HasPrefix(label, "0x")
	if hex {
		label = label[2:]
	}
	for i := 0; i < len(label); i++ {
		if c := label[i]; !('0' <= c && c <= '9' || hex && 'a' <= c && c <= 'f') {
			return false
		}
	}
	return true
}
