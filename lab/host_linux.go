package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func hostName() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "linux"
	}
	return "linux " + unix.ByteSliceToString(u.Release[:]) + " " + unix.ByteSliceToString(u.Machine[:])
}

// nobody is whom a direct counter-run is carried out as.
const nobody = 65534

func demote(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if os.Getuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
}

func owner(fi fs.FileInfo) string {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	return fmt.Sprintf("owner %d:%d links %d", st.Uid, st.Gid, st.Nlink)
}

// process is a process of the host, told apart from later ones with its number
// by its start time.
type process struct {
	pid   int
	start string
}

// find returns the processes that have mark in their command line.
func find(mark string) []process {
	var out []process
	ents, _ := os.ReadDir("/proc")
	for _, ent := range ents {
		pid, err := strconv.Atoi(ent.Name())
		if err != nil {
			continue
		}
		cmd, err := os.ReadFile("/proc/" + ent.Name() + "/cmdline")
		if err == nil && bytes.Contains(cmd, []byte(mark)) {
			out = append(out, process{pid, startTime(pid)})
		}
	}
	return out
}

// startTime is field 22 of stat, and the state, without which a zombie would
// count as alive.
func startTime(pid int) string {
	f := stat(pid)
	if len(f) < 20 || f[0] == "Z" || f[0] == "X" {
		return ""
	}
	return f[19]
}

// stat are the fields of /proc/pid/stat from the state on.
func stat(pid int) []string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil
	}
	return strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
}

func (p process) alive() bool { return p.start != "" && startTime(p.pid) == p.start }

func alive(ps []process) []process {
	return slices.DeleteFunc(slices.Clone(ps), func(p process) bool { return !p.alive() })
}

// descendants are all processes below pid.
func descendants(pid int) []process {
	children := map[int][]int{}
	ents, _ := os.ReadDir("/proc")
	for _, ent := range ents {
		if c, err := strconv.Atoi(ent.Name()); err == nil {
			if f := stat(c); len(f) > 1 {
				pp, _ := strconv.Atoi(f[1])
				children[pp] = append(children[pp], c)
			}
		}
	}
	var out []process
	todo := []int{pid}
	for len(todo) > 0 {
		next := children[todo[0]]
		todo = append(todo[1:], next...)
		for _, c := range next {
			out = append(out, process{c, startTime(c)})
		}
	}
	return out
}

// until waits for ok, at most d, and returns how long it took and whether it came.
func until(ctx context.Context, d time.Duration, ok func() bool) (time.Duration, bool) {
	start := time.Now()
	for {
		if ok() {
			return time.Since(start), true
		}
		if time.Since(start) > d || ctx.Err() != nil {
			return time.Since(start), false
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// cgroupsOf are the directories of the cgroups that a process is in.
func cgroupsOf(pid int) []string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return nil
	}
	var out []string
	for l := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(l), ":", 3)
		if len(f) != 3 || f[2] == "/" {
			continue
		}
		bases := []string{"/sys/fs/cgroup/" + f[1], "/sys/fs/cgroup", "/sys/fs/cgroup/unified"}
		for _, base := range bases {
			dir := filepath.Join(base, f[2])
			if _, err := os.Stat(dir + "/cgroup.procs"); err == nil {
				out = append(out, dir)
				break
			}
		}
	}
	return out
}

// namespaceOf is the link of one namespace of a process: "pid:[4026531836]".
func namespaceOf(pid int, kind string) string {
	s, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
	return s
}

// statusOf is one line of /proc/pid/status.
func statusOf(pid int, key string) string {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	for l := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(l, key+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// mountsNow are the mounts of this process's namespace.
func mountsNow() map[string]bool {
	b, _ := os.ReadFile("/proc/self/mountinfo")
	out := map[string]bool{}
	for l := range strings.Lines(string(b)) {
		f := strings.Fields(l)
		if len(f) > 5 {
			out[f[0]+" "+f[3]+" "+f[4]] = true
		}
	}
	return out
}

// bystander is a process of the host that must not be seen, signalled or hurt.
// Its command line has its secret.
type bystander struct {
	process
	secret string
	cmd    *exec.Cmd
	exited chan error
}

func (e *Env) bystander(ctx context.Context) (*bystander, error) {
	b := &bystander{secret: secret(), exited: make(chan error, 1)}
	argv := append(append([]string{e.lab.probe}, e.lab.args...), "sleep", b.secret)
	b.cmd = exec.Command(argv[0], argv[1:]...)
	out, err := b.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	demote(b.cmd)
	if err := b.cmd.Start(); err != nil {
		return nil, err
	}
	b.process = process{b.cmd.Process.Pid, startTime(b.cmd.Process.Pid)}
	e.later(func() {
		_ = b.cmd.Process.Kill()
		<-b.exited
	})
	_, err = out.Read(make([]byte, 16))
	go func() { b.exited <- b.cmd.Wait() }()
	if err != nil {
		return nil, errors.Join(errors.New("the bystander did not start"), err)
	}
	return b, nil
}

// resident is the supervisor's own memory in bytes.
func resident() int64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	f := strings.Fields(string(b))
	n, _ := strconv.ParseInt(f[1], 10, 64)
	return n * int64(os.Getpagesize())
}

func openDescriptors() int {
	ents, _ := os.ReadDir("/proc/self/fd")
	return len(ents)
}
