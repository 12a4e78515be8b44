package belljar

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// spoolError is a failure of the file, not of the pipe: what is in the pipe is
// still there.
type spoolError struct{ err error }

func (e *spoolError) Error() string { return e.err.Error() }
func (e *spoolError) Unwrap() error { return e.err }

// spoolName is the file of an output. Ids of executions are chosen by callers and
// make no file names.
func spoolName(dir, id string, stream int) string {
	sum := sha256.Sum256([]byte(id))
	return filepath.Join(dir, fmt.Sprintf("%s%s.%d", spoolPrefix, hex.EncodeToString(sum[:16]), stream))
}

const (
	spoolPrefix = "out-"
	endsName    = "ends.jsonl"
	endMax      = 64 << 10 // bytes of a line
	endsMax     = 64 << 20 // bytes that are read of the file
)

// ended is a line of the log of ends: an execution's result without its output,
// which is in the spool. It is written before the keeper is told to forget the
// execution, so that its end is known somewhere at every instant.
type ended struct {
	Version int      `json:"version"`
	Result  *Result  `json:"result"`
	Dropped [2]int64 `json:"dropped"` // bytes of each stream before the retained ones
	Kept    [2]int64 `json:"kept"`    // retained bytes of each stream
}

func appendEnd(dir string, e ended) error {
	r := *e.Result
	r.Stdout, r.Stderr, r.Confinement.Layers = nil, nil, nil
	e.Version, e.Result = recordVersion, &r
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, endsName), os.O_WRONLY|os.O_APPEND|os.O_CREATE|oNofollow, 0o600)
	if err != nil {
		return err
	}
	// The newline comes first: after a line that was cut, this one is whole.
	_, err = f.Write(append(append([]byte{'\n'}, b...), '\n'))
	return errors.Join(err, f.Close())
}

// readEnds reads the log of ends, oldest first. Lines that are not whole are left
// out: the keeper still has what they were about.
func readEnds(dir string) ([]ended, error) {
	f, err := os.OpenFile(filepath.Join(dir, endsName), os.O_RDONLY|oNofollow|oNonblock, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		return nil, errors.Join(err, errors.New("not a log of ends"))
	}
	return parseEnds(io.LimitReader(f, endsMax)), nil
}

func parseEnds(r io.Reader) []ended {
	var ends []ended
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 0, 4096), endMax)
	for sc.Scan() {
		line := bytes.TrimSpace(sc.Bytes())
		if len(line) == 0 {
			continue
		}
		var e ended
		if json.Unmarshal(line, &e) != nil || e.Version != recordVersion || e.Result == nil || e.Result.ID == "" ||
			min(e.Dropped[0], e.Dropped[1], e.Kept[0], e.Kept[1]) < 0 || max(e.Kept[0], e.Kept[1]) > retainBytes {
			continue
		}
		ends = append(ends, e)
	}
	return ends
}

// output reads the retained output of an ended execution from its spools.
func (e *ended) output(dir string) {
	for i, to := range []*[]byte{&e.Result.Stdout, &e.Result.Stderr} {
		if e.Kept[i] == 0 {
			continue
		}
		s, err := openSpool(spoolName(dir, e.Result.ID, i+1), false)
		var b []byte
		if err == nil {
			if s.size >= e.Dropped[i]+e.Kept[i] {
				s.size = e.Dropped[i] + e.Kept[i] // beyond is what was above the output limit
				b, err = s.kept(e.Kept[i])
			} else {
				err = io.ErrUnexpectedEOF
			}
			s.close()
		}
		if err != nil { // it was dropped, or its disk is gone: then it is not retained
			e.Dropped[i] += e.Kept[i]
			e.Result.DroppedBytes += e.Kept[i]
			e.Result.Truncated = true
			continue
		}
		*to = b
	}
}
