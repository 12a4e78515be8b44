/* The keeper: parent of PID 1 and of every execution of one sandbox.
 *
 * One program, three roles, told apart by who forked whom:
 *   nursery  started by the supervisor; owns a private mount namespace with the
 *            templates; forks a keeper for each sandbox
 *   keeper   lives outside the sandbox's pid namespace; forks PID 1 and every
 *            execution; holds pidfds, kept pipes, cgroup descriptors, deadlines
 *   init     PID 1 of the sandbox: mounts, locks itself down, waits for the end
 *
 * It decides nothing: the supervisor compiled the plan, this carries it out and
 * reports the step and errno of whatever failed. It is single-threaded, has no
 * heap and no libc, because start-up is what an execution pays for. A child
 * shares no memory with the keeper but one page of slots in which it leaves the
 * step that failed: fork, not vfork, so that neither the OOM killer (which kills
 * every sharer of an mm) nor a SIGSTOP from a neighbour in the sandbox (which
 * would stop a vfork parent) can reach the keeper through a child. */
#include "proto.h"

struct slot { i32 step, err, status, ended, pid, pair, pad[2]; };
struct set { i32 used, clonefd, killfd, eventsfd, oomfd, nprocs, procs[MAXPROCS], spawner, sock, listfd, own, once, due; };
#define NSFLAGS (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET)
#define OWN (EX_FRESH | EX_OWNPID)
enum { X_FREE, X_RUNNING, X_REAPING, X_DONE, X_TOLD = 0x10000, X_ASKED = 0x20000 }; /* states; in exflags: the end was told, M_TASK is due */
struct exec {
	u64 id, started, exited, reaped, deadline, reapby, utime, stime, maxrss, early; /* early: signals for who is not born yet */
	i32 state, pid, status, flags, exflags, set;
	i32 keep[3];
	char name[IDLEN];
};
struct fds { i32 n, v[MAXFDS]; };

static struct slot *slots; /* MAP_SHARED; [MAXEXEC] is init's, and that of who gets ready for an execution */
static struct exec execs[MAXEXEC];
static i32 nexecs; /* high-water mark */
static struct set sets[MAXSETS + 1]; /* the last is for executions without groups */
static u8 msgbuf[MAXMSG] __attribute__((aligned(16)));
static u8 planbuf[MAXMSG] __attribute__((aligned(16)));
static u8 filter[32768] __attribute__((aligned(8)));
static u32 filterlen, lockflags, helloseq;
static char *ptrs[8192];
static i32 ctl = -1, lstn = -1, epfd = -1, sigfd = -1, initfd = -1, rootfd = -1, landlockfd = -1, syncfd = -1, userns = -1, cgroupns = -1, pidns = -1;
static i32 initpid, ending, wantout, rootless, unreaped, pair, due, begun; /* unreaped: more children may have ended; due: sets are */
static i32 lifefd[2] = {-1, -1}; /* a pipe that ends with the keeper */
static struct sandbox_msg *plan;
static struct ready_msg ready;
static struct fds tops; /* the nursery's: where the supervisor's groups are */
static i32 templatefd[256];
static i32 newroot = -1; /* the nursery's clone of a template for the next keeper */
static u8 attached[256]; /* templates that are mounted below /sys */
static i32 sparenet = -1; /* the nursery's next net namespace */
static i32 served;
static i32 inited, confined, greeted; /* M_INIT and M_CONFINE were carried out; this supervisor said M_HELLO, or made us */

/* ---- small things ---- */

void *memcpy(void *d, const void *s, uptr n)
{
	u8 *a = d;
	const u8 *b = s;
	while (n--)
		*a++ = *b++;
	return d;
}
void *memset(void *d, int c, uptr n)
{
	u8 *a = d;
	while (n--)
		*a++ = (u8)c;
	return d;
}
int memcmp(const void *a, const void *b, uptr n)
{
	const u8 *x = a, *y = b;
	for (; n; n--, x++, y++)
		if (*x != *y)
			return *x - *y;
	return 0;
}
static void die(int code)
{
	for (;;)
		sys1(NR_exit_group, code);
}
static void close_(i32 *fd)
{
	if (*fd >= 0)
		sys1(NR_close, *fd);
	*fd = -1;
}
static u64 now(int clock)
{
	struct timespec t = {0, 0};
	sys2(NR_clock_gettime, clock, &t);
	return (u64)t.sec * 1000000000ULL + (u64)t.nsec;
}
static char *utoa(char *p, u64 v)
{
	char t[24];
	int n = 0;
	do {
		t[n++] = (char)('0' + v % 10);
	} while (v /= 10);
	while (n)
		*p++ = t[--n];
	*p = 0;
	return p;
}
static char *scat(char *p, const char *s)
{
	while (*s)
		*p++ = *s++;
	*p = 0;
	return p;
}
static void sigmask(int how, u64 set)
{
	sys4(NR_rt_sigprocmask, how, &set, NULL, 8);
}
static void sigaction(int sig, uptr handler)
{
	struct ksigaction a = {handler, 0, 0, 0};
	sys4(NR_rt_sigaction, sig, &a, NULL, 8);
}
static long write_file(const char *path, const char *text, uptr len)
{
	long fd = sys4(NR_openat, AT_FDCWD, path, O_WRONLY | O_CLOEXEC, 0), r;
	if (fd < 0)
		return fd;
	r = sys3(NR_write, fd, text, len);
	sys1(NR_close, fd);
	return r < 0 ? r : 0;
}
static long fork_(u64 flags, i32 cgroup, i32 *pidfd)
{
	struct clone_args a;
	memset(&a, 0, sizeof a);
	a.flags = flags;
	a.exit_signal = SIGCHLD;
	if (pidfd) {
		a.flags |= CLONE_PIDFD;
		a.pidfd = (u64)(uptr)pidfd;
	}
	if (cgroup >= 0) {
		a.flags |= CLONE_INTO_CGROUP;
		a.cgroup = (u64)cgroup;
	}
	return sys2(NR_clone3, &a, sizeof a);
}

/* ---- messages ---- */

static long send_(i32 fd, void *msg, u32 len, u16 type, const i32 *fds, u32 nfds)
{
	union { struct cmsghdr c; u8 b[sizeof(struct cmsghdr) + MAXFDS * 4]; } u;
	struct hdr *h = msg;
	struct iovec v = {msg, len};
	struct msghdr m = {NULL, 0, &v, 1, NULL, 0, 0};
	h->magic = MAGIC;
	h->version = VERSION;
	h->type = type;
	h->len = len;
	if (nfds) {
		u.c.len = sizeof u.c + nfds * 4;
		u.c.level = SOL_SOCKET;
		u.c.type = SCM_RIGHTS;
		memcpy(u.b + sizeof u.c, fds, nfds * 4);
		m.control = &u;
		m.controllen = (u.c.len + 7) & ~7UL;
	}
	return sys3(NR_sendmsg, fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
}
static void fail(i32 fd, int step, long err, u64 id, u32 arg)
{
	struct fail_msg f;
	memset(&f, 0, sizeof f);
	f.step = step;
	f.err = (i32)(err < 0 ? -err : err);
	f.id = id;
	f.arg = arg;
	if (send_(fd, &f, sizeof f, M_FAIL, NULL, 0) == -EAGAIN)
		ending = 1; /* a lost answer would leave somebody waiting for ever */
}
/* A supervisor that says what cannot be is none. */
static void refuse(int step, long err, u32 arg)
{
	fail(ctl, step, err, 0, arg);
	ending = 1;
}
static void ok(i32 fd, u32 seq, u32 value)
{
	struct ok_msg o;
	memset(&o, 0, sizeof o);
	o.h.seq = seq;
	o.value = value;
	send_(fd, &o, sizeof o, M_OK, NULL, 0);
}
static void close_all(struct fds *f)
{
	for (i32 i = 0; i < f->n; i++)
		close_(&f->v[i]);
	f->n = 0;
}
/* Takes descriptor i out of a message, so that close_all does not close it. */
static i32 take(struct fds *f, i32 i)
{
	i32 fd = i < f->n ? f->v[i] : -1;
	if (fd >= 0)
		f->v[i] = -1;
	return fd;
}
/* Receives one message: its length, 0 at the end of the stream, or -errno. */
static long recv_(i32 fd, u8 *buf, struct fds *f, u32 flags)
{
	union { struct cmsghdr c; u8 b[sizeof(struct cmsghdr) + MAXFDS * 4]; } u; /* more is MSG_CTRUNC */
	struct iovec v = {buf, MAXMSG};
	struct msghdr m = {NULL, 0, &v, 1, &u, sizeof u, 0};
	struct hdr *h = (struct hdr *)buf;
	long n = sys3(NR_recvmsg, fd, &m, MSG_CMSG_CLOEXEC | flags);
	f->n = 0;
	if (n < 0)
		return n;
	if (m.controllen >= sizeof u.c && u.c.level == SOL_SOCKET && u.c.type == SCM_RIGHTS && u.c.len >= sizeof u.c) {
		f->n = (i32)((u.c.len - sizeof u.c) / 4);
		if (f->n > MAXFDS)
			f->n = MAXFDS;
		memcpy(f->v, u.b + sizeof u.c, (uptr)f->n * 4);
	}
	if (n == 0) {
		close_all(f);
		return 0;
	}
	if ((m.flags & (MSG_TRUNC | MSG_CTRUNC)) || n < (long)sizeof *h || h->magic != MAGIC || h->version != VERSION || h->len != (u32)n) {
		close_all(f);
		return -EPROTO;
	}
	return n;
}
/* The next NUL-terminated string of a region, or NULL when it does not end in it. */
static char *next_string(char **p, char *end)
{
	char *s = *p, *q = s;
	while (q < end && *q)
		q++;
	if (q >= end)
		return NULL;
	*p = q + 1;
	return s;
}
/* Reads one op and its two byte strings; a must be NUL terminated. NULL when malformed. */
static struct op *next_op(char **p, char *end, char **a, char **b)
{
	struct op *o = (struct op *)(((uptr)*p + 7) & ~7UL);
	if ((char *)(o + 1) > end || o->alen == 0 || o->alen > 4096 || o->blen > 65536)
		return NULL;
	*a = (char *)(o + 1);
	*b = *a + o->alen;
	if (*b + o->blen > end || (*a)[o->alen - 1] || (o->blen && o->kind != OP_FILE && (*b)[o->blen - 1]) ||
	    (!o->blen && (o->kind == OP_LINK || o->kind == OP_BIND)))
		return NULL;
	*p = *b + o->blen;
	return o;
}

/* ---- nursery ---- */

static long open_source(const char *path, struct op *o, i32 *fd)
{
	struct open_how how = {O_PATH | O_CLOEXEC, 0, RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS};
	struct stat st;
	long r = sys4(NR_openat2, AT_FDCWD, path, &how, sizeof how);
	if (r < 0)
		return r;
	*fd = (i32)r;
	/* The supervisor judged an inode, not a name: a source that was swapped since is refused. */
	r = sys4(NR_newfstatat, *fd, "", &st, AT_EMPTY_PATH);
	if (r < 0 || (o->ino && (st.dev != o->dev || st.ino != o->ino))) {
		close_(fd);
		return r < 0 ? r : -ESTALE;
	}
	return 0;
}
/* Clones the mount of an opened source with its attributes narrowed. */
static long clone_mount(i32 src, struct op *o, i32 userns_, i32 *fd)
{
	u32 rec = o->flags & OP_NONREC ? 0 : AT_RECURSIVE;
	struct mount_attr at = {o->attr, 0, 0, 0};
	long r = sys3(NR_open_tree, src, "", OPEN_TREE_CLONE | O_CLOEXEC | AT_EMPTY_PATH | rec);
	if (r < 0)
		return r;
	*fd = (i32)r;
	at.propagation = MS_PRIVATE;
	if (userns_ >= 0) {
		at.attr_set |= MOUNT_ATTR_IDMAP;
		at.userns_fd = (u64)userns_;
	}
	r = sys5(NR_mount_setattr, *fd, "", AT_EMPTY_PATH | rec, &at, sizeof at);
	if (r < 0)
		close_(fd);
	return r;
}
static long open_beneath(i32 dir, const char *path)
{
	struct open_how how = {O_PATH | O_CLOEXEC, 0, RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS};
	return sys4(NR_openat2, dir, path, &how, sizeof how);
}
static long bind_op(i32 dir, struct op *o, const char *target, const char *source, int *step)
{
	i32 src = -1, mnt = -1;
	long r = open_source(source, o, &src), t;
	*step = r == -ESTALE ? ST_MOUNT_CHANGED : ST_MOUNT_SOURCE;
	if (r < 0)
		return (r == -ENOENT && (o->flags & OP_OPTIONAL)) ? 0 : r;
	*step = ST_OP_BIND;
	r = clone_mount(src, o, -1, &mnt);
	close_(&src);
	if (r < 0)
		return r;
	t = open_beneath(dir, target);
	r = t < 0 ? t : sys5(NR_move_mount, mnt, "", t, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH);
	if (t >= 0)
		sys1(NR_close, t);
	close_(&mnt);
	return r;
}
static long template_op(i32 dir, struct op *o, char *a, char *b, int *step)
{
	long r;
	if (a[0] == '/') /* would leave the template: *at calls forget the descriptor */
		o->kind = 0;
	switch (o->kind) {
	case OP_DIR:
		*step = ST_OP_DIR;
		r = sys3(NR_mkdirat, dir, a, o->mode); /* the umask is 0 */
		return r == -EEXIST ? 0 : r;
	case OP_FILE:
		*step = ST_OP_FILE;
		r = sys4(NR_openat, dir, a, O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, o->mode);
		if (r < 0)
			return r;
		if (o->blen) {
			long w = sys3(NR_write, r, b, o->blen);
			sys1(NR_close, r);
			return w == (long)o->blen ? 0 : -EPROTO;
		}
		return sys1(NR_close, r);
	case OP_LINK:
		*step = ST_OP_LINK;
		return sys3(NR_symlinkat, b, dir, a);
	case OP_BIND:
		return bind_op(dir, o, a, b, step);
	}
	*step = ST_PROTOCOL;
	return -EINVAL;
}
static char *template_path(char *p, u32 id)
{
	return utoa(scat(p, "/sys/t"), id);
}
static void forget(u32 id)
{
	char path[32];
	if (id >= 256 || templatefd[id] < 0)
		return;
	close_(&templatefd[id]);
	template_path(path, id);
	sys2(NR_umount2, path, MNT_DETACH);
	sys3(NR_unlinkat, AT_FDCWD, path, AT_REMOVEDIR);
}
/* Kept out of the tree, every new mount namespace is spared a copy of a template. A
 * detached mount can be cloned since Linux 6.15; before, it stays attached. */
static void detach_templates(void)
{
	for (u32 id = 0; id < 256; id++) {
		i32 whole;
		long r;
		if (!attached[id] || templatefd[id] < 0)
			continue;
		attached[id] = 0;
		r = sys3(NR_open_tree, templatefd[id], "", OPEN_TREE_CLONE | O_CLOEXEC | AT_EMPTY_PATH | AT_RECURSIVE);
		if (r < 0)
			continue;
		whole = (i32)r;
		r = sys3(NR_open_tree, whole, "", OPEN_TREE_CLONE | O_CLOEXEC | AT_EMPTY_PATH | AT_RECURSIVE);
		if (r >= 0) {
			sys1(NR_close, r);
			forget(id);
			templatefd[id] = whole;
		} else
			close_(&whole);
	}
}
static void do_template(struct template_msg *m, long n)
{
	char path[32], *p = (char *)(m + 1), *end = (char *)m + n, *a, *b;
	int step = ST_TEMPLATE;
	long r;
	if (n < (long)sizeof *m || !inited || m->id >= 256 || templatefd[m->id] >= 0) {
		fail(3, ST_PROTOCOL, EPROTO, 0, 0);
		return;
	}
	template_path(path, m->id);
	r = sys3(NR_mkdirat, AT_FDCWD, path, 0755);
	if (r >= 0)
		r = sys5(NR_mount, "belljar", path, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=4m,nr_inodes=4096");
	if (r >= 0)
		r = sys4(NR_openat, AT_FDCWD, path, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
	if (r < 0) {
		sys3(NR_unlinkat, AT_FDCWD, path, AT_REMOVEDIR);
		fail(3, step, r, 0, 0);
		return;
	}
	templatefd[m->id] = (i32)r;
	for (u32 i = 0; i < m->nops; i++) {
		struct op *o = next_op(&p, end, &a, &b);
		r = o ? template_op(templatefd[m->id], o, a, b, &step) : -EPROTO;
		if (r < 0) {
			forget(m->id);
			fail(3, o ? step : ST_PROTOCOL, r, 0, i);
			return;
		}
	}
	attached[m->id] = 1;
	ok(3, m->h.seq, m->id);
}
/* As an ordinary user the nursery owns a user namespace in which it has the
 * capabilities that mounting needs; one id is mapped, its own. */
static void do_init(struct init_msg *m, long n)
{
	char b[64];
	long r = 0, cg;
	int step = ST_PROTOCOL;
	if (n != (long)sizeof *m || inited)
		goto bad;
	rootless = !!(m->flags & INIT_ROOTLESS);
	if (rootless) {
		step = ST_UNSHARE_USER;
		if ((r = sys1(NR_unshare, CLONE_NEWUSER)) < 0)
			goto bad;
		step = ST_IDMAP;
		/* The unshare left this process undumpable owner root of /proc/self; dumpable for three writes. */
		sys2(NR_prctl, PR_SET_DUMPABLE, 1);
		if ((r = write_file("/proc/self/setgroups", "deny", 4)) < 0 && r != -ENOENT)
			goto bad;
		for (i32 i = 0; i < 2; i++) {
			scat(utoa(scat(utoa(b, m->inner), " "), i ? m->gid : m->uid), " 1");
			if ((r = write_file(i ? "/proc/self/gid_map" : "/proc/self/uid_map", b, slen(b))) < 0)
				goto bad;
		}
		sys2(NR_prctl, PR_SET_DUMPABLE, 0);
	}
	step = ST_UNSHARE_MOUNT;
	if ((r = sys1(NR_unshare, CLONE_NEWNS)) < 0)
		goto bad;
	step = ST_PROPAGATION;
	if ((r = sys5(NR_mount, NULL, "/", NULL, MS_REC | MS_SLAVE, NULL)) < 0)
		goto bad;
	step = ST_BASE;
	/* The base covers /sys; the control groups stay reachable at /sys/c for binds. */
	cg = sys3(NR_open_tree, AT_FDCWD, "/sys/fs/cgroup", OPEN_TREE_CLONE | O_CLOEXEC | AT_RECURSIVE);
	r = sys5(NR_mount, "belljar", "/sys", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m");
	if (r >= 0 && cg >= 0) {
		sys3(NR_mkdirat, AT_FDCWD, "/sys/c", 0755);
		r = sys5(NR_move_mount, cg, "", AT_FDCWD, "/sys/c", MOVE_MOUNT_F_EMPTY_PATH);
	}
	if (cg >= 0)
		sys1(NR_close, cg);
	if (r < 0)
		goto bad;
	if ((r = sys3(NR_mkdirat, AT_FDCWD, "/sys/n", 0755)) < 0)
		goto bad;
	inited = 1;
	ok(3, m->h.seq, (u32)sys0(NR_getpid));
	return;
bad:
	fail(3, step, r, 0, 0);
}

/* ---- init: PID 1 of the sandbox ---- */

static void init_fail(int step, long err)
{
	slots[MAXEXEC].step = step;
	slots[MAXEXEC].err = (i32)(err < 0 ? -err : err);
	die(1);
}
#define TRY(step, call)                        \
	do {                                   \
		long r_ = (call);              \
		if (r_ < 0)                    \
			init_fail((step), r_); \
	} while (0)

static long set_caps(u32 low)
{
	struct cap_header h = {0x20080522, 0};
	struct cap_data d[2] = {{low, low, 0}, {0, 0, 0}};
	return sys2(NR_capset, &h, d);
}
static long attach_cgroups(const i32 *procs, i32 n)
{
	for (i32 i = 0; i < n; i++) {
		long r = sys3(NR_write, procs[i], "0", 1);
		if (r < 0)
			return r;
	}
	return 0;
}
/* Covers what /proc shows of the host. Directories are covered by the template's
 * empty one, files by its null device; what this kernel does not have is skipped. */
static long mask_proc(char *ops, char *end, u32 n)
{
	for (u32 i = 0; i < n; i++) {
		char *a, *b;
		struct op *o = next_op(&ops, end, &a, &b);
		const char *cover = o && o->mode ? "var/empty" : "dev/null";
		long r = o ? sys5(NR_mount, cover, a, NULL, MS_BIND, NULL) : -EPROTO;
		if (r < 0 && r != -ENOENT)
			return r;
	}
	return 0;
}
static long loopback_up(void)
{
	struct { char name[16]; short flags; char pad[22]; } r;
	long fd = sys3(NR_socket, 2, 2 | SOCK_CLOEXEC, 0), e;
	if (fd < 0)
		return fd;
	memset(&r, 0, sizeof r);
	r.name[0] = 'l';
	r.name[1] = 'o';
	r.flags = 1; /* IFF_UP */
	e = sys3(NR_ioctl, fd, SIOCSIFFLAGS, &r);
	sys1(NR_close, fd);
	return e;
}
static void init_main(i32 sync, i32 tree, i32 rwfd, const i32 *procs, i32 nprocs, const i32 *mounts)
{
	char *s = (char *)(plan + 1) + plan->maplen, *end = (char *)plan + plan->h.len, *a, *b, c;
	char *host = next_string(&s, end), *tmpfs = next_string(&s, end), *rw = next_string(&s, end);
	char *ops = s, *masks;
	struct op *o;
	struct stat st;
	long r, fd;
	i32 fds1[1];
	const char *ns[] = {"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"};
	char path[32];

	/* The id maps are written from outside; until then no id is ours. */
	if (sys3(NR_read, sync, &c, 1) != 1)
		die(1);
	sys2(NR_prctl, PR_SET_NAME, "belljar-init");
	if (plan->nsflags & CLONE_NEWUSER) {
		TRY(ST_INIT_IDS, sys2(NR_setgroups, 0, NULL));
		TRY(ST_INIT_IDS, sys3(NR_setresgid, 0, 0, 0));
		TRY(ST_INIT_IDS, sys3(NR_setresuid, 0, 0, 0));
	}
	/* Limits first: what is made below is charged to the sandbox. The cgroup
	 * namespace after the attach, so that its root is the sandbox's own group. */
	TRY(ST_INIT_CGROUP, attach_cgroups(procs, nprocs));
	if (plan->nsflags & CLONE_NEWCGROUP)
		TRY(ST_CGROUPNS, sys1(NR_unshare, CLONE_NEWCGROUP));

	TRY(ST_PROPAGATION, sys5(NR_mount, NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
	TRY(ST_ATTACH_ROOT, sys5(NR_move_mount, tree, "", AT_FDCWD, "/sys/n", MOVE_MOUNT_F_EMPTY_PATH));
	TRY(ST_ATTACH_ROOT, sys1(NR_chdir, "/sys/n"));
	/* proc before the old root goes: a user namespace may mount it only while it can
	 * see another complete one. Read-only as a whole, once these are set: only id 0 may. */
	if (plan->flags & SB_HOSTPROC)
		TRY(ST_PROC, sys5(NR_mount, "/proc", "proc", NULL, MS_BIND | MS_REC, NULL));
	else
		TRY(ST_PROC, sys5(NR_mount, "proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL));
	/* What an execution leaves in the ipc namespace is charged to it and weighs on the next: shared memory goes
	 * with its last user, queues stay small. In the host's procfs a look-up walks the entries of all namespaces. */
	if ((plan->nsflags & CLONE_NEWIPC) && !(plan->flags & SB_ROOTLESS)) {
		TRY(ST_IPC, write_file("proc/sys/kernel/shm_rmid_forced", "1", 1));
		TRY(ST_IPC, write_file("proc/sys/kernel/msgmni", "64", 2));
		TRY(ST_IPC, write_file("proc/sys/kernel/sem", "500 8000 100 128", 16));
	}
	if (!(plan->flags & SB_HOSTPROC))
		TRY(ST_PROC, sys5(NR_mount, NULL, "proc", NULL, MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL));

	/* One writable superblock, bound at every writable place: one quota for all. */
	if (rwfd >= 0)
		TRY(ST_WRITABLE, sys5(NR_move_mount, rwfd, "", AT_FDCWD, rw, MOVE_MOUNT_F_EMPTY_PATH));
	else
		TRY(ST_WRITABLE, sys5(NR_mount, "belljar", rw, "tmpfs", MS_NOSUID | MS_NODEV, tmpfs));
	/* Mount targets are resolved beneath the new root without following any link. */
	r = sys4(NR_openat, AT_FDCWD, ".", O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
	TRY(ST_MOUNT_TARGET, r);
	i32 root = (i32)r;
	/* nmounts ops come first in the plan; skip to the writable directories. */
	char *mops = ops;
	for (u32 i = 0; i < plan->nmounts; i++)
		if (!next_op(&ops, end, &a, &b))
			init_fail(ST_PROTOCOL, EPROTO);
	fd = sys4(NR_openat, AT_FDCWD, rw, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
	TRY(ST_WRITABLE, fd);
	for (u32 i = 0; i < plan->nrwdirs; i++) {
		if (!(o = next_op(&ops, end, &a, &b)))
			init_fail(ST_PROTOCOL, EPROTO);
		/* b: directory in the writable superblock, a: where it is bound; mode; pad = owner is the user */
		r = sys3(NR_mkdirat, fd, b, o->mode);
		if (r < 0 && r != -EEXIST)
			init_fail(ST_RWDIR, r);
		if (r == 0) {
			TRY(ST_RWDIR, sys3(NR_fchmodat, fd, b, o->mode));
			if (!(plan->flags & SB_ROOTLESS))
				TRY(ST_RWDIR, sys5(NR_fchownat, fd, b, plan->uid, plan->gid, AT_SYMLINK_NOFOLLOW));
		}
		long t = sys3(NR_open_tree, fd, b, OPEN_TREE_CLONE | O_CLOEXEC);
		TRY(ST_RWDIR, t);
		long d = open_beneath(root, a);
		TRY(ST_RWDIR, d);
		TRY(ST_RWDIR, sys5(NR_move_mount, t, "", d, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH));
		sys1(NR_close, t);
		sys1(NR_close, d);
	}
	sys1(NR_close, fd);
	/* Terminals are numbered for the whole host: a few are a sandbox's share. */
	if (!(plan->flags & SB_NODEVPTS))
		TRY(ST_DEVPTS, sys5(NR_mount, "devpts", "dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620,max=64"));
	for (u32 i = 0; i < plan->nmounts; i++) {
		if (!next_op(&mops, end, &a, &b))
			init_fail(ST_PROTOCOL, EPROTO);
		long d = open_beneath(root, a);
		TRY(ST_MOUNT_TARGET, d);
		TRY(ST_MOUNT_TARGET, sys5(NR_move_mount, mounts[i], "", d, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH));
		sys1(NR_close, d);
	}
	masks = ops;
	TRY(ST_MASK, mask_proc(masks, end, plan->nmasks));
	if (plan->nsflags & CLONE_NEWUTS)
		TRY(ST_HOSTNAME, sys2(NR_sethostname, host, slen(host)));
	if (plan->flags & SB_LO)
		TRY(ST_LOOPBACK, loopback_up());

	TRY(ST_PIVOT, sys2(NR_pivot_root, ".", "."));
	TRY(ST_PIVOT, sys2(NR_umount2, ".", MNT_DETACH));
	TRY(ST_PIVOT, sys1(NR_chdir, "/"));

	for (u32 i = 0; i < 7; i++) {
		scat(scat(path, "/proc/self/ns/"), ns[i]);
		if (sys4(NR_newfstatat, AT_FDCWD, path, &st, 0) == 0)
			ready.ns[i] = st.ino;
	}
	r = sys4(NR_openat, AT_FDCWD, "/", O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
	TRY(ST_ROOTFD, r);
	fds1[0] = (i32)r;
	/* Entering the namespaces of another process is a matter of ptrace(2) access,
	 * which an unprivileged keeper has only while this one is dumpable. */
	if (plan->flags & SB_ROOTLESS)
		sys2(NR_prctl, PR_SET_DUMPABLE, 1);
	TRY(ST_ROOTFD, send_(sync, &ready, sizeof ready, M_READY, fds1, 1));

	if ((plan->flags & SB_ROOTLESS) && sys3(NR_read, sync, &c, 1) != 1)
		die(1);
	sys2(NR_prctl, PR_SET_DUMPABLE, 0);

	/* From here on it holds nothing and can do nothing but end. */
	if (sync != 3)
		TRY(ST_INIT_LOCK, sys3(NR_dup3, sync, 3, O_CLOEXEC));
	TRY(ST_INIT_LOCK, sys3(NR_close_range, 4, ~0U, 0));
	for (i32 i = 0; i < 3; i++)
		sys1(NR_close, i);
	if (!(plan->flags & SB_ROOTLESS)) {
		TRY(ST_INIT_LOCK, sys3(NR_setresgid, plan->initid, plan->initid, plan->initid));
		TRY(ST_INIT_LOCK, sys3(NR_setresuid, plan->initid, plan->initid, plan->initid));
	}
	TRY(ST_INIT_LOCK, sys5(NR_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	TRY(ST_INIT_LOCK, set_caps(0));
	/* Children that end up here are reaped by the kernel; the end of the stream is the end of the keeper. */
	sigaction(SIGCHLD, 1 /* SIG_IGN */);
	do
		r = sys3(NR_read, 3, &c, 1);
	while (r > 0 || r == -EINTR);
	die(0);
}

/* ---- executions ---- */

static void watch(i32 fd, u32 events, u64 data, int op)
{
	struct epoll_event ev = {events, data};
	sys4(NR_epoll_ctl, epfd, op, fd, &ev);
}

struct req {
	struct exec_msg *m;
	struct rlim *rl;
	char *dir, **paths, **args, **env;
	i32 io[3 + 8], nex; /* streams, and what else the caller gives */
};

static void exec_fail(struct slot *s, int step, long err)
{
	s->err = (i32)(err < 0 ? -err : err);
	s->step = step;
	die(127);
}
#define STEP(step, call)                         \
	do {                                     \
		long r_ = (call);                \
		if (r_ < 0)                      \
			exec_fail(s, (step), r_); \
	} while (0)

/* The user namespace first: it owns the cgroup namespace, and gives the right to enter that. */
static long enter_user(void)
{
	long r = 0;
	if (userns >= 0)
		r = sys2(NR_setns, userns, CLONE_NEWUSER);
	if (r >= 0 && cgroupns >= 0)
		r = sys2(NR_setns, cgroupns, CLONE_NEWCGROUP);
	return r;
}
/* EINVAL: no such capability, all others are gone. Anything else is a refusal. */
static long drop_bounding(void)
{
	long r = 0;
	for (long c = 0; c <= 63 && r == 0; c++)
		r = sys2(NR_prctl, PR_CAPBSET_DROP, c);
	return r == -EINVAL ? 0 : r;
}
static long install_filter(void)
{
	struct sock_fprog f = {(u16)(filterlen / 8), filter};
	return sys3(NR_seccomp, SECCOMP_SET_MODE_FILTER, 0, &f);
}
/* A spawner takes on itself what all executions have in common: it enters the user
 * namespace, so that nothing of the host's privileges is left in it, and takes
 * Landlock and seccomp, which programs then inherit instead of paying for them
 * each time (half of the lock-down). */
static void confine_self(struct slot *s)
{
	if (plan->nsflags & CLONE_NEWUSER) {
		STEP(ST_IDS, sys3(NR_setresgid, 0, 0, 0));
		STEP(ST_IDS, sys3(NR_setresuid, 0, 0, 0));
	}
	if (lockflags & LOCK_GROUPS)
		STEP(ST_GROUPS, sys2(NR_setgroups, 0, NULL));
	/* The bounding set goes while there is still a capability to drop it with. */
	if (lockflags & LOCK_CAPS)
		STEP(ST_CAPBSET, drop_bounding());
	/* No set-uid, no file capabilities, for every descendant (prctl(2)). */
	if (lockflags & LOCK_NNP)
		STEP(ST_NNP, sys5(NR_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	/* The second layer on files. */
	if (lockflags & LOCK_LANDLOCK)
		STEP(ST_LANDLOCK, sys2(NR_landlock_restrict_self, landlockfd, 0));
	if (lockflags & LOCK_SECCOMP)
		STEP(ST_SECCOMP, install_filter());
	sys2(NR_prctl, PR_SET_DUMPABLE, 0);
}
/* The lock-down: one straight function, in the only order that works. Whoever
 * runs it never returns from it: it becomes the program, or ends. Groups, bounding
 * set, no_new_privs, Landlock and seccomp are inherited (confine_self). */
static void lockdown(struct req *q, struct slot *s, struct set *g)
{
	struct exec_msg *m = q->m;
	struct open_how how = {O_PATH | O_DIRECTORY | O_CLOEXEC, 0, RESOLVE_NO_MAGICLINKS};
	char cwd[4096];
	long r, e = -ENOENT;

	/* 0. Its own group: everything after this is on the execution's account. */
	STEP(ST_CGROUP, attach_cgroups(g->procs, g->nprocs));
	/* 1. The streams are pipes or a terminal of the sandbox; nothing of ours comes along. */
	for (i32 i = 0; i < 3; i++)
		STEP(ST_STDIO, sys3(NR_dup3, q->io[i], i, 0));
	for (i32 i = 3; i < 3 + q->nex; i++) /* out of the way of what is needed below */
		STEP(ST_STDIO, q->io[i] = (i32)sys3(NR_fcntl, q->io[i], F_DUPFD_CLOEXEC, 320));
	/* 2. A session of its own: no controlling terminal of anybody else. */
	STEP(ST_SESSION, sys0(NR_setsid));
	if (m->flags & EX_TTY)
		STEP(ST_TTY, sys3(NR_ioctl, 0, TIOCSCTTY, 0));
	/* 3. Limits, only ever lowered. */
	for (u32 i = 0; i < m->nlimits; i++) {
		struct rlimit64 l = {q->rl[i].cur, q->rl[i].max};
		STEP(ST_RLIMIT, sys4(NR_prlimit64, 0, q->rl[i].which, &l, NULL));
	}
	/* 4. The user. */
	if (lockflags & LOCK_KEEPCAPS)
		sys2(NR_prctl, PR_SET_KEEPCAPS, 1);
	if (lockflags & LOCK_IDS) {
		STEP(ST_IDS, sys3(NR_setresgid, m->gid, m->gid, m->gid));
		STEP(ST_IDS, sys3(NR_setresuid, m->uid, m->uid, m->uid));
	}
	/* 5. No capability in any set. As uid 0 inside, an execve would hand them back:
	 *    that is what the empty bounding set and no_new_privs are for. */
	if (lockflags & LOCK_CAPS)
		STEP(ST_CAPS, set_caps(0));
	if (lockflags & LOCK_KEEPCAPS) {
		struct cap_header h = {0x20080522, 0};
		struct cap_data d[2] = {{~0U, ~0U, ~0U}, {0x1ff, 0x1ff, 0x1ff}};
		sys2(NR_capset, &h, d);
		for (long c = 0; c <= 63; c++)
			sys5(NR_prctl, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, c, 0, 0);
	}
	/* 6. The directory is resolved inside, as the user, never through a magic link
	 *    (CVE-2024-21626), and must be reachable from the root. */
	r = sys4(NR_openat2, AT_FDCWD, q->dir, &how, sizeof how);
	/* The filter has no openat2 where files must not get set-id bits. Then the check
	 * below is what counts: nothing here holds a directory that a magic link could lead to. */
	if (r == -ENOSYS)
		r = sys4(NR_openat, AT_FDCWD, q->dir, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
	STEP(ST_DIR, r);
	STEP(ST_DIR, sys1(NR_fchdir, r));
	STEP(ST_DIR, sys2(NR_getcwd, cwd, sizeof cwd));
	if (cwd[0] != '/')
		exec_fail(s, ST_DIR, ENOENT);
	/* 7. No descriptor but the three streams and those that the caller gives. */
	for (i32 i = 3; i < 3 + q->nex; i++)
		STEP(ST_STDIO, sys3(NR_dup3, q->io[i], i, 0));
	STEP(ST_CLOSE, sys3(NR_close_range, 3 + q->nex, ~0U, 0));
	sys1(NR_umask, m->umask);
	sigaction(SIGCHLD, 0);
	sigmask(SIG_SETMASK, 0);
	/* 8. The program. EACCES is remembered as execvp(3) does. */
	for (u32 i = 0; i < m->npaths; i++) {
		r = sys3(NR_execve, q->paths[i], q->args, q->env);
		if (r == -EACCES)
			e = r;
		else if (r != -ENOENT && r != -ENOTDIR)
			exec_fail(s, ST_EXEC, r);
	}
	exec_fail(s, ST_EXEC, e);
}
static char *plan_masks(char **end)
{
	char *s = (char *)(plan + 1) + plan->maplen, *a, *b;
	*end = (char *)plan + plan->h.len;
	for (i32 i = 0; i < 3; i++)
		next_string(&s, *end);
	for (u32 i = 0; i < plan->nmounts + plan->nrwdirs; i++) /* keeper() has counted them */
		next_op(&s, *end, &a, &b);
	return s;
}
/* PID 1 of an execution's own pid namespace: makes the namespaces and a child that
 * becomes the program, in which this returns; forwards signals, ends with it, and
 * the kernel ends the rest. Its namespace is not below the sandbox's (only a member
 * could make one there), so it watches the keeper. */
static void fresh_init(struct slot *s)
{
	struct { i32 signo, err, code, pad; i32 pid; u32 uid; u64 value; u8 rest[96]; } si;
	struct epoll_event ev[2];
	u64 all = ~0ULL;
	long pid, r, ep, sfd;
	char *end, *masks = plan_masks(&end);
	i32 st;
	STEP(ST_FRESH_PROC, sys5(NR_mount, NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
	STEP(ST_FRESH_PROC, sys5(NR_mount, "proc", "/proc", "proc", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL));
	STEP(ST_FRESH_PROC, sys1(NR_chdir, "/"));
	STEP(ST_FRESH_PROC, mask_proc(masks, end, plan->nmasks));
	STEP(ST_SETNS, enter_user());
	pid = fork_(0, -1, NULL);
	STEP(ST_FRESH_FORK, pid);
	if (pid == 0)
		return;
	/* Nobody that a program can be; of all rights it keeps the one to signal (CAP_KILL),
	 * which reaches no further than its own pid namespace. */
	if (lockflags & LOCK_IDS) {
		sys2(NR_prctl, PR_SET_KEEPCAPS, 1);
		STEP(ST_IDS, sys3(NR_setresgid, plan->initid, plan->initid, plan->initid));
		STEP(ST_IDS, sys3(NR_setresuid, plan->initid, plan->initid, plan->initid));
	}
	STEP(ST_CLOSE, sys3(NR_dup3, lifefd[0], 0, O_CLOEXEC));
	STEP(ST_CLOSE, sys3(NR_close_range, 1, ~0U, 0));
	STEP(ST_NNP, sys5(NR_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	STEP(ST_CAPS, set_caps(1 << 5));
	sys2(NR_prctl, PR_SET_DUMPABLE, 0);
	STEP(ST_EPOLL, ep = sys1(NR_epoll_create1, O_CLOEXEC));
	STEP(ST_EPOLL, sfd = sys4(NR_signalfd4, -1, &all, 8, O_CLOEXEC | SOCK_NONBLOCK));
	epfd = (i32)ep;
	watch(0, EPOLLIN, 0, EPOLL_CTL_ADD);
	watch((i32)sfd, EPOLLIN, 1, EPOLL_CTL_ADD);
	for (;;) {
		struct timespec none = {0, 0};
		while ((r = sys4(NR_wait4, -1, &st, WNOHANG | WALL, NULL)) > 0)
			if (r == pid) {
				for (i32 i = 0; i < MAXEXEC; i++)
					if (slots[i].pair == pair) { /* the execution that it was used for */
						slots[i].status = st;
						slots[i].ended = 1;
					}
				die(0);
			}
		/* The keeper queues signals with a value: 1 = the whole tree. */
		while ((r = sys4(NR_rt_sigtimedwait, &all, &si, &none, 8)) > 0)
			if (r != SIGCHLD)
				sys2(NR_kill, si.code == SI_QUEUE && si.value == 1 ? -1 : pid, r);
			else
				break;
		if (r == SIGCHLD)
			continue;
		r = sys6(NR_epoll_pwait, ep, L(ev), 2, -1, 0, 8);
		for (long i = 0; i < r; i++)
			if (ev[i].data == 0)
				die(1); /* the keeper is gone */
	}
}
static struct exec *by_id(u64 id)
{
	for (i32 i = 0; i < nexecs; i++)
		if (execs[i].state != X_FREE && execs[i].id == id)
			return &execs[i];
	return NULL;
}
static void free_exec(struct exec *e)
{
	for (i32 i = 0; i < 3; i++)
		close_(&e->keep[i]);
	e->state = X_FREE;
	while (nexecs > 0 && execs[nexecs - 1].state == X_FREE)
		nexecs--;
}
/* A spawner's child is known by what the kernel wrote into the slot before it ran. */
static i32 pid_of(struct exec *e)
{
	if (!e->pid)
		e->pid = *(volatile i32 *)&slots[e - execs].pid;
	return e->pid;
}
static struct set *set_of(struct exec *e)
{
	return e->set >= 0 && sets[e->set].used ? &sets[e->set] : NULL;
}
static void fill(struct exited_msg *x, struct exec *e)
{
	struct slot *s = &slots[e - execs];
	memset(x, 0, sizeof *x);
	x->id = e->id;
	x->started = e->started;
	x->exited = e->exited;
	x->reaped = e->reaped;
	x->utime = e->utime;
	x->stime = e->stime;
	x->maxrss = e->maxrss;
	x->pid = e->pid;
	x->status = e->status;
	x->step = s->step;
	x->err = s->err;
	x->flags = (u32)e->flags | (e->state == X_DONE ? 0 : EXF_RUNNING);
	x->set = (u32)e->set;
	memcpy(x->name, e->name, IDLEN);
}
/* Hands the ends of executions to the supervisor; what does not fit waits. */
static void flush(void)
{
	i32 fds[3], blocked = 0;
	struct exited_msg x;
	long r = 0;
	for (i32 i = 0; i < nexecs && ctl >= 0 && r >= 0; i++) {
		struct exec *e = &execs[i];
		u32 k = 0;
		if (!(e->exflags & X_ASKED))
			continue;
		fill(&x, e);
		x.h.seq = helloseq;
		for (u32 j = 0; j < 3; j++)
			if (e->keep[j] >= 0) {
				x.keep |= 1u << j;
				fds[k++] = e->keep[j];
			}
		if ((r = send_(ctl, &x, sizeof x, M_TASK, fds, k)) >= 0)
			e->exflags = (e->exflags & ~X_ASKED) | (e->state == X_DONE ? X_TOLD : 0);
	}
	/* Ends only after the whole answer to M_HELLO, and never before it is asked for:
	 * whoever has just connected does not know these executions. */
	for (i32 i = 0; i < nexecs && ctl >= 0 && r >= 0 && greeted; i++) {
		struct exec *e = &execs[i];
		if (e->state != X_DONE || (e->exflags & X_TOLD))
			continue;
		fill(&x, e);
		if ((r = send_(ctl, &x, sizeof x, M_EXITED, NULL, 0)) < 0)
			break;
		if (e->exflags & EX_KEEP)
			e->exflags |= X_TOLD; /* waits for M_RELEASE */
		else
			free_exec(e);
	}
	blocked = r == -EAGAIN;
	if (ctl >= 0 && blocked != wantout) {
		wantout = blocked;
		watch(ctl, EPOLLIN | (blocked ? EPOLLOUT : 0), 1, EPOLL_CTL_MOD);
	}
}
static i32 populated(struct set *g)
{
	char b[64];
	long n = sys4(NR_pread64, g->eventsfd, b, sizeof b, 0);
	for (long i = 0; i + 10 < n; i++)
		if (!memcmp(b + i, "populated ", 10))
			return b[i + 10] == '1';
	return 0;
}
/* Whether nobody but the spawner is left in its group. */
static i32 alone(struct set *g)
{
	char b[64];
	i32 pid = 0;
	long n = sys4(NR_pread64, g->listfd, b, sizeof b, 0);
	for (long i = 0; i < n; i++) {
		if (b[i] != '\n') {
			pid = pid * 10 + b[i] - '0';
			continue;
		}
		if (pid != g->spawner)
			return 0;
		pid = 0;
	}
	return n >= 0 && pid == 0;
}
static void kill_tree(struct exec *e)
{
	struct set *g = set_of(e);
	if (g && g->killfd >= 0) {
		sys3(NR_write, g->killfd, "1", 1);
		e->flags |= EXF_BURNED;
	}
	if (e->state == X_RUNNING && pid_of(e) > 0)
		sys2(NR_kill, pid_of(e), SIGKILL);
}
static void done(struct exec *e)
{
	struct set *g = set_of(e);
	e->reaped = now(CLOCK_MONOTONIC);
	e->state = X_DONE;
	if (g && g->oomfd >= 0) {
		u64 v = 0;
		/* Read here too: the event may come with the end. */
		if (sys3(NR_read, g->oomfd, &v, 8) == 8)
			e->flags |= EXF_OOM;
	}
	/* Namespaces for the next, once the end of this one is told. After a first execution
	 * there may be none; after a second there are more. */
	if (!g)
		g = &sets[MAXSETS];
	if ((e->exflags & OWN) && !(e->flags & (EXF_BURNED | EXF_STUCK)) && !g->once && begun > 1)
		g->due = due = 1;
}
/* Says why there was nobody to become the program. */
static void unborn(struct slot *s)
{
	s->step = slots[MAXEXEC].step ? slots[MAXEXEC].step : ST_CLONE;
	s->err = slots[MAXEXEC].step ? slots[MAXEXEC].err : EAGAIN;
}
static void main_exited(struct exec *e, i32 status, struct rusage *ru)
{
	struct slot *s = &slots[e - execs];
	struct set *g = set_of(e);
	e->exited = now(CLOCK_MONOTONIC);
	e->status = status;
	if (e->exflags & OWN) {
		if (s->ended)
			e->status = s->status;
		else if (!(status & 0x7f)) /* before it had heard of the execution */
			unborn(s);
	}
	e->utime = (u64)ru->utime.sec * 1000000 + (u64)ru->utime.usec;
	e->stime = (u64)ru->stime.sec * 1000000 + (u64)ru->stime.usec;
	e->maxrss = (u64)ru->rest[0];
	e->deadline = 0;
	e->state = X_REAPING;
	/* After a SIGKILL the spawner may be about to end as well (memory.oom.group):
	 * the next request must not go to it. */
	if (!g || g->eventsfd < 0 || (g->spawner ? (status & 0x7f) != SIGKILL && alone(g) : !populated(g))) {
		done(e);
		return;
	}
	kill_tree(e);
	e->reapby = e->exited + 2000000000ULL;
	watch(g->eventsfd, EPOLLPRI | EPOLLERR, 0x100000000ULL | (u64)(e - execs), EPOLL_CTL_ADD);
	if (!populated(g)) {
		watch(g->eventsfd, 0, 0, EPOLL_CTL_DEL);
		done(e);
	}
}
/* What parse() maps, to be unmapped when the child has its copy. */
struct maps { char *blob; uptr ptrs; u64 bloblen, ptrlen; };

/* Checks a request to the last byte and finds its strings. */
static long parse(struct exec_msg *m, long n, struct fds *f, struct req *q, struct maps *mp)
{
	char *blob, *end, **pp = ptrs;
	u64 cnt, at = 0;
	i32 nf = 0;
	memset(mp, 0, sizeof *mp);
	if (n < (long)sizeof *m || m->nlimits > 32 || m->uid == ~0U || m->gid == ~0U) /* -1 would leave the id as it is */
		return -EPROTO;
	m->name[IDLEN - 1] = 0;
	q->m = m;
	q->rl = (struct rlim *)(m + 1);
	blob = (char *)(q->rl + m->nlimits);
	end = (char *)m + n;
	if (blob > end)
		return -EPROTO;
	if (m->flags & EX_BLOB) {
		struct stat st;
		long r = f->n > 0 ? sys4(NR_newfstatat, f->v[0], "", &st, AT_EMPTY_PATH) : -EPROTO;
		if (r < 0 || st.size < (i64)m->bloblen) /* beyond its end is SIGBUS */
			return -EPROTO;
		r = sys6(NR_mmap, 0, m->bloblen, PROT_RW, MAP_PRIVATE, f->v[0], 0);
		if (r < 0 && r > -4096)
			return -EPROTO;
		mp->blob = blob = (char *)r;
		mp->bloblen = m->bloblen;
		nf = 1;
	} else if ((u64)(end - blob) != m->bloblen)
		return -EPROTO;
	end = blob + m->bloblen;
	cnt = (u64)m->npaths + m->nargs + m->nenv + 3;
	q->nex = (i32)(m->flags >> EX_EXTRA & 15);
	if (m->bloblen == 0 || end[-1] || q->nex > 8 || f->n < nf + 3 + q->nex || m->npaths == 0 || m->nargs == 0 || cnt > 1u << 20)
		return -EPROTO;
	if (cnt > sizeof ptrs / sizeof *ptrs) {
		long r = sys6(NR_mmap, 0, cnt * sizeof *ptrs, PROT_RW, MAP_PRIVATE | MAP_ANON, -1, 0);
		if (r < 0 && r > -4096)
			return -EPROTO;
		mp->ptrs = (uptr)r;
		mp->ptrlen = cnt * sizeof *ptrs;
		pp = (char **)mp->ptrs;
	}
	q->dir = next_string(&blob, end);
	u32 lens[3] = {m->npaths, m->nargs, m->nenv};
	char ***heads[3] = {&q->paths, &q->args, &q->env};
	for (i32 k = 0; k < 3; k++) {
		*heads[k] = &pp[at];
		for (u32 i = 0; i < lens[k]; i++)
			if (!(pp[at++] = next_string(&blob, end)))
				return -EPROTO;
		pp[at++] = NULL;
	}
	for (i32 i = 0; i < 3 + q->nex; i++)
		q->io[i] = f->v[nf + i];
	return q->dir && blob == end ? 0 : -EPROTO;
}
static void unmap(struct maps *mp)
{
	if (mp->blob)
		sys2(NR_munmap, mp->blob, mp->bloblen);
	if (mp->ptrs)
		sys2(NR_munmap, mp->ptrs, mp->ptrlen);
}
/* The spawner of a set: born into the set's v2 leaf by clone3, which costs nothing,
 * while a process that is moved there waits for an RCU grace period (10 ms when
 * nobody moved any lately). It confines itself and turns requests into children
 * that are the keeper's own (CLONE_PARENT), until its socket ends or the group is
 * killed. It lives in the host's pid namespace: nobody inside can see it. Where
 * executions have namespaces of their own, it makes them, and becomes the program
 * of the first request. */
static void spawner(struct set *g, i32 sock)
{
	struct exec_msg *m = (struct exec_msg *)msgbuf;
	struct slot *s = &slots[MAXEXEC];
	struct fds f;
	struct req q;
	struct maps mp;
	i32 *keep[MAXPROCS + 1], low = 3;
	long r, n;

	sys2(NR_prctl, PR_SET_NAME, "belljar-spawner");
	/* A neighbour may stop a child before it is locked down: it must not be what keeps
	 * PID 1, a fresh init or the supervisor from seeing the keeper's end. */
	close_(&syncfd);
	close_(&lifefd[1]);
	close_(&ctl);
	if (g->own)
		fresh_init(s);
	else {
		if (plan->nsflags & CLONE_NEWPID)
			STEP(ST_ENTER, sys2(NR_setns, pidns, CLONE_NEWPID));
		STEP(ST_SETNS, enter_user());
	}
	confine_self(s);
	keep[0] = &sock; /* it holds that and the groups of the set, and nothing of the keeper's */
	for (i32 i = 0; i < g->nprocs; i++)
		keep[i + 1] = &g->procs[i];
	for (i32 i = 0, at = 256; i <= g->nprocs; i++, at++) {
		STEP(ST_CLOSE, r = sys3(NR_fcntl, *keep[i], F_DUPFD_CLOEXEC, at));
		at = *keep[i] = (i32)r;
	}
	for (i32 i = 0; i <= g->nprocs; i++) {
		if (*keep[i] > low)
			sys3(NR_close_range, low, *keep[i] - 1, 0);
		low = *keep[i] + 1;
	}
	sys3(NR_close_range, low, ~0U, 0);
	while ((n = recv_(sock, msgbuf, &f, 0)) > 0 || n == -EINTR) {
		u32 ix = m->h.seq;
		if (n < 0)
			continue;
		if (ix >= MAXEXEC || parse(m, n, &f, &q, &mp) < 0)
			exec_fail(s, ST_PROTOCOL, EPROTO);
		if (g->own) {
			slots[ix].pair = pair;
			lockdown(&q, &slots[ix], g);
		}
		r = sys5(NR_clone, CLONE_PARENT | CLONE_PARENT_SETTID | SIGCHLD, 0, &slots[ix].pid, 0, 0);
		if (r == 0)
			lockdown(&q, &slots[ix], g);
		unmap(&mp);
		close_all(&f);
		if (r < 0) /* the keeper sees the end of the spawner, and why */
			exec_fail(&slots[ix], ST_CLONE, r);
	}
	die(0);
}
static void drop_spawner(struct set *g)
{
	close_(&g->sock);
	close_(&g->listfd);
	g->spawner = 0;
}
/* own: what namespaces of their own executions get, EX_FRESH or EX_OWNPID. */
static long start_spawner(struct set *g, i32 own)
{
	i32 sv[2];
	long r;
	drop_spawner(g);
	g->due = 0;
	g->own = own;
	pair++;
	memset(&slots[MAXEXEC], 0, sizeof *slots);
	if (!own && g->clonefd >= 0) {
		if ((r = sys4(NR_openat, g->clonefd, "cgroup.procs", O_CLOEXEC, 0)) < 0)
			return r;
		g->listfd = (i32)r;
	}
	if ((r = sys4(NR_socketpair, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv)) < 0)
		return r;
	r = fork_(own ? CLONE_NEWPID | CLONE_NEWNS | (own & EX_FRESH ? CLONE_NEWIPC : 0) : 0, g->clonefd, NULL);
	if (r == 0) {
		close_(&sv[0]);
		spawner(g, sv[1]);
	}
	close_(&sv[1]);
	g->sock = sv[0];
	if (r < 0) {
		drop_spawner(g);
		return r;
	}
	g->spawner = (i32)r;
	return 0;
}
/* Ahead of the first request, and of each where namespaces serve one only; a failure
 * is told then. */
static void prepare(struct set *g)
{
	i32 own = plan->flags & SB_OWNPIDS ? plan->flags & SB_OWNIPC ? EX_FRESH : EX_OWNPID : 0;
	if (confined && g->used && !g->spawner && (own || (g->clonefd >= 0 && g->eventsfd >= 0)))
		start_spawner(g, own);
}
static void do_exec(struct exec_msg *m, long n, struct fds *f)
{
	struct req q;
	struct maps mp;
	struct exec *e = NULL;
	struct set *g = NULL, *sp;
	i32 ix, nf, own;
	long r = -EPROTO;

	if (!confined) { /* nothing runs that is not locked down */
		refuse(ST_PROTOCOL, EPROTO, 0);
		return;
	}
	memset(&mp, 0, sizeof mp);
	if (n < (long)sizeof *m || by_id(m->id) || ((m->flags & EX_SET) && (m->set >= MAXSETS || !sets[m->set].used)))
		goto proto;
	own = (i32)m->flags & OWN;
	sp = &sets[m->flags & EX_SET ? m->set : MAXSETS];
	/* Its end must be the end of its tree. */
	if (own == OWN || (!own && (plan->nsflags & CLONE_NEWPID) && (sp->clonefd < 0 || sp->eventsfd < 0)))
		goto proto;
	nf = !!(m->flags & EX_BLOB);
	if ((r = parse(m, n, f, &q, &mp)) < 0 || f->n != (nf += 3 + q.nex) + (m->flags & EX_KEEP ? 3 : 0))
		goto proto;
	for (ix = 0; ix < MAXEXEC && execs[ix].state != X_FREE; ix++)
		;
	if (ix == MAXEXEC) {
		fail(ctl, ST_NO_SLOT, EAGAIN, m->id, 0);
		goto out;
	}
	e = &execs[ix];
	memset(e, 0, sizeof *e);
	memset(&slots[ix], 0, sizeof *slots);
	e->id = m->id;
	e->exflags = (i32)m->flags & 0xffff;
	e->set = m->flags & EX_SET ? (i32)m->set : -1;
	g = set_of(e);
	memcpy(e->name, m->name, IDLEN);
	for (i32 i = 0; i < 3; i++)
		e->keep[i] = -1;
	if (g && g->oomfd >= 0) {
		u64 v;
		sys3(NR_read, g->oomfd, &v, 8); /* forget an event of the last user of the set */
	}
	e->started = now(CLOCK_MONOTONIC);
	m->h.seq = (u32)ix;
	r = -EPIPE;
	if (sp->spawner && sp->own == own)
		r = send_(sp->sock, m, (u32)n, M_EXEC, f->v, (u32)nf);
	if (r == -EPIPE || r == -ECONNRESET) /* there was none, or it ended with the group that was killed */
		r = (r = start_spawner(sp, own)) < 0 ? r : send_(sp->sock, m, (u32)n, M_EXEC, f->v, (u32)nf);
	begun++;
	if (r >= 0 && own) { /* used up */
		e->pid = sp->spawner;
		drop_spawner(sp);
	}
	if (r < 0) {
		fail(ctl, ST_CLONE, r, m->id, 0);
		goto out;
	}
	e->state = X_RUNNING;
	if (ix >= nexecs)
		nexecs = ix + 1;
	e->deadline = m->timeout && m->timeout < 1ULL << 63 ? e->started + m->timeout : 0;
	if (m->flags & EX_KEEP)
		for (i32 i = 0; i < 3; i++)
			e->keep[i] = take(f, nf + i);
	goto out;
proto:
	fail(ctl, ST_PROTOCOL, EPROTO, n >= (long)sizeof *m ? m->id : 0, 0);
out:
	unmap(&mp);
}

/* ---- keeper ---- */

static void drop_set(struct set *g)
{
	if (!g->used)
		return;
	if (g->oomfd >= 0) /* closing is not enough: the supervisor has the same file open */
		watch(g->oomfd, 0, 0, EPOLL_CTL_DEL);
	close_(&g->clonefd);
	close_(&g->killfd);
	close_(&g->eventsfd);
	close_(&g->oomfd);
	for (i32 i = 0; i < g->nprocs; i++)
		close_(&g->procs[i]);
	drop_spawner(g);
	g->used = g->due = 0;
}
static void do_set(struct set_msg *m, long n, struct fds *f)
{
	struct set *g;
	i32 k = 0, bad = n != (long)sizeof *m || m->index >= MAXSETS || m->nprocs > MAXPROCS ||
		f->n != (i32)m->nprocs + !!(m->flags & SET_CLONE) + 2 * !!(m->flags & SET_KILL) + !!(m->flags & SET_OOM);
	for (i32 i = 0; i < nexecs && !bad; i++) /* it would be killed and counted by another's group */
		bad = execs[i].set == (i32)m->index && (execs[i].state == X_RUNNING || execs[i].state == X_REAPING);
	if (bad) {
		refuse(ST_PROTOCOL, EPROTO, M_SET);
		return;
	}
	g = &sets[m->index];
	drop_set(g);
	g->clonefd = m->flags & SET_CLONE ? take(f, k++) : -1;
	g->killfd = m->flags & SET_KILL ? take(f, k++) : -1;
	g->eventsfd = m->flags & SET_KILL ? take(f, k++) : -1;
	g->oomfd = m->flags & SET_OOM ? take(f, k++) : -1;
	g->nprocs = (i32)m->nprocs;
	for (i32 i = 0; i < g->nprocs; i++)
		g->procs[i] = take(f, k++);
	g->once = !!(m->flags & SET_ONCE);
	g->used = 1;
	if (g->oomfd >= 0)
		watch(g->oomfd, EPOLLIN, 0x200000000ULL | m->index, EPOLL_CTL_ADD);
	prepare(g);
}
static void do_signal(struct task_msg *m)
{
	struct exec *e = by_id(m->id);
	if (!e || e->state != X_RUNNING || m->sig < 1 || m->sig > 64)
		return;
	if (e->exflags & OWN) {
		struct { i32 signo, err, code, pad; i32 pid; u32 uid; u64 value; u8 rest[96]; } si;
		memset(&si, 0, sizeof si);
		si.signo = m->sig;
		si.code = SI_QUEUE;
		si.value = m->tree ? 1 : 0;
		if (m->sig == SIGKILL)
			sys2(NR_kill, e->pid, SIGKILL);
		else
			sys3(NR_rt_sigqueueinfo, e->pid, m->sig, &si);
		return;
	}
	if (pid_of(e) > 0)
		sys2(NR_kill, pid_of(e), m->sig);
	else
		e->early |= 1ULL << (m->sig - 1); /* timers() sends it */
}
static void hello(u32 seq)
{
	struct ready_msg s = ready;
	i32 fds[2] = {initfd, rootfd};
	s.ntasks = 0;
	s.h.seq = helloseq = seq;
	greeted = 1;
	for (i32 i = 0; i < MAXSETS; i++)
		sets[i].once = 1; /* this supervisor replaces what another one knew */
	for (i32 i = 0; i < nexecs; i++)
		if (execs[i].state != X_FREE) {
			execs[i].exflags |= X_ASKED; /* flush() sends as many as the socket takes */
			s.ntasks++;
		}
	if (send_(ctl, &s, sizeof s, M_STATE, fds, 2) < 0)
		ending = 1;
}
/* Everything of the sandbox ends: killing PID 1 kills its pid namespace, and
 * waiting for it waits for all. */
static void end(void)
{
	struct hdr h;
	i32 st;
	for (i32 i = 0; i < nexecs; i++)
		if (execs[i].state == X_RUNNING || execs[i].state == X_REAPING)
			kill_tree(&execs[i]);
	for (i32 i = 0; i <= MAXSETS; i++)
		if (sets[i].used && sets[i].spawner)
			sys2(NR_kill, sets[i].spawner, SIGKILL);
	if (initpid > 0)
		sys2(NR_kill, initpid, SIGKILL);
	while (sys4(NR_wait4, -1, &st, WALL, NULL) != -ECHILD)
		;
	memset(&h, 0, sizeof h);
	if (ctl >= 0)
		send_(ctl, &h, sizeof h, M_BYE, NULL, 0);
	die(0);
}
static void do_message(long n, struct fds *f)
{
	struct hdr *h = (struct hdr *)msgbuf;
	struct task_msg *t = (struct task_msg *)msgbuf;
	struct exec *e;
	if ((h->type == M_KILL || h->type == M_SIGNAL || h->type == M_RELEASE) && n != (long)sizeof *t)
		h->type = 0;
	if ((h->type == M_HELLO || h->type == M_END) && n != (long)sizeof *h)
		h->type = 0;
	switch (h->type) {
	case M_CONFINE: {
		struct confine_msg *m = (struct confine_msg *)msgbuf;
		struct rlim *rl = (struct rlim *)((u8 *)(m + 1) + m->filterlen);
		if (confined || n < (long)sizeof *m || m->filterlen > sizeof filter || m->filterlen % 8 || (long)(sizeof *m + m->filterlen) > n ||
		    (n - (long)(sizeof *m + m->filterlen)) % (long)sizeof *rl ||
		    ((m->lock & LOCK_LANDLOCK) != 0) != (f->n == 1) || ((m->lock & LOCK_SECCOMP) != 0) != (m->filterlen != 0)) {
			refuse(ST_PROTOCOL, EPROTO, M_CONFINE);
			return;
		}
		lockflags = m->lock;
		filterlen = m->filterlen;
		memcpy(filter, m + 1, filterlen);
		if (f->n == 1) {
			close_(&landlockfd);
			landlockfd = take(f, 0);
		}
		/* Inherited by every execution. RLIMIT_CORE is among them: the filter lets nobody set it later. */
		for (; (u8 *)rl < msgbuf + n; rl++) {
			struct rlimit64 l = {rl->cur, rl->max};
			long r = sys4(NR_prlimit64, 0, rl->which, &l, NULL);
			if (r < 0) {
				refuse(ST_RLIMIT, r, rl->which);
				return;
			}
		}
		confined = 1;
		if ((plan->flags & SB_OWNPIDS) && !(plan->flags & (SB_CGROUP | SB_PROCS_MASK)))
			prepare(&sets[MAXSETS]);
		return;
	}
	case M_SET:
		do_set((struct set_msg *)msgbuf, n, f);
		return;
	case M_EXEC:
		do_exec((struct exec_msg *)msgbuf, n, f);
		return;
	case M_KILL:
		if ((e = by_id(t->id)) && (e->state == X_RUNNING || e->state == X_REAPING))
			kill_tree(e);
		return;
	case M_SIGNAL:
		do_signal(t);
		return;
	case M_RELEASE:
		if ((e = by_id(t->id)) && e->state == X_DONE)
			free_exec(e);
		return;
	case M_EXPIRE:
		if (n == (long)sizeof(struct expire_msg)) {
			plan->expire = ((struct expire_msg *)msgbuf)->when;
			return;
		}
		break;
	case M_HELLO:
		hello(h->seq);
		return;
	case M_SOCKET: {
		struct socket_msg *m = (struct socket_msg *)msgbuf;
		struct ok_msg o;
		i32 fd;
		if (n != (long)sizeof *m)
			break;
		fd = (i32)sys3(NR_socket, m->domain, m->type | SOCK_CLOEXEC, m->protocol);
		if (fd < 0) {
			fail(ctl, ST_SOCKET, fd, 0, h->seq);
			return;
		}
		memset(&o, 0, sizeof o);
		o.h.seq = h->seq;
		send_(ctl, &o, sizeof o, M_FD, &fd, 1);
		sys1(NR_close, fd);
		return;
	}
	case M_END:
		ending = 1;
		return;
	}
	refuse(ST_PROTOCOL, EPROTO, h->type);
}
/* A spawner ends when its group is killed, or when it could not do its work; then
 * an execution that it was asked for does not exist. */
static void spawner_ended(i32 set)
{
	drop_spawner(&sets[set]);
	for (i32 i = 0; i < nexecs; i++) {
		struct exec *e = &execs[i];
		if (e->state != X_RUNNING || e->set != (set == MAXSETS ? -1 : set) || pid_of(e))
			continue;
		if (e->flags & EXF_BURNED)
			e->status = SIGKILL; /* it was to be killed before it was born */
		else if (!slots[i].step)
			unborn(&slots[i]);
		e->exited = now(CLOCK_MONOTONIC);
		done(e);
	}
}
static void reap(void)
{
	u8 drain[128 * 4];
	struct rusage ru;
	i32 st, more;
	long pid;
	sys3(NR_read, sigfd, drain, sizeof drain);
	/* No more at a time than this: whoever makes children of the keeper (CLONE_PARENT)
	 * that end at once could otherwise keep it from its deadlines. */
	for (more = 0; more < 64 && (pid = sys4(NR_wait4, -1, &st, WNOHANG | WALL, &ru)) > 0; more++) {
		if (pid == initpid) {
			initpid = 0;
			ending = 1;
			continue;
		}
		for (i32 i = 0; i <= MAXSETS; i++)
			if (sets[i].used && sets[i].spawner == pid)
				spawner_ended(i);
		for (i32 i = 0; i < nexecs; i++)
			if (execs[i].state == X_RUNNING && pid_of(&execs[i]) == pid) {
				main_exited(&execs[i], st, &ru);
				break;
			}
	}
	unreaped = more == 64;
}
/* Carries out what is due and says how long to sleep, in ms. */
static i32 timers(void)
{
	u64 t = now(CLOCK_MONOTONIC), best = ~0ULL, left;
	for (i32 i = 0; i < nexecs; i++) {
		struct exec *e = &execs[i];
		if (e->state == X_RUNNING && e->early) {
			best = 1;
			for (i32 k = 1; k <= 64 && pid_of(e) > 0; k++)
				if (e->early >> (k - 1) & 1)
					sys2(NR_kill, e->pid, k);
			if (e->pid > 0)
				e->early = 0;
		}
		if (e->state == X_RUNNING && e->deadline) {
			if (t >= e->deadline) {
				e->flags |= EXF_TIMEOUT;
				e->deadline = 0;
				kill_tree(e);
			} else if (e->deadline - t < best)
				best = e->deadline - t;
		}
		if (e->state == X_REAPING) {
			if (t >= e->reapby) {
				struct set *g = set_of(e);
				e->flags |= EXF_STUCK;
				if (g)
					watch(g->eventsfd, 0, 0, EPOLL_CTL_DEL);
				done(e);
			} else if (e->reapby - t < best)
				best = e->reapby - t;
		}
	}
	if (plan->expire) {
		u64 b = now(CLOCK_BOOTTIME);
		if (b >= plan->expire) {
			ending = 1;
			return 0;
		}
		left = plan->expire - b;
		if (left < best)
			best = left;
	}
	if (best == ~0ULL)
		return -1;
	best = best / 1000000 + 1;
	return best > 3600000 ? 3600000 : (i32)best;
}
static void accept_supervisor(void)
{
	struct ucred c;
	u32 len = sizeof c;
	i32 fd = (i32)sys4(NR_accept4, lstn, NULL, NULL, SOCK_CLOEXEC);
	if (fd < 0)
		return;
	/* The socket is in a directory that only the owner can enter. The peer's id is told as well. */
	if (sys5(NR_getsockopt, fd, SOL_SOCKET, SO_PEERCRED, &c, &len) < 0 || ctl >= 0 ||
	    c.uid != (plan->flags & SB_ROOTLESS ? plan->uid : plan->owner)) {
		sys1(NR_close, fd);
		return;
	}
	ctl = fd;
	wantout = greeted = 0;
	watch(ctl, EPOLLIN, 1, EPOLL_CTL_ADD);
}
static void loop(void)
{
	struct epoll_event ev[16];
	struct fds f;
	for (;;) {
		flush();
		i32 ms = timers();
		if (ending)
			end();
		flush();
		for (i32 i = 0; i <= MAXSETS && due; i++)
			if (sets[i].due)
				prepare(&sets[i]);
		due = 0;
		long n = sys6(NR_epoll_pwait, epfd, L(ev), 16, unreaped ? 0 : ms, 0, 8);
		if (unreaped)
			reap();
		for (long i = 0; i < n; i++) {
			u64 d = ev[i].data;
			if (d == 1) {
				long r;
				if (!(ev[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
					continue;
				r = recv_(ctl, msgbuf, &f, 0);
				if (r > 0) {
					do_message(r, &f);
					close_all(&f);
				} else if (r != -EINTR && r != -EAGAIN) {
					/* The supervisor is gone. What may outlive it waits for the next. */
					if (r == -EPROTO || lstn < 0)
						ending = 1;
					watch(ctl, 0, 0, EPOLL_CTL_DEL); /* a child on its way to execve still has it open */
					close_(&ctl);
					for (i32 k = 0; k < nexecs; k++)
						execs[k].exflags &= ~(X_TOLD | X_ASKED);
				}
			} else if (d == 2) {
				reap();
			} else if (d == 3) {
				accept_supervisor();
			} else if (d & 0x100000000ULL) {
				struct exec *e = &execs[d & 0xffff];
				struct set *g = set_of(e);
				if (e->state == X_REAPING && g && !populated(g)) {
					watch(g->eventsfd, 0, 0, EPOLL_CTL_DEL);
					done(e);
				}
			} else if (d & 0x200000000ULL) {
				/* v1 has no oom.group, and tells every group below the one that is full:
				 * whether the rest of this tree goes too is for the supervisor to say. */
				i32 k = (i32)(d & 0xffff);
				u64 v;
				if (sets[k].used && sys3(NR_read, sets[k].oomfd, &v, 8) == 8)
					for (i32 x = 0; x < nexecs; x++)
						if (execs[x].state == X_RUNNING && execs[x].set == k) {
							struct task_msg t;
							memset(&t, 0, sizeof t);
							t.id = execs[x].id;
							execs[x].flags |= EXF_OOM;
							if (ctl >= 0)
								send_(ctl, &t, sizeof t, M_OOM, NULL, 0);
						}
			}
		}
	}
}
static long write_map(const char *name, i32 pid, const char *text)
{
	char path[64];
	scat(utoa(scat(path, "/proc/"), (u64)pid), name);
	return write_file(path, text, slen(text));
}
static long open_ns(const char *name, i32 *fd)
{
	char path[64];
	scat(utoa(scat(path, "/proc/"), (u64)initpid), name);
	return *fd = (i32)sys4(NR_openat, AT_FDCWD, path, O_CLOEXEC, 0);
}
static long raise_caps(void)
{
	struct cap_header h = {0x20080522, 0};
	struct cap_data d[2];
	long r = sys2(NR_capget, &h, d);
	d[0].effective = d[0].permitted;
	d[1].effective = d[1].permitted;
	return r < 0 ? r : sys2(NR_capset, &h, d);
}
static void keeper(long n, struct fds *f)
{
	char *s, *end, *a, *b, *uidmap, *gidmap;
	i32 sv[2] = {-1, -1}, tree = -1, rwfd = -1, cg = -1, nprocs, k = 0, mounts[64], nm = 0, step = ST_PROTOCOL;
	struct fds rf;
	struct op top;
	long r = 0;
	u64 chld = 1ULL << (SIGCHLD - 1);

	sys2(NR_prctl, PR_SET_NAME, "belljar-keeper");
	sigaction(SIGCHLD, 0);
	sys0(NR_setsid);
	memcpy(planbuf, msgbuf, (uptr)n);
	plan = (struct sandbox_msg *)planbuf;
	sys1(NR_close, 3);
	ctl = take(f, k++);
	close_all(&tops);
	greeted = 1;
	ending = 0;
	if (n < (long)sizeof *plan)
		goto bad;
	nprocs = (i32)((plan->flags & SB_PROCS_MASK) >> SB_PROCS_SHIFT);
	if (plan->template >= 256 || templatefd[plan->template] < 0 || plan->nmounts > 64 || nprocs > MAXPROCS ||
	    plan->maplen < 2 || sizeof *plan + (u64)plan->maplen > (u64)n || plan->nrwdirs > 64 || plan->nmasks > 256 ||
	    (plan->nsflags & ~NSFLAGS) || plan->uid == ~0U || plan->gid == ~0U || plan->initid == ~0U)
		goto bad;
	if (plan->flags & SB_PERSIST)
		lstn = take(f, k++);
	if (plan->flags & SB_CGROUP)
		cg = take(f, k++);
	i32 nidmaps = f->n - (k + nprocs + !!(plan->flags & SB_RWFD));
	if (nidmaps < 0)
		goto bad;
	i32 *procs = &f->v[k], *idmaps = &f->v[k + nprocs + !!(plan->flags & SB_RWFD)];
	if (plan->flags & SB_RWFD)
		rwfd = f->v[k + nprocs];
	s = (char *)(plan + 1);
	end = s + plan->maplen;
	uidmap = next_string(&s, end);
	gidmap = next_string(&s, end);
	s = end;
	end = (char *)plan + n;
	char *strs[3];
	for (i32 i = 0; i < 3; i++)
		if (!(strs[i] = next_string(&s, end)))
			goto bad;
	if (!uidmap || !gidmap)
		goto bad;

	step = ST_CLONE_TREE;
	memset(&top, 0, sizeof top);
	top.attr = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
	/* The root itself read-only; its binds carry their own attributes. */
	if ((r = newroot) < 0)
		goto bad;
	tree = (i32)r;
	struct mount_attr at = {top.attr, 0, 0, 0};
	if ((r = sys5(NR_mount_setattr, tree, "", AT_EMPTY_PATH, &at, sizeof at)) < 0)
		goto bad;
	for (u32 i = 0; i < plan->nmounts; i++) {
		struct op *o = next_op(&s, end, &a, &b);
		i32 src = -1;
		step = ST_PROTOCOL;
		r = -EPROTO;
		if (!o || o->kind != OP_BIND || !o->blen || o->idmap > (u32)nidmaps)
			goto bad;
		step = ST_MOUNT_SOURCE;
		r = open_source(b, o, &src);
		if (r == -ESTALE)
			step = ST_MOUNT_CHANGED;
		if (r >= 0)
			r = clone_mount(src, o, o->idmap ? idmaps[o->idmap - 1] : -1, &mounts[nm]);
		close_(&src);
		if (r < 0)
			goto bad;
		nm++;
	}
	for (u32 i = 0; i < plan->nrwdirs + plan->nmasks; i++) {
		struct op *o = next_op(&s, end, &a, &b);
		step = ST_PROTOCOL;
		r = -EPROTO;
		if (!o || (i < plan->nrwdirs && (o->kind != OP_DIR || !o->blen)))
			goto bad;
	}
	step = ST_FORK;
	r = sys6(NR_mmap, 0, sizeof *slots * (MAXEXEC + 1), PROT_RW, MAP_SHARED | MAP_ANON, -1, 0);
	if (r < 0 && r > -4096)
		goto bad;
	slots = (struct slot *)r;
	if ((r = sys4(NR_socketpair, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv)) < 0)
		goto bad;

	step = ST_CLONE_INIT;
	if ((plan->nsflags & CLONE_NEWNET) && sparenet >= 0) {
		if ((r = sys2(NR_setns, sparenet, CLONE_NEWNET)) < 0)
			goto bad;
		close_(&sparenet);
		plan->nsflags &= ~(u32)CLONE_NEWNET; /* PID 1 is born in it */
		plan->flags &= ~(u32)SB_LO;
	}
	/* What the kernel counts per user (inotify, pending signals, queues, namespaces), it
	 * counts for the maker of a user namespace as well. That must not be the host's root,
	 * whose share one sandbox could use up: it is an id of the sandbox's own range that
	 * nobody inside can become. Capabilities come back with the effective id. */
	if ((plan->nsflags & CLONE_NEWUSER) && ((r = sys3(NR_setresuid, -1, plan->nsowner, -1)) < 0 || (r = raise_caps()) < 0))
		goto bad;
	r = fork_(plan->nsflags & ~(u64)CLONE_NEWCGROUP, cg, &initfd);
	if (r < 0)
		goto bad;
	if (r > 0 && (plan->nsflags & CLONE_NEWUSER) && sys3(NR_setresuid, -1, 0, -1) < 0)
		die(1);
	if (r == 0) {
		close_(&sv[0]);
		close_(&ctl);
		init_main(sv[1], tree, rwfd, procs, nprocs, mounts);
	}
	initpid = (i32)r;
	close_(&sv[1]);
	syncfd = sv[0];
	if (plan->nsflags & CLONE_NEWUSER) {
		step = ST_IDMAP;
		if ((r = write_map("/uid_map", initpid, uidmap)) < 0 || (r = write_map("/gid_map", initpid, gidmap)) < 0)
			goto bad;
	}
	step = ST_INIT_DIED;
	if ((r = sys3(NR_write, syncfd, "x", 1)) < 0)
		goto bad;
	r = recv_(syncfd, msgbuf, &rf, 0);
	if (r != (long)sizeof ready || rf.n != 1) {
		step = slots[MAXEXEC].step ? slots[MAXEXEC].step : ST_INIT_DIED;
		r = slots[MAXEXEC].err ? slots[MAXEXEC].err : EPIPE;
		goto bad;
	}
	memcpy(&ready, msgbuf, sizeof ready);
	rootfd = rf.v[0];
	/* Executions inherit this and PID 1 has not got it: when the sandbox's memory is
	 * used up, the kernel's choice never falls on PID 1. As an ordinary user the file
	 * cannot be opened, and there is no memory limit either. */
	write_file("/proc/self/oom_score_adj", "30", 2);
	/* Into the sandbox's namespaces once, so that executions are born there. Not into its
	 * user namespace (the cgroup descriptors need the host's ids) nor its cgroup namespace. */
	step = ST_ENTER;
	u64 ns = plan->nsflags & (CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS);
	if ((plan->nsflags & CLONE_NEWCGROUP) && (r = open_ns("/ns/cgroup", &cgroupns)) < 0)
		goto bad;
	if ((plan->nsflags & CLONE_NEWUSER) && (r = open_ns("/ns/user", &userns)) < 0)
		goto bad;
	/* By its pidfd it could be entered only while PID 1 is dumpable. */
	if ((plan->nsflags & CLONE_NEWPID) && (r = open_ns("/ns/pid", &pidns)) < 0)
		goto bad;
	if ((r = sys2(NR_setns, initfd, ns | CLONE_NEWNS)) < 0)
		goto bad;
	if ((plan->flags & SB_ROOTLESS) && (r = sys3(NR_write, syncfd, "x", 1)) < 0)
		goto bad;
	close_(&tree);
	close_(&cg);
	for (i32 i = 0; i < nm; i++)
		close_(&mounts[i]);
	for (i32 i = 0; i < f->n; i++)
		close_(&f->v[i]);
	for (i32 i = 0; i < 256; i++)
		close_(&templatefd[i]);

	for (i32 i = 0; i <= MAXSETS; i++)
		sets[i].sock = sets[i].listfd = sets[i].clonefd = sets[i].killfd = sets[i].eventsfd = sets[i].oomfd = -1;
	sets[MAXSETS].used = 1;
	step = ST_EPOLL;
	if ((r = sys2(NR_pipe2, lifefd, O_CLOEXEC)) < 0)
		goto bad;
	if ((r = sys1(NR_epoll_create1, O_CLOEXEC)) < 0)
		goto bad;
	epfd = (i32)r;
	if ((r = sys4(NR_signalfd4, -1, &chld, 8, O_CLOEXEC | SOCK_NONBLOCK)) < 0)
		goto bad;
	sigfd = (i32)r;
	watch(ctl, EPOLLIN, 1, EPOLL_CTL_ADD);
	watch(sigfd, EPOLLIN, 2, EPOLL_CTL_ADD);
	if (lstn >= 0)
		watch(lstn, EPOLLIN, 3, EPOLL_CTL_ADD);
	ready.keeper = (i32)sys0(NR_getpid);
	ready.init = initpid;
	i32 fds[2] = {initfd, rootfd};
	send_(ctl, &ready, sizeof ready, M_READY, fds, 2);
	loop();
bad:
	fail(ctl, step, r, 0, (u32)nm);
	if (initpid > 0) {
		i32 st;
		sys2(NR_kill, initpid, SIGKILL);
		sys4(NR_wait4, initpid, &st, WALL, NULL);
	}
	die(1);
}

/* ---- the end of a nursery: groups of a dead supervisor ---- */

static void remove_tree(i32 parent, const char *name, i32 depth)
{
	struct dirent { u64 ino; i64 off; u16 len; u8 type; char name[]; };
	u8 buf[4096] __attribute__((aligned(8)));
	long fd, n;
	if (sys3(NR_unlinkat, parent, name, AT_REMOVEDIR) == 0 || depth == 0)
		return;
	fd = sys4(NR_openat, parent, name, O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
	if (fd < 0)
		return;
	while ((n = sys3(NR_getdents64, fd, buf, sizeof buf)) > 0)
		for (long i = 0; i < n;) {
			struct dirent *d = (struct dirent *)(buf + i);
			if (d->type == 4 && d->name[0] != '.')
				remove_tree((i32)fd, d->name, depth - 1);
			i += d->len;
		}
	sys1(NR_close, fd);
	sys3(NR_unlinkat, parent, name, AT_REMOVEDIR);
}
/* Makes a net namespace ahead of its use: it is half of what a sandbox costs. It
 * is fresh, never one that was used before. Not without privileges: there is no way
 * back to the host's, in which a sandbox without the net layer is made. */
static void make_net(void)
{
	/* An ordinary user cannot go back to the host's namespace: it is not this user's. */
	long old = rootless ? -EPERM : sys4(NR_openat, AT_FDCWD, "/proc/self/ns/net", O_CLOEXEC, 0), fd = -1;
	if (old < 0) {
		served = 1; /* then with the sandbox, and no further attempt */
		return;
	}
	if (sys1(NR_unshare, CLONE_NEWNET) == 0) {
		if (loopback_up() == 0)
			fd = sys4(NR_openat, AT_FDCWD, "/proc/self/ns/net", O_CLOEXEC, 0);
		if (sys2(NR_setns, old, CLONE_NEWNET) < 0)
			die(1); /* in the wrong namespace it is of no use */
	}
	sys1(NR_close, old);
	if (fd < 0)
		served = 1;
	sparenet = (i32)fd;
}
/* Before the fork: beside a keeper that has yet to do it, detach_templates would
 * take away what is to be cloned. A refusal is the keeper's to tell. */
static i32 clone_template(long n)
{
	struct sandbox_msg *m = (struct sandbox_msg *)msgbuf;
	if (n < (long)sizeof *m || m->template >= 256 || templatefd[m->template] < 0)
		return -EPROTO;
	return (i32)sys3(NR_open_tree, templatefd[m->template], "", OPEN_TREE_CLONE | O_CLOEXEC | AT_EMPTY_PATH | AT_RECURSIVE);
}
static void nursery(void)
{
	static char topnames[4096];
	struct fds f;
	u32 toplen = 0;
	i32 persistent = 0, st;
	for (i32 i = 0; i < 256; i++)
		templatefd[i] = -1;
	sys2(NR_prctl, PR_SET_NAME, "belljar-nursery");
	sys2(NR_prctl, PR_SET_DUMPABLE, 0);
	sys0(NR_setsid);
	sys1(NR_chdir, "/");
	sys1(NR_umask, 0);
	sigmask(SIG_SETMASK, ~0ULL);
	for (int i = 1; i <= 64; i++)
		sigaction(i, 0); /* what the supervisor ignores, programs must not */
	sigaction(SIGCHLD, 1 /* SIG_IGN: keepers are reaped by the kernel */);
	for (;;) {
		struct hdr *h = (struct hdr *)msgbuf;
		long n = recv_(3, msgbuf, &f, inited && !rootless && served != 1 && sparenet < 0 ? MSG_DONTWAIT : 0);
		if (n == -EAGAIN) {
			/* Nothing to do: the first sandbox is on its way, and from the second on a third is likely. */
			make_net();
			if (served > 1)
				detach_templates();
			n = recv_(3, msgbuf, &f, 0);
		}
		if (n == -EINTR)
			continue;
		if (n <= 0)
			break;
		if (h->type == M_INIT)
			do_init((struct init_msg *)msgbuf, n);
		else if (h->type == M_TEMPLATE)
			do_template((struct template_msg *)msgbuf, n);
		else if (h->type == M_FORGET && n == (long)sizeof(struct template_msg))
			forget(((struct template_msg *)msgbuf)->id);
		else if (h->type == M_SANDBOX && f.n >= 1) {
			long pid;
			if (n >= (long)sizeof *plan && (((struct sandbox_msg *)msgbuf)->flags & SB_PERSIST))
				persistent = 1;
			newroot = clone_template(n);
			pid = fork_(0, -1, NULL);
			if (pid == 0)
				keeper(n, &f);
			close_(&newroot);
			if (pid < 0)
				fail(f.v[0], ST_FORK, pid, 0, 0);
			if (n >= (long)sizeof *plan && (((struct sandbox_msg *)msgbuf)->nsflags & CLONE_NEWNET))
				close_(&sparenet);
			served++;
		} else if (h->type == M_TOPS && n - (long)sizeof *h < (long)sizeof topnames) {
			toplen = (u32)(n - (long)sizeof *h);
			memcpy(topnames, h + 1, toplen);
			close_all(&tops);
			tops = f;
			f.n = 0;
			ok(3, h->seq, 0);
		} else
			fail(3, ST_PROTOCOL, EPROTO, 0, h->type);
		close_all(&f);
	}
	/* The supervisor is gone, and with it every keeper that may not outlive it. */
	if (tops.n && !persistent) {
		char *p = topnames, *name;
		while (sys4(NR_wait4, -1, &st, WALL, NULL) != -ECHILD)
			;
		for (i32 i = 0; i < tops.n && (name = next_string(&p, topnames + toplen)); i++)
			remove_tree(tops.v[i], name, 4);
	}
	die(0);
}

#ifndef KEEPER_FUZZ
__attribute__((noreturn, used)) void start_c(void)
{
	nursery();
	for (;;)
		die(0);
}
#if defined(__x86_64__)
__asm__(".globl _start\n_start:\n\txor %ebp,%ebp\n\tand $-16,%rsp\n\tcall start_c\n");
#else
__asm__(".globl _start\n_start:\n\tmov x29,#0\n\tmov x30,#0\n\tbl start_c\n");
#endif
#endif
