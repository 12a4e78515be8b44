package wire

import (
	"strings"
	"unicode/utf8"
)

// Names and arguments on Linux are bytes; strings of the protocol are UTF-8. A
// byte that is not part of UTF-8 travels as the private character U+10FF00 plus
// its value, and so do the bytes of such a character itself: the way back is exact.
const escapeBase = 0x10ff00

func escaped(r rune) bool { return r >= escapeBase+0x80 && r <= escapeBase+0xff }

// Text is a name as a string of the protocol.
func Text(name string) string {
	if utf8.ValidString(name) && !strings.ContainsFunc(name, escaped) {
		return name
	}
	var b strings.Builder
	for i := 0; i < len(name); {
		r, n := utf8.DecodeRuneInString(name[i:])
		if r == utf8.RuneError && n <= 1 || escaped(r) {
			for _, c := range []byte(name[i : i+n]) {
				b.WriteRune(escapeBase + rune(c))
			}
		} else {
			b.WriteString(name[i : i+n])
		}
		i += n
	}
	return b.String()
}

// Name is the name of a string of the protocol.
func Name(text string) string {
	if !strings.ContainsFunc(text, escaped) {
		return text
	}
	b := make([]byte, 0, len(text))
	for _, r := range text {
		if escaped(r) {
			b = append(b, byte(r-escapeBase))
		} else {
			b = utf8.AppendRune(b, r)
		}
	}
	return string(b)
}

// Names are several names.
func Names(texts []string) []string { return each(texts, Name) }

// Texts are several names as strings of the protocol.
func Texts(names []string) []string { return each(names, Text) }

func each(in []string, f func(string) string) []string {
	if in == nil {
		return nil
	}
	out := make([]string, len(in))
	for i, s := range in {
		out[i] = f(s)
	}
	return out
}
