package belljar

import (
	"context"
	"fmt"
	"os"
)

// Placer is an ability of an [Instance]: it gives a process that a program of the
// sandbox forked a group of its own, with limits, counters and an end apart from
// the execution it came from.
type Placer interface {
	// Place moves the process of a pidfd. It refuses a process that is not of this
	// sandbox or has more than one thread. The pidfd stays the caller's.
	Place(ctx context.Context, pidfd *os.File, l Limits) (Placement, error)
}

// Placement is the group of a placed process and of all that it forks from then on.
// The end of the sandbox ends it.
type Placement interface {
	// Usage is what the kernel counted so far.
	Usage(ctx context.Context) (Usage, error)
	// OOM reports whether the memory limit has killed one of its processes.
	OOM() (bool, error)
	// Kill ends every process in it. It does not wait.
	Kill(ctx context.Context) error
	// Close kills what is left, waits for its end and gives the group back. Idempotent.
	Close(ctx context.Context) error
}

// Meter is an ability of a [Task]: it tells what a running execution used so far.
type Meter interface {
	Usage(ctx context.Context) (Usage, error)
}

// Place gives a process that a program of this sandbox forked a group of its own.
// Of l, CPU, Memory and Pids apply; CPUTime is the caller's to watch. Backends that
// cannot answer UNSUPPORTED.
func (s *Sandbox) Place(ctx context.Context, pidfd *os.File, l Limits) (Placement, error) {
	if err := s.check("place"); err != nil {
		return nil, err
	}
	p, ok := s.inst.(Placer)
	if !ok {
		return nil, &Error{Code: CodeUnsupported, Op: "place", Message: fmt.Sprintf("backend %s cannot place processes", s.backend.Name()), Recoverable: true}
	}
	pl, err := p.Place(ctx, pidfd, l)
	if err != nil {
		return nil, asError(CodeInternal, "place", err)
	}
	return pl, nil
}

// Usage is what the execution has used so far. After its end the result has the
// whole. Backends that cannot tell answer UNSUPPORTED.
func (c *Cmd) Usage(ctx context.Context) (Usage, error) {
	e := c.execution()
	if e == nil {
		return Usage{}, errNotStarted
	}
	e.mu.Lock()
	t, res := e.task, e.result
	e.mu.Unlock()
	if res != nil {
		return res.Usage, nil
	}
	m, ok := t.(Meter)
	if !ok {
		return Usage{}, &Error{Code: CodeUnsupported, Op: "usage", Message: fmt.Sprintf("backend %s tells usage only at the end, or the execution is queued", c.sb.backend.Name()), Recoverable: true}
	}
	u, err := m.Usage(ctx)
	if err != nil {
		return Usage{}, asError(CodeInternal, "usage", err)
	}
	return u, nil
}
