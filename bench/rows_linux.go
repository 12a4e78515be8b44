package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	osexec "os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"belljar"
)

var groups = []group{
	{"warm/static", func(ctx context.Context, r *runner, g string) error {
		return warm(ctx, r, g, r.scale.static, true, []string{r.static}, []string{insideTrue})
	}},
	{"warm/true", func(ctx context.Context, r *runner, g string) error {
		return warm(ctx, r, g, r.scale.dynamic, true, []string{"/bin/true"}, []string{"/bin/true"})
	}},
	{"warm/python", func(ctx context.Context, r *runner, g string) error {
		return warmTool(ctx, r, g, r.scale.python, true, "python3", "-c", "pass")
	}},
	{"warm/node", func(ctx context.Context, r *runner, g string) error {
		return warmTool(ctx, r, g, r.scale.node, false, "node", "-e", "0")
	}},
	{"quiet/static", quiet},
	{"cold/static", func(ctx context.Context, r *runner, g string) error {
		return cold(ctx, r, g, r.static, insideTrue)
	}},
	{"cold/true", func(ctx context.Context, r *runner, g string) error { return cold(ctx, r, g, "/bin/true", "/bin/true") }},
	{"process/true", whole},
	{"limits/wall", wallClock},
	{"limits/cpu1", func(ctx context.Context, r *runner, g string) error { return cpuBudget(ctx, r, g, 1) }},
	{"limits/cpu4", func(ctx context.Context, r *runner, g string) error { return cpuBudget(ctx, r, g, 4) }},
	{"output/flood", flood},
	{"inside/syscall", func(ctx context.Context, r *runner, g string) error { return inside(ctx, r, g, r.scale.loop) }},
	{"inside/stat", func(ctx context.Context, r *runner, g string) error { return inside(ctx, r, g, r.scale.loop/4) }},
	{"inside/open", func(ctx context.Context, r *runner, g string) error { return inside(ctx, r, g, r.scale.loop/10) }},
	{"inside/cpu", func(ctx context.Context, r *runner, g string) error { return inside(ctx, r, g, r.scale.loop/10) }},
	{"idle", idle},
	{"churn", churn},
}

// hostEnv is about what a sandbox has, so that no contender reads more.
var hostEnv = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/tmp", "TMPDIR=/tmp", "LANG=C.UTF-8"}

// bare is os/exec without anything: the way in which a Go program would run it.
func bare(argv ...string) contender {
	return timed("bare", "os/exec, streams on /dev/null", func(ctx context.Context) error {
		c := osexec.CommandContext(ctx, argv[0], argv[1:]...)
		c.Env, c.Dir = hostEnv, "/"
		return c.Run()
	}).baseline()
}

// spawn is the least that a Go program can do: vfork, execve, wait4.
func spawn(argv ...string) contender {
	return timed("spawn", "vfork+execve+wait4 by syscall.ForkExec", func(context.Context) error {
		pid, err := syscall.ForkExec(argv[0], argv, &syscall.ProcAttr{Env: hostEnv, Dir: "/", Files: []uintptr{0, 1, 2}})
		if err != nil {
			return err
		}
		var ws syscall.WaitStatus
		for {
			_, err := syscall.Wait4(pid, &ws, 0, nil)
			if err == syscall.EINTR {
				continue
			}
			if err != nil || ws.ExitStatus() != 0 {
				return errors.Join(err, fmt.Errorf("exit status %d", ws.ExitStatus()))
			}
			return nil
		}
	})
}

// tool finds a program that both the host and a sandbox have.
func tool(name string) string {
	for _, dir := range []string{"/usr/bin", "/usr/local/bin"} {
		if p, err := osexec.LookPath(filepath.Join(dir, name)); err == nil {
			return p
		}
	}
	return ""
}

func warmTool(ctx context.Context, r *runner, g string, n int, loaded bool, name string, args ...string) error {
	p := tool(name)
	if p == "" {
		r.skip(g, "belljar", "no "+name+" below /usr")
		return nil
	}
	argv := append([]string{p}, args...)
	return warm(ctx, r, g, n, loaded, argv, argv)
}

func warm(ctx context.Context, r *runner, g string, n int, loaded bool, host, in []string) error {
	return r.with(ctx, func(rt *belljar.Runtime) error {
		boxes := func(spec belljar.Spec) ([]contender, error) {
			var cs []contender
			for _, fresh := range []bool{false, true} {
				name, note := "belljar", "existing sandbox"
				if fresh {
					name, note = "belljar fresh", "own pid, mount and ipc namespaces for each execution"
				}
				spec.Isolation.Fresh = fresh
				sb, err := rt.Create(ctx, spec)
				if err != nil {
					return nil, err
				}
				cs = append(cs, timed(name, note, func(ctx context.Context) error { return exec(ctx, sb, in...) }))
			}
			return cs, nil
		}
		cs, err := boxes(r.spec())
		if err != nil {
			return err
		}
		if err := r.turns(ctx, g, n, append([]contender{bare(host...), spawn(host...)}, cs...)); err != nil {
			return err
		}
		if !loaded {
			return nil
		}
		spec := r.spec()
		if r.limits.Memory > 0 {
			spec.Limits.Memory = belljar.GiB // 32 interpreters at once are more than 256 MiB
		}
		if cs, err = boxes(spec); err != nil {
			return err
		}
		for _, clients := range []int{8, 32} {
			if err := r.load(ctx, g, clients, append([]contender{bare(host...)}, cs...)); err != nil {
				return err
			}
		}
		return nil
	})
}

func cold(ctx context.Context, r *runner, g, host, in string) error {
	return r.with(ctx, func(rt *belljar.Runtime) error {
		return r.turns(ctx, g, r.scale.cold, []contender{bare(host), {
			names: []string{"belljar", "- create", "- exec", "- destroy"},
			notes: []string{"create, one execution, destroy", "", "the first in its sandbox", ""},
			run: func(ctx context.Context, d []time.Duration) error {
				t0 := time.Now()
				sb, err := rt.Create(ctx, r.spec())
				if err != nil {
					return err
				}
				t1 := time.Now()
				err = exec(ctx, sb, in)
				t2 := time.Now()
				err = errors.Join(err, sb.Destroy(ctx))
				t3 := time.Now()
				d[0], d[1], d[2], d[3] = t3.Sub(t0), t1.Sub(t0), t2.Sub(t1), t3.Sub(t2)
				return err
			},
		}})
	})
}

// quiet runs the smallest program after a pause each time, as a person or an
// agent would: what the kernel keeps ready only under load is then not ready.
func quiet(ctx context.Context, r *runner, g string) error {
	const pause = 120 * time.Millisecond
	after := func(c contender) contender {
		run := c.run
		c.run = func(ctx context.Context, d []time.Duration) error {
			time.Sleep(pause)
			return run(ctx, d)
		}
		return c
	}
	return r.with(ctx, func(rt *belljar.Runtime) error {
		sb, err := rt.Create(ctx, r.spec())
		if err != nil {
			return err
		}
		return r.turns(ctx, g, r.scale.quiet, []contender{
			after(bare(r.static)),
			after(timed("belljar", "existing sandbox, nothing for 120 ms before", func(ctx context.Context) error { return exec(ctx, sb, insideTrue) })),
			{
				names: []string{"belljar cold"}, notes: []string{"create, one execution, destroy, nothing for 120 ms before"},
				run: func(ctx context.Context, d []time.Duration) error {
					time.Sleep(pause)
					start := time.Now()
					sb, err := rt.Create(ctx, r.spec())
					if err != nil {
						return err
					}
					err = errors.Join(exec(ctx, sb, insideTrue), sb.Destroy(ctx))
					d[0] = time.Since(start)
					return err
				},
			},
		})
	})
}

// peers are command lines that confine /bin/true in about the way of belljar, as
// far as the tool can.
var peers = []struct {
	name, note string
	argv       []string
}{
	{"unshare", "all namespaces, nothing else", []string{
		"unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--net", "--ipc", "--uts", "--cgroup", "--mount-proc",
	}},
	{"bwrap", "namespaces and root; no seccomp, no cgroup", []string{
		"bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv", "--ro-bind", "/usr", "/usr",
		"--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64",
		"--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--chdir", "/",
	}},
	{"nsjail", "namespaces, root, rlimits; no seccomp, no cgroup", []string{
		"nsjail", "--mode", "o", "--really_quiet", "--bindmount_ro", "/usr", "--symlink", "usr/bin:/bin", "--symlink", "usr/lib:/lib", "--symlink", "usr/lib64:/lib64",
		"--tmpfsmount", "/tmp", "--",
	}},
}

// whole is what a shell would see: one process from start to end.
func whole(ctx context.Context, r *runner, g string) error {
	const program = "/bin/true"
	process := func(name, note string, argv []string) contender {
		return timed(name, note, func(ctx context.Context) error {
			var out bytes.Buffer
			c := osexec.CommandContext(ctx, argv[0], argv[1:]...)
			c.Env, c.Dir, c.Stderr = hostEnv, "/", &out
			if err := c.Run(); err != nil {
				return fmt.Errorf("%w: %s", err, out.Bytes())
			}
			return nil
		})
	}
	cs := []contender{bare(program)}
	missing := map[string]string{}
	for _, p := range peers {
		path, err := osexec.LookPath(p.argv[0])
		if err != nil {
			missing[p.name] = "not installed"
			continue
		}
		c := process(p.name, p.note, slices.Concat([]string{path}, p.argv[1:], []string{program}))
		if err := c.run(ctx, make([]time.Duration, 1)); err != nil {
			missing[p.name] = err.Error()
			continue
		}
		cs = append(cs, c)
	}
	if path, err := osexec.LookPath("runc"); err != nil {
		missing["runc"] = "not installed"
	} else if argv, err := runcBundle(filepath.Dir(r.static), path, program); err != nil {
		missing["runc"] = err.Error()
	} else if c := process("runc", "its default spec: namespaces, root, cgroup, caps; no seccomp", argv); c.run(ctx, make([]time.Duration, 1)) != nil {
		missing["runc"] = "its default spec does not run here"
	} else {
		cs = append(cs, c)
	}
	argv := []string{r.opt.Self, "run"}
	if r.limits.Memory > 0 {
		argv = append(argv, "--memory", "256MiB", "--pids", "64", "--cpu-time", "10s")
	}
	cs = append(cs, process("belljar run", "every layer", append(argv, "--", program)))
	err := r.turns(ctx, g, r.scale.process, cs)
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		r.skip(g, name, missing[name])
	}
	return err
}

// runcBundle writes a bundle with runc's default spec for one program and /usr.
func runcBundle(dir, runc, program string) ([]string, error) {
	dir = filepath.Join(dir, "bundle")
	if err := os.MkdirAll(filepath.Join(dir, "rootfs", "usr"), 0o755); err != nil {
		return nil, err
	}
	for _, l := range []string{"bin", "lib", "lib64"} {
		if err := os.Symlink("usr/"+l, filepath.Join(dir, "rootfs", l)); err != nil {
			return nil, err
		}
	}
	if out, err := osexec.Command(runc, "spec", "--bundle", dir).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("runc spec: %w: %s", err, out)
	}
	name := filepath.Join(dir, "config.json")
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	for _, r := range [][2]string{
		{`"terminal": true`, `"terminal": false`},
		{`"sh"`, strconv.Quote(program)},
		{`"mounts": [`, `"mounts": [{"destination": "/usr", "type": "bind", "source": "/usr", "options": ["rbind", "ro"]},`},
	} {
		if !bytes.Contains(b, []byte(r[0])) {
			return nil, fmt.Errorf("runc spec: no %s in it", r[0])
		}
		b = bytes.Replace(b, []byte(r[0]), []byte(r[1]), 1)
	}
	if err := os.WriteFile(name, b, 0o644); err != nil {
		return nil, err
	}
	return []string{runc, "run", "--bundle", dir, "belljar-bench-" + strconv.Itoa(os.Getpid())}, nil
}

func wallClock(ctx context.Context, r *runner, g string) error {
	const limit = 200 * time.Millisecond
	return r.with(ctx, func(rt *belljar.Runtime) error {
		sb, err := rt.Create(ctx, r.spec())
		if err != nil {
			return err
		}
		var over []float64
		for range r.scale.wall {
			cmd := sb.Command(insideSelf, probeVerb, "spin", "1")
			cmd.Timeout = limit
			start := time.Now()
			res, err := cmd.Run(ctx)
			if err != nil {
				return err
			}
			if res.State != belljar.TimedOut {
				return fmt.Errorf("a spinner ended as %s: %s", res.State, res.Stderr)
			}
			over = append(over, float64(time.Since(start)-limit)/1e3)
		}
		row := summary(g, "overshoot", Micros, over)
		row.Note = "of 200 ms, from the call to the result"
		r.add(row)
		return nil
	})
}

func cpuBudget(ctx context.Context, r *runner, g string, threads int) error {
	const budget = 200 * time.Millisecond
	if r.limits.CPUTime == 0 {
		r.skip(g, "overshoot", "no CPU limits here")
		return nil
	}
	return r.with(ctx, func(rt *belljar.Runtime) error {
		sb, err := rt.Create(ctx, r.spec())
		if err != nil {
			return err
		}
		var over []float64
		for range r.scale.cpu {
			cmd := sb.Command(insideSelf, probeVerb, "spin", strconv.Itoa(threads))
			cmd.Limits.CPUTime = budget
			res, err := cmd.Run(ctx)
			if err != nil {
				return err
			}
			if res.Cause != belljar.CauseCPU || res.Usage.CPUTimeMs == nil {
				return fmt.Errorf("a spinner ended by %s: %s", res.Cause, res.Stderr)
			}
			over = append(over, *res.Usage.CPUTimeMs*1e3-float64(budget.Microseconds()))
		}
		row := summary(g, "overshoot", Micros, over)
		row.Note = fmt.Sprintf("of 200 ms CPU time, %d busy threads, as the kernel counted", threads)
		r.add(row)
		return nil
	})
}

// flood is what a program that writes as fast as it can does to the supervisor,
// which is this process.
func flood(ctx context.Context, r *runner, g string) error {
	mib := strconv.Itoa(r.scale.floodMiB)
	return r.with(ctx, func(rt *belljar.Runtime) error {
		sb, err := rt.Create(ctx, r.spec())
		if err != nil {
			return err
		}
		var plain, caught, growth []float64
		rate := func(start time.Time) float64 {
			return float64(r.scale.floodMiB) * 1.048576 / time.Since(start).Seconds()
		}
		for range r.scale.floods {
			c := osexec.CommandContext(ctx, r.opt.Self, probeVerb, "flood", mib)
			c.Stdout = onlyWriter{io.Discard}
			start := time.Now()
			if err := c.Run(); err != nil {
				return err
			}
			plain = append(plain, rate(start))

			debug.FreeOSMemory()
			// 5 resets the high-water mark of the resident set (proc(5)).
			if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
				return err
			}
			before := kib("/proc/self/status")["VmHWM"]
			start = time.Now()
			res, err := sb.Command(insideSelf, probeVerb, "flood", mib).Run(ctx)
			if err != nil {
				return err
			}
			if res.State != belljar.Completed {
				return fmt.Errorf("flood ended by %s: %s", res.Cause, res.Stderr)
			}
			caught = append(caught, rate(start))
			growth = append(growth, float64(kib("/proc/self/status")["VmHWM"]-before)/1024)
		}
		base := summary(g, "bare", MBps, plain)
		base.Note = "os/exec, read and dropped"
		row := summary(g, "belljar", MBps, caught)
		row.against(base)
		row.Note = mib + " MiB, the end of it retained"
		mem := summary(g, "supervisor growth", MiB, growth)
		mem.Note = "peak resident set less that before"
		r.add(base, row, mem)
		return nil
	})
}

// onlyWriter hides ReadFrom, so that the bytes are really read.
type onlyWriter struct{ io.Writer }

// inside compares loops of the probe outside and inside.
func inside(ctx context.Context, r *runner, g string, n int) error {
	_, act, _ := strings.Cut(g, "/")
	loop := strconv.Itoa(max(n, 1))
	return r.with(ctx, func(rt *belljar.Runtime) error {
		sb, err := rt.Create(ctx, r.spec())
		if err != nil {
			return err
		}
		var out, in []float64
		for range r.scale.inside {
			c := osexec.CommandContext(ctx, r.opt.Self, probeVerb, act, loop)
			c.Env = hostEnv
			b, err := c.Output()
			if err != nil {
				return err
			}
			if out, err = numbers(out, b); err != nil {
				return err
			}
			b, res, err := sb.Command(insideSelf, probeVerb, act, loop).Output(ctx)
			if err != nil {
				return err
			}
			if res.State != belljar.Completed || res.ExitCode != 0 {
				return fmt.Errorf("probe ended by %s: %s", res.Cause, res.Stderr)
			}
			if in, err = numbers(in, b); err != nil {
				return err
			}
		}
		notes := map[string]string{
			"syscall": "getppid", "stat": "stat of " + probeFile, "open": "open, read 4 KiB, close", "cpu": "1000 multiplications",
		}
		base := summary(g, "outside", Nanos, out)
		base.Note = notes[act]
		row := summary(g, "inside", Nanos, in)
		row.against(base)
		r.add(base, row)
		return nil
	})
}

func numbers(to []float64, b []byte) ([]float64, error) {
	for s := range strings.FieldsSeq(string(b)) {
		v, err := strconv.ParseFloat(s, 64)
		if err != nil {
			return nil, err
		}
		to = append(to, v)
	}
	return to, nil
}

// idle fills the machine with sandboxes that do nothing.
func idle(ctx context.Context, r *runner, g string) error {
	n := r.scale.idle
	return r.with(ctx, func(rt *belljar.Runtime) error {
		spec := r.spec()
		if _, err := rt.Create(ctx, spec); err != nil { // what all share is there before the count begins
			return err
		}
		known := map[int]bool{}
		for _, p := range descendants() {
			known[p.pid] = true
		}
		kernel, heap := kernelKiB(), heapKiB()
		var create []float64
		boxes := make([]*belljar.Sandbox, 0, n)
		for range n {
			start := time.Now()
			sb, err := rt.Create(ctx, spec)
			if err != nil {
				return fmt.Errorf("after %d: %w", len(boxes), err)
			}
			create = append(create, float64(time.Since(start))/1e3)
			boxes = append(boxes, sb)
		}
		each := func(kib int64) float64 { return float64(kib) / float64(n) }
		kernelEach, heapEach := each(kernelKiB()-kernel), each(heapKiB()-heap)
		var pss int64
		processes := 0
		var pssErr error
		for _, p := range descendants() {
			if known[p.pid] {
				continue
			}
			v, err := pssKiB(p.pid)
			if err != nil {
				pssErr = err
				continue
			}
			pss += v
			processes++
		}
		tenth := max(n/10, 1)
		first := summary(g, "create, first tenth", Micros, slices.Clone(create[:tenth]))
		last := summary(g, "create, last tenth", Micros, slices.Clone(create[n-tenth:]))
		last.against(first)
		last.Note = fmt.Sprintf("of %d sandboxes at once", n)
		r.add(first, last)
		if pssErr != nil {
			r.skip(g, "memory of processes", pssErr.Error())
		} else {
			r.one(g, "memory of processes", KiB, each(pss), fmt.Sprintf("PSS of %.1f processes each", float64(processes)/float64(n)))
		}
		r.one(g, "memory of the kernel", KiB, kernelEach, "slab, stacks, page tables, per-CPU: growth of the whole machine")
		r.one(g, "memory of the supervisor", KiB, heapEach, "heap and stacks of this process")
		if pssErr == nil {
			r.one(g, "memory, all in", KiB, each(pss)+kernelEach, "processes and kernel")
		}
		var destroy []float64
		for _, sb := range boxes {
			start := time.Now()
			if err := sb.Destroy(ctx); err != nil {
				return err
			}
			destroy = append(destroy, float64(time.Since(start))/1e3)
		}
		r.add(summary(g, "destroy", Micros, destroy))
		return nil
	})
}

func heapKiB() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc+m.StackInuse) >> 10
}

// residue is what could be left behind.
type residue struct{ processes, mounts, fds, goroutines, cgroups int }

func remains(top string) residue {
	v := residue{processes: len(descendants()), mounts: len(lines("/proc/self/mountinfo")), fds: count("/proc/self/fd"), goroutines: runtime.NumGoroutine()}
	if top == "" {
		return v
	}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.Contains(path+"/", "/"+top+"/") {
			v.cgroups++
		}
		return nil // what went away meanwhile is no residue
	})
	return v
}

// churn makes and destroys sandboxes and counts what is left.
func churn(ctx context.Context, r *runner, g string) error {
	var rows []Row
	left := func(name string, v int, note string) {
		row := summary(g, name, Count, []float64{float64(v)})
		row.Note = note
		rows = append(rows, row)
	}
	outside := remains("")
	top := ""
	err := r.with(ctx, func(rt *belljar.Runtime) error {
		nets := map[string]bool{}
		cycle := func(look bool) (time.Duration, error) {
			start := time.Now()
			sb, err := rt.Create(ctx, r.spec())
			if err != nil {
				return 0, err
			}
			if err := exec(ctx, sb, insideTrue); err != nil {
				return 0, err
			}
			took := time.Since(start)
			if look {
				for _, p := range descendants() {
					if net, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", p.pid)); err == nil {
						nets[net] = true
					}
					for _, l := range lines(fmt.Sprintf("/proc/%d/cgroup", p.pid)) {
						for part := range strings.SplitSeq(l, "/") {
							if strings.HasPrefix(part, "belljar-") {
								top = part
							}
						}
					}
				}
			}
			start = time.Now()
			err = sb.Destroy(ctx)
			return took + time.Since(start), err
		}
		for range 5 {
			if _, err := cycle(true); err != nil {
				return err
			}
		}
		before := remains(top)
		var took []float64
		for i := range r.scale.churn {
			d, err := cycle(i%10 == 0)
			if err != nil {
				return fmt.Errorf("cycle %d: %w", i, err)
			}
			took = append(took, float64(d)/1e3)
		}
		after := remains(top)
		for wait := 0; wait < 100 && after != before; wait++ { // goroutines end a moment after what they did is seen
			time.Sleep(10 * time.Millisecond)
			after = remains(top)
		}
		r.add(summary(g, "cycle", Micros, took))
		note := fmt.Sprintf("more than before, after %d cycles", r.scale.churn)
		left("processes left", after.processes-before.processes, note)
		left("mounts left", after.mounts-before.mounts, note)
		left("cgroups left", after.cgroups-before.cgroups, note)
		left("descriptors left", after.fds-before.fds, note)
		left("goroutines left", after.goroutines-before.goroutines, note)
		own, err := os.Readlink("/proc/self/ns/net")
		if err != nil {
			return err
		}
		delete(nets, own)
		left("net namespaces left", netsAlive(nets), fmt.Sprintf("of %d looked at, by inode in /proc and in mounts", len(nets)))
		return nil
	})
	if err != nil {
		return err
	}
	end := remains(top)
	const note = "after the runtime was closed"
	left("processes at the end", end.processes-outside.processes, note)
	left("mounts at the end", end.mounts-outside.mounts, note)
	left("cgroups at the end", end.cgroups, note)
	r.add(rows...)
	return nil
}

// netsAlive counts the namespaces that something still holds.
func netsAlive(nets map[string]bool) int {
	alive := map[string]bool{}
	names, _ := filepath.Glob("/proc/[0-9]*/ns/net")
	for _, name := range names {
		if net, err := os.Readlink(name); err == nil && nets[net] {
			alive[net] = true
		}
	}
	for _, l := range lines("/proc/self/mountinfo") {
		for f := range strings.FieldsSeq(l) {
			if nets[f] {
				alive[f] = true
			}
		}
	}
	return len(alive)
}
