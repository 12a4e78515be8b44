package remote

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"

	"belljar"
	v1 "belljar/api/belljar/v1"
	"belljar/api/belljar/v1/belljarv1connect"
	"belljar/internal/wire"

	"google.golang.org/protobuf/types/known/timestamppb"
)

// files are the files of a sandbox on the daemon. The methods of [belljar.Files]
// have no context: a call ends when the daemon answers or its connection does.
type files struct{ in *instance }

var _ belljar.Files = files{}

const stepMax = 1 << 20 // bytes that one step reads or writes

// OpenFile implements [belljar.Files].
func (f files) OpenFile(name string, flag int, perm fs.FileMode) (belljar.Handle, error) {
	ctx, cancel := context.WithCancel(context.Background())
	s, err := f.in.b.streams.files.Open(ctx)
	if err != nil {
		cancel()
		return nil, Error("open", err)
	}
	h := &handle{s: s, cancel: cancel, append: flag&os.O_APPEND != 0}
	rw := flag & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR)
	_, err = h.do(&v1.OpenRequest{Op: &v1.OpenRequest_Open{Open: &v1.OpenFile{
		Sandbox: f.in.id, Path: wire.Text(name), Read: rw != os.O_WRONLY, Write: rw != os.O_RDONLY,
		Append: h.append, Create: flag&os.O_CREATE != 0, Exclusive: flag&os.O_EXCL != 0, Truncate: flag&os.O_TRUNC != 0,
		NoFollow: noFollow != 0 && flag&noFollow != 0, Mode: uint32(perm.Perm()),
	}}})
	if err != nil {
		cancel()
		return nil, err
	}
	return h, nil
}

// handle is a file that the daemon holds open for the length of a stream.
type handle struct {
	s      belljarv1connect.FileServiceOpenClientStream
	cancel context.CancelFunc
	append bool

	mu     sync.Mutex
	pos    int64
	closed bool
	more   []string // names that were read and not given out yet
	last   bool     // there are no further ones
}

// do takes one step; h.mu is held, or the handle is new.
func (h *handle) do(req *v1.OpenRequest) (*v1.OpenResponse, error) {
	if h.closed {
		return nil, fs.ErrClosed
	}
	err := h.s.Send(req)
	if err != nil && !errors.Is(err, io.EOF) { // after EOF the reason is received
		return nil, Error("file", err)
	}
	resp, err := h.s.Receive()
	if err != nil {
		return nil, Error("file", err)
	}
	if resp.Error != nil {
		return resp, wire.FromError(resp.Error)
	}
	return resp, nil
}

func (h *handle) readAt(p []byte, off int64) (n int, err error) {
	for n < len(p) {
		resp, err := h.do(&v1.OpenRequest{Op: &v1.OpenRequest_Read{Read: &v1.ReadAt{Offset: off + int64(n), Length: int32(min(len(p)-n, stepMax))}}})
		if err != nil {
			return n, err
		}
		n += copy(p[n:], resp.Data)
		if resp.Eof || len(resp.Data) == 0 {
			return n, io.EOF
		}
	}
	return n, nil
}

// Read implements io.Reader.
func (h *handle) Read(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(p) == 0 {
		return 0, nil
	}
	n, err := h.readAt(p[:min(len(p), stepMax)], h.pos)
	h.pos += int64(n)
	if n > 0 && err == io.EOF {
		err = nil
	}
	return n, err
}

// ReadAt implements io.ReaderAt.
func (h *handle) ReadAt(p []byte, off int64) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if off < 0 {
		return 0, fs.ErrInvalid
	}
	return h.readAt(p, off)
}

func (h *handle) writeAt(p []byte, off int64) (n int, err error) {
	for first := true; first || n < len(p); first = false {
		resp, err := h.do(&v1.OpenRequest{Op: &v1.OpenRequest_Write{Write: &v1.WriteAt{Offset: off + int64(n), Data: p[n:min(len(p), n+stepMax)]}}})
		if resp != nil {
			n += int(resp.Written)
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// Write implements io.Writer.
func (h *handle) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n, err := h.writeAt(p, h.pos)
	h.pos += int64(n)
	return n, err
}

// WriteAt implements io.WriterAt.
func (h *handle) WriteAt(p []byte, off int64) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if off < 0 || h.append {
		return 0, fs.ErrInvalid
	}
	return h.writeAt(p, off)
}

// Seek implements io.Seeker.
func (h *handle) Seek(offset int64, whence int) (int64, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch whence {
	case io.SeekStart:
	case io.SeekCurrent:
		offset += h.pos
	case io.SeekEnd:
		fi, err := h.stat()
		if err != nil {
			return 0, err
		}
		offset += fi.Size()
	default:
		return 0, fs.ErrInvalid
	}
	if offset < 0 {
		return 0, fs.ErrInvalid
	}
	h.pos = offset
	return offset, nil
}

func (h *handle) stat() (fs.FileInfo, error) {
	resp, err := h.do(&v1.OpenRequest{Op: &v1.OpenRequest_Stat{Stat: &v1.StatFile{}}})
	if err != nil {
		return nil, err
	}
	return wire.FromFileInfo(resp.Info)
}

// Stat implements [belljar.Handle].
func (h *handle) Stat() (fs.FileInfo, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.stat()
}

// Truncate implements [belljar.Handle].
func (h *handle) Truncate(size int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err := h.do(&v1.OpenRequest{Op: &v1.OpenRequest_Truncate{Truncate: size}})
	return err
}

// Chmod implements [belljar.Handle].
func (h *handle) Chmod(mode fs.FileMode) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err := h.do(&v1.OpenRequest{Op: &v1.OpenRequest_Chmod{Chmod: uint32(mode.Perm())}})
	return err
}

// Readdirnames implements [belljar.Handle].
func (h *handle) Readdirnames(n int) ([]string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for !h.last && (n <= 0 || len(h.more) < n) {
		resp, err := h.do(&v1.OpenRequest{Op: &v1.OpenRequest_Names{Names: 1024}})
		if err != nil {
			return nil, err
		}
		h.more = append(h.more, wire.Names(resp.Names)...)
		h.last = resp.Eof || len(resp.Names) == 0
	}
	if n <= 0 {
		names := h.more
		h.more = nil
		return names, nil
	}
	if len(h.more) == 0 {
		return nil, io.EOF
	}
	names := h.more[:min(n, len(h.more))]
	h.more = h.more[len(names):]
	return names, nil
}

// Close implements io.Closer.
func (h *handle) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return fs.ErrClosed
	}
	h.closed = true
	defer h.cancel()
	if err := h.s.CloseSend(); err != nil {
		return Error("close", err)
	}
	if _, err := h.s.Receive(); err != nil && !errors.Is(err, io.EOF) {
		return Error("close", err)
	}
	return nil
}

// Mkdir implements [belljar.Files].
func (f files) Mkdir(name string, perm fs.FileMode) error {
	_, err := f.in.b.Files.Mkdir(context.Background(), &v1.MkdirRequest{Sandbox: f.in.id, Path: wire.Text(name), Mode: uint32(perm.Perm())})
	return Error("mkdir", err)
}

// Remove implements [belljar.Files].
func (f files) Remove(name string) error { return f.remove(name, false) }

// RemoveAll implements [belljar.Files].
func (f files) RemoveAll(name string) error { return f.remove(name, true) }

func (f files) remove(name string, all bool) error {
	_, err := f.in.b.Files.Remove(context.Background(), &v1.RemoveRequest{Sandbox: f.in.id, Path: wire.Text(name), Recursive: all})
	return Error("remove", err)
}

// Rename implements [belljar.Files].
func (f files) Rename(oldname, newname string) error {
	_, err := f.in.b.Files.Rename(context.Background(), &v1.RenameRequest{Sandbox: f.in.id, From: wire.Text(oldname), To: wire.Text(newname)})
	return Error("rename", err)
}

// Symlink implements [belljar.Files].
func (f files) Symlink(target, name string) error {
	_, err := f.in.b.Files.Symlink(context.Background(), &v1.SymlinkRequest{Sandbox: f.in.id, Target: wire.Text(target), Path: wire.Text(name)})
	return Error("symlink", err)
}

// Readlink implements [belljar.Files].
func (f files) Readlink(name string) (string, error) {
	resp, err := f.in.b.Files.Readlink(context.Background(), &v1.ReadlinkRequest{Sandbox: f.in.id, Path: wire.Text(name)})
	return wire.Name(resp.GetTarget()), Error("readlink", err)
}

// Stat implements [belljar.Files].
func (f files) Stat(name string) (fs.FileInfo, error) { return f.stat(name, true) }

// Lstat implements [belljar.Files].
func (f files) Lstat(name string) (fs.FileInfo, error) { return f.stat(name, false) }

func (f files) stat(name string, follow bool) (fs.FileInfo, error) {
	resp, err := f.in.b.Files.Stat(context.Background(), &v1.StatFileRequest{Sandbox: f.in.id, Path: wire.Text(name), Follow: follow})
	if err != nil {
		return nil, Error("stat", err)
	}
	return wire.FromFileInfo(resp.Info)
}

// Chmod implements [belljar.Files].
func (f files) Chmod(name string, mode fs.FileMode) error {
	_, err := f.in.b.Files.Chmod(context.Background(), &v1.ChmodRequest{Sandbox: f.in.id, Path: wire.Text(name), Mode: uint32(mode.Perm())})
	return Error("chmod", err)
}

// Chtimes implements [belljar.Files].
func (f files) Chtimes(name string, mtime time.Time) error {
	_, err := f.in.b.Files.Chtimes(context.Background(), &v1.ChtimesRequest{Sandbox: f.in.id, Path: wire.Text(name), ModifiedAt: timestamppb.New(mtime)})
	return Error("chtimes", err)
}

// Watch implements [belljar.Files].
func (f files) Watch(ctx context.Context, name string) (<-chan belljar.FileEvent, error) {
	ctx, cancel := context.WithCancel(ctx)
	s, err := f.in.b.streams.files.Watch(ctx, &v1.WatchFilesRequest{Sandbox: f.in.id, Path: wire.Text(name)})
	if err == nil {
		_, err = s.Receive() // the watch is set
	}
	if err != nil {
		cancel()
		return nil, Error("watch", err)
	}
	events := make(chan belljar.FileEvent)
	go func() {
		defer cancel()
		defer close(events)
		for {
			m, err := s.Receive()
			if err != nil {
				return
			}
			select {
			case events <- belljar.FileEvent{Op: m.Op, Name: wire.Name(m.Name)}:
			case <-ctx.Done():
				return
			}
		}
	}()
	return events, nil
}
