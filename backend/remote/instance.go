package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"belljar"
	v1 "belljar/api/belljar/v1"
	"belljar/internal/wire"
)

// instance is a sandbox on the daemon.
type instance struct {
	b      *Backend
	plan   *belljar.Plan
	id     string
	report belljar.Report

	mu   sync.Mutex
	ttys map[*os.File]*v1.TTY // sizes of terminals that were opened, by our end
}

var (
	_ belljar.Instance  = (*instance)(nil)
	_ belljar.Pauser    = (*instance)(nil)
	_ belljar.TTYOpener = (*instance)(nil)
)

// Report implements [belljar.Instance].
func (in *instance) Report() belljar.Report { return in.report }

// Files implements [belljar.Instance].
func (in *instance) Files() belljar.Files { return files{in} }

// Usage implements [belljar.Instance].
func (in *instance) Usage(ctx context.Context) (belljar.Usage, error) {
	resp, err := in.b.Sandboxes.Usage(ctx, &v1.UsageRequest{Sandbox: in.id})
	if err != nil {
		return belljar.Usage{}, Error("usage", err)
	}
	return wire.FromUsage(resp.Usage), nil
}

// Alive implements [belljar.Instance].
func (in *instance) Alive(ctx context.Context) error {
	resp, err := in.b.Sandboxes.Get(ctx, &v1.GetSandboxRequest{Sandbox: in.id})
	if err != nil {
		return Error("alive", err)
	}
	if s := resp.Sandbox.GetState(); s != string(belljar.SandboxReady) && s != string(belljar.SandboxPaused) {
		return &belljar.Error{Code: belljar.CodeDestroyed, Op: "alive", Message: fmt.Sprintf("the sandbox is %s (%s)", s, resp.Sandbox.GetReason())}
	}
	return nil
}

// Pause implements [belljar.Pauser].
func (in *instance) Pause(ctx context.Context) error {
	_, err := in.b.Sandboxes.Pause(ctx, &v1.PauseSandboxRequest{Sandbox: in.id})
	return Error("pause", err)
}

// Resume implements [belljar.Pauser].
func (in *instance) Resume(ctx context.Context) error {
	_, err := in.b.Sandboxes.Resume(ctx, &v1.ResumeSandboxRequest{Sandbox: in.id})
	return Error("resume", err)
}

// Close implements [belljar.Instance].
func (in *instance) Close(ctx context.Context) error {
	_, err := in.b.Sandboxes.Destroy(ctx, &v1.DestroySandboxRequest{Sandbox: in.id})
	if err = Error("destroy", err); errors.Is(err, belljar.ErrNotFound) || errors.Is(err, belljar.ErrDestroyed) {
		return nil
	}
	return err
}

// limits are those of an execution that differ from the sandbox's, and that the
// daemon enforces.
func (in *instance) limits(l belljar.Limits) belljar.Limits {
	var out belljar.Limits
	have := in.plan.Spec.Limits
	if l.CPU != have.CPU {
		out.CPU = l.CPU
	}
	if l.CPUTime != have.CPUTime {
		out.CPUTime = l.CPUTime
	}
	if l.Memory != have.Memory {
		out.Memory = l.Memory
	}
	if l.OpenFiles != have.OpenFiles {
		out.OpenFiles = l.OpenFiles
	}
	if l.FileSize != have.FileSize {
		out.FileSize = l.FileSize
	}
	if l.Core != have.Core {
		out.Core = l.Core
	}
	if l.Pids != have.Pids {
		out.Pids = l.Pids
	}
	return out
}

// Start implements [belljar.Instance].
func (in *instance) Start(ctx context.Context, p *belljar.Process, std belljar.Stdio) (belljar.Task, error) {
	if len(std.Extra) > 0 {
		return nil, &belljar.Error{Code: belljar.CodeUnsupported, Op: "exec extra files", Message: "descriptors are passed on by backends on this host only", Recoverable: true}
	}
	cmd := &v1.Command{Args: wire.Texts(p.Args), Dir: wire.Text(p.Dir), User: p.User, Timeout: wire.Duration(p.Timeout), StdinOpen: true, Env: map[string]string{}}
	for _, kv := range p.Env {
		k, v, _ := strings.Cut(kv, "=")
		cmd.Env[wire.Text(k)] = wire.Text(v)
	}
	if l := in.limits(p.Limits); l != (belljar.Limits{}) {
		var err error
		if cmd.Limits, err = wire.Struct(l); err != nil {
			return nil, err
		}
	}
	if p.TTY {
		in.mu.Lock()
		cmd.Tty = in.ttys[std.Stdin]
		delete(in.ttys, std.Stdin)
		in.mu.Unlock()
	}
	resp, err := in.b.Executions.Start(ctx, &v1.StartRequest{Sandbox: in.id, Command: cmd, Id: p.ID, HoldOutput: true})
	if err != nil {
		if ctx.Err() != nil {
			go in.abandon(context.WithoutCancel(ctx), p.ID)
		}
		return nil, Error("exec", err)
	}
	t := &task{in: in, id: resp.Execution.GetId(), started: time.Now(), done: make(chan struct{}), stdin: std.Stdin}
	out := [2]*os.File{std.Stdout, std.Stderr}
	if p.TTY {
		out[1] = nil // one descriptor
	}
	ctx, t.cancel = context.WithCancel(context.WithoutCancel(ctx))
	go t.input(ctx)
	go t.run(ctx, out)
	return t, nil
}

// abandon ends an execution that may have been started for a caller who is gone.
func (in *instance) abandon(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_, _ = in.b.Executions.Signal(ctx, &v1.SignalRequest{Sandbox: in.id, Execution: id, Signal: "KILL", Tree: true}) // there may be none
}

// task is an execution on the daemon.
type task struct {
	in      *instance
	id      string
	started time.Time
	stdin   *os.File
	cancel  context.CancelFunc
	done    chan struct{}
	exit    belljar.Exit // once done is closed
	err     error
	hit     atomic.Bool // its tree was sent a signal from here
	ending  sync.Once   // done is closed
	asking  sync.Once   // ask runs
}

// run follows the output until there is a result.
func (t *task) run(ctx context.Context, out [2]*os.File) {
	defer t.cancel()
	defer func() {
		for _, f := range out {
			if f != nil {
				_ = f.Close()
			}
		}
		_ = t.stdin.Close() // also ends what reads it
	}()
	var at [2]int64
	res, err := t.follow(ctx, out, &at)
	t.end(res, err)
}

func (t *task) end(res *belljar.Result, err error) {
	t.ending.Do(func() {
		t.exit, t.err = t.judge(res, err)
		close(t.done)
	})
}

// ask waits for the result aside from the output, which nobody on this side may
// be reading any more.
func (t *task) ask() {
	t.asking.Do(func() {
		ctx, cancel := context.WithCancel(context.Background())
		go func() {
			defer cancel()
			for {
				resp, err := t.in.b.Executions.Wait(ctx, &v1.WaitRequest{Sandbox: t.in.id, Execution: t.id, OmitOutput: true})
				if err != nil {
					return // whoever follows the output finds out
				}
				if r := resp.Execution.GetResult(); r != nil {
					t.end(wire.FromResult(r), nil)
					return
				}
			}
		}()
		go func() {
			<-t.done
			cancel()
		}()
	})
}

// skew is how much later a program may have been started than Start returned.
const skew = 5 * time.Millisecond

// patience is how long a write of output may block before the result is asked
// for aside from it.
const patience = 100 * time.Millisecond

// follow copies output, across broken connections, and returns the result.
func (t *task) follow(ctx context.Context, out [2]*os.File, at *[2]int64) (*belljar.Result, error) {
	var silent time.Time
	for {
		res, err := t.stream(ctx, out, at, &silent)
		if res != nil {
			return res, nil
		}
		err = Error("exec", err)
		if !errors.Is(err, belljar.ErrUnavailable) {
			return nil, err
		}
		if silent.IsZero() {
			silent = time.Now()
		}
		if time.Since(silent) > t.in.b.cfg.Patience {
			return nil, err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// stream is one connection's part of that.
func (t *task) stream(ctx context.Context, out [2]*os.File, at *[2]int64, silent *time.Time) (*belljar.Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := t.in.b.streams.executions.Stream(ctx, &v1.StreamRequest{
		Sandbox: t.in.id, Execution: t.id, StdoutOffset: at[0], StderrOffset: at[1], OmitOutput: true,
	})
	if err != nil {
		return nil, err
	}
	for {
		m, err := s.Receive()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = &belljar.Error{Code: belljar.CodeUnavailable, Op: "exec", Message: "the stream ended without a result"}
			}
			return nil, err
		}
		*silent = time.Time{}
		switch e := m.Event.(type) {
		case *v1.StreamResponse_Chunk:
			i := int(e.Chunk.Stream) - 1
			if i < 0 || i > 1 || e.Chunk.Offset != at[i] {
				return nil, &belljar.Error{Code: belljar.CodeInternal, Op: "exec", Message: "the daemon sent output out of order"}
			}
			if out[i] != nil {
				slow := time.AfterFunc(patience, t.ask)
				_, err := out[i].Write(e.Chunk.Data)
				slow.Stop()
				if err != nil {
					_ = out[i].Close()
					out[i] = nil // nobody wants it any more
				}
			}
			at[i] += int64(len(e.Chunk.Data))
		case *v1.StreamResponse_Gap:
			if i := int(e.Gap.Stream) - 1; i >= 0 && i <= 1 {
				at[i] += e.Gap.Bytes
			}
		case *v1.StreamResponse_Result:
			return wire.FromResult(e.Result), nil
		}
	}
}

// judge turns a result back into what a backend saw.
func (t *task) judge(res *belljar.Result, err error) (belljar.Exit, error) {
	now := time.Now()
	x := belljar.Exit{Code: -1, StartedAt: t.started, ExitedAt: now, ReapedAt: now, Report: t.in.report}
	if err != nil {
		return x, err
	}
	// The daemon's clock may be another: only how long things took is taken from it.
	x.ExitedAt = t.started.Add(time.Duration(res.Timings.RunUs) * time.Microsecond)
	if t.hit.Load() {
		// Which was first can be told no closer than the calls took.
		if x.ExitedAt = x.ExitedAt.Add(skew); res.Cause == belljar.CauseSignal {
			x.ExitedAt = now
		}
	}
	x.ReapedAt = x.ExitedAt.Add(time.Duration(res.Timings.ReapUs) * time.Microsecond)
	x.Usage, x.Report = res.Usage, res.Confinement
	switch res.Cause {
	case belljar.CauseExit:
		x.Code = res.ExitCode
	case belljar.CauseSignal, belljar.CausePolicy:
		x.Signal = syscall.Signal(res.ExitCode - 128)
	case belljar.CauseTimeout:
		x.TimedOut = true
	case belljar.CauseCPU:
		x.CPUSpent = true
	case belljar.CauseMemory:
		x.OOM = true
	case belljar.CausePids:
		x.Code, x.PidsHit = 1, true
	case belljar.CauseDisk:
		x.Code, x.DiskFull = 1, true
	default:
		if res.Error != nil && res.Error.Code == belljar.CodeExecFailed {
			x.ExecErr = res.Error
			return x, nil
		}
		if res.Error == nil {
			return x, fmt.Errorf("the execution ended as %s", res.Cause)
		}
		return x, res.Error
	}
	return x, nil
}

// input copies standard input, each byte once whatever happens to connections.
func (t *task) input(ctx context.Context) {
	buf := make([]byte, 32<<10)
	var off int64
	for {
		n, rerr := t.stdin.Read(buf)
		for sent := 0; sent < n || rerr != nil; {
			resp, err := t.in.b.Executions.WriteStdin(ctx, &v1.WriteStdinRequest{
				Sandbox: t.in.id, Execution: t.id, Offset: off, Data: buf[sent:n], Eof: rerr != nil,
			})
			if err != nil {
				if errors.Is(Error("stdin", err), belljar.ErrUnavailable) && ctx.Err() == nil {
					select {
					case <-time.After(50 * time.Millisecond):
						continue
					case <-ctx.Done():
					}
				}
				// The program does not read any more: who writes has to notice.
				_ = t.stdin.Close()
				return
			}
			sent += int(resp.Offset - off)
			off = resp.Offset
			if rerr != nil {
				return
			}
		}
	}
}

// Wait implements [belljar.Task].
func (t *task) Wait(ctx context.Context) (belljar.Exit, error) {
	select {
	case <-t.done:
		return t.exit, t.err
	case <-ctx.Done():
		return belljar.Exit{}, ctx.Err()
	}
}

func (t *task) send(ctx context.Context, sig syscall.Signal, tree bool) error {
	if tree {
		t.hit.Store(true)
	}
	_, err := t.in.b.Executions.Signal(ctx, &v1.SignalRequest{Sandbox: t.in.id, Execution: t.id, Signal: fmt.Sprint(int(sig)), Tree: tree})
	if err = Error("signal", err); errors.Is(err, belljar.ErrConflict) || errors.Is(err, belljar.ErrNotFound) || errors.Is(err, belljar.ErrDestroyed) {
		return nil // it has ended
	}
	return err
}

// Signal implements [belljar.Task].
func (t *task) Signal(ctx context.Context, sig syscall.Signal) error { return t.send(ctx, sig, false) }

// SignalTree implements [belljar.Task].
func (t *task) SignalTree(ctx context.Context, sig syscall.Signal) error {
	return t.send(ctx, sig, true)
}

// Kill implements [belljar.Task].
func (t *task) Kill(ctx context.Context) error { return t.send(ctx, syscall.SIGKILL, true) }

// Resize implements [belljar.Resizer].
func (t *task) Resize(rows, cols uint16) error {
	_, err := t.in.b.Executions.Resize(context.Background(), &v1.ResizeRequest{Sandbox: t.in.id, Execution: t.id, Tty: &v1.TTY{Rows: uint32(rows), Cols: uint32(cols)}})
	return Error("resize", err)
}
