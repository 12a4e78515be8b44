package server

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"belljar"
	"belljar/server/state"
)

// quotas counts what tenants and keys use.
type quotas struct {
	mu       sync.Mutex
	creating map[string]use     // by owner: what is being made
	running  map[string]*places // by owner
	rates    map[string]*bucket // by owner
}

// use is a sum of limits.
type use struct {
	sandboxes    int
	cpu          float64
	memory, disk int64
}

func (u *use) add(s belljar.Spec, sign int) {
	u.sandboxes += sign
	u.cpu += float64(sign) * s.Limits.CPU
	u.memory += int64(sign) * int64(s.Limits.Memory)
	u.disk += int64(sign) * int64(s.Limits.Disk)
}

// places are those for executions at once; who waits is served in order.
type places struct {
	taken   int
	waiting []chan struct{}
}

// bucket is a token bucket on the monotonic clock.
type bucket struct {
	tokens float64
	at     time.Time
}

// owners are whose quotas apply to a caller.
func (s *Server) owners(c Caller) []owner {
	os := []owner{{name: "tenant " + c.Tenant}}
	if s.cfg.Store != nil {
		if t, err := s.cfg.Store.Tenant(c.Tenant); err == nil {
			os[0].quota = t.Quota
		}
	}
	if c.Key != "" && c.Quota != (state.Quota{}) {
		os = append(os, owner{"key " + c.Key, c.Quota})
	}
	return os
}

type owner struct {
	name  string
	quota state.Quota
}

func exceeded(o owner, what, limit, observed string) error {
	return &belljar.Error{
		Code: belljar.CodeQuotaExceeded, Op: "quota", Message: fmt.Sprintf("the quota of %s does not allow more %s", o.name, what),
		Limit: limit, Observed: observed, Recoverable: true, Hint: "end something first, or ask for a larger quota",
	}
}

// reserve counts a sandbox that is about to be made; done takes that back, once
// it is in the runtime's list or has failed.
func (s *Server) reserve(c Caller, spec belljar.Spec) (done func(), err error) {
	plan, err := belljar.Compile(withBackend(spec, s.rt))
	if err != nil {
		return nil, err
	}
	spec = plan.Spec
	q := &s.quotas
	q.mu.Lock()
	defer q.mu.Unlock()
	owners := s.owners(c)
	for _, o := range owners {
		if d := o.quota.MaxTTL; d > 0 && (spec.TTL == 0 || spec.TTL > d) {
			return nil, exceeded(o, "lifetime", d.String(), spec.TTL.String())
		}
		u := q.creating[o.name]
		for _, sb := range s.rt.List() {
			if sb.Tenant() == c.Tenant && (o.name == "tenant "+c.Tenant || sb.Spec().Labels[labelKey] == c.Key) {
				u.add(sb.Spec(), 1)
			}
		}
		u.add(spec, 1)
		switch l := o.quota; {
		case l.Sandboxes > 0 && u.sandboxes > l.Sandboxes:
			return nil, exceeded(o, "sandboxes", fmt.Sprint(l.Sandboxes), fmt.Sprint(u.sandboxes))
		case l.CPU > 0 && (u.cpu > l.CPU || spec.Limits.CPU == 0):
			return nil, exceeded(o, "CPU", fmt.Sprintf("%g cores", l.CPU), without(spec.Limits.CPU == 0, fmt.Sprintf("%g cores", u.cpu)))
		case l.Memory > 0 && (u.memory > l.Memory || spec.Limits.Memory == 0):
			return nil, exceeded(o, "memory", fmt.Sprintf("%d B", l.Memory), without(spec.Limits.Memory == 0, fmt.Sprintf("%d B", u.memory)))
		case l.Disk > 0 && u.disk > l.Disk:
			return nil, exceeded(o, "disk", fmt.Sprintf("%d B", l.Disk), fmt.Sprintf("%d B", u.disk))
		}
	}
	if q.creating == nil {
		q.creating = map[string]use{}
	}
	count := func(sign int) {
		for _, o := range owners {
			u := q.creating[o.name]
			u.add(spec, sign)
			if q.creating[o.name] = u; u.sandboxes == 0 {
				delete(q.creating, o.name)
			}
		}
	}
	count(1)
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		count(-1)
	}, nil
}

// labelKey marks whose key made a sandbox.
const labelKey = "belljar.key"

func without(none bool, s string) string {
	if none {
		return "a sandbox without that limit"
	}
	return s
}

// withBackend fills in what the runtime would.
func withBackend(spec belljar.Spec, rt *belljar.Runtime) belljar.Spec {
	if spec.Backend == "" {
		spec.Backend = rt.DefaultBackend()
	}
	return spec
}

// place waits for a place to run an execution in; leave gives it back.
func (s *Server) place(ctx context.Context, c Caller) (leave func(), err error) {
	var left []func()
	leave = func() {
		for _, f := range slices.Backward(left) {
			f()
		}
	}
	for _, o := range s.owners(c) {
		if o.quota.Executions <= 0 {
			continue
		}
		f, err := s.quotas.place(ctx, o)
		if err != nil {
			leave()
			return nil, err
		}
		left = append(left, f)
	}
	return leave, nil
}

const maxWaiting = 1024

func (q *quotas) place(ctx context.Context, o owner) (func(), error) {
	q.mu.Lock()
	if q.running == nil {
		q.running = map[string]*places{}
	}
	p := q.running[o.name]
	if p == nil {
		p = &places{}
		q.running[o.name] = p
	}
	leave := func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if len(p.waiting) > 0 {
			close(p.waiting[0])
			p.waiting = slices.Delete(p.waiting, 0, 1)
			return
		}
		p.taken--
	}
	if p.taken < o.quota.Executions && len(p.waiting) == 0 {
		p.taken++
		q.mu.Unlock()
		return leave, nil
	}
	if o.quota.Refuse || len(p.waiting) >= maxWaiting {
		q.mu.Unlock()
		return nil, exceeded(o, "executions at once", fmt.Sprint(o.quota.Executions), fmt.Sprint(p.taken+1))
	}
	turn := make(chan struct{})
	p.waiting = append(p.waiting, turn)
	q.mu.Unlock()
	select {
	case <-turn:
		return leave, nil
	case <-ctx.Done():
		q.mu.Lock()
		i := slices.Index(p.waiting, turn)
		if i >= 0 {
			p.waiting = slices.Delete(p.waiting, i, i+1)
		}
		q.mu.Unlock()
		if i < 0 {
			leave() // the turn came at the same moment
		}
		return nil, ctx.Err()
	}
}

// admit counts a request against the rates.
func (s *Server) admit(c Caller) error {
	for _, o := range s.owners(c) {
		if o.quota.Rate <= 0 {
			continue
		}
		if wait := s.quotas.take(o, time.Now()); wait > 0 {
			e := exceeded(o, "requests", fmt.Sprintf("%g/s", o.quota.Rate), "").(*belljar.Error)
			e.Hint = fmt.Sprintf("try again in %v", wait.Round(time.Millisecond))
			return e
		}
	}
	return nil
}

// take takes a token, or says how long until there is one.
func (q *quotas) take(o owner, now time.Time) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.rates == nil {
		q.rates = map[string]*bucket{}
	}
	burst := float64(o.quota.Burst)
	if burst <= 0 {
		burst = max(1, o.quota.Rate)
	}
	b := q.rates[o.name]
	if b == nil {
		b = &bucket{tokens: burst, at: now}
		q.rates[o.name] = b
	}
	b.tokens = min(burst, b.tokens+now.Sub(b.at).Seconds()*o.quota.Rate)
	b.at = now
	if b.tokens < 1 {
		return time.Duration((1 - b.tokens) / o.quota.Rate * float64(time.Second))
	}
	b.tokens--
	return 0
}
