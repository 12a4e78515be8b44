package belljar

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// The ledger is what a supervisor leaves on disk so that its successor can find
// what it made:
//
//	sweep.lock                 held while anybody sweeps or adopts
//	runtimes/<rt-id>/lock      held by a supervisor while it lives
//	sandboxes/<sb-id>/         the sandbox's own directory (Plan.StateDir)
//	sandboxes/<sb-id>/record.json
//	sandboxes/.new-<sb-id>-<rt-id>/   being entered
//
// Everything is reached through one descriptor of the state directory, never
// through a symbolic link, and only if it belongs to this user. What a record
// says is believed only as far as it can be checked: its id is that of its
// directory, and what is done to a sandbox is done through the id.
type ledger struct {
	dir  string
	root *os.Root
	id   string // rt-...
	lock *os.File
}

const (
	recordVersion = 1
	recordMax     = 1 << 20
	recordName    = "record.json"
	newPrefix     = ".new-"
)

// record is what the ledger knows of a sandbox.
type record struct {
	Version int       `json:"version"`
	ID      string    `json:"id"`
	Owner   string    `json:"owner"`
	Backend string    `json:"backend"`
	Spec    Spec      `json:"spec"` // as the caller wrote it
	Persist bool      `json:"persist,omitempty"`
	Expires time.Time `json:"expires,omitzero"`
	Created time.Time `json:"created"`
	Pooled  bool      `json:"pooled,omitempty"` // not handed out yet
	Paused  bool      `json:"paused,omitempty"`
	// Left is what is left of the lifetime of a paused sandbox; 0: it has none.
	Left time.Duration `json:"left,omitempty"`
}

// parseRecord parses the record of the sandbox with this id. Nothing in it is
// guessed.
func parseRecord(id string, data []byte) (*record, error) {
	if len(data) > recordMax {
		return nil, fmt.Errorf("record: more than %d bytes", recordMax)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	var r record
	if err := d.Decode(&r); err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("record: bytes after its end")
	}
	switch {
	case r.Version != recordVersion:
		return nil, fmt.Errorf("record: version %d", r.Version)
	case !validID("sb-", id) || r.ID != id:
		return nil, fmt.Errorf("record: id %q in the directory of %q", r.ID, id)
	case !validID("rt-", r.Owner):
		return nil, fmt.Errorf("record: owner %q", r.Owner)
	case !isName(r.Backend):
		return nil, fmt.Errorf("record: backend %q", r.Backend)
	}
	return &r, nil
}

// openLedger opens or makes the state directory and declares this supervisor
// alive.
func openLedger(dir string) (*ledger, error) {
	fail := func(err error, hint string) (*ledger, error) {
		return nil, &Error{Code: CodeUnavailable, Op: "open state directory", Message: err.Error(), Err: err, Hint: hint}
	}
	if !lockSupported {
		return nil, &Error{Code: CodeUnsupported, Op: "open state directory", Message: "there is no ledger on this platform"}
	}
	if !filepath.IsAbs(dir) {
		return fail(fmt.Errorf("%q is not absolute", dir), "")
	}
	dir = filepath.Clean(dir)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fail(err, "make its parent first")
	}
	fi, err := os.Lstat(dir)
	if err != nil {
		return fail(err, "")
	}
	if err := private(fi); err != nil {
		return fail(fmt.Errorf("%s: %w", dir, err), "use a directory that only this user can enter: chmod 0700")
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fail(err, "")
	}
	l := &ledger{dir: dir, root: root}
	if fi2, err := root.Stat("."); err != nil || !os.SameFile(fi, fi2) {
		_ = root.Close()
		return fail(errors.Join(fmt.Errorf("%s was replaced meanwhile", dir), err), "")
	}
	for _, sub := range []string{"runtimes", "sandboxes"} {
		err := root.Mkdir(sub, 0o700)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			_ = root.Close()
			return fail(err, "")
		}
		if err := l.mine(sub); err != nil {
			_ = root.Close()
			return fail(err, "remove it")
		}
	}
	if err := l.appear(); err != nil {
		_ = root.Close()
		return fail(err, "")
	}
	return l, nil
}

// mine returns nil for a directory of ours that nobody else can enter.
func (l *ledger) mine(name string) error {
	fi, err := l.root.Lstat(name)
	if err != nil {
		return err
	}
	if err := private(fi); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// private returns nil for a directory of this user with mode 0700.
func private(fi fs.FileInfo) error {
	switch {
	case !fi.IsDir():
		return errors.New("not a directory")
	case fi.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("mode %04o", fi.Mode().Perm())
	case !ownedByUs(fi):
		return errors.New("owned by another user")
	}
	return nil
}

// appear makes this supervisor's lock.
func (l *ledger) appear() error {
	for range 10 {
		id := newID("rt-")
		dir := "runtimes/" + id
		if err := l.root.Mkdir(dir, 0o700); err != nil {
			return err
		}
		f, err := l.flock(dir + "/lock")
		if err == nil {
			l.id, l.lock = id, f
			return nil
		}
		// Somebody who swept between the two steps took it for dead.
		if !errors.Is(err, errLocked) && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return errors.New("lock: always taken")
}

var errLocked = errors.New("locked by another")

// flock opens and locks a file, which is the one of that name when it returns.
func (l *ledger) flock(name string) (*os.File, error) {
	f, err := l.root.OpenFile(name, os.O_RDWR|os.O_CREATE|oNofollow, 0o600)
	if err != nil {
		return nil, err
	}
	if err := tryLock(f); err != nil {
		_ = f.Close()
		return nil, err
	}
	have, err1 := f.Stat()
	want, err2 := l.root.Lstat(name)
	if err1 != nil || err2 != nil || !os.SameFile(have, want) {
		_ = f.Close()
		return nil, errLocked
	}
	return f, nil
}

// begin enters a sandbox before it is made, and returns its directory.
func (l *ledger) begin(r *record) (string, error) {
	r.Owner = l.id
	tmp := "sandboxes/" + newPrefix + r.ID + "-" + l.id
	name := "sandboxes/" + r.ID
	err := l.root.Mkdir(tmp, 0o700)
	if err == nil {
		err = l.write(tmp, r)
		if err == nil {
			err = l.root.Rename(tmp, name)
		}
		if err != nil {
			err = errors.Join(err, l.root.RemoveAll(tmp))
		}
	}
	if err != nil {
		return "", &Error{
			Code: CodeUnavailable, Op: "create: enter in ledger", Message: err.Error(), Err: err,
			Hint: "the state directory must be writable and its disk not full",
		}
	}
	return filepath.Join(l.dir, "sandboxes", r.ID), nil
}

// update replaces the record of a sandbox.
func (l *ledger) update(r *record) error {
	r.Owner = l.id
	if err := l.write("sandboxes/"+r.ID, r); err != nil {
		return &Error{Code: CodeUnavailable, Op: "write ledger", Message: err.Error(), Err: err}
	}
	return nil
}

func (l *ledger) write(dir string, r *record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	tmp := dir + "/" + newPrefix + recordName
	if err := l.root.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := l.root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|oNofollow, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = l.root.Rename(tmp, dir+"/"+recordName)
	}
	if err != nil {
		err = errors.Join(err, l.root.Remove(tmp))
	}
	return err
}

// read returns the record of a sandbox.
func (l *ledger) read(id string) (*record, error) {
	if err := l.mine("sandboxes/" + id); err != nil {
		return nil, err
	}
	name := "sandboxes/" + id + "/" + recordName
	fi, err := l.root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() || !ownedByUs(fi) || fi.Size() > recordMax {
		return nil, fmt.Errorf("%s: not a record of ours", name)
	}
	f, err := l.root.OpenFile(name, os.O_RDONLY|oNofollow|oNonblock, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, recordMax+1))
	if err != nil {
		return nil, err
	}
	return parseRecord(id, data)
}

// remove takes a sandbox out, with its directory.
func (l *ledger) remove(id string) error {
	if !validID("sb-", id) {
		return fmt.Errorf("remove from ledger: id %q", id)
	}
	return l.root.RemoveAll("sandboxes/" + id)
}

// close declares this supervisor gone.
func (l *ledger) close() error {
	err := l.root.RemoveAll("runtimes/" + l.id)
	return errors.Join(err, l.lock.Close(), l.root.Close())
}

// sweeping takes the lock that sweeps are done under.
func (l *ledger) sweeping(ctx context.Context) (unlock func(), err error) {
	wait := time.NewTicker(5 * time.Millisecond)
	defer wait.Stop()
	for {
		f, err := l.flock("sweep.lock")
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, errLocked) {
			return nil, err
		}
		select {
		case <-wait.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// dead reports whether a supervisor is gone. The answer stays true: ids are not
// used again.
func (l *ledger) dead(owner string) bool {
	if owner == l.id {
		return false
	}
	if err := l.mine("runtimes/" + owner); err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	f, err := l.flock("runtimes/" + owner + "/lock")
	if err != nil {
		return false
	}
	_ = f.Close()
	return true
}

// names lists a directory of the ledger.
func (l *ledger) names(dir string) ([]string, error) {
	f, err := l.root.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

// Swept says what a sweep did.
type Swept struct {
	// Adopted are sandboxes of dead supervisors that this one took over.
	Adopted []string `json:"adopted,omitempty"`
	// Removed are sandboxes of dead supervisors that are gone now.
	Removed []string `json:"removed,omitempty"`
	// Kept are persistent sandboxes of dead supervisors that wait to be adopted.
	Kept []string `json:"kept,omitempty"`
	// Skipped are entries that are not provably ours, or could not be removed, with the reason.
	Skipped map[string]string `json:"skipped,omitempty"`
}

// GC removes what dead supervisors left behind: sandboxes that were not
// persistent, members of pools, and what has expired. Sandboxes of living
// supervisors are not touched, nor is anything that is not provably of a sandbox.
// The error joins what could not be removed; it is in Skipped as well.
func (r *Runtime) GC(ctx context.Context) (Swept, error) { return r.sweep(ctx, false) }

// Recover is GC, and adopts the persistent sandboxes of dead supervisors. One
// that does not answer is removed. Executions go on where they were: their ends
// and output are in the state directory, whenever the supervisor was killed.
func (r *Runtime) Recover(ctx context.Context) (Swept, error) { return r.sweep(ctx, true) }

func (r *Runtime) sweep(ctx context.Context, adopt bool) (Swept, error) {
	var out Swept
	if r.ledger == nil {
		return out, r.clean(ctx)
	}
	l := r.ledger
	unlock, err := l.sweeping(ctx)
	if err != nil {
		return out, asError(CodeUnavailable, "sweep", err)
	}
	defer unlock()
	names, err := l.names("sandboxes")
	if err != nil {
		return out, asError(CodeUnavailable, "sweep", err)
	}
	var errs []error
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return out, cancelled("sweep", err)
		}
		if err := r.sweepOne(ctx, name, adopt, &out); err != nil {
			if out.Skipped == nil {
				out.Skipped = map[string]string{}
			}
			out.Skipped[name] = err.Error()
			errs = append(errs, fmt.Errorf("sweep %q: %w", name, err))
		}
	}
	errs = append(errs, l.sweepRuntimes(), r.clean(ctx))
	return out, errors.Join(errs...)
}

// clean has the backends remove what is in no ledger.
func (r *Runtime) clean(ctx context.Context) error {
	var errs []error
	for _, b := range r.backends {
		if c, ok := b.(Cleaner); ok {
			errs = append(errs, c.Clean(ctx))
		}
	}
	return errors.Join(errs...)
}

func (r *Runtime) sweepOne(ctx context.Context, name string, adopt bool, out *Swept) error {
	l := r.ledger
	if rest, ok := strings.CutPrefix(name, newPrefix); ok {
		return l.sweepNew(name, rest)
	}
	if !validID("sb-", name) {
		return errors.New("not the name of a sandbox")
	}
	rec, err := l.read(name)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) && l.mine("sandboxes/"+name) != nil {
			return nil // destroyed meanwhile
		}
		return err
	}
	if !l.dead(rec.Owner) {
		return nil
	}
	b, err := r.backend(rec.Backend)
	if err != nil {
		return err
	}
	a, _ := b.(Adopter)
	expired := !rec.Expires.IsZero() && time.Now().After(rec.Expires)
	if rec.Persist && !rec.Pooled && !expired && a != nil {
		if !adopt {
			out.Kept = append(out.Kept, name)
			return nil
		}
		err := r.adopt(ctx, b, a, rec)
		if err == nil {
			out.Adopted = append(out.Adopted, name)
			return nil
		}
		if ctx.Err() != nil {
			return err
		}
		r.log.Warn("sandbox does not answer and is removed", "id", name, "err", err)
	}
	if a != nil {
		if err := a.Sweep(ctx, rec.ID, filepath.Join(l.dir, "sandboxes", rec.ID)); err != nil {
			return err // its directory may still be in use
		}
	}
	if rec.Persist && !rec.Pooled {
		r.retireRecord(rec, expired)
	}
	if err := l.remove(name); err != nil {
		return err
	}
	out.Removed = append(out.Removed, name)
	return nil
}

// sweepNew removes what a supervisor left that died while it entered a sandbox.
func (l *ledger) sweepNew(name, rest string) error {
	const n = len("sb-") + 20
	if len(rest) <= n+1 || !validID("sb-", rest[:n]) || rest[n] != '-' || !validID("rt-", rest[n+1:]) {
		return errors.New("not the name of a sandbox")
	}
	if err := l.mine("sandboxes/" + name); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	if !l.dead(rest[n+1:]) {
		return nil
	}
	return l.root.RemoveAll("sandboxes/" + name)
}

// sweepRuntimes removes the locks of dead supervisors that own nothing any more.
func (l *ledger) sweepRuntimes() error {
	owners := map[string]bool{}
	names, err := l.names("sandboxes")
	if err != nil {
		return err
	}
	for _, n := range names {
		if rec, err := l.read(n); err == nil {
			owners[rec.Owner] = true
		}
	}
	rts, err := l.names("runtimes")
	if err != nil {
		return err
	}
	var errs []error
	for _, id := range rts {
		if !validID("rt-", id) || owners[id] || l.mine("runtimes/"+id) != nil || !l.dead(id) {
			continue
		}
		errs = append(errs, l.root.RemoveAll("runtimes/"+id))
	}
	return errors.Join(errs...)
}

// forgetTold lets the backend forget an execution whose end is known.
func forgetTold(t AdoptedTask) {
	for _, f := range []*os.File{t.Stdin, t.Stdout, t.Stderr} {
		if f != nil {
			_ = f.Close()
		}
	}
	go func() {
		if _, err := t.Task.Wait(context.Background()); err == nil {
			if s, ok := t.Task.(Settler); ok {
				s.Settle()
			}
		}
	}()
}

// takeEnds enters the executions that ended under a former supervisor.
func (s *Sandbox) takeEnds() error {
	ends, err := readEnds(s.plan.StateDir)
	if err != nil {
		return err
	}
	for i, end := range ends {
		if s.execution(end.Result.ID) != nil || i+maxExecutionIDs < len(ends) {
			continue
		}
		if i+maxRemembered >= len(ends) {
			end.output(s.plan.StateDir)
		}
		e := newExecution(s, Process{ID: end.Result.ID, Limits: s.plan.Spec.Limits})
		e.chosenID, e.adopted = true, true
		end.Result.Confinement = s.inst.Report()
		e.state, e.result, e.dropped = end.Result.State, end.Result, end.Dropped
		if end.Result.Cause == CauseInfra {
			e.err = end.Result.Error
		}
		close(e.launched)
		close(e.done)
		s.mu.Lock()
		s.execs[e.proc.ID] = e
		s.live++
		s.begin()
		s.mu.Unlock()
		s.retire(e)
	}
	return nil
}

// adopt takes over a persistent sandbox.
func (r *Runtime) adopt(ctx context.Context, b Backend, a Adopter, rec *record) error {
	plan, err := Compile(rec.Spec)
	if err != nil {
		return err
	}
	plan.ID, plan.Persist, plan.Expires = rec.ID, true, rec.Expires
	plan.StateDir = filepath.Join(r.ledger.dir, "sandboxes", rec.ID)
	if plan.Spec.Name == "" {
		plan.Spec.Name = rec.ID
	}
	inst, tasks, err := a.Adopt(ctx, plan)
	if err != nil {
		return err
	}
	if err := r.ledger.update(rec); err != nil {
		return errors.Join(err, inst.Close(ctx))
	}
	sb := newSandbox(r, b, plan, inst, rec)
	sb.created = rec.Created
	sb.mu.Lock()
	switch {
	case rec.Paused:
		sb.state = SandboxPaused
		sb.ttl.hold()
		sb.idle.hold()
		sb.ttl.left = rec.Left
	case !rec.Expires.IsZero():
		sb.ttl.hold()
		sb.ttl.left = time.Until(rec.Expires)
		sb.ttl.resume()
	}
	sb.mu.Unlock()
	if err := sb.takeEnds(); err != nil {
		r.log.Warn("results of a former supervisor", "id", rec.ID, "err", err)
	}
	for _, t := range tasks {
		if old := sb.execution(t.ID); old != nil {
			forgetTold(t) // its end was written down, but the backend not told any more
			continue
		}
		e := newExecution(sb, Process{ID: t.ID, Limits: plan.Spec.Limits})
		e.chosenID = true // whoever asks for it knows the id
		e.adopted = true
		if _, err := sb.register(e); err != nil {
			return errors.Join(err, inst.Close(ctx))
		}
		r.gate.force()
		e.admitted = e.requested
		e.run(t.Task, &Cmd{}, t.Stdout, t.Stderr, t.Stdin)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closing {
		return errors.Join(errClosed("adopt"), sb.release(ctx))
	}
	r.enter(sb)
	return nil
}
