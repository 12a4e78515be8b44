package server

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"strings"
	"sync"
	"syscall"
	"time"

	"belljar"
	v1 "belljar/api/belljar/v1"
	"belljar/api/belljar/v1/belljarv1connect"
	"belljar/internal/wire"
)

// executions implements the ExecutionService.
type executions struct {
	belljarv1connect.UnimplementedExecutionServiceHandler
	s *Server
}

// readerPatience is how long an execution that ended waits for a caller that
// does not read; what it missed is retained.
const readerPatience = time.Second

// command makes the command of a request.
func command(sb *belljar.Sandbox, id string, m *v1.Command) (*belljar.Cmd, error) {
	switch {
	case m == nil:
		return nil, bad("command", "missing")
	case m.Shell != "" && len(m.Args) > 0:
		return nil, bad("command", "args and shell exclude each other")
	case m.Shell == "" && len(m.Args) == 0:
		return nil, bad("command", "args or shell is needed")
	case len(m.Stdin) > 0 && m.StdinOpen:
		return nil, bad("command.stdin", "stdin and stdin_open exclude each other")
	}
	c := sb.Shell(wire.Name(m.Shell))
	if m.Shell == "" {
		c.Args = wire.Names(m.Args)
	}
	c.ID, c.Dir, c.User, c.WaitDelay = id, wire.Name(m.Dir), m.User, readerPatience
	for k, v := range m.Env {
		c.Env = append(c.Env, wire.Name(k)+"="+wire.Name(v))
	}
	var err error
	if c.Timeout, err = wire.FromDuration("command.timeout", m.Timeout); err != nil {
		return nil, err
	}
	if c.Limits, err = wire.Limits(m.Limits); err != nil {
		return nil, err
	}
	if m.Tty != nil {
		if m.Tty.Rows > 0xffff || m.Tty.Cols > 0xffff {
			return nil, bad("command.tty", "rows and cols are at most 65535")
		}
		c.TTY = &belljar.TTY{Rows: uint16(m.Tty.Rows), Cols: uint16(m.Tty.Cols)}
	}
	if len(m.Stdin) > 0 {
		c.Stdin = strings.NewReader(string(m.Stdin))
	}
	return c, nil
}

// open keeps standard input for WriteStdin; of a terminal it always is.
func open(c *belljar.Cmd, m *v1.Command) error {
	if !m.StdinOpen || c.TTY != nil {
		return nil
	}
	_, err := c.StdinPipe()
	return err
}

// execID is for executions whose caller chose none, so that they can be found.
func execID() string { return "ex-" + strings.ToLower(rand.Text())[:20] }

// Run implements the service: the hot path.
func (x executions) Run(ctx context.Context, req *v1.RunRequest) (*v1.RunResponse, error) {
	sb, who, err := x.s.sandbox(ctx, ScopeExec, req.Sandbox)
	if err != nil {
		return nil, err
	}
	if err := x.s.accepting("exec"); err != nil {
		return nil, err
	}
	c, err := command(sb, req.Id, req.Command)
	if err != nil {
		return nil, err
	}
	if req.Command.StdinOpen {
		return nil, bad("command.stdin_open", "nobody could write: use Start or Interact")
	}
	if err := x.s.auditExec(ctx, sb, c); err != nil {
		return nil, err
	}
	leave, err := x.s.place(ctx, who)
	if err != nil {
		return nil, err
	}
	defer leave()
	c.Detach = req.Detach
	x.s.running.Add(1)
	defer x.s.running.Add(-1)
	res, err := c.Run(ctx)
	if res == nil {
		return nil, err
	}
	m := wire.Result(res)
	if req.OmitConfinement {
		m.Confinement = nil
	}
	return &v1.RunResponse{Result: m}, nil
}

// start starts a command, or finds the one that has its id.
func (x executions) start(ctx context.Context, req *v1.StartRequest) (c *belljar.Cmd, existed bool, err error) {
	sb, who, err := x.s.sandbox(ctx, ScopeExec, req.Sandbox)
	if err != nil {
		return nil, false, err
	}
	if req.Id != "" {
		if old, err := sb.Attach(req.Id); err == nil {
			want, err := command(sb, req.Id, req.Command)
			if err != nil {
				return nil, false, err
			}
			// Start of a second command with the id compares the two and attaches.
			if err := want.Start(ctx); err != nil {
				return nil, false, err
			}
			return old, true, old.Start(ctx)
		}
	}
	if err := x.s.accepting("exec"); err != nil {
		return nil, false, err
	}
	id := req.Id
	if id == "" {
		id = execID()
	}
	if c, err = command(sb, id, req.Command); err != nil {
		return nil, false, err
	}
	c.HoldOutput = req.HoldOutput
	if err := open(c, req.Command); err != nil {
		return nil, false, err
	}
	if err := x.s.auditExec(ctx, sb, c); err != nil {
		return nil, false, err
	}
	leave, err := x.s.place(ctx, who)
	if err != nil {
		return nil, false, err
	}
	err = c.Start(ctx)
	if done := c.Done(); done != nil {
		go func() {
			<-done
			leave()
		}()
	} else {
		leave()
	}
	if errors.Is(err, belljar.ErrConflict) && req.Id != "" {
		// Somebody was faster with the id, after which a pipe for input is one too many.
		if old, aerr := sb.Attach(id); aerr == nil {
			return old, true, old.Start(ctx)
		}
	}
	if err != nil && c.State() == "" {
		return nil, false, err
	}
	return c, false, nil // one that could not be executed has a result that says so
}

// auditExec writes down what is run: the hash of the command line unless the
// daemon was told otherwise, for it may hold secrets.
func (s *Server) auditExec(ctx context.Context, sb *belljar.Sandbox, c *belljar.Cmd) error {
	if s.cfg.Audit == nil {
		return nil
	}
	detail := strings.Join(c.Args, "\x00")
	if !s.cfg.AuditCommands {
		sum := sha256.Sum256([]byte(detail))
		detail = "sha256:" + hex.EncodeToString(sum[:])
	} else if len(detail) > 4096 {
		detail = detail[:4096] + "..."
	}
	return s.audit(ctx, "exec", sb.ID(), detail)
}

// Start implements the service.
func (x executions) Start(ctx context.Context, req *v1.StartRequest) (*v1.StartResponse, error) {
	c, existed, err := x.start(ctx, req)
	if err != nil {
		return nil, err
	}
	return &v1.StartResponse{Execution: execution(req.Sandbox, c, true), Existed: existed}, nil
}

// execution is an execution as message.
func execution(sandbox string, c *belljar.Cmd, omitOutput bool) *v1.Execution {
	m := &v1.Execution{Id: c.ExecutionID(), Sandbox: sandbox, State: string(c.State()), StdinOffset: c.StdinOffset()}
	select {
	case <-c.Done():
		if res, _ := c.Wait(context.Background()); res != nil { // there, so it does not wait
			m.Result = result(res, omitOutput)
			m.StartedAt = m.Result.StartedAt
			m.State = m.Result.State
		}
	default:
	}
	return m
}

func result(res *belljar.Result, omitOutput bool) *v1.Result {
	m := wire.Result(res)
	if omitOutput {
		m.Stdout, m.Stderr = nil, nil
	}
	return m
}

// attach finds a running or ended execution.
func (x executions) attach(ctx context.Context, sandbox, id string) (*belljar.Cmd, error) {
	sb, _, err := x.s.sandbox(ctx, ScopeExec, sandbox)
	if err != nil {
		return nil, err
	}
	c, err := sb.Attach(id)
	if err != nil {
		return nil, err
	}
	return c, c.Start(ctx)
}

// Stream implements the service.
func (x executions) Stream(ctx context.Context, req *v1.StreamRequest, out belljarv1connect.ExecutionServiceStreamServerStream) error {
	c, err := x.attach(ctx, req.Sandbox, req.Execution)
	if err != nil {
		return err
	}
	return follow(ctx, c, req.StdoutOffset, req.StderrOffset, req.OmitOutput, func(e event) error {
		m := &v1.StreamResponse{}
		switch {
		case e.chunk != nil:
			m.Event = &v1.StreamResponse_Chunk{Chunk: e.chunk}
		case e.gap != nil:
			m.Event = &v1.StreamResponse_Gap{Gap: e.gap}
		case e.result != nil:
			m.Event = &v1.StreamResponse_Result{Result: e.result}
		default:
			m.Event = &v1.StreamResponse_KeepAlive{KeepAlive: &v1.KeepAlive{}}
		}
		return out.Send(m)
	})
}

// event is what a follower of an execution is sent; nothing set: it goes on.
type event struct {
	chunk  *v1.Chunk
	gap    *v1.Gap
	result *v1.Result
}

// follow sends the output from the offsets on, a sign of life when there is
// none, and the result.
func follow(ctx context.Context, c *belljar.Cmd, stdout, stderr int64, omit bool, send func(event) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex // send is for one at a time
	var failed error
	quiet := time.NewTimer(keepAlive)
	defer quiet.Stop()
	locked := func(e event) error {
		mu.Lock()
		defer mu.Unlock()
		if failed == nil {
			failed = send(e)
			quiet.Reset(keepAlive)
		}
		return failed
	}
	var life sync.WaitGroup
	defer life.Wait()
	defer cancel()
	life.Go(func() {
		for {
			select {
			case <-quiet.C:
				if locked(event{}) != nil {
					cancel()
					return
				}
			case <-ctx.Done():
				return
			}
		}
	})
	res, err := c.Follow(ctx, stdout, stderr, func(k belljar.Chunk) error {
		if k.Gap > 0 {
			return locked(event{gap: &v1.Gap{Stream: v1.Stream(k.Stream), Offset: k.Offset, Bytes: k.Gap}})
		}
		return locked(event{chunk: &v1.Chunk{Stream: v1.Stream(k.Stream), Offset: k.Offset, Data: k.Data}})
	})
	if res == nil {
		return err
	}
	return locked(event{result: result(res, omit)})
}

// Interact implements the service.
func (x executions) Interact(ctx context.Context, both belljarv1connect.ExecutionServiceInteractServerStream) error {
	first, err := both.Receive()
	if err != nil {
		return err
	}
	var c *belljar.Cmd
	var stdout, stderr int64
	omit := true
	switch e := first.Event.(type) {
	case *v1.InteractRequest_Start:
		if c, _, err = x.start(ctx, e.Start); err != nil {
			return err
		}
		err = both.Send(&v1.InteractResponse{Event: &v1.InteractResponse_Started{Started: execution(e.Start.Sandbox, c, true)}})
	case *v1.InteractRequest_Attach:
		if c, err = x.attach(ctx, e.Attach.Sandbox, e.Attach.Execution); err != nil {
			return err
		}
		stdout, stderr, omit = e.Attach.StdoutOffset, e.Attach.StderrOffset, e.Attach.OmitOutput
		err = both.Send(&v1.InteractResponse{Event: &v1.InteractResponse_Started{Started: execution(e.Attach.Sandbox, c, true)}})
	default:
		return bad("event", "the first is start or attach")
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		// It ends with the stream, which ends when this handler returns.
		for {
			m, err := both.Receive()
			if err != nil {
				if !errors.Is(err, io.EOF) { // the caller is gone; after EOF it only listens
					cancel(err)
				}
				return
			}
			if err := input(ctx, c, m); err != nil {
				cancel(err)
				return
			}
		}
	}()
	err = follow(ctx, c, stdout, stderr, omit, func(e event) error {
		m := &v1.InteractResponse{}
		switch {
		case e.chunk != nil:
			m.Event = &v1.InteractResponse_Chunk{Chunk: e.chunk}
		case e.gap != nil:
			m.Event = &v1.InteractResponse_Gap{Gap: e.gap}
		case e.result != nil:
			m.Event = &v1.InteractResponse_Result{Result: e.result}
		default:
			m.Event = &v1.InteractResponse_KeepAlive{KeepAlive: &v1.KeepAlive{}}
		}
		return both.Send(m)
	})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	return err
}

// input carries one message of a caller to the program. What comes too late,
// because the program ended meanwhile, is no error.
func input(ctx context.Context, c *belljar.Cmd, m *v1.InteractRequest) error {
	var err error
	switch e := m.Event.(type) {
	case *v1.InteractRequest_Stdin:
		_, err = c.WriteStdin(ctx, e.Stdin.Offset, e.Stdin.Data, e.Stdin.Eof)
	case *v1.InteractRequest_Resize:
		if e.Resize.Rows > 0xffff || e.Resize.Cols > 0xffff {
			return bad("resize", "rows and cols are at most 65535")
		}
		err = c.Resize(uint16(e.Resize.Rows), uint16(e.Resize.Cols))
	case *v1.InteractRequest_Signal:
		err = deliver(ctx, c, e.Signal)
	case *v1.InteractRequest_Cancel:
		err = c.Cancel(ctx)
	default:
		return bad("event", "none, or a second start")
	}
	if errors.Is(err, belljar.ErrConflict) {
		return nil
	}
	return err
}

// WriteStdin implements the service.
func (x executions) WriteStdin(ctx context.Context, req *v1.WriteStdinRequest) (*v1.WriteStdinResponse, error) {
	c, err := x.attach(ctx, req.Sandbox, req.Execution)
	if err != nil {
		return nil, err
	}
	n, err := c.WriteStdin(ctx, req.Offset, req.Data, req.Eof)
	if err != nil {
		return nil, err
	}
	return &v1.WriteStdinResponse{Offset: n}, nil
}

// Signal implements the service.
func (x executions) Signal(ctx context.Context, req *v1.SignalRequest) (*v1.SignalResponse, error) {
	c, err := x.attach(ctx, req.Sandbox, req.Execution)
	if err != nil {
		return nil, err
	}
	return &v1.SignalResponse{}, deliver(ctx, c, req)
}

func deliver(ctx context.Context, c *belljar.Cmd, req *v1.SignalRequest) error {
	sig, err := wire.Signal(req.Signal)
	switch {
	case err != nil:
		return err
	case req.Tree && sig == syscall.SIGKILL:
		return c.Kill(ctx)
	case req.Tree:
		return c.SignalTree(ctx, sig)
	}
	return c.Signal(ctx, sig)
}

// Resize implements the service.
func (x executions) Resize(ctx context.Context, req *v1.ResizeRequest) (*v1.ResizeResponse, error) {
	c, err := x.attach(ctx, req.Sandbox, req.Execution)
	if err != nil {
		return nil, err
	}
	if req.Tty == nil || req.Tty.Rows > 0xffff || req.Tty.Cols > 0xffff {
		return nil, bad("tty", "rows and cols from 0 to 65535 are needed")
	}
	return &v1.ResizeResponse{}, c.Resize(uint16(req.Tty.Rows), uint16(req.Tty.Cols))
}

// Cancel implements the service.
func (x executions) Cancel(ctx context.Context, req *v1.CancelRequest) (*v1.CancelResponse, error) {
	c, err := x.attach(ctx, req.Sandbox, req.Execution)
	if err != nil {
		return nil, err
	}
	return &v1.CancelResponse{}, c.Cancel(ctx)
}

// Wait implements the service.
func (x executions) Wait(ctx context.Context, req *v1.WaitRequest) (*v1.WaitResponse, error) {
	c, err := x.attach(ctx, req.Sandbox, req.Execution)
	if errors.Is(err, belljar.ErrNotFound) {
		if e, perr := x.ended(ctx, req.Sandbox, req.Execution, req.OmitOutput); perr == nil {
			return &v1.WaitResponse{Execution: e}, nil
		}
	}
	if err != nil {
		return nil, err
	}
	d, err := wire.FromDuration("timeout", req.Timeout)
	if err != nil {
		return nil, err
	}
	if req.Timeout == nil {
		d = defaultGet
	}
	t := time.NewTimer(min(d, maxWait))
	defer t.Stop()
	select {
	case <-c.Done():
	case <-t.C:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return &v1.WaitResponse{Execution: execution(req.Sandbox, c, req.OmitOutput)}, nil
}

// ended is an execution of a sandbox that ended.
func (x executions) ended(ctx context.Context, sandbox, id string, omit bool) (*v1.Execution, error) {
	p, err := x.s.ended(ctx, ScopeExec, sandbox)
	if err != nil {
		return nil, err
	}
	res, err := p.Result(id)
	if err != nil {
		return nil, err
	}
	return &v1.Execution{Id: res.ID, Sandbox: p.ID, State: string(res.State), StartedAt: wire.Time(res.StartedAt), Result: result(res, omit)}, nil
}

// Get implements the service.
func (x executions) Get(ctx context.Context, req *v1.GetExecutionRequest) (*v1.GetExecutionResponse, error) {
	c, err := x.attach(ctx, req.Sandbox, req.Execution)
	if errors.Is(err, belljar.ErrNotFound) {
		if e, perr := x.ended(ctx, req.Sandbox, req.Execution, req.OmitOutput); perr == nil {
			return &v1.GetExecutionResponse{Execution: e}, nil
		}
	}
	if err != nil {
		return nil, err
	}
	return &v1.GetExecutionResponse{Execution: execution(req.Sandbox, c, req.OmitOutput)}, nil
}

// List implements the service.
func (x executions) List(ctx context.Context, req *v1.ListExecutionsRequest) (*v1.ListExecutionsResponse, error) {
	sb, _, err := x.s.sandbox(ctx, ScopeExec, req.Sandbox)
	if err != nil {
		return nil, err
	}
	size, err := pageSize(req.PageSize)
	if err != nil {
		return nil, err
	}
	resp := &v1.ListExecutionsResponse{}
	for _, id := range sb.Executions() {
		if req.Cursor != "" && id <= req.Cursor {
			continue
		}
		if len(resp.Executions) == size {
			resp.NextCursor = resp.Executions[size-1].Id
			break
		}
		c, err := sb.Attach(id)
		if err == nil {
			err = c.Start(ctx)
		}
		if err != nil {
			continue // it ended meanwhile and had no id of its own
		}
		resp.Executions = append(resp.Executions, execution(req.Sandbox, c, true))
	}
	return resp, nil
}
