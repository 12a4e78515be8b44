//go:build unix

package fake

import (
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Mkfifo makes a FIFO, as a hostile program would. The directory must not be
// swapped meanwhile: tests only.
func (p *Proc) Mkfifo(name string) error {
	return files{p.t.i}.do("mkfifo", name, func(rel string) error {
		return unix.Mkfifo(filepath.Join(p.t.i.dir, strings.TrimPrefix(rel, "/")), 0o600)
	})
}

// TTYSize returns the size of the terminal.
func (p *Proc) TTYSize() (rows, cols uint16, err error) {
	c, err := p.t.stdio[0].SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	var w *unix.Winsize
	if e := c.Control(func(fd uintptr) { w, err = unix.IoctlGetWinsize(int(fd), unix.TIOCGWINSZ) }); e != nil {
		return 0, 0, e
	}
	if err != nil {
		return 0, 0, os.NewSyscallError("ioctl TIOCGWINSZ", err)
	}
	return w.Row, w.Col, nil
}
