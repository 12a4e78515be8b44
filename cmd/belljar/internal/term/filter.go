package term

import "io"

// Filter passes text, colours and cursor movement through and removes what acts
// beyond the screen: operating system commands (titles, the clipboard,
// notifications), device control strings and their kin, requests that make the
// terminal type an answer into the user's shell, window operations, mode
// changes that outlive the program, and lone control bytes but for bell,
// backspace, tab, line feed and carriage return. Sequences may be split over
// writes in any way. The zero value needs W only.
type Filter struct {
	W io.Writer

	state state
	seq   []byte // the control sequence so far, from ESC
	utf   int    // bytes of a UTF-8 sequence still to come
	lead  byte   // of that sequence
	out   []byte
}

type state int

const (
	plain  state = iota
	escape       // after ESC
	inter        // ESC and intermediate bytes
	csi          // ESC [ ...
	str          // an OSC, DCS, SOS, PM or APC string
	strEsc       // ESC in a string
)

// maxSequence bounds a control sequence; longer ones are dropped as they come.
const maxSequence = 128

// Write implements io.Writer. It reports bytes of p, whatever was removed.
func (f *Filter) Write(p []byte) (int, error) {
	f.out = f.out[:0]
	for _, b := range p {
		f.step(b)
	}
	if len(f.out) == 0 {
		return len(p), nil
	}
	if n, err := f.W.Write(f.out); err != nil {
		return min(n, len(p)), err
	}
	return len(p), nil
}

func (f *Filter) step(b byte) {
	switch f.state {
	case plain:
		f.text(b)
	case escape:
		switch {
		case b == '[':
			f.state, f.seq = csi, append(f.seq, b)
		case b == ']' || b == 'P' || b == 'X' || b == '^' || b == '_':
			f.state, f.seq = str, f.seq[:0]
		case b == 0x1b:
			f.seq = append(f.seq[:0], b)
		case b >= ' ' && b <= '/':
			f.state, f.seq = inter, append(f.seq, b)
		case b == '7' || b == '8' || b == 'D' || b == 'E' || b == 'H' || b == 'M':
			// Cursor saved, restored, moved; tab stop set.
			f.out = append(append(f.out, f.seq...), b)
			f.reset()
		default: // full reset (c), identify (Z), keypad modes, locking shifts
			f.reset()
		}
	case inter:
		if b < ' ' || b > '/' { // character sets and the like: gone with its last byte
			f.reset()
			if b == 0x1b {
				f.begin()
			}
		}
	case csi:
		switch {
		case b == 0x1b:
			f.begin()
		case b == 0x18 || b == 0x1a:
			f.reset()
		case b >= 0x40 && b <= 0x7e:
			if f.harmless(b) {
				f.out = append(append(f.out, f.seq...), b)
			}
			f.reset()
		case b < ' ' || b > 0x7e: // not of a sequence; some terminals obey it in the middle
			f.reset()
			f.text(b)
		case len(f.seq) < maxSequence:
			f.seq = append(f.seq, b)
		}
	case str:
		switch b {
		case 0x07, 0x18, 0x1a, 0x9c:
			f.reset()
		case 0x1b:
			f.state = strEsc
		}
	case strEsc:
		if b == '\\' {
			f.reset()
			return
		}
		// The string was cut off by another sequence.
		f.begin()
		f.step(b)
	}
}

func (f *Filter) begin() {
	f.state = escape
	f.seq = append(f.seq[:0], 0x1b)
	f.utf = 0
}

func (f *Filter) reset() { f.state, f.seq = plain, f.seq[:0] }

// text passes what is printed. The C1 controls are sequences too, as bytes (0x9b
// is CSI) and as UTF-8 (0xc2 0x9b); bytes within other UTF-8 sequences are not.
func (f *Filter) text(b byte) {
	if f.utf > 0 && b&0xc0 == 0x80 {
		f.utf--
		if f.lead == 0xc2 {
			f.lead = 0
			if b < 0xa0 {
				f.c1(b)
				return
			}
			f.out = append(f.out, 0xc2, b)
			return
		}
		f.out = append(f.out, b)
		return
	}
	f.utf, f.lead = 0, 0
	switch {
	case b == 0x1b:
		f.begin()
	case b < ' ' || b == 0x7f:
		if b >= 0x07 && b <= 0x0a || b == '\r' {
			f.out = append(f.out, b)
		}
	case b < 0x80:
		f.out = append(f.out, b)
	case b < 0xa0:
		f.c1(b)
	case b == 0xc2:
		f.utf, f.lead = 1, b // held back: it may begin a control
	case b >= 0xf0:
		f.utf = 3
		f.out = append(f.out, b)
	case b >= 0xe0:
		f.utf = 2
		f.out = append(f.out, b)
	case b >= 0xc0:
		f.utf = 1
		f.out = append(f.out, b)
	default:
		f.out = append(f.out, b)
	}
}

func (f *Filter) c1(b byte) {
	switch b {
	case 0x9b:
		f.begin()
		f.state, f.seq = csi, append(f.seq, '[')
	case 0x90, 0x98, 0x9d, 0x9e, 0x9f:
		f.state, f.seq = str, f.seq[:0]
	}
}

// harmless says of a control sequence whether it only draws.
func (f *Filter) harmless(final byte) bool {
	if len(f.seq) >= maxSequence {
		return false
	}
	params := f.seq[2:]
	for _, b := range params {
		if b < '0' || b > ';' { // private or intermediate bytes
			return final == 'h' && string(params) == "?25" || final == 'l' && string(params) == "?25" // cursor shown, hidden
		}
	}
	switch final {
	case 'A', 'B', 'C', 'D', 'E', 'F', 'G', 'H', 'I', 'J', 'K', 'L', 'M', 'P', 'S', 'T', 'X', 'Z', '@', '`', 'a', 'd', 'e', 'f', 'm', 's', 'u':
		return true
	}
	return false
}
