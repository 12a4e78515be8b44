package belljar

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// Bounds of what is kept of sandboxes that ended; beyond, the oldest go.
const (
	maxPast      = 10_000
	maxPastBytes = 4 << 30
)

const pastName = "end.json"

// Past is a sandbox that ended, for as long as [Config.RetainEnded] keeps it.
type Past struct {
	ID      string    `json:"id"`
	Name    string    `json:"name"`
	Spec    Spec      `json:"spec"`
	Reason  Reason    `json:"reason"`
	Created time.Time `json:"created"`
	Ended   time.Time `json:"ended"`

	dir   string
	bytes int64
	timer *time.Timer
}

// Results are those of the executions whose ids their callers chose, in the order
// in which they ended, with the output that is retained.
func (p *Past) Results() ([]*Result, error) {
	ends, err := readEnds(p.dir)
	if err != nil {
		return nil, asError(CodeUnavailable, "results of "+p.ID, err)
	}
	out := make([]*Result, 0, len(ends))
	for _, e := range ends {
		e.output(p.dir)
		out = append(out, e.Result)
	}
	return out, nil
}

// Result is that of one execution.
func (p *Past) Result(id string) (*Result, error) {
	ends, err := readEnds(p.dir)
	if err != nil {
		return nil, asError(CodeUnavailable, "result of "+id, err)
	}
	for _, e := range ends {
		if e.Result.ID == id {
			e.output(p.dir)
			return e.Result, nil
		}
	}
	return nil, &Error{Code: CodeNotFound, Op: "get result", Message: fmt.Sprintf("no execution %q", id)}
}

// past are the sandboxes that ended.
type past struct {
	mu    sync.Mutex
	all   map[string]*Past
	bytes int64
	shut  bool
}

// Past returns a sandbox that ended, while it is kept.
func (r *Runtime) Past(id string) (*Past, error) {
	r.past.mu.Lock()
	defer r.past.mu.Unlock()
	if p := r.past.all[id]; p != nil {
		return p, nil
	}
	return nil, &Error{Code: CodeNotFound, Op: "get sandbox", Message: fmt.Sprintf("no sandbox %q", id)}
}

// PastList returns the sandboxes of a tenant that ended and are kept, oldest first.
func (r *Runtime) PastList(tenant string) []*Past {
	r.past.mu.Lock()
	defer r.past.mu.Unlock()
	var list []*Past
	for _, p := range r.past.all {
		if cmp.Or(p.Spec.Tenant, "default") == tenant {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b *Past) int { return cmp.Or(a.Ended.Compare(b.Ended), cmp.Compare(a.ID, b.ID)) })
	return list
}

// retire keeps what is to be kept of a sandbox whose instance is gone; its
// directory in the ledger is removed by the caller. A failure costs the memory of it.
func (r *Runtime) retire(s *Sandbox, why Reason) {
	if r.cfg.RetainEnded <= 0 || r.ledger == nil {
		return
	}
	spec := s.Spec()
	p := &Past{ID: s.ID(), Name: s.Name(), Spec: spec, Reason: why, Created: s.created, Ended: time.Now(), dir: filepath.Join(r.ledger.dir, "past", s.ID())}
	if err := r.ledger.bury(p); err != nil {
		r.log.Warn("what a sandbox leaves is lost", "id", p.ID, "err", err)
		return
	}
	r.keep(p)
}

// retireRecord does that for a sandbox that ended while no supervisor was there.
func (r *Runtime) retireRecord(rec *record, expired bool) {
	plan, err := Compile(rec.Spec)
	if err != nil || r.cfg.RetainEnded <= 0 {
		return
	}
	p := &Past{
		ID: rec.ID, Name: cmp.Or(rec.Spec.Name, rec.ID), Spec: plan.Spec, Reason: ReasonLost, Created: rec.Created, Ended: time.Now(),
		dir: filepath.Join(r.ledger.dir, "past", rec.ID),
	}
	if expired {
		p.Reason, p.Ended = ReasonTTL, rec.Expires
	}
	if err := r.ledger.bury(p); err != nil {
		r.log.Warn("what a sandbox leaves is lost", "id", p.ID, "err", err)
		return
	}
	r.keep(p)
}

// keep enters a sandbox that ended, and lets go of what is too much.
func (r *Runtime) keep(p *Past) {
	left := r.cfg.RetainEnded - time.Since(p.Ended)
	r.past.mu.Lock()
	defer r.past.mu.Unlock()
	if r.past.shut {
		return // the next supervisor finds it
	}
	if r.past.all == nil {
		r.past.all = map[string]*Past{}
	}
	r.past.all[p.ID] = p
	r.past.bytes += p.bytes
	p.timer = time.AfterFunc(max(0, left), func() {
		r.past.mu.Lock()
		defer r.past.mu.Unlock()
		r.drop(p)
	})
	for len(r.past.all) > maxPast || r.past.bytes > maxPastBytes {
		var oldest *Past
		for _, q := range r.past.all {
			if oldest == nil || q.Ended.Before(oldest.Ended) {
				oldest = q
			}
		}
		r.drop(oldest)
	}
}

// drop forgets; r.past.mu is held.
func (r *Runtime) drop(p *Past) {
	if r.past.shut || r.past.all[p.ID] != p {
		return
	}
	p.timer.Stop()
	delete(r.past.all, p.ID)
	r.past.bytes -= p.bytes
	if err := r.ledger.root.RemoveAll("past/" + p.ID); err != nil {
		r.log.Warn("remove what a sandbox left", "id", p.ID, "err", err)
	}
}

// openPast takes up what former supervisors kept.
func (r *Runtime) openPast() error {
	if r.cfg.RetainEnded <= 0 {
		return nil
	}
	l := r.ledger
	if err := l.root.Mkdir("past", 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return asError(CodeUnavailable, "open state directory", err)
	}
	if err := l.mine("past"); err != nil {
		return asError(CodeUnavailable, "open state directory", err)
	}
	names, err := l.names("past")
	if err != nil {
		return asError(CodeUnavailable, "open state directory", err)
	}
	for _, name := range names {
		if !validID("sb-", name) || l.mine("past/"+name) != nil {
			if strings.HasPrefix(name, newPrefix) { // one that was killed while it buried
				_ = l.root.RemoveAll("past/" + name)
			}
			continue
		}
		p := &Past{dir: filepath.Join(l.dir, "past", name)}
		b, err := l.root.ReadFile("past/" + name + "/" + pastName)
		if err != nil || json.Unmarshal(b, p) != nil || p.ID != name {
			r.log.Warn("unreadable remains of a sandbox", "id", name, "err", err)
			continue
		}
		p.bytes = size(p.dir)
		r.keep(p)
	}
	return nil
}

func (r *Runtime) closePast() {
	r.past.mu.Lock()
	defer r.past.mu.Unlock()
	r.past.shut = true
	for _, p := range r.past.all {
		p.timer.Stop()
	}
}

// bury moves the results and outputs of a sandbox out of its directory.
func (l *ledger) bury(p *Past) error {
	tmp, name := "past/"+newPrefix+p.ID, "past/"+p.ID
	err := l.root.Mkdir(tmp, 0o700)
	if err != nil {
		return err
	}
	files, err := l.names("sandboxes/" + p.ID)
	for _, f := range files {
		if err == nil && (f == endsName || strings.HasPrefix(f, spoolPrefix)) {
			err = l.root.Rename("sandboxes/"+p.ID+"/"+f, tmp+"/"+f)
		}
	}
	var b []byte
	if err == nil {
		b, err = json.Marshal(p)
	}
	if err == nil {
		err = l.root.WriteFile(tmp+"/"+pastName, b, 0o600)
	}
	if err == nil {
		err = l.root.Rename(tmp, name)
	}
	if err != nil {
		return errors.Join(err, l.root.RemoveAll(tmp))
	}
	p.bytes = size(p.dir)
	return nil
}

// size is what the files of a directory take on the disk, holes left out where the
// system tells.
func size(dir string) int64 {
	var sum int64
	ents, err := os.ReadDir(dir)
	if err != nil {
		return 0
	}
	for _, e := range ents {
		if fi, err := e.Info(); err == nil {
			sum += min(fi.Size(), retainBytes+2*lastBuffer+8<<20)
		}
	}
	return sum
}
