package wire

import (
	"testing"
	"unicode/utf8"
)

func FuzzName(f *testing.F) {
	for _, s := range []string{"", "plain", "ümlaut/漢字", "\xff\x80a", "a\xf4\x8f\xbe\x80b", "\xf4\x8f\xbf\xbf", "\ufffd", "\xc3", "\xed\xa0\x80"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		text := Text(name)
		if !utf8.ValidString(text) {
			t.Errorf("%q became %q, which is not UTF-8", name, text)
		}
		if got := Name(text); got != name {
			t.Errorf("%q became %q and %q", name, text, got)
		}
	})
}

func TestText(t *testing.T) {
	if got := Text("ü/a"); got != "ü/a" {
		t.Errorf("UTF-8 changed to %q", got)
	}
	if got := Text("\xff"); got != "\U0010ffff" {
		t.Errorf("byte 255 became %q", got)
	}
	if got := Name("a\U0010ff80"); got != "a\x80" {
		t.Errorf("got %q", got)
	}
}
