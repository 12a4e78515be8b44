package belljar

import (
	"context"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"
)

// Stream numbers, as descriptors.
const (
	StreamStdout = 1
	StreamStderr = 2
)

// followChunk is the most that a [Chunk] holds.
const followChunk = 64 << 10

// Chunk is a part of an output: Data at Offset of the stream, or in its place a
// Gap of so many bytes that are no longer retained.
type Chunk struct {
	Stream int // StreamStdout or StreamStderr
	Offset int64
	Data   []byte // valid during the call only
	Gap    int64
}

// Follow calls f with everything that an execution writes, from the given
// offsets of standard output and error on, and returns its result: whoever lost
// the connection continues where it was and gets every byte once. f is not called
// by two goroutines at once; the program waits for it while it runs. When ctx
// ends or f fails, Follow returns that error, and the execution goes on.
func (c *Cmd) Follow(ctx context.Context, stdout, stderr int64, f func(Chunk) error) (*Result, error) {
	e := c.execution()
	if e == nil {
		return nil, errNotStarted
	}
	if stdout < 0 || stderr < 0 {
		return nil, &Error{Code: CodeInvalidSpec, Op: "follow", Message: "a negative offset", Recoverable: true}
	}
	fl := &follower{ctx: ctx, f: f, failed: make(chan struct{})}
	defer fl.close()
	for i, from := range []int64{stdout, stderr} {
		w := &followed{fl: fl, stream: i + 1, next: from}
		fl.streams[i] = w
		go e.follow(i, w) // returns with the execution's end at the latest
	}
	select {
	case <-e.done:
	case <-fl.failed:
		return nil, fl.err
	case <-ctx.Done():
		return nil, cancelled("follow", ctx.Err())
	}
	res, err := e.outcome()
	if ferr := fl.rest(e, res); ferr != nil {
		return nil, ferr
	}
	return res, err
}

// follower serialises what the two streams of an execution give.
type follower struct {
	ctx     context.Context
	f       func(Chunk) error
	failed  chan struct{}
	streams [2]*followed

	mu     sync.Mutex
	closed bool
	err    error
}

func (fl *follower) close() {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	fl.closed = true
}

// rest gives what the streams did not: the execution has ended.
func (fl *follower) rest(e *execution, res *Result) error {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	fl.closed = true // a writer that was given up must not go on
	if fl.err != nil {
		return fl.err
	}
	dropped := e.droppedBytes()
	for i, kept := range [][]byte{res.Stdout, res.Stderr} {
		if err := fl.streams[i].give(dropped[i], kept); err != nil {
			return err
		}
	}
	return nil
}

// followed is one stream of a follower, as a writer.
type followed struct {
	fl     *follower
	stream int
	at     int64 // offset of what is written next
	next   int64 // offset that f wants next
}

// startAt tells the offset of the first byte that will be written.
func (w *followed) startAt(off int64) { w.at = off }

// Write implements io.Writer for the stream's goroutine.
func (w *followed) Write(p []byte) (int, error) {
	for done := 0; done < len(p); {
		part := p[done:min(done+followChunk, len(p))]
		if err := w.write(part); err != nil {
			return done, err
		}
		done += len(part)
	}
	return len(p), nil
}

func (w *followed) write(p []byte) error {
	fl := w.fl
	fl.mu.Lock()
	defer fl.mu.Unlock()
	if fl.closed {
		return os.ErrClosed
	}
	err := w.give(w.at, p)
	w.at += int64(len(p))
	if err != nil && fl.err == nil {
		fl.err, fl.closed = err, true
		close(fl.failed)
	}
	return err
}

// give hands over what of the bytes at an offset was not yet; fl.mu is held.
func (w *followed) give(at int64, p []byte) error {
	if at > w.next {
		if err := w.call(Chunk{Stream: w.stream, Offset: w.next, Gap: at - w.next}); err != nil {
			return err
		}
		w.next = at
	}
	if skip := w.next - at; skip >= int64(len(p)) {
		return nil
	} else if skip > 0 {
		p = p[skip:]
	}
	for len(p) > 0 {
		part := p[:min(len(p), followChunk)]
		if err := w.call(Chunk{Stream: w.stream, Offset: w.next, Data: part}); err != nil {
			return err
		}
		w.next += int64(len(part))
		p = p[len(part):]
	}
	return nil
}

func (w *followed) call(c Chunk) error {
	if err := w.fl.ctx.Err(); err != nil {
		return cancelled("follow", err)
	}
	return w.fl.f(c)
}

// follow attaches a follower's stream once there is one.
func (e *execution) follow(i int, w *followed) {
	select {
	case <-e.launched:
	case <-e.done:
		return
	}
	e.mu.Lock()
	s := e.streams[i]
	e.mu.Unlock()
	if s != nil {
		s.attach(w)
	}
}

func (e *execution) droppedBytes() [2]int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.dropped
}

// SignalTree sends a signal to every process of the execution.
func (c *Cmd) SignalTree(ctx context.Context, sig syscall.Signal) error {
	return c.send(ctx, "signal tree", func(t Task) error { return t.SignalTree(ctx, sig) })
}

// Kill ends the whole tree at once. It does not wait.
func (c *Cmd) Kill(ctx context.Context) error {
	return c.send(ctx, "kill", func(t Task) error { return t.Kill(ctx) })
}

func (c *Cmd) send(ctx context.Context, op string, f func(Task) error) error {
	e := c.execution()
	if e == nil {
		return errNotStarted
	}
	e.mu.Lock()
	t, state := e.task, e.state
	e.mu.Unlock()
	if t == nil || state != Running {
		return &Error{Code: CodeConflict, Op: op, Message: fmt.Sprintf("the execution is %s", state), Recoverable: true}
	}
	if err := f(t); err != nil {
		return asError(CodeInternal, op, err)
	}
	return nil
}

// WriteStdin writes to the standard input of a command that was started with
// StdinPipe, or with a terminal, at an offset: bytes below what was accepted
// before are skipped, so that a repeat writes nothing twice. It returns how many
// bytes the program's input has accepted altogether; fewer than were given only
// with an error. An offset beyond that is CONFLICT. eof closes the input after
// the bytes.
func (c *Cmd) WriteStdin(ctx context.Context, offset int64, p []byte, eof bool) (accepted int64, err error) {
	e := c.execution()
	if e == nil {
		return 0, errNotStarted
	}
	e.stdinTurn.Lock()
	defer e.stdinTurn.Unlock()
	e.mu.Lock()
	w, tty := e.stdin, e.tty
	e.mu.Unlock()
	if w == nil {
		w = tty
	}
	switch at := e.stdinAt; {
	case offset < 0 || offset > at:
		return at, &Error{
			Code: CodeConflict, Op: "write stdin", Message: fmt.Sprintf("offset %d, accepted are %d", offset, at), Recoverable: true,
			Hint: "continue where the last answer says",
		}
	case offset+int64(len(p)) <= at:
		p = nil
	default:
		p = p[at-offset:]
	}
	if w == nil {
		if len(p) == 0 {
			return e.stdinAt, nil // a repeat of what closed it
		}
		return e.stdinAt, &Error{Code: CodeConflict, Op: "write stdin", Message: "the input is closed", Recoverable: true}
	}
	if len(p) > 0 {
		fired := make(chan struct{})
		stop := context.AfterFunc(ctx, func() {
			_ = w.SetWriteDeadline(time.Unix(1, 0))
			close(fired)
		})
		n, err := w.Write(p)
		if !stop() {
			<-fired
			_ = w.SetWriteDeadline(time.Time{})
		}
		e.stdinAt += int64(n)
		if err != nil {
			if ctx.Err() != nil {
				return e.stdinAt, cancelled("write stdin", ctx.Err())
			}
			return e.stdinAt, &Error{Code: CodeConflict, Op: "write stdin", Message: "the program does not read its input any more", Recoverable: true, Err: err}
		}
	}
	switch {
	case eof && w == tty:
		_, err = w.Write([]byte{4}) // end of transmission; closing would hang up
	case eof:
		e.closeStdin()
	}
	if err != nil {
		err = asError(CodeInternal, "write stdin", err)
	}
	return e.stdinAt, err
}

// StdinOffset returns how many bytes [Cmd.WriteStdin] has written.
func (c *Cmd) StdinOffset() int64 {
	e := c.execution()
	if e == nil {
		return 0
	}
	e.stdinTurn.Lock()
	defer e.stdinTurn.Unlock()
	return e.stdinAt
}
