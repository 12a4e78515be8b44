//go:build linux

// Evaluator grades programs against cases, each run in pid, mount and ipc
// namespaces of its own (isolation.fresh) and under limits of the case, and
// prints a table of verdicts.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"belljar"
	"belljar/backend/native"
)

// The problem: print the sum of the numbers on standard input.
var cases = []struct {
	name, input, want string
	limits            belljar.Limits
	timeout           time.Duration
}{
	{"small", "1 2 3\n", "6", belljar.Limits{CPUTime: time.Second, Output: 4 * belljar.KiB}, 10 * time.Second},
	{"large", strings.Repeat("7 ", 20000), "140000", belljar.Limits{CPUTime: 2 * time.Second, Memory: 64 * belljar.MiB, Output: 4 * belljar.KiB}, 5 * time.Second},
}

var submissions = []struct{ name, source string }{
	{"correct", "print(sum(map(int, input().split())))"},
	{"wrong", "print(6)"},
	{"loop", "s = input()\nwhile len(s) > 10: pass\nprint(6)"},
	{"sleep", "import time\nn = sum(map(int, input().split()))\ntime.sleep(0 if n < 10 else 1000)\nprint(n)"},
	{"hoard", "n = sum(map(int, input().split()))\nx = bytearray(n << 12)\nprint(n)"},
	{"crash", "print(6 // (6 - sum(map(int, input().split()))))"},
	{"flood", "while True: print('6' * 1000)"},
	{"escape", "import os\nprint(6 if os.path.exists('/etc/shadow') else sum(map(int, input().split())))"},
}

// verdict says in the usual words how a run ended.
func verdict(res *belljar.Result, want string) string {
	switch res.Cause {
	case belljar.CauseCPU, belljar.CauseTimeout:
		return "TLE"
	case belljar.CauseMemory:
		return "MLE"
	case belljar.CauseOutput:
		return "OLE"
	}
	if res.State != belljar.Completed {
		return "RE"
	}
	if strings.TrimSpace(string(res.Stdout)) != want {
		return "WA"
	}
	return "AC"
}

func run(ctx context.Context) error {
	rt, err := belljar.New(ctx, belljar.Config{}, native.New(native.Config{}))
	if err != nil {
		return err
	}
	defer rt.Close(ctx)
	sb, err := rt.Create(ctx, belljar.Spec{
		Limits: belljar.Limits{Memory: 256 * belljar.MiB, Pids: 16}, Isolation: belljar.Isolation{Fresh: true},
	})
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "SUBMISSION")
	for _, c := range cases {
		fmt.Fprint(table, "\t", strings.ToUpper(c.name))
	}
	fmt.Fprintln(table)
	for _, s := range submissions {
		fmt.Fprint(table, s.name)
		for _, c := range cases {
			cmd := sb.Command("python3", "-c", s.source)
			cmd.Stdin, cmd.Limits, cmd.Timeout = strings.NewReader(c.input), c.limits, c.timeout
			res, err := cmd.Run(ctx)
			if err != nil {
				return err
			}
			fmt.Fprint(table, "\t", verdict(res, c.want))
		}
		fmt.Fprintln(table)
	}
	return table.Flush()
}

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "evaluator:", err)
		os.Exit(1)
	}
}
