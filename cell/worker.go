package cell

import (
	"bytes"
	"context"
	"crypto/rand"
	_ "embed" // the hosts
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"belljar"
)

//go:embed host/python.py
var pythonHost string

//go:embed host/node.js
var nodeHost string

//go:embed host/bash.sh
var bashHost string

// Schema is the JSON Schema of the frames of ABI version 1.
//
//go:embed abi/v1.schema.json
var Schema []byte

const (
	startTimeout = 60 * time.Second // modules may be large
	forkTimeout  = 10 * time.Second
	tellMost     = 4096 // bytes of stderr of an interpreter that did not start
)

// pythonLoader runs the host with builtins of its own, which user code cannot replace.
const pythonLoader = `import sys,builtins,json;exec(compile(sys.argv[1],"<belljar>","exec"),{"__builtins__":dict(vars(builtins)),"__name__":"belljar","MODE":sys.argv[2],"CONFIG":json.loads(sys.argv[3])})`

// Worker makes cells of one kind in one sandbox, and keeps some interpreters ready.
// It is safe for concurrent use.
type Worker struct {
	sb     *belljar.Sandbox
	spec   Spec
	engine Engine
	hide   []string // writable places of the sandbox
	read   []string // mounts

	zygote  *belljar.Cmd
	ctl     *os.File
	sending sync.Mutex // a packet and its turn

	dead chan struct{} // closed when cause is set
	next atomic.Uint64
	room chan struct{} // has a token when the spares may be too few

	mu     sync.Mutex
	cause  error
	wanted int
	spares []*guest
	forks  map[uint64]chan error // of forks under way
	cells  map[*Cell]struct{}
	closed bool
	busy   sync.WaitGroup // guests being made
}

// NewWorker prepares a sandbox for cells of a spec, of which Language, Engine, Program,
// Preload, Private, and of the limits Memory, Pids and CPU matter here. So many spare
// interpreters are kept ready. The sandbox stays the caller's.
func NewWorker(ctx context.Context, sb *belljar.Sandbox, spec Spec, spares int) (*Worker, error) {
	if err := spec.check(); err != nil {
		return nil, err
	}
	w := &Worker{
		sb: sb, spec: spec, engine: spec.Engine, wanted: spares,
		dead: make(chan struct{}), room: make(chan struct{}, 1), forks: map[uint64]chan error{}, cells: map[*Cell]struct{}{},
	}
	if w.engine == "" {
		w.engine = Process
		if spec.Language == Python && w.canFork() == nil {
			w.engine = Zygote
		}
	}
	if err := w.refuse(); err != nil {
		return nil, err
	}
	w.places()
	if w.engine == Zygote {
		if err := w.startZygote(ctx); err != nil {
			return nil, err
		}
	}
	go func() {
		select {
		case <-sb.Done():
			w.die(errors.New("the sandbox was destroyed"))
		case <-w.dead:
		}
	}()
	if spares > 0 {
		w.room <- struct{}{}
		go w.fill()
	}
	return w, nil
}

// canFork says why cells cannot be forked from a zygote here.
func (w *Worker) canFork() error {
	switch {
	case w.sb.Report().Layer(belljar.LayerCgroup).Status != belljar.LayerApplied:
		return errors.New("a forked cell is ended by its control group, which this sandbox does not have")
	case !scoped():
		return errors.New("a forked cell is parted from its siblings by Landlock with scopes, which needs Linux 6.12")
	}
	return nil
}

// refuse refuses what would have to be left out.
func (w *Worker) refuse() error {
	unsupported := func(field, message string) error {
		return &belljar.Error{Code: belljar.CodeUnsupported, Op: "cell spec " + field, Message: message, Recoverable: true, Hint: "engine: process, in a sandbox of its own"}
	}
	if w.engine == Zygote {
		if err := w.canFork(); err != nil {
			return unsupported("engine", err.Error())
		}
		return nil
	}
	if len(w.spec.Preload) > 0 {
		return unsupported("preload", "only a zygote loads modules ahead: "+errors.Join(w.canFork()).Error())
	}
	if w.spec.Private && !scoped() {
		return unsupported("private", "cells are parted by Landlock with scopes, which needs Linux 6.12")
	}
	return nil
}

// places lists what a private cell may not see, and what it may.
func (w *Worker) places() {
	spec := w.sb.Spec()
	w.hide = []string{spec.WorkDir, "/home/user", "/dev/shm", "/var/tmp", "/tmp"}
	for _, m := range spec.Mounts {
		if m.ReadOnly != nil && !*m.ReadOnly {
			w.hide = append(w.hide, m.Target)
		} else {
			w.read = append(w.read, m.Target)
		}
	}
}

// Engine returns how interpreters are made.
func (w *Worker) Engine() Engine { return w.engine }

// Done is closed when the worker has ended.
func (w *Worker) Done() <-chan struct{} { return w.dead }

// Open makes a cell. What NewWorker took from the spec must be the same or left empty.
func (w *Worker) Open(ctx context.Context, spec Spec) (*Cell, error) {
	if err := w.adapt(&spec); err != nil {
		return nil, err
	}
	c := &Cell{
		id: "ce-" + strings.ToLower(rand.Text()[:20]), spec: spec, engine: w.engine, worker: w,
		turn: make(chan struct{}, 1), done: make(chan struct{}), contexts: map[string]bool{},
	}
	w.mu.Lock()
	err := w.usable()
	if err == nil {
		w.cells[c] = struct{}{}
	}
	w.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if _, err := c.begin(ctx); err != nil {
		c.finish()
		return nil, err
	}
	return c, nil
}

// adapt completes a cell's spec by the worker's.
func (w *Worker) adapt(s *Spec) error {
	have := w.spec
	if s.Language == "" {
		s.Language = have.Language
	}
	if s.Engine == "" {
		s.Engine = w.engine
	}
	if s.Program == "" {
		s.Program = have.Program
	}
	if s.Preload == nil {
		s.Preload = have.Preload
	}
	s.Private = s.Private || have.Private
	l, h := &s.Limits, &have.Limits
	if l.Memory == 0 {
		l.Memory = h.Memory
	}
	if l.Pids == 0 {
		l.Pids = h.Pids
	}
	if l.CPU == 0 {
		l.CPU = h.CPU
	}
	if err := s.check(); err != nil {
		return err
	}
	if s.Language != have.Language || s.Engine != w.engine || s.Program != have.Program || !slices.Equal(s.Preload, have.Preload) ||
		s.Private != have.Private || l.Memory != h.Memory || l.Pids != h.Pids || l.CPU != h.CPU {
		return &belljar.Error{Code: belljar.CodeConflict, Op: "cell open", Message: "the worker makes cells of another kind", Recoverable: true, Hint: "leave empty what the worker decides"}
	}
	return nil
}

func (w *Worker) forget(c *Cell) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.cells, c)
}

// Cells returns how many cells the worker has, and how many spare interpreters.
func (w *Worker) Cells() (cells, spares int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.cells), len(w.spares)
}

// usable returns why no cell can be made; w.mu is held.
func (w *Worker) usable() error {
	switch {
	case w.cause != nil:
		return w.cause
	case w.closed:
		return &belljar.Error{Code: belljar.CodeDestroyed, Op: "cell open", Message: "the worker is closed"}
	}
	return nil
}

// die ends the worker and all its cells.
func (w *Worker) die(why error) {
	err := &belljar.Error{Code: belljar.CodeUnavailable, Op: "cell", Message: ErrWorkerDied.Error() + ": " + why.Error(), Err: ErrWorkerDied, Hint: "open the cell again"}
	w.mu.Lock()
	if w.cause != nil {
		w.mu.Unlock()
		return
	}
	w.cause = err
	spares := w.spares
	w.spares = nil
	var cells []*Cell
	for c := range w.cells {
		cells = append(cells, c)
	}
	w.mu.Unlock()
	close(w.dead)
	for _, c := range cells {
		if s := c.session(); s != nil {
			s.fail(err)
		}
	}
	for _, g := range spares {
		g.discard()
	}
}

// awaitDeath returns the worker's cause when it has died, or does so within a moment.
func (w *Worker) awaitDeath(d time.Duration) error {
	select {
	case <-w.dead:
	case <-time.After(d):
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cause
}

// Close ends all cells and what else the worker made, and leaves the sandbox. Idempotent.
func (w *Worker) Close(ctx context.Context) error {
	w.mu.Lock()
	w.closed = true
	spares := w.spares
	w.spares = nil
	var cells []*Cell
	for c := range w.cells {
		cells = append(cells, c)
	}
	w.mu.Unlock()
	w.wake()
	var errs []error
	for _, c := range cells {
		c.mu.Lock()
		c.closing = true
		s := c.s
		c.mu.Unlock()
		if s != nil {
			s.fail(errClosed("cell"))
			<-s.gone
			errs = append(errs, s.endErr)
		}
	}
	for _, g := range spares {
		errs = append(errs, g.discard())
	}
	w.busy.Wait()
	if w.zygote != nil {
		_ = w.zygote.Signal(ctx, syscall.SIGKILL) // an error means that it has ended
		select {
		case <-w.zygote.Done():
		case <-ctx.Done():
			errs = append(errs, ctx.Err())
		}
	}
	w.die(errors.New("it was closed"))
	return errors.Join(errs...)
}

func (w *Worker) wake() {
	select {
	case w.room <- struct{}{}:
	default:
	}
}

// fill keeps spare interpreters ready. Making several in a row is cheaper than one
// now and then: the kernel is slow to move the first process after a pause.
func (w *Worker) fill() {
	for {
		select {
		case <-w.room:
		case <-w.dead:
			return
		}
		for w.addSpare() {
		}
		w.mu.Lock()
		over := w.closed
		w.mu.Unlock()
		if over {
			return
		}
	}
}

// addSpare makes a spare if there are too few, and reports whether it did.
func (w *Worker) addSpare() bool {
	if w.enter() != nil {
		return false
	}
	defer w.busy.Done()
	w.mu.Lock()
	enough := len(w.spares) >= w.wanted
	w.mu.Unlock()
	if enough {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	g, err := w.make(ctx)
	if err != nil {
		return false // whoever asks for a cell makes one, and gets the error
	}
	w.mu.Lock()
	over := w.usable() != nil
	if !over {
		w.spares = append(w.spares, g)
	}
	w.mu.Unlock()
	if over {
		_ = g.discard() // the worker's end says what is left
	}
	return !over
}

// take returns an interpreter that no user code has run in.
func (w *Worker) take(ctx context.Context) (*guest, error) {
	for {
		w.mu.Lock()
		if err := w.usable(); err != nil {
			w.mu.Unlock()
			return nil, err
		}
		var g *guest
		if n := len(w.spares); n > 0 {
			g = w.spares[0]
			w.spares = w.spares[1:]
		}
		w.mu.Unlock()
		if w.wanted > 0 {
			w.wake()
		}
		if g == nil {
			return w.make(ctx)
		}
		if !g.exited(0) {
			return g, nil
		}
		_ = g.discard() // killed from outside; the next one
	}
}

// enter begins something that Close waits for.
func (w *Worker) enter() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	err := w.usable()
	if err == nil {
		w.busy.Add(1)
	}
	return err
}

// make starts an interpreter and gets hold of it.
func (w *Worker) make(ctx context.Context) (_ *guest, err error) {
	if err := w.enter(); err != nil {
		return nil, err
	}
	defer w.busy.Done()
	g := &guest{worker: w, n: w.next.Add(1)}
	defer func() {
		if err != nil {
			g.kill()
			_ = g.reap() // err says more
			g.closeFiles()
		}
	}()
	var theirs [3]*os.File
	defer func() {
		for _, f := range theirs {
			if f != nil {
				_ = f.Close()
			}
		}
	}()
	if g.ctl, theirs[0], err = channelPair(); err == nil {
		if g.out, theirs[1], err = outputPair(); err == nil {
			g.err, theirs[2], err = outputPair()
		}
	}
	if err != nil {
		return nil, &belljar.Error{Code: belljar.CodeUnavailable, Op: "cell open", Message: err.Error(), Err: err, Recoverable: true, Hint: "raise the limit of open files of the supervisor"}
	}
	if w.spec.Private {
		g.dir = path.Join(w.sb.Spec().WorkDir, fmt.Sprintf(".cell-%d", g.n))
	}
	if w.engine == Zygote {
		err = w.fork(ctx, g, theirs)
	} else {
		err = w.launch(ctx, g, theirs)
	}
	if err != nil {
		return nil, err
	}
	return g, nil
}

// private is what a host is told of its part of the sandbox.
func (w *Worker) private(g *guest) any {
	if g.dir == "" {
		return nil
	}
	return map[string]any{"dir": g.dir, "hide": w.hide, "read": append([]string{}, w.read...)}
}

// pythonArgs is how the Python host is started.
func (w *Worker) pythonArgs(mode string, cfg any) []string {
	raw, err := json.Marshal(cfg)
	if err != nil {
		panic(fmt.Sprintf("cell: encode config: %v", err)) // strings and booleans only
	}
	return []string{w.spec.Program, "-I", "-c", pythonLoader, pythonHost, mode, string(raw)}
}

// launch starts an interpreter as an execution of its own.
func (w *Worker) launch(ctx context.Context, g *guest, theirs [3]*os.File) error {
	var args []string
	switch w.spec.Language {
	case Python:
		args = w.pythonArgs("process", map[string]any{"confine": scoped() && w.spec.Private, "private": w.private(g)})
	case JavaScript:
		// Node cannot put descriptors where it wants them.
		args = []string{"/bin/sh", "-c", `exec "$@" 1>&4 2>&5 4>&- 5>&-`, "sh", w.spec.Program, "-e", nodeHost}
	case Shell:
		args = []string{w.spec.Program, "--noprofile", "--norc", "-c", bashHost}
	}
	cmd := w.sb.Command(args[0], args[1:]...)
	l := w.spec.Limits
	cmd.Limits = belljar.Limits{Memory: l.Memory, Pids: l.Pids, CPU: l.CPU}
	cmd.ExtraFiles = theirs[:]
	if err := cmd.Start(ctx); err != nil {
		return err
	}
	g.cmd = cmd
	for _, f := range theirs {
		_ = f.Close() // the guest's alone, so that its end is seen
	}
	return g.greet(ctx)
}

// fork has the zygote fork an interpreter, which waits until it is held and placed.
func (w *Worker) fork(ctx context.Context, g *guest, theirs [3]*os.File) error {
	ctx, cancel := context.WithTimeout(ctx, forkTimeout)
	defer cancel()
	failed := make(chan error, 1)
	w.mu.Lock()
	w.forks[g.n] = failed
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		delete(w.forks, g.n)
		w.mu.Unlock()
	}()
	raw, err := json.Marshal(map[string]any{"t": "fork", "id": g.n, "private": w.private(g)})
	if err != nil {
		return err
	}
	w.sending.Lock()
	err = sendPacket(w.ctl, raw, theirs[:]...)
	w.sending.Unlock()
	if err != nil {
		if cause := w.awaitDeath(4 * exitGrace); cause != nil {
			return cause
		}
		return &belljar.Error{Code: belljar.CodeInternal, Op: "cell open: fork", Message: err.Error(), Err: err}
	}
	for _, f := range theirs {
		_ = f.Close()
	}
	greeted := make(chan error, 1)
	gctx, giveUp := context.WithCancel(ctx)
	defer giveUp()
	go func() { greeted <- g.greet(gctx) }()
	select {
	case err = <-greeted:
	case err = <-failed:
		giveUp()
		<-greeted
	case <-w.dead:
		giveUp()
		<-greeted
		err = w.awaitDeath(0)
	}
	if err != nil {
		return err
	}
	l := w.spec.Limits
	p, err := w.sb.Place(ctx, g.pidfd, belljar.Limits{Memory: l.Memory, Pids: l.Pids, CPU: l.CPU})
	if err != nil {
		return err
	}
	g.place = p
	hidden, err := concealed(g.pidfd)
	if err == nil && !hidden {
		err = errors.New("the fork can be read by other processes of its user")
	}
	if err != nil {
		return &belljar.Error{Code: belljar.CodeIsolationUnavailable, Op: "cell open: verify", Message: err.Error(), Err: err}
	}
	return nil
}

// startZygote starts the interpreter that cells are forked from.
func (w *Worker) startZygote(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	mine, theirs, err := packetPair()
	if err != nil {
		return err
	}
	args := w.pythonArgs("zygote", map[string]any{"preload": append([]string{}, w.spec.Preload...)})
	cmd := w.sb.Command(args[0], args[1:]...)
	cmd.ExtraFiles = []*os.File{theirs}
	var says tail
	says.most = tellMost
	cmd.Stderr = &says
	// Libraries for numbers start a thread for each processor, and a fork has one.
	for _, k := range []string{"OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"} {
		if _, ok := w.sb.Spec().Env[k]; !ok {
			cmd.Env = append(cmd.Env, k+"=1")
		}
	}
	err = cmd.Start(ctx)
	_ = theirs.Close()
	if err != nil {
		_ = mine.Close()
		return err
	}
	w.zygote, w.ctl = cmd, mine
	stop := context.AfterFunc(ctx, func() { _ = mine.SetReadDeadline(time.Unix(1, 0)) })
	m, err := readPacket(mine, make([]byte, maxPacket))
	stop()
	if err == nil && m.T != "ready" {
		err = errors.New(m.Message)
	}
	if err != nil {
		_ = cmd.Signal(context.WithoutCancel(ctx), syscall.SIGKILL) // an error means that it has ended
		_, werr := cmd.Wait(context.WithoutCancel(ctx))
		_ = mine.Close()
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("the interpreter ended before it was ready: %s", bytes.TrimSpace(says.bytes()))
		}
		if e := (*belljar.Error)(nil); errors.As(werr, &e) {
			return werr
		}
		return &belljar.Error{Code: belljar.CodeExecFailed, Op: "cell zygote", Message: err.Error(), Err: errors.Join(err, ctx.Err()), Recoverable: true}
	}
	_ = mine.SetReadDeadline(time.Time{})
	go w.listen()
	go func() {
		<-cmd.Done()
		w.die(errors.New("its zygote ended"))
		_ = mine.Close()
	}()
	return nil
}

// packet is what a zygote says. It is a guest's word: it fails a fork, and no more.
type packet struct {
	T       string
	ID      uint64
	Message string
}

func readPacket(f *os.File, buf []byte) (packet, error) {
	n, err := f.Read(buf)
	if err != nil {
		return packet{}, err
	}
	fields, err := parseObject(buf[:n])
	if err != nil {
		return packet{}, err
	}
	var p packet
	for _, x := range fields {
		ok := true
		switch x.key {
		case "t":
			ok = text(x.raw, 16, &p.T)
		case "id":
			ok = number(x.raw, maxID, &p.ID)
		case "message":
			ok = text(x.raw, maxPacket, &p.Message)
		case "version":
		default:
			ok = false
		}
		if !ok {
			return packet{}, broken("a zygote's packet has a wrong %.40q", x.key)
		}
	}
	return p, nil
}

// listen hears of forks that failed.
func (w *Worker) listen() {
	buf := make([]byte, maxPacket)
	for {
		p, err := readPacket(w.ctl, buf)
		if err == nil && p.T != "failed" {
			err = broken("a zygote said %q", p.T)
		}
		if err != nil {
			if errors.Is(err, ErrProtocol) {
				w.die(err)
			}
			return // its end is noticed by other means
		}
		w.mu.Lock()
		ch := w.forks[p.ID]
		w.mu.Unlock()
		if ch != nil {
			select {
			case ch <- &belljar.Error{Code: belljar.CodeUnavailable, Op: "cell open", Message: p.Message, Recoverable: true, Hint: "limits.pids or memory of the sandbox are used up"}:
			default:
			}
		}
	}
}

// Write keeps the last bytes.
func (t *tail) Write(p []byte) (int, error) {
	t.add(p)
	return len(p), nil
}

// kind says what of a spec makes workers different.
func (s Spec) kind() string {
	b, err := json.Marshal([]any{s.Language, s.Engine, s.Program, s.Preload, s.Private, s.Limits.Memory, s.Limits.Pids, s.Limits.CPU})
	if err != nil {
		panic(fmt.Sprintf("cell: encode kind: %v", err)) // plain data
	}
	return string(b)
}
