package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

func readLayout() (*layout, error) {
	mi, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	self, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	hs := hierarchies(string(mi), string(self))
	keep := hs[:0]
	for _, h := range hs {
		if h.v2 {
			b, err := os.ReadFile(path.Join(h.mount, "cgroup.controllers"))
			if err != nil {
				continue
			}
			for _, c := range strings.Fields(string(b)) {
				h.controllers[Controller(c)] = true
			}
			if !hasKill(&h) {
				if h.controllers[Memory] {
					return nil, &UnsupportedError{"control groups", "cgroup.kill on the v2 tree at " + h.mount + " (Linux 5.14)"}
				}
				continue // the v1 controllers do without it
			}
		}
		keep = append(keep, h)
	}
	return newLayout(keep)
}

// hasKill looks for cgroup.kill in a group that has it on every kernel that
// knows it: any but the root.
func hasKill(h *hierarchy) bool {
	for _, dir := range []string{h.own, h.mount} {
		if dir == "" {
			continue
		}
		if _, err := os.Lstat(path.Join(dir, "cgroup.kill")); err == nil {
			return true
		}
	}
	d, err := os.ReadDir(h.mount)
	if err != nil {
		return false
	}
	for _, e := range d {
		if e.IsDir() {
			_, err := os.Lstat(path.Join(h.mount, e.Name(), "cgroup.kill"))
			return err == nil
		}
	}
	// A tree without any group: the release decides.
	var u unix.Utsname
	var major, minor int
	if unix.Uname(&u) != nil {
		return false
	}
	fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor)
	return major > 5 || major == 5 && minor >= 14
}

// parents returns the directories to try as parent of a top group, best first.
func (l *layout) parents(h *hierarchy, parent string) []string {
	if parent != "" {
		return []string{path.Join(h.mount, parent)}
	}
	own := h.own
	if path.Base(own) == selfLeaf {
		own = path.Dir(own)
	}
	if own == "" {
		return []string{h.mount}
	}
	if l.controls(h) && own != h.mount && os.Geteuid() == 0 {
		return []string{own, h.mount}
	}
	return []string{own}
}

// need lists the controllers wanted from the v2 tree; the optional ones are
// taken where they are offered.
func (l *layout) need() (required, optional []Controller) {
	add := func(to *[]Controller, h *hierarchy, c Controller) {
		if h != nil && h.v2 {
			*to = append(*to, c)
		}
	}
	add(&required, l.mem, Memory)
	add(&required, l.pids, Pids)
	add(&optional, l.cpu, CPU)
	if len(required) > 0 {
		optional = append(optional, IO)
	}
	return required, optional
}

// offers checks a v2 parent: which controllers children of it would get, and what
// of these is still to be switched on.
func (l *layout) offers(fd int) (enable []Controller, err error) {
	avail, err := getString(fd, "cgroup.controllers")
	if err != nil {
		return nil, err
	}
	on, err := getString(fd, "cgroup.subtree_control")
	if err != nil {
		return nil, err
	}
	has := func(list string, c Controller) bool {
		for f := range strings.FieldsSeq(list) {
			if f == string(c) {
				return true
			}
		}
		return false
	}
	required, optional := l.need()
	for _, c := range required {
		if !has(avail, c) {
			return nil, fmt.Errorf("controller %s is not delegated to it", c)
		}
		if !has(on, c) {
			enable = append(enable, c)
		}
	}
	for _, c := range optional {
		if has(avail, c) && !has(on, c) {
			enable = append(enable, c)
		}
	}
	return enable, nil
}

// occupied reports whether a v2 group holds processes and may therefore not hand
// controllers to children. The root of the tree may.
func occupied(fd int) ([]int, error) {
	if _, err := get(fd, "cgroup.type"); err == unix.ENOENT {
		return nil, nil
	}
	b, err := get(fd, "cgroup.procs")
	if err != nil {
		return nil, err
	}
	if p := pidList(b); len(p) > 0 {
		return p, nil
	}
	if len(b) > 0 {
		return []int{0}, nil // processes of another pid namespace
	}
	return nil, nil
}

// delegate makes a v2 parent hand the needed controllers to its children.
func (l *layout) delegate(fd int, moveSelf, dry bool) error {
	enable, err := l.offers(fd)
	if err != nil || len(enable) == 0 {
		return err
	}
	required, _ := l.need()
	must := false
	for _, c := range enable {
		for _, r := range required {
			must = must || c == r
		}
	}
	procs, err := occupied(fd)
	if err != nil {
		return err
	}
	if len(procs) > 0 {
		if !must {
			return nil // only optional ones are missing
		}
		if !moveSelf || len(procs) != 1 || procs[0] != os.Getpid() {
			return errOccupied
		}
		if dry {
			return nil
		}
		if err := unix.Mkdirat(fd, selfLeaf, 0o755); err != nil && err != unix.EEXIST {
			return fmt.Errorf("mkdir %s: %w", selfLeaf, err)
		}
		if err := put(fd, selfLeaf+"/cgroup.procs", "0"); err != nil {
			return fmt.Errorf("move this process to %s: %w", selfLeaf, err)
		}
	}
	if dry {
		if err := unix.Faccessat(fd, "cgroup.subtree_control", unix.W_OK, unix.AT_EACCESS); err != nil {
			return fmt.Errorf("cgroup.subtree_control is not writable: %w", err)
		}
		return nil
	}
	return enableControllers(fd, enable, required)
}

// enableControllers switches controllers on one by one; only a required one's
// refusal is an error.
func enableControllers(fd int, enable, required []Controller) error {
	for _, c := range enable {
		err := put(fd, "cgroup.subtree_control", "+"+string(c))
		if err == nil {
			continue
		}
		for _, r := range required {
			if r == c {
				return fmt.Errorf("switch on %s for children: %w", c, err)
			}
		}
	}
	return nil
}

var errOccupied = errors.New("it holds processes, so it cannot hand controllers to children")

// remedy says how to get writable groups.
func remedy(l *layout) string {
	if os.Geteuid() != 0 {
		if l.kind == V2 {
			return "a delegated group: systemd-run --user --scope -p Delegate=yes COMMAND, with leave to move that process to a child group (MoveSelf), or a service with Delegate=yes and DelegateSubgroup="
		}
		return "root, or groups in the v1 hierarchies that belong to this user; v1 controllers cannot be delegated by systemd"
	}
	return "writable control groups: in a container, a private cgroup namespace with /sys/fs/cgroup mounted read-write; under systemd, Delegate=yes"
}

// place finds the parent directory in a hierarchy by trying to make a group.
func (l *layout) place(h *hierarchy, c Config, dry bool) (string, error) {
	// With the name of a real group, that is made and stays; else one is made and removed.
	var errs []error
	for _, p := range l.parents(h, c.Parent) {
		err := func() error {
			fd, err := openTop(p, h.v2)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			name := topPrefix + c.Tag
			if dry {
				name = fmt.Sprintf("%sprobe_%d", topPrefix, os.Getpid())
			}
			made := unix.Mkdirat(fd, name, 0o755)
			if made != nil && made != unix.EEXIST {
				return fmt.Errorf("mkdir: %w", made)
			}
			if dry {
				if err := unix.Unlinkat(fd, name, unix.AT_REMOVEDIR); err != nil && err != unix.ENOENT {
					return fmt.Errorf("rmdir: %w", err)
				}
			}
			if l.controls(h) {
				err = l.delegate(fd, c.MoveSelf, dry)
			}
			if err != nil && made == nil && !dry { // the next parent may do
				err = errors.Join(err, unix.Unlinkat(fd, name, unix.AT_REMOVEDIR))
			}
			return err
		}()
		if err == nil {
			return p, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", p, err))
	}
	return "", errors.Join(errs...)
}

// theLayout is what the process was started in.
var theLayout = sync.OnceValues(readLayout)

var detect = sync.OnceValues(func() (Host, *layout) {
	h := Host{Mounts: map[Controller]string{}, Parents: map[Controller]string{}}
	l, err := theLayout()
	if err != nil {
		h.Reason = err.Error()
		var u *UnsupportedError
		if errors.As(err, &u) {
			h.Remedy = u.Needs
		}
		return h, nil
	}
	h.Kind = l.kind
	var errs []error
	for _, x := range l.all() {
		p, err := l.place(x, Config{}, true)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", x.name, err))
		}
		for c, y := range map[Controller]*hierarchy{Unified: l.uni, Memory: l.mem, Pids: l.pids, CPU: l.cpu, CPUAcct: l.acct, Freezer: l.freezer} {
			if x == y {
				h.Mounts[c] = x.mount
				if err == nil {
					h.Parents[c] = p
				}
			}
		}
	}
	if len(errs) > 0 {
		h.Reason = errors.Join(errs...).Error()
		h.Remedy = remedy(l)
	}
	return h, l
})

// Detect returns the arrangement of control groups, read once per process from
// /proc/self/mountinfo and /proc/self/cgroup and tried by making and removing a group
// in each hierarchy. The maps of the result must not be changed.
func Detect() Host {
	h, _ := detect()
	return h
}

// Supported returns nil when [Open] with a zero Parent can be expected to work,
// else an [*UnsupportedError]. With [Config.MoveSelf] Open may work though
// Supported says no.
func Supported() error {
	h := Detect()
	if h.Reason == "" {
		return nil
	}
	needs := h.Remedy
	if h.Reason != "" {
		needs += " (" + strings.ReplaceAll(h.Reason, "\n", "; ") + ")"
	}
	return &UnsupportedError{Feature: "control groups", Needs: needs}
}
