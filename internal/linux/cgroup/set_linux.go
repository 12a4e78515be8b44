package cgroup

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Set is the groups of one execution, from [Group.Acquire] to [Group.Release].
// Descriptors belong to the Set and stay valid meanwhile. Between Release and the
// next Acquire they may be replaced; [Set.Serial] tells.
type Set struct {
	g     *Group
	name  string
	dir   string // below a top: "g1/s2"
	moved bool   // for processes that are moved in

	mu     sync.Mutex
	serial uint64
	held   Limits // what the files hold; CPU and Pids only where the set has such a group
	want   Limits // of the present execution
	base   counters
	burned bool // cgroup.kill was written

	// Descriptors, -1 where the arrangement has no such thing.
	leaf, kill, events int           // v2
	cpu                int           // cpu.stat, or cpuacct.usage on v1
	peak               int           // memory.max_usage_in_bytes or memory.peak
	oom                int           // memory.oom_control or memory.events
	oomEvent           int           // eventfd, v1
	pidsEvents         int           // of the set's own pids group
	own                [maxTrees]int // v1: tasks of the set's own group
	procs              []int
}

func newSet(g *Group, name string) *Set {
	s := &Set{g: g, name: name, dir: path.Join(g.name, name), leaf: -1, kill: -1, events: -1, cpu: -1, peak: -1, oom: -1, oomEvent: -1, pidsEvents: -1}
	for i := range s.own {
		s.own[i] = -1
	}
	return s
}

// Acquire gives an execution a set with the limits l of its own; zero fields mean
// that only the sandbox's apply. A cpu rate above the sandbox's becomes the
// sandbox's.
func (g *Group) Acquire(l Limits) (*Set, error) { return g.acquire(l, false) }

func (g *Group) acquire(l Limits, moved bool) (*Set, error) {
	if err := g.r.check(l); err != nil {
		return nil, err
	}
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return nil, fmt.Errorf("cgroup acquire in %s: %w", g.id, ErrClosed)
	}
	if l.CPU > 0 && g.held.CPU > 0 {
		l.CPU = min(l.CPU, g.held.CPU)
	}
	if l.CPU > 0 && g.r.cpu.v2 && !g.setCPU {
		if err := g.r.cpu.put(g.name, "cgroup.subtree_control", "+cpu"); err != nil {
			g.mu.Unlock()
			return nil, err
		}
		g.setCPU = true
	}
	var s *Set
	pool := &g.free
	if moved {
		pool = &g.spare
	}
	if n := len(*pool); n > 0 && g.rotate && !moved {
		s = (*pool)[0]
		*pool = append((*pool)[:0], (*pool)[1:]...)
	} else if n > 0 {
		s, *pool = (*pool)[n-1], (*pool)[:n-1]
	} else {
		g.nextSet++
		s = newSet(g, "s"+strconv.FormatUint(g.nextSet, 10))
		s.moved = moved
	}
	g.busy[s.name] = s
	g.mu.Unlock()
	err := s.prepare(l)
	if err != nil {
		g.mu.Lock()
		delete(g.busy, s.name)
		g.mu.Unlock()
		return nil, errors.Join(err, s.remove())
	}
	return s, nil
}

// Rotate makes Acquire take the set that was released first instead of the one that
// was released last, so that a caller has time to get it ready again.
func (g *Group) Rotate() {
	g.mu.Lock()
	g.rotate = true
	g.mu.Unlock()
}

// Release takes the set back. It must be empty ([Set.WaitEmpty]): else Release
// returns [ErrBusy], the set stays acquired, and Release may be called again.
func (g *Group) Release(s *Set) error { return g.release(s, true) }

// ReleaseSeen is Release for a caller that has seen by itself that the execution
// has no process left. A process of the caller's own may live on in the v2 leaf,
// from which it forks executions, unless the set is Renewed.
func (g *Group) ReleaseSeen(s *Set) error { return g.release(s, false) }

// Renewed reports whether the v2 leaf is replaced after each execution, for want
// of a peak that can be reset (before Linux 6.12), so that it must be empty.
func (s *Set) Renewed() bool { return s.g.r.mem.v2 && s.peak < 0 }

func (g *Group) release(s *Set, check bool) error {
	g.mu.Lock()
	mine := g.busy[s.name] == s && !g.closed
	g.mu.Unlock()
	if !mine {
		return fmt.Errorf("cgroup release %s of %s: %w", s.name, g.id, ErrClosed)
	}
	if check {
		empty, err := s.WaitEmpty(0)
		if err == nil && !empty {
			err = ErrBusy
		}
		if err != nil {
			return fmt.Errorf("cgroup release %s of %s: %w", s.name, g.id, err)
		}
	}
	err := s.settle()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.busy[s.name] != s { // closed or released meanwhile
		return fmt.Errorf("cgroup release %s of %s: %w", s.name, g.id, ErrClosed)
	}
	delete(g.busy, s.name)
	if err != nil {
		return errors.Join(err, s.remove())
	}
	if s.moved {
		g.spare = append(g.spare, s)
	} else {
		g.free = append(g.free, s)
	}
	return nil
}

// Adopt takes back a set that an execution of a dead runtime is in, given what
// [Set.State] returned to that runtime.
func (g *Group) Adopt(st SetState) (*Set, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(g.found, st.Name)
	if g.closed || i < 0 {
		return nil, fmt.Errorf("cgroup adopt %q in %s: %w", st.Name, g.id, unix.ENOENT)
	}
	s := newSet(g, st.Name)
	err := s.openLeaf()
	if err == nil {
		err = s.openV1(st.Limits, false)
	}
	if err != nil {
		s.closeAll()
		return nil, err
	}
	s.held, s.want = st.Limits, st.Limits
	s.base = counters{cpu: st.CPU, user: st.User, system: st.System, oom: st.OOM, pidsMax: st.PidsMax, groupPidsMax: st.Pids, ioRead: st.IORead, ioWrite: st.IOWrite}
	// Nobody knows whether the dead runtime killed it, or how high the peak of pids was.
	s.burned = true
	s.choose()
	g.found = slices.Delete(g.found, i, i+1)
	g.busy[s.name] = s
	return s, nil
}

// prepare makes the set ready for an execution.
func (s *Set) prepare(l Limits) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.g.r
	if s.leaf < 0 && r.uni != nil {
		if err := r.uni.mkdir(s.dir); err != nil {
			return err
		}
		if err := s.openLeaf(); err != nil {
			return err
		}
	}
	if err := s.openV1(l, true); err != nil {
		return err
	}
	// A rate or pids limit that is not wanted now may stay in a v1 group that is
	// not used now.
	apply := l
	if s.pidsIdle(l) {
		apply.Pids = s.held.Pids
	}
	if s.cpuIdle(l) {
		apply.CPU = s.held.CPU
	}
	if apply != s.held {
		if err := r.apply(s.dir, &s.held, apply); err != nil {
			return err
		}
	}
	s.want = l
	s.choose()
	n, err := getField(s.g.pidsEvents, "max")
	s.base.groupPidsMax = n
	return r.pids.fail("read", s.g.name, "pids.events", err)
}

func (s *Set) pidsIdle(l Limits) bool { return !s.g.r.pids.v2 && l.Pids == 0 }
func (s *Set) cpuIdle(l Limits) bool {
	return s.g.r.cpu == nil || !s.g.r.cpu.v2 && l.CPU == 0
}

// openLeaf opens the v2 leaf.
func (s *Set) openLeaf() (err error) {
	t := s.g.r.uni
	if t == nil {
		return nil
	}
	s.serial++
	open := func(file string, flags int) int {
		if err != nil {
			return -1
		}
		var fd int
		fd, err = t.open(s.dir, file, flags)
		return fd
	}
	s.leaf = open("", unix.O_RDONLY|unix.O_DIRECTORY)
	s.kill = open("cgroup.kill", unix.O_WRONLY)
	s.events = open("cgroup.events", unix.O_RDONLY)
	s.cpu = open("cpu.stat", unix.O_RDONLY)
	if s.g.r.mem.v2 {
		s.oom = open("memory.events", unix.O_RDONLY)
		if err == nil {
			if s.peak, err = t.open(s.dir, "memory.peak", unix.O_RDWR); err != nil {
				s.peak, err = -1, nil
			}
			err = t.put(s.dir, "memory.oom.group", "1")
		}
	}
	if s.g.r.pids.v2 {
		s.pidsEvents = open("pids.events", unix.O_RDONLY)
	}
	return err
}

// openV1 makes and opens the set's own v1 groups that it lacks for the limits l.
func (s *Set) openV1(l Limits, make bool) error {
	r := s.g.r
	need := func(t *tree, why bool) error {
		if t == nil || t.v2 || !why || s.own[t.i] >= 0 {
			return nil
		}
		if make {
			if err := t.mkdir(s.dir); err != nil {
				return err
			}
		}
		s.serial++
		fd, err := t.open(s.dir, "tasks", unix.O_WRONLY)
		s.own[t.i] = fd
		return err
	}
	if err := errors.Join(need(r.mem, true), need(r.acct, true), need(r.cpu, l.CPU > 0), need(r.pids, l.Pids > 0)); err != nil {
		return err
	}
	var err error
	if !r.mem.v2 && s.oom < 0 {
		if s.oom, err = r.mem.open(s.dir, "memory.oom_control", unix.O_RDONLY); err != nil {
			return err
		}
		if s.peak, err = r.mem.open(s.dir, "memory.max_usage_in_bytes", unix.O_RDWR); err != nil {
			return err
		}
		if s.oomEvent, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
			return r.mem.fail("eventfd", s.dir, "", err)
		}
		if err := r.mem.put(s.dir, "cgroup.event_control", fmt.Sprintf("%d %d", s.oomEvent, s.oom)); err != nil {
			return err
		}
	}
	if r.acct != nil && s.cpu < 0 {
		if s.cpu, err = r.acct.open(s.dir, "cpuacct.usage", unix.O_RDONLY); err != nil {
			return err
		}
	}
	if !r.pids.v2 && s.own[r.pids.i] >= 0 && s.pidsEvents < 0 {
		s.pidsEvents, err = r.pids.open(s.dir, "pids.events", unix.O_RDONLY)
	}
	return err
}

// choose says where the execution goes in each v1 hierarchy: to the set's own
// group, or to the sandbox's.
func (s *Set) choose() {
	r := s.g.r
	s.procs = s.procs[:0]
	for _, t := range r.trees {
		if t.v2 {
			continue
		}
		fd := s.g.procs[t.i]
		// Controllers mounted together share the group.
		if s.own[t.i] >= 0 && (t == r.mem || t == r.acct || t == r.cpu && s.want.CPU > 0 || t == r.pids && s.want.Pids > 0) {
			fd = s.own[t.i]
		}
		s.procs = append(s.procs, fd)
	}
}

// extra reports whether the set has v1 groups beyond those every set has.
func (s *Set) extra() bool {
	r := s.g.r
	for _, t := range r.trees {
		if !t.v2 && s.own[t.i] >= 0 && t != r.mem && t != r.acct {
			return true
		}
	}
	return false
}

// settle makes an empty set fit for the next execution.
func (s *Set) settle() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.g.r
	if !s.burned && r.mem.v2 && s.peak < 0 {
		s.burned = true // before Linux 6.12 only a new group has a new peak
	}
	if s.burned && r.uni != nil {
		if err := s.renew(); err != nil {
			return err
		}
	}
	s.burned = false
	if s.oomEvent >= 0 {
		drain(s.oomEvent)
	}
	if s.peak >= 0 {
		if err := writeFD(s.peak, "0"); err != nil {
			return r.mem.fail("write", s.dir, "peak", err)
		}
	}
	c, err := s.count()
	s.base = c
	return err
}

// renew replaces a burned v2 leaf. The v1 groups stay.
func (s *Set) renew() error {
	t := s.g.r.uni
	closeFD(&s.leaf, &s.kill, &s.events, &s.cpu)
	if s.g.r.mem.v2 {
		closeFD(&s.oom, &s.peak)
		s.held.Memory = 0
	}
	if s.g.r.pids.v2 {
		closeFD(&s.pidsEvents)
		s.held.Pids = 0
	}
	if s.g.r.cpu != nil && s.g.r.cpu.v2 {
		s.held.CPU = 0
	}
	if err := t.rmdir(s.dir); err != nil {
		return err
	}
	if err := t.mkdir(s.dir); err != nil {
		return err
	}
	return s.openLeaf()
}

// count reads the set's counters.
func (s *Set) count() (c counters, err error) {
	r := s.g.r
	if s.cpu >= 0 {
		if err = readCPUFD(s.cpu, r.uni != nil, &c); err != nil {
			return c, &OpError{"read", "cpu", s.dir, "cpu.stat", err}
		}
	}
	if c.oom, err = getField(s.oom, "oom_kill"); err != nil {
		return c, r.mem.fail("read", s.dir, "oom_kill", err)
	}
	if s.pidsEvents >= 0 {
		if c.pidsMax, err = getField(s.pidsEvents, "max"); err != nil {
			return c, r.pids.fail("read", s.dir, "pids.events", err)
		}
		if p, err := r.pids.get(s.dir, "pids.peak"); err == nil {
			c.pidsPeak, _ = strconv.ParseUint(p, 10, 64)
		}
	}
	if r.io {
		b, err := get(s.leaf, "io.stat")
		if err != nil {
			return c, r.uni.fail("read", s.dir, "io.stat", err)
		}
		c.ioRead, c.ioWrite = ioBytes(b)
	}
	return c, nil
}

// Name returns the set's name in its group, for the ledger.
func (s *Set) Name() string { return s.name }

// Paths returns the directory that the execution is in, for each hierarchy.
func (s *Set) Paths() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	i := 0
	for _, t := range s.g.r.trees {
		dir := s.dir
		if !t.v2 {
			if s.procs[i] != s.own[t.i] {
				dir = s.g.name
			}
			i++
		}
		out = append(out, path.Join(t.path, dir))
	}
	return out
}

// Serial changes whenever descriptors of the set were replaced.
func (s *Set) Serial() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.serial
}

// CloneFD returns the directory for CLONE_INTO_CGROUP, or -1 on v1.
func (s *Set) CloneFD() int { return s.leaf }

// ProcsFDs returns the v1 tasks files to which the child itself, while it has one
// thread, writes "0". Unlike cgroup.procs they take no lock that waits for an RCU
// grace period, which is 10 ms for whoever comes first after a pause. It writes
// "0", best before it is anything but a single-threaded clone.
func (s *Set) ProcsFDs() []int { return s.procs }

// KillFD returns cgroup.kill, or -1 on v1. Whoever writes to it tells the set by
// [Set.MarkKilled].
func (s *Set) KillFD() int { return s.kill }

// EventsFD returns cgroup.events, or -1 on v1. Read it, then poll for POLLPRI: the
// poll tells only of changes after the last read through this descriptor.
func (s *Set) EventsFD() int { return s.events }

// OOMFD returns, where memory is a v1 controller, an eventfd that becomes readable
// when the memory limit of the execution or of the sandbox was hit; [Set.OOM]
// then says whether it was this execution's. On v2 it is -1: there the kernel kills the
// whole set by itself.
func (s *Set) OOMFD() int { return s.oomEvent }

// MarkKilled says that the set was killed through KillFD: its v2 leaf will not be
// used again.
func (s *Set) MarkKilled() {
	s.mu.Lock()
	s.burned = true
	s.mu.Unlock()
}

// Kill kills every process of the execution. It does not wait, except on v1, where
// the whole sandbox stands still for a moment.
func (s *Set) Kill() error {
	if s.kill < 0 {
		s.g.mu.Lock()
		defer s.g.mu.Unlock()
		return s.g.killV1(s.name)
	}
	s.MarkKilled()
	return s.g.r.uni.fail("write", s.dir, "cgroup.kill", writeFD(s.kill, "1"))
}

// WaitEmpty waits until the execution has no process left and reports whether that
// came true within wait. Zombies do not count.
func (s *Set) WaitEmpty(wait time.Duration) (bool, error) {
	if s.events >= 0 {
		ok, err := waitField(s.events, "populated", 0, wait)
		return ok, s.g.r.uni.fail("read", s.dir, "cgroup.events", err)
	}
	t := s.g.r.mem
	end := time.Now().Add(wait)
	for step := 100 * time.Microsecond; ; step = min(2*step, 20*time.Millisecond) {
		b, err := get(t.fd, s.dir+"/cgroup.procs")
		if err != nil {
			return false, t.fail("read", s.dir, "cgroup.procs", err)
		}
		if len(b) == 0 || !time.Now().Before(end) {
			return len(b) == 0, nil
		}
		time.Sleep(step)
	}
}

// OOM is to be called when OOMFD is readable: it empties that and reports whether
// the OOM killer chose a process of this execution, so that the rest of it has to
// be killed. v1 tells every group below the one whose limit was hit, and does so
// before the victim is chosen; OOM waits for the choice: some 10 µs when it falls
// on this execution, up to 20 ms when it falls on another one of the sandbox, and
// never more than 1 s.
func (s *Set) OOM() (bool, error) {
	s.mu.Lock()
	if s.oomEvent >= 0 {
		drain(s.oomEvent)
	}
	s.mu.Unlock()
	start := time.Now()
	for step := 10 * time.Microsecond; ; step = min(2*step, 10*time.Millisecond) {
		killed, err := s.OOMKilled()
		if killed || err != nil {
			return killed, err
		}
		empty, err := s.WaitEmpty(0)
		if empty || err != nil {
			return false, err
		}
		waited := time.Since(start)
		if waited > oomWait || waited > oomWaitOther && s.g.otherOOM(s) {
			return false, nil
		}
		// No event tells that the choice was made.
		time.Sleep(step)
	}
}

const (
	oomWait      = time.Second
	oomWaitOther = 20 * time.Millisecond
)

// otherOOM reports whether another execution of the sandbox has lost a process to
// the OOM killer.
func (g *Group) otherOOM(s *Set) bool {
	g.mu.Lock()
	others := g.allSets()
	g.mu.Unlock()
	for _, o := range others {
		if o == s {
			continue
		}
		if killed, err := o.OOMKilled(); err == nil && killed {
			return true
		}
	}
	return false
}

// OOMKilled reports whether the OOM killer has killed a process of the execution.
func (s *Set) OOMKilled() (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err := getField(s.oom, "oom_kill")
	return n > s.base.oom, s.g.r.mem.fail("read", s.dir, "oom_kill", err)
}

// PidsHit reports whether a fork was refused for a pids limit since Acquire: the
// execution's own, or the sandbox's. Of the latter the kernel does not
// tell which execution tried to fork, where they share a v1 pids group and on
// v2 since Linux 6.11.
func (s *Set) PidsHit() (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.g.r
	if s.pidsEvents >= 0 {
		n, err := getField(s.pidsEvents, "max")
		if err != nil || n > s.base.pidsMax {
			return err == nil, r.pids.fail("read", s.dir, "pids.events", err)
		}
	}
	n, err := getField(s.g.pidsEvents, "max")
	return n > s.base.groupPidsMax, r.pids.fail("read", s.g.name, "pids.events", err)
}

// CPU returns the CPU time of the execution's whole tree so far.
func (s *Set) CPU() (time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cpu < 0 {
		return 0, &UnsupportedError{"cpu time of an execution", "the v1 cpuacct controller, or a cgroup v2 tree"}
	}
	var c counters
	if err := readCPUFD(s.cpu, s.g.r.uni != nil, &c); err != nil {
		return 0, &OpError{"read", "cpu", s.dir, "cpu.stat", err}
	}
	return c.cpu - s.base.cpu, nil
}

// Usage returns what the execution used since Acquire. PeakPids is counted only
// where the execution has a pids group of its own (v2, or a pids limit of its
// own) and exceeds earlier users' of it.
func (s *Set) Usage() (Usage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.g.r
	c, err := s.count()
	if err != nil {
		return Usage{}, err
	}
	peak, err := r.readPeak(s.dir, s.peak)
	if err != nil {
		return Usage{}, err
	}
	u := s.base.usage(c, peak, r.io)
	if s.cpu < 0 {
		u.CPU, u.User, u.System = -1, -1, -1
	} else if r.uni == nil {
		u.User, u.System = -1, -1
	}
	if !r.pids.v2 && s.want.Pids == 0 {
		u.PeakPids = -1
	}
	return u, nil
}

// State returns what [Group.Adopt] needs.
func (s *Set) State() SetState {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.base
	return SetState{Name: s.name, Limits: s.want, CPU: b.cpu, User: b.user, System: b.system, OOM: b.oom, PidsMax: b.pidsMax, Pids: b.groupPidsMax, IORead: b.ioRead, IOWrite: b.ioWrite}
}

// SignalTree sends a signal to each process of the execution, and returns to how
// many. One that is forked meanwhile may be missed.
func (s *Set) SignalTree(sig unix.Signal) (int, error) {
	t := s.g.r.mem // in v1 without a process of the caller's own
	fd, err := t.open(s.dir, "", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	n, err := signalMembers(fd, sig)
	return n, t.fail("signal", s.dir, "cgroup.procs", err)
}

// capCPU lowers the rate of the set's own group.
func (s *Set) capCPU(cores float64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held.CPU <= cores {
		return nil
	}
	l := s.held
	l.CPU = cores
	return s.g.r.apply(s.dir, &s.held, l)
}

func (s *Set) closeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	closeFD(&s.leaf, &s.kill, &s.events, &s.cpu, &s.peak, &s.oom, &s.oomEvent, &s.pidsEvents)
	for i := range s.own {
		closeFD(&s.own[i])
	}
	s.procs = nil
}

// remove removes the set's groups.
func (s *Set) remove() error {
	s.closeAll()
	var errs []error
	for _, t := range s.g.r.trees {
		errs = append(errs, t.rmdir(s.dir))
	}
	return errors.Join(errs...)
}
