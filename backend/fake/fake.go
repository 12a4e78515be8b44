// Package fake is a backend in memory, for tests: of belljar itself and of
// programs that use it. Its programs are Go functions, its files lie in a
// temporary directory behind an [os.Root], and every step can be made to fail.
// It isolates nothing and must never get a program that is not trusted: the
// functions run in the test's own process.
//
// What it does like a real backend is the life cycle: process trees that end with
// their main process, signals, wall clock, limits that a program reports to have
// used, pausing, terminals, persistence and adoption.
package fake

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"belljar"
)

// Name is the backend's name.
const Name = "fake"

// Config configures a [Backend]. The zero value has the built-in programs only.
type Config struct {
	// Programs are found by the whole Args[0], or by its last element for a path in
	// /bin or /usr/bin. They come before the built-in ones: true, false, echo, cat,
	// sleep, env and pwd.
	Programs map[string]Program
	// Fault is asked before each step; its error makes the step fail. The steps are
	// probe, create, start, wait, signal, kill, files, usage, alive, pause, resume,
	// tty, adopt, sweep, release, close and shutdown. It is called concurrently.
	Fault func(step string) error
	// Dir is where the sandboxes' directories are made; default [os.TempDir].
	Dir string
}

// Backend implements [belljar.Backend]. What it made outlives the runtime it was
// given to, as processes would: the same Backend given to the next runtime can
// be adopted from.
type Backend struct {
	cfg Config

	mu        sync.Mutex
	instances map[string]*instance
	closed    bool
}

// New makes a backend.
func New(cfg Config) *Backend {
	return &Backend{cfg: cfg, instances: map[string]*instance{}}
}

func (b *Backend) fault(step string) error {
	if b.cfg.Fault == nil {
		return nil
	}
	if err := b.cfg.Fault(step); err != nil {
		return fmt.Errorf("%s: %w", step, err)
	}
	return nil
}

// Name implements [belljar.Backend].
func (b *Backend) Name() string { return Name }

// Probe implements [belljar.Backend]. Everything is unsupported: nothing is isolated.
func (b *Backend) Probe(context.Context) (belljar.Probe, error) {
	if err := b.fault("probe"); err != nil {
		return belljar.Probe{}, err
	}
	p := belljar.Probe{Backend: Name, Host: runtime.GOOS + " " + runtime.GOARCH, Layers: layers()}
	for _, c := range belljar.CapabilityNames {
		p.Capabilities = append(p.Capabilities, belljar.Capability{
			Name: c, Support: belljar.Unsupported, Reason: "the fake backend isolates nothing",
		})
	}
	return p, nil
}

func layers() []belljar.LayerReport {
	var ls []belljar.LayerReport
	for _, l := range belljar.Layers {
		ls = append(ls, belljar.LayerReport{Layer: l, Status: belljar.LayerUnavailable, Reason: "the fake backend isolates nothing", Source: Name})
	}
	return ls
}

// Create implements [belljar.Backend].
func (b *Backend) Create(ctx context.Context, plan *belljar.Plan) (belljar.Instance, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := b.fault("create"); err != nil {
		return nil, &belljar.Error{Code: belljar.CodeIsolationUnavailable, Op: "create", Message: err.Error(), Err: err}
	}
	dir, err := os.MkdirTemp(b.cfg.Dir, "belljar-fake-")
	if err != nil {
		return nil, err
	}
	i := &instance{b: b, plan: plan, dir: dir, tasks: map[string]*task{}, watchers: map[*watcher]bool{}}
	i.thaw = sync.NewCond(&i.mu)
	if i.root, err = os.OpenRoot(dir); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	for _, d := range []string{"tmp", "home/user", plan.Spec.WorkDir} {
		if err := i.root.MkdirAll(strings.TrimPrefix(d, "/"), 0o755); err != nil {
			return nil, errors.Join(err, i.root.Close(), os.RemoveAll(dir))
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, errors.Join(errors.New("backend is closed"), i.root.Close(), os.RemoveAll(dir))
	}
	b.instances[plan.ID] = i
	return i, nil
}

// Close implements [belljar.Backend]. Persistent sandboxes stay.
func (b *Backend) Close(context.Context) error { return b.fault("shutdown") }

// Shutdown ends everything, as a reboot of the host would.
func (b *Backend) Shutdown(ctx context.Context) error {
	b.mu.Lock()
	b.closed = true
	var all []*instance
	for _, i := range b.instances {
		all = append(all, i)
	}
	b.mu.Unlock()
	var errs []error
	for _, i := range all {
		errs = append(errs, i.destroy(ctx))
	}
	return errors.Join(errs...)
}

// Instances returns the ids of what exists, sorted: a test's baseline.
func (b *Backend) Instances() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var ids []string
	for id := range b.instances {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// Break makes a sandbox answer that it is dead, as if somebody had killed it.
func (b *Backend) Break(id string) bool {
	b.mu.Lock()
	i := b.instances[id]
	b.mu.Unlock()
	if i == nil {
		return false
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.broken = true
	return true
}

// Adopt implements [belljar.Adopter].
func (b *Backend) Adopt(_ context.Context, plan *belljar.Plan) (belljar.Instance, []belljar.AdoptedTask, error) {
	if err := b.fault("adopt"); err != nil {
		return nil, nil, err
	}
	b.mu.Lock()
	i := b.instances[plan.ID]
	b.mu.Unlock()
	if i == nil {
		return nil, nil, fmt.Errorf("adopt %s: nobody answers", plan.ID)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.broken || i.closed {
		return nil, nil, fmt.Errorf("adopt %s: it is dead", plan.ID)
	}
	i.released = nil
	var tasks []belljar.AdoptedTask
	for id, t := range i.tasks {
		a := belljar.AdoptedTask{ID: id, Task: t, Stdin: t.keep[0], Stdout: t.keep[1], Stderr: t.keep[2]}
		t.keep = [3]*os.File{}
		tasks = append(tasks, a)
	}
	slices.SortFunc(tasks, func(a, b belljar.AdoptedTask) int { return strings.Compare(a.ID, b.ID) })
	return i, tasks, nil
}

// Sweep implements [belljar.Adopter].
func (b *Backend) Sweep(ctx context.Context, id, _ string) error {
	if err := b.fault("sweep"); err != nil {
		return err
	}
	b.mu.Lock()
	i := b.instances[id]
	b.mu.Unlock()
	if i == nil {
		return nil
	}
	return i.destroy(ctx)
}

// instance implements [belljar.Instance] and the optional abilities.
type instance struct {
	b    *Backend
	plan *belljar.Plan
	dir  string
	root *os.Root

	mu       sync.Mutex
	thaw     *sync.Cond
	tasks    map[string]*task
	watchers map[*watcher]bool
	procs    int64
	cpu      time.Duration
	paused   bool
	broken   bool
	closed   bool
	gone     bool
	released chan struct{} // closed by Release; a new one for each supervisor
}

// Files implements [belljar.Instance].
func (i *instance) Files() belljar.Files { return files{i} }

// Usage implements [belljar.Instance].
func (i *instance) Usage(context.Context) (belljar.Usage, error) {
	if err := i.b.fault("usage"); err != nil {
		return belljar.Usage{}, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return belljar.Usage{CPUTimeMs: new(float64(i.cpu) / float64(time.Millisecond))}, nil
}

// Report implements [belljar.Instance].
func (i *instance) Report() belljar.Report {
	return belljar.Report{Mode: i.plan.Spec.Isolation.Mode, Layers: layers()}
}

// Alive implements [belljar.Instance].
func (i *instance) Alive(context.Context) error {
	if err := i.b.fault("alive"); err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.broken || i.closed {
		return errors.New("the sandbox is dead")
	}
	return nil
}

// Pause implements [belljar.Pauser]. Programs stop at their next write, sleep
// or use of a file.
func (i *instance) Pause(context.Context) error { return i.freeze("pause", true) }

// Resume implements [belljar.Pauser].
func (i *instance) Resume(context.Context) error { return i.freeze("resume", false) }

func (i *instance) freeze(step string, on bool) error {
	if err := i.b.fault(step); err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.paused = on
	i.thaw.Broadcast()
	return nil
}

// awaitThaw blocks a program while its sandbox is paused.
func (i *instance) awaitThaw(ctx context.Context) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.paused {
		return
	}
	stop := context.AfterFunc(ctx, func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.thaw.Broadcast()
	})
	defer stop()
	for i.paused && ctx.Err() == nil {
		i.thaw.Wait()
	}
}

// Release implements [belljar.Releaser].
func (i *instance) Release(context.Context) error {
	if err := i.b.fault("release"); err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	close(i.left())
	return nil
}

// left is the channel that ends what the present supervisor waits for; i.mu is held.
func (i *instance) left() chan struct{} {
	if i.released == nil {
		i.released = make(chan struct{})
	}
	return i.released
}

// Close implements [belljar.Instance].
func (i *instance) Close(ctx context.Context) error {
	if err := i.b.fault("close"); err != nil {
		return err
	}
	return i.destroy(ctx)
}

func (i *instance) destroy(ctx context.Context) error {
	i.mu.Lock()
	i.closed = true
	var ts []*task
	for _, t := range i.tasks {
		ts = append(ts, t)
	}
	i.mu.Unlock()
	for _, t := range ts {
		t.kill(sigKill)
	}
	for _, t := range ts {
		select {
		case <-t.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	i.mu.Lock()
	for w := range i.watchers {
		w.end()
	}
	clear(i.watchers)
	gone := i.gone
	i.gone = true
	i.mu.Unlock()
	i.b.mu.Lock()
	delete(i.b.instances, i.plan.ID)
	i.b.mu.Unlock()
	if gone {
		return nil
	}
	return errors.Join(i.root.Close(), os.RemoveAll(i.dir))
}

// program finds what Args[0] names.
func (b *Backend) program(name string) Program {
	for _, m := range []map[string]Program{b.cfg.Programs, builtin} {
		if p := m[name]; p != nil {
			return p
		}
		if d := path.Dir(name); d == "/bin" || d == "/usr/bin" {
			if p := m[path.Base(name)]; p != nil {
				return p
			}
		}
	}
	return nil
}

var (
	_ belljar.Adopter  = (*Backend)(nil)
	_ belljar.Pauser   = (*instance)(nil)
	_ belljar.Releaser = (*instance)(nil)
)
