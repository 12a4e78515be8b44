package conformance

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"belljar"
)

// promiseCases are what results, limits and reports say beyond how an execution ended.
var promiseCases = []testCase{
	{name: "children end with the execution", f: func(s *suite) {
		sb := s.sandbox()
		for _, detached := range []bool{false, true} {
			file := "grown" + strconv.FormatBool(detached)
			c := s.probe(sb, "leave", "/workspace/"+file)
			c.Detach = detached
			s.ended(s.run(c), ending{belljar.Completed, belljar.CauseExit, 0, "", nil})
			size := func() int64 {
				fi, err := sb.Stat(file)
				if err != nil {
					s.Fatal(err)
				}
				return fi.Size()
			}
			before := size()
			time.Sleep(50 * time.Millisecond) // in which a living child writes ten times
			if after := size(); after != before || before == 0 {
				s.Errorf("detached %v: a child wrote %d bytes, then %d", detached, before, after)
			}
		}
	}},
	{name: "a limit that was met by a program that went on", needs: []Feature{Pids, Disk}, f: func(s *suite) {
		sb := s.sandbox(limits(belljar.Limits{Pids: 64, Disk: 4 * belljar.MiB}))
		s.ended(s.run(s.probe(sb, "forks", "200", "goes on")), ending{belljar.Completed, belljar.CauseExit, 0, "", nil})
		s.ended(s.run(s.probe(sb, "fill", "/workspace/full", "goes on")), ending{belljar.Completed, belljar.CauseExit, 0, "", nil})
		if err := sb.Remove("full"); err != nil {
			s.Error(err)
		}
		s.healthy(sb)
	}},
	{name: "innocents are untouched", f: func(s *suite) {
		sb := s.sandbox(limits(belljar.Limits{Output: 64 * belljar.KiB}))
		innocent := s.started(sb, "sleep", "1h")
		for name, end := range map[string]func() *belljar.Result{
			"output": func() *belljar.Result { return s.run(s.probe(sb, "flood")) },
			"timeout": func() *belljar.Result {
				c := s.probe(sb, "stubborn")
				c.Timeout = 50 * time.Millisecond
				return s.run(c)
			},
			"cancel": func() *belljar.Result {
				c := s.started(sb, "stubborn")
				if err := c.Cancel(s.ctx); err != nil {
					s.Error(err)
				}
				return s.wait(c)
			},
			"signal": func() *belljar.Result { return s.run(s.probe(sb, "signal", "9")) },
			"orphan": func() *belljar.Result { return s.run(s.probe(sb, "orphan")) },
		} {
			res := end()
			if st := innocent.State(); st != belljar.Running {
				s.Fatalf("after %s (%s) another execution is %s: %s", name, describe(res), st, describe(s.wait(innocent)))
			}
		}
	}},
	{name: "what was spent", f: func(s *suite) {
		const size = 12 << 20
		res := s.run(s.probe(s.sandbox(), "alloc", strconv.Itoa(size)))
		u := res.Usage
		if u.CPUTimeMs != nil && *u.CPUTimeMs <= 0 {
			s.Errorf("CPU time %v: what was not measured is absent", *u.CPUTimeMs)
		}
		if u.CPUTimeMs != nil && u.UserMs != nil && u.SystemMs != nil && *u.UserMs+*u.SystemMs > *u.CPUTimeMs*1.5+20 {
			s.Errorf("user %v and system %v of %v ms", *u.UserMs, *u.SystemMs, *u.CPUTimeMs)
		}
		if u.PeakMemoryBytes != nil && *u.PeakMemoryBytes < size {
			s.Errorf("peak memory %d, and %d were allocated", *u.PeakMemoryBytes, size)
		}
		if u.PeakPids != nil && *u.PeakPids < 1 {
			s.Errorf("peak pids %d", *u.PeakPids)
		}
		if d := res.FinishedAt.Sub(res.StartedAt).Seconds() * 1e3; res.DurationMs < d-5 || res.DurationMs > d+5 {
			s.Errorf("%v ms from %v to %v", res.DurationMs, res.StartedAt, res.FinishedAt)
		}
	}},
	{name: "limits are named", needs: []Feature{Memory, CPUTime, Pids, Disk}, f: func(s *suite) {
		l := belljar.Limits{Memory: 192 * belljar.MiB, CPUTime: 25 * time.Second, Pids: 32, Disk: 4 * belljar.MiB, Output: 64 * belljar.KiB}
		sb := s.sandbox(limits(l))
		for cause, args := range map[belljar.Cause][]string{
			belljar.CauseMemory: {"alloc", strconv.Itoa(512 << 20)}, belljar.CauseCPU: {"spin"}, belljar.CausePids: {"forks", "200"},
			belljar.CauseDisk: {"fill", "/workspace/full"}, belljar.CauseOutput: {"flood"},
		} {
			c := s.probe(sb, args...)
			if cause == belljar.CauseCPU { // the others must not run out of it on an emulated machine
				c.Limits.CPUTime = 400 * time.Millisecond
			}
			res := s.run(c)
			if res.Cause != cause || res.Error == nil || res.Error.Limit == "" || res.Error.Message == "" {
				s.Errorf("%s: %s, error %+v", cause, describe(res), res.Error)
			}
			if cause == belljar.CauseDisk {
				if err := sb.Remove("full"); err != nil {
					s.Error(err)
				}
			}
		}
	}},
	{name: "report", f: func(s *suite) {
		sb := s.sandbox()
		res := s.run(s.probe(sb, "exit", "0"))
		for what, rep := range map[string]belljar.Report{"sandbox": sb.Report(), "result": res.Confinement} {
			if rep.Mode != sb.Spec().Isolation.Mode {
				s.Errorf("%s: mode %q", what, rep.Mode)
			}
			if len(rep.Layers) != len(belljar.Layers) {
				s.Fatalf("%s: %d lines for %d layers", what, len(rep.Layers), len(belljar.Layers))
			}
			for i, l := range rep.Layers {
				if l.Layer != belljar.Layers[i] || l.Source == "" {
					s.Errorf("%s: line %d is %+v", what, i, l)
				}
				switch l.Status {
				case belljar.LayerApplied:
				case belljar.LayerOff, belljar.LayerUnavailable:
					if l.Reason == "" {
						s.Errorf("%s: %s is %s without a reason", what, l.Layer, l.Status)
					}
				default:
					s.Errorf("%s: %s is %q", what, l.Layer, l.Status)
				}
			}
		}
	}},
	{name: "what is off is reported", needs: []Feature{Layers}, f: func(s *suite) {
		for _, l := range []belljar.Layer{belljar.LayerLandlock, belljar.LayerSeccomp, belljar.LayerCgroup} {
			sb := s.sandbox(func(p *belljar.Spec) { p.Isolation.Layers = map[belljar.Layer]belljar.Want{l: belljar.Off} })
			res := s.run(s.probe(sb, "exit", "0"))
			if got := res.Confinement.Layer(l); got.Status != belljar.LayerOff {
				s.Errorf("%s was switched off: %+v", l, got)
			}
		}
	}},
	{name: "default limits of a program", needs: []Feature{Shell}, f: func(s *suite) {
		sb := s.sandbox()
		res := s.run(sb.Shell("ulimit -n; ulimit -v; ulimit -f; [ $(ulimit -c) -le 1 ] && echo none"))
		if got, want := strings.Fields(string(res.Stdout)), "1024 unlimited unlimited none"; strings.Join(got, " ") != want {
			s.Errorf("limits %q, want %q; %s", got, want, describe(res))
		}
	}},
	{name: "memory is not limited by address space", needs: []Feature{Shell, Memory}, f: func(s *suite) {
		sb := s.sandbox(limits(belljar.Limits{Memory: 64 * belljar.MiB}))
		if res := s.run(sb.Shell("ulimit -v")); string(res.Stdout) != "unlimited\n" {
			s.Errorf("%q: RLIMIT_AS breaks JVM, Go and Node", res.Stdout)
		}
	}},
	{name: "files in memory count against the next", needs: []Feature{Shell, Memory}, f: func(s *suite) {
		sb := s.sandbox(limits(belljar.Limits{Memory: 64 * belljar.MiB, Disk: 48 * belljar.MiB}))
		if res := s.run(sb.Shell("head -c 40000000 /dev/zero > /tmp/held")); res.ExitCode != 0 {
			s.Fatal(describe(res))
		}
		s.ended(s.run(s.probe(sb, "alloc", strconv.Itoa(40<<20))), ending{belljar.Failed, belljar.CauseMemory, -1, "", belljar.ErrOOM})
		if err := sb.Remove("/tmp/held"); err != nil {
			s.Fatal(err)
		}
		s.ended(s.run(s.probe(sb, "alloc", strconv.Itoa(40<<20))), ending{belljar.Completed, belljar.CauseExit, 0, "", nil})
	}},
	{name: "one disk limit for everything writable", needs: []Feature{Shell}, f: func(s *suite) {
		sb := s.sandbox(limits(belljar.Limits{Disk: 8 * belljar.MiB}))
		write := func(name string) *belljar.Result {
			return s.run(sb.Shell("head -c 3000000 /dev/zero > " + name))
		}
		places := []string{"/workspace/a", "/tmp/a", "/dev/shm/a", "$HOME/a"}
		var full []string
		for _, p := range places {
			if res := write(p); res.ExitCode != 0 {
				full = append(full, p)
			}
		}
		if len(full) != 2 {
			s.Errorf("of four times 3 MB in 8 MiB %q had no room", full)
		}
		// The trusted side's files are charged too.
		if err := sb.WriteFile("trusted", make([]byte, 6<<20), 0o600); !errors.Is(err, belljar.ErrFS) {
			s.Errorf("written beyond the limit: %v", err)
		}
		if list, err := sb.List("."); err != nil || strings.Contains(strings.Join(names(list), " "), "trusted") || len(list) != 1 {
			s.Errorf("something half made is left: %q, %v", names(list), err)
		}
		s.healthy(sb)
	}},
	{name: "writes are atomic", f: func(s *suite) {
		sb := s.sandbox()
		const size = 1 << 18
		versions := [][]byte{bytes.Repeat([]byte("a"), size), bytes.Repeat([]byte("b"), size)}
		if err := sb.WriteFile("f", versions[0], 0o644); err != nil {
			s.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := range 60 {
				if err := sb.WriteFile("f", versions[i%2], 0o644); err != nil {
					s.Error(err)
				}
			}
		}()
		reads := 0
		for running := true; running; reads++ {
			select {
			case <-done:
				running = false
			default:
			}
			got, err := sb.ReadFile("f")
			if err != nil || !bytes.Equal(got, versions[0]) && !bytes.Equal(got, versions[1]) {
				s.Errorf("read %d: %d bytes of neither version, %v", reads, len(got), err)
			}
			if reads%16 == 0 {
				if res := s.run(s.probe(sb, "read", "/workspace/f")); len(res.Stdout) == 0 || bytes.Count(res.Stdout, res.Stdout[:1]) != len(res.Stdout) {
					s.Errorf("a program read %d bytes of both versions: %s", len(res.Stdout), describe(res))
				}
			}
		}
		if list, err := sb.List("."); err != nil || len(list) != 1 {
			s.Errorf("left %q, %v", names(list), err)
		}
	}},
	{name: "a mount is read-only unless it says otherwise", needs: []Feature{Mounts}, f: func(s *suite) {
		dir := s.TempDir()
		rw := false
		sb := s.sandbox(func(p *belljar.Spec) {
			p.Mounts = append(p.Mounts[:len(p.Mounts):len(p.Mounts)], belljar.Mount{Source: dir, Target: "/ro"}, belljar.Mount{Source: dir, Target: "/rw", ReadOnly: &rw})
		})
		if res := s.run(s.probe(sb, "append", "/ro/f", "x")); res.ExitCode == 0 {
			s.Error("a program wrote to a read-only mount")
		}
		s.fails("write", sb.WriteFile("/ro/f", nil, 0o600), nil)
		if res := s.run(s.probe(sb, "append", "/rw/f", "x")); res.ExitCode != 0 {
			s.Error(describe(res))
		}
		s.reads(sb, "/ro/f", "x")
		if err := sb.Destroy(s.ctx); err != nil {
			s.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(dir, "f")); err != nil || string(got) != "x" {
			s.Errorf("on the host: %q, %v", got, err)
		}
	}},
	{name: "user root", needs: []Feature{Shell}, f: func(s *suite) {
		sb := s.sandbox()
		if res := s.run(sb.Shell("id -u")); string(res.Stdout) != "1000\n" {
			s.Errorf("uid %q", res.Stdout)
		}
		c := sb.Shell("id -u")
		c.User = "root"
		switch res, err := c.Run(s.ctx); {
		case errors.Is(err, belljar.ErrUnsupported):
			s.Logf("not here: %v", err)
		case err != nil || string(res.Stdout) != "0\n":
			s.Errorf("root: %+v, %v", res, err)
		}
		s.healthy(sb)
	}},
}
