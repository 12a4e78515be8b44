// Belljar runs programs that nobody should trust, and shows what confined them.
//
// This command only wires: it turns flags into a [belljar.Spec], gives the
// streams of the terminal to a [belljar.Cmd], and prints results. It is the one
// place of the module that installs signal handlers and reads the environment.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"belljar"
	"belljar/bench"
	"belljar/lab"
	"belljar/lab/attack"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Exit statuses of belljar itself, in the manner of timeout(1) and env(1).
// Everything else is the program's own.
const (
	exitOK            = 0
	exitFailed        = 1   // a verb other than run and exec was refused, or a check did not pass
	exitTimeout       = 124 // the wall clock ended the program
	exitInfra         = 125 // wrong usage, an invalid spec, or the machinery failed
	exitNotExecutable = 126
	exitNotFound      = 127
	exitCancelled     = 130
	exitLimit         = 137 // a limit ended the program, or made it fail
)

// exitError ends the command with a status; err may be nil: nothing is printed.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func main() {
	hidden()
	os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr))
}

// hidden ends the process when it was started as a part of the laboratory or of
// the benchmarks.
func hidden() {
	attack.MaybeMain()
	bench.MaybeMain()
	lab.MaybeSupervise(newRuntime)
}

// execute runs one command line and returns its exit status.
func execute(args []string, stdout, stderr io.Writer) int {
	first := ""
	if len(args) > 0 {
		first = args[0]
	}
	root := newRoot(first)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteC()
	if err == nil {
		return exitOK
	}
	code := exitFailed
	if runsPrograms(cmd) {
		code = exitInfra
	}
	if e := (*exitError)(nil); errors.As(err, &e) {
		code = e.code
		if e.err == nil {
			return code
		}
		err = e.err
	}
	fmt.Fprintf(stderr, "belljar: %s\n", oneLine(err))
	return code
}

// runsPrograms says that the status of a command is that of a program, so that
// failures of belljar itself need one of their own.
func runsPrograms(cmd *cobra.Command) bool {
	return cmd.Name() == "exec" || cmd.Name() == "run" && cmd.Parent() == cmd.Root()
}

// oneLine is err on one line without bytes that a terminal would obey.
func oneLine(err error) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0:
			return '?'
		}
		return r
	}, strings.TrimSpace(err.Error()))
}

func usageError(op, message, hint string) error {
	return &belljar.Error{Code: belljar.CodeInvalidSpec, Op: op, Message: message, Hint: hint}
}

const rootLong = `belljar runs programs that nobody should trust, on this machine, and shows what
confined them.`

type verb struct {
	name, group string
	make        func() *cobra.Command
}

// commands are the verbs.
var commands = []verb{
	{"run", "run", newRun},
	{"cell", "run", newCell},
	{"create", "keep", newCreate},
	{"exec", "keep", newExec},
	{"ps", "keep", newPs},
	{"top", "keep", newTop},
	{"logs", "keep", newLogs},
	{"cp", "keep", newCp},
	{"rm", "keep", newRm},
	{"gc", "keep", newGC},
	{"serve", "serve", newServe},
	{"audit", "serve", newAudit},
	{"doctor", "trust", newDoctor},
	{"lab", "trust", newLab},
	{"bench", "trust", newBench},
	{"version", "", newVersion},
	{attendVerb, "", newAttend},
}

// newRoot returns the command line. When only one verb is asked for, the others
// are not made: a run has no time for them.
func newRoot(only string) *cobra.Command {
	root := &cobra.Command{
		Use:   "belljar",
		Short: "Run untrusted programs, and show what confined them",
		Long:  rootLong,
		Example: `  belljar run -- python3 -c 'print(6*7)'
  belljar run --memory 256MiB --timeout 10s --report -- ls -l
  belljar doctor --grade`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				hint := "see belljar --help"
				if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
					hint = "did you mean " + strings.Join(s, " or ") + "?"
				}
				return &exitError{exitInfra, usageError("", fmt.Sprintf("no command %q", args[0]), hint)}
			}
			return cmd.Help()
		},
	}
	root.SuggestionsMinimumDistance = 2
	root.SetFlagErrorFunc(flagError)
	root.AddGroup(
		&cobra.Group{ID: "run", Title: "Run programs:"},
		&cobra.Group{ID: "keep", Title: "Sandboxes that outlive one command:"},
		&cobra.Group{ID: "serve", Title: "Serve others:"},
		&cobra.Group{ID: "trust", Title: "See what holds:"},
	)
	alone := slices.ContainsFunc(commands, func(v verb) bool { return v.name == only })
	for _, v := range commands {
		if !alone || v.name == only {
			c := v.make()
			c.GroupID = v.group
			root.AddCommand(c)
		}
	}
	return root
}

// flagError words what pflag found in the manner of this module's errors.
func flagError(cmd *cobra.Command, err error) error {
	op := cmd.Name()
	hint := "see " + cmd.CommandPath() + " --help"
	msg := err.Error()
	if v := (*pflag.InvalidValueError)(nil); errors.As(err, &v) {
		op += " --" + v.GetFlag().Name
		msg = v.Unwrap().Error()
		if e := (*belljar.Error)(nil); errors.As(v.Unwrap(), &e) {
			msg = e.Message
			hint = e.Hint
		}
	}
	if errors.Is(err, pflag.ErrHelp) {
		return err
	}
	return &exitError{exitInfra, usageError(op, msg, hint)}
}
