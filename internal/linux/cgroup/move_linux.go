package cgroup

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// AcquireMoved is [Group.Acquire] for a process that runs already and is moved in by
// [Set.Move]. Such a set never had a process of the caller's own in it, so that it can
// be killed as a whole.
func (g *Group) AcquireMoved(l Limits) (*Set, error) { return g.acquire(l, true) }

// Has reports whether a process is in this sandbox's groups, in every hierarchy.
func (g *Group) Has(pid int) (bool, error) { return g.r.within(pid, g.name) }

// Move puts a process with a single thread, which must be in this sandbox already,
// into the set, and reads back that it is there. On the v2 tree this waits for an RCU
// grace period, some 10 ms, when no process of the host was moved for a while; moves
// done one after another do not.
func (s *Set) Move(pid int) error {
	s.mu.Lock()
	procs, leaf := slices.Clone(s.procs), s.leaf
	s.mu.Unlock()
	text := strconv.Itoa(pid)
	for _, fd := range procs {
		if err := writeFD(fd, text); err != nil {
			return &OpError{"move", "v1", s.dir, "tasks", err}
		}
	}
	if leaf >= 0 {
		if err := put(leaf, "cgroup.procs", text); err != nil {
			return s.g.r.uni.fail("move", s.dir, "cgroup.procs", err)
		}
	}
	in, err := s.g.r.within(pid, s.g.name)
	if err == nil && !in {
		err = &OpError{"read back", "all", s.dir, "", unix.ESRCH}
	}
	return err
}

// within reports whether a process is in a group of that name below the top, or in
// a child of it, in each hierarchy. It believes the kernel's own list only.
func (r *Root) within(pid int, name string) (bool, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return false, err
	}
	for _, t := range r.trees {
		want := path.Join("/", path.Base(t.path), name)
		found := false
		for line := range strings.Lines(string(b)) {
			f := strings.SplitN(strings.TrimSpace(line), ":", 3)
			if len(f) == 3 && (f[1] == t.name || t.v2 && f[0] == "0") {
				found = strings.HasSuffix(f[2], want) || strings.Contains(f[2]+"/", want+"/")
			}
		}
		if !found {
			return false, nil
		}
	}
	return true, nil
}
