package conformance

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"belljar"
)

// sandboxesIn lists what a ledger knows.
func (s *suite) sandboxesIn(dir string) []string {
	s.Helper()
	list, err := os.ReadDir(filepath.Join(dir, "sandboxes"))
	if err != nil {
		s.Fatal(err)
	}
	return names(list)
}

var persistCases = []testCase{
	{name: "ledger", f: func(s *suite) {
		cfg := belljar.Config{StateDir: filepath.Join(s.TempDir(), "state")}
		s.open(cfg)
		sb := s.sandbox()
		if got := s.sandboxesIn(cfg.StateDir); !slices.Equal(got, []string{sb.ID()}) {
			s.Errorf("ledger has %q", got)
		}
		fi, err := os.Stat(cfg.StateDir)
		if err != nil || fi.Mode().Perm() != 0o700 {
			s.Errorf("state directory %v, %v", fi, err)
		}
		// A second supervisor leaves it alone.
		other := s.factory(s.T, cfg).Runtime
		for _, sweep := range []func(context.Context) (belljar.Swept, error){other.GC, other.Recover} {
			if out, err := sweep(s.ctx); err != nil || len(out.Removed)+len(out.Adopted)+len(out.Kept) > 0 {
				s.Errorf("swept %+v, %v", out, err)
			}
		}
		s.healthy(sb)
		if err := other.Close(s.ctx); err != nil {
			s.Error(err)
		}
		s.healthy(sb)
		if err := sb.Destroy(s.ctx); err != nil {
			s.Fatal(err)
		}
		if got := s.sandboxesIn(cfg.StateDir); len(got) > 0 {
			s.Errorf("ledger has %q", got)
		}
	}},
	{name: "paused time is no part of a life", needs: []Feature{Persist, Pause}, f: func(s *suite) {
		cfg := belljar.Config{StateDir: filepath.Join(s.TempDir(), "state"), Persist: true}
		s.open(cfg)
		const life = 1500 * time.Millisecond
		sb := s.sandbox(func(p *belljar.Spec) { p.TTL = life })
		control := s.sandbox(func(p *belljar.Spec) { p.TTL = life })
		if err := sb.Pause(s.ctx); err != nil {
			s.Fatal(err)
		}
		// Nobody is connected while its time would pass: the keeper has to know.
		if err := s.Runtime.Close(s.ctx); err != nil {
			s.Fatal(err)
		}
		time.Sleep(life + 500*time.Millisecond)
		s.open(cfg)
		out, err := s.Runtime.Recover(s.ctx)
		if err != nil || !slices.Equal(out.Adopted, []string{sb.ID()}) {
			s.Fatalf("recovered %+v, %v; the control is %s", out, err, control.ID())
		}
		again, err := s.Runtime.Get(sb.ID())
		if err != nil {
			s.Fatal(err)
		}
		if again.State() != belljar.SandboxPaused {
			s.Errorf("state %s after adoption", again.State())
		}
		if err := again.Extend(s.ctx, 20*time.Second); err != nil {
			s.Fatal(err)
		}
		if err := again.Resume(s.ctx); err != nil {
			s.Fatal(err)
		}
		s.healthy(again)
		if left := time.Until(again.Expires()); left < 10*time.Second || left > 20*time.Second {
			s.Errorf("%v are left", left)
		}
		if err := again.Extend(s.ctx, time.Second); err != nil || time.Until(again.Expires()) < 10*time.Second {
			s.Errorf("a shorter extension left %v, %v", time.Until(again.Expires()), err)
		}
		if err := again.Extend(s.ctx, -1); !errors.Is(err, belljar.ErrInvalidSpec) {
			s.Errorf("a negative extension: %v", err)
		}
		if err := again.Destroy(s.ctx); err != nil {
			s.Fatal(err)
		}
	}},
	{name: "adoption", needs: []Feature{Persist}, f: func(s *suite) {
		cfg := belljar.Config{StateDir: filepath.Join(s.TempDir(), "state"), Persist: true}
		s.open(cfg)
		sb := s.sandbox(func(p *belljar.Spec) { p.Name = "keeper" })
		s.write(sb, "f", "kept")
		c := s.probe(sb, "term")
		c.ID = "long"
		s.start(c)
		if err := s.Runtime.Close(s.ctx); err != nil {
			s.Fatal(err)
		}
		if sb.State() != belljar.SandboxReleased {
			s.Errorf("state %s", sb.State())
		}

		s.open(cfg)
		out, err := s.Runtime.GC(s.ctx)
		if err != nil || !slices.Equal(out.Kept, []string{sb.ID()}) {
			s.Fatalf("gc %+v, %v", out, err)
		}
		out, err = s.Runtime.Recover(s.ctx)
		if err != nil || !slices.Equal(out.Adopted, []string{sb.ID()}) {
			s.Fatalf("recovered %+v, %v", out, err)
		}
		again, err := s.Runtime.Find("", "keeper")
		if err != nil || again.ID() != sb.ID() {
			s.Fatalf("found %v, %v", again, err)
		}
		s.reads(again, "f", "kept")
		s.healthy(again)
		a, err := again.Attach("long")
		if err != nil {
			s.Fatal(err)
		}
		if err := a.Start(s.ctx); err != nil {
			s.Fatal(err)
		}
		if err := a.Cancel(s.ctx); err != nil {
			s.Fatal(err)
		}
		res := s.wait(a)
		if res.State != belljar.Cancelled || string(res.Stdout) != "ready\nbye\n" || strings.Contains(describe(res), "killed") {
			s.Errorf("adopted execution: %s, stdout %q", describe(res), res.Stdout)
		}
		if err := again.Destroy(s.ctx); err != nil {
			s.Fatal(err)
		}
		if got := s.sandboxesIn(cfg.StateDir); len(got) > 0 {
			s.Errorf("ledger has %q", got)
		}
		if s.Left != nil && len(s.Left()) > 0 {
			s.Errorf("left behind: %q", s.Left())
		}
	}},
}
