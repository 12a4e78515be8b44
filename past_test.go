package belljar_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"belljar"
	"belljar/backend/fake"
)

func TestPast(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	cfg := belljar.Config{StateDir: dir, Persist: true, RetainEnded: time.Hour}
	ctx := context.Background()
	b := fake.New(fake.Config{Programs: programs, Dir: t.TempDir()})
	rt, err := belljar.New(ctx, cfg, b)
	if err != nil {
		t.Fatal(err)
	}
	sb := create(t, rt, belljar.Spec{Tenant: "a", Name: "box"})
	for _, id := range []string{"one", "two"} {
		c := sb.Command("echo", "out of", id)
		c.ID = id
		if _, err := c.Run(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := rt.Past(sb.ID()); !errors.Is(err, belljar.ErrNotFound) {
		t.Errorf("the past of what lives: %v", err)
	}
	if err := sb.Destroy(ctx); err != nil {
		t.Fatal(err)
	}
	check := func(rt *belljar.Runtime) {
		t.Helper()
		p, err := rt.Past(sb.ID())
		if err != nil {
			t.Fatal(err)
		}
		if p.Reason != belljar.ReasonDestroyed || p.Name != "box" || p.Spec.Tenant != "a" || p.Ended.IsZero() {
			t.Errorf("%+v", p)
		}
		res, err := p.Result("two")
		if err != nil || string(res.Stdout) != "out of two\n" || res.State != belljar.Completed {
			t.Errorf("%+v, %v", res, err)
		}
		if all, err := p.Results(); err != nil || len(all) != 2 || string(all[0].Stdout) != "out of one\n" {
			t.Errorf("%v, %v", all, err)
		}
		if _, err := p.Result("three"); !errors.Is(err, belljar.ErrNotFound) {
			t.Errorf("what never ran: %v", err)
		}
		if l := rt.PastList("a"); len(l) != 1 {
			t.Errorf("%v", l)
		}
		if l := rt.PastList("b"); len(l) != 0 {
			t.Errorf("another tenant's %v", l)
		}
	}
	check(rt)
	if err := rt.Close(ctx); err != nil {
		t.Fatal(err)
	}
	// The next supervisor has it too, and one that keeps nothing for so long removes it.
	if rt, err = belljar.New(ctx, cfg, fake.New(fake.Config{Dir: t.TempDir()})); err != nil {
		t.Fatal(err)
	}
	check(rt)
	if err := rt.Close(ctx); err != nil {
		t.Fatal(err)
	}
	cfg.RetainEnded = time.Nanosecond
	if rt, err = belljar.New(ctx, cfg, fake.New(fake.Config{Dir: t.TempDir()})); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(5 * time.Second)
	for {
		ents, err := os.ReadDir(filepath.Join(dir, "past"))
		if err != nil {
			t.Fatal(err)
		}
		if len(ents) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%v stays", ents)
		}
		time.Sleep(time.Millisecond)
	}
	if _, err := rt.Past(sb.ID()); !errors.Is(err, belljar.ErrNotFound) {
		t.Errorf("after the retention: %v", err)
	}
	if err := rt.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := belljar.New(ctx, belljar.Config{RetainEnded: time.Hour}, b); !errors.Is(err, belljar.ErrInvalidSpec) {
		t.Errorf("retention without a state directory: %v", err)
	}
}

func FuzzEnds(f *testing.F) {
	f.Add("\n{\"version\":1,\"result\":{\"id\":\"a\"},\"kept\":[1,2]}\n{\"version\":1,\"resu")
	f.Add("null\n{}\n")
	f.Fuzz(func(t *testing.T, in string) {
		for _, e := range belljar.ParseEnds(strings.NewReader(in)) {
			if e == "" {
				t.Error("a result without an id")
			}
		}
	})
}
