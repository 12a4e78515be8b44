package rules

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Budgets of the one binary. Raising one is a decision: say in the commit what
// the bytes buy.
const (
	maxBinary   = 15 << 20 // stripped
	maxPackages = 300      // 159 before the daemon, 278 with it
)

// TestBinary bounds what a one-shot run pays for before main.
func TestBinary(t *testing.T) {
	if n := len(deps(t, "./cmd/belljar")); n > maxPackages {
		t.Errorf("belljar consists of %d packages, at most %d", n, maxPackages)
	}
	if testing.Short() {
		t.Skip("the size is not measured in short mode: it takes a build")
	}
	bin := filepath.Join(t.TempDir(), "belljar")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", bin, "./cmd/belljar")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	st, err := os.Stat(bin)
	if err != nil {
		t.Fatal(err)
	}
	if st.Size() > maxBinary {
		t.Errorf("belljar has %d bytes, at most %d", st.Size(), maxBinary)
	}
	t.Logf("%d bytes", st.Size())
}

// TestKeeperIsSmall: everything that runs with privileges beside a guest is read
// by people, and there is only so much that they read well.
func TestKeeperIsSmall(t *testing.T) {
	const most = 2050
	if n := strings.Count(read(t, "backend/native/keeper/src/keeper.c"), "\n"); n > most {
		t.Errorf("keeper.c has %d lines, at most %d", n, most)
	}
}

// modules lists the modules that our packages import directly, or that programs
// of ours consist of.
func modules(t *testing.T, args ...string) []string {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-f", "{{with .Module}}{{if not .Main}}{{.Path}}{{end}}{{end}}"}, args...)...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOOS=linux")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	mods := strings.Fields(string(out))
	slices.Sort(mods)
	return slices.Compact(mods)
}

// TestDependencies: what other people's code the library and the binary consist
// of changes by decision only.
func TestDependencies(t *testing.T) {
	library := []string{"go.yaml.in/yaml/v4", "golang.org/x/sys"}
	binary := append([]string{
		"github.com/spf13/cobra", "github.com/spf13/pflag", "golang.org/x/term",
		"connectrpc.com/connect/v2", "google.golang.org/protobuf", "go.etcd.io/bbolt",
	}, library...)
	for _, c := range []struct {
		pkg  string
		want []string
	}{
		{".", library}, {"./backend/native", library}, {"./cmd/belljar", binary},
	} {
		for _, m := range modules(t, "-deps", c.pkg) {
			if !slices.Contains(c.want, m) {
				t.Errorf("%s depends on %s", c.pkg, m)
			}
		}
	}
}

// TestDependenciesAreExplained: each module that our code imports has its line in
// docs/decisions.md: why it is there and what would make us drop it.
func TestDependenciesAreExplained(t *testing.T) {
	mod := module(t)
	direct := map[string]string{} // module to one of its importers
	known := modules(t, "-deps", "-test", "./...")
	for _, s := range sources(t) {
		for _, imp := range s.file.Imports {
			p := strings.Trim(imp.Path.Value, `"`)
			if p == mod || strings.HasPrefix(p, mod+"/") {
				continue
			}
			for _, m := range known {
				if p == m || strings.HasPrefix(p, m+"/") {
					direct[m] = s.name
				}
			}
		}
	}
	if len(direct) < 5 {
		t.Fatalf("only %v were found", direct)
	}
	text := read(t, "docs/decisions.md")
	for m, by := range direct {
		if !strings.Contains(text, "`"+m+"`") {
			t.Errorf("docs/decisions.md does not speak of %s, which %s imports", m, by)
		}
	}
}
