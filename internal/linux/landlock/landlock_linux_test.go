package landlock

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// A restriction cannot be taken back, so it happens in a process of its own:
// this test binary with the ABI to use in the environment, 0 for none.
const (
	envABI      = "LANDLOCK_TEST_ABI"
	envAbstract = "LANDLOCK_TEST_ABSTRACT"
)

func TestMain(m *testing.M) {
	abi := os.Getenv(envABI)
	if abi == "" {
		os.Exit(m.Run())
	}
	if err := child(abi, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(125)
	}
}

// child restricts itself, tries every operation and prints what came of it.
func child(abi, dir string) error {
	n, err := strconv.Atoi(abi)
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	if err := os.Chdir(dir); err != nil {
		return err
	}
	if n > 0 {
		if err := restrict(n); err != nil {
			return err
		}
	}
	got := make(map[string]int)
	for _, o := range operations {
		var errno syscall.Errno
		err := o.do()
		if err != nil && !errors.As(err, &errno) {
			return fmt.Errorf("%s: %w", o.name, err)
		}
		got[o.name] = int(errno)
	}
	return json.NewEncoder(os.Stdout).Encode(got)
}

func restrict(abi int) error {
	var rules []Rule
	add := func(name string, a Access) error {
		fd, err := unix.Open(name, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return &fs.PathError{Op: "open", Path: name, Err: err}
		}
		rules = append(rules, Rule{fd, a})
		return nil
	}
	err := errors.Join(add("ro", ReadOnly(abi)), add("rx", ReadExec(abi)), add("rw", ReadWrite(abi)),
		add("one", ReadWrite(abi)), add("/dev/null", DeviceRW(abi)), add("/dev/ptmx", ReadWrite(abi)),
		add("/dev/zero", DeviceRW(abi)), add("/proc/self/status", ReadOnly(abi)))
	if err != nil {
		return err
	}
	// What a dynamically linked program is made of.
	for _, d := range []string{"/usr", "/lib", "/lib64", "/etc/ld.so.cache"} {
		if err := add(d, ReadExec(abi)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	f, info, err := newRuleset(abi, rules)
	if err != nil {
		return err
	}
	defer f.Close()
	if want := (Info{ABI: abi, Rules: len(rules), HandledFS: Handled(abi), Scoped: abi >= 6}); info != want {
		return fmt.Errorf("info %+v, want %+v", info, want)
	}
	if flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		return fmt.Errorf("the ruleset is not close-on-exec (%#x, %v)", flags, err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	return RestrictSelf(int(f.Fd()))
}

// An operation, and the error that it ends with from an ABI on; before, and
// without Landlock, it must succeed.
type operation struct {
	name string
	do   func() error
	from int // 0: allowed under every ABI
	want syscall.Errno
}

// onlyFirst marks what is denied under ABI 1 and by no other.
const onlyFirst = -1

func open(name string, flags int) func() error {
	return func() error {
		fd, err := unix.Open(name, flags|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return err
		}
		return unix.Close(fd)
	}
}

func rename(from, to string) func() error { return func() error { return unix.Rename(from, to) } }

func run(name string) func() error {
	return func() error {
		pid, err := syscall.ForkExec(name, []string{name}, &syscall.ProcAttr{Files: []uintptr{0, 1, 2}})
		if err != nil {
			return err
		}
		var ws syscall.WaitStatus
		if _, err := syscall.Wait4(pid, &ws, 0, nil); err != nil {
			return err
		}
		if ws.ExitStatus() != 0 {
			return fmt.Errorf("exit %#x", ws)
		}
		return nil
	}
}

func ioctl(name string, request uint) func() error {
	return func() error {
		fd, err := unix.Open(name, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		_, err = unix.IoctlGetInt(fd, request)
		if errors.Is(err, unix.ENOTTY) { // the driver was asked
			return nil
		}
		return err
	}
}

var operations = []operation{
	// granted
	{"read", open("ro/f", unix.O_RDONLY), 0, 0},
	{"list", open("ro", unix.O_RDONLY|unix.O_DIRECTORY), 0, 0},
	{"execute", run("rx/true"), 0, 0},
	{"write", open("rw/f", unix.O_RDWR), 0, 0},
	{"append", open("rw/f", unix.O_WRONLY|unix.O_APPEND), 0, 0},
	{"create", open("rw/new", unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL), 0, 0},
	{"create unnamed", open("rw", unix.O_RDWR|unix.O_TMPFILE), 0, 0},
	{"truncate", func() error { return unix.Truncate("rw/f", 1) }, 0, 0},
	{"open to truncate", open("rw/f", unix.O_WRONLY|unix.O_TRUNC), 0, 0},
	{"execute own", run("rw/true"), 0, 0},
	{"mkdir", func() error { return unix.Mkdir("rw/dir", 0o700) }, 0, 0},
	{"rmdir", func() error { return unix.Rmdir("rw/olddir") }, 0, 0},
	{"unlink", func() error { return unix.Unlink("rw/old") }, 0, 0},
	{"symlink", func() error { return unix.Symlink("f", "rw/sym") }, 0, 0},
	{"fifo", func() error { return unix.Mkfifo("rw/fifo", 0o600) }, 0, 0},
	{"socket", func() error { return bind("rw/sock") }, 0, 0},
	{"rename in a directory", rename("rw/r1", "rw/r2"), 0, 0},
	{"one file", open("one", unix.O_RDWR), 0, 0},
	{"/dev/null", open("/dev/null", unix.O_RDWR|unix.O_TRUNC), 0, 0},
	{"ioctl on a device", ioctl("/dev/zero", unix.TCGETS), 0, 0},
	{"signal outside", func() error { return unix.Kill(os.Getppid(), 0) }, 0, 0},
	{"stat hidden", func() error { var st unix.Stat_t; return unix.Stat("hidden/f", &st) }, 0, 0},

	// REFER: the first ABI never lets a file change its directory.
	{"rename across", rename("rw/a/f", "rw/across"), onlyFirst, unix.EXDEV},
	{"link across", func() error { return unix.Link("rw/a/g", "rw/linkacross") }, onlyFirst, unix.EXDEV},

	// denied
	{"read hidden", open("hidden/f", unix.O_RDONLY), 1, unix.EACCES},
	{"list hidden", open("hidden", unix.O_RDONLY|unix.O_DIRECTORY), 1, unix.EACCES},
	{"read hidden by a link", open("rw/leak", unix.O_RDONLY), 1, unix.EACCES},
	{"read hidden by dots", open("rw/../hidden/f", unix.O_RDONLY), 1, unix.EACCES},
	{"write hidden", open("hidden/f", unix.O_WRONLY), 1, unix.EACCES},
	{"execute hidden", run("hidden/true"), 1, unix.EACCES},
	{"execute read-only", run("ro/true"), 1, unix.EACCES},
	{"write read-only", open("ro/f", unix.O_WRONLY), 1, unix.EACCES},
	{"create in read-only", open("ro/new", unix.O_WRONLY|unix.O_CREAT), 1, unix.EACCES},
	{"mkdir in read-only", func() error { return unix.Mkdir("ro/dir", 0o700) }, 1, unix.EACCES},
	{"unlink in read-only", func() error { return unix.Unlink("ro/old") }, 1, unix.EACCES},
	{"symlink in read-only", func() error { return unix.Symlink("f", "ro/sym") }, 1, unix.EACCES},
	{"fifo in read-only", func() error { return unix.Mkfifo("ro/fifo", 0o600) }, 1, unix.EACCES},
	{"socket in read-only", func() error { return bind("ro/sock") }, 1, unix.EACCES},
	{"rename in read-only", rename("ro/r1", "ro/r2"), 1, unix.EACCES},
	{"truncate read-only", func() error { return unix.Truncate("ro/f", 1) }, 3, unix.EACCES},
	{"rename out of read-only", rename("ro/move", "rw/moved"), 1, unix.EACCES},
	{"rename into read-only", rename("rw/move", "ro/moved"), 1, unix.EACCES},
	{"rename out of hidden", rename("hidden/move", "rw/taken"), 1, unix.EACCES},
	{"link from hidden", func() error { return unix.Link("hidden/f", "rw/linked") }, 1, unix.EXDEV},
	{"character device", func() error { return unix.Mknod("rw/null", unix.S_IFCHR|0o600, 0x103) }, 1, unix.EACCES},
	{"ioctl on a device without the right", ioctl("/dev/ptmx", unix.TIOCGPTN), 5, unix.EACCES},
	{"abstract socket outside", func() error { return connect(os.Getenv(envAbstract)) }, 6, unix.EPERM},
}

func bind(name string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Bind(fd, &unix.SockaddrUnix{Name: name})
}

func connect(name string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Connect(fd, &unix.SockaddrUnix{Name: name})
}

func (o operation) expect(abi int) syscall.Errno {
	if o.from == onlyFirst && abi == 1 || o.from > 0 && abi >= o.from {
		return o.want
	}
	return 0
}

// layout makes the files that the operations work on.
func layout(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	program, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"ro", "rx", "rw", "rw/a", "rw/olddir", "hidden"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{
		"ro/f", "ro/old", "ro/r1", "ro/move", "rw/f", "rw/old", "rw/r1", "rw/move", "rw/a/f", "rw/a/g",
		"hidden/f", "hidden/move", "one",
	} {
		if err := os.WriteFile(filepath.Join(dir, f), []byte("text"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"ro/true", "rx/true", "rw/true", "hidden/true"} {
		if err := os.WriteFile(filepath.Join(dir, f), program, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../hidden/f", filepath.Join(dir, "rw/leak")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestRestriction tries everything under every ABI that this kernel has, and
// without the layer.
func TestRestriction(t *testing.T) {
	if err := Supported(); err != nil {
		t.Skip(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	abstract := fmt.Sprintf("@landlock-test-%d", os.Getpid())
	l, err := net.Listen("unix", abstract)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for abi := 0; abi <= ABI(); abi++ {
		t.Run(fmt.Sprintf("abi%d", abi), func(t *testing.T) {
			cmd := exec.Command(self, layout(t))
			cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", envABI, abi), envAbstract+"="+abstract)
			var out, errs bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &errs
			if err := cmd.Run(); err != nil {
				t.Fatalf("%v\n%s", err, &errs)
			}
			got := make(map[string]int)
			if err := json.Unmarshal(out.Bytes(), &got); err != nil || len(got) != len(operations) {
				t.Fatalf("%d of %d answers: %v", len(got), len(operations), err)
			}
			for _, o := range operations {
				if o.name == "character device" && abi == 0 && os.Geteuid() != 0 {
					continue // an ordinary user never may
				}
				if e, want := syscall.Errno(got[o.name]), o.expect(abi); e != want {
					t.Errorf("%s: %v (%d), want %v (%d)", o.name, e, int(e), want, int(want))
				}
			}
		})
	}
}

func TestNewRulesetErrors(t *testing.T) {
	if err := Supported(); err != nil {
		t.Skip(err)
	}
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	before := countFDs(t)
	for _, c := range []struct {
		name string
		rule Rule
		want string
	}{
		{"closed descriptor", Rule{-1, ReadFile}, "fstat"},
		{"no rights", Rule{int(file.Fd()), 0}, "none of the rights"},
		{"directory rights on a file", Rule{int(file.Fd()), MakeDir | ReadDir}, "none of the rights"},
		{"rights of the future", Rule{int(file.Fd()), 1 << 60}, "none of the rights"},
	} {
		f, info, err := NewRuleset([]Rule{{int(file.Fd()), ReadFile}, c.rule})
		if err == nil || !strings.Contains(err.Error(), "rule 1") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v", c.name, err)
		}
		if f != nil || info != (Info{}) {
			t.Errorf("%s: %v %+v beside an error", c.name, f, info)
		}
	}
	if after := countFDs(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
	f, info, err := NewRuleset(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if info.ABI != ABI() || info.Rules != 0 || info.HandledFS != Handled(ABI()) {
		t.Errorf("info %+v", info)
	}
	// EPERM when there is neither no_new_privs nor a capability.
	if err := RestrictSelf(-1); !errors.Is(err, unix.EBADF) && !errors.Is(err, unix.EPERM) {
		t.Errorf("restrict with no ruleset: %v", err)
	}
}

func countFDs(t *testing.T) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}
