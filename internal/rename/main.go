// Rename gives the module another path: in go.mod files, in imports, and in links
// of comments to packages. It touches nothing else, so that the name of the
// project stays where it is a word; what it wrote still has to be built.
//
//	go run ./internal/rename github.com/someone/belljar
package main

import (
	"bytes"
	"fmt"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// modulePath is what a path may consist of here: a host with a dot, then names.
var modulePath = regexp.MustCompile(`^[a-z0-9-]+(\.[a-z0-9-]+)+(/[A-Za-z0-9][A-Za-z0-9._~-]*)+$`)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go run ./internal/rename MODULE-PATH")
		os.Exit(2)
	}
	n, err := rename(".", os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "rename:", err)
		os.Exit(1)
	}
	fmt.Printf("%d files changed; now run: go build ./... && go vet ./... && go generate .\n", n)
}

// rename returns how many files of the module at root it changed.
func rename(root, to string) (int, error) {
	if !modulePath.MatchString(to) || strings.HasSuffix(to, ".git") {
		return 0, fmt.Errorf("%q is not a module path such as github.com/someone/belljar", to)
	}
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		return 0, err
	}
	m := regexp.MustCompile(`(?m)^module (\S+)$`).FindSubmatch(mod)
	if m == nil {
		return 0, fmt.Errorf("go.mod in %s names no module", root)
	}
	from, changed := string(m[1]), 0
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && p != root && (d.Name()[0] == '.' || d.Name() == "testdata"):
			return filepath.SkipDir
		case !d.Type().IsRegular():
			return nil
		}
		var edit func([]byte) ([]byte, error)
		switch {
		case d.Name() == "go.mod":
			edit = func(b []byte) ([]byte, error) { return inMod(b, from, to), nil }
		case filepath.Ext(p) == ".go":
			edit = func(b []byte) ([]byte, error) { return inGo(b, from, to) }
		default:
			return nil
		}
		old, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		b, err := edit(old)
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		if bytes.Equal(b, old) {
			return nil
		}
		changed++
		return os.WriteFile(p, b, 0o644)
	})
	return changed, err
}

// inMod changes module, require and replace lines.
func inMod(b []byte, from, to string) []byte {
	return regexp.MustCompile(`(?m)^(module |require |replace |\t)`+regexp.QuoteMeta(from)+`( |$)`).ReplaceAll(b, []byte("${1}"+to+"${2}"))
}

// inGo changes import paths, and links such as [belljar/lab.Run] in comments.
func inGo(b []byte, from, to string) ([]byte, error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "", b, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	type cut struct {
		at, end int
		text    string
	}
	var cuts []cut
	for _, imp := range f.Imports {
		p, err := strconv.Unquote(imp.Path.Value)
		if err != nil {
			return nil, err
		}
		if rest, ok := strings.CutPrefix(p, from); ok && (rest == "" || rest[0] == '/') {
			cuts = append(cuts, cut{fset.Position(imp.Path.Pos()).Offset, fset.Position(imp.Path.End()).Offset, strconv.Quote(to + rest)})
		}
	}
	link := regexp.MustCompile(`\[\*?` + regexp.QuoteMeta(from) + `/`)
	for _, g := range f.Comments {
		for _, c := range g.List {
			for _, at := range link.FindAllStringIndex(c.Text, -1) {
				start := fset.Position(c.Pos()).Offset + at[1] - len(from) - 1
				cuts = append(cuts, cut{start, start + len(from), to})
			}
		}
	}
	if len(cuts) == 0 {
		return b, nil
	}
	slices.SortFunc(cuts, func(x, y cut) int { return y.at - x.at })
	for _, c := range cuts {
		b = slices.Concat(b[:c.at], []byte(c.text), b[c.end:])
	}
	return format.Source(b)
}
