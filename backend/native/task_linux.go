package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"belljar"
	"belljar/backend/native/keeper"
	"belljar/internal/linux/cgroup"

	"golang.org/x/sys/unix"
)

// task is one execution.
type task struct {
	in     *instance
	id     uint64
	set    *cgroup.Set
	report *belljar.Report
	start  time.Time
	budget time.Duration // CPU time, 0 = none
	cores  float64       // how fast it can be spent

	done   chan struct{} // closed when exited, fail or lost is set
	exited keeper.Exited
	fail   *StepError
	lost   bool

	kept    bool // the keeper holds its end until it is taken
	noStdin bool
	adopted bool // begun under another supervisor

	spent atomic.Bool // the CPU budget ended it
	oom   atomic.Bool // a memory limit ended it

	mu    sync.Mutex // guards timer and given
	timer *time.Timer
	given bool // the set was given back: another execution may be in it

	once   sync.Once // makes exit and untold
	exit   belljar.Exit
	untold error // why nobody knows what ended it
}

// abort gives back what a task that was never started holds.
func (t *task) abort(err error) error {
	t.forget()
	if t.set != nil {
		// The keeper was told of no process in it; a spawner may wait there.
		if rerr := t.in.group.ReleaseSeen(t.set); rerr != nil {
			err = errors.Join(err, rerr)
		}
	}
	return err
}

// forget removes what was saved for a later supervisor.
func (t *task) forget() {
	if t.kept {
		_ = os.Remove(filepath.Join(t.in.plan.StateDir, taskFile(t.id)))
	}
}

// Wait returns once the whole tree is gone.
func (t *task) Wait(ctx context.Context) (belljar.Exit, error) {
	select {
	case <-t.done:
	default:
		select {
		case <-t.done:
		case <-ctx.Done():
			return belljar.Exit{}, ctx.Err()
		}
	}
	t.once.Do(t.collect)
	if t.untold != nil {
		return t.exit, fmt.Errorf("what ended the execution: %w", t.untold)
	}
	if t.lost {
		t.in.mu.Lock()
		defer t.in.mu.Unlock()
		return t.exit, t.in.goneErr()
	}
	return t.exit, nil
}

// Settle implements [belljar.Settler]: the keeper may forget the end.
func (t *task) Settle() {
	if t.kept && !t.lost {
		t.forget()
		_ = t.in.conn.Send(keeper.NewMsg(keeper.MRelease, 0).U64(t.id).U32(0, 0))
	}
}

// collect reads what the kernel counted and gives the set back.
func (t *task) collect() {
	t.mu.Lock()
	if t.timer != nil {
		t.timer.Stop()
	}
	t.mu.Unlock()
	x := &t.exited
	e := &t.exit
	e.Code = -1
	e.StartedAt, e.ExitedAt, e.ReapedAt = t.in.clock.at(x.Started), t.in.clock.at(x.Exited), t.in.clock.at(x.Reaped)
	e.Report = *t.report
	if t.fail != nil {
		e.ExecErr = execError(t.fail.Step, t.fail.Errno)
		e.StartedAt = t.start
	}
	if t.lost {
		e.StartedAt = t.start
		return // a later supervisor may ask for it
	}
	ws := syscall.WaitStatus(x.Status)
	switch {
	case x.Step != 0:
		e.ExecErr = execError(x.Step, unix.Errno(x.Errno))
	case t.fail != nil:
	case ws.Exited():
		e.Code = ws.ExitStatus()
	case ws.Signaled():
		e.Signal = ws.Signal()
	}
	e.TimedOut = x.Flags&keeper.ExfTimeout != 0
	e.CPUSpent = t.spent.Load()
	if t.set != nil {
		if x.Flags&keeper.ExfBurned != 0 {
			t.set.MarkKilled()
		}
		if u, err := t.set.Usage(); err == nil {
			e.Usage = usageOf(u)
			if n := e.Usage.PeakPids; n != nil {
				*n -= t.in.ownPids()
			}
		}
		killed, err := t.set.OOMKilled()
		e.OOM = killed || t.oom.Load()
		if err != nil && !e.OOM && e.Signal == syscall.SIGKILL {
			// It may have been the memory limit: neither that nor the program's own signal can be said.
			t.untold = err
		}
		if e.Code != 0 {
			e.PidsHit, _ = t.set.PidsHit()
		}
	} else if t.fail == nil {
		user, system := float64(x.UTime)/1e3, float64(x.STime)/1e3
		cpu := user + system
		e.Usage = belljar.Usage{CPUTimeMs: &cpu, UserMs: &user, SystemMs: &system}
	}
	if e.Code != 0 && e.ExecErr == nil {
		e.DiskFull = t.in.diskFull()
	}
	if x.Flags&keeper.ExfStuck != 0 {
		e.Unkillable = 1
	}
	if t.set != nil {
		t.mu.Lock()
		t.given = true
		t.mu.Unlock()
		release := t.in.group.ReleaseSeen // the keeper has seen the end of the tree
		if x.Flags&keeper.ExfStuck != 0 {
			release = t.in.group.Release
		} else if t.set.Renewed() || t.adopted { // a spawner of the dead supervisor's waits in it
			_ = t.set.Kill()
			_, _ = t.set.WaitEmpty(time.Second) // Release says what came of it
			release = t.in.group.Release
		}
		if err := release(t.set); err != nil {
			// Something in it is still there: the set stays out of use until the sandbox ends.
			e.Unkillable = max(e.Unkillable, 1)
		}
	}
}

// ownPids is how many processes of ours are in an execution's pids group, which are not
// the caller's: the spawner, or the first process of a pid namespace of its own. They are
// in no v1 group.
func (in *instance) ownPids() int64 {
	if in.group.Kind() == cgroup.V2 {
		return 1
	}
	return 0
}

// execError explains why a program was never executed.
func execError(step keeper.Step, errno unix.Errno) *belljar.Error {
	e := &belljar.Error{
		Code: belljar.CodeExecFailed, Op: "exec: " + step.String(), Message: errno.Error(), Err: errno, Recoverable: true,
	}
	switch {
	case step == keeper.StepExec && errno == unix.ENOENT:
		e.Message, e.Hint = "no such program inside the sandbox", "programs come from /usr of the host, or from the image; mount others with mounts"
	case step == keeper.StepExec && errno == unix.EACCES:
		e.Message, e.Hint = "not executable", "chmod +x, and a path that the sandbox's user can reach"
	case step == keeper.StepExec && errno == unix.ENOEXEC:
		e.Message, e.Hint = "not a program of this machine", "scripts need a #! line"
	case step == keeper.StepDir:
		e.Message, e.Hint = "working directory: "+errno.Error(), "dir is resolved inside the sandbox, as its user, and must be reachable from /"
	case step == keeper.StepClone && errno == unix.EAGAIN:
		e.Hint = "limits.pids is used up by other executions of the sandbox"
	}
	return e
}

// diskFull reports whether the writable superblock has no block or inode left.
func (in *instance) diskFull() bool {
	in.fdMu.RLock()
	defer in.fdMu.RUnlock()
	var st unix.Statfs_t
	if in.rwfd < 0 || unix.Fstatfs(in.rwfd, &st) != nil {
		return false
	}
	// On a disk the last blocks may go to the file system's own tables.
	left := st.Bavail * uint64(st.Bsize)
	return left < 64<<10 && left < st.Blocks*uint64(st.Bsize)/8 || st.Bavail == 0 || st.Ffree == 0
}

func (t *task) send(typ keeper.Type, sig syscall.Signal, tree int32) error {
	select {
	case <-t.done:
		return nil
	default:
	}
	m := keeper.NewMsg(typ, 0).U64(t.id).U32(uint32(sig), uint32(tree))
	if err := t.in.conn.Send(m); err != nil {
		select {
		case <-t.done:
			return nil
		case <-t.in.gone:
			return nil
		default:
		}
		return fmt.Errorf("keeper: %w", err)
	}
	return nil
}

// Kill ends the whole tree.
func (t *task) Kill(context.Context) error { return t.send(keeper.MKill, 0, 0) }

// Signal sends to the main process.
func (t *task) Signal(_ context.Context, sig syscall.Signal) error {
	if sig < 1 || sig > 64 {
		return &belljar.Error{Code: belljar.CodeInvalidSpec, Op: "signal", Message: fmt.Sprintf("no signal %d", int(sig)), Recoverable: true}
	}
	return t.send(keeper.MSignal, sig, 0)
}

// SignalTree sends to every process of the tree.
func (t *task) SignalTree(ctx context.Context, sig syscall.Signal) error {
	if t.set == nil || t.in.fresh {
		return t.send(keeper.MSignal, sig, 1)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.given {
		return nil
	}
	_, err := t.set.SignalTree(sig)
	return err
}

// checkOOM runs when a v1 memory limit above the execution was hit: that of this
// execution means the end of all of it.
func (t *task) checkOOM() {
	if t.set == nil {
		return
	}
	if mine, err := t.set.OOM(); err == nil && mine {
		t.oom.Store(true)
		_ = t.Kill(context.Background())
	}
}

// armCPU sets a timer to the earliest instant at which the budget could be spent.
func (t *task) armCPU() {
	if t.budget <= 0 || t.set == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timer = time.AfterFunc(time.Duration(float64(t.budget)/t.cores), t.checkCPU)
}

func (t *task) checkCPU() {
	select {
	case <-t.done:
		return
	default:
	}
	used, err := t.set.CPU()
	left := t.budget - used
	if err != nil || left <= 0 {
		// A counter that cannot be read is a budget that cannot be kept.
		t.spent.Store(true)
		_ = t.Kill(context.Background())
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	// Not shorter than a millisecond: that is what a tick of accounting is worth.
	t.timer.Reset(max(time.Duration(float64(left)/t.cores), time.Millisecond))
}
