package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"belljar"
)

func surfaceEntries() []Entry {
	// attackOnly is an entry whose effect can only be seen from inside: what a
	// system call answered.
	attackOnly := func(args ...string) func(ctx context.Context, e *Env) error {
		return func(ctx context.Context, e *Env) error {
			b, err := e.Box(ctx, nil)
			if err != nil {
				return err
			}
			rep, _, err := b.Attack(ctx, args...)
			if err != nil {
				return err
			}
			e.Check(!rep.Succeeded, "%s", reached(rep))
			e.Note("%d steps %s", len(rep.Steps), rep.Detail)
			return controlRuns(ctx, e, b)
		}
	}
	// fromOutside looks at the status of a sandboxed process on the host.
	fromOutside := func(check func(e *Env, pid int)) func(ctx context.Context, e *Env) error {
		return func(ctx context.Context, e *Env) error {
			b, err := e.Box(ctx, nil)
			if err != nil {
				return err
			}
			ps, stop, err := b.resident(ctx, "sleep")
			if err != nil {
				return err
			}
			defer stop()
			for _, p := range ps {
				check(e, p.pid)
			}
			e.Control(statusOf(os.Getpid(), "CapEff") != "", "the status of a process can be read")
			return nil
		}
	}
	return []Entry{
		{ID: "B1-matrix", Guarantee: "B1", Title: "85 system calls that sandboxes are escaped by", Layer: belljar.LayerSeccomp, Run: func(ctx context.Context, e *Env) error {
			b, err := e.Box(ctx, nil)
			if err != nil {
				return err
			}
			rep, _, err := b.Attack(ctx, "syscalls")
			if err != nil {
				return err
			}
			e.Check(!rep.Succeeded, "%s", reached(rep))
			e.Check(len(rep.Steps) >= 60, "only %d calls were tried", len(rep.Steps))
			if err := controlRuns(ctx, e, b); err != nil {
				return err
			}
			for _, c := range [][]string{{"/bin/sh", "-c", "echo works | cat"}, {"/usr/bin/python3", "-c", "import threading,subprocess;t=threading.Thread(target=lambda:None);t.start();t.join();print('works')"}} {
				if _, err := os.Stat(c[0]); err != nil {
					continue
				}
				cmd := b.sb.Command(c[0], c[1:]...)
				cmd.Dir = b.dir
				res, err := cmd.Run(ctx)
				if err != nil {
					return err
				}
				e.Control(string(res.Stdout) == "works\n", "%s works: exit %d %q", c[0], res.ExitCode, cut(res.Stderr))
			}
			return nil
		}},
		{ID: "B2-foreign", Guarantee: "B2", Title: "system calls by x32 numbers and the 32-bit gate", Layer: belljar.LayerSeccomp, Needs: needsForeign, Run: attackOnly("foreign")},
		{ID: "B3-sockets", Guarantee: "B3", Title: "sockets of every family", Layer: belljar.LayerSeccomp, Run: func(ctx context.Context, e *Env) error {
			b, err := e.Box(ctx, nil)
			if err != nil {
				return err
			}
			rep, _, err := b.Attack(ctx, "sockets")
			if err != nil {
				return err
			}
			e.Check(!rep.Succeeded, "%s", reached(rep))
			e.Control(strings.HasPrefix(rep.Detail, "5 of 5"), "%s", rep.Detail)
			return nil
		}},
		{ID: "B4-tty", Guarantee: "B4", Title: "inject input into a terminal", Layer: belljar.LayerSeccomp, Needs: needsTIOCSTI, Run: func(ctx context.Context, e *Env) error {
			b, err := e.Box(ctx, nil)
			if err != nil {
				return err
			}
			cmd := b.Cmd("tty")
			cmd.TTY = &belljar.TTY{Rows: 24, Cols: 80}
			res, err := cmd.Run(ctx)
			if err != nil {
				return err
			}
			// The injected bytes are echoed before the report: it begins at the first brace.
			if i := bytes.IndexByte(res.Stdout, '{'); i > 0 {
				r := *res
				r.Stdout = res.Stdout[i:]
				if j := bytes.LastIndexByte(r.Stdout, '}'); j > 0 {
					r.Stdout = r.Stdout[:j+1]
				}
				res = &r
			}
			rep, err := claim(res)
			if err != nil {
				return err
			}
			e.Check(!rep.Succeeded, "%s", reached(rep))
			e.Control(step(rep, "TIOCSTI").Result != "not tried", "it has a terminal: %s", step(rep, "no terminal").Result)
			return nil
		}},
		{ID: "B5-regain", Guarantee: "B5", Title: "regain privileges: setuid, capset, ambient, new user namespace, setns, seccomp off", Layer: belljar.LayerSeccomp, Others: []belljar.Layer{belljar.LayerLandlock}, Run: attackOnly("regain")},
		{ID: "B5-nnp", Guarantee: "B5", Title: "run without no_new_privs, seen from the host", Layer: belljar.LayerNoNewPrivs, Others: []belljar.Layer{belljar.LayerSeccomp, belljar.LayerLandlock}, Run: fromOutside(func(e *Env, pid int) {
			e.Check(statusOf(pid, "NoNewPrivs") == "1", "NoNewPrivs is %q", statusOf(pid, "NoNewPrivs"))
		})},
		{ID: "B5-seccomp", Guarantee: "B5", Title: "run without a filter, seen from the host", Layer: belljar.LayerSeccomp, Run: fromOutside(func(e *Env, pid int) {
			e.Check(statusOf(pid, "Seccomp") == "2", "Seccomp is %q", statusOf(pid, "Seccomp"))
		})},
		{ID: "B5-caps", Guarantee: "B5", Title: "hold a capability in any set, seen from the host", Layer: belljar.LayerCaps, Run: fromOutside(func(e *Env, pid int) {
			for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
				e.Check(strings.Trim(statusOf(pid, set), "0") == "", "%s is %s", set, statusOf(pid, set))
			}
		})},
		{ID: "B5-user", Guarantee: "B5", Title: "be a user of the host", Layer: belljar.LayerUser, Needs: needsRoot, Run: fromOutside(func(e *Env, pid int) {
			same := namespaceOf(pid, "user") == namespaceOf(os.Getpid(), "user")
			e.Check(!same, "it is in the host's user namespace as uid %s", statusOf(pid, "Uid"))
			if os.Getuid() == 0 {
				for _, id := range strings.Fields(statusOf(pid, "Uid") + " " + statusOf(pid, "Gid")) {
					n, _ := strconv.Atoi(id)
					e.Check(n >= nobody, "id %s of the host is not nobody", id)
				}
			}
		})},
		{ID: "B5-groups", Guarantee: "B5", Title: "keep the supervisor's supplementary groups", Knob: "groups dropped", Needs: needsRoot, Run: func(ctx context.Context, e *Env) error {
			b, err := e.Box(ctx, nil)
			if err != nil {
				return err
			}
			ps, stop, err := b.resident(ctx, "sleep")
			if err != nil {
				return err
			}
			defer stop()
			pids := []int{}
			for _, p := range ps {
				pids = append(pids, p.pid)
			}
			if e.Weak() { // a process that kept groups: what the check must notice
				pids = []int{os.Getpid()}
				old, _ := os.Getgroups()
				if err := syscall.Setgroups([]int{4}); err != nil {
					return err
				}
				defer func() { _ = syscall.Setgroups(old) }()
			}
			for _, pid := range pids {
				for _, g := range strings.Fields(statusOf(pid, "Groups")) {
					n, _ := strconv.Atoi(g)
					e.Check(n >= nobody, "it is in group %s of the host", g)
				}
			}
			e.Control(len(pids) > 0, "its groups can be read")
			return nil
		}},
		{ID: "B6-signal", Guarantee: "B6", Capability: "filesystem", Title: "see and signal processes of the host by number", Needs: needsCgroup, Layer: belljar.LayerPid, Others: []belljar.Layer{belljar.LayerLandlock, belljar.LayerSeccomp}, Run: func(ctx context.Context, e *Env) error {
			by, err := e.bystander(ctx)
			if err != nil {
				return err
			}
			b, err := e.Box(ctx, nil)
			if err != nil {
				return err
			}
			args := []string{"signal", strconv.Itoa(by.pid)}
			if !e.Weak() { // with the protection off kill(-1) would hit this host
				args = append(args, "all")
			}
			rep, _, err := b.Attack(ctx, args...)
			if err != nil {
				return err
			}
			e.Check(!rep.Succeeded, "%s", reached(rep))
			e.Check(by.alive(), "the bystander is dead")
			e.Control(unix.Kill(by.pid, 0) == nil, "the bystander can be signalled from the host")
			return nil
		}},
		{ID: "B6-abstract-net", Guarantee: "B6", Title: "connect to an abstract unix socket of the host", Layer: belljar.LayerNet, Others: []belljar.Layer{belljar.LayerLandlock}, Run: abstractSocket},
		{ID: "B6-abstract-landlock", Guarantee: "B6", Title: "the same against Landlock alone", Layer: belljar.LayerLandlock, Others: []belljar.Layer{belljar.LayerNet}, Needs: needsLandlockScopes, Run: abstractSocket},
		{ID: "B6-pathname", Guarantee: "B6", Title: "connect to a look-alike of docker.sock", Layer: belljar.LayerRootfs, Others: []belljar.Layer{belljar.LayerLandlock}, Run: func(ctx context.Context, e *Env) error {
			dir, err := e.Dir()
			if err != nil {
				return err
			}
			name := filepath.Join(dir, "docker.sock")
			return unixSocket(ctx, e, name, func() error { return os.Chmod(name, 0o777) })
		}},
		{ID: "B6-sysv", Guarantee: "B6", Title: "attach System V shared memory of the host", Layer: belljar.LayerIPC, Run: func(ctx context.Context, e *Env) error {
			s := secret()
			key := int(fnvKey(s))
			id, err := unix.SysvShmGet(key, 4096, unix.IPC_CREAT|unix.IPC_EXCL|0o666)
			if err != nil {
				return fmt.Errorf("plant shared memory: %w", err)
			}
			e.later(func() { _, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil) })
			mine, err := unix.SysvShmAttach(id, 0, 0)
			if err != nil {
				return fmt.Errorf("attach: %w", err)
			}
			defer unix.SysvShmDetach(mine)
			copy(mine, s)
			b, err := e.Box(ctx, nil)
			if err != nil {
				return err
			}
			res, err := b.Exec(ctx, "sysv", strconv.Itoa(key))
			if err != nil {
				return err
			}
			e.Check(!bytes.Contains(res.Stdout, []byte(s)), "the secret in it came back")
			e.Note("%s", res.Stdout)
			bare, err := e.bare()
			if err != nil {
				return err
			}
			res, err = bare.Exec(ctx, "sysv", strconv.Itoa(key))
			if err != nil {
				return err
			}
			e.Control(bytes.Contains(res.Stdout, []byte(s)), "an ordinary process of the host can attach it")
			return nil
		}},
		{ID: "B6-mqueue", Guarantee: "B6", Title: "open a POSIX message queue of the host", Layer: belljar.LayerIPC, Others: []belljar.Layer{belljar.LayerSeccomp, belljar.LayerLandlock}, Run: func(ctx context.Context, e *Env) error {
			name := "lab-" + secret()
			p, err := unix.BytePtrFromString(name)
			if err != nil {
				return err
			}
			old := unix.Umask(0)
			fd, _, en := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(p)), unix.O_CREAT|unix.O_EXCL|unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o666, 0, 0, 0)
			unix.Umask(old)
			if en != 0 {
				return fmt.Errorf("plant a message queue: %w", en)
			}
			e.later(func() {
				_ = unix.Close(int(fd))
				_, _, _ = unix.Syscall(unix.SYS_MQ_UNLINK, uintptr(unsafe.Pointer(p)), 0, 0)
			})
			got := func() int {
				n := 0
				buf := make([]byte, 8192)
				for {
					_, _, en := unix.Syscall6(unix.SYS_MQ_TIMEDRECEIVE, fd, uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), 0, 0, 0)
					if en != 0 {
						return n
					}
					n++
				}
			}
			b, err := e.Box(ctx, nil)
			if err != nil {
				return err
			}
			rep, _, err := b.Attack(ctx, "mqueue", name)
			if err != nil {
				return err
			}
			e.Note("%+v", rep.Steps)
			e.Check(got() == 0, "its message arrived")
			bare, err := e.bare()
			if err != nil {
				return err
			}
			if _, err := bare.Exec(ctx, "mqueue", name); err != nil {
				return err
			}
			e.Control(got() > 0, "a message of an ordinary process arrives")
			return nil
		}},
		{ID: "B7-overwrite", Guarantee: "B7", Title: "overwrite the program of the supervisor, the reaper or itself through /proc", Knob: "readOnly", Run: func(ctx context.Context, e *Env) error {
			dir, err := e.Dir()
			if err != nil {
				return err
			}
			tools := filepath.Join(dir, "tools")
			if err := os.Mkdir(tools, 0o777); err != nil {
				return err
			}
			tool := filepath.Join(tools, "probe")
			if err := copyFile(tool, e.lab.probe, 0o777); err != nil {
				return err
			}
			if err := os.Chmod(tools, 0o777); err != nil {
				return err
			}
			self, err := os.Executable()
			if err != nil {
				return err
			}
			before := hash(tool) + hash(self)
			b, err := e.Box(ctx, func(s *belljar.Spec) {
				ro := !e.Weak()
				s.Mounts = append(s.Mounts, belljar.Mount{Source: tools, Target: "/tools", ReadOnly: &ro})
			})
			if err != nil {
				return err
			}
			for range 3 {
				if _, _, err := b.Attack(ctx, "overwrite", "/tools/probe"); err != nil {
					return err
				}
			}
			e.Check(hash(tool)+hash(self) == before, "a program on the host was changed")
			return controlRuns(ctx, e, b)
		}},
		{ID: "B8-hostname", Guarantee: "B8", Title: "learn the host's name", Layer: belljar.LayerUTS, Run: func(ctx context.Context, e *Env) error {
			host, err := os.Hostname()
			if err != nil {
				return err
			}
			return info(ctx, e, func(out string) {
				e.Check(!strings.Contains(out, "hostname="+host+"\n"), "hostname=%s", host)
			})
		}},
		{ID: "B8-cgroup", Guarantee: "B8", Title: "learn cgroup paths of the host", Layer: belljar.LayerCgroupNS, Run: func(ctx context.Context, e *Env) error {
			b, err := e.Box(ctx, nil)
			if err != nil {
				return err
			}
			ps, stop, err := b.resident(ctx, "sleep")
			if err != nil {
				return err
			}
			dirs := cgroupsOf(ps[0].pid)
			stop()
			if len(dirs) == 0 {
				return errors.New("the sandbox is in no control group")
			}
			return look(ctx, e, b, func(out string) {
				for l := range strings.Lines(out) {
					if v, ok := strings.CutPrefix(l, "cgroup="); ok {
						for _, dir := range dirs {
							// Its parent's name on the host; its own may be seen.
							name := filepath.Base(filepath.Dir(dir))
							e.Check(!strings.Contains(v, "/"+name), "%s", strings.TrimSpace(v))
						}
					}
				}
			})
		}, Needs: needsCgroup},
		{ID: "B8-env", Guarantee: "B8", Title: "find the supervisor's environment", Direct: true, Run: func(ctx context.Context, e *Env) error {
			s := secret()
			if err := os.Setenv("BELLJAR_LAB_SECRET", s); err != nil {
				return err
			}
			defer os.Unsetenv("BELLJAR_LAB_SECRET")
			return info(ctx, e, func(out string) {
				e.Check(!strings.Contains(out, s), "the environment came along")
			})
		}},
	}
}

// info runs the probe's look-around.
func info(ctx context.Context, e *Env, check func(out string)) error {
	b, err := e.Box(ctx, nil)
	if err != nil {
		return err
	}
	return look(ctx, e, b, check)
}

func look(ctx context.Context, e *Env, b *Box, check func(out string)) error {
	res, err := b.Exec(ctx, "info")
	if err != nil {
		return err
	}
	check(string(res.Stdout))
	e.Control(strings.Contains(string(res.Stdout), "uid="), "it can look around")
	return nil
}

// resident starts an act that stays, and returns its processes on the host.
func (b *Box) resident(ctx context.Context, args ...string) ([]process, func(), error) {
	mark := secret()
	cmd := b.Cmd(append(args, mark)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := cmd.Start(ctx); err != nil {
		return nil, nil, err
	}
	stop := func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = cmd.Cancel(ctx)
	}
	if _, err := out.Read(make([]byte, 16)); err != nil {
		stop()
		res, werr := cmd.Wait(ctx)
		return nil, nil, fmt.Errorf("%s did not start: %w, result %+v, %v", args[0], err, res, werr)
	}
	go func() { // so that a talkative one is not stopped by its pipe
		buf := make([]byte, 4096)
		for {
			if _, err := out.Read(buf); err != nil {
				return
			}
		}
	}()
	ps := find(mark)
	if len(ps) == 0 {
		stop()
		return nil, nil, fmt.Errorf("%s is not seen on the host", args[0])
	}
	return ps, stop, nil
}

func abstractSocket(ctx context.Context, e *Env) error {
	return unixSocket(ctx, e, "@"+secret(), func() error { return nil })
}

// unixSocket plants a listener; what counts is what it accepts.
func unixSocket(ctx context.Context, e *Env, name string, open func() error) error {
	l, err := net.Listen("unix", name)
	if err != nil {
		return err
	}
	seen := accepts(l)
	e.later(func() { _ = l.Close() })
	if err := open(); err != nil {
		return err
	}
	b, err := e.Box(ctx, nil)
	if err != nil {
		return err
	}
	rep, _, err := b.Attack(ctx, "unix", name)
	if err != nil {
		return err
	}
	e.Check(!rep.Succeeded && seen.wait(100*time.Millisecond) == 0, "%d connections arrived: %s", seen.count(), reached(rep))
	bare, err := e.bare()
	if err != nil {
		return err
	}
	before := seen.count()
	if _, err := bare.Exec(ctx, "unix", name); err != nil {
		return err
	}
	_, ok := until(ctx, 2*time.Second, func() bool { return seen.count() > before })
	e.Control(ok, "an ordinary process of the host can connect")
	return nil
}

func fnvKey(s string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(s)) // never fails
	return h.Sum32()&0x3fffffff | 1
}

func needsForeign(e *Env) string {
	if runtime.GOARCH != "amd64" {
		return "only amd64 has x32 and a 32-bit gate"
	}
	b, err := e.bare()
	if err != nil {
		return err.Error()
	}
	rep, _, err := b.Attack(context.Background(), "foreign")
	e.evidence = nil
	if err != nil {
		return err.Error()
	}
	if !rep.Succeeded {
		return "this kernel has neither x32 nor 32-bit system calls"
	}
	return ""
}

func needsTIOCSTI(*Env) string {
	if b, err := os.ReadFile("/proc/sys/dev/tty/legacy_tiocsti"); err == nil && strings.TrimSpace(string(b)) == "0" {
		return "this kernel refuses TIOCSTI to everybody (dev.tty.legacy_tiocsti=0)"
	}
	return ""
}

func needsLandlockScopes(*Env) string {
	v, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if e != 0 || v < 6 {
		return fmt.Sprintf("Landlock ABI %d has no scopes", int(v))
	}
	return ""
}

// needsCgroup: whether sandboxes get control groups here.
func needsCgroup(e *Env) string {
	ctx := context.Background()
	b, err := e.Box(ctx, nil)
	if err != nil {
		return ""
	}
	if l := b.sb.Report(); l.Layer(belljar.LayerCgroup).Status != belljar.LayerApplied {
		return "no control groups here"
	}
	return ""
}
