package belljar

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// Bounds of a tree that is copied in either direction.
const (
	maxTreeEntries = 1 << 18
	maxTreeBytes   = 16 * GiB // apparent size, so that sparse files are no bomb
	maxTreeDepth   = 256
)

// meter counts a tree against the bounds.
type meter struct {
	entries int
	bytes   int64
}

func (m *meter) add(size int64) error {
	m.entries++
	if m.entries > maxTreeEntries {
		return fmt.Errorf("more than %d entries", maxTreeEntries)
	}
	if size < 0 || size > int64(maxTreeBytes)-m.bytes {
		return fmt.Errorf("more than %d bytes", maxTreeBytes)
	}
	m.bytes += size
	return nil
}

// stage is a tree that is being put together in a directory of its own, beside
// where it goes. Until commit nothing of it is visible under its names.
type stage struct {
	ctx   context.Context
	fsys  Files
	dir   string // where it goes
	tmp   string
	meter meter
	kinds map[string]fs.FileMode // type bits of what was added, by clean relative name
	modes []dirMode              // of directories, set at the end: they may be read-only
}

type dirMode struct {
	name  string
	mode  fs.FileMode
	mtime time.Time
}

func newStage(ctx context.Context, fsys Files, dir string) (*stage, error) {
	if err := mkdirAll(fsys, dir, 0o755); err != nil {
		return nil, err
	}
	st := &stage{ctx: ctx, fsys: fsys, dir: dir, tmp: path.Join(dir, tempPrefix+newID("")), kinds: map[string]fs.FileMode{".": fs.ModeDir}}
	return st, fsys.Mkdir(st.tmp, 0o700)
}

// entryName checks the name of an entry and makes it clean.
func entryName(name string) (string, error) {
	clean := path.Clean(name)
	switch {
	case name == "" || strings.Contains(name, "\x00") || len(name) > maxPathLen:
		return "", fmt.Errorf("entry %.80q: invalid name", name)
	case path.IsAbs(name):
		return "", fmt.Errorf("entry %.80q: absolute name", name)
	case clean == ".." || strings.HasPrefix(clean, "../") || strings.Contains("/"+name+"/", "/../"):
		return "", fmt.Errorf("entry %.80q: leaves the tree", name)
	case strings.Count(clean, "/") >= maxTreeDepth:
		return "", fmt.Errorf("entry %.80q: too deep", name)
	case strings.HasPrefix(clean, tempPrefix):
		return "", fmt.Errorf("entry %.80q: reserved name", name)
	}
	return clean, nil
}

// parent makes the directories above an entry. A link or file of the same tree
// in their place is refused.
func (st *stage) parent(name string) error {
	up := path.Dir(name)
	switch kind, ok := st.kinds[up]; {
	case ok && kind == fs.ModeDir:
		return nil
	case ok:
		return fmt.Errorf("entry %.80q: below something that is no directory", name)
	}
	if err := st.parent(up); err != nil {
		return err
	}
	if err := st.meter.add(0); err != nil {
		return err
	}
	if err := st.fsys.Mkdir(path.Join(st.tmp, up), 0o755); err != nil {
		return err
	}
	st.kinds[up] = fs.ModeDir
	return nil
}

// place prepares the name of an entry that is not a directory.
func (st *stage) place(name string, kind fs.FileMode, size int64) error {
	if err := st.ctx.Err(); err != nil {
		return err
	}
	if name == "." {
		return errors.New("entry \".\": not a directory")
	}
	if err := st.meter.add(size); err != nil {
		return err
	}
	if err := st.parent(name); err != nil {
		return err
	}
	if old, ok := st.kinds[name]; ok {
		if old == fs.ModeDir {
			return fmt.Errorf("entry %.80q: replaces a directory", name)
		}
		if err := st.fsys.Remove(path.Join(st.tmp, name)); err != nil {
			return err
		}
	}
	st.kinds[name] = kind
	return nil
}

func (st *stage) mkdir(name string, mode fs.FileMode, mtime time.Time) error {
	if err := st.ctx.Err(); err != nil {
		return err
	}
	if err := st.meter.add(0); err != nil {
		return err
	}
	if name == "." {
		return nil // the directory it goes to keeps its own mode
	}
	if err := st.parent(name); err != nil {
		return err
	}
	switch kind, ok := st.kinds[name]; {
	case ok && kind != fs.ModeDir:
		return fmt.Errorf("entry %.80q: replaces something that is no directory", name)
	case !ok:
		if err := st.fsys.Mkdir(path.Join(st.tmp, name), 0o755); err != nil {
			return err
		}
		st.kinds[name] = fs.ModeDir
	}
	st.modes = append(st.modes, dirMode{name, mode.Perm(), mtime})
	return nil
}

// file adds a file of exactly size bytes.
func (st *stage) file(name string, mode fs.FileMode, mtime time.Time, size int64, r io.Reader) error {
	if err := st.place(name, 0, size); err != nil {
		return err
	}
	p := path.Join(st.tmp, name)
	err := writeNew(st.fsys, p, mode, func(w io.Writer) error {
		n, err := io.Copy(w, ctxReader{st.ctx, io.LimitReader(r, size+1)})
		if err == nil && n != size {
			err = fmt.Errorf("entry %.80q: %d bytes announced, got %d", name, size, n)
		}
		return err
	})
	if err != nil {
		return err
	}
	return st.touch(p, mtime)
}

func (st *stage) touch(p string, mtime time.Time) error {
	if mtime.IsZero() || mtime.Unix() == 0 {
		return nil
	}
	return st.fsys.Chtimes(p, mtime)
}

func (st *stage) symlink(name, target string) error {
	if target == "" || len(target) > maxPathLen || strings.Contains(target, "\x00") {
		return fmt.Errorf("entry %.80q: invalid link", name)
	}
	if err := st.place(name, fs.ModeSymlink, 0); err != nil {
		return err
	}
	return st.fsys.Symlink(target, path.Join(st.tmp, name))
}

// link adds a hard link to an earlier file of the same tree, as a copy: a real
// one could be changed under two names.
func (st *stage) link(name, target string) error {
	if kind, ok := st.kinds[target]; !ok || kind != 0 {
		return fmt.Errorf("entry %.80q: hard link to something that is no earlier file of the tree", name)
	}
	if name == target {
		return fmt.Errorf("entry %.80q: hard link to itself", name)
	}
	f, err := st.fsys.OpenFile(path.Join(st.tmp, target), os.O_RDONLY|oNofollow, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	return st.file(name, fi.Mode(), fi.ModTime(), fi.Size(), f)
}

// commit moves everything to its place. Directories that exist are merged;
// files are replaced. It looks for conflicts before it moves the first.
func (st *stage) commit() error {
	for i := len(st.modes) - 1; i >= 0; i-- {
		// Merged directories keep theirs; see move.
		m := st.modes[i]
		if err := st.fsys.Chmod(path.Join(st.tmp, m.name), m.mode|0o700); err != nil {
			return err
		}
		if err := st.touch(path.Join(st.tmp, m.name), m.mtime); err != nil {
			return err
		}
	}
	if err := st.conflicts("."); err != nil {
		return err
	}
	if err := st.move("."); err != nil {
		return err
	}
	for i := len(st.modes) - 1; i >= 0; i-- {
		if m := st.modes[i]; m.mode&0o700 != 0o700 {
			if err := st.fsys.Chmod(path.Join(st.dir, m.name), m.mode); err != nil {
				return err
			}
		}
	}
	return st.fsys.RemoveAll(st.tmp)
}

// below lists the staged entries of a directory.
func (st *stage) below(dir string) ([]string, error) {
	f, err := st.fsys.OpenFile(path.Join(st.tmp, dir), os.O_RDONLY|oNofollow, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

// both visits the staged entries of a directory that exist at the destination
// as directories too.
func (st *stage) each(dir string, f func(name string, merge bool) error) error {
	if err := st.ctx.Err(); err != nil {
		return err
	}
	names, err := st.below(dir)
	if err != nil {
		return err
	}
	for _, n := range names {
		name := path.Join(dir, n)
		kind, ok := st.kinds[name]
		if !ok {
			return fmt.Errorf("entry %.80q: appeared by itself", name)
		}
		old, err := st.fsys.Lstat(path.Join(st.dir, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		exists := err == nil
		if exists && old.IsDir() != (kind == fs.ModeDir) {
			return fmt.Errorf("entry %.80q: a directory and something else in one place", name)
		}
		if err := f(name, exists && old.IsDir()); err != nil {
			return err
		}
	}
	return nil
}

func (st *stage) conflicts(dir string) error {
	return st.each(dir, func(name string, merge bool) error {
		if merge {
			return st.conflicts(name)
		}
		return nil
	})
}

func (st *stage) move(dir string) error {
	return st.each(dir, func(name string, merge bool) error {
		if merge {
			return st.move(name)
		}
		return st.fsys.Rename(path.Join(st.tmp, name), path.Join(st.dir, name))
	})
}

func (st *stage) abort() { _ = st.fsys.RemoveAll(st.tmp) }

// ctxReader stops at the end of a context.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (r ctxReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// staged puts a tree together and moves it into dir.
func (s *Sandbox) staged(ctx context.Context, op, dir string, fill func(*stage) error) error {
	return s.file(op, dir, func(fsys Files, dir string) error {
		st, err := newStage(ctx, fsys, dir)
		if err != nil {
			return err
		}
		if err = fill(st); err == nil {
			err = st.commit()
		}
		if err != nil {
			st.abort()
		}
		return err
	})
}

// UploadTar unpacks a tar stream into a directory, which is made when missing.
// Names that are absolute or contain "..", entries below a link of the stream, hard
// links to anything but an earlier file of it (they become copies), devices,
// FIFOs and more than 262144 entries or 16 GiB are FS_ERROR. Owners and
// set-id bits are not taken over.
//
// The tree is put together out of sight first: when the stream is refused or
// ends early, nothing of it is there. Then it is moved in: each file appears whole,
// existing directories are merged, existing files replaced. Only a program inside that
// interferes at that moment can make it stop halfway, with an error.
func (s *Sandbox) UploadTar(ctx context.Context, r io.Reader, dir string) error {
	return s.staged(ctx, "upload", dir, func(st *stage) error {
		tr := tar.NewReader(ctxReader{ctx, r})
		for {
			h, err := tr.Next()
			if err == io.EOF {
				return nil
			}
			if err != nil {
				return err
			}
			if err := st.tarEntry(h, tr); err != nil {
				return err
			}
		}
	})
}

func (st *stage) tarEntry(h *tar.Header, r io.Reader) error {
	name, err := entryName(h.Name)
	if err != nil {
		return err
	}
	mode := fs.FileMode(h.Mode).Perm()
	switch h.Typeflag {
	case tar.TypeDir:
		return st.mkdir(name, mode, h.ModTime)
	case tar.TypeReg, tar.TypeGNUSparse:
		return st.file(name, mode, h.ModTime, h.Size, r)
	case tar.TypeSymlink:
		return st.symlink(name, h.Linkname)
	case tar.TypeLink:
		target, err := entryName(h.Linkname)
		if err != nil {
			return err
		}
		return st.link(name, target)
	}
	return fmt.Errorf("entry %.80q: type %q is not unpacked", h.Name, h.Typeflag)
}

// CopyIn copies a file or a tree of the host to dst inside, which names the copy
// itself and not its parent. Symbolic links are copied as such; anything but files,
// directories and links is FS_ERROR. What UploadTar says of partial trees holds.
func (s *Sandbox) CopyIn(ctx context.Context, src, dst string) error {
	src = filepath.Clean(src)
	fi, err := os.Stat(src)
	if err != nil {
		return fsError("copy in", src, err)
	}
	if !fi.IsDir() {
		return s.copyFileIn(ctx, src, dst)
	}
	root, err := os.OpenRoot(src)
	if err != nil {
		return fsError("copy in", src, err)
	}
	defer root.Close()
	return s.staged(ctx, "copy in", dst, func(st *stage) error {
		return fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			fi, err := d.Info()
			if err != nil {
				return err
			}
			if name, err = entryName(name); err != nil {
				return err
			}
			switch fi.Mode().Type() {
			case fs.ModeDir:
				return st.mkdir(name, fi.Mode(), fi.ModTime())
			case fs.ModeSymlink:
				target, err := root.Readlink(name)
				if err != nil {
					return err
				}
				return st.symlink(name, target)
			case 0:
				f, err := root.OpenFile(name, os.O_RDONLY|oNofollow|oNonblock, 0)
				if err != nil {
					return err
				}
				defer f.Close()
				return st.file(name, fi.Mode(), fi.ModTime(), fi.Size(), f)
			}
			return fmt.Errorf("entry %.80q: %v is not copied", name, fi.Mode().Type())
		})
	})
}

func (s *Sandbox) copyFileIn(ctx context.Context, src, dst string) error {
	f, err := os.OpenFile(src, os.O_RDONLY|oNonblock, 0)
	if err != nil {
		return fsError("copy in", src, err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return fsError("copy in", src, err)
	}
	if !fi.Mode().IsRegular() {
		return fsError("copy in", src, fmt.Errorf("%v is not copied", fi.Mode().Type()))
	}
	return s.file("copy in", dst, func(fsys Files, name string) error {
		return writeAtomic(fsys, name, fi.Mode(), func(w io.Writer) error {
			_, err := io.Copy(w, ctxReader{ctx, f})
			return err
		})
	})
}

// tree visits a directory of the sandbox in lexical order within a directory,
// without following links.
type tree struct {
	ctx   context.Context
	fsys  Files
	meter meter
	visit func(rel string, fi fs.FileInfo, f Handle, link string) error
}

// walk visits what is at p, and below. A link is followed only at the top.
func (t *tree) walk(p, rel string, depth int) error {
	if err := t.ctx.Err(); err != nil {
		return err
	}
	if depth > maxTreeDepth {
		return fmt.Errorf("%.80q: too deep", rel)
	}
	stat, flag := t.fsys.Lstat, os.O_RDONLY|oNofollow
	if depth == 0 {
		stat, flag = t.fsys.Stat, os.O_RDONLY
	}
	fi, err := stat(p)
	if err != nil {
		return err
	}
	switch fi.Mode().Type() {
	case fs.ModeSymlink:
		target, err := t.fsys.Readlink(p)
		if err != nil {
			return err
		}
		if err := t.meter.add(0); err != nil {
			return err
		}
		return t.visit(rel, fi, nil, target)
	case 0, fs.ModeDir:
	default:
		return fmt.Errorf("%.80q: %v is not copied", rel, fi.Mode().Type())
	}
	f, err := t.fsys.OpenFile(p, flag, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	// The open file counts, whatever was there a moment ago.
	if fi, err = f.Stat(); err != nil {
		return err
	}
	if !fi.IsDir() {
		if err := t.meter.add(fi.Size()); err != nil {
			return err
		}
		return t.visit(rel, fi, f, "")
	}
	if err := t.meter.add(0); err != nil {
		return err
	}
	if err := t.visit(rel, fi, nil, ""); err != nil {
		return err
	}
	for {
		names, err := f.Readdirnames(1024)
		for _, n := range names {
			if err := t.walk(path.Join(p, n), path.Join(rel, n), depth+1); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// DownloadTar writes a directory of the sandbox, or a single file, as a tar stream. Links are
// written as links. FIFOs, sockets and devices, files that change while they are
// read, and more than 262144 entries or 16 GiB are FS_ERROR. After an error the
// stream has no end marker, so that no reader takes it for whole.
func (s *Sandbox) DownloadTar(ctx context.Context, w io.Writer, dir string) error {
	return s.file("download", dir, func(fsys Files, dir string) error {
		tw := tar.NewWriter(w)
		t := &tree{ctx: ctx, fsys: fsys, visit: func(rel string, fi fs.FileInfo, f Handle, link string) error {
			h := &tar.Header{Name: rel, Mode: int64(fi.Mode().Perm()), ModTime: fi.ModTime(), Format: tar.FormatPAX}
			switch {
			case link != "":
				h.Typeflag, h.Linkname = tar.TypeSymlink, link
			case fi.IsDir():
				h.Typeflag, h.Name = tar.TypeDir, rel+"/"
			default:
				h.Typeflag, h.Size = tar.TypeReg, fi.Size()
			}
			if !strings.Contains(h.Name, "\x00") && !isPAX(h.Name, h.Linkname) {
				h.Format = tar.FormatGNU // the only one for names that are not UTF-8
				h.ModTime = h.ModTime.Truncate(time.Second)
			}
			if err := tw.WriteHeader(h); err != nil {
				return err
			}
			if f == nil {
				return nil
			}
			_, err := io.CopyN(tw, ctxReader{ctx, f}, fi.Size())
			if err == io.EOF {
				err = fmt.Errorf("%.80q: changed while it was read", rel)
			}
			return err
		}}
		fi, err := fsys.Stat(dir)
		if err != nil {
			return err
		}
		rel := "."
		if !fi.IsDir() {
			rel = path.Base(dir)
		}
		if err := t.walk(dir, rel, 0); err != nil {
			return err
		}
		return tw.Close()
	})
}

func isPAX(names ...string) bool {
	for _, n := range names {
		if strings.ToValidUTF8(n, "") != n {
			return false
		}
	}
	return true
}

// CopyOut copies a file or a tree of the sandbox to dst on the host, which names
// the copy itself and must not exist, but for a file that replaces a file. It is
// put together beside dst and then renamed, so nothing partial is left. Symbolic links that are absolute or leave the tree,
// and anything but files, directories and links, are FS_ERROR: whoever reads the copy must not be led elsewhere.
func (s *Sandbox) CopyOut(ctx context.Context, src, dst string) error {
	dst = filepath.Clean(dst)
	parent, err := os.OpenRoot(filepath.Dir(dst))
	if err != nil {
		return fsError("copy out", dst, err)
	}
	defer parent.Close()
	base, tmp := filepath.Base(dst), tempPrefix+newID("")
	err = s.file("copy out", src, func(fsys Files, src string) error {
		var modes []dirMode
		t := &tree{ctx: ctx, fsys: fsys, visit: func(rel string, fi fs.FileInfo, f Handle, link string) error {
			p := filepath.Join(tmp, filepath.FromSlash(rel))
			switch {
			case link != "":
				if path.IsAbs(link) || !fs.ValidPath(path.Join(path.Dir(rel), link)) || rel == "." {
					return fmt.Errorf("%.80q: symbolic link to %.80q leaves the tree", rel, link)
				}
				return parent.Symlink(link, p)
			case fi.IsDir():
				modes = append(modes, dirMode{p, fi.Mode().Perm(), fi.ModTime()})
				return parent.Mkdir(p, 0o700)
			}
			return copyFileOut(ctx, parent, p, fi, f)
		}}
		if err := t.walk(src, ".", 0); err != nil {
			return err
		}
		for i := len(modes) - 1; i >= 0; i-- {
			m := modes[i]
			if err := parent.Chmod(m.name, m.mode); err != nil {
				return err
			}
			if err := parent.Chtimes(m.name, m.mtime, m.mtime); err != nil {
				return err
			}
		}
		if len(modes) > 0 {
			if _, err := parent.Lstat(base); err == nil {
				return &fs.PathError{Op: "copy out", Path: dst, Err: fs.ErrExist}
			}
		}
		return parent.Rename(tmp, base)
	})
	if err != nil {
		_ = parent.RemoveAll(tmp)
	}
	return err
}

func copyFileOut(ctx context.Context, parent *os.Root, p string, fi fs.FileInfo, f Handle) error {
	out, err := parent.OpenFile(p, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(out, ctxReader{ctx, io.LimitReader(f, fi.Size())})
	if err == nil && n != fi.Size() {
		err = errors.New("file changed while it was read")
	}
	if err == nil {
		err = out.Chmod(fi.Mode().Perm())
	}
	if err = errors.Join(err, out.Close()); err != nil {
		return err
	}
	return parent.Chtimes(p, fi.ModTime(), fi.ModTime())
}
