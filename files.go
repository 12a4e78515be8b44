package belljar

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

const (
	// MaxReadFile is the size up to which [Sandbox.ReadFile] reads; larger files are
	// for [Sandbox.Open].
	MaxReadFile = 64 * MiB

	maxDirEntries = 1 << 18
	tempPrefix    = ".belljar-"
)

// File is an open file or directory of a sandbox. Its methods are those of
// [os.File] that stay within the sandbox.
type File struct {
	f  Handle
	sb *Sandbox
	n  string // absolute, inside
}

var (
	_ fs.ReadDirFile     = (*File)(nil)
	_ io.ReadWriteSeeker = (*File)(nil)
	_ io.ReaderAt        = (*File)(nil)
	_ io.WriterAt        = (*File)(nil)
)

// Name returns the absolute name inside the sandbox.
func (f *File) Name() string { return f.n }

func (f *File) err(op string, err error) error {
	if err == nil || err == io.EOF { // the io interfaces want it bare
		return err
	}
	return fsError(op, f.n, err)
}

// Read implements io.Reader.
func (f *File) Read(p []byte) (int, error) {
	n, err := f.f.Read(p)
	return n, f.err("read", err)
}

// ReadAt implements io.ReaderAt.
func (f *File) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.f.ReadAt(p, off)
	return n, f.err("read", err)
}

// Write implements io.Writer.
func (f *File) Write(p []byte) (int, error) {
	n, err := f.f.Write(p)
	return n, f.err("write", err)
}

// WriteAt implements io.WriterAt.
func (f *File) WriteAt(p []byte, off int64) (int, error) {
	n, err := f.f.WriteAt(p, off)
	return n, f.err("write", err)
}

// Seek implements io.Seeker.
func (f *File) Seek(offset int64, whence int) (int64, error) {
	n, err := f.f.Seek(offset, whence)
	return n, f.err("seek", err)
}

// Truncate changes the size.
func (f *File) Truncate(size int64) error { return f.err("truncate", f.f.Truncate(size)) }

// Chmod changes the permission bits.
func (f *File) Chmod(mode fs.FileMode) error { return f.err("chmod", f.f.Chmod(mode.Perm())) }

// Readdirnames returns names of a directory as [os.File.Readdirnames] does.
func (f *File) Readdirnames(n int) ([]string, error) {
	names, err := f.f.Readdirnames(n)
	return names, f.err("readdir", err)
}

// Stat implements fs.File.
func (f *File) Stat() (fs.FileInfo, error) {
	fi, err := f.f.Stat()
	if err != nil {
		return nil, f.err("stat", err)
	}
	return named{fi, path.Base(f.n)}, nil
}

// named is a FileInfo with the name inside.
type named struct {
	fs.FileInfo
	name string
}

func (n named) Name() string { return n.name }

// ReadDir implements fs.ReadDirFile. Entries that vanish meanwhile are left out.
func (f *File) ReadDir(n int) ([]fs.DirEntry, error) {
	// os.File.ReadDir looks entries up by a host path; only names are taken from it.
	names, err := f.f.Readdirnames(n)
	var list []fs.DirEntry
	for _, name := range names {
		fi, err := f.sb.inst.Files().Lstat(path.Join(f.n, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return list, f.err("readdir", err)
		}
		list = append(list, fs.FileInfoToDirEntry(named{fi, name}))
	}
	return list, f.err("readdir", err)
}

// Close implements io.Closer.
func (f *File) Close() error { return f.err("close", f.f.Close()) }

// fsError is what every operation on files fails with: FS_ERROR, which also is
// whatever the operating system said (fs.ErrNotExist and so on).
func fsError(op, name string, err error) error {
	if e := (*Error)(nil); errors.As(err, &e) {
		return err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return cancelled(op+" "+name, err)
	}
	msg := err.Error()
	if e := (*fs.PathError)(nil); errors.As(err, &e) {
		msg = e.Err.Error()
	} else if e := (*os.LinkError)(nil); errors.As(err, &e) {
		msg = e.Err.Error()
	}
	return &Error{Code: CodeFS, Op: op + " " + name, Message: msg, Recoverable: true, Err: err}
}

// file runs an operation on a name, which is relative to the working directory
// or absolute inside.
func (s *Sandbox) file(op, name string, f func(fsys Files, name string) error) error {
	if name == "" || strings.Contains(name, "\x00") || len(name) > maxPathLen {
		return fsError(op, fmt.Sprintf("%.80q", name), &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid})
	}
	name = s.dir(name)
	if err := s.enter(op + " " + name); err != nil {
		return err
	}
	defer s.leave()
	if err := f(s.inst.Files(), name); err != nil {
		return fsError(op, name, err)
	}
	return nil
}

// Open opens a file or directory for reading. Names are absolute inside the
// sandbox or relative to its working directory, here and below; links are
// followed inside the sandbox's root and never leave it. Every error is FS_ERROR,
// and matches fs.ErrNotExist and the like. FIFOs, sockets and devices are not opened.
func (s *Sandbox) Open(name string) (*File, error) { return s.OpenFile(name, os.O_RDONLY, 0) }

// Create makes or truncates a file, with mode 0644.
func (s *Sandbox) Create(name string) (*File, error) {
	return s.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
}

// OpenFile is the general open; flags are those of package os.
func (s *Sandbox) OpenFile(name string, flag int, perm fs.FileMode) (*File, error) {
	var file *File
	err := s.file("open", name, func(fsys Files, name string) error {
		f, err := fsys.OpenFile(name, flag, perm.Perm())
		if err == nil {
			file = &File{f, s, name}
		}
		return err
	})
	return file, err
}

// ReadFile returns the content of a regular file of at most [MaxReadFile] bytes.
func (s *Sandbox) ReadFile(name string) ([]byte, error) {
	var data []byte
	err := s.file("read", name, func(fsys Files, name string) error {
		f, err := fsys.OpenFile(name, os.O_RDONLY, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		tooLarge := &Error{
			Code: CodeFS, Op: "read " + name, Message: "file too large", Limit: fmt.Sprintf("%d B", MaxReadFile),
			Recoverable: true, Hint: "open it and read it in parts",
		}
		fi, err := f.Stat()
		if err != nil {
			return err
		}
		if fi.Size() > int64(MaxReadFile) {
			return tooLarge
		}
		// The size is a hint only: it may be wrong by the time, or always, as in /proc.
		data, err = readAll(f, fi.Size())
		if int64(len(data)) > int64(MaxReadFile) {
			data = nil
			return tooLarge
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return data, nil
}

// readAll reads at most one byte more than MaxReadFile.
func readAll(r io.Reader, hint int64) ([]byte, error) {
	b := make([]byte, 0, min(hint, int64(MaxReadFile))+512)
	for {
		n, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if err == io.EOF {
			return b, nil
		}
		if err != nil || int64(len(b)) > int64(MaxReadFile) {
			return b, err
		}
		if len(b) == cap(b) {
			b = slices.Grow(b, min(len(b), 1<<20))
		}
	}
}

// WriteFile makes a file with this content in one step: other programs see the
// old file or the whole new one. A link of that name is replaced, not followed.
func (s *Sandbox) WriteFile(name string, data []byte, perm fs.FileMode) error {
	return s.file("write", name, func(fsys Files, name string) error {
		return writeAtomic(fsys, name, perm, func(w io.Writer) error {
			_, err := w.Write(data)
			return err
		})
	})
}

// WriteFileFrom is WriteFile of what r gives. When r fails, the old file stays.
func (s *Sandbox) WriteFileFrom(name string, r io.Reader, perm fs.FileMode) error {
	return s.file("write", name, func(fsys Files, name string) error {
		return writeAtomic(fsys, name, perm, func(w io.Writer) error {
			_, err := io.Copy(w, r)
			return err
		})
	})
}

// writeAtomic writes beside the file and renames.
func writeAtomic(fsys Files, name string, perm fs.FileMode, fill func(io.Writer) error) error {
	tmp := path.Join(path.Dir(name), tempPrefix+newID(""))
	err := writeNew(fsys, tmp, perm, fill)
	if err == nil {
		err = fsys.Rename(tmp, name)
	}
	if err != nil {
		_ = fsys.Remove(tmp) // not there, or a hostile program moved it: then it is the program's
	}
	return err
}

// writeNew makes a file that was not there.
func writeNew(fsys Files, name string, perm fs.FileMode, fill func(io.Writer) error) error {
	f, err := fsys.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|oNofollow, perm.Perm())
	if err != nil {
		return err
	}
	err = fill(f)
	if err == nil {
		err = f.Chmod(perm.Perm()) // whatever the umask
	}
	return errors.Join(err, f.Close())
}

// Stat describes a file, following links inside.
func (s *Sandbox) Stat(name string) (fs.FileInfo, error) {
	return s.info("stat", name, Files.Stat)
}

// Lstat describes a file without following a link in its last element.
func (s *Sandbox) Lstat(name string) (fs.FileInfo, error) {
	return s.info("lstat", name, Files.Lstat)
}

func (s *Sandbox) info(op, name string, f func(Files, string) (fs.FileInfo, error)) (fs.FileInfo, error) {
	var fi fs.FileInfo
	err := s.file(op, name, func(fsys Files, name string) error {
		got, err := f(fsys, name)
		if err == nil {
			fi = named{got, path.Base(name)}
		}
		return err
	})
	return fi, err
}

// Readlink returns the target of a symbolic link, which is only text here.
func (s *Sandbox) Readlink(name string) (string, error) {
	var target string
	err := s.file("readlink", name, func(fsys Files, name string) (err error) {
		target, err = fsys.Readlink(name)
		return err
	})
	return target, err
}

// List returns the entries of a directory, sorted by name; more than 262144 are an error.
func (s *Sandbox) List(name string) ([]fs.DirEntry, error) {
	f, err := s.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var list []fs.DirEntry
	for {
		part, err := f.ReadDir(1024)
		list = append(list, part...)
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		if len(list) > maxDirEntries {
			return nil, &Error{
				Code: CodeFS, Op: "list " + f.n, Message: "too many entries", Limit: fmt.Sprint(maxDirEntries), Recoverable: true,
				Hint: "open the directory and read it in parts",
			}
		}
	}
	slices.SortFunc(list, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return list, nil
}

// Mkdir makes a directory.
func (s *Sandbox) Mkdir(name string, perm fs.FileMode) error {
	return s.file("mkdir", name, func(fsys Files, name string) error { return fsys.Mkdir(name, perm.Perm()) })
}

// MkdirAll makes a directory and the missing ones above it.
func (s *Sandbox) MkdirAll(name string, perm fs.FileMode) error {
	return s.file("mkdir", name, func(fsys Files, name string) error { return mkdirAll(fsys, name, perm) })
}

func mkdirAll(fsys Files, name string, perm fs.FileMode) error {
	fi, err := fsys.Stat(name)
	if err == nil {
		if fi.IsDir() {
			return nil
		}
		return &fs.PathError{Op: "mkdir", Path: name, Err: errNotDir}
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if up := path.Dir(name); up != name {
		if err := mkdirAll(fsys, up, perm); err != nil {
			return err
		}
	}
	err = fsys.Mkdir(name, perm.Perm())
	if errors.Is(err, fs.ErrExist) {
		if fi, statErr := fsys.Stat(name); statErr == nil && fi.IsDir() {
			return nil
		}
	}
	return err
}

var errNotDir = errors.New("not a directory")

// Remove removes a file or an empty directory.
func (s *Sandbox) Remove(name string) error {
	return s.file("remove", name, Files.Remove)
}

// RemoveAll removes a file, or a directory with everything below. What is not
// there is no error.
func (s *Sandbox) RemoveAll(name string) error {
	return s.file("remove", name, Files.RemoveAll)
}

// Rename renames in one step.
func (s *Sandbox) Rename(oldname, newname string) error {
	if newname == "" || strings.Contains(newname, "\x00") {
		return fsError("rename", fmt.Sprintf("%.80q", newname), &fs.PathError{Op: "rename", Path: newname, Err: fs.ErrInvalid})
	}
	return s.file("rename", oldname, func(fsys Files, oldname string) error { return fsys.Rename(oldname, s.dir(newname)) })
}

// Symlink makes a symbolic link.
func (s *Sandbox) Symlink(target, name string) error {
	return s.file("symlink", name, func(fsys Files, name string) error { return fsys.Symlink(target, name) })
}

// Chmod changes the permission bits.
func (s *Sandbox) Chmod(name string, mode fs.FileMode) error {
	return s.file("chmod", name, func(fsys Files, name string) error { return fsys.Chmod(name, mode.Perm()) })
}

// Chtimes changes the time of modification.
func (s *Sandbox) Chtimes(name string, mtime time.Time) error {
	return s.file("chtimes", name, func(fsys Files, name string) error { return fsys.Chtimes(name, mtime) })
}

// Watch sends the changes in a directory (not below it) until ctx or the sandbox
// ends; then the channel is closed. A reader that is too slow gets an event of
// kind overflow.
func (s *Sandbox) Watch(ctx context.Context, name string) (<-chan FileEvent, error) {
	ctx, cancel := context.WithCancel(ctx)
	var events <-chan FileEvent
	err := s.file("watch", name, func(fsys Files, name string) (err error) {
		events, err = fsys.Watch(ctx, name)
		return err
	})
	if err != nil {
		cancel()
		return nil, err
	}
	out := make(chan FileEvent)
	go func() {
		defer cancel()
		defer close(out)
		for {
			select {
			case e, ok := <-events:
				if !ok {
					return
				}
				select {
				case out <- e:
				case <-ctx.Done():
					return
				case <-s.gone:
					return
				}
			case <-s.gone:
				return
			}
		}
	}()
	return out, nil
}

// FS returns the sandbox's files below a directory as an [fs.FS], for reading.
// Links are followed inside the sandbox and may lead out of that directory.
func (s *Sandbox) FS(dir string) fs.FS { return sandboxFS{s, s.dir(dir)} }

type sandboxFS struct {
	s   *Sandbox
	dir string
}

var (
	_ fs.ReadDirFS  = sandboxFS{}
	_ fs.ReadFileFS = sandboxFS{}
	_ fs.StatFS     = sandboxFS{}
	_ fs.ReadLinkFS = sandboxFS{}
)

func (f sandboxFS) name(op, name string) (string, error) {
	if !fs.ValidPath(name) {
		return "", &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	return path.Join(f.dir, name), nil
}

// pathError is how package io/fs wants errors.
func pathError(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

func (f sandboxFS) Open(name string) (fs.File, error) {
	p, err := f.name("open", name)
	if err != nil {
		return nil, err
	}
	file, err := f.s.Open(p)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	if name == "." {
		return dot{file}, nil
	}
	return file, nil
}

// dot is the root of an fs.FS, which is named ".".
type dot struct{ *File }

func (d dot) Stat() (fs.FileInfo, error) {
	fi, err := d.File.Stat()
	if err != nil {
		return nil, err
	}
	return named{fi, "."}, nil
}

func (f sandboxFS) ReadFile(name string) ([]byte, error) {
	p, err := f.name("open", name)
	if err != nil {
		return nil, err
	}
	b, err := f.s.ReadFile(p)
	return b, pathError("open", name, err)
}

func (f sandboxFS) ReadDir(name string) ([]fs.DirEntry, error) {
	p, err := f.name("open", name)
	if err != nil {
		return nil, err
	}
	l, err := f.s.List(p)
	return l, pathError("open", name, err)
}

func (f sandboxFS) Stat(name string) (fs.FileInfo, error) { return f.stat("stat", name, f.s.Stat) }

func (f sandboxFS) Lstat(name string) (fs.FileInfo, error) { return f.stat("lstat", name, f.s.Lstat) }

func (f sandboxFS) stat(op, name string, g func(string) (fs.FileInfo, error)) (fs.FileInfo, error) {
	p, err := f.name(op, name)
	if err != nil {
		return nil, err
	}
	fi, err := g(p)
	if err != nil {
		return nil, pathError(op, name, err)
	}
	return named{fi, path.Base(name)}, nil
}

func (f sandboxFS) ReadLink(name string) (string, error) {
	p, err := f.name("readlink", name)
	if err != nil {
		return "", err
	}
	t, err := f.s.Readlink(p)
	return t, pathError("readlink", name, err)
}
