//go:build unix

package fake

import (
	"os"

	"golang.org/x/sys/unix"
)

const nonblock = unix.O_NONBLOCK

// interruptible duplicates a process's end so that closing it wakes a program
// that is reading or writing: what a kill does to a real process.
func interruptible(f *os.File) (*os.File, error) {
	fd, err := dup(f)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// duplicate duplicates a supervisor's end, which is in non-blocking mode and
// stays so.
func duplicate(f *os.File) (*os.File, error) {
	fd, err := dup(f)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

func dup(f *os.File) (fd int, err error) {
	c, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	if e := c.Control(func(p uintptr) { fd, err = unix.FcntlInt(p, unix.F_DUPFD_CLOEXEC, 3) }); e != nil {
		return -1, e
	}
	return fd, os.NewSyscallError("fcntl", err)
}
