package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
)

// source is what reflection does not know about the types: their comments, and
// the constants of their word types.
type source struct {
	types  map[string]string   // type: comment
	fields map[string]string   // "Type.Field": comment
	words  map[string][]string // type: values of its string constants, in order
}

// sourceFiles declare the types that have schemas.
var sourceFiles = []string{"spec.go", "result.go", "errors.go", "capability.go"}

func parseSource(root string) (*source, error) {
	s := &source{types: map[string]string{}, fields: map[string]string{}, words: map[string][]string{}}
	for _, name := range sourceFiles {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, name), nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range g.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					s.addType(spec, g)
				case *ast.ValueSpec:
					if err := s.addWords(spec, g); err != nil {
						return nil, err
					}
				}
			}
		}
	}
	return s, nil
}

func (s *source) addType(t *ast.TypeSpec, g *ast.GenDecl) {
	name := t.Name.Name
	s.types[name] = comment(g.Doc, t.Doc)
	st, ok := t.Type.(*ast.StructType)
	if !ok {
		return
	}
	shared := ""
	for _, f := range st.Fields.List {
		text := comment(f.Doc, f.Comment)
		for _, n := range f.Names {
			// A comment that begins "A and B" speaks of both fields.
			if text == "" && strings.Contains(shared, " and "+n.Name+" ") {
				text = shared
			}
			s.fields[name+"."+n.Name] = text
		}
		shared = text
	}
}

func (s *source) addWords(v *ast.ValueSpec, g *ast.GenDecl) error {
	id, ok := v.Type.(*ast.Ident)
	if g.Tok != token.CONST || !ok {
		return nil
	}
	for _, x := range v.Values {
		lit, ok := x.(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return nil
		}
		word, err := strconv.Unquote(lit.Value)
		if err != nil {
			return fmt.Errorf("constant of %s: %w", id.Name, err)
		}
		s.words[id.Name] = append(s.words[id.Name], word)
	}
	return nil
}

// comment joins comments into one line without doc links.
func comment(groups ...*ast.CommentGroup) string {
	var parts []string
	for _, g := range groups {
		if g != nil {
			parts = append(parts, strings.Fields(g.Text())...)
		}
	}
	text := strings.Join(parts, " ")
	for _, w := range strings.Fields(text) {
		if i := strings.Index(w, "["); i >= 0 {
			if j := strings.Index(w, "]"); j > i+1 && !strings.ContainsAny(w[i+1:j], "^-") && w[i+1] >= 'A' && w[i+1] <= 'Z' {
				text = strings.Replace(text, w, w[:i]+w[i+1:j]+w[j+1:], 1)
			}
		}
	}
	return text
}
