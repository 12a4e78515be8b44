package cgroup

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// membership returns the groups of a process as /proc tells.
func membership(t *testing.T, pid int) string {
	t.Helper()
	return readFile(t, "/proc/"+strconv.Itoa(pid)+"/cgroup")
}

func TestLifecycle(t *testing.T) {
	each(t, func(t *testing.T, r *Root) {
		g := mustGroup(t, r, Limits{Memory: 64 << 20, Pids: 50})
		s := mustAcquire(t, g, Limits{})
		p := startSet(t, s, "sleep")
		if got := p.line(t); got != "ready" {
			t.Fatalf("guest says %q", got)
		}
		// In every hierarchy the guest is at or below the sandbox's group.
		got := membership(t, p.Process.Pid)
		for _, tr := range r.trees {
			want := "/" + filepath.Base(tr.path) + "/" + g.Name()
			found := false
			for line := range strings.Lines(got) {
				f := strings.SplitN(strings.TrimSpace(line), ":", 3)
				match := f[1] == tr.name || tr.v2 && f[0] == "0"
				found = found || match && (strings.HasSuffix(f[2], want) || strings.Contains(f[2], want+"/"))
			}
			if !found {
				t.Errorf("%s: guest is not below %s:\n%s", tr.name, want, got)
			}
		}
		if err := g.Release(s); !errors.Is(err, ErrBusy) {
			t.Errorf("release of a busy set = %v, want ErrBusy", err)
		}
		if err := g.Close(0); !errors.Is(err, ErrBusy) {
			t.Errorf("close of a busy group = %v, want ErrBusy", err)
		}
		if g.Empty() {
			t.Error("busy group is reported empty")
		}
		if err := p.end(); err != nil {
			t.Fatal(err)
		}
		mustRelease(t, g, s)
		if !g.Empty() {
			t.Error("group is not empty after its only process ended")
		}
		if err := g.Release(s); err == nil {
			t.Error("second release succeeded")
		}
		i := startIn(t, g.InitCloneFD(), g.InitProcsFDs(), "sleep")
		i.line(t)
		if g.Empty() {
			t.Error("group with a PID 1 is reported empty")
		}
		if err := i.end(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestLimitsReadBack(t *testing.T) {
	each(t, func(t *testing.T, r *Root) {
		g := mustGroup(t, r, Limits{})
		for _, l := range []Limits{
			{CPU: 0.5, Memory: 64 << 20, Pids: 10},
			{CPU: 2, Memory: 128 << 20, Pids: 100},
			{CPU: 0.005, Memory: 32 << 20, Pids: 5},
			{},
			{Memory: 1 << 30},
		} {
			if r.cpu == nil {
				l.CPU = 0
			}
			if err := g.SetLimits(l); err != nil {
				t.Fatalf("%+v: %v", l, err)
			}
			got, err := r.limitsOf(g.name)
			if err != nil || got != l || g.Limits() != l {
				t.Errorf("files hold %+v, Limits says %+v (%v), want %+v", got, g.Limits(), err, l)
			}
		}
		// A set's own limits are in its own groups.
		own := Limits{Memory: 16 << 20, Pids: 7}
		if r.cpu != nil {
			own.CPU = 0.25
		}
		s := mustAcquire(t, g, own)
		if got, err := r.limitsOf(s.dir); err != nil || got != own {
			t.Errorf("set holds %+v (%v), want %+v", got, err, own)
		}
		if r.cpu != nil {
			// The sandbox's rate can be lowered below that of an execution.
			if err := g.SetLimits(Limits{CPU: 0.1}); err != nil {
				t.Errorf("lowering the sandbox's rate: %v", err)
			}
		}
		mustRelease(t, g, s)
		for _, bad := range []Limits{{CPU: -1}, {Memory: -1}, {Pids: -1}, {CPU: 0.0001}, {Memory: 100}} {
			if err := g.SetLimits(bad); err == nil {
				t.Errorf("limits %+v accepted", bad)
			}
		}
	})
}

// killRest does what a supervisor does until the execution has ended: on v1 the
// OOM event makes it kill the rest.
func killRest(t *testing.T, s *Set) bool {
	t.Helper()
	if s.OOMFD() < 0 {
		return false
	}
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(s.OOMFD()), Events: unix.POLLIN}}, 5000); err != nil || n != 1 {
		t.Fatalf("no OOM event: %v", err)
	}
	oom, err := s.OOM()
	if err != nil {
		t.Fatal(err)
	}
	if oom {
		if err := s.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	return oom
}

func TestOOMOfExecution(t *testing.T) {
	each(t, func(t *testing.T, r *Root) {
		g := mustGroup(t, r, Limits{Memory: 512 << 20})
		sibling := mustAcquire(t, g, Limits{})
		p := startSet(t, sibling, "sleep")
		p.line(t)
		s := mustAcquire(t, g, Limits{Memory: 40 << 20})
		h := startSet(t, s, "hogtree", "200000000")
		h.line(t)
		if !killRest(t, s) && s.OOMFD() >= 0 {
			t.Error("OOM event without OOM")
		}
		mustEmpty(t, s)
		if err := h.Wait(); err == nil {
			t.Error("the hog's parent survived")
		}
		if oom, err := s.OOMKilled(); err != nil || !oom {
			t.Errorf("OOMKilled = %v, %v", oom, err)
		}
		u, err := s.Usage()
		if err != nil || u.PeakMemory >= 0 && (u.PeakMemory < 30<<20 || u.PeakMemory > 41<<20) {
			t.Errorf("peak memory %d, %v", u.PeakMemory, err)
		}
		if oom, err := sibling.OOMKilled(); err != nil || oom {
			t.Errorf("sibling's OOMKilled = %v, %v", oom, err)
		}
		if err := p.end(); err != nil {
			t.Errorf("sibling ended with %v", err)
		}
		mustRelease(t, g, sibling)
		mustRelease(t, g, s)
		again := mustAcquire(t, g, Limits{})
		if oom, err := again.OOMKilled(); err != nil || oom {
			t.Errorf("OOM of the former user is reported again: %v, %v", oom, err)
		}
		mustRelease(t, g, again)
	})
}

func TestOOMOfSandbox(t *testing.T) {
	each(t, func(t *testing.T, r *Root) {
		g := mustGroup(t, r, Limits{Memory: 60 << 20})
		small := mustAcquire(t, g, Limits{})
		p := startSet(t, small, "sleep")
		p.line(t)
		s := mustAcquire(t, g, Limits{})
		h := startSet(t, s, "hogtree", "200000000")
		h.line(t)
		if !killRest(t, s) && s.OOMFD() >= 0 {
			t.Error("OOM event without OOM")
		}
		mustEmpty(t, s)
		if small.OOMFD() >= 0 {
			// v1 tells everybody below; only the victim's set says yes.
			if oom, err := small.OOM(); err != nil || oom {
				t.Errorf("the innocent's OOM = %v, %v", oom, err)
			}
		}
		if oom, err := s.OOMKilled(); err != nil || !oom {
			t.Errorf("OOMKilled = %v, %v", oom, err)
		}
		if err := p.end(); err != nil {
			t.Errorf("innocent ended with %v", err)
		}
		h.Wait()
		mustRelease(t, g, small)
		mustRelease(t, g, s)
	})
}

func TestPidsLimit(t *testing.T) {
	each(t, func(t *testing.T, r *Root) {
		for _, where := range []string{"sandbox", "execution"} {
			t.Run(where, func(t *testing.T) {
				group, set := Limits{Pids: 60}, Limits{}
				if where == "execution" {
					group, set = Limits{Pids: 500}, Limits{Pids: 60}
				}
				g := mustGroup(t, r, group)
				s := mustAcquire(t, g, set)
				if hit, err := s.PidsHit(); err != nil || hit {
					t.Fatalf("hit before anything ran: %v, %v", hit, err)
				}
				p := startSet(t, s, "spawn", "61")
				if got := p.line(t); got == "refused 0" || !strings.HasPrefix(got, "refused ") {
					t.Errorf("guest says %q", got)
				}
				if hit, err := s.PidsHit(); err != nil || !hit {
					t.Errorf("PidsHit = %v, %v", hit, err)
				}
				u, err := s.Usage()
				if err != nil {
					t.Fatal(err)
				}
				if where == "execution" && u.PeakPids != -1 && u.PeakPids != 60 {
					t.Errorf("peak pids %d, want 60", u.PeakPids)
				}
				if err := s.Kill(); err != nil {
					t.Fatal(err)
				}
				mustRelease(t, g, s)
				s = mustAcquire(t, g, set)
				if hit, err := s.PidsHit(); err != nil || hit {
					t.Errorf("hit of the former user is reported again: %v, %v", hit, err)
				}
				mustRelease(t, g, s)
			})
		}
	})
}

func TestCPUAccounting(t *testing.T) {
	each(t, func(t *testing.T, r *Root) {
		g := mustGroup(t, r, Limits{})
		for range 2 { // the second time in a recycled set
			s := mustAcquire(t, g, Limits{})
			p := startSet(t, s, "short", "10")
			if err := p.Wait(); err != nil {
				t.Fatal(err)
			}
			mustEmpty(t, s)
			cpu, err := s.CPU()
			if err != nil {
				t.Fatal(err)
			}
			if self := p.ProcessState.UserTime() + p.ProcessState.SystemTime(); cpu < 50*time.Millisecond || cpu > self+200*time.Millisecond {
				t.Errorf("ten children of 5 ms: counted %v, the parent's rusage with its children is %v", cpu, self)
			}
			u, err := s.Usage()
			if err != nil || u.CPU < cpu {
				t.Errorf("usage %+v, %v", u, err)
			}
			mustRelease(t, g, s)
			s = mustAcquire(t, g, Limits{})
			if cpu, err := s.CPU(); err != nil || cpu > 2*time.Millisecond {
				t.Errorf("unused set has used %v, %v", cpu, err)
			}
			mustRelease(t, g, s)
		}
		u, err := g.Usage()
		if err != nil || u.CPU < 100*time.Millisecond {
			t.Errorf("sandbox used %+v, %v", u, err)
		}
	})
}

func TestCPURate(t *testing.T) {
	each(t, func(t *testing.T, r *Root) {
		if r.cpu == nil {
			t.Skip("no cpu controller here")
		}
		for _, where := range []string{"sandbox", "execution"} {
			group, set := Limits{CPU: 0.2}, Limits{}
			if where == "execution" {
				group, set = Limits{}, Limits{CPU: 0.2}
			}
			g := mustGroup(t, r, group)
			s := mustAcquire(t, g, set)
			dir := g.name
			if where == "execution" {
				dir = s.dir
			}
			if err := startSet(t, s, "spin", "100").Wait(); err != nil {
				t.Fatal(err)
			}
			// The kernel counts the periods in which the group had to wait.
			b, err := get(r.cpu.fd, dir+"/cpu.stat")
			n, ok := field(b, "nr_throttled")
			if err != nil || !ok || n == 0 {
				t.Errorf("%s: 100 ms of CPU at a fifth of a core were never throttled: %v %s", where, err, b)
			}
			mustRelease(t, g, s)
		}
	})
}

func TestFreeze(t *testing.T) {
	each(t, func(t *testing.T, r *Root) {
		g := mustGroup(t, r, Limits{})
		s := mustAcquire(t, g, Limits{})
		p := startSet(t, s, "sleep")
		p.line(t)
		spinner := mustAcquire(t, g, Limits{})
		startSet(t, spinner, "spin", "100000")
		for range 2 {
			if err := g.Freeze(true); err != nil {
				t.Fatal(err)
			}
			before, err := spinner.CPU()
			if err != nil {
				t.Fatal(err)
			}
			// Another process gets the CPU meanwhile. A frozen one uses none, but for what
			// it takes to leave it.
			if err := exec.Command("/proc/self/exe", "-test.run=^$").Run(); err != nil {
				t.Fatal(err)
			}
			if after, _ := spinner.CPU(); after-before > time.Millisecond {
				t.Errorf("frozen guest used %v of CPU", after-before)
			}
			if err := g.Freeze(false); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.end(); err != nil {
			t.Errorf("guest ended with %v after thaw", err)
		}
		// What is frozen can be killed.
		if err := g.Freeze(true); err != nil {
			t.Fatal(err)
		}
		if err := spinner.Kill(); err != nil {
			t.Fatal(err)
		}
		mustRelease(t, g, spinner)
		mustRelease(t, g, s)
		if err := g.Freeze(false); err != nil {
			t.Fatal(err)
		}
	})
}

// After cgroup.kill whatever is cloned into the group is killed (Linux 6.18): a
// set must not be handed out again with the same leaf.
func TestKillThenReuse(t *testing.T) {
	each(t, func(t *testing.T, r *Root) {
		g := mustGroup(t, r, Limits{})
		name := ""
		for range 3 {
			s := mustAcquire(t, g, Limits{})
			if name == "" {
				name = s.Name()
			} else if s.Name() != name {
				t.Errorf("set %s instead of the recycled %s", s.Name(), name)
			}
			serial := s.Serial()
			p := startSet(t, s, "sleep")
			p.line(t)
			if s.KillFD() >= 0 { // as somebody does who has the descriptor only
				if _, err := unix.Write(s.KillFD(), []byte("1")); err != nil {
					t.Fatal(err)
				}
				s.MarkKilled()
			} else if err := s.Kill(); err != nil {
				t.Fatal(err)
			}
			p.Wait()
			if ws := p.ProcessState.Sys().(syscall.WaitStatus); ws.Signal() != unix.SIGKILL {
				t.Errorf("killed guest ended with %v", p.ProcessState)
			}
			mustRelease(t, g, s)
			if s.KillFD() >= 0 && s.Serial() == serial {
				t.Error("the descriptors were replaced, and Serial does not say so")
			}
			s = mustAcquire(t, g, Limits{})
			if err := startSet(t, s, "true").Wait(); err != nil {
				t.Errorf("in a recycled set /bin/true ends with %v", err)
			}
			mustRelease(t, g, s)
		}
	})
}

func TestKillGroupThenReuse(t *testing.T) {
	each(t, func(t *testing.T, r *Root) {
		for range 3 {
			g := mustGroup(t, r, Limits{Pids: 100})
			s := mustAcquire(t, g, Limits{})
			i := startIn(t, g.InitCloneFD(), g.InitProcsFDs(), "sleep")
			i.line(t)
			p := startSet(t, s, "sleep")
			p.line(t)
			if err := g.Kill(); err != nil {
				t.Fatal(err)
			}
			mustEmpty(t, s)
			if i.Wait() == nil || p.Wait() == nil {
				t.Error("a guest survived Kill")
			}
			if err := g.Release(s); err != nil {
				t.Fatal(err)
			}
			if err := g.Close(5 * time.Second); err != nil {
				t.Fatal(err)
			}
			h := mustGroup(t, r, Limits{})
			if !r.mem.v2 && h != g {
				t.Error("the tree was not recycled")
			}
			if err := startIn(t, h.InitCloneFD(), h.InitProcsFDs(), "true").Wait(); err != nil {
				t.Errorf("PID 1 of a recycled tree: %v", err)
			}
			s = mustAcquire(t, h, Limits{})
			if err := startSet(t, s, "true").Wait(); err != nil {
				t.Errorf("execution in a recycled tree: %v", err)
			}
			mustRelease(t, h, s)
			if err := h.Close(5 * time.Second); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestRecyclingResets(t *testing.T) {
	each(t, func(t *testing.T, r *Root) {
		g := mustGroup(t, r, Limits{Memory: 256 << 20, Pids: 77})
		s := mustAcquire(t, g, Limits{Memory: 128 << 20})
		p := startSet(t, s, "hog", "80000000")
		p.line(t)
		if err := p.end(); err != nil {
			t.Fatal(err)
		}
		mustEmpty(t, s)
		big, err := s.Usage()
		if err != nil || big.PeakMemory >= 0 && big.PeakMemory < 80_000_000 {
			t.Fatalf("peak %d, %v", big.PeakMemory, err)
		}
		mustRelease(t, g, s)
		s = mustAcquire(t, g, Limits{})
		if err := startSet(t, s, "true").Wait(); err != nil {
			t.Fatal(err)
		}
		mustEmpty(t, s)
		u, err := s.Usage()
		if err != nil || u.PeakMemory > 60_000_000 {
			t.Errorf("the next execution's peak is %d, %v", u.PeakMemory, err)
		}
		file := "memory.limit_in_bytes"
		if r.mem.v2 {
			file = "memory.max"
		}
		if l, err := r.mem.get(s.dir, file); err != nil || l != "max" && len(l) < 19 {
			t.Errorf("the next execution's memory limit is %s, %v", l, err)
		}
		mustRelease(t, g, s)
		if err := g.Close(5 * time.Second); err != nil {
			t.Fatal(err)
		}
		h := mustGroup(t, r, Limits{})
		if l, err := r.limitsOf(h.name); err != nil || l != (Limits{}) {
			t.Errorf("limits of the next sandbox: %+v, %v", l, err)
		}
		u, err = h.Usage()
		if err != nil || u.CPU > 2*time.Millisecond || u.PeakMemory > 2<<20 || u.PeakPids > 0 {
			t.Errorf("usage of the next sandbox: %+v, %v", u, err)
		}
	})
}

func TestSignalTree(t *testing.T) {
	each(t, func(t *testing.T, r *Root) {
		g := mustGroup(t, r, Limits{})
		s := mustAcquire(t, g, Limits{})
		p := startSet(t, s, "spawn", "3")
		p.line(t)
		other := mustAcquire(t, g, Limits{})
		q := startSet(t, other, "sleep")
		q.line(t)
		if n, err := s.SignalTree(unix.SIGTERM); err != nil || n != 4 {
			t.Errorf("signalled %d processes, %v; want 4", n, err)
		}
		p.Wait()
		if ws := p.ProcessState.Sys().(syscall.WaitStatus); ws.Signal() != unix.SIGTERM {
			t.Errorf("guest ended with %v", p.ProcessState)
		}
		mustRelease(t, g, s)
		if err := q.end(); err != nil {
			t.Errorf("sibling ended with %v", err)
		}
		mustRelease(t, g, other)
	})
}

func TestConcurrentAcquire(t *testing.T) {
	each(t, func(t *testing.T, r *Root) {
		g := mustGroup(t, r, Limits{})
		var wg sync.WaitGroup
		var mu sync.Mutex
		inUse := map[string]bool{}
		for i := range 200 {
			wg.Go(func() {
				s, err := g.Acquire(Limits{Memory: int64(i%3) << 24})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if inUse[s.Name()] {
					t.Errorf("%s was handed out twice", s.Name())
				}
				inUse[s.Name()] = true
				mu.Unlock()
				if i%5 == 0 {
					if err := s.Kill(); err != nil {
						t.Error(err)
					}
				}
				mu.Lock()
				delete(inUse, s.Name())
				mu.Unlock()
				if err := g.Release(s); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	})
}

func TestReopen(t *testing.T) {
	for name, l := range layouts(t) {
		t.Run(name, func(t *testing.T) {
			c := Config{Tag: "test-re-" + strconv.Itoa(os.Getpid())}
			r, err := open(l, c)
			if err != nil {
				t.Fatal(err)
			}
			lim := Limits{Memory: 64 << 20, Pids: 50}
			g, err := r.Group("sb-a", lim)
			if err != nil {
				t.Fatal(err)
			}
			s := mustAcquire(t, g, Limits{})
			if err := startSet(t, s, "spin", "20").Wait(); err != nil {
				t.Fatal(err)
			}
			mustRelease(t, g, s)
			s = mustAcquire(t, g, Limits{})
			p := startSet(t, s, "sleep")
			p.line(t)
			state := s.State()

			if _, err := open(l, c); !errors.Is(err, ErrInUse) {
				t.Errorf("second owner: %v, want ErrInUse", err)
			}
			if err := Sweep(r.Tops()); !errors.Is(err, ErrInUse) {
				t.Errorf("sweep of a live runtime: %v, want ErrInUse", err)
			}
			// The death of a runtime: its descriptors are gone, the groups stay.
			if err := r.Close(); !errors.Is(err, unix.EBUSY) {
				t.Errorf("close with a busy group: %v, want EBUSY", err)
			}
			g.closeAll()

			r, err = open(l, c)
			if err != nil {
				t.Fatal(err)
			}
			if left, err := r.Left(); err != nil || len(left) != 1 || left[0] != g.Name() {
				t.Fatalf("left: %q, %v", left, err)
			}
			h, err := r.Reopen(g.Name(), "sb-a")
			if err != nil {
				t.Fatal(err)
			}
			if h.Limits() != lim {
				t.Errorf("limits %+v, want %+v", h.Limits(), lim)
			}
			s, err = h.Adopt(state)
			if err != nil {
				t.Fatal(err)
			}
			if cpu, err := s.CPU(); err != nil || cpu <= 0 || cpu > 2*time.Second {
				t.Errorf("adopted execution used %v, %v", cpu, err)
			}
			if err := s.Kill(); err != nil {
				t.Fatal(err)
			}
			p.Wait()
			mustRelease(t, h, s)
			if err := h.Close(5 * time.Second); err != nil {
				t.Error(err)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestSweep(t *testing.T) {
	for name, l := range layouts(t) {
		t.Run(name, func(t *testing.T) {
			r, err := open(l, Config{Tag: "test-sw-" + strconv.Itoa(os.Getpid())})
			if err != nil {
				t.Fatal(err)
			}
			tops := r.Tops()
			g, err := r.Group("sb-a", Limits{})
			if err != nil {
				t.Fatal(err)
			}
			s := mustAcquire(t, g, Limits{})
			var p *proc
			if r.uni != nil {
				p = startSet(t, s, "sleep")
				p.line(t)
			}
			r.Close()
			g.closeAll()
			if err := Sweep(tops); err != nil {
				t.Error(err)
			}
			if p != nil && p.Wait() == nil {
				t.Error("the dead runtime's guest survived")
			}
			for _, top := range tops {
				if _, err := os.Lstat(top); !os.IsNotExist(err) {
					t.Errorf("%s is left", top)
				}
			}
			if err := Sweep(tops); err != nil {
				t.Errorf("second sweep: %v", err)
			}
		})
	}
}

func TestSweepRefuses(t *testing.T) {
	each(t, func(t *testing.T, r *Root) {
		mount := r.trees[0].mount
		parent := filepath.Dir(r.trees[0].path)
		tmp := t.TempDir()
		outside := filepath.Join(tmp, "belljar-x")
		foreign := filepath.Join(parent, "cgtest-foreign-"+strconv.Itoa(os.Getpid()))
		if err := os.Mkdir(outside, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(foreign, 0o755); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(foreign)
		link := filepath.Join(tmp, "belljar-link")
		if err := os.Symlink(foreign, link); err != nil {
			t.Fatal(err)
		}
		for _, p := range []string{
			outside, link, foreign, mount, mount + "/belljar-x/..", "/", "", "belljar-x",
			mount + "/../../.." + tmp + "/belljar-x", mount + "/belljar-", mount + "/belljar-self", mount + "/belljar-A",
		} {
			if err := Sweep([]string{p}); err == nil {
				t.Errorf("sweep %q succeeded", p)
			}
		}
		for _, p := range []string{outside, foreign} {
			if _, err := os.Lstat(p); err != nil {
				t.Errorf("%s is gone: %v", p, err)
			}
		}
	})
	// What is not named as this package names groups is left alone, with the top.
	l := layouts(t)[Detect().Kind.String()]
	r, err := open(l, Config{Tag: "test-sf-" + strconv.Itoa(os.Getpid())})
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(r.Tops()[0], "other")
	if err := os.Mkdir(other, 0o755); err != nil {
		t.Fatal(err)
	}
	tops := r.Tops()
	r.Close()
	if err := Sweep(tops); err == nil || !strings.Contains(err.Error(), "left alone") {
		t.Errorf("sweep of a top with a foreign group: %v", err)
	}
	if _, err := os.Lstat(other); err != nil {
		t.Error(err)
	}
	os.Remove(other)
	if err := Sweep(tops); err != nil {
		t.Error(err)
	}
}

func TestOpenRefuses(t *testing.T) {
	for _, c := range []Config{{}, {Tag: "../x"}, {Tag: "A"}, {Tag: "-x"}, {Tag: "self"}, {Tag: strings.Repeat("a", 64)}, {Tag: "x", Parent: "a/b"}, {Tag: "x", Parent: "/a/../.."}} {
		if r, err := Open(c); err == nil {
			r.Close()
			t.Errorf("%+v was accepted", c)
		}
	}
	if err := Supported(); err != nil {
		t.Skip(err)
	}
	_, err := Open(Config{Tag: "test-np", Parent: "/there-is-no-such-group"})
	var u *UnsupportedError
	if !errors.As(err, &u) || !strings.Contains(u.Needs, "no-such-group") {
		t.Errorf("missing parent: %v", err)
	}
}

func BenchmarkAcquireRelease(b *testing.B) {
	bench(b, func(b *testing.B, r *Root) {
		g := mustGroup(b, r, Limits{Memory: 64 << 20})
		for b.Loop() {
			s, err := g.Acquire(Limits{Memory: 64 << 20})
			if err != nil {
				b.Fatal(err)
			}
			if err := g.Release(s); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkAcquireReleaseKilled(b *testing.B) {
	bench(b, func(b *testing.B, r *Root) {
		g := mustGroup(b, r, Limits{Memory: 64 << 20})
		for b.Loop() {
			s, err := g.Acquire(Limits{Memory: 64 << 20})
			if err != nil {
				b.Fatal(err)
			}
			s.MarkKilled()
			if err := g.Release(s); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkGroup(b *testing.B) {
	for name, idle := range map[string]int{"cold": -1, "recycled": 4} {
		b.Run(name, func(b *testing.B) {
			bench(b, func(b *testing.B, r *Root) {
				r.maxIdle = idle
				for b.Loop() {
					g, err := r.Group("sb", Limits{Memory: 64 << 20, Pids: 100, CPU: 1})
					if err != nil {
						b.Fatal(err)
					}
					s, err := g.Acquire(Limits{Memory: 64 << 20})
					if err != nil {
						b.Fatal(err)
					}
					if err := g.Release(s); err != nil {
						b.Fatal(err)
					}
					if err := g.Close(0); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}

func bench(b *testing.B, f func(*testing.B, *Root)) {
	for name, l := range layouts(b) {
		b.Run(name, func(b *testing.B) {
			r, err := open(l, Config{Tag: "bench-" + strconv.Itoa(os.Getpid())})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() {
				if err := r.Close(); err != nil {
					b.Error(err)
				}
			})
			f(b, r)
		})
	}
}
