package cell

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"belljar"
)

// Defaults of a [Fabric].
const (
	defaultWorkers = 8
	defaultQueue   = 256
	defaultCells   = 64 // of a worker whose cells are forked
	defaultIdle    = 5 * time.Minute
)

// FabricConfig says what a fabric makes.
type FabricConfig struct {
	// Runtime makes the sandboxes. It stays the caller's.
	Runtime *belljar.Runtime
	// Templates are the kinds of cells, by name.
	Templates map[string]Template
	// MaxWorkers bounds the sandboxes; default 8.
	MaxWorkers int
	// Queue bounds how many may wait for a place; default 256, negative: none may.
	Queue int
	// MixTenants allows cells of several tenants in one sandbox. They are then as far apart
	// as cells of one tenant are, which is less than sandboxes are.
	MixTenants bool
}

// Template describes workers and the cells in them.
type Template struct {
	// Sandbox is what each worker is. Its tenant is set by the fabric.
	Sandbox belljar.Spec
	// Cell is what each cell is, unless Open says more. With more than one cell in a worker
	// Private is set.
	Cell Spec
	// Cells is how many cells a worker holds at once: default 64 where they are forked.
	// Where each has an interpreter of its own it is 1.
	Cells int
	// Spares is how many interpreters are ready in a worker; default 4, negative none.
	Spares int
	// RecycleCells ends a worker after it has had so many cells, RecycleBytes when its
	// sandbox has used so much memory; it first empties. 0: never.
	RecycleCells int
	RecycleBytes belljar.Size
	// MaxIdle is how long a worker without cells is kept; default 5 minutes.
	MaxIdle time.Duration
}

// Fabric hosts many cells in few sandboxes. It is safe for concurrent use.
type Fabric struct {
	rt   *belljar.Runtime
	cfg  FabricConfig
	work sync.WaitGroup // workers being made and unmade
	ctx  context.Context
	stop context.CancelFunc

	mu       sync.Mutex
	workers  []*place
	making   int // workers not yet in the list
	warm     map[poolKey]int
	queue    []chan struct{} // in the order of their coming; closed to have them look again
	draining bool
	closed   bool
	died     int
	recycled int
}

// poolKey says which cells may be in one worker.
type poolKey struct{ tenant, template, kind string }

// place is a worker with its sandbox.
type place struct {
	key     poolKey
	tenant  string
	sb      *belljar.Sandbox
	w       *Worker
	t       Template
	load    int // cells, and those being opened
	served  int
	retired bool // takes no more cells
	since   time.Time
	idle    *time.Timer
}

// NewFabric makes a fabric without workers.
func NewFabric(cfg FabricConfig) (*Fabric, error) {
	bad := func(field, format string, args ...any) error {
		return &belljar.Error{Code: belljar.CodeInvalidSpec, Op: "fabric " + field, Message: fmt.Sprintf(format, args...), Recoverable: true}
	}
	if cfg.Runtime == nil {
		return nil, bad("runtime", "none")
	}
	if cfg.MaxWorkers < 0 {
		return nil, bad("maxWorkers", "negative")
	}
	if cfg.MaxWorkers == 0 {
		cfg.MaxWorkers = defaultWorkers
	}
	if cfg.Queue == 0 {
		cfg.Queue = defaultQueue
	}
	cfg.Templates = maps.Clone(cfg.Templates)
	for name, t := range cfg.Templates {
		if err := t.Cell.check(); err != nil {
			return nil, err
		}
		if t.Cells < 0 || t.RecycleCells < 0 || t.RecycleBytes < 0 || t.MaxIdle < 0 {
			return nil, bad("templates."+name, "negative")
		}
		if t.Cell.Language != Python && t.Cells > 1 {
			return nil, bad("templates."+name+".cells", "cells of %s cannot be parted within a sandbox", t.Cell.Language)
		}
		if t.Cells == 0 {
			t.Cells = defaultCells
			if t.Cell.Language != Python || t.Cell.Engine == Process {
				t.Cells = 1
			}
		}
		if t.Cells > 1 {
			t.Cell.Private = true
		}
		if t.Spares == 0 {
			t.Spares = 4
		}
		t.Spares = min(max(t.Spares, 0), t.Cells)
		if t.MaxIdle == 0 {
			t.MaxIdle = defaultIdle
		}
		cfg.Templates[name] = t
	}
	ctx, stop := context.WithCancel(context.Background())
	return &Fabric{rt: cfg.Runtime, cfg: cfg, ctx: ctx, stop: stop, warm: map[poolKey]int{}}, nil
}

// Open makes a cell of a template for a tenant, in the worker with the fewest cells,
// or waits for a place. What spec leaves empty the template says.
func (f *Fabric) Open(ctx context.Context, tenant, template string, spec Spec) (*Cell, error) {
	t, err := f.template(template)
	if err != nil {
		return nil, err
	}
	spec = merge(t.Cell, spec)
	t.Cell = spec
	key := f.key(tenant, template, spec)
	p, err := f.admit(ctx, key, tenant, t)
	if err != nil {
		return nil, err
	}
	c, err := p.w.Open(ctx, spec)
	if err != nil {
		f.leave(p)
		return nil, err
	}
	go func() {
		<-c.Done()
		f.leave(p)
	}()
	return c, nil
}

func (f *Fabric) template(name string) (Template, error) {
	t, ok := f.cfg.Templates[name]
	if !ok {
		return t, &belljar.Error{Code: belljar.CodeNotFound, Op: "fabric open", Message: fmt.Sprintf("no template %q", name), Recoverable: true}
	}
	return t, nil
}

func (f *Fabric) key(tenant, template string, spec Spec) poolKey {
	if f.cfg.MixTenants {
		tenant = ""
	}
	return poolKey{tenant, template, spec.kind()}
}

// merge completes a cell's spec by its template's.
func merge(t, s Spec) Spec {
	if s.Preload == nil {
		s.Preload = t.Preload
	}
	if s.Language == "" {
		s.Language = t.Language
	}
	if s.Engine == "" {
		s.Engine = t.Engine
	}
	if s.Program == "" {
		s.Program = t.Program
	}
	s.Private = s.Private || t.Private
	if t.Env != nil {
		env := maps.Clone(t.Env)
		maps.Copy(env, s.Env)
		s.Env = env
	}
	if s.Dir == "" {
		s.Dir = t.Dir
	}
	if s.Imports == nil {
		s.Imports = t.Imports
	}
	if s.Limits == (Limits{}) {
		s.Limits = t.Limits
	}
	if s.Grants == nil {
		s.Grants = t.Grants
	}
	if s.Request == nil {
		s.Request = t.Request
	}
	if s.Log == nil {
		s.Log = t.Log
	}
	if s.Metric == nil {
		s.Metric = t.Metric
	}
	return s
}

func (f *Fabric) refused(op string) error {
	return &belljar.Error{Code: belljar.CodeUnavailable, Op: "fabric " + op, Message: "the fabric takes no more cells"}
}

// admit finds or makes a place for a cell, in the order of coming.
func (f *Fabric) admit(ctx context.Context, key poolKey, tenant string, t Template) (*place, error) {
	for {
		f.mu.Lock()
		if f.draining || f.closed {
			f.mu.Unlock()
			return nil, f.refused("open")
		}
		if p := f.least(key); p != nil {
			f.occupy(p)
			f.mu.Unlock()
			return p, nil
		}
		room := len(f.workers)+f.making < f.cfg.MaxWorkers
		var victim *place
		if !room {
			victim = f.evict()
		}
		if room || victim != nil {
			f.reserve()
			f.mu.Unlock()
			if victim != nil {
				f.unmake(victim)
			}
			return f.hire(ctx, key, tenant, t, 1)
		}
		if len(f.queue) >= max(f.cfg.Queue, 0) {
			n := len(f.queue)
			f.mu.Unlock()
			return nil, &belljar.Error{
				Code: belljar.CodeQuotaExceeded, Op: "fabric open", Message: "every worker is full and so is the queue",
				Limit: fmt.Sprintf("%d workers, queue %d", f.cfg.MaxWorkers, f.cfg.Queue), Observed: fmt.Sprintf("%d wait", n), Recoverable: true, Hint: "close cells, or raise maxWorkers",
			}
		}
		turn := make(chan struct{})
		f.queue = append(f.queue, turn)
		f.mu.Unlock()
		select {
		case <-turn:
		case <-ctx.Done():
			f.mu.Lock()
			f.queue = slices.DeleteFunc(f.queue, func(c chan struct{}) bool { return c == turn })
			f.mu.Unlock()
			return nil, &belljar.Error{Code: belljar.CodeCancelled, Op: "fabric open", Message: ctx.Err().Error(), Err: ctx.Err(), Recoverable: true}
		}
	}
}

// least returns the worker of a kind with the fewest cells, if one has room; f.mu is held.
func (f *Fabric) least(key poolKey) *place {
	var best *place
	for _, p := range f.workers {
		if p.key == key && !p.retired && p.load < p.t.Cells && (best == nil || p.load < best.load) {
			best = p
		}
	}
	return best
}

// evict takes an empty worker of another kind out of the list; f.mu is held.
func (f *Fabric) evict() *place {
	for i, p := range f.workers {
		if p.load == 0 {
			f.workers = slices.Delete(f.workers, i, i+1)
			p.retired = true
			return p
		}
	}
	return nil
}

// occupy counts a cell that is about to be opened; f.mu is held.
func (f *Fabric) occupy(p *place) {
	p.load++
	p.served++
	if p.idle != nil {
		p.idle.Stop()
		p.idle = nil
	}
	if n := p.t.RecycleCells; n > 0 && p.served >= n {
		f.retire(p)
	}
}

func (f *Fabric) retire(p *place) {
	if !p.retired {
		p.retired = true
		f.recycled++
	}
}

// reserve holds a slot for a worker that hire is about to make; f.mu is held.
func (f *Fabric) reserve() {
	f.making++
	f.work.Add(1)
}

// hire makes a worker with a place taken, whose slot f.making holds.
func (f *Fabric) hire(ctx context.Context, key poolKey, tenant string, t Template, load int) (*place, error) {
	defer f.work.Done()
	p := &place{key: key, tenant: tenant, t: t, since: time.Now()}
	err := f.furnish(ctx, p)
	f.mu.Lock()
	f.making--
	if err != nil || f.closed {
		f.next()
		f.mu.Unlock()
		if err == nil {
			err = f.refused("open")
			f.unmake(p)
		}
		return nil, err
	}
	defer f.mu.Unlock()
	f.workers = append(f.workers, p)
	for range load {
		f.occupy(p)
	}
	if load == 0 {
		f.startIdle(p)
	}
	for range p.t.Cells - load {
		f.next()
	}
	f.work.Add(1)
	go func() {
		defer f.work.Done()
		<-p.w.Done()
		f.bury(p)
	}()
	return p, nil
}

// furnish makes a worker's sandbox and interpreter.
func (f *Fabric) furnish(ctx context.Context, p *place) error {
	spec := p.t.Sandbox
	spec.Tenant = p.tenant
	sb, err := f.rt.Create(ctx, spec)
	if err != nil {
		return err
	}
	w, err := NewWorker(ctx, sb, p.t.Cell, p.t.Spares)
	if err == nil && w.Engine() != Zygote && p.t.Cells > 1 {
		err = errors.Join(&belljar.Error{
			Code: belljar.CodeUnsupported, Op: "fabric open", Message: "cells cannot be forked here, so that a worker holds one: " + errors.Join(w.canFork()).Error(), Hint: "cells: 1",
		}, w.Close(context.WithoutCancel(ctx)))
	}
	if err != nil {
		return errors.Join(err, sb.Destroy(context.WithoutCancel(ctx)))
	}
	p.sb, p.w = sb, w
	return nil
}

// next lets the first in the queue look again; f.mu is held.
func (f *Fabric) next() {
	if len(f.queue) > 0 {
		close(f.queue[0])
		f.queue = f.queue[1:]
	}
}

// leave notes the end of a cell.
func (f *Fabric) leave(p *place) {
	over := false
	if limit := p.t.RecycleBytes; limit > 0 {
		u, err := p.sb.Usage(f.ctx)
		over = err == nil && u.PeakMemoryBytes != nil && *u.PeakMemoryBytes > int64(limit)
	}
	f.mu.Lock()
	p.load--
	if over {
		f.retire(p)
	}
	gone := p.load == 0 && p.retired && slices.Contains(f.workers, p)
	if gone {
		f.workers = slices.DeleteFunc(f.workers, func(x *place) bool { return x == p })
	} else if p.load == 0 {
		f.startIdle(p)
	}
	f.next()
	f.mu.Unlock()
	if gone {
		f.unmake(p)
		f.refill(p.key, p.tenant, p.t)
	}
}

// startIdle starts the clock of a worker without cells; f.mu is held.
func (f *Fabric) startIdle(p *place) {
	if p.idle != nil || f.warm[p.key] > 0 || f.closed {
		return
	}
	p.idle = time.AfterFunc(p.t.MaxIdle, func() {
		f.mu.Lock()
		i := slices.Index(f.workers, p)
		over := i >= 0 && p.load == 0 && p.idle != nil
		if over {
			f.workers = slices.Delete(f.workers, i, i+1)
			p.retired = true
		}
		f.mu.Unlock()
		if over {
			f.unmake(p)
		}
	})
}

// unmake ends a worker and its sandbox.
func (f *Fabric) unmake(p *place) {
	ctx := context.WithoutCancel(f.ctx)
	// What could not be removed stays listed by the runtime, which tries again at its end.
	_ = p.w.Close(ctx)
	_ = p.sb.Destroy(ctx)
}

// bury removes a worker that died, and puts another in its place where workers are
// kept warm or somebody waits.
func (f *Fabric) bury(p *place) {
	f.mu.Lock()
	i := slices.Index(f.workers, p)
	if i >= 0 {
		f.workers = slices.Delete(f.workers, i, i+1)
		f.died++
	}
	p.retired = true
	f.next()
	f.mu.Unlock()
	if i < 0 {
		return // it was ended by us
	}
	_ = p.sb.Destroy(context.WithoutCancel(f.ctx)) // as in unmake
	f.refill(p.key, p.tenant, p.t)
}

// refill makes workers until as many as are to be kept warm are there.
func (f *Fabric) refill(key poolKey, tenant string, t Template) {
	for {
		f.mu.Lock()
		have := 0
		for _, p := range f.workers {
			if p.key == key && !p.retired {
				have++
			}
		}
		if f.closed || f.draining || have >= f.warm[key] || len(f.workers)+f.making >= f.cfg.MaxWorkers {
			f.mu.Unlock()
			return
		}
		f.reserve()
		f.mu.Unlock()
		if _, err := f.hire(f.ctx, key, tenant, t, 0); err != nil {
			return // whoever asks next gets the error
		}
	}
}

// Prewarm keeps so many workers of a template ready for a tenant, from now on. It
// returns when they are there.
func (f *Fabric) Prewarm(ctx context.Context, tenant, template string, n int) error {
	t, err := f.template(template)
	if err != nil {
		return err
	}
	key := f.key(tenant, template, t.Cell)
	f.mu.Lock()
	f.warm[key] = n
	f.mu.Unlock()
	for {
		f.mu.Lock()
		have := 0
		for _, p := range f.workers {
			if p.key == key && !p.retired {
				have++
			}
		}
		switch {
		case f.closed || f.draining:
			f.mu.Unlock()
			return f.refused("prewarm")
		case have >= n:
			f.mu.Unlock()
			return nil
		case len(f.workers)+f.making >= f.cfg.MaxWorkers:
			f.mu.Unlock()
			return &belljar.Error{Code: belljar.CodeQuotaExceeded, Op: "fabric prewarm", Message: "there are as many workers as there may be", Limit: fmt.Sprintf("%d workers", f.cfg.MaxWorkers), Recoverable: true}
		}
		f.reserve()
		f.mu.Unlock()
		if _, err := f.hire(ctx, key, tenant, t, 0); err != nil {
			return err
		}
	}
}

// FabricStatus is what a fabric holds.
type FabricStatus struct {
	Workers  []WorkerStatus `json:"workers"`
	Waiting  int            `json:"waiting"`
	Died     int            `json:"died"`     // workers that ended by themselves
	Recycled int            `json:"recycled"` // workers that had their share
	Draining bool           `json:"draining,omitempty"`
}

// WorkerStatus is one worker of a fabric.
type WorkerStatus struct {
	Sandbox  string    `json:"sandbox"`
	Tenant   string    `json:"tenant"`
	Template string    `json:"template"`
	Engine   Engine    `json:"engine"`
	Cells    int       `json:"cells"`
	Room     int       `json:"room"` // cells at most
	Spares   int       `json:"spares"`
	Served   int       `json:"served"` // cells so far
	Retired  bool      `json:"retired,omitempty"`
	Since    time.Time `json:"since"`
}

// Status returns what the fabric holds now.
func (f *Fabric) Status() FabricStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := FabricStatus{Workers: []WorkerStatus{}, Waiting: len(f.queue), Died: f.died, Recycled: f.recycled, Draining: f.draining}
	for _, p := range f.workers {
		_, spares := p.w.Cells()
		s.Workers = append(s.Workers, WorkerStatus{
			Sandbox: p.sb.ID(), Tenant: p.tenant, Template: p.key.template, Engine: p.w.Engine(), Cells: p.load, Room: p.t.Cells,
			Spares: spares, Served: p.served, Retired: p.retired, Since: p.since,
		})
	}
	slices.SortFunc(s.Workers, func(a, b WorkerStatus) int { return strings.Compare(a.Sandbox, b.Sandbox) })
	return s
}

// Drain takes no more cells, and returns when those there have been closed.
func (f *Fabric) Drain(ctx context.Context) error {
	f.mu.Lock()
	f.draining = true
	for len(f.queue) > 0 {
		f.next()
	}
	f.mu.Unlock()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		f.mu.Lock()
		load := f.making
		for _, p := range f.workers {
			load += p.load
		}
		f.mu.Unlock()
		if load == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return &belljar.Error{Code: belljar.CodeCancelled, Op: "fabric drain", Message: fmt.Sprintf("%d cells are open", load), Err: ctx.Err(), Recoverable: true}
		}
	}
}

// Close ends all cells, workers and sandboxes of the fabric. Idempotent.
func (f *Fabric) Close(ctx context.Context) error {
	f.mu.Lock()
	f.closed = true
	workers := f.workers
	f.workers = nil
	for len(f.queue) > 0 {
		f.next()
	}
	for _, p := range workers {
		if p.idle != nil {
			p.idle.Stop()
		}
	}
	f.mu.Unlock()
	f.stop()
	var errs []error
	for _, p := range workers {
		errs = append(errs, p.w.Close(ctx), p.sb.Destroy(ctx))
	}
	f.work.Wait()
	return errors.Join(errs...)
}
