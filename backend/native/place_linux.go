package native

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"belljar"
	"belljar/internal/linux/cgroup"

	"golang.org/x/sys/unix"
)

// endAlone is how long Close waits for processes that a signal is about to end.
const endAlone = 5 * time.Millisecond

// placement is the group of a process that was moved out of its execution's.
type placement struct {
	in *instance

	mu   sync.RWMutex // held for reading while set is in use
	set  *cgroup.Set  // nil once it was given back
	last belljar.Usage
	oom  bool
}

// Place moves a process of the sandbox into a group of its own. Its number is taken
// from the pidfd and means this process for as long as the pidfd's process lives,
// which is looked at once more after the move.
func (in *instance) Place(_ context.Context, pidfd *os.File, l belljar.Limits) (belljar.Placement, error) {
	if in.group == nil {
		return nil, &belljar.Error{Code: belljar.CodeUnsupported, Op: "place", Message: "processes are placed by control groups", Hint: cgroupRemedy, Recoverable: true}
	}
	pid, err := single(pidfd)
	if err != nil {
		return nil, &belljar.Error{Code: belljar.CodeConflict, Op: "place", Message: err.Error(), Err: err, Recoverable: true}
	}
	if ours, err := in.group.Has(pid); err != nil || !ours {
		return nil, &belljar.Error{Code: belljar.CodeNotFound, Op: "place", Message: "the process is not of this sandbox", Err: err, Recoverable: true}
	}
	own := cgroup.Limits{Memory: int64(l.Memory), Pids: l.Pids}
	if l.CPU != in.plan.Spec.Limits.CPU {
		own.CPU = l.CPU
	}
	set, err := in.group.AcquireMoved(own)
	var u *cgroup.UnsupportedError
	if errors.As(err, &u) {
		return nil, unkept("place", err)
	}
	if err != nil {
		return nil, err
	}
	p := &placement{in: in, set: set}
	if err := set.Move(pid); err != nil {
		return nil, errors.Join(err, p.Close(context.Background()))
	}
	if now, err := single(pidfd); err != nil || now != pid {
		return nil, errors.Join(&belljar.Error{Code: belljar.CodeConflict, Op: "place", Message: "the process ended, or started a thread", Err: err, Recoverable: true}, p.Close(context.Background()))
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.placed == nil {
		in.placed = map[*placement]struct{}{}
	}
	in.placed[p] = struct{}{}
	return p, nil
}

// single returns the number of a pidfd's process, which must be alive and have one
// thread: v1 moves threads, not processes.
func single(pidfd *os.File) (int, error) {
	rc, err := pidfd.SyscallConn()
	if err != nil {
		return 0, err
	}
	pid := -1
	var perr error
	if err := rc.Control(func(fd uintptr) {
		var b []byte
		if b, perr = os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(int(fd))); perr == nil {
			pid, perr = number(b, "Pid:")
		}
	}); err != nil {
		return 0, err
	}
	if perr != nil {
		return 0, perr
	}
	if pid <= 0 {
		return 0, unix.ESRCH
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	threads, err := number(b, "Threads:")
	if err != nil {
		return 0, err
	}
	if threads != 1 {
		return 0, fmt.Errorf("the process has %d threads", threads)
	}
	return pid, nil
}

// number returns a number from a file of lines with keys.
func number(b []byte, key string) (int, error) {
	for line := range bytes.Lines(b) {
		if rest, ok := bytes.CutPrefix(line, []byte(key)); ok {
			return strconv.Atoi(string(bytes.TrimSpace(rest)))
		}
	}
	return 0, fmt.Errorf("no %s", key)
}

// Usage is what the group's processes used so far.
func (p *placement) Usage(context.Context) (belljar.Usage, error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.set == nil {
		return p.last, nil
	}
	u, err := p.set.Usage()
	if err != nil {
		return belljar.Usage{}, err
	}
	return usageOf(u), nil
}

// OOM reports whether the memory limit has killed one of the processes.
func (p *placement) OOM() (bool, error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.set == nil {
		return p.oom, nil
	}
	return p.set.OOMKilled()
}

// Kill ends every process in the group.
func (p *placement) Kill(context.Context) error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.set == nil {
		return nil
	}
	return p.set.Kill()
}

// Close waits for a moment, kills what is left, and gives the group back.
func (p *placement) Close(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.set == nil {
		return nil
	}
	if u, err := p.set.Usage(); err == nil {
		p.last = usageOf(u)
	}
	p.oom, _ = p.set.OOMKilled() // a group that cannot be read did not tell
	var errs []error
	// A group whose processes were ended one by one need not be made anew.
	empty, err := p.set.WaitEmpty(endAlone)
	if err == nil && !empty {
		errs = append(errs, p.set.Kill())
		empty, err = p.set.WaitEmpty(5 * time.Second)
	}
	if err == nil && !empty {
		err = &belljar.Error{Code: belljar.CodeInternal, Op: "place", Message: "processes of the group did not end within 5 s"}
	}
	errs = append(errs, err)
	if err == nil {
		errs = append(errs, p.in.group.Release(p.set))
	}
	p.set = nil // what could not be given back goes with the sandbox
	p.in.mu.Lock()
	delete(p.in.placed, p)
	p.in.mu.Unlock()
	return errors.Join(errs...)
}

// unplace takes the groups from their holders when the sandbox has ended: they are
// about to go.
func (in *instance) unplace() error {
	in.mu.Lock()
	var all []*placement
	for p := range in.placed {
		all = append(all, p)
	}
	in.mu.Unlock()
	var errs []error
	for _, p := range all {
		errs = append(errs, p.Close(context.Background()))
	}
	return errors.Join(errs...)
}

// Usage is what a running execution used so far.
func (t *task) Usage(context.Context) (belljar.Usage, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.set == nil || t.given {
		return belljar.Usage{}, &belljar.Error{Code: belljar.CodeUnsupported, Op: "usage", Message: "usage of a running execution is counted by control groups", Hint: cgroupRemedy, Recoverable: true}
	}
	u, err := t.set.Usage()
	if err != nil {
		return belljar.Usage{}, err
	}
	return usageOf(u), nil
}
