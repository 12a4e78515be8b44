package cell

import (
	"io"
	"os"
	"sync"
)

const outletBuffer = 16 << 10

// outlet reads one output of a guest all the time, and delivers to the operation that
// runs. Between operations there is nobody to read it: it is dropped.
type outlet struct {
	f     *os.File
	ended chan struct{} // closed at the end of the stream

	mu    sync.Mutex // held through a read and its delivery
	buf   []byte
	kept  *tail
	quota *quota
	w     io.Writer
}

func (o *outlet) init(f *os.File) {
	o.f, o.buf, o.ended = f, make([]byte, outletBuffer), make(chan struct{})
}

func (o *outlet) run() {
	defer close(o.ended)
	for o.readSome() {
	}
}

func (o *outlet) begin(kept *tail, q *quota, w io.Writer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.kept, o.quota, o.w = kept, q, w
}

func (o *outlet) end() { o.begin(nil, nil, nil) }

// deliver hands bytes to the operation; o.mu is held.
func (o *outlet) deliver(b []byte) {
	if o.kept == nil {
		return
	}
	o.kept.add(b)
	o.quota.add(len(b))
	if o.w != nil {
		if _, err := o.w.Write(b); err != nil {
			o.w = nil // a reader that went away gets nothing more
		}
	}
}

// quota bounds the output of an operation, both streams together.
type quota struct {
	limit int64
	hit   func()

	mu   sync.Mutex
	seen int64
	over bool
}

func (q *quota) add(n int) {
	if q.limit <= 0 {
		return
	}
	q.mu.Lock()
	q.seen += int64(n)
	first := q.seen > q.limit && !q.over
	q.over = q.over || first
	q.mu.Unlock()
	if first {
		q.hit()
	}
}

// tail keeps the last bytes of a stream.
type tail struct {
	most    int
	b       []byte
	dropped int64
}

func (t *tail) add(p []byte) {
	t.b = append(t.b, p...)
	// Moved only when as much again has come, so that each byte is moved once.
	if len(t.b) >= 2*t.most {
		t.trim()
	}
}

func (t *tail) trim() {
	if n := len(t.b) - t.most; n > 0 {
		t.b = append(t.b[:0], t.b[n:]...)
		t.dropped += int64(n)
	}
}

func (t *tail) bytes() []byte {
	t.trim()
	return t.b
}
