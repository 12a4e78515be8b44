package belljar

import (
	"bytes"
	"errors"
	"io"
	"os"
	"slices"
	"sync"
	"testing"
	"time"
)

// allBytes are bytes that differ by position; made once, because it takes long
// with the race detector.
var allBytes = sync.OnceValue(func() []byte {
	b := make([]byte, 2*retainBytes+12345)
	x := uint32(1)
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
})

// pattern returns the first n of them.
func pattern(n int) []byte { return allBytes()[:n:n] }

// feed starts a stream whose other end the test holds.
func feed(t *testing.T, sinks ...io.Writer) (*stream, *os.File) {
	t.Helper()
	return feedQuota(t, &outputQuota{hit: func() {}}, sinks...)
}

func feedQuota(t *testing.T, q *outputQuota, sinks ...io.Writer) (*stream, *os.File) {
	t.Helper()
	r, w, err := outPipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	s := newStream(r, q)
	for _, k := range sinks {
		s.sinks = append(s.sinks, newSink(k))
	}
	go s.copy()
	return s, w
}

func TestRetention(t *testing.T) {
	for _, n := range []int{0, 1, firstBuffer, firstBuffer + 1, 100_000, lastBuffer, lastBuffer + 1, retainBytes / 2, retainBytes, retainBytes + 1, 2*retainBytes + 12345} {
		data := pattern(n)
		s, w := feed(t)
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
		_ = w.Close()
		got, dropped := s.finish(0, nil)
		want := data[max(0, n-retainBytes):]
		if !bytes.Equal(got, want) || dropped != int64(n-len(want)) {
			t.Errorf("%d bytes: kept %d, dropped %d", n, len(got), dropped)
		}
		if cap(got) > 2*len(got)+lastBuffer {
			t.Errorf("%d bytes hold on to %d", n, cap(got))
		}
	}
}

// The bound holds for both streams together.
func TestRetentionOfBoth(t *testing.T) {
	var kept int
	q := &outputQuota{hit: func() {}}
	for i, want := range []int{retainBytes, retainSecond} {
		s, w := feedQuota(t, q)
		data := pattern(retainBytes + 1000)
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
		_ = w.Close()
		got, dropped := s.finish(0, nil)
		if !bytes.Equal(got, data[len(data)-want:]) || dropped != int64(len(data)-want) {
			t.Errorf("stream %d: kept %d, dropped %d", i, len(got), dropped)
		}
		kept += len(got)
	}
	if kept > 30<<20 {
		t.Errorf("%d bytes kept of both", kept)
	}
}

func TestQuotaIsExact(t *testing.T) {
	hits := 0
	q := &outputQuota{limit: 10, hit: func() { hits++ }}
	for i, tt := range []struct{ n, keep, hits int }{{4, 4, 0}, {6, 6, 0}, {1, 0, 1}, {5, 0, 2}} {
		if got := q.take(tt.n); got != tt.keep || hits != tt.hits {
			t.Errorf("%d: kept %d, %d hits", i, got, hits)
		}
	}
	q = &outputQuota{limit: 10, hit: func() {}}
	if got := q.take(25); got != 10 || !q.exceeded() {
		t.Errorf("kept %d", got)
	}
}

// A pipe that something outside of the tree holds open ends after a grace, with
// everything that is in it.
func TestHeldPipe(t *testing.T) {
	s, w := feed(t)
	if _, err := w.Write([]byte("said")); err != nil {
		t.Fatal(err)
	}
	got, _ := s.finish(0, nil)
	if string(got) != "said" {
		t.Errorf("kept %q", got)
	}
}

// stuck is a writer that blocks until it is freed.
type stuck struct {
	entered, free chan struct{}
	once          sync.Once
	got           []byte
}

func newStuck() *stuck { return &stuck{entered: make(chan struct{}), free: make(chan struct{})} }

func (w *stuck) Write(p []byte) (int, error) {
	w.once.Do(func() { close(w.entered) })
	<-w.free
	w.got = append(w.got, p...)
	return len(p), nil
}

func TestAbandonedWriter(t *testing.T) {
	k := newStuck()
	s, w := feed(t, k)
	data := pattern(50_000)
	if _, err := w.Write(data[:100]); err != nil {
		t.Fatal(err)
	}
	<-k.entered
	if _, err := w.Write(data[100:]); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	got, dropped := s.finish(time.Millisecond, nil)
	if !bytes.Equal(got, data) || dropped != 0 {
		t.Errorf("kept %d, dropped %d", len(got), dropped)
	}
	got[0]++ // the caller owns it: the writer must not be looking at it
	close(k.free)
	<-s.done
	if !bytes.Equal(k.got, data[:len(k.got)]) {
		t.Errorf("the writer got something else")
	}
}

func TestAttachMidway(t *testing.T) {
	for _, n := range []int{0, 10, lastBuffer, retainBytes + readMax} {
		var first bytes.Buffer
		seen := make(chan struct{}, 1)
		s, w := feed(t, writerFunc(func(p []byte) (int, error) {
			first.Write(p)
			if first.Len() == n {
				seen <- struct{}{}
			}
			return len(p), nil
		}))
		data := pattern(n + 5)
		if n > 0 {
			if _, err := w.Write(data[:n]); err != nil {
				t.Fatal(err)
			}
			<-seen
		}
		var second bytes.Buffer
		if !s.attach(&second) {
			t.Fatal("over already")
		}
		if _, err := w.Write(data[n:]); err != nil {
			t.Fatal(err)
		}
		_ = w.Close()
		s.finish(0, nil)
		if !bytes.HasSuffix(data, second.Bytes()) || second.Len() < min(n+5, retainBytes-readMax) {
			t.Errorf("%d: got %d bytes", n, second.Len())
		}
		if s.attach(&second) {
			t.Error("attached to what is over")
		}
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestStreamPipe(t *testing.T) {
	p := newStreamPipe()
	wrote := make(chan error, 1)
	go func() {
		_, err := p.Write([]byte("abcdef"))
		wrote <- err
	}()
	b := make([]byte, 2)
	if n, err := p.Read(b); n != 2 || err != nil || string(b) != "ab" {
		t.Fatalf("%d, %v, %q", n, err, b)
	}
	select {
	case err := <-wrote:
		t.Fatalf("not held back: %v", err)
	default:
	}
	p.release()
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
	if _, err := p.Write([]byte("gh")); err != nil {
		t.Fatal(err)
	}
	p.end()
	if rest, err := io.ReadAll(p); err != nil || string(rest) != "cdefgh" {
		t.Errorf("%q, %v", rest, err)
	}

	p = newStreamPipe()
	go func() {
		_, err := p.Write([]byte("abc"))
		wrote <- err
	}()
	if _, err := p.Read(b); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-wrote; !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("write to a closed one: %v", err)
	}
	if _, err := p.Read(b); !errors.Is(err, os.ErrClosed) {
		t.Errorf("read of a closed one: %v", err)
	}
}

func TestIDs(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		id := newID("ex-")
		if !validID("ex-", id) || seen[id] {
			t.Errorf("id %q", id)
		}
		seen[id] = true
	}
	for _, id := range []string{"", "sb-", "sb-aaaaaaaaaaaaaaaaaaa", "sb-aaaaaaaaaaaaaaaaaaaaa", "sb-aaaaaaaaaaaaaaaaaaa1", "sb-aaaaaaaaaaaaaaaaaaaA", "sb-../aaaaaaaaaaaaaaaa", "rt-aaaaaaaaaaaaaaaaaaaa"} {
		if validID("sb-", id) {
			t.Errorf("%q is accepted", id)
		}
	}
}

func TestGateIsFair(t *testing.T) {
	g := &gate{max: 2, queue: 3}
	var turns []<-chan struct{}
	for range 5 {
		turn, err := g.enter()
		if err != nil {
			t.Fatal(err)
		}
		turns = append(turns, turn)
	}
	if turns[0] != nil || turns[1] != nil || slices.Contains(turns[2:], nil) {
		t.Fatal("the first two are admitted, the others wait")
	}
	if _, err := g.enter(); !errors.Is(err, ErrQuotaExceeded) {
		t.Errorf("beyond the queue: %v", err)
	}
	admitted := func(i int) bool {
		select {
		case <-turns[i]:
			return true
		default:
			return false
		}
	}
	g.quit(turns[3])
	g.leave()
	if !admitted(2) || admitted(4) {
		t.Error("not first come, first served")
	}
	g.quit(turns[2]) // admitted meanwhile: its place goes on
	if !admitted(4) {
		t.Error("a place was lost")
	}
	g.leave()
	g.leave()
	if g.running != 0 || len(g.waiting) != 0 {
		t.Errorf("%d running, %d waiting", g.running, len(g.waiting))
	}
}
