package cgroup

import (
	"errors"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// beneath keeps a look-up below its descriptor, on its own mount, without
// following any link: names come from directories that others can write to.
const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

func openBeneath(at int, name string, flags int) (int, error) {
	how := unix.OpenHow{Flags: uint64(flags) | unix.O_CLOEXEC | unix.O_NOFOLLOW, Resolve: beneath}
	for {
		fd, err := unix.Openat2(at, name, &how)
		if err != unix.EINTR && err != unix.EAGAIN {
			return fd, err
		}
	}
}

func openDir(at int, name string) (int, error) {
	return openBeneath(at, name, unix.O_RDONLY|unix.O_DIRECTORY)
}

// openTop opens an absolute directory and checks that it is on a cgroup file
// system of the wanted version.
func openTop(path string, v2 bool) (int, error) {
	how := unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC | unix.O_NOFOLLOW, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS}
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &how)
	if err != nil {
		return -1, err
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		unix.Close(fd)
		return -1, err
	}
	want := int64(unix.CGROUP_SUPER_MAGIC)
	if v2 {
		want = unix.CGROUP2_SUPER_MAGIC
	}
	if int64(st.Type) != want {
		unix.Close(fd)
		return -1, unix.EMEDIUMTYPE
	}
	return fd, nil
}

func closeFD(fds ...*int) {
	for _, fd := range fds {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
}

// writeFD writes in one call: the kernel takes a control file's value whole. It
// repeats after EINTR, which a limit that has to reclaim answers when
// the Go runtime preempts the thread by a signal.
func writeFD(fd int, val string) error {
	for {
		_, err := unix.Pwrite(fd, []byte(val), 0)
		if err != unix.EINTR {
			return err
		}
	}
}

func put(at int, name, val string) error {
	fd, err := openBeneath(at, name, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return writeFD(fd, val)
}

// readFD reads a control file from its start into b.
func readFD(fd int, b []byte) ([]byte, error) {
	for {
		n, err := unix.Pread(fd, b, 0)
		if err != unix.EINTR {
			return b[:max(n, 0)], err
		}
	}
}

// get returns a whole file.
func get(at int, name string) ([]byte, error) {
	fd, err := openBeneath(at, name, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var out []byte
	b := make([]byte, 4096)
	for {
		n, err := unix.Read(fd, b)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return out, err
		case n == 0:
			return out, nil
		}
		out = append(out, b[:n]...)
	}
}

func getString(at int, name string) (string, error) {
	b, err := get(at, name)
	return strings.TrimSpace(string(b)), err
}

// getField returns one number of a flat keyed file, or with an empty key the
// file's single number.
func getField(fd int, key string) (uint64, error) {
	var a [1024]byte
	b, err := readFD(fd, a[:])
	if err != nil {
		return 0, err
	}
	n, ok := number(b)
	if key != "" {
		n, ok = field(b, key)
	}
	if !ok {
		return 0, errFormat
	}
	return n, nil
}

var errFormat = errors.New("unexpected contents")

// subdirs lists the directories in a directory.
func subdirs(fd int) ([]string, error) {
	// A descriptor of our own, because reading moves the offset.
	d, err := openDir(fd, ".")
	if err != nil {
		return nil, err
	}
	defer unix.Close(d)
	var out []string
	buf := make([]byte, 8192)
	for {
		n, err := unix.ReadDirent(d, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return out, err
		}
		if n <= 0 {
			break
		}
		_, _, names := unix.ParseDirent(buf[:n], -1, nil)
		for _, name := range names {
			var st unix.Stat_t
			if unix.Fstatat(d, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
				out = append(out, name)
			}
		}
	}
	return out, nil
}

// waitField waits until a field of an events file has the wanted value. The
// kernel announces changes by POLLPRI. It may hold one back that follows another
// within 10 ms (cgroup_file_notify; not seen on Linux 6.18, where executions are as
// short as that), so the first waits are short.
func waitField(fd int, key string, want uint64, timeout time.Duration) (bool, error) {
	end := time.Now().Add(timeout)
	for step := 100 * time.Microsecond; ; step *= 2 {
		n, err := getField(fd, key)
		if err != nil {
			return false, err
		}
		if n == want {
			return true, nil
		}
		left := time.Until(end)
		if left <= 0 {
			return false, nil
		}
		if step > 20*time.Millisecond {
			step = left
		}
		ts := unix.NsecToTimespec(int64(min(step, left)))
		if _, err := unix.Ppoll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLPRI}}, &ts, nil); err != nil && err != unix.EINTR {
			return false, err
		}
	}
}

// drain empties an eventfd and reports whether it had been signalled.
func drain(fd int) bool {
	var b [8]byte
	n, _ := unix.Read(fd, b[:])
	return n == 8
}

// signalMembers sends a signal to the members of the group at dir. Each is held
// by a pidfd and then looked for in the group again, so that a number that has
// meanwhile gone to a process elsewhere is not hit.
func signalMembers(dir int, sig unix.Signal) (int, error) {
	first, err := get(dir, "cgroup.procs")
	if err != nil {
		return 0, err
	}
	held := map[int]int{}
	defer func() {
		for _, fd := range held {
			unix.Close(fd)
		}
	}()
	var errs []error
	for _, pid := range pidList(first) {
		if _, dup := held[pid]; dup { // v1 lists a process once per reader's snapshot, maybe twice
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err == unix.ESRCH {
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		held[pid] = fd
	}
	second, err := get(dir, "cgroup.procs")
	if err != nil {
		return 0, err
	}
	sent := 0
	for _, pid := range pidList(second) {
		fd, ok := held[pid]
		if !ok {
			continue
		}
		delete(held, pid)
		err := unix.PidfdSendSignal(fd, sig, nil, 0)
		unix.Close(fd)
		if err == nil {
			sent++
		} else if err != unix.ESRCH {
			errs = append(errs, err)
		}
	}
	return sent, errors.Join(errs...)
}
