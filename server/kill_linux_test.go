package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"belljar"
	"belljar/backend/native"
	"belljar/backend/remote"
	"belljar/server"

	v1 "belljar/api/belljar/v1"
)

const envDaemon = "BELLJAR_TEST_DAEMON" // state directory: be a daemon

// daemonMain serves until it is killed.
func daemonMain(dir string) error {
	ctx := context.Background()
	rt, err := belljar.New(ctx, belljar.Config{StateDir: filepath.Join(dir, "state"), Persist: true, RetainEnded: time.Hour}, native.New(native.Config{}))
	if err != nil {
		return err
	}
	l, err := server.ListenUnix(filepath.Join(dir, "s"))
	if err != nil {
		return err
	}
	if _, err := rt.Recover(ctx); err != nil {
		return err
	}
	s, err := server.New(server.Config{Runtime: rt, Auth: server.Local{UIDs: []int{os.Geteuid()}}})
	if err != nil {
		return err
	}
	return s.Serve(ctx, l, time.Second)
}

// daemon is one that can be killed and started again.
type daemon struct {
	t   *testing.T
	dir string
	cmd *exec.Cmd
	err bytes.Buffer
}

func (d *daemon) start() {
	d.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		d.t.Fatal(err)
	}
	d.cmd = exec.Command(exe)
	d.cmd.Env = append(os.Environ(), envDaemon+"="+d.dir)
	d.cmd.Stderr = &d.err
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
}

func (d *daemon) kill() {
	_ = d.cmd.Process.Kill()
	_ = d.cmd.Wait()
}

func newDaemon(t *testing.T) (*daemon, *remote.Backend) {
	d := &daemon{t: t, dir: t.TempDir()}
	d.start()
	b, err := remote.New(remote.Config{URL: "unix://" + filepath.Join(d.dir, "s"), Patience: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.kill()
		// A last supervisor removes what is there.
		rt, err := belljar.New(context.Background(), belljar.Config{StateDir: filepath.Join(d.dir, "state"), Persist: true}, native.New(native.Config{}))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := rt.Recover(context.Background()); err != nil {
			t.Errorf("recover: %v", err)
		}
		for _, sb := range rt.List() {
			if err := sb.Destroy(context.Background()); err != nil {
				t.Errorf("destroy: %v", err)
			}
		}
		if err := rt.Close(context.Background()); err != nil {
			t.Errorf("close: %v", err)
		}
		if t.Failed() {
			t.Logf("daemon: %s", d.err.Bytes())
		}
	})
	ready(t, b)
	return d, b
}

// ready waits until the daemon answers.
func ready(t *testing.T, b *remote.Backend) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		_, err := b.Host.Info(t.Context(), &v1.InfoRequest{})
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the daemon does not answer: %v", err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// TestKilled: a daemon that is killed again and again at any instant loses no
// byte of output and no end, and runs nothing twice.
func TestKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	const boxes, lines = 8, 40000
	d, b := newDaemon(t)
	rt, err := belljar.New(t.Context(), belljar.Config{}, b)
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close(context.Background())
	type run struct {
		cmd *belljar.Cmd
		out bytes.Buffer
	}
	runs := make([]*run, boxes)
	for i := range runs {
		sb, err := rt.Create(t.Context(), belljar.Spec{})
		if err != nil {
			t.Fatal(err)
		}
		script := fmt.Sprintf("echo x >> ran; i=0; while [ $i -lt %d ]; do echo line $i; i=$((i+1)); [ $((i %% 4000)) = 0 ] && sleep 0.2; done; wc -l < ran; exit %d", lines, i+3)
		r := &run{cmd: sb.Shell(script)}
		r.cmd.Stdout = &r.out
		if err := r.cmd.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		runs[i] = r
	}
	for range 4 {
		time.Sleep(time.Duration(100+rand.IntN(300)) * time.Millisecond)
		d.kill()
		d.start()
		ready(t, b)
	}
	for i, r := range runs {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		res, err := r.cmd.Wait(ctx)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		if res.State != belljar.Failed || res.Cause != belljar.CauseExit || res.ExitCode != i+3 {
			t.Errorf("box %d ended %s/%s exit %d, error %v", i, res.State, res.Cause, res.ExitCode, res.Error)
		}
		if u := res.Usage.CPUTimeMs; u == nil || *u <= 0 {
			t.Errorf("box %d: no usage", i)
		}
		rest := r.out.Bytes()
		for n := range lines {
			line, after, _ := bytes.Cut(rest, []byte("\n"))
			if string(line) != "line "+strconv.Itoa(n) {
				t.Fatalf("box %d: %q instead of line %d", i, line, n)
			}
			rest = after
		}
		if string(bytes.TrimSpace(rest)) != "1" {
			t.Errorf("box %d: after the lines came %q: it ran more than once, or less", i, rest)
		}
	}
}

// TestEndedBeforeKill: what ended is known to the next daemon, and a repeat of its
// id runs nothing.
func TestEndedBeforeKill(t *testing.T) {
	d, b := newDaemon(t)
	ctx := t.Context()
	made, err := b.Sandboxes.Create(ctx, &v1.CreateSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	id := made.Sandbox.Id
	req := &v1.RunRequest{Sandbox: id, Id: "once", Command: &v1.Command{Shell: "echo ran >> f; echo out; echo err >&2; cat f; exit 5"}}
	first, err := b.Executions.Run(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	if string(first.Result.Stdout) != "out\nran\n" {
		t.Fatalf("%q", first.Result.Stdout)
	}
	d.kill()
	d.start()
	ready(t, b)
	got, err := b.Executions.Get(ctx, &v1.GetExecutionRequest{Sandbox: id, Execution: "once"})
	if err != nil {
		t.Fatal(err)
	}
	r := got.Execution.Result
	if r.GetExitCode() != 5 || string(r.GetStdout()) != "out\nran\n" || string(r.GetStderr()) != "err\n" || r.GetUsage().GetCpuTimeMs() != first.Result.Usage.GetCpuTimeMs() {
		t.Errorf("%+v", r)
	}
	again, err := b.Executions.Run(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	if string(again.Result.Stdout) != "out\nran\n" {
		t.Errorf("a repeat ran again: %q", again.Result.Stdout)
	}
	// After the end of the sandbox, and of another daemon, it is still known.
	if _, err := b.Sandboxes.Destroy(ctx, &v1.DestroySandboxRequest{Sandbox: id}); err != nil {
		t.Fatal(err)
	}
	d.kill()
	d.start()
	ready(t, b)
	late, err := b.Executions.Get(ctx, &v1.GetExecutionRequest{Sandbox: id, Execution: "once"})
	if err != nil || late.Execution.Result.GetExitCode() != 5 || string(late.Execution.Result.Stdout) != "out\nran\n" {
		t.Errorf("%v, %v", late, err)
	}
	gone, err := b.Sandboxes.Get(ctx, &v1.GetSandboxRequest{Sandbox: id})
	if err != nil || gone.Sandbox.State != "destroyed" || gone.Sandbox.Reason != "destroyed" {
		t.Errorf("%v, %v", gone, err)
	}
	if _, err := b.Executions.Get(ctx, &v1.GetExecutionRequest{Sandbox: id, Execution: "never"}); !errors.Is(remote.Error("", err), belljar.ErrNotFound) {
		t.Errorf("an execution that never was: %v", err)
	}
}
