package cell

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"
)

// ABIVersion is the version of the protocol, named in the first frame of each side.
const ABIVersion = 1

// Bounds of frames.
const (
	DefaultFrame = 1 << 20 // bytes of JSON
	maxFrame     = 16 << 20
	maxDepth     = 64
	maxID        = 1<<53 - 1 // what every JSON reader keeps exactly
)

// ErrProtocol is the cause when a guest broke the protocol: its cell has ended.
var ErrProtocol = errors.New("the guest broke the cell protocol")

// errTorn is a stream that ended within a frame.
var errTorn = errors.New("the stream ended within a frame")

// protocolError says how the protocol was broken.
type protocolError struct {
	why  string
	torn bool
}

func (e *protocolError) Error() string { return "cell protocol: " + e.why }

func (e *protocolError) Is(target error) bool {
	return target == ErrProtocol || e.torn && target == errTorn
}

func broken(format string, args ...any) error {
	return &protocolError{why: fmt.Sprintf(format, args...)}
}

// readFrame reads one frame: its length in decimal, a line feed, and as much JSON.
// buf is used again when it is large enough. A bound that a guest claims costs
// memory only as far as it also sends.
func readFrame(r *bufio.Reader, bound int, buf []byte) ([]byte, error) {
	n, err := readLength(r, bound)
	if err != nil {
		return nil, err
	}
	buf = buf[:0]
	for len(buf) < n {
		step := min(n-len(buf), max(64<<10, len(buf)))
		if cap(buf)-len(buf) < step {
			buf = append(make([]byte, 0, len(buf)+step), buf...)
		}
		m, err := io.ReadFull(r, buf[len(buf):len(buf)+step])
		buf = buf[:len(buf)+m]
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return nil, &protocolError{fmt.Sprintf("the stream ended after %d of %d bytes of a frame", len(buf), n), true}
		}
		if err != nil {
			return nil, err
		}
	}
	return buf, nil
}

// readLength reads the line before a frame.
func readLength(r *bufio.Reader, bound int) (int, error) {
	n := 0
	for i := 0; ; i++ {
		c, err := r.ReadByte()
		switch {
		case err == io.EOF && i > 0:
			return 0, &protocolError{"the stream ended within a length", true}
		case err != nil:
			return 0, err
		case c == '\n' && i > 0:
			return n, nil
		case c < '0' || c > '9' || c == '0' && i == 0:
			return 0, broken("a length has the byte %q", c)
		}
		if n = n*10 + int(c-'0'); n > bound {
			return 0, broken("a frame of more than %d bytes", bound)
		}
	}
}

// appendFrame encodes a message as a frame.
func appendFrame(b []byte, msg any, bound int) ([]byte, error) {
	var j []byte
	if p, ok := msg.(postFrame); ok {
		j = p.appendTo(make([]byte, 0, len(p.Value)+32))
	} else {
		var err error
		if j, err = json.Marshal(msg); err != nil {
			return b, err
		}
	}
	if len(j) > bound {
		return b, fmt.Errorf("%d bytes of JSON, at most %d fit into a frame", len(j), bound)
	}
	b = strconv.AppendInt(b, int64(len(j)), 10)
	b = append(b, '\n')
	return append(b, j...), nil
}

// field is a member of a frame's object.
type field struct {
	key string
	raw []byte
}

// parseObject checks that b is one JSON object, as strictly as RFC 8259 and RFC 7493
// say, without duplicate keys at any depth, and splits it into its members.
func parseObject(b []byte) ([]field, error) {
	if !utf8.Valid(b) {
		return nil, broken("a frame is not UTF-8")
	}
	s := &scanner{b: b}
	s.space()
	if s.i >= len(b) || b[s.i] != '{' {
		return nil, broken("a frame is no object")
	}
	var out []field
	if !s.object(1, func(k string, raw []byte) { out = append(out, field{k, raw}) }) {
		return nil, s.err()
	}
	s.space()
	if s.i != len(b) {
		return nil, broken("a frame has %d bytes after its object", len(b)-s.i)
	}
	return out, nil
}

// checkValue checks one JSON value in the same way.
func checkValue(b []byte) error {
	if !utf8.Valid(b) {
		return broken("a value is not UTF-8")
	}
	s := &scanner{b: b}
	s.space()
	if !s.value(1) {
		return s.err()
	}
	s.space()
	if s.i != len(b) {
		return broken("%d bytes after a value", len(b)-s.i)
	}
	return nil
}

// scanner walks over JSON. Its methods return false at the first fault.
type scanner struct {
	b   []byte
	i   int
	why string
}

func (s *scanner) err() error {
	why := s.why
	if why == "" {
		why = "malformed JSON"
	}
	return broken("%s at byte %d of a frame", why, s.i)
}

func (s *scanner) fail(why string) bool {
	if s.why == "" {
		s.why = why
	}
	return false
}

func (s *scanner) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\n', '\r':
			s.i++
		default:
			return
		}
	}
}

func (s *scanner) next(c byte) bool {
	if s.i < len(s.b) && s.b[s.i] == c {
		s.i++
		return true
	}
	return false
}

func (s *scanner) value(depth int) bool {
	if s.i >= len(s.b) {
		return s.fail("a missing value")
	}
	switch c := s.b[s.i]; {
	case c == '{':
		return s.object(depth, nil)
	case c == '[':
		return s.array(depth)
	case c == '"':
		_, ok := s.str(false)
		return ok
	case c == 't':
		return s.word("true")
	case c == 'f':
		return s.word("false")
	case c == 'n':
		return s.word("null")
	default:
		return s.number()
	}
}

func (s *scanner) word(w string) bool {
	if len(s.b)-s.i < len(w) || string(s.b[s.i:s.i+len(w)]) != w {
		return s.fail("malformed JSON")
	}
	s.i += len(w)
	return true
}

func (s *scanner) object(depth int, member func(string, []byte)) bool {
	if depth > maxDepth {
		return s.fail(fmt.Sprintf("more than %d levels", maxDepth))
	}
	s.i++
	s.space()
	if s.next('}') {
		return true
	}
	var keys seen
	for {
		at := s.i
		k, ok := s.str(true)
		if !ok {
			return false
		}
		if !keys.add(k) {
			s.i = at
			return s.fail("a duplicate key")
		}
		s.space()
		if !s.next(':') {
			return s.fail("a missing colon")
		}
		s.space()
		from := s.i
		if !s.value(depth + 1) {
			return false
		}
		if member != nil {
			member(k, s.b[from:s.i])
		}
		s.space()
		if s.next('}') {
			return true
		}
		if !s.next(',') {
			return s.fail("malformed JSON")
		}
		s.space()
	}
}

func (s *scanner) array(depth int) bool {
	if depth > maxDepth {
		return s.fail(fmt.Sprintf("more than %d levels", maxDepth))
	}
	s.i++
	s.space()
	if s.next(']') {
		return true
	}
	for {
		if !s.value(depth + 1) {
			return false
		}
		s.space()
		if s.next(']') {
			return true
		}
		if !s.next(',') {
			return s.fail("malformed JSON")
		}
		s.space()
	}
}

// str reads a string, and returns it without escapes if it is wanted.
func (s *scanner) str(want bool) (string, bool) {
	from := s.i
	if !s.next('"') {
		return "", s.fail("a missing string")
	}
	escaped := false
	for s.i < len(s.b) {
		switch c := s.b[s.i]; {
		case c == '"':
			s.i++
			if !want {
				return "", true
			}
			if !escaped {
				return string(s.b[from+1 : s.i-1]), true
			}
			var k string
			if json.Unmarshal(s.b[from:s.i], &k) != nil {
				return "", s.fail("malformed JSON")
			}
			return k, true
		case c < ' ':
			return "", s.fail("a control character in a string")
		case c == '\\':
			escaped = true
			s.i++
			if !s.escape() {
				return "", s.fail("a bad escape")
			}
		default:
			s.i++
		}
	}
	return "", s.fail("an unfinished string")
}

func (s *scanner) escape() bool {
	if s.i >= len(s.b) {
		return false
	}
	c := s.b[s.i]
	s.i++
	switch c {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return true
	case 'u':
		for range 4 {
			if s.i >= len(s.b) || !hex(s.b[s.i]) {
				return false
			}
			s.i++
		}
		return true
	}
	return false
}

func hex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

func (s *scanner) digits() bool {
	from := s.i
	for s.i < len(s.b) && s.b[s.i] >= '0' && s.b[s.i] <= '9' {
		s.i++
	}
	return s.i > from
}

func (s *scanner) number() bool {
	s.next('-')
	if !s.next('0') && !s.digits() {
		return s.fail("malformed JSON")
	}
	if s.next('.') && !s.digits() {
		return s.fail("malformed JSON")
	}
	if s.next('e') || s.next('E') {
		if !s.next('+') {
			s.next('-')
		}
		if !s.digits() {
			return s.fail("malformed JSON")
		}
	}
	return true
}

// seen is the set of an object's keys; most have few.
type seen struct {
	few  [12]string
	n    int
	many map[string]struct{}
}

func (k *seen) add(key string) bool {
	for _, old := range k.few[:k.n] {
		if old == key {
			return false
		}
	}
	if k.many == nil && k.n < len(k.few) {
		k.few[k.n] = key
		k.n++
		return true
	}
	if k.many == nil {
		k.many = map[string]struct{}{}
	}
	if _, dup := k.many[key]; dup {
		return false
	}
	k.many[key] = struct{}{}
	return true
}
