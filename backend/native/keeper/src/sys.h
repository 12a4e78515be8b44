/* System calls, types and constants without libc. The numbers and layouts are
 * kernel ABI (Linux 5.14 and later); nothing here allocates or has state. */
#ifndef KEEPER_SYS_H
#define KEEPER_SYS_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;
typedef unsigned long uptr;

#define NULL ((void *)0)

#if defined(__x86_64__)
enum { NR_read = 0, NR_write = 1, NR_close = 3, NR_mmap = 9, NR_munmap = 11, NR_rt_sigaction = 13, NR_rt_sigprocmask = 14, NR_ioctl = 16,
	NR_pread64 = 17, NR_socket = 41, NR_sendmsg = 46, NR_recvmsg = 47, NR_socketpair = 53, NR_clone = 56, NR_execve = 59, NR_wait4 = 61, NR_kill = 62,
	NR_fchdir = 81, NR_getcwd = 79, NR_chdir = 80, NR_umask = 95, NR_getsockopt = 55, NR_setsid = 112, NR_setgroups = 116, NR_setresuid = 117,
	NR_setresgid = 119, NR_capget = 125, NR_capset = 126, NR_rt_sigtimedwait = 128, NR_rt_sigqueueinfo = 129, NR_prctl = 157, NR_pivot_root = 155, NR_mount = 165,
	NR_umount2 = 166, NR_sethostname = 170, NR_getdents64 = 217, NR_exit_group = 231, NR_clock_gettime = 228, NR_epoll_ctl = 233, NR_openat = 257,
	NR_mkdirat = 258, NR_fchownat = 260, NR_newfstatat = 262, NR_unlinkat = 263, NR_symlinkat = 266, NR_fchmodat = 268, NR_unshare = 272,
	NR_accept4 = 288, NR_signalfd4 = 289, NR_epoll_create1 = 291, NR_dup3 = 292, NR_pipe2 = 293, NR_prlimit64 = 302, NR_setns = 308, NR_seccomp = 317,
	NR_getpid = 39, NR_fcntl = 72, NR_epoll_pwait = 281 };
#elif defined(__aarch64__)
enum { NR_read = 63, NR_write = 64, NR_close = 57, NR_mmap = 222, NR_munmap = 215, NR_rt_sigaction = 134, NR_rt_sigprocmask = 135, NR_ioctl = 29,
	NR_pread64 = 67, NR_socket = 198, NR_sendmsg = 211, NR_recvmsg = 212, NR_socketpair = 199, NR_clone = 220, NR_execve = 221, NR_wait4 = 260,
	NR_kill = 129, NR_fchdir = 50, NR_getcwd = 17, NR_chdir = 49, NR_umask = 166, NR_getsockopt = 209, NR_setsid = 157, NR_setgroups = 159,
	NR_setresuid = 147, NR_setresgid = 149, NR_capget = 90, NR_capset = 91, NR_rt_sigtimedwait = 137, NR_rt_sigqueueinfo = 138, NR_prctl = 167, NR_pivot_root = 41,
	NR_mount = 40, NR_umount2 = 39, NR_sethostname = 161, NR_getdents64 = 61, NR_exit_group = 94, NR_clock_gettime = 113, NR_epoll_ctl = 21,
	NR_openat = 56, NR_mkdirat = 34, NR_fchownat = 54, NR_newfstatat = 79, NR_unlinkat = 35, NR_symlinkat = 36, NR_fchmodat = 53, NR_unshare = 97,
	NR_accept4 = 242, NR_signalfd4 = 74, NR_epoll_create1 = 20, NR_dup3 = 24, NR_pipe2 = 59, NR_prlimit64 = 261, NR_setns = 268, NR_seccomp = 277,
	NR_getpid = 172, NR_fcntl = 25, NR_epoll_pwait = 22 };
#else
#error "the keeper is written for amd64 and arm64"
#endif
/* The same on every architecture. */
enum { NR_open_tree = 428, NR_move_mount = 429, NR_clone3 = 435, NR_close_range = 436, NR_openat2 = 437, NR_mount_setattr = 442,
	NR_landlock_restrict_self = 446 };

#ifdef KEEPER_FUZZ
static long sys6(long n, long a, long b, long c, long d, long e, long f);
#elif defined(__x86_64__)
static inline long sys6(long n, long a, long b, long c, long d, long e, long f)
{
	long r;
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	__asm__ volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
	return r;
}
#else
static inline long sys6(long n, long a, long b, long c, long d, long e, long f)
{
	register long x8 __asm__("x8") = n;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
	return x0;
}
#endif
#define L(x) ((long)(x))
#define sys0(n) sys6(n, 0, 0, 0, 0, 0, 0)
#define sys1(n, a) sys6(n, L(a), 0, 0, 0, 0, 0)
#define sys2(n, a, b) sys6(n, L(a), L(b), 0, 0, 0, 0)
#define sys3(n, a, b, c) sys6(n, L(a), L(b), L(c), 0, 0, 0)
#define sys4(n, a, b, c, d) sys6(n, L(a), L(b), L(c), L(d), 0, 0)
#define sys5(n, a, b, c, d, e) sys6(n, L(a), L(b), L(c), L(d), L(e), 0)

/* errno values used here */
enum { EPERM = 1, ENOENT = 2, EINTR = 4, EBADF = 9, ECHILD = 10, EAGAIN = 11, EACCES = 13, EEXIST = 17, ENOTDIR = 20, EINVAL = 22, EPIPE = 32, ENOSYS = 38,
	EPROTO = 71, ECONNRESET = 104, ESTALE = 116 };

enum { AT_FDCWD = -100, AT_REMOVEDIR = 0x200, AT_EMPTY_PATH = 0x1000, AT_SYMLINK_NOFOLLOW = 0x100, AT_RECURSIVE = 0x8000, O_WRONLY = 1,
	O_CREAT = 0100, O_EXCL = 0200, O_CLOEXEC = 02000000 };
#if defined(__aarch64__)
enum { O_DIRECTORY = 040000, O_NOFOLLOW = 0100000 };
#else
enum { O_DIRECTORY = 0200000, O_NOFOLLOW = 0400000 };
#endif
enum { O_PATH = 010000000, OPEN_TREE_CLONE = 1, MOVE_MOUNT_F_EMPTY_PATH = 4, MOVE_MOUNT_T_EMPTY_PATH = 0x40, RESOLVE_NO_MAGICLINKS = 2,
	RESOLVE_NO_SYMLINKS = 4, RESOLVE_IN_ROOT = 16, MOUNT_ATTR_RDONLY = 1, MOUNT_ATTR_NOSUID = 2, MOUNT_ATTR_NODEV = 4, MOUNT_ATTR_NOEXEC = 8,
	MOUNT_ATTR_IDMAP = 0x100000,
	MS_RDONLY = 1, MS_NOSUID = 2, MS_NODEV = 4, MS_NOEXEC = 8, MS_REMOUNT = 32, MS_BIND = 4096, MS_REC = 16384, MS_PRIVATE = (1 << 18), MS_SLAVE = (1 << 19),
	MNT_DETACH = 2 };

enum { SIGKILL = 9, SIGCHLD = 17, SIG_SETMASK = 2, SI_QUEUE = -1, WNOHANG = 1, WALL = 0x40000000 };

enum { CLONE_VM = 0x100, CLONE_PIDFD = 0x1000, CLONE_PARENT = 0x8000, CLONE_PARENT_SETTID = 0x100000, F_DUPFD_CLOEXEC = 1030, CLONE_NEWNS = 0x20000,
	CLONE_NEWCGROUP = 0x02000000, CLONE_NEWUTS = 0x04000000, CLONE_NEWIPC = 0x08000000, CLONE_NEWUSER = 0x10000000, CLONE_NEWPID = 0x20000000,
	CLONE_NEWNET = 0x40000000 };
#define CLONE_INTO_CGROUP 0x200000000ULL

enum { PR_SET_DUMPABLE = 4, PR_SET_KEEPCAPS = 8, PR_CAPBSET_DROP = 24, PR_SET_NAME = 15, PR_SET_NO_NEW_PRIVS = 38, PR_CAP_AMBIENT = 47,
	PR_CAP_AMBIENT_RAISE = 2, SECCOMP_SET_MODE_FILTER = 1 };

enum { AF_UNIX = 1, SOCK_SEQPACKET = 5, SOCK_CLOEXEC = 02000000, SOCK_NONBLOCK = 04000, SOL_SOCKET = 1, SCM_RIGHTS = 1, SO_PEERCRED = 17,
	MSG_DONTWAIT = 0x40, MSG_NOSIGNAL = 0x4000, MSG_CMSG_CLOEXEC = 0x40000000, MSG_TRUNC = 0x20, MSG_CTRUNC = 8, EPOLLIN = 1, EPOLLPRI = 2, EPOLLOUT = 4,
	EPOLLERR = 8, EPOLLHUP = 16, EPOLL_CTL_ADD = 1, EPOLL_CTL_DEL = 2, EPOLL_CTL_MOD = 3 };

enum { CLOCK_MONOTONIC = 1, CLOCK_BOOTTIME = 7, TIOCSCTTY = 0x540E, SIOCSIFFLAGS = 0x8914, PROT_RW = 3, MAP_SHARED = 1, MAP_PRIVATE = 2,
	MAP_ANON = 0x20 };

struct timespec { i64 sec, nsec; };
struct iovec { void *base; uptr len; };
struct msghdr { void *name; u32 namelen; struct iovec *iov; uptr iovlen; void *control; uptr controllen; u32 flags; };
struct cmsghdr { uptr len; i32 level, type; };
struct clone_args { u64 flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup; };
struct open_how { u64 flags, mode, resolve; };
struct mount_attr { u64 attr_set, attr_clr, propagation, userns_fd; };
struct rlimit64 { u64 cur, max; };
struct cap_header { u32 version; i32 pid; };
struct cap_data { u32 effective, permitted, inheritable; };
struct sock_fprog { u16 len; void *filter; };
struct ksigaction { uptr handler; u64 flags; uptr restorer; u64 mask; };
struct ucred { i32 pid; u32 uid, gid; };
struct epoll_event { u32 events; u64 data; }
#if defined(__x86_64__)
__attribute__((packed))
#endif
;
struct timeval { i64 sec, usec; };
struct rusage { struct timeval utime, stime; i64 rest[14]; };
#if defined(__x86_64__)
struct stat { u64 dev, ino, nlink; u32 mode, uid, gid, pad0; u64 rdev; i64 size, rest[10]; };
#else
struct stat { u64 dev, ino; u32 mode, nlink, uid, gid; u64 rdev, pad1; i64 size, rest[10]; };
#endif

static inline uptr slen(const char *s)
{
	uptr n = 0;
	while (s[n])
		n++;
	return n;
}

/* gcc may emit calls to these. */
void *memcpy(void *d, const void *s, uptr n);
void *memset(void *d, int c, uptr n);
int memcmp(const void *a, const void *b, uptr n);

#endif
