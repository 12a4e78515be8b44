package cgroup

import (
	"path"
	"strings"
	"testing"
)

func TestMove(t *testing.T) {
	each(t, func(t *testing.T, r *Root) {
		g := mustGroup(t, r, Limits{Memory: 256 << 20, Pids: 50})
		from := mustAcquire(t, g, Limits{})
		p := startSet(t, from, "sleep")
		p.line(t)
		pid := p.Process.Pid
		if in, err := g.Has(pid); err != nil || !in {
			t.Fatalf("Has = %v, %v", in, err)
		}
		other := mustGroup(t, r, Limits{})
		if in, err := other.Has(pid); err != nil || in {
			t.Errorf("a foreign group's Has = %v, %v", in, err)
		}
		s, err := g.AcquireMoved(Limits{})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // moving again changes nothing
			// The guest is a Go program: a thread that stays behind on v1 does no harm here.
			if err := s.Move(pid); err != nil {
				t.Fatal(err)
			}
		}
		if r.uni != nil {
			if got := membership(t, pid); !strings.Contains(got, path.Join(g.Name(), s.Name())+"\n") {
				t.Errorf("not moved:\n%s", got)
			}
		}
		if err := s.Kill(); err != nil {
			t.Fatal(err)
		}
		if p.Wait() == nil {
			t.Error("the moved process survived the kill of its set")
		}
		mustEmpty(t, s)
		mustRelease(t, g, s)
		again, err := g.AcquireMoved(Limits{})
		if err != nil {
			t.Fatal(err)
		}
		if again != s {
			t.Errorf("%s was not used again", s.Name())
		}
		if plain := mustAcquire(t, g, Limits{}); plain == s || plain.moved {
			t.Error("a set for moved processes was handed out for an execution")
		} else {
			mustRelease(t, g, plain)
		}
		mustRelease(t, g, again)
		mustRelease(t, g, from)
	})
}
