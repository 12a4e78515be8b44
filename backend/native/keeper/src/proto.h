/* The protocol between the supervisor (Go) and the keeper. SOCK_SEQPACKET: one
 * message a packet, descriptors by SCM_RIGHTS in the order given. Both sides
 * check the magic, the version and every length; a malformed message ends the
 * sandbox. backend/native/keeper/proto.go has the same layouts and a test that
 * compares them with this file. Little endian, natural alignment. */
#ifndef KEEPER_PROTO_H
#define KEEPER_PROTO_H
#include "sys.h"

#define MAGIC 0x314b4a42u /* "BJK1" */
#define VERSION 1
#define MAXMSG 131072
#define MAXFDS 32
#define MAXEXEC 1024
#define MAXSETS 256
#define MAXPROCS 8
#define IDLEN 64

struct hdr { u32 magic; u16 version; u16 type; u32 len; u32 seq; };

/* supervisor -> nursery */
#define M_INIT 1     /* struct init_msg */
#define M_TEMPLATE 2 /* struct template_msg, ops */
#define M_SANDBOX 3  /* struct sandbox_msg, strings; fds: control socket, then as flagged */
#define M_FORGET 4   /* struct template_msg without ops: drop the template */
#define M_TOPS 5     /* names, NUL terminated; fds: their parents; removed when the supervisor is gone */
/* supervisor -> keeper */
#define M_CONFINE 16 /* struct confine_msg, filter; fds: [landlock ruleset] */
#define M_SET 17     /* struct set_msg; fds: as flagged */
#define M_EXEC 18    /* struct exec_msg, rlimits, strings; fds: stdin, stdout, stderr, as flagged */
#define M_KILL 19    /* struct task_msg */
#define M_SIGNAL 20  /* struct task_msg */
#define M_RELEASE 21 /* struct task_msg: the end of a kept execution was taken */
#define M_EXPIRE 22  /* struct expire_msg */
#define M_HELLO 23   /* hdr: asks for M_STATE and a M_TASK for each execution */
#define M_SOCKET 24  /* struct socket_msg: a socket made in the sandbox's net namespace */
#define M_END 25     /* hdr: end the sandbox; answered by M_BYE */
/* keeper -> supervisor */
#define M_OK 32      /* struct ok_msg */
#define M_FAIL 33    /* struct fail_msg */
#define M_READY 34   /* struct ready_msg; fds: pidfd of PID 1, root directory */
#define M_OOM 35     /* struct task_msg: a memory limit above the execution was hit (v1) */
#define M_EXITED 36  /* struct exited_msg */
#define M_STATE 37   /* struct ready_msg + counts; fds as M_READY */
#define M_TASK 38    /* struct exited_msg; fds: kept ends as flagged */
#define M_BYE 39     /* hdr */
#define M_FD 40      /* struct ok_msg; fds: the socket */

#define INIT_ROOTLESS 1
struct init_msg { struct hdr h; u32 flags, uid, gid, inner; };

struct template_msg { struct hdr h; u32 id, nops; };
#define OP_DIR 1  /* a: path */
#define OP_FILE 2 /* a: path, b: content */
#define OP_LINK 3 /* a: path, b: target */
#define OP_BIND 4 /* a: path, b: source; dev and ino of the source must match unless 0 */
struct op { u16 kind, mode; u32 attr, alen, blen; u64 dev, ino; u32 flags, idmap; }; /* idmap: 0, or 1 + index of a user namespace among the last descriptors */
#define OP_OPTIONAL 1 /* a missing source is not an error */
#define OP_NONREC 2   /* do not bind what is mounted below the source */

#define SB_PERSIST 1   /* outlives its supervisor; a listening socket follows the control socket */
#define SB_CGROUP 2    /* a directory to clone PID 1 into follows */
#define SB_PROCS_SHIFT 8 /* and this many cgroup.procs files */
#define SB_PROCS_MASK 0xf00
#define SB_RWFD 4      /* the writable file system is a mount that follows; then user namespaces for id-mapped mounts */
#define SB_HOSTPROC 8  /* no pid namespace of its own: bind the host's /proc */
#define SB_NODEVPTS 16
#define SB_LO 32       /* bring the loopback interface up */
#define SB_ROOTLESS 64
#define SB_OWNPIDS 128 /* executions get pid and mount namespaces of their own */
#define SB_OWNIPC 0x1000 /* and ipc namespaces */
struct sandbox_msg {
	struct hdr h;
	u32 flags, template, nsflags, nmounts;
	u64 expire;                  /* CLOCK_BOOTTIME ns, 0 = never */
	u32 uid, gid, initid, owner; /* inside ids of the user and of PID 1; uid that may connect */
	u32 nmasks, nrwdirs;
	u32 maplen, nsowner;         /* bytes of uid/gid map text; host uid that makes the user namespace */
	/* char map[maplen]; then strings: hostname, tmpfs options, rw mount point;
	 * then nmounts struct op + strings (OP_BIND); nrwdirs op (a: target, b: subdirectory); nmasks op (a: path) */
};

#define LOCK_NNP 1
#define LOCK_CAPS 2
#define LOCK_IDS 4
#define LOCK_GROUPS 8
#define LOCK_LANDLOCK 16
#define LOCK_SECCOMP 32
#define LOCK_KEEPCAPS 64 /* the caps layer is off: keep every capability of the user namespace */
struct confine_msg { struct hdr h; u32 lock, filterlen; }; /* then the filter, and limits for all executions: struct rlim[] */

#define SET_CLONE 1
#define SET_KILL 2  /* cgroup.kill and cgroup.events */
#define SET_OOM 4
#define SET_ONCE 8  /* the leaf is replaced after each execution: nothing is made ahead of the next */
struct set_msg { struct hdr h; u32 index, flags, nprocs, pad; };

#define EX_TTY 1
#define EX_FRESH 2   /* new pid, mount and ipc namespaces */
#define EX_EXTRA 16  /* shift: so many further descriptors after the streams, 3 and up inside */
#define EX_KEEP 4    /* kept: three more fds are the supervisor's ends; released by M_RELEASE */
#define EX_BLOB 8    /* the strings are in a memfd, the first descriptor */
#define EX_SET 16
#define EX_OWNPID 32 /* a pid namespace of its own as the kill domain */
struct exec_msg {
	struct hdr h;
	u64 id, timeout; /* ns from the clone, 0 = none */
	u32 flags, set, uid, gid;
	u32 nlimits, npaths, nargs, nenv, bloblen, umask;
	char name[IDLEN];
	/* struct rlim[nlimits]; blob: dir, paths, args, env, each NUL terminated */
};
struct rlim { u32 which, pad; u64 cur, max; };

struct task_msg { struct hdr h; u64 id; i32 sig, tree; };
struct expire_msg { struct hdr h; u64 when; };
struct socket_msg { struct hdr h; i32 domain, type, protocol, pad; };
struct ok_msg { struct hdr h; u32 value, pad; };
struct fail_msg { struct hdr h; i32 step, err; u64 id; u32 arg, pad; };
struct ready_msg { struct hdr h; i32 keeper, init; u64 ns[8]; u32 ntasks, pad; }; /* ns: user mnt pid net ipc uts cgroup inode numbers */
#define EXF_TIMEOUT 1
#define EXF_BURNED 2  /* cgroup.kill was written: the leaf can not be cloned into again */
#define EXF_OOM 4     /* the OOM event fired */
#define EXF_STUCK 8   /* members were left after the kill */
#define EXF_RUNNING 16
struct exited_msg {
	struct hdr h;
	u64 id, started, exited, reaped; /* CLOCK_MONOTONIC ns */
	u64 utime, stime, maxrss;        /* main process and what it waited for: us, us, KiB */
	i32 pid, status, step, err;
	u32 flags, set;
	u32 keep, pad; /* bit n: the supervisor's end of stream n follows as a descriptor (M_TASK) */
	char name[IDLEN];
};

/* steps, for M_FAIL and exited_msg.step; names in proto.go */
enum {
	ST_NONE, ST_PROTOCOL, ST_UNSHARE_USER, ST_IDMAP, ST_UNSHARE_MOUNT, ST_PROPAGATION, ST_BASE,
	ST_TEMPLATE, ST_OP_DIR, ST_OP_FILE, ST_OP_LINK, ST_OP_BIND, ST_CLONE_TREE, ST_MOUNT_SOURCE, ST_MOUNT_CHANGED, ST_FORK,
	ST_CLONE_INIT, ST_INIT_CGROUP, ST_INIT_IDS, ST_CGROUPNS, ST_ATTACH_ROOT, ST_PROC, ST_WRITABLE, ST_RWDIR, ST_DEVPTS, ST_MOUNT_TARGET,
	ST_MASK, ST_HOSTNAME, ST_LOOPBACK, ST_PIVOT, ST_ROOTFD, ST_INIT_LOCK, ST_INIT_DIED, ST_ENTER, ST_NO_SLOT,
	ST_CLONE, ST_STDIO, ST_SESSION, ST_TTY, ST_CGROUP, ST_FRESH_PROC, ST_FRESH_FORK, ST_SETNS, ST_RLIMIT, ST_CAPBSET, ST_GROUPS, ST_IDS, ST_CAPS, ST_NNP,
	ST_LANDLOCK, ST_DIR, ST_CLOSE, ST_SECCOMP, ST_EXEC, ST_SOCKET, ST_EPOLL, ST_IPC, ST_LAST
};

#endif
