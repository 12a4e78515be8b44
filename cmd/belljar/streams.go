package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"belljar"
	"belljar/cmd/belljar/internal/term"

	"github.com/spf13/pflag"
)

// streamFlags say how a program is connected to the caller's streams.
type streamFlags struct {
	stdin  bool
	tty    bool
	filter string
}

func (f *streamFlags) declare(fs *pflag.FlagSet) {
	fs.BoolVarP(&f.stdin, "stdin", "i", false, "pass stdin even when it is a terminal (other stdin is always passed)")
	fs.BoolVarP(&f.tty, "tty", "t", false, "give the program a terminal")
	fs.StringVar(&f.filter, "filter-escapes", "auto", "remove escape sequences that reach beyond the screen: `auto|on|off`;\nauto: when the output is a terminal and -t is not given")
}

// streams are the caller's ends of a program's streams.
type streams struct {
	stdin          io.Reader // nil: none
	stdout, stderr io.Writer
	tty            *belljar.TTY
	restore        func() // undoes raw mode; may be called again
}

func (f *streamFlags) open() (*streams, error) {
	s := &streams{stdout: os.Stdout, stderr: os.Stderr, restore: func() {}}
	filter := func(to *os.File) io.Writer { return to }
	guard := func(to *os.File) io.Writer { return &term.Filter{W: to} }
	switch f.filter {
	case "auto":
		if !f.tty {
			filter = func(to *os.File) io.Writer {
				if term.Is(to) {
					return guard(to)
				}
				return to
			}
		}
	case "on":
		filter = guard
	case "off":
	default:
		return nil, usageError("--filter-escapes", fmt.Sprintf("%q is not auto, on or off", f.filter), "")
	}
	s.stdout, s.stderr = filter(os.Stdout), filter(os.Stderr)
	terminal := term.Is(os.Stdin)
	if f.stdin || f.tty || !terminal {
		s.stdin = os.Stdin
	}
	if f.tty {
		rows, cols := term.Size(os.Stdin, os.Stdout, os.Stderr)
		s.tty = &belljar.TTY{Rows: rows, Cols: cols}
	}
	return s, nil
}

// raw puts the caller's terminal into raw mode when the program has one of its own.
func (s *streams) raw() error {
	if s.tty == nil || !term.Is(os.Stdin) {
		return nil
	}
	restore, err := term.Raw(os.Stdin)
	if err == nil {
		s.restore = restore
	}
	return err
}

// terminalEnv is what a program with a terminal has to know of it.
func terminalEnv(env map[string]string) []string {
	if _, ok := env["TERM"]; ok {
		return nil
	}
	t := os.Getenv("TERM")
	if t == "" || len(t) > 64 || strings.ContainsFunc(t, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-+._", r)
	}) {
		t = "xterm"
	}
	return []string{"TERM=" + t}
}

// interrupts turns signals to this process into calls: the first one asks the
// program to end, further ones do not ask.
type interrupts struct {
	ch   chan os.Signal
	done chan struct{}

	mu    sync.Mutex
	first syscall.Signal
	ask   func()
	force func()
}

func watchInterrupts() *interrupts {
	i := &interrupts{ch: make(chan os.Signal, 8), done: make(chan struct{})}
	signal.Notify(i.ch, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		for {
			select {
			case sig := <-i.ch:
				i.on(sig.(syscall.Signal))
			case <-i.done:
				return
			}
		}
	}()
	return i
}

func (i *interrupts) on(sig syscall.Signal) {
	i.mu.Lock()
	f := i.force
	if i.first == 0 {
		i.first, f = sig, i.ask
	}
	i.mu.Unlock()
	if f != nil {
		go f()
	}
}

// handle says what the signals do from now on; one that came before asks at once.
func (i *interrupts) handle(ask, force func()) {
	i.mu.Lock()
	i.ask, i.force = ask, force
	late := i.first != 0
	i.mu.Unlock()
	if late {
		go ask()
	}
}

// code is the exit status for what was interrupted: 130 for SIGINT.
func (i *interrupts) code() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.first == 0 {
		return exitCancelled
	}
	return 128 + int(i.first)
}

func (i *interrupts) stop() {
	signal.Stop(i.ch)
	close(i.done)
}

// context returns a context that the first signal ends.
func (i *interrupts) context(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	i.handle(cancel, func() { os.Exit(i.code()) })
	return ctx, cancel
}
