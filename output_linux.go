package belljar

import (
	"os"

	"golang.org/x/sys/unix"
)

const oNofollow = unix.O_NOFOLLOW

// outPipe makes a pipe whose read end stays here and is polled, and whose write
// end is the program's: blocking, because programs do not expect EAGAIN.
func outPipe() (r, w *os.File, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	if err := setFlags(p[0], unix.O_NONBLOCK); err != nil {
		_ = unix.Close(p[0])
		_ = unix.Close(p[1])
		return nil, nil, err
	}
	return os.NewFile(uintptr(p[0]), "|0"), os.NewFile(uintptr(p[1]), "|1"), nil
}

// inPipe makes a pipe whose write end stays here and is polled.
func inPipe() (r, w *os.File, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	if err := setFlags(p[1], unix.O_NONBLOCK); err != nil {
		_ = unix.Close(p[0])
		_ = unix.Close(p[1])
		return nil, nil, err
	}
	return os.NewFile(uintptr(p[0]), "|0"), os.NewFile(uintptr(p[1]), "|1"), nil
}

// emptyPipe returns the read end of a pipe that nobody writes to. Each execution
// gets its own: a pipe can be opened for writing through /proc/self/fd, so a
// shared one would be a channel between sandboxes.
func emptyPipe() (*os.File, error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("pipe2", err)
	}
	_ = unix.Close(p[1])
	return os.NewFile(uintptr(p[0]), "|0"), nil
}

func setFlags(fd, flags int) error {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags)
	return os.NewSyscallError("fcntl", err)
}

// resizeTTY sets the size of a terminal through its master.
func resizeTTY(master *os.File, rows, cols uint16) error {
	c, err := master.SyscallConn()
	if err != nil {
		return err
	}
	var ioctlErr error
	if err := c.Control(func(fd uintptr) {
		ioctlErr = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	}); err != nil {
		return err
	}
	return os.NewSyscallError("ioctl TIOCSWINSZ", ioctlErr)
}
