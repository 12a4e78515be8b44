package conformance

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"

	"belljar"
	"belljar/conformance/inside"
)

// nasty are arguments that something would change that re-quotes or expands.
var nasty = []string{
	"", " ", "a b", `"`, `'`, `\`, "$HOME", "`id`", "$(id)", "*", "~", "a\nb", "\t", "-", "--", "#x", "&&", ";", "é", "\xff\xfe", "%s",
}

var commandCases = []testCase{
	{name: "arguments arrive as given", f: func(s *suite) {
		args := slices.DeleteFunc(slices.Clone(nasty), func(a string) bool { return strings.Contains(a, "\xff") }) // JSON cannot say them
		res := s.run(s.probe(s.sandbox(), append([]string{"args"}, args...)...))
		var got []string
		if err := json.Unmarshal(res.Stdout, &got); err != nil {
			s.Fatal(err)
		}
		if d := cmp.Diff(args, got); d != "" {
			s.Error(d)
		}
	}},
	{name: "shell", needs: []Feature{Shell}, f: func(s *suite) {
		sb := s.sandbox(func(p *belljar.Spec) { p.Env = map[string]string{"INSIDE": "in"} })
		for script, want := range map[string]string{
			`echo "$INSIDE" '$INSIDE' \$INSIDE`: "in $INSIDE $INSIDE\n",
			"printf '%s|' a  b 'c  d'":          "a|b|c  d|",
			"exec 3>&1; echo x >&3":             "x\n",
			"cd /; pwd":                         "/\n",
		} {
			if res := s.run(sb.Shell(script)); string(res.Stdout) != want {
				s.Errorf("%s: %q, want %q; %s", script, res.Stdout, want, describe(res))
			}
		}
		if res := s.run(sb.Shell("exit 9")); res.ExitCode != 9 {
			s.Errorf("exit %d", res.ExitCode)
		}
	}},
	{name: "environment", f: func(s *suite) {
		s.Setenv("BELLJAR_CONFORMANCE_SECRET", "of the host")
		sb := s.sandbox(func(p *belljar.Spec) { p.Env = map[string]string{"A": "spec", "B": "spec", "LANG": "xx"} })
		c := s.probe(sb, "env")
		c.Env = []string{"B=cmd", "C=1", "C=2", "EMPTY=", "EQ=a=b"}
		env := map[string]string{}
		for _, kv := range strings.Split(strings.TrimSpace(string(s.run(c).Stdout)), "\n") {
			k, v, _ := strings.Cut(kv, "=")
			if _, twice := env[k]; twice {
				s.Errorf("%s is there twice", k)
			}
			env[k] = v
		}
		for k, want := range map[string]string{"A": "spec", "B": "cmd", "C": "2", "EMPTY": "", "EQ": "a=b", "LANG": "xx", "TMPDIR": "/tmp"} {
			if got, ok := env[k]; !ok || got != want {
				s.Errorf("%s=%q, want %q", k, got, want)
			}
		}
		if env["PATH"] == "" || env["HOME"] == "" {
			s.Errorf("PATH %q HOME %q", env["PATH"], env["HOME"])
		}
		if _, there := env["BELLJAR_CONFORMANCE_SECRET"]; there {
			s.Error("the host's environment is inherited")
		}
	}},
	{name: "directory", f: func(s *suite) {
		sb := s.sandbox()
		if err := sb.MkdirAll("sub/dir", 0o755); err != nil {
			s.Fatal(err)
		}
		for dir, want := range map[string]string{
			"": "/workspace", "sub": "/workspace/sub", "sub/../sub/dir": "/workspace/sub/dir", "/tmp": "/tmp", "/": "/",
		} {
			c := s.probe(sb, "pwd")
			c.Dir = dir
			if res := s.run(c); string(res.Stdout) != want {
				s.Errorf("dir %q: %q, want %q; %s", dir, res.Stdout, want, describe(res))
			}
		}
		c := s.probe(sb, "pwd")
		c.Dir = "/no/such/dir"
		if res, err := c.Run(s.ctx); !errors.Is(err, belljar.ErrExecFailed) {
			s.Errorf("missing directory: %+v, %v", res, err)
		}
	}},
	{name: "working directory of the spec", f: func(s *suite) {
		sb := s.sandbox(func(p *belljar.Spec) { p.WorkDir = "/srv/work" })
		if res := s.run(s.probe(sb, "pwd")); string(res.Stdout) != "/srv/work" {
			s.Errorf("%q; %s", res.Stdout, describe(res))
		}
	}},
	{name: "invalid", f: func(s *suite) {
		sb := s.sandbox()
		for name, c := range map[string]*belljar.Cmd{
			"no program":   sb.Command(""),
			"NUL":          sb.Command("x", "a\x00b"),
			"env":          {Args: nil},
			"negative":     nil,
			"id":           nil,
			"user":         nil,
			"raised limit": nil,
		} {
			if c == nil || c.Args == nil {
				c = s.probe(sb, "exit", "0")
			}
			switch name {
			case "env":
				c.Env = []string{"NOEQUALS"}
			case "negative":
				c.Timeout = -time.Second
			case "id":
				c.ID = "../x"
			case "user":
				c.User = "nobody-here"
			case "raised limit":
				c.Limits.Pids = 100_000
			}
			if _, err := c.Run(s.ctx); !errors.Is(err, belljar.ErrInvalidSpec) {
				s.Errorf("%s: %v, want INVALID_SPEC", name, err)
			}
		}
		s.healthy(sb)
	}},
	{name: "limits of one execution", f: func(s *suite) {
		sb := s.sandbox(limits(belljar.Limits{Output: 1000}))
		c := s.probe(sb, "out", "500", "0")
		c.Limits.Output = 100
		s.ended(s.run(c), ending{belljar.Failed, belljar.CauseOutput, -1, "", belljar.ErrOutput})
		s.ended(s.run(s.probe(sb, "out", "500", "0")), ending{belljar.Completed, belljar.CauseExit, 0, "", nil})
	}},
	{name: "twice", f: func(s *suite) {
		c := s.probe(s.sandbox(), "exit", "0")
		s.run(c)
		if err := c.Start(s.ctx); !errors.Is(err, belljar.ErrConflict) {
			s.Errorf("second start: %v", err)
		}
	}},
	{name: "not started", f: func(s *suite) {
		c := s.probe(s.sandbox(), "exit", "0")
		if _, err := c.Wait(s.ctx); !errors.Is(err, belljar.ErrConflict) {
			s.Errorf("wait: %v", err)
		}
		if c.State() != "" || c.Done() != nil {
			s.Errorf("state %q", c.State())
		}
	}},
	{name: "one id runs once", f: func(s *suite) {
		sb := s.sandbox()
		results := make(chan *belljar.Result, 20)
		const n = 20
		for range n {
			go func() {
				c := s.probe(sb, "append", "/workspace/runs", "x")
				c.ID = "client-1"
				res, err := c.Run(s.ctx)
				if err != nil {
					s.Error(err)
				}
				results <- res
			}()
		}
		var first *belljar.Result
		for range n {
			res := await(s, results)
			if first == nil {
				first = res
			}
			if res != first {
				s.Errorf("another result: %+v", res)
			}
		}
		if got, err := sb.ReadFile("runs"); err != nil || string(got) != "x" {
			s.Errorf("ran %d times: %v", len(got), err)
		}
		if first.ID != "client-1" {
			s.Errorf("id %q", first.ID)
		}
		c := s.probe(sb, "exit", "0")
		c.ID = "client-1"
		if _, err := c.Run(s.ctx); !errors.Is(err, belljar.ErrConflict) {
			s.Errorf("other command with the same id: %v", err)
		}
	}},
	{name: "attach gets everything", f: func(s *suite) {
		sb := s.sandbox()
		c := s.probe(sb, "cat")
		c.ID = "long"
		in, err := c.StdinPipe()
		if err != nil {
			s.Fatal(err)
		}
		out, err := c.StdoutPipe()
		if err != nil {
			s.Fatal(err)
		}
		if err := c.Start(s.ctx); err != nil {
			s.Fatal(err)
		}
		first, second := inside.Pattern(0, 100_000), inside.Pattern(1, 100_000)
		go func() { _, _ = in.Write(first) }()
		got := make([]byte, len(first))
		if _, err := readFull(out, got); err != nil || !bytes.Equal(got, first) {
			s.Fatalf("first part: %v", err)
		}
		a, err := sb.Attach("long")
		if err != nil {
			s.Fatal(err)
		}
		var all bytes.Buffer
		a.Stdout = &all
		if err := a.Start(s.ctx); err != nil {
			s.Fatal(err)
		}
		go func() {
			_, _ = in.Write(second)
			_ = in.Close()
		}()
		if _, err := readFull(out, got); err != nil || !bytes.Equal(got, second) {
			s.Fatalf("second part: %v", err)
		}
		res := s.wait(a)
		if want := append(first, second...); !bytes.Equal(all.Bytes(), want) || !bytes.Equal(res.Stdout, want) {
			s.Errorf("attached got %d bytes, kept %d, want %d", all.Len(), len(res.Stdout), len(want))
		}
		// And once more, after the end.
		late, err := sb.Attach("long")
		if err != nil {
			s.Fatal(err)
		}
		var again bytes.Buffer
		late.Stdout = &again
		if res2 := s.run(late); res2 != res || !bytes.Equal(again.Bytes(), all.Bytes()) {
			s.Errorf("late: %d bytes", again.Len())
		}
		if _, err := sb.Attach("unknown"); !errors.Is(err, belljar.ErrNotFound) {
			s.Errorf("unknown id: %v", err)
		}
	}},
	{name: "queue", config: belljar.Config{MaxExecutions: 1, QueueLength: 2}, f: func(s *suite) {
		sb := s.sandbox()
		running := s.started(sb, "sleep", "1h")
		var queued [2]*belljar.Cmd
		for i := range queued {
			queued[i] = s.probe(sb, "exit", "7")
			if err := queued[i].Start(s.ctx); err != nil {
				s.Fatal(err)
			}
			if st := queued[i].State(); st != belljar.Queued {
				s.Errorf("state %s, want queued", st)
			}
		}
		if _, err := s.probe(sb, "exit", "0").Run(s.ctx); !errors.Is(err, belljar.ErrQuotaExceeded) {
			s.Errorf("beyond the queue: %v", err)
		}
		if err := queued[0].Cancel(s.ctx); err != nil {
			s.Fatal(err)
		}
		if res := s.wait(queued[0]); res.State != belljar.Cancelled || res.ExitCode != -1 {
			s.Errorf("cancelled in the queue: %s", describe(res))
		}
		if err := running.Cancel(s.ctx); err != nil {
			s.Fatal(err)
		}
		res := s.wait(queued[1])
		s.ended(res, ending{belljar.Failed, belljar.CauseExit, 7, "", nil})
		if res.Timings.QueueUs == 0 {
			s.Error("no time in the queue")
		}
		s.healthy(sb)
	}},
	{name: "refuse", config: belljar.Config{MaxExecutions: 1, Admission: belljar.Refuse}, f: func(s *suite) {
		sb := s.sandbox()
		c := s.started(sb, "sleep", "1h")
		if _, err := s.probe(sb, "exit", "0").Run(s.ctx); !errors.Is(err, belljar.ErrQuotaExceeded) {
			s.Errorf("second: %v", err)
		}
		if err := c.Cancel(s.ctx); err != nil {
			s.Fatal(err)
		}
		s.healthy(sb)
	}},
}
