package native

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"belljar"

	"golang.org/x/sys/unix"
)

// fault is a system call that fails with EIO, for the supervisor and all that it starts.
type fault struct {
	nr     int
	unless uint32 // with one of these bits in the first argument it goes through
	root   bool   // only a supervisor with privileges makes it
}

// faults are the calls that set-up makes and the runtime of Go can do without, which
// starts threads by clone3.
var faults = map[string]fault{
	"fork":                    {nr: unix.SYS_CLONE, unless: unix.CLONE_THREAD},
	"execve":                  {nr: unix.SYS_EXECVE},
	"unshare":                 {nr: unix.SYS_UNSHARE},
	"setns":                   {nr: unix.SYS_SETNS},
	"mount":                   {nr: unix.SYS_MOUNT},
	"umount2":                 {nr: unix.SYS_UMOUNT2},
	"pivot_root":              {nr: unix.SYS_PIVOT_ROOT},
	"open_tree":               {nr: unix.SYS_OPEN_TREE},
	"move_mount":              {nr: unix.SYS_MOVE_MOUNT},
	"mount_setattr":           {nr: unix.SYS_MOUNT_SETATTR},
	"openat2":                 {nr: unix.SYS_OPENAT2},
	"mkdirat":                 {nr: unix.SYS_MKDIRAT},
	"symlinkat":               {nr: unix.SYS_SYMLINKAT},
	"fchmodat":                {nr: unix.SYS_FCHMODAT},
	"fchownat":                {nr: unix.SYS_FCHOWNAT, root: true},
	"chdir":                   {nr: unix.SYS_CHDIR},
	"sethostname":             {nr: unix.SYS_SETHOSTNAME},
	"setresuid":               {nr: unix.SYS_SETRESUID, root: true},
	"setresgid":               {nr: unix.SYS_SETRESGID, root: true},
	"setgroups":               {nr: unix.SYS_SETGROUPS, root: true},
	"capset":                  {nr: unix.SYS_CAPSET},
	"landlock_create_ruleset": {nr: unix.SYS_LANDLOCK_CREATE_RULESET},
	"landlock_add_rule":       {nr: unix.SYS_LANDLOCK_ADD_RULE},
	"landlock_restrict_self":  {nr: unix.SYS_LANDLOCK_RESTRICT_SELF},
	"seccomp":                 {nr: unix.SYS_SECCOMP},
	"prlimit64":               {nr: unix.SYS_PRLIMIT64},
	"memfd_create":            {nr: unix.SYS_MEMFD_CREATE},
	"socketpair":              {nr: unix.SYS_SOCKETPAIR},
	"sendmsg":                 {nr: unix.SYS_SENDMSG},
	"recvmsg":                 {nr: unix.SYS_RECVMSG},
	"signalfd4":               {nr: unix.SYS_SIGNALFD4},
	"pipe2":                   {nr: unix.SYS_PIPE2},
	"close_range":             {nr: unix.SYS_CLOSE_RANGE},
	"setsid":                  {nr: unix.SYS_SETSID},
	"dup3":                    {nr: unix.SYS_DUP3},
	"flock":                   {nr: unix.SYS_FLOCK, root: true},
	"fstatfs":                 {nr: unix.SYS_FSTATFS, root: true},
}

// faultReport is what a supervisor with a fault saw.
type faultReport struct {
	Step   string // which failed: runtime, create, exec; "" none
	Error  *belljar.Error
	Text   string
	Infra  bool // the execution's result says so
	Closed string
}

// TestSetupFaults makes each system call of set-up fail in a supervisor of its own. It
// must be told in a typed error, and nothing may be left.
func TestSetupFaults(t *testing.T) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) }()
	failed := map[string]bool{}
	for i, name := range slices.Concat(slices.Sorted(maps.Keys(faults)), slices.Sorted(maps.Keys(faults))) {
		mounts := i >= len(faults)
		t.Run(name+map[bool]string{true: " with a mount"}[mounts], func(t *testing.T) {
			tag := fmt.Sprintf("f%d-%d", os.Getpid(), i)
			ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
			defer cancel()
			cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestFaultySupervisor$")
			cmd.Env = append(os.Environ(), "BELLJAR_FAULT="+name, "BELLJAR_TAG="+tag)
			if mounts {
				cmd.Env = append(cmd.Env, "BELLJAR_MOUNT="+t.TempDir())
			}
			var errs bytes.Buffer
			cmd.Stderr = &errs
			out, err := cmd.Output()
			var r faultReport
			if jerr := json.Unmarshal([]byte(strings.SplitN(string(out), "\n", 2)[0]), &r); jerr != nil {
				t.Fatalf("supervisor: %v, %v: %q %q", err, jerr, out, errs.Bytes())
			}
			t.Logf("%s: %s", r.Step, r.Text)
			failed[name] = failed[name] || r.Step != ""
			switch {
			case r.Step == "":
				if mounts && !failed[name] && (os.Geteuid() == 0 || !faults[name].root) {
					t.Error("nothing failed, with a mount and without")
				}
			case r.Error == nil || r.Error.Code == "" || r.Error.Op == "" || r.Error.Error() == r.Error.Op+": ":
				t.Errorf("%s failed untyped: %s", r.Step, r.Text)
			case r.Step == "exec" && !r.Infra:
				t.Errorf("not told apart from the program's own failure: %s", r.Text)
			}
			if r.Closed != "" {
				t.Logf("close: %s", r.Closed)
			}
			if left := orphans(3 * time.Second); len(left) > 0 {
				t.Errorf("processes left: %q", left)
			}
			if hits, _ := filepath.Glob("/sys/fs/cgroup/*/belljar-" + tag); len(hits) > 0 {
				t.Errorf("groups left: %q", hits)
				for _, h := range hits {
					_ = os.Remove(h)
				}
			}
		})
	}
}

// orphans reaps what this process has inherited, and lists what has not ended in time.
func orphans(wait time.Duration) (left []string) {
	self := strconv.Itoa(os.Getpid())
	for end := time.Now().Add(wait); ; time.Sleep(5 * time.Millisecond) {
		left = nil
		tasks, _ := filepath.Glob("/proc/" + self + "/task/*/children")
		for _, name := range tasks {
			b, err := os.ReadFile(name)
			if err != nil {
				continue
			}
			for _, pid := range strings.Fields(string(b)) {
				n, _ := strconv.Atoi(pid)
				if got, err := unix.Wait4(n, nil, unix.WNOHANG|unix.WALL, nil); err == nil && got == 0 {
					comm, _ := os.ReadFile("/proc/" + pid + "/comm")
					left = append(left, pid+" "+strings.TrimSpace(string(comm)))
				}
			}
		}
		if len(left) == 0 || time.Now().After(end) {
			return left
		}
	}
}

// TestFaultySupervisor is the supervisor of TestSetupFaults.
func TestFaultySupervisor(t *testing.T) {
	name := os.Getenv("BELLJAR_FAULT")
	if name == "" {
		t.Skip("run by TestSetupFaults")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := installFault(faults[name]); err != nil {
		t.Fatal(err)
	}
	var r faultReport
	fail := func(step string, err error) bool {
		if err == nil {
			return false
		}
		r.Step, r.Text = step, err.Error()
		_ = errors.As(err, &r.Error)
		return true
	}
	b := New(Config{Tag: os.Getenv("BELLJAR_TAG")})
	rt, err := belljar.New(ctx, belljar.Config{}, b)
	if !fail("runtime", err) {
		spec := belljar.Spec{Isolation: belljar.Isolation{Layers: map[belljar.Layer]belljar.Want{belljar.LayerLandlock: belljar.Require}}}
		if os.Geteuid() == 0 {
			spec.Isolation.Layers[belljar.LayerCgroup] = belljar.Require
		}
		if dir := os.Getenv("BELLJAR_MOUNT"); dir != "" {
			rw := false
			spec.Mounts = []belljar.Mount{{Source: dir, Target: "/data", ReadOnly: &rw}}
		}
		sb, err := rt.Create(ctx, spec)
		if !fail("create", err) {
			res, err := sb.Command("/bin/true").Run(ctx)
			if !fail("exec", err) && res.State != belljar.Completed {
				r.Step, r.Error, r.Text = "exec", res.Error, fmt.Sprintf("%+v", res)
			}
			r.Infra = res == nil || res.Cause == belljar.CauseInfra
		}
		if err := rt.Close(ctx); err != nil {
			r.Closed = err.Error()
		}
	}
	doc, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = os.Stdout.Write(append(doc, '\n'))
	os.Exit(0) // without what else a test does at its end
}

// installFault puts every thread of this process under the filter.
func installFault(f fault) error {
	// What is started once and is not what fails.
	if r, w, err := os.Pipe(); err == nil {
		_, _ = r.Close(), w.Close()
	}
	load := func(off uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: off}
	}
	ret := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	prog := []unix.SockFilter{
		load(0), // seccomp_data.nr
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(f.nr), Jf: 3},
		load(16), // args[0], lower half
		{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: f.unless, Jt: 1},
		ret(unix.SECCOMP_RET_ERRNO | uint32(unix.EIO)),
		ret(unix.SECCOMP_RET_ALLOW),
	}
	fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if os.Geteuid() != 0 {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return err
		}
	}
	if _, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&fprog))); e != 0 {
		return e
	}
	return nil
}
