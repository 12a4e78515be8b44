package attendant

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"belljar"

	"golang.org/x/sys/unix"
)

const (
	lingering   = time.Second // with no sandbox and nobody asking, before it ends
	maxRecalled = 256         // ended executions of a sandbox in a listing
)

// Server is the attendant.
type Server struct {
	// Dir is the state directory.
	Dir string
	// Runtime makes the runtime that keeps the sandboxes.
	Runtime func(context.Context, belljar.Config) (*belljar.Runtime, error)
	// ExitCode is the status that belongs to a result, or to an error when there is none.
	ExitCode func(*belljar.Result, error) int

	rt     *belljar.Runtime
	log    *slog.Logger
	idle   chan struct{} // has an element when it may be time to end
	ending context.Context

	mu    sync.Mutex // guards what follows
	conns int
	execs []*entry
}

type entry struct {
	info ExecInfo
	cmd  *belljar.Cmd
}

// Serve does the attendant's work until no sandbox is left or ctx ends. It calls ready
// once commands are answered, or with the error why they will not be.
func (s *Server) Serve(ctx context.Context, ready func(error)) error {
	err := s.serve(ctx, func() { ready(nil) })
	if err != nil {
		ready(err)
	}
	return err
}

func (s *Server) serve(ctx context.Context, ready func()) (err error) {
	dir, short, err := openDir(s.Dir, true)
	if err != nil {
		return &belljar.Error{Code: belljar.CodeUnavailable, Op: "open state directory", Message: err.Error(), Err: err}
	}
	defer dir.Close()
	lock, err := takeLock(ctx, dir)
	if err != nil {
		return &belljar.Error{Code: belljar.CodeUnavailable, Op: "lock state directory", Message: err.Error(), Err: err}
	}
	defer lock.Close()
	logFile, err := os.OpenFile(short+logName, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer logFile.Close()
	s.log = slog.New(slog.NewTextHandler(logFile, nil))

	s.rt, err = s.Runtime(ctx, belljar.Config{StateDir: s.Dir, Persist: true, Logger: s.log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.rt.Close(context.WithoutCancel(ctx))) }()
	if swept, err := s.rt.Recover(ctx); err != nil {
		s.log.Warn("recover", "swept", swept, "err", err)
	}
	s.recall(ctx)

	// Whoever held the lock before is gone, and its socket with it.
	if err := os.Remove(short + socketName); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: short + socketName, Net: "unix"})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.ending = ctx
	s.idle = make(chan struct{}, 1)
	var work sync.WaitGroup
	go func() {
		s.wait(ctx)
		cancel()
		_ = ln.Close() // removes the socket
	}()
	ready()
	for {
		c, err := ln.AcceptUnix()
		if err != nil {
			cancel()
			// Somebody may have connected at the last moment; it sees the end and asks again.
			work.Wait()
			return nil
		}
		s.mu.Lock()
		s.conns++
		s.mu.Unlock()
		work.Go(func() {
			defer func() {
				_ = c.Close()
				s.mu.Lock()
				s.conns--
				s.mu.Unlock()
				s.poke()
			}()
			s.answer(ctx, &conn{c: c})
		})
	}
}

// takeLock waits for the one before to be gone.
func takeLock(ctx context.Context, dir *os.File) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), lockName, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), lockName)
	deadline := time.Now().Add(5 * time.Second)
	for {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(deadline) || ctx.Err() != nil {
			_ = f.Close()
			return nil, err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (s *Server) poke() {
	select {
	case s.idle <- struct{}{}:
	default:
	}
}

// wait returns when nobody needs the attendant any more.
func (s *Server) wait(ctx context.Context) {
	t := time.NewTimer(lingering)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.idle:
			t.Reset(lingering)
		case <-t.C:
			s.mu.Lock()
			needed := s.conns > 0
			s.mu.Unlock()
			if !needed && len(s.rt.List()) == 0 {
				return
			}
			t.Reset(lingering) // sandboxes end by their timers, too
		}
	}
}

func (s *Server) answer(ctx context.Context, c *conn) {
	if err := sameUser(c.c); err != nil {
		s.log.Warn("connection refused", "err", err)
		return
	}
	var req Request
	files, err := c.recv(&req, 3)
	if err != nil {
		s.log.Warn("request", "err", err)
		return
	}
	defer closeAll(files)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var reply Reply
	if req.Version != Version {
		err = &belljar.Error{
			Code: belljar.CodeConflict, Op: req.Op, Message: "the sandboxes here are kept by another version of belljar",
			Hint: "remove them with that version first",
		}
	} else {
		if req.Op != OpExec {
			go func() { // nothing more is asked for, so this ends when the command does
				_, _ = c.c.Read(make([]byte, 1))
				cancel()
			}()
		}
		err = s.do(ctx, c, &req, files, &reply)
	}
	if err != nil {
		reply.Error = toError(req.Op, err)
		if reply.Code == 0 {
			reply.Code = s.ExitCode(nil, err)
		}
	}
	closeAll(files) // the command reads to the end of these before it reads the reply
	if err := c.send(&reply); err != nil && ctx.Err() == nil {
		s.log.Info("reply", "op", req.Op, "err", err)
	}
}

func toError(op string, err error) *belljar.Error {
	if e := (*belljar.Error)(nil); errors.As(err, &e) {
		return e
	}
	return &belljar.Error{Code: belljar.CodeInternal, Op: op, Message: err.Error(), Err: err}
}

func (s *Server) do(ctx context.Context, c *conn, req *Request, files []*os.File, reply *Reply) error {
	invalid := func(what string) error {
		return &belljar.Error{Code: belljar.CodeInvalidSpec, Op: req.Op, Message: what}
	}
	switch req.Op {
	case OpList:
		reply.Listing = s.list(ctx)
		return nil
	case OpGC:
		swept, err := s.rt.GC(ctx)
		reply.Swept = &swept
		return err
	case OpCreate:
		if req.Spec == nil {
			return invalid("no spec")
		}
		sb, err := s.rt.Create(ctx, *req.Spec)
		if err != nil {
			return err
		}
		reply.Sandbox = new(s.describe(ctx, sb))
		reply.Report = new(sb.Report())
		return nil
	case OpLogs:
		if len(files) != 2 {
			return invalid("two descriptors are needed")
		}
		return s.logs(ctx, req, files, reply)
	}

	sb, err := s.find(req.Sandbox)
	if err != nil {
		return err
	}
	switch req.Op {
	case OpExec:
		if req.Command == nil || !req.Command.Detach && len(files) != 3 {
			return invalid("no command or no streams")
		}
		reply.Report = new(sb.Report())
		return s.exec(ctx, c, sb, req.Command, files, reply)
	case OpRemove:
		if err := sb.Destroy(context.WithoutCancel(ctx)); err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.execs = slices.DeleteFunc(s.execs, func(e *entry) bool { return e.info.Sandbox == sb.ID() })
		return nil
	case OpCopyIn:
		return sb.CopyIn(ctx, req.Src, into(sb, req.Dst, req.Src))
	case OpCopyOut:
		return sb.CopyOut(ctx, req.Src, req.Dst)
	case OpUpload, OpDownload:
		if len(files) != 1 {
			return invalid("one descriptor is needed")
		}
		if req.Op == OpUpload {
			return sb.UploadTar(ctx, files[0], req.Dst)
		}
		return sb.DownloadTar(ctx, files[0], req.Src)
	}
	return invalid(fmt.Sprintf("unknown operation %q", req.Op))
}

// into is the name of a copy of src: within dst if that is a directory.
func into(sb *belljar.Sandbox, dst, src string) string {
	if strings.HasSuffix(dst, "/") {
		return dst + path.Base(src)
	}
	if fi, err := sb.Stat(dst); err == nil && fi.IsDir() {
		return path.Join(dst, path.Base(src))
	}
	return dst
}

func (s *Server) find(name string) (*belljar.Sandbox, error) {
	if sb, err := s.rt.Get(name); err == nil {
		return sb, nil
	}
	for _, sb := range s.rt.List() {
		if sb.Name() == name {
			return sb, nil
		}
	}
	return nil, &belljar.Error{
		Code: belljar.CodeNotFound, Op: "find sandbox", Message: fmt.Sprintf("no sandbox %q", name), Hint: "belljar ps lists them",
	}
}

func (s *Server) describe(ctx context.Context, sb *belljar.Sandbox) SandboxInfo {
	spec := sb.Spec()
	info := SandboxInfo{
		ID: sb.ID(), Name: sb.Name(), State: sb.State(), Backend: spec.Backend, Image: spec.Image, Labels: spec.Labels,
		Created: sb.Created(), Executions: len(sb.Executions()), Mode: spec.Isolation.Mode,
	}
	if spec.TTL > 0 {
		info.Expires = info.Created.Add(spec.TTL)
	}
	if u, err := sb.Usage(ctx); err == nil { // it may end meanwhile; nothing measured is what that means
		info.Usage = u
	}
	return info
}

func (s *Server) list(ctx context.Context) *Listing {
	l := &Listing{Sandboxes: []SandboxInfo{}, Executions: []ExecInfo{}}
	exists := map[string]bool{}
	s.mu.Lock()
	for _, e := range s.execs {
		l.Executions = append(l.Executions, e.info)
	}
	s.mu.Unlock()
	for _, sb := range s.rt.List() {
		l.Sandboxes = append(l.Sandboxes, s.describe(ctx, sb))
		exists[sb.ID()] = true
	}
	l.Executions = slices.DeleteFunc(l.Executions, func(e ExecInfo) bool { return !exists[e.Sandbox] })
	return l
}

// exec runs a program with the streams of the command that asked, or without any.
func (s *Server) exec(ctx context.Context, c *conn, sb *belljar.Sandbox, what *Command, files []*os.File, reply *Reply) error {
	cmd := sb.Command(what.Args[0], what.Args[1:]...)
	cmd.Env, cmd.Dir, cmd.User, cmd.Timeout, cmd.Limits, cmd.TTY = what.Env, what.Dir, what.User, what.Timeout, what.Limits, what.TTY
	if cmd.ID = what.ID; cmd.ID == "" {
		// A chosen id is what makes the supervisor remember an execution after its end.
		cmd.ID = "ex-" + strings.ToLower(rand.Text()[:20])
	}
	if !what.Detach {
		_, known := sb.Attach(cmd.ID) // what runs or ran has its input already
		if what.Stdin && known != nil {
			cmd.Stdin = files[0]
		}
		cmd.Stdout, cmd.Stderr = files[1], files[2]
	}
	if err := cmd.Start(ctx); err != nil {
		select {
		case <-cmd.Done():
		default:
			return err
		}
	}
	e := s.remember(sb, cmd, what.Args)
	if err := c.send(&Reply{Started: cmd.ID}); err != nil && !what.Detach {
		_ = cmd.Cancel(context.WithoutCancel(ctx)) // the result tells
	}
	if what.Detach {
		go s.conclude(e)
		return nil
	}
	// Not a wait for the reader: it ends with the connection.
	go s.control(ctx, c, cmd, sb)
	res, err := s.conclude(e)
	reply.Result, reply.Code = res, s.ExitCode(res, err)
	if res != nil {
		slim := *res // the output went its way already, and may be too long for a message
		slim.Stdout, slim.Stderr = nil, nil
		reply.Result = &slim
		return nil
	}
	return err
}

// control does what a command asks for while its program runs. When the command is
// gone, so is the program: only a detached one outlives it.
func (s *Server) control(ctx context.Context, c *conn, cmd *belljar.Cmd, sb *belljar.Sandbox) {
	ctx = context.WithoutCancel(ctx)
	for {
		var req Request
		if _, err := c.recv(&req, 0); err != nil {
			_ = cmd.Cancel(ctx) // no error when it has ended
			return
		}
		switch req.Op {
		case OpCancel:
			go func() { _ = cmd.Cancel(ctx) }()
		case OpKill:
			// There is no signal to the whole tree but cancelling; the grace second stays.
			go func() { _ = cmd.Cancel(ctx) }()
			_ = cmd.Signal(ctx, unix.SIGKILL)
		case OpResize:
			_ = cmd.Resize(req.Rows, req.Cols)
		}
	}
}

// recall enters what was adopted with its sandbox. Its command is not known.
func (s *Server) recall(ctx context.Context) {
	for _, sb := range s.rt.List() {
		for _, id := range sb.Executions() {
			cmd, err := sb.Attach(id)
			if err == nil {
				err = cmd.Start(ctx)
			}
			if err != nil {
				s.log.Warn("adopted execution", "id", id, "err", err)
				continue
			}
			e := s.remember(sb, cmd, nil)
			e.info.Started = time.Time{}
			go s.conclude(e)
		}
	}
}

func (s *Server) remember(sb *belljar.Sandbox, cmd *belljar.Cmd, args []string) *entry {
	e := &entry{cmd: cmd, info: ExecInfo{ID: cmd.ID, Sandbox: sb.ID(), Args: args, State: cmd.State(), Started: time.Now()}}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, o := range s.execs {
		if o.info.Sandbox == sb.ID() && !o.info.Finished.IsZero() {
			n++
		}
	}
	s.execs = slices.DeleteFunc(s.execs, func(o *entry) bool {
		if n >= maxRecalled && o.info.Sandbox == sb.ID() && !o.info.Finished.IsZero() {
			n--
			return true
		}
		return o.info.ID == cmd.ID && o.info.Sandbox == sb.ID() // attached again
	})
	s.execs = append(s.execs, e)
	return e
}

// conclude waits for the end of an execution and notes it.
func (s *Server) conclude(e *entry) (*belljar.Result, error) {
	res, err := e.cmd.Wait(context.Background())
	s.mu.Lock()
	defer s.mu.Unlock()
	e.info.Finished = time.Now()
	e.info.Code = s.ExitCode(res, err)
	if res != nil {
		e.info.State, e.info.Cause = res.State, res.Cause
	}
	e.cmd = nil // the sandbox remembers its output, within bounds
	return res, err
}

// logs writes what is retained of an execution's output, and what comes when it is followed.
func (s *Server) logs(ctx context.Context, req *Request, files []*os.File, reply *Reply) error {
	var cmd *belljar.Cmd
	for _, sb := range s.rt.List() {
		if c, err := sb.Attach(req.Exec); err == nil {
			cmd = c
			break
		}
	}
	if cmd == nil {
		return &belljar.Error{
			Code: belljar.CodeNotFound, Op: "logs", Message: fmt.Sprintf("no execution %q", req.Exec), Hint: "belljar ps -a lists them",
		}
	}
	if req.Follow {
		cmd.Stdout, cmd.Stderr = files[0], files[1]
		if err := cmd.Start(ctx); err != nil {
			return err
		}
		// When the reader goes away its pipes break, and the program does not notice.
		res, err := cmd.Wait(ctx)
		if res != nil {
			reply.Finished, reply.Code = true, s.ExitCode(res, err)
			return nil
		}
		return err
	}
	if err := cmd.Start(ctx); err != nil {
		return err
	}
	stdout, stderr := cmd.Retained()
	var both sync.WaitGroup
	for i, b := range [][]byte{stdout, stderr} {
		both.Go(func() { _, _ = files[i].Write(b) }) // a reader that went away misses nothing
	}
	both.Wait()
	return nil
}
