package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"belljar"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
)

var update = flag.Bool("update", false, "rewrite golden files")

// TestHelp: the help of every command is as committed, and fits a terminal
// of 120 columns.
func TestHelp(t *testing.T) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		name := strings.ReplaceAll(c.CommandPath(), " ", "_")
		t.Run(name, func(t *testing.T) {
			var out, errs bytes.Buffer
			args := append(strings.Fields(c.CommandPath())[1:], "--help")
			if code := execute(args, &out, &errs); code != 0 || errs.Len() > 0 {
				t.Fatalf("status %d, %s", code, errs.String())
			}
			golden := filepath.Join("testdata", "help", name+".txt")
			if *update {
				if err := os.WriteFile(golden, out.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), out.String()); d != "" {
				t.Errorf("help differs; -update rewrites it:\n%s", d)
			}
			for l := range strings.Lines(out.String()) {
				if len(strings.TrimRight(l, "\n")) > 120 {
					t.Errorf("%d columns: %s", len(l), l)
				}
			}
		})
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() && sub.Name() != "completion" && sub.Name() != "help" {
				walk(sub)
			}
		}
	}
	walk(newRoot(""))
}

func TestExitCode(t *testing.T) {
	for _, c := range []struct {
		name string
		res  belljar.Result
		want int
	}{
		{"success", belljar.Result{Cause: belljar.CauseExit}, 0},
		{"failure", belljar.Result{Cause: belljar.CauseExit, ExitCode: 3}, 3},
		{"signal", belljar.Result{Cause: belljar.CauseSignal, ExitCode: 139}, 139},
		{"policy", belljar.Result{Cause: belljar.CausePolicy, ExitCode: 159}, 159},
		{"timeout", belljar.Result{Cause: belljar.CauseTimeout, ExitCode: -1}, 124},
		{"memory", belljar.Result{Cause: belljar.CauseMemory, ExitCode: -1}, 137},
		{"cpu", belljar.Result{Cause: belljar.CauseCPU, ExitCode: -1}, 137},
		{"output", belljar.Result{Cause: belljar.CauseOutput, ExitCode: -1}, 137},
		{"disk", belljar.Result{Cause: belljar.CauseDisk, ExitCode: -1}, 137},
		{"pids", belljar.Result{Cause: belljar.CausePids, ExitCode: -1}, 137},
		{"cancelled", belljar.Result{Cause: belljar.CauseCancelled, ExitCode: -1}, 143},
		{"infra", belljar.Result{Cause: belljar.CauseInfra, ExitCode: -1, Error: &belljar.Error{Code: belljar.CodeInternal}}, 125},
		{"not found", belljar.Result{Cause: belljar.CauseInfra, Error: &belljar.Error{Code: belljar.CodeExecFailed, Op: "exec: execve", Err: syscall.ENOENT}}, 127},
		{"not executable", belljar.Result{Cause: belljar.CauseInfra, Error: &belljar.Error{Code: belljar.CodeExecFailed, Op: "exec: execve", Err: syscall.EACCES}}, 126},
		{"no directory", belljar.Result{Cause: belljar.CauseInfra, Error: &belljar.Error{Code: belljar.CodeExecFailed, Op: "exec: dir", Err: syscall.ENOENT}}, 125},
	} {
		if got := exitCode(&c.res, 143); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func TestReason(t *testing.T) {
	for want, res := range map[string]belljar.Result{
		"":                  {Cause: belljar.CauseExit, ExitCode: 1},
		"killed by SIGSEGV": {Cause: belljar.CauseSignal, Signal: "SIGSEGV"},
		"memory limit exceeded: limit 32 MiB, observed 31.5 MiB": {Cause: belljar.CauseMemory, Error: &belljar.Error{
			Op: "exec", Message: "memory limit exceeded", Limit: "33554432 B", Observed: "33030144 B",
		}},
		"disk limit hit: limit 1024 B, 5 inodes": {Cause: belljar.CauseDisk, Error: &belljar.Error{Op: "exec", Message: "disk limit hit", Limit: "1024 B, 5 inodes"}},
		"a?[31mb c":                              {Cause: belljar.CauseInfra, Error: &belljar.Error{Message: "a\x1b[31mb\nc"}},
	} {
		if got := reason(&res); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestHumanBytes(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 10*1024 + 512: "10.5 KiB", 300*1024 + 600: "301 KiB", 1 << 20: "1 MiB",
		1<<20 - 1: "1 MiB", 5 << 30: "5 GiB", 1<<63 - 1: "8 EiB",
	} {
		if got := humanBytes(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

func TestAge(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 0: "0s", 119 * time.Second: "119s", 2 * time.Minute: "2m", 3 * time.Hour: "3h", 72 * time.Hour: "3d",
	} {
		if got := age(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}

func TestParseMount(t *testing.T) {
	for in, want := range map[string]belljar.Mount{
		"/a:/b":    {Source: "/a", Target: "/b"},
		"/a:/b:ro": {Source: "/a", Target: "/b"},
		"/a:/b:rw": {Source: "/a", Target: "/b", ReadOnly: new(false)},
	} {
		got, err := parseMount(in)
		if err != nil {
			t.Errorf("%q: %v", in, err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%q: %s", in, d)
		}
	}
	for _, in := range []string{"", "/a", ":", "/a:", ":/b", "/a:/b:xx", "/a:/b:rw:x", "/a:/b:"} {
		if m, err := parseMount(in); err == nil {
			t.Errorf("%q: %+v", in, m)
		}
	}
}

func TestRemote(t *testing.T) {
	type split struct {
		Sandbox, Name string
		OK            bool
	}
	for in, want := range map[string]split{
		"box:a/b": {"box", "a/b", true}, "box:": {"box", ".", true}, "box:/a:b": {"box", "/a:b", true},
		"./box:a": {}, "/x:y": {}, "file": {}, ":x": {}, "-": {},
	} {
		var got split
		got.Sandbox, got.Name, got.OK = remote(in)
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%q: %s", in, d)
		}
	}
}

// TestFlagsOverrideFile: flags edit what the file says, in their order, and leave
// the rest.
func TestFlagsOverrideFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "spec.yaml")
	if err := os.WriteFile(file, []byte("limits: {memory: 64MiB, pids: 7}\nenv: {A: file, B: file}\ntimeout: 5s\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var f specFlags
	c := &cobra.Command{}
	f.declare(c.Flags())
	err := c.ParseFlags([]string{"-f", file, "--memory", "1GiB", "-e", "A=flag", "-e", "C=", "--cpu", "0.5", "--layer", "landlock=off", "--fresh", "--memory", "2GiB"})
	if err != nil {
		t.Fatal(err)
	}
	got, err := f.spec()
	if err != nil {
		t.Fatal(err)
	}
	want := belljar.Spec{
		Env: map[string]string{"A": "flag", "B": "file", "C": ""}, Timeout: 5 * time.Second,
		Limits:    belljar.Limits{Memory: 2 * belljar.GiB, Pids: 7, CPU: 0.5},
		Isolation: belljar.Isolation{Layers: map[belljar.Layer]belljar.Want{belljar.LayerLandlock: belljar.Off}, Fresh: true},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
