// Package seccomp compiles the system call policies of sandboxes to classic BPF
// programs for amd64 and arm64.
//
// A policy is an allow-list. What it refuses fails with EPERM, what the kernel
// table of this package does not know with ENOSYS, so that programs written
// for later kernels fall back; calls of another ABI (32-bit, x32) kill the
// process. Arguments are looked at where a call as a whole can be neither
// allowed nor refused:
//
//	clone             no flag that makes a namespace; clone3 is ENOSYS
//	socket            AF_UNIX; AF_INET and AF_INET6 with stream and datagram sockets of TCP
//	                  and UDP (raw ones are EPERM, MPTCP and others EPROTONOSUPPORT); AF_NETLINK
//	                  with NETLINK_ROUTE; every other family is EAFNOSUPPORT
//	socketpair        AF_UNIX
//	ioctl             not TIOCSTI, TIOCLINUX, TIOCSETD, whatever the upper half of the request
//	prctl             a list; unknown options are EINVAL
//	seccomp           no SECCOMP_FILTER_FLAG_NEW_LISTENER; further filters are welcome
//	setrlimit,        RLIMIT_CORE can be read, not set: EINVAL, whatever the value, since a
//	prlimit64         filter cannot see it
//	personality       PER_LINUX, PER_LINUX32 and the query
//
// The profiles differ in this:
//
//	                                         default   strict    debug
//	socket: AF_INET, AF_INET6, NETLINK_ROUTE yes       no (1)    yes
//	memfd_create                             yes       EPERM     yes
//	execveat with AT_EMPTY_PATH              yes       EPERM     yes
//	System V IPC, POSIX message queues       yes       EPERM     yes
//	ptrace, process_vm_readv and _writev     EPERM     EPERM     yes
//	prctl(PR_SET_PTRACER)                    EPERM     EPERM     yes
//	personality(ADDR_NO_RANDOMIZE)           EPERM     EPERM     yes
//
//	(1) EAFNOSUPPORT
//
// With CompileNoSetID, chmod, fchmod, fchmodat, fchmodat2, mknod, mknodat, creat, open and
// openat give no file set-user-id or set-group-id bits (EPERM), and openat2 is ENOSYS.
//
// Plain execve is allowed in every profile, since a filter is in force before
// the program that it is for has been executed. Strict still runs shells and
// interpreters; inotify stays, its instances and watches being bounded per user.
// kcmp and pidfd_getfd are refused in every profile, and so are sync and syncfs, which
// concern what others have written.
//
// A filter cannot follow pointers: paths, socket addresses and structures in
// memory are for the other layers. The package installs nothing. It does not
// decide whether a program may be confined further; programs can add filters,
// never remove one.
package seccomp
