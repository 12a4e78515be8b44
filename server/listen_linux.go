package server

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"belljar"
)

// ListenUnix listens on a unix socket with mode 0600, in a directory that is
// made with mode 0700 when it is missing. A socket that nobody answers on is
// replaced if it belongs to this user; anything else of that name stays and is
// an error. The listener removes the socket when it is closed.
func ListenUnix(path string) (net.Listener, error) {
	fail := func(err error, hint string) (net.Listener, error) {
		return nil, &belljar.Error{Code: belljar.CodeUnavailable, Op: "listen " + path, Message: err.Error(), Err: err, Hint: hint}
	}
	if !filepath.IsAbs(path) || len(path) > 107 {
		return fail(errors.New("not an absolute path of at most 107 bytes"), "name another place")
	}
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fail(err, "make the directory above first")
	}
	// Whoever holds the lock may replace the socket: two that start at once never do.
	lock, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return fail(err, "")
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = lock.Close()
		return fail(errors.New("another daemon listens there"), "stop it, or name another socket")
	}
	if err := stale(path); err != nil {
		_ = lock.Close()
		return fail(err, "remove it, or name another socket")
	}
	// The mode has to be right from the first moment: nobody may connect before a chmod.
	old := unix.Umask(0o177)
	l, err := net.Listen("unix", path)
	unix.Umask(old)
	if err != nil {
		_ = lock.Close()
		return fail(err, "")
	}
	return &unixListener{l, lock}, nil
}

// stale removes a socket that nobody listens on.
func stale(path string) error {
	fi, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok || fi.Mode().Type() != fs.ModeSocket || int(st.Uid) != os.Geteuid() {
		return errors.New("something else has that name")
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = c.Close()
		return errors.New("another program listens there")
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}

// unixListener holds the lock for as long as it listens.
type unixListener struct {
	net.Listener
	lock *os.File
}

func (l *unixListener) Close() error { return errors.Join(l.Listener.Close(), l.lock.Close()) }

// Inherited returns the listeners that the service manager passed to this
// process (sd_listen_fds(3): LISTEN_PID, LISTEN_FDS); none is no error. The
// variables are taken out of the environment.
func Inherited() ([]net.Listener, error) {
	pid, fds := os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS")
	for _, v := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		if err := os.Unsetenv(v); err != nil {
			return nil, err
		}
	}
	if fds == "" || pid != strconv.Itoa(os.Getpid()) {
		return nil, nil
	}
	n, err := strconv.Atoi(fds)
	if err != nil || n < 0 || n > 64 {
		return nil, &belljar.Error{Code: belljar.CodeInvalidSpec, Op: "LISTEN_FDS", Message: fmt.Sprintf("not a number of descriptors: %.20q", fds)}
	}
	var ls []net.Listener
	for fd := 3; fd < 3+n; fd++ {
		unix.CloseOnExec(fd)
		f := os.NewFile(uintptr(fd), "listener")
		l, err := net.FileListener(f)
		_ = f.Close()
		if err != nil {
			return nil, &belljar.Error{Code: belljar.CodeInvalidSpec, Op: "LISTEN_FDS", Message: err.Error(), Err: err}
		}
		ls = append(ls, l)
	}
	return ls, nil
}
