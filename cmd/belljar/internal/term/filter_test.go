package term

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"
)

// filters maps what a program writes to what reaches the terminal.
var filters = map[string]string{
	"plain text\r\n\ttab\b\a":       "plain text\r\n\ttab\b\a",
	"\x1b[1;31mred\x1b[0m":          "\x1b[1;31mred\x1b[0m",
	"\x1b[2J\x1b[10;5Hx\x1b[K":      "\x1b[2J\x1b[10;5Hx\x1b[K",
	"\x1b[?25lx\x1b[?25h":           "\x1b[?25lx\x1b[?25h",
	"a\x1b]0;title\ab":              "ab",
	"a\x1b]52;c;ZXZpbA==\x1b\\b":    "ab",
	"a\x1b]8;;http://x\x1b\\l":      "al",
	"a\x1bPtmux;x\x1b\\b":           "ab",
	"a\x1b_apc\x1b\\b\x1b^pm\x1b\\": "ab",
	"a\x1b[6nb":                     "ab", // the terminal would type an answer
	"a\x1b[cb\x1b[>cb\x1b[0xb":      "abbb",
	"a\x1bZb\x1bcb":                 "abb",
	"a\x1b[21tb":                    "ab", // title as if typed
	"a\x1b[?1049hb\x1b[?2004hc":     "abc",
	"a\x1b[!pb\x1b[4hc":             "abc",
	"a\x1b(0b":                      "ab",
	"a\x9b31mb":                     "a\x1b[31mb",
	"a\u009b6nb\u009d0;t\ab":        "abb",
	"a\x00\x01\x0e\x05b\x7f":        "ab",
	"\u00e9\u20ac\U0001f600\u00a0":  "\u00e9\u20ac\U0001f600\u00a0",
	"a\x1b]0;never ended":           "a",
	"a\x1b]0;x\x1b[31mb":            "a\x1b[31mb",
	"a\x1b[3\x1b[32mb":              "a\x1b[32mb",
	"a\x1b[3\nb":                    "a\nb",
	"a\x1b[6\x18nb":                 "anb",
	"a\x1b\x1b[31mb":                "a\x1b[31mb",
}

func TestFilter(t *testing.T) {
	for in, want := range filters {
		var whole bytes.Buffer
		f := &Filter{W: &whole}
		if n, err := f.Write([]byte(in)); n != len(in) || err != nil {
			t.Errorf("%q: wrote %d, %v", in, n, err)
		}
		if whole.String() != want {
			t.Errorf("%q: %q, want %q", in, whole.String(), want)
		}
		var split bytes.Buffer
		f = &Filter{W: &split}
		for i := range len(in) {
			if _, err := f.Write([]byte{in[i]}); err != nil {
				t.Fatal(err)
			}
		}
		if split.String() != want {
			t.Errorf("%q byte by byte: %q, want %q", in, split.String(), want)
		}
	}
}

// FuzzFilter: whatever a program writes, what reaches the terminal has no string
// command, no C1 control, no request, and the filter changes nothing of its own output.
func FuzzFilter(f *testing.F) {
	for in := range filters {
		f.Add([]byte(in), 1)
	}
	f.Fuzz(func(t *testing.T, in []byte, at int) {
		var out, again bytes.Buffer
		g := &Filter{W: &out}
		at = max(0, min(at, len(in)))
		for _, p := range [][]byte{in[:at], in[at:]} {
			if _, err := g.Write(p); err != nil {
				t.Fatal(err)
			}
		}
		s := out.String()
		for _, bad := range []string{"\x1b]", "\x1bP", "\x1b_", "\x1b^", "\x1bX", "\x1bc", "\x1bZ", "\x00", "\xc2\x9b", "\xc2\x9d"} {
			if strings.Contains(s, bad) {
				t.Errorf("%q got through: %q", bad, s)
			}
		}
		for rest := s; ; {
			_, seq, ok := strings.Cut(rest, "\x1b[")
			if !ok {
				break
			}
			i := strings.IndexFunc(seq, func(r rune) bool { return r >= 0x40 && r <= 0x7e })
			if i < 0 || strings.ContainsRune("cnxtqp", rune(seq[i])) {
				t.Fatalf("a request or an open sequence got through: %q", s)
			}
			rest = seq[i:]
		}
		if utf8.Valid(in) {
			if _, err := (&Filter{W: &again}).Write(out.Bytes()); err != nil {
				t.Fatal(err)
			}
			if again.String() != s {
				t.Errorf("filtered twice: %q, %q", s, again.String())
			}
		}
	})
}

func TestTable(t *testing.T) {
	var b bytes.Buffer
	if err := Table(&b, [][]string{{"A", "LONG NAME", "C"}, {"one", "x", ""}, {"two", "yy", "z"}}); err != nil {
		t.Fatal(err)
	}
	want := "A    LONG NAME  C\none  x\ntwo  yy         z\n"
	if b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}
