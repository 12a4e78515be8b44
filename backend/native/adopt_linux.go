package native

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"belljar"
	"belljar/backend/native/keeper"
	"belljar/internal/linux/cgroup"

	"golang.org/x/sys/unix"
)

// state is what a later supervisor has to know beyond the plan. It is in the
// sandbox's own directory, which only its owner can enter.
type state struct {
	Tag    string                 `json:"tag"`   // of the top cgroup
	Group  string                 `json:"group"` // name below the top
	Base   uint32                 `json:"base"`
	On     map[belljar.Layer]bool `json:"on"`
	Fresh  bool                   `json:"fresh"`
	OwnPid bool                   `json:"ownPid"`
	RWDirs []string               `json:"rwdirs"`
	Report belljar.Report         `json:"report"`
}

const stateName = "native.json"

// validTag is the form that the cgroup package asks for.
func validTag(s string) bool {
	for i, c := range s {
		if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' && i > 0) {
			return false
		}
	}
	return s != "" && len(s) <= 63
}

// persistTag is the tag of a persistent sandbox's own top cgroup: derived, so that
// no record can name another's.
func persistTag(id string) string { return "p-" + strings.TrimPrefix(id, "sb-") }

func (in *instance) saveState() error {
	if in.plan.StateDir == "" {
		return nil
	}
	s := state{
		Tag: in.b.cfg.Tag, Base: in.base, On: in.on, Fresh: in.fresh, OwnPid: in.ownPid, RWDirs: in.rwdirs, Report: in.report,
	}
	if in.plan.Persist {
		s.Tag = persistTag(in.plan.ID)
	}
	if in.group != nil {
		s.Group = in.group.Name()
	}
	return writeJSON(in.plan.StateDir, stateName, s, true)
}

// writeJSON replaces a file of the state directory, whole or not at all. sync has
// it survive the host; what does not outlive the host's processes needs no more
// than to survive ours.
func writeJSON(dir, name string, v any, sync bool) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	tmp := filepath.Join(dir, "."+name+".new")
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, werr := f.Write(b)
	if sync && werr == nil {
		werr = f.Sync()
	}
	if err := errors.Join(werr, f.Close()); err != nil {
		os.Remove(tmp)
		return err
	}
	return os.Rename(tmp, filepath.Join(dir, name))
}

func readJSON(dir, name string, v any) error {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() || st.Size() > 1<<20 {
		return fmt.Errorf("%s: not a state file", name)
	}
	b, err := io.ReadAll(io.LimitReader(f, 1<<20))
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

// dial connects to the keeper that listens in a state directory.
func dial(dir string) (*keeper.Conn, error) {
	d, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(d)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/keeper.sock", d)}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("keeper.sock: %w", err)
	}
	return keeper.NewConn(fd)
}

// taskFile is the name under which a persistent execution's set is remembered.
func taskFile(id uint64) string { return fmt.Sprintf("task-%d.json", id) }

// Adopt takes back a persistent sandbox from its keeper.
func (b *Backend) Adopt(ctx context.Context, p *belljar.Plan) (belljar.Instance, []belljar.AdoptedTask, error) {
	if err := b.begin(); err != nil {
		return nil, nil, err
	}
	defer b.creating.Done()
	var s state
	if err := readJSON(p.StateDir, stateName, &s); err != nil {
		return nil, nil, fmt.Errorf("adopt %s: %w", p.ID, err)
	}
	if s.Tag != persistTag(p.ID) || len(s.RWDirs) == 0 {
		return nil, nil, fmt.Errorf("adopt %s: its state is not of a persistent sandbox", p.ID)
	}
	in := newInstance(b, p)
	in.base, in.on, in.fresh, in.ownPid, in.rwdirs, in.report = s.Base, s.On, s.Fresh, s.OwnPid, s.RWDirs, s.Report
	var rl unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &rl); err != nil {
		return nil, nil, err
	}
	in.noFile = rl.Max
	tasks, err := in.adopt(ctx, &s)
	if err != nil {
		in.closeFDs()
		if in.conn != nil {
			in.conn.Close()
		}
		if in.ownRoot != nil {
			err = errors.Join(err, in.ownRoot.Close())
		}
		return nil, nil, fmt.Errorf("adopt %s: %w", p.ID, err)
	}
	b.mu.Lock()
	b.live[in] = struct{}{}
	b.mu.Unlock()
	go in.read()
	return in, tasks, nil
}

func (in *instance) adopt(ctx context.Context, s *state) (_ []belljar.AdoptedTask, err error) {
	if in.conn, err = dial(in.plan.StateDir); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { in.conn.Close() })
	defer stop()
	// The keeper answers at once; one that was taken by another supervisor hangs up.
	wait := time.AfterFunc(5*time.Second, func() { in.conn.Close() })
	defer wait.Stop()
	if err := in.conn.Send(keeper.NewMsg(keeper.MHello, 1)); err != nil {
		return nil, fmt.Errorf("keeper: %w", err)
	}
	buf := make([]byte, 4096)
	recv := func(want keeper.Type) ([]byte, []int, error) {
		for {
			h, body, fds, err := in.conn.Recv(buf)
			if err != nil {
				return nil, nil, fmt.Errorf("keeper: %w", err)
			}
			if h.Type == want {
				return body, fds, nil
			}
			for _, fd := range fds {
				unix.Close(fd)
			}
			if h.Type != keeper.MExited && h.Type != keeper.MOOM {
				return nil, nil, keeper.ErrProtocol
			}
			// The end of an execution that is told again below.
		}
	}
	body, fds, err := recv(keeper.MState)
	if err != nil {
		return nil, err
	}
	if len(fds) != 2 {
		return nil, keeper.ErrProtocol
	}
	in.pidfd, in.rootfd = fds[0], fds[1]
	if in.ready, err = keeper.ParseReady(body); err != nil {
		return nil, err
	}
	if in.rwfd, err = in.openPath(in.rwdirs[len(in.rwdirs)-1]); err != nil {
		return nil, err
	}
	if s.Group != "" {
		if in.ownRoot, err = cgroup.Open(cgroup.Config{Parent: in.b.cfg.CgroupParent, Tag: s.Tag, Idle: -1}); err != nil {
			return nil, err
		}
		if in.group, err = in.ownRoot.Reopen(s.Group, in.plan.ID); err != nil {
			return nil, err
		}
	}
	var out []belljar.AdoptedTask
	for range in.ready.Tasks {
		body, fds, err := recv(keeper.MTask)
		if err != nil {
			return nil, err
		}
		x, err := keeper.ParseExited(body)
		if err != nil {
			return nil, err
		}
		t := in.adoptTask(&x)
		a := belljar.AdoptedTask{ID: x.Name, Task: t}
		for i, f := range []**os.File{&a.Stdin, &a.Stdout, &a.Stderr} {
			if x.Keep&(1<<i) == 0 || len(fds) == 0 {
				continue
			}
			fd := fds[0]
			fds = fds[1:]
			if i == 0 && t.noStdin {
				unix.Close(fd)
				continue
			}
			if err := unix.SetNonblock(fd, true); err != nil {
				return nil, err
			}
			*f = os.NewFile(uintptr(fd), "pipe")
		}
		out = append(out, a)
	}
	// What no execution is in any more is free again.
	return out, nil
}

// savedTask is what has to be known of a running execution.
type savedTask struct {
	Set     cgroup.SetState `json:"set"`
	HasSet  bool            `json:"hasSet"`
	Budget  time.Duration   `json:"budget,omitempty"`
	Cores   float64         `json:"cores,omitempty"`
	NoStdin bool            `json:"noStdin,omitempty"`
}

func (t *task) save() error {
	s := savedTask{Budget: t.budget, Cores: t.cores, NoStdin: t.noStdin}
	if t.set != nil {
		s.HasSet, s.Set = true, t.set.State()
	}
	return writeJSON(t.in.plan.StateDir, taskFile(t.id), s, false)
}

func (in *instance) adoptTask(x *keeper.Exited) *task {
	t := &task{in: in, id: x.ID, done: make(chan struct{}), report: &in.report, start: in.clock.at(x.Started), kept: true, adopted: true}
	if in.nextID.Load() < x.ID {
		in.nextID.Store(x.ID)
	}
	var s savedTask
	if err := readJSON(in.plan.StateDir, taskFile(x.ID), &s); err == nil {
		t.budget, t.cores, t.noStdin = s.Budget, s.Cores, s.NoStdin
		if s.HasSet && in.group != nil {
			if set, err := in.group.Adopt(s.Set); err == nil {
				t.set = set
				in.sets[set] = &setReg{index: x.Set, serial: set.Serial(), sent: true}
				for i, f := range in.free {
					if f == x.Set {
						in.free = append(in.free[:i], in.free[i+1:]...)
						break
					}
				}
			} else if in.b.cfg.Logger != nil {
				in.b.cfg.Logger.Warn("the counters of an adopted execution are lost", "id", x.Name, "err", err)
			}
		}
	}
	if x.Flags&keeper.ExfRunning == 0 {
		t.exited = *x
		close(t.done)
		return t
	}
	in.tasks[t.id] = t
	t.armCPU()
	return t
}

// Sweep removes what a dead supervisor's sandbox left: a keeper that still
// listens, and cgroups. The directory itself is the caller's.
func (b *Backend) Sweep(ctx context.Context, id, stateDir string) error {
	if c, err := dial(stateDir); err == nil {
		stop := context.AfterFunc(ctx, func() { c.Close() })
		wait := time.AfterFunc(10*time.Second, func() { c.Close() })
		_ = c.Send(keeper.NewMsg(keeper.MEnd, 0))
		buf := make([]byte, 4096)
		for {
			_, _, fds, err := c.Recv(buf)
			for _, fd := range fds {
				unix.Close(fd)
			}
			if err != nil {
				break
			}
		}
		stop()
		wait.Stop()
		c.Close()
	}
	tags := []string{persistTag(id)}
	var s state
	if err := readJSON(stateDir, stateName, &s); err == nil && validTag(s.Tag) && s.Tag != tags[0] && s.Tag != b.cfg.Tag && !strings.HasPrefix(s.Tag, "p-") {
		tags = append(tags, s.Tag)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) && b.cfg.Logger != nil {
		b.cfg.Logger.Warn("unreadable state", "id", id, "err", err)
	}
	if cgroup.Supported() != nil {
		return nil // no groups then, and none now
	}
	var errs []error
	for _, tag := range tags {
		errs = append(errs, b.sweepTag(ctx, tag, tag == tags[0]))
	}
	return errors.Join(errs...)
}

// sweepTag removes the groups below a top. Right after its supervisor was killed,
// keepers and nursery are still at it: what fails then is tried again for a while.
func (b *Backend) sweepTag(ctx context.Context, tag string, own bool) error {
	wait := 5 * time.Millisecond
	for {
		err := func() error {
			// The owner of a live top holds a lock on it, and Open refuses.
			r, err := cgroup.Open(cgroup.Config{Parent: b.cfg.CgroupParent, Tag: tag, Idle: -1})
			if err != nil {
				if !own {
					return nil // another's, and alive
				}
				return err
			}
			left, err := r.Left()
			errs := []error{err}
			for _, name := range left {
				errs = append(errs, r.Remove(name, 2*time.Second))
			}
			return errors.Join(append(errs, r.Close())...)
		}()
		if err == nil || wait > time.Second {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(wait):
			wait *= 2
		}
	}
}

// Release lets go of a persistent sandbox; its keeper waits for the next supervisor.
func (in *instance) Release(context.Context) error {
	in.detach()
	return nil
}
