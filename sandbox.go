package belljar

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"sync"
	"time"
)

// SandboxState is the state of a sandbox.
type SandboxState string

// States of a sandbox.
const (
	SandboxReady     SandboxState = "ready"
	SandboxPaused    SandboxState = "paused"
	SandboxEnding    SandboxState = "ending" // being destroyed, or could not be
	SandboxDestroyed SandboxState = "destroyed"
	SandboxReleased  SandboxState = "released" // lives on without this supervisor
)

// Reason says why a sandbox ended.
type Reason string

// Reasons.
const (
	ReasonDestroyed Reason = "destroyed" // [Sandbox.Destroy]
	ReasonTTL       Reason = "ttl"
	ReasonIdle      Reason = "idle"
	ReasonClosed    Reason = "closed" // [Runtime.Close]
	ReasonLost      Reason = "lost"   // it did not answer its next supervisor
)

// What is remembered of ended executions with ids that callers chose.
const (
	maxRemembered      = 64       // with their output
	maxRememberedBytes = 64 << 20 // of that output
	maxExecutionIDs    = 100_000  // at all
)

// Sandbox is an isolated place with files, limits and a lifetime. It is safe for
// concurrent use.
type Sandbox struct {
	rt      *Runtime
	backend Backend
	plan    *Plan
	inst    Instance
	rec     *record
	created time.Time
	env     []string // of every execution, sorted

	freezing sync.Mutex // held through a freeze, so that the state is that of the last; before mu

	mu         sync.Mutex
	state      SandboxState
	reason     Reason
	execs      map[string]*execution // those that run, and those with chosen ids
	remembered []*execution          // ended, with output
	live       int                   // not ended
	starting   int                   // in Instance.Start
	quiet      chan struct{}         // closed when starting gets 0; nil when nobody waits
	busy       int                   // live executions and file operations
	ttl        countdown
	idle       countdown
	teardown   *teardown
	gone       chan struct{} // closed when destroyed or released
}

// teardown is one attempt to destroy.
type teardown struct {
	done chan struct{}
	err  error
}

// countdown is a timer that can be held; time does not pass for it meanwhile.
type countdown struct {
	timer *time.Timer
	left  time.Duration
	since time.Time // zero while held
}

func (c *countdown) start(d time.Duration, f func()) {
	c.left, c.since = d, time.Now()
	c.timer = time.AfterFunc(d, f)
}

func (c *countdown) hold() {
	if c.timer == nil || c.since.IsZero() {
		return
	}
	c.timer.Stop()
	c.left -= time.Since(c.since)
	c.since = time.Time{}
}

func (c *countdown) resume() {
	if c.timer == nil || !c.since.IsZero() {
		return
	}
	c.since = time.Now()
	c.timer.Reset(max(0, c.left))
}

// due guards against a timer that fired just when it was held or begun anew.
func (c *countdown) due() bool { return !c.since.IsZero() && time.Since(c.since) >= c.left }

func newSandbox(r *Runtime, b Backend, plan *Plan, inst Instance, rec *record) *Sandbox {
	s := &Sandbox{
		rt: r, backend: b, plan: plan, inst: inst, rec: rec,
		created: time.Now(),
		env:     environ(plan.Spec.Env),
		state:   SandboxReady,
		execs:   map[string]*execution{},
		gone:    make(chan struct{}),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if d := plan.Spec.TTL; d > 0 {
		s.ttl.start(d, func() { s.expire(ReasonTTL) })
	}
	if d := plan.Spec.IdleTimeout; d > 0 {
		s.idle.start(d, func() { s.expire(ReasonIdle) })
	}
	return s
}

// expire ends the sandbox from a timer.
func (s *Sandbox) expire(why Reason) {
	s.mu.Lock()
	due := s.ttl.due()
	if why == ReasonIdle {
		due = s.idle.due() && s.busy == 0
	}
	s.mu.Unlock()
	if !due {
		return
	}
	if err := s.end(context.Background(), why); err != nil {
		s.rt.log.Error("sandbox did not end", "id", s.ID(), "reason", why, "err", err)
	}
}

// ID returns the id that the runtime gave.
func (s *Sandbox) ID() string { return s.plan.ID }

// Name returns the name in the spec, or the id.
func (s *Sandbox) Name() string { return s.plan.Spec.Name }

// Tenant returns whose sandbox it is.
func (s *Sandbox) Tenant() string { return s.plan.Spec.Tenant }

// Expires returns when the sandbox's lifetime ends if it is not paused until
// then; zero when it has none.
func (s *Sandbox) Expires() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ttl.timer == nil:
		return time.Time{}
	case s.ttl.since.IsZero():
		return time.Now().Add(s.ttl.left)
	}
	return s.ttl.since.Add(s.ttl.left)
}

// Created returns when the sandbox was handed out.
func (s *Sandbox) Created() time.Time { return s.created }

// Spec returns a copy of the spec with every default filled in.
func (s *Sandbox) Spec() Spec {
	c := s.plan.Spec
	c.Env = maps.Clone(c.Env)
	c.Labels = maps.Clone(c.Labels)
	c.Isolation.Layers = maps.Clone(c.Isolation.Layers)
	c.Mounts = slices.Clone(c.Mounts)
	for i, m := range c.Mounts {
		if m.ReadOnly != nil {
			c.Mounts[i].ReadOnly = new(*m.ReadOnly)
		}
	}
	if c.Pool != nil {
		c.Pool = new(*c.Pool)
	}
	return c
}

// State returns the state.
func (s *Sandbox) State() SandboxState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// Reason returns why the sandbox ended, or is ending; empty while it lives.
func (s *Sandbox) Reason() Reason {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reason
}

// Done is closed when the sandbox is destroyed and everything of it is gone.
func (s *Sandbox) Done() <-chan struct{} { return s.gone }

// Report says what confines the sandbox, as the trusted side read it back.
func (s *Sandbox) Report() Report { return s.inst.Report() }

// Usage is that of the whole sandbox so far.
func (s *Sandbox) Usage(ctx context.Context) (Usage, error) {
	if err := s.enter("usage"); err != nil {
		return Usage{}, err
	}
	defer s.leave()
	u, err := s.inst.Usage(ctx)
	if err != nil {
		return Usage{}, asError(CodeInternal, "usage", err)
	}
	return u, nil
}

// Alive returns nil while the sandbox can run executions.
func (s *Sandbox) Alive(ctx context.Context) error {
	if err := s.check("alive"); err != nil {
		return err
	}
	if err := s.inst.Alive(ctx); err != nil {
		return asError(CodeUnavailable, "alive", err)
	}
	return nil
}

func (s *Sandbox) check(op string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.usable(op)
}

// usable returns DESTROYED for a sandbox that ended; s.mu is held.
func (s *Sandbox) usable(op string) error {
	if s.state == SandboxReady || s.state == SandboxPaused {
		return nil
	}
	return &Error{Code: CodeDestroyed, Op: op, Message: fmt.Sprintf("sandbox %s is %s (%s)", s.ID(), s.state, s.reason)}
}

// enter begins an activity: the idle clock stands still until leave.
func (s *Sandbox) enter(op string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(op); err != nil {
		return err
	}
	s.begin()
	return nil
}

func (s *Sandbox) begin() {
	s.busy++
	s.idle.hold()
}

// leave ends an activity; the idle clock starts anew after the last.
func (s *Sandbox) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaveLocked()
}

func (s *Sandbox) leaveLocked() {
	s.busy--
	if s.busy == 0 && s.state == SandboxReady {
		s.idle.left = s.plan.Spec.IdleTimeout
		s.idle.resume()
	}
}

// Pause freezes every process. Paused time does not count for TTL and idle
// timeout. Backends that cannot answer UNSUPPORTED.
func (s *Sandbox) Pause(ctx context.Context) error {
	return s.freeze(ctx, "pause", SandboxReady, SandboxPaused)
}

// Resume thaws what Pause froze.
func (s *Sandbox) Resume(ctx context.Context) error {
	return s.freeze(ctx, "resume", SandboxPaused, SandboxReady)
}

func (s *Sandbox) freeze(ctx context.Context, op string, from, to SandboxState) error {
	p, ok := s.inst.(Pauser)
	if !ok {
		return &Error{Code: CodeUnsupported, Op: op, Message: fmt.Sprintf("backend %s cannot pause", s.backend.Name())}
	}
	if err := s.enter(op); err != nil {
		return err
	}
	defer s.leave()
	s.freezing.Lock()
	defer s.freezing.Unlock()
	var err error
	if to == SandboxPaused {
		err = p.Pause(ctx)
	} else {
		err = p.Resume(ctx)
	}
	if err != nil {
		return asError(CodeInternal, op, err)
	}
	s.mu.Lock()
	if s.state != from { // repeated, or destroyed meanwhile
		defer s.mu.Unlock()
		return s.usable(op)
	}
	s.state = to
	if to == SandboxPaused {
		s.ttl.hold()
	} else {
		s.ttl.resume()
	}
	s.mu.Unlock()
	kind := EventSandboxPaused
	if to == SandboxReady {
		kind = EventSandboxResumed
	}
	s.tell(Event{Kind: kind})
	return s.keepLife(ctx, op)
}

// keepLife makes the sandbox's lifetime known to those who outlive this
// supervisor; s.freezing is held.
func (s *Sandbox) keepLife(ctx context.Context, op string) error {
	if !s.plan.Persist {
		return nil
	}
	s.mu.Lock()
	rec := *s.rec
	rec.Paused, rec.Expires, rec.Left = s.state == SandboxPaused, time.Time{}, 0
	switch {
	case s.ttl.timer == nil:
	case rec.Paused:
		rec.Left = max(s.ttl.left, 1)
	default:
		rec.Expires = s.ttl.since.Add(s.ttl.left)
	}
	s.mu.Unlock()
	if e, ok := s.inst.(Expirer); ok {
		if err := e.Expire(ctx, rec.Expires); err != nil {
			return asError(CodeInternal, op, err)
		}
	}
	if err := s.rt.ledger.update(&rec); err != nil {
		return asError(CodeUnavailable, op, err)
	}
	s.rec = &rec
	return nil
}

// Extend makes sure that the sandbox lives at least d from now, or d of time in
// which it is not paused. It never shortens, and changes nothing for a sandbox
// without a lifetime.
func (s *Sandbox) Extend(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return &Error{Code: CodeInvalidSpec, Op: "extend", Message: "not more than zero", Recoverable: true}
	}
	if err := s.enter("extend"); err != nil {
		return err
	}
	defer s.leave()
	s.freezing.Lock()
	defer s.freezing.Unlock()
	s.mu.Lock()
	if s.ttl.timer == nil {
		s.mu.Unlock()
		return nil
	}
	held := s.ttl.since.IsZero()
	s.ttl.hold()
	s.ttl.left = max(s.ttl.left, d)
	if !held {
		s.ttl.resume()
	}
	s.mu.Unlock()
	s.tell(Event{Kind: EventSandboxExtended})
	return s.keepLife(ctx, "extend")
}

// Destroy ends the sandbox and everything in it: executions, which end as
// cancelled, mounts, files. It returns after all is gone. It may be called
// again and by many; after a failure, which leaves the sandbox listed, a
// further call tries again. When ctx ends first, the work goes on.
func (s *Sandbox) Destroy(ctx context.Context) error { return s.end(ctx, ReasonDestroyed) }

func (s *Sandbox) end(ctx context.Context, why Reason) error {
	s.mu.Lock()
	if s.state == SandboxDestroyed || s.state == SandboxReleased {
		s.mu.Unlock()
		return nil
	}
	t := s.teardown
	if t == nil {
		t = &teardown{done: make(chan struct{})}
		s.teardown = t
		s.state = SandboxEnding
		if s.reason == "" {
			s.reason = why
		}
		s.ttl.hold()
		s.idle.hold()
		go func() {
			t.err = s.tearDown(context.WithoutCancel(ctx))
			close(t.done)
		}()
	}
	s.mu.Unlock()
	select {
	case <-t.done:
		return t.err
	case <-ctx.Done():
		return cancelled("destroy", ctx.Err())
	}
}

// tearDown does the work of one attempt. No execution begins any more.
func (s *Sandbox) tearDown(ctx context.Context) error {
	s.stopExecutions(ctx)
	err := s.inst.Close(ctx)
	if err == nil && s.rt.ledger != nil {
		s.rt.retire(s, s.Reason())
		err = s.rt.ledger.remove(s.ID())
	}
	if err != nil {
		s.mu.Lock()
		s.teardown = nil
		s.mu.Unlock()
		return asError(CodeInternal, "destroy", err)
	}
	s.rt.leave(s)
	s.mu.Lock()
	s.state = SandboxDestroyed
	why := s.reason
	s.mu.Unlock()
	s.tell(Event{Kind: EventSandboxEnded, Reason: why})
	close(s.gone)
	return nil
}

// stopExecutions ends what runs and waits for it, but no longer than an
// unresponsive backend deserves: closing the instance ends everything anyway.
func (s *Sandbox) stopExecutions(ctx context.Context) {
	s.mu.Lock()
	var live []*execution
	for _, e := range s.execs {
		if !e.ended() {
			live = append(live, e)
		}
	}
	var quiet chan struct{}
	if s.starting > 0 {
		if s.quiet == nil {
			s.quiet = make(chan struct{})
		}
		quiet = s.quiet
	}
	s.mu.Unlock()
	if len(live) == 0 && quiet == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for _, e := range live {
		e.stop(ctx, killDestroyed)
	}
	if quiet != nil {
		select {
		case <-quiet:
		case <-ctx.Done():
		}
	}
	for _, e := range live {
		select {
		case <-e.done:
		case <-ctx.Done():
		}
	}
}

// release lets go of a persistent sandbox.
func (s *Sandbox) release(ctx context.Context) error {
	s.mu.Lock()
	if s.usable("release") != nil {
		s.mu.Unlock()
		return nil
	}
	s.state = SandboxReleased
	s.ttl.hold()
	s.idle.hold()
	var live []*execution
	for _, e := range s.execs {
		if !e.ended() {
			live = append(live, e)
		}
	}
	s.mu.Unlock()
	defer close(s.gone)
	s.rt.leave(s)
	r, ok := s.inst.(Releaser)
	if !ok {
		return nil
	}
	for _, e := range live {
		e.letGo() // what is read from now on belongs to the successor
	}
	if err := r.Release(ctx); err != nil {
		return asError(CodeInternal, "release", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for _, e := range live {
		select {
		case <-e.done:
		case <-ctx.Done():
		}
	}
	return nil
}

// Attach returns the execution with this id, running or ended. Its result is
// the same for everybody; writers set before Start get what is retained and
// then what comes.
func (s *Sandbox) Attach(id string) (*Cmd, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.execs[id] == nil {
		return nil, &Error{Code: CodeNotFound, Op: "attach", Message: fmt.Sprintf("no execution %q", id)}
	}
	return &Cmd{sb: s, ID: id, attach: true}, nil
}

// Executions returns the ids of the executions that run, sorted.
func (s *Sandbox) Executions() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []string
	for id, e := range s.execs {
		if !e.ended() {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// register enters a new execution, or returns the one that has its id.
func (s *Sandbox) register(e *execution) (*execution, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable("exec"); err != nil {
		return nil, err
	}
	if old := s.execs[e.proc.ID]; old != nil {
		if !old.adopted && !slices.Equal(old.proc.Args, e.proc.Args) {
			return nil, &Error{
				Code: CodeConflict, Op: "exec", Message: fmt.Sprintf("execution %q is of another command", e.proc.ID),
				Recoverable: true, Hint: "an id stands for one execution; choose another",
			}
		}
		return old, nil
	}
	if e.chosenID && len(s.execs) >= maxExecutionIDs {
		return nil, &Error{
			Code: CodeQuotaExceeded, Op: "exec", Message: "too many execution ids in this sandbox",
			Limit: fmt.Sprint(maxExecutionIDs), Recoverable: true, Hint: "leave the id empty where no repeat can come",
		}
	}
	s.execs[e.proc.ID] = e
	s.live++
	s.begin()
	return nil, nil
}

// forget takes out an execution that never got as far as a result.
func (s *Sandbox) forget(e *execution) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.execs, e.proc.ID)
	s.live--
	s.leaveLocked()
}

// retire notes the end of an execution; e.done is closed.
func (s *Sandbox) retire(e *execution) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live--
	s.leaveLocked()
	if !e.chosenID {
		delete(s.execs, e.proc.ID)
		return
	}
	s.remembered = append(s.remembered, e)
	var bytes int
	for i, e := range slices.Backward(s.remembered) {
		bytes += e.outputBytes()
		if len(s.remembered)-i > maxRemembered || bytes > maxRememberedBytes && i < len(s.remembered)-1 {
			for _, old := range s.remembered[:i+1] {
				old.dropOutput()
			}
			s.remembered = slices.Delete(s.remembered, 0, i+1)
			return
		}
	}
}

// startBegins and startEnds bracket Instance.Start, which Destroy waits for.
func (s *Sandbox) startBegins() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable("exec"); err != nil {
		return err
	}
	s.starting++
	return nil
}

func (s *Sandbox) startEnds() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.starting--
	if s.starting == 0 && s.quiet != nil {
		close(s.quiet)
		s.quiet = nil
	}
}

// dir resolves a directory of a command against the working directory.
func (s *Sandbox) dir(name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join(s.plan.Spec.WorkDir, name)
}
