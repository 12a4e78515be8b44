package attendant

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// conn carries frames, the first bytes of which may carry descriptors.
type conn struct {
	c  *net.UnixConn
	mu sync.Mutex // one writer at a time
}

func (c *conn) send(v any, files ...*os.File) error {
	b, err := encodeFrame(v)
	if err != nil {
		return err
	}
	var oob []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			// Fd would make the descriptor blocking.
			raw, err := f.SyscallConn()
			if err != nil {
				return err
			}
			if err := raw.Control(func(fd uintptr) { fds[i] = int(fd) }); err != nil {
				return err
			}
		}
		oob = unix.UnixRights(fds...)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n, _, err := c.c.WriteMsgUnix(b, oob, nil)
	if err == nil && n < len(b) {
		_, err = c.c.Write(b[n:])
	}
	return err
}

// recv reads a frame and the descriptors that came with it, of which there may be no more than most.
func (c *conn) recv(v any, most int) ([]*os.File, error) {
	var head [4]byte
	oob := make([]byte, unix.CmsgSpace(4*max(most, 1)))
	n, oobn, flags, _, err := c.c.ReadMsgUnix(head[:], oob)
	if err == nil && n == 0 {
		err = io.EOF
	}
	files, oobErr := received(oob[:oobn])
	if err = errors.Join(err, oobErr); err == nil && flags&unix.MSG_CTRUNC != 0 {
		err = errors.New("more descriptors than expected")
	}
	if err == nil && n < len(head) {
		_, err = io.ReadFull(c.c, head[n:])
	}
	if err == nil {
		err = decodeFrame(head, c.c, v)
	}
	if err == nil && len(files) > most {
		err = errors.New("more descriptors than expected")
	}
	if err != nil {
		closeAll(files)
		return nil, err
	}
	return files, nil
}

func received(oob []byte) ([]*os.File, error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for _, m := range msgs {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			// They are pipes made for this; a blocked one must be closable.
			_ = unix.SetNonblock(fd, true)
			files = append(files, os.NewFile(uintptr(fd), "stream"))
		}
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}

// openDir opens a state directory, which nobody else may be able to enter, and
// returns a path below which its files are found whatever its length.
func openDir(dir string, create bool) (f *os.File, short string, err error) {
	if create {
		if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
			return nil, "", err
		}
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, "", err
		}
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, "", &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	f = os.NewFile(uintptr(fd), dir)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = f.Close()
		return nil, "", err
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		_ = f.Close()
		return nil, "", fmt.Errorf("%s: owned by uid %d, mode %04o; it must be this user's and 0700", dir, st.Uid, st.Mode&0o7777)
	}
	return f, fmt.Sprintf("/proc/self/fd/%d/", fd), nil
}

func dialDir(dir string) (*conn, error) {
	f, short, err := openDir(dir, false)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: short + socketName, Net: "unix"})
	if err != nil {
		return nil, err
	}
	return &conn{c: c}, nil
}

// absent says that nobody listens.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
}

// sameUser checks who is at the other end.
func sameUser(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) { cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return err
	}
	if credErr != nil {
		return credErr
	}
	if int(cred.Uid) != os.Geteuid() {
		return fmt.Errorf("uid %d is another user", cred.Uid)
	}
	return nil
}
