package cell

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"belljar"
)

// budget is the wall clock and the CPU time of an operation. Both are kept here; what
// the guest does about them does not matter.
type budget struct {
	s    *session
	op   *operation
	wall *time.Timer

	limit time.Duration // CPU time; 0: none
	base  time.Duration
	cores float64

	mu      sync.Mutex
	timer   *time.Timer
	stopped bool
}

// budget starts the clocks of an operation. What an operation chooses can only be
// lower than what the cell has.
func (s *session) budget(op *operation) (*budget, error) {
	l := s.c.spec.Limits
	if op.name == "open" {
		l.Timeout, l.CPUTime = 0, 0
	}
	b := &budget{s: s, op: op, limit: lower(l.CPUTime, op.cpuTime)}
	if d := lower(l.Timeout, op.timeout); d > 0 {
		b.wall = time.AfterFunc(d, func() {
			s.fail(&belljar.Error{Code: belljar.CodeTimeout, Op: "cell " + op.name, Message: "the timeout ended the cell", Limit: fmt.Sprintf("timeout %v", d)})
		})
	}
	if b.limit <= 0 {
		return b, nil
	}
	used, err := s.g.cpu()
	if err != nil {
		return b, err
	}
	b.base, b.cores = used, float64(runtime.NumCPU())
	if l.CPU > 0 {
		b.cores = min(b.cores, l.CPU)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.timer = time.AfterFunc(time.Duration(float64(b.limit)/b.cores), b.look)
	return b, nil
}

func lower(a, b time.Duration) time.Duration {
	if a <= 0 || b > 0 && b < a {
		return b
	}
	return a
}

// look runs at the earliest instant at which the budget could be spent.
func (b *budget) look() {
	used, err := b.s.g.cpu()
	left := b.limit - (used - b.base)
	if err == nil && left > 0 {
		b.mu.Lock()
		defer b.mu.Unlock()
		if !b.stopped {
			b.timer.Reset(max(time.Duration(float64(left)/b.cores), time.Millisecond))
		}
		return
	}
	b.mu.Lock()
	stopped := b.stopped
	b.mu.Unlock()
	if stopped {
		return
	}
	// A counter that cannot be read is a budget that cannot be kept.
	b.s.fail(&belljar.Error{
		Code: belljar.CodeCPU, Op: "cell " + b.op.name, Message: "the CPU budget ended the cell",
		Limit: fmt.Sprintf("cpuTime %v", b.limit), Observed: fmt.Sprint(used - b.base), Err: err,
	})
}

func (b *budget) stop() {
	if b.wall != nil {
		b.wall.Stop()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped = true
	if b.timer != nil {
		b.timer.Stop()
	}
}

// used is the CPU time since the start; nil where nobody asked for a budget.
func (b *budget) used() *float64 {
	if b.limit <= 0 {
		return nil
	}
	used, err := b.s.g.cpu()
	if err != nil {
		return nil
	}
	ms := float64((used - b.base).Microseconds()) / 1e3
	return &ms
}

// cpu returns the CPU time of a guest's whole tree so far.
func (g *guest) cpu() (time.Duration, error) {
	u, err := g.usage(context.Background())
	if err != nil {
		return 0, err
	}
	if u.CPUTimeMs == nil {
		return 0, &belljar.Error{Code: belljar.CodeUnsupported, Op: "cell limits.cpuTime", Message: "CPU time is not counted here", Recoverable: true}
	}
	return time.Duration(*u.CPUTimeMs * float64(time.Millisecond)), nil
}
