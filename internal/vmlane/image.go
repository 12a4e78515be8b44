package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

// image is an initramfs in the making. Everything but init and its plan lies
// below image/, which init bind-mounts and makes the root: the first root of a
// kernel cannot be pivoted away from, an ordinary mount can.
type image struct {
	entries []entry
	dirs    map[string]bool
	files   map[string]bool
}

type entry struct {
	name string
	mode uint32 // with the file type
	from string // file on the host
	data []byte
}

const (
	typeDir  = 0o040000
	typeFile = 0o100000
	typeLink = 0o120000
)

func newImage() *image { return &image{dirs: map[string]bool{}, files: map[string]bool{}} }

func (m *image) mkdir(name string) {
	if name == "." || name == "/" || m.dirs[name] {
		return
	}
	m.mkdir(path.Dir(name))
	m.dirs[name] = true
	m.entries = append(m.entries, entry{name: name, mode: typeDir | 0o755})
}

func (m *image) rootFile(name, from string, perm uint32) error {
	if _, err := os.Stat(from); err != nil {
		return err
	}
	m.mkdir(path.Dir(name))
	m.entries = append(m.entries, entry{name: name, mode: typeFile | perm, from: from})
	return nil
}

func (m *image) rootBytes(name string, data []byte, perm uint32) {
	m.mkdir(path.Dir(name))
	m.entries = append(m.entries, entry{name: name, mode: typeFile | perm, data: data})
}

func (m *image) addFile(name, from string, perm uint32) error {
	if m.files[name] {
		return nil
	}
	m.files[name] = true
	return m.rootFile("image/"+name, from, perm)
}

func (m *image) symlink(name, target string) {
	m.mkdir(path.Dir("image/" + name))
	m.entries = append(m.entries, entry{name: "image/" + name, mode: typeLink | 0o777, data: []byte(target)})
}

// addTree adds a directory of plain files, if it is there.
func (m *image) addTree(name, from string) error {
	err := filepath.WalkDir(from, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, p)
		if err != nil {
			return err
		}
		if d.IsDir() {
			m.mkdir("image/" + path.Join(name, filepath.ToSlash(rel)))
			return nil
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		if !fi.Mode().IsRegular() {
			return nil
		}
		return m.addFile(path.Join(name, filepath.ToSlash(rel)), p, uint32(fi.Mode().Perm()))
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// addProgram adds a program of the host and the libraries that it is linked with,
// if it is there: a test that needs it says so.
func (m *image) addProgram(name string) error {
	from, err := exec.LookPath(name)
	if err != nil {
		return nil
	}
	if from, err = filepath.EvalSymlinks(from); err != nil {
		return err
	}
	if err := m.addFile("usr/bin/"+name, from, 0o755); err != nil {
		return err
	}
	out, err := exec.Command("ldd", from).Output()
	if err != nil {
		return fmt.Errorf("ldd %s: %w", from, err)
	}
	for _, f := range strings.Fields(string(out)) {
		if !strings.HasPrefix(f, "/") {
			continue
		}
		lib, err := filepath.EvalSymlinks(f)
		if err != nil {
			return err
		}
		to := "usr/" + strings.TrimPrefix(strings.TrimPrefix(f, "/usr/"), "/")
		if err := m.addFile(to, lib, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// base adds what a small distribution has: a merged /usr with busybox, accounts
// and the mount points.
func (m *image) base() error {
	box, err := exec.LookPath("busybox")
	if err != nil {
		return fmt.Errorf("%w (install busybox-static)", err)
	}
	if box, err = filepath.EvalSymlinks(box); err != nil {
		return err
	}
	if err := m.addFile("usr/bin/busybox", box, 0o755); err != nil {
		return err
	}
	list, err := exec.Command(box, "--list").Output()
	if err != nil {
		return fmt.Errorf("busybox --list: %w", err)
	}
	for a := range strings.Lines(string(list)) {
		if a = strings.TrimSpace(a); a != "" && a != "busybox" && a != "init" {
			m.symlink("usr/bin/"+a, "busybox")
		}
	}
	for _, l := range []string{"bin", "sbin", "lib", "lib64"} {
		target := "usr/" + l
		if l == "sbin" {
			target = "usr/bin"
		}
		m.symlink(l, target)
	}
	for _, d := range []string{"proc", "sys", "dev", "tmp", "run", "root", "var/tmp", "home/lab", "etc/ssl/certs", "usr/lib", "usr/lib64", "mnt", "old"} {
		m.mkdir("image/" + d)
	}
	text := func(name, s string, perm uint32) { m.rootBytes("image/"+name, []byte(s), perm) }
	text("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nlab:x:1000:1000:lab:/home/lab:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n", 0o644)
	text("etc/group", "root:x:0:\nlab:x:1000:\nnogroup:x:65534:\n", 0o644)
	text("etc/shadow", "root:*:1:0:99999:7:::\n", 0o600)
	text("etc/subuid", "lab:100000:65536\n", 0o644)
	text("etc/subgid", "lab:100000:65536\n", 0o644)
	text("etc/hosts", "127.0.0.1 localhost\n::1 localhost\n", 0o644)
	text("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n", 0o644)
	text("etc/resolv.conf", "", 0o644)
	return nil
}

// write makes a cpio archive of the "newc" format (initramfs-buffer-format.rst).
func (m *image) write(name string) (err error) {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := bufio.NewWriterSize(f, 1<<20)
	pad := func(n int) {
		for ; n%4 != 0; n++ {
			_ = w.WriteByte(0) // the error sticks to w and comes out of Flush
		}
	}
	for i, e := range append(m.entries, entry{name: "TRAILER!!!"}) {
		data := e.data
		if e.from != "" {
			if data, err = os.ReadFile(e.from); err != nil {
				return err
			}
		}
		n, _ := fmt.Fprintf(w, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
			i+1, e.mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(e.name)+1, 0, e.name)
		pad(n)
		_, _ = w.Write(data)
		pad(len(data))
	}
	return w.Flush()
}
