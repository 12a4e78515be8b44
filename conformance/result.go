package conformance

import (
	"errors"
	"strconv"
	"strings"
	"syscall"
	"time"

	"belljar"
)

// ending is how an execution is expected to end.
type ending struct {
	state  belljar.State
	cause  belljar.Cause
	code   int
	signal string
	err    *belljar.Error
}

func (s *suite) ended(res *belljar.Result, want ending) {
	s.Helper()
	if res.State != want.state || res.Cause != want.cause || res.ExitCode != want.code || res.Signal != want.signal {
		s.Errorf("ended %s exit %d signal %q, want %s/%s exit %d signal %q",
			describe(res), res.ExitCode, res.Signal, want.state, want.cause, want.code, want.signal)
	}
	switch {
	case want.err == nil && res.Error != nil:
		s.Errorf("error %v, want none", res.Error)
	case want.err != nil && (res.Error == nil || !errors.Is(res.Error, want.err)):
		s.Errorf("error %v, want %s", res.Error, want.err.Code)
	}
	if res.Error != nil && want.err != nil && want.cause != belljar.CauseInfra && !res.Error.Recoverable {
		s.Errorf("error %v is not recoverable", res.Error)
	}
	if res.ID == "" || res.Backend == "" || res.SpecVersion != belljar.SpecVersion {
		s.Errorf("id %q backend %q version %q", res.ID, res.Backend, res.SpecVersion)
	}
	if res.StartedAt.IsZero() || res.FinishedAt.Before(res.StartedAt) || res.DurationMs < 0 {
		s.Errorf("started %v, finished %v, %v ms", res.StartedAt, res.FinishedAt, res.DurationMs)
	}
	if len(res.Confinement.Layers) == 0 {
		s.Error("no confinement report")
	}
}

func limits(l belljar.Limits) func(*belljar.Spec) {
	return func(s *belljar.Spec) { s.Limits = l }
}

var resultCases = []testCase{
	{name: "exit 0", f: func(s *suite) {
		s.ended(s.run(s.probe(s.sandbox(), "exit", "0")), ending{belljar.Completed, belljar.CauseExit, 0, "", nil})
	}},
	{name: "exit n", f: func(s *suite) {
		sb := s.sandbox()
		for _, n := range []int{1, 2, 126, 127, 130, 255} {
			s.ended(s.run(s.probe(sb, "exit", strconv.Itoa(n))), ending{belljar.Failed, belljar.CauseExit, n, "", nil})
		}
	}},
	{name: "own signal", f: func(s *suite) {
		sb := s.sandbox()
		for sig, name := range map[syscall.Signal]string{
			syscall.SIGSEGV: "SIGSEGV", syscall.SIGABRT: "SIGABRT", syscall.SIGKILL: "SIGKILL", syscall.SIGTERM: "SIGTERM",
		} {
			res := s.run(s.probe(sb, "signal", strconv.Itoa(int(sig))))
			s.ended(res, ending{belljar.Failed, belljar.CauseSignal, 128 + int(sig), name, nil})
		}
		s.healthy(sb)
	}},
	{name: "SIGSYS is presumed to be policy", needs: []Feature{Seccomp}, f: func(s *suite) {
		res := s.run(s.probe(s.sandbox(), "signal", strconv.Itoa(31)))
		s.ended(res, ending{belljar.Failed, belljar.CausePolicy, 128 + 31, "SIGSYS", belljar.ErrPolicyDenied})
		if !strings.Contains(res.Error.Message, "presum") {
			s.Errorf("message %q states what is only presumed", res.Error.Message)
		}
	}},
	{name: "not found", f: func(s *suite) {
		sb := s.sandbox()
		for _, name := range []string{"no-such-program", "/no/such/program"} {
			res, err := sb.Command(name).Run(s.ctx)
			if !errors.Is(err, belljar.ErrExecFailed) {
				s.Errorf("%s: error %v, want EXEC_FAILED", name, err)
			}
			if res == nil {
				s.Fatalf("%s: no result", name)
			}
			s.ended(res, ending{belljar.Failed, belljar.CauseInfra, -1, "", belljar.ErrExecFailed})
		}
		s.healthy(sb)
	}},
	{name: "timeout", f: func(s *suite) {
		sb := s.sandbox()
		for _, args := range [][]string{{"sleep", "1h"}, {"stubborn"}, {"spin"}} {
			c := s.probe(sb, args...)
			c.Timeout = 100 * time.Millisecond
			res := s.run(c)
			s.ended(res, ending{belljar.TimedOut, belljar.CauseTimeout, -1, "", belljar.ErrTimeout})
			if res.Error != nil && res.Error.Limit != "100ms" {
				s.Errorf("limit %q, want 100ms", res.Error.Limit)
			}
		}
		s.healthy(sb)
	}},
	{name: "timeout of the spec", f: func(s *suite) {
		sb := s.sandbox(func(p *belljar.Spec) { p.Timeout = 100 * time.Millisecond })
		s.ended(s.run(s.probe(sb, "sleep", "1h")), ending{belljar.TimedOut, belljar.CauseTimeout, -1, "", belljar.ErrTimeout})
	}},
	{name: "cancel", f: func(s *suite) {
		sb := s.sandbox()
		c := s.started(sb, "sleep", "1h")
		for range 2 {
			if err := c.Cancel(s.ctx); err != nil {
				s.Fatal(err)
			}
		}
		s.ended(s.wait(c), ending{belljar.Cancelled, belljar.CauseCancelled, -1, "", belljar.ErrCancelled})
		s.healthy(sb)
	}},
	{name: "cancel lets the program end by itself", f: func(s *suite) {
		c := s.started(s.sandbox(), "term")
		if err := c.Cancel(s.ctx); err != nil {
			s.Fatal(err)
		}
		res := s.wait(c)
		s.ended(res, ending{belljar.Cancelled, belljar.CauseCancelled, -1, "", belljar.ErrCancelled})
		if string(res.Stdout) != "ready\nbye\n" {
			s.Errorf("stdout %q: SIGTERM was not delivered, or its second not granted", res.Stdout)
		}
	}},
	{name: "cancel kills what ignores SIGTERM", f: func(s *suite) {
		c := s.started(s.sandbox(), "stubborn")
		if err := c.Cancel(s.ctx); err != nil {
			s.Fatal(err)
		}
		s.ended(s.wait(c), ending{belljar.Cancelled, belljar.CauseCancelled, -1, "", belljar.ErrCancelled})
	}},
	{name: "cancel after the end changes nothing", f: func(s *suite) {
		c := s.probe(s.sandbox(), "exit", "3")
		s.run(c)
		if err := c.Cancel(s.ctx); err != nil {
			s.Fatal(err)
		}
		s.ended(s.wait(c), ending{belljar.Failed, belljar.CauseExit, 3, "", nil})
	}},
	{name: "output limit", f: func(s *suite) {
		sb := s.sandbox(limits(belljar.Limits{Output: 64 * belljar.KiB}))
		res := s.run(s.probe(sb, "flood"))
		s.ended(res, ending{belljar.Failed, belljar.CauseOutput, -1, "", belljar.ErrOutput})
		if n := len(res.Stdout) + len(res.Stderr); n != 64<<10 {
			s.Errorf("%d bytes kept, want the limit", n)
		}
		if !res.Truncated || res.DroppedBytes == 0 {
			s.Errorf("truncated %v, dropped %d", res.Truncated, res.DroppedBytes)
		}
		// Just as much as allowed is allowed.
		res = s.run(s.probe(sb, "out", strconv.Itoa(60<<10), strconv.Itoa(4<<10)))
		s.ended(res, ending{belljar.Completed, belljar.CauseExit, 0, "", nil})
		s.healthy(sb)
	}},
	{name: "CPU budget", needs: []Feature{CPUTime}, f: func(s *suite) {
		sb := s.sandbox(limits(belljar.Limits{CPUTime: 400 * time.Millisecond})) // an emulated machine needs 100 ms to start the probe
		res := s.run(s.probe(sb, "spin"))
		s.ended(res, ending{belljar.Failed, belljar.CauseCPU, -1, "", belljar.ErrCPU})
		s.healthy(sb)
	}},
	{name: "CPU rate", needs: []Feature{CPURate}, f: func(s *suite) {
		sb := s.sandbox(limits(belljar.Limits{CPU: 0.5}))
		c := s.probe(sb, "spin")
		c.Timeout = time.Second
		res := s.run(c)
		s.ended(res, ending{belljar.TimedOut, belljar.CauseTimeout, -1, "", belljar.ErrTimeout}) // throttled, not killed
		if u := res.Usage.CPUTimeMs; u == nil || *u <= 0 || *u > 0.8*res.DurationMs {
			s.Errorf("used %v ms in %.0f", u, res.DurationMs)
		}
		s.healthy(sb)
	}},
	{name: "memory", needs: []Feature{Memory}, f: func(s *suite) {
		sb := s.sandbox(limits(belljar.Limits{Memory: 64 * belljar.MiB}))
		res := s.run(s.probe(sb, "alloc", strconv.Itoa(512<<20)))
		s.ended(res, ending{belljar.Failed, belljar.CauseMemory, -1, "", belljar.ErrOOM})
		s.healthy(sb)
	}},
	{name: "memory spares innocents", needs: []Feature{Memory}, f: func(s *suite) {
		sb := s.sandbox(limits(belljar.Limits{Memory: 128 * belljar.MiB}))
		innocent := s.started(sb, "sleep", "1h")
		s.ended(s.run(s.probe(sb, "alloc", strconv.Itoa(512<<20))), ending{belljar.Failed, belljar.CauseMemory, -1, "", belljar.ErrOOM})
		if st := innocent.State(); st != belljar.Running {
			s.Errorf("another execution of the sandbox is %s", st)
		}
	}},
	{name: "processes", needs: []Feature{Pids}, f: func(s *suite) {
		sb := s.sandbox(limits(belljar.Limits{Pids: 64}))
		s.ended(s.run(s.probe(sb, "forks", "200")), ending{belljar.Failed, belljar.CausePids, -1, "", belljar.ErrPids})
		s.healthy(sb)
	}},
	{name: "disk", needs: []Feature{Disk}, f: func(s *suite) {
		sb := s.sandbox(limits(belljar.Limits{Disk: 4 * belljar.MiB}))
		s.ended(s.run(s.probe(sb, "fill", "/workspace/full")), ending{belljar.Failed, belljar.CauseDisk, -1, "", belljar.ErrDisk})
		if err := sb.Remove("full"); err != nil {
			s.Error(err)
		}
		s.healthy(sb)
	}},
	{name: "many wait, again and again", f: func(s *suite) {
		c := s.probe(s.sandbox(), "exit", "5")
		if err := c.Start(s.ctx); err != nil {
			s.Fatal(err)
		}
		results := make(chan *belljar.Result, 20)
		for range 10 {
			go func() {
				res, _ := c.Wait(s.ctx)
				results <- res
			}()
		}
		first := s.wait(c)
		for range 10 {
			if got := await(s, results); got != first {
				s.Errorf("another result: %+v", got)
			}
		}
		s.ended(first, ending{belljar.Failed, belljar.CauseExit, 5, "", nil})
		if c.State() != belljar.Failed {
			s.Errorf("state %s", c.State())
		}
	}},
	{name: "times and phases", f: func(s *suite) {
		res := s.run(s.probe(s.sandbox(), "exit", "0"))
		if t := res.Timings; t.SpawnUs < 0 || t.RunUs <= 0 || t.ReapUs < 0 || t.DrainUs < 0 {
			s.Errorf("timings %+v", t)
		}
	}},
}
