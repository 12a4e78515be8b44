package attendant

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"belljar"
)

// Client asks the attendant of a state directory.
type Client struct {
	// Dir is the state directory.
	Dir string
	// Command starts an attendant for Dir in the foreground. It reports on descriptor 3.
	Command []string
}

// Exists reports whether there may be sandboxes: whether there is anything to ask.
func (c *Client) Exists() bool {
	entries, err := os.ReadDir(filepath.Join(c.Dir, "sandboxes"))
	return !errors.Is(err, fs.ErrNotExist) && (err != nil || len(entries) > 0)
}

// Do asks for something with no streams but the given ones, which it closes, and
// returns the answer, whose Error it takes out.
func (c *Client) Do(ctx context.Context, req *Request, files ...*os.File) (*Reply, error) {
	s, err := c.open(ctx, req, files...)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return s.Reply()
}

// Session is a connection on which a request was made.
type Session struct {
	c    *conn
	stop func() bool
	ctx  context.Context
}

// Open asks, and closes the files.
func (c *Client) Open(ctx context.Context, req *Request, files ...*os.File) (*Session, error) {
	return c.open(ctx, req, files...)
}

func (c *Client) open(ctx context.Context, req *Request, files ...*os.File) (*Session, error) {
	defer closeAll(files)
	req.Version = Version
	deadline := time.Now().Add(15 * time.Second)
	for {
		s, err := c.try(ctx, req, files)
		if err == nil {
			return s, nil
		}
		if !absent(err) && !errors.Is(err, syscall.EPIPE) {
			return nil, &belljar.Error{Code: belljar.CodeUnavailable, Op: "open state directory", Message: err.Error(), Err: err}
		}
		if err := c.start(ctx); err != nil {
			return nil, err
		}
		if time.Now().After(deadline) {
			return nil, &belljar.Error{Code: belljar.CodeUnavailable, Op: req.Op, Message: "the attendant does not answer: " + err.Error(), Err: err}
		}
	}
}

func (c *Client) try(ctx context.Context, req *Request, files []*os.File) (*Session, error) {
	conn, err := dialDir(c.Dir)
	if err != nil {
		return nil, err
	}
	if err := conn.send(req, files...); err != nil {
		_ = conn.c.Close()
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.c.Close() })
	return &Session{conn, stop, ctx}, nil
}

// start starts an attendant and waits until it answers.
func (c *Client) start(ctx context.Context) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	cmd := exec.Command("/proc/self/exe", c.Command[1:]...)
	cmd.Args[0] = c.Command[0]
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// It needs nothing of the environment of whoever happened to come first.
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	err = cmd.Start()
	_ = w.Close()
	if err != nil {
		return fmt.Errorf("start the attendant: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = r.SetReadDeadline(time.Now()) })
	defer stop()
	said, err := io.ReadAll(io.LimitReader(r, maxFrame))
	go func() { _ = cmd.Wait() }() // it is a child only until this command ends
	if ctx.Err() != nil {
		return &belljar.Error{Code: belljar.CodeCancelled, Op: "start the attendant", Message: ctx.Err().Error(), Err: ctx.Err()}
	}
	if err != nil {
		return fmt.Errorf("start the attendant: %w", err)
	}
	if string(said) == "ready\n" {
		return nil
	}
	var e belljar.Error
	if json.Unmarshal(said, &e) == nil && e.Code != "" {
		if e.Op == "lock state directory" {
			return nil // another command started one at the same time
		}
		return &e
	}
	return &belljar.Error{
		Code: belljar.CodeUnavailable, Op: "start the attendant", Message: "it ended at once: " + strings.TrimSpace(string(said)),
		Hint: "see " + filepath.Join(c.Dir, logName),
	}
}

// Report says on w whether an attendant is ready, as start reads it.
func Report(w io.Writer, err error) {
	if err == nil {
		_, _ = io.WriteString(w, "ready\n") // whoever asked may be gone
		return
	}
	b, jsonErr := json.Marshal(toError("attendant", err))
	if jsonErr != nil {
		b = []byte(err.Error())
	}
	_, _ = w.Write(b)
}

// Reply waits for the next answer; an Error in it is returned as such.
func (s *Session) Reply() (*Reply, error) {
	var r Reply
	if _, err := s.c.recv(&r, 0); err != nil {
		if s.ctx.Err() != nil {
			return nil, &belljar.Error{Code: belljar.CodeCancelled, Message: "cancelled", Err: s.ctx.Err()}
		}
		return nil, &belljar.Error{
			Code: belljar.CodeUnavailable, Op: "attendant", Message: "it went away", Err: err,
			Hint: "the sandboxes live on; try again",
		}
	}
	if r.Error != nil {
		return &r, r.Error
	}
	return &r, nil
}

// Send asks for something more.
func (s *Session) Send(req *Request) error {
	req.Version = Version
	return s.c.send(req)
}

// Close ends the connection.
func (s *Session) Close() {
	s.stop()
	_ = s.c.c.Close()
}

// Pipes are the ends of a program's streams: Files go to the attendant, the
// others are this command's.
type Pipes struct {
	Files  []*os.File
	stdin  *os.File
	output sync.WaitGroup
}

// Connect makes pipes and copies between them and the given streams; stdin may
// be nil. Only the outputs are waited for.
func Connect(stdin io.Reader, outputs ...io.Writer) (*Pipes, error) {
	p := &Pipes{}
	var reads []*os.File
	fail := func(err error) (*Pipes, error) {
		closeAll(append(append(p.Files, reads...), p.stdin))
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.Files, p.stdin = append(p.Files, r), w
	for range outputs {
		r, w, err := os.Pipe()
		if err != nil {
			return fail(err)
		}
		p.Files, reads = append(p.Files, w), append(reads, r)
	}
	for i, w := range outputs {
		p.output.Go(func() {
			_, _ = io.Copy(w, reads[i])
			_ = reads[i].Close() // the program, if it writes on, finds the pipe broken
		})
	}
	go func() {
		if stdin != nil {
			_, _ = io.Copy(p.stdin, stdin)
		}
		_ = p.stdin.Close()
	}()
	return p, nil
}

// Wait returns when all output has arrived.
func (p *Pipes) Wait() { p.output.Wait() }

// Outputs are the files without stdin, whose pipe is closed.
func (p *Pipes) Outputs() []*os.File {
	_ = p.Files[0].Close()
	return p.Files[1:]
}
