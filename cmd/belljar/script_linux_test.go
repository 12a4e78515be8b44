package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	// The laboratory and the benchmarks start the running program as their probe.
	hidden()
	testscript.Main(m, map[string]func(){"belljar": main})
}

// TestScripts runs testdata/script: the command as people use it, on the native
// backend. Scripts named root_* need root, those named user_* an ordinary user.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:           filepath.Join("testdata", "script"),
		UpdateScripts: *update,
		Setup: func(env *testscript.Env) error {
			state := filepath.Join(env.WorkDir, "state")
			env.Setenv("BELLJAR_STATE_DIR", state)
			env.Defer(func() { removeAll(env.T(), state) })
			return nil
		},
		Condition: func(cond string) (bool, error) {
			if cond == "root" {
				return os.Geteuid() == 0, nil
			}
			return false, fmt.Errorf("unknown condition %q", cond)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"code":     code,
			"appears":  appears,
			"nothing":  nothing,
			"capture":  capture,
			"attended": attended,
		},
	})
}

// removeAll ends what a script left, and complains when that does not work.
func removeAll(t testscript.T, state string) {
	if _, err := os.Stat(state); err != nil {
		return
	}
	cmd := exec.Command("belljar", "rm", "--all", "--state-dir", state)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatal("remove sandboxes: ", err, " ", string(out))
	}
}

// code runs a command and checks its exit status: code 124 belljar run ...
func code(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: code N command...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		exit := (*exec.ExitError)(nil)
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}

// appears waits until a file is there: appears file
func appears(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: appears file")
	}
	for deadline := time.Now().Add(30 * time.Second); ; {
		if _, err := os.Stat(ts.MkAbs(args[0])); err == nil {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%s did not appear", args[0])
		}
		time.Sleep(5 * time.Millisecond)
	}
}

var groupPath = regexp.MustCompile(`/sys/fs/cgroup/\S*/belljar-[^/\s]+`)

// nothing checks that no process has the word in its command line, that the groups which
// stderr of the last command names are gone, and no mount names this directory: nothing left word
func nothing(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 || args[0] != "left" {
		ts.Fatalf("usage: nothing left word")
	}
	groups := groupPath.FindAllString(ts.ReadFile("stderr"), -1)
	var left []string
	for deadline := time.Now().Add(5 * time.Second); ; {
		left = remains(ts.Getenv("WORK"), args[1], groups)
		if len(left) == 0 {
			return
		}
		// What a killed supervisor leaves to its keeper takes a moment.
		if time.Now().After(deadline) {
			ts.Fatalf("left behind: %s", strings.Join(left, ", "))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func remains(work, word string, groups []string) (left []string) {
	procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range procs {
		b, err := os.ReadFile(p)
		if err == nil && strings.Contains(string(b), word) {
			left = append(left, p+" "+strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	for _, g := range groups {
		if _, err := os.Stat(g); err == nil {
			left = append(left, g)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), work) {
		left = append(left, fmt.Sprint("a mount: ", err))
	}
	return left
}

// capture puts stdout of the last command, trimmed, into a variable: capture NAME
func capture(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: capture NAME")
	}
	ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile("stdout")))
}

// attended waits until there is no attendant, or kills it: attended gone|kill
func attended(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: attended gone|kill")
	}
	state := ts.Getenv("BELLJAR_STATE_DIR")
	for deadline := time.Now().Add(15 * time.Second); ; {
		pid := attendantOf(state)
		switch {
		case args[0] == "kill" && pid > 0:
			p, err := os.FindProcess(pid)
			ts.Check(err)
			ts.Check(p.Kill())
			args = []string{"gone"}
		case pid == 0:
			return
		case time.Now().After(deadline):
			ts.Fatalf("the attendant %d is still there", pid)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// attendantOf returns the process that keeps the sandboxes of a state directory, or 0.
func attendantOf(state string) int {
	procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range procs {
		b, err := os.ReadFile(p)
		if err != nil || !strings.HasSuffix(string(b), "\x00"+attendVerb+"\x00"+state+"\x00") {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(p)))
		if err == nil {
			return pid
		}
	}
	return 0
}
