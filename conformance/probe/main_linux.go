// Command probe is the program of the conformance suite as a process. Build it static
// (CGO_ENABLED=0) and mount it into the sandbox.
package main

import (
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"belljar/conformance/inside"
)

func main() {
	os.Exit(inside.Main(&inside.Sys{
		Args: os.Args[1:], Env: os.Environ(), Dir: unix.Getwd,
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Catch: func(sigs ...syscall.Signal) <-chan syscall.Signal {
			in, out := make(chan os.Signal, 16), make(chan syscall.Signal, 16)
			for _, s := range sigs {
				signal.Notify(in, s)
			}
			go func() {
				for s := range in {
					out <- s.(syscall.Signal)
				}
			}()
			return out
		},
		Die: die,
		Spawn: func(args ...string) error {
			c := exec.Command(os.Args[0], args...)
			c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
			c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			return c.Start()
		},
		Sleep: func(d time.Duration) bool { time.Sleep(d); return true },
		Spin: func() {
			for x := uint32(1); x != 0; { // never
				x = x*1664525 | 1
			}
		},
		Alloc: func(n int64) {
			b := make([]byte, n)
			for i := 0; i < len(b); i += 4096 {
				b[i] = 1
			}
		},
		Fill: func(name string) error {
			f, err := os.Create(name)
			if err != nil {
				return err
			}
			defer f.Close()
			b := make([]byte, 1<<20)
			for range 1 << 20 {
				if _, err := f.Write(b); err != nil {
					return err
				}
			}
			return nil
		},
		Append: func(name string, data []byte) error {
			f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.Write(data)
			return err
		},
		Read:    os.ReadFile,
		Symlink: os.Symlink,
		Remove:  os.RemoveAll,
		Mkdir:   func(name string) error { return os.Mkdir(name, 0o755) },
		Mkfifo:  func(name string) error { return unix.Mkfifo(name, 0o600) },
		Sparse: func(name string, size int64) error {
			f, err := os.Create(name)
			if err != nil {
				return err
			}
			defer f.Close()
			return f.Truncate(size)
		},
		Listen: func(port int) error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			if err := unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
				return err
			}
			return unix.Listen(fd, 8) // it stays open as long as the process
		},
		Dial: func(port int) error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
		},
		Size: func() (uint16, uint16, error) {
			w, err := unix.IoctlGetWinsize(0, unix.TIOCGWINSZ)
			if err != nil {
				return 0, 0, err
			}
			return w.Row, w.Col, nil
		},
	}))
}

// die ends the process by a signal, which the Go runtime would catch otherwise:
// the default action is put back by hand.
func die(s syscall.Signal) {
	if s != syscall.SIGKILL && s != syscall.SIGSTOP {
		// struct sigaction of the kernel, all zero: SIG_DFL, no flags, empty mask
		var act [4]uintptr
		_ = rtSigaction(s, &act)
	}
	_ = unix.Kill(unix.Getpid(), s)
	time.Sleep(time.Second)
}
