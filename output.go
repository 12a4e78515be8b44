package belljar

import (
	"errors"
	"io"
	"math"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// retainBytes is what is kept of a stream. When both streams of an execution are
	// in flood, the second keeps less, so that both and what reading them costs stay
	// below 32 MiB together.
	retainBytes  = 16 << 20
	retainSecond = 14 << 20

	firstBuffer = 512
	lastBuffer  = 256 << 10 // the largest buffer before the full one
	readMax     = 64 << 10  // the capacity of a pipe

	drainGrace  = 100 * time.Millisecond // for a pipe that something outside the tree holds
	writerGrace = time.Second            // for a writer that blocks after an execution was ended
)

// fullBuffers recycles full-size buffers of streams that did not need one.
var fullBuffers = sync.Pool{New: func() any { b := make([]byte, retainBytes); return &b }}

// outputQuota counts the bytes of both streams against limits.output.
type outputQuota struct {
	limit int64 // 0: none
	used  atomic.Int64
	hit   func()       // called at each breach
	log   func(error)  // a spool failed
	full  atomic.Int32 // streams with a full-size buffer
}

// take returns how many of n bytes are within the limit.
func (q *outputQuota) take(n int) int {
	used := q.used.Add(int64(n))
	if q.limit <= 0 || used <= q.limit {
		return n
	}
	q.hit()
	return max(0, n-int(min(used-q.limit, int64(n))))
}

func (q *outputQuota) spoolFailed(err error) {
	if q.log != nil {
		q.log(err)
	}
}

func (q *outputQuota) exceeded() bool { return q.limit > 0 && q.used.Load() > q.limit }

// sink is a writer that gets a stream live. Two streams with the same writer
// share the mutex, so that it is never called by two goroutines at once.
type sink struct {
	mu  *sync.Mutex
	w   io.Writer
	bad atomic.Bool
}

func newSink(w io.Writer) *sink { return &sink{mu: new(sync.Mutex), w: w} }

func (k *sink) write(p []byte) {
	if k.bad.Load() {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if n, err := k.w.Write(p); err != nil || n < len(p) {
		// The program must not block because its reader went away.
		k.bad.Store(true)
	}
}

// stream reads one output of a program: to the writers, which it waits for, and
// to the retained copy. It reads straight into the retained copy, which is a
// ring once it has its full size.
type stream struct {
	r     *os.File
	quota *outputQuota
	spool *spool        // of a persistent sandbox; copy's own
	done  chan struct{} // closed at the end of copy
	held  chan struct{} // output waits until it is closed; nil: it does not wait
	let   sync.Once     // closes held

	mu        sync.Mutex
	sinks     []*sink
	buf       []byte // used up to its length; the bytes of region() belong to copy
	ring      bool   // buf has its full size
	total     int64  // bytes that went through buf
	over      int64  // bytes above the output limit: neither kept nor forwarded
	writing   bool   // copy is in the writers
	abandoned bool   // copy hangs in a writer and must not touch anything again
	finished  bool   // buf was handed to the result
}

func newStream(r *os.File, q *outputQuota) *stream {
	return &stream{r: r, quota: q, done: make(chan struct{})}
}

// copy reads until the end.
func (s *stream) copy() {
	defer close(s.done)
	s.read(false)
	_ = s.r.Close()
	s.mu.Lock()
	sinks := s.sinks
	s.mu.Unlock()
	for _, k := range sinks {
		if p, ok := k.w.(*streamPipe); ok {
			p.end()
		}
	}
}

// read reads to the end. rest says that it does so in place of an abandoned copy.
func (s *stream) read(rest bool) {
	idle := false
	for {
		region := s.region()
		n, err := s.fill(region)
		if n > 0 {
			idle = false
			s.deliver(region[:n])
			if !rest && s.lost() {
				return
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded) && !idle:
			// The tree is gone, so all it wrote is in the pipe; an expired deadline
			// hides that, hence one more try.
			idle = true
			_ = s.r.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		default:
			return
		}
	}
}

// fill reads into p, through the spool where there is one. A disk that fails
// costs the durability of what follows, not the output.
func (s *stream) fill(p []byte) (int, error) {
	if s.spool == nil {
		return s.r.Read(p)
	}
	n, err := s.spool.read(s.r, p)
	if e := (*spoolError)(nil); errors.As(err, &e) {
		s.quota.spoolFailed(e.err)
		s.spool.close()
		s.spool = nil
		return s.r.Read(p)
	}
	return n, err
}

// restore takes up the output that a former supervisor had read.
func (s *stream) restore() error {
	total := s.spool.size
	if total == 0 {
		return nil
	}
	n := min(total, retainBytes)
	b, err := s.spool.kept(n)
	if err != nil {
		return err
	}
	s.quota.take(int(min(total, math.MaxInt)))
	s.total, s.buf = total, b
	if total <= lastBuffer {
		return nil
	}
	s.ring, s.buf = true, *fullBuffers.Get().(*[]byte)
	for len(b) > 0 {
		at := (total - int64(len(b))) % retainBytes
		b = b[copy(s.buf[at:], b):]
	}
	return nil
}

// region is where the next bytes go.
func (s *stream) region() []byte {
	if s.total == int64(len(s.buf)) && !s.ring {
		s.mu.Lock()
		s.grow()
		s.mu.Unlock()
	}
	pos := int(s.total % int64(len(s.buf)))
	return s.buf[pos:min(pos+readMax, len(s.buf))]
}

func (s *stream) grow() {
	var b []byte
	switch n := len(s.buf); {
	case n == 0:
		b = make([]byte, firstBuffer)
	case n < lastBuffer:
		b = make([]byte, n*8)
	default:
		b = *fullBuffers.Get().(*[]byte)
		s.ring = true
		if s.quota.full.Add(1) > 1 {
			b = b[:retainSecond]
		}
	}
	copy(b, s.buf)
	s.buf = b
}

func (s *stream) lost() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.abandoned
}

// deliver counts, keeps and forwards p, which lies in region().
func (s *stream) deliver(p []byte) {
	keep := s.quota.take(len(p))
	s.mu.Lock()
	s.total += int64(keep)
	s.over += int64(len(p) - keep)
	sinks := s.sinks // who comes later has these bytes from the past
	s.writing = len(sinks) > 0 || s.held != nil
	s.mu.Unlock()
	if s.held != nil {
		<-s.held
	}
	if len(sinks) == 0 && s.held == nil {
		return
	}
	if keep > 0 {
		for _, k := range sinks {
			k.write(p[:keep])
		}
	}
	s.mu.Lock()
	s.writing = false
	s.mu.Unlock()
}

// attach adds a writer, which first gets what is retained. It returns once the
// writer has that, and false when the stream is over and in the result.
func (s *stream) attach(w io.Writer) bool {
	k := newSink(w)
	k.mu.Lock() // what is read meanwhile waits until the past is written
	defer k.mu.Unlock()
	s.mu.Lock()
	if s.finished {
		s.mu.Unlock()
		return false
	}
	past := s.snapshot()
	if f, ok := w.(*followed); ok {
		f.startAt(s.total - int64(len(past)))
	}
	s.sinks = append(slices.Clip(s.sinks), k)
	s.mu.Unlock()
	s.open()
	n, err := 0, error(nil)
	if len(past) > 0 {
		n, err = w.Write(past)
	}
	if err != nil || n < len(past) {
		k.bad.Store(true)
	}
	return true
}

// snapshot copies what is retained, but for the part that copy may be reading
// into.
func (s *stream) snapshot() []byte {
	if s.total < int64(len(s.buf)) || !s.ring {
		return slices.Clone(s.buf[:s.total])
	}
	pos := int(s.total % int64(len(s.buf)))
	return slices.Concat(s.buf[min(pos+readMax, len(s.buf)):], s.buf[:pos])
}

// finish waits for the end of the stream and returns the retained copy and how
// many bytes are not in it. The tree is gone: there is an end, unless a writer
// blocks or something else holds the pipe. Writers are given up after limit
// (0: never), and a second after forced.
func (s *stream) finish(limit time.Duration, forced <-chan struct{}) ([]byte, int64) {
	select {
	case <-s.done:
	default:
		s.await(limit, forced)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finished = true
	buf, total := s.buf, s.total
	if total == 0 {
		return nil, s.over
	}
	if size := int64(len(buf)); total > size {
		pos := int(total % size)
		slices.Reverse(buf[:pos])
		slices.Reverse(buf[pos:])
		slices.Reverse(buf)
		return buf, s.over + total - size
	}
	if s.ring && total < int64(len(buf)/2) {
		out := slices.Clone(buf[:total])
		if !s.abandoned {
			s.buf, s.total = nil, 0
			buf = buf[:cap(buf)]
			fullBuffers.Put(&buf)
		}
		return out, s.over
	}
	return buf[:total:total], s.over
}

// above is how many bytes were above the output limit: they came last.
func (s *stream) above() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

func (s *stream) await(limit time.Duration, forced <-chan struct{}) {
	t := time.AfterFunc(drainGrace, func() { _ = s.r.SetReadDeadline(time.Now()) })
	defer t.Stop()
	var timeout <-chan time.Time
	if limit > 0 {
		timeout = time.After(limit)
	}
	for {
		select {
		case <-s.done:
			return
		case <-timeout:
			s.abandon()
			return
		case <-forced:
			forced = nil
			if timeout == nil {
				timeout = time.After(writerGrace)
			}
		}
	}
}

// open lets output go on that was held.
func (s *stream) open() {
	if s.held != nil {
		s.let.Do(func() { close(s.held) })
	}
}

// abandon takes the stream away from a copy that hangs in a writer, and reads
// what is left in the pipe without the writers.
func (s *stream) abandon() {
	s.mu.Lock()
	s.sinks = nil
	if !s.writing {
		s.mu.Unlock()
		<-s.done // in a read, which the grace bounds
		return
	}
	s.abandoned = true
	s.buf = slices.Clone(s.buf) // the writer may still look at the old one
	s.mu.Unlock()
	s.open()
	_ = s.r.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	s.read(true)
	_ = s.r.Close()
}

// streamPipe is what StdoutPipe and StderrPipe return: it holds the program back
// while it runs, and keeps what is left once it has ended, so that waiting
// before reading loses nothing and never hangs.
type streamPipe struct {
	mu       sync.Mutex
	cond     sync.Cond
	pending  []byte // of the writer that waits, or own memory once released
	released bool   // the program has ended
	eof      bool
	closed   bool // by the reader
}

func newStreamPipe() *streamPipe {
	p := new(streamPipe)
	p.cond.L = &p.mu
	return p
}

// Write implements io.Writer for the stream's goroutine.
func (p *streamPipe) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.released {
		p.pending = b
		p.cond.Broadcast()
		for len(p.pending) > 0 && !p.closed && !p.released {
			p.cond.Wait()
		}
		b2 := p.pending
		p.pending = nil
		if p.closed {
			return len(b) - len(b2), io.ErrClosedPipe
		}
		if len(b2) == 0 {
			return len(b), nil
		}
		p.pending = slices.Clone(b2)
		p.cond.Broadcast()
		return len(b), nil
	}
	if p.closed {
		return 0, io.ErrClosedPipe
	}
	p.pending = append(p.pending, b...)
	p.cond.Broadcast()
	return len(b), nil
}

// release stops holding the writer back.
func (p *streamPipe) release() {
	p.mu.Lock()
	p.released = true
	p.cond.Broadcast()
	p.mu.Unlock()
}

// end makes the reader see the end after what is pending.
func (p *streamPipe) end() {
	p.mu.Lock()
	p.released, p.eof = true, true
	p.cond.Broadcast()
	p.mu.Unlock()
}

// Read implements io.Reader.
func (p *streamPipe) Read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.pending) == 0 {
		if p.closed {
			return 0, os.ErrClosed
		}
		if p.eof {
			return 0, io.EOF
		}
		if len(b) == 0 {
			return 0, nil
		}
		p.cond.Wait()
	}
	n := copy(b, p.pending)
	p.pending = p.pending[n:]
	if len(p.pending) == 0 {
		p.cond.Broadcast()
	}
	return n, nil
}

// Close implements io.Closer. The program is not held back any more.
func (p *streamPipe) Close() error {
	p.mu.Lock()
	p.closed = true
	p.cond.Broadcast()
	p.mu.Unlock()
	return nil
}
