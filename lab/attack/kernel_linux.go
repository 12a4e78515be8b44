package attack

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A probed is one system call of the matrix with arguments that do nothing
// where it is allowed. Its outcome is the error number: with a filter EPERM or
// ENOSYS, without one whatever the kernel thinks of the arguments.
type probed struct {
	name string
	nr   uintptr
	args [6]uintptr
}

const bad = ^uintptr(0) // -1: no such descriptor, no such flag

// matrix is what every architecture has; archMatrix adds the rest.
func matrix() []probed {
	page := uintptr(unsafe.Pointer(&scratch[0]))
	m := []probed{
		{"bpf", unix.SYS_BPF, [6]uintptr{9999, page, 0}},
		{"io_uring_setup", unix.SYS_IO_URING_SETUP, [6]uintptr{0, page}},
		{"io_uring_enter", unix.SYS_IO_URING_ENTER, [6]uintptr{bad}},
		{"io_uring_register", unix.SYS_IO_URING_REGISTER, [6]uintptr{bad, 9999}},
		{"userfaultfd", unix.SYS_USERFAULTFD, [6]uintptr{1}}, // UFFD_USER_MODE_ONLY
		{"perf_event_open", unix.SYS_PERF_EVENT_OPEN, [6]uintptr{page, 0, bad, bad, 0}},
		{"keyctl", unix.SYS_KEYCTL, [6]uintptr{0, ^uintptr(2), 0}},
		{"add_key", unix.SYS_ADD_KEY, [6]uintptr{0, 0, 0, 0, 0}},
		{"request_key", unix.SYS_REQUEST_KEY, [6]uintptr{0, 0, 0, 0}},
		{"ptrace", unix.SYS_PTRACE, [6]uintptr{unix.PTRACE_PEEKDATA, 1, 0, 0}},
		{"process_vm_readv", unix.SYS_PROCESS_VM_READV, [6]uintptr{bad >> 33, 0, 0, 0, 0, 0}},
		{"process_vm_writev", unix.SYS_PROCESS_VM_WRITEV, [6]uintptr{bad >> 33, 0, 0, 0, 0, 0}},
		{"pidfd_getfd", unix.SYS_PIDFD_GETFD, [6]uintptr{bad, 0, 0}},
		{"process_madvise", unix.SYS_PROCESS_MADVISE, [6]uintptr{bad, 0, 0, 0, 0}},
		{"kcmp", unix.SYS_KCMP, [6]uintptr{uintptr(os.Getpid()), uintptr(os.Getpid()), 99, 0, 0}},
		{"mount", unix.SYS_MOUNT, [6]uintptr{0, 0, 0, 0, 0}},
		{"umount2", unix.SYS_UMOUNT2, [6]uintptr{0, 0x8000}},
		{"pivot_root", unix.SYS_PIVOT_ROOT, [6]uintptr{0, 0}},
		{"chroot", unix.SYS_CHROOT, [6]uintptr{0}},
		{"open_tree", unix.SYS_OPEN_TREE, [6]uintptr{bad, 0, bad}},
		{"move_mount", unix.SYS_MOVE_MOUNT, [6]uintptr{bad, 0, bad, 0, bad}},
		{"fsopen", unix.SYS_FSOPEN, [6]uintptr{0, 0x100}},
		{"fsconfig", unix.SYS_FSCONFIG, [6]uintptr{bad, 0, 0, 0, 0}},
		{"fsmount", unix.SYS_FSMOUNT, [6]uintptr{bad, 0, 0}},
		{"fspick", unix.SYS_FSPICK, [6]uintptr{bad, 0, 0x100}},
		{"mount_setattr", unix.SYS_MOUNT_SETATTR, [6]uintptr{bad, 0, bad, 0, 0}},
		{"open_tree_attr", 467, [6]uintptr{bad, 0, bad, 0, 0}},
		{"statmount", 457, [6]uintptr{0, 0, 0, bad}},
		{"listmount", 458, [6]uintptr{0, 0, 0, bad}},
		{"unshare user", unix.SYS_UNSHARE, [6]uintptr{unix.CLONE_NEWUSER}},
		{"unshare net", unix.SYS_UNSHARE, [6]uintptr{unix.CLONE_NEWNET}},
		{"unshare time", unix.SYS_UNSHARE, [6]uintptr{unix.CLONE_NEWTIME}},
		{"setns", unix.SYS_SETNS, [6]uintptr{bad, 0}},
		{"clone newuser", unix.SYS_CLONE, [6]uintptr{unix.CLONE_NEWUSER | unix.CLONE_FS, 0}},
		{"clone newpid", unix.SYS_CLONE, [6]uintptr{unix.CLONE_NEWPID | unix.CLONE_THREAD | unix.CLONE_SIGHAND | unix.CLONE_VM, 0}},
		{"clone3", unix.SYS_CLONE3, [6]uintptr{0, 0}},
		{"reboot", unix.SYS_REBOOT, [6]uintptr{0, 0, 0, 0}},
		{"kexec_load", unix.SYS_KEXEC_LOAD, [6]uintptr{0, 99, 0, bad}},
		{"init_module", unix.SYS_INIT_MODULE, [6]uintptr{0, 0, 0}},
		{"finit_module", unix.SYS_FINIT_MODULE, [6]uintptr{bad, 0, 0}},
		{"delete_module", unix.SYS_DELETE_MODULE, [6]uintptr{0, 0}},
		{"swapon", unix.SYS_SWAPON, [6]uintptr{0, bad}},
		{"swapoff", unix.SYS_SWAPOFF, [6]uintptr{0}},
		{"quotactl", unix.SYS_QUOTACTL, [6]uintptr{0, 0, 0, 0}},
		{"quotactl_fd", 443, [6]uintptr{bad, 0, 0, 0}},
		{"open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT, [6]uintptr{bad, 0, 0}},
		{"lookup_dcookie", unix.SYS_LOOKUP_DCOOKIE, [6]uintptr{0, 0, 0}},
		{"personality", unix.SYS_PERSONALITY, [6]uintptr{0x0400000 | 0x0040000}}, // READ_IMPLIES_EXEC, ADDR_NO_RANDOMIZE
		{"vhangup", unix.SYS_VHANGUP, [6]uintptr{}},
		{"acct", unix.SYS_ACCT, [6]uintptr{page}},
		{"settimeofday", unix.SYS_SETTIMEOFDAY, [6]uintptr{1, 0}},
		{"clock_settime", unix.SYS_CLOCK_SETTIME, [6]uintptr{99, 0}},
		{"clock_adjtime", unix.SYS_CLOCK_ADJTIME, [6]uintptr{99, page}},
		{"sethostname", unix.SYS_SETHOSTNAME, [6]uintptr{0, bad}},
		{"setdomainname", unix.SYS_SETDOMAINNAME, [6]uintptr{0, bad}},
		{"syslog", unix.SYS_SYSLOG, [6]uintptr{99, 0, 0}},
		{"fanotify_init", unix.SYS_FANOTIFY_INIT, [6]uintptr{0x8000, 0}},
		{"fanotify_mark", unix.SYS_FANOTIFY_MARK, [6]uintptr{bad, 0, 0, bad, 0}},
		{"move_pages", unix.SYS_MOVE_PAGES, [6]uintptr{1, 0, 0, 0, 0, 99}},
		{"migrate_pages", unix.SYS_MIGRATE_PAGES, [6]uintptr{bad >> 33, 0, 0, 0}},
		{"mbind", unix.SYS_MBIND, [6]uintptr{page, 1, 99, 0, 0, 99}},
		{"set_mempolicy", unix.SYS_SET_MEMPOLICY, [6]uintptr{99, 0, 0}},
		{"nfsservctl", unix.SYS_NFSSERVCTL, [6]uintptr{}},
		{"seccomp notify", unix.SYS_SECCOMP, [6]uintptr{3, 0, 0}},
		{"memfd_secret", 447, [6]uintptr{bad}},
		{"landlock_restrict_self", unix.SYS_LANDLOCK_RESTRICT_SELF, [6]uintptr{bad, 0}},
		{"lsm_set_self_attr", 460, [6]uintptr{99, 0, 0, 99}},
		{"socket vsock", unix.SYS_SOCKET, [6]uintptr{unix.AF_VSOCK, unix.SOCK_STREAM, 0}},
		{"socket alg", unix.SYS_SOCKET, [6]uintptr{unix.AF_ALG, unix.SOCK_SEQPACKET, 0}},
		{"socket packet", unix.SYS_SOCKET, [6]uintptr{unix.AF_PACKET, unix.SOCK_RAW, 0}},
		{"prctl set_mm", unix.SYS_PRCTL, [6]uintptr{unix.PR_SET_MM, 99, 0, 0, 0}},
		{"ioctl tiocsti", unix.SYS_IOCTL, [6]uintptr{0, unix.TIOCSTI, page}},
		{"ioctl tiocsti high bits", unix.SYS_IOCTL, [6]uintptr{0, unix.TIOCSTI | 0xdead<<32, page}},
		{"ioctl tioclinux", unix.SYS_IOCTL, [6]uintptr{0, unix.TIOCLINUX, page}},
	}
	return append(m, archMatrix()...)
}

var scratch [4096]byte

// reachable are the calls that the design leaves open, so that reaching the
// kernel is no finding: a program may restrict itself further, ask for the sizes
// of seccomp's structures, and place its own memory.
var reachable = map[string]bool{
	"landlock_restrict_self": true, "seccomp notify": true,
	"process_madvise": true, "move_pages": true, "mbind": true, "set_mempolicy": true,
}

// syscallMatrix makes every call of the matrix. A step is reached when the
// kernel looked at the arguments: any answer but EPERM, ENOSYS and EAFNOSUPPORT.
func syscallMatrix(r *Report, args []string) {
	runtime.LockOSThread()
	n := 0
	for _, p := range matrix() {
		_, _, e := unix.RawSyscall6(p.nr, p.args[0], p.args[1], p.args[2], p.args[3], p.args[4], p.args[5])
		name := unix.ErrnoName(e)
		if e == 0 {
			name = "ok"
		}
		reached := e != unix.EPERM && e != unix.ENOSYS && e != unix.EAFNOSUPPORT && !reachable[p.name]
		if reached {
			n++
		}
		r.step(p.name, reached, name)
	}
	r.Detail = fmt.Sprintf("%d of %d calls reached the kernel", n, len(r.Steps))
}

// foreignCalls makes system calls by other numbering schemes, each in a child
// that may be killed for it.
func foreignCalls(r *Report, args []string) {
	for _, kind := range foreignKinds {
		out, code, sig, err := child("call", kind)
		text := fmt.Sprintf("exit %d signal %d %s %s", code, int(sig), strings.TrimSpace(string(out)), errText(err))
		r.step(kind, code == 0, text)
	}
}

func oneForeignCall(args []string) int { return foreignCall(arg(args, 0, "")) }

// socketMatrix opens one socket of each family and kind.
func socketMatrix(r *Report, args []string) {
	type kind struct {
		name            string
		fam, typ, proto int
		allowed         bool
	}
	kinds := []kind{
		{"unix", unix.AF_UNIX, unix.SOCK_STREAM, 0, true},
		{"inet tcp", unix.AF_INET, unix.SOCK_STREAM, 0, true},
		{"inet udp", unix.AF_INET, unix.SOCK_DGRAM, 0, true},
		{"inet6 tcp", unix.AF_INET6, unix.SOCK_STREAM, 0, true},
		{"netlink route", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE, true},
		{"inet raw icmp", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP, false},
		{"inet6 raw icmp", unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6, false},
		{"inet raw raw", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW, false},
		{"inet packet", unix.AF_INET, unix.SOCK_PACKET, 0, false},
		{"mptcp", unix.AF_INET, unix.SOCK_STREAM, 262, false},
		{"sctp", unix.AF_INET, unix.SOCK_SEQPACKET, 132, false},
		{"dccp", unix.AF_INET, 6, 33, false},
		{"smc", 43, unix.SOCK_STREAM, 0, false},
		{"tls ulp", 0, 0, 0, false},
	}
	for proto, name := range map[int]string{2: "usersock", 3: "firewall", 4: "sock_diag", 5: "nflog", 6: "xfrm", 7: "selinux", 9: "audit", 10: "fib_lookup", 11: "connector", 12: "netfilter", 15: "kobject_uevent", 16: "generic", 20: "rdma", 21: "crypto"} {
		kinds = append(kinds, kind{"netlink " + name, unix.AF_NETLINK, unix.SOCK_RAW, proto, false})
	}
	for fam := 3; fam < 46; fam++ {
		switch fam {
		case unix.AF_INET6, unix.AF_NETLINK, 43:
			continue
		}
		for _, t := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_RAW, unix.SOCK_SEQPACKET} {
			kinds = append(kinds, kind{fmt.Sprintf("family %d type %d", fam, t), fam, t, 0, false})
		}
	}
	open := 0
	for _, k := range kinds {
		if k.fam == 0 {
			continue
		}
		fd, err := unix.Socket(k.fam, k.typ|unix.SOCK_CLOEXEC, k.proto)
		if err == nil {
			_ = unix.Close(fd)
		}
		if k.allowed {
			if err == nil {
				open++
			}
			r.note("allowed "+k.name, errText(err))
			continue
		}
		// A junk upper half must not slip past a filter that compares 64 bits.
		_, _, e := unix.Syscall(unix.SYS_SOCKET, uintptr(k.fam)|0xdead<<32, uintptr(k.typ), uintptr(k.proto))
		r.step(k.name, err == nil || e == 0, errText(err))
	}
	r.Detail = fmt.Sprintf("%d of 5 ordinary kinds could be opened", open)
}

// ttyInjection puts a byte into the input of a terminal: its standard input if
// that is one, else a pty of its own.
func ttyInjection(r *Report, args []string) {
	fd := 0
	if _, err := unix.IoctlGetTermios(0, unix.TCGETS); err != nil {
		m, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY, 0)
		if err != nil {
			r.step("no terminal", false, errText(err))
			return
		}
		n, err := unix.IoctlGetInt(m, unix.TIOCGPTN)
		if err == nil {
			err = unix.IoctlSetPointerInt(m, unix.TIOCSPTLCK, 0)
		}
		if err == nil {
			_, _ = unix.Setsid()
			fd, err = unix.Open("/dev/pts/"+strconv.Itoa(n), unix.O_RDWR, 0)
		}
		if err != nil {
			r.step("no terminal", false, errText(err))
			return
		}
		_ = unix.IoctlSetInt(fd, unix.TIOCSCTTY, 0)
	}
	c := byte('x')
	for _, t := range []struct {
		name string
		req  uintptr
	}{{"TIOCSTI", unix.TIOCSTI}, {"TIOCSTI with junk above", unix.TIOCSTI | 0xdeadbeef<<32}, {"TIOCLINUX", unix.TIOCLINUX}, {"TIOCLINUX with junk above", unix.TIOCLINUX | 1<<32}, {"TIOCCONS", unix.TIOCCONS}} {
		_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), t.req, uintptr(unsafe.Pointer(&c)))
		var err error
		if e != 0 {
			err = e
		}
		r.try(t.name, err)
	}
}

// regain tries to get back any privilege, here and in descendants.
func regain(r *Report, args []string) {
	runtime.LockOSThread()
	before := effective()
	r.note("before", before)
	r.note("setuid(0)", errText(syscall.Setuid(0)))
	r.note("setgid(0)", errText(syscall.Setgid(0)))
	r.note("setgroups", errText(syscall.Setgroups([]int{0})))
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	all := [2]unix.CapUserData{{Effective: ^uint32(0), Permitted: ^uint32(0), Inheritable: ^uint32(0)}, {Effective: 0x1ff, Permitted: 0x1ff, Inheritable: 0x1ff}}
	r.note("capset", errText(unix.Capset(&hdr, &all[0])))
	r.note("ambient", errText(unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, unix.CAP_SYS_ADMIN, 0, 0)))
	r.note("securebits", errText(unix.Prctl(unix.PR_SET_SECUREBITS, 0, 0, 0, 0)))
	r.step("no_new_privs off", unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0) == nil, "")
	r.step("seccomp off", unix.Prctl(unix.PR_SET_SECCOMP, 0, 0, 0, 0) == nil, "")
	for _, d := range []string{"/proc/self/uid_map", "/proc/self/setgroups", "/proc/1/uid_map"} {
		f, err := os.OpenFile(d, os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString("0 0 4294967295\n")
			_ = f.Close()
		}
		r.step("write "+d, err == nil, errText(err))
	}
	for i := 0; i < 4096; i++ {
		if unix.Setns(i, 0) == nil {
			r.step(fmt.Sprintf("setns to descriptor %d", i), true, "")
		}
	}
	ns, _ := filepath.Glob("/proc/*/ns/*")
	for _, p := range ns {
		fd, err := unix.Open(p, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		if unix.Setns(fd, 0) == nil {
			r.note("setns "+p, "ok")
		}
		_ = unix.Close(fd)
	}
	after := effective()
	r.step("more than before", after != before, after)
	out, code, sig, err := child("newuser")
	r.step("new user namespace", code == 0, fmt.Sprintf("%s exit %d signal %d %s", strings.TrimSpace(string(out)), code, int(sig), errText(err)))
}

// effective is the uid and the effective and permitted sets of this thread.
func effective() string {
	b, _ := os.ReadFile("/proc/thread-self/status")
	return strings.Join(strings.Fields(line(b, "Uid:")+" "+line(b, "CapEff:")+" "+line(b, "CapPrm:")), " ")
}

// newUserNamespace exits 0 when it could make one and hold capabilities in it.
func newUserNamespace([]string) int {
	runtime.LockOSThread()
	// A Go program has threads, for which unshare(CLONE_NEWUSER) is refused: clone instead.
	pid, _, e := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.CLONE_NEWUSER|unix.SIGCHLD), 0, 0, 0, 0, 0)
	if e != 0 {
		fmt.Println("clone:", e)
		return 1
	}
	if pid == 0 {
		// The child may not call into the runtime: a privileged call, then exit.
		_, _, e := unix.RawSyscall(unix.SYS_UNSHARE, unix.CLONE_NEWUTS, 0, 0)
		unix.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(e), 0, 0)
	}
	var ws unix.WaitStatus
	if _, err := unix.Wait4(int(pid), &ws, 0, nil); err != nil {
		fmt.Println("wait:", err)
		return 1
	}
	fmt.Println("in the new namespace:", ws.ExitStatus())
	return ws.ExitStatus()
}

// printStatus shows what the kernel says of this process.
func printStatus([]string) int {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	_, _ = os.Stdout.Write(b)
	return 0
}

// signalOutside looks for and signals a process of the host by its number. A
// step is reached when the process was seen at all: EPERM instead of ESRCH
// already tells that it exists.
func signalOutside(r *Report, args []string) {
	pid := number(args, 0, 1<<21)
	seen := func(name string, err error) {
		r.step(name, err != unix.ESRCH && err != unix.ENOENT && err != unix.ENOSYS && err != unix.EINVAL, errText(err))
	}
	seen("kill 0", unix.Kill(pid, 0))
	seen("kill", unix.Kill(pid, unix.SIGTERM))
	seen("tgkill", unix.Tgkill(pid, pid, unix.SIGTERM))
	fd, err := unix.PidfdOpen(pid, 0)
	seen("pidfd_open", err)
	if err == nil {
		r.note("pidfd_send_signal", errText(unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0)))
		_ = unix.Close(fd)
	}
	_, err = os.Stat("/proc/" + strconv.Itoa(pid))
	r.step("/proc entry", err == nil, errText(err))
	var lim unix.Rlimit
	seen("prlimit", unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &lim))
	_, err = unix.Getpgid(pid)
	seen("getpgid", err)
	// Everyone at once: kill(-1) must not leave the sandbox. Its own process is
	// spared by the kernel; the canary on the host says whether it did.
	if arg(args, 1, "") == "all" {
		r.note("kill -1", errText(unix.Kill(-1, unix.SIGUSR2)))
	}
}

// unixConnect connects to each named socket; a leading @ means the abstract namespace.
func unixConnect(r *Report, args []string) {
	for _, name := range args {
		for _, t := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM} {
			fd, err := unix.Socket(unix.AF_UNIX, t|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				r.step(name, false, errText(err))
				continue
			}
			err = unix.Connect(fd, &unix.SockaddrUnix{Name: name})
			if err == nil {
				_, _ = unix.Write(fd, []byte("reached\n"))
			}
			r.step(fmt.Sprintf("%s type %d", name, t), err == nil, errText(err))
			_ = unix.Close(fd)
		}
	}
}

// readSysV attaches the shared memory of key args[0] and prints what is in it.
func readSysV(args []string) int {
	id, err := unix.SysvShmGet(number(args, 0, 0), 0, 0)
	if err != nil {
		fmt.Println("shmget:", err)
		return 1
	}
	b, err := unix.SysvShmAttach(id, 0, unix.SHM_RDONLY)
	if err != nil {
		fmt.Println("shmat:", err)
		return 1
	}
	fmt.Printf("%q\n", bytes.TrimRight(b[:64], "\x00"))
	return 0
}

// readMqueue opens the POSIX message queue args[0].
func readMqueue(r *Report, args []string) {
	fd, _, e := unix.Syscall6(unix.SYS_MQ_OPEN, cstr(arg(args, 0, "lab")), unix.O_RDWR|unix.O_NONBLOCK, 0, 0, 0, 0)
	if e != 0 {
		r.step("mq_open", false, e.Error())
		return
	}
	msg := []byte("from the attack")
	_, _, e = unix.Syscall6(unix.SYS_MQ_TIMEDSEND, fd, uintptr(unsafe.Pointer(&msg[0])), uintptr(len(msg)), 0, 0, 0)
	r.step("mq_send", e == 0, errText(errno(0, 0, e)))
}

// overwriteExe tries to write to the programs of the trusted side as far as
// they can be named from here: CVE-2019-5736.
func overwriteExe(r *Report, args []string) {
	names := append([]string{"/proc/self/exe", "/proc/1/exe", fmt.Sprintf("/proc/%d/exe", os.Getppid())}, args...)
	for _, name := range names {
		for i := 0; i < 50; i++ { // ETXTBSY ends when the program does
			fd, err := unix.Open(name, unix.O_WRONLY|unix.O_APPEND|unix.O_CLOEXEC, 0)
			if err == nil {
				_, err = unix.Write(fd, []byte("#!overwritten\n"))
				_ = unix.Close(fd)
			}
			if err == unix.ETXTBSY && i < 49 {
				time.Sleep(time.Millisecond)
				continue
			}
			r.try("write "+name, err)
			break
		}
		fd, err := unix.Open(name, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err == nil {
			again, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_WRONLY|unix.O_APPEND|unix.O_CLOEXEC, 0)
			if err == nil {
				_, err = unix.Write(again, []byte("#!overwritten\n"))
				_ = unix.Close(again)
			}
			r.try("reopen "+name, err)
			_ = unix.Close(fd)
		}
	}
	for _, name := range args {
		moved := name + ".old"
		err := unix.Rename(name, moved)
		if err == nil {
			err = os.WriteFile(name, []byte("#!replaced\n"), 0o755)
		}
		r.try("replace "+name, err)
	}
}

// printInfo prints what can be learnt about the host.
func printInfo([]string) int {
	var u unix.Utsname
	_ = unix.Uname(&u)
	var si unix.Sysinfo_t
	_ = unix.Sysinfo(&si)
	show := func(k string, v any) { fmt.Printf("%s=%v\n", k, v) }
	show("hostname", unix.ByteSliceToString(u.Nodename[:]))
	show("domainname", unix.ByteSliceToString(u.Domainname[:]))
	show("release", unix.ByteSliceToString(u.Release[:]))
	show("uptime", si.Uptime)
	show("uid", os.Getuid())
	show("euid", os.Geteuid())
	groups, _ := os.Getgroups()
	show("groups", groups)
	show("pid", os.Getpid())
	show("ppid", os.Getppid())
	for k, p := range map[string]string{"bootid": "/proc/sys/kernel/random/boot_id", "machineid": "/etc/machine-id", "cmdline": "/proc/cmdline", "passwd": "/etc/passwd", "hosts": "/etc/hosts"} {
		b, err := os.ReadFile(p)
		if err != nil {
			show(k, err)
			continue
		}
		fmt.Printf("%s=%q\n", k, b)
	}
	for k, p := range map[string]string{"cgroup": "/proc/self/cgroup", "uid_map": "/proc/self/uid_map", "gid_map": "/proc/self/gid_map", "arp": "/proc/net/arp", "dev": "/proc/net/dev", "tcp": "/proc/net/tcp"} {
		b, _ := os.ReadFile(p)
		for _, l := range strings.Split(strings.TrimSpace(string(b)), "\n") {
			show(k, l)
		}
	}
	for _, e := range os.Environ() {
		show("env", e)
	}
	return 0
}
