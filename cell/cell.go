package cell

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"belljar"
)

// Language is what an interpreter speaks.
type Language string

// Languages. Each has a host file in this package, and needs its interpreter inside
// the sandbox.
const (
	Python     Language = "python"     // 3.8 and later
	JavaScript Language = "javascript" // Node 18 and later
	Shell      Language = "shell"      // bash
)

// Engine says how a cell gets its interpreter.
type Engine string

// Engines.
const (
	Process Engine = "process" // a fresh interpreter, an execution of its own
	Zygote  Engine = "zygote"  // forked from a preloaded interpreter of the sandbox; Python only
)

// Causes of errors, for errors.Is. They come inside a [*belljar.Error] with a code.
var (
	ErrWorkerDied = errors.New("the worker of the cell died")
	ErrExited     = errors.New("the interpreter of the cell has ended")
	ErrClosed     = errors.New("the cell is closed")
)

// Spec describes a cell.
type Spec struct {
	// Language defaults to Python.
	Language Language
	// Engine defaults to Zygote where that can be had (Python, control groups, Landlock
	// with scopes), else Process. [Cell.Engine] tells.
	Engine Engine
	// Program is the interpreter inside the sandbox; default python3, node or bash.
	Program string
	// Preload names modules that a zygote loads before it forks.
	Preload []string
	// Private parts the files of the cell from those of other cells of the sandbox: it can
	// write only below a directory of its own, which goes with it. Needs Zygote or Python.
	Private bool

	// Env overlays the environment.
	Env map[string]string
	// Dir is the working directory; default that of the sandbox, or the private one.
	Dir string
	// Imports, when not nil, are the packages that code may import. It tells honest code
	// early what is not meant to be used; it keeps nobody from anything. Python only.
	Imports []string
	// Limits of the cell and of each operation.
	Limits Limits

	// Grants are the capabilities that request may name, with their actions. What is not
	// among them is refused here, whatever the guest claims, and Request never hears of it.
	Grants map[string][]string
	// Request answers what was granted. It may be called by several goroutines at once;
	// ctx ends with the cell. A [*Refusal] is told to the guest; of any other
	// error it learns nothing but that there was one.
	Request func(ctx context.Context, r Request) (any, error)
	// Log and Metric get what the guest says. The guest waits meanwhile.
	Log    func(Record)
	Metric func(Measure)
}

// Limits bound a cell. Zero: no limit, unless a default is named.
type Limits struct {
	Memory belljar.Size // of all its processes; exceeding it ends the cell
	Pids   int64        // processes and threads
	CPU    float64      // cores, a rate

	Timeout time.Duration // wall clock of an operation; exceeding it ends the cell
	CPUTime time.Duration // CPU budget of an operation, of the whole tree; the same
	Output  belljar.Size  // of an operation, both streams; the same
	Retain  belljar.Size  // how much of the end of each stream is in the result; default 1 MiB
	Frame   int           // bytes of JSON in one frame; default 1 MiB, 1 KiB to 16 MiB
}

// Request is what a guest asks for.
type Request struct {
	Cell       string
	Capability string
	Action     string
	Payload    json.RawMessage // the guest's: anything
}

// Refusal is an answer of a [Spec.Request] whose reason the guest may read.
type Refusal struct{ Reason string }

// Error returns the reason.
func (r *Refusal) Error() string { return r.Reason }

// Record is a line that a guest logged.
type Record struct {
	Cell    string
	Level   string // debug, info, warning, error
	Message string
	Fields  json.RawMessage // an object, or nil
}

// Measure is a number that a guest measured.
type Measure struct {
	Cell  string
	Name  string
	Value float64
	Tags  map[string]string
}

// Exec is some source to run in a cell.
type Exec struct {
	Source string
	// Context names the set of variables; empty: the first. Contexts are made by use.
	Context string
	// Stdout and Stderr get the output live; the guest waits for them.
	Stdout, Stderr io.Writer
	// Display gets what the code shows while it runs.
	Display func(Bundle)
	// Timeout and CPUTime, when set, lower those of the cell.
	Timeout, CPUTime time.Duration
}

// Bundle is one value in several representations, by media type: JSON strings for
// text, base64 for images, JSON for the rest.
type Bundle map[string]json.RawMessage

// Text returns a representation that is a string, or "".
func (b Bundle) Text(mime string) string {
	var s string
	if json.Unmarshal(b[mime], &s) != nil {
		return ""
	}
	return s
}

// Exception is what user code raised. A guest wrote it: it is data.
type Exception struct {
	Name      string   `json:"name"`
	Message   string   `json:"message,omitempty"`
	Traceback []string `json:"traceback,omitempty"` // cut to user code
}

// Error returns "Name: Message".
func (e *Exception) Error() string { return strings.TrimSuffix(e.Name+": "+e.Message, ": ") }

// Result is what came of an operation.
type Result struct {
	// Data shows the value of the last expression; nil when there is none.
	Data Bundle `json:"data,omitempty"`
	// Value is that value where it is JSON.
	Value    json.RawMessage `json:"value,omitempty"`
	Displays []Bundle        `json:"displays,omitempty"`
	// Stdout and Stderr are the last [Limits.Retain] bytes.
	Stdout       []byte `json:"stdout,omitempty"`
	Stderr       []byte `json:"stderr,omitempty"`
	DroppedBytes int64  `json:"droppedBytes,omitempty"`
	// Exception is set when the code raised; the cell goes on.
	Exception  *Exception `json:"exception,omitempty"`
	DurationMs float64    `json:"durationMs"`
	// CPUTimeMs is counted by the kernel, when there is a budget; nil: not measured.
	CPUTimeMs *float64 `json:"cpuTimeMs,omitempty"`
}

// Cell is a stateful interpreter in a sandbox. It does one operation at a time;
// further ones wait. It is safe for concurrent use.
type Cell struct {
	id     string
	spec   Spec
	engine Engine
	worker *Worker
	owned  bool          // the worker ends with the cell
	turn   chan struct{} // holds a token while an operation runs

	done chan struct{}
	once sync.Once // closes done

	mu       sync.Mutex
	s        *session // the present interpreter
	closing  bool
	contexts map[string]bool
}

// Open makes a cell in a sandbox. The interpreter, and with it everything of the cell, ends with
// Close or with the sandbox. Many cells that are alike come cheaper from a [Worker].
func Open(ctx context.Context, sb *belljar.Sandbox, spec Spec) (*Cell, error) {
	w, err := NewWorker(ctx, sb, spec, 0)
	if err != nil {
		return nil, err
	}
	c, err := w.Open(ctx, spec)
	if err != nil {
		_ = w.Close(context.WithoutCancel(ctx)) // err says more
		return nil, err
	}
	c.owned = true
	return c, nil
}

// ID returns the id that the supervisor gave.
func (c *Cell) ID() string { return c.id }

// Engine returns how the interpreter was made.
func (c *Cell) Engine() Engine { return c.engine }

// Language returns what the interpreter speaks.
func (c *Cell) Language() Language { return c.spec.Language }

// Done is closed when the cell has ended, by Close or otherwise.
func (c *Cell) Done() <-chan struct{} { return c.done }

// Err returns why the cell ended; nil while it lives.
func (c *Cell) Err() error { return c.session().cause() }

// Contexts returns the names of the contexts that were used.
func (c *Cell) Contexts() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.contexts))
}

func errClosed(op string) error {
	return &belljar.Error{Code: belljar.CodeDestroyed, Op: op, Message: ErrClosed.Error(), Err: ErrClosed}
}

func (c *Cell) session() *session {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.s
}

// Exec runs source and returns its result. What the code raises is in the result; an
// error says that the operation did not come to its end, and a result beside it holds
// what was seen of it. When ctx ends first the code is interrupted, and the cell
// killed if it does not heed that within half a second.
func (c *Cell) Exec(ctx context.Context, source string) (*Result, error) {
	return c.Run(ctx, Exec{Source: source})
}

// Run is Exec with everything that can be chosen.
func (c *Cell) Run(ctx context.Context, e Exec) (*Result, error) {
	op := &operation{name: "exec", stdout: e.Stdout, stderr: e.Stderr, display: e.Display, timeout: e.Timeout, cpuTime: e.CPUTime}
	return c.do(ctx, op, e.Context, func(id uint64) any {
		return execFrame{T: "exec", ID: id, Context: e.Context, Source: e.Source}
	})
}

// Call calls what a dotted name stands for in the first context, with values that are
// JSON, and returns its value. What it raises is an [*Exception].
func (c *Cell) Call(ctx context.Context, target string, args []any, kwargs map[string]any) (json.RawMessage, error) {
	f := callFrame{T: "call", Target: target, Args: []json.RawMessage{}, Kwargs: map[string]json.RawMessage{}}
	for _, a := range args {
		raw, err := value("call", a)
		if err != nil {
			return nil, err
		}
		f.Args = append(f.Args, raw)
	}
	for k, a := range kwargs {
		raw, err := value("call", a)
		if err != nil {
			return nil, err
		}
		f.Kwargs[k] = raw
	}
	res, err := c.do(ctx, &operation{name: "call"}, "", func(id uint64) any {
		f.ID = id
		return f
	})
	if err != nil {
		return nil, err
	}
	if res.Exception != nil {
		return nil, res.Exception
	}
	return res.Value, nil
}

// value encodes a value of the caller's, as strictly as a guest's is read.
func value(op string, v any) (json.RawMessage, error) {
	raw, err := json.Marshal(v)
	switch v.(type) {
	case nil, bool, int, float64, string:
		// Whatever their values are, their JSON is in order.
	default:
		if err == nil {
			err = checkValue(raw)
		}
	}
	if err != nil {
		return nil, &belljar.Error{Code: belljar.CodeInvalidSpec, Op: "cell " + op, Message: err.Error(), Err: err, Recoverable: true, Hint: "values are JSON"}
	}
	return raw, nil
}

func (c *Cell) do(ctx context.Context, op *operation, context string, frame func(uint64) any) (*Result, error) {
	leave, err := c.enter(ctx, op.name)
	if err != nil {
		return nil, err
	}
	defer leave()
	c.mu.Lock()
	s := c.s
	c.contexts[context] = true
	c.mu.Unlock()
	return s.do(ctx, op, frame)
}

// enter waits for the turn of an operation.
func (c *Cell) enter(ctx context.Context, name string) (leave func(), err error) {
	select {
	case c.turn <- struct{}{}:
		return func() { <-c.turn }, nil
	default:
	}
	select {
	case c.turn <- struct{}{}:
		return func() { <-c.turn }, nil
	case <-ctx.Done():
		return nil, &belljar.Error{Code: belljar.CodeCancelled, Op: "cell " + name, Message: ctx.Err().Error(), Err: ctx.Err(), Recoverable: true}
	}
}

// Post sends a message, which the guest gets by recv. It waits while the guest does
// not read; a message that was cut by the end of ctx ends the cell.
func (c *Cell) Post(ctx context.Context, message any) error {
	raw, err := value("post", message)
	if err != nil {
		return err
	}
	return c.session().send(ctx, "post", postFrame{T: "post", Value: raw})
}

// Recv returns the next message that the guest posted.
func (c *Cell) Recv(ctx context.Context) (json.RawMessage, error) {
	return c.session().recv(ctx)
}

// Interrupt asks the running operation to end, as Ctrl-C does at a terminal. It does
// nothing when none runs, and nobody has to heed it.
func (c *Cell) Interrupt(ctx context.Context) error {
	return c.session().interrupt()
}

// Reset gives the cell a new interpreter: nothing of the old one is left, neither
// variables nor processes. The running operation ends with an error. Messages that
// were not received are gone. A cell that has ended stays so.
func (c *Cell) Reset(ctx context.Context) error {
	c.mu.Lock()
	old := c.s
	old.replaced.Store(true)
	c.mu.Unlock()
	if !old.fail(&belljar.Error{Code: belljar.CodeCancelled, Op: "cell", Message: "the cell was reset", Recoverable: true}) {
		old.replaced.Store(false)
		return old.cause()
	}
	leave, err := c.enter(ctx, "reset")
	if err != nil {
		c.finish()
		return err
	}
	defer leave()
	<-old.gone
	s, err := c.begin(ctx)
	if err != nil {
		c.finish()
		return err
	}
	c.mu.Lock()
	c.contexts = map[string]bool{}
	closed := c.closing
	c.mu.Unlock()
	if closed {
		s.fail(errClosed("cell reset"))
	}
	return nil
}

// begin takes an interpreter and makes it this cell's.
func (c *Cell) begin(ctx context.Context) (*session, error) {
	w := c.worker
	if err := w.enter(); err != nil {
		return nil, err
	}
	defer w.busy.Done()
	g, err := w.take(ctx)
	if err != nil {
		return nil, err
	}
	s := newSession(c, g)
	c.mu.Lock()
	c.s = s
	c.mu.Unlock()
	w.mu.Lock()
	over := w.usable()
	w.mu.Unlock()
	if over != nil {
		s.fail(over) // whoever ended the worker may not have seen this session
	}
	go func() {
		<-s.gone
		if !s.replaced.Load() {
			c.finish()
		}
	}()
	if err := s.open(ctx); err != nil {
		s.fail(err)
		<-s.gone
		return nil, err
	}
	return s, nil
}

// finish notes that the cell has ended.
func (c *Cell) finish() { c.once.Do(func() { c.worker.forget(c); close(c.done) }) }

// Close ends the cell and everything in it, and returns when that is so. Idempotent.
func (c *Cell) Close(ctx context.Context) error {
	c.mu.Lock()
	s := c.s
	c.closing = true
	c.mu.Unlock()
	s.fail(errClosed("cell"))
	select {
	case <-s.gone:
	case <-ctx.Done():
		return &belljar.Error{Code: belljar.CodeCancelled, Op: "cell close", Message: ctx.Err().Error(), Err: ctx.Err(), Recoverable: true}
	}
	c.finish()
	if c.owned {
		return errors.Join(s.endErr, c.worker.Close(ctx))
	}
	return s.endErr
}

// check fills in defaults and refuses what cannot be.
func (s *Spec) check() error {
	bad := func(field, format string, args ...any) error {
		return &belljar.Error{Code: belljar.CodeInvalidSpec, Op: "cell spec " + field, Message: fmt.Sprintf(format, args...), Recoverable: true}
	}
	if s.Language == "" {
		s.Language = Python
	}
	def, ok := map[Language]string{Python: "python3", JavaScript: "node", Shell: "bash"}[s.Language]
	if !ok {
		return bad("language", "%q is not python, javascript or shell", s.Language)
	}
	if s.Program == "" {
		s.Program = def
	}
	if s.Engine != "" && s.Engine != Process && s.Engine != Zygote {
		return bad("engine", "%q is not process or zygote", s.Engine)
	}
	if s.Language != Python {
		switch {
		case s.Engine == Zygote:
			return bad("engine", "only Python has a zygote")
		case s.Private:
			return bad("private", "only Python can part itself from its siblings; give each cell a sandbox")
		case s.Imports != nil:
			return bad("imports", "only Python has a list of imports")
		}
	}
	if len(s.Preload) > 0 && (s.Language != Python || s.Engine == Process) {
		return bad("preload", "only a zygote loads modules ahead")
	}
	for i, m := range s.Preload {
		if !moduleName(m) {
			return bad(fmt.Sprintf("preload[%d]", i), "%q is no module name", m)
		}
	}
	for i, m := range s.Imports {
		if !moduleName(m) || strings.Contains(m, ".") {
			return bad(fmt.Sprintf("imports[%d]", i), "%q is no top-level module", m)
		}
	}
	l := &s.Limits
	if l.Memory < 0 || l.Pids < 0 || l.CPU < 0 || l.Timeout < 0 || l.CPUTime < 0 || l.Output < 0 || l.Retain < 0 || l.Frame < 0 {
		return bad("limits", "negative")
	}
	if l.Frame == 0 {
		l.Frame = DefaultFrame
	}
	if l.Frame < 1024 || l.Frame > maxFrame {
		return bad("limits.frame", "%d is not between 1024 and %d", l.Frame, maxFrame)
	}
	if l.Retain == 0 {
		l.Retain = belljar.MiB
	}
	for k := range s.Env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.Contains(s.Env[k], "\x00") {
			return bad("env", "%q is no variable", k)
		}
	}
	return nil
}

// moduleName reports whether s is a dotted Python name, as far as a list of modules
// has to be careful.
func moduleName(s string) bool {
	for part := range strings.SplitSeq(s, ".") {
		if part == "" || part[0] >= '0' && part[0] <= '9' {
			return false
		}
		for _, r := range part {
			if r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') {
				return false
			}
		}
	}
	return true
}
