package keeper

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestReproducible builds the source again and wants the committed programs.
func TestReproducible(t *testing.T) {
	recorded, err := os.ReadFile("keeper.txt")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(recorded), "\n")
	if len(lines) < 4 {
		t.Fatalf("keeper.txt has %d lines", len(lines))
	}
	for i, cc := range []string{"gcc", "aarch64-linux-gnu-gcc"} {
		out, err := exec.Command(cc, "--version").Output()
		if err != nil {
			t.Skipf("%s: %v", cc, err)
		}
		if v, _, _ := strings.Cut(string(out), "\n"); v != lines[i] {
			t.Skipf("the programs were built with %q, here is %q", lines[i], v)
		}
	}
	for _, tool := range []string{"sh", "objcopy", "aarch64-linux-gnu-objcopy", "sha256sum"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	dir := t.TempDir()
	if out, err := exec.Command("sh", "src/build.sh", dir).CombinedOutput(); err != nil {
		t.Fatalf("build.sh: %v\n%s", err, out)
	}
	for _, name := range []string{"keeper_amd64.elf", "keeper_arm64.elf", "keeper.txt"} {
		want, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what the source makes: run src/build.sh and commit", name)
		}
	}
}
