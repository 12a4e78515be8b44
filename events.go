package belljar

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// EventKind is what happened.
type EventKind string

// Kinds of events.
const (
	EventSandboxCreated   EventKind = "sandbox.created" // or adopted
	EventSandboxPaused    EventKind = "sandbox.paused"
	EventSandboxResumed   EventKind = "sandbox.resumed"
	EventSandboxExtended  EventKind = "sandbox.extended"
	EventSandboxEnded     EventKind = "sandbox.ended"
	EventExecutionStarted EventKind = "execution.started"
	EventExecutionEnded   EventKind = "execution.ended"
	// EventOverflow: the subscriber was too slow, and Missed events are lost.
	EventOverflow EventKind = "overflow"
)

// Event is something in the life of a sandbox or an execution.
type Event struct {
	Kind      EventKind
	Time      time.Time
	Tenant    string
	Sandbox   string
	Execution string
	State     State  // of an execution that ended
	Cause     Cause  // of an execution that ended
	Reason    Reason // of a sandbox that ended
	Missed    int64
}

// eventBuffer is how many events wait for a subscriber.
const eventBuffer = 1024

// events hands out what happens to those who asked.
type events struct {
	any atomic.Bool // there is a subscriber

	mu   sync.Mutex
	subs map[*subscriber]struct{}
}

type subscriber struct {
	ch     chan Event
	missed int64 // since the last that was taken; events.mu
}

// Events sends what happens from now on, until ctx ends; then the channel is
// closed. It never holds the runtime up: whoever is more than 1024 events behind
// gets one of kind overflow that says how many are lost.
func (r *Runtime) Events(ctx context.Context) <-chan Event {
	s := &subscriber{ch: make(chan Event, eventBuffer)}
	e := &r.events
	e.mu.Lock()
	if e.subs == nil {
		e.subs = map[*subscriber]struct{}{}
	}
	e.subs[s] = struct{}{}
	e.any.Store(true)
	e.mu.Unlock()
	context.AfterFunc(ctx, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.subs, s)
		e.any.Store(len(e.subs) > 0)
		close(s.ch)
	})
	return s.ch
}

// send tells the subscribers; it costs a load when there are none.
func (e *events) send(v Event) {
	if !e.any.Load() {
		return
	}
	v.Time = time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	for s := range e.subs {
		// One place is kept for the event that tells of the loss.
		if s.missed > 0 && len(s.ch) < cap(s.ch)/2 {
			s.ch <- Event{Kind: EventOverflow, Time: v.Time, Missed: s.missed}
			s.missed = 0
		}
		if s.missed > 0 || len(s.ch) >= cap(s.ch)-1 {
			s.missed++
			continue
		}
		s.ch <- v
	}
}

// tell sends an event of this sandbox.
func (s *Sandbox) tell(v Event) {
	if !s.rt.events.any.Load() {
		return
	}
	v.Tenant, v.Sandbox = s.Tenant(), s.ID()
	s.rt.events.send(v)
}
