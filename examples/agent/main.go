//go:build linux

// Agent runs the steps that a language model asks for, in one sandbox, and hands
// the model what came of them. The model here is a script of fixed replies; what
// matters is that a step which goes over a limit is an answer like any other, and
// that the sandbox can be used afterwards.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"belljar"
	"belljar/backend/native"
)

// step is one request of the model: to write a file, or to run a program.
type step struct{ tool, name, body string }

// model answers each observation with the next step; false: it is done.
type model struct{ script []step }

func (m *model) next(observation string) (step, bool) {
	if observation != "" {
		fmt.Println("  model sees:", strings.ReplaceAll(strings.TrimSpace(observation), "\n", " | "))
	}
	if len(m.script) == 0 {
		return step{}, false
	}
	s := m.script[0]
	m.script = m.script[1:]
	return s, true
}

// act carries out a step and says what came of it. The error is about the
// machinery: nothing that the model wrote can cause one.
func act(ctx context.Context, sb *belljar.Sandbox, s step) (string, error) {
	var cmd *belljar.Cmd
	switch s.tool {
	case "write":
		if err := sb.WriteFile(s.name, []byte(s.body), 0o644); err != nil {
			return err.Error(), nil // FS_ERROR: a bad name is the model's mistake
		}
		return "written", nil
	case "python":
		cmd = sb.Command("python3", "-c", s.body)
	default:
		cmd = sb.Shell(s.body)
	}
	res, err := cmd.Run(ctx)
	if err != nil {
		return "", err
	}
	out := string(res.Stdout) + string(res.Stderr)
	if res.Error != nil {
		return fmt.Sprintf("stopped: %s %s", res.Error.Code, out), nil
	}
	return fmt.Sprintf("exit %d: %s", res.ExitCode, out), nil
}

func run(ctx context.Context) error {
	rt, err := belljar.New(ctx, belljar.Config{}, native.New(native.Config{}))
	if err != nil {
		return err
	}
	defer rt.Close(ctx) // ends the sandbox too
	limits := belljar.Limits{Memory: 128 * belljar.MiB, CPUTime: 5 * time.Second, Output: 64 * belljar.KiB}
	sb, err := rt.Create(ctx, belljar.Spec{Timeout: 20 * time.Second, Limits: limits})
	if err != nil {
		return err
	}
	m := &model{script: []step{
		{tool: "write", name: "data.csv", body: "a,1\nb,2\nc,39\n"},
		{tool: "shell", body: "wc -l < data.csv"},
		{tool: "python", body: "print(sum(int(l.split(',')[1]) for l in open('data.csv')))"},
		{tool: "python", body: "x = bytearray(1 << 30)"},
		{tool: "write", name: "/usr/bin/sh", body: "#!"},
		{tool: "shell", body: "cat data.csv | tail -1"},
	}}
	for s, more := m.next(""); more; {
		fmt.Printf("%s: %.40s\n", s.tool, strings.ReplaceAll(s.body, "\n", " "))
		seen, err := act(ctx, sb, s)
		if err != nil {
			return err
		}
		s, more = m.next(seen)
	}
	return nil
}

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		os.Exit(1)
	}
}
