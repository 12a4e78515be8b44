package native

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"belljar"
	"belljar/backend/native/keeper"
	"belljar/internal/linux/cgroup"
	"belljar/internal/linux/landlock"
	"belljar/internal/linux/seccomp"

	"golang.org/x/sys/unix"
)

// instance is one sandbox with its keeper.
type instance struct {
	b       *Backend
	plan    *belljar.Plan
	on      map[belljar.Layer]bool
	report  belljar.Report
	group   *cgroup.Group
	ownRoot *cgroup.Root // a persistent sandbox's own top, else nil
	conn    *keeper.Conn
	ready   keeper.Ready
	base    uint32
	fresh   bool
	ownPid  bool
	rwdirs  []string
	idmaps  []int  // of the backend, only while the sandbox is being made
	noFile  uint64 // hard RLIMIT_NOFILE of this host
	clock   clock

	nextID atomic.Uint64
	ahead  sync.WaitGroup // sets being made ahead of their use
	gone   chan struct{}  // closed when the keeper is gone

	// Held for reading while one of them is in use: once closed, its number may stand
	// for a file of the host or another sandbox's root.
	fdMu   sync.RWMutex
	pidfd  int
	rootfd int
	rwfd   int // the writable superblock, for statfs

	mu       sync.Mutex // guards what follows
	tasks    map[uint64]*task
	sets     map[*cgroup.Set]*setReg
	placed   map[*placement]struct{}
	free     []uint32
	err      error // why the keeper went away
	ending   bool
	stocking bool // a set is being made ahead
	released bool // left to its keeper

	closeMu sync.Mutex // guards closed, held through a Close
	closed  bool
}

type setReg struct {
	index  uint32
	serial uint64
	sent   bool
}

// clock turns CLOCK_MONOTONIC into wall time.
type clock struct {
	wall time.Time
	mono int64
}

func newClock() clock {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return clock{time.Now(), ts.Nano()}
}

func (c clock) at(mono uint64) time.Time {
	if mono == 0 {
		return time.Time{}
	}
	return c.wall.Add(time.Duration(int64(mono) - c.mono))
}

// Create makes a sandbox, or leaves nothing behind.
func (b *Backend) Create(ctx context.Context, p *belljar.Plan) (belljar.Instance, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	switch {
	case p.Spec.Network != belljar.NetworkDisabled && p.Spec.Network != "":
		return nil, &belljar.Error{Code: belljar.CodeUnsupported, Op: "create", Message: fmt.Sprintf("network %q is not built yet", p.Spec.Network), Hint: "network: disabled"}
	}
	if err := b.begin(); err != nil {
		return nil, err
	}
	defer b.creating.Done()
	in, err := b.create(ctx, p)
	if err != nil {
		var e *belljar.Error
		var f *StepError
		var te *templateError
		switch {
		case errors.As(err, &e):
			return nil, err
		case errors.As(err, &te):
			return nil, te.explain(p)
		case errors.As(err, &f) && f.Step == keeper.StepMountSource && int(f.Arg) >= len(p.Spec.Mounts):
			return nil, &belljar.Error{Code: belljar.CodeInternal, Op: "create", Message: "view of the control groups: " + err.Error(), Err: err}
		}
		return nil, createError(err)
	}
	return in, nil
}

// explain says whose root it is: the host's, or the caller's image, which may not be a
// link or change while it is being looked at.
func (e *templateError) explain(p *belljar.Plan) *belljar.Error {
	if s := e.err.Step; p.Spec.Image != "" && !exhausted(e.err) && (s == keeper.StepMountSource || s == keeper.StepMountChanged) {
		return &belljar.Error{Code: belljar.CodeInvalidSpec, Op: "spec image", Message: e.Error(), Err: e, Hint: imageHint}
	}
	if exhausted(e.err) {
		return createError(e)
	}
	return &belljar.Error{Code: belljar.CodeIsolationUnavailable, Op: "create: " + e.err.Step.String(), Message: e.Error(), Err: e}
}

const imageHint = "it must be a directory, no part of its path may be a symbolic link, and it must not change meanwhile"

// createError gives an error of the machinery its code.
func createError(err error) *belljar.Error {
	e := &belljar.Error{Code: belljar.CodeInternal, Op: "create", Message: err.Error(), Err: err}
	var f *StepError
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		e.Code, e.Recoverable = belljar.CodeCancelled, true
	case errors.As(err, &f) && (f.Step == keeper.StepMountSource || f.Step == keeper.StepMountChanged):
		e.Code, e.Op = belljar.CodeInvalidSpec, "spec mounts["+strconv.Itoa(int(f.Arg))+"].source"
		e.Hint = "the source must exist, must not be or contain a symbolic link, and must stay what it is"
	case errors.As(err, &f) && f.Step == keeper.StepMountTarget:
		e.Code, e.Op = belljar.CodeInvalidSpec, "spec mounts"
		e.Hint = "the target must be a place where the image has a directory or file, or has nothing"
	case errors.As(err, &f):
		e.Code, e.Op = belljar.CodeIsolationUnavailable, "create: "+f.Step.String()
		if f.Errno == unix.ENOSPC {
			e.Code, e.Hint = belljar.CodeUnavailable, "a limit of the host on namespaces or mounts is reached: sysctl user.max_*_namespaces, fs.mount-max"
		} else if f.Errno == unix.EAGAIN || f.Errno == unix.ENOMEM {
			e.Code, e.Hint = belljar.CodeUnavailable, "the host has no memory or processes left, or limits.memory is too small to start in"
		}
	case exhausted(err):
		e.Code, e.Recoverable = belljar.CodeUnavailable, true
		e.Hint = "the host is short of descriptors, memory or disk space, or the supervisor of descriptors (ulimit -n): try again when there is some"
	case errors.Is(err, unix.EROFS):
		e.Code, e.Recoverable, e.Hint = belljar.CodeUnavailable, true, "the state directory must be writable"
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
		e.Code, e.Op = belljar.CodeInvalidSpec, "spec"
	}
	var u *cgroup.UnsupportedError
	if errors.As(err, &u) {
		return unkept("create", err)
	}
	return e
}

// unkept refuses a limit that nothing here would keep.
func unkept(op string, err error) *belljar.Error {
	e := &belljar.Error{Code: belljar.CodeIsolationUnavailable, Op: op, Message: err.Error(), Err: err, Hint: cgroupRemedy}
	var u *cgroup.UnsupportedError
	if errors.As(err, &u) {
		e.Message, e.Hint = u.Feature+" is not available here", u.Needs
	}
	return e
}

func newInstance(b *Backend, p *belljar.Plan) *instance {
	in := &instance{
		b: b, plan: p, pidfd: -1, rootfd: -1, rwfd: -1, gone: make(chan struct{}), tasks: map[uint64]*task{}, sets: map[*cgroup.Set]*setReg{},
		clock: newClock(),
	}
	for i := uint32(0); i < keeper.MaxSets; i++ {
		in.free = append(in.free, keeper.MaxSets-1-i)
	}
	return in
}

func (b *Backend) create(ctx context.Context, p *belljar.Plan) (_ *instance, err error) {
	in := newInstance(b, p)
	defer func() { // last of all: until then its ids are in use
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.making, in)
		b.dropSpoiled()
	}()
	var undo []func()
	defer func() {
		if err != nil {
			for _, f := range slices.Backward(undo) {
				f()
			}
		}
	}()
	b.mu.Lock()
	locked := true
	unlock := func() {
		if locked {
			b.mu.Unlock()
			locked = false
		}
	}
	defer unlock()
	if err := b.start(); err != nil {
		return nil, err
	}
	ch, err := b.choose(p)
	if err != nil {
		return nil, err
	}
	in.on = ch.on
	var rl unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &rl); err != nil {
		return nil, err
	}
	in.noFile = rl.Max
	if uint64(p.Spec.Limits.OpenFiles) > rl.Max {
		return nil, &belljar.Error{
			Code: belljar.CodeInvalidSpec, Op: "spec limits.openFiles", Message: fmt.Sprintf("%d is above this host's hard limit of %d", p.Spec.Limits.OpenFiles, rl.Max),
			Hint: "lower it, or raise the hard limit of the calling process (ulimit -Hn)",
		}
	}
	if in.base, err = b.idBase(p.Spec.Tenant); err != nil {
		return nil, err
	}
	b.making[in] = struct{}{}

	mounts, dirs, err := in.mountOps()
	if err != nil {
		return nil, err
	}
	if p.Spec.Image != "" {
		if err := in.checkImage(); err != nil {
			return nil, err
		}
	}
	tpl, err := b.templateFor(p, in.on, dirs)
	if err != nil {
		return nil, err
	}
	tpl.used++
	defer func() {
		unlock()
		b.mu.Lock()
		tpl.used--
		b.mu.Unlock()
	}()

	if in.on[belljar.LayerCgroup] {
		root, err := b.cgroups()
		if p.Persist {
			// A top of its own, so that whoever adopts it holds its lock and no other's.
			root, err = cgroup.Open(cgroup.Config{Parent: b.cfg.CgroupParent, Tag: persistTag(p.ID), Idle: -1})
			in.ownRoot = root
		}
		if err != nil {
			return nil, err
		}
		if in.ownRoot != nil {
			undo = append(undo, func() { _ = in.ownRoot.Close() })
		}
		in.group, err = root.Group(p.ID, cgroup.Limits{CPU: p.Spec.Limits.CPU, Memory: int64(p.Spec.Limits.Memory), Pids: pidsLimit(p, root.Kind())})
		if err != nil {
			return nil, err
		}
		undo = append(undo, func() { _ = in.group.Kill(); _ = in.group.Close(2 * time.Second) })
		if viewed(in.on) {
			mounts = append(mounts, in.groupOps()...)
		}
	}
	if !in.on[belljar.LayerPid] && (in.group == nil || in.group.Kind() == cgroup.V1) {
		return nil, &belljar.Error{
			Code: belljar.CodeIsolationUnavailable, Op: "create", Message: "without the layer pid nothing ends the whole tree of an execution here",
			Hint: "remove isolation.layers.pid, or use a cgroup v2 tree (" + cgroupRemedy + ")",
		}
	}

	conn, peer, err := keeper.Pair()
	if err != nil {
		return nil, err
	}
	undo = append(undo, func() { end(conn); in.closeFDs() })
	m, closers, err := in.sandboxMsg(tpl, mounts, peer)
	// At once: while this side holds the keeper's end too, nobody would see it die.
	handOver := sync.OnceFunc(func() {
		unix.Close(peer)
		for _, fd := range closers {
			unix.Close(fd)
		}
	})
	defer handOver()
	if err != nil {
		return nil, err
	}
	if err := b.ready(); err != nil {
		return nil, err
	}
	if err := b.nursery.Send(m); err != nil {
		return nil, b.lost(err)
	}
	handOver()
	unlock()
	in.conn = conn
	// While the keeper is at work: the groups of a first execution.
	var first *cgroup.Set
	if in.group != nil {
		if in.fresh {
			in.group.Rotate()
		}
		if first, err = in.group.Acquire(cgroup.Limits{Memory: int64(p.Spec.Limits.Memory)}); err != nil {
			return nil, err
		}
		if p.Spec.Limits.CPUTime > 0 {
			if _, err := first.CPU(); err != nil {
				return nil, err
			}
		}
	}
	if err := in.awaitReady(ctx); err != nil {
		// The root may be what the nursery could not make.
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.nursery != nil {
			if serr := b.settle(); serr != nil {
				return nil, serr
			}
		}
		if tpl.err != nil {
			return nil, tpl.err
		}
		return nil, err
	}
	if err := in.confine(ch); err != nil {
		return nil, err
	}
	if first != nil {
		if _, err := in.register(first); err != nil {
			return nil, err
		}
		if err := in.group.ReleaseSeen(first); err != nil {
			return nil, err
		}
	}
	if err := in.saveState(); err != nil {
		return nil, err
	}
	b.mu.Lock()
	b.live[in] = struct{}{}
	b.mu.Unlock()
	go in.read()
	return in, nil
}

func pidsLimit(p *belljar.Plan, kind cgroup.Kind) int64 {
	// PID 1 of the sandbox counts too, and on cgroup v2 a spawner: they are not the caller's.
	if kind == cgroup.V2 {
		return p.Spec.Limits.Pids + 2
	}
	return p.Spec.Limits.Pids + 1
}

// mountOps compiles the spec's mounts, checked by descriptor, and says which of
// them are directories.
func (in *instance) mountOps() (ops []keeper.Op, dirs []bool, _ error) {
	for i, mt := range in.plan.Spec.Mounts {
		field := fmt.Sprintf("spec mounts[%d].", i)
		attr := uint32(keeper.AttrNoSuid | keeper.AttrNoDev)
		ro := mt.ReadOnly == nil || *mt.ReadOnly
		if ro {
			attr |= keeper.AttrReadOnly
		}
		op, mode, err := bindOp(mt.Target, mt.Source, attr, 0)
		if err != nil {
			return nil, nil, wrongSource(field+"source", err, "the source must exist and no part of its path may be a symbolic link")
		}
		if mode.Type() != 0 && !mode.IsDir() {
			return nil, nil, &belljar.Error{
				Code: belljar.CodeInvalidSpec, Op: field + "source", Message: mt.Source + " is a socket, device or FIFO", Hint: "only directories and regular files can be mounted",
			}
		}
		if err := in.checkSource(mt.Source); err != nil {
			err.Op = field + "source"
			return nil, nil, err
		}
		if !ro && !in.b.root {
			if err := in.checkGroupWrite(mt.Source); err != nil {
				err.Op = field + "source"
				return nil, nil, err
			}
		}
		if !ro && in.b.root && in.on[belljar.LayerUser] {
			uid, gid, err := owner(mt.Source)
			if err != nil {
				return nil, nil, &belljar.Error{Code: belljar.CodeInvalidSpec, Op: field + "source", Message: err.Error(), Err: err}
			}
			fd, err := in.b.idmap(uid, gid, in.base)
			if err != nil {
				return nil, nil, err
			}
			in.idmaps = append(in.idmaps, fd)
			op.IDMap = uint32(len(in.idmaps))
		}
		ops = append(ops, op)
		dirs = append(dirs, mode.IsDir())
	}
	return ops, dirs, nil
}

// nsOwner picks the host id that makes the sandbox's user namespace, which the kernel
// charges with what it counts per user. It is in the sandbox's range, not that of a
// program nor of PID 1, and hardly ever another sandbox's.
func (in *instance) nsOwner() uint32 { return in.base + 2048 + rand.Uint32N(61440) }

// writesHost reports whether files can be made that belong to somebody of the host.
func (in *instance) writesHost() bool {
	return !in.on[belljar.LayerRootfs] || slices.ContainsFunc(in.plan.Spec.Mounts, func(m belljar.Mount) bool { return m.ReadOnly != nil && !*m.ReadOnly })
}

// wrongSource is the caller's error, unless it is the supervisor that lacks something.
func wrongSource(op string, err error, hint string) error {
	if exhausted(err) {
		return err
	}
	return &belljar.Error{Code: belljar.CodeInvalidSpec, Op: op, Message: err.Error(), Err: err, Hint: hint}
}

// exhausted reports whether something is used up that the host or the supervisor may
// have again later.
func exhausted(err error) bool {
	for _, e := range []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOSPC, unix.EDQUOT} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// checkImage refuses an image as it would a mount's source.
func (in *instance) checkImage() error {
	_, mode, err := bindOp("", in.plan.Spec.Image, 0, 0)
	if err == nil && !mode.IsDir() {
		err = &fs.PathError{Op: "open", Path: in.plan.Spec.Image, Err: unix.ENOTDIR}
	}
	if err != nil {
		return wrongSource("spec image", err, imageHint)
	}
	if err := in.checkSource(in.plan.Spec.Image); err != nil {
		err.Op = "spec image"
		return err
	}
	return nil
}

// checkSource refuses sources that hand over this runtime's records: the state
// directory, what is below and what is above it, under whatever name.
func (in *instance) checkSource(src string) *belljar.Error {
	if in.plan.StateDir == "" {
		return nil
	}
	state, err := filepath.EvalSymlinks(filepath.Dir(filepath.Dir(in.plan.StateDir)))
	if err != nil {
		return &belljar.Error{Code: belljar.CodeUnavailable, Message: "state directory: " + err.Error(), Err: err}
	}
	same, err := os.Stat(state)
	above, aerr := os.Stat(src)
	if err := errors.Join(err, aerr); err != nil {
		return &belljar.Error{Code: belljar.CodeInvalidSpec, Message: err.Error(), Err: err}
	}
	if onTheWay(src, same) || onTheWay(state, above) {
		return &belljar.Error{Code: belljar.CodeInvalidSpec, Message: src + " holds the state directory, or is in it", Hint: "use another directory"}
	}
	return nil
}

// onTheWay reports whether a path without links leads through a directory or to it.
func onTheWay(p string, dir fs.FileInfo) bool {
	for {
		if fi, err := os.Stat(p); err == nil && os.SameFile(fi, dir) {
			return true
		}
		up := filepath.Dir(p)
		if up == p {
			return false
		}
		p = up
	}
}

// checkGroupWrite refuses a writable source that this user reaches only through a
// supplementary group: such groups cannot be dropped without privileges, so every
// program inside would have them everywhere.
func (in *instance) checkGroupWrite(src string) *belljar.Error {
	var st unix.Stat_t
	if err := unix.Stat(src, &st); err != nil {
		return &belljar.Error{Code: belljar.CodeInvalidSpec, Message: err.Error(), Err: err}
	}
	if int(st.Uid) == os.Geteuid() || st.Mode&0o002 != 0 || int(st.Gid) == os.Getegid() || st.Mode&0o020 == 0 {
		return nil
	}
	groups, err := os.Getgroups()
	if err != nil {
		return &belljar.Error{Code: belljar.CodeInvalidSpec, Message: "cannot tell by which group " + src + " is writable: " + err.Error(), Err: err}
	}
	if slices.Contains(groups, int(st.Gid)) {
		return &belljar.Error{
			Code: belljar.CodeInvalidSpec, Message: fmt.Sprintf("%s is writable only through the supplementary group %d, which cannot be dropped", src, st.Gid),
			Hint: "own the directory, or run belljar as root",
		}
	}
	return nil
}

// sandboxMsg compiles the plan to what the keeper carries out. The descriptors
// returned are to be closed after sending.
func (in *instance) sandboxMsg(tpl *template, mounts []keeper.Op, peer int) (*keeper.Msg, []int, error) {
	p := in.plan
	var closers []int
	m := keeper.NewMsg(keeper.MSandbox, 0)
	m.FDs = append(m.FDs, peer)
	var flags, ns uint32
	for l, bit := range nsFlag {
		if in.on[l] {
			ns |= bit
		}
	}
	in.fresh = p.Spec.Isolation.Fresh
	in.ownPid = !in.fresh && in.on[belljar.LayerPid] && (in.group == nil || in.group.Kind() == cgroup.V1) // without cgroup.kill the namespace is the kill domain
	uidmap := fmt.Sprintf("0 %d 65536", in.base)
	if !in.b.root {
		flags |= keeper.SBRootless
		ns &^= unix.CLONE_NEWUSER // the nursery's is the sandbox's
		uidmap = "-"
	}
	if in.on[belljar.LayerNet] {
		flags |= keeper.SBLo
	}
	if !in.on[belljar.LayerPid] {
		flags |= keeper.SBHostProc
	}
	if in.fresh || in.ownPid {
		flags |= keeper.SBOwnPids
	}
	if in.fresh {
		flags |= keeper.SBOwnIPC
	}
	if p.Persist {
		fd, err := listenAt(p.StateDir)
		if err != nil {
			return nil, closers, err
		}
		closers = append(closers, fd)
		m.FDs = append(m.FDs, fd)
		flags |= keeper.SBPersist
	}
	if in.group != nil {
		if fd := in.group.InitCloneFD(); fd >= 0 {
			flags |= keeper.SBCgroup
			m.FDs = append(m.FDs, fd)
		}
		procs := in.group.InitProcsFDs()
		flags |= uint32(len(procs)) << keeper.SBProcsShift
		m.FDs = append(m.FDs, procs...)
	}
	if p.Spec.Limits.DiskBacking == belljar.DiskDisk {
		fd, err := in.diskMount()
		if err != nil {
			return nil, closers, err
		}
		closers = append(closers, fd)
		m.FDs = append(m.FDs, fd)
		flags |= keeper.SBRWFD
	}
	m.FDs = append(m.FDs, in.idmaps...)
	in.idmaps = nil
	expire, err := expiry(p.Expires)
	if err != nil {
		return nil, closers, err
	}
	uid, gid, initid := uint32(userID), uint32(userID), uint32(initID)
	if !in.on[belljar.LayerUser] && in.b.root {
		// No user namespace: the host ids themselves.
		uid, gid, initid = in.base+userID, in.base+userID, in.base+initID
	}
	rw := "tmp"
	work := strings.TrimPrefix(p.Spec.WorkDir, "/")
	dirs := []keeper.Op{
		{Kind: keeper.OpDir, Mode: 0o755, A: work, B: "workspace"},
		{Kind: keeper.OpDir, Mode: 0o755, A: strings.TrimPrefix(userHome, "/"), B: "home"},
		{Kind: keeper.OpDir, Mode: 0o1777, A: "dev/shm", B: "shm"},
		{Kind: keeper.OpDir, Mode: 0o1777, A: "var/tmp", B: "vartmp"},
		{Kind: keeper.OpDir, Mode: 0o1777, A: "tmp", B: "tmp"}, // last: it covers the superblock's own root
	}
	var masks []keeper.Op
	if !in.on[belljar.LayerRootfs] {
		rw = work + "-tmp"
		dirs = []keeper.Op{dirs[0], dirs[2], {Kind: keeper.OpDir, Mode: 0o1777, A: rw, B: "tmp"}}
	} else {
		for _, name := range procMasks {
			o := keeper.Op{Kind: keeper.OpDir, A: "proc/" + strings.TrimSuffix(name, "/")}
			if strings.HasSuffix(name, "/") {
				o.Mode = 1
			}
			masks = append(masks, o)
		}
		if flags&keeper.SBHostProc != 0 {
			masks = nil // other processes' entries are in it all the same
		}
	}
	for _, d := range dirs {
		in.rwdirs = append(in.rwdirs, "/"+d.A)
	}
	m.U32(flags, tpl.id, ns, uint32(len(mounts))).U64(expire)
	m.U32(uid, gid, initid, uint32(os.Geteuid()), uint32(len(masks)), uint32(len(dirs)), uint32(2*len(uidmap)+2), in.nsOwner())
	m.Str(uidmap, uidmap)
	m.Str("belljar", fmt.Sprintf("size=%d,nr_inodes=%d,mode=0755", p.Spec.Limits.Disk, p.Spec.Limits.Inodes+8), rw)
	m.Ops(mounts...).Ops(dirs...).Ops(masks...)
	return m, closers, nil
}

// listenAt binds the socket by which a later supervisor finds the keeper.
func listenAt(dir string) (int, error) {
	d, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("state directory: %w", err)
	}
	defer unix.Close(d)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	// Through the descriptor: a state directory's path may be longer than sun_path.
	addr := &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/keeper.sock", d)}
	if err := unix.Bind(fd, addr); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("bind keeper.sock: %w", err)
	}
	if err := unix.Listen(fd, 8); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// end hangs up on a keeper that may be at work still and waits until it is gone, 2 s
// at most: until then it may put a process into the sandbox's group.
func end(c *keeper.Conn) {
	defer c.Close()
	if c.Hangup() != nil {
		return // closed before
	}
	limit := time.AfterFunc(2*time.Second, func() { c.Close() })
	defer limit.Stop()
	buf := make([]byte, 4096)
	for {
		_, _, fds, err := c.Recv(buf)
		for _, fd := range fds {
			unix.Close(fd)
		}
		if err != nil {
			return
		}
	}
}

func (in *instance) awaitReady(ctx context.Context) (err error) {
	stop := context.AfterFunc(ctx, func() { end(in.conn) })
	defer func() {
		if !stop() { // the connection is closed, or about to be
			err = context.Cause(ctx)
		}
	}()
	buf := make([]byte, 4096)
	h, body, fds, err := in.conn.Recv(buf)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, io.EOF) {
			return errors.New("keeper: ended during set-up")
		}
		return fmt.Errorf("keeper: %w", err)
	}
	switch {
	case h.Type == keeper.MReady && len(fds) == 2:
		in.pidfd, in.rootfd = fds[0], fds[1]
		in.ready, err = keeper.ParseReady(body)
		return err
	case h.Type == keeper.MFail:
		f, err := keeper.ParseFail(body)
		if err != nil {
			return err
		}
		return &StepError{f.Step, unix.Errno(f.Errno), f.Arg}
	}
	for _, fd := range fds {
		unix.Close(fd)
	}
	return keeper.ErrProtocol
}

// confine hands the keeper what every execution is locked down with, and writes
// the sandbox's report.
func (in *instance) confine(ch *choice) error {
	var lock uint32
	set := func(l belljar.Layer, bits uint32) {
		if in.on[l] {
			lock |= bits
		}
	}
	set(belljar.LayerNoNewPrivs, keeper.LockNNP)
	if in.on[belljar.LayerCaps] {
		lock |= keeper.LockCaps
	} else {
		lock |= keeper.LockKeepCaps
	}
	if in.b.root {
		lock |= keeper.LockIDs | keeper.LockGroups
	}
	m := keeper.NewMsg(keeper.MConfine, 0)
	var filter []byte
	if in.on[belljar.LayerSeccomp] {
		f, err := in.b.filter(filterKey{seccomp.Profile(in.plan.Spec.Isolation.Seccomp), in.writesHost()})
		if err != nil {
			return err
		}
		filter = f.Bytes()
		lock |= keeper.LockSeccomp
		ch.report[belljar.LayerSeccomp] = belljar.LayerReport{
			Layer: belljar.LayerSeccomp, Status: belljar.LayerApplied, Source: "keeper",
			Detail: fmt.Sprintf("profile %s, %d rules, %d instructions, sha256 %s", in.plan.Spec.Isolation.Seccomp, f.Rules(), f.Len(), f.Hash()),
		}
	}
	var err error
	if in.rwfd, err = in.openPath(in.rwdirs[len(in.rwdirs)-1]); err != nil {
		return err
	}
	if in.on[belljar.LayerLandlock] {
		f, detail, err := in.ruleset()
		if err != nil {
			return err
		}
		defer f.Close()
		lock |= keeper.LockLandlock
		m.FDs = append(m.FDs, int(f.Fd()))
		ch.report[belljar.LayerLandlock] = belljar.LayerReport{Layer: belljar.LayerLandlock, Status: belljar.LayerApplied, Detail: detail, Source: "keeper"}
	}
	m.U32(lock, uint32(len(filter))).Raw(filter)
	for _, r := range in.sandboxRlimits() {
		m.U32(uint32(r[0]), 0).U64(r[1], r[2])
	}
	if err := in.conn.Send(m); err != nil {
		return fmt.Errorf("keeper: %w", err)
	}
	in.report = belljar.Report{Mode: in.plan.Spec.Isolation.Mode}
	for _, l := range belljar.Layers {
		r, ok := ch.report[l]
		if !ok {
			r = in.layerDetail(l)
		}
		in.report.Layers = append(in.report.Layers, r)
	}
	return nil
}

func (in *instance) layerDetail(l belljar.Layer) belljar.LayerReport {
	r := belljar.LayerReport{Layer: l, Status: belljar.LayerApplied, Source: "keeper"}
	nsIndex := map[belljar.Layer]int{
		belljar.LayerUser: 0, belljar.LayerMount: 1, belljar.LayerPid: 2, belljar.LayerNet: 3, belljar.LayerIPC: 4, belljar.LayerUTS: 5, belljar.LayerCgroupNS: 6,
	}
	if i, ok := nsIndex[l]; ok {
		r.Source = "kernel read-back"
		r.Detail = fmt.Sprintf("namespace %d", in.ready.NS[i])
		switch {
		case l == belljar.LayerUser && in.b.root:
			r.Detail += fmt.Sprintf(", ids %d-%d of the host", in.base, in.base+65535)
		case l == belljar.LayerUser:
			r.Detail += fmt.Sprintf(", one id: %d is host uid %d", userID, os.Geteuid())
			if g, _ := os.Getgroups(); len(g) > 1 {
				r.Detail += fmt.Sprintf("; %d supplementary groups cannot be dropped", len(g))
			}
		case in.fresh && (l == belljar.LayerMount || l == belljar.LayerPid || l == belljar.LayerIPC):
			r.Detail += ", and a fresh one for each execution"
		case in.ownPid && (l == belljar.LayerMount || l == belljar.LayerPid):
			r.Detail += ", and a fresh one for each execution as its kill domain"
		}
		return r
	}
	switch l {
	case belljar.LayerRootfs:
		what := "the host's /usr and a built /etc"
		if in.plan.Spec.Image != "" {
			what = in.plan.Spec.Image
		}
		r.Detail = fmt.Sprintf("%s, read-only; writable: %s", what, strings.Join(in.rwdirs, " "))
	case belljar.LayerNoNewPrivs:
		r.Detail = "set before execve"
	case belljar.LayerCaps:
		r.Detail = "bounding, permitted, effective, inheritable and ambient sets empty"
	case belljar.LayerRlimits:
		r.Detail = "nofile " + strconv.FormatInt(in.plan.Spec.Limits.OpenFiles, 10) + ", core " + strconv.FormatInt(int64(in.plan.Spec.Limits.Core), 10)
	case belljar.LayerCgroup:
		r.Source = "kernel read-back"
		r.Detail = strings.Join(in.group.Paths(), " ")
	}
	return r
}

// openPath opens a place inside by descriptor, without following links.
func (in *instance) openPath(name string) (int, error) {
	fd, err := unix.Openat2(in.rootfd, clean(name), &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return fd, nil
}

// ruleset grants exactly the readable and the writable parts of the tree.
func (in *instance) ruleset() (*os.File, string, error) {
	abi := landlock.ABI()
	var rules []landlock.Rule
	var open []int
	defer func() {
		for _, fd := range open {
			unix.Close(fd)
		}
	}()
	add := func(name string, a landlock.Access) error {
		fd, err := in.openPath(name)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ELOOP) {
			return nil // not part of this tree
		}
		if err != nil {
			return err
		}
		open = append(open, fd)
		rules = append(rules, landlock.Rule{FD: fd, Access: a})
		return nil
	}
	readable := []string{"/"}
	if !in.on[belljar.LayerRootfs] {
		readable = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/dev", "/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime"}
	}
	var errs []error
	for _, p := range readable {
		errs = append(errs, add(p, landlock.ReadExec(abi)))
	}
	for _, p := range in.rwdirs {
		errs = append(errs, add(p, landlock.ReadWrite(abi)))
	}
	for _, mt := range in.plan.Spec.Mounts {
		if mt.ReadOnly != nil && !*mt.ReadOnly {
			errs = append(errs, add(mt.Target, landlock.ReadWrite(abi)))
		} else {
			errs = append(errs, add(mt.Target, landlock.ReadExec(abi)))
		}
	}
	for _, p := range []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/pts"} {
		errs = append(errs, add(p, landlock.DeviceRW(abi)))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, "", err
	}
	f, info, err := landlock.NewRuleset(rules)
	if err != nil {
		return nil, "", err
	}
	return f, fmt.Sprintf("ABI %d, %d rules", info.ABI, info.Rules), nil
}

// Report says what confines the sandbox.
func (in *instance) Report() belljar.Report { return in.report }

// Alive returns nil while the keeper and PID 1 are there.
func (in *instance) Alive(context.Context) error {
	select {
	case <-in.gone:
		in.mu.Lock()
		defer in.mu.Unlock()
		return in.goneErr()
	default:
	}
	in.fdMu.RLock()
	defer in.fdMu.RUnlock()
	if err := unix.PidfdSendSignal(in.pidfd, 0, nil, 0); err != nil {
		return &belljar.Error{Code: belljar.CodeDestroyed, Op: "sandbox", Message: "PID 1 is gone", Err: err}
	}
	return nil
}

func (in *instance) goneErr() error {
	if in.err != nil {
		return &belljar.Error{Code: belljar.CodeDestroyed, Op: "sandbox", Message: "the sandbox has ended: " + in.err.Error(), Err: in.err}
	}
	return &belljar.Error{Code: belljar.CodeDestroyed, Op: "sandbox", Message: "the sandbox has ended"}
}

// Usage is that of the whole sandbox.
func (in *instance) Usage(context.Context) (belljar.Usage, error) {
	if in.group == nil {
		return belljar.Usage{}, nil
	}
	u, err := in.group.Usage()
	return usageOf(u), err
}

func usageOf(u cgroup.Usage) belljar.Usage {
	ms := func(d time.Duration) *float64 {
		if d < 0 {
			return nil
		}
		v := float64(d) / 1e6
		return &v
	}
	n := func(v int64) *int64 {
		if v < 0 {
			return nil
		}
		return &v
	}
	return belljar.Usage{
		CPUTimeMs: ms(u.CPU), UserMs: ms(u.User), SystemMs: ms(u.System), PeakMemoryBytes: n(u.PeakMemory), PeakPids: n(u.PeakPids),
		IOReadBytes: n(u.IORead), IOWriteBytes: n(u.IOWrite),
	}
}

// read hands the keeper's messages on until it is gone.
func (in *instance) read() {
	buf := make([]byte, 4096)
	var err error
loop:
	for {
		var h keeper.Hdr
		var body []byte
		var fds []int
		h, body, fds, err = in.conn.Recv(buf)
		for _, fd := range fds {
			unix.Close(fd)
		}
		if err != nil {
			break
		}
		switch h.Type {
		case keeper.MExited:
			var x keeper.Exited
			if x, err = keeper.ParseExited(body); err != nil {
				break loop
			}
			in.mu.Lock()
			t := in.tasks[x.ID]
			delete(in.tasks, x.ID)
			in.mu.Unlock()
			if t != nil {
				t.exited = x
				close(t.done)
			}
		case keeper.MOOM:
			var id uint64
			if id, err = keeper.ParseTask(body); err != nil {
				break loop
			}
			in.mu.Lock()
			t := in.tasks[id]
			in.mu.Unlock()
			if t != nil {
				t.checkOOM()
			}
		case keeper.MFail:
			var f keeper.Fail
			if f, err = keeper.ParseFail(body); err != nil {
				break loop
			}
			in.mu.Lock()
			t := in.tasks[f.ID]
			delete(in.tasks, f.ID)
			in.mu.Unlock()
			if t == nil {
				err = &StepError{f.Step, unix.Errno(f.Errno), f.Arg}
				break loop
			}
			t.fail = &StepError{f.Step, unix.Errno(f.Errno), f.Arg}
			close(t.done)
		case keeper.MBye:
			err = nil
			break loop
		default:
			err = keeper.ErrProtocol
			break loop
		}
	}
	in.mu.Lock()
	if err != nil && !errors.Is(err, io.EOF) {
		in.err = err
	}
	tasks := in.tasks
	in.tasks = map[uint64]*task{}
	in.ending = true
	in.mu.Unlock()
	if err != nil {
		in.conn.Close() // whatever it was, the keeper ends with its connection
	}
	for _, t := range tasks {
		t.lost = true
		close(t.done)
	}
	close(in.gone)
}

// setFor takes a set for an execution and tells the keeper of it if it is new.
func (in *instance) setFor(l cgroup.Limits) (*cgroup.Set, uint32, error) {
	s, err := in.group.Acquire(l)
	if err != nil {
		return nil, 0, err
	}
	ix, err := in.register(s)
	if err != nil {
		return nil, 0, errors.Join(err, in.group.ReleaseSeen(s))
	}
	return s, ix, nil
}

// allowOwn raises the sandbox's limit on processes by what waits in its sets for an
// execution: on cgroup v2 that counts, and is not the caller's. in.mu is held.
func (in *instance) allowOwn() error {
	if in.group.Kind() != cgroup.V2 {
		return nil
	}
	each := int64(1)
	if in.fresh {
		each = 2
	}
	l := in.group.Limits()
	want := in.plan.Spec.Limits.Pids + 1 + each*int64(len(in.sets))
	if want <= l.Pids {
		return nil
	}
	l.Pids = want
	return in.group.SetLimits(l)
}

// register makes a set known to the keeper under an index.
func (in *instance) register(s *cgroup.Set) (uint32, error) {
	in.mu.Lock()
	r := in.sets[s]
	if r == nil {
		if len(in.free) == 0 {
			in.mu.Unlock()
			return 0, &belljar.Error{Code: belljar.CodeUnavailable, Op: "exec", Message: fmt.Sprintf("%d executions at once in one sandbox", keeper.MaxSets), Recoverable: true}
		}
		r = &setReg{index: in.free[len(in.free)-1]}
		in.free = in.free[:len(in.free)-1]
		in.sets[s] = r
		if err := in.allowOwn(); err != nil {
			in.mu.Unlock()
			return 0, err
		}
	}
	in.mu.Unlock()
	if r.sent && r.serial == s.Serial() {
		return r.index, nil
	}
	m := keeper.NewMsg(keeper.MSet, 0)
	var flags uint32
	if fd := s.CloneFD(); fd >= 0 {
		flags |= keeper.SetClone
		m.FDs = append(m.FDs, fd)
	}
	if k, e := s.KillFD(), s.EventsFD(); k >= 0 && e >= 0 {
		flags |= keeper.SetKill
		m.FDs = append(m.FDs, k, e)
	}
	if fd := s.OOMFD(); fd >= 0 {
		flags |= keeper.SetOOM
		m.FDs = append(m.FDs, fd)
	}
	if s.Renewed() {
		flags |= keeper.SetOnce
	}
	procs := s.ProcsFDs()
	m.FDs = append(m.FDs, procs...)
	m.U32(r.index, flags, uint32(len(procs)), 0)
	r.sent, r.serial = true, s.Serial()
	return r.index, in.conn.Send(m)
}

// hardMax are this process's hard limits of what is bounded for every program: no
// limit can be raised above them.
var hardMax = sync.OnceValue(func() (out [][3]uint64) {
	for _, r := range [][2]uint64{
		{unix.RLIMIT_MEMLOCK, 8 << 20}, {unix.RLIMIT_MSGQUEUE, 819200}, {unix.RLIMIT_SIGPENDING, 4096}, {unix.RLIMIT_NICE, 0}, {unix.RLIMIT_RTPRIO, 0},
	} {
		bound := r[1]
		var cur unix.Rlimit
		if unix.Getrlimit(int(r[0]), &cur) == nil {
			bound = min(bound, cur.Max)
		}
		out = append(out, [3]uint64{r[0], bound, bound})
	}
	return out
})

// rlimits compiles an execution's own limits that setrlimit(2) keeps.
func (in *instance) rlimits(l belljar.Limits) [][3]uint64 {
	if !in.on[belljar.LayerRlimits] {
		return nil
	}
	out := append(make([][3]uint64, 0, 3), [3]uint64{unix.RLIMIT_NOFILE, uint64(l.OpenFiles), uint64(l.OpenFiles)})
	if l.FileSize > 0 {
		out = append(out, [3]uint64{unix.RLIMIT_FSIZE, uint64(l.FileSize), uint64(l.FileSize)})
	}
	if in.group == nil {
		// Counted per user namespace and user since Linux 5.14: the whole sandbox, its keeper,
		// PID 1 and what waits for the next execution included.
		n := uint64(in.plan.Spec.Limits.Pids + 4)
		out = append(out, [3]uint64{unix.RLIMIT_NPROC, n, n})
	}
	return out
}

// sandboxRlimits are those of all executions: the keeper has them, and they inherit.
func (in *instance) sandboxRlimits() [][3]uint64 {
	if !in.on[belljar.LayerRlimits] {
		return nil
	}
	c := in.core()
	return append([][3]uint64{{unix.RLIMIT_CORE, c, c}}, hardMax()...)
}

// core is the sandbox's RLIMIT_CORE, which the filter lets nobody set later.
func (in *instance) core() uint64 {
	core := uint64(in.plan.Spec.Limits.Core)
	if core == 0 && pipedCore() {
		core = 1 // with 0 the kernel still runs the host's helper (core(5))
	}
	return core
}

func pipedCore() bool { return strings.HasPrefix(readProc("/proc/sys/kernel/core_pattern"), "|") }

// Start runs a process.
func (in *instance) Start(ctx context.Context, p *belljar.Process, sio belljar.Stdio) (belljar.Task, error) {
	files := []*os.File{sio.Stdin, sio.Stdout, sio.Stderr}
	defer func() {
		for _, f := range files {
			if f != nil {
				f.Close()
			}
		}
	}()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if slices.Contains(files, nil) {
		return nil, &belljar.Error{Code: belljar.CodeInternal, Op: "exec", Message: "all three streams are needed"}
	}
	uid, gid := uint32(userID), uint32(userID)
	if !in.on[belljar.LayerUser] && in.b.root {
		uid, gid = in.base+userID, in.base+userID
	}
	switch p.User {
	case "", userName:
	case "root":
		if !in.b.root {
			return nil, &belljar.Error{Code: belljar.CodeUnsupported, Op: "exec", Message: "user root needs more ids than an ordinary user can map", Hint: "run belljar as root", Recoverable: true}
		}
		uid, gid = uid-userID, gid-userID
	default:
		return nil, &belljar.Error{Code: belljar.CodeInvalidSpec, Op: "exec user", Message: fmt.Sprintf("no user %q", p.User), Hint: "user or root", Recoverable: true}
	}
	if p.Limits.Core != in.plan.Spec.Limits.Core {
		return nil, &belljar.Error{Code: belljar.CodeUnsupported, Op: "exec limits.core", Message: "it is the whole sandbox's", Hint: "set limits.core in the spec", Recoverable: true}
	}
	if uint64(p.Limits.OpenFiles) > in.noFile {
		return nil, &belljar.Error{Code: belljar.CodeInvalidSpec, Op: "exec limits.openFiles", Message: fmt.Sprintf("%d is above this host's hard limit of %d", p.Limits.OpenFiles, in.noFile), Recoverable: true}
	}
	if err := in.keepable(p.Limits); err != nil {
		return nil, err
	}
	t := &task{in: in, id: in.nextID.Add(1), done: make(chan struct{}), report: &in.report}
	m := keeper.NewMsg(keeper.MExec, 0)
	var flags, setIndex uint32
	if p.TTY {
		flags |= keeper.ExTTY
	}
	if in.fresh {
		flags |= keeper.ExFresh
	} else if in.ownPid {
		flags |= keeper.ExOwnPid
	}
	if in.group != nil {
		own := cgroup.Limits{Memory: int64(p.Limits.Memory)}
		if p.Limits.CPU != in.plan.Spec.Limits.CPU {
			own.CPU = p.Limits.CPU
		}
		if p.Limits.Pids != in.plan.Spec.Limits.Pids {
			own.Pids = p.Limits.Pids + in.ownPids()
		}
		s, ix, err := in.setFor(own)
		var u *cgroup.UnsupportedError
		if errors.As(err, &u) {
			e := unkept("exec limits", err)
			e.Recoverable = true
			return nil, e
		}
		if err != nil {
			return nil, err
		}
		t.set = s
		if p.Limits.CPUTime > 0 && in.plan.Spec.Limits.CPUTime == 0 {
			if _, err := s.CPU(); err != nil {
				e := unkept("exec limits.cpuTime", t.abort(err))
				e.Recoverable = true
				return nil, e
			}
		}
		setIndex = ix
		flags |= keeper.ExSet
	}
	paths := candidates(p.Args[0], p.Env)
	size := len(p.Dir) + 1
	for _, list := range [][]string{paths, p.Args, p.Env} {
		for _, s := range list {
			size += len(s) + 1
		}
	}
	for _, f := range files {
		m.FDs = append(m.FDs, int(f.Fd()))
	}
	for _, f := range sio.Extra {
		rc, err := f.SyscallConn()
		if err == nil {
			err = rc.Control(func(fd uintptr) { m.FDs = append(m.FDs, int(fd)) })
		}
		if err != nil {
			return nil, t.abort(err)
		}
	}
	flags |= uint32(len(sio.Extra)) << keeper.ExExtra
	if in.plan.Persist && sio.KeepStdout != nil {
		flags |= keeper.ExKeep
		keepIn := sio.KeepStdin
		if !p.TTY {
			// A second holder of stdin's writing end would keep the end of it from the program.
			keepIn = nil
		}
		for _, f := range []*os.File{keepIn, sio.KeepStdout, sio.KeepStderr} {
			if f == nil {
				f = sio.KeepStdout // the keeper wants three; an absent one is never asked for
			}
			rc, err := f.SyscallConn()
			if err != nil {
				return nil, t.abort(err)
			}
			if err := rc.Control(func(fd uintptr) { m.FDs = append(m.FDs, int(fd)) }); err != nil {
				return nil, t.abort(err)
			}
		}
	}
	big := size > keeper.MaxMsg-4096
	if big {
		flags |= keeper.ExBlob
	}
	limits := in.rlimits(p.Limits)
	m.U64(t.id, uint64(p.Timeout)).U32(flags, setIndex, uid, gid)
	m.U32(uint32(len(limits)), uint32(len(paths)), uint32(len(p.Args)), uint32(len(p.Env)), uint32(size), 0o022)
	m.Fixed(p.ID, keeper.IDLen)
	for _, r := range limits {
		m.U32(uint32(r[0]), 0).U64(r[1], r[2])
	}
	if big {
		blob := keeper.NewMsg(0, 0).Str(p.Dir).Str(paths...).Str(p.Args...).Str(p.Env...)
		fd, err := memfd(blob.Raw(nil).Body())
		if err != nil {
			return nil, t.abort(err)
		}
		defer unix.Close(fd)
		m.FDs = append([]int{fd}, m.FDs...)
	} else {
		m.Str(p.Dir).Str(paths...).Str(p.Args...).Str(p.Env...)
	}
	t.budget = p.Limits.CPUTime
	t.cores = float64(runtime.NumCPU())
	if c := p.Limits.CPU; c > 0 && c < t.cores {
		t.cores = c
	}
	if flags&keeper.ExKeep != 0 {
		t.kept, t.noStdin = true, !p.TTY || sio.KeepStdin == nil
		if err := t.save(); err != nil {
			return nil, t.abort(&belljar.Error{
				Code: belljar.CodeUnavailable, Op: "exec: state directory", Message: err.Error(), Err: err, Recoverable: true,
				Hint: "the state directory must be writable and its disk not full",
			})
		}
	}
	in.mu.Lock()
	if in.ending {
		err := in.goneErr()
		in.mu.Unlock()
		return nil, t.abort(err)
	}
	in.tasks[t.id] = t
	in.mu.Unlock()
	t.start = time.Now()
	if err := in.conn.Send(m); err != nil {
		in.mu.Lock()
		_, mine := in.tasks[t.id]
		delete(in.tasks, t.id)
		in.mu.Unlock()
		if mine {
			return nil, t.abort(&belljar.Error{Code: belljar.CodeDestroyed, Op: "exec", Message: "the sandbox has ended: " + err.Error(), Err: err})
		}
	}
	runtime.KeepAlive(files)
	runtime.KeepAlive(sio.Extra)
	t.armCPU()
	if in.fresh && t.set != nil {
		in.stock(t.id)
	}
	return t, nil
}

// freshSets is how many sets a sandbox has whose executions have namespaces of their
// own: while one is in use, the keeper makes namespaces for the others.
const freshSets = 3

// stock makes sets ahead, beside the execution of that number; not beside the first,
// which may be the only one.
func (in *instance) stock(id uint64) {
	in.mu.Lock()
	want := id > 1 && len(in.sets) < freshSets && !in.stocking
	in.stocking = in.stocking || want
	in.mu.Unlock()
	if !want {
		return
	}
	in.ahead.Go(func() {
		// A failure is that of the execution that then has to make its own.
		s, _, err := in.setFor(cgroup.Limits{Memory: int64(in.plan.Spec.Limits.Memory)})
		if err == nil {
			_ = in.group.ReleaseSeen(s)
		}
		in.mu.Lock()
		in.stocking = false
		in.mu.Unlock()
	})
}

// keepable refuses limits that a command writes and nothing here would keep; those
// of the spec were weighed when the sandbox was made.
func (in *instance) keepable(l belljar.Limits) error {
	base := in.plan.Spec.Limits
	for _, f := range []struct {
		name    string
		layer   belljar.Layer
		on      bool
		written bool
	}{
		{"cpu", belljar.LayerCgroup, in.group != nil, l.CPU != base.CPU},
		{"cpuTime", belljar.LayerCgroup, in.group != nil, l.CPUTime != base.CPUTime},
		{"memory", belljar.LayerCgroup, in.group != nil, l.Memory != base.Memory},
		{"openFiles", belljar.LayerRlimits, in.on[belljar.LayerRlimits], l.OpenFiles != base.OpenFiles},
		{"fileSize", belljar.LayerRlimits, in.on[belljar.LayerRlimits], l.FileSize != base.FileSize},
	} {
		if f.written && !f.on {
			e := unkept("exec limits."+f.name, fmt.Errorf("it needs the layer %s, which this sandbox does not have", f.layer))
			e.Recoverable = true
			if f.layer == belljar.LayerRlimits {
				e.Hint = "remove the override of isolation.layers." + string(f.layer)
			}
			return e
		}
	}
	return nil
}

// candidates lists where a program may be, as execvp(3) looks for it.
func candidates(arg0 string, env []string) []string {
	if strings.Contains(arg0, "/") {
		return []string{arg0}
	}
	search := "/usr/local/bin:/usr/bin:/bin"
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			search = v
		}
	}
	var out []string
	for _, d := range strings.Split(search, ":") {
		if d == "" {
			d = "."
		}
		out = append(out, path.Join(d, arg0))
	}
	return out
}

func memfd(b []byte) (int, error) {
	fd, err := unix.MemfdCreate("belljar-args", unix.MFD_CLOEXEC)
	if err != nil {
		return -1, err
	}
	for len(b) > 0 {
		n, err := unix.Write(fd, b)
		if err != nil {
			unix.Close(fd)
			return -1, err
		}
		b = b[n:]
	}
	return fd, nil
}

// Close ends the sandbox and waits until everything of it is gone, some 15 s at
// most. After a failure a further call tries again.
func (in *instance) Close(context.Context) error {
	in.closeMu.Lock()
	defer in.closeMu.Unlock()
	if in.closed {
		return nil
	}
	err := in.close()
	in.closed = err == nil
	return err
}

func (in *instance) close() error {
	_ = in.conn.Send(keeper.NewMsg(keeper.MEnd, 0)) // an error means that it is gone already
	limit := time.NewTimer(10 * time.Second)
	defer limit.Stop()
	var errs []error
	select {
	case <-in.gone:
	case <-limit.C:
		// It waits for processes that cannot be killed, or was stopped from outside.
		if in.group != nil {
			errs = append(errs, in.group.Kill())
		}
		_ = unix.PidfdSendSignal(in.pidfd, unix.SIGKILL, nil, 0)
		errs = append(errs, &belljar.Error{Code: belljar.CodeInternal, Op: "destroy", Message: "processes of the sandbox did not end within 10 s"})
	}
	in.conn.Close()
	in.b.mu.Lock()
	delete(in.b.live, in)
	in.b.mu.Unlock()
	in.ahead.Wait()
	if in.group != nil {
		errs = append(errs, in.unplace())
		if err := in.group.Close(2 * time.Second); err != nil {
			errs = append(errs, in.group.Kill(), in.group.Close(2*time.Second))
		}
	}
	if in.ownRoot != nil {
		errs = append(errs, in.ownRoot.Close())
	}
	in.closeFDs()
	if in.plan.Persist {
		err := os.Remove(filepath.Join(in.plan.StateDir, "keeper.sock"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (in *instance) closeFDs() {
	in.fdMu.Lock()
	defer in.fdMu.Unlock()
	for _, fd := range []*int{&in.pidfd, &in.rootfd, &in.rwfd} {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
}

// detach leaves a persistent sandbox to its keeper.
func (in *instance) detach() {
	in.mu.Lock()
	in.released = true
	in.mu.Unlock()
	in.conn.Close()
	<-in.gone
	in.ahead.Wait()
	in.b.mu.Lock()
	delete(in.b.live, in)
	in.b.mu.Unlock()
	in.closeFDs()
	if in.ownRoot != nil {
		_ = in.ownRoot.Close() // what is in use stays, for whoever adopts it
	}
}

// Pause freezes every process of the sandbox.
func (in *instance) Pause(context.Context) error { return in.freeze(true) }

// Resume thaws them.
func (in *instance) Resume(context.Context) error { return in.freeze(false) }

func (in *instance) freeze(on bool) error {
	if in.group == nil {
		return &belljar.Error{Code: belljar.CodeUnsupported, Op: "pause", Message: "pausing needs a cgroup", Hint: "run as root or in a delegated cgroup", Recoverable: true}
	}
	return in.group.Freeze(on)
}

// OpenTTY makes a terminal of the sandbox's own devpts instance, so that its
// name resolves inside and nothing it says reaches a terminal of the caller's.
func (in *instance) OpenTTY(rows, cols uint16) (master, slave *os.File, err error) {
	in.fdMu.RLock()
	mfd, err := unix.Openat2(in.rootfd, "dev/pts/ptmx", &unix.OpenHow{
		Flags: unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC | unix.O_NONBLOCK, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	in.fdMu.RUnlock()
	if err != nil {
		return nil, nil, &belljar.Error{Code: belljar.CodeUnsupported, Op: "tty", Message: err.Error(), Err: err, Recoverable: true}
	}
	if err := unix.IoctlSetPointerInt(mfd, unix.TIOCSPTLCK, 0); err != nil {
		unix.Close(mfd)
		return nil, nil, fmt.Errorf("unlock pty: %w", err)
	}
	sfd, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(mfd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		unix.Close(mfd)
		return nil, nil, fmt.Errorf("open pty: %w", errno)
	}
	if err := unix.IoctlSetWinsize(int(sfd), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols}); err != nil {
		unix.Close(mfd)
		unix.Close(int(sfd))
		return nil, nil, err
	}
	return os.NewFile(uintptr(mfd), "ptmx"), os.NewFile(sfd, "pts"), nil
}
