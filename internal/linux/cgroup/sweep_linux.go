package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// sweepWait is how long Sweep waits for killed processes to be gone.
const sweepWait = 2 * time.Second

// Sweep removes the groups of a dead runtime, given the paths that [Root.Tops]
// returned to it. The paths may be forged: each must name a directory
// "belljar-<tag>" below a mounted control group hierarchy, reached without a
// symbolic link, whose flock no live runtime holds, and only groups in it
// named as this package names them are touched. Processes are killed only through
// cgroup.kill of such a group, found beneath the top's descriptor; in the v1
// hierarchies only what is empty is removed.
func Sweep(tops []string) error {
	mi, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	mounts := parseMounts(string(mi))
	var trees []*tree
	defer func() {
		for _, t := range trees {
			closeFD(&t.fd)
		}
	}()
	var errs []error
	for _, p := range tops {
		t, err := sweepTop(mounts, p)
		if err != nil {
			errs = append(errs, err)
		} else if t != nil {
			trees = append(trees, t)
		}
	}
	// The v2 tree first: once its groups are killed the v1 groups are empty.
	for _, v2 := range []bool{true, false} {
		for _, t := range trees {
			if t.v2 == v2 {
				errs = append(errs, sweepTree(t))
			}
		}
	}
	return errors.Join(errs...)
}

// sweepTop opens and locks a top group; nil when it is gone.
func sweepTop(mounts []hierarchy, p string) (*tree, error) {
	if _, ok := topTag(path.Base(p)); !ok || !path.IsAbs(p) || path.Clean(p) != p {
		return nil, fmt.Errorf("cgroup sweep %q: not the path of a %s group", p, topPrefix)
	}
	var best *hierarchy
	for i := range mounts {
		m := &mounts[i]
		if strings.HasPrefix(p, m.mount+"/") && (best == nil || len(m.mount) >= len(best.mount)) {
			best = m
		}
	}
	if best == nil {
		return nil, fmt.Errorf("cgroup sweep %q: not below a control group hierarchy", p)
	}
	t := &tree{hierarchy: best, path: p}
	mount, err := openTop(best.mount, best.v2)
	if err != nil {
		return nil, t.fail("open", "", "", err)
	}
	defer unix.Close(mount)
	t.fd, err = openDir(mount, p[len(best.mount)+1:])
	if err == unix.ENOENT {
		return nil, nil
	}
	if err != nil {
		return nil, t.fail("open", "", "", err)
	}
	if err := unix.Flock(t.fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		closeFD(&t.fd)
		if err == unix.EWOULDBLOCK {
			err = ErrInUse
		}
		return nil, t.fail("lock", "", "", err)
	}
	return t, nil
}

func sweepTree(t *tree) error {
	names, err := subdirs(t.fd)
	if err != nil {
		return t.fail("read", "", "", err)
	}
	var errs []error
	for _, n := range names {
		if !numbered(n, 'g') {
			errs = append(errs, fmt.Errorf("cgroup sweep %s/%s: not made by this package, left alone", t.path, n))
			continue
		}
		errs = append(errs, sweepGroup(t, n, sweepWait))
	}
	parent, err := openTop(path.Dir(t.path), t.v2)
	if err == nil {
		err = unix.Unlinkat(parent, path.Base(t.path), unix.AT_REMOVEDIR)
		unix.Close(parent)
	}
	if err != nil && err != unix.ENOENT {
		errs = append(errs, t.fail("rmdir", "", "", err))
	}
	return errors.Join(errs...)
}

// sweepGroup removes one sandbox's group in one hierarchy, in v2 after killing
// its members.
func sweepGroup(t *tree, name string, wait time.Duration) error {
	dir, err := openDir(t.fd, name)
	if err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return t.fail("open", name, "", err)
	}
	defer unix.Close(dir)
	if t.v2 {
		if err := killAndWait(dir, wait); err != nil {
			return t.fail("kill", name, "", err)
		}
	}
	kids, err := subdirs(dir)
	if err != nil {
		return t.fail("read", name, "", err)
	}
	var errs []error
	for _, k := range kids {
		if k != initLeaf && !numbered(k, 's') {
			errs = append(errs, fmt.Errorf("cgroup sweep %s/%s/%s: not made by this package, left alone", t.path, name, k))
			continue
		}
		errs = append(errs, t.rmdir(path.Join(name, k)))
	}
	return errors.Join(append(errs, t.rmdir(name))...)
}

// killAndWait kills the members of a v2 group, if there are any, and waits
// until they are gone.
func killAndWait(dir int, wait time.Duration) error {
	events, err := openBeneath(dir, "cgroup.events", unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer unix.Close(events)
	n, err := getField(events, "populated")
	if err != nil || n == 0 {
		return err
	}
	// A frozen group dies too: SIGKILL ends a frozen task on v2.
	if err := put(dir, "cgroup.kill", "1"); err != nil {
		return err
	}
	ok, err := waitField(events, "populated", 0, wait)
	if err == nil && !ok {
		err = ErrBusy
	}
	return err
}
