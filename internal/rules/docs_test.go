package rules

import (
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// symbol is a reference in the trace: `file:symbol`.
var symbol = regexp.MustCompile("`([a-z0-9_/]+\\.(?:go|c)):([A-Za-z_.]+)`")

// TestTrace: the trace leads through symbols that exist, in at most nine hops.
func TestTrace(t *testing.T) {
	hops := regexp.MustCompile(`(?m)^## \d+\. `)
	text := read(t, "docs/trace-one-exec.md")
	if n := len(hops.FindAllString(text, -1)); n < 5 || n > 9 {
		t.Errorf("%d hops, at most nine", n)
	}
	refs := symbol.FindAllStringSubmatch(text, -1)
	if len(refs) < 9 {
		t.Fatalf("only %d symbols were found", len(refs))
	}
	declared := map[string]map[string]bool{}
	for _, s := range sources(t) {
		declared[s.name] = symbols(s.file)
	}
	for _, r := range refs {
		name, sym := r[1], r[2]
		switch {
		case path.Ext(name) == ".go":
			if !declared[name][sym] {
				t.Errorf("%s declares no %s", name, sym)
			}
		default:
			def := regexp.MustCompile(`(?m)^(?:static )?(?:void|long|int|i32|char \*)[a-z0-9 *]*\b` + regexp.QuoteMeta(sym) + `\([^;]*\)\n\{`)
			if !def.MatchString(read(t, name)) {
				t.Errorf("%s defines no %s", name, sym)
			}
		}
	}
}

// symbols are the functions, methods ("Type.Method") and types of a file.
func symbols(f *ast.File) map[string]bool {
	out := map[string]bool{}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			name := d.Name.Name
			if d.Recv != nil {
				typ := d.Recv.List[0].Type
				if star, ok := typ.(*ast.StarExpr); ok {
					typ = star.X
				}
				if id, ok := typ.(*ast.Ident); ok {
					name = id.Name + "." + name
				}
			}
			out[name] = true
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if ts, ok := spec.(*ast.TypeSpec); ok {
					out[ts.Name.Name] = true
				}
			}
		}
	}
	return out
}

// link is a link in Markdown, other than to the web.
var link = regexp.MustCompile(`\]\(([^)\s:]+)\)`)

// TestLinks: what the documentation points at is there, headings included.
func TestLinks(t *testing.T) {
	n := 0
	for _, f := range tracked(t) {
		if path.Ext(f) != ".md" {
			continue
		}
		for _, m := range link.FindAllStringSubmatch(read(t, f), -1) {
			n++
			target, anchor, _ := strings.Cut(m[1], "#")
			to := f
			if target != "" {
				to = path.Join(path.Dir(f), target)
			}
			st, err := os.Stat(filepath.Join(root, to))
			if err != nil {
				t.Errorf("%s: %s is not there", f, m[1])
				continue
			}
			if anchor != "" && (st.IsDir() || !headings(read(t, to))[anchor]) {
				t.Errorf("%s: %s has no such heading", f, m[1])
			}
		}
	}
	if n < 20 {
		t.Errorf("only %d links were found", n)
	}
}

var (
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	dropped = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)
)

// headings returns the anchors that Markdown viewers make of headings.
func headings(text string) map[string]bool {
	out := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		out[strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")] = true
	}
	return out
}

// TestDecisions: a decision names its context, what was chosen, what was rejected
// and how we would notice that we were wrong.
func TestDecisions(t *testing.T) {
	sections := strings.Split(read(t, "docs/decisions.md"), "\n## ")[1:]
	if len(sections) < 10 {
		t.Fatalf("only %d decisions were found", len(sections))
	}
	for _, s := range sections {
		title, body, _ := strings.Cut(s, "\n")
		if !strings.HasSuffix(title, "?") {
			t.Errorf("%q is no question", title)
		}
		if strings.HasPrefix(title, "Which dependencies") {
			continue // a table
		}
		for _, part := range []string{"**Context.**", "**Choice.**", "**Rejected.**", "**Wrong if**"} {
			if !strings.Contains(body, part) {
				t.Errorf("%q lacks %s", title, part)
			}
		}
		if n := strings.Count(body, "\n"); n > 50 {
			t.Errorf("%q is longer than a page: %d lines", title, n)
		}
	}
}
