package seccomp

import (
	"fmt"
	"strings"
	"syscall"
)

// Error numbers, spelled out so that policies can be compiled on any platform.
// They are the same on both architectures (asm-generic/errno.h).
const (
	ePERM            syscall.Errno = 1
	eINVAL           syscall.Errno = 22
	eNOSYS           syscall.Errno = 38
	ePROTONOSUPPORT  syscall.Errno = 93
	eSOCKTNOSUPPORT  syscall.Errno = 94
	eAFNOSUPPORT     syscall.Errno = 97
	refuse                         = retErrno | Action(ePERM)
	missing                        = retErrno | Action(eNOSYS)
	badValue                       = retErrno | Action(eINVAL)
	noSuchProtocol                 = retErrno | Action(ePROTONOSUPPORT)
	noSuchSocketType               = retErrno | Action(eSOCKTNOSUPPORT)
	noSuchFamily                   = retErrno | Action(eAFNOSUPPORT)
)

// allowed are the calls that every profile lets through unconditionally.
const allowed = `
	read write open close stat fstat lstat poll lseek pread64 pwrite64 readv writev preadv pwritev preadv2 pwritev2
	access faccessat faccessat2 pipe pipe2 select pselect6 ppoll dup dup2 dup3 sendfile fcntl flock fsync fdatasync
	truncate ftruncate fallocate getdents getdents64 getcwd chdir fchdir rename renameat renameat2 mkdir mkdirat rmdir
	creat link linkat unlink unlinkat symlink symlinkat readlink readlinkat chmod fchmod fchmodat fchmodat2 chown fchown
	lchown fchownat umask utime utimes futimesat utimensat mknod mknodat statfs fstatfs statx newfstatat openat openat2
	close_range copy_file_range splice tee vmsplice readahead fadvise64 sync_file_range cachestat
	setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr removexattr lremovexattr
	fremovexattr setxattrat getxattrat listxattrat removexattrat
	inotify_init inotify_init1 inotify_add_watch inotify_rm_watch
	epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2 eventfd eventfd2 signalfd signalfd4
	timerfd_create timerfd_settime timerfd_gettime

	mmap mprotect munmap brk mremap msync mincore madvise process_madvise mlock mlock2 munlock mlockall munlockall
	remap_file_pages pkey_mprotect pkey_alloc pkey_free mseal map_shadow_stack membarrier
	mbind set_mempolicy get_mempolicy set_mempolicy_home_node move_pages

	rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigqueueinfo rt_tgsigqueueinfo
	rt_sigsuspend sigaltstack kill tkill tgkill pidfd_open pidfd_send_signal pause alarm getitimer setitimer
	timer_create timer_settime timer_gettime timer_getoverrun timer_delete
	nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday time times

	fork vfork execve exit exit_group wait4 waitid restart_syscall arch_prctl set_tid_address set_robust_list
	get_robust_list rseq futex futex_waitv futex_wake futex_wait futex_requeue getrandom getcpu
	sched_yield sched_setparam sched_getparam sched_setscheduler sched_getscheduler sched_get_priority_max
	sched_get_priority_min sched_rr_get_interval sched_setaffinity sched_getaffinity sched_setattr sched_getattr
	getpriority setpriority ioprio_set ioprio_get

	getpid getppid gettid getpgid setpgid getpgrp getsid setsid getuid geteuid getgid getegid setuid setgid setreuid
	setregid setresuid getresuid setresgid getresgid setfsuid setfsgid getgroups setgroups capget capset
	uname sysinfo getrusage getrlimit

	connect accept accept4 bind listen sendto recvfrom sendmsg recvmsg sendmmsg recvmmsg shutdown getsockname
	getpeername setsockopt getsockopt

	landlock_create_ruleset landlock_add_rule landlock_restrict_self`

// refused are the calls that every profile answers with EPERM. sync and syncfs are here
// because they wait for everybody's writes, and make everybody wait; what a program has
// written itself it flushes by fsync.
const refused = `
	unshare setns mount umount2 pivot_root chroot open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick
	mount_setattr swapon swapoff quotactl quotactl_fd acct open_by_handle_at name_to_handle_at fanotify_init
	fanotify_mark sysfs ustat nfsservctl sync syncfs

	io_uring_setup io_uring_enter io_uring_register bpf userfaultfd perf_event_open add_key request_key keyctl
	kcmp pidfd_getfd process_mrelease migrate_pages memfd_secret lookup_dcookie modify_ldt iopl ioperm

	reboot kexec_load kexec_file_load create_module init_module finit_module delete_module get_kernel_syms query_module
	syslog settimeofday clock_settime adjtimex clock_adjtime sethostname setdomainname vhangup`

// retired are answered with ENOSYS, as a kernel without them would: calls that
// no kernel implements any more, and young ones that programs know how to do
// without. clone3 is here because its flags are in memory, where a filter
// cannot look; libcs then use clone. The io_* calls of old asynchronous I/O share one
// small budget between all users of the host (fs.aio-max-nr), which a single sandbox
// could take for itself; databases go on without them.
const retired = `
	io_setup io_destroy io_getevents io_pgetevents io_submit io_cancel
	clone3 statmount listmount listns lsm_get_self_attr lsm_set_self_attr lsm_list_modules file_getattr file_setattr
	rseq_slice_yield uretprobe uprobe
	_sysctl uselib getpmsg putpmsg afs_syscall tuxcall security vserver epoll_ctl_old epoll_wait_old set_thread_area
	get_thread_area`

// Lists that the profiles treat differently.
const (
	tracing  = `ptrace process_vm_readv process_vm_writev`
	memFiles = `memfd_create`
	ipc      = `shmget shmat shmctl shmdt semget semop semctl semtimedop msgget msgsnd msgrcv msgctl
		mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr`
)

// policy returns what a profile does with each system call.
func policy(p Profile) (map[string]rule, error) {
	table := make(map[string]rule, len(syscalls))
	put := func(names string, r rule) {
		for name := range strings.FieldsSeq(names) {
			table[name] = r
		}
	}
	put(allowed, Allow)
	put(refused, refuse)
	put(retired, missing)

	table["clone"] = cloneRule
	table["socketpair"] = match{arg: 0, cases: []when{{[]uint32{afUnix}, Allow}}, other: noSuchFamily}
	table["ioctl"] = ioctlRule
	table["setrlimit"] = match{arg: 0, cases: []when{{[]uint32{rlimitCore}, coreLimit}}, other: Allow}
	table["prlimit64"] = match{arg: 1, cases: []when{{[]uint32{rlimitCore}, ifNull{arg: 2, then: Allow, not: coreLimit}}}, other: Allow}
	table["seccomp"] = ifBits{arg: 1, bits: seccompNewListener, then: refuse, not: Allow}

	switch p {
	case Default:
		put(tracing, refuse)
		put(memFiles, Allow)
		put(ipc, Allow)
		table["execveat"] = Allow
		table["socket"] = socketRule
		table["personality"] = personalityRule()
		table["prctl"] = prctlRule(refuse)
	case Strict:
		put(tracing, refuse)
		put(memFiles, refuse)
		put(ipc, refuse)
		table["execveat"] = ifBits{arg: 4, bits: atEmptyPath, then: refuse, not: Allow}
		table["socket"] = match{arg: 0, cases: []when{{[]uint32{afUnix}, Allow}}, other: noSuchFamily}
		table["personality"] = personalityRule()
		table["prctl"] = prctlRule(refuse)
	case Debug:
		put(tracing, Allow)
		put(memFiles, Allow)
		put(ipc, Allow)
		table["execveat"] = Allow
		table["socket"] = socketRule
		table["personality"] = personalityRule(addrNoRandomize)
		table["prctl"] = prctlRule(Allow)
	default:
		return nil, fmt.Errorf("unknown seccomp profile %q (known: %v)", p, Profiles())
	}
	return table, nil
}

// Bits of modes and of open flags.
const (
	setIDs   = 0o6000             // S_ISUID, S_ISGID
	makeFile = 0o100 | 0o20000000 // O_CREAT, __O_TMPFILE
)

// restrictSetID refuses what gives a file set-id bits. openat2 has its mode in memory,
// where a filter cannot look: it is answered as by a kernel without it.
func restrictSetID(table map[string]rule) {
	mode := func(arg int) rule { return ifBits{arg: arg, bits: setIDs, then: refuse, not: Allow} }
	for name, arg := range map[string]int{"chmod": 1, "fchmod": 1, "creat": 1, "mknod": 1, "fchmodat": 2, "fchmodat2": 2, "mknodat": 2} {
		table[name] = mode(arg)
	}
	table["open"] = ifBits{arg: 1, bits: makeFile, then: mode(2), not: Allow}
	table["openat"] = ifBits{arg: 2, bits: makeFile, then: mode(3), not: Allow}
	table["openat2"] = missing
}

// Flags of clone(2) that make namespaces. CLONE_NEWTIME shares its bit with the
// exit signal and can only be asked for by clone3. CLONE_PARENT stays allowed: the
// spawner, which runs under the same filter, makes children of the keeper with it.
// A program that does so only gets a child that the keeper reaps for it.
const (
	cloneNew = 0x20000 | // CLONE_NEWNS
		0x02000000 | // CLONE_NEWCGROUP
		0x04000000 | // CLONE_NEWUTS
		0x08000000 | // CLONE_NEWIPC
		0x10000000 | // CLONE_NEWUSER
		0x20000000 | // CLONE_NEWPID
		0x40000000 //   CLONE_NEWNET
)

var cloneRule = ifBits{arg: 0, bits: cloneNew, then: refuse, not: Allow}

// Socket families, types and protocols.
const (
	afUnix    = 1
	afInet    = 2
	afInet6   = 10
	afNetlink = 16

	sockTypeMask = 0xf // the rest are flags; SOCK_TYPE_MASK in linux/net.h
	sockStream   = 1
	sockDgram    = 2
	sockRaw      = 3
	sockPacket   = 10

	protoTCP     = 6
	protoUDP     = 17
	netlinkRoute = 0
)

// socketRule lets through what programs use in a namespace without
// privileges. Refused protocols fail as on a kernel built without them, so
// that a program which prefers MPTCP goes on with TCP. A family that is not
// listed is not only useless: AF_VSOCK crosses namespaces, AF_ALG and the
// rarer ones are attack surface.
var socketRule = match{
	arg: 0,
	cases: []when{
		{[]uint32{afUnix}, Allow},
		{[]uint32{afInet, afInet6}, match{
			arg: 1, mask: sockTypeMask,
			cases: []when{
				{[]uint32{sockStream, sockDgram}, match{
					arg:   2,
					cases: []when{{[]uint32{0, protoTCP, protoUDP}, Allow}},
					other: noSuchProtocol,
				}},
				{[]uint32{sockRaw, sockPacket}, refuse},
			},
			other: noSuchSocketType,
		}},
		{[]uint32{afNetlink}, match{
			arg:   2,
			cases: []when{{[]uint32{netlinkRoute}, Allow}},
			other: noSuchProtocol,
		}},
	},
	other: noSuchFamily,
}

// Requests of ioctl(2) that put input into a terminal, so into a shell outside
// (CVE-2016-7545 and its kin), or that attach a line discipline, a supply of
// kernel bugs (CVE-2023-6546). The kernel cuts the request to 32 bits.
const (
	tiocsti   = 0x5412
	tioclinux = 0x541c
	tiocsetd  = 0x5423
)

var ioctlRule = match{arg: 1, cases: []when{{[]uint32{tiocsti, tioclinux, tiocsetd}, refuse}}, other: Allow}

const (
	rlimitCore         = 4
	seccompNewListener = 1 << 3 // SECCOMP_FILTER_FLAG_NEW_LISTENER
	atEmptyPath        = 0x1000
)

// coreLimit answers every attempt to set RLIMIT_CORE: the value is in memory,
// where a filter cannot look, and a lower one can be as bad as a higher one,
// since a limit of 0 makes the kernel run the host's core_pattern helper, which
// 1 does not. It is EINVAL because gpg, which always tries, gives up on EPERM
// and goes on with a warning on EINVAL.
const coreLimit = badValue

// Values of personality(2). PER_LINUX32 changes what uname says and nothing
// else on these architectures. READ_IMPLIES_EXEC, MMAP_PAGE_ZERO,
// ADDR_COMPAT_LAYOUT weaken the program's own defences, UNAME26 had
// CVE-2012-0957; ADDR_NO_RANDOMIZE is for debuggers.
const (
	perLinux        = 0
	perLinux32      = 8
	perQuery        = 0xffffffff
	addrNoRandomize = 0x40000
)

func personalityRule(more ...uint32) rule {
	return match{arg: 0, cases: []when{{append([]uint32{perLinux, perLinux32, perQuery}, more...), Allow}}, other: refuse}
}

// Options of prctl(2).
const (
	prCapAmbient      = 47
	prCapAmbientRaise = 2
	prSetSpeculation  = 53
	prSpecEnable      = 1 << 1
	prSetPtracer      = 0x59616d61
)

// prctlAllowed are the options without conditions.
var prctlAllowed = []uint32{
	1, 2, 3, 4, // PDEATHSIG, DUMPABLE
	5, 6, // UNALIGN
	7, 8, // KEEPCAPS: nothing to keep
	13, 14, // TIMING
	15, 16, // NAME
	21, 22, // SECCOMP: filters only add up
	23,     // CAPBSET_READ
	25, 26, // TSC
	27,     // GET_SECUREBITS
	29, 30, // TIMERSLACK
	34,     // MCE_KILL_GET
	36, 37, // CHILD_SUBREAPER
	38, 39, // NO_NEW_PRIVS
	40,     // GET_TID_ADDRESS
	41, 42, // THP_DISABLE
	50, 51, // SVE_VL
	52,     // GET_SPECULATION_CTRL
	54,     // PAC_RESET_KEYS
	55, 56, // TAGGED_ADDR_CTRL
	58,     // GET_IO_FLUSHER
	60, 61, // PAC_ENABLED_KEYS
	63, 64, // SME_VL
	65, 66, // MDWE
	68,         // GET_MEMORY_MERGE
	74, 75, 76, // SHADOW_STACK_STATUS
	0x41555856, // GET_AUXV
	0x53564d41, // SET_VMA: names of anonymous memory
}

// prctlRefused loosen something, or reach code of the kernel that nothing in a
// sandbox has a use for.
var prctlRefused = []uint32{
	24,     // CAPBSET_DROP: needs a capability
	28,     // SET_SECUREBITS
	31, 32, // TASK_PERF_EVENTS
	33,     // MCE_KILL
	35,     // SET_MM: fakes what /proc says of the process
	57,     // SET_IO_FLUSHER
	59,     // SET_SYSCALL_USER_DISPATCH
	62,     // SCHED_CORE
	67,     // SET_MEMORY_MERGE: pages merged with those of others tell what they hold
	77, 78, // TIMER_CREATE_RESTORE_IDS, FUTEX_HASH
}

// prctlRule answers options in neither list as a kernel without them would.
func prctlRule(setPtracer Action) rule {
	return match{
		arg: 0,
		cases: []when{
			{prctlAllowed, Allow},
			{prctlRefused, refuse},
			{[]uint32{prSetPtracer}, setPtracer},
			{[]uint32{prCapAmbient}, match{arg: 1, cases: []when{{[]uint32{prCapAmbientRaise}, refuse}}, other: Allow}},
			{[]uint32{prSetSpeculation}, match{arg: 2, cases: []when{{[]uint32{prSpecEnable}, refuse}}, other: Allow}},
		},
		other: badValue,
	}
}
