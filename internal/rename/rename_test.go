package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../.."

// copyTree copies what the repository holds, and what is about to be added.
func copyTree(t *testing.T, to string) {
	t.Helper()
	out, err := exec.Command("git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		t.Skipf("not a git checkout: %v", err)
	}
	for f := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		b, err := os.ReadFile(filepath.Join(root, f))
		if os.IsNotExist(err) {
			continue // deleted, not yet committed
		}
		if err != nil {
			t.Fatal(err)
		}
		dst := filepath.Join(to, f)
		if err := os.MkdirAll(filepath.Dir(dst), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(dst, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRename renames a copy of the repository and builds it.
func TestRename(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds the whole module anew; not in short mode")
	}
	dir := t.TempDir()
	copyTree(t, dir)
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	from := strings.Fields(string(mod))[1]
	if n, err := rename(dir, "example.org/x/belljar"); err != nil || n < 50 {
		t.Fatalf("%d files, %v", n, err)
	}
	for _, c := range [][]string{{".", "build", "./..."}, {".", "vet", "./internal/rules"}, {"examples/consumer", "build", "-o", os.DevNull, "."}} {
		cmd := exec.Command("go", c[1:]...)
		cmd.Dir = filepath.Join(dir, c[0])
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("go %s in %s: %v\n%s", strings.Join(c[1:], " "), c[0], err, out)
		}
	}
	out, err := exec.Command("go", "-C", dir, "list", "-deps", "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	for p := range strings.FieldsSeq(string(out)) {
		if p == from || strings.HasPrefix(p, from+"/") {
			t.Errorf("%s still has its old path", p)
		}
	}
}

func TestSources(t *testing.T) {
	const in = `// Package a is of [jar/b] and [*jar/b.C], and a jar.
package a

import (
	"fmt"
	"jar"
	"jarring"

	"jar/b"
)

var _ = fmt.Sprint("jar", jar.X, jarring.X, b.X, "jar/b")
`
	const want = `// Package a is of [x.org/jar/b] and [*x.org/jar/b.C], and a jar.
package a

import (
	"fmt"
	"jarring"
	"x.org/jar"

	"x.org/jar/b"
)

var _ = fmt.Sprint("jar", jar.X, jarring.X, b.X, "jar/b")
`
	got, err := inGo([]byte(in), "jar", "x.org/jar")
	if err != nil || string(got) != want {
		t.Errorf("%v\n%s", err, got)
	}
	if _, err := inGo([]byte("no Go"), "jar", "x.org/jar"); err == nil {
		t.Error("a file that is no Go was accepted")
	}
	mod := "module jar\n\nrequire (\n\tjar v1\n\tjarring v1\n)\n\nrequire jar v1\n\nreplace jar => ../jar\n"
	wantMod := "module x.org/jar\n\nrequire (\n\tx.org/jar v1\n\tjarring v1\n)\n\nrequire x.org/jar v1\n\nreplace x.org/jar => ../jar\n"
	if got := string(inMod([]byte(mod), "jar", "x.org/jar")); got != wantMod {
		t.Errorf("go.mod:\n%s", got)
	}
}

func TestPaths(t *testing.T) {
	for _, bad := range []string{"", "belljar", "github.com", "github.com/", "https://github.com/a/b", "github.com/a/../b", "github.com/a b", "github.com/a/b.git", "/a.b/c"} {
		if _, err := rename(t.TempDir(), bad); err == nil || !strings.Contains(err.Error(), "not a module path") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
