package main

import (
	"bufio"
	"io"
	"strings"
	"testing"

	"belljar/cell"

	"github.com/google/go-cmp/cmp"
)

func TestReadPiece(t *testing.T) {
	for _, c := range []struct {
		name     string
		language cell.Language
		in       string
		want     []string
	}{
		{"lines", cell.Python, "1\n2\n", []string{"1\n", "2\n"}},
		{"brackets", cell.Python, "f(1,\n  2)\n3\n", []string{"f(1,\n  2)\n", "3\n"}},
		{"brackets in strings", cell.Python, "')' + '('\n# (\n\"it's\"\n", []string{"')' + '('\n", "# (\n", "\"it's\"\n"}},
		{"block", cell.Python, "for i in x:  # all\n  a\n  b\n\nc\n", []string{"for i in x:  # all\n  a\n  b\n\n", "c\n"}},
		{"else", cell.Python, "if x:\n  a\nelse:\n  b\n\n", []string{"if x:\n  a\nelse:\n  b\n\n"}},
		{"decorator", cell.Python, "@d\ndef f(): pass\n\n", []string{"@d\ndef f(): pass\n\n"}},
		{"long string", cell.Python, "s = '''a\nb ''\n'''\n", []string{"s = '''a\nb ''\n'''\n"}},
		{"backslash", cell.Python, "a = 1 + \\\n  2\n", []string{"a = 1 + \\\n  2\n"}},
		{"slice and dict", cell.Python, "{1: 2}\nx[1:]\n", []string{"{1: 2}\n", "x[1:]\n"}},
		{"open at the end", cell.Python, "f(1,\n", []string{"f(1,\n"}},
		{"function", cell.JavaScript, "function f() {\n  return '}'\n}\nf()\n", []string{"function f() {\n  return '}'\n}\n", "f()\n"}},
		{"template", cell.JavaScript, "`a\n${b}`\n/* (\n*/ 1 // (\n", []string{"`a\n${b}`\n", "/* (\n*/ 1 // (\n"}},
		{"loop", cell.Shell, "for f in a b; do\n  echo if $f\ndone\nls\n", []string{"for f in a b; do\n  echo if $f\ndone\n", "ls\n"}},
		{"quote", cell.Shell, "echo 'a\nb\\'\nif x; then y; fi\n", []string{"echo 'a\nb\\'\n", "if x; then y; fi\n"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := &plainLines{bufio.NewScanner(strings.NewReader(c.in))}
			var got []string
			for {
				s, err := readPiece(in, c.language)
				if s != "" {
					got = append(got, s)
				}
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}
