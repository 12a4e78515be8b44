package term

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	xterm "golang.org/x/term"
)

// Is reports whether f is a terminal.
func Is(f *os.File) bool { return xterm.IsTerminal(int(f.Fd())) }

// Size returns the size of the first of the files that is a terminal, and 24x80
// when none is.
func Size(files ...*os.File) (rows, cols uint16) {
	for _, f := range files {
		if c, r, err := xterm.GetSize(int(f.Fd())); err == nil && r > 0 && c > 0 {
			return uint16(min(r, 0xffff)), uint16(min(c, 0xffff))
		}
	}
	return 24, 80
}

// Raw puts the terminal f into raw mode. The function that it returns undoes it;
// it may be called again and from any goroutine.
func Raw(f *os.File) (restore func(), err error) {
	fd := int(f.Fd())
	old, err := xterm.MakeRaw(fd)
	if err != nil {
		return nil, fmt.Errorf("raw mode: %w", err)
	}
	var once sync.Once
	return func() {
		// Nothing can be done when the terminal is gone.
		once.Do(func() { _ = xterm.Restore(fd, old) })
	}, nil
}

// Progress shows what takes more than a second, on a terminal, until stop is called.
// It leaves no trace.
func Progress(f *os.File, what string) (stop func()) {
	var mu sync.Mutex
	var timer *time.Timer
	start := time.Now()
	shown, done := false, false
	timer = time.AfterFunc(time.Second, func() {
		mu.Lock()
		defer mu.Unlock()
		if done || !Is(f) {
			return
		}
		shown = true
		fmt.Fprintf(f, "\r\x1b[K%s ... %ds", what, int(time.Since(start).Seconds()))
		timer.Reset(time.Second)
	})
	return func() {
		timer.Stop()
		mu.Lock()
		defer mu.Unlock()
		if shown && !done {
			fmt.Fprint(f, "\r\x1b[K")
		}
		done = true
	}
}

// Table writes rows in columns as wide as their widest cell; the first row is the
// heading. The last column is not padded.
func Table(w io.Writer, rows [][]string) error {
	var widths []int
	for _, r := range rows {
		for i, cell := range r {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for _, r := range rows {
		var line strings.Builder
		for i, cell := range r {
			line.WriteString(cell)
			line.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+2))
		}
		b.WriteString(strings.TrimRight(line.String(), " "))
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}
