package fake

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	"belljar"
)

// files implements [belljar.Files] with an os.Root.
type files struct{ i *instance }

var errNotRegular = errors.New("neither a regular file nor a directory")

// do runs an operation on a name relative to the root.
func (f files) do(op, name string, g func(rel string) error) error {
	err := f.i.b.fault("files")
	if err == nil {
		rel := strings.TrimPrefix(path.Clean("/"+name), "/")
		if rel == "" {
			rel = "."
		}
		err = g(rel)
	}
	if err == nil {
		return nil
	}
	// The names in the error are the sandbox's.
	if e := (*fs.PathError)(nil); errors.As(err, &e) {
		err = e.Err
	} else if e := (*os.LinkError)(nil); errors.As(err, &e) {
		err = e.Err
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// OpenFile implements [belljar.Files].
func (f files) OpenFile(name string, flag int, perm fs.FileMode) (belljar.Handle, error) {
	var file *os.File
	err := f.do("open", name, func(rel string) error {
		_, statErr := f.i.root.Lstat(rel)
		var err error
		if file, err = f.i.root.OpenFile(rel, flag|nonblock, perm.Perm()); err != nil {
			return err
		}
		fi, err := file.Stat()
		if err == nil && !fi.Mode().IsRegular() && !fi.IsDir() {
			err = errNotRegular
		}
		if err != nil {
			_ = file.Close()
			file = nil
			return err
		}
		switch {
		case flag&os.O_CREATE != 0 && errors.Is(statErr, fs.ErrNotExist):
			f.i.event("create", name)
		case flag&(os.O_WRONLY|os.O_RDWR) != 0:
			f.i.event("write", name)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return file, nil
}

// Mkdir implements [belljar.Files].
func (f files) Mkdir(name string, perm fs.FileMode) error {
	return f.change("create", "mkdir", name, func(rel string) error { return f.i.root.Mkdir(rel, perm.Perm()) })
}

// Remove implements [belljar.Files].
func (f files) Remove(name string) error {
	return f.change("remove", "remove", name, f.i.root.Remove)
}

// RemoveAll implements [belljar.Files].
func (f files) RemoveAll(name string) error {
	return f.change("remove", "removeall", name, f.i.root.RemoveAll)
}

// Rename implements [belljar.Files].
func (f files) Rename(oldname, newname string) error {
	err := f.do("rename", oldname, func(o string) error {
		return f.do("rename", newname, func(n string) error { return f.i.root.Rename(o, n) })
	})
	if err == nil {
		f.i.event("rename", oldname)
		f.i.event("create", newname)
	}
	return err
}

// Symlink implements [belljar.Files].
func (f files) Symlink(target, name string) error {
	return f.change("create", "symlink", name, func(rel string) error { return f.i.root.Symlink(target, rel) })
}

// Readlink implements [belljar.Files].
func (f files) Readlink(name string) (target string, err error) {
	err = f.do("readlink", name, func(rel string) error {
		target, err = f.i.root.Readlink(rel)
		return err
	})
	return target, err
}

// Stat implements [belljar.Files].
func (f files) Stat(name string) (fi fs.FileInfo, err error) {
	err = f.do("stat", name, func(rel string) error {
		fi, err = f.i.root.Stat(rel)
		return err
	})
	return fi, err
}

// Lstat implements [belljar.Files].
func (f files) Lstat(name string) (fi fs.FileInfo, err error) {
	err = f.do("lstat", name, func(rel string) error {
		fi, err = f.i.root.Lstat(rel)
		return err
	})
	return fi, err
}

// Chmod implements [belljar.Files].
func (f files) Chmod(name string, mode fs.FileMode) error {
	return f.change("chmod", "chmod", name, func(rel string) error { return f.i.root.Chmod(rel, mode) })
}

// Chtimes implements [belljar.Files].
func (f files) Chtimes(name string, mtime time.Time) error {
	return f.change("chmod", "chtimes", name, func(rel string) error { return f.i.root.Chtimes(rel, mtime, mtime) })
}

func (f files) change(event, op, name string, g func(rel string) error) error {
	err := f.do(op, name, g)
	if err == nil {
		f.i.event(event, name)
	}
	return err
}

// watcher is one Watch.
type watcher struct {
	dir  string
	c    chan belljar.FileEvent
	once sync.Once
}

func (w *watcher) end() { w.once.Do(func() { close(w.c) }) }

// Watch implements [belljar.Files]. It sees what is done through Files, by
// programs too. A watcher that does not read gets an overflow.
func (f files) Watch(ctx context.Context, name string) (<-chan belljar.FileEvent, error) {
	err := f.do("watch", name, func(rel string) error {
		fi, err := f.i.root.Stat(rel)
		if err == nil && !fi.IsDir() {
			err = errors.New("not a directory")
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	w := &watcher{dir: path.Clean("/" + name), c: make(chan belljar.FileEvent, 64)}
	f.i.mu.Lock()
	f.i.watchers[w] = true
	f.i.mu.Unlock()
	context.AfterFunc(ctx, func() {
		f.i.mu.Lock()
		defer f.i.mu.Unlock()
		delete(f.i.watchers, w)
		w.end()
	})
	return w.c, nil
}

// event tells the watchers.
func (i *instance) event(op, name string) {
	name = path.Clean("/" + name)
	i.mu.Lock()
	defer i.mu.Unlock()
	for w := range i.watchers {
		if path.Dir(name) != w.dir {
			continue
		}
		e := belljar.FileEvent{Op: op, Name: path.Base(name)}
		if len(w.c) == cap(w.c)-1 {
			e = belljar.FileEvent{Op: "overflow"}
		}
		select {
		case w.c <- e:
		default:
		}
	}
}
