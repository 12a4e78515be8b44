package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"belljar"
)

// neighbour is a second sandbox of the same runtime with a process that must
// survive what its neighbour does.
func (e *Env) neighbour(ctx context.Context, rt *belljar.Runtime) (check func(), err error) {
	b, err := e.BoxOf(ctx, rt, nil)
	if err != nil {
		return nil, err
	}
	ps, stop, err := b.resident(ctx, "sleep")
	if err != nil {
		return nil, err
	}
	e.later(stop)
	return func() {
		e.Check(len(alive(ps)) == len(ps), "a process of the neighbour died")
		res, err := b.Exec(ctx, "echo", "works")
		e.Check(err == nil && string(res.Stdout) == "works\n", "the neighbour cannot run programs: %v", err)
	}, nil
}

// limited makes a sandbox with limits, which the counter-run leaves out.
func (e *Env) limited(ctx context.Context, set func(*belljar.Limits), weak func(*belljar.Limits)) (*Box, func(), error) {
	rt, err := e.Runtime(ctx, belljar.Config{})
	if err != nil {
		return nil, nil, err
	}
	check, err := e.neighbour(ctx, rt)
	if err != nil {
		return nil, nil, err
	}
	b, err := e.BoxOf(ctx, rt, func(s *belljar.Spec) {
		switch {
		case !e.Weak():
			set(&s.Limits)
		case weak != nil:
			weak(&s.Limits)
		}
	})
	return b, check, err
}

// usable: after the breach the sandbox runs the next execution.
func usable(ctx context.Context, e *Env, b *Box) {
	res, err := b.Exec(ctx, "echo", "works")
	if err != nil {
		e.Broken("the sandbox is unusable afterwards: %v", err)
		return
	}
	e.Check(string(res.Stdout) == "works\n", "the sandbox is unusable afterwards: %s", ended(res))
}

func ended(r *belljar.Result) string {
	s := fmt.Sprintf("state %s, cause %s, exit %d %s, %.0f ms", r.State, r.Cause, r.ExitCode, r.Signal, r.DurationMs)
	if r.Error != nil {
		s += ", " + string(r.Error.Code)
	}
	if r.Usage.CPUTimeMs != nil {
		s += fmt.Sprintf(", cpu %.0f ms", *r.Usage.CPUTimeMs)
	}
	if r.Usage.PeakMemoryBytes != nil {
		s += fmt.Sprintf(", peak %d KiB", *r.Usage.PeakMemoryBytes>>10)
	}
	if r.Usage.PeakPids != nil {
		s += fmt.Sprintf(", %d pids", *r.Usage.PeakPids)
	}
	return s
}

func resourceEntries() []Entry {
	var out []Entry
	for _, kind := range []string{"loop", "threads", "children", "setsid"} {
		out = append(out, Entry{
			ID: "C1-" + kind, Guarantee: "C1", Capability: "cpuLimits", Title: "burn more processor time than the budget: " + kind, Knob: "limits.cpuTime",
			Run: func(ctx context.Context, e *Env) error {
				const budget = 400 * time.Millisecond
				b, check, err := e.limited(ctx, func(l *belljar.Limits) { l.CPUTime = budget }, nil)
				if err != nil {
					return err
				}
				res, err := b.Exec(ctx, "burn", kind, "1600")
				if err != nil {
					return err
				}
				e.Note("%s", ended(res))
				e.Check(!bytes.Contains(res.Stdout, []byte("done")), "it burned four times its budget")
				if !e.Weak() {
					e.Check(res.Cause == belljar.CauseCPU && res.Error != nil && res.Error.Code == belljar.CodeCPU, "ended otherwise: %s", ended(res))
					if u := res.Usage.CPUTimeMs; u != nil {
						// 10 % or 20 ms, and what a loaded machine adds between the timer and the kill.
						over := time.Duration(*u*1e6) - budget
						e.Check(over < 60*time.Millisecond, "%v over the budget of %v", over, budget)
						e.Check(over > -60*time.Millisecond, "killed %v before the budget of %v was spent", -over, budget)
					} else {
						e.Broken("processor time was not measured")
					}
				}
				check()
				usable(ctx, e, b)
				res, err = b.Exec(ctx, "burn", kind, "60", "3")
				if err != nil {
					return err
				}
				e.Control(bytes.Contains(res.Stdout, []byte("done")), "within the budget it runs to its end: %s", ended(res))
				return nil
			},
		})
	}
	for _, kind := range []string{"heap", "mmap", "shared", "stack", "shm", "tmp", "memfd", "sysv", "children", "pipes", "sockets", "tcp", "udp"} {
		out = append(out, Entry{
			ID: "C2-" + kind, Guarantee: "C2", Capability: "memoryLimits", Title: "take more memory than the limit: " + kind, Knob: "limits.memory",
			Run: func(ctx context.Context, e *Env) error {
				// The disk limit is out of the way, so that files meet the memory limit.
				limit, amount := 64*belljar.MiB, "160"
				over := int64(2 << 20)
				switch kind {
				case "pipes": // of which the kernel gives each user 64 MiB (fs.pipe-user-pages-soft)
					limit, amount = 24*belljar.MiB, "50"
				case "tcp", "udp": // of which a small machine has no more (net.ipv4.tcp_mem)
					limit, amount = 24*belljar.MiB, "50"
					over = 8 << 20 // what is under way when the limit is met is charged all the same
				}
				b, check, err := e.limited(ctx, func(l *belljar.Limits) { l.Memory = limit; l.Disk = limit - belljar.MiB }, nil)
				if err != nil {
					return err
				}
				res, err := b.Exec(ctx, "alloc", kind, amount)
				if err != nil {
					return err
				}
				e.Note("%s", ended(res))
				rep, err := claim(res)
				e.Check(err != nil || !rep.Succeeded, "it got more than twice its limit")
				refused := err == nil && !rep.Succeeded
				if !e.Weak() {
					e.Check(res.Cause == belljar.CauseMemory && res.Error != nil && res.Error.Code == belljar.CodeOOM || refused, "ended otherwise: %s", ended(res))
					if u := res.Usage.PeakMemoryBytes; u != nil {
						e.Check(*u <= int64(limit)+over, "the kernel counted %d KiB", *u>>10)
					}
				}
				check()
				if kind != "sysv" { // C2-residue-shm is about that
					usable(ctx, e, b)
				}
				// Files and shared memory stay, and count against the next: the owner removes them.
				for _, f := range []string{"/dev/shm/lab-alloc", "/tmp/lab-alloc"} {
					if err := b.sb.RemoveAll(f); err != nil {
						e.Broken("remove %s: %v", f, err)
					}
				}
				if kind == "sysv" {
					if b, err = e.Box(ctx, func(s *belljar.Spec) { s.Limits.Memory = limit }); err != nil {
						return err
					}
				}
				// The kernel gives back what closed sockets held after a grace period.
				until(ctx, time.Second, func() bool {
					if res, err = b.Exec(ctx, "alloc", kind, "4"); err != nil {
						return true
					}
					rep, err = claim(res)
					return err == nil && rep.Succeeded
				})
				if res == nil {
					return err
				}
				e.Control(err == nil && rep.Succeeded, "within the limit it gets what it wants: %s %v", ended(res), err)
				return nil
			},
		})
	}
	for _, kind := range []string{"shm", "msg", "sem"} {
		out = append(out, Entry{
			ID: "C2-residue-" + kind, Guarantee: "C2", Title: "leave System V objects that eat the next execution's memory: " + kind, Knob: "limits of System V IPC",
			Needs: func(*Env) string {
				if os.Getuid() != 0 {
					return "only root can bound what stays in an IPC namespace: here it stays until the sandbox ends"
				}
				return ""
			},
			Run: func(ctx context.Context, e *Env) error {
				b, err := e.Box(ctx, func(s *belljar.Spec) { s.Limits.Memory = 64 * belljar.MiB })
				if err != nil {
					return err
				}
				if e.Weak() {
					// What does stay and count, by design: files in memory.
					if _, err := b.Exec(ctx, "alloc", "shm", "31"); err != nil {
						return err
					}
				} else {
					res, err := b.Exec(ctx, "leave", kind, "44")
					if err != nil {
						return err
					}
					e.Note("%s %s", ended(res), res.Stdout)
				}
				res, err := b.Exec(ctx, "alloc", "heap", "36")
				if err != nil {
					return err
				}
				rep, err := claim(res)
				e.Check(err == nil && rep.Succeeded, "the next execution cannot have 36 of 64 MiB: %s", ended(res))
				fresh, err := e.Box(ctx, func(s *belljar.Spec) { s.Limits.Memory = 64 * belljar.MiB })
				if err != nil {
					return err
				}
				res, err = fresh.Exec(ctx, "alloc", "heap", "36")
				if err != nil {
					return err
				}
				rep, err = claim(res)
				e.Control(err == nil && rep.Succeeded, "in a new sandbox it can: %s", ended(res))
				return nil
			},
		})
	}
	for _, kind := range []string{"forks", "threads"} {
		out = append(out, Entry{
			ID: "C3-" + kind, Guarantee: "C3", Capability: "pidsLimits", Title: "a bomb of " + kind, Knob: "limits.pids",
			Run: func(ctx context.Context, e *Env) error {
				b, check, err := e.limited(ctx, func(l *belljar.Limits) { l.Pids = 48 }, func(l *belljar.Limits) { l.Pids = 2000 })
				if err != nil {
					return err
				}
				res, err := b.Exec(ctx, kind, "400", "50")
				if err != nil {
					return err
				}
				e.Note("%s", ended(res))
				rep, err := claim(res)
				e.Check(err != nil || !rep.Succeeded, "all 400 ran at once: %v", rep)
				if u := res.Usage.PeakPids; u != nil {
					e.Check(*u <= 49 || e.Weak(), "the kernel counted %d", *u) // the sandbox's first process is one of them
				}
				check()
				usable(ctx, e, b)
				res, err = b.Exec(ctx, "forks", "10", "0")
				if err != nil {
					return err
				}
				rep, err = claim(res)
				e.Control(err == nil && rep.Succeeded, "ten children can run")
				return nil
			},
		})
	}
	type fill struct {
		kind, dir string
		amount    int // MiB, or thousands
		weak      belljar.Size
	}
	for _, f := range []fill{
		{"write", "/workspace", 48, 0},
		{"write", "/tmp", 48, 0},
		{"write", "/dev/shm", 48, 0},
		{"fallocate", "/workspace", 48, 0},
		{"sparse", "/workspace", 48, 0},
		{"deleted", "/tmp", 48, 0},
		{"files", "/workspace", 4, 0},
		{"dirs", "/tmp", 4, 0},
		{"symlinks", "/workspace", 4, 0},
		{"longnames", "/workspace", 4, 0},
	} {
		out = append(out, Entry{
			ID: "C4-" + f.kind + strings.ReplaceAll(f.dir, "/", "-"), Guarantee: "C4", Capability: "diskLimits", Title: "fill the disk: " + f.kind + " in " + f.dir, Knob: "limits.disk and inodes",
			Run: func(ctx context.Context, e *Env) error {
				b, check, err := e.limited(ctx, func(l *belljar.Limits) { l.Disk = 16 * belljar.MiB; l.Inodes = 1500 },
					func(l *belljar.Limits) { l.Disk = 128 * belljar.MiB; l.Inodes = 20000 })
				if err != nil {
					return err
				}
				res, err := b.Exec(ctx, "fill", f.kind, f.dir, strconv.Itoa(f.amount))
				if err != nil {
					return err
				}
				rep, err := claim(res)
				if err != nil {
					return err
				}
				e.Note("%s", rep.Steps[len(rep.Steps)-1].Name)
				e.Check(!rep.Succeeded, "%s", reached(rep))
				if !e.Weak() {
					r := rep.Steps[len(rep.Steps)-1].Result
					e.Check(strings.Contains(r, "no space") || strings.Contains(r, "quota"), "the program was told %q", r)
				}
				check()
				usable(ctx, e, b)
				cmd := b.sb.Command("/bin/sh", "-c", "rm -rf "+f.dir+"/lab-fill*")
				cmd.Dir = "/"
				if _, err := cmd.Run(ctx); err != nil {
					return err
				}
				res, err = b.Exec(ctx, "fill", "write", f.dir, "4")
				if err != nil {
					return err
				}
				rep, err = claim(res)
				e.Control(err == nil && rep.Succeeded, "after removal there is room again: %+v", rep)
				return nil
			},
		})
	}
	out = append(out, Entry{
		ID: "C4-cause", Guarantee: "C4", Capability: "diskLimits", Title: "a program that failed for lack of space says so", Knob: "limits.disk",
		Run: func(ctx context.Context, e *Env) error {
			b, _, err := e.limited(ctx, func(l *belljar.Limits) { l.Disk = 8 * belljar.MiB }, nil)
			if err != nil {
				return err
			}
			res, err := b.sb.Shell("head -c 20000000 /dev/zero > big").Run(ctx)
			if err != nil {
				return err
			}
			e.Check(res.ExitCode != 0, "20 MB were written")
			if !e.Weak() {
				e.Check(res.Cause == belljar.CauseDisk && res.Error != nil && res.Error.Code == belljar.CodeDisk, "%s", ended(res))
			}
			res, err = b.sb.Shell("rm -f big; head -c 2000000 /dev/zero > small").Run(ctx)
			if err != nil {
				return err
			}
			e.Control(res.ExitCode == 0 && res.Cause == belljar.CauseExit, "2 MB can be written: %s", ended(res))
			return nil
		},
	})
	out = append(out, outputEntries()...)
	out = append(out, survivorEntries()...)
	return append(out, boundEntries()...)
}

func outputEntries() []Entry {
	return []Entry{
		{
			ID: "C5-memory", Guarantee: "C5", Title: "300 MiB of output, lines without end, NULs: the supervisor's memory", Knob: "reading with bounds",
			Run: func(ctx context.Context, e *Env) error {
				b, err := e.Box(ctx, nil)
				if err != nil {
					return err
				}
				if _, err := b.Exec(ctx, "flood", "40000000", "both"); err != nil { // fill the retained 16 MiB of each once
					return err
				}
				before := resident()
				var hoard [][]byte
				for _, kind := range []string{"text", "nul", "line"} {
					res, err := b.Exec(ctx, "flood", strconv.Itoa(100<<20), "both", kind)
					if err != nil {
						return err
					}
					e.Check(res.ExitCode == 0, "it could not write: %s", ended(res))
					e.Check(res.Truncated && res.DroppedBytes+int64(len(res.Stdout)+len(res.Stderr)) == 100<<20, "truncated %v, dropped %d, kept %d", res.Truncated, res.DroppedBytes, len(res.Stdout)+len(res.Stderr))
					if e.Weak() { // what a supervisor that keeps everything would hold
						big := make([]byte, 100<<20)
						for i := 0; i < len(big); i += 4096 {
							big[i] = 1
						}
						hoard = append(hoard, big)
					}
				}
				grown := resident() - before
				e.Note("resident memory grew by %d KiB, %d kept", grown>>10, len(hoard))
				// 32 MiB, and the result in the hand of this very entry.
				e.Check(grown < 80<<20, "resident memory grew by %d MiB", grown>>20)
				res, err := b.Exec(ctx, "flood", "1000")
				if err != nil {
					return err
				}
				e.Control(len(res.Stdout) == 1000 && !res.Truncated, "1000 bytes arrive whole")
				return nil
			},
		},
		{
			ID: "C5-limit", Guarantee: "C5", Title: "more output than the limit", Knob: "limits.output",
			Run: func(ctx context.Context, e *Env) error {
				b, check, err := e.limited(ctx, func(l *belljar.Limits) { l.Output = belljar.MiB }, nil)
				if err != nil {
					return err
				}
				res, err := b.Exec(ctx, "flood", "20000000")
				if err != nil {
					return err
				}
				e.Check(res.ExitCode != 0, "20 MB were written: %s", ended(res))
				if !e.Weak() {
					e.Check(res.Cause == belljar.CauseOutput && res.Error != nil && res.Error.Code == belljar.CodeOutput, "%s", ended(res))
				}
				check()
				usable(ctx, e, b)
				res, err = b.Exec(ctx, "flood", "100000")
				if err != nil {
					return err
				}
				e.Control(res.ExitCode == 0 && len(res.Stdout) == 100000, "100 kB can be written")
				return nil
			},
		},
		{
			ID: "C5-gone", Guarantee: "C5", Title: "a reader that goes away does not stop the program", Knob: "reading on",
			Run: func(ctx context.Context, e *Env) error {
				b, err := e.Box(ctx, func(s *belljar.Spec) { s.Timeout = 5 * time.Second })
				if err != nil {
					return err
				}
				cmd := b.Cmd("flood", "5000000")
				if e.Weak() { // a reader that neither reads nor goes
					block := make(chan struct{})
					e.later(func() { close(block) })
					cmd.Stdout = blocked(block)
				} else {
					cmd.Stdout = refusing{}
				}
				start := time.Now()
				res, err := cmd.Run(ctx)
				if err != nil {
					return err
				}
				e.Check(res.ExitCode == 0 && time.Since(start) < 4*time.Second, "%s", ended(res))
				res, err = b.Exec(ctx, "flood", "100")
				if err != nil {
					return err
				}
				e.Control(len(res.Stdout) == 100, "with a reader it arrives")
				return nil
			},
		},
	}
}

type refusing struct{}

func (refusing) Write([]byte) (int, error) { return 0, errors.New("gone") }

type blocked chan struct{}

func (b blocked) Write(p []byte) (int, error) {
	<-b
	return len(p), nil
}

func survivorEntries() []Entry {
	var out []Entry
	for _, kind := range []string{"term", "stopped", "daemon", "closed", "chain", "parent", "stream"} {
		out = append(out, Entry{
			ID: "C6-" + kind, Guarantee: "C6", Title: "processes that want to outlive their execution: " + kind, Direct: true,
			Run: func(ctx context.Context, e *Env) error {
				mark := secret()
				e.later(func() {
					for range 20 { // a chain forks on while it is killed
						for _, p := range find(mark) {
							if p.alive() {
								_ = unix.Kill(p.pid, unix.SIGKILL)
							}
						}
						time.Sleep(5 * time.Millisecond)
						if len(find(mark)) == 0 {
							break
						}
					}
				})
				b, err := e.Box(ctx, func(s *belljar.Spec) { s.Timeout = 600 * time.Millisecond })
				if err != nil {
					return err
				}
				stays := kind == "term" || kind == "stopped"
				if e.direct() {
					ctx, cancel := context.WithTimeout(ctx, 600*time.Millisecond)
					defer cancel()
					if kind == "term" || kind == "stopped" { // what a kill of the main process alone leaves
						if _, err := b.execBare(ctx, []string{"survive", "stopped", mark}); err != nil {
							return err
						}
					} else {
						bare := kind
						if kind == "parent" || kind == "stream" { // they would be this process's own children
							bare = "daemon"
						}
						if _, err := b.execBare(ctx, []string{"survive", bare, mark}); err != nil {
							return err
						}
					}
				} else {
					start := time.Now()
					res, err := b.Exec(ctx, "survive", kind, mark)
					if err != nil {
						return err
					}
					took := time.Since(start)
					e.Note("%s", ended(res))
					if stays {
						e.Check(res.State == belljar.TimedOut && res.Cause == belljar.CauseTimeout, "%s", ended(res))
					} else {
						e.Check(res.State == belljar.Completed, "%s", ended(res))
					}
					e.Check(took < time.Second, "the result took %v", took)
				}
				// A chain has moments in which the list of its processes is out of date: look again.
				quiet := 0
				d, ok := until(ctx, 100*time.Millisecond, func() bool {
					quiet++
					if len(alive(find(mark))) > 0 {
						quiet = 0
					}
					return quiet == 4
				})
				e.Check(ok, "%d processes still live %v after the result", len(alive(find(mark))), d)
				if b.sb == nil {
					e.Control(true, "none needed on the bare host")
					return nil
				}
				usable(ctx, e, b)
				long, err := e.Box(ctx, nil)
				if err != nil {
					return err
				}
				ps, stop, err := long.resident(ctx, "sleep")
				if err != nil {
					return err
				}
				e.Control(len(alive(ps)) > 0, "a running process is found on the host")
				stop()
				return nil
			},
		})
	}
	return out
}

func boundEntries() []Entry {
	// simple is an attack that must fail under a limit and succeed without.
	simple := func(id, guarantee, title, knob string, set, weak func(*belljar.Limits), control []string, args ...string) Entry {
		return Entry{ID: id, Guarantee: guarantee, Title: title, Knob: knob, Run: func(ctx context.Context, e *Env) error {
			b, check, err := e.limited(ctx, set, weak)
			if err != nil {
				return err
			}
			res, err := b.Exec(ctx, args...)
			if err != nil {
				return err
			}
			rep, err := claim(res)
			e.Note("%s", ended(res))
			e.Check(err != nil || !rep.Succeeded, "%+v", rep)
			check()
			usable(ctx, e, b)
			res, err = b.Exec(ctx, control...)
			if err != nil {
				return err
			}
			rep, err = claim(res)
			e.Control(err == nil && rep.Succeeded, "a little of it is allowed: %v %s", control, ended(res))
			return nil
		}}
	}
	out := []Entry{
		simple("C7-openfiles", "C7", "open more files than the limit", "limits.openFiles", func(l *belljar.Limits) { l.OpenFiles = 64 }, func(l *belljar.Limits) { l.OpenFiles = 2000 }, []string{"openfiles", "30"}, "openfiles", "1000"),
		simple("C7-filesize", "C7", "write a larger file than the limit", "limits.fileSize", func(l *belljar.Limits) { l.FileSize = 2 * belljar.MiB }, nil, []string{"filesize", "/workspace/a", "1"}, "filesize", "/workspace/b", "8"),
		{ID: "C7-priority", Guarantee: "C7", Title: "ask for priority, real time, locked memory, higher limits", Direct: true, Run: func(ctx context.Context, e *Env) error {
			b, err := e.Box(ctx, nil)
			if err != nil {
				return err
			}
			rep, _, err := b.Attack(ctx, "priority")
			if err != nil {
				return err
			}
			if e.Weak() && os.Getuid() == 0 { // as root of the host it is allowed
				e.Check(unix.Setpriority(unix.PRIO_PROCESS, 0, -1) != nil, "nice -1")
				_ = unix.Setpriority(unix.PRIO_PROCESS, 0, 0)
			}
			e.Check(!rep.Succeeded, "%s", reached(rep))
			e.Control(len(rep.Steps) > 6, "%d ways were tried", len(rep.Steps))
			return nil
		}, Needs: needsRoot},
		{ID: "C8-quota", Guarantee: "C8", Capability: "cpuQuota", Title: "run faster than half a processor", Knob: "limits.cpu", Run: func(ctx context.Context, e *Env) error {
			b, _, err := e.limited(ctx, func(l *belljar.Limits) { l.CPU = 0.5 }, nil)
			if err != nil {
				return err
			}
			res, err := b.Exec(ctx, "spin", "1500")
			if err != nil {
				return err
			}
			e.Note("%s", ended(res))
			u := res.Usage.CPUTimeMs
			if u == nil {
				return errors.New("processor time was not measured")
			}
			rate := *u / res.DurationMs
			e.Check(rate < 0.6, "it ran at %.2f processors", rate)
			e.Check(res.State == belljar.Completed, "it was killed: %s", ended(res))
			e.Control(rate > 0.25, "it ran at %.2f processors", rate)
			return nil
		}},
		{ID: "C9-limits", Guarantee: "C9", Title: "limits at 0, negative, NaN, huge, contradictory", Knob: "valid values", Run: func(ctx context.Context, e *Env) error {
			inf, nan := math.Inf(1), math.NaN()
			cases := map[string]func(*belljar.Limits){
				"negative cpu":       func(l *belljar.Limits) { l.CPU = -1 },
				"NaN cpu":            func(l *belljar.Limits) { l.CPU = nan },
				"infinite cpu":       func(l *belljar.Limits) { l.CPU = inf },
				"tiny cpu":           func(l *belljar.Limits) { l.CPU = 1e-9 },
				"negative cpuTime":   func(l *belljar.Limits) { l.CPUTime = -time.Second },
				"negative memory":    func(l *belljar.Limits) { l.Memory = -1 },
				"memory of a byte":   func(l *belljar.Limits) { l.Memory = 1 },
				"huge memory":        func(l *belljar.Limits) { l.Memory = 1 << 62 },
				"negative pids":      func(l *belljar.Limits) { l.Pids = -5 },
				"huge pids":          func(l *belljar.Limits) { l.Pids = 1 << 40 },
				"negative disk":      func(l *belljar.Limits) { l.Disk = -1 },
				"disk beyond memory": func(l *belljar.Limits) { l.Memory = 64 * belljar.MiB; l.Disk = 64 * belljar.MiB },
				"unknown backing":    func(l *belljar.Limits) { l.DiskBacking = "tape" },
				"negative inodes":    func(l *belljar.Limits) { l.Inodes = -1 },
				"negative output":    func(l *belljar.Limits) { l.Output = -1 },
				"negative openFiles": func(l *belljar.Limits) { l.OpenFiles = -1 },
				"huge openFiles":     func(l *belljar.Limits) { l.OpenFiles = 1 << 40 },
			}
			if e.Weak() {
				cases = map[string]func(*belljar.Limits){"pids": func(l *belljar.Limits) { l.Pids = 100 }}
			}
			rt, err := e.Runtime(ctx, belljar.Config{})
			if err != nil {
				return err
			}
			for name, set := range cases {
				spec := e.spec(func(s *belljar.Spec) { set(&s.Limits) })
				sb, err := rt.Create(ctx, spec)
				if err == nil {
					err = sb.Destroy(ctx)
				}
				e.Check(errors.Is(err, belljar.ErrInvalidSpec), "%s: %v", name, err)
			}
			_, err = belljar.Compile(belljar.Spec{Limits: belljar.Limits{Pids: 100, Memory: 64 * belljar.MiB, CPU: 0.5}})
			e.Control(err == nil, "valid limits are accepted: %v", err)
			return nil
		}},
	}
	// Kernel memory: whatever is not bounded by a limit of its own is charged.
	for _, k := range []struct {
		kind   string
		amount int
	}{{"epoll", 2}, {"eventfd", 2}, {"sockets", 2}} {
		out = append(out, simple("C10-"+k.kind, "C10", "thousands of kernel objects: "+k.kind, "limits.openFiles",
			func(l *belljar.Limits) { l.Memory = 48 * belljar.MiB }, func(l *belljar.Limits) { l.OpenFiles = 4000 }, []string{"openfiles", "10"}, "kmem", k.kind, strconv.Itoa(k.amount)))
	}
	for _, kind := range []string{"sigqueue", "timers"} {
		out = append(out, Entry{ID: "C7-" + kind, Guarantee: "C7", Title: "pile up in the kernel: " + kind, Layer: belljar.LayerRlimits, Run: func(ctx context.Context, e *Env) error {
			b, err := e.Box(ctx, nil)
			if err != nil {
				return err
			}
			rep, _, err := b.Attack(ctx, "kmem", kind, "5")
			if err != nil {
				return err
			}
			e.Check(!rep.Succeeded, "%s", reached(rep))
			res, err := b.Exec(ctx, "kmem", kind, "1")
			if err != nil {
				return err
			}
			rep, err = claim(res)
			e.Control(err == nil && rep.Succeeded, "a thousand are allowed: %+v", rep)
			return nil
		}})
	}
	out = append(out,
		Entry{ID: "C10-keys", Guarantee: "C10", Title: "keys in the kernel's keyrings", Layer: belljar.LayerSeccomp, Run: func(ctx context.Context, e *Env) error {
			b, err := e.Box(ctx, nil)
			if err != nil {
				return err
			}
			rep, _, err := b.Attack(ctx, "kmem", "keys", "1")
			if err != nil {
				return err
			}
			last := rep.Steps[len(rep.Steps)-1]
			e.Check(strings.HasPrefix(last.Name, "keys: 0 "), "%s %s", last.Name, last.Result)
			return controlRuns(ctx, e, b)
		}},
	)
	return out
}
