package belljar_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"runtime"
	"testing"
	"time"

	"belljar"
	"belljar/backend/fake"
)

// counter writes n MiB of numbers in order to both streams.
func counter(_ context.Context, p *fake.Proc) int {
	var b [1 << 16]byte
	n := uint64(0)
	for range 40 << 20 / len(b) {
		for i := 0; i < len(b); i += 8 {
			binary.BigEndian.PutUint64(b[i:], n)
			n++
		}
		for _, w := range []io.Writer{p.Stdout, p.Stderr} {
			if _, err := w.Write(b[:]); err != nil {
				return 1
			}
		}
	}
	return 0
}

// assembler puts chunks together and checks that they fit.
type assembler struct {
	t    *testing.T
	next [3]int64
	gaps [3]int64
	got  [3]int64
}

func (a *assembler) take(c belljar.Chunk) error {
	a.t.Helper()
	if c.Offset != a.next[c.Stream] {
		a.t.Errorf("stream %d: offset %d instead of %d", c.Stream, c.Offset, a.next[c.Stream])
	}
	a.next[c.Stream] += int64(len(c.Data)) + c.Gap
	a.gaps[c.Stream] += c.Gap
	a.got[c.Stream] += int64(len(c.Data))
	for i := (8 - c.Offset%8) % 8; i+8 <= int64(len(c.Data)); i += 8 {
		if n := binary.BigEndian.Uint64(c.Data[i:]); n != uint64(c.Offset+i)/8 {
			a.t.Fatalf("stream %d at %d: number %d", c.Stream, c.Offset+i, n)
		}
	}
	return nil
}

func TestFollow(t *testing.T) {
	rt, _ := open(t, belljar.Config{}, fake.Config{})
	sb := create(t, rt, belljar.Spec{})
	ctx := t.Context()
	first := sb.Command("counter")
	first.ID = "count"
	if err := first.Start(ctx); err != nil {
		t.Fatal(err)
	}
	const total = 40 << 20
	a := &assembler{t: t}
	cut := errors.New("cut")
	// A follower that loses its connection again and again gets every byte once.
	var res *belljar.Result
	for round := 0; res == nil; round++ {
		c, err := sb.Attach("count")
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(ctx); err != nil {
			t.Fatal(err)
		}
		chunks := 0
		res, err = c.Follow(ctx, a.next[1], a.next[2], func(c belljar.Chunk) error {
			if chunks++; chunks > 50 && round < 10 {
				return cut
			}
			return a.take(c)
		})
		if err != nil && !errors.Is(err, cut) {
			t.Fatal(err)
		}
	}
	if a.next[1] != total || a.next[2] != total {
		t.Errorf("%d and %d bytes of %d", a.next[1], a.next[2], total)
	}
	if res.State != belljar.Completed {
		t.Errorf("%+v", res)
	}
	// Who comes late gets what is retained, and is told of the gap.
	late := &assembler{t: t}
	c, err := sb.Attach("count")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Follow(ctx, 0, 0, late.take); err != nil {
		t.Fatal(err)
	}
	if late.next[1] != total || late.gaps[1] == 0 || late.got[1] != int64(len(res.Stdout)) || late.gaps[1]+late.gaps[2] != res.DroppedBytes {
		t.Errorf("late: next %v, gaps %v, got %v; dropped %d", late.next, late.gaps, late.got, res.DroppedBytes)
	}
	if _, err := c.Follow(ctx, -1, 0, late.take); !errors.Is(err, belljar.ErrInvalidSpec) {
		t.Errorf("a negative offset: %v", err)
	}
	// From beyond what there is nothing comes, and no error.
	if _, err := c.Follow(ctx, total, total+5, func(belljar.Chunk) error { return cut }); err != nil {
		t.Error(err)
	}
}

func TestFollowEnds(t *testing.T) {
	rt, _ := open(t, belljar.Config{}, fake.Config{})
	sb := create(t, rt, belljar.Spec{})
	c := sb.Command("hang")
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err := c.Follow(ctx, 0, 0, func(belljar.Chunk) error { cancel(); return nil })
	if !errors.Is(err, belljar.ErrCancelled) {
		t.Errorf("follow after the end of its context: %v", err)
	}
	if c.State() != belljar.Running {
		t.Errorf("the execution is %s", c.State())
	}
	if err := c.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	if res, err := c.Wait(t.Context()); err != nil || res.Cause != belljar.CauseSignal && res.Cause != belljar.CauseExit {
		t.Errorf("after a kill: %+v, %v", res, err)
	}
	if err := c.SignalTree(t.Context(), 15); !errors.Is(err, belljar.ErrConflict) {
		t.Errorf("a signal after the end: %v", err)
	}
}

func TestWriteStdin(t *testing.T) {
	rt, _ := open(t, belljar.Config{}, fake.Config{})
	sb := create(t, rt, belljar.Spec{})
	c := sb.Command("cat")
	if _, err := c.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := bytes.Repeat([]byte("0123456789"), 30000) // more than a pipe holds
	write := func(off int64, p []byte, eof bool, accepted int64, refused bool) {
		t.Helper()
		n, err := c.WriteStdin(t.Context(), off, p, eof)
		if n != accepted || refused != errors.Is(err, belljar.ErrConflict) || !refused && err != nil {
			t.Fatalf("accepted %d, want %d; %v", n, accepted, err)
		}
	}
	write(0, want[:1000], false, 1000, false)
	write(0, want[:1000], false, 1000, false)      // a repeat
	write(500, want[500:2000], false, 2000, false) // half a repeat
	write(3000, want[3000:], false, 2000, true)    // a gap
	write(-1, nil, false, 2000, true)
	write(2000, want[2000:], true, int64(len(want)), false)
	write(2000, want[2000:], true, int64(len(want)), false)
	write(int64(len(want)), []byte("x"), false, int64(len(want)), true)
	res, err := c.Wait(t.Context())
	if err != nil || !bytes.Equal(res.Stdout, want) {
		t.Errorf("%d bytes came out of %d; %v", len(res.Stdout), len(want), err)
	}
	// A program that does not read holds the writer only as long as it wants.
	c = sb.Command("hang")
	if _, err := c.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	n, err := c.WriteStdin(ctx, 0, want, false)
	if !errors.Is(err, belljar.ErrCancelled) || n >= int64(len(want)) || n != c.StdinOffset() {
		t.Errorf("accepted %d, %v", n, err)
	}
}

func TestHoldOutput(t *testing.T) {
	rt, _ := open(t, belljar.Config{}, fake.Config{})
	sb := create(t, rt, belljar.Spec{})
	c := sb.Command("counter")
	c.HoldOutput = true
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Whatever time passes, no more than pipes and one read hold has left the program.
	for range 50 {
		runtime.Gosched()
	}
	if out, _ := c.Retained(); len(out) > 64<<10 {
		t.Errorf("%d bytes were read", len(out))
	}
	a := &assembler{t: t}
	if _, err := c.Follow(t.Context(), 0, 0, a.take); err != nil {
		t.Fatal(err)
	}
	if a.got[1] != 40<<20 || a.got[2] != 40<<20 {
		t.Errorf("%v bytes came, %v in gaps", a.got, a.gaps)
	}
	// One that nobody follows ends all the same.
	c = sb.Command("echo", "x")
	c.HoldOutput, c.WaitDelay = true, 10*time.Millisecond
	if res, err := c.Run(t.Context()); err != nil || string(res.Stdout) != "x\n" {
		t.Errorf("%+v, %v", res, err)
	}
	c = sb.Command("echo")
	c.HoldOutput, c.Stdout = true, io.Discard
	if _, err := c.Run(t.Context()); !errors.Is(err, belljar.ErrInvalidSpec) {
		t.Errorf("with a writer: %v", err)
	}
}
