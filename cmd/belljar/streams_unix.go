//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"

	"belljar/cmd/belljar/internal/term"
)

// watchSize calls resize with each new size of the caller's terminal.
func watchSize(resize func(rows, cols uint16)) (stop func()) {
	ch := make(chan os.Signal, 1)
	done := make(chan struct{})
	signal.Notify(ch, syscall.SIGWINCH)
	go func() {
		for {
			select {
			case <-ch:
				resize(term.Size(os.Stdin, os.Stdout, os.Stderr))
			case <-done:
				return
			}
		}
	}()
	return func() {
		signal.Stop(ch)
		close(done)
	}
}
