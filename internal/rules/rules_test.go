// Package rules holds the repository's rules about itself, as tests: what may
// import what, what names and comments look like, what the documentation may
// claim. Each rule says why it is there.
package rules

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

const root = "../.."

// tracked are the files that the repository holds. Without a checkout the rules
// have nothing to say.
func tracked(t *testing.T) []string {
	t.Helper()
	out, err := listFiles()
	if err != nil {
		t.Skipf("not a git checkout: %v", err)
	}
	return out
}

var listFiles = sync.OnceValues(func() ([]string, error) {
	out, err := exec.Command("git", "-C", root, "ls-files", "-z").Output()
	if err != nil {
		return nil, err
	}
	var files []string
	for f := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		if _, err := os.Lstat(filepath.Join(root, f)); err == nil { // deleted, not yet committed
			files = append(files, f)
		}
	}
	return files, nil
})

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// source is a parsed Go file.
type source struct {
	name string // from the root
	fset *token.FileSet
	file *ast.File
}

func (s *source) at(p token.Pos) string {
	at := s.fset.Position(p)
	return s.name + ":" + itoa(at.Line)
}

func itoa(n int) string { b, _ := json.Marshal(n); return string(b) }

func (s *source) test() bool { return strings.HasSuffix(s.name, "_test.go") }

// sources are all Go files, whatever platform they are for.
func sources(t *testing.T) []*source {
	t.Helper()
	var out []*source
	for _, f := range tracked(t) {
		if path.Ext(f) != ".go" || strings.Contains(f, "testdata/") {
			continue
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, filepath.Join(root, f), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, &source{f, fset, file})
	}
	if len(out) < 100 {
		t.Fatalf("only %d Go files were found", len(out))
	}
	return out
}

// TestPackageComments: the package comment says what a package is and what it
// does not do; it is the first thing that a reader needs.
func TestPackageComments(t *testing.T) {
	type pkg struct{ tests, doc, multiple bool }
	pkgs := map[string]*pkg{}
	for _, s := range sources(t) {
		dir := path.Dir(s.name)
		p := pkgs[dir]
		if p == nil {
			p = &pkg{tests: true}
			pkgs[dir] = p
		}
		p.tests = p.tests && s.test()
		if s.file.Doc != nil && len(s.file.Doc.Text()) > 40 {
			p.multiple = p.multiple || p.doc && !s.test() && !strings.HasSuffix(s.name, "_other.go")
			p.doc = p.doc || !s.test() || p.tests
		}
	}
	for dir, p := range pkgs {
		if !p.doc {
			t.Errorf("%s: no package comment", dir)
		}
		if p.multiple {
			t.Errorf("%s: more than one package comment", dir)
		}
	}
}

// TestNames: a package is one noun, named as its users say it.
func TestNames(t *testing.T) {
	banned := []string{"util", "utils", "common", "helper", "helpers", "type", "types", "manager", "misc", "shared", "base", "pkg"}
	for _, s := range sources(t) {
		names := append(strings.Split(path.Dir(s.name), "/"), strings.TrimSuffix(s.file.Name.Name, "_test"))
		for _, n := range names {
			if slices.Contains(banned, n) {
				t.Errorf("%s: %q says nothing about what is in it", s.name, n)
			}
		}
	}
}

// deps lists what a package reaches on Linux, itself included.
func deps(t *testing.T, pkg string) []string {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", pkg)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOOS=linux")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list %s: %v", pkg, err)
	}
	return strings.Fields(string(out))
}

// module is the module's path, whatever a release renamed it to.
func module(t *testing.T) string {
	t.Helper()
	m := regexp.MustCompile(`(?m)^module (\S+)$`).FindStringSubmatch(read(t, "go.mod"))
	if m == nil {
		t.Fatal("go.mod names no module")
	}
	return m[1]
}

// TestForbiddenImports keeps out what would make a program bigger, slower to
// start or easier to attack than it has to be.
func TestForbiddenImports(t *testing.T) {
	mod := module(t)
	for _, c := range []struct {
		pkg, bad, why string
	}{
		{".", "net/http", "embedding the library must not cost a web server"},
		{".", "net", "the supervisor speaks to its keepers by plain sockets"},
		{"./backend/native", "net/http", "nothing on the way to an execution speaks HTTP"},
		{"./lab/attack", "net/http", "it runs inside a sandbox and counts against its limits"},
		{"./conformance/probe", "net/http", "the same"},
		{"./cmd/belljar", "testing", "it declares flags and is no part of a program"},
		{"./cmd/belljar", mod + "/backend/fake", "a backend that isolates nothing must not be one flag away"},
	} {
		if slices.Contains(deps(t, c.pkg), c.bad) {
			t.Errorf("%s reaches %s: %s", c.pkg, c.bad, c.why)
		}
	}
}

// TestBackendsAreApart: backends know the root package and not each other, so
// that a fault of one is not a fault of all, and each can be left out.
func TestBackendsAreApart(t *testing.T) {
	prefix := module(t) + "/backend/"
	dirs, err := os.ReadDir(filepath.Join(root, "backend"))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		for _, p := range deps(t, "./backend/"+d.Name()) {
			other, found := strings.CutPrefix(p, prefix)
			if found && other != d.Name() && !strings.HasPrefix(other, d.Name()+"/") {
				t.Errorf("backend %s imports %s", d.Name(), p)
			}
		}
	}
	for _, p := range deps(t, ".") {
		if strings.HasPrefix(p, prefix) {
			t.Errorf("the root package imports %s: backends are handed to it", p)
		}
	}
}

// TestNoInit: what happens before main happens to every program that imports
// us, unasked and in an order that nobody chose.
func TestNoInit(t *testing.T) {
	for _, s := range sources(t) {
		if ast.IsGenerated(s.file) {
			continue
		}
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
				t.Errorf("%s: func init", s.at(f.Pos()))
			}
		}
	}
}

// TestNoPlatformBranches: what differs between platforms is in files of theirs,
// so that the compiler sees all of it. A platform's name may be shown, not tested.
func TestNoPlatformBranches(t *testing.T) {
	isGOOS := func(e ast.Expr) bool {
		sel, ok := e.(*ast.SelectorExpr)
		if !ok || sel.Sel.Name != "GOOS" {
			return false
		}
		id, ok := sel.X.(*ast.Ident)
		return ok && id.Name == "runtime"
	}
	for _, s := range sources(t) {
		ast.Inspect(s.file, func(n ast.Node) bool {
			bad := false
			switch n := n.(type) {
			case *ast.BinaryExpr:
				bad = n.Op != token.ADD && (isGOOS(n.X) || isGOOS(n.Y))
			case *ast.SwitchStmt:
				bad = n.Tag != nil && isGOOS(n.Tag)
			case *ast.CaseClause:
				bad = slices.ContainsFunc(n.List, isGOOS)
			case *ast.IndexExpr:
				bad = isGOOS(n.Index)
			}
			if bad {
				t.Errorf("%s: a branch on runtime.GOOS", s.at(n.Pos()))
			}
			return true
		})
	}
}

// TestOtherFiles: what a platform lacks is refused, not imitated.
func TestOtherFiles(t *testing.T) {
	n := 0
	for _, s := range sources(t) {
		if !strings.HasSuffix(s.name, "_other.go") {
			continue
		}
		n++
		text := read(t, s.name)
		most := 30
		if s.name == "cmd/belljar/internal/attendant/attendant_other.go" {
			most = 80 // both sides of a protocol, each method refusing in a line
		}
		if lines := strings.Count(text, "\n"); lines > most {
			t.Errorf("%s: %d lines, at most %d", s.name, lines, most)
		}
		if !strings.HasPrefix(text, "//go:build ") {
			t.Errorf("%s: the first line is no build constraint", s.name)
		}
	}
	if n < 5 {
		t.Errorf("only %d such files were found", n)
	}
}

// TestDocComments: the root package is the vocabulary, and a word without a
// meaning is none.
func TestDocComments(t *testing.T) {
	for _, s := range sources(t) {
		if path.Dir(s.name) != "." || s.test() || s.file.Name.Name != "belljar" {
			continue
		}
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && exportedRecv(d) && d.Doc == nil {
					t.Errorf("%s: %s has no comment", s.at(d.Pos()), d.Name)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					for _, id := range undocumented(d, spec) {
						t.Errorf("%s: %s has no comment", s.at(id.Pos()), id)
					}
				}
			}
		}
	}
}

func exportedRecv(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	typ := d.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	id, ok := typ.(*ast.Ident)
	return ok && id.IsExported()
}

// undocumented returns the exported names of a declaration that neither it nor
// its group explains.
func undocumented(d *ast.GenDecl, spec ast.Spec) []*ast.Ident {
	var names []*ast.Ident
	switch spec := spec.(type) {
	case *ast.ValueSpec:
		if spec.Doc == nil && spec.Comment == nil && d.Doc == nil {
			names = spec.Names
		}
	case *ast.TypeSpec:
		if spec.Doc == nil && (d.Doc == nil || d.Lparen.IsValid()) {
			names = []*ast.Ident{spec.Name}
		}
	}
	return slices.DeleteFunc(slices.Clone(names), func(id *ast.Ident) bool { return !id.IsExported() })
}

// TestNoWorkplace: the text speaks of the project, not of the machine that it was
// written on.
func TestNoWorkplace(t *testing.T) {
	leak := regexp.MustCompile(strings.Join([]string{
		`/wor` + `k/(main|shared|\.library)\b`, `/tm` + `p/(exp|docs|cli|native)\b`, `proxy\.gol` + `ang\.org`, `(?i)\bpy` + `env\b`,
	}, "|"))
	for _, f := range tracked(t) {
		if st, err := os.Lstat(filepath.Join(root, f)); err != nil || !st.Mode().IsRegular() || strings.HasSuffix(f, ".elf") {
			continue
		}
		for i, line := range strings.Split(read(t, f), "\n") {
			if m := leak.FindString(line); m != "" {
				t.Errorf("%s:%d: %q", f, i+1, m)
			}
		}
	}
}
