package native

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sort"
	"strings"

	"belljar"
	"belljar/backend/native/keeper"

	"golang.org/x/sys/unix"
)

// The one user of a sandbox.
const (
	userID   = 1000
	userName = "user"
	userHome = "/home/user"
	initID   = 65533 // PID 1: nobody that a program can be
)

// etcBinds are what of the host's /etc programs in /usr cannot do without, and that
// holds no secrets: nothing that an administrator edits for users to read (profile,
// gitconfig). All optional; a star ends a prefix.
var etcBinds = []string{
	"alternatives", "crypto-policies", "fonts", "java*", "ld.so.cache", "mime.types", "protocols", "python3*", "services",
}

// procMasks cover what /proc shows of the machine to everybody and programs do
// without; a slash marks directories. The whole of /proc is read-only besides,
// and what is only for root belongs to an id that is not mapped. Each costs a
// mount, so what says little (zoneinfo, softirqs, tty drivers) is left.
var procMasks = []string{
	"acpi/", "asound/", "bus/", "fs/", "irq/", "scsi/",
	"cmdline", "diskstats", "interrupts", "kcore", "key-users", "keys", "kmsg", "latency_stats", "locks", "mdstat", "modules", "mtrr", "partitions",
	"sched_debug", "schedstat", "swaps", "sysrq-trigger", "timer_list", "timer_stats",
}

const roFlags = keeper.AttrReadOnly | keeper.AttrNoSuid | keeper.AttrNoDev

func dirOp(p string, mode uint16) keeper.Op {
	return keeper.Op{Kind: keeper.OpDir, Mode: mode, A: strings.TrimPrefix(p, "/")}
}

func fileOp(p, content string) keeper.Op {
	return keeper.Op{Kind: keeper.OpFile, Mode: 0o644, A: strings.TrimPrefix(p, "/"), B: content}
}

func linkOp(p, target string) keeper.Op {
	return keeper.Op{Kind: keeper.OpLink, A: strings.TrimPrefix(p, "/"), B: target}
}

// bindOp binds a host path that has no symbolic link in it, and only the inode
// that is there now.
func bindOp(target, source string, attr, flags uint32) (keeper.Op, fs.FileMode, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, source, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return keeper.Op{}, 0, &fs.PathError{Op: "open", Path: source, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return keeper.Op{}, 0, &fs.PathError{Op: "stat", Path: source, Err: err}
	}
	var mode fs.FileMode
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		mode = fs.ModeDir
	case unix.S_IFREG:
	case unix.S_IFSOCK:
		mode = fs.ModeSocket
	default:
		mode = fs.ModeIrregular
	}
	return keeper.Op{
		Kind: keeper.OpBind, A: strings.TrimPrefix(target, "/"), B: source, Attr: attr, Flags: flags, Dev: st.Dev, Ino: st.Ino,
	}, mode, nil
}

// tree collects the operations of a template: each path once, parents first.
type tree struct {
	ops  []keeper.Op
	made map[string]bool // what exists; true = inside a bind of the host's
}

func newTree() *tree { return &tree{made: map[string]bool{"": false}} }

// parents makes the directories above a path and reports whether one of them is
// the host's, in which nothing can be made.
func (t *tree) parents(p string) (hosts bool) {
	p = strings.Trim(path.Clean("/"+p), "/")
	for i, c := range p {
		if c != '/' {
			continue
		}
		d := p[:i]
		if h, ok := t.made[d]; ok {
			if h {
				return true
			}
			continue
		}
		t.ops = append(t.ops, dirOp(d, 0o755))
		t.made[d] = false
	}
	return false
}

func (t *tree) has(p string) bool { _, ok := t.made[strings.Trim(p, "/")]; return ok }

func (t *tree) dir(p string, mode uint16) {
	if t.parents(p) || t.has(p) {
		return
	}
	t.ops = append(t.ops, dirOp(p, mode))
	t.made[strings.Trim(p, "/")] = false
}

func (t *tree) file(p, content string) {
	if t.parents(p) || t.has(p) {
		return
	}
	t.ops = append(t.ops, fileOp(p, content))
	t.made[strings.Trim(p, "/")] = false
}

func (t *tree) link(p, target string) {
	if t.parents(p) || t.has(p) {
		return
	}
	t.ops = append(t.ops, linkOp(p, target))
	t.made[strings.Trim(p, "/")] = true
}

func (t *tree) bind(target, source string, attr, flags uint32) error {
	if t.parents(target) || t.has(target) {
		return nil
	}
	op, mode, err := bindOp(target, source, attr, flags)
	if err != nil {
		return err
	}
	if mode.IsDir() {
		t.ops = append(t.ops, dirOp(target, 0o755))
	} else {
		t.ops = append(t.ops, fileOp(target, ""))
	}
	t.ops = append(t.ops, op)
	t.made[strings.Trim(target, "/")] = true
	return nil
}

// target makes sure that something can be mounted at p: a directory of ours, or
// one that the image has.
func (t *tree) target(p, root string, isDir bool) error {
	if t.parents(p) {
		// Below a bind of the host's: it must be there already.
		fd, err := unix.Openat2(unix.AT_FDCWD, filepath.Join(root, p), &unix.OpenHow{
			Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
		})
		if err != nil {
			return &fs.PathError{Op: "mount target", Path: p, Err: err}
		}
		unix.Close(fd)
		return nil
	}
	if t.has(p) {
		return nil
	}
	if isDir {
		t.dir(p, 0o755)
	} else {
		t.file(p, "")
	}
	return nil
}

// skeleton is what every root has, whatever the image says: it comes first, so
// an image whose /proc or /dev is a link cannot redirect it.
func (t *tree) skeleton(workDir string) {
	t.dir("/proc", 0o555)
	t.dir("/sys", 0o555)
	t.dir("/tmp", 0o1777)
	t.dir("/dev/shm", 0o1777)
	t.dir("/dev/pts", 0o755)
	for _, d := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		// Devices keep working through a bind without nodev.
		_ = t.bind("/dev/"+d, "/dev/"+d, keeper.AttrNoSuid|keeper.AttrNoExec, 0)
	}
	t.link("/dev/ptmx", "pts/ptmx")
	t.link("/dev/fd", "/proc/self/fd")
	t.link("/dev/stdin", "/proc/self/fd/0")
	t.link("/dev/stdout", "/proc/self/fd/1")
	t.link("/dev/stderr", "/proc/self/fd/2")
	t.dir("/var/empty", 0o555)
	t.dir("/var/tmp", 0o1777)
	t.dir(userHome, 0o755)
	t.dir(workDir, 0o755)
}

func (t *tree) builtEtc() {
	t.file("/etc/passwd", "root:x:0:0:root:/root:/usr/sbin/nologin\n"+
		"user:x:1000:1000:user:"+userHome+":/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n")
	t.file("/etc/group", "root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n")
	t.file("/etc/hosts", "127.0.0.1\tlocalhost belljar\n::1\tlocalhost ip6-localhost belljar\n")
	t.file("/etc/hostname", "belljar\n")
	t.file("/etc/resolv.conf", "# no network: nothing to ask\n")
	t.file("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\nservices: files\nprotocols: files\n")
	t.file("/etc/host.conf", "multi on\n")
	t.file("/etc/shells", "/bin/sh\n/bin/bash\n")
	t.link("/etc/mtab", "/proc/self/mounts")
	if d, err := os.Open("/etc"); err == nil {
		names, _ := d.Readdirnames(-1)
		d.Close()
		sort.Strings(names)
		for _, n := range names {
			for _, g := range etcBinds {
				if prefix, ok := strings.CutSuffix(g, "*"); n == g || ok && strings.HasPrefix(n, prefix) {
					t.bindResolved("/etc/"+n, "/etc/"+n)
				}
			}
		}
	}
	// The rest of /etc/ssl has private keys.
	t.bindResolved("/etc/ssl/certs", "/etc/ssl/certs")
	t.bindResolved("/etc/ssl/openssl.cnf", "/etc/ssl/openssl.cnf")
	t.bindResolved("/etc/pki/tls/certs", "/etc/pki/tls/certs")
	t.bindResolved("/etc/pki/ca-trust", "/etc/pki/ca-trust")
	t.bindResolved("/etc/localtime", "/etc/localtime")
}

// bindResolved binds what a host path leads to, if it is there at all.
func (t *tree) bindResolved(target, source string) {
	real, err := filepath.EvalSymlinks(source)
	if err == nil {
		// What vanished between the two look-ups is as good as absent.
		_ = t.bind(target, real, roFlags, 0)
	}
}

// hostRuntime shows /usr and the links beside it.
func (t *tree) hostRuntime() error {
	if err := t.bindTop("/", "usr", roFlags); err != nil {
		return err
	}
	for _, d := range []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"} {
		if err := t.bindTop("/", d, roFlags); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	// Distributions that keep the store elsewhere.
	for _, d := range []string{"nix/store", "gnu/store"} {
		if _, err := os.Lstat("/" + d); err == nil {
			if err := t.bind("/"+d, "/"+d, roFlags, 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// bindTop shows one top-level entry of a root: a link as a link, the rest bound.
func (t *tree) bindTop(root, name string, attr uint32) error {
	p := filepath.Join(root, name)
	st, err := os.Lstat(p)
	if err != nil {
		return err
	}
	if st.Mode()&fs.ModeSymlink != 0 {
		to, err := os.Readlink(p)
		if err != nil {
			return err
		}
		t.link("/"+name, to)
		return nil
	}
	if !st.IsDir() && !st.Mode().IsRegular() {
		return nil // devices, sockets and FIFOs of an image are not shown
	}
	return t.bind("/"+name, p, attr, 0)
}

// image shows a directory's top-level entries, except where the skeleton is.
func (t *tree) image(root string) error {
	names, err := imageNames(root)
	if err != nil {
		return err
	}
	if len(names) > 200 {
		return fmt.Errorf("image %s: %d top-level entries, at most 200", root, len(names))
	}
	for _, n := range names {
		switch n {
		case "proc", "sys", "dev", "tmp":
			continue
		case "var", "home":
			// Partly ours: show the image's entries one level down.
			if st, err := os.Lstat(filepath.Join(root, n)); err == nil && st.IsDir() {
				if err := t.imageSub(root, n); err != nil {
					return err
				}
				continue
			}
		}
		if err := t.bindTop(root, n, roFlags); err != nil {
			return err
		}
	}
	return nil
}

// imageNames lists a directory of an image to which no link leads.
func imageNames(dir string) ([]string, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, dir, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, &fs.PathError{Op: "open image", Path: dir, Err: err}
	}
	f := os.NewFile(uintptr(fd), dir)
	defer f.Close()
	names, err := f.Readdirnames(-1)
	sort.Strings(names)
	return names, err
}

// imageSub shows what is in a directory of an image that is partly ours.
func (t *tree) imageSub(root, dir string) error {
	names, err := imageNames(filepath.Join(root, dir))
	if err != nil {
		return err
	}
	if len(names) > 600 {
		return fmt.Errorf("image %s: %d entries in /%s, at most 600", root, len(names), dir)
	}
	for _, n := range names {
		if t.has(dir + "/" + n) {
			continue
		}
		if err := t.bindTop(root, dir+"/"+n, roFlags); err != nil {
			return err
		}
	}
	return nil
}

// wholeHost is the tree when the rootfs layer is off: the host's own files, as
// writable as their owner and mode make them.
func (t *tree) wholeHost() error {
	ents, err := os.ReadDir("/")
	if err != nil {
		return err
	}
	for _, e := range ents {
		if t.has(e.Name()) {
			continue
		}
		if err := t.bindTop("/", e.Name(), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// buildTree compiles the root of a plan.
func buildTree(p *belljar.Plan, on map[belljar.Layer]bool) (*tree, error) {
	t := newTree()
	if !on[belljar.LayerRootfs] {
		t.dir("/proc", 0o555)
		t.dir("/dev/shm", 0o1777)
		t.skeletonOff(p.Spec.WorkDir)
		return t, t.wholeHost()
	}
	t.skeleton(p.Spec.WorkDir)
	if viewed(on) {
		t.groupDirs()
	}
	if p.Spec.Image == "" {
		if err := t.hostRuntime(); err != nil {
			return nil, err
		}
		t.builtEtc()
		return t, nil
	}
	if err := t.image(p.Spec.Image); err != nil {
		return nil, wrongSource("spec image", err, imageHint)
	}
	t.builtEtcFor()
	return t, nil
}

// builtEtcFor fills in what an image's /etc lacks.
func (t *tree) builtEtcFor() {
	t.file("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:"+userHome+":/bin/sh\n")
	t.file("/etc/group", "root:x:0:\nuser:x:1000:\n")
	t.file("/etc/hosts", "127.0.0.1\tlocalhost\n::1\tlocalhost\n")
	t.file("/etc/resolv.conf", "")
}

func (t *tree) skeletonOff(workDir string) {
	t.dir("/dev/pts", 0o755)
	for _, d := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		_ = t.bind("/dev/"+d, "/dev/"+d, keeper.AttrNoSuid|keeper.AttrNoExec, 0)
	}
	t.link("/dev/ptmx", "pts/ptmx")
	t.dir("/sys", 0o555)
	t.dir(workDir, 0o755)
	t.dir(workDir+"-tmp", 0o1777)
}
