package fake

import (
	"os"

	"golang.org/x/sys/unix"

	"belljar"
)

var _ belljar.TTYOpener = (*instance)(nil)

// OpenTTY implements [belljar.TTYOpener] with a pseudo-terminal of the host.
func (i *instance) OpenTTY(rows, cols uint16) (master, slave *os.File, err error) {
	if err := i.b.fault("tty"); err != nil {
		return nil, nil, err
	}
	m, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, &os.PathError{Op: "open", Path: "/dev/ptmx", Err: err}
	}
	master = os.NewFile(uintptr(m), "ptmx")
	s, err := func() (uintptr, error) {
		if err := unix.IoctlSetPointerInt(m, unix.TIOCSPTLCK, 0); err != nil {
			return 0, os.NewSyscallError("ioctl TIOCSPTLCK", err)
		}
		if err := unix.IoctlSetWinsize(m, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols}); err != nil {
			return 0, os.NewSyscallError("ioctl TIOCSWINSZ", err)
		}
		fd, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(m), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
		if errno != 0 {
			return 0, os.NewSyscallError("ioctl TIOCGPTPEER", errno)
		}
		return fd, nil
	}()
	if err != nil {
		_ = master.Close()
		return nil, nil, err
	}
	return master, os.NewFile(s, "pts"), nil
}
