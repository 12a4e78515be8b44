package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"belljar"
	"belljar/cmd/belljar/internal/attendant"
	"belljar/cmd/belljar/internal/term"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// keepFlags find the attendant.
type keepFlags struct {
	dir string
}

func (f *keepFlags) declare(fs *pflag.FlagSet) {
	fs.StringVar(&f.dir, "state-dir", "", "`dir` that keeps what outlives a command\n(default $BELLJAR_STATE_DIR, else /run/belljar for root)")
}

// client returns the one way to the sandboxes of a state directory.
func (f *keepFlags) client() (*attendant.Client, error) {
	dir := cmp.Or(f.dir, os.Getenv("BELLJAR_STATE_DIR"))
	if dir == "" {
		var err error
		if dir, err = defaultStateDir(); err != nil {
			return nil, err
		}
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	return &attendant.Client{Dir: dir, Command: []string{"belljar", attendVerb, dir}}, nil
}

// defaultStateDir is where the state of this user is by convention: gone at the
// next boot, as the sandboxes are, where the system has such a place.
func defaultStateDir() (string, error) {
	if os.Geteuid() == 0 {
		return "/run/belljar", nil
	}
	if d := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(d) {
		return filepath.Join(d, "belljar"), nil
	}
	if d := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(d) {
		return filepath.Join(d, "belljar"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", &belljar.Error{Code: belljar.CodeUnavailable, Op: "state directory", Message: err.Error(), Hint: "set BELLJAR_STATE_DIR"}
	}
	return filepath.Join(home, ".local", "state", "belljar"), nil
}

// attendVerb is the hidden verb of the process that keeps sandboxes.
const attendVerb = "attend"

func newAttend() *cobra.Command {
	return &cobra.Command{
		Use:    attendVerb + " state-dir",
		Short:  "Keep the sandboxes of a state directory (started by other commands)",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			sig := watchInterrupts()
			defer sig.stop()
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			sig.handle(cancel, cancel)
			said := os.NewFile(3, "ready")
			told := false
			s := &attendant.Server{Dir: args[0], Runtime: newRuntime, ExitCode: func(res *belljar.Result, err error) int {
				if res == nil {
					return failureCode(err)
				}
				return exitCode(res, exitCancelled)
			}}
			return s.Serve(ctx, func(err error) {
				if told {
					return
				}
				told = true
				attendant.Report(said, err)
				_ = said.Close()
			})
		},
	}
}

func newCreate() *cobra.Command {
	var keep keepFlags
	var spec specFlags
	var asJSON bool
	c := &cobra.Command{
		Use:   "create [flags] [name]",
		Short: "Make a sandbox that stays until it is removed",
		Long: `create makes a sandbox that outlives this command, and prints its name. It stays
until belljar rm, or until its --ttl or --idle-timeout ends it.

It is kept by an attendant, a process of this user that the first create starts
and that ends with the last sandbox. Nothing else has to be installed or started.`,
		Example: `  belljar create --memory 512MiB box
  belljar exec box -- sh -c 'echo hello > note'
  belljar cp box:note .
  belljar rm box`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := spec.spec()
			if err != nil {
				return err
			}
			if len(args) == 1 {
				s.Name = args[0]
			}
			reply, err := keep.do(cmd.Context(), "making the sandbox", &attendant.Request{Op: attendant.OpCreate, Spec: &s})
			if err != nil {
				return err
			}
			warnDev(os.Stderr, *reply.Report)
			if asJSON {
				return printJSON(os.Stdout, reply.Sandbox)
			}
			fmt.Println(reply.Sandbox.Name)
			return nil
		},
	}
	fs := c.Flags()
	spec.declare(fs)
	spec.lifetime(fs)
	keep.declare(fs)
	fs.BoolVar(&asJSON, "json", false, "write JSON")
	return c
}

// do asks the attendant for something that may be interrupted.
func (f *keepFlags) do(ctx context.Context, what string, req *attendant.Request, files ...*os.File) (*attendant.Reply, error) {
	c, err := f.client()
	if err != nil {
		return nil, err
	}
	sig := watchInterrupts()
	defer sig.stop()
	ctx, cancel := sig.context(ctx)
	defer cancel()
	stop := term.Progress(os.Stderr, what)
	defer stop()
	reply, err := c.Do(ctx, req, files...)
	if err != nil {
		return nil, interrupted(err, sig)
	}
	return reply, nil
}

func newExec() *cobra.Command {
	var keep keepFlags
	var st streamFlags
	var env []string
	var detach, asJSON, report bool
	what := attendant.Command{}
	c := &cobra.Command{
		Use:   "exec [flags] sandbox [--] program [args...]",
		Short: "Run a program in a sandbox that exists",
		Long: `exec runs a program in a sandbox made by create, with the caller's streams and
the exit status of the program, as run does.

With -d it prints an id and returns at once; the program goes on, and its output
is kept (the last 16 MiB of each stream) for belljar logs.`,
		Example: `  belljar exec box -- ls -l
  belljar exec -t box -- bash
  belljar exec -d box -- python3 -m http.server
  belljar exec --id build-7 --timeout 5m box -- make`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: keep.complete(true),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usageError("exec", "a sandbox and a program are needed", "belljar exec box -- program args...")
			}
			what.Args, what.Env, what.Detach = args[1:], env, detach
			if what.Args[0] == "--" {
				if what.Args = what.Args[1:]; len(what.Args) == 0 {
					return usageError("exec", "no program given", "belljar exec box -- program args...")
				}
			}
			if detach {
				reply, err := keep.startDetached(cmd.Context(), args[0], &what)
				if err != nil {
					return err
				}
				if asJSON {
					return printJSON(os.Stdout, map[string]string{"id": reply.Started})
				}
				fmt.Println(reply.Started)
				return nil
			}
			return keep.exec(cmd.Context(), args[0], &what, &st, report, asJSON)
		},
	}
	fs := c.Flags()
	fs.SortFlags = false
	fs.SetInterspersed(false)
	fs.BoolVarP(&detach, "detach", "d", false, "print an id and return; the program goes on without this command")
	st.declare(fs)
	fs.StringArrayVarP(&env, "env", "e", nil, "environment variable `K=V` (repeat)")
	fs.StringVar(&what.Dir, "workdir", "", "`dir` inside to start in")
	fs.StringVarP(&what.User, "user", "u", "", "`user` inside: user (default) or root")
	fs.StringVar(&what.ID, "id", "", "`id` of your choice: a repeat with it attaches and runs nothing twice")
	fs.Var(&parsed{kind: "duration", set: func(v string) (err error) { what.Timeout, err = positive(v); return err }}, "timeout", "wall clock; then it is killed")
	limit := func(name, usage string, to *belljar.Size) {
		fs.Var(&parsed{kind: "size", set: func(v string) (err error) {
			*to, err = belljar.ParseSize(v)
			if err == nil && *to == 0 {
				err = usageError("size", "must be more than zero", "leave the flag out for the sandbox's limit")
			}
			return err
		}}, name, usage)
	}
	limit("memory", "memory of this program; then it is killed", &what.Limits.Memory)
	limit("output", "stdout and stderr together; then it is killed", &what.Limits.Output)
	fs.Var(&parsed{kind: "duration", set: func(v string) (err error) { what.Limits.CPUTime, err = positive(v); return err }}, "cpu-time", "CPU time of the whole process tree; then it is killed")
	fs.BoolVar(&report, "report", false, "say on stderr which layers confined the program")
	fs.BoolVar(&asJSON, "json", false, "write the result as JSON on stderr (with -d: the id, on stdout)")
	keep.declare(fs)
	return c
}

func (f *keepFlags) startDetached(ctx context.Context, sandbox string, what *attendant.Command) (*attendant.Reply, error) {
	c, err := f.client()
	if err != nil {
		return nil, err
	}
	s, err := c.Open(ctx, &attendant.Request{Op: attendant.OpExec, Sandbox: sandbox, Command: what})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return s.Reply()
}

// exec runs a program through the attendant with the caller's streams and signals.
func (f *keepFlags) exec(ctx context.Context, sandbox string, what *attendant.Command, sf *streamFlags, report, asJSON bool) error {
	c, err := f.client()
	if err != nil {
		return err
	}
	st, err := sf.open()
	if err != nil {
		return err
	}
	what.TTY, what.Stdin = st.tty, st.stdin != nil
	if st.tty != nil && !slices.ContainsFunc(what.Env, func(kv string) bool { return strings.HasPrefix(kv, "TERM=") }) {
		what.Env = append(what.Env, terminalEnv(nil)...)
	}
	sig := watchInterrupts()
	defer sig.stop()
	if err := st.raw(); err != nil {
		return err
	}
	defer st.restore()
	pipes, err := attendant.Connect(st.stdin, st.stdout, st.stderr)
	if err != nil {
		return err
	}
	s, err := c.Open(ctx, &attendant.Request{Op: attendant.OpExec, Sandbox: sandbox, Command: what}, pipes.Files...)
	if err != nil {
		return err
	}
	defer s.Close()
	ask := func(op string) func() {
		return func() { _ = s.Send(&attendant.Request{Op: op}) } // it may just have ended
	}
	sig.handle(ask(attendant.OpCancel), ask(attendant.OpKill))
	if st.tty != nil {
		defer watchSize(func(rows, cols uint16) {
			_ = s.Send(&attendant.Request{Op: attendant.OpResize, Rows: rows, Cols: cols})
		})()
	}
	var reply *attendant.Reply
	for {
		if reply, err = s.Reply(); err != nil || reply.Started == "" {
			break
		}
	}
	st.restore()
	if reply == nil || reply.Result == nil {
		if reply != nil && reply.Code != 0 {
			return &exitError{reply.Code, err}
		}
		return err
	}
	pipes.Wait()
	if reply.Report != nil {
		warnDev(os.Stderr, *reply.Report)
	}
	res := reply.Result
	if report {
		if err := printReport(os.Stderr, res.Confinement); err != nil {
			return err
		}
	}
	if asJSON {
		if err := printJSON(os.Stderr, res); err != nil {
			return err
		}
	} else if why := reason(res); why != "" {
		fmt.Fprintln(os.Stderr, "belljar: "+why)
	}
	code := reply.Code
	if res.Cause == belljar.CauseCancelled {
		code = sig.code()
	}
	if code != 0 {
		return &exitError{code: code}
	}
	return nil
}

func newPs() *cobra.Command {
	var keep keepFlags
	var all, asJSON, quiet bool
	c := &cobra.Command{
		Use:     "ps",
		Short:   "List sandboxes and what runs in them",
		Example: "  belljar ps\n  belljar ps -a --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := keep.list(cmd.Context())
			if err != nil {
				return err
			}
			if !all {
				l.Executions = slices.DeleteFunc(l.Executions, func(e attendant.ExecInfo) bool { return !e.Finished.IsZero() })
			}
			switch {
			case asJSON:
				return printJSON(os.Stdout, l)
			case quiet:
				for _, s := range l.Sandboxes {
					fmt.Println(s.Name)
				}
				return nil
			}
			return printListing(l)
		},
	}
	fs := c.Flags()
	fs.BoolVarP(&all, "all", "a", false, "show executions that have ended, too")
	fs.BoolVarP(&quiet, "quiet", "q", false, "print the names of the sandboxes only")
	fs.BoolVar(&asJSON, "json", false, "write JSON")
	keep.declare(fs)
	return c
}

// list asks for what exists, and starts nobody when nothing can.
func (f *keepFlags) list(ctx context.Context) (*attendant.Listing, error) {
	c, err := f.client()
	if err != nil {
		return nil, err
	}
	if !c.Exists() {
		return &attendant.Listing{Sandboxes: []attendant.SandboxInfo{}, Executions: []attendant.ExecInfo{}}, nil
	}
	reply, err := f.do(ctx, "asking the attendant", &attendant.Request{Op: attendant.OpList})
	if err != nil {
		return nil, err
	}
	return reply.Listing, nil
}

func printListing(l *attendant.Listing) error {
	names := map[string]string{}
	rows := [][]string{{"SANDBOX", "STATE", "AGE", "LEFT", "RUNNING", "MODE", "ID"}}
	for _, s := range l.Sandboxes {
		names[s.ID] = s.Name
		left := "-"
		if !s.Expires.IsZero() {
			left = age(time.Until(s.Expires))
		}
		rows = append(rows, []string{s.Name, string(s.State), age(time.Since(s.Created)), left, fmt.Sprint(s.Executions), string(s.Mode), s.ID})
	}
	if err := term.Table(os.Stdout, rows); err != nil || len(l.Executions) == 0 {
		return err
	}
	fmt.Println()
	rows = [][]string{{"EXECUTION", "SANDBOX", "STATE", "EXIT", "AGE", "COMMAND"}}
	for _, e := range l.Executions {
		exit, since := "-", "-"
		if !e.Finished.IsZero() {
			exit = fmt.Sprint(e.Code)
		}
		if !e.Started.IsZero() {
			since = age(time.Since(e.Started))
		}
		rows = append(rows, []string{e.ID, names[e.Sandbox], string(e.State), exit, since, commandLine(e.Args)})
	}
	return term.Table(os.Stdout, rows)
}

// commandLine is argv on one line, for people.
func commandLine(args []string) string {
	if len(args) == 0 {
		return "(adopted)"
	}
	const most = 60
	s := oneLine(errors.New(strings.Join(args, " ")))
	if r := []rune(s); len(r) > most {
		return string(r[:most-3]) + "..."
	}
	return s
}

// age is a duration in one or two units.
func age(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

func newTop() *cobra.Command {
	var keep keepFlags
	var once, asJSON bool
	c := &cobra.Command{
		Use:   "top",
		Short: "Show what the sandboxes use",
		Long:  "top shows what each sandbox used so far and uses now, again every two seconds on\na terminal, until Ctrl-C.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			sig := watchInterrupts()
			defer sig.stop()
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			sig.handle(cancel, cancel)
			again := !once && !asJSON && term.Is(os.Stdout)
			var before map[string]float64
			var at time.Time
			for {
				l, err := keep.list(ctx)
				if err != nil {
					return err
				}
				if asJSON {
					return printJSON(os.Stdout, l.Sandboxes)
				}
				if again {
					fmt.Print("\x1b[H\x1b[J")
				}
				now := map[string]float64{}
				for _, s := range l.Sandboxes {
					if ms := s.Usage.CPUTimeMs; ms != nil {
						now[s.ID] = *ms
					}
				}
				if err := printTop(l, before, now, time.Since(at)); err != nil || !again {
					return err
				}
				before, at = now, time.Now()
				select {
				case <-ctx.Done():
					return nil
				case <-time.After(2 * time.Second):
				}
			}
		},
	}
	fs := c.Flags()
	fs.BoolVar(&once, "once", false, "show it once")
	fs.BoolVar(&asJSON, "json", false, "write JSON, once")
	keep.declare(fs)
	return c
}

func printTop(l *attendant.Listing, before, now map[string]float64, passed time.Duration) error {
	number := func(n *int64, show func(int64) string) string {
		if n == nil {
			return "-"
		}
		return show(*n)
	}
	plain := func(n int64) string { return fmt.Sprint(n) }
	rows := [][]string{{"SANDBOX", "RUNNING", "CPU%", "CPU TIME", "PEAK MEMORY", "PEAK PIDS", "READ", "WRITTEN"}}
	for _, s := range l.Sandboxes {
		rate, total := "-", "-"
		if ms, ok := now[s.ID]; ok {
			total = time.Duration(ms * float64(time.Millisecond)).Round(time.Millisecond).String()
			if b, ok := before[s.ID]; ok {
				rate = fmt.Sprintf("%.0f", (ms-b)*100/float64(max(1, passed.Milliseconds())))
			}
		}
		u := s.Usage
		rows = append(rows, []string{
			s.Name, fmt.Sprint(s.Executions), rate, total,
			number(u.PeakMemoryBytes, humanBytes), number(u.PeakPids, plain), number(u.IOReadBytes, humanBytes), number(u.IOWriteBytes, humanBytes),
		})
	}
	return term.Table(os.Stdout, rows)
}

func newLogs() *cobra.Command {
	var keep keepFlags
	var follow bool
	var filter string
	c := &cobra.Command{
		Use:   "logs [-f] execution",
		Short: "Show the output of an execution",
		Long: `logs writes what is kept of an execution's output, the last 16 MiB of each stream,
to stdout and stderr. With -f it goes on until the execution ends, and ends with its
exit status.`,
		Example:           "  id=$(belljar exec -d box -- make)\n  belljar logs -f $id",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: keep.complete(false),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := keep.client()
			if err != nil {
				return err
			}
			sf := streamFlags{filter: filter}
			st, err := sf.open()
			if err != nil {
				return err
			}
			if !c.Exists() {
				return &belljar.Error{Code: belljar.CodeNotFound, Op: "logs", Message: fmt.Sprintf("no execution %q", args[0]), Hint: "belljar ps -a lists them"}
			}
			sig := watchInterrupts()
			defer sig.stop()
			ctx, cancel := sig.context(cmd.Context())
			defer cancel()
			pipes, err := attendant.Connect(nil, st.stdout, st.stderr)
			if err != nil {
				return err
			}
			reply, err := c.Do(ctx, &attendant.Request{Op: attendant.OpLogs, Exec: args[0], Follow: follow}, pipes.Outputs()...)
			if err != nil {
				return interrupted(err, sig)
			}
			pipes.Wait()
			if reply.Finished && reply.Code != 0 {
				return &exitError{code: reply.Code}
			}
			return nil
		},
	}
	fs := c.Flags()
	fs.BoolVarP(&follow, "follow", "f", false, "go on until the execution ends; then its exit status")
	fs.StringVar(&filter, "filter-escapes", "auto", "remove escape sequences that reach beyond the screen: `auto|on|off`")
	keep.declare(fs)
	return c
}

func newCp() *cobra.Command {
	var keep keepFlags
	c := &cobra.Command{
		Use:   "cp source destination",
		Short: "Copy files into and out of a sandbox",
		Long: `cp copies a file or a tree between the host and a sandbox; one side is written
sandbox:path, relative to its working directory. A destination that is a directory
gets the copy inside. Instead of the other side, - stands for a tar stream on
stdin or stdout.

Nothing inside can make a copy reach elsewhere: links are copied as links and never
followed, and a tree whose links lead out of it is refused.`,
		Example: `  belljar cp ./src box:
  belljar cp box:out/report.html .
  tar c src | belljar cp - box:/workspace
  belljar cp box:/workspace - | tar t`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error { return keep.copy(cmd.Context(), args[0], args[1]) },
	}
	keep.declare(c.Flags())
	return c
}

// remote splits sandbox:path. What begins with a slash or a dot is of the host.
func remote(s string) (sandbox, name string, ok bool) {
	sandbox, name, ok = strings.Cut(s, ":")
	if !ok || sandbox == "" || strings.ContainsAny(sandbox, "/.") {
		return "", "", false
	}
	return sandbox, cmp.Or(name, "."), true
}

func (f *keepFlags) copy(ctx context.Context, src, dst string) error {
	from, fromName, out := remote(src)
	to, toName, in := remote(dst)
	if in == out {
		return usageError("cp", "one side must be a sandbox's and the other the host's", "write sandbox:path for the sandbox; ./name for a host file with a colon")
	}
	req := &attendant.Request{Sandbox: cmp.Or(from, to)}
	var files []*os.File
	switch {
	case in && src == "-":
		req.Op, req.Dst = attendant.OpUpload, toName
		p, err := attendant.Connect(os.Stdin)
		if err != nil {
			return err
		}
		files = p.Files
	case out && dst == "-":
		req.Op, req.Src = attendant.OpDownload, fromName
		p, err := attendant.Connect(nil, os.Stdout)
		if err != nil {
			return err
		}
		defer p.Wait()
		files = p.Outputs()
	case in:
		abs, err := filepath.Abs(src)
		if err != nil {
			return err
		}
		req.Op, req.Src, req.Dst = attendant.OpCopyIn, abs, toName
	default:
		abs, err := filepath.Abs(dst)
		if err != nil {
			return err
		}
		if fi, err := os.Stat(abs); err == nil && fi.IsDir() {
			base := filepath.Base(filepath.FromSlash(fromName))
			if base == "." || base == string(filepath.Separator) {
				return usageError("cp", "the copy has no name", "name the new directory, as in belljar cp box:. ./copy")
			}
			abs = filepath.Join(abs, base)
		}
		req.Op, req.Src, req.Dst = attendant.OpCopyOut, fromName, abs
	}
	_, err := f.do(ctx, "copying", req, files...)
	return err
}

func newRm() *cobra.Command {
	var keep keepFlags
	var all, force bool
	c := &cobra.Command{
		Use:               "rm sandbox...",
		Short:             "Remove sandboxes and everything in them",
		Long:              "rm ends everything that runs in the sandboxes and removes their files. It returns\nafter all is gone.",
		Example:           "  belljar rm box\n  belljar rm --all",
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: keep.complete(true),
		RunE: func(cmd *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return usageError("rm", "name sandboxes, or give --all", "belljar ps lists them")
			}
			l, err := keep.list(cmd.Context())
			if err != nil {
				return err
			}
			if all {
				for _, s := range l.Sandboxes {
					args = append(args, s.ID)
				}
			}
			var errs []error
			for _, name := range args {
				if !slices.ContainsFunc(l.Sandboxes, func(s attendant.SandboxInfo) bool { return s.ID == name || s.Name == name }) {
					if !force {
						errs = append(errs, &belljar.Error{Code: belljar.CodeNotFound, Op: "rm", Message: fmt.Sprintf("no sandbox %q", name), Hint: "belljar ps lists them"})
					}
					continue
				}
				_, err := keep.do(cmd.Context(), "removing "+name, &attendant.Request{Op: attendant.OpRemove, Sandbox: name})
				if err != nil && !(force && errors.Is(err, belljar.ErrNotFound)) {
					errs = append(errs, err)
				}
			}
			return errors.Join(errs...)
		},
	}
	fs := c.Flags()
	fs.BoolVar(&all, "all", false, "remove all sandboxes of this state directory")
	fs.BoolVarP(&force, "force", "f", false, "what does not exist is no error")
	keep.declare(fs)
	return c
}

func newGC() *cobra.Command {
	var keep keepFlags
	var asJSON bool
	c := &cobra.Command{
		Use:   "gc",
		Short: "Remove what killed processes left behind",
		Long: `gc removes what is left of sandboxes whose keeper was killed or whose lifetime
ended while nobody looked. It touches nothing that is not provably of such a
sandbox, and says what it skipped.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := keep.client()
			if err != nil {
				return err
			}
			swept := &belljar.Swept{}
			if c.Exists() {
				reply, err := keep.do(cmd.Context(), "looking for remains", &attendant.Request{Op: attendant.OpGC})
				if err != nil {
					return err
				}
				swept = reply.Swept
			}
			if asJSON {
				return printJSON(os.Stdout, swept)
			}
			for _, id := range swept.Removed {
				fmt.Println("removed", id)
			}
			for id, why := range swept.Skipped {
				fmt.Println("skipped", id+":", oneLine(errors.New(why)))
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	keep.declare(c.Flags())
	return c
}

// complete offers the sandboxes, or the executions, that exist.
func (f *keepFlags) complete(sandboxes bool) func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		l, err := f.list(cmd.Context())
		if err != nil || len(args) > 0 && cmd.Name() != "rm" {
			return nil, cobra.ShellCompDirectiveDefault
		}
		var names []string
		for _, s := range l.Sandboxes {
			if sandboxes {
				names = append(names, s.Name)
			}
		}
		for _, e := range l.Executions {
			if !sandboxes {
				names = append(names, e.ID)
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
