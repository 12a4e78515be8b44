package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"belljar"
)

// scale is how much is measured.
type scale struct {
	static, dynamic, python, node int // sequential executions
	quiet, cold, process          int
	slice                         time.Duration // of one contender under load
	rounds                        int           // of such slices
	wall, cpu                     int
	floodMiB, floods              int
	idle, churn                   int
	inside                        int // starts of the probe
	loop                          int // operations in each of its rounds, of the cheapest kind
}

var (
	full = scale{
		static: 3000, dynamic: 1500, python: 200, node: 100, quiet: 60, cold: 500, process: 300, slice: 400 * time.Millisecond, rounds: 6,
		wall: 25, cpu: 15, floodMiB: 2048, floods: 3, idle: 1000, churn: 1000, inside: 10, loop: 400_000,
	}
	quick = scale{
		static: 200, dynamic: 100, python: 10, node: 5, quiet: 8, cold: 40, process: 20, slice: 100 * time.Millisecond, rounds: 2,
		wall: 3, cpu: 3, floodMiB: 256, floods: 1, idle: 100, churn: 100, inside: 2, loop: 50_000,
	}
)

type group struct {
	name string
	run  func(ctx context.Context, r *runner, group string) error
}

// runner is one call of Run.
type runner struct {
	opt    Options
	scale  scale
	rep    *Report
	static string // the program of staticTrue, on the host
	limits belljar.Limits
}

// Run measures. The contenders of a group take turns; groups run one after the
// other. A contender that this host does not have is a row with a reason; an
// execution that fails ends the run with an error.
func Run(ctx context.Context, o Options) (Report, error) {
	s := full
	if o.Quick {
		s = quick
	}
	return run(ctx, o, s)
}

func run(ctx context.Context, o Options, s scale) (rep Report, err error) {
	chosen, err := choose(o.Rows)
	if err != nil {
		return rep, err
	}
	if o.Runtime == nil {
		return rep, &belljar.Error{Code: belljar.CodeInvalidSpec, Op: "bench", Message: "no runtime given"}
	}
	if o.Log == nil {
		o.Log = io.Discard
	}
	if o.Self == "" {
		if o.Self, err = os.Executable(); err != nil {
			return rep, fmt.Errorf("bench: %w", err)
		}
	}
	if o.Self, err = filepath.EvalSymlinks(o.Self); err != nil {
		return rep, fmt.Errorf("bench: %w", err)
	}
	dir, err := os.MkdirTemp("", "belljar-bench-")
	if err != nil {
		return rep, fmt.Errorf("bench: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return rep, fmt.Errorf("bench: %w", err)
	}
	r := &runner{opt: o, scale: s, rep: &rep, static: filepath.Join(dir, "true")}
	code, err := staticTrue(runtime.GOARCH)
	if err != nil {
		return rep, err
	}
	if err := os.WriteFile(r.static, code, 0o755); err != nil {
		return rep, fmt.Errorf("bench: %w", err)
	}
	rep = Report{
		Date: time.Now().UTC().Truncate(time.Second), Command: cmp.Or(o.Command, commandLine()), Quick: o.Quick, Fingerprint: fingerprint(),
		Percentiles: "nearest rank: sample ceil(p*n/100) of the sorted ones",
	}
	if err := r.settle(ctx); err != nil {
		return rep, err
	}
	for i, g := range chosen {
		start := time.Now()
		if err := g.run(ctx, r, g.name); err != nil {
			return rep, fmt.Errorf("bench %s: %w", g.name, err)
		}
		fmt.Fprintf(o.Log, "%d/%d %s %.1fs\n", i+1, len(chosen), g.name, time.Since(start).Seconds())
	}
	rep.Fingerprint.LoadAfter = load()
	return rep, nil
}

func commandLine() string {
	args := append([]string{filepath.Base(os.Args[0])}, os.Args[1:]...)
	return strings.Join(args, " ")
}

// settle finds out whether this host enforces the limits of the targets.
func (r *runner) settle(ctx context.Context) error {
	r.limits = belljar.Limits{Memory: 256 * belljar.MiB, Pids: 64, CPUTime: 10 * time.Second}
	return r.with(ctx, func(rt *belljar.Runtime) error {
		sb, err := rt.Create(ctx, belljar.Spec{Limits: r.limits})
		if errors.Is(err, belljar.ErrIsolationUnavailable) {
			r.limits = belljar.Limits{}
			r.rep.Limits = "hardened, no memory, pids and CPU limits: " + err.Error()
			return nil
		}
		if err != nil {
			return err
		}
		r.rep.Limits = "hardened; memory 256 MiB, pids 64, CPU time 10 s; output captured"
		return sb.Destroy(ctx)
	})
}

// with runs f with a runtime of its own.
func (r *runner) with(ctx context.Context, f func(*belljar.Runtime) error) error {
	rt, err := r.opt.Runtime(ctx)
	if err != nil {
		return err
	}
	return errors.Join(f(rt), rt.Close(context.WithoutCancel(ctx)))
}

const (
	insideTrue = "/true"
	insideSelf = "/probe"
)

// spec is the sandbox of the targets, with the bench's own programs in it.
func (r *runner) spec() belljar.Spec {
	return belljar.Spec{
		Limits: r.limits,
		Mounts: []belljar.Mount{{Source: r.static, Target: insideTrue}, {Source: r.opt.Self, Target: insideSelf}},
	}
}

// exec runs a program that must succeed.
func exec(ctx context.Context, sb *belljar.Sandbox, argv ...string) error {
	res, err := sb.Command(argv[0], argv[1:]...).Run(ctx)
	if err != nil {
		return err
	}
	if res.State != belljar.Completed || res.ExitCode != 0 {
		return fmt.Errorf("%s: %s, exit %d, %s", argv[0], res.Cause, res.ExitCode, res.Stderr)
	}
	return nil
}

func (r *runner) add(rows ...Row) { r.rep.Rows = append(r.rep.Rows, rows...) }

func (r *runner) skip(group, name, why string) {
	r.add(Row{Group: group, Name: name, Skipped: why})
}

// one adds a single number.
func (r *runner) one(group, name, unit string, v float64, note string) {
	row := summary(group, name, unit, []float64{v})
	row.Note = note
	r.add(row)
}

// contender is what takes turns. run fills in one duration for each name.
type contender struct {
	names []string
	notes []string
	base  bool // the first name is the baseline of the group
	run   func(ctx context.Context, d []time.Duration) error
}

// timed is a contender with one duration.
func timed(name, note string, f func(context.Context) error) contender {
	return contender{
		names: []string{name}, notes: []string{note},
		run: func(ctx context.Context, d []time.Duration) error {
			start := time.Now()
			err := f(ctx)
			d[0] = time.Since(start)
			return err
		},
	}
}

func (c contender) baseline() contender {
	c.base = true
	return c
}

// turns runs n rounds, in each of which every contender has one turn.
func (r *runner) turns(ctx context.Context, group string, n int, cs []contender) error {
	samples := make([][][]float64, len(cs))
	for i, c := range cs {
		samples[i] = make([][]float64, len(c.names))
	}
	runtime.GC()
	for round := -max(n/20, 1); round < n; round++ { // the negative ones warm up
		for i, c := range cs {
			if err := ctx.Err(); err != nil {
				return err
			}
			d := make([]time.Duration, len(c.names))
			if err := c.run(ctx, d); err != nil {
				return fmt.Errorf("%s: %w", c.names[0], err)
			}
			if round < 0 {
				continue
			}
			for k := range d {
				samples[i][k] = append(samples[i][k], float64(d[k])/1e3)
			}
		}
	}
	var rows []Row
	var heads []int // the rows of whole turns; the others are parts of one
	base := -1
	for i, c := range cs {
		for k, name := range c.names {
			row := summary(group, name, Micros, samples[i][k])
			row.Note = c.notes[k]
			if k == 0 {
				heads = append(heads, len(rows))
				if c.base {
					base = len(rows)
				}
			}
			if len(c.names) == 1 {
				row.PerSecond = 1e6 * float64(len(samples[i][k])) / sum(samples[i][k])
			}
			rows = append(rows, row)
		}
	}
	if base >= 0 {
		for _, i := range heads {
			rows[i].against(rows[base])
		}
	}
	r.add(rows...)
	return nil
}

func sum(v []float64) (s float64) {
	for _, x := range v {
		s += x
	}
	return s
}

// load runs each contender by many clients at once, in alternating slices of
// time.
func (r *runner) load(ctx context.Context, group string, clients int, cs []contender) error {
	type tally struct {
		samples []float64
		busy    time.Duration
	}
	tallies := make([]tally, len(cs))
	for round := range r.scale.rounds {
		for i, c := range cs {
			runtime.GC()
			var mu sync.Mutex // guards the tally and first
			var first error
			var wg sync.WaitGroup
			start := time.Now()
			for range clients {
				wg.Go(func() {
					var mine []float64
					d := make([]time.Duration, 1)
					var err error
					for err == nil && time.Since(start) < r.scale.slice {
						if err = ctx.Err(); err == nil {
							err = c.run(ctx, d)
						}
						mine = append(mine, float64(d[0])/1e3)
					}
					mu.Lock()
					defer mu.Unlock()
					tallies[i].samples = append(tallies[i].samples, mine...)
					if first == nil {
						first = err
					}
				})
			}
			wg.Wait()
			tallies[i].busy += time.Since(start)
			if first != nil {
				return fmt.Errorf("%s, %d clients, round %d: %w", c.names[0], clients, round, first)
			}
		}
	}
	var rows []Row
	base := -1
	for i, c := range cs {
		row := summary(group, c.names[0], Micros, tallies[i].samples)
		row.Clients, row.Note = clients, c.notes[0]
		row.PerSecond = float64(row.N) / tallies[i].busy.Seconds()
		if c.base {
			base = i
		}
		rows = append(rows, row)
	}
	if base >= 0 {
		for i := range rows {
			rows[i].against(rows[base])
		}
	}
	r.add(rows...)
	return nil
}
