package main

import (
	"bufio"
	"io"
	"os"
	"strings"

	"belljar/cell"
	"belljar/cmd/belljar/internal/term"

	xterm "golang.org/x/term"
)

// lines is where pieces of code come from.
type lines interface {
	// line reads a line after a prompt; more says that it continues a piece.
	line(more bool) (string, error)
}

// plainLines reads what is no terminal.
type plainLines struct{ *bufio.Scanner }

func (p *plainLines) line(bool) (string, error) {
	if p.Scan() {
		return p.Text(), nil
	}
	if err := p.Err(); err != nil {
		return "", err
	}
	return "", io.EOF
}

// editor edits lines on a terminal, with history. The terminal is raw only
// while a line is edited, so that Ctrl-C is a signal while code runs.
type editor struct{ t *xterm.Terminal }

func newEditor() *editor {
	return &editor{xterm.NewTerminal(struct {
		io.Reader
		io.Writer
	}{keys{os.Stdin}, os.Stdout}, "")}
}

func (e *editor) line(more bool) (string, error) {
	restore, err := term.Raw(os.Stdin)
	if err != nil {
		return "", err
	}
	defer restore()
	rows, cols := term.Size(os.Stdin, os.Stdout)
	if err := e.t.SetSize(int(cols), int(rows)); err != nil {
		return "", err
	}
	e.t.SetPrompt("> ")
	if more {
		e.t.SetPrompt(". ")
	}
	s, err := e.t.ReadLine()
	if err == xterm.ErrPasteIndicator {
		err = nil
	}
	return s, err
}

// keys reads a keyboard on which Ctrl-C clears the line, as shells do; else it
// could not be told from Ctrl-D.
type keys struct{ r io.Reader }

func (k keys) Read(p []byte) (int, error) {
	n, err := k.r.Read(p)
	for i, b := range p[:n] {
		if b == 3 {
			p[i] = 21
		}
	}
	return n, err
}

// readPiece reads lines until they are a whole piece of code.
func readPiece(in lines, language cell.Language) (string, error) {
	var b strings.Builder
	for {
		s, err := in.line(b.Len() > 0)
		if err != nil {
			return b.String(), err
		}
		b.WriteString(s)
		b.WriteByte('\n')
		if whole(b.String(), language) {
			return b.String(), nil
		}
	}
}

// whole reports whether text may be a whole piece of code. It looks at brackets,
// quotes and blocks only: what it takes for whole and is not, the interpreter refuses.
func whole(text string, language cell.Language) bool {
	body := strings.TrimRight(text, "\n")
	if strings.HasSuffix(body, "\\") {
		return strings.HasSuffix(text, "\n\n")
	}
	open := unfinished(body, language)
	switch language {
	case cell.Python:
		if open {
			return false
		}
		first, _, _ := strings.Cut(body, "\n")
		first, _, _ = strings.Cut(first, " #")
		if strings.HasSuffix(strings.TrimSpace(first), ":") || strings.HasPrefix(first, "@") {
			return strings.HasSuffix(text, "\n\n")
		}
	case cell.Shell:
		return !open && !inShellBlock(body)
	}
	return !open
}

// unfinished reports whether a bracket, a quote or a comment is open at the end.
func unfinished(s string, language cell.Language) bool {
	depth := 0
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\':
			i++
		case c == '#' && language != cell.JavaScript && (i == 0 || strings.IndexByte(" \t\n;(", s[i-1]) >= 0):
			i = endOf(s, i, "\n")
		case c == '/' && language == cell.JavaScript && strings.HasPrefix(s[i:], "//"):
			i = endOf(s, i, "\n")
		case c == '/' && language == cell.JavaScript && strings.HasPrefix(s[i:], "/*"):
			if i = endOf(s, i+2, "*/"); i >= len(s) {
				return true
			}
		case c == '\'' || c == '"' || c == '`':
			n, ok := quoted(s[i:], language)
			if !ok {
				return true
			}
			i += n - 1
		case strings.IndexByte("([{", c) >= 0:
			depth++
		case strings.IndexByte(")]}", c) >= 0:
			depth--
		}
	}
	return depth > 0
}

func endOf(s string, from int, mark string) int {
	if n := strings.Index(s[from:], mark); n >= 0 {
		return from + n + len(mark) - 1
	}
	return len(s)
}

// quoted returns the length of the string that s begins with, and whether it ends. One
// that has to end on its line does so.
func quoted(s string, language cell.Language) (int, bool) {
	mark := s[:1]
	lines := language == cell.Shell || mark == "`"
	if language == cell.Python && len(s) >= 3 && s[1] == s[0] && s[2] == s[0] {
		mark, lines = s[:3], true
	}
	for i := len(mark); i < len(s); i++ {
		switch {
		case s[i] == '\\' && (language != cell.Shell || mark != "'"):
			i++
		case strings.HasPrefix(s[i:], mark):
			return i + len(mark), true
		case s[i] == '\n' && !lines:
			return i, true // an error, which the interpreter tells better
		}
	}
	return len(s), !lines
}

// inShellBlock counts the words that open and close blocks.
func inShellBlock(s string) bool {
	depth := 0
	start := true // of a command: elsewhere these are plain words
	for word := range strings.FieldsSeq(strings.NewReplacer(";", " ; ", "\n", " ; ", "&", " ; ", "|", " ; ").Replace(s)) {
		switch {
		case start && (word == "if" || word == "for" || word == "while" || word == "until" || word == "case" || word == "select"):
			depth++
		case start && (word == "fi" || word == "done" || word == "esac"):
			depth--
		}
		start = word == ";" || word == "then" || word == "do" || word == "else" || word == "{" || word == "!" || word == "elif"
	}
	return depth > 0
}
