package cell

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"syscall"

	"belljar/internal/linux/landlock"

	"golang.org/x/sys/unix"
)

// What is young, and bounds.
const (
	soPassPidfd        = unix.SO_PASSPIDFD // Linux 6.5
	scmPidfd           = unix.SCM_PIDFD
	pidfdSignalGroup   = 4 // PIDFD_SIGNAL_PROCESS_GROUP, Linux 6.9 (pidfd_send_signal(2))
	landlockScopes     = 6 // ABI with scopes
	maxHello           = 4096
	maxPacket          = 64 << 10
	socketBuffer       = 1 << 20
	drainMost          = 1 << 20 // more than a pipe holds
	sigInterrupt       = unix.SIGINT
	groupSignalRefused = unix.EINVAL
)

// scoped reports whether a process here can part itself from others by Landlock.
func scoped() bool { return landlock.ABI() >= landlockScopes }

// channelPair makes a cell's channel: our end tells who sends.
func channelPair() (mine, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	err = errors.Join(
		unix.SetNonblock(fds[0], true),
		unix.SetsockoptInt(fds[0], unix.SOL_SOCKET, unix.SO_PASSCRED, 1),
		unix.SetsockoptInt(fds[0], unix.SOL_SOCKET, unix.SO_SNDBUF, socketBuffer),
	)
	if e := unix.SetsockoptInt(fds[0], unix.SOL_SOCKET, soPassPidfd, 1); e != nil && e != unix.ENOPROTOOPT {
		err = errors.Join(err, e)
	}
	if err != nil {
		unix.Close(fds[0])
		unix.Close(fds[1])
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), "cell"), os.NewFile(uintptr(fds[1]), "cell-guest"), nil
}

// packetPair makes a zygote's channel.
func packetPair() (mine, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), "zygote"), os.NewFile(uintptr(fds[1]), "zygote-guest"), nil
}

// outputPair makes a pipe for an output of a cell.
func outputPair() (r, w *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, fmt.Errorf("pipe: %w", err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), "output"), os.NewFile(uintptr(fds[1]), "output-guest"), nil
}

// sendPacket sends bytes with descriptors.
func sendPacket(f *os.File, b []byte, files ...*os.File) error {
	var fds []int
	for _, x := range files {
		fds = append(fds, int(x.Fd()))
	}
	rc, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	err = rc.Write(func(fd uintptr) bool {
		serr = unix.Sendmsg(int(fd), b, unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL)
		return serr != unix.EAGAIN
	})
	return errors.Join(err, serr)
}

// identify reads a guest's first bytes, and takes hold of the process that sent them.
// The kernel says who that is: nothing that the guest says counts.
func identify(f *os.File) (first []byte, pidfd *os.File, err error) {
	defer func() {
		if err != nil && pidfd != nil {
			_ = pidfd.Close()
			pidfd = nil
		}
	}()
	rc, err := f.SyscallConn()
	if err != nil {
		return nil, nil, err
	}
	buf, oob := make([]byte, maxHello), make([]byte, 256)
	n, oobn := 0, 0
	var rerr error
	if err := rc.Read(func(fd uintptr) bool {
		n, oobn, _, _, rerr = unix.Recvmsg(int(fd), buf, oob, unix.MSG_CMSG_CLOEXEC)
		return rerr != unix.EAGAIN
	}); err != nil {
		return nil, nil, err
	}
	if rerr != nil {
		return nil, nil, rerr
	}
	if n == 0 {
		return nil, nil, io.EOF
	}
	pidfd, err = sender(oob[:oobn])
	if err != nil {
		return nil, nil, err
	}
	// From here on the kernel need not tell who sends.
	cerr := rc.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, soPassPidfd, 0) // a kernel without it never told
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 0)
	})
	return buf[:n], pidfd, errors.Join(cerr, err)
}

// sender returns the pidfd of the process that the kernel says sent a message.
func sender(oob []byte) (*os.File, error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	pidfd, pid := -1, 0
	for _, m := range msgs {
		switch {
		case m.Header.Level != unix.SOL_SOCKET:
		case m.Header.Type == scmPidfd && len(m.Data) >= 4:
			pidfd = int(int32(uint32(m.Data[0]) | uint32(m.Data[1])<<8 | uint32(m.Data[2])<<16 | uint32(m.Data[3])<<24))
		case m.Header.Type == unix.SCM_CREDENTIALS:
			if c, err := unix.ParseUnixCredentials(&m); err == nil {
				pid = int(c.Pid)
			}
		case m.Header.Type == unix.SCM_RIGHTS: // a guest has no business sending descriptors
			if fds, err := unix.ParseUnixRights(&m); err == nil {
				for _, fd := range fds {
					unix.Close(fd)
				}
			}
		}
	}
	if pidfd < 0 && pid > 0 {
		// Before Linux 6.5. The number may mean another process by now: whoever places
		// it looks whether it is in the sandbox.
		if pidfd, err = unix.PidfdOpen(pid, 0); err != nil {
			return nil, fmt.Errorf("pidfd_open: %w", err)
		}
	}
	if pidfd < 0 {
		return nil, errors.New("the kernel did not say who sent the first frame")
	}
	if err := unix.SetNonblock(pidfd, true); err != nil {
		unix.Close(pidfd)
		return nil, err
	}
	return os.NewFile(uintptr(pidfd), "pidfd"), nil
}

// awaitExit returns when the process of a pidfd has ended, or the file was closed.
func awaitExit(pidfd *os.File) error {
	rc, err := pidfd.SyscallConn()
	if err != nil {
		return err
	}
	return rc.Read(func(fd uintptr) bool { return exited(int(fd)) })
}

func exited(pidfd int) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 0)
	return err == nil && n > 0
}

// hasExited reports whether the process has ended.
func hasExited(pidfd *os.File) (yes bool) {
	rc, err := pidfd.SyscallConn()
	if err != nil {
		return true
	}
	err = rc.Control(func(fd uintptr) { yes = exited(int(fd)) })
	return yes || err != nil
}

// interruptGroup sends SIGINT to the process group that a process leads, as a
// terminal would; before Linux 6.9 to the process only.
func interruptGroup(pidfd *os.File) error {
	rc, err := pidfd.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	err = rc.Control(func(fd uintptr) {
		serr = unix.PidfdSendSignal(int(fd), sigInterrupt, nil, pidfdSignalGroup)
		if serr == groupSignalRefused {
			serr = unix.PidfdSendSignal(int(fd), sigInterrupt, nil, 0)
		}
	})
	if serr == unix.ESRCH {
		serr = nil
	}
	return errors.Join(err, serr)
}

// killProcess sends SIGKILL.
func killProcess(pidfd *os.File) {
	if rc, err := pidfd.SyscallConn(); err == nil {
		_ = rc.Control(func(fd uintptr) { _ = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) }) // ESRCH: it is gone
	}
}

// processID returns the number of a pidfd's process in this pid namespace.
func processID(pidfd *os.File) (int, error) {
	rc, err := pidfd.SyscallConn()
	if err != nil {
		return 0, err
	}
	var name string
	if err := rc.Control(func(fd uintptr) { name = "/proc/self/fdinfo/" + strconv.Itoa(int(fd)) }); err != nil {
		return 0, err
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	pid, ok := statusField(b, "Pid:")
	if !ok || pid <= 0 {
		return 0, unix.ESRCH
	}
	return pid, nil
}

// concealed reports whether the kernel keeps a process's memory, environment and
// descriptors from others of its user: it is not dumpable, and its files in /proc
// belong to the root of its user namespace instead of its own user.
func concealed(pidfd *os.File) (bool, error) {
	pid, err := processID(pidfd)
	if err != nil {
		return false, err
	}
	dir := "/proc/" + strconv.Itoa(pid)
	self, err := os.Stat(dir)
	if err != nil {
		return false, err
	}
	env, err := os.Stat(dir + "/environ")
	if err != nil {
		return false, err
	}
	if hasExited(pidfd) {
		return false, unix.ESRCH // the number may mean another process by now
	}
	return self.Sys().(*syscall.Stat_t).Uid != env.Sys().(*syscall.Stat_t).Uid, nil
}

// readSome reads what is there, or waits for something; deliver runs with the lock
// held. It returns false at the end of the stream.
func (o *outlet) readSome() bool {
	rc, err := o.f.SyscallConn()
	if err != nil {
		return false
	}
	more := true
	err = rc.Read(func(fd uintptr) bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		n, err := unix.Read(int(fd), o.buf)
		if err == unix.EAGAIN || err == unix.EINTR {
			return false
		}
		if n <= 0 {
			more = false
			return true
		}
		o.deliver(o.buf[:n])
		return true
	})
	return more && err == nil
}

// drain delivers what a guest wrote before it reported the end of an operation, and no
// more: a process of its that goes on writing does not delay the result.
func (o *outlet) drain() {
	rc, err := o.f.SyscallConn()
	if err != nil {
		return
	}
	_ = rc.Control(func(fd uintptr) {
		o.mu.Lock()
		defer o.mu.Unlock()
		left, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ)
		if err != nil {
			return
		}
		for left = min(left, drainMost); left > 0; {
			n, err := unix.Read(int(fd), o.buf[:min(left, len(o.buf))])
			if n <= 0 || err != nil {
				return
			}
			o.deliver(o.buf[:n])
			left -= n
		}
	})
}

// statusField returns a number from a file of lines with keys.
func statusField(b []byte, key string) (int, bool) {
	for line := range bytes.Lines(b) {
		if rest, ok := bytes.CutPrefix(line, []byte(key)); ok {
			n, err := strconv.Atoi(string(bytes.TrimSpace(rest)))
			return n, err == nil
		}
	}
	return 0, false
}
