// Package inside is the program that the conformance suite runs inside of
// sandboxes. It does one thing per command, named by its first argument. The same
// code runs as a real process (conformance/probe) and as a function of the fake
// backend; what differs between the two is in [Sys].
package inside

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Sys is what the probe is run by.
type Sys struct {
	Args           []string // Args[0] is the command
	Env            []string
	Dir            func() (string, error)
	Stdin          io.Reader
	Stdout, Stderr io.Writer

	Catch   func(sigs ...syscall.Signal) <-chan syscall.Signal
	Die     func(syscall.Signal)
	Spawn   func(args ...string) error // a child that runs the probe and holds its streams
	Sleep   func(time.Duration) bool   // false: killed
	Spin    func()                     // uses CPU time until killed
	Alloc   func(bytes int64)
	Fill    func(name string) error // writes until it fails
	Append  func(name string, data []byte) error
	Read    func(name string) ([]byte, error)
	Symlink func(target, name string) error
	Mkfifo  func(name string) error
	Sparse  func(name string, size int64) error
	Remove  func(name string) error
	Mkdir   func(name string) error
	Size    func() (rows, cols uint16, err error) // of the terminal
	Listen  func(port int) error                  // on the loopback; returns once it can be reached
	Dial    func(port int) error
}

// Main runs a command and returns the exit status: 64 for a wrong use, 70 when
// the command itself could not do its work.
func Main(s *Sys) int {
	if len(s.Args) == 0 {
		return s.fail(64, "no command")
	}
	f := commands[s.Args[0]]
	if f == nil {
		return s.fail(64, "no command "+s.Args[0])
	}
	return f(s)
}

func (s *Sys) fail(code int, message string) int {
	_, _ = fmt.Fprintln(s.Stderr, "probe:", message)
	return code
}

func (s *Sys) arg(n int) string {
	if n < len(s.Args) {
		return s.Args[n]
	}
	return ""
}

func (s *Sys) num(n int) int64 {
	v, _ := strconv.ParseInt(s.arg(n), 10, 64)
	return v
}

func (s *Sys) say(text string) { _, _ = io.WriteString(s.Stdout, text) }

func (s *Sys) done(err error) int {
	if err != nil {
		return s.fail(70, err.Error())
	}
	return 0
}

var commands = map[string]func(*Sys) int{
	"exit": func(s *Sys) int { return int(s.num(1)) },
	"listen": func(s *Sys) int {
		if err := s.Listen(int(s.num(1))); err != nil {
			return s.done(err)
		}
		s.say("ready\n")
		s.Sleep(time.Hour)
		return 0
	},
	"dial":   func(s *Sys) int { return s.done(s.Dial(int(s.num(1)))) },
	"signal": func(s *Sys) int { s.Die(syscall.Signal(s.num(1))); return 70 },
	"args": func(s *Sys) int {
		return s.done(json.NewEncoder(s.Stdout).Encode(s.Args[1:]))
	},
	"env": func(s *Sys) int { s.say(strings.Join(s.Env, "\n") + "\n"); return 0 },
	"pwd": func(s *Sys) int {
		d, err := s.Dir()
		s.say(d)
		return s.done(err)
	},
	"cat": func(s *Sys) int {
		_, err := io.Copy(s.Stdout, s.Stdin)
		return s.done(err)
	},
	"out": func(s *Sys) int { // out <bytes to stdout> <bytes to stderr>
		var wg sync.WaitGroup
		for n, w := range []io.Writer{s.Stdout, s.Stderr} {
			wg.Go(func() { _, _ = w.Write(Pattern(n, int(s.num(1+n)))) })
		}
		wg.Wait()
		return 0
	},
	"flood": func(s *Sys) int { // until nobody reads
		b := bytes.Repeat([]byte("y\n"), 16<<10)
		for {
			if _, err := s.Stdout.Write(b); err != nil {
				return 70
			}
		}
	},
	"sleep": func(s *Sys) int { // says ready, then sleeps
		d, err := time.ParseDuration(s.arg(1))
		if err != nil {
			return s.fail(64, err.Error())
		}
		s.say("ready\n")
		s.Sleep(d)
		return 0
	},
	"term": func(s *Sys) int { // ends by itself on SIGTERM
		c := s.Catch(syscall.SIGTERM)
		s.say("ready\n")
		for range 6000 {
			select {
			case <-c:
				s.say("bye\n")
				return 7
			default:
			}
			if !s.Sleep(10 * time.Millisecond) {
				return 70
			}
		}
		return 0
	},
	"stubborn": func(s *Sys) int { // ignores SIGTERM
		s.Catch(syscall.SIGTERM)
		s.say("ready\n")
		s.Sleep(time.Hour)
		return 0
	},
	"orphan": func(s *Sys) int { // leaves a child that holds the streams
		err := s.Spawn("sleep", "1h")
		s.say("left\n")
		return s.done(err)
	},
	"forks": func(s *Sys) int { // forks <n> [goes on]: exit 3 if one fails
		for range s.num(1) {
			if s.Spawn("sleep", "1h") != nil && s.arg(2) == "" {
				return 3
			}
		}
		return 0
	},
	"leave": func(s *Sys) int { // leave <name>: ends once a child writes to the file
		if err := s.Spawn("grow", s.arg(1)); err != nil {
			return s.done(err)
		}
		for {
			if b, err := s.Read(s.arg(1)); err == nil && len(b) > 0 {
				return 0
			}
			if !s.Sleep(5 * time.Millisecond) {
				return 70
			}
		}
	},
	"grow": func(s *Sys) int { // grow <name>: a byte every 5 ms
		for s.Sleep(5 * time.Millisecond) {
			if err := s.Append(s.arg(1), []byte("x")); err != nil {
				return s.done(err)
			}
		}
		return 0
	},
	"spin":  func(s *Sys) int { s.Spin(); return 0 },
	"alloc": func(s *Sys) int { s.Alloc(s.num(1)); return 0 },
	"fill": func(s *Sys) int { // fill <name> [goes on]: exit 4 when it is full
		if err := s.Fill(s.arg(1)); err != nil && s.arg(2) == "" {
			return 4
		}
		return 0
	},
	"append": func(s *Sys) int { return s.done(s.Append(s.arg(1), []byte(s.arg(2)))) },
	"read": func(s *Sys) int {
		b, err := s.Read(s.arg(1))
		_, _ = s.Stdout.Write(b)
		return s.done(err)
	},
	"link":   func(s *Sys) int { return s.done(s.Symlink(s.arg(1), s.arg(2))) },
	"fifo":   func(s *Sys) int { return s.done(s.Mkfifo(s.arg(1))) },
	"sparse": func(s *Sys) int { return s.done(s.Sparse(s.arg(1), s.num(2))) },
	"tick": func(s *Sys) int { // a line every 5 ms
		for s.Sleep(5 * time.Millisecond) {
			s.say("tick\n")
		}
		return 0
	},
	"swap": func(s *Sys) int { // swap <name> <target>: directory, link, directory, ... until killed
		s.say("ready\n")
		for s.Sleep(0) {
			_ = s.Remove(s.arg(1))
			_ = s.Symlink(s.arg(2), s.arg(1))
			_ = s.Remove(s.arg(1))
			_ = s.Mkdir(s.arg(1))
		}
		return 0
	},
	"size": func(s *Sys) int { // waits for a line, then says the size of the terminal
		var b [1]byte
		for b[0] != '\n' {
			if _, err := s.Stdin.Read(b[:]); err != nil {
				return s.done(err)
			}
		}
		r, c, err := s.Size()
		s.say(fmt.Sprintf("%dx%d\n", r, c))
		return s.done(err)
	},
}

// Pattern returns n bytes that differ by stream and position.
func Pattern(stream, n int) []byte {
	b := make([]byte, n)
	x := uint32(stream)*2654435761 + 1
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}
