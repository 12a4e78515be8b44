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

// maxTrees bounds the hierarchies in use: v2, memory, pids, cpu, cpuacct, freezer.
const maxTrees = 6

// tree is a runtime's top group in one hierarchy.
type tree struct {
	*hierarchy
	i    int    // index in Root.trees
	fd   int    // the top group
	path string // the same, for messages and the ledger
}

func (t *tree) fail(op, group, file string, err error) error {
	if err == nil {
		return nil
	}
	return &OpError{Op: op, Hierarchy: t.name, Group: path.Join(t.path, group), File: file, Err: err}
}

// mkdir makes a group; one that is already there is an error.
func (t *tree) mkdir(name string) error {
	return t.fail("mkdir", name, "", unix.Mkdirat(t.fd, name, 0o755))
}

// rmdir removes a group; one that is already gone is none.
func (t *tree) rmdir(name string) error {
	err := unix.Unlinkat(t.fd, name, unix.AT_REMOVEDIR)
	switch err {
	case nil, unix.ENOENT:
		return nil
	case unix.EBUSY:
		return t.fail("rmdir", name, "", fmt.Errorf("%w (%w)", ErrBusy, err))
	}
	return t.fail("rmdir", name, "", err)
}

func (t *tree) open(group, file string, flags int) (int, error) {
	fd, err := openBeneath(t.fd, path.Join(group, file), flags)
	if err != nil {
		return -1, t.fail("open", group, file, err)
	}
	return fd, nil
}

func (t *tree) put(group, file, val string) error {
	if err := put(t.fd, path.Join(group, file), val); err != nil {
		return t.fail("write "+strconv.Quote(val)+" to", group, file, err)
	}
	return nil
}

func (t *tree) get(group, file string) (string, error) {
	s, err := getString(t.fd, path.Join(group, file))
	return s, t.fail("read", group, file, err)
}

func (t *tree) has(group, file string) bool {
	return unix.Faccessat(t.fd, path.Join(group, file), unix.F_OK, 0) == nil
}

// Root is a runtime's own top group in every hierarchy that it needs. It is safe
// for concurrent use.
type Root struct {
	kind                      Kind
	tag                       string
	trees                     []*tree // the v2 tree first, where there is one
	uni, mem, pids, cpu, acct *tree   // homes; nil where the host has none
	freezer                   *tree
	io                        bool // v2 with the io controller
	swap                      bool // v1 memsw or v2 memory.swap.max is there
	sockets                   bool // v1 with a limit for socket buffers
	maxIdle                   int

	mu     sync.Mutex
	idle   []*Group
	live   map[string]*Group
	next   uint64
	closed bool
}

// Open makes, or takes over from a dead runtime, the top group "belljar-<tag>" in
// every hierarchy needed. While the Root is open it holds an flock(2) on it, which
// tells [Sweep] and other callers of Open that the owner is alive. What cannot be
// had is an [*UnsupportedError].
func Open(c Config) (*Root, error) {
	if !validTag(c.Tag) || c.Tag == "self" {
		return nil, fmt.Errorf("cgroup open: invalid tag %q", c.Tag)
	}
	if c.Parent != "" && (!path.IsAbs(c.Parent) || path.Clean(c.Parent) != c.Parent) {
		return nil, fmt.Errorf("cgroup open: parent %q is not a clean absolute path", c.Parent)
	}
	l, err := theLayout()
	if err != nil {
		return nil, Supported()
	}
	return open(l, c)
}

func open(l *layout, c Config) (_ *Root, err error) {
	r := &Root{kind: l.kind, tag: c.Tag, maxIdle: c.Idle, live: map[string]*Group{}}
	if c.Idle == 0 {
		r.maxIdle = 16
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.remove())
		}
	}()
	for _, h := range l.all() {
		t := &tree{hierarchy: h, i: len(r.trees), fd: -1}
		if err := r.openTree(l, t, c); err != nil {
			return nil, err
		}
		r.trees = append(r.trees, t)
		for _, home := range []struct {
			h *hierarchy
			t **tree
		}{{l.uni, &r.uni}, {l.mem, &r.mem}, {l.pids, &r.pids}, {l.cpu, &r.cpu}, {l.acct, &r.acct}, {l.freezer, &r.freezer}} {
			if home.h == h {
				*home.t = t
			}
		}
	}
	if r.cpu != nil && r.cpu.v2 && !r.cpu.has("", "cpu.max") {
		r.cpu = nil // offered by the hierarchy, but not delegated to the parent
	}
	r.io = r.uni != nil && r.uni.has("", "io.stat")
	r.swap = r.mem.has("", "memory.memsw.limit_in_bytes") || r.mem.has("", "memory.swap.max")
	r.sockets = !r.mem.v2 && r.mem.has("", socketLimit)
	return r, nil
}

// openTree makes the top group in one hierarchy.
func (r *Root) openTree(l *layout, t *tree, c Config) error {
	parent, err := l.place(t.hierarchy, c, false)
	if err != nil {
		return &UnsupportedError{"control groups in hierarchy " + t.name, remedy(l) + " (" + err.Error() + ")"}
	}
	t.path = path.Join(parent, topPrefix+c.Tag)
	at, err := openTop(parent, t.v2)
	if err != nil {
		return t.fail("open", "", "", err)
	}
	defer unix.Close(at)
	if err := unix.Mkdirat(at, topPrefix+c.Tag, 0o755); err != nil && err != unix.EEXIST {
		return t.fail("mkdir", "", "", err)
	}
	// place has tried whether it can be made, so it may be there without anybody's lock.
	unmake := func() { _ = unix.Unlinkat(at, topPrefix+c.Tag, unix.AT_REMOVEDIR) } // only what is empty; a sweep takes what remains
	if t.fd, err = openDir(at, topPrefix+c.Tag); err != nil {
		unmake()
		return t.fail("open", "", "", err)
	}
	if err := unix.Flock(t.fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		closeFD(&t.fd)
		if err == unix.EWOULDBLOCK {
			err = ErrInUse
		} else {
			unmake()
		}
		return t.fail("lock", "", "", err)
	}
	if l.controls(t.hierarchy) {
		enable, err := l.offers(t.fd)
		if err == nil {
			required, _ := l.need()
			err = enableControllers(t.fd, enable, required)
		}
		if err != nil {
			closeFD(&t.fd)
			return t.fail("write", "", "cgroup.subtree_control", err)
		}
	}
	return nil
}

// Kind returns the arrangement that the groups are made for.
func (r *Root) Kind() Kind { return r.kind }

// Tops returns the absolute paths of the top groups, for the ledger and [Sweep].
func (r *Root) Tops() []string {
	var out []string
	for _, t := range r.trees {
		out = append(out, t.path)
	}
	return out
}

// Close removes everything that is empty, and reports what is not. Groups that
// were not closed stay as they are, for [Open] and [Root.Reopen] of a later
// runtime.
func (r *Root) Close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	idle := r.idle
	r.idle = nil
	live := len(r.live)
	r.mu.Unlock()
	var errs []error
	for _, g := range idle {
		errs = append(errs, g.remove())
	}
	if live > 0 {
		errs = append(errs, fmt.Errorf("cgroup close %s%s: %d groups are not closed", topPrefix, r.tag, live))
	}
	return errors.Join(append(errs, r.remove())...)
}

// remove removes the top groups and gives up their descriptors.
func (r *Root) remove() error {
	var errs []error
	for _, t := range r.trees {
		if t.fd < 0 {
			continue
		}
		// By path from the parent: a directory cannot be removed through its own descriptor.
		parent, err := openTop(path.Dir(t.path), t.v2)
		if err == nil {
			err = unix.Unlinkat(parent, path.Base(t.path), unix.AT_REMOVEDIR)
			unix.Close(parent)
		}
		if err == unix.EBUSY {
			left, _ := subdirs(t.fd)
			err = fmt.Errorf("%w: %d groups are left: %q", err, len(left), left[:min(len(left), 8)])
		}
		if err != nil && err != unix.ENOENT {
			errs = append(errs, t.fail("rmdir", "", "", err))
		}
		closeFD(&t.fd)
	}
	return errors.Join(errs...)
}

// Group gives a sandbox its groups with the limits l, which were read back. id is
// for messages only; the name of the tree, which may be an idle one used before,
// is [Group.Name].
func (r *Root) Group(id string, l Limits) (*Group, error) {
	if err := r.check(l); err != nil {
		return nil, err
	}
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil, fmt.Errorf("cgroup group %s: %w", id, ErrClosed)
	}
	var g *Group
	if n := len(r.idle); n > 0 {
		g, r.idle = r.idle[n-1], r.idle[:n-1]
		r.live[g.name] = g
	}
	r.mu.Unlock()
	if g != nil {
		err := g.reuse(id, l)
		if err == nil {
			return g, nil
		}
		// A tree that cannot be reused is no reason to fail: it goes, and a new one is made.
		r.forget(g)
		if rerr := g.remove(); rerr != nil {
			return nil, errors.Join(err, rerr)
		}
	}
	g, err := r.create(id)
	if err != nil {
		return nil, err
	}
	if err := g.SetLimits(l); err != nil {
		r.forget(g)
		return nil, errors.Join(err, g.remove())
	}
	return g, nil
}

func (r *Root) forget(g *Group) {
	r.mu.Lock()
	delete(r.live, g.name)
	r.mu.Unlock()
}

// check refuses limits that this host cannot enforce.
func (r *Root) check(l Limits) error {
	if l.CPU < 0 || l.Memory < 0 || l.Pids < 0 || l.CPU != l.CPU {
		return fmt.Errorf("cgroup limits %+v: negative", l)
	}
	if l.Memory > 0 && l.Memory < 4096 {
		return fmt.Errorf("cgroup limits: %d bytes of memory are less than a page", l.Memory)
	}
	if l.CPU > 0 && r.cpu == nil {
		return &UnsupportedError{"cpu rate limit", "the cpu controller; under systemd: Delegate=cpu for the unit, and cpu among the controllers of user@.service"}
	}
	return nil
}

// create makes a new tree under the next free name.
func (r *Root) create(id string) (*Group, error) {
	for {
		r.mu.Lock()
		r.next++
		name := "g" + strconv.FormatUint(r.next, 10)
		r.mu.Unlock()
		g := newGroup(r, name, id)
		err := r.trees[0].mkdir(name)
		if errors.Is(err, unix.EEXIST) {
			continue // left by a dead runtime
		}
		if err == nil {
			for _, t := range r.trees[1:] {
				// Without the first hierarchy's directory what is there is a remainder.
				if err = t.mkdir(name); errors.Is(err, unix.EEXIST) {
					err = nil
				}
				if err != nil {
					break
				}
			}
			if err == nil {
				err = g.furnish()
			}
			if err == nil {
				err = g.attach()
			}
		}
		if err != nil {
			return nil, errors.Join(err, g.remove())
		}
		r.mu.Lock()
		r.live[name] = g
		r.mu.Unlock()
		return g, nil
	}
}

// Reopen takes back the group of this name that a dead runtime of the same tag
// left. Sets with processes are taken back by [Group.Adopt]; until then they are
// only known to be there.
func (r *Root) Reopen(name, id string) (*Group, error) {
	if !numbered(name, 'g') {
		return nil, fmt.Errorf("cgroup reopen: invalid name %q", name)
	}
	r.mu.Lock()
	_, dup := r.live[name]
	for _, g := range r.idle {
		dup = dup || g.name == name
	}
	if dup || r.closed {
		r.mu.Unlock()
		return nil, fmt.Errorf("cgroup reopen %s: %w", name, ErrInUse)
	}
	g := newGroup(r, name, id)
	r.live[name] = g
	r.mu.Unlock()
	err := g.attach()
	if err == nil {
		err = g.readLimits()
	}
	if err == nil {
		err = g.findSets()
	}
	if err != nil {
		r.forget(g)
		g.closeAll()
		return nil, err
	}
	return g, nil
}

// Left lists the groups below the tops that this Root neither made nor reopened:
// remainders of a dead runtime, for Reopen or [Root.Remove].
func (r *Root) Left() ([]string, error) {
	var out []string
	for _, t := range r.trees {
		names, err := subdirs(t.fd)
		if err != nil {
			return nil, t.fail("read", "", "", err)
		}
		r.mu.Lock()
		for _, n := range names {
			known := !numbered(n, 'g') || r.live[n] != nil || slices.Contains(out, n)
			for _, g := range r.idle {
				known = known || g.name == n
			}
			if !known {
				out = append(out, n)
			}
		}
		r.mu.Unlock()
	}
	return out, nil
}

// Remove kills and removes a group that [Root.Left] reported.
func (r *Root) Remove(name string, wait time.Duration) error {
	r.mu.Lock()
	_, live := r.live[name]
	for _, g := range r.idle {
		live = live || g.name == name
	}
	r.mu.Unlock()
	if live || !numbered(name, 'g') {
		return fmt.Errorf("cgroup remove %q: %w", name, ErrInUse)
	}
	var errs []error
	for _, t := range r.trees {
		errs = append(errs, sweepGroup(t, name, wait))
	}
	return errors.Join(errs...)
}
