package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"belljar"
	"belljar/conformance/inside"
)

var streamCases = []testCase{
	{name: "extra files", needs: []Feature{Extra, Shell}, f: func(s *suite) {
		sb := s.sandbox()
		for range 3 { // with and without, in what is used again
			r, w, err := os.Pipe()
			if err != nil {
				s.Fatal(err)
			}
			back, out, err := os.Pipe()
			if err != nil {
				s.Fatal(err)
			}
			if _, err := w.WriteString("given\n"); err != nil {
				s.Fatal(err)
			}
			_ = w.Close()
			c := sb.Shell("cat <&3; echo answer >&4; echo /proc/self/fd/*")
			c.ExtraFiles = []*os.File{r, out}
			res := s.run(c)
			_, _ = r.Close(), out.Close()
			// The shell has no descriptors beside these but the one that it reads the directory by.
			if got := string(res.Stdout); !strings.HasPrefix(got, "given\n") || !strings.Contains(got, "/proc/self/fd/4") || strings.Contains(got, "fd/6") {
				s.Errorf("%s, stdout %q, stderr %q", describe(res), got, res.Stderr)
			}
			if b, err := io.ReadAll(back); err != nil || string(b) != "answer\n" {
				s.Errorf("back came %q, %v", b, err)
			}
			_ = back.Close()
			res = s.run(sb.Shell("echo /proc/self/fd/*; cat <&3"))
			if strings.Contains(string(res.Stdout), "fd/4") || res.ExitCode == 0 {
				s.Errorf("without any: %s, stdout %q", describe(res), res.Stdout)
			}
		}
		dir, err := os.Open(s.TempDir())
		if err != nil {
			s.Fatal(err)
		}
		defer dir.Close()
		for name, files := range map[string][]*os.File{"none": {nil}, "a directory": {dir}, "nine": slices.Repeat([]*os.File{os.Stdin}, 9)} {
			c := sb.Shell("true")
			c.ExtraFiles = files
			if _, err := c.Run(s.ctx); !errors.Is(err, belljar.ErrInvalidSpec) {
				s.Errorf("%s: %v", name, err)
			}
		}
	}},
	{name: "as many extra files as can be", needs: []Feature{Extra, Shell}, f: func(s *suite) {
		sb := s.sandbox()
		l, err := net.Listen("unix", filepath.Join(s.TempDir(), "s"))
		if err != nil {
			s.Fatal(err)
		}
		defer l.Close()
		conn, err := net.Dial("unix", l.Addr().String())
		if err != nil {
			s.Fatal(err)
		}
		defer conn.Close()
		peer, err := l.Accept()
		if err != nil {
			s.Fatal(err)
		}
		defer peer.Close()
		sock, err := peer.(*net.UnixConn).File()
		if err != nil {
			s.Fatal(err)
		}
		defer sock.Close()
		back, out, err := os.Pipe()
		if err != nil {
			s.Fatal(err)
		}
		defer back.Close()
		defer out.Close()
		const script = `for i in 3 4 5 6 7 8 9; do eval "echo $i >&$i"; done; set /proc/self/fd/*; echo $#`
		for _, size := range []int{1, 64_000} { // beside the message from some size on
			c := sb.Shell(script)
			c.Env = []string{"A=" + strings.Repeat("x", size), "B=" + strings.Repeat("x", size)}
			c.ExtraFiles = append([]*os.File{sock}, slices.Repeat([]*os.File{out}, 7)...)
			res := s.run(c)
			// Three streams, eight files, and what the shell reads the directory by.
			if got := string(res.Stdout); got != "12\n" {
				s.Errorf("%s, stdout %q, stderr %q", describe(res), got, res.Stderr)
			}
			var b [64]byte
			if n, err := conn.Read(b[:]); err != nil || string(b[:n]) != "3\n" {
				s.Errorf("by the socket came %q, %v", b[:n], err)
			}
			if n, err := back.Read(b[:]); err != nil || string(b[:n]) != "4\n5\n6\n7\n8\n9\n" {
				s.Errorf("by the pipe came %q, %v", b[:n], err)
			}
		}
	}},
	{name: "4 MiB on both, byte for byte", f: func(s *suite) {
		const n = 4 << 20
		c := s.probe(s.sandbox(), "out", strconv.Itoa(n), strconv.Itoa(n))
		var out, errs bytes.Buffer
		c.Stdout, c.Stderr = &out, &errs
		res := s.run(c)
		for i, got := range [][][]byte{{out.Bytes(), res.Stdout}, {errs.Bytes(), res.Stderr}} {
			want := inside.Pattern(i, n)
			if !bytes.Equal(got[0], want) || !bytes.Equal(got[1], want) {
				s.Errorf("stream %d: %d bytes live, %d kept, or not the same", i, len(got[0]), len(got[1]))
			}
		}
		if res.Truncated || res.DroppedBytes != 0 {
			s.Errorf("truncated %v, dropped %d", res.Truncated, res.DroppedBytes)
		}
	}},
	{name: "retention", f: func(s *suite) {
		const n = 20 << 20
		c := s.probe(s.sandbox(), "out", strconv.Itoa(n), "10")
		var live counter
		c.Stdout = &live
		res := s.run(c)
		if live.n != n {
			s.Errorf("%d bytes live, want all %d", live.n, n)
		}
		kept := len(res.Stdout)
		if kept > 16<<20 || kept < 15<<20 {
			s.Errorf("%d bytes kept, want the last 16 MiB less a chunk", kept)
		}
		if !res.Truncated || res.DroppedBytes != int64(n-kept) {
			s.Errorf("truncated %v, dropped %d, want %d", res.Truncated, res.DroppedBytes, n-kept)
		}
		if !bytes.Equal(res.Stdout, inside.Pattern(0, n)[n-kept:]) {
			s.Error("what is kept is not the end of what was written")
		}
		if !bytes.Equal(res.Stderr, inside.Pattern(1, 10)) {
			s.Errorf("stderr %d bytes", len(res.Stderr))
		}
	}},
	{name: "one writer for both", f: func(s *suite) {
		c := s.probe(s.sandbox(), "out", "200000", "200000")
		w := &alone{}
		c.Stdout, c.Stderr = w, w
		s.run(c)
		if w.n != 400000 || w.twice {
			s.Errorf("%d bytes, two calls at once: %v", w.n, w.twice)
		}
	}},
	{name: "writer that fails", f: func(s *suite) {
		c := s.probe(s.sandbox(), "out", "1000000", "0")
		c.Stdout = failing{}
		res := s.run(c)
		s.ended(res, ending{belljar.Completed, belljar.CauseExit, 0, "", nil})
		if len(res.Stdout) != 1000000 {
			s.Errorf("%d bytes kept", len(res.Stdout))
		}
	}},
	{name: "writer that blocks does not hold a cancel", f: func(s *suite) {
		c := s.probe(s.sandbox(), "flood")
		w := &blocking{entered: make(chan struct{}), free: make(chan struct{})}
		defer close(w.free)
		c.Stdout = w
		if err := c.Start(s.ctx); err != nil {
			s.Fatal(err)
		}
		await(s, w.entered)
		if err := c.Cancel(s.ctx); err != nil {
			s.Fatal(err)
		}
		s.ended(s.wait(c), ending{belljar.Cancelled, belljar.CauseCancelled, -1, "", belljar.ErrCancelled})
	}},
	{name: "writer that blocks does not hold a destroy", f: func(s *suite) {
		sb := s.sandbox()
		c := s.probe(sb, "out", "10", "0")
		w := &blocking{entered: make(chan struct{}), free: make(chan struct{})}
		defer close(w.free)
		c.Stdout = w
		if err := c.Start(s.ctx); err != nil {
			s.Fatal(err)
		}
		await(s, w.entered)
		if err := sb.Destroy(s.ctx); err != nil {
			s.Fatal(err)
		}
		s.wait(c)
	}},
	{name: "wait delay", f: func(s *suite) {
		c := s.probe(s.sandbox(), "out", "60000", "0")
		w := &blocking{entered: make(chan struct{}), free: make(chan struct{})}
		defer close(w.free)
		c.Stdout, c.WaitDelay = w, 20*time.Millisecond
		if err := c.Start(s.ctx); err != nil {
			s.Fatal(err)
		}
		await(s, w.entered)
		res := s.wait(c)
		s.ended(res, ending{belljar.Completed, belljar.CauseExit, 0, "", nil})
		if !bytes.Equal(res.Stdout, inside.Pattern(0, 60000)) {
			s.Errorf("%d bytes kept", len(res.Stdout))
		}
	}},
	{name: "back-pressure", f: func(s *suite) {
		c := s.probe(s.sandbox(), "flood")
		out, err := c.StdoutPipe()
		if err != nil {
			s.Fatal(err)
		}
		if err := c.Start(s.ctx); err != nil {
			s.Fatal(err)
		}
		if _, err := io.CopyN(io.Discard, out, 1<<20); err != nil {
			s.Fatal(err)
		}
		if err := c.Cancel(s.ctx); err != nil {
			s.Fatal(err)
		}
		// Everything that was written is read: the kept copy has the same length.
		rest, err := io.ReadAll(out)
		if err != nil {
			s.Fatal(err)
		}
		res := s.wait(c)
		if got, want := int64(1<<20+len(rest)), int64(len(res.Stdout))+res.DroppedBytes; got != want {
			s.Errorf("read %d bytes, kept and dropped %d", got, want)
		}
		if n := 1<<20 + len(rest); n > 2<<20 {
			s.Errorf("%d bytes: the program was not held back", n)
		}
	}},
	{name: "pipe read after wait", f: func(s *suite) {
		c := s.probe(s.sandbox(), "out", "50000", "100")
		out, err := c.StdoutPipe()
		if err != nil {
			s.Fatal(err)
		}
		errs, err := c.StderrPipe()
		if err != nil {
			s.Fatal(err)
		}
		if err := c.Start(s.ctx); err != nil {
			s.Fatal(err)
		}
		s.wait(c)
		for i, r := range []io.Reader{out, errs} {
			got, err := io.ReadAll(r)
			if want := inside.Pattern(i, []int{50000, 100}[i]); err != nil || !bytes.Equal(got, want) {
				s.Errorf("stream %d: %d bytes, %v", i, len(got), err)
			}
		}
	}},
	{name: "pipe closed early", f: func(s *suite) {
		c := s.probe(s.sandbox(), "out", "1000000", "0")
		out, err := c.StdoutPipe()
		if err != nil {
			s.Fatal(err)
		}
		if err := c.Start(s.ctx); err != nil {
			s.Fatal(err)
		}
		if err := out.Close(); err != nil {
			s.Fatal(err)
		}
		s.ended(s.wait(c), ending{belljar.Completed, belljar.CauseExit, 0, "", nil})
	}},
	{name: "no stdin", f: func(s *suite) {
		res := s.run(s.probe(s.sandbox(), "cat"))
		s.ended(res, ending{belljar.Completed, belljar.CauseExit, 0, "", nil})
		if len(res.Stdout) != 0 {
			s.Errorf("stdout %q", res.Stdout)
		}
	}},
	{name: "stdin", f: func(s *suite) {
		sb := s.sandbox()
		for _, n := range []int{0, 1, 4096, 4097, 1 << 20} {
			data := inside.Pattern(0, n)
			for name, r := range map[string]io.Reader{"bytes": bytes.NewReader(data), "other": io.MultiReader(bytes.NewReader(data))} {
				c := s.probe(sb, "cat")
				c.Stdin = r
				if res := s.run(c); !bytes.Equal(res.Stdout, data) {
					s.Errorf("%s of %d bytes: %d came back", name, n, len(res.Stdout))
				}
			}
		}
	}},
	{name: "stdin from a file", f: func(s *suite) {
		f, err := os.CreateTemp(s.TempDir(), "")
		if err != nil {
			s.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString("from a file"); err != nil {
			s.Fatal(err)
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			s.Fatal(err)
		}
		c := s.probe(s.sandbox(), "cat")
		c.Stdin = f
		if res := s.run(c); string(res.Stdout) != "from a file" {
			s.Errorf("stdout %q", res.Stdout)
		}
	}},
	{name: "stdin pipe", f: func(s *suite) {
		c := s.probe(s.sandbox(), "cat")
		in, err := c.StdinPipe()
		if err != nil {
			s.Fatal(err)
		}
		if err := c.Start(s.ctx); err != nil {
			s.Fatal(err)
		}
		for range 3 {
			if _, err := io.WriteString(in, "part "); err != nil {
				s.Fatal(err)
			}
		}
		if err := in.Close(); err != nil {
			s.Fatal(err)
		}
		if res := s.wait(c); string(res.Stdout) != "part part part " {
			s.Errorf("stdout %q", res.Stdout)
		}
	}},
	{name: "stdin that nobody reads", f: func(s *suite) {
		c := s.probe(s.sandbox(), "exit", "0")
		c.Stdin = bytes.NewReader(make([]byte, 1<<20))
		s.ended(s.run(c), ending{belljar.Completed, belljar.CauseExit, 0, "", nil})
	}},
	{name: "stdin that never ends does not hold the result", f: func(s *suite) {
		r, w := io.Pipe()
		defer w.Close()
		c := s.probe(s.sandbox(), "exit", "0")
		c.Stdin = r
		s.ended(s.run(c), ending{belljar.Completed, belljar.CauseExit, 0, "", nil})
	}},
	{name: "child that holds the streams does not hold the result", f: func(s *suite) {
		res := s.run(s.probe(s.sandbox(), "orphan"))
		s.ended(res, ending{belljar.Completed, belljar.CauseExit, 0, "", nil})
		if !strings.Contains(string(res.Stdout), "left\n") {
			s.Errorf("stdout %q", res.Stdout)
		}
	}},
	{name: "output", f: func(s *suite) {
		out, res, err := s.probe(s.sandbox(), "args", "x").Output(s.ctx)
		if err != nil || string(out) != "[\"x\"]\n" || res.ExitCode != 0 {
			s.Errorf("%q, %+v, %v", out, res, err)
		}
	}},
	{name: "terminal", needs: []Feature{TTY}, f: func(s *suite) {
		c := s.probe(s.sandbox(), "size")
		c.TTY = &belljar.TTY{Rows: 20, Cols: 70}
		in, stdin := io.Pipe()
		c.Stdin = in
		if err := c.Start(s.ctx); err != nil {
			s.Fatal(err)
		}
		if err := c.Resize(33, 99); err != nil {
			s.Error(err)
		}
		if _, err := io.WriteString(stdin, "\n"); err != nil {
			s.Fatal(err)
		}
		res := s.wait(c)
		_ = stdin.Close()
		if !strings.Contains(string(res.Stdout), "33x99") {
			s.Errorf("stdout %q, want the new size", res.Stdout)
		}
	}},
	{name: "terminal that is not there", f: func(s *suite) {
		c := s.probe(s.sandbox(), "exit", "0")
		s.run(c)
		if err := c.Resize(1, 1); err == nil {
			s.Error("resized a pipe")
		}
	}},
	{name: "context of run cancels", f: func(s *suite) {
		c := s.probe(s.sandbox(), "sleep", "1h")
		ctx, cancel := context.WithCancel(s.ctx)
		defer cancel()
		c.Stdout = writerFunc(func(p []byte) (int, error) { cancel(); return len(p), nil })
		res, err := c.Run(ctx)
		if err != nil {
			s.Fatal(err)
		}
		s.ended(res, ending{belljar.Cancelled, belljar.CauseCancelled, -1, "", belljar.ErrCancelled})
	}},
	{name: "context of wait does not", f: func(s *suite) {
		c := s.started(s.sandbox(), "sleep", "1h")
		ctx, cancel := context.WithCancel(s.ctx)
		cancel()
		if _, err := c.Wait(ctx); !errors.Is(err, context.Canceled) {
			s.Errorf("wait: %v", err)
		}
		if c.State() != belljar.Running {
			s.Errorf("state %s", c.State())
		}
	}},
	{name: "detached", f: func(s *suite) {
		sb := s.sandbox()
		c := s.probe(sb, "sleep", "1h")
		c.Detach = true
		ctx, cancel := context.WithCancel(s.ctx)
		defer cancel()
		c.Stdout = writerFunc(func(p []byte) (int, error) { cancel(); return len(p), nil })
		if _, err := c.Run(ctx); !errors.Is(err, context.Canceled) {
			s.Errorf("run: %v", err)
		}
		if c.State() != belljar.Running {
			s.Errorf("state %s", c.State())
		}
		if err := sb.Destroy(s.ctx); err != nil {
			s.Fatal(err)
		}
		res := s.wait(c)
		if res.State != belljar.Cancelled || !errors.Is(res.Error, belljar.ErrDestroyed) {
			s.Errorf("ended %s", describe(res))
		}
	}},
}

type counter struct{ n int }

func (c *counter) Write(p []byte) (int, error) { c.n += len(p); return len(p), nil }

// alone notices two calls at once.
type alone struct {
	mu    sync.Mutex
	n     int
	twice bool
}

func (w *alone) Write(p []byte) (int, error) {
	if !w.mu.TryLock() {
		w.twice = true
		return len(p), nil
	}
	defer w.mu.Unlock()
	w.n += len(p)
	return len(p), nil
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, fmt.Errorf("reader went away") }

type blocking struct {
	entered, free chan struct{}
	once          sync.Once
}

func (w *blocking) Write(p []byte) (int, error) {
	w.once.Do(func() { close(w.entered) })
	<-w.free
	return len(p), nil
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
