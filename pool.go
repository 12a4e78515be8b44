package belljar

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"
)

// healthTimeout bounds the check of a pool member at hand-out.
const healthTimeout = time.Second

// pool keeps ready sandboxes of one spec. Every member is used once.
type pool struct {
	rt      *Runtime
	backend Backend
	spec    Spec // without what differs between its users
	size    int
	maxIdle time.Duration

	mu      sync.Mutex
	ready   []*member // oldest first
	filling bool
	closed  bool
}

// member is a ready sandbox of a pool.
type member struct {
	plan  *Plan
	inst  Instance
	rec   *record
	timer *time.Timer
}

// poolKey says which specs share a pool: all but name, labels and the pool
// itself must be equal.
func poolKey(spec Spec) (string, Spec) {
	spec.Name, spec.Labels = "", nil
	key, err := json.Marshal(spec)
	if err != nil {
		// A compiled spec is data only.
		panic(fmt.Sprintf("belljar: encode spec: %v", err))
	}
	return string(key), spec
}

// fromPool returns a ready sandbox, or a new one when there is none, and has the
// pool filled.
func (r *Runtime) fromPool(ctx context.Context, b Backend, plan *Plan, spec Spec) (*Sandbox, error) {
	key, common := poolKey(plan.Spec)
	_, source := poolKey(spec)
	r.mu.Lock()
	p := r.pools[key]
	if p == nil {
		p = &pool{rt: r, backend: b, spec: source, size: common.Pool.Size, maxIdle: common.Pool.MaxIdle}
		r.pools[key] = p
	}
	r.mu.Unlock()
	defer p.fill()
	for {
		m := p.take()
		if m == nil {
			break
		}
		if err := m.healthy(ctx); err != nil {
			if ctx.Err() != nil {
				p.discardLater(ctx, m)
				return nil, cancelled("create", ctx.Err())
			}
			r.log.Warn("pool member is not healthy", "id", m.plan.ID, "err", err)
			p.discardLater(ctx, m)
			continue
		}
		sb, err := r.handOut(ctx, b, m, plan, spec)
		if err != nil {
			p.discardLater(ctx, m)
			return nil, err
		}
		return sb, nil
	}
	inst, rec, err := r.makeInstance(ctx, b, plan, spec, newID("sb-"), false)
	if err != nil {
		return nil, err
	}
	return newSandbox(r, b, plan, inst, rec), nil
}

// handOut makes a member the caller's sandbox.
func (r *Runtime) handOut(ctx context.Context, b Backend, m *member, plan *Plan, spec Spec) (*Sandbox, error) {
	own := *m.plan // the backend keeps the member's plan
	own.Spec.Labels = plan.Spec.Labels
	own.Spec.Name = plan.Spec.Name
	if own.Spec.Name == "" {
		own.Spec.Name = own.ID
	}
	if own.Persist && own.Spec.TTL > 0 {
		own.Expires = time.Now().Add(own.Spec.TTL)
	}
	if r.ledger != nil {
		m.rec.Spec, m.rec.Pooled, m.rec.Expires = spec, false, own.Expires
		if err := r.ledger.update(m.rec); err != nil {
			return nil, err
		}
	}
	if e, ok := m.inst.(Expirer); ok && own.Persist {
		if err := e.Expire(ctx, own.Expires); err != nil {
			return nil, asError(CodeUnavailable, "create", err)
		}
	}
	return newSandbox(r, b, &own, m.inst, m.rec), nil
}

func (m *member) healthy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	if err := m.inst.Alive(ctx); err != nil {
		return err
	}
	_, err := m.inst.Files().Lstat(m.plan.Spec.WorkDir)
	return err
}

// take returns the oldest ready member, or nil.
func (p *pool) take() *member {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.ready) == 0 {
		return nil
	}
	m := p.ready[0]
	p.ready = slices.Delete(p.ready, 0, 1)
	m.timer.Stop()
	return m
}

// fill makes members in the background until there are enough.
func (p *pool) fill() {
	p.mu.Lock()
	if p.filling || p.closed || len(p.ready) >= p.size {
		p.mu.Unlock()
		return
	}
	p.filling = true
	p.mu.Unlock()
	if p.rt.background(p.refill) {
		return
	}
	p.mu.Lock()
	p.filling = false
	p.mu.Unlock()
}

func (p *pool) refill(ctx context.Context) {
	for {
		p.mu.Lock()
		if len(p.ready) >= p.size || p.closed || ctx.Err() != nil {
			p.filling = false
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		m, err := p.make(ctx)
		p.mu.Lock()
		if err != nil {
			// The next hand-out tries again.
			p.filling = false
			p.mu.Unlock()
			if ctx.Err() == nil {
				p.rt.log.Error("refill of pool", "backend", p.backend.Name(), "err", err)
			}
			return
		}
		m.timer = time.AfterFunc(p.maxIdle, func() { p.expire(m) })
		p.ready = append(p.ready, m)
		p.mu.Unlock()
	}
}

func (p *pool) make(ctx context.Context) (*member, error) {
	plan, err := Compile(p.spec)
	if err != nil {
		return nil, err
	}
	inst, rec, err := p.rt.makeInstance(ctx, p.backend, plan, p.spec, newID("sb-"), true)
	if err != nil {
		return nil, err
	}
	return &member{plan: plan, inst: inst, rec: rec}, nil
}

// expire removes a member that nobody took. A closing runtime finds it by itself.
func (p *pool) expire(m *member) {
	p.rt.background(func(ctx context.Context) {
		p.mu.Lock()
		i := slices.Index(p.ready, m)
		if i >= 0 {
			p.ready = slices.Delete(p.ready, i, i+1)
		}
		p.mu.Unlock()
		if i >= 0 {
			p.discard(ctx, m)
		}
	})
}

// discardLater destroys a member without making the caller of Create wait.
func (p *pool) discardLater(ctx context.Context, m *member) {
	if !p.rt.background(func(ctx context.Context) { p.discard(ctx, m) }) {
		p.discard(ctx, m) // closing, which waits for this Create
	}
}

func (p *pool) discard(ctx context.Context, m *member) {
	if err := p.rt.discard(context.WithoutCancel(ctx), m); err != nil {
		p.rt.log.Error("discard of pool member", "id", m.plan.ID, "err", err)
	}
}

func (r *Runtime) discard(ctx context.Context, m *member) error {
	err := m.inst.Close(ctx)
	if err == nil && r.ledger != nil {
		err = r.ledger.remove(m.plan.ID)
	}
	return err
}

// drain closes the pool and returns its members.
func (p *pool) drain() []*member {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	ms := p.ready
	p.ready = nil
	for _, m := range ms {
		if m.timer != nil {
			m.timer.Stop()
		}
	}
	return ms
}
