//go:build unix

package remote

import (
	"os"
	"syscall"

	v1 "belljar/api/belljar/v1"
)

// OpenTTY implements [belljar.TTYOpener]: the terminal is the daemon's; here are
// the two ends of what carries its bytes.
func (in *instance) OpenTTY(rows, cols uint16) (master, slave *os.File, err error) {
	p, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	for _, fd := range p {
		syscall.CloseOnExec(fd)
		if err := syscall.SetNonblock(fd, true); err != nil {
			return nil, nil, err
		}
	}
	master, slave = os.NewFile(uintptr(p[0]), "tty"), os.NewFile(uintptr(p[1]), "tty")
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.ttys == nil {
		in.ttys = map[*os.File]*v1.TTY{}
	}
	in.ttys[slave] = &v1.TTY{Rows: uint32(rows), Cols: uint32(cols)}
	return master, slave, nil
}
