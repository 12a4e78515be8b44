package conformance

import (
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"belljar"
)

func readFull(r io.Reader, p []byte) (int, error) { return io.ReadFull(r, p) }

var lifeCases = []testCase{
	{name: "identity", f: func(s *suite) {
		sb := s.sandbox(func(p *belljar.Spec) { p.Labels = map[string]string{"k": "v"} })
		if id := sb.ID(); !strings.HasPrefix(id, "sb-") || len(id) != 23 || strings.Trim(id[3:], "abcdefghijklmnopqrstuvwxyz234567") != "" {
			s.Errorf("id %q", id)
		}
		if sb.Name() != sb.ID() || sb.State() != belljar.SandboxReady || sb.Reason() != "" {
			s.Errorf("name %q state %s reason %q", sb.Name(), sb.State(), sb.Reason())
		}
		spec := sb.Spec()
		if spec.WorkDir != "/workspace" || spec.Limits.Pids != 512 || spec.Labels["k"] != "v" {
			s.Errorf("spec %+v", spec)
		}
		spec.Labels["k"] = "changed"
		if sb.Spec().Labels["k"] != "v" {
			s.Error("the spec is not a copy")
		}
		if got, err := s.Runtime.Get(sb.ID()); err != nil || got != sb {
			s.Errorf("get: %v, %v", got, err)
		}
		if err := sb.Alive(s.ctx); err != nil {
			s.Error(err)
		}
		if _, err := sb.Usage(s.ctx); err != nil {
			s.Error(err)
		}
		if len(sb.Report().Layers) == 0 {
			s.Error("no report")
		}
	}},
	{name: "names", f: func(s *suite) {
		named := func(n string) func(*belljar.Spec) { return func(p *belljar.Spec) { p.Name = n } }
		sb := s.sandbox(named("one"))
		if got, err := s.Runtime.Find("", "one"); err != nil || got != sb {
			s.Errorf("find: %v, %v", got, err)
		}
		if _, err := s.Runtime.Create(s.ctx, s.spec(named("one"))); !errors.Is(err, belljar.ErrConflict) {
			s.Errorf("same name: %v", err)
		}
		s.sandbox(named("one"), func(p *belljar.Spec) { p.Tenant = "other" })
		if err := sb.Destroy(s.ctx); err != nil {
			s.Fatal(err)
		}
		s.sandbox(named("one"))
	}},
	{name: "destroy", f: func(s *suite) {
		sb := s.sandbox()
		c := s.started(sb, "stubborn")
		for range 2 {
			if err := sb.Destroy(s.ctx); err != nil {
				s.Fatal(err)
			}
		}
		if sb.State() != belljar.SandboxDestroyed || sb.Reason() != belljar.ReasonDestroyed {
			s.Errorf("state %s reason %s", sb.State(), sb.Reason())
		}
		if res := s.wait(c); res.State != belljar.Cancelled || !errors.Is(res.Error, belljar.ErrDestroyed) {
			s.Errorf("ended %s", describe(res))
		}
		select {
		case <-sb.Done():
		default:
			s.Error("not done")
		}
		for what, err := range map[string]error{
			"exec":  second(s.probe(sb, "exit", "0").Run(s.ctx)),
			"read":  second(sb.ReadFile("x")),
			"usage": second(sb.Usage(s.ctx)),
			"alive": sb.Alive(s.ctx),
		} {
			if !errors.Is(err, belljar.ErrDestroyed) {
				s.Errorf("%s: %v, want DESTROYED", what, err)
			}
		}
		if _, err := s.Runtime.Get(sb.ID()); !errors.Is(err, belljar.ErrNotFound) {
			s.Errorf("get: %v", err)
		}
		if s.Left != nil && len(s.Left()) > 0 {
			s.Errorf("left behind: %q", s.Left())
		}
	}},
	{name: "sandboxes do not share files", f: func(s *suite) {
		a, b := s.sandbox(), s.sandbox()
		if err := a.WriteFile("x", []byte("a"), 0o600); err != nil {
			s.Fatal(err)
		}
		if _, err := b.ReadFile("x"); err == nil {
			s.Error("the other sandbox sees it")
		}
		if got := s.Runtime.List(); len(got) != 2 || got[0] != a || got[1] != b {
			s.Errorf("list %v", got)
		}
	}},
	{name: "sandboxes do not share networks", needs: []Feature{Network}, f: func(s *suite) {
		const port = "47113"
		a, b := s.sandbox(), s.sandbox()
		s.started(a, "listen", port)
		if res := s.run(s.probe(a, "dial", port)); res.ExitCode != 0 {
			s.Errorf("its own service cannot be reached: %s", res.Stderr)
		}
		if res := s.run(s.probe(b, "dial", port)); res.ExitCode == 0 {
			s.Error("the other sandbox reaches it")
		}
		s.started(b, "listen", port) // the same port is free there
	}},
	{name: "context ends create", f: func(s *suite) {
		ctx, cancel := context.WithCancel(s.ctx)
		cancel()
		if _, err := s.Runtime.Create(ctx, s.Spec); !errors.Is(err, belljar.ErrCancelled) {
			s.Errorf("create: %v", err)
		}
		if _, err := s.probe(s.sandbox(), "exit", "0").Run(ctx); !errors.Is(err, belljar.ErrCancelled) {
			s.Errorf("run: %v", err)
		}
	}},
	{name: "bound", config: belljar.Config{MaxSandboxes: 1}, f: func(s *suite) {
		sb := s.sandbox()
		if _, err := s.Runtime.Create(s.ctx, s.Spec); !errors.Is(err, belljar.ErrQuotaExceeded) {
			s.Errorf("second: %v", err)
		}
		if err := sb.Destroy(s.ctx); err != nil {
			s.Fatal(err)
		}
		s.sandbox()
	}},
	{name: "close", f: func(s *suite) {
		sb := s.sandbox()
		c := s.started(sb, "sleep", "1h")
		for range 2 {
			if err := s.Runtime.Close(s.ctx); err != nil {
				s.Fatal(err)
			}
		}
		if sb.State() != belljar.SandboxDestroyed || sb.Reason() != belljar.ReasonClosed {
			s.Errorf("state %s reason %s", sb.State(), sb.Reason())
		}
		s.wait(c)
		if _, err := s.Runtime.Create(s.ctx, s.Spec); !errors.Is(err, belljar.ErrUnavailable) {
			s.Errorf("create after close: %v", err)
		}
	}},
	{name: "lifetime", f: func(s *suite) {
		sb := s.sandbox(func(p *belljar.Spec) { p.TTL = 50 * time.Millisecond })
		c := s.probe(sb, "sleep", "1h")
		if res, err := c.Run(s.ctx); err == nil && res.State != belljar.Cancelled {
			s.Errorf("ended %s", describe(res))
		}
		await(s, sb.Done())
		if sb.Reason() != belljar.ReasonTTL {
			s.Errorf("reason %s", sb.Reason())
		}
	}},
	{name: "idle", f: func(s *suite) {
		sb := s.sandbox(func(p *belljar.Spec) { p.IdleTimeout = 150 * time.Millisecond })
		res := s.run(s.probe(sb, "sleep", "300ms")) // not idle
		s.ended(res, ending{belljar.Completed, belljar.CauseExit, 0, "", nil})
		await(s, sb.Done())
		if sb.Reason() != belljar.ReasonIdle {
			s.Errorf("reason %s", sb.Reason())
		}
	}},
	{name: "200 of each at once", f: func(s *suite) {
		var sbs [4]*belljar.Sandbox
		for i := range sbs {
			sbs[i] = s.sandbox()
		}
		var wg sync.WaitGroup
		for i := range 200 {
			sb := sbs[i%len(sbs)]
			c := s.probe(sb, "exit", strconv.Itoa(i%3))
			wg.Go(func() {
				res, err := c.Run(s.ctx)
				if err != nil && !errors.Is(err, belljar.ErrDestroyed) && !errors.Is(err, belljar.ErrCancelled) {
					s.Errorf("run: %v", err)
				}
				if res == nil && err == nil {
					s.Error("neither result nor error")
				}
				if res == nil {
					return
				}
				switch st := c.State(); st {
				case belljar.Completed, belljar.Failed, belljar.Cancelled:
					if st != res.State {
						s.Errorf("state %s, result %s", st, res.State)
					}
				default:
					s.Errorf("state %s", st)
				}
			})
			wg.Go(func() {
				if err := c.Cancel(s.ctx); err != nil && !errors.Is(err, belljar.ErrConflict) {
					s.Errorf("cancel: %v", err)
				}
			})
			wg.Go(func() {
				if i < 100 {
					return
				}
				if err := sb.Destroy(s.ctx); err != nil {
					s.Errorf("destroy: %v", err)
				}
			})
		}
		wg.Wait()
		if l := s.Runtime.List(); len(l) > 0 {
			s.Errorf("%d sandboxes left", len(l))
		}
	}},
	{name: "pause", needs: []Feature{Pause}, f: func(s *suite) {
		sb := s.sandbox()
		c := s.probe(sb, "tick")
		ticks := make(chan struct{}, 1)
		c.Stdout = writerFunc(func(p []byte) (int, error) {
			select {
			case ticks <- struct{}{}:
			default:
			}
			return len(p), nil
		})
		if err := c.Start(s.ctx); err != nil {
			s.Fatal(err)
		}
		await(s, ticks)
		for range 2 {
			if err := sb.Pause(s.ctx); err != nil {
				s.Fatal(err)
			}
		}
		if sb.State() != belljar.SandboxPaused {
			s.Errorf("state %s", sb.State())
		}
		// What was written before may still arrive, then nothing.
		quiet := false
		for range 20 {
			select {
			case <-ticks:
			case <-time.After(100 * time.Millisecond):
				quiet = true
			}
		}
		if !quiet {
			s.Error("it ticks on")
		}
		if err := sb.Resume(s.ctx); err != nil {
			s.Fatal(err)
		}
		await(s, ticks)
		s.healthy(sb)
		if err := sb.Pause(s.ctx); err != nil {
			s.Fatal(err)
		}
		if err := sb.Destroy(s.ctx); err != nil {
			s.Errorf("destroy while paused: %v", err)
		}
	}},
	{name: "pool", f: func(s *suite) {
		pooled := func(p *belljar.Spec) { p.Pool = &belljar.Pool{Size: 2} }
		seen := map[string]bool{}
		for i := range 6 {
			sb := s.sandbox(pooled, func(p *belljar.Spec) { p.Name = "member-" + strconv.Itoa(i) })
			if seen[sb.ID()] {
				s.Errorf("%s handed out twice", sb.ID())
			}
			seen[sb.ID()] = true
			if sb.Name() != "member-"+strconv.Itoa(i) {
				s.Errorf("name %q", sb.Name())
			}
			if _, err := sb.ReadFile("marker"); err == nil {
				s.Error("a used sandbox was handed out")
			}
			if err := sb.WriteFile("marker", nil, 0o600); err != nil {
				s.Error(err)
			}
			s.healthy(sb)
			if err := sb.Destroy(s.ctx); err != nil {
				s.Error(err)
			}
		}
	}},
}

func second[T any](_ T, err error) error { return err }
