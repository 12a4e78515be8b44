package belljar

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

const (
	spoolMove  = 64 << 10 // bytes of one splice
	spoolSlack = 4 << 20  // what may lie before what is retained, until it is given back
)

// spool is an output in a file of the sandbox's state directory. splice(2) moves
// bytes from the pipe into it inside the kernel, and the file grows in the same
// system call: whenever the supervisor is killed, each byte is either still in
// the pipe or in the file, so that its successor goes on without loss.
type spool struct {
	f    *os.File // made at the first output
	name string
	size int64
	hole int64 // up to here the file holds nothing any more
	tty  bool  // not a pipe: read and written, for which a kill can come between
}

// openSpool takes up what a former supervisor left; without a file there was no output.
func openSpool(name string, tty bool) (*spool, error) {
	s := &spool{name: name, tty: tty}
	f, err := os.OpenFile(name, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	if err == nil {
		s.size, err = f.Seek(0, io.SeekEnd)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	s.f, s.hole = f, max(0, s.size-retainBytes-spoolSlack)
	return s, nil
}

// read moves what the pipe has into the file, waiting for it, and then into p.
func (s *spool) read(r *os.File, p []byte) (int, error) {
	if s.f == nil {
		f, err := os.OpenFile(s.name, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return 0, &spoolError{err}
		}
		s.f = f
	}
	if s.tty {
		n, err := r.Read(p)
		if n > 0 {
			if _, werr := s.f.Write(p[:n]); werr == nil {
				s.moved(n)
			}
		}
		return n, err
	}
	conn, err := r.SyscallConn()
	if err != nil {
		return 0, err
	}
	var n int64
	var serr error
	err = conn.Read(func(fd uintptr) bool {
		for {
			n, serr = unix.Splice(int(fd), nil, int(s.f.Fd()), nil, min(len(p), spoolMove), unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
			if serr != unix.EINTR {
				return serr != unix.EAGAIN
			}
		}
	})
	switch {
	case err != nil:
		return 0, err // the deadline, or it was closed
	case serr != nil:
		return 0, &spoolError{serr}
	case n == 0:
		return 0, io.EOF
	}
	if _, err := s.f.ReadAt(p[:n], s.size); err != nil {
		return 0, &spoolError{err}
	}
	s.moved(int(n))
	return int(n), nil
}

func (s *spool) moved(n int) {
	s.size += int64(n)
	if cut := (s.size - retainBytes) &^ 4095; cut-s.hole > spoolSlack {
		// Where the file system cannot, the file stays as large as the output is.
		_ = unix.Fallocate(int(s.f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, cut)
		s.hole = cut
	}
}

// kept reads the last n bytes.
func (s *spool) kept(n int64) ([]byte, error) {
	if s.f == nil || n == 0 {
		return nil, nil
	}
	b := make([]byte, n)
	_, err := s.f.ReadAt(b, s.size-n)
	return b, err
}

func (s *spool) close() {
	if s.f != nil {
		_ = s.f.Close()
	}
}

func (s *spool) remove() {
	s.close()
	_ = os.Remove(s.name) // never made, or gone with the sandbox
}
