package attack

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const mib = 1 << 20

// burn uses processor time in the way args[0], for about args[1] milliseconds
// altogether, and prints "done" if it was allowed to.
//
//	loop      one thread
//	threads   eight threads
//	children  sixty (or args[2]) short children
//	setsid    a child that left session and group, while its parent sleeps
func burn(args []string) int {
	kind, ms := arg(args, 0, "loop"), number(args, 1, 1000)
	switch kind {
	case "loop":
		consume(ms)
	case "threads":
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				runtime.LockOSThread()
				consume(ms / 8)
			})
		}
		wg.Wait()
	case "children":
		n := number(args, 2, 60)
		for range n {
			if err := again("burn", "loop", strconv.Itoa(ms/n)).Run(); err != nil {
				fmt.Println(err)
				return 1
			}
		}
	case "setsid":
		c := again("burn", "loop", strconv.Itoa(ms))
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := c.Run(); err != nil {
			fmt.Println(err)
			return 1
		}
	default:
		return 64
	}
	fmt.Println("done")
	return 0
}

// consume burns ms milliseconds of this thread's own time.
func consume(ms int) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts)
	end := ts.Nano() + int64(ms)*1e6
	var local uint64
	for ts.Nano() < end {
		for i := 0; i < 200000; i++ {
			local += uint64(i) * 31
		}
		_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts)
	}
	_ = local
}

// allocate takes args[1] MiB in the way args[0] and reports success when it got
// all of it.
func allocate(r *Report, args []string) {
	kind, want := arg(args, 0, "heap"), number(args, 1, 64)
	r.Detail = kind
	got := 0
	var err error
	switch kind {
	case "heap", "mmap":
		flags := unix.MAP_PRIVATE | unix.MAP_ANON
		if kind == "mmap" {
			flags |= unix.MAP_POPULATE
		}
		for ; got < want && err == nil; got += 4 {
			var b []byte
			if b, err = unix.Mmap(-1, 0, 4*mib, unix.PROT_READ|unix.PROT_WRITE, flags); err == nil {
				touch(b)
			}
		}
	case "shared":
		var b []byte
		if b, err = unix.Mmap(-1, 0, want*mib, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANON); err == nil {
			touch(b)
			got = want
		}
	case "stack":
		var wg sync.WaitGroup
		for ; got < want; got += 2 {
			wg.Go(func() { deep(2 * mib / 1024) })
			wg.Wait()
			keep = append(keep, make([]byte, 2*mib))
			touch(keep[len(keep)-1])
		}
	case "shm":
		got, err = writeFile("/dev/shm/lab-alloc", want)
	case "tmp":
		got, err = writeFile("/tmp/lab-alloc", want)
	case "memfd":
		var fd int
		if fd, err = unix.MemfdCreate("x", 0); err == nil {
			buf := make([]byte, mib)
			for ; got < want && err == nil; got++ {
				_, err = unix.Write(fd, buf)
			}
		}
	case "sysv":
		for ; got < want && err == nil; got += 16 {
			var id int
			if id, err = unix.SysvShmGet(0, 16*mib, 0o600|unix.IPC_CREAT); err == nil {
				var b []byte
				if b, err = unix.SysvShmAttach(id, 0, 0); err == nil {
					touch(b)
				}
			}
		}
	case "children":
		// Many small ones, none of which stands out.
		var cs []*exec.Cmd
		for ; got < want && err == nil; got += 8 {
			c := again("alloc", "hold", "8")
			out, perr := c.StdoutPipe()
			if perr != nil {
				err = perr
				break
			}
			if err = c.Start(); err == nil {
				_, err = out.Read(make([]byte, 1))
				cs = append(cs, c)
			}
		}
		for _, c := range cs {
			if err == nil {
				err = c.Process.Signal(syscall.Signal(0))
			}
			defer func() { _ = c.Process.Kill(); _ = c.Wait() }()
		}
	case "hold":
		keep = append(keep, make([]byte, want*mib))
		touch(keep[0])
		fmt.Print("x")
		for {
			time.Sleep(time.Hour)
		}
	case "pipes":
		buf := make([]byte, mib)
		for ; got < want && err == nil; got++ {
			var p [2]int
			if err = unix.Pipe2(p[:], unix.O_NONBLOCK); err == nil {
				_, _ = unix.FcntlInt(uintptr(p[1]), unix.F_SETPIPE_SZ, mib)
				var n int
				if n, err = unix.Write(p[1], buf); err == nil && n < mib/2 {
					err = fmt.Errorf("pipe took only %d bytes", n)
				}
			}
		}
	case "sockets":
		buf := make([]byte, 64<<10)
		for total := 0; got < want && err == nil; got = total / mib {
			var p [2]int
			p, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
			if err != nil {
				break
			}
			_ = unix.SetsockoptInt(p[0], unix.SOL_SOCKET, unix.SO_SNDBUF, 8*mib)
			for {
				n, werr := unix.Write(p[0], buf)
				if werr != nil {
					break
				}
				total += n
			}
		}
	case "tcp", "udp":
		f := map[string]func() (int, error){"tcp": fillTCP, "udp": fillUDP}[kind]
		for total := 0; got < want && err == nil; got = total / mib {
			var n int
			if n, err = f(); err == nil && n == 0 {
				err = unix.ENOBUFS
			}
			total += n
		}
	default:
		r.note("unknown kind", kind)
		return
	}
	r.step(fmt.Sprintf("%s: %d of %d MiB", kind, got, want), got >= want && err == nil, errText(err))
}

var keep [][]byte

func touch(b []byte) {
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
	}
}

//go:noinline
func deep(n int) byte {
	var frame [1024]byte
	frame[n%1024] = byte(n)
	if n == 0 {
		return frame[0]
	}
	return deep(n-1) + frame[n%1024]
}

func writeFile(name string, mibs int) (int, error) {
	fd, err := unix.Open(name, unix.O_CREAT|unix.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	buf := make([]byte, mib)
	for i := range buf {
		buf[i] = byte(i)
	}
	for n := 0; n < mibs; n++ {
		for done := 0; done < mib; {
			w, err := unix.Write(fd, buf[done:])
			if err != nil {
				return n, err
			}
			done += w
		}
	}
	return mibs, nil
}

// forks starts up to args[0] children that wait, and reports success when all
// of them ran at the same time. It ends them again.
func forks(r *Report, args []string) {
	want := number(args, 0, 100)
	var started []int
	var err error
	for len(started) < want {
		pid, _, e := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if e != 0 {
			err = e
			break
		}
		if pid == 0 {
			for {
				unix.RawSyscall(unix.SYS_PPOLL, 0, 0, 0)
			}
		}
		started = append(started, int(pid))
	}
	r.step(fmt.Sprintf("%d of %d processes", len(started), want), len(started) == want, errText(err))
	time.Sleep(time.Duration(number(args, 1, 0)) * time.Millisecond)
	for _, pid := range started {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	for range started {
		_, _ = unix.Wait4(-1, nil, 0, nil)
	}
}

// threads does the same with threads.
func threads(r *Report, args []string) {
	want := number(args, 0, 100)
	// CLONE_VM|CLONE_FS|CLONE_FILES|CLONE_SIGHAND|CLONE_THREAD threads that run
	// only two system calls need no stack of their own to speak of, but the
	// runtime knows nothing of them: do it in a child that only does this.
	out, code, sig, err := childThreads(want)
	r.step(fmt.Sprintf("%d of %d threads", out, want), out == want, fmt.Sprintf("exit %d signal %d %s", code, int(sig), errText(err)))
}

// childThreads makes Go threads by locking goroutines; the runtime aborts when
// clone fails, so it is done in a child which writes a byte per thread.
func childThreads(want int) (n, code int, sig syscall.Signal, err error) {
	if want < 0 {
		want = -want
	}
	if os.Getenv("LAB_THREADS") == "" {
		c := again("threads", strconv.Itoa(want))
		c.Env = append(os.Environ(), "LAB_THREADS=1")
		out, rerr := c.Output()
		ws, _ := c.ProcessState.Sys().(syscall.WaitStatus)
		return strings.Count(string(out), "t"), ws.ExitStatus(), ws.Signal(), rerr
	}
	hold := make(chan struct{})
	for range want {
		ok := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			_, _ = unix.Write(1, []byte("t"))
			close(ok)
			<-hold
		}()
		<-ok
	}
	os.Exit(0)
	return
}

// fillDisk writes args[2] MiB (or that many thousand small objects) below
// args[1] in the way args[0], and reports success when it got all.
func fillDisk(r *Report, args []string) {
	kind, dir, want := arg(args, 0, "write"), arg(args, 1, "."), number(args, 2, 64)
	name := filepath.Join(dir, "lab-fill")
	got := 0
	var err error
	fd := -1
	open := func() {
		fd, err = unix.Open(name, unix.O_CREAT|unix.O_RDWR, 0o600)
	}
	switch kind {
	case "write":
		got, err = writeFile(name, want)
	case "fallocate":
		if open(); err == nil {
			for ; got < want && err == nil; got++ {
				err = unix.Fallocate(fd, 0, int64(got)*mib, mib)
			}
		}
	case "sparse":
		if open(); err == nil {
			if err = unix.Ftruncate(fd, int64(want)*mib); err == nil {
				b := make([]byte, mib)
				for i := want - 1; i >= 0 && err == nil; i-- {
					if _, err = unix.Pwrite(fd, b, int64(i)*mib); err == nil {
						got++
					}
				}
			}
		}
	case "deleted":
		if open(); err == nil {
			if err = unix.Unlink(name); err == nil {
				b := make([]byte, mib)
				for ; got < want && err == nil; got++ {
					_, err = unix.Write(fd, b)
				}
			}
		}
	case "files", "dirs", "symlinks", "longnames", "hardlinks":
		pad := ""
		if kind == "longnames" {
			pad = strings.Repeat("n", 200)
		}
		base := filepath.Join(dir, "lab-fill.d")
		err = os.Mkdir(base, 0o700)
		if kind == "hardlinks" {
			err = os.WriteFile(filepath.Join(base, "0"), nil, 0o600)
		}
		for ; got < want*1000 && err == nil; got++ {
			n := filepath.Join(base, pad+strconv.Itoa(got+1))
			switch kind {
			case "dirs":
				err = unix.Mkdir(n, 0o700)
			case "symlinks":
				err = unix.Symlink(strings.Repeat("s", 1000), n)
			case "hardlinks":
				err = unix.Link(filepath.Join(base, "0"), n)
			default:
				var f int
				if f, err = unix.Open(n, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, 0o600); err == nil {
					_ = unix.Close(f)
				}
			}
		}
		want *= 1000
	case "xattrs":
		if open(); err == nil {
			for ; got < want && err == nil; got++ {
				for i := 0; i < 16 && err == nil; i++ {
					err = unix.Fsetxattr(fd, fmt.Sprintf("user.lab%d", got*16+i), make([]byte, 60000), 0)
				}
			}
		}
	default:
		r.note("unknown kind", kind)
		return
	}
	r.step(fmt.Sprintf("%s: %d of %d", kind, got, want), got >= want && err == nil, errText(err))
}

// flood writes args[0] bytes to standard output (args[1] "stderr": standard
// error, "both": half and half; args[2] "nul", "line" or "text") and exits 0.
func flood(args []string) int {
	total := number(args, 0, mib)
	buf := make([]byte, 64<<10)
	switch arg(args, 2, "text") {
	case "nul":
	case "line":
		for i := range buf {
			buf[i] = 'x'
		}
	default:
		for i := range buf {
			buf[i] = "output of an attack\n"[i%20]
		}
	}
	for n, i := 0, 0; n < total; i++ {
		fd := 1
		if w := arg(args, 1, "stdout"); w == "stderr" || w == "both" && i%2 == 1 {
			fd = 2
		}
		w, err := unix.Write(fd, buf[:min(len(buf), total-n)])
		if err != nil {
			return 1
		}
		n += w
	}
	return 0
}

// survive leaves processes that want to outlive their execution, in the way
// args[0]; the rest of the arguments mark their command lines.
//
//	term      ignores every signal that can be ignored, and stays
//	stopped   leaves a stopped child, and stays
//	daemon    double-forks into a new session that holds the streams, and exits
//	closed    the same with closed streams, in a new process group
//	chain     children that each fork anew before they exit, for as long as they can
func survive(args []string) int {
	kind := arg(args, 0, "term")
	mark := args[min(1, len(args)):]
	stay := func() int {
		fmt.Println("ready")
		for {
			time.Sleep(time.Hour)
		}
	}
	switch kind {
	case "term":
		signal.Ignore(syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGPIPE, syscall.SIGALRM, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGTSTP)
		return stay()
	case "stopped":
		c := again(append([]string{"sleep"}, mark...)...)
		if err := c.Start(); err != nil {
			fmt.Println(err)
			return 1
		}
		_ = c.Process.Signal(syscall.SIGSTOP)
		return stay()
	case "daemon", "closed":
		c := again(append([]string{"survive", kind + "2"}, mark...)...)
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if kind == "daemon" {
			c.Stdout, c.Stderr = os.Stdout, os.Stderr
		}
		if err := c.Run(); err != nil {
			fmt.Println(err)
			return 1
		}
		return 0
	case "daemon2", "closed2":
		c := again(append([]string{"survive", "term"}, mark...)...)
		c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if kind == "daemon2" {
			c.Stdout, c.Stderr = os.Stdout, os.Stderr
		}
		if err := c.Start(); err != nil {
			return 1
		}
		time.Sleep(20 * time.Millisecond)
		return 0
	case "parent", "stream":
		if err := strangers(kind == "stream"); err != nil {
			fmt.Println(err)
			return 1
		}
		time.Sleep(50 * time.Millisecond)
		return 0
	case "chain":
		c := again(append([]string{"survive", "chain"}, mark...)...)
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := c.Start(); err != nil {
			return 1
		}
		time.Sleep(5 * time.Millisecond)
		return 0
	}
	return 64
}

// openFiles opens more than args[0] files.
func openFiles(r *Report, args []string) {
	want := number(args, 0, 4096)
	_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(want + 100), Max: uint64(want + 100)})
	n := 0
	var err error
	for ; n < want; n++ {
		if _, err = unix.Open("/", unix.O_PATH, 0); err != nil {
			break
		}
	}
	r.step(fmt.Sprintf("%d of %d descriptors", n, want), n == want, errText(err))
}

// fileSize writes a file of more than args[1] MiB at args[0].
func fileSize(r *Report, args []string) {
	signal.Ignore(syscall.SIGXFSZ)
	got, err := writeFile(arg(args, 0, "lab-size"), number(args, 1, 8))
	r.step(fmt.Sprintf("%d MiB", got), err == nil, errText(err))
}

// priority asks for more than an ordinary share of the machine.
func priority(r *Report, args []string) {
	runtime.LockOSThread()
	r.try("nice -5", unix.Setpriority(unix.PRIO_PROCESS, 0, -5))
	p := struct{ prio int32 }{10}
	for _, pol := range []uintptr{1, 2} {
		_, _, e := unix.Syscall(unix.SYS_SCHED_SETSCHEDULER, 0, pol, uintptr(unsafe.Pointer(&p)))
		r.step(fmt.Sprintf("real time policy %d", pol), e == 0, e.Error())
	}
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: 6, Runtime: 1e6, Deadline: 1e7, Period: 1e7}
	r.try("deadline policy", unix.SchedSetAttr(0, &attr, 0))
	r.try("ioprio real time", errno(unix.Syscall(unix.SYS_IOPRIO_SET, 1, 0, 1<<13)))
	b, err := unix.Mmap(-1, 0, 64*mib, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err == nil {
		err = unix.Mlock(b)
	}
	r.try("mlock 64 MiB", err)
	for name, res := range map[string]int{"core": unix.RLIMIT_CORE, "memlock": unix.RLIMIT_MEMLOCK, "nofile": unix.RLIMIT_NOFILE, "nice": unix.RLIMIT_NICE, "rtprio": unix.RLIMIT_RTPRIO, "sigpending": unix.RLIMIT_SIGPENDING, "msgqueue": unix.RLIMIT_MSGQUEUE} {
		var l unix.Rlimit
		if unix.Getrlimit(res, &l) != nil || l.Max == unix.RLIM_INFINITY {
			continue
		}
		r.try("raise hard limit "+name, unix.Setrlimit(res, &unix.Rlimit{Cur: l.Max, Max: l.Max + 1}))
	}
}

// rlimits shows the limits in force, and whether a core file would be written.
func rlimits(r *Report, args []string) {
	for name, res := range map[string]int{"core": unix.RLIMIT_CORE, "nofile": unix.RLIMIT_NOFILE, "fsize": unix.RLIMIT_FSIZE, "memlock": unix.RLIMIT_MEMLOCK, "nproc": unix.RLIMIT_NPROC, "sigpending": unix.RLIMIT_SIGPENDING, "msgqueue": unix.RLIMIT_MSGQUEUE, "rtprio": unix.RLIMIT_RTPRIO, "nice": unix.RLIMIT_NICE, "rttime": unix.RLIMIT_RTTIME} {
		var l unix.Rlimit
		err := unix.Getrlimit(res, &l)
		r.note(name, fmt.Sprintf("%d %d %s", l.Cur, l.Max, errText(err)))
	}
	var l unix.Rlimit
	_ = unix.Getrlimit(unix.RLIMIT_CORE, &l)
	r.step("core dump larger than a byte", l.Max > 1, "")
	out, code, sig, err := child("crash")
	r.note("crash", fmt.Sprintf("%q exit %d signal %d %s", out, code, int(sig), errText(err)))
	cores, _ := filepath.Glob("core*")
	r.step("core file", len(cores) > 0, strings.Join(cores, " "))
}

// kernelMemory makes args[1] thousand objects of the kernel of kind args[0],
// with descriptors handed to children when its own run out.
func kernelMemory(r *Report, args []string) {
	kind, want := arg(args, 0, "epoll"), number(args, 1, 100)*1000
	n := 0
	var err error
	for ; n < want && err == nil; n++ {
		switch kind {
		case "epoll":
			_, err = unix.EpollCreate1(0)
		case "eventfd":
			_, err = unix.Eventfd(0, 0)
		case "sockets":
			_, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		case "inotify":
			_, err = unix.InotifyInit1(0)
		case "watches":
			fd := 3
			if n == 0 {
				fd, err = unix.InotifyInit1(0)
				keepFd = fd
			}
			if err == nil {
				d := fmt.Sprintf("w%d", n)
				if err = unix.Mkdir(d, 0o700); err == nil {
					_, err = unix.InotifyAddWatch(keepFd, d, unix.IN_ALL_EVENTS)
				}
			}
		case "timers":
			var id int32
			_, _, e := unix.Syscall(unix.SYS_TIMER_CREATE, unix.CLOCK_MONOTONIC, 0, uintptr(unsafe.Pointer(&id)))
			if e != 0 {
				err = e
			}
		case "sigqueue":
			// Blocked real-time signals to oneself pile up in the kernel.
			if n == 0 {
				runtime.LockOSThread()
				var set unix.Sigset_t
				set.Val[0] = 1 << (40 - 1)
				err = unix.PthreadSigmask(unix.SIG_BLOCK, &set, nil)
			}
			if err == nil {
				err = unix.Tgkill(os.Getpid(), unix.Gettid(), unix.Signal(40))
			}
		case "locks":
			if n == 0 {
				keepFd, err = unix.Open("lab-locks", unix.O_CREAT|unix.O_RDWR, 0o600)
			}
			if err == nil {
				err = unix.FcntlFlock(uintptr(keepFd), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: int64(n) * 2, Len: 1})
			}
		case "semaphores":
			_, _, e := unix.Syscall(unix.SYS_SEMGET, 0, 100, 0o600|unix.IPC_CREAT)
			if e != 0 {
				err = e
			}
		case "mqueues":
			_, _, e := unix.Syscall6(unix.SYS_MQ_OPEN, cstr(fmt.Sprintf("lab%d", n)), unix.O_CREAT|unix.O_RDWR, 0o600, 0, 0, 0)
			if e != 0 {
				err = e
			}
		case "keys":
			_, err = unix.AddKey("user", fmt.Sprintf("lab%d", n), make([]byte, 1000), unix.KEY_SPEC_PROCESS_KEYRING)
		case "maps":
			prot := unix.PROT_READ
			if n%2 == 1 {
				prot |= unix.PROT_WRITE
			}
			_, err = unix.Mmap(-1, 0, 4096, prot, unix.MAP_PRIVATE|unix.MAP_ANON)
		default:
			r.note("unknown kind", kind)
			return
		}
		if err != nil {
			break
		}
	}
	r.step(fmt.Sprintf("%s: %d of %d", kind, n, want), n == want, errText(err))
}

var keepFd int

// leaveIPC fills args[1] MiB of System V shared memory or messages (args[0]),
// which no process holds, and ends, or with args[2] "stay" stays attached.
func leaveIPC(args []string) int {
	kind, want := arg(args, 0, "shm"), number(args, 1, 16)
	var err error
	for got := 0; got < want*mib && err == nil; {
		if kind == "shm" {
			var id int
			if id, err = unix.SysvShmGet(0, 4*mib, 0o600|unix.IPC_CREAT); err == nil {
				var b []byte
				if b, err = unix.SysvShmAttach(id, 0, 0); err == nil {
					touch(b)
					got += len(b)
				}
			}
			continue
		}
		if kind == "sem" {
			if _, _, e := unix.Syscall(unix.SYS_SEMGET, 0, 8000, 0o600|unix.IPC_CREAT); e != 0 {
				err = e
			}
			got += 8000 * 64
			continue
		}
		q, _, e := unix.Syscall(unix.SYS_MSGGET, 0, 0o600|unix.IPC_CREAT, 0)
		if e != 0 {
			err = e
			break
		}
		var msg [8 + 8000]byte
		msg[0] = 1
		for range 2 { // msgmnb is 16 KiB
			_, _, e := unix.Syscall6(unix.SYS_MSGSND, q, uintptr(unsafe.Pointer(&msg[0])), 8000, unix.IPC_NOWAIT, 0, 0)
			if e != 0 {
				break
			}
			got += 8000
		}
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("ready")
	return 0
}
