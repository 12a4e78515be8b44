package lab

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"belljar"
)

// naive is the host's path to a sandbox's file through /proc: what a trusted
// side has that joins path names instead of resolving by descriptor.
func (b *Box) naive(ctx context.Context) (string, func(), error) {
	ps, stop, err := b.resident(ctx, "sleep")
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/%d/root", ps[0].pid), stop, nil
}

// hostileTree turns every file operation of the trusted side on a tree that a
// hostile program made.
func hostileTree(ctx context.Context, e *Env) error {
	c, err := e.Canary()
	if err != nil {
		return err
	}
	b, err := e.Box(ctx, nil)
	if err != nil {
		return err
	}
	res, err := b.Exec(ctx, "hostiletree", b.Work+"/tree", c.Path, "200")
	if err != nil {
		return err
	}
	if string(res.Stdout) != "ready\n" {
		return fmt.Errorf("the tree was not made: %q", res.Stdout)
	}
	sb, tree := b.sb, b.Work+"/tree/"
	names := []string{"fifo", "link", "uplink", "dirlink", "dirlink/file", "dangling", "loop", "procroot", "procroot" + c.Path, "procroot/etc/shadow", "zero", "socket", "endless", "../../../.." + c.Path, "\xff\xfe\n\x1b[31m", strings.Repeat("n", 255)}
	if e.Weak() {
		root, stop, err := b.naive(ctx)
		if err != nil {
			return err
		}
		defer stop()
		got, err := os.ReadFile(root + tree + "link")
		e.Check(!bytes.Contains(got, []byte(c.Secret)), "joining path names leads to the canary: %v", err)
		return nil
	}
	for _, n := range names {
		name := tree + n
		read := func() error {
			got, err := sb.ReadFile(name)
			e.Check(!bytes.Contains(got, []byte(c.Secret)), "read %q: the canary's secret", n)
			e.Check(len(got) < 32<<20, "read %q: %d bytes", n, len(got))
			if err != nil && !errors.Is(err, belljar.ErrFS) {
				return fmt.Errorf("read %q: %w", n, err)
			}
			return nil
		}
		if err := bounded(e, "read "+n, read); err != nil {
			e.Broken("%v", err)
		}
		for what, f := range map[string]func() error{
			"list":    func() error { _, err := sb.List(name); return err },
			"stat":    func() error { _, err := sb.Stat(name); return err },
			"chmod":   func() error { return sb.Chmod(name, 0o777) },
			"chtimes": func() error { return sb.Chtimes(name, time.Unix(5, 0)) },
			"open for writing": func() error {
				f, err := sb.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
				if err != nil {
					return err
				}
				defer f.Close()
				if n == "zero" || n == "endless" {
					return nil
				}
				_, err = f.Write([]byte("x"))
				return err
			},
			"write":  func() error { return sb.WriteFile(name, []byte("trusted"), 0o644) },
			"rename": func() error { return sb.Rename(name, name+".moved") },
			"mkdir":  func() error { return sb.MkdirAll(name+"/sub", 0o755) },
			"watch": func() error {
				ctx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
				defer cancel()
				_, err := sb.Watch(ctx, name)
				return err
			},
		} {
			err := bounded(e, what+" "+n, f)
			e.Check(err == nil || errors.Is(err, belljar.ErrFS) || err.Error() == "hangs", "%s %q: %v", what, n, err)
			if err != nil {
				e.Check(!strings.Contains(err.Error(), e.lab.dir) || strings.Contains(name, e.lab.dir), "%s %q: the error has a host path: %v", what, n, err)
			}
		}
	}
	e.Check(c.Changed() == "", "%s", c.Changed())

	if _, err := b.Exec(ctx, "hostiletree", b.Work+"/tree2", c.Path, "200"); err != nil {
		return err
	}
	var buf limitedBuffer
	err = bounded(e, "download", func() error {
		ctx, cancel := context.WithTimeout(ctx, 4*time.Second)
		defer cancel()
		return sb.DownloadTar(ctx, &buf, b.Work+"/tree2")
	})
	e.Note("download of the tree: %d bytes, %v", buf.n, err)
	e.Check(!bytes.Contains(buf.b.Bytes(), []byte(c.Secret)), "the canary's secret is in the download")

	up := func(name string, hs ...tar.Header) {
		var t bytes.Buffer
		w := tar.NewWriter(&t)
		for _, h := range hs {
			if h.Mode == 0 {
				h.Mode = 0o6777
			}
			if err := w.WriteHeader(&h); err != nil {
				e.Note("tar %s: %v", name, err)
				return
			}
			if h.Size > 0 {
				_, _ = w.Write(bytes.Repeat([]byte("u"), int(h.Size))) // into memory
			}
		}
		_ = w.Close()
		err := bounded(e, "upload "+name, func() error { return sb.UploadTar(ctx, &t, b.Work+"/up-"+strings.ReplaceAll(name, " ", "-")) })
		e.Note("upload %s: %v", name, err)
		e.Check(c.Changed() == "", "upload %s: %s", name, c.Changed())
	}
	dir := filepath.Dir(c.Path)
	up("dotdot", tar.Header{Name: strings.Repeat("../", 12) + strings.TrimPrefix(c.Path, "/"), Size: 3, Typeflag: tar.TypeReg})
	up("absolute", tar.Header{Name: c.Path, Size: 3, Typeflag: tar.TypeReg})
	up("link then child", tar.Header{Name: "l", Linkname: dir, Typeflag: tar.TypeSymlink}, tar.Header{Name: "l/new", Size: 3, Typeflag: tar.TypeReg})
	up("link then file", tar.Header{Name: "l", Linkname: c.Path, Typeflag: tar.TypeSymlink}, tar.Header{Name: "l", Size: 3, Typeflag: tar.TypeReg})
	up("hard link", tar.Header{Name: "h", Linkname: c.Path, Typeflag: tar.TypeLink}, tar.Header{Name: "h", Size: 3, Typeflag: tar.TypeReg})
	up("device", tar.Header{Name: "d", Typeflag: tar.TypeBlock, Devmajor: 253})
	up("fifo", tar.Header{Name: "f", Typeflag: tar.TypeFifo}, tar.Header{Name: "f", Size: 3, Typeflag: tar.TypeReg})

	if err := sb.WriteFile(b.Work+"/plain", []byte("plain"), 0o644); err != nil {
		return err
	}
	got, err := sb.ReadFile(b.Work + "/plain")
	e.Control(err == nil && string(got) == "plain", "an ordinary file can be written and read: %v", err)
	usable(ctx, e, b)
	return nil
}

type limitedBuffer struct {
	b bytes.Buffer
	n int64
}

func (l *limitedBuffer) Write(p []byte) (int, error) {
	l.n += int64(len(p))
	if l.b.Len() < 8<<20 {
		l.b.Write(p)
	}
	if l.n > 64<<20 {
		return 0, io.ErrShortWrite
	}
	return len(p), nil
}

// swapRace lets a program swap a directory with a link while the trusted side
// works below it.
func swapRace(ctx context.Context, e *Env) error {
	c, err := e.Canary()
	if err != nil {
		return err
	}
	b, err := e.Box(ctx, nil)
	if err != nil {
		return err
	}
	cmd := b.Cmd("swap", b.Work+"/swap", c.Path, "1500")
	if err := cmd.Start(ctx); err != nil {
		return err
	}
	root := ""
	if e.Weak() {
		r, stop, err := b.naive(ctx)
		if err != nil {
			return err
		}
		defer stop()
		root = r
	}
	name, won, tries := b.Work+"/swap/file", 0, 0
	for start := time.Now(); time.Since(start) < time.Second; tries++ {
		var got []byte
		if e.Weak() {
			got, _ = os.ReadFile(root + name)
		} else {
			got, err = b.sb.ReadFile(name)
			if tries%8 == 0 {
				_ = b.sb.WriteFile(name, []byte("trusted"), 0o666) // refused or contained: the canary tells
				_ = b.sb.Chmod(name, 0o600)
				_ = b.sb.Remove(name + ".moved")
				_, _ = b.sb.List(b.Work + "/swap")
			}
			if err == nil && len(got) > 0 {
				won++
			}
		}
		if bytes.Contains(got, []byte(c.Secret)) {
			e.Broken("read the canary in try %d", tries)
			break
		}
	}
	if changed := c.Changed(); changed != "" {
		e.Broken("%s", changed)
	}
	if err := cmd.Cancel(ctx); err != nil {
		return err
	}
	e.Control(won > 0, "%d of %d tries read the file inside", won, tries)
	return nil
}
