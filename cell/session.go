package cell

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"belljar"
)

const (
	interruptGrace = 500 * time.Millisecond // from an interrupt to the kill, when a caller gives up
	exitGrace      = 50 * time.Millisecond  // for the last frames of an interpreter that has ended
	maxInbox       = 4096                   // posts that nobody received
	maxInboxBytes  = 16 << 20
	maxRequests    = 16 // in flight; the guest waits beyond that
	chatterBurst   = 10_000
	chatterRate    = 10_000 // log, metric and display frames a second, beyond a burst
	maxDisplays    = 16 << 20
)

// session is the life of one interpreter as a cell.
type session struct {
	c     *Cell
	g     *guest
	frame int

	ctx      context.Context // ends with the session
	cancel   context.CancelFunc
	dead     chan struct{} // closed when cause is set
	gone     chan struct{} // closed when nothing of the interpreter is left
	endErr   error         // set before gone is closed
	replaced atomic.Bool   // by Reset

	out, err outlet

	writing chan struct{} // holds a token while a frame is written
	wbuf    []byte

	requests chan struct{} // tokens of requests in flight

	mu     sync.Mutex
	why    error
	op     *operation
	lastID uint64
	inbox  []json.RawMessage
	bytes  int
	posted chan struct{} // has a token when the inbox may have something
	asked  map[uint64]bool
	tokens float64
	filled time.Time
}

// operation is one exec or call.
type operation struct {
	name             string
	stdout, stderr   io.Writer
	display          func(Bundle)
	timeout, cpuTime time.Duration

	id       uint64
	done     chan *message
	start    time.Time
	displays []Bundle
	shown    int // bytes
	quota    quota
	kept     [2]tail
}

func newSession(c *Cell, g *guest) *session {
	s := &session{
		c: c, g: g, frame: c.spec.Limits.Frame,
		dead: make(chan struct{}), gone: make(chan struct{}),
		writing: make(chan struct{}, 1), requests: make(chan struct{}, maxRequests), posted: make(chan struct{}, 1),
		asked: map[uint64]bool{}, tokens: chatterBurst, filled: time.Now(),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.out.init(g.out)
	s.err.init(g.err)
	go s.out.run()
	go s.err.run()
	go s.read()
	go s.watch()
	go func() {
		<-s.dead
		s.end()
	}()
	return s
}

// fail ends the session with a cause; the first stays. It reports whether that was it.
func (s *session) fail(err error) bool {
	s.mu.Lock()
	first := s.why == nil
	if first {
		s.why = err
	}
	s.mu.Unlock()
	if first {
		s.g.kill()
		close(s.dead)
	}
	return first
}

func (s *session) cause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.why
}

// end waits for the end of the interpreter and lets go of everything of it.
func (s *session) end() {
	s.endErr = s.g.reap()
	s.cancel()
	// Every writer is dead: the pipes end, unless a caller's writer is slow.
	late := time.After(time.Second)
	for _, o := range []*outlet{&s.out, &s.err} {
		select {
		case <-o.ended:
		case <-late:
		}
	}
	s.g.closeFiles()
	close(s.gone)
}

// watch notices the end of the interpreter.
func (s *session) watch() {
	if awaitExit(s.g.pidfd) != nil {
		return // closed: the session is over
	}
	// What it sent before it ended still counts.
	_ = s.g.ctl.SetReadDeadline(time.Now().Add(exitGrace))
}

// exitCause says why an interpreter that has ended did so.
func (s *session) exitCause() error {
	if err := s.g.worker.awaitDeath(exitGrace); err != nil {
		return err
	}
	if s.g.oom() {
		return s.oomError()
	}
	return &belljar.Error{Code: belljar.CodeDestroyed, Op: "cell", Message: ErrExited.Error(), Err: ErrExited, Hint: "open another cell"}
}

func (s *session) oomError() error {
	return &belljar.Error{
		Code: belljar.CodeOOM, Op: "cell", Message: "the memory limit ended the cell",
		Limit: fmt.Sprintf("memory %d bytes", s.c.spec.Limits.Memory), Hint: "open another cell with more, or handle less at once",
	}
}

// read takes the guest's frames until something ends it.
func (s *session) read() {
	r := bufio.NewReaderSize(s.g.ctl, 32<<10)
	var buf []byte
	for {
		b, err := readFrame(r, s.frame, buf)
		if err == nil {
			buf = b
			var m *message
			if m, err = decode(b); err == nil {
				err = s.take(m, len(b))
			}
		}
		if err != nil {
			s.readEnded(err)
			return
		}
	}
}

// readEnded makes a reason to end out of what ended the reading.
func (s *session) readEnded(err error) {
	var e *belljar.Error
	switch {
	case errors.As(err, &e):
		s.fail(err)
	case errors.Is(err, ErrProtocol):
		if errors.Is(err, errTorn) && s.g.exited(exitGrace) {
			s.fail(s.exitCause())
			return
		}
		s.fail(protocolFault(err))
	case s.g.exited(exitGrace):
		s.fail(s.exitCause())
	case errors.Is(err, io.EOF):
		s.fail(protocolFault(broken("the guest closed its channel")))
	default:
		s.fail(&belljar.Error{Code: belljar.CodeInternal, Op: "cell", Message: err.Error(), Err: err})
	}
}

func protocolFault(err error) error {
	return &belljar.Error{Code: belljar.CodeExecFailed, Op: "cell", Message: err.Error(), Err: err, Hint: "the code in the cell wrote to its channel; open another cell"}
}

// take handles one frame of the guest.
func (s *session) take(m *message, size int) error {
	switch m.t {
	case tDone:
		return s.takeDone(m)
	case tPost:
		return s.takePost(m, size)
	case tRequest:
		return s.takeRequest(m)
	case tDisplay:
		s.pace()
		return s.takeDisplay(m, size)
	case tLog:
		s.pace()
		if f := s.c.spec.Log; f != nil {
			f(Record{Cell: s.c.id, Level: m.level, Message: m.text, Fields: m.fields})
		}
		return nil
	case tMetric:
		s.pace()
		if f := s.c.spec.Metric; f != nil {
			f(Measure{Cell: s.c.id, Name: m.name, Value: m.number, Tags: m.tags})
		}
		return nil
	}
	return broken("a second %s", m.t)
}

func (s *session) takeDone(m *message) error {
	s.mu.Lock()
	op := s.op
	s.mu.Unlock()
	if op == nil || op.id != m.id {
		return broken("the end of operation %d, which does not run", m.id)
	}
	s.out.drain()
	s.err.drain()
	s.mu.Lock()
	s.op = nil
	s.mu.Unlock()
	op.done <- m
	return nil
}

func (s *session) takePost(m *message, size int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.inbox) >= maxInbox || s.bytes+size > maxInboxBytes {
		return &belljar.Error{
			Code: belljar.CodeQuotaExceeded, Op: "cell", Message: "the guest posted more than anybody received",
			Limit: fmt.Sprintf("%d messages, %d bytes", maxInbox, maxInboxBytes), Hint: "receive while the cell runs",
		}
	}
	s.inbox = append(s.inbox, m.value)
	s.bytes += len(m.value)
	s.signal()
	return nil
}

func (s *session) signal() {
	select {
	case s.posted <- struct{}{}:
	default:
	}
}

// recv takes a message out of the inbox.
func (s *session) recv(ctx context.Context) (json.RawMessage, error) {
	for {
		s.mu.Lock()
		if len(s.inbox) > 0 {
			m := s.inbox[0]
			s.inbox[0] = nil
			s.inbox = s.inbox[1:]
			s.bytes -= len(m)
			if len(s.inbox) > 0 {
				s.signal()
			}
			s.mu.Unlock()
			return m, nil
		}
		why := s.why
		s.mu.Unlock()
		if why != nil {
			return nil, why
		}
		select {
		case <-s.posted:
		case <-s.dead:
		case <-ctx.Done():
			return nil, &belljar.Error{Code: belljar.CodeCancelled, Op: "cell recv", Message: ctx.Err().Error(), Err: ctx.Err(), Recoverable: true}
		}
	}
}

func (s *session) takeDisplay(m *message, size int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.id > s.lastID {
		return broken("a display of operation %d, which was never asked for", m.id)
	}
	op := s.op
	if op == nil || op.id != m.id {
		return nil // a thread of user code was late
	}
	if op.shown += size; op.shown <= maxDisplays {
		op.displays = append(op.displays, m.bundle)
	}
	if f := op.display; f != nil {
		s.mu.Unlock()
		f(m.bundle)
		s.mu.Lock()
	}
	return nil
}

// pace makes a guest wait that talks more than anybody can read.
func (s *session) pace() {
	now := time.Now()
	s.tokens = min(chatterBurst, s.tokens+now.Sub(s.filled).Seconds()*chatterRate)
	s.filled = now
	s.tokens--
	if s.tokens < 0 {
		select {
		case <-time.After(time.Duration(-s.tokens / chatterRate * float64(time.Second))):
		case <-s.dead:
		}
	}
}

const refused = "refused"

// takeRequest looks into the grant table, which is ours, and answers. What was not
// granted looks the same whether or not there is such a capability.
func (s *session) takeRequest(m *message) error {
	s.mu.Lock()
	twice := s.asked[m.id]
	s.asked[m.id] = true
	s.mu.Unlock()
	if twice {
		return broken("request %d is still open", m.id)
	}
	select {
	case s.requests <- struct{}{}:
	case <-s.dead:
		return nil
	}
	go func() {
		r := replyFrame{T: "reply", ID: m.id, Error: refused}
		if s.c.spec.granted(m.capability, m.action) {
			r = s.answer(m)
		}
		s.mu.Lock()
		delete(s.asked, m.id)
		s.mu.Unlock()
		if err := s.send(s.ctx, "reply", r); err != nil && r.OK {
			// It is too large, or the cell has ended and hears nothing.
			_ = s.send(s.ctx, "reply", replyFrame{T: "reply", ID: m.id, Error: "the answer does not fit into a frame"})
		}
		<-s.requests
	}()
	return nil
}

func (s *Spec) granted(capability, action string) bool {
	if s.Request == nil {
		return false
	}
	for _, a := range s.Grants[capability] {
		if a == action {
			return true
		}
	}
	return false
}

func (s *session) answer(m *message) replyFrame {
	v, err := s.c.spec.Request(s.ctx, Request{Cell: s.c.id, Capability: m.capability, Action: m.action, Payload: m.value})
	var raw json.RawMessage
	if err == nil {
		raw, err = value("reply", v)
	}
	var told *Refusal
	switch {
	case errors.As(err, &told):
		return replyFrame{T: "reply", ID: m.id, Error: told.Reason}
	case err != nil:
		return replyFrame{T: "reply", ID: m.id, Error: "failed"}
	}
	return replyFrame{T: "reply", ID: m.id, OK: true, Value: raw}
}

// send writes a frame. When ctx ends within one, the stream is of no use any more.
func (s *session) send(ctx context.Context, name string, msg any) error {
	cancelled := func() error {
		return &belljar.Error{Code: belljar.CodeCancelled, Op: "cell " + name, Message: ctx.Err().Error(), Err: ctx.Err(), Recoverable: true}
	}
	select {
	case s.writing <- struct{}{}:
	case <-s.dead:
		return s.cause()
	case <-ctx.Done():
		return cancelled()
	}
	defer func() { <-s.writing }()
	if err := s.cause(); err != nil {
		return err
	}
	b, err := appendFrame(s.wbuf[:0], msg, s.frame)
	if err != nil {
		return &belljar.Error{Code: belljar.CodeInvalidSpec, Op: "cell " + name, Message: err.Error(), Err: err, Recoverable: true, Hint: "raise limits.frame, or hand it over as a file"}
	}
	if cap(b) <= 64<<10 {
		s.wbuf = b
	}
	n, err := writeUntil(ctx, s.g.ctl, b)
	if err == nil {
		return nil
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		if n > 0 {
			s.fail(&belljar.Error{Code: belljar.CodeCancelled, Op: "cell " + name, Message: "a frame was cut by the end of its context"})
		}
		return cancelled()
	}
	if why := s.cause(); why != nil {
		return why
	}
	select { // the reader knows better what has happened
	case <-s.dead:
	case <-time.After(4 * exitGrace):
		s.fail(&belljar.Error{Code: belljar.CodeInternal, Op: "cell " + name, Message: err.Error(), Err: err})
	}
	return s.cause()
}

// writeUntil writes until ctx ends. The end of a context may be told late; it must not
// reach the next write.
func writeUntil(ctx context.Context, f *os.File, b []byte) (int, error) {
	var mu sync.Mutex
	over := false
	stop := context.AfterFunc(ctx, func() {
		mu.Lock()
		defer mu.Unlock()
		if !over {
			_ = f.SetWriteDeadline(time.Unix(1, 0))
		}
	})
	n, err := f.Write(b)
	if !stop() {
		mu.Lock()
		defer mu.Unlock()
		over = true
		_ = f.SetWriteDeadline(time.Time{})
	}
	return n, err
}

// open hands the interpreter over to its cell.
func (s *session) open(ctx context.Context) error {
	spec := &s.c.spec
	dir := spec.Dir
	if dir == "" {
		dir = s.g.dir
	}
	res, err := s.do(ctx, &operation{name: "open", timeout: 30 * time.Second}, func(id uint64) any {
		return openFrame{T: "open", V: ABIVersion, ID: id, Cell: s.c.id, Dir: dir, Env: spec.Env, Imports: spec.Imports, Frame: spec.Limits.Frame}
	})
	if err != nil {
		return err
	}
	if res.Exception != nil {
		return &belljar.Error{Code: belljar.CodeExecFailed, Op: "cell open", Message: res.Exception.Error(), Err: res.Exception, Hint: "dir must be a directory that the cell can reach"}
	}
	return nil
}

// interrupt asks the running operation to end.
func (s *session) interrupt() error {
	s.mu.Lock()
	why, op := s.why, s.op
	s.mu.Unlock()
	if why != nil {
		return why
	}
	if op == nil {
		return nil
	}
	return interruptGroup(s.g.pidfd)
}

// do carries an operation out.
func (s *session) do(ctx context.Context, op *operation, frame func(uint64) any) (*Result, error) {
	l := &s.c.spec.Limits
	op.done, op.start = make(chan *message, 1), time.Now()
	op.quota = quota{limit: int64(l.Output), hit: func() {
		s.fail(&belljar.Error{Code: belljar.CodeOutput, Op: "cell " + op.name, Message: "the output limit ended the cell", Limit: fmt.Sprintf("output %d bytes", l.Output)})
	}}
	op.kept = [2]tail{{most: int(l.Retain)}, {most: int(l.Retain)}}
	s.mu.Lock()
	if s.why != nil {
		defer s.mu.Unlock()
		return nil, s.why
	}
	s.lastID++
	op.id = s.lastID
	s.op = op
	s.mu.Unlock()
	s.out.begin(&op.kept[0], &op.quota, op.stdout)
	s.err.begin(&op.kept[1], &op.quota, op.stderr)

	b, err := s.budget(op)
	if err == nil {
		err = s.send(ctx, op.name, frame(op.id))
	}
	var m *message
	if err != nil {
		if s.cause() == nil { // nothing was sent
			s.mu.Lock()
			s.op = nil
			s.mu.Unlock()
		}
	} else {
		m, err = s.await(ctx, op)
	}
	b.stop()
	if s.cause() != nil {
		<-s.gone // with all that it wrote
	}
	s.out.end()
	s.err.end()
	res := &Result{
		Displays: op.displays, Stdout: op.kept[0].bytes(), Stderr: op.kept[1].bytes(),
		DroppedBytes: op.kept[0].dropped + op.kept[1].dropped,
		DurationMs:   float64(time.Since(op.start).Microseconds()) / 1e3,
		CPUTimeMs:    b.used(),
	}
	if m != nil {
		res.Data, res.Value, res.Exception = m.bundle, m.value, m.fault
	}
	if err == nil && l.Memory > 0 && s.g.oom() {
		// One of its processes is gone; the limit is the whole cell's.
		s.fail(s.oomError())
		err = s.cause()
	}
	return res, err
}

// await waits for the end of an operation.
func (s *session) await(ctx context.Context, op *operation) (*message, error) {
	select {
	case m := <-op.done:
		return m, nil
	case <-s.dead:
	case <-ctx.Done():
		return s.giveUp(ctx, op)
	}
	select {
	case m := <-op.done: // it ended before the cell did
		return m, nil
	default:
		return nil, s.cause()
	}
}

// giveUp interrupts an operation whose caller went away, and kills what does not heed.
func (s *session) giveUp(ctx context.Context, op *operation) (*message, error) {
	err := &belljar.Error{Code: belljar.CodeCancelled, Op: "cell " + op.name, Message: ctx.Err().Error(), Err: ctx.Err(), Recoverable: true}
	_ = s.interrupt() // the cell is killed otherwise
	select {
	case m := <-op.done:
		return m, err
	case <-s.dead:
	case <-time.After(interruptGrace):
		s.fail(&belljar.Error{Code: belljar.CodeCancelled, Op: "cell " + op.name, Message: "the operation was cancelled and did not end", Err: ctx.Err()})
	}
	return nil, s.cause()
}
