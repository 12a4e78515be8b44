package lab

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"belljar"
)

// supervisor starts another supervisor process with n busy sandboxes.
func (e *Env) supervisor(ctx context.Context, n int, cfg belljar.Config) (*exec.Cmd, string, error) {
	mark := secret()
	doc, err := json.Marshal(order{
		Sandboxes: n, Config: cfg, Spec: e.spec(func(s *belljar.Spec) { s.Timeout = 4 * time.Minute }),
		Probe: append([]string{inside + "/probe"}, e.lab.args...), Mark: mark, Dir: "/workspace",
	})
	if err != nil {
		return nil, "", err
	}
	cmd := exec.Command(e.lab.Supervisor[0], append(slices.Clone(e.lab.Supervisor[1:]), string(doc))...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, "", err
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, "", err
	}
	e.later(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // again is an error that says nothing
	})
	line := make(chan string, 1)
	go func() {
		s, _ := bufio.NewReader(out).ReadString('\n')
		line <- s
	}()
	select {
	case s := <-line:
		if !strings.HasPrefix(s, "ready") {
			return nil, "", fmt.Errorf("supervisor: %s", s)
		}
	case <-time.After(60 * time.Second):
		return nil, "", errors.New("the supervisor did not get ready")
	}
	return cmd, mark, nil
}

// belongings is what processes of sandboxes hold on the host.
type belongings struct {
	processes []process
	cgroups   []string
	mounts    []string // mounts that came with them
}

func holdings(ps []process, before map[string]bool) belongings {
	h := belongings{processes: ps}
	own := cgroupsOf(os.Getpid())
	for _, p := range ps {
		for _, dir := range cgroupsOf(p.pid) {
			if !slices.Contains(own, dir) && !slices.Contains(h.cgroups, dir) {
				h.cgroups = append(h.cgroups, dir)
			}
		}
	}
	for m := range mountsNow() {
		// Others may mount on this host meanwhile: only what names the product counts.
		if !before[m] && strings.Contains(m, "belljar") {
			h.mounts = append(h.mounts, m)
		}
	}
	return h
}

// left describes what is still there.
func (h belongings) left() string {
	var out []string
	for _, p := range alive(h.processes) {
		cmd, _ := os.ReadFile("/proc/" + strconv.Itoa(p.pid) + "/cmdline")
		out = append(out, fmt.Sprintf("process %d %.60q", p.pid, cmd))
	}
	for _, dir := range h.cgroups {
		if _, err := os.Stat(dir); err == nil {
			out = append(out, "cgroup "+dir)
		}
	}
	now := mountsNow()
	for _, m := range h.mounts {
		if now[m] {
			out = append(out, "mount "+m)
		}
	}
	return strings.Join(out, ", ")
}

func lifeEntries() []Entry {
	return []Entry{
		{ID: "E1-sigkill", Guarantee: "E1", Title: "SIGKILL of a supervisor with 50 sandboxes at work", Knob: "a supervisor that is not killed", Run: func(ctx context.Context, e *Env) error {
			before := mountsNow()
			cmd, mark, err := e.supervisor(ctx, 50, belljar.Config{})
			if err != nil {
				return err
			}
			all := descendants(cmd.Process.Pid)
			for _, p := range find(mark) { // those that were handed to the first process
				if !slices.Contains(all, p) && p.pid != cmd.Process.Pid {
					all = append(all, p)
				}
			}
			h := holdings(all, before)
			e.Control(len(alive(find(mark))) >= 50, "%d processes and %d cgroups before", len(h.processes), len(h.cgroups))
			if !e.Weak() {
				if err := cmd.Process.Kill(); err != nil {
					return err
				}
				_ = cmd.Wait() // killed
			}
			d, ok := until(ctx, 5*time.Second, func() bool { return len(alive(h.processes)) == 0 })
			e.Check(ok, "after %v: %s", d, h.left())
			e.Note("processes gone after %v", d)
			// Control groups may need the next supervisor's sweep.
			if !e.Weak() && h.left() != "" {
				e.Note("before the next supervisor: %s", h.left())
				rt, err := e.Runtime(ctx, belljar.Config{})
				if err != nil {
					return err
				}
				sb, err := rt.Create(ctx, e.spec(nil))
				if err != nil {
					return err
				}
				if err := sb.Destroy(ctx); err != nil {
					return err
				}
			}
			_, ok = until(ctx, 2*time.Second, func() bool { return h.left() == "" })
			e.Check(ok, "left behind: %s", h.left())
			return nil
		}},
		{ID: "E1-ledger", Guarantee: "E1", Title: "SIGKILL of a supervisor with a state directory, then the next one", Knob: "no next supervisor", Run: func(ctx context.Context, e *Env) error {
			dir, err := e.Dir()
			if err != nil {
				return err
			}
			state := filepath.Join(dir, "state")
			before := mountsNow()
			cmd, mark, err := e.supervisor(ctx, 3, belljar.Config{StateDir: state})
			if err != nil {
				return err
			}
			h := holdings(append(descendants(cmd.Process.Pid), find(mark)...), before)
			count := func() int {
				n := 0
				_ = filepath.WalkDir(state, func(p string, d os.DirEntry, err error) error {
					if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), "sb-") {
						n++
					}
					return nil
				})
				return n
			}
			e.Control(count() == 3, "%d records before", count())
			if err := cmd.Process.Kill(); err != nil {
				return err
			}
			_ = cmd.Wait() // killed
			if !e.Weak() {
				rt, err := e.Runtime(ctx, belljar.Config{StateDir: state})
				if err != nil {
					return err
				}
				e.Check(len(rt.List()) == 0, "the next supervisor lists %d sandboxes", len(rt.List()))
				// It started within milliseconds of the kill: what was still dying then is
				// for its next sweep.
				if n := count(); n > 0 {
					e.Note("the sweep at start left %d records", n)
					if _, ok := until(ctx, 2*time.Second, func() bool { return len(alive(h.processes)) == 0 }); ok {
						gc, err := rt.GC(ctx)
						e.Note("sweep: %+v %v", gc, err)
					}
				}
			}
			_, ok := until(ctx, 2*time.Second, func() bool { return count() == 0 && len(alive(h.processes)) == 0 })
			e.Check(ok, "%d records left, %s", count(), h.left())
			return nil
		}},
		{ID: "E2-forged", Guarantee: "E2", Title: "forged, truncated and symlinked records in the state directory", Knob: "a sweeper that believes them", Run: forgedRecords},
		{ID: "E3-concurrent", Guarantee: "E3", Title: "create, exec, cancel and destroy against each other; contexts cancelled at any moment", Knob: "destroy", Run: func(ctx context.Context, e *Env) error {
			before := mountsNow()
			rt, err := e.Runtime(ctx, belljar.Config{})
			if err != nil {
				return err
			}
			mark := secret()
			argv := append([]string{inside + "/probe"}, append(slices.Clone(e.lab.args), "sleep", mark)...)
			n := 24
			if e.Weak() {
				n = 2
			}
			var wg sync.WaitGroup
			var mu sync.Mutex
			states := map[belljar.State]int{}
			for i := range n {
				wg.Go(func() {
					cctx, cancel := context.WithTimeout(ctx, time.Duration(i)*2*time.Millisecond)
					if i%3 == 0 || e.Weak() {
						cctx = ctx
					}
					defer cancel()
					sb, err := rt.Create(cctx, e.spec(nil))
					if err != nil {
						return
					}
					cmd := sb.Command(argv[0], argv[1:]...)
					done := make(chan struct{})
					go func() {
						defer close(done)
						if err := cmd.Start(ctx); err != nil {
							return
						}
						if e.Weak() {
							return
						}
						res, err := cmd.Wait(ctx)
						mu.Lock()
						defer mu.Unlock()
						if err == nil || res != nil {
							states[res.State]++
						}
					}()
					if e.Weak() {
						<-done
						return
					}
					time.Sleep(time.Duration(i) * time.Millisecond)
					if i%4 == 0 && cmd.ExecutionID() != "" {
						_ = cmd.Cancel(ctx) // races with Start: either is right
					}
					var two sync.WaitGroup
					for range 2 {
						two.Go(func() {
							if err := sb.Destroy(ctx); err != nil {
								mu.Lock()
								defer mu.Unlock()
								e.Broken("destroy: %v", err)
							}
						})
					}
					two.Wait()
					<-done
				})
			}
			ok := make(chan struct{})
			go func() { wg.Wait(); close(ok) }()
			select {
			case <-ok:
			case <-time.After(60 * time.Second):
				return errors.New("the storm did not end")
			}
			e.Note("states %v", states)
			h := holdings(find(mark), before)
			e.Check(len(alive(h.processes)) == 0, "left behind: %s", h.left())
			e.Check(len(rt.List()) == 0, "%d sandboxes are still listed", len(rt.List()))
			sb, err := rt.Create(ctx, e.spec(nil))
			if err != nil {
				return err
			}
			res, err := sb.Command(argv[0], append(slices.Clone(argv[1:len(argv)-2]), "echo", "works")...).Run(ctx)
			e.Control(err == nil && string(res.Stdout) == "works\n", "afterwards a sandbox works: %v", err)
			return sb.Destroy(ctx)
		}},
		{ID: "E4-baseline", Guarantee: "E4", Title: "many sandboxes with mixed failures: descriptors, goroutines, mounts, cgroups, files", Knob: "destroy", Run: func(ctx context.Context, e *Env) error {
			rt, err := e.Runtime(ctx, belljar.Config{})
			if err != nil {
				return err
			}
			cycle := func(i int) ([]process, error) {
				b, err := e.BoxOf(ctx, rt, func(s *belljar.Spec) { s.Timeout = 2 * time.Second })
				if err != nil {
					return nil, err
				}
				acts := [][]string{{"true"}, {"exit", "3"}, {"crash"}, {"flood", "100000"}, {"survive", "daemon", "x"}}
				if _, err := b.Exec(ctx, acts[i%len(acts)]...); err != nil {
					return nil, err
				}
				// A program that is not there is the program's failure, with a result.
				_, _ = b.sb.Command("/nowhere/at/all").Run(ctx)
				ps, stop, err := b.resident(ctx, "sleep")
				if err != nil {
					return nil, err
				}
				if e.Weak() {
					return ps, nil
				}
				if i%2 == 0 {
					stop()
				}
				return ps, b.sb.Destroy(ctx)
			}
			before := mountsNow()
			if _, err := cycle(0); err != nil { // what is made once
				return err
			}
			runtime.GC()
			fds, routines := openDescriptors(), runtime.NumGoroutine()
			n := 30
			if e.Weak() {
				n = 3
			}
			var all []process
			for i := range n {
				ps, err := cycle(i)
				if err != nil {
					return fmt.Errorf("cycle %d: %w", i, err)
				}
				all = append(all, ps...)
			}
			h := holdings(all, before)
			_, ok := until(ctx, 2*time.Second, func() bool {
				return openDescriptors() <= fds+4 && runtime.NumGoroutine() <= routines+6 && h.left() == ""
			})
			e.Check(ok, "descriptors %d then %d, goroutines %d then %d, left: %s", fds, openDescriptors(), routines, runtime.NumGoroutine(), h.left())
			e.Control(len(all) > 0, "%d processes were seen meanwhile", len(all))
			return nil
		}},
		{ID: "E5-setup", Guarantee: "E5", Title: "set-up that fails: missing sources, wrong images, programs that are not there", Knob: "valid set-up", Run: func(ctx context.Context, e *Env) error {
			rt, err := e.Runtime(ctx, belljar.Config{})
			if err != nil {
				return err
			}
			dir, err := e.Dir()
			if err != nil {
				return err
			}
			link := filepath.Join(dir, "link")
			if err := os.Symlink("/etc", link); err != nil {
				return err
			}
			cases := map[string]func(*belljar.Spec){
				"missing source": func(s *belljar.Spec) {
					s.Mounts = append(s.Mounts, belljar.Mount{Source: dir + "/none", Target: "/data"})
				},
				"symlinked source": func(s *belljar.Spec) { s.Mounts = append(s.Mounts, belljar.Mount{Source: link, Target: "/data"}) },
				"missing image":    func(s *belljar.Spec) { s.Image = dir + "/none"; s.Mounts = nil },
			}
			if e.Weak() {
				cases = map[string]func(*belljar.Spec){"valid": func(*belljar.Spec) {}}
			}
			if _, err := e.BoxOf(ctx, rt, nil); err != nil { // what is made once
				return err
			}
			before := mountsNow()
			fds := openDescriptors()
			for name, mod := range cases {
				sb, err := rt.Create(ctx, e.spec(mod))
				if err == nil {
					err = sb.Destroy(ctx)
				}
				var be *belljar.Error
				e.Check(errors.As(err, &be) && be.Op != "" && be.Code != belljar.CodeInternal, "%s: %v", name, err)
			}
			for m := range mountsNow() {
				e.Check(before[m] || !strings.Contains(m, "belljar"), "mount left: %s", m)
			}
			_, ok := until(ctx, time.Second, func() bool { return openDescriptors() <= fds+4 })
			e.Check(ok, "descriptors %d then %d", fds, openDescriptors())
			b, err := e.BoxOf(ctx, rt, nil)
			if err != nil {
				return err
			}
			res, err := b.sb.Command("/nowhere/at/all").Run(ctx)
			e.Check(errors.Is(err, belljar.ErrExecFailed) && res != nil && res.Cause == belljar.CauseInfra, "a missing program: %v %+v", err, res)
			return controlRuns(ctx, e, b)
		}},
		{ID: "E6-pool", Guarantee: "E6", Title: "marks of the last user in a sandbox from a warm pool", Knob: "a new sandbox for each user", Run: func(ctx context.Context, e *Env) error {
			rt, err := e.Runtime(ctx, belljar.Config{})
			if err != nil {
				return err
			}
			pooled := func(s *belljar.Spec) { s.Pool = &belljar.Pool{Size: 2} }
			s := secret()
			places := []string{"/workspace", "/tmp", "/dev/shm", "/home/user"}
			first, err := e.BoxOf(ctx, rt, pooled)
			if err != nil {
				return err
			}
			for _, p := range places {
				if err := writeInside(ctx, first, p+"/mark", s); err != nil {
					return err
				}
			}
			marks := func(b *Box) (int, error) {
				n := 0
				for _, p := range places {
					res, err := b.Exec(ctx, "cat", p+"/mark")
					if err != nil {
						return 0, err
					}
					n += bytes.Count(res.Stdout, []byte(s))
				}
				return n, nil
			}
			n, err := marks(first)
			if err != nil {
				return err
			}
			e.Control(n == len(places), "the marks are there for who left them")
			if e.Weak() {
				e.Check(n == 0, "%d marks", n)
				return nil
			}
			if err := first.sb.Destroy(ctx); err != nil {
				return err
			}
			for range 4 {
				next, err := e.BoxOf(ctx, rt, pooled)
				if err != nil {
					return err
				}
				n, err := marks(next)
				if err != nil {
					return err
				}
				e.Check(n == 0, "%d marks of the last user", n)
				if err := next.sb.Destroy(ctx); err != nil {
					return err
				}
			}
			return nil
		}},
		{ID: "E7-fds", Guarantee: "E7", Title: "no descriptors left in the supervisor, then again some", Knob: "descriptors", Run: func(ctx context.Context, e *Env) error {
			rt, err := e.Runtime(ctx, belljar.Config{})
			if err != nil {
				return err
			}
			b, err := e.BoxOf(ctx, rt, nil)
			if err != nil {
				return err
			}
			var old unix.Rlimit
			if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
				return err
			}
			if !e.Weak() {
				if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(highest() + 1), Max: old.Max}); err != nil {
					return err
				}
			}
			var full []*os.File
			var ferr error
			if !e.Weak() {
				full, ferr = hoard()
			}
			_, err = rt.Create(ctx, e.spec(nil))
			_, rerr := b.Exec(ctx, "true")
			for _, f := range full {
				_ = f.Close()
			}
			if err2 := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err2 != nil {
				return err2
			}
			e.Note("hoarded %d: %v; create: %v; exec: %v", len(full), ferr, err, rerr)
			e.Check(err != nil, "a sandbox was made without descriptors")
			var be *belljar.Error
			for what, err := range map[string]error{"create": err, "exec": rerr} {
				if err != nil {
					e.Check(errors.As(err, &be) && be.Code == belljar.CodeUnavailable && be.Hint != "", "%s: %#v", what, err)
				}
			}
			return controlRuns(ctx, e, b)
		}},
		{ID: "E8-two", Guarantee: "E8", Title: "a second supervisor on the same host and state directory starts, sweeps and ends", Knob: "the sandbox kept", Run: func(ctx context.Context, e *Env) error {
			dir, err := e.Dir()
			if err != nil {
				return err
			}
			cfg := belljar.Config{StateDir: filepath.Join(dir, "state")}
			rt, err := e.Runtime(ctx, cfg)
			if err != nil {
				return err
			}
			b, err := e.BoxOf(ctx, rt, nil)
			if err != nil {
				return err
			}
			ps, stop, err := b.resident(ctx, "sleep")
			if err != nil {
				return err
			}
			defer stop()
			for _, cfg := range []belljar.Config{cfg, {StateDir: filepath.Join(dir, "other")}, {}} {
				two, err := e.lab.Runtime(ctx, cfg)
				if err != nil {
					e.Note("second supervisor on %q: %v", cfg.StateDir, err) // a refusal is as good
					continue
				}
				other, err := e.BoxOf(ctx, two, nil)
				if err != nil {
					return err
				}
				if _, err := other.Exec(ctx, "true"); err != nil {
					return err
				}
				if err := two.Close(ctx); err != nil {
					return err
				}
			}
			if e.Weak() {
				if err := b.sb.Destroy(ctx); err != nil {
					return err
				}
			}
			e.Check(len(alive(ps)) == len(ps), "the first supervisor's program died")
			e.Check(b.sb.Alive(ctx) == nil, "the first supervisor's sandbox is dead: %v", b.sb.Alive(ctx))
			e.Control(len(ps) > 0, "its program was there")
			return nil
		}},
	}
}

// highest is the highest open descriptor.
func highest() int {
	n := 2
	ents, _ := os.ReadDir("/proc/self/fd")
	for _, ent := range ents {
		if fd, err := strconv.Atoi(ent.Name()); err == nil {
			n = max(n, fd)
		}
	}
	return n
}

// hoard opens files until the limit, at most 20 000.
func hoard() ([]*os.File, error) {
	var fs []*os.File
	for range 20000 {
		f, err := os.Open("/dev/null")
		if err != nil {
			return fs, err
		}
		fs = append(fs, f)
		if len(fs) == 64 && highest() > 10000 {
			return fs, nil
		}
	}
	return fs, nil
}

// forgedRecords plants records that point outside and lets a supervisor sweep.
func forgedRecords(ctx context.Context, e *Env) error {
	dir, err := e.Dir()
	if err != nil {
		return err
	}
	c, err := e.Canary()
	if err != nil {
		return err
	}
	by, err := e.bystander(ctx)
	if err != nil {
		return err
	}
	state := filepath.Join(dir, "state")
	// A real supervisor lays the directory out and leaves a record to copy.
	cmd, _, err := e.supervisor(ctx, 1, belljar.Config{StateDir: state})
	if err != nil {
		return err
	}
	if err := cmd.Process.Kill(); err != nil {
		return err
	}
	_ = cmd.Wait() // killed
	var real string
	_ = filepath.WalkDir(state, func(p string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), "sb-") {
			real = p
		}
		return nil
	})
	if real == "" {
		return errors.New("the supervisor left no record to forge")
	}
	forge := func(name string, edit func(dir string) error) error {
		to := filepath.Join(filepath.Dir(real), "sb-"+strings.Repeat(name, 20)[:20])
		if err := os.CopyFS(to, os.DirFS(real)); err != nil {
			e.Note("copy of %s: %v", real, err) // sockets are not copied
		}
		// Private, as the real one: else that alone gives it away.
		if err := filepath.WalkDir(to, func(p string, d os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			perm := os.FileMode(0o600)
			if d.IsDir() {
				perm = 0o700
			}
			return os.Chmod(p, perm)
		}); err != nil {
			return err
		}
		return edit(to)
	}
	each := func(f func(b []byte) []byte) func(string) error {
		return func(dir string) error {
			return filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
				if err != nil || !d.Type().IsRegular() {
					return err
				}
				b, err := os.ReadFile(p)
				if err != nil {
					return err
				}
				return os.WriteFile(p, f(b), 0o600)
			})
		}
	}
	pid := []byte(strconv.Itoa(by.pid))
	err = errors.Join(
		forge("a", each(func(b []byte) []byte { return b[:len(b)/2] })),
		forge("b", each(func(b []byte) []byte {
			return bytes.ReplaceAll(b, []byte(filepath.Base(real)), []byte("../../../../"+strings.TrimPrefix(filepath.Dir(c.Path), "/")))
		})),
		forge("c", each(func([]byte) []byte { return []byte(`{"id":"` + c.Path + `","pid":` + string(pid) + `,"cgroup":"/"}`) })),
		forge("d", each(func([]byte) []byte { return bytes.Repeat([]byte{0xff}, 1<<20) })),
		forge("e", func(dir string) error { // the record's directory is a link to the canary's
			return errors.Join(os.RemoveAll(dir), os.Symlink(filepath.Dir(c.Path), dir))
		}),
		// Coherent lies: the right id, and every path and number another's.
		forge("h", func(dir string) error {
			lie := each(func(b []byte) []byte {
				b = bytes.ReplaceAll(b, []byte(filepath.Base(real)), []byte(filepath.Base(dir)))
				b = regexp.MustCompile(`"/[^"]*"`).ReplaceAll(b, []byte(`"`+filepath.Dir(c.Path)+`"`))
				return regexp.MustCompile(`"(pid|keeper|cgroup)([A-Za-z]*)": ?[0-9]+`).ReplaceAll(b, []byte(`"$1$2":`+string(pid)))
			})
			return errors.Join(lie(dir), os.Symlink(filepath.Dir(c.Path), filepath.Join(dir, "work")), os.Symlink(c.Path, filepath.Join(dir, "more")))
		}),
		forge("f", func(dir string) error {
			return errors.Join(os.Symlink(filepath.Dir(c.Path), filepath.Join(dir, "work")), os.Symlink(c.Path, filepath.Join(dir, "more")))
		}),
		forge("g", func(dir string) error { return os.Chown(dir, nobody, nobody) }),
	)
	if err != nil && os.Getuid() == 0 {
		return err
	}
	e.Check(c.Changed() == "", "before the sweep: %s", c.Changed())
	if e.Weak() {
		// What a sweeper does that follows what it finds.
		target, err := filepath.EvalSymlinks(filepath.Join(filepath.Dir(real), "sb-"+strings.Repeat("e", 20)))
		if err != nil {
			return err
		}
		if err := os.RemoveAll(target); err != nil {
			return err
		}
	} else {
		rt, err := e.Runtime(ctx, belljar.Config{StateDir: state})
		if err != nil {
			e.Note("the next supervisor refuses: %v", err)
		} else {
			gc, err := rt.GC(ctx)
			e.Note("sweep: %+v %v", gc, err)
			b, err := e.BoxOf(ctx, rt, nil)
			if err != nil {
				return err
			}
			usable(ctx, e, b)
		}
		_, err = os.Stat(real)
		e.Control(errors.Is(err, os.ErrNotExist), "the real record was swept: %v", err)
	}
	e.Check(c.Changed() == "", "%s", c.Changed())
	e.Check(by.alive(), "the bystander is dead")
	return nil
}
