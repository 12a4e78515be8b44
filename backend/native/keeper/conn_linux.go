package keeper

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Conn is the supervisor's end of a control socket.
type Conn struct {
	f  *os.File
	rc syscall.RawConn

	mu sync.Mutex // serializes senders
}

// Pair makes a control socket: the supervisor's end and a descriptor to hand over.
func Pair() (*Conn, int, error) {
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, -1, fmt.Errorf("socketpair: %w", err)
	}
	c, err := NewConn(p[0])
	if err != nil {
		unix.Close(p[1])
		return nil, -1, err
	}
	return c, p[1], nil
}

// NewConn takes over a connected SOCK_SEQPACKET descriptor.
func NewConn(fd int) (*Conn, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "keeper")
	rc, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	return &Conn{f: f, rc: rc}, nil
}

// Close ends the connection; a blocked Recv returns.
func (c *Conn) Close() error { return c.f.Close() }

// Hangup tells the other side that nothing comes any more; its end is then the end
// of what Recv receives.
func (c *Conn) Hangup() error {
	var err error
	if cerr := c.rc.Control(func(fd uintptr) { err = unix.Shutdown(int(fd), unix.SHUT_WR) }); cerr != nil {
		return cerr
	}
	return err
}

// Send sends one message with its descriptors, which stay open here.
func (c *Conn) Send(m *Msg) error {
	b := m.Bytes()
	if len(b) > MaxMsg || len(m.FDs) > MaxFDs {
		return fmt.Errorf("keeper: message of %d bytes and %d descriptors is too large", len(b), len(m.FDs))
	}
	var oob []byte
	if len(m.FDs) > 0 {
		oob = unix.UnixRights(m.FDs...)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var err error
	werr := c.rc.Write(func(fd uintptr) bool {
		for {
			_, err = unix.SendmsgN(int(fd), b, oob, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
			if err != unix.EINTR {
				break
			}
		}
		return err != unix.EAGAIN
	})
	if werr != nil {
		return werr
	}
	return err
}

// Recv receives one message into buf. The body is part of buf. It returns io.EOF
// when the other side is gone.
func (c *Conn) Recv(buf []byte) (h Hdr, body []byte, fds []int, err error) {
	var oobArr [256]byte
	var n, oobn, flags int
	rerr := c.rc.Read(func(fd uintptr) bool {
		for {
			n, oobn, flags, _, err = unix.Recvmsg(int(fd), buf, oobArr[:], unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
			if err != unix.EINTR {
				break
			}
		}
		return err != unix.EAGAIN
	})
	if rerr != nil {
		// There is no deadline, so it was closed here; the error that says so is internal to os.
		return h, nil, nil, io.EOF
	}
	if err == unix.ECONNRESET {
		err = nil
		n = 0
	}
	if err != nil {
		return h, nil, nil, err
	}
	if oobn > 0 {
		if scms, e := unix.ParseSocketControlMessage(oobArr[:oobn]); e == nil {
			for i := range scms {
				if got, e := unix.ParseUnixRights(&scms[i]); e == nil {
					fds = append(fds, got...)
				}
			}
		}
	}
	if n == 0 {
		closeAll(fds)
		return h, nil, nil, io.EOF
	}
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		closeAll(fds)
		return h, nil, nil, ErrProtocol
	}
	h, body, err = ParseHdr(buf[:n])
	if err != nil {
		closeAll(fds)
		fds = nil
	}
	return h, body, fds, err
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// Program is the keeper in a sealed memory file, ready to be executed.
func Program() (*os.File, error) {
	if len(ELF) == 0 {
		return nil, errors.New("keeper: no program for this architecture")
	}
	fd, err := unix.MemfdCreate("belljar-keeper", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|mfdExec)
	if err == unix.EINVAL { // MFD_EXEC is Linux 6.3
		fd, err = unix.MemfdCreate("belljar-keeper", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), "keeper")
	if _, err := f.Write(ELF); err != nil {
		f.Close()
		return nil, fmt.Errorf("write keeper: %w", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE); err != nil {
		f.Close()
		return nil, fmt.Errorf("seal keeper: %w", err)
	}
	return f, nil
}

const mfdExec = 0x10

// Nursery is a started keeper program in its first role.
type Nursery struct {
	*Conn
	pid int

	once sync.Once
	err  error // how waiting for it ended
}

// StartNursery executes the keeper. It ends when the connection is closed.
func StartNursery() (*Nursery, error) {
	prog, err := Program()
	if err != nil {
		return nil, err
	}
	defer prog.Close()
	c, fd, err := Pair()
	if err != nil {
		return nil, err
	}
	peer := os.NewFile(uintptr(fd), "peer")
	defer peer.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		c.Close()
		return nil, err
	}
	defer null.Close()
	// Not by os.StartProcess: the first time it forks once more, to try pidfds.
	pid, err := syscall.ForkExec(fmt.Sprintf("/proc/self/fd/%d", prog.Fd()), []string{"belljar-keeper"}, &syscall.ProcAttr{
		Dir: "/", Env: []string{}, Files: []uintptr{null.Fd(), null.Fd(), null.Fd(), peer.Fd()},
	})
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("start keeper: %w", err)
	}
	return &Nursery{Conn: c, pid: pid}, nil
}

// Pid is the nursery's process id.
func (n *Nursery) Pid() int { return n.pid }

// Close ends the nursery and waits for it: with it every keeper that may not
// outlive its supervisor, and the groups it was told to remove.
func (n *Nursery) Close() error {
	err := n.Conn.Close()
	if errors.Is(err, os.ErrClosed) {
		err = nil // hung up before, to let it end meanwhile
	}
	n.once.Do(func() {
		for {
			if _, n.err = syscall.Wait4(n.pid, nil, 0, nil); n.err != syscall.EINTR {
				break
			}
		}
	})
	return errors.Join(err, n.err)
}

// UserNamespace makes a user namespace with these maps that nobody is in, for
// id-mapped mounts, and returns its descriptor.
func UserNamespace(uids, gids []syscall.SysProcIDMap) (int, error) {
	prog, err := Program()
	if err != nil {
		return -1, err
	}
	defer prog.Close()
	c, fd, err := Pair()
	if err != nil {
		return -1, err
	}
	peer := os.NewFile(uintptr(fd), "peer")
	defer peer.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		c.Close()
		return -1, err
	}
	defer null.Close()
	// A nursery that is asked for nothing keeps the namespace alive while it is opened.
	p, err := os.StartProcess(fmt.Sprintf("/proc/self/fd/%d", prog.Fd()), []string{"belljar-keeper"}, &os.ProcAttr{
		Dir: "/", Env: []string{}, Files: []*os.File{null, null, null, peer},
		Sys: &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: uids, GidMappings: gids},
	})
	if err != nil {
		c.Close()
		return -1, err
	}
	ns, err := unix.Open(fmt.Sprintf("/proc/%d/ns/user", p.Pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	c.Close()
	if _, werr := p.Wait(); err == nil {
		err = werr
	}
	return ns, err
}
