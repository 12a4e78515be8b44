package native

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"runtime"
	"strconv"
	"strings"
	"time"

	"belljar"

	"golang.org/x/sys/unix"
)

// files are the primitives on a sandbox's own view, for a caller that trusts
// nothing in it. Every name is resolved by openat2(2) with RESOLVE_IN_ROOT
// against the sandbox's root directory: links inside are followed as they would
// be inside, and none leads out, however fast they are swapped. As root the
// calls are made with the file-system ids of the sandbox's user, so that the
// kernel checks permissions and charges quotas as it does for the programs.
type files struct {
	in *instance
}

// Files gives the sandbox's own view of its files.
func (in *instance) Files() belljar.Files { return files{in} }

// maxTries bounds how long a program that renames all the time can keep us looking.
const maxTries = 1000

const resolveInside = unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS

// errVanishing is what a look-up below the root ends with while the root is being
// taken down; in a living sandbox openat2(2) gives no EXDEV for what is asked here.
var errVanishing = fmt.Errorf("the root is going away: %w", unix.EXDEV)

// as runs f with the file-system ids of the sandbox's user. Those ids belong to
// a thread: Linux drops the overriding capabilities with them (capabilities(7)).
func (v files) as(f func() error) error {
	err := v.asUser(f)
	if !errors.Is(err, errVanishing) {
		return err
	}
	select {
	case <-v.in.gone:
		v.in.mu.Lock()
		defer v.in.mu.Unlock()
		return v.in.goneErr()
	case <-time.After(2 * time.Second):
		return err
	}
}

func (v files) asUser(f func() error) error {
	in := v.in
	select {
	case <-in.gone:
		in.mu.Lock()
		defer in.mu.Unlock()
		return in.goneErr()
	default:
	}
	in.fdMu.RLock()
	defer in.fdMu.RUnlock()
	if !in.b.root {
		return f()
	}
	runtime.LockOSThread()
	uid := int(in.base) + userID
	if err := setFSIDs(uid, uid); err != nil {
		// The thread is not what it was: it ends with this goroutine, locked.
		return err
	}
	ferr := f()
	if err := setFSIDs(0, 0); err != nil {
		return errors.Join(ferr, err)
	}
	runtime.UnlockOSThread()
	return ferr
}

var errIDs = errors.New("cannot change file-system ids")

func setFSIDs(uid, gid int) error {
	for _, c := range []struct {
		nr uintptr
		id int
	}{{unix.SYS_SETFSGID, gid}, {unix.SYS_SETFSUID, uid}} {
		_, _, _ = unix.RawSyscall(c.nr, uintptr(c.id), 0, 0)
		// The call reports no error; asking with an invalid id returns what is set.
		now, _, _ := unix.RawSyscall(c.nr, ^uintptr(0), 0, 0)
		if int(now) != c.id {
			return errIDs
		}
	}
	return nil
}

func clean(name string) string {
	p := strings.TrimPrefix(path.Clean("/"+name), "/")
	if p == "" {
		return "."
	}
	return p
}

func perr(op, name string, err error) error {
	if err == nil {
		return nil
	}
	var be *belljar.Error
	if errors.As(err, &be) {
		return err
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

func (v files) openat2(name string, flags int, mode uint32, extra uint64) (int, error) {
	if strings.ContainsRune(name, 0) {
		return -1, unix.EINVAL
	}
	for tries := 0; ; tries++ {
		fd, err := unix.Openat2(v.in.rootfd, clean(name), &unix.OpenHow{
			Flags: uint64(flags | unix.O_CLOEXEC), Mode: uint64(mode), Resolve: resolveInside | extra,
		})
		if err == unix.EINTR || err == unix.EAGAIN && tries < maxTries {
			continue // a rename on the way: the kernel asks to look again
		}
		if err == unix.EXDEV {
			return -1, errVanishing
		}
		return fd, err
	}
}

// parent opens the directory in which a name is, and returns its last element.
func (v files) parent(name string) (int, string, error) {
	p := clean(name)
	if p == "." {
		return -1, "", unix.EBUSY
	}
	fd, err := v.openat2(path.Dir(p), unix.O_PATH|unix.O_DIRECTORY, 0, 0)
	return fd, path.Base(p), err
}

// OpenFile opens a regular file or a directory.
func (v files) OpenFile(name string, flag int, perm fs.FileMode) (belljar.Handle, error) {
	var f *os.File
	err := v.as(func() error {
		// O_NONBLOCK so that a FIFO cannot hold us; what it is, is checked on the descriptor.
		fd, err := v.openat2(name, flag&^unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, permOf(flag, perm), 0)
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			unix.Close(fd)
			return err
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG, unix.S_IFDIR:
		default:
			unix.Close(fd)
			return errNotRegular
		}
		// Of proc, whose regular files may block or never end, nothing is for the supervisor.
		var sfs unix.Statfs_t
		if err := unix.Fstatfs(fd, &sfs); err == nil && sfs.Type == unix.PROC_SUPER_MAGIC && st.Mode&unix.S_IFMT == unix.S_IFREG {
			unix.Close(fd)
			return errNotRegular
		}
		if err := unix.SetNonblock(fd, false); err != nil {
			unix.Close(fd)
			return err
		}
		f = os.NewFile(uintptr(fd), name)
		return nil
	})
	if err != nil {
		return nil, perr("open", name, err)
	}
	return f, nil
}

var errNotRegular = errors.New("not a regular file or directory")

func permOf(flag int, perm fs.FileMode) uint32 {
	if flag&(os.O_CREATE|unix.O_TMPFILE) == 0 {
		return 0 // openat2 refuses a mode that is of no use
	}
	return uint32(perm.Perm())
}

// Mkdir makes a directory.
func (v files) Mkdir(name string, perm fs.FileMode) error {
	return perr("mkdir", name, v.as(func() error {
		fd, base, err := v.parent(name)
		if err != nil {
			if err == unix.EBUSY {
				return unix.EEXIST
			}
			return err
		}
		defer unix.Close(fd)
		return unix.Mkdirat(fd, base, uint32(perm.Perm()))
	}))
}

// Remove removes a file or an empty directory.
func (v files) Remove(name string) error {
	return perr("remove", name, v.as(func() error {
		fd, base, err := v.parent(name)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return removeAt(fd, base)
	}))
}

func removeAt(dir int, base string) error {
	err := unix.Unlinkat(dir, base, 0)
	if err == unix.EISDIR || err == unix.EPERM {
		if derr := unix.Unlinkat(dir, base, unix.AT_REMOVEDIR); derr != unix.ENOTDIR {
			return derr
		}
	}
	return err
}

// RemoveAll removes a tree. What is not there is no error.
func (v files) RemoveAll(name string) error {
	return perr("removeall", name, v.as(func() error {
		fd, base, err := v.parent(name)
		if err == unix.ENOENT {
			return nil
		}
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return removeTree(fd, base, 0)
	}))
}

const maxDepth = 4096

func removeTree(dir int, base string, depth int) error {
	err := removeAt(dir, base)
	if err == nil || err == unix.ENOENT {
		return nil
	}
	if err != unix.ENOTEMPTY && err != unix.EEXIST {
		return err
	}
	if depth > maxDepth {
		return unix.ELOOP
	}
	// Never through a link that was put in its place meanwhile.
	fd, err := unix.Openat(dir, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	d := os.NewFile(uintptr(fd), base)
	defer d.Close()
	for {
		names, rerr := d.Readdirnames(256)
		for _, n := range names {
			if err := removeTree(fd, n, depth+1); err != nil {
				return err
			}
		}
		if len(names) == 0 || rerr != nil {
			break
		}
		if _, err := d.Seek(0, 0); err != nil {
			return err
		}
	}
	if err := unix.Unlinkat(dir, base, unix.AT_REMOVEDIR); err != nil && err != unix.ENOENT {
		return err
	}
	return nil
}

// Rename moves within the sandbox.
func (v files) Rename(oldname, newname string) error {
	return perr("rename", oldname, v.as(func() error {
		ofd, ob, err := v.parent(oldname)
		if err != nil {
			return err
		}
		defer unix.Close(ofd)
		nfd, nb, err := v.parent(newname)
		if err != nil {
			return err
		}
		defer unix.Close(nfd)
		return unix.Renameat2(ofd, ob, nfd, nb, 0)
	}))
}

// Symlink makes a link; its target is a text that only means something inside.
func (v files) Symlink(target, name string) error {
	return perr("symlink", name, v.as(func() error {
		fd, base, err := v.parent(name)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Symlinkat(target, fd, base)
	}))
}

// Readlink reads a link.
func (v files) Readlink(name string) (string, error) {
	var to string
	err := v.as(func() error {
		fd, err := v.openat2(name, unix.O_PATH|unix.O_NOFOLLOW, 0, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(fd, "", buf)
		if err == unix.ENOENT {
			err = unix.EINVAL
		}
		if err != nil {
			return err
		}
		to = string(buf[:n])
		return nil
	})
	return to, perr("readlink", name, err)
}

// Stat follows links, inside.
func (v files) Stat(name string) (fs.FileInfo, error) { return v.stat("stat", name, 0) }

// Lstat does not follow the last one.
func (v files) Lstat(name string) (fs.FileInfo, error) {
	return v.stat("lstat", name, unix.O_NOFOLLOW)
}

func (v files) stat(op, name string, extra int) (fs.FileInfo, error) {
	var fi fs.FileInfo
	err := v.as(func() error {
		fd, err := v.openat2(name, unix.O_PATH|extra, 0, 0)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), path.Base("/"+clean(name)))
		defer f.Close()
		fi, err = f.Stat()
		return err
	})
	if err != nil {
		return nil, perr(op, name, err)
	}
	return fi, nil
}

// setID bits are the program's own affair and mean nothing on a nosuid mount.
func modeBits(mode fs.FileMode) uint32 {
	m := uint32(mode.Perm())
	if mode&fs.ModeSticky != 0 {
		m |= unix.S_ISVTX
	}
	return m
}

// Chmod changes the mode of a file or directory.
func (v files) Chmod(name string, mode fs.FileMode) error {
	return perr("chmod", name, v.as(func() error {
		fd, err := v.openat2(name, unix.O_PATH, 0, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return chmodFD(fd, modeBits(mode))
	}))
}

func chmodFD(fd int, mode uint32) error {
	// fchmodat2 with AT_EMPTY_PATH is Linux 6.6; before, the magic link of our own descriptor serves.
	err := unix.Fchmodat(fd, "", mode, unix.AT_EMPTY_PATH)
	if err == unix.ENOSYS || err == unix.EOPNOTSUPP || err == unix.EINVAL || err == unix.ENOENT {
		err = unix.Chmod(procFD(fd), mode)
	}
	return err
}

func procFD(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// Chtimes sets the modification time.
func (v files) Chtimes(name string, mtime time.Time) error {
	return perr("chtimes", name, v.as(func() error {
		fd, err := v.openat2(name, unix.O_PATH, 0, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(mtime.UnixNano())}
		return unix.UtimesNanoAt(unix.AT_FDCWD, procFD(fd), ts, 0)
	}))
}

// Watch reports changes in a directory until ctx ends.
func (v files) Watch(ctx context.Context, name string) (<-chan belljar.FileEvent, error) {
	ifd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, perr("watch", name, err)
	}
	err = v.as(func() error {
		fd, err := v.openat2(name, unix.O_PATH|unix.O_DIRECTORY, 0, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		const mask = unix.IN_CREATE | unix.IN_CLOSE_WRITE | unix.IN_MODIFY | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_ATTRIB | unix.IN_ONLYDIR
		_, err = unix.InotifyAddWatch(ifd, procFD(fd), mask)
		return err
	})
	if err != nil {
		unix.Close(ifd)
		return nil, perr("watch", name, err)
	}
	f := os.NewFile(uintptr(ifd), "inotify")
	ch := make(chan belljar.FileEvent, 64)
	ended := make(chan struct{})
	go func() {
		select {
		case <-v.in.gone:
		case <-ctx.Done():
		case <-ended:
		}
		f.Close() // a Read that waits returns
	}()
	go func() {
		defer close(ch)
		defer close(ended)
		buf := make([]byte, 64<<10)
		for {
			n, err := f.Read(buf)
			if err != nil {
				return
			}
			for _, ev := range parseInotify(buf[:n]) {
				select {
				case ch <- ev:
				case <-v.in.gone: // nobody may be reading any more
					return
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return ch, nil
}

// parseInotify reads the records of inotify(7).
func parseInotify(b []byte) []belljar.FileEvent {
	var out []belljar.FileEvent
	for len(b) >= unix.SizeofInotifyEvent {
		mask := uint32(b[4]) | uint32(b[5])<<8 | uint32(b[6])<<16 | uint32(b[7])<<24
		n := int(uint32(b[12]) | uint32(b[13])<<8 | uint32(b[14])<<16 | uint32(b[15])<<24)
		b = b[unix.SizeofInotifyEvent:]
		if n < 0 || n > len(b) {
			return out
		}
		name := strings.TrimRight(string(b[:n]), "\x00")
		b = b[n:]
		var op string
		switch {
		case mask&unix.IN_Q_OVERFLOW != 0:
			op = "overflow"
		case mask&unix.IN_CREATE != 0:
			op = "create"
		case mask&unix.IN_MOVED_TO != 0, mask&unix.IN_MOVED_FROM != 0:
			op = "rename"
		case mask&unix.IN_DELETE != 0:
			op = "remove"
		case mask&(unix.IN_CLOSE_WRITE|unix.IN_MODIFY) != 0:
			op = "write"
		case mask&unix.IN_ATTRIB != 0:
			op = "chmod"
		default:
			continue
		}
		out = append(out, belljar.FileEvent{Op: op, Name: name})
	}
	return out
}
