package belljar

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// The part of the environment that is fixed unless the caller overlays it.
var baseEnv = map[string]string{
	"PATH":   "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	"HOME":   "/home/user",
	"TMPDIR": "/tmp",
	"LANG":   "C.UTF-8",
}

// cancelGrace is how long a program has between SIGTERM and SIGKILL.
const cancelGrace = time.Second

const maxExtraFiles = 8

// TTY asks for a terminal instead of pipes. Stderr is then part of Stdout.
type TTY struct {
	Rows, Cols uint16
}

// Cmd is one program to run in a sandbox. Its fields are set before Start and
// not changed afterwards; a Cmd cannot be used twice. Apart from that its methods
// may be called by many goroutines.
type Cmd struct {
	// Args is the command line, Args[0] the program: looked up in PATH inside the
	// sandbox when it has no slash. Nothing is quoted or expanded.
	Args []string
	// Env overlays the sandbox's environment: "K=V", the last of a key wins.
	Env []string
	// Dir is the directory inside; relative to the working directory, which is the default.
	Dir string
	// Stdin is what the program reads; nil: nothing. It is copied until the program
	// ends; a Read that blocks beyond that keeps a goroutine until it returns.
	Stdin io.Reader
	// Stdout and Stderr get the output live and without loss: the program waits for
	// them. A writer that returns an error gets nothing more, and the program does
	// not notice. When both are the same writer, at most one goroutine at a time
	// calls it. What is written must not be kept.
	Stdout, Stderr io.Writer
	// ExtraFiles become descriptors 3 and up of the program, entry i as 3+i, at most
	// 8, no directories. They stay the caller's, and have to be open until the
	// execution runs. What can be done with them is the program's to do: a socket
	// that takes descriptors takes them from it.
	ExtraFiles []*os.File
	// HoldOutput has the program's output wait for the first [Cmd.Follow], or for the
	// end of the execution, so that whoever follows it holds the program back from its
	// first byte on. Stdout and Stderr must be empty.
	HoldOutput bool
	// TTY, when set, gives the program a terminal.
	TTY *TTY
	// Timeout is the wall clock from the start of the program; 0: that of the spec.
	Timeout time.Duration
	// Limits may lower limits of the sandbox for this execution.
	Limits Limits
	// User is "user" (the default) or "root", where the backend has one inside.
	User string
	// ID is chosen by the caller or empty. A Cmd with the id of an execution that
	// runs or ended in this sandbox attaches to it and starts nothing.
	ID string
	// Detach: the end of the context given to Run does not cancel the execution.
	Detach bool
	// WaitDelay bounds how long the result waits for a Stdout or Stderr that blocks
	// after the program ended. 0: no bound, except that an execution that was
	// cancelled, timed out or hit a limit waits one second.
	WaitDelay time.Duration

	sb     *Sandbox
	attach bool // made by Sandbox.Attach: there is no command

	mu       sync.Mutex
	started  bool
	ex       *execution
	attached sync.WaitGroup // writers that get the past of an attached execution
	stdinR   *os.File       // of StdinPipe
	stdinW   *os.File
	pipes    []*streamPipe
}

// Command returns the Cmd to run a program with arguments.
func (s *Sandbox) Command(name string, args ...string) *Cmd {
	return &Cmd{sb: s, Args: append([]string{name}, args...)}
}

// Shell returns the Cmd to run a script by /bin/sh inside the sandbox.
func (s *Sandbox) Shell(script string) *Cmd {
	return &Cmd{sb: s, Args: []string{"/bin/sh", "-c", script}}
}

// Run starts the program and waits for its result. When ctx ends first, the
// execution is cancelled (unless Detach is set) and its result returned. The
// error is nil however the program ended; it speaks only of the machinery. A
// program that could not be executed has both: EXEC_FAILED and a result of cause
// infra.
func (c *Cmd) Run(ctx context.Context) (*Result, error) {
	if err := c.Start(ctx); err != nil {
		if c.ex != nil && c.ex.ended() {
			return c.ex.outcome()
		}
		return nil, err
	}
	select {
	case <-c.ex.done:
	case <-ctx.Done():
		if c.Detach {
			return nil, cancelled("exec", ctx.Err())
		}
		if err := c.Cancel(context.WithoutCancel(ctx)); err != nil {
			return nil, err
		}
	}
	return c.Wait(context.WithoutCancel(ctx))
}

// Output runs the program and returns its standard output, as far as it is
// retained, beside the result, which says how the program ended.
func (c *Cmd) Output(ctx context.Context) ([]byte, *Result, error) {
	res, err := c.Run(ctx)
	if res == nil {
		return nil, nil, err
	}
	return res.Stdout, res, err
}

// Start starts the program, or attaches to the execution with the same ID. The
// end of ctx after Start returned has no effect. Under an admission limit Start
// returns while the execution is queued.
func (c *Cmd) Start(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.started {
		return &Error{Code: CodeConflict, Op: "exec", Message: "the command was started before", Recoverable: true, Hint: "make a new one"}
	}
	c.started = true
	err := c.start(ctx)
	if err != nil {
		c.closePipes()
	}
	return err
}

func (c *Cmd) closePipes() {
	for _, p := range c.pipes {
		p.end()
	}
	if c.stdinR != nil {
		_ = c.stdinR.Close()
		_ = c.stdinW.Close()
	}
}

func (c *Cmd) start(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return cancelled("exec", err)
	}
	if c.attach {
		return c.attachTo(c.sb.execution(c.ID))
	}
	e, err := c.compile()
	if err != nil {
		return err
	}
	if e.proc.TTY {
		if _, ok := c.sb.inst.(TTYOpener); !ok {
			return &Error{Code: CodeUnsupported, Op: "exec", Message: fmt.Sprintf("backend %s has no terminals", c.sb.backend.Name()), Recoverable: true}
		}
	}
	old, err := c.sb.register(e)
	if err != nil {
		return err
	}
	if old != nil {
		return c.attachTo(old)
	}
	turn, err := c.sb.rt.gate.enter()
	if err != nil {
		c.sb.forget(e)
		return err
	}
	c.ex = e
	if turn == nil {
		return e.launch(ctx, c)
	}
	e.mu.Lock()
	if e.reason == killNone {
		e.state = Queued
	}
	e.mu.Unlock()
	go e.queue(turn, c)
	return nil
}

// compile makes the execution that the fields describe.
func (c *Cmd) compile() (*execution, error) {
	s := c.sb
	env := s.env
	var overlay map[string]string
	if len(c.Env) > 0 {
		overlay = make(map[string]string, len(c.Env))
		for _, kv := range c.Env {
			k, v, ok := strings.Cut(kv, "=")
			if !ok {
				return nil, &Error{Code: CodeInvalidSpec, Op: "command env", Message: fmt.Sprintf("%q has no =", kv), Recoverable: true, Hint: "write NAME=VALUE"}
			}
			overlay[k] = v
		}
		all := maps.Clone(s.plan.Spec.Env)
		if all == nil {
			all = map[string]string{}
		}
		maps.Copy(all, overlay)
		env = environ(all)
	}
	dir := s.dir(c.Dir)
	if err := checkCommand(c.Args, overlay, dir, c.User, c.ID); err != nil {
		return nil, err
	}
	if err := checkExtraFiles(c.ExtraFiles); err != nil {
		return nil, err
	}
	if c.HoldOutput && (c.Stdout != nil || c.Stderr != nil) {
		return nil, &Error{Code: CodeInvalidSpec, Op: "command output", Message: "it is held, and has a writer", Recoverable: true}
	}
	if c.Timeout < 0 || c.WaitDelay < 0 {
		return nil, &Error{Code: CodeInvalidSpec, Op: "command timeout", Message: "negative", Recoverable: true}
	}
	limits := s.plan.Spec.Limits
	if c.Limits != (Limits{}) {
		var err error
		if limits, err = CompileLimits(limits, c.Limits); err != nil {
			return nil, err
		}
	}
	e := newExecution(s, Process{
		ID:      c.ID,
		Args:    slices.Clone(c.Args),
		Env:     env,
		Dir:     dir,
		User:    c.User,
		TTY:     c.TTY != nil,
		Timeout: cmp.Or(c.Timeout, s.plan.Spec.Timeout),
		Limits:  limits,
	})
	e.chosenID = c.ID != ""
	if !e.chosenID {
		e.proc.ID = newID("ex-")
	}
	e.waitDelay = c.WaitDelay
	return e, nil
}

// checkExtraFiles refuses what is not passed on. Through a directory of the host a
// program would reach what lies below it, and what lies above.
func checkExtraFiles(files []*os.File) error {
	refuse := func(msg, hint string) error {
		return &Error{Code: CodeInvalidSpec, Op: "command extra files", Message: msg, Hint: hint, Recoverable: true}
	}
	if len(files) > maxExtraFiles {
		return refuse(fmt.Sprintf("%d files, at most %d are passed on", len(files), maxExtraFiles), "send the others over a socket")
	}
	for i, f := range files {
		if f == nil {
			return refuse(fmt.Sprintf("file %d is nil", i), "leave no gaps")
		}
		fi, err := f.Stat()
		if err != nil {
			return refuse(fmt.Sprintf("file %d: %v", i, err), "it must be open until the execution runs")
		}
		if fi.IsDir() {
			return refuse(fmt.Sprintf("file %d is a directory", i), "mount it with mounts")
		}
	}
	return nil
}

// attachTo makes c a further view of an execution.
func (c *Cmd) attachTo(e *execution) error {
	if e == nil {
		return &Error{Code: CodeNotFound, Op: "attach", Message: fmt.Sprintf("no execution %q", c.ID), Recoverable: true}
	}
	if c.Stdin != nil || c.stdinW != nil || len(c.ExtraFiles) > 0 {
		return &Error{Code: CodeConflict, Op: "attach", Message: "the execution has its standard input and files already", Recoverable: true, Hint: "leave Stdin and ExtraFiles empty"}
	}
	c.ex = e
	for i, w := range []io.Writer{c.Stdout, c.Stderr} {
		if w == nil {
			continue
		}
		c.attached.Go(func() {
			e.attach(i, w)
			if p, ok := w.(*streamPipe); ok {
				<-e.done
				p.end()
			}
		})
	}
	return nil
}

// Wait waits for the result. It may be called by many and again, and gives all
// of them the same Result, which nobody may change. When ctx ends first, Wait
// returns its error and the execution goes on.
func (c *Cmd) Wait(ctx context.Context) (*Result, error) {
	e := c.execution()
	if e == nil {
		return nil, errNotStarted
	}
	select {
	case <-e.done:
	default:
		select {
		case <-e.done:
		case <-ctx.Done():
			return nil, cancelled("wait", ctx.Err())
		}
	}
	c.attached.Wait()
	return e.outcome()
}

var errNotStarted = &Error{Code: CodeConflict, Op: "exec", Message: "the command was not started", Recoverable: true}

func (c *Cmd) execution() *execution {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ex
}

// ExecutionID returns the id: the chosen one, or that which Start gave.
func (c *Cmd) ExecutionID() string {
	if e := c.execution(); e != nil {
		return e.proc.ID
	}
	return c.ID
}

// State returns the state of the execution; empty before Start.
func (c *Cmd) State() State {
	e := c.execution()
	if e == nil {
		return ""
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.state
}

// Done is closed when there is a result. Before Start it is nil.
func (c *Cmd) Done() <-chan struct{} {
	if e := c.execution(); e != nil {
		return e.done
	}
	return nil
}

// Cancel ends the execution: SIGTERM to its whole tree, SIGKILL after a second.
// It returns when the tree is dead and the result there, or when ctx ends, which
// does not take the cancellation back. Cancelling what has ended is no error.
func (c *Cmd) Cancel(ctx context.Context) error {
	e := c.execution()
	if e == nil {
		return errNotStarted
	}
	e.stop(ctx, killCancel)
	select {
	case <-e.done:
		return nil
	case <-ctx.Done():
		return cancelled("cancel", ctx.Err())
	}
}

// Signal sends a signal to the main process.
func (c *Cmd) Signal(ctx context.Context, sig syscall.Signal) error {
	e := c.execution()
	if e == nil {
		return errNotStarted
	}
	e.mu.Lock()
	t, state := e.task, e.state
	e.mu.Unlock()
	if t == nil || state != Running {
		return &Error{Code: CodeConflict, Op: "signal", Message: fmt.Sprintf("the execution is %s", state), Recoverable: true}
	}
	if err := t.Signal(ctx, sig); err != nil {
		return asError(CodeInternal, "signal", err)
	}
	return nil
}

// Resize sets the size of the terminal.
func (c *Cmd) Resize(rows, cols uint16) error {
	e := c.execution()
	if e == nil {
		return errNotStarted
	}
	e.mu.Lock()
	m, t := e.tty, e.task
	e.mu.Unlock()
	if r, ok := t.(Resizer); ok && m != nil {
		return r.Resize(rows, cols)
	}
	if m == nil {
		return &Error{Code: CodeConflict, Op: "resize", Message: "the execution has no terminal", Recoverable: true}
	}
	if err := resizeTTY(m, rows, cols); err != nil {
		return asError(CodeInternal, "resize", err)
	}
	return nil
}

// StdinPipe returns a writer to the program's standard input. The program sees
// the end when it is closed. It is closed at the end of the execution.
func (c *Cmd) StdinPipe() (io.WriteCloser, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.started || c.Stdin != nil || c.stdinW != nil || c.TTY != nil {
		return nil, &Error{Code: CodeConflict, Op: "stdin pipe", Message: "started, or Stdin or TTY set", Recoverable: true}
	}
	var err error
	if c.stdinR, c.stdinW, err = inPipe(); err != nil {
		return nil, asError(CodeUnavailable, "stdin pipe", err)
	}
	return c.stdinW, nil
}

// StdoutPipe returns a reader of the program's standard output. The program
// waits for it while it runs; what is left when it has ended stays readable,
// also after Wait. Closing it early does not end the program.
func (c *Cmd) StdoutPipe() (io.ReadCloser, error) { return c.outputPipe("stdout pipe", &c.Stdout) }

// StderrPipe is StdoutPipe for standard error.
func (c *Cmd) StderrPipe() (io.ReadCloser, error) { return c.outputPipe("stderr pipe", &c.Stderr) }

func (c *Cmd) outputPipe(op string, w *io.Writer) (io.ReadCloser, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.started || *w != nil {
		return nil, &Error{Code: CodeConflict, Op: op, Message: "started, or the writer is set", Recoverable: true}
	}
	p := newStreamPipe()
	*w = p
	c.pipes = append(c.pipes, p)
	return p, nil
}

// killReason is why the supervisor ended an execution.
type killReason int

const (
	killNone killReason = iota
	killCancel
	killDestroyed
	killOutput
)

// execution is one run of a program.
type execution struct {
	sb        *Sandbox
	proc      Process
	chosenID  bool
	adopted   bool // of another supervisor: its command is not known
	waitDelay time.Duration
	requested time.Time
	quota     outputQuota
	done      chan struct{} // closed when result is there
	launched  chan struct{} // closed when the streams are there
	forced    chan struct{} // closed when it is ended from outside

	mu       sync.Mutex
	state    State
	task     Task
	tty      *os.File
	stdin    *os.File   // the supervisor's end, while it is open
	streams  [2]*stream // stdout, stderr; nil until launched, or with a terminal
	pipes    []*streamPipe
	dropped  [2]int64 // bytes of each stream before those in the result
	reason   killReason
	killedAt time.Time
	grace    *time.Timer
	admitted time.Time
	result   *Result
	err      error

	stdinTurn sync.Mutex // held through a write; before mu
	stdinAt   int64      // bytes written by WriteStdin
}

func newExecution(s *Sandbox, p Process) *execution {
	e := &execution{
		sb: s, proc: p, requested: time.Now(), state: Running,
		done: make(chan struct{}), forced: make(chan struct{}), launched: make(chan struct{}),
	}
	e.quota.limit = int64(p.Limits.Output)
	e.quota.hit = func() { e.stop(context.Background(), killOutput) }
	return e
}

func (s *Sandbox) execution(id string) *execution {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.execs[id]
}

func (e *execution) ended() bool {
	select {
	case <-e.done:
		return true
	default:
		return false
	}
}

// outcome returns the result of an ended execution.
func (e *execution) outcome() (*Result, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.result, e.err
}

func (e *execution) outputBytes() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.result.Stdout) + len(e.result.Stderr)
}

// dropOutput keeps the result of an old execution, but not its output.
func (e *execution) dropOutput() {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := *e.result
	r.DroppedBytes += int64(len(r.Stdout) + len(r.Stderr))
	r.Truncated = r.DroppedBytes > 0
	e.dropped[0] += int64(len(r.Stdout))
	e.dropped[1] += int64(len(r.Stderr))
	r.Stdout, r.Stderr = nil, nil
	e.result = &r
	if e.sb.plan.Persist {
		for i := range 2 {
			_ = os.Remove(spoolName(e.sb.plan.StateDir, e.proc.ID, i+1)) // there may be none
		}
	}
	e.streams, e.pipes = [2]*stream{}, nil
}

// letGo stops reading the streams.
func (e *execution) letGo() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.streams {
		if s != nil {
			_ = s.r.Close()
		}
	}
}

// attach gives a writer the past and the future of a stream.
func (e *execution) attach(i int, w io.Writer) {
	e.mu.Lock()
	s := e.streams[i]
	e.mu.Unlock()
	if s != nil && s.attach(w) {
		return
	}
	<-e.done // queued, or over
	res, _ := e.outcome()
	b := res.Stdout
	if i == 1 {
		b = res.Stderr
	}
	if p, ok := w.(*streamPipe); ok {
		p.release()
	}
	if len(b) > 0 {
		_, _ = w.Write(b) // a reader that went away misses nothing it wants
	}
}

// queue waits for admission and launches.
func (e *execution) queue(turn <-chan struct{}, c *Cmd) {
	select {
	case <-turn:
		e.mu.Lock()
		if e.state == Queued {
			e.state = Running
		}
		e.mu.Unlock()
		if err := e.launch(context.Background(), c); err != nil {
			c.mu.Lock()
			c.closePipes()
			c.mu.Unlock()
		}
	case <-e.forced:
		e.sb.rt.gate.quit(turn)
		c.mu.Lock()
		c.closePipes()
		c.mu.Unlock()
		e.end(Exit{Code: -1, Report: e.sb.inst.Report()}, nil, false)
	}
}

// launch makes the pipes, starts the program and everything that waits for it.
// When it fails, the execution has ended.
func (e *execution) launch(ctx context.Context, c *Cmd) error {
	e.admitted = time.Now()
	err := e.sb.startBegins()
	if err == nil {
		err = e.spawn(ctx, c)
		e.sb.startEnds()
	}
	if err != nil {
		e.end(Exit{Code: -1, Report: e.sb.inst.Report()}, asError(CodeInternal, "exec", err), true)
		return e.err
	}
	return nil
}

func (e *execution) spawn(ctx context.Context, c *Cmd) (err error) {
	var std Stdio
	var mine []*os.File // closed when it fails
	defer func() {
		if err != nil {
			for _, f := range append(mine, std.Stdin, std.Stdout, std.Stderr) {
				if f != nil {
					_ = f.Close()
				}
			}
		}
	}()
	var outR, errR, inW *os.File
	if e.proc.TTY {
		master, slave, err := e.sb.inst.(TTYOpener).OpenTTY(c.TTY.Rows, c.TTY.Cols)
		if err != nil {
			return &Error{Code: CodeUnavailable, Op: "exec: open terminal", Message: err.Error(), Recoverable: true, Err: err}
		}
		mine = append(mine, master)
		outR = master
		std.Stdin, std.Stdout, std.Stderr = slave, slave, slave
	} else {
		if outR, std.Stdout, err = outPipe(); err != nil {
			return errPipe(err)
		}
		mine = append(mine, outR)
		if errR, std.Stderr, err = outPipe(); err != nil {
			return errPipe(err)
		}
		mine = append(mine, errR)
		switch {
		case c.stdinW != nil:
			std.Stdin, inW = c.stdinR, c.stdinW
		case c.Stdin != nil:
			std.Stdin, inW, err = inPipe()
		default:
			std.Stdin, err = emptyPipe()
		}
		if err != nil {
			return errPipe(err)
		}
		if inW != nil {
			mine = append(mine, inW)
		}
	}
	if e.sb.plan.Persist {
		std.KeepStdin, std.KeepStdout, std.KeepStderr = inW, outR, errR
	}
	std.Extra = c.ExtraFiles
	task, err := e.sb.inst.Start(ctx, &e.proc, std)
	if err != nil {
		return err
	}
	e.sb.tell(Event{Kind: EventExecutionStarted, Execution: e.proc.ID})
	e.run(task, c, outR, errR, inW)
	return nil
}

func errPipe(err error) error {
	return &Error{
		Code: CodeUnavailable, Op: "exec: pipe", Message: err.Error(), Recoverable: true, Err: err,
		Hint: "raise the limit of open files of the supervisor",
	}
}

// run starts the goroutines of a started task.
func (e *execution) run(task Task, c *Cmd, outR, errR, inW *os.File) {
	var streams [2]*stream
	var outSink *sink
	for i, r := range []*os.File{outR, errR} {
		if r == nil {
			continue
		}
		s := newStream(r, &e.quota)
		if c.HoldOutput {
			s.held = make(chan struct{})
		}
		e.spool(i, s)
		w := c.Stdout
		if i == 1 {
			w = c.Stderr
		}
		if w != nil {
			k := newSink(w)
			if i == 0 {
				outSink = k
			} else if outSink != nil && sameWriter(c.Stdout, c.Stderr) {
				k.mu = outSink.mu
			}
			s.sinks = []*sink{k}
		}
		streams[i] = s
	}

	e.mu.Lock()
	e.task, e.streams, e.stdin, e.pipes = task, streams, inW, c.pipes
	if e.proc.TTY {
		e.tty = outR
	}
	reason := e.reason
	e.mu.Unlock()
	close(e.launched)

	for _, s := range streams {
		if s != nil {
			go s.copy()
		}
	}
	switch {
	case e.proc.TTY && c.Stdin != nil:
		go func() {
			_, _ = io.Copy(onlyWriter{outR}, c.Stdin)
			_, _ = outR.Write([]byte{4}) // end of transmission; closing would hang up
		}()
	case c.Stdin != nil && short(c.Stdin):
		_, _ = io.Copy(inW, c.Stdin) // fits into the pipe
		e.closeStdin()
	case c.Stdin != nil:
		go func() {
			_, _ = io.Copy(onlyWriter{inW}, c.Stdin)
			e.closeStdin()
		}()
	}
	if reason != killNone { // it came while the task was being made
		e.signal(context.Background(), task, reason)
	}
	go func() {
		exit, err := task.Wait(context.Background())
		e.end(exit, err, true)
	}()
}

// spool gives a stream of a persistent sandbox its file.
func (e *execution) spool(i int, s *stream) {
	if !e.sb.plan.Persist {
		return
	}
	e.quota.log = func(err error) {
		e.sb.rt.log.Warn("output is kept in memory only from here on", "sandbox", e.sb.ID(), "execution", e.proc.ID, "err", err)
	}
	sp, err := openSpool(spoolName(e.sb.plan.StateDir, e.proc.ID, i+1), e.proc.TTY)
	if err == nil {
		s.spool = sp
		if err = s.restore(); err == nil {
			return
		}
		sp.close()
		s.spool = nil
	}
	e.quota.log(err)
}

// settle makes the end durable, or removes what nobody can ask for, and only then
// lets the backend forget the execution.
func (e *execution) settle(res *Result, task Task, streams [2]*stream, lost [2]int64) {
	if e.sb.plan.Persist {
		if e.sb.State() == SandboxReleased {
			return // it goes on with the successor
		}
		if e.chosenID {
			kept := [2]int64{int64(len(res.Stdout)), int64(len(res.Stderr))}
			if err := appendEnd(e.sb.plan.StateDir, ended{Result: res, Dropped: lost, Kept: kept}); err != nil {
				e.sb.rt.log.Error("the end of an execution is not durable", "sandbox", e.sb.ID(), "execution", e.proc.ID, "err", err)
			}
		}
		for _, s := range streams {
			switch {
			case s == nil || s.spool == nil:
			case e.chosenID:
				s.spool.close()
			default:
				s.spool.remove()
			}
		}
	}
	if t, ok := task.(Settler); ok {
		t.Settle()
	}
}

// onlyWriter hides ReadFrom, which would splice from the caller's file and
// block where closing the pipe cannot reach.
type onlyWriter struct{ io.Writer }

// short reports whether all of r fits into a pipe at once.
func short(r io.Reader) bool {
	const atomic = 4096 // PIPE_BUF, the least that a pipe holds
	switch r := r.(type) {
	case *bytes.Reader:
		return r.Len() <= atomic
	case *bytes.Buffer:
		return r.Len() <= atomic
	case *strings.Reader:
		return r.Len() <= atomic
	}
	return false
}

func sameWriter(a, b io.Writer) bool {
	ta := reflect.TypeOf(a)
	return ta == reflect.TypeOf(b) && ta.Comparable() && a == b
}

func (e *execution) closeStdin() {
	e.mu.Lock()
	f := e.stdin
	e.stdin = nil
	e.mu.Unlock()
	if f != nil {
		_ = f.Close()
	}
}

// stop ends the execution for a reason; the first reason stays.
func (e *execution) stop(ctx context.Context, why killReason) {
	e.mu.Lock()
	if e.reason != killNone || e.result != nil {
		harder := e.reason == killCancel && why == killDestroyed && e.result == nil
		t := e.task
		e.mu.Unlock()
		if harder && t != nil {
			_ = t.Kill(context.WithoutCancel(ctx)) // the grace second ends early
		}
		return
	}
	e.reason, e.killedAt = why, time.Now()
	t := e.task
	e.mu.Unlock()
	if why != killOutput {
		close(e.forced)
	}
	if t != nil {
		e.signal(context.WithoutCancel(ctx), t, why)
	}
}

// signal carries a reason to the task.
func (e *execution) signal(ctx context.Context, t Task, why killReason) {
	if why != killCancel {
		e.kill(ctx, t)
		return
	}
	if err := t.SignalTree(ctx, syscall.SIGTERM); err != nil {
		e.kill(ctx, t)
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.result == nil {
		e.grace = time.AfterFunc(cancelGrace, func() { e.kill(context.Background(), t) })
	}
}

func (e *execution) kill(ctx context.Context, t Task) {
	if err := t.Kill(ctx); err != nil && !e.ended() {
		e.sb.rt.log.Error("kill", "sandbox", e.sb.ID(), "execution", e.proc.ID, "err", err)
	}
}

// end collects the output and makes the result: the one transition to a terminal
// state. The tree is gone. err is a failure of the machinery.
func (e *execution) end(exit Exit, err error, admitted bool) {
	e.closeStdin()
	e.mu.Lock()
	streams, pipes, grace := e.streams, e.pipes, e.grace
	e.mu.Unlock()
	if grace != nil {
		grace.Stop()
	}
	for _, p := range pipes {
		p.release()
	}
	reaped := time.Now()
	var lost [2]int64
	res := &Result{ID: e.proc.ID, Backend: e.sb.backend.Name(), SpecVersion: SpecVersion}
	if streams[0] != nil || streams[1] != nil {
		limit := e.patience(exit)
		for i, s := range streams {
			if s == nil {
				continue
			}
			b, dropped := s.finish(limit, e.forced)
			res.DroppedBytes += dropped
			lost[i] = dropped - s.above()
			if i == 0 {
				res.Stdout = b
			} else {
				res.Stderr = b
			}
		}
		res.Truncated = res.DroppedBytes > 0
	}
	for _, p := range pipes {
		p.end()
	}

	e.mu.Lock()
	if e.reason != killNone && !exit.ExitedAt.IsZero() && exit.ExitedAt.Before(e.killedAt) {
		e.reason = killNone // it had ended by itself before
	}
	if e.reason == killNone && e.quota.exceeded() {
		e.reason = killOutput // a breach is one, also by a program that ended right after
	}
	e.judge(res, exit, err)
	e.stamp(res, exit, reaped)
	e.state, e.result, e.tty, e.dropped = res.State, res, nil, lost
	if res.Cause == CauseInfra {
		e.err = res.Error
	}
	task := e.task
	e.mu.Unlock()
	e.settle(res, task, streams, lost)
	if admitted {
		e.sb.rt.gate.leave()
	}
	e.sb.tell(Event{Kind: EventExecutionEnded, Execution: e.proc.ID, State: res.State, Cause: res.Cause})
	close(e.done)
	e.sb.retire(e)
}

// patience is how long the result waits for a writer that blocks; 0: no bound.
func (e *execution) patience(exit Exit) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.waitDelay == 0 && (e.reason != killNone || exit.TimedOut || exit.OOM || exit.CPUSpent) {
		return writerGrace
	}
	return e.waitDelay
}

// judge fills in how the execution ended; e.mu is held. The order is the
// precedence: who killed first, then what the kernel counted, then the program's
// own end.
func (e *execution) judge(res *Result, exit Exit, err error) {
	l := e.proc.Limits
	res.ExitCode = -1
	limit := func(cause Cause, code Code, message, limit string) {
		res.State, res.Cause = Failed, cause
		res.Error = &Error{Code: code, Op: "exec", Message: message, Limit: limit, Recoverable: true}
	}
	failed := exit.Code != 0 || exit.Signal != 0
	switch {
	case exit.ExecErr != nil:
		res.State, res.Cause, res.Error = Failed, CauseInfra, exit.ExecErr
	case e.reason == killCancel || e.reason == killDestroyed && err == nil:
		res.State, res.Cause = Cancelled, CauseCancelled
		res.Error = &Error{Code: CodeCancelled, Op: "exec", Message: "cancelled", Recoverable: true}
		if e.reason == killDestroyed {
			res.Error = &Error{Code: CodeDestroyed, Op: "exec", Message: "the sandbox was destroyed"}
		}
	case errors.Is(err, ErrCancelled):
		res.State, res.Cause, res.Error = Cancelled, CauseCancelled, asError(CodeCancelled, "exec", err)
		e.err = res.Error
	case err != nil:
		res.State, res.Cause, res.Error = Failed, CauseInfra, asError(CodeInternal, "exec", err)
	case e.reason == killOutput:
		limit(CauseOutput, CodeOutput, "output limit exceeded", fmt.Sprintf("%d B", l.Output))
		res.Error.Observed = fmt.Sprintf("%d B", e.quota.used.Load())
	case exit.TimedOut:
		limit(CauseTimeout, CodeTimeout, "wall clock exceeded", e.proc.Timeout.String())
		res.State = TimedOut
	case exit.CPUSpent:
		limit(CauseCPU, CodeCPU, "CPU budget exceeded", l.CPUTime.String())
		if ms := exit.Usage.CPUTimeMs; ms != nil {
			res.Error.Observed = fmt.Sprintf("%.0fms", *ms)
		}
	case exit.OOM:
		limit(CauseMemory, CodeOOM, "memory limit exceeded", fmt.Sprintf("%d B", l.Memory))
		if b := exit.Usage.PeakMemoryBytes; b != nil {
			res.Error.Observed = fmt.Sprintf("%d B", *b)
		}
	case failed && exit.PidsHit:
		limit(CausePids, CodePids, "process limit hit", fmt.Sprint(l.Pids))
	case failed && exit.DiskFull:
		limit(CauseDisk, CodeDisk, "disk limit hit", fmt.Sprintf("%d B, %d inodes", l.Disk, l.Inodes))
	case exit.Signal == sigSys:
		res.State, res.Cause, res.ExitCode, res.Signal = Failed, CausePolicy, 128+int(exit.Signal), signalName(exit.Signal)
		res.Error = &Error{Code: CodePolicyDenied, Op: "exec", Message: "killed by SIGSYS: presumably a refused system call", Recoverable: true}
	case exit.Signal != 0:
		res.State, res.Cause, res.ExitCode, res.Signal = Failed, CauseSignal, 128+int(exit.Signal), signalName(exit.Signal)
	default:
		res.State, res.Cause, res.ExitCode = Completed, CauseExit, exit.Code
		if exit.Code != 0 {
			res.State = Failed
		}
	}
	if exit.Unkillable > 0 {
		msg := fmt.Sprintf("%d processes of the tree cannot be killed (state D)", exit.Unkillable)
		if res.Error == nil {
			res.Error = &Error{Code: CodeInternal, Op: "exec", Message: msg}
		} else {
			c := *res.Error
			c.Message += "; " + msg
			res.Error = &c
		}
	}
}

// stamp fills in times, usage and report; e.mu is held.
func (e *execution) stamp(res *Result, exit Exit, reaped time.Time) {
	now := time.Now()
	res.StartedAt = exit.StartedAt
	if res.StartedAt.IsZero() {
		res.StartedAt = e.requested
	}
	res.FinishedAt = now
	res.DurationMs = float64(now.Sub(res.StartedAt)) / float64(time.Millisecond)
	res.Usage, res.Confinement = exit.Usage, exit.Report
	us := func(from, to time.Time) int64 {
		if from.IsZero() || to.IsZero() {
			return 0
		}
		return max(0, to.Sub(from).Microseconds())
	}
	res.Timings = Timings{
		QueueUs: us(e.requested, cmp.Or(e.admitted, now)),
		SpawnUs: us(e.admitted, exit.StartedAt),
		RunUs:   us(exit.StartedAt, exit.ExitedAt),
		ReapUs:  us(exit.ExitedAt, exit.ReapedAt),
		DrainUs: us(reaped, now),
	}
}

// environ returns the environment that overlays the fixed part, sorted.
func environ(overlay map[string]string) []string {
	all := maps.Clone(baseEnv)
	maps.Copy(all, overlay)
	env := make([]string, 0, len(all))
	for _, k := range slices.Sorted(maps.Keys(all)) {
		env = append(env, k+"="+all[k])
	}
	return env
}
