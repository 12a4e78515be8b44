// Package attack holds the attacks of the guarantee laboratory as they are
// carried out inside a sandbox: hostile, knowing the mechanism, trying every
// route to one effect. It decides nothing: what it prints is a claim of the
// guest, which the lab checks from the trusted side wherever the effect can be
// seen from there.
//
// The package is linked into small static programs that must start fast, so it
// reaches neither the net packages nor reflection-heavy start-up code.
package attack

import (
	"encoding/json"
	"fmt"
	"os"
	"sort"
)

// Verb is the hidden first argument by which a program that carries this
// package is asked to act as the probe.
const Verb = "lab-probe"

// Report is what an attack prints: one JSON line on standard output.
type Report struct {
	Attack    string `json:"attack"`
	Succeeded bool   `json:"succeeded"`        // the guest says that the effect happened
	Detail    string `json:"detail,omitempty"` // one line
	Steps     []Step `json:"steps,omitempty"`
}

// Step is one route that was tried.
type Step struct {
	Name    string `json:"name"`
	Reached bool   `json:"reached,omitempty"` // this route worked
	Result  string `json:"result,omitempty"`  // errno, or what was found
}

func (r *Report) step(name string, reached bool, result string) {
	r.Steps = append(r.Steps, Step{name, reached, result})
	if reached {
		r.Succeeded = true
	}
}

// try records a route that works when err is nil.
func (r *Report) try(name string, err error) bool {
	r.step(name, err == nil, errText(err))
	return err == nil
}

// note records a fact that is no success.
func (r *Report) note(name, result string) {
	r.Steps = append(r.Steps, Step{Name: name, Result: result})
}

func errText(err error) string {
	if err == nil {
		return "ok"
	}
	return err.Error()
}

// act is one attack or utility. A utility (plain) prints for itself and its
// return value is the exit status.
type act struct {
	attack func(r *Report, args []string)
	plain  func(args []string) int
}

// prefix are the arguments by which the running program is asked to be the probe again.
var prefix []string

// Main carries out one attack: args are its name and arguments, self is what
// must stand before them on a command line of this same program. It returns the
// exit status: 0 when an attack was tried, whatever came of it, and 64 when
// there is no such attack.
func Main(args []string, self ...string) int {
	prefix = self
	acts := all()
	if len(args) == 0 {
		names := make([]string, 0, len(acts))
		for n := range acts {
			names = append(names, n)
		}
		sort.Strings(names)
		for _, n := range names {
			fmt.Println(n)
		}
		return 64
	}
	a, ok := acts[args[0]]
	if !ok {
		fmt.Fprintf(os.Stderr, "no such attack: %q\n", args[0])
		return 64
	}
	if a.plain != nil {
		return a.plain(args[1:])
	}
	r := &Report{Attack: args[0]}
	a.attack(r, args[1:])
	r.print()
	return 0
}

func (r *Report) print() {
	b, err := json.Marshal(r)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	_, _ = os.Stdout.Write(append(b, '\n'))
}

// MaybeMain ends the process as the probe when it was started as one. Programs
// that carry the probe call it first thing.
func MaybeMain() {
	if len(os.Args) > 1 && os.Args[1] == Verb {
		os.Exit(Main(os.Args[2:], Verb))
	}
}
