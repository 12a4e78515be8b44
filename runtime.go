package belljar

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// Admission says what happens to an execution that [Config.MaxExecutions] has no
// room for.
type Admission string

// Kinds of admission.
const (
	Queue  Admission = "queue"  // it waits in state queued, first come first served
	Refuse Admission = "refuse" // QUOTA_EXCEEDED
)

// Config configures a [Runtime]. The zero value is useful: nothing outlives the
// process and nothing is counted.
type Config struct {
	// StateDir holds the ledger of what exists, so that what a killed supervisor
	// left behind can be found. Absolute, 0700, owned by this user; created when it
	// is missing. Empty: there is no ledger.
	StateDir string
	// Persist makes sandboxes that outlive this supervisor and can be adopted by
	// the next one. It needs StateDir and a backend that is an [Adopter].
	Persist bool
	// MaxSandboxes bounds how many sandboxes exist; further ones are refused with
	// QUOTA_EXCEEDED. Ready members of pools do not count. 0: no bound.
	MaxSandboxes int
	// MaxExecutions bounds how many executions run at once. 0: no bound.
	MaxExecutions int
	// Admission defaults to Queue.
	Admission Admission
	// QueueLength bounds the queue; beyond it executions are refused. 0: 1024.
	QueueLength int
	// RetainEnded is how long results and output of a sandbox that ended can be asked
	// for (Runtime.Past), over restarts too. It needs StateDir and Persist. 0: not at all.
	RetainEnded time.Duration
	// Logger gets what no caller can be told, such as a failed refill of a pool.
	// Default: nothing is logged.
	Logger *slog.Logger
}

// Releaser is an optional ability of an [Instance]: to let go of a persistent
// sandbox without ending it.
type Releaser interface {
	Release(ctx context.Context) error
}

// Runtime is the supervisor: it owns ids, states, admission, timers, output and
// the ledger. It is safe for concurrent use.
type Runtime struct {
	cfg      Config
	log      *slog.Logger
	backends []Backend
	ledger   *ledger // nil without a state directory
	gate     gate
	events   events
	past     past
	stop     context.CancelFunc // ends background work
	spawn    func(func(ctx context.Context))

	mu        sync.Mutex
	sandboxes map[string]*Sandbox
	names     map[tenantName]string // to id; "" while being created
	reserved  int                   // sandboxes being created
	pools     map[string]*pool
	closing   bool
	work      sync.WaitGroup // background work and creations; added to under mu

	closed   chan struct{}
	closeErr error
}

type tenantName struct{ tenant, name string }

// New makes a runtime on the given backends; the first is the one that a spec
// without backend gets. With a state directory it sweeps what dead supervisors
// left there; what could not be swept is logged and stays.
func New(ctx context.Context, cfg Config, backends ...Backend) (*Runtime, error) {
	invalid := func(format string, args ...any) error {
		return &Error{Code: CodeInvalidSpec, Op: "new runtime", Message: fmt.Sprintf(format, args...)}
	}
	switch {
	case len(backends) == 0:
		return nil, invalid("no backend given")
	case cfg.MaxSandboxes < 0, cfg.MaxExecutions < 0, cfg.QueueLength < 0:
		return nil, invalid("a negative bound")
	case cfg.Admission != "" && cfg.Admission != Queue && cfg.Admission != Refuse:
		return nil, invalid("unknown admission %q", cfg.Admission)
	case cfg.RetainEnded < 0, cfg.RetainEnded > 0 && !cfg.Persist:
		return nil, invalid("ended sandboxes are retained where they are persistent")
	case cfg.Persist && cfg.StateDir == "":
		return nil, invalid("persistent sandboxes need a state directory")
	}
	for i, b := range backends {
		if slices.ContainsFunc(backends[:i], func(o Backend) bool { return o.Name() == b.Name() }) {
			return nil, invalid("two backends named %q", b.Name())
		}
	}
	if cfg.QueueLength == 0 {
		cfg.QueueLength = 1024
	}
	bg, stop := context.WithCancel(context.WithoutCancel(ctx))
	r := &Runtime{
		cfg:       cfg,
		log:       cfg.Logger,
		backends:  slices.Clone(backends),
		gate:      gate{max: cfg.MaxExecutions, queue: cfg.QueueLength},
		stop:      stop,
		sandboxes: map[string]*Sandbox{},
		names:     map[tenantName]string{},
		pools:     map[string]*pool{},
		closed:    make(chan struct{}),
	}
	r.spawn = func(f func(context.Context)) { r.work.Go(func() { f(bg) }) }
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	if cfg.Admission == Refuse {
		r.gate.queue = 0
	}
	if cfg.StateDir != "" {
		var err error
		if r.ledger, err = openLedger(cfg.StateDir); err != nil {
			stop()
			return nil, err
		}
		if err := r.openPast(); err != nil {
			stop()
			return nil, errors.Join(err, r.ledger.close())
		}
		if _, err := r.GC(ctx); err != nil {
			r.log.Warn("sweep at start", "err", err)
		}
	}
	return r, nil
}

// Probe asks every backend what it can do on this host.
func (r *Runtime) Probe(ctx context.Context) ([]Probe, error) {
	var probes []Probe
	var errs []error
	for _, b := range r.backends {
		p, err := b.Probe(ctx)
		if err != nil {
			errs = append(errs, fmt.Errorf("probe %s: %w", b.Name(), err))
			continue
		}
		probes = append(probes, p)
	}
	return probes, errors.Join(errs...)
}

// DefaultBackend is the name of the backend that a spec without one gets.
func (r *Runtime) DefaultBackend() string { return r.backends[0].Name() }

func (r *Runtime) backend(name string) (Backend, error) {
	for _, b := range r.backends {
		if b.Name() == name {
			return b, nil
		}
	}
	have := make([]string, len(r.backends))
	for i, b := range r.backends {
		have[i] = b.Name()
	}
	return nil, &Error{
		Code: CodeInvalidBackend, Op: "spec backend", Message: fmt.Sprintf("no backend %q here", name),
		Hint: fmt.Sprintf("one of %q", have),
	}
}

// Create makes a sandbox, or takes it from the warm pool of its spec. When ctx
// ends first, nothing is left behind.
func (r *Runtime) Create(ctx context.Context, spec Spec) (*Sandbox, error) {
	if err := ctx.Err(); err != nil {
		return nil, cancelled("create", err)
	}
	if spec.Backend == "" {
		spec.Backend = r.backends[0].Name()
	}
	plan, err := Compile(spec)
	if err != nil {
		return nil, err
	}
	b, err := r.backend(plan.Spec.Backend)
	if err != nil {
		return nil, err
	}
	if r.cfg.Persist {
		if _, ok := b.(Adopter); !ok {
			return nil, &Error{Code: CodeUnsupported, Op: "create", Message: fmt.Sprintf("backend %s cannot keep a sandbox without its supervisor", b.Name())}
		}
	}

	id := newID("sb-")
	key := tenantName{plan.Spec.Tenant, plan.Spec.Name}
	if err := r.reserve(key); err != nil {
		return nil, err
	}
	defer r.work.Done()
	sb, err := r.create(ctx, b, plan, spec, id)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reserved--
	if err != nil {
		if key.name != "" {
			delete(r.names, key)
		}
		return nil, err
	}
	r.enter(sb)
	return sb, nil
}

// reserve claims a place and a name.
func (r *Runtime) reserve(key tenantName) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closing {
		return errClosed("create")
	}
	if r.cfg.MaxSandboxes > 0 && len(r.sandboxes)+r.reserved >= r.cfg.MaxSandboxes {
		return &Error{
			Code: CodeQuotaExceeded, Op: "create", Message: "too many sandboxes",
			Limit: fmt.Sprint(r.cfg.MaxSandboxes), Hint: "destroy one or raise MaxSandboxes",
		}
	}
	if key.name != "" {
		if _, taken := r.names[key]; taken {
			return &Error{Code: CodeConflict, Op: "create", Message: fmt.Sprintf("a sandbox named %q exists", key.name)}
		}
		r.names[key] = ""
	}
	r.reserved++
	r.work.Add(1)
	return nil
}

// create makes the instance. The place is reserved.
func (r *Runtime) create(ctx context.Context, b Backend, plan *Plan, spec Spec, id string) (*Sandbox, error) {
	if plan.Spec.Pool != nil {
		return r.fromPool(ctx, b, plan, spec)
	}
	inst, rec, err := r.makeInstance(ctx, b, plan, spec, id, false)
	if err != nil {
		return nil, err
	}
	return newSandbox(r, b, plan, inst, rec), nil
}

// makeInstance fills in the plan's identity, enters it in the ledger and makes
// the instance.
func (r *Runtime) makeInstance(ctx context.Context, b Backend, plan *Plan, spec Spec, id string, pooled bool) (Instance, *record, error) {
	now := time.Now()
	plan.ID = id
	if plan.Spec.Name == "" {
		plan.Spec.Name = id
	}
	plan.Persist = r.cfg.Persist
	if ttl := plan.Spec.TTL; plan.Persist && ttl > 0 {
		plan.Expires = now.Add(ttl)
		if pooled {
			plan.Expires = plan.Expires.Add(plan.Spec.Pool.MaxIdle) // the life begins at hand-out
		}
	}
	rec := &record{
		Version: recordVersion, ID: id, Backend: b.Name(), Spec: spec,
		Persist: plan.Persist, Expires: plan.Expires, Created: now, Pooled: pooled,
	}
	if r.ledger != nil {
		dir, err := r.ledger.begin(rec)
		if err != nil {
			return nil, nil, err
		}
		plan.StateDir = dir
	}
	inst, err := b.Create(ctx, plan)
	if err == nil && ctx.Err() != nil {
		// The backend was faster than the end of ctx; the caller is gone all the same.
		err = errors.Join(cancelled("create", ctx.Err()), inst.Close(context.WithoutCancel(ctx)))
	}
	if err != nil {
		if r.ledger != nil {
			if rerr := r.ledger.remove(id); rerr != nil {
				err = errors.Join(err, rerr)
			}
		}
		return nil, nil, asError(CodeInternal, "create", err)
	}
	return inst, rec, nil
}

// enter puts a sandbox into the tables; r.mu is held.
func (r *Runtime) enter(sb *Sandbox) {
	r.sandboxes[sb.ID()] = sb
	r.names[tenantName{sb.plan.Spec.Tenant, sb.plan.Spec.Name}] = sb.ID()
	sb.tell(Event{Kind: EventSandboxCreated})
}

// leave takes a destroyed sandbox out of the tables.
func (r *Runtime) leave(sb *Sandbox) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.sandboxes, sb.ID())
	key := tenantName{sb.plan.Spec.Tenant, sb.plan.Spec.Name}
	if r.names[key] == sb.ID() {
		delete(r.names, key)
	}
}

// Get returns the sandbox with this id.
func (r *Runtime) Get(id string) (*Sandbox, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if sb := r.sandboxes[id]; sb != nil {
		return sb, nil
	}
	return nil, &Error{Code: CodeNotFound, Op: "get sandbox", Message: fmt.Sprintf("no sandbox %q", id)}
}

// Find returns the sandbox of a tenant with this name.
func (r *Runtime) Find(tenant, name string) (*Sandbox, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if sb := r.sandboxes[r.names[tenantName{cmp.Or(tenant, "default"), name}]]; sb != nil {
		return sb, nil
	}
	return nil, &Error{Code: CodeNotFound, Op: "get sandbox", Message: fmt.Sprintf("no sandbox named %q", name)}
}

// List returns the sandboxes, oldest first.
func (r *Runtime) List() []*Sandbox {
	r.mu.Lock()
	list := make([]*Sandbox, 0, len(r.sandboxes))
	for _, sb := range r.sandboxes {
		list = append(list, sb)
	}
	r.mu.Unlock()
	slices.SortFunc(list, func(a, b *Sandbox) int {
		return cmp.Or(a.created.Compare(b.created), cmp.Compare(a.ID(), b.ID()))
	})
	return list
}

// background runs f in a goroutine that Close waits for; its context ends with
// Close. It reports whether the runtime was still open.
func (r *Runtime) background(f func(ctx context.Context)) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closing {
		return false
	}
	r.spawn(f)
	return true
}

// Close destroys every sandbox that is not persistent, lets go of those that
// are, empties the pools and closes the backends. It may be called again and by
// many, and returns after everything is gone, or when ctx ends, while the work
// goes on.
func (r *Runtime) Close(ctx context.Context) error {
	r.mu.Lock()
	first := !r.closing
	r.closing = true
	r.mu.Unlock()
	if first {
		r.stop()
		go func() {
			r.closeErr = r.shutdown(context.WithoutCancel(ctx))
			close(r.closed)
		}()
	}
	select {
	case <-r.closed:
		return r.closeErr
	case <-ctx.Done():
		return cancelled("close runtime", ctx.Err())
	}
}

func (r *Runtime) shutdown(ctx context.Context) error {
	r.work.Wait() // creations under way end up in the tables, or not at all
	var mu sync.Mutex
	var errs []error
	note := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		errs = append(errs, err)
	}
	var wg sync.WaitGroup
	few := make(chan struct{}, 16)
	each := func(f func() error) {
		few <- struct{}{}
		wg.Go(func() {
			defer func() { <-few }()
			if err := f(); err != nil {
				note(err)
			}
		})
	}
	for _, sb := range r.List() {
		each(func() error {
			if sb.plan.Persist {
				return sb.release(ctx)
			}
			return sb.end(ctx, ReasonClosed)
		})
	}
	for _, p := range r.pools {
		for _, m := range p.drain() {
			each(func() error { return r.discard(ctx, m) })
		}
	}
	wg.Wait()
	for _, b := range r.backends {
		if err := b.Close(ctx); err != nil {
			note(fmt.Errorf("close backend %s: %w", b.Name(), err))
		}
	}
	r.closePast()
	if r.ledger != nil {
		note(r.ledger.close())
	}
	return errors.Join(errs...)
}

// gate admits executions, first come first served.
type gate struct {
	max, queue int

	mu      sync.Mutex
	running int
	waiting []chan struct{}
}

// enter admits at once (nil channel), or returns a channel that is closed at
// admission, or refuses.
func (g *gate) enter() (<-chan struct{}, error) {
	if g.max <= 0 {
		return nil, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running < g.max && len(g.waiting) == 0 {
		g.running++
		return nil, nil
	}
	if len(g.waiting) >= g.queue {
		return nil, &Error{
			Code: CodeQuotaExceeded, Op: "exec", Message: "too many executions",
			Limit: fmt.Sprint(g.max), Recoverable: true, Hint: "try again later or raise MaxExecutions",
		}
	}
	turn := make(chan struct{})
	g.waiting = append(g.waiting, turn)
	return turn, nil
}

// force admits whatever the bound: what runs already.
func (g *gate) force() {
	if g.max <= 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running++
}

// quit gives up a place in the queue; if it was admitted meanwhile, the place
// among the running.
func (g *gate) quit(turn <-chan struct{}) {
	g.mu.Lock()
	if i := slices.IndexFunc(g.waiting, func(c chan struct{}) bool { return c == turn }); i >= 0 {
		g.waiting = slices.Delete(g.waiting, i, i+1)
		g.mu.Unlock()
		return
	}
	g.mu.Unlock()
	g.leave()
}

// leave gives a running place to the next.
func (g *gate) leave() {
	if g.max <= 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.waiting) > 0 && g.running <= g.max {
		close(g.waiting[0])
		g.waiting = slices.Delete(g.waiting, 0, 1)
		return
	}
	g.running--
}

const idAlphabet = "abcdefghijklmnopqrstuvwxyz234567"

// newID returns prefix and 100 random bits.
func newID(prefix string) string {
	var b [20]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the process first
	for i, c := range b {
		b[i] = idAlphabet[c&31]
	}
	return prefix + string(b[:])
}

// validID reports whether id is one that newID makes.
func validID(prefix, id string) bool {
	if len(id) != len(prefix)+20 || id[:len(prefix)] != prefix {
		return false
	}
	for _, c := range []byte(id[len(prefix):]) {
		if (c < 'a' || c > 'z') && (c < '2' || c > '7') {
			return false
		}
	}
	return true
}

func errClosed(op string) error {
	return &Error{Code: CodeUnavailable, Op: op, Message: "the runtime is closed"}
}

func cancelled(op string, err error) *Error {
	return &Error{Code: CodeCancelled, Op: op, Message: err.Error(), Recoverable: true, Err: err}
}

// asError returns err as an *Error, of the given code unless it is one.
func asError(code Code, op string, err error) *Error {
	if e := (*Error)(nil); errors.As(err, &e) {
		if error(e) == err {
			return e
		}
		c := *e
		c.Message, c.Err = err.Error(), err
		return &c
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return cancelled(op, err)
	}
	return &Error{Code: code, Op: op, Message: err.Error(), Err: err}
}
