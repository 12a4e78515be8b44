/* Feeds messages that nobody should send to the keeper's own code, under
 * AddressSanitizer and UBSan. keeper.c is included whole; its one way to the kernel,
 * sys6, is replaced by a kernel that exists in this file only: descriptors are
 * numbers in a table, processes too, every call may fail, and nothing real is
 * opened, forked, executed or signalled. Inputs are structured: a correct message
 * of every kind is made first and then damaged. Which, and how the kernel answers,
 * is drawn from the input (libFuzzer) or from a generator with a fixed seed.
 *
 * Besides what the sanitizers see it checks: reads beyond a message (its tail is
 * poisoned), descriptors closed twice, sent after they were closed or never closed,
 * and signals to processes that are not the keeper's living children.
 *
 *   fuzz [seconds [seed]] */
#define memcpy keeper_memcpy
#define memset keeper_memset
#define memcmp keeper_memcmp
#include "../keeper.c"

int printf(const char *, ...);
int fflush(void *);
int atoi(const char *);
long time(long *);
void *malloc(uptr);
void free(void *);
void abort(void) __attribute__((noreturn));
int _setjmp(void *) __attribute__((returns_twice));
void longjmp(void *, int) __attribute__((noreturn));
void __asan_poison_memory_region(const volatile void *, uptr);
void __asan_unpoison_memory_region(const volatile void *, uptr);

/* ---- the source of choices ---- */

static const u8 *input;
static uptr inputlen;
static u64 state, seed;
static i32 useinput, exhausted;

static u32 draw(void)
{
	if (useinput) {
		u32 v = 0;
		if (!inputlen)
			exhausted = 1;
		for (i32 i = 0; i < 2 && inputlen; i++, inputlen--)
			v = v << 8 | *input++;
		return v;
	}
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (u32)(state >> 20);
}
static u32 pick(u32 n) { return draw() % n; }
static i32 one_in(u32 n) { return pick(n) == n - 1; }
static u32 odd_number(void)
{
	static const u32 v[] = {0, 1, 2, 7, 8, 9, 31, 32, 33, 63, 64, 65, 255, 256, 257, 1023, 1024, 4096, 65535, 65536, 131072, 0x7fffffff, 0x80000000u, 0xfffffff8u, 0xffffffffu};
	return one_in(4) ? draw() : v[pick(sizeof v / sizeof *v)];
}

/* ---- a kernel ---- */

enum { BASE = 1000, NFD = 4000, NPID = 3000 };
static u8 fdopen_[NFD], polled[NFD];
static u64 polldata[NFD];
static i32 madeby[NFD], callnr; /* the system call that made a descriptor */
static i32 nopen, lastfd;
static u8 alive[NPID]; /* 1: a child, 2: ended and not waited for */
static i32 lastpid, child, messages, calls, inkeeper, lasttype, calm; /* calm: how seldom messages are damaged and calls fail */
static u64 clocknow;
static u64 jump[64];
static u64 inputs, delivered, executions, sandboxes, confinements, children, maxlive;
static struct { void *p; uptr n; } maps_[8];

static void bug(const char *what, long v)
{
	printf("BUG: %s (%lld), seed %llu, input %llu, after a message of type %d\n", what, (i64)v, seed, inputs, lasttype);
	fflush(NULL);
	abort();
}
static i32 new_fd(void)
{
	for (i32 i = 0; i < NFD; i++) {
		lastfd = (lastfd + 1) % NFD;
		if (!fdopen_[lastfd]) {
			fdopen_[lastfd] = 1;
			nopen++;
			madeby[lastfd] = callnr;
			return BASE + lastfd;
		}
	}
	bug("descriptors leak", nopen);
	return -1;
}
static i32 is_open(long fd) { return (fd >= 0 && fd < 4) || (fd >= BASE && fd < BASE + NFD && fdopen_[fd - BASE]); }
static void close_fd(long fd)
{
	if (fd < 4)
		return;
	if (!is_open(fd))
		bug("closed twice", fd);
	fdopen_[fd - BASE] = polled[fd - BASE] = 0;
	nopen--;
}
static long new_pid(void)
{
	if (++lastpid >= NPID)
		lastpid = 2;
	for (i32 i = 0; alive[lastpid] && i < NPID; i++)
		lastpid = lastpid + 1 < NPID ? lastpid + 1 : 2;
	alive[lastpid] = 1;
	return lastpid;
}
static i32 held(i32 fd) { return fd >= BASE; }
/* Every open descriptor must be in a variable that the keeper still knows. */
static void account(void)
{
	i32 n = held(ctl) + held(lstn) + held(epfd) + held(sigfd) + held(initfd) + held(rootfd) + held(landlockfd) + held(syncfd) + held(userns) + held(cgroupns) + held(pidns) +
		held(lifefd[0]) + held(lifefd[1]) + held(sparenet);
	for (i32 i = 0; i < 256; i++)
		n += held(templatefd[i]);
	for (i32 i = 0; i < tops.n; i++)
		n += held(tops.v[i]);
	for (i32 i = 0; i <= MAXSETS; i++)
		if (sets[i].used) {
			n += held(sets[i].clonefd) + held(sets[i].killfd) + held(sets[i].eventsfd) + held(sets[i].oomfd) + held(sets[i].sock) + held(sets[i].listfd);
			for (i32 k = 0; k < sets[i].nprocs; k++)
				n += held(sets[i].procs[k]);
		}
	for (i32 i = 0; i < nexecs; i++)
		for (i32 k = 0; k < 3 && execs[i].state != X_FREE; k++)
			n += held(execs[i].keep[k]);
	if (n != nopen)
		printf("held: ctl %d lstn %d epoll %d signal %d init %d root %d landlock %d sync %d user %d cgroup %d pid %d life %d %d net %d\n", ctl, lstn, epfd, sigfd, initfd, rootfd, landlockfd, syncfd,
		       userns, cgroupns, pidns, lifefd[0], lifefd[1], sparenet);
	for (i32 i = 0; n != nopen && i < NFD; i++)
		if (fdopen_[i])
			printf("descriptor %d by system call %d\n", BASE + i, madeby[i]);
	if (n != nopen)
		bug("descriptors open and not accounted for", nopen - n);
}

/* ---- messages, correct and damaged ---- */

static u8 *out;
static u32 at, nfds;

static void put(const void *p, u32 n)
{
	if (at + n <= MAXMSG)
		memcpy(out + at, p, n), at += n;
}
static void put32(u32 v) { put(&v, 4); }
static void put64(u64 v) { put(&v, 8); }
static void puts_(const char *s) { put(s, (u32)slen(s) + 1); }
static void put_op(u32 kind, const char *a, const char *b)
{
	while (at % 8)
		put("", 1);
	u32 blen = b ? (u32)slen(b) + (kind != OP_FILE) : 0;
	put32(kind | 0755u << 16);
	put32(pick(16));
	put32((u32)slen(a) + 1);
	put32(blen);
	put64(one_in(2) ? 0 : 5), put64(one_in(2) ? 0 : 6);
	put32(pick(4)), put32(one_in(4));
	puts_(a);
	if (b)
		put(b, blen);
}
static void make(u32 type)
{
	at = 16;
	nfds = 0;
	switch (type) {
	case M_INIT:
		put32(pick(2)), put32(1000), put32(1000), put32(1000);
		break;
	case M_TEMPLATE: {
		u32 n = pick(6);
		put32(one_in(4) ? pick(8) : 0), put32(n);
		for (u32 i = 0; i < n; i++)
			put_op(1 + pick(4), "a/b", one_in(9) ? NULL : "target");
		break;
	}
	case M_FORGET:
		put32(pick(8)), put32(0);
		break;
	case M_TOPS:
		puts_("one"), puts_("two");
		nfds = pick(3);
		break;
	case M_SANDBOX: {
		u32 persist = one_in(3), cg = one_in(2), procs = pick(4), rw = one_in(2), mounts = pick(3), maps = mounts ? pick(2) : 0;
		u32 flags = persist * SB_PERSIST | cg * SB_CGROUP | procs << SB_PROCS_SHIFT | rw * SB_RWFD | (draw() & (SB_HOSTPROC | SB_NODEVPTS | SB_LO | SB_ROOTLESS | SB_OWNPIDS | SB_OWNIPC));
		u32 masks = pick(3), dirs = pick(3);
		nfds = 1 + persist + cg + procs + rw + maps;
		put32(flags), put32(one_in(10) ? pick(8) : 0), put32(draw() * 0x10001u & NSFLAGS), put32(mounts), put64(one_in(4) ? 1000000 : 0);
		put32(1000), put32(1000), put32(65533), put32(0), put32(masks), put32(dirs), put32(20), put32(0);
		put("0 1 65536\0" "0 1 65536", 20);
		puts_("host"), puts_("size=1"), puts_("tmp");
		while (mounts--)
			put_op(OP_BIND, "t", "/s");
		while (dirs--)
			put_op(OP_DIR, "w", "d");
		while (masks--)
			put_op(OP_DIR, "proc/k", NULL);
		break;
	}
	case M_CONFINE: {
		u32 lock = draw() & 127, n = lock & LOCK_SECCOMP ? 8 * (1 + pick(20)) : 0;
		put32(lock), put32(n);
		for (u32 i = 0; i < n; i++)
			put("x", 1);
		for (u32 i = pick(3); i > 0; i--)
			put32(4), put32(0), put64(1), put64(1);
		nfds = !!(lock & LOCK_LANDLOCK);
		break;
	}
	case M_SET: {
		u32 flags = draw() & 15, procs = pick(MAXPROCS + 1);
		put32(pick(24)), put32(flags), put32(procs), put32(0);
		nfds = procs + !!(flags & SET_CLONE) + 2 * !!(flags & SET_KILL) + !!(flags & SET_OOM);
		break;
	}
	case M_EXEC: {
		static char big[9000];
		u32 flags = draw() & 63, extra = one_in(4) ? pick(9) : 0, limits = pick(3), paths = 1 + pick(3), args = 1 + pick(one_in(50) ? 9000 : 4), env = pick(3), blob = 2 + 2 * (paths + args + env);
		put64(pick(400)), put64(one_in(4) ? ~0ULL - pick(3) : one_in(2) ? 5000 : 0);
		put32(flags | extra << EX_EXTRA), put32(pick(24)), put32(1000), put32(1000);
		put32(limits), put32(paths), put32(args), put32(env), put32(blob), put32(022);
		put(big, IDLEN);
		for (u32 i = 0; i < limits; i++)
			put32(7), put32(0), put64(1), put64(2);
		for (u32 i = 0; i < blob && !(flags & EX_BLOB); i += 2)
			put("s", 2);
		nfds = 3 + extra + !!(flags & EX_BLOB) + (flags & EX_KEEP ? 3 : 0);
		break;
	}
	case M_KILL:
	case M_SIGNAL:
	case M_RELEASE:
		put64(pick(400)), put32(pick(70)), put32(pick(2));
		break;
	case M_EXPIRE:
		put64(one_in(2) ? 0 : clocknow + 100000);
		break;
	case M_SOCKET:
		put32(2), put32(1), put32(0), put32(0);
		break;
	}
	struct hdr h = {MAGIC, VERSION, (u16)type, at, draw()};
	/* Damage. */
	u32 hurt = one_in(messages <= 3 ? 20 : calm ? 20 * calm : 3) ? 1 + pick(3) : 0;
	while (hurt--)
		switch (pick(6)) {
		case 0:
			if (at > 16)
				*(u32 *)(out + 16 + pick((at - 16) / 4 + 1) * 4) = odd_number();
			break;
		case 1:
			out[16 + pick(at - 15)] ^= (u8)(1 << pick(8));
			break;
		case 2:
			at = 16 + pick(at - 15);
			break;
		case 3: {
			u32 more = pick(200);
			while (more--)
				put("\xff\0zz" + pick(4), 1);
			break;
		}
		case 4:
			nfds = pick(MAXFDS + 1);
			break;
		case 5:
			h.type = (u16)pick(45);
			break;
		}
	h.len = at;
	if (one_in(300))
		((u8 *)&h)[pick(12)] ^= 1;
	memcpy(out, &h, sizeof h);
	lasttype = h.type;
}
static long deliver(long fd, struct msghdr *m)
{
	static const u8 nursery_types[] = {M_INIT, M_TEMPLATE, M_TEMPLATE, M_FORGET, M_TOPS, M_SANDBOX, M_SANDBOX, M_SANDBOX};
	static const u8 keeper_types[] = {M_CONFINE, M_SET, M_SET, M_SET, M_EXEC, M_EXEC, M_EXEC, M_EXEC, M_EXEC, M_EXEC, M_KILL, M_SIGNAL, M_RELEASE, M_EXPIRE, M_HELLO, M_SOCKET};
	i32 spawner_ = child;
	__asan_unpoison_memory_region(msgbuf, MAXMSG);
	out = m->iov->base;
	m->controllen = 0;
	if (fd == syncfd && inkeeper) { /* PID 1 says that it is ready */
		if (one_in(40))
			return 0;
		struct ready_msg r;
		memset(&r, 0, sizeof r);
		r.h = (struct hdr){MAGIC, VERSION, M_READY, sizeof r, 0};
		memcpy(out, &r, sizeof r);
		at = sizeof r;
		nfds = !one_in(40);
	} else {
		if (!inkeeper || fd == ctl)
			account();
		if (exhausted || ++messages > 200 || one_in(200))
			return 0;
		if (one_in(40))
			return -EINTR;
		if (one_in(40) && fd != 3)
			return -EAGAIN;
		if (!inkeeper)
			make(messages == 1 ? M_INIT : messages == 2 ? M_TEMPLATE : nursery_types[pick(sizeof nursery_types)]);
		else
			make(spawner_ ? M_EXEC : !exhausted && one_in(80) ? M_END : !confined && !one_in(10) ? M_CONFINE : keeper_types[pick(sizeof keeper_types)]);
		delivered++;
	}
	m->flags = one_in(200) ? MSG_TRUNC : one_in(200) ? MSG_CTRUNC : 0;
	if (nfds) {
		struct cmsghdr *c = m->control;
		c->len = sizeof *c + nfds * 4;
		c->level = SOL_SOCKET;
		c->type = SCM_RIGHTS;
		i32 *v = (i32 *)(c + 1);
		for (u32 i = 0; i < nfds; i++)
			v[i] = new_fd();
		m->controllen = (c->len + 7) & ~7UL;
	}
	if (out == msgbuf)
		__asan_poison_memory_region(msgbuf + at, MAXMSG - at);
	return (long)at;
}
static long sent(long fd, struct msghdr *m)
{
	struct hdr *h = m->iov->base;
	volatile u8 sum = 0;
	if (!is_open(fd) && fd >= 0)
		bug("sent on a closed descriptor", fd);
	for (uptr i = 0; i < m->iov->len; i++)
		sum += ((u8 *)h)[i];
	if (h->len != m->iov->len || h->magic != MAGIC)
		bug("sent a malformed message", h->type);
	if (m->control) {
		struct cmsghdr *c = m->control;
		for (uptr i = 0; i < (c->len - sizeof *c) / 4; i++)
			if (!is_open(((i32 *)(c + 1))[i]))
				bug("sent a closed descriptor in a message of type", h->type);
	}
	if (fd < 0)
		return -EBADF;
	if (one_in(25))
		return one_in(2) ? -EAGAIN : -EPIPE;
	if (h->type == M_EXEC && !one_in(20)) /* the spawner's child, whose id the kernel writes */
		slots[h->seq].pid = (i32)new_pid();
	if (h->type == M_EXEC)
		executions++;
	return (long)m->iov->len;
}
static long waited(i32 *st, i32 block)
{
	for (i32 i = 0, p = (i32)pick(NPID); i < NPID; i++, p = (p + 1) % NPID)
		if (alive[p] && (block || alive[p] == 2 || one_in(8))) {
			alive[p] = 0;
			*st = (i32)pick(2) ? 9 : (i32)pick(256) << 8;
			return p;
		}
	return block ? -ECHILD : 0;
}
static long killed(long pid, long sig)
{
	if (child)
		return 0; /* a fresh init, in its own namespace */
	if (pid <= 1 || pid >= NPID || !alive[pid])
		bug("signal to what is not a living child", pid);
	if (sig == SIGKILL)
		alive[pid] = 2;
	return 0;
}
static long event(struct epoll_event *ev)
{
	if (exhausted || ++messages > 1000 || calls > 20000)
		longjmp(jump, 1);
	clocknow += pick(3) * 1000000000ULL * pick(3);
	if (one_in(8))
		return 0;
	u32 from = pick(NFD);
	for (u32 i = 0; i < NFD; i++) {
		u32 k = (from + i) % NFD;
		if (polled[k] && (polldata[k] == 1 || one_in(3))) {
			ev->events = EPOLLIN;
			ev->data = polldata[k];
			return 1;
		}
	}
	return 0;
}
static void poison_plan(void)
{
	if (inkeeper || !plan || (u8 *)plan != planbuf)
		return;
	inkeeper = 1;
	sandboxes++;
	u32 n = plan->h.len;
	if (n <= MAXMSG)
		__asan_poison_memory_region(planbuf + n, MAXMSG - n);
}
static long sys6(long n, long a, long b, long c, long d, long e, long f)
{
	(void)f;
	callnr = (i32)n;
	poison_plan();
	if (++calls > 400000)
		bug("it does not end", n);
	/* Whatever can fail does now and then. */
	if (n != NR_close && n != NR_exit_group && n != NR_epoll_pwait && n != NR_recvmsg && n != NR_sendmsg && n != NR_wait4 && n != NR_kill && n != NR_clock_gettime &&
	    n != NR_munmap && n != NR_rt_sigtimedwait && n != NR_epoll_ctl && one_in(150 + 1000 * (u32)calm))
		return -(long)(1 + pick(40));
	switch (n) {
	case NR_exit_group:
		longjmp(jump, 1);
	case NR_close:
		close_fd(a);
		return 0;
	case NR_close_range:
		for (long i = a; i < BASE + NFD && i <= (b & 0xffffffff); i++)
			if (i >= BASE && is_open(i))
				close_fd(i);
		return 0;
	case NR_recvmsg:
		return deliver(a, (struct msghdr *)b);
	case NR_sendmsg:
		return sent(a, (struct msghdr *)b);
	case NR_openat:
	case NR_openat2:
	case NR_open_tree:
	case NR_socket:
	case NR_epoll_create1:
	case NR_signalfd4:
	case NR_accept4:
		return n == NR_accept4 && one_in(2) ? -EAGAIN : new_fd();
	case NR_fcntl:
		return new_fd();
	case NR_dup3:
		if (!is_open(a))
			bug("dup3 of a closed descriptor", a);
		return b;
	case NR_socketpair:
		((i32 *)d)[0] = new_fd(), ((i32 *)d)[1] = new_fd();
		return 0;
	case NR_pipe2:
		((i32 *)a)[0] = new_fd(), ((i32 *)a)[1] = new_fd();
		return 0;
	case NR_clone3: {
		struct clone_args *x = (struct clone_args *)a;
		if (x->exit_signal != SIGCHLD || (x->flags & CLONE_VM))
			bug("clone3", (long)x->flags);
		if (!inkeeper || one_in(inkeeper && initpid ? 60 : 25)) { /* the child's side of it */
			if (inkeeper) {
				child = 1, children++;
				if (ctl >= 0 && !is_open(ctl))
					bug("ctl", ctl);
			}
			return 0;
		}
		if (x->flags & CLONE_PIDFD)
			*(i32 *)(uptr)x->pidfd = new_fd();
		if (initpid)
			executions++;
		return new_pid();
	}
	case NR_clone:
		return one_in(4) ? 0 : new_pid();
	case NR_wait4:
		if (d)
			memset((void *)d, 0, sizeof(struct rusage));
		return waited((i32 *)b, !(c & WNOHANG));
	case NR_kill:
	case NR_rt_sigqueueinfo:
		return killed(a, b);
	case NR_epoll_ctl:
		if (c < 0 && b == EPOLL_CTL_DEL)
			return -EBADF;
		if (!is_open(c))
			bug("epoll_ctl on a closed descriptor", c);
		if (c >= BASE) {
			polled[c - BASE] = b != EPOLL_CTL_DEL;
			polldata[c - BASE] = ((struct epoll_event *)d)->data;
		}
		return 0;
	case NR_epoll_pwait:
		return event((struct epoll_event *)b);
	case NR_clock_gettime:
		clocknow += 1000;
		((struct timespec *)b)->sec = (i64)(clocknow / 1000000000);
		((struct timespec *)b)->nsec = (i64)(clocknow % 1000000000);
		return 0;
	case NR_newfstatat:
		memset((void *)c, 0, sizeof(struct stat));
		((struct stat *)c)->dev = 5, ((struct stat *)c)->ino = 6;
		((struct stat *)c)->size = one_in(8) ? odd_number() : 1 << 20;
		return 0;
	case NR_mmap: {
		uptr len = (uptr)b;
		if (!len || len > 64 << 20)
			return -EINVAL;
		u8 *p = malloc(len);
		for (uptr i = 0; i < len; i++)
			p[i] = e < 0 ? 0 : i % 2 ? 0 : 's';
		if (e >= 0 && one_in(4))
			p[pick((u32)len)] ^= 's';
		for (i32 i = 0; i < 8; i++)
			if (!maps_[i].p) {
				maps_[i].p = p, maps_[i].n = len;
				return (long)p;
			}
		bug("mappings leak", 8);
		return -1;
	}
	case NR_munmap:
		for (i32 i = 0; i < 8; i++)
			if (maps_[i].p == (void *)a) {
				if (maps_[i].n != (uptr)b)
					bug("munmap of another length", b);
				free((void *)a);
				maps_[i].p = NULL;
				return 0;
			}
		bug("munmap of what is not mapped", a);
		return 0;
	case NR_read:
		if (!is_open(a) && !child)
			bug("read of a closed descriptor", a);
		if (child && one_in(3))
			return 0;
		memset((void *)b, 0, (uptr)c);
		return one_in(4) ? -EAGAIN : c;
	case NR_pread64: {
		const char *s = one_in(2) ? "populated 1\n" : one_in(2) ? "populated 0\nfrozen 0\n" : "12\n13\n";
		uptr len = slen(s) < (uptr)c ? slen(s) : (uptr)c;
		memcpy((void *)b, s, len);
		return (long)len;
	}
	case NR_write:
		return c;
	case NR_getsockopt:
		memset((void *)d, 0, sizeof(struct ucred));
		((struct ucred *)d)->uid = one_in(3) ? 65534 : one_in(2) ? 1000 : 0;
		return 0;
	case NR_getcwd:
		*(char *)a = one_in(5) ? '(' : '/';
		return 2;
	case NR_prctl:
		return a == PR_CAPBSET_DROP && b > 40 ? -EINVAL : 0;
	case NR_execve:
		for (char **p = (char **)b; *p; p++)
			slen(*p);
		for (char **p = (char **)c; *p; p++)
			slen(*p);
		slen((char *)a);
		return -(long)(one_in(2) ? ENOENT : one_in(2) ? EACCES : 8);
	case NR_rt_sigtimedwait:
		if (one_in(3)) {
			memset((void *)b, 0, 128);
			return 1 + (long)pick(64);
		}
		return -EAGAIN;
	case NR_getdents64:
	case NR_getpid:
		return 0;
	}
	return 0;
}
static void one(void)
{
	__asan_unpoison_memory_region(msgbuf, MAXMSG);
	__asan_unpoison_memory_region(planbuf, MAXMSG);
	memset(fdopen_, 0, sizeof fdopen_);
	memset(polled, 0, sizeof polled);
	memset(alive, 0, sizeof alive);
	memset(execs, 0, sizeof execs);
	memset(sets, 0, sizeof sets);
	memset(&ready, 0, sizeof ready);
	memset(&tops, 0, sizeof tops);
	calm = (i32)pick(4);
	nopen = messages = calls = child = inkeeper = exhausted = 0;
	lastpid = 1;
	nexecs = pair = due = begun = initpid = ending = wantout = rootless = served = inited = confined = greeted = 0;
	filterlen = lockflags = helloseq = 0;
	ctl = lstn = epfd = sigfd = initfd = rootfd = landlockfd = syncfd = userns = cgroupns = pidns = lifefd[0] = lifefd[1] = sparenet = -1;
	plan = NULL;
	slots = NULL;
	clocknow = 1000000000;
	for (i32 i = 0; i < 8; i++) {
		free(maps_[i].p);
		maps_[i].p = NULL;
	}
	if (!_setjmp(jump))
		nursery();
	if (confined)
		confinements++;
	if ((u64)nexecs > maxlive)
		maxlive = (u64)nexecs;
	inputs++;
}

#ifdef KEEPER_LIBFUZZER
int LLVMFuzzerTestOneInput(const u8 *data, uptr size)
{
	useinput = 1;
	input = data;
	inputlen = size;
	one();
	return 0;
}
#else
int main(int argc, char **argv)
{
	long limit = time(NULL) + (argc > 1 ? atoi(argv[1]) : 5);
	seed = argc > 2 ? (u64)atoi(argv[2]) : 1;
	state = seed * 0x9e3779b97f4a7c15ULL + 1;
	while (inputs % 64 || time(NULL) < limit)
		one();
	printf("inputs %llu, messages %llu, sandboxes %llu, confined %llu, executions %llu, children %llu, at most %llu at once\n", inputs, delivered, sandboxes, confinements, executions, children,
	       maxlive);
	return 0;
}
#endif
