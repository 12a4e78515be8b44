package native

import (
	"context"
	"errors"

	"belljar"
	"belljar/internal/linux/cgroup"

	"golang.org/x/sys/unix"
)

// limits are those of the sandbox, as they were changed last.
func (in *instance) limits() *belljar.Limits {
	if l := in.changed.Load(); l != nil {
		return l
	}
	return &in.plan.Spec.Limits
}

// SetLimits implements [belljar.Limiter].
func (in *instance) SetLimits(_ context.Context, l belljar.Limits) error {
	now := in.limits()
	if in.group == nil {
		if l.CPU != now.CPU || l.Memory != now.Memory || l.Pids != now.Pids {
			return &belljar.Error{Code: belljar.CodeUnsupported, Op: "limits", Message: "limits of a living sandbox are changed by control groups", Hint: cgroupRemedy, Recoverable: true}
		}
		return nil
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	err := in.group.SetLimits(in.groupLimits(&l))
	var u *cgroup.UnsupportedError
	switch {
	case errors.As(err, &u):
		e := unkept("limits", err)
		e.Recoverable = true
		return e
	case errors.Is(err, unix.EBUSY):
		return &belljar.Error{
			Code: belljar.CodeConflict, Op: "limits.memory", Message: "more than that is in use", Err: err, Recoverable: true,
			Hint: "end executions or remove files first",
		}
	case err != nil:
		return err
	}
	in.changed.Store(&l)
	return nil
}

// groupLimits are those of the sandbox's group, which has processes of ours in it;
// in.mu is held.
func (in *instance) groupLimits(l *belljar.Limits) cgroup.Limits {
	g := cgroup.Limits{CPU: l.CPU, Memory: int64(l.Memory), Pids: l.Pids + 1}
	if in.group.Kind() == cgroup.V2 {
		each := int64(1)
		if in.fresh {
			each = 2
		}
		g.Pids += each * max(int64(len(in.sets)), 1)
	}
	return g
}
