package belljar

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// connectCodes are the codes of the Connect protocol.
var connectCodes = []string{
	"canceled", "unknown", "invalid_argument", "deadline_exceeded", "not_found", "already_exists", "permission_denied", "resource_exhausted",
	"failed_precondition", "aborted", "out_of_range", "unimplemented", "internal", "unavailable", "data_loss", "unauthenticated",
}

func TestErrorTableHasEveryCode(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var declared []Code
	ast.Inspect(f, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if id, ok := v.Type.(*ast.Ident); !ok || id.Name != "Code" {
			return true
		}
		for _, x := range v.Values {
			s, err := strconv.Unquote(x.(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			declared = append(declared, Code(s))
		}
		return true
	})
	var listed []Code
	for _, e := range ErrorTable() {
		listed = append(listed, e.Code)
	}
	if len(declared) < 20 || !slices.Equal(declared, listed) {
		t.Errorf("errors.go declares\n%v\nand the table lists\n%v", declared, listed)
	}
}

func TestErrorTableRows(t *testing.T) {
	for _, e := range ErrorTable() {
		for _, text := range []string{e.Meaning, e.Cause, e.Action} {
			if !strings.HasSuffix(text, ".") {
				t.Errorf("%s: %q is no sentence", e.Code, text)
			}
		}
		if e.HTTP < 400 || e.HTTP > 599 || !slices.Contains(connectCodes, e.RPC) || !slices.Contains([]Usable{UsableYes, UsableNo, UsableMaybe}, e.Usable) {
			t.Errorf("%s: HTTP %d, RPC %q, usable %q", e.Code, e.HTTP, e.RPC, e.Usable)
		}
		if got, ok := e.Code.Info(); !ok || got != e {
			t.Errorf("%s.Info() = %+v, %v", e.Code, got, ok)
		}
	}
	if e, ok := Code("NONE").Info(); ok {
		t.Errorf("an unknown code has the row %+v", e)
	}
	// The table handed out is a copy.
	ErrorTable()[0].Meaning = "changed"
	if e, _ := CodeInvalidSpec.Info(); e.Meaning == "changed" {
		t.Error("a caller can change the table")
	}
}
