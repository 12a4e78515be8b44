package fake

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"belljar"
)

const sigKill = syscall.Signal(9)

// Program is what an execution runs: it returns the exit status. It must return
// soon after ctx ends, which is when the process is killed.
type Program func(ctx context.Context, p *Proc) int

// Proc is a running program's view of itself.
type Proc struct {
	Args []string
	Env  []string
	Dir  string
	User string
	TTY  bool

	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Files          belljar.Files

	t     *task
	child bool
}

// killedPanic unwinds a program that ends itself by a signal.
type killedPanic struct{}

// Getenv returns a variable of the environment, or "".
func (p *Proc) Getenv(key string) string {
	for _, kv := range p.Env {
		if k, v, _ := strings.Cut(kv, "="); k == key {
			return v
		}
	}
	return ""
}

// Notify makes signals arrive in the channel instead of ending the process. The
// uncatchable ones still end it.
func (p *Proc) Notify(sigs ...syscall.Signal) <-chan syscall.Signal {
	c := make(chan syscall.Signal, 16)
	p.t.mu.Lock()
	defer p.t.mu.Unlock()
	for _, s := range sigs {
		p.t.caught[s] = append(p.t.caught[s], c)
	}
	return c
}

// Die ends the whole tree by a signal, as a crash would. It does not return.
func (p *Proc) Die(sig syscall.Signal) {
	p.t.kill(sig)
	panic(killedPanic{})
}

// Spawn starts a child process, which lives no longer than the tree. It fails with EAGAIN
// when the sandbox has no process left.
func (p *Proc) Spawn(f Program) error {
	i := p.t.i
	i.mu.Lock()
	full := i.procs >= i.plan.Spec.Limits.Pids
	if !full {
		i.procs++
	}
	i.mu.Unlock()
	if full {
		p.t.report(func(e *belljar.Exit) { e.PidsHit = true })
		return syscall.EAGAIN
	}
	c := *p
	c.child = true
	p.t.children.Go(func() {
		defer func() {
			i.mu.Lock()
			i.procs--
			i.mu.Unlock()
		}()
		run(p.t.ctx, f, &c)
	})
	return nil
}

// Burn uses CPU time, for the accounts only; the budget's end kills the tree.
func (p *Proc) Burn(d time.Duration) {
	i := p.t.i
	i.mu.Lock()
	i.cpu += d
	i.mu.Unlock()
	p.t.mu.Lock()
	p.t.cpu += d
	spent := p.t.p.Limits.CPUTime > 0 && p.t.cpu > p.t.p.Limits.CPUTime
	if spent {
		p.t.exit.CPUSpent = true
	}
	p.t.mu.Unlock()
	if spent {
		p.Die(sigKill)
	}
}

// Alloc uses memory, for the accounts only; the limit's end kills the tree.
func (p *Proc) Alloc(n int64) {
	p.t.mu.Lock()
	p.t.mem += n
	oom := p.t.p.Limits.Memory > 0 && p.t.mem > int64(p.t.p.Limits.Memory)
	if oom {
		p.t.exit.OOM = true
	}
	p.t.mu.Unlock()
	if oom {
		p.Die(sigKill)
	}
}

// Report changes what the trusted side will say of the execution's end, for
// causes that cannot be brought about in memory.
func (p *Proc) Report(f func(*belljar.Exit)) { p.t.report(f) }

// Sleep waits; it reports whether the time passed before the process was killed.
func (p *Proc) Sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		p.t.i.awaitThaw(ctx)
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// run calls a program and makes its status of what it returns.
func run(ctx context.Context, f Program, p *Proc) (code int) {
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(killedPanic); !ok {
				panic(r)
			}
		}
	}()
	return f(ctx, p)
}

// task implements [belljar.Task].
type task struct {
	i        *instance
	p        *belljar.Process
	ctx      context.Context // ends with the tree: the programs' processes
	cancel   context.CancelFunc
	children sync.WaitGroup
	done     chan struct{}
	stdio    [3]*os.File

	mu     sync.Mutex
	exit   belljar.Exit
	over   bool // the main process has ended
	caught map[syscall.Signal][]chan syscall.Signal
	cpu    time.Duration
	mem    int64
	keep   [3]*os.File // duplicates of the supervisor's ends; i.mu guards them
}

// Start implements [belljar.Instance].
func (i *instance) Start(ctx context.Context, p *belljar.Process, std belljar.Stdio) (belljar.Task, error) {
	if len(std.Extra) > 0 {
		return nil, &belljar.Error{Code: belljar.CodeUnsupported, Op: "exec extra files", Message: "programs in memory have no descriptors", Recoverable: true}
	}
	ends := [3]*os.File{std.Stdin, std.Stdout, std.Stderr}
	closeAll := func(fs [3]*os.File) {
		for _, f := range fs {
			if f != nil {
				_ = f.Close()
			}
		}
	}
	err := ctx.Err()
	if err == nil {
		err = i.b.fault("start")
	}
	if err != nil {
		closeAll(ends)
		return nil, err
	}
	t := &task{i: i, p: p, done: make(chan struct{}), caught: map[syscall.Signal][]chan syscall.Signal{}}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.exit = belljar.Exit{StartedAt: time.Now(), Report: i.Report()}
	for n, f := range ends {
		if t.stdio[n], err = interruptible(f); err != nil {
			closeAll(ends)
			closeAll(t.stdio)
			t.cancel()
			return nil, err
		}
	}
	closeAll(ends)
	if i.plan.Persist {
		for n, f := range []*os.File{std.KeepStdin, std.KeepStdout, std.KeepStderr} {
			if f == nil {
				continue
			}
			if t.keep[n], err = duplicate(f); err != nil {
				closeAll(t.stdio)
				closeAll(t.keep)
				t.cancel()
				return nil, err
			}
		}
	}
	i.mu.Lock()
	if i.closed || i.broken {
		i.mu.Unlock()
		closeAll(t.stdio)
		closeAll(t.keep)
		t.cancel()
		return nil, errors.New("the sandbox is dead")
	}
	i.tasks[p.ID] = t
	i.procs++
	i.mu.Unlock()
	go t.main(i.b.program(p.Args[0]))
	return t, nil
}

func (t *task) main(f Program) {
	code := -1
	var timer *time.Timer
	dir, dirErr := files{t.i}.Stat(t.p.Dir)
	switch {
	case dirErr != nil || !dir.IsDir():
		t.report(func(e *belljar.Exit) {
			e.ExecErr = &belljar.Error{Code: belljar.CodeExecFailed, Op: "exec: chdir", Message: t.p.Dir + ": not a directory", Recoverable: true, Err: dirErr}
		})
	case f == nil:
		t.report(func(e *belljar.Exit) {
			e.ExecErr = &belljar.Error{
				Code: belljar.CodeExecFailed, Op: "exec: execve", Message: fmt.Sprintf("%s: %v", t.p.Args[0], syscall.ENOENT),
				Recoverable: true, Err: syscall.ENOENT,
			}
		})
	default:
		if t.p.Timeout > 0 {
			timer = time.AfterFunc(t.p.Timeout, func() {
				t.mu.Lock()
				if !t.over && t.exit.Signal == 0 {
					t.exit.TimedOut = true
				}
				t.mu.Unlock()
				t.kill(sigKill)
			})
		}
		code = run(t.ctx, f, &Proc{
			Args: t.p.Args, Env: t.p.Env, Dir: t.p.Dir, User: t.p.User, TTY: t.p.TTY,
			Stdin: t.stdio[0], Stdout: frozen{t, t.stdio[1]}, Stderr: frozen{t, t.stdio[2]}, Files: files{t.i}, t: t,
		})
	}
	t.mu.Lock()
	t.over = true
	t.exit.ExitedAt = time.Now()
	t.exit.Code = code
	if t.exit.Signal != 0 || code < 0 {
		t.exit.Code = -1
	}
	t.mu.Unlock()
	if timer != nil {
		timer.Stop()
	}
	t.cancel() // the end of the main process is the end of the tree
	t.closeStdio()
	t.children.Wait()
	t.mu.Lock()
	t.exit.ReapedAt = time.Now()
	t.exit.Usage.CPUTimeMs = new(float64(t.cpu) / float64(time.Millisecond))
	if t.mem > 0 {
		t.exit.Usage.PeakMemoryBytes = new(t.mem)
	}
	t.mu.Unlock()
	t.i.mu.Lock()
	t.i.procs--
	if !t.i.plan.Persist { // else until somebody has collected it
		delete(t.i.tasks, t.p.ID)
	}
	t.i.mu.Unlock()
	close(t.done)
}

func (t *task) closeStdio() {
	for _, f := range t.stdio {
		_ = f.Close()
	}
}

func (t *task) report(f func(*belljar.Exit)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f(&t.exit)
}

// kill ends the tree by a signal.
func (t *task) kill(sig syscall.Signal) {
	t.mu.Lock()
	if !t.over && t.exit.Signal == 0 {
		t.exit.Signal = sig
	}
	t.mu.Unlock()
	t.cancel()
	t.closeStdio()
}

// frozen is an output that stands still while the sandbox is paused.
type frozen struct {
	t *task
	f *os.File
}

func (w frozen) Write(b []byte) (int, error) {
	w.t.i.awaitThaw(w.t.ctx)
	return w.f.Write(b)
}

// Wait implements [belljar.Task].
func (t *task) Wait(ctx context.Context) (belljar.Exit, error) {
	t.i.mu.Lock()
	left := t.i.left()
	t.i.mu.Unlock()
	select {
	case <-t.done:
	case <-left:
		return belljar.Exit{Code: -1}, errors.New("the supervisor let go of the sandbox")
	case <-ctx.Done():
		return belljar.Exit{}, ctx.Err()
	}
	if err := t.i.b.fault("wait"); err != nil {
		return belljar.Exit{Code: -1}, err
	}
	t.i.mu.Lock()
	delete(t.i.tasks, t.p.ID)
	for n, f := range t.keep {
		if f != nil {
			_ = f.Close()
			t.keep[n] = nil
		}
	}
	t.i.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.exit, nil
}

// Signal implements [belljar.Task].
func (t *task) Signal(_ context.Context, sig syscall.Signal) error {
	if err := t.i.b.fault("signal"); err != nil {
		return err
	}
	t.mu.Lock()
	over, cs := t.over, t.caught[sig]
	t.mu.Unlock()
	switch {
	case over || sig == 0:
		return nil
	case sig != sigKill && len(cs) > 0:
		for _, c := range cs {
			select {
			case c <- sig:
			default: // as a pending signal is not counted
			}
		}
		return nil
	}
	t.kill(sig)
	return nil
}

// SignalTree implements [belljar.Task].
func (t *task) SignalTree(ctx context.Context, sig syscall.Signal) error { return t.Signal(ctx, sig) }

// Kill implements [belljar.Task].
func (t *task) Kill(context.Context) error {
	if err := t.i.b.fault("kill"); err != nil {
		return err
	}
	t.kill(sigKill)
	return nil
}
