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
#define NR_read 0
#define NR_write 1
#define NR_close 3
#define NR_mmap 9
#define NR_munmap 11
#define NR_rt_sigaction 13
#define NR_rt_sigprocmask 14
#define NR_ioctl 16
#define NR_pread64 17
#define NR_pwrite64 18
#define NR_socket 41
#define NR_sendmsg 46
#define NR_recvmsg 47
#define NR_socketpair 53
#define NR_clone 56
#define NR_execve 59
#define NR_exit 60
#define NR_wait4 61
#define NR_kill 62
#define NR_fchdir 81
#define NR_getcwd 79
#define NR_chdir 80
#define NR_umask 95
#define NR_getsockopt 55
#define NR_setsid 112
#define NR_setgroups 116
#define NR_setresuid 117
#define NR_setresgid 119
#define NR_capset 126
#define NR_rt_sigtimedwait 128
#define NR_rt_sigqueueinfo 129
#define NR_prctl 157
#define NR_pivot_root 155
#define NR_mount 165
#define NR_umount2 166
#define NR_sethostname 170
#define NR_getdents64 217
#define NR_exit_group 231
#define NR_clock_gettime 228
#define NR_epoll_ctl 233
#define NR_openat 257
#define NR_mkdirat 258
#define NR_fchownat 260
#define NR_newfstatat 262
#define NR_unlinkat 263
#define NR_symlinkat 266
#define NR_fchmodat 268
#define NR_unshare 272
#define NR_accept4 288
#define NR_signalfd4 289
#define NR_epoll_create1 291
#define NR_dup3 292
#define NR_pipe2 293
#define NR_prlimit64 302
#define NR_setns 308
#define NR_seccomp 317
#define NR_getpid 39
#define NR_fcntl 72
#define NR_epoll_pwait 281
#elif defined(__aarch64__)
#define NR_read 63
#define NR_write 64
#define NR_close 57
#define NR_mmap 222
#define NR_munmap 215
#define NR_rt_sigaction 134
#define NR_rt_sigprocmask 135
#define NR_ioctl 29
#define NR_pread64 67
#define NR_pwrite64 68
#define NR_socket 198
#define NR_sendmsg 211
#define NR_recvmsg 212
#define NR_socketpair 199
#define NR_clone 220
#define NR_execve 221
#define NR_exit 93
#define NR_wait4 260
#define NR_kill 129
#define NR_fchdir 50
#define NR_getcwd 17
#define NR_chdir 49
#define NR_umask 166
#define NR_getsockopt 209
#define NR_setsid 157
#define NR_setgroups 159
#define NR_setresuid 147
#define NR_setresgid 149
#define NR_capset 91
#define NR_rt_sigtimedwait 137
#define NR_rt_sigqueueinfo 138
#define NR_prctl 167
#define NR_pivot_root 41
#define NR_mount 40
#define NR_umount2 39
#define NR_sethostname 161
#define NR_getdents64 61
#define NR_exit_group 94
#define NR_clock_gettime 113
#define NR_epoll_ctl 21
#define NR_openat 56
#define NR_mkdirat 34
#define NR_fchownat 54
#define NR_newfstatat 79
#define NR_unlinkat 35
#define NR_symlinkat 36
#define NR_fchmodat 53
#define NR_unshare 97
#define NR_accept4 242
#define NR_signalfd4 74
#define NR_epoll_create1 20
#define NR_dup3 24
#define NR_pipe2 59
#define NR_prlimit64 261
#define NR_setns 268
#define NR_seccomp 277
#define NR_getpid 172
#define NR_fcntl 25
#define NR_epoll_pwait 22
#else
#error "the keeper is written for amd64 and arm64"
#endif
/* The same on every architecture. */
#define NR_open_tree 428
#define NR_move_mount 429
#define NR_clone3 435
#define NR_close_range 436
#define NR_openat2 437
#define NR_mount_setattr 442
#define NR_landlock_restrict_self 446

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
#define EPERM 1
#define ENOENT 2
#define EINTR 4
#define EBADF 9
#define ECHILD 10
#define EAGAIN 11
#define EACCES 13
#define EEXIST 17
#define ENOTDIR 20
#define EINVAL 22
#define EPIPE 32
#define EPROTO 71
#define ECONNRESET 104
#define ESTALE 116

#define AT_FDCWD (-100)
#define AT_REMOVEDIR 0x200
#define AT_EMPTY_PATH 0x1000
#define AT_SYMLINK_NOFOLLOW 0x100
#define AT_RECURSIVE 0x8000
#define O_WRONLY 1
#define O_RDWR 2
#define O_CREAT 0100
#define O_EXCL 0200
#define O_CLOEXEC 02000000
#if defined(__aarch64__)
#define O_DIRECTORY 040000
#define O_NOFOLLOW 0100000
#else
#define O_DIRECTORY 0200000
#define O_NOFOLLOW 0400000
#endif
#define O_PATH 010000000
#define OPEN_TREE_CLONE 1
#define MOVE_MOUNT_F_EMPTY_PATH 4
#define MOVE_MOUNT_T_EMPTY_PATH 0x40
#define RESOLVE_NO_XDEV 1
#define RESOLVE_NO_MAGICLINKS 2
#define RESOLVE_NO_SYMLINKS 4
#define RESOLVE_BENEATH 8
#define RESOLVE_IN_ROOT 16
#define MOUNT_ATTR_RDONLY 1
#define MOUNT_ATTR_NOSUID 2
#define MOUNT_ATTR_NODEV 4
#define MOUNT_ATTR_NOEXEC 8
#define MOUNT_ATTR_NOSYMFOLLOW 0x200000
#define MOUNT_ATTR_IDMAP 0x100000
#define MS_RDONLY 1
#define MS_NOSUID 2
#define MS_NODEV 4
#define MS_NOEXEC 8
#define MS_BIND 4096
#define MS_REC 16384
#define MS_PRIVATE (1 << 18)
#define MS_SLAVE (1 << 19)
#define MNT_DETACH 2

#define SIGKILL 9
#define SIGCHLD 17
#define SIG_BLOCK 0
#define SIG_SETMASK 2
#define SI_QUEUE (-1)
#define WNOHANG 1
#define WALL 0x40000000

#define CLONE_VM 0x100
#define CLONE_PIDFD 0x1000
#define CLONE_PARENT 0x8000
#define CLONE_PARENT_SETTID 0x100000
#define F_DUPFD_CLOEXEC 1030
#define CLONE_NEWNS 0x20000
#define CLONE_NEWCGROUP 0x02000000
#define CLONE_NEWUTS 0x04000000
#define CLONE_NEWIPC 0x08000000
#define CLONE_NEWUSER 0x10000000
#define CLONE_NEWPID 0x20000000
#define CLONE_NEWNET 0x40000000
#define CLONE_INTO_CGROUP 0x200000000ULL

#define PR_SET_DUMPABLE 4
#define PR_SET_KEEPCAPS 8
#define PR_CAPBSET_DROP 24
#define PR_SET_NAME 15
#define PR_SET_SECUREBITS 28
#define PR_SET_NO_NEW_PRIVS 38
#define PR_CAP_AMBIENT 47
#define PR_CAP_AMBIENT_RAISE 2
#define SECCOMP_SET_MODE_FILTER 1

#define AF_UNIX 1
#define SOCK_SEQPACKET 5
#define SOCK_CLOEXEC 02000000
#define SOCK_NONBLOCK 04000
#define SOL_SOCKET 1
#define SCM_RIGHTS 1
#define SO_PEERCRED 17
#define MSG_DONTWAIT 0x40
#define MSG_NOSIGNAL 0x4000
#define MSG_CMSG_CLOEXEC 0x40000000
#define MSG_TRUNC 0x20
#define MSG_CTRUNC 8
#define EPOLLIN 1
#define EPOLLPRI 2
#define EPOLLOUT 4
#define EPOLLERR 8
#define EPOLLHUP 16
#define EPOLL_CTL_ADD 1
#define EPOLL_CTL_DEL 2
#define EPOLL_CTL_MOD 3

#define CLOCK_MONOTONIC 1
#define CLOCK_BOOTTIME 7
#define TIOCSCTTY 0x540E
#define SIOCGIFFLAGS 0x8913
#define SIOCSIFFLAGS 0x8914
#define PROT_RW 3
#define MAP_SHARED 1
#define MAP_PRIVATE 2
#define MAP_ANON 0x20

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
