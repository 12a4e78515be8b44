package seccomp

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// number returns a system call's number, or absent.
func number(t testing.TB, a Arch, name string) int {
	t.Helper()
	for _, s := range syscalls {
		if s.name == name {
			return s.nr[a]
		}
	}
	t.Fatalf("system call %s is not in the table", name)
	return absent
}

func mustCompile(t testing.TB, p Profile, a Arch) *Program {
	t.Helper()
	prog, err := Compile(p, a)
	if err != nil {
		t.Fatal(err)
	}
	return prog
}

type args = [6]uint64

// junk is put into the upper half of arguments that the kernel cuts to 32 bits.
const junk = 0xdeadbeef << 32

// A row of the policy: what each profile answers. An empty profile list means all.
type policyRow struct {
	call string
	args args
	want Action
	in   []Profile
}

func rows() []policyRow {
	var (
		normal = []Profile{Default, Debug}
		closed = []Profile{Default, Strict}
		strict = []Profile{Strict}
		debug  = []Profile{Debug}
	)
	r := []policyRow{
		// clone
		{"clone", args{17}, Allow, nil},                        // fork: SIGCHLD
		{"clone", args{0x4111}, Allow, nil},                    // vfork by clone
		{"clone", args{0x3d0f00}, Allow, nil},                  // pthread_create
		{"clone", args{0x1000 | 17}, Allow, nil},               // CLONE_PIDFD
		{"clone", args{0x00020000 | 17}, refuse, nil},          // CLONE_NEWNS
		{"clone", args{0x02000000 | 17}, refuse, nil},          // CLONE_NEWCGROUP
		{"clone", args{0x04000000 | 17}, refuse, nil},          // CLONE_NEWUTS
		{"clone", args{0x08000000 | 17}, refuse, nil},          // CLONE_NEWIPC
		{"clone", args{0x10000000 | 17}, refuse, nil},          // CLONE_NEWUSER
		{"clone", args{0x20000000 | 17}, refuse, nil},          // CLONE_NEWPID
		{"clone", args{0x40000000 | 17}, refuse, nil},          // CLONE_NEWNET
		{"clone", args{junk | 0x10000000 | 17}, refuse, nil},   // the kernel cuts the flags
		{"clone", args{0x10000000 | 0x3d0f00}, refuse, nil},    // hidden among others
		{"clone", args{junk | 17}, Allow, nil},                 // nothing refused in the lower half
		{"clone3", args{}, missing, nil},                       // flags in memory
		{"unshare", args{0x10000000}, refuse, nil},             // new user namespace
		{"setns", args{3, 0}, refuse, nil},                     //
		{"execve", args{1, 1, 1}, Allow, nil},                  // the step after the filter
		{"execveat", args{3, 1, 1, 1, 0}, Allow, nil},          // by path
		{"execveat", args{3, 1, 1, 1, 0x1000}, Allow, normal},  // AT_EMPTY_PATH
		{"execveat", args{3, 1, 1, 1, 0x1000}, refuse, strict}, //
		{"execveat", args{3, 1, 1, 1, junk | 0x1100}, refuse, strict},
		{"memfd_create", args{}, Allow, normal},
		{"memfd_create", args{}, refuse, strict},

		// sockets
		{"socket", args{1, 1, 0}, Allow, nil},
		{"socket", args{1, 5 | 0o2000000, 0}, Allow, nil},
		{"socket", args{2, 1, 0}, Allow, normal},
		{"socket", args{2, 1 | 0o4000 | 0o2000000, 6}, Allow, normal},
		{"socket", args{10, 2, 17}, Allow, normal},
		{"socket", args{junk | 2, junk | 1, junk | 6}, Allow, normal},
		{"socket", args{2, 3, 0}, refuse, normal},                // raw
		{"socket", args{2, 3, 255}, refuse, normal},              // raw
		{"socket", args{10, 3 | 0o2000000, 58}, refuse, normal},  // raw with a flag
		{"socket", args{junk | 10, junk | 3, 1}, refuse, normal}, //
		{"socket", args{2, 10, 0x300}, refuse, normal},           // AF_INET, SOCK_PACKET is AF_PACKET
		{"socket", args{2, 5, 132}, noSuchSocketType, normal},    // SCTP
		{"socket", args{2, 6, 33}, noSuchSocketType, normal},     // DCCP
		{"socket", args{2, 1, 262}, noSuchProtocol, normal},      // MPTCP
		{"socket", args{10, 1, junk | 262}, noSuchProtocol, normal},
		{"socket", args{2, 1, 132}, noSuchProtocol, normal}, // SCTP, one to one
		{"socket", args{2, 1, 256}, noSuchProtocol, normal}, // SMC
		{"socket", args{2, 2, 1}, noSuchProtocol, normal},   // ping socket
		{"socket", args{16, 3, 0}, Allow, normal},           // NETLINK_ROUTE
		{"socket", args{16, 2 | 0o2000000, 0}, Allow, normal},
		{"socket", args{2, 1, 0}, noSuchFamily, strict},
		{"socket", args{10, 2, 0}, noSuchFamily, strict},
		{"socket", args{16, 3, 0}, noSuchFamily, strict},
		{"socketpair", args{1, 1, 0}, Allow, nil},
		{"socketpair", args{junk | 1, 5, 0}, Allow, nil},
		{"socketpair", args{2, 1, 0}, noSuchFamily, nil},
		{"socketpair", args{30, 1, 0}, noSuchFamily, nil}, // TIPC

		// ioctl
		{"ioctl", args{0, 0x5401}, Allow, nil},          // TCGETS
		{"ioctl", args{0, 0x540e}, Allow, nil},          // TIOCSCTTY
		{"ioctl", args{0, 0x5413}, Allow, nil},          // TIOCGWINSZ
		{"ioctl", args{0, 0x541b}, Allow, nil},          // FIONREAD
		{"ioctl", args{0, 0x5412}, refuse, nil},         // TIOCSTI
		{"ioctl", args{0, junk | 0x5412}, refuse, nil},  // CVE-2019-10063
		{"ioctl", args{0, 1<<32 | 0x5412}, refuse, nil}, //
		{"ioctl", args{0, 0x541c}, refuse, nil},         // TIOCLINUX
		{"ioctl", args{0, junk | 0x541c}, refuse, nil},  //
		{"ioctl", args{0, 0x5423}, refuse, nil},         // TIOCSETD
		{"ioctl", args{0, 0x15412}, Allow, nil},         // the comparison is of 32 bits, not of 16

		// limits
		{"setrlimit", args{7, 1}, Allow, nil},
		{"setrlimit", args{4, 1}, coreLimit, nil},
		{"setrlimit", args{junk | 4, 1}, coreLimit, nil},
		{"getrlimit", args{4, 1}, Allow, nil},
		{"prlimit64", args{0, 4, 0, 1}, Allow, nil},
		{"prlimit64", args{0, 7, 1, 0}, Allow, nil},
		{"prlimit64", args{0, 4, 0x7fff0000, 0}, coreLimit, nil},
		{"prlimit64", args{0, 4, 1 << 40, 0}, coreLimit, nil}, // a pointer whose lower half is null
		{"prlimit64", args{0, junk | 4, 1 << 40, 0}, coreLimit, nil},

		// personality
		{"personality", args{0}, Allow, nil},
		{"personality", args{8}, Allow, nil},
		{"personality", args{0xffffffff}, Allow, nil},
		{"personality", args{^uint64(0)}, Allow, nil},
		{"personality", args{0x40000}, Allow, debug},
		{"personality", args{0x40000}, refuse, closed},
		{"personality", args{0x400000}, refuse, nil},        // READ_IMPLIES_EXEC
		{"personality", args{junk | 0x440000}, refuse, nil}, //
		{"personality", args{0x100000}, refuse, nil},        // MMAP_PAGE_ZERO
		{"personality", args{0x20000}, refuse, nil},         // UNAME26

		// seccomp and Landlock of the program's own
		{"seccomp", args{1, 0, 1}, Allow, nil},
		{"seccomp", args{1, 1, 1}, Allow, nil}, // TSYNC
		{"seccomp", args{2, 0, 1}, Allow, nil},
		{"seccomp", args{1, 8, 1}, refuse, nil},
		{"seccomp", args{1, junk | 9, 1}, refuse, nil},

		// ptrace and the like
		{"ptrace", args{}, refuse, closed},
		{"ptrace", args{}, Allow, debug},
		{"process_vm_readv", args{}, refuse, closed},
		{"process_vm_readv", args{}, Allow, debug},
		{"process_vm_writev", args{}, refuse, closed},
		{"process_vm_writev", args{}, Allow, debug},
		{"prctl", args{0x59616d61, 1}, refuse, closed},
		{"prctl", args{0x59616d61, 1}, Allow, debug},

		// prctl
		{"prctl", args{47, 4}, Allow, nil},         // PR_CAP_AMBIENT_CLEAR_ALL
		{"prctl", args{47, 2, 21}, refuse, nil},    // PR_CAP_AMBIENT_RAISE
		{"prctl", args{53, 0, 4}, Allow, nil},      // PR_SPEC_DISABLE
		{"prctl", args{53, 0, 2}, refuse, nil},     // PR_SPEC_ENABLE
		{"prctl", args{junk | 28}, refuse, nil},    // PR_SET_SECUREBITS
		{"prctl", args{0x7fffffff}, badValue, nil}, // an option of a later kernel
		{"prctl", args{0}, badValue, nil},
	}
	for family := range uint64(64) {
		switch family {
		case afUnix, afInet, afInet6, afNetlink:
		default: // PACKET 17, KEY 15, RDS 21, TIPC 30, BLUETOOTH 31, ALG 38, VSOCK 40, XDP 44 …
			r = append(r, policyRow{"socket", args{family, 1, 0}, noSuchFamily, nil},
				policyRow{"socket", args{junk | family, 3, 3}, noSuchFamily, nil})
		}
	}
	for protocol := uint64(1); protocol < 32; protocol++ {
		r = append(r, policyRow{"socket", args{16, 3, protocol}, noSuchProtocol, normal})
	}
	for _, o := range prctlAllowed {
		r = append(r, policyRow{"prctl", args{uint64(o)}, Allow, nil})
	}
	for _, o := range prctlRefused {
		r = append(r, policyRow{"prctl", args{uint64(o)}, refuse, nil})
	}
	for name := range strings.FieldsSeq(`read openat mmap futex fork vfork exit_group rseq membarrier statx faccessat2
		openat2 close_range epoll_pwait2 process_madvise pidfd_open pidfd_send_signal cachestat map_shadow_stack
		futex_waitv futex_wake futex_wait futex_requeue mlock sched_setscheduler remap_file_pages mbind set_mempolicy
		set_mempolicy_home_node inotify_add_watch timerfd_create pkey_alloc landlock_create_ruleset landlock_add_rule
		landlock_restrict_self connect bind vmsplice getrandom`) {
		r = append(r, policyRow{name, args{}, Allow, nil})
	}
	for name := range strings.FieldsSeq(refused) {
		r = append(r, policyRow{name, args{}, refuse, nil}, policyRow{name, args{1, 2, 3, 4, 5, 6}, refuse, nil})
	}
	for name := range strings.FieldsSeq(retired) {
		r = append(r, policyRow{name, args{}, missing, nil})
	}
	for _, name := range []string{"io_setup", "io_submit", "io_getevents", "io_pgetevents", "io_cancel", "io_destroy"} {
		r = append(r, policyRow{name, args{}, missing, nil}, policyRow{name, args{128, 1}, missing, nil})
	}
	for name := range strings.FieldsSeq(ipc) {
		r = append(r, policyRow{name, args{}, Allow, normal}, policyRow{name, args{}, refuse, strict})
	}
	return r
}

func TestPolicy(t *testing.T) {
	for a := range archCount {
		for _, p := range Profiles() {
			prog := mustCompile(t, p, a)
			n := 0
			for _, r := range rows() {
				if r.in != nil && !slices.Contains(r.in, p) {
					continue
				}
				nr := number(t, a, r.call)
				if nr == absent {
					continue
				}
				n++
				if got := prog.Simulate(a.Audit(), nr, r.args); got != r.want {
					t.Errorf("%s %v: %s(%#x) = %v, want %v", p, a, r.call, r.args, got, r.want)
				}
			}
			if n < 300 {
				t.Errorf("%s %v: only %d rows were checked", p, a, n)
			}
		}
	}
}

func TestNoSetID(t *testing.T) {
	const creat, tmpfile, rdwr = 0o100, 0o20200000, 2
	for a := range archCount {
		for _, p := range Profiles() {
			prog, err := CompileNoSetID(p, a)
			if err != nil {
				t.Fatal(err)
			}
			plain := mustCompile(t, p, a)
			for _, r := range []struct {
				call string
				args args
				want Action
			}{
				{"chmod", args{1, 0o4755}, refuse},
				{"chmod", args{1, 0o2755}, refuse},
				{"chmod", args{1, junk | 0o4000}, refuse},
				{"chmod", args{1, 0o1777}, Allow},
				{"fchmod", args{3, 0o6755}, refuse},
				{"fchmod", args{3, 0o755}, Allow},
				{"creat", args{1, 0o4755}, refuse},
				{"creat", args{1, 0o644}, Allow},
				{"fchmodat", args{3, 1, 0o4755}, refuse},
				{"fchmodat", args{3, 1, 0o755}, Allow},
				{"fchmodat2", args{3, 1, 0o2755, 0x1000}, refuse},
				{"fchmodat2", args{3, 1, 0o755}, Allow},
				{"mknod", args{1, 0o104755}, refuse},
				{"mknod", args{1, 0o10644}, Allow},
				{"mknodat", args{3, 1, 0o104755}, refuse},
				{"mknodat", args{3, 1, 0o10644}, Allow},
				{"open", args{1, creat | rdwr, 0o4755}, refuse},
				{"open", args{1, tmpfile | rdwr, 0o4755}, refuse},
				{"open", args{1, rdwr, 0o4755}, Allow},
				{"open", args{1, creat, 0o644}, Allow},
				{"openat", args{3, 1, creat | rdwr, 0o4755}, refuse},
				{"openat", args{3, 1, tmpfile | rdwr, 0o2755}, refuse},
				{"openat", args{3, 1, rdwr, 0o7777}, Allow},
				{"openat", args{3, 1, creat, 0o644}, Allow},
				{"openat2", args{3, 1, 2, 24}, missing},
			} {
				nr := number(t, a, r.call)
				if nr == absent {
					continue
				}
				if got := prog.Simulate(a.Audit(), nr, r.args); got != r.want {
					t.Errorf("%s %v: %s(%#x) = %v, want %v", p, a, r.call, r.args, got, r.want)
				}
				if got := plain.Simulate(a.Audit(), nr, r.args); got != Allow {
					t.Errorf("%s %v without: %s(%#x) = %v", p, a, r.call, r.args, got)
				}
			}
		}
	}
}

// These must be refused whatever happens to the lists that TestPolicy walks.
func TestNeverAllowed(t *testing.T) {
	const names = `io_uring_setup io_uring_enter io_uring_register bpf userfaultfd perf_event_open add_key request_key keyctl
		open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick mount_setattr statmount listmount mount umount2
		pivot_root chroot unshare setns clone3 kcmp pidfd_getfd open_by_handle_at name_to_handle_at quotactl quotactl_fd
		swapon swapoff reboot kexec_load kexec_file_load init_module finit_module delete_module iopl ioperm acct vhangup
		lookup_dcookie syslog settimeofday clock_settime adjtimex clock_adjtime sethostname setdomainname nfsservctl
		modify_ldt fanotify_init lsm_set_self_attr uretprobe uselib sysfs`
	for a := range archCount {
		for _, p := range Profiles() {
			prog := mustCompile(t, p, a)
			for name := range strings.FieldsSeq(names) {
				nr := number(t, a, name)
				if nr == absent {
					continue
				}
				for _, v := range []uint64{0, 1, 0xffffffff, ^uint64(0)} {
					got := prog.Simulate(a.Audit(), nr, args{v, v, v, v, v, v})
					if e := got.Errno(); e != eperm && e != enosys {
						t.Errorf("%s %v: %s = %v", p, a, name, got)
					}
				}
			}
		}
	}
}

const (
	eperm  = syscall.Errno(1)
	enosys = syscall.Errno(38)
)

func TestForeignABI(t *testing.T) {
	foreign := []uint32{0, 0x40000003 /* i386 */, 0x40000028 /* arm */, 0xc00000f3 /* riscv64 */, 0xffffffff}
	for a := range archCount {
		for _, p := range Profiles() {
			prog := mustCompile(t, p, a)
			for _, f := range append(foreign, (1 - a).Audit()) {
				for _, nr := range []int{0, 1, 39, 59, 221, 500, -1} {
					if got := prog.Simulate(f, nr, args{}); got != Kill {
						t.Errorf("%s %v: arch %#x nr %d = %v, want kill", p, a, f, nr, got)
					}
				}
			}
			x32 := Errno(enosys)
			if a == AMD64 {
				x32 = Kill
			}
			for nr, want := range map[int]Action{
				0x40000000:       x32,
				0x40000000 + 39:  x32,
				0x40000000 | 520: x32,
				0x7fffffff:       x32,
				-2:               x32,
				-1:               Errno(enosys),
				0x3fffffff:       Errno(enosys),
				472:              Errno(enosys),
				1000:             Errno(enosys),
				340:              Errno(enosys), // between the old and the common numbers
			} {
				if got := prog.Simulate(a.Audit(), nr, args{}); got != want {
					t.Errorf("%s %v: nr %#x = %v, want %v", p, a, nr, got, want)
				}
			}
		}
	}
}

// Every call must be in exactly one list, or a later edit could silently win.
func TestPolicyIsComplete(t *testing.T) {
	known := make(map[string]bool)
	for _, s := range syscalls {
		if known[s.name] {
			t.Errorf("%s is twice in the table of numbers", s.name)
		}
		known[s.name] = true
	}
	for a := range archCount {
		used := make(map[int]string)
		for _, s := range syscalls {
			if nr := s.nr[a]; nr != absent {
				if other := used[nr]; other != "" {
					t.Errorf("%v: %s and %s have number %d", a, other, s.name, nr)
				}
				used[nr] = s.name
			}
		}
	}
	listed := make(map[string]string)
	for list, names := range map[string]string{
		"allowed": allowed, "refused": refused, "retired": retired, "tracing": tracing, "memFiles": memFiles, "ipc": ipc,
		"rules": "clone socketpair ioctl setrlimit prlimit64 seccomp execveat socket personality prctl",
	} {
		for name := range strings.FieldsSeq(names) {
			if !known[name] {
				t.Errorf("%s: %s has no number", list, name)
			}
			if other := listed[name]; other != "" {
				t.Errorf("%s is in %s and in %s", name, other, list)
			}
			listed[name] = list
		}
	}
	for name := range known {
		if listed[name] == "" {
			t.Errorf("%s is in no list", name)
		}
	}
	for _, p := range Profiles() {
		table, err := policy(p)
		if err != nil {
			t.Fatal(err)
		}
		for name, r := range table {
			checkCases(t, name, r)
		}
	}
}

func checkCases(t *testing.T, name string, r rule) {
	t.Helper()
	switch r := r.(type) {
	case match:
		seen := make(map[uint32]bool)
		for _, c := range r.cases {
			for _, v := range c.values {
				if seen[v] {
					t.Errorf("%s: value %#x of argument %d is in two cases", name, v, r.arg)
				}
				if r.mask != 0 && v&^r.mask != 0 {
					t.Errorf("%s: value %#x is outside of mask %#x", name, v, r.mask)
				}
				seen[v] = true
			}
			checkCases(t, name, c.then)
		}
		checkCases(t, name, r.other)
	case ifBits:
		checkCases(t, name, r.then)
		checkCases(t, name, r.not)
	case ifNull:
		checkCases(t, name, r.then)
		checkCases(t, name, r.not)
	}
}

func TestWellFormed(t *testing.T) {
	for a := range archCount {
		for _, p := range Profiles() {
			prog := mustCompile(t, p, a)
			t.Logf("%s %v: %d instructions, %d rules, hash %s", p, a, prog.Len(), prog.Rules(), prog.Hash())
			checkWellFormed(t, prog)
			// Installing costs per instruction, and happens at every execution.
			if prog.Len() > 200 {
				t.Errorf("%s %v: %d instructions", p, a, prog.Len())
			}
			if prog.Rules() < 200 {
				t.Errorf("%s %v: %d rules", p, a, prog.Rules())
			}
			for nr := range 480 {
				if _, steps := prog.run(a.Audit(), nr, args{}); steps > 24 {
					t.Errorf("%s %v: number %d takes %d steps", p, a, nr, steps)
				}
			}
		}
	}
}

// checkWellFormed applies the kernel's rules for a filter, and that no
// instruction is dead and none uses the accumulator before it is loaded.
func checkWellFormed(t *testing.T, prog *Program) {
	t.Helper()
	n := prog.Len()
	if n == 0 || n > maxInstructions {
		t.Fatalf("%d instructions", n)
	}
	if got := len(prog.Bytes()); got != 8*n {
		t.Fatalf("%d bytes for %d instructions", got, n)
	}
	reached := make([]bool, n)
	loaded := make([]bool, n) // on every path so far; set before visited, since jumps go forward
	for i := range loaded {
		loaded[i] = true
	}
	reached[0], loaded[0] = true, false
	for i, in := range prog.insns {
		if !reached[i] {
			t.Errorf("instruction %d is dead", i)
		}
		to := func(j int, has bool) {
			if j >= n {
				t.Fatalf("instruction %d jumps to %d of %d", i, j, n)
			}
			reached[j] = true
			loaded[j] = loaded[j] && has
		}
		switch in.code {
		case opLoad:
			if in.k%4 != 0 || in.k > 60 {
				t.Errorf("instruction %d loads at %d", i, in.k)
			}
			to(i+1, true)
		case opAnd:
			to(i+1, loaded[i])
		case opJump:
			to(i+1+int(in.k), loaded[i])
		case opIfEq, opIfGe, opIfBits:
			if !loaded[i] {
				t.Errorf("instruction %d tests nothing", i)
			}
			to(i+1+int(in.jt), loaded[i])
			to(i+1+int(in.jf), loaded[i])
		case opRet:
			switch a := Action(in.k); {
			case a == Allow, a == Kill, a.Errno() > 0 && a.Errno() < 4096:
			default:
				t.Errorf("instruction %d returns %v", i, a)
			}
		default:
			t.Errorf("instruction %d has code %#x", i, in.code)
		}
	}
	if last := prog.insns[n-1]; last.code != opRet {
		t.Errorf("the last instruction is %#x", last.code)
	}
}

// decide is the meaning of a policy, read off its rules without compiling.
func decide(table map[string]rule, a Arch, arch uint32, nr int, v args) Action {
	if arch != a.Audit() {
		return Kill
	}
	n := uint32(int32(nr))
	if a == AMD64 && n >= 0x40000000 && n != 0xffffffff {
		return Kill
	}
	for _, s := range syscalls {
		if s.nr[a] != absent && uint32(s.nr[a]) == n {
			return eval(table[s.name], v)
		}
	}
	return Errno(enosys)
}

func eval(r rule, v args) Action {
	switch r := r.(type) {
	case Action:
		return r
	case match:
		x := uint32(v[r.arg])
		if r.mask != 0 {
			x &= r.mask
		}
		for _, c := range r.cases {
			if slices.Contains(c.values, x) {
				return eval(c.then, v)
			}
		}
		return eval(r.other, v)
	case ifBits:
		if uint32(v[r.arg])&r.bits != 0 {
			return eval(r.then, v)
		}
		return eval(r.not, v)
	case ifNull:
		if v[r.arg] == 0 {
			return eval(r.then, v)
		}
		return eval(r.not, v)
	}
	panic("unknown rule")
}

// values returns the numbers that a rule compares with, for inputs that matter.
func values(r rule) []uint64 {
	switch r := r.(type) {
	case match:
		v := values(r.other)
		for _, c := range r.cases {
			for _, x := range c.values {
				v = append(v, uint64(x), uint64(x)+1, uint64(x)-1, junk|uint64(x))
			}
			v = append(v, values(c.then)...)
		}
		return v
	case ifBits:
		return append(append(values(r.then), values(r.not)...), uint64(r.bits), uint64(r.bits&-r.bits), uint64(^r.bits))
	case ifNull:
		return append(append(values(r.then), values(r.not)...), 0, 1, 1<<32)
	}
	return []uint64{0}
}

func TestCompiledMeansTable(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for a := range archCount {
		for _, p := range Profiles() {
			prog := mustCompile(t, p, a)
			table, err := policy(p)
			if err != nil {
				t.Fatal(err)
			}
			for nr := -1; nr < 600; nr++ {
				if got, want := prog.Simulate(a.Audit(), nr, args{}), decide(table, a, a.Audit(), nr, args{}); got != want {
					t.Fatalf("%s %v: %d = %v, want %v", p, a, nr, got, want)
				}
			}
			for _, s := range syscalls {
				r := table[s.name]
				if _, plain := r.(Action); plain || s.nr[a] == absent {
					continue
				}
				vals := values(r)
				for range 2000 {
					var v args
					for i := range v {
						if v[i] = vals[rng.IntN(len(vals))]; rng.IntN(8) == 0 {
							v[i] = rng.Uint64()
						}
					}
					if got, want := prog.Simulate(a.Audit(), s.nr[a], v), eval(r, v); got != want {
						t.Fatalf("%s %v: %s(%#x) = %v, want %v", p, a, s.name, v, got, want)
					}
				}
			}
		}
	}
}

func FuzzCompiledMeansTable(f *testing.F) {
	for _, r := range rows() {
		if nr := number(f, AMD64, r.call); nr != absent {
			f.Add(uint8(0), auditArch[AMD64], int32(nr), r.args[0], r.args[1], r.args[2], r.args[3], r.args[4], r.args[5])
		}
	}
	var tables [3]map[string]rule
	for i, p := range Profiles() {
		table, err := policy(p)
		if err != nil {
			f.Fatal(err)
		}
		tables[i] = table
	}
	f.Fuzz(func(t *testing.T, pick uint8, arch uint32, nr int32, a0, a1, a2, a3, a4, a5 uint64) {
		i, a := int(pick)%3, Arch(pick/3%2)
		v := args{a0, a1, a2, a3, a4, a5}
		for _, arch := range []uint32{arch, a.Audit()} {
			got := mustCompile(t, Profiles()[i], a).Simulate(arch, int(nr), v)
			if want := decide(tables[i], a, arch, int(nr), v); got != want {
				t.Fatalf("%s %v: arch %#x nr %d args %#x = %v, want %v", Profiles()[i], a, arch, nr, v, got, want)
			}
		}
	})
}

// A policy far larger than the real ones, in which every number has an action
// of its own, needs relays and copies of leaves.
func TestCompileFarJumps(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	table := make(map[string]rule)
	for i, s := range syscalls {
		var cases []when
		for j := range 3 {
			cases = append(cases, when{[]uint32{rng.Uint32()}, Errno(syscall.Errno(1 + (3*i+j)%4000))})
		}
		table[s.name] = match{arg: i % 6, cases: cases, other: ifNull{arg: (i + 1) % 6, then: Allow, not: Errno(syscall.Errno(4000 + i%90))}}
	}
	for a := range archCount {
		prog, err := compile(table, a)
		if err != nil {
			t.Fatal(err)
		}
		checkWellFormed(t, prog)
		if prog.Len() < 2000 || !slices.ContainsFunc(prog.insns, func(in insn) bool { return in.code == opJump }) {
			t.Errorf("%v: %d instructions, too small to test far jumps", a, prog.Len())
		}
		for _, s := range syscalls {
			if s.nr[a] == absent {
				continue
			}
			for _, x := range values(table[s.name]) {
				v := args{x, x, x, x, x, x}
				if got, want := prog.Simulate(a.Audit(), s.nr[a], v), eval(table[s.name], v); got != want {
					t.Fatalf("%v: %s(%#x) = %v, want %v", a, s.name, x, got, want)
				}
			}
		}
	}
}

func TestCompileErrors(t *testing.T) {
	if _, err := Compile("lax", AMD64); err == nil || !strings.Contains(err.Error(), `"lax"`) {
		t.Errorf("unknown profile: %v", err)
	}
	for _, a := range []Arch{-1, archCount} {
		if _, err := Compile(Default, a); err == nil {
			t.Errorf("%v: no error", a)
		}
	}
	table, err := policy(Default)
	if err != nil {
		t.Fatal(err)
	}
	delete(table, "read")
	if _, err := compile(table, AMD64); err == nil || !strings.Contains(err.Error(), "read") {
		t.Errorf("a call without a rule: %v", err)
	}
}

func TestProgramIsStable(t *testing.T) {
	table, err := policy(Default)
	if err != nil {
		t.Fatal(err)
	}
	first := mustCompile(t, Default, AMD64)
	again, err := compile(table, AMD64)
	if err != nil {
		t.Fatal(err)
	}
	if first.Hash() != again.Hash() {
		t.Errorf("two compilations differ: %s, %s", first.Hash(), again.Hash())
	}
	if len(first.Hash()) != 16 {
		t.Errorf("hash %q", first.Hash())
	}
	b := first.Bytes()
	if code, k := binary.LittleEndian.Uint16(b), binary.LittleEndian.Uint32(b[4:]); code != opLoad || k != offArch {
		t.Errorf("the program begins with %#x %d, not with loading the architecture", code, k)
	}
	b[0] ^= 0xff
	if first.Bytes()[0] == b[0] {
		t.Error("Bytes hands out the program's own memory")
	}
	seen := make(map[string]bool)
	for a := range archCount {
		for _, p := range Profiles() {
			h := mustCompile(t, p, a).Hash()
			if seen[h] {
				t.Errorf("%s %v has the hash of another program", p, a)
			}
			seen[h] = true
		}
	}
}

func TestActionString(t *testing.T) {
	for a, want := range map[Action]string{Allow: "allow", Kill: "kill", Errno(97): "errno 97", 1: "action 0x1"} {
		if got := a.String(); got != want {
			t.Errorf("%#x: %q, want %q", uint32(a), got, want)
		}
	}
	if Allow.Errno() != 0 || Kill.Errno() != 0 || Errno(38).Errno() != 38 {
		t.Error("Errno does not return what was put in")
	}
}

func BenchmarkCompile(b *testing.B) {
	for b.Loop() {
		table, err := policy(Default)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := compile(table, AMD64); err != nil {
			b.Fatal(err)
		}
	}
}
