// Package examples_test runs the examples as their readers would, and compares
// what they print.
package examples_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// build compiles an example and returns the program.
func build(t *testing.T, dir, pkg string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("the examples set memory limits, which need root or a delegated cgroup")
	}
	bin := filepath.Join(t.TempDir(), "example")
	cmd := exec.Command("go", "build", "-o", bin, pkg)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, out)
	}
	return bin
}

// run returns the exit code and both outputs.
func run(t *testing.T, bin string, args ...string) (int, string, string) {
	t.Helper()
	var stdout, stderr strings.Builder
	cmd := exec.CommandContext(t.Context(), bin, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()
}

func check(t *testing.T, code, wantCode int, out, want, stderr, wantStderr string) {
	t.Helper()
	if code != wantCode {
		t.Errorf("exit %d, want %d", code, wantCode)
	}
	if d := cmp.Diff(want, out); d != "" {
		t.Errorf("stdout (-want +got):\n%s", d)
	}
	if d := cmp.Diff(wantStderr, stderr); d != "" {
		t.Errorf("stderr (-want +got):\n%s", d)
	}
}

func TestAgent(t *testing.T) {
	code, out, stderr := run(t, build(t, ".", "./agent"))
	check(t, code, 0, out, `write: a,1 b,2 c,39 
  model sees: written
shell: wc -l < data.csv
  model sees: exit 0: 3
python: print(sum(int(l.split(',')[1]) for l in 
  model sees: exit 0: 42
python: x = bytearray(1 << 30)
  model sees: stopped: ERR_OOM_EXCEEDED
write: #!
  model sees: write /usr/bin/sh: read-only file system
shell: cat data.csv | tail -1
  model sees: exit 0: c,39
`, stderr, "")
}

func TestEvaluator(t *testing.T) {
	code, out, stderr := run(t, build(t, ".", "./evaluator"))
	check(t, code, 0, out, `SUBMISSION  SMALL  LARGE
correct     AC     AC
wrong       AC     WA
loop        AC     TLE
sleep       AC     TLE
hoard       AC     MLE
crash       RE     WA
flood       OLE    OLE
escape      AC     AC
`, stderr, "")
}

func TestCI(t *testing.T) {
	bin := build(t, ".", "./ci")
	dir := t.TempDir()
	source := filepath.Join(dir, "source")
	for name, text := range map[string]string{"build.sh": "set -e\nmkdir out\nrev < word > out/drow\n", "word": "belljar\n"} {
		if err := os.MkdirAll(source, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(source, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	read := func(name string) string {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
		}
		return string(b)
	}

	t.Run("green", func(t *testing.T) {
		code, out, stderr := run(t, bin, source, filepath.Join(dir, "a"), "sh build.sh", "echo CI=$CI; ls out")
		want := "+ sh build.sh\n+ echo CI=$CI; ls out\nCI=true\ndrow\n"
		check(t, code, 0, out, want, stderr, "")
		if got := read("a/out/drow"); got != "rajlleb\n" {
			t.Errorf("artifact: %q", got)
		}
		if got := read("a/build.log"); got != want {
			t.Errorf("log: %q", got)
		}
		if got, _ := os.ReadDir(source); len(got) != 2 {
			t.Errorf("the build changed the source: %v", got)
		}
	})
	t.Run("red", func(t *testing.T) {
		code, out, stderr := run(t, bin, source, filepath.Join(dir, "b"), "mkdir out; echo broken; exit 7", "echo not reached")
		want := "+ mkdir out; echo broken; exit 7\nbroken\n"
		check(t, code, 7, out, want, stderr, fmt.Sprintf("ci: step %q failed (exit), exit 7\n", "mkdir out; echo broken; exit 7"))
		if got := read("b/build.log"); got != want {
			t.Errorf("log: %q", got)
		}
		if _, err := os.Lstat(filepath.Join(dir, "b/out")); err == nil {
			t.Error("artifacts of a failed build were copied")
		}
	})
	t.Run("limit", func(t *testing.T) {
		code, _, stderr := run(t, bin, source, filepath.Join(dir, "c"), "python3 -c 'x = bytearray(1 << 30)'")
		if code != 1 || !strings.Contains(stderr, "failed (memory), exit -1") {
			t.Errorf("exit %d, %q", code, stderr)
		}
	})
	t.Run("hostile artifacts", func(t *testing.T) {
		code, _, stderr := run(t, bin, source, filepath.Join(dir, "d"), "mkdir out; ln -s /etc/passwd out/report")
		if code != 1 || !strings.Contains(stderr, "leaves the tree") {
			t.Errorf("exit %d, %q", code, stderr)
		}
		if _, err := os.Lstat(filepath.Join(dir, "d/out")); err == nil {
			t.Error("a link to the host's files was copied")
		}
	})
}

func TestNotebook(t *testing.T) {
	bin := build(t, ".", "./notebook")
	dir := t.TempDir()
	file := filepath.Join(dir, "demo.ipynb")
	text := `{"cells": [
		{"cell_type": "markdown", "source": ["# Sums"]},
		{"cell_type": "code", "source": ["x = 20\n", "print('x is', x)"]},
		{"cell_type": "code", "source": ["x * 2 + 2"]},
		{"cell_type": "code", "source": ["x / 0"]},
		{"cell_type": "code", "source": ["class P:\n", "    def _repr_png_(self): return b'png'\n", "P()"]},
		{"cell_type": "code", "source": ["while True: pass"]},
		{"cell_type": "code", "source": ["'x' in globals()"]}
	]}`
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	code, out, stderr := run(t, bin, file, dir)
	check(t, code, 0, out, `[2] x is 20

[3] 42
[4] ZeroDivisionError: division by zero
[5] 5-1.png
[6] cell exec: the timeout ended the cell
[7] False
`, stderr, "")
	if b, err := os.ReadFile(filepath.Join(dir, "5-1.png")); err != nil || string(b) != "png" {
		t.Errorf("image %q, %v", b, err)
	}
}

// TestConsumer builds the quick start in a module of its own, with nothing but
// what its go.mod names.
func TestConsumer(t *testing.T) {
	code, out, stderr := run(t, build(t, "consumer", "."))
	check(t, code, 0, out, "completed, exit 0: 42\nnetwork: applied\n", stderr, "")
}

// TestLength keeps the examples short enough to be read.
func TestLength(t *testing.T) {
	files, err := filepath.Glob("*/main.go")
	if err != nil || len(files) < 4 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(b), "\n"); n >= 100 {
			t.Errorf("%s: %d lines, fewer than 100 are promised", f, n)
		}
	}
}
