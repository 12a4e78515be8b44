package attack

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// object makes the n-th kernel object of a kind.
func object(kind string, n int) error {
	var err error
	switch kind {
	case "inotify":
		_, err = unix.InotifyInit1(0)
	case "watches":
		// Each instance can watch a file once: all files in each of them.
		const files = 2000
		if n < files {
			if err := os.WriteFile("w"+strconv.Itoa(n), nil, 0o600); err != nil {
				return err
			}
		}
		if n%files == 0 {
			if keepFd, err = unix.InotifyInit1(0); err != nil {
				return err
			}
		}
		_, err = unix.InotifyAddWatch(keepFd, "w"+strconv.Itoa(n%files), unix.IN_ALL_EVENTS)
	case "terminals":
		_, err = unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY, 0)
	case "aio":
		var ctx uintptr
		_, _, e := unix.Syscall(unix.SYS_IO_SETUP, 128, uintptr(unsafe.Pointer(&ctx)), 0)
		if e != 0 {
			err = e
		}
	case "connections":
		err = connection()
	default:
		err = unix.EINVAL
	}
	return err
}

// objects makes args[1] objects of kind args[0] and reports success when it got all.
func objects(r *Report, args []string) {
	kind, want := arg(args, 0, ""), number(args, 1, 1)
	n, err := making(kind, want)
	r.step(fmt.Sprintf("%s: %d of %d", kind, n, want), n == want, errText(err))
}

func making(kind string, want int) (n int, err error) {
	for n = 0; n < want; n++ {
		if err = object(kind, n); err != nil {
			break
		}
	}
	return n, err
}

// holdObjects makes as many as it can, at most args[1], and keeps them.
func holdObjects(args []string) int {
	n, err := making(arg(args, 0, ""), number(args, 1, 1))
	fmt.Println("ready with", n, errText(err))
	for {
		time.Sleep(time.Hour)
	}
}

// connection is one between two sockets of this process, through the loopback.
func connection() error {
	a, err := listener()
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	if err := unix.Connect(fd, a); err != nil {
		return err
	}
	_, _, err = unix.Accept(listenFd)
	return err
}

var listenFd = -1

func listener() (unix.Sockaddr, error) {
	if listenFd < 0 {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		if err != nil {
			return nil, err
		}
		if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
			return nil, err
		}
		if err := unix.Listen(fd, 64); err != nil {
			return nil, err
		}
		listenFd = fd
	}
	return unix.Getsockname(listenFd)
}

// fillTCP leaves what it sends over one connection unread, and returns how much that is.
func fillTCP() (int, error) {
	a, err := listener()
	if err != nil {
		return 0, err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return 0, err
	}
	if err := unix.Connect(fd, a); err != nil {
		return 0, err
	}
	if _, _, err := unix.Accept(listenFd); err != nil {
		return 0, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return 0, err
	}
	total, buf := 0, make([]byte, 64<<10)
	for quiet := 0; quiet < 3; {
		n, err := unix.Write(fd, buf)
		if err != nil {
			quiet++ // what is under way makes room once it has arrived
			time.Sleep(time.Millisecond)
			continue
		}
		total += n
	}
	return total, nil
}

// fillUDP leaves datagrams unread in one socket's buffer.
func fillUDP() (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return 0, err
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 8*mib)
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, err
	}
	a, err := unix.Getsockname(fd)
	if err != nil {
		return 0, err
	}
	buf := make([]byte, 32<<10)
	for range 400 { // beyond the largest buffer: the kernel drops what has no room
		if err := unix.Sendto(fd, buf, 0, a); err != nil {
			break
		}
	}
	var mem [9]uint32 // SO_MEMINFO: the first is what is allocated for receiving
	size := uint32(unsafe.Sizeof(mem))
	if _, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO, uintptr(unsafe.Pointer(&mem)), uintptr(unsafe.Pointer(&size)), 0); e != 0 {
		return 0, e
	}
	return int(mem[0]), nil
}

// setIDFiles makes files with set-id bits below args[0] in every way.
func setIDFiles(r *Report, args []string) {
	dir := arg(args, 0, ".")
	unix.Umask(0)
	const mode = 0o6755
	// The mode of open(2) is an argument; the caller looks at what is there afterwards.
	open := func(name string, f func(path string) error) {
		p := filepath.Join(dir, name)
		err := f(p)
		var st unix.Stat_t
		if unix.Lstat(p, &st) != nil {
			st.Mode = 0
		}
		r.step(name, st.Mode&unix.S_IFMT == unix.S_IFREG && st.Mode&0o6000 != 0, errText(err))
	}
	plain := func(f func(path string) error) func(string) error {
		return func(p string) error {
			if err := os.WriteFile(p, []byte("#!/bin/sh\n"), 0o755); err != nil {
				return err
			}
			return f(p)
		}
	}
	open("plain", plain(func(string) error { return nil }))
	open("chmod", plain(func(p string) error { return unix.Chmod(p, mode) }))
	open("fchmodat", plain(func(p string) error { return unix.Fchmodat(unix.AT_FDCWD, p, mode, 0) }))
	open("fchmodat2", plain(func(p string) error {
		return errno(unix.Syscall6(unix.SYS_FCHMODAT2, uintptr(at()), cstr(p), mode, 0, 0, 0))
	}))
	open("fchmod", plain(func(p string) error {
		fd, err := unix.Open(p, unix.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Fchmod(fd, mode)
	}))
	open("open", func(p string) error {
		fd, err := unix.Open(p, unix.O_CREAT|unix.O_WRONLY, mode)
		if err == nil {
			_ = unix.Close(fd)
		}
		return err
	})
	open("openat2", func(p string) error {
		fd, err := unix.Openat2(unix.AT_FDCWD, p, &unix.OpenHow{Flags: unix.O_CREAT | unix.O_WRONLY, Mode: mode})
		if err == nil {
			_ = unix.Close(fd)
		}
		return err
	})
	open("mknod", func(p string) error { return unix.Mknod(p, unix.S_IFREG|mode, 0) })
	open("tmpfile", func(p string) error {
		fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_WRONLY, mode)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, p, unix.AT_SYMLINK_FOLLOW)
	})
}

// syncAll flushes what is not this program's.
func syncAll(r *Report, args []string) {
	_, _, e := unix.Syscall(unix.SYS_SYNC, 0, 0, 0)
	r.step("sync", e == 0, e.Error())
	for _, name := range append([]string{"/", "/usr", "/etc"}, args...) {
		fd, err := unix.Open(name, unix.O_RDONLY, 0)
		if err != nil {
			continue
		}
		r.try("syncfs "+name, unix.Syncfs(fd))
		_ = unix.Close(fd)
	}
}

// strangers are children with this program's parent for theirs (CLONE_PARENT): one
// that stays, or with "stream" one after the other without end.
func strangers(stream bool) error {
	const flags = unix.CLONE_PARENT | uintptr(unix.SIGCHLD)
	pid, _, e := unix.RawSyscall6(unix.SYS_CLONE, flags, 0, 0, 0, 0, 0)
	if e != 0 {
		return e
	}
	for pid == 0 {
		if !stream {
			unix.RawSyscall(unix.SYS_PPOLL, 0, 0, 0)
			continue
		}
		if pid, _, _ = unix.RawSyscall6(unix.SYS_CLONE, flags, 0, 0, 0, 0, 0); pid != 0 {
			unix.RawSyscall(unix.SYS_EXIT_GROUP, 9, 0, 0)
		}
	}
	return nil
}

// serve accepts connections to args[0] of the loopback.
func serve(args []string) int {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: number(args, 0, 0)})
	}
	if err == nil {
		err = unix.Listen(fd, 8)
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("ready")
	for {
		if c, _, err := unix.Accept(fd); err == nil {
			_ = unix.Close(c)
		}
	}
}
