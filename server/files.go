package server

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"belljar"
	v1 "belljar/api/belljar/v1"
	"belljar/api/belljar/v1/belljarv1connect"
	"belljar/internal/wire"
)

// files implements the FileService.
type files struct {
	belljarv1connect.UnimplementedFileServiceHandler
	s *Server
}

const (
	fileChunk    = 256 << 10 // bytes of a file in one message
	maxStep      = 1 << 20   // bytes that one step on an open file reads or writes
	maxNames     = 4096
	maxListDepth = 64
	maxListed    = 100_000 // entries that are looked at for one page
)

// open finds the sandbox of a file operation and writes down what it is on.
func (x files) open(ctx context.Context, scope, sandbox string, names ...string) (*belljar.Sandbox, error) {
	sb, _, err := x.s.sandbox(ctx, scope, sandbox)
	if err != nil {
		return nil, err
	}
	if err := x.s.audit(ctx, map[string]string{ScopeFilesRead: "file.read", ScopeFilesWrite: "file.write"}[scope], sb.ID(), strings.Join(names, " ")); err != nil {
		return nil, err
	}
	return sb, nil
}

func perm(mode, def uint32) (fs.FileMode, error) {
	if mode > 0o777 {
		return 0, bad("mode", "permission bits only, up to 0777")
	}
	if mode == 0 {
		mode = def
	}
	return fs.FileMode(mode), nil
}

// Read implements the service.
func (x files) Read(ctx context.Context, req *v1.ReadFileRequest, out belljarv1connect.FileServiceReadServerStream) error {
	sb, err := x.open(ctx, ScopeFilesRead, req.Sandbox, wire.Name(req.Path))
	if err != nil {
		return err
	}
	if req.Offset < 0 || req.Limit < 0 {
		return bad("offset", "negative")
	}
	f, err := sb.Open(wire.Name(req.Path))
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if fi.IsDir() {
		return &belljar.Error{Code: belljar.CodeFS, Op: "read " + f.Name(), Message: "is a directory", Recoverable: true}
	}
	if err := out.Send(&v1.ReadFileResponse{Info: wire.FileInfo(fi, "")}); err != nil {
		return err
	}
	buf, left := make([]byte, fileChunk), req.Limit
	for off := req.Offset; ; {
		part := buf
		if req.Limit > 0 {
			if part = buf[:min(left, int64(len(buf)))]; len(part) == 0 {
				return nil
			}
		}
		n, err := f.ReadAt(part, off)
		if n > 0 {
			if err := out.Send(&v1.ReadFileResponse{Data: part[:n]}); err != nil {
				return err
			}
			off, left = off+int64(n), left-int64(n)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// incoming reads the bytes of a stream of messages.
type incoming struct {
	rest []byte
	next func() ([]byte, error)
	n    int64
}

func (r *incoming) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		var err error
		if r.rest, err = r.next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	r.n += int64(n)
	return n, nil
}

// Write implements the service.
func (x files) Write(ctx context.Context, in belljarv1connect.FileServiceWriteServerStream) (*v1.WriteFileResponse, error) {
	first, err := in.Receive()
	if err != nil {
		return nil, err
	}
	sb, err := x.open(ctx, ScopeFilesWrite, first.Sandbox, wire.Name(first.Path))
	if err != nil {
		return nil, err
	}
	mode, err := perm(first.Mode, 0o644)
	if err != nil {
		return nil, err
	}
	r := &incoming{rest: first.Data, next: func() ([]byte, error) {
		m, err := in.Receive()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.EOF
			}
			return nil, err
		}
		return m.Data, nil
	}}
	switch first.How {
	case "", "replace":
		if err := sb.WriteFileFrom(wire.Name(first.Path), r, mode); err != nil {
			return nil, err
		}
		return &v1.WriteFileResponse{Size: r.n}, nil
	}
	flag, ok := map[string]int{
		"in_place": os.O_WRONLY | os.O_CREATE,
		"append":   os.O_WRONLY | os.O_CREATE | os.O_APPEND,
		"create":   os.O_WRONLY | os.O_CREATE | os.O_EXCL,
	}[first.How]
	if !ok {
		return nil, bad("how", "one of replace, in_place, append, create")
	}
	if first.Offset < 0 || first.Offset > 0 && first.How != "in_place" {
		return nil, bad("offset", "only for in_place, and not negative")
	}
	f, err := sb.OpenFile(wire.Name(first.Path), flag, mode)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if first.Offset > 0 {
		if _, err := f.Seek(first.Offset, io.SeekStart); err != nil {
			return nil, err
		}
	}
	if _, err := io.Copy(f, r); err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return &v1.WriteFileResponse{Size: fi.Size()}, f.Close()
}

// List implements the service.
func (x files) List(ctx context.Context, req *v1.ListFilesRequest) (*v1.ListFilesResponse, error) {
	sb, err := x.open(ctx, ScopeFilesRead, req.Sandbox, wire.Name(req.Path))
	if err != nil {
		return nil, err
	}
	size, err := pageSize(req.PageSize)
	if err != nil {
		return nil, err
	}
	if req.Depth < 0 || req.Depth > maxListDepth {
		return nil, bad("depth", "not from 1 to 64")
	}
	l := lister{ctx: ctx, sb: sb, root: wire.Name(req.Path), size: size, after: wire.Name(req.Cursor), resp: &v1.ListFilesResponse{}}
	err = l.list("", max(1, int(req.Depth)))
	if err != nil && !errors.Is(err, errPageFull) {
		return nil, err
	}
	return l.resp, nil
}

// lister walks a directory in the order of the names, which is that of the cursor.
type lister struct {
	ctx    context.Context
	sb     *belljar.Sandbox
	root   string
	size   int
	after  string
	looked int
	resp   *v1.ListFilesResponse
}

var errPageFull = errors.New("page full")

func (l *lister) list(dir string, depth int) error {
	ents, err := l.sb.List(path.Join(l.root, dir))
	if err != nil {
		if dir != "" && errors.Is(err, fs.ErrNotExist) {
			return nil // removed meanwhile
		}
		return err
	}
	for _, e := range ents {
		if err := l.ctx.Err(); err != nil {
			return err
		}
		if l.looked++; l.looked > maxListed {
			return &belljar.Error{Code: belljar.CodeFS, Op: "list " + l.root, Message: "too many entries", Limit: "100000", Recoverable: true, Hint: "list a directory below"}
		}
		name := path.Join(dir, e.Name())
		if order(name) > order(l.after) {
			if len(l.resp.Entries) == l.size {
				l.resp.NextCursor = l.resp.Entries[l.size-1].Path
				return errPageFull
			}
			fi, err := e.Info()
			if err != nil {
				return err
			}
			target := ""
			if fi.Mode().Type() == fs.ModeSymlink {
				target, _ = l.sb.Readlink(path.Join(l.root, name)) // gone or changed: then there is none to tell
			}
			l.resp.Entries = append(l.resp.Entries, &v1.FileEntry{Path: wire.Text(name), Info: wire.FileInfo(fi, target)})
		}
		if e.IsDir() && depth > 1 {
			if err := l.list(name, depth-1); err != nil {
				return err
			}
		}
	}
	return nil
}

// order makes paths sort as a walk visits them.
func order(name string) string { return strings.ReplaceAll(name, "/", "\x00") }

// Stat implements the service.
func (x files) Stat(ctx context.Context, req *v1.StatFileRequest) (*v1.StatFileResponse, error) {
	sb, err := x.open(ctx, ScopeFilesRead, req.Sandbox, wire.Name(req.Path))
	if err != nil {
		return nil, err
	}
	stat := sb.Lstat
	if req.Follow {
		stat = sb.Stat
	}
	fi, err := stat(wire.Name(req.Path))
	if err != nil {
		return nil, err
	}
	target := ""
	if fi.Mode().Type() == fs.ModeSymlink {
		if target, err = sb.Readlink(wire.Name(req.Path)); err != nil {
			return nil, err
		}
	}
	return &v1.StatFileResponse{Info: wire.FileInfo(fi, target)}, nil
}

// Mkdir implements the service.
func (x files) Mkdir(ctx context.Context, req *v1.MkdirRequest) (*v1.MkdirResponse, error) {
	sb, err := x.open(ctx, ScopeFilesWrite, req.Sandbox, wire.Name(req.Path))
	if err != nil {
		return nil, err
	}
	mode, err := perm(req.Mode, 0o755)
	if err != nil {
		return nil, err
	}
	if req.Parents {
		return &v1.MkdirResponse{}, sb.MkdirAll(wire.Name(req.Path), mode)
	}
	return &v1.MkdirResponse{}, sb.Mkdir(wire.Name(req.Path), mode)
}

// Rename implements the service.
func (x files) Rename(ctx context.Context, req *v1.RenameRequest) (*v1.RenameResponse, error) {
	sb, err := x.open(ctx, ScopeFilesWrite, req.Sandbox, wire.Name(req.From), wire.Name(req.To))
	if err != nil {
		return nil, err
	}
	return &v1.RenameResponse{}, sb.Rename(wire.Name(req.From), wire.Name(req.To))
}

// Remove implements the service.
func (x files) Remove(ctx context.Context, req *v1.RemoveRequest) (*v1.RemoveResponse, error) {
	sb, err := x.open(ctx, ScopeFilesWrite, req.Sandbox, wire.Name(req.Path))
	if err != nil {
		return nil, err
	}
	if req.Recursive {
		return &v1.RemoveResponse{}, sb.RemoveAll(wire.Name(req.Path))
	}
	return &v1.RemoveResponse{}, sb.Remove(wire.Name(req.Path))
}

// Chmod implements the service.
func (x files) Chmod(ctx context.Context, req *v1.ChmodRequest) (*v1.ChmodResponse, error) {
	sb, err := x.open(ctx, ScopeFilesWrite, req.Sandbox, wire.Name(req.Path))
	if err != nil {
		return nil, err
	}
	mode, err := perm(req.Mode, 0)
	if err != nil {
		return nil, err
	}
	return &v1.ChmodResponse{}, sb.Chmod(wire.Name(req.Path), mode)
}

// Chtimes implements the service.
func (x files) Chtimes(ctx context.Context, req *v1.ChtimesRequest) (*v1.ChtimesResponse, error) {
	sb, err := x.open(ctx, ScopeFilesWrite, req.Sandbox, wire.Name(req.Path))
	if err != nil {
		return nil, err
	}
	if req.ModifiedAt.CheckValid() != nil {
		return nil, bad("modified_at", "not a time")
	}
	return &v1.ChtimesResponse{}, sb.Chtimes(wire.Name(req.Path), req.ModifiedAt.AsTime())
}

// Truncate implements the service.
func (x files) Truncate(ctx context.Context, req *v1.TruncateRequest) (*v1.TruncateResponse, error) {
	sb, err := x.open(ctx, ScopeFilesWrite, req.Sandbox, wire.Name(req.Path))
	if err != nil {
		return nil, err
	}
	f, err := sb.OpenFile(wire.Name(req.Path), os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	return &v1.TruncateResponse{}, errors.Join(f.Truncate(req.Size), f.Close())
}

// Symlink implements the service.
func (x files) Symlink(ctx context.Context, req *v1.SymlinkRequest) (*v1.SymlinkResponse, error) {
	sb, err := x.open(ctx, ScopeFilesWrite, req.Sandbox, wire.Name(req.Path))
	if err != nil {
		return nil, err
	}
	return &v1.SymlinkResponse{}, sb.Symlink(wire.Name(req.Target), wire.Name(req.Path))
}

// Readlink implements the service.
func (x files) Readlink(ctx context.Context, req *v1.ReadlinkRequest) (*v1.ReadlinkResponse, error) {
	sb, err := x.open(ctx, ScopeFilesRead, req.Sandbox, wire.Name(req.Path))
	if err != nil {
		return nil, err
	}
	target, err := sb.Readlink(wire.Name(req.Path))
	if err != nil {
		return nil, err
	}
	return &v1.ReadlinkResponse{Target: wire.Text(target)}, nil
}

// Watch implements the service.
func (x files) Watch(ctx context.Context, req *v1.WatchFilesRequest, out belljarv1connect.FileServiceWatchServerStream) error {
	sb, err := x.open(ctx, ScopeFilesRead, req.Sandbox, wire.Name(req.Path))
	if err != nil {
		return err
	}
	if req.Recursive {
		return &belljar.Error{Code: belljar.CodeUnsupported, Op: "watch", Message: "recursive watches are not built", Hint: "watch the directories below one by one"}
	}
	events, err := sb.Watch(ctx, wire.Name(req.Path))
	if err != nil {
		return err
	}
	if err := out.Send(&v1.WatchFilesResponse{Op: "ready"}); err != nil {
		return err
	}
	for e := range events {
		if err := out.Send(&v1.WatchFilesResponse{Op: e.Op, Name: wire.Text(e.Name)}); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return &belljar.Error{Code: belljar.CodeDestroyed, Op: "watch", Message: "the sandbox ended"}
}

// outgoing sends bytes as messages.
type outgoing struct{ send func(p []byte) error }

func (w outgoing) Write(p []byte) (int, error) {
	for n := 0; n < len(p); {
		part := p[n:min(n+fileChunk, len(p))]
		if err := w.send(part); err != nil {
			return n, err
		}
		n += len(part)
	}
	return len(p), nil
}

// Download implements the service.
func (x files) Download(ctx context.Context, req *v1.DownloadRequest, out belljarv1connect.FileServiceDownloadServerStream) error {
	sb, err := x.open(ctx, ScopeFilesRead, req.Sandbox, wire.Name(req.Path))
	if err != nil {
		return err
	}
	return sb.DownloadTar(ctx, outgoing{func(p []byte) error { return out.Send(&v1.DownloadResponse{Data: p}) }}, wire.Name(req.Path))
}

// Upload implements the service.
func (x files) Upload(ctx context.Context, in belljarv1connect.FileServiceUploadServerStream) (*v1.UploadResponse, error) {
	first, err := in.Receive()
	if err != nil {
		return nil, err
	}
	sb, err := x.open(ctx, ScopeFilesWrite, first.Sandbox, wire.Name(first.Path))
	if err != nil {
		return nil, err
	}
	r := &incoming{rest: first.Data, next: func() ([]byte, error) {
		m, err := in.Receive()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.EOF
			}
			return nil, err
		}
		return m.Data, nil
	}}
	return &v1.UploadResponse{}, sb.UploadTar(ctx, r, wire.Name(first.Path))
}

// Open implements the service.
func (x files) Open(ctx context.Context, both belljarv1connect.FileServiceOpenServerStream) error {
	first, err := both.Receive()
	if err != nil {
		return err
	}
	o := first.GetOpen()
	if o == nil {
		return bad("op", "the first is open")
	}
	flag, scope := os.O_RDONLY, ScopeFilesRead
	switch {
	case o.Read && o.Write:
		flag = os.O_RDWR
	case o.Write:
		flag = os.O_WRONLY
	}
	for _, f := range []struct {
		on   bool
		flag int
	}{{o.Append, os.O_APPEND}, {o.Create, os.O_CREATE}, {o.Exclusive, os.O_EXCL}, {o.Truncate, os.O_TRUNC}, {o.NoFollow, noFollow}} {
		if f.on {
			flag |= f.flag
		}
	}
	if flag != os.O_RDONLY && flag != noFollow {
		scope = ScopeFilesWrite
	}
	sb, err := x.open(ctx, scope, o.Sandbox, wire.Name(o.Path))
	if err != nil {
		return err
	}
	mode, err := perm(o.Mode, 0)
	if err != nil {
		return err
	}
	f, err := sb.OpenFile(wire.Name(o.Path), flag, mode)
	if err != nil {
		return err
	}
	defer f.Close()
	h := &handle{f: f, append: o.Append, writable: scope == ScopeFilesWrite}
	resp := h.stat()
	for {
		if err := both.Send(resp); err != nil {
			return err
		}
		m, err := both.Receive()
		if errors.Is(err, io.EOF) {
			return f.Close()
		}
		if err != nil {
			return err
		}
		resp = h.step(m)
	}
}

// handle is an open file of a stream.
type handle struct {
	f        *belljar.File
	append   bool
	writable bool // opened by a caller who may change files
	buf      []byte
}

func failed(err error) *v1.OpenResponse {
	m := wire.Error(err)
	return &v1.OpenResponse{Error: m, Errno: m.GetErrno()}
}

func (h *handle) stat() *v1.OpenResponse {
	fi, err := h.f.Stat()
	if err != nil {
		return failed(err)
	}
	return &v1.OpenResponse{Info: wire.FileInfo(fi, "")}
}

func (h *handle) step(m *v1.OpenRequest) *v1.OpenResponse {
	switch op := m.Op.(type) {
	case *v1.OpenRequest_Read:
		if op.Read.Offset < 0 || op.Read.Length < 0 || op.Read.Length > maxStep {
			return failed(bad("read", "offset negative or more than 1 MiB"))
		}
		if len(h.buf) < int(op.Read.Length) {
			h.buf = make([]byte, op.Read.Length)
		}
		n, err := h.f.ReadAt(h.buf[:op.Read.Length], op.Read.Offset)
		if err != nil && err != io.EOF {
			return failed(err)
		}
		return &v1.OpenResponse{Data: h.buf[:n], Eof: err == io.EOF}
	case *v1.OpenRequest_Write:
		if op.Write.Offset < 0 || len(op.Write.Data) > maxStep {
			return failed(bad("write", "offset negative or more than 1 MiB"))
		}
		var n int
		var err error
		if h.append {
			n, err = h.f.Write(op.Write.Data)
		} else {
			n, err = h.f.WriteAt(op.Write.Data, op.Write.Offset)
		}
		if err != nil {
			r := failed(err)
			r.Written = int32(n)
			return r
		}
		return &v1.OpenResponse{Written: int32(n)}
	case *v1.OpenRequest_Truncate:
		if err := h.f.Truncate(op.Truncate); err != nil {
			return failed(err)
		}
		return &v1.OpenResponse{}
	case *v1.OpenRequest_Chmod:
		mode, err := perm(op.Chmod, 0)
		if err == nil && !h.writable {
			err = &belljar.Error{Code: belljar.CodePermissionDenied, Op: "chmod", Message: "the file was opened for reading", Recoverable: true}
		}
		if err == nil {
			err = h.f.Chmod(mode)
		}
		if err != nil {
			return failed(err)
		}
		return &v1.OpenResponse{}
	case *v1.OpenRequest_Stat:
		return h.stat()
	case *v1.OpenRequest_Names:
		if op.Names < 1 || op.Names > maxNames {
			return failed(bad("names", "not from 1 to 4096"))
		}
		names, err := h.f.Readdirnames(int(op.Names))
		if err != nil && err != io.EOF {
			return failed(err)
		}
		r := &v1.OpenResponse{Eof: err == io.EOF}
		r.Names = wire.Texts(names)
		return r
	}
	return failed(bad("op", "none, or a second open"))
}
