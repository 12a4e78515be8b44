package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"belljar"
)

// faultEntries take away what the supervisor itself needs, and give it back.
func faultEntries() []Entry {
	var out []Entry
	for _, persist := range []bool{false, true} {
		suffix, title := "", ""
		if persist {
			suffix, title = "-persist", ", of sandboxes that outlive their supervisor"
		}
		out = append(out,
			Entry{ID: "E7-full" + suffix, Guarantee: "E7", Title: "no room on the disk of the state directory" + title, Knob: "a full disk", Needs: needsRoot, Run: func(ctx context.Context, e *Env) error {
				return stateFault(ctx, e, persist, func(dir string) (func() error, error) {
					name := filepath.Join(dir, "filler")
					return func() error { return os.Remove(name) }, fillUp(name)
				})
			}},
			Entry{ID: "E7-readonly" + suffix, Guarantee: "E7", Title: "a state directory that became read-only" + title, Knob: "a read-only file system", Run: func(ctx context.Context, e *Env) error {
				return stateFault(ctx, e, persist, func(dir string) (func() error, error) {
					dir = filepath.Join(dir, "sandboxes")
					if os.Getuid() != 0 {
						return func() error { return os.Chmod(dir, 0o700) }, os.Chmod(dir, 0o500)
					}
					// Over itself: what is open for writing forbids it for the whole.
					if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
						return func() error { return nil }, err
					}
					repair := func() error { return unix.Unmount(dir, unix.MNT_DETACH) }
					return repair, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
				})
			}})
	}
	return out
}

// fillUp writes until there is no room for another byte.
func fillUp(name string) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	for n := 64 << 10; n > 0 && err == nil; {
		if _, err = f.Write(make([]byte, n)); errors.Is(err, unix.ENOSPC) {
			n, err = n/2, nil
		}
	}
	return errors.Join(err, f.Close())
}

// stateFault makes sandboxes before, during and after a fault of the state directory.
func stateFault(ctx context.Context, e *Env, persist bool, fault func(dir string) (repair func() error, err error)) error {
	base, err := e.Dir()
	if err != nil {
		return err
	}
	state := filepath.Join(base, "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		return err
	}
	if os.Getuid() == 0 {
		if err := unix.Mount("lab", state, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=1m,mode=0700"); err != nil {
			return err
		}
		e.later(func() { _ = unix.Unmount(state, unix.MNT_DETACH) })
	}
	rt, err := e.Runtime(ctx, belljar.Config{StateDir: state, Persist: persist})
	if err != nil {
		return err
	}
	short := func(s *belljar.Spec) { s.TTL = 5 * 60e9 }
	older, err := e.BoxOf(ctx, rt, short)
	if err != nil {
		return err
	}
	before, fds := e.records(state), openDescriptors()
	repair := func() error { return nil }
	if !e.Weak() {
		if repair, err = fault(state); err != nil {
			return errors.Join(err, repair())
		}
	}
	for range 3 {
		sb, err := rt.Create(ctx, e.spec(short))
		if err == nil {
			err = sb.Destroy(ctx)
			e.Broken("a sandbox was made that no later supervisor would know of: %v", err)
			break
		}
		var be *belljar.Error
		e.Note("create: %v", err)
		e.Check(errors.As(err, &be) && be.Code != belljar.CodeInternal && be.Hint != "", "create: %#v", err)
	}
	res, err := older.Exec(ctx, "echo", "works")
	var be *belljar.Error
	switch {
	case err != nil:
		e.Note("exec in an older sandbox: %v", err)
		e.Check(errors.As(err, &be) && be.Code != belljar.CodeInternal, "exec in an older sandbox: %#v", err)
	default:
		e.Check(string(res.Stdout) == "works\n", "an older sandbox: %s, stdout %q", ended(res), cut(res.Stdout))
	}
	if err := repair(); err != nil {
		return fmt.Errorf("repair: %w", err)
	}
	_, ok := until(ctx, 2e9, func() bool { return openDescriptors() <= fds+4 })
	e.Check(ok, "descriptors %d, then %d", fds, openDescriptors())
	e.Check(strings.Join(e.records(state), " ") == strings.Join(before, " "), "records %q, then %q", before, e.records(state))
	b, err := e.BoxOf(ctx, rt, short)
	if err != nil {
		return fmt.Errorf("after the repair: %w", err)
	}
	usable(ctx, e, older)
	return controlRuns(ctx, e, b)
}

// records are the names in a ledger.
func (e *Env) records(state string) []string {
	ents, err := os.ReadDir(filepath.Join(state, "sandboxes"))
	if err != nil {
		e.Note("%v", err)
	}
	var names []string
	for _, ent := range ents {
		names = append(names, ent.Name())
	}
	return names
}
