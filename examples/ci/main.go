//go:build linux

// Ci copies a source tree into a sandbox, runs the steps of a build in it, shows
// their output as it comes, and copies the artifacts out. It ends with the exit
// code of the first step that fails; the artifacts of such a build are the log alone.
//
//	ci SOURCE ARTIFACTS STEP...
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"belljar"
	"belljar/backend/native"
)

// failure is a step that did not succeed.
type failure struct {
	step string
	res  *belljar.Result
}

func (f *failure) Error() string {
	s := fmt.Sprintf("step %q %s (%s), exit %d", f.step, f.res.State, f.res.Cause, f.res.ExitCode)
	if f.res.Error != nil {
		s += ": " + f.res.Error.Error()
	}
	return s
}

func build(ctx context.Context, source, artifacts string, steps []string) (err error) {
	if err := os.Mkdir(artifacts, 0o755); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(artifacts, "build.log"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	out := io.MultiWriter(os.Stdout, log)

	rt, err := belljar.New(ctx, belljar.Config{}, native.New(native.Config{}))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rt.Close(context.WithoutCancel(ctx))) }()
	sb, err := rt.Create(ctx, belljar.Spec{
		WorkDir: "/src",
		Timeout: time.Minute,
		Env:     map[string]string{"CI": "true"},
		Limits:  belljar.Limits{Memory: 512 * belljar.MiB, Pids: 128},
	})
	if err != nil {
		return err
	}
	if err := sb.CopyIn(ctx, source, "/src"); err != nil {
		return err
	}
	for _, step := range steps {
		fmt.Fprintln(out, "+", step)
		cmd := sb.Shell(step)
		cmd.Stdout, cmd.Stderr = out, out
		res, err := cmd.Run(ctx)
		if err != nil {
			return err
		}
		if res.State != belljar.Completed {
			return &failure{step, res}
		}
	}
	return sb.CopyOut(ctx, "out", filepath.Join(artifacts, "out"))
}

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: ci SOURCE ARTIFACTS STEP...")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := build(ctx, os.Args[1], os.Args[2], os.Args[3:])
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "ci:", err)
	if f := (*failure)(nil); errors.As(err, &f) && f.res.ExitCode > 0 {
		os.Exit(f.res.ExitCode)
	}
	os.Exit(1)
}
