package cgroup

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The test binary is its own guest: with this variable set it attaches itself
// by the descriptors from 3 on and does what its arguments say.
const guestEnv = "CGROUP_TEST_GUEST"

func TestMain(m *testing.M) {
	if n, err := strconv.Atoi(os.Getenv(guestEnv)); err == nil {
		guest(n)
	}
	os.Exit(m.Run())
}

func guest(fds int) {
	runtime.LockOSThread()
	for i := range fds {
		if _, err := unix.Write(3+i, []byte("0")); err != nil {
			fmt.Println("attach", i, err)
			os.Exit(99)
		}
	}
	os.Setenv(guestEnv, "0")
	arg := func() int { n, _ := strconv.Atoi(os.Args[2]); return n }
	switch os.Args[1] {
	case "true":
	case "sleep":
		fmt.Println("ready")
		io.Copy(io.Discard, os.Stdin)
	case "hog": // touch so many bytes, then wait
		// Mapped, so that the race detector has no shadow of it.
		b, err := unix.Mmap(-1, 0, arg(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			fmt.Println(err)
		}
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		fmt.Println("ready", b[0])
		io.Copy(io.Discard, os.Stdin)
	case "hogtree": // a bystander in the same set, and a child that hogs
		side := exec.Command("/proc/self/exe", "sleep")
		in, _ := side.StdinPipe()
		defer in.Close()
		if err := side.Start(); err != nil {
			fmt.Println(err)
		}
		fmt.Println("ready")
		err := exec.Command("/proc/self/exe", "hog", os.Args[2]).Run()
		fmt.Println("hog", err)
		side.Wait()
	case "spawn": // so many children; how many were refused
		refused := 0
		for range arg() {
			c := exec.Command("/proc/self/exe", "sleep")
			c.StdinPipe()
			if c.Start() != nil {
				refused++
			}
		}
		fmt.Println("refused", refused)
		io.Copy(io.Discard, os.Stdin)
	case "spin": // so many milliseconds of CPU
		spin(time.Duration(arg()) * time.Millisecond)
	case "short": // so many children of 5 ms each
		for range arg() {
			if err := exec.Command("/proc/self/exe", "spin", "5").Run(); err != nil {
				fmt.Println(err)
				os.Exit(98)
			}
		}
	}
	os.Exit(0)
}

func spin(d time.Duration) {
	for {
		var u unix.Rusage
		unix.Getrusage(unix.RUSAGE_SELF, &u)
		if time.Duration(u.Utime.Nano()+u.Stime.Nano()) >= d {
			return
		}
	}
}

// proc is a running guest.
type proc struct {
	*exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// startIn starts a guest at the given places.
func startIn(t testing.TB, cloneFD int, procs []int, args ...string) *proc {
	t.Helper()
	c := exec.Command("/proc/self/exe", args...)
	// Else the race detector sleeps for a second at each exit.
	c.Env = []string{guestEnv + "=" + strconv.Itoa(len(procs)), "GORACE=atexit_sleep_ms=0"}
	c.Stderr = os.Stderr
	if cloneFD >= 0 {
		c.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: cloneFD}
	}
	for _, fd := range procs {
		n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(n), "procs")
		defer f.Close()
		c.ExtraFiles = append(c.ExtraFiles, f)
	}
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatalf("start %v: %v", args, err)
	}
	p := &proc{c, in, bufio.NewReader(out)}
	t.Cleanup(func() { p.Process.Kill(); p.Wait() })
	return p
}

func startSet(t testing.TB, s *Set, args ...string) *proc {
	t.Helper()
	return startIn(t, s.CloneFD(), s.ProcsFDs(), args...)
}

// line reads the guest's next line.
func (p *proc) line(t testing.TB) string {
	t.Helper()
	s, err := p.out.ReadString('\n')
	if err != nil {
		t.Fatalf("guest %v: %v after %q", p.Args, err, s)
	}
	return strings.TrimSpace(s)
}

// end closes the guest's input and returns how it ended.
func (p *proc) end() error {
	p.in.Close()
	return p.Wait()
}

// layouts returns the arrangements that can be tested here: the host's, and
// v1 alone where the host is hybrid.
func layouts(t testing.TB) map[string]*layout {
	t.Helper()
	_, l := detect()
	if l == nil {
		t.Skip(Supported())
	}
	if err := Supported(); err != nil {
		// An ordinary user in a delegated scope of its own has to step aside first.
		r, err := open(l, Config{Tag: "test-probe", MoveSelf: true})
		if err != nil {
			t.Skip(err)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	out := map[string]*layout{l.kind.String(): l}
	if l.kind == Hybrid && !l.mem.v2 && !l.pids.v2 && (l.cpu == nil || !l.cpu.v2) {
		hs := hierarchies(readFile(t, "/proc/self/mountinfo"), readFile(t, "/proc/self/cgroup"))
		keep := hs[:0]
		for _, h := range hs {
			if !h.v2 {
				keep = append(keep, h)
			}
		}
		v1, err := newLayout(keep)
		if err != nil {
			t.Fatal(err)
		}
		out["v1"] = v1
	}
	return out
}

func readFile(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// each runs a test in every arrangement, and checks that nothing is left of it.
func each(t *testing.T, f func(*testing.T, *Root)) {
	for name, l := range layouts(t) {
		t.Run(name, func(t *testing.T) {
			r, err := open(l, Config{Tag: fmt.Sprintf("test-%d", os.Getpid()), MoveSelf: true})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := r.Close(); err != nil {
					t.Error("close root:", err)
				}
				for _, p := range r.Tops() {
					if _, err := os.Lstat(p); !os.IsNotExist(err) {
						t.Errorf("%s is left: %v", p, err)
					}
				}
			})
			f(t, r)
		})
	}
}

func mustGroup(t testing.TB, r *Root, l Limits) *Group {
	t.Helper()
	g, err := r.Group("sb-test", l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		g.Kill()
		if err := g.Close(5 * time.Second); err != nil {
			t.Error("close group:", err)
		}
	})
	return g
}

func mustAcquire(t testing.TB, g *Group, l Limits) *Set {
	t.Helper()
	s, err := g.Acquire(l)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustEmpty(t testing.TB, s *Set) {
	t.Helper()
	ok, err := s.WaitEmpty(5 * time.Second)
	if err != nil || !ok {
		t.Fatalf("set is not empty: %v", err)
	}
}

func mustRelease(t testing.TB, g *Group, s *Set) {
	t.Helper()
	mustEmpty(t, s)
	if err := g.Release(s); err != nil {
		t.Fatal(err)
	}
}
