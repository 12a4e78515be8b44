// Guest is the first process of the vmlane's virtual machine: it sets up what
// an init system would, runs the tests of the plan as root and as an ordinary
// user, prints their status and powers the machine off.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"belljar/internal/vmlane/plan"
)

const user = 1000

func main() {
	if err := run(); err != nil {
		fmt.Println("vmlane guest:", err)
	}
	unix.Sync()
	// The emulated machine has no power switch; with reboot=t this ends it.
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
}

func run() error {
	b, err := os.ReadFile("/plan.json")
	if err != nil {
		return err
	}
	var p plan.Plan
	if err := json.Unmarshal(b, &p); err != nil {
		return err
	}
	if err := setUp(p); err != nil {
		return err
	}
	for _, t := range p.Tests {
		fmt.Println(plan.Begin + t.Name)
		fmt.Println(plan.End + t.Name + ": " + test(t))
	}
	return nil
}

func setUp(p plan.Plan) error {
	// 1. A root that is an ordinary mount: pivot_root refuses the first one.
	if err := errors.Join(
		unix.Mount("/image", "/image", "", unix.MS_BIND, ""),
		unix.Chdir("/image"),
		unix.Mount(".", "/", "", unix.MS_MOVE, ""),
		unix.Chroot("."),
		unix.Chdir("/"),
	); err != nil {
		return fmt.Errorf("switch root: %w", err)
	}
	// 2. The usual file systems, propagating as systemd has them.
	for _, m := range []struct {
		typ, at, data string
		flags         uintptr
	}{
		{"proc", "/proc", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"sysfs", "/sys", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"devtmpfs", "/dev", "mode=755", unix.MS_NOSUID},
		{"devpts", "/dev/pts", "gid=0,mode=620,ptmxmode=666", unix.MS_NOSUID | unix.MS_NOEXEC},
		{"tmpfs", "/dev/shm", "mode=1777", unix.MS_NOSUID | unix.MS_NODEV},
		{"mqueue", "/dev/mqueue", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"tmpfs", "/tmp", "mode=1777", unix.MS_NOSUID | unix.MS_NODEV},
		// Where set-user-id programs work, and whose mounts can be id-mapped.
		{"tmpfs", "/var/tmp", "mode=1777", 0},
		{"tmpfs", "/run", "mode=755", unix.MS_NOSUID | unix.MS_NODEV},
		{"cgroup2", "/sys/fs/cgroup", "nsdelegate", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"securityfs", "/sys/kernel/security", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"bpf", "/sys/fs/bpf", "mode=700", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
	} {
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.typ, m.at, m.typ, m.flags, m.data); err != nil {
			return fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	for _, l := range [][2]string{{"/proc/self/fd", "/dev/fd"}, {"/proc/self/fd/0", "/dev/stdin"}, {"/proc/self/fd/1", "/dev/stdout"}, {"/proc/self/fd/2", "/dev/stderr"}} {
		if err := os.Symlink(l[0], l[1]); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share /: %w", err)
	}
	// 3. Modules, network, accounts.
	for _, m := range p.Modules {
		f, err := os.Open(m)
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		_ = f.Close()
		if err != nil && err != unix.EEXIST {
			return fmt.Errorf("load %s: %w", m, err)
		}
	}
	if err := up("lo", [4]byte{127, 0, 0, 1}); err != nil {
		return fmt.Errorf("lo: %w", err)
	}
	// An interface of the host that sandboxes must not see; TEST-NET-1.
	if err := up("dummy0", [4]byte{192, 0, 2, 1}); err != nil {
		return fmt.Errorf("dummy0: %w", err)
	}
	if err := unix.Sethostname([]byte("vmlane")); err != nil {
		return err
	}
	for _, d := range []string{"/home/lab", "/run/user/1000"} {
		if err := errors.Join(os.MkdirAll(d, 0o700), os.Chown(d, user, user)); err != nil {
			return err
		}
	}
	// 4. cgroups as systemd lays them out: root's tests in a service, the
	// ordinary user's in a service with Delegate=yes and DelegateSubgroup=belljar-self.
	return errors.Join(
		group("", true, 0),
		group("system.slice", true, 0),
		group("user.slice", true, 0),
		group("user.slice/user-1000.slice", true, 0),
		group("user.slice/user-1000.slice/user@1000.service", true, user),
		group("user.slice/user-1000.slice/user@1000.service/app.slice", true, user),
	)
}

const cgroups = "/sys/fs/cgroup/"

func group(name string, enable bool, owner int) error {
	dir := cgroups + name
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if enable {
		if err := os.WriteFile(dir+"/cgroup.subtree_control", []byte("+cpu +memory +pids +io +cpuset"), 0); err != nil {
			return fmt.Errorf("controllers of %s: %w", dir, err)
		}
	}
	if owner == 0 {
		return nil
	}
	return errors.Join(os.Chown(dir, owner, owner), os.Chown(dir+"/cgroup.procs", owner, owner),
		os.Chown(dir+"/cgroup.subtree_control", owner, owner), os.Chown(dir+"/cgroup.threads", owner, owner))
}

// up gives an interface its IPv4 address and starts it.
func up(name string, ip [4]byte) error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	addr := struct {
		name [16]byte
		fam  uint16
		port uint16
		ip   [4]byte
		_    [16]byte
	}{fam: unix.AF_INET, ip: ip}
	copy(addr.name[:], name)
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(s), unix.SIOCSIFADDR, uintptr(unsafe.Pointer(&addr))); e != 0 {
		return e
	}
	req := struct {
		name  [16]byte
		flags uint16
		_     [22]byte
	}{flags: unix.IFF_UP | unix.IFF_RUNNING}
	copy(req.name[:], name)
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(s), unix.SIOCSIFFLAGS, uintptr(unsafe.Pointer(&req))); e != 0 {
		return e
	}
	return nil
}

// test runs one binary in its own cgroup and says how it ended.
func test(t plan.Test) string {
	service, home := "system.slice/vmlane.service", "/root"
	name, owner := service, 0
	if !t.Root {
		service, home = "user.slice/user-1000.slice/user@1000.service/app.slice/vmlane.service", "/home/lab"
		name, owner = service+"/belljar-self", user
		if err := group(service, true, owner); err != nil {
			return err.Error()
		}
	}
	if err := group(name, false, owner); err != nil {
		return err.Error()
	}
	cg, err := os.Open(cgroups + name)
	if err != nil {
		return err.Error()
	}
	defer cg.Close()
	cmd := exec.Command(t.Args[0], t.Args[1:]...)
	cmd.Dir = t.Dir
	cmd.Env = append([]string{"PATH=/usr/bin:/bin", "HOME=" + home, "TMPDIR=/var/tmp", "LANG=C.UTF-8", "BELLJAR_VMLANE=1"}, t.Env...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, UseCgroupFD: true, CgroupFD: int(cg.Fd())}
	if !t.Root {
		cmd.Env = append(cmd.Env, "XDG_RUNTIME_DIR=/run/user/1000", "USER=lab")
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: user, Gid: user}
	}
	start := time.Now()
	err = cmd.Run()
	fmt.Printf("took %.1f s\n", time.Since(start).Seconds())
	left, sweepErr := sweep(service)
	var ee *exec.ExitError
	switch {
	case errors.As(err, &ee):
		return strconv.Itoa(ee.ExitCode()) + " (" + ee.Error() + ")"
	case err != nil:
		return err.Error()
	case left != "":
		return "left behind: " + left
	case sweepErr != nil:
		return sweepErr.Error()
	}
	return "0"
}

// sweep ends and removes what a test left in its service, so that the next one
// starts as from a service manager, and lists it. Keepers end by themselves when
// their supervisor is gone, so they have a moment for it.
func sweep(service string) (left string, err error) {
	dir := cgroups + service
	for range 100 {
		reap()
		if left = members(dir); left == "" {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if err := os.WriteFile(dir+"/cgroup.kill", []byte("1"), 0); err != nil {
		return left, err
	}
	for range 100 {
		reap()
		if err = removeGroups(dir); err == nil || errors.Is(err, os.ErrNotExist) {
			return left, nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return left, err
}

// members lists the processes in a group's tree and the groups of sandboxes.
func members(dir string) string {
	var out []string
	_ = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil // gone meanwhile
		}
		if n := d.Name(); strings.HasPrefix(n, "belljar-") && n != "belljar-self" {
			out = append(out, p)
		}
		b, _ := os.ReadFile(p + "/cgroup.procs")
		for _, pid := range strings.Fields(string(b)) {
			comm, _ := os.ReadFile("/proc/" + pid + "/comm")
			out = append(out, pid+" "+strings.TrimSpace(string(comm))+" in "+p)
		}
		return nil
	})
	return strings.Join(out, ", ")
}

func removeGroups(dir string) error {
	list, err := os.ReadDir(dir)
	for _, e := range list {
		if e.IsDir() {
			err = errors.Join(err, removeGroups(dir+"/"+e.Name()))
		}
	}
	return errors.Join(err, unix.Rmdir(dir))
}

// reap collects what the test left to the first process.
func reap() {
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		if pid <= 0 || err != nil {
			return
		}
	}
}
