// Package audit is an append-only log of who did what, one JSON line per act,
// each with the hash of the one before: whatever is changed, cut out, put in or
// reordered later does not fit any more. The newest hash is kept beside the log,
// so that a cut at the end is found too. It cannot tell of whoever can write both
// files and recompute the chain: keep a copy of the head elsewhere for that.
package audit

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"belljar"
)

const (
	logName  = "audit.jsonl"
	headName = "audit.head"
	maxLine  = 64 << 10
)

// Entry is one act.
type Entry struct {
	Seq     uint64    `json:"seq"`
	Time    time.Time `json:"time"`
	Tenant  string    `json:"tenant,omitempty"`
	Key     string    `json:"key,omitempty"` // id of the key or certificate
	Act     string    `json:"act"`           // "sandbox.create", "exec", "file.write"
	Object  string    `json:"object,omitempty"`
	Detail  string    `json:"detail,omitempty"` // argv hash, path
	Outcome string    `json:"outcome,omitempty"`
	Prev    string    `json:"prev"` // hash of the line before; of the first: 64 zeros
	Hash    string    `json:"hash"` // SHA-256 of the line without this field
}

const zeros = "0000000000000000000000000000000000000000000000000000000000000000"

// sum is the hash of an entry: of its JSON with an empty Hash.
func (e Entry) sum() (string, error) {
	e.Hash = ""
	b, err := json.Marshal(e)
	if err != nil {
		return "", err
	}
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:]), nil
}

// head is what is kept beside the log.
type head struct {
	Seq  uint64 `json:"seq"`
	Hash string `json:"hash"`
}

// Log is an open log. It is safe for concurrent use.
type Log struct {
	dir string

	mu   sync.Mutex
	f    *os.File
	head head
	err  error // the log cannot be written any more
}

// Open opens or makes the log of a directory and goes on with its chain. A last
// line that was cut by a crash was never acknowledged, and is taken away. A log that does not verify is
// an error: it must be looked at before anything is added.
func Open(dir string) (*Log, error) {
	fail := func(err error, hint string) (*Log, error) {
		return nil, &belljar.Error{Code: belljar.CodeUnavailable, Op: "open audit log in " + dir, Message: err.Error(), Err: err, Hint: hint}
	}
	rep, err := Verify(dir)
	if err != nil {
		return fail(err, "")
	}
	if rep.Broken() {
		return fail(errors.New(rep.Faults[0].String()), "keep the files, look at them with belljar audit verify, then move them away")
	}
	f, err := os.OpenFile(filepath.Join(dir, logName), os.O_RDWR|os.O_APPEND|os.O_CREATE|oNofollow, 0o600)
	if err != nil {
		return fail(err, "")
	}
	l := &Log{dir: dir, f: f, head: head{rep.Last, rep.Head}}
	if rep.Torn {
		if err := f.Truncate(rep.size); err != nil {
			return fail(errors.Join(err, f.Close()), "")
		}
	}
	return l, nil
}

// Append adds an act. It returns once the line is written; that it is lost with
// the machine's power within the next seconds is accepted.
func (l *Log) Append(e Entry) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	e.Seq, e.Prev = l.head.Seq+1, l.head.Hash
	if e.Time.IsZero() {
		e.Time = time.Now().UTC()
	}
	var err error
	if e.Hash, err = e.sum(); err != nil {
		return err
	}
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if len(b) >= maxLine {
		return &belljar.Error{Code: belljar.CodeInvalidSpec, Op: "audit", Message: "an entry of more than 64 KiB"}
	}
	if err := l.write(append(b, '\n'), head{e.Seq, e.Hash}); err != nil {
		return &belljar.Error{Code: belljar.CodeUnavailable, Op: "audit", Message: err.Error(), Err: err, Recoverable: true, Hint: "make room on the disk of the state directory"}
	}
	return nil
}

// write writes a line and the head. What could only be written in part is taken back.
func (l *Log) write(line []byte, h head) error {
	fi, err := l.f.Stat()
	if err != nil {
		return err
	}
	if _, err := l.f.Write(line); err != nil {
		if terr := l.f.Truncate(fi.Size()); terr != nil {
			l.err = errors.Join(err, terr)
		}
		return err
	}
	l.head = h
	b, err := json.Marshal(h)
	if err != nil {
		return err
	}
	// In place: 100 bytes are written as one. A crash between the two writes leaves a
	// head that is one line old, which is no fault.
	f, err := os.OpenFile(filepath.Join(l.dir, headName), os.O_WRONLY|os.O_CREATE|oNofollow, 0o600)
	if err != nil {
		return err
	}
	b = append(b, '\n')
	_, err = f.WriteAt(b, 0)
	if err == nil {
		err = f.Truncate(int64(len(b)))
	}
	return errors.Join(err, f.Close())
}

// Close syncs and closes the log.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = &belljar.Error{Code: belljar.CodeUnavailable, Op: "audit", Message: "the log is closed"}
	}
	return errors.Join(l.f.Sync(), l.f.Close())
}

// Fault is something that does not fit.
type Fault struct {
	Line int    `json:"line"` // from 1; 0: the head
	What string `json:"what"`
}

// String is one line.
func (f Fault) String() string {
	if f.Line == 0 {
		return "head: " + f.What
	}
	return fmt.Sprintf("line %d: %s", f.Line, f.What)
}

// Report is what Verify found.
type Report struct {
	Entries int     `json:"entries"`
	Last    uint64  `json:"last"` // sequence number
	Head    string  `json:"head"` // hash of the last entry
	Torn    bool    `json:"torn"` // the last line has no end: a crash
	Faults  []Fault `json:"faults,omitempty"`

	size int64 // of the whole lines
}

// Broken reports whether anything does not fit.
func (r Report) Broken() bool { return len(r.Faults) > 0 }

// Verify reads the log of a directory and looks for what does not fit; at most 100
// faults are listed. A missing log is one without entries. The error is about reading.
func Verify(dir string) (Report, error) {
	f, err := os.OpenFile(filepath.Join(dir, logName), os.O_RDONLY|oNofollow, 0)
	var r io.Reader = f
	switch {
	case errors.Is(err, fs.ErrNotExist):
		r = eof{}
	case err != nil:
		return Report{}, err
	default:
		defer f.Close()
	}
	rep, err := verify(r)
	if err != nil {
		return rep, err
	}
	b, err := os.ReadFile(filepath.Join(dir, headName))
	if errors.Is(err, fs.ErrNotExist) {
		if rep.Entries > 1 {
			rep.fault(0, "it is missing")
		}
		return rep, nil
	}
	if err != nil {
		return rep, err
	}
	rep.checkHead(b)
	return rep, nil
}

type eof struct{}

func (eof) Read([]byte) (int, error) { return 0, io.EOF }

func (r *Report) fault(line int, what string) {
	if len(r.Faults) < 100 {
		r.Faults = append(r.Faults, Fault{line, what})
	}
}

func (r *Report) checkHead(b []byte) {
	var h head
	switch {
	case json.Unmarshal(b, &h) != nil:
		r.fault(0, "it cannot be read")
	case h.Seq > r.Last:
		r.fault(0, fmt.Sprintf("entries %d to %d are missing at the end", r.Last+1, h.Seq))
	case h.Seq == r.Last && h.Hash != r.Head:
		r.fault(0, "the last entry is another one")
	case h.Seq+1 < r.Last:
		r.fault(0, fmt.Sprintf("%d entries were added after it", r.Last-h.Seq))
	}
}

func verify(in io.Reader) (Report, error) {
	rep := Report{Head: zeros}
	br := bufio.NewReaderSize(in, maxLine)
	for n := 1; ; n++ {
		line, err := br.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			rep.fault(n, "longer than any entry")
			return rep, nil
		}
		if err != nil && err != io.EOF {
			return rep, err
		}
		whole := err == nil
		if len(line) == 0 {
			return rep, nil
		}
		if !whole {
			rep.Torn = true // it was never acknowledged
			return rep, nil
		}
		rep.check(n, line)
		rep.size += int64(len(line))
	}
}

func (r *Report) check(n int, line []byte) {
	var e Entry
	if err := json.Unmarshal(line, &e); err != nil {
		r.fault(n, "not an entry")
		return
	}
	sum, err := e.sum()
	back, merr := json.Marshal(e)
	switch {
	case err != nil || merr != nil || string(back)+"\n" != string(line):
		r.fault(n, "not as it was written")
	case sum != e.Hash:
		r.fault(n, "its content does not have its hash")
	case e.Seq != r.Last+1:
		r.fault(n, fmt.Sprintf("number %d after %d", e.Seq, r.Last))
	case e.Prev != r.Head:
		r.fault(n, "it does not follow the line before")
	}
	r.Entries++
	r.Last, r.Head = e.Seq, e.Hash
}
