package cgroup

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// freezeWait bounds Freeze: a task in an uninterruptible sleep delays it.
	freezeWait = 2 * time.Second
	// keepMemory is what may be charged to a tree that is kept for reuse, after reclaim.
	keepMemory = 1 << 20
	// keepSets is how many sets stay in an idle tree; each holds about 9 descriptors.
	keepSets = 4
)

// Group is the groups of one sandbox: its limits, and a place for its PID 1 and
// for each execution. It is safe for concurrent use.
type Group struct {
	r        *Root
	name, id string

	// Open from creation to removal, -1 where the arrangement has no such thing.
	procs      [maxTrees]int // v1: tasks of the sandbox's group
	initFD     int           // v2 leaf of PID 1
	pidsEvents int
	peak       int // v2 memory.peak, whose reset holds per descriptor

	freezing sync.Mutex // held through a Freeze; taken before mu

	mu      sync.Mutex
	held    Limits // what the files hold
	free    []*Set
	rotate  bool
	spare   []*Set // for processes that are moved in: no process of the caller's was ever in them
	busy    map[string]*Set
	found   []string // sets of a dead runtime, not adopted
	nextSet uint64
	setCPU  bool // v2: children have the cpu controller
	burned  bool // init's leaf was killed
	base    counters
	closed  bool
}

// counters are what cumulative files held when counting began.
type counters struct {
	cpu, user, system time.Duration
	oom, pidsMax      uint64
	groupPidsMax      uint64
	pidsPeak          uint64
	ioRead, ioWrite   uint64
}

func newGroup(r *Root, name, id string) *Group {
	g := &Group{r: r, name: name, id: id, initFD: -1, pidsEvents: -1, peak: -1, busy: map[string]*Set{}}
	for i := range g.procs {
		g.procs[i] = -1
	}
	return g
}

// furnish completes a new v2 directory: controllers for the children, and the
// leaf for PID 1, since a group with controllers for children holds no process.
func (g *Group) furnish() error {
	r := g.r
	if r.uni == nil {
		return nil
	}
	var on []string
	if r.mem.v2 {
		on = append(on, "+memory")
	}
	if r.pids.v2 {
		on = append(on, "+pids")
	}
	if r.io {
		on = append(on, "+io")
	}
	if len(on) > 0 {
		if err := r.uni.put(g.name, "cgroup.subtree_control", strings.Join(on, " ")); err != nil {
			return err
		}
	}
	return r.uni.mkdir(path.Join(g.name, initLeaf))
}

// attach opens the descriptors.
func (g *Group) attach() (err error) {
	r := g.r
	for _, t := range r.trees {
		if !t.v2 {
			if g.procs[t.i], err = t.open(g.name, "tasks", unix.O_WRONLY); err != nil {
				return err
			}
		}
	}
	if r.uni != nil {
		if g.initFD, err = r.uni.open(path.Join(g.name, initLeaf), "", unix.O_RDONLY|unix.O_DIRECTORY); err != nil {
			return err
		}
	}
	if g.pidsEvents, err = r.pids.open(g.name, "pids.events", unix.O_RDONLY); err != nil {
		return err
	}
	if r.mem.v2 {
		// Before Linux 6.12 it cannot be written, before 5.19 it is not there.
		if g.peak, err = r.mem.open(g.name, "memory.peak", unix.O_RDWR); err != nil {
			g.peak = -1
		}
	}
	return nil
}

// Name returns the name of the tree below the tops, for the ledger and
// [Root.Reopen].
func (g *Group) Name() string { return g.name }

// Paths returns the sandbox's directory in each hierarchy.
func (g *Group) Paths() []string {
	var out []string
	for _, t := range g.r.trees {
		out = append(out, path.Join(t.path, g.name))
	}
	return out
}

// InitCloneFD returns the directory to clone the sandbox's PID 1 into, or -1 on
// v1. It stays open until Close, but Kill burns it: a later PID 1 needs another Group.
func (g *Group) InitCloneFD() int { return g.initFD }

// InitProcsFDs returns the v1 files to which the sandbox's PID 1 writes "0".
func (g *Group) InitProcsFDs() []int {
	var out []int
	for _, t := range g.r.trees {
		if !t.v2 {
			out = append(out, g.procs[t.i])
		}
	}
	return out
}

// Kind returns the arrangement that the group is made for.
func (g *Group) Kind() Kind { return g.r.Kind() }

// Limits returns the limits in force.
func (g *Group) Limits() Limits {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.held
}

// SetLimits changes the limits and reads each back. A v1 memory limit below what
// is in use, after reclaim, is EBUSY; v2 kills instead. After an error some
// limits may have changed; [Group.Limits] has those in force.
func (g *Group) SetLimits(l Limits) error {
	if err := g.r.check(l); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return fmt.Errorf("cgroup limits of %s: %w", g.id, ErrClosed)
	}
	if l.CPU > 0 && l.CPU != g.held.CPU {
		// v1 refuses a rate below that of a child.
		for _, s := range g.allSets() {
			if err := s.capCPU(l.CPU); err != nil {
				return err
			}
		}
	}
	return g.r.apply(g.name, &g.held, l)
}

func (g *Group) allSets() []*Set {
	out := slices.Concat(g.free, g.spare)
	for _, s := range g.busy {
		out = append(out, s)
	}
	return out
}

// apply writes the limits in which l differs from held.
func (r *Root) apply(dir string, held *Limits, l Limits) error {
	if l.Memory != held.Memory {
		if err := r.writeMemory(dir, held.Memory, l.Memory); err != nil {
			return err
		}
		held.Memory = l.Memory
	}
	if l.Pids != held.Pids {
		if err := r.writePids(dir, l.Pids); err != nil {
			return err
		}
		held.Pids = l.Pids
	}
	if l.CPU != held.CPU {
		if err := r.writeCPU(dir, l.CPU); err != nil {
			return err
		}
		held.CPU = l.CPU
	}
	return nil
}

// readBack compares what a file holds with what it should.
func (t *tree) readBack(dir, file string, same func(string) bool, want string) error {
	got, err := t.get(dir, file)
	if err != nil {
		return err
	}
	if !same(got) {
		return t.fail("read back", dir, file, fmt.Errorf("holds %q instead of %q", got, want))
	}
	return nil
}

func (r *Root) writeMemory(dir string, old, val int64) error {
	t := r.mem
	page := int64(os.Getpagesize())
	if t.v2 {
		max, swap := "max", "max"
		if val > 0 {
			max, swap = strconv.FormatInt(val&^(page-1), 10), "0"
		}
		if r.swap {
			if err := t.put(dir, "memory.swap.max", swap); err != nil {
				return err
			}
		}
		if err := t.put(dir, "memory.max", max); err != nil {
			return err
		}
		return t.readBack(dir, "memory.max", func(s string) bool { return s == max }, max)
	}
	// Memory+swap may not be below memory at any moment; equal means no swap.
	text := "-1"
	if val > 0 {
		text = strconv.FormatInt(val&^(page-1), 10)
	}
	files := []string{"memory.limit_in_bytes"}
	if r.swap {
		files = append(files, "memory.memsw.limit_in_bytes")
	}
	if old > 0 && (val == 0 || val > old) {
		slices.Reverse(files)
	}
	err := t.putAll(dir, files, text)
	if errors.Is(err, unix.EINVAL) && len(files) == 2 {
		// What the files hold is not what was thought: an earlier change failed half-way.
		slices.Reverse(files)
		err = t.putAll(dir, files, text)
	}
	if err != nil {
		return err
	}
	for _, f := range files {
		same := func(s string) bool {
			n, err := strconv.ParseInt(s, 10, 64)
			return s == text || val == 0 && err == nil && n >= 1<<62
		}
		if err := t.readBack(dir, f, same, text); err != nil {
			return err
		}
	}
	if !r.sockets || old == 0 && val == 0 {
		return nil
	}
	// v1 charges no buffer of an internet socket to memory. All sandboxes and the host
	// share one bound for those (net.ipv4.tcp_mem), so each group gets one of its own.
	if val > 0 {
		text = strconv.FormatInt((val/socketShare+page-1)&^(page-1), 10)
	}
	if err := t.put(dir, socketLimit, text); err != nil {
		return err
	}
	return t.readBack(dir, socketLimit, func(s string) bool {
		n, err := strconv.ParseInt(s, 10, 64)
		return s == text || val == 0 && err == nil && n >= 1<<62
	}, text)
}

// On v1 the buffers of internet sockets have a limit of their own, on top of memory.
const (
	socketLimit = "memory.kmem.tcp.limit_in_bytes" // all protocols, whatever its name says
	socketShare = 4                                // of the memory limit: a quarter
)

func (t *tree) putAll(dir string, files []string, val string) error {
	for _, f := range files {
		if err := t.put(dir, f, val); err != nil {
			return err
		}
	}
	return nil
}

func (r *Root) writePids(dir string, val int64) error {
	text := "max"
	if val > 0 {
		text = strconv.FormatInt(val, 10)
	}
	if err := r.pids.put(dir, "pids.max", text); err != nil {
		return err
	}
	return r.pids.readBack(dir, "pids.max", func(s string) bool { return s == text }, text)
}

// cpuQuota converts cores to a quota and a period in microseconds. The kernel
// takes quotas from 1 ms and periods up to 1 s.
func cpuQuota(cores float64) (quota, period int64, err error) {
	for _, period = range []int64{100_000, 1_000_000} {
		if quota = int64(math.Round(cores * float64(period))); quota >= 1000 && quota < 1<<40 {
			return quota, period, nil
		}
	}
	return 0, 0, fmt.Errorf("cgroup limits: cpu rate of %g cores is outside of what the kernel takes (0.001 and up)", cores)
}

func (r *Root) writeCPU(dir string, cores float64) error {
	t := r.cpu
	if t == nil {
		if cores == 0 {
			return nil
		}
		return r.check(Limits{CPU: cores})
	}
	quota, period := int64(-1), int64(100_000)
	if cores > 0 {
		var err error
		if quota, period, err = cpuQuota(cores); err != nil {
			return err
		}
	}
	if t.v2 {
		text := fmt.Sprintf("%d %d", quota, period)
		if cores == 0 {
			text = fmt.Sprintf("max %d", period)
		}
		if err := t.put(dir, "cpu.max", text); err != nil {
			return err
		}
		return t.readBack(dir, "cpu.max", func(s string) bool { return s == text }, text)
	}
	q, p := strconv.FormatInt(quota, 10), strconv.FormatInt(period, 10)
	// No quota while the period changes, or the rate between is one that nobody asked for
	// and that may exceed the parent's.
	if now, err := t.get(dir, "cpu.cfs_period_us"); err != nil {
		return err
	} else if now != p {
		if err := t.put(dir, "cpu.cfs_quota_us", "-1"); err != nil {
			return err
		}
		if err := t.put(dir, "cpu.cfs_period_us", p); err != nil {
			return err
		}
	}
	if err := t.put(dir, "cpu.cfs_quota_us", q); err != nil {
		return err
	}
	if err := t.readBack(dir, "cpu.cfs_period_us", func(s string) bool { return s == p }, p); err != nil {
		return err
	}
	return t.readBack(dir, "cpu.cfs_quota_us", func(s string) bool { return s == q }, q)
}

// readLimits learns what the files of a reopened group hold.
func (g *Group) readLimits() error {
	l, err := g.r.limitsOf(g.name)
	if err != nil {
		return err
	}
	g.held = l
	return nil
}

func (r *Root) limitsOf(dir string) (l Limits, err error) {
	num := func(t *tree, file string) (int64, error) {
		s, err := t.get(dir, file)
		if err != nil || s == "max" || s == "-1" {
			return 0, err
		}
		n, err := strconv.ParseInt(s, 10, 64)
		if n >= 1<<62 {
			n = 0
		}
		return n, t.fail("read", dir, file, err)
	}
	file := "memory.limit_in_bytes"
	if r.mem.v2 {
		file = "memory.max"
	}
	if l.Memory, err = num(r.mem, file); err != nil {
		return l, err
	}
	if l.Pids, err = num(r.pids, "pids.max"); err != nil {
		return l, err
	}
	switch {
	case r.cpu == nil:
	case r.cpu.v2:
		s, err := r.cpu.get(dir, "cpu.max")
		if err != nil {
			return l, err
		}
		var q, p float64
		if n, _ := fmt.Sscanf(s, "%f %f", &q, &p); n == 2 && p > 0 {
			l.CPU = q / p
		}
	default:
		q, err := num(r.cpu, "cpu.cfs_quota_us")
		if err != nil {
			return l, err
		}
		p, err := num(r.cpu, "cpu.cfs_period_us")
		if err != nil {
			return l, err
		}
		if p > 0 {
			l.CPU = float64(q) / float64(p)
		}
	}
	return l, nil
}

// Usage returns what the whole sandbox used since the Group was made or last
// reused, its ended executions included.
func (g *Group) Usage() (Usage, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return Usage{}, fmt.Errorf("cgroup usage of %s: %w", g.id, ErrClosed)
	}
	c, peak, err := g.count()
	if err != nil {
		return Usage{}, err
	}
	return g.base.usage(c, peak, g.r.io), nil
}

// usage returns the difference between two readings.
func (b *counters) usage(c counters, peak int64, io bool) Usage {
	u := Usage{CPU: c.cpu - b.cpu, User: c.user - b.user, System: c.system - b.system, PeakMemory: peak, PeakPids: -1, IORead: -1, IOWrite: -1}
	// pids.peak cannot be reset: it tells something only where it has grown.
	if c.pidsPeak > b.pidsPeak {
		u.PeakPids = int64(c.pidsPeak)
	}
	if io {
		u.IORead, u.IOWrite = int64(c.ioRead-b.ioRead), int64(c.ioWrite-b.ioWrite)
	}
	return u
}

// count reads the sandbox's counters.
func (g *Group) count() (c counters, peak int64, err error) {
	r := g.r
	if err = r.readCPU(g.name, &c); err != nil {
		return c, -1, err
	}
	if c.groupPidsMax, err = getField(g.pidsEvents, "max"); err != nil {
		return c, -1, r.pids.fail("read", g.name, "pids.events", err)
	}
	if s, err := r.pids.get(g.name, "pids.peak"); err == nil {
		c.pidsPeak, _ = strconv.ParseUint(s, 10, 64)
	}
	if r.io {
		b, err := get(r.uni.fd, g.name+"/io.stat")
		if err != nil {
			return c, -1, r.uni.fail("read", g.name, "io.stat", err)
		}
		c.ioRead, c.ioWrite = ioBytes(b)
	}
	peak, err = r.readPeak(g.name, g.peak)
	return c, peak, err
}

// readCPU reads the CPU time of a group by name.
func (r *Root) readCPU(dir string, c *counters) error {
	t, file := r.uni, "cpu.stat"
	if t == nil {
		t, file = r.acct, "cpuacct.usage"
	}
	if t == nil {
		return nil
	}
	fd, err := t.open(dir, file, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return t.fail("read", dir, file, readCPUFD(fd, t.v2, c))
}

// readCPUFD reads an open cpu.stat (v2) or cpuacct.usage (v1, nanoseconds).
func readCPUFD(fd int, v2 bool, c *counters) error {
	var a [1024]byte
	b, err := readFD(fd, a[:])
	if err != nil {
		return err
	}
	if !v2 {
		n, ok := number(b)
		if !ok {
			return errFormat
		}
		c.cpu = time.Duration(n)
		return nil
	}
	total, ok1 := field(b, "usage_usec")
	user, ok2 := field(b, "user_usec")
	system, ok3 := field(b, "system_usec")
	if !ok1 || !ok2 || !ok3 {
		return errFormat
	}
	c.cpu, c.user, c.system = time.Duration(total)*time.Microsecond, time.Duration(user)*time.Microsecond, time.Duration(system)*time.Microsecond
	return nil
}

// readPeak reads the highest memory use, from fd where that is open.
func (r *Root) readPeak(dir string, fd int) (int64, error) {
	file := "memory.max_usage_in_bytes"
	if r.mem.v2 {
		file = "memory.peak"
	}
	if fd < 0 {
		s, err := r.mem.get(dir, file)
		if errors.Is(err, unix.ENOENT) {
			return -1, nil
		}
		if err != nil {
			return -1, err
		}
		n, err := strconv.ParseInt(s, 10, 64)
		return n, r.mem.fail("read", dir, file, err)
	}
	n, err := getField(fd, "")
	return int64(n), r.mem.fail("read", dir, file, err)
}

// Freeze stops every process of the sandbox, or lets them go on, and returns when
// that is so. Freezing fails with [ErrBusy] after 2 s, for instance with a process
// in an uninterruptible sleep; it is then undone.
func (g *Group) Freeze(on bool) error {
	g.freezing.Lock()
	defer g.freezing.Unlock()
	g.mu.Lock()
	closed := g.closed
	g.mu.Unlock()
	if closed {
		return fmt.Errorf("cgroup freeze %s: %w", g.id, ErrClosed)
	}
	err := g.freeze(on)
	if on && errors.Is(err, ErrBusy) {
		err = errors.Join(err, g.freeze(false))
	}
	return err
}

func (g *Group) freeze(on bool) error {
	r := g.r
	if r.uni != nil {
		val, want := "0", uint64(0)
		if on {
			val, want = "1", 1
		}
		fd, err := r.uni.open(g.name, "cgroup.events", unix.O_RDONLY)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := r.uni.put(g.name, "cgroup.freeze", val); err != nil {
			return err
		}
		ok, err := waitField(fd, "frozen", want, freezeWait)
		if err == nil && !ok {
			err = ErrBusy
		}
		return r.uni.fail("freeze", g.name, "cgroup.events", err)
	}
	if r.freezer == nil {
		return &UnsupportedError{"freezing a sandbox", "the v1 freezer controller, or a cgroup v2 tree"}
	}
	want := "THAWED"
	if on {
		want = "FROZEN"
	}
	if err := r.freezer.put(g.name, "freezer.state", want); err != nil {
		return err
	}
	// The v1 freezer has no event; reading its state also makes it progress.
	end := time.Now().Add(freezeWait)
	for step := 100 * time.Microsecond; ; step = min(2*step, 10*time.Millisecond) {
		s, err := r.freezer.get(g.name, "freezer.state")
		if err != nil || s == want {
			return err
		}
		if time.Now().After(end) {
			return r.freezer.fail("freeze", g.name, "freezer.state", ErrBusy)
		}
		time.Sleep(step)
	}
}

// Kill kills every process of the sandbox, PID 1 and all executions. With
// cgroup.kill it does not wait; on v1 the sandbox is frozen, signalled and thawed.
func (g *Group) Kill() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil
	}
	if g.r.uni == nil {
		return g.killV1("")
	}
	g.burned = true
	for _, s := range g.allSets() {
		s.MarkKilled()
	}
	return g.r.uni.put(g.name, "cgroup.kill", "1")
}

// killV1 kills the members of the sandbox, or of one set of it. The whole sandbox
// stands still meanwhile, so that nothing forks away.
func (g *Group) killV1(set string) error {
	dirs := []string{path.Join(g.name, set)}
	if set == "" {
		kids, err := g.children(g.r.mem)
		if err != nil {
			return err
		}
		for _, k := range kids {
			dirs = append(dirs, path.Join(g.name, k))
		}
	}
	var errs []error
	frozen := g.r.freezer != nil
	if frozen {
		errs = append(errs, g.freeze(true))
	}
	// Without a freezer a fork may be missed by one pass, but not by one that finds nobody.
	for range 100 {
		sent := 0
		for _, d := range dirs {
			fd, err := g.r.mem.open(d, "", unix.O_RDONLY|unix.O_DIRECTORY)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			n, err := signalMembers(fd, unix.SIGKILL)
			unix.Close(fd)
			sent += n
			errs = append(errs, g.r.mem.fail("kill", d, "cgroup.procs", err))
		}
		if sent == 0 || frozen {
			break
		}
	}
	if frozen {
		errs = append(errs, g.freeze(false))
	}
	return errors.Join(errs...)
}

// children lists the sets' and init's directories in one hierarchy.
func (g *Group) children(t *tree) ([]string, error) {
	fd, err := t.open(g.name, "", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	all, err := subdirs(fd)
	return slices.DeleteFunc(all, func(n string) bool { return n != initLeaf && !numbered(n, 's') }), t.fail("read", g.name, "", err)
}

// Empty reports whether no process is left in the sandbox. What cannot be read
// counts as not empty.
func (g *Group) Empty() bool {
	ok, err := g.waitEmpty(0)
	return ok && err == nil
}

func (g *Group) waitEmpty(wait time.Duration) (bool, error) {
	r := g.r
	if r.uni != nil {
		fd, err := r.uni.open(g.name, "cgroup.events", unix.O_RDONLY)
		if err != nil {
			return false, err
		}
		defer unix.Close(fd)
		ok, err := waitField(fd, "populated", 0, wait)
		return ok, r.uni.fail("read", g.name, "cgroup.events", err)
	}
	end := time.Now().Add(wait)
	for step := 100 * time.Microsecond; ; step = min(2*step, 20*time.Millisecond) {
		kids, err := g.children(r.mem)
		if err != nil {
			return false, err
		}
		empty := true
		for _, k := range append(kids, "") {
			b, err := get(r.mem.fd, path.Join(g.name, k, "cgroup.procs"))
			if err != nil {
				return false, r.mem.fail("read", path.Join(g.name, k), "cgroup.procs", err)
			}
			empty = empty && len(b) == 0
		}
		if empty || !time.Now().Before(end) {
			return empty, nil
		}
		time.Sleep(step)
	}
}

// Close waits up to wait until no process is left, then removes the groups or
// keeps the tree for another sandbox. It kills nobody. When processes are left it
// returns [ErrBusy] and may be called again. Sets that were not released are
// removed with it; their descriptors are invalid afterwards.
func (g *Group) Close(wait time.Duration) error {
	g.mu.Lock()
	closed := g.closed
	g.mu.Unlock()
	if closed {
		return nil
	}
	// Without the lock, so that Kill can hasten it.
	ok, err := g.waitEmpty(wait)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil
	}
	if err == nil && !ok {
		err = ErrBusy
	}
	if err != nil {
		return fmt.Errorf("cgroup close %s: %w", g.id, err)
	}
	g.closed = true
	r := g.r
	if g.recycle() {
		r.mu.Lock()
		delete(r.live, g.name)
		if keep := !r.closed && len(r.idle) < r.maxIdle; keep {
			r.idle = append(r.idle, g)
			r.mu.Unlock()
			return nil
		}
		r.mu.Unlock()
	}
	r.forget(g)
	return g.remove()
}

// recycle makes an empty tree fit for another sandbox; false when it is not worth it.
func (g *Group) recycle() bool {
	r := g.r
	r.mu.Lock()
	full := r.closed || len(r.idle) >= r.maxIdle
	r.mu.Unlock()
	if full || len(g.found) > 0 {
		return false
	}
	if r.mem.v2 && g.peak < 0 {
		return false // memory.peak could not be reset
	}
	for _, s := range g.busy {
		if s.remove() != nil {
			return false
		}
	}
	clear(g.busy)
	// Sets with groups of their own in further hierarchies, and surplus ones, go.
	for _, s := range g.spare {
		if s.remove() != nil {
			return false
		}
	}
	g.spare = nil
	keep := g.free[:0]
	for _, s := range g.free {
		if len(keep) < keepSets && !s.extra() {
			keep = append(keep, s)
		} else if s.remove() != nil {
			return false
		}
	}
	g.free = keep
	if g.burned && g.renewInit() != nil {
		return false
	}
	if !r.pids.v2 && g.renewPids() != nil {
		return false
	}
	return g.reclaim() == nil
}

// renewInit replaces the killed leaf of PID 1.
func (g *Group) renewInit() error {
	t, leaf := g.r.uni, path.Join(g.name, initLeaf)
	closeFD(&g.initFD)
	if err := t.rmdir(leaf); err != nil {
		return err
	}
	if err := t.mkdir(leaf); err != nil {
		return err
	}
	fd, err := t.open(leaf, "", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	g.initFD, g.burned = fd, false
	return nil
}

// renewPids replaces the v1 pids group, whose peak cannot be reset: 15 µs.
func (g *Group) renewPids() error {
	t := g.r.pids
	if t == g.r.mem || t == g.r.cpu {
		return nil // mounted together with others: the peak counts only where it grows
	}
	closeFD(&g.procs[t.i], &g.pidsEvents)
	if err := t.rmdir(g.name); err != nil {
		return err
	}
	if err := t.mkdir(g.name); err != nil {
		return err
	}
	g.held.Pids = 0
	var err error
	if g.procs[t.i], err = t.open(g.name, "tasks", unix.O_WRONLY); err != nil {
		return err
	}
	g.pidsEvents, err = t.open(g.name, "pids.events", unix.O_RDONLY)
	return err
}

// reclaim drops page cache that the last sandbox left charged to the tree. What
// stays, files in memory that are still in use, makes the tree unfit.
func (g *Group) reclaim() error {
	t := g.r.mem
	usage, free, arg := "memory.usage_in_bytes", "memory.force_empty", "0"
	if t.v2 {
		usage, free = "memory.current", "memory.reclaim"
	}
	for try := 0; ; try++ {
		s, err := t.get(g.name, usage)
		if err != nil {
			return err
		}
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n <= keepMemory {
			return err
		}
		if try == 1 {
			return ErrBusy
		}
		if t.v2 {
			arg = s
		}
		// EAGAIN: not all could be reclaimed; the next reading decides.
		if err := t.put(g.name, free, arg); err != nil && !errors.Is(err, unix.EAGAIN) {
			return err
		}
	}
}

// reuse turns an idle tree into the groups of sandbox id.
func (g *Group) reuse(id string, l Limits) error {
	g.mu.Lock()
	g.id = id
	ok, err := g.waitEmpty(0)
	if err == nil && !ok {
		err = ErrBusy
	}
	if err == nil {
		err = g.reset()
	}
	g.closed = err != nil
	g.mu.Unlock()
	if err != nil {
		return err
	}
	return g.SetLimits(l)
}

// reset starts counting anew.
func (g *Group) reset() error {
	r := g.r
	if r.mem.v2 {
		if err := writeFD(g.peak, "reset"); err != nil {
			return r.mem.fail("write", g.name, "memory.peak", err)
		}
	} else if err := r.mem.put(g.name, "memory.max_usage_in_bytes", "0"); err != nil {
		return err
	}
	c, _, err := g.count()
	g.base = c
	return err
}

// findSets lists the sets that a dead runtime left in a reopened group.
func (g *Group) findSets() error {
	t := g.r.uni
	if t == nil {
		t = g.r.mem
	}
	kids, err := g.children(t)
	if err != nil {
		return err
	}
	for _, k := range kids {
		if n, err := strconv.ParseUint(k[1:], 10, 64); err == nil && k != initLeaf {
			g.nextSet = max(g.nextSet, n)
			g.found = append(g.found, k)
		}
	}
	return nil
}

// Found lists the sets of a reopened group that were not adopted yet.
func (g *Group) Found() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.found)
}

// closeAll gives up every descriptor.
func (g *Group) closeAll() {
	for i := range g.procs {
		closeFD(&g.procs[i])
	}
	closeFD(&g.initFD, &g.pidsEvents, &g.peak)
	for _, s := range g.allSets() {
		s.closeAll()
	}
}

// remove removes the groups in every hierarchy, the sets' first.
func (g *Group) remove() error {
	g.closeAll()
	var errs []error
	for _, t := range g.r.trees {
		kids, err := g.children(t)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		errs = append(errs, err)
		for _, k := range kids {
			errs = append(errs, t.rmdir(path.Join(g.name, k)))
		}
		errs = append(errs, t.rmdir(g.name))
	}
	return errors.Join(errs...)
}
