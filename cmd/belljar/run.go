package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"

	"belljar"
	"belljar/cmd/belljar/internal/term"

	"github.com/spf13/cobra"
)

type runFlags struct {
	host    string
	spec    specFlags
	streams streamFlags
	user    string
	json    bool
	report  bool
	copyIn  []pair
	copyOut []pair
}

const runLong = `run makes a sandbox, runs one program in it with the caller's streams, and
removes everything again.

The program sees the host's /usr read-only, an empty /workspace, and nothing
else of the host: no files, no network, no environment, no processes.

Exit status: that of the program, 128+n when signal n killed it; 124 when the
timeout ended it; 137 when a limit did; 125 when belljar itself could not do
what was asked; 126 when the program cannot be executed, 127 when there is
none; 130 after Ctrl-C. What ended the program is said on stderr in one line.

Ctrl-C sends SIGTERM to the program and all its children, and SIGKILL a second
later; a second Ctrl-C kills at once.`

func newRun() *cobra.Command {
	var f runFlags
	c := &cobra.Command{
		Use:   "run [flags] [--] program [args...]",
		Short: "Run one program in a sandbox of its own",
		Long:  runLong,
		Example: `  belljar run -- python3 -c 'print(6*7)'
  echo 'print(1)' | belljar run python3
  belljar run --memory 256MiB --cpu-time 5s --timeout 10s -- python3 job.py
  belljar run --copy-in ./src:/workspace/src --copy-out out:./out -- make -C src
  belljar run -t -- bash
  belljar run -f spec.yaml --json -- python3 -m unittest > result.json`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError("run", "no program given", "belljar run -- program args...")
			}
			return run(cmd.Context(), &f, args)
		},
	}
	fs := c.Flags()
	fs.SetInterspersed(false)
	f.spec.declare(fs)
	fs.StringVarP(&f.user, "user", "u", "", "`user` inside: user (default) or root")
	f.streams.declare(fs)
	fs.StringVar(&f.host, "host", "", "run it on the daemon at `url`: unix:///path, http://host:port or https://host:port\n(default $BELLJAR_HOST; the key is in $BELLJAR_KEY)")
	pairs(fs, &f.copyIn, "copy-in", "copy a file or tree of the host in, before (repeat)")
	pairs(fs, &f.copyOut, "copy-out", "copy a file or tree out, afterwards, also after a failure (repeat)")
	fs.BoolVar(&f.report, "report", false, "say on stderr which layers confined the program")
	fs.BoolVar(&f.json, "json", false, "write the whole result as JSON on stdout instead of the streams")
	return c
}

// run is `belljar run`. It returns after nothing of the sandbox is left.
func run(ctx context.Context, f *runFlags, args []string) (err error) {
	spec, err := f.spec.spec()
	if err != nil {
		return err
	}
	st, err := f.streams.open()
	if err != nil {
		return err
	}
	if f.spec.file == "-" {
		st.stdin = nil // read already
	}
	sig := watchInterrupts()
	defer sig.stop()
	ctx, cancel := sig.context(ctx)
	defer cancel()

	rt, err := runtimeOf(ctx, f.host)
	if err != nil {
		return err
	}
	defer func() {
		stop := term.Progress(os.Stderr, "removing the sandbox")
		closeErr := rt.Close(context.WithoutCancel(ctx))
		stop()
		if closeErr != nil {
			err = errors.Join(err, fmt.Errorf("something of the sandbox is left: %w", closeErr))
		}
	}()
	stop := term.Progress(os.Stderr, "making the sandbox")
	sb, err := rt.Create(ctx, spec)
	stop()
	if err != nil {
		return interrupted(err, sig)
	}
	warnDev(os.Stderr, sb.Report())
	for _, p := range f.copyIn {
		stop := term.Progress(os.Stderr, "copying "+p.src)
		err := copyIn(ctx, sb, p)
		stop()
		if err != nil {
			return interrupted(err, sig)
		}
	}

	cmd := sb.Command(args[0], args[1:]...)
	cmd.User = f.user
	cmd.Stdin, cmd.TTY = st.stdin, st.tty
	if !f.json {
		cmd.Stdout, cmd.Stderr = st.stdout, st.stderr
	}
	if st.tty != nil {
		cmd.Env = terminalEnv(spec.Env)
	}
	res, err := attend(ctx, cmd, sb, st, sig)
	if res == nil {
		return interrupted(err, sig)
	}

	code := exitCode(res, sig.code())
	err = nil
	for _, p := range f.copyOut {
		stop := term.Progress(os.Stderr, "copying "+p.src)
		copyErr := copyOut(context.WithoutCancel(ctx), sb, p)
		stop()
		err = errors.Join(err, copyErr)
	}
	if f.report {
		if e := printReport(os.Stderr, res.Confinement); e != nil {
			err = errors.Join(err, e)
		}
	}
	if f.json {
		if e := printJSON(os.Stdout, res); e != nil {
			err = errors.Join(err, e)
		}
	} else if why := reason(res); why != "" {
		fmt.Fprintln(os.Stderr, "belljar: "+why)
	}
	if err != nil {
		if code == 0 {
			code = exitInfra
		}
		return &exitError{code, err}
	}
	if code != 0 {
		return &exitError{code: code}
	}
	return nil
}

// attend starts a command with the caller's terminal and signals, and waits for it.
func attend(ctx context.Context, cmd *belljar.Cmd, sb *belljar.Sandbox, st *streams, sig *interrupts) (*belljar.Result, error) {
	if err := st.raw(); err != nil {
		return nil, err
	}
	defer st.restore()
	background := context.WithoutCancel(ctx)
	if err := cmd.Start(ctx); err != nil {
		select {
		case <-cmd.Done(): // it ended before it began: there is a result
			return cmd.Wait(background)
		default:
			return nil, err
		}
	}
	if st.tty != nil {
		defer watchSize(func(rows, cols uint16) {
			// The program may just have ended.
			_ = cmd.Resize(rows, cols)
		})()
	}
	sig.handle(
		func() { _ = cmd.Cancel(background) }, // its result tells
		func() { _ = sb.Destroy(background) }, // so does this one's, and Close again
	)
	return cmd.Wait(background)
}

// interrupted gives what was cancelled by a signal the signal's status.
func interrupted(err error, sig *interrupts) error {
	if errors.Is(err, belljar.ErrCancelled) {
		return &exitError{sig.code(), &belljar.Error{Code: belljar.CodeCancelled, Message: "cancelled", Err: err}}
	}
	return err
}

// copyIn copies what a pair names into the sandbox, and makes the directories above.
func copyIn(ctx context.Context, sb *belljar.Sandbox, p pair) error {
	if err := sb.MkdirAll(path.Dir(p.dst), 0o755); err != nil {
		return err
	}
	return sb.CopyIn(ctx, p.src, p.dst)
}

// copyOut copies what a pair names out of the sandbox.
func copyOut(ctx context.Context, sb *belljar.Sandbox, p pair) error {
	dst, err := filepath.Abs(p.dst)
	if err != nil {
		return err
	}
	return sb.CopyOut(ctx, p.src, dst)
}

// readAll reads a spec from a stream, but no more than a spec can be.
func readAll(r io.Reader) ([]byte, error) {
	const most = 1<<20 + 1 // one byte more than ParseSpec takes, so that it refuses
	return io.ReadAll(io.LimitReader(r, most))
}
