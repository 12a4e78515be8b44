package belljar_test

import (
	"context"
	"slices"
	"testing"

	"belljar"
	"belljar/backend/fake"
)

func TestEvents(t *testing.T) {
	rt, _ := open(t, belljar.Config{}, fake.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events := rt.Events(ctx)
	slow := rt.Events(t.Context()) // takes nothing until the end
	sb := create(t, rt, belljar.Spec{Tenant: "a"})
	c := sb.Command("false")
	c.ID = "x"
	if _, err := c.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if err := sb.Destroy(ctx); err != nil {
		t.Fatal(err)
	}
	var kinds []belljar.EventKind
	for e := range events {
		kinds = append(kinds, e.Kind)
		if e.Tenant != "a" || e.Sandbox != sb.ID() || e.Time.IsZero() {
			t.Errorf("%+v", e)
		}
		switch e.Kind {
		case belljar.EventExecutionEnded:
			if e.Execution != "x" || e.State != belljar.Failed || e.Cause != belljar.CauseExit {
				t.Errorf("%+v", e)
			}
		case belljar.EventSandboxEnded:
			if e.Reason != belljar.ReasonDestroyed {
				t.Errorf("%+v", e)
			}
			cancel() // closes the channel
		}
	}
	want := []belljar.EventKind{belljar.EventSandboxCreated, belljar.EventExecutionStarted, belljar.EventExecutionEnded, belljar.EventSandboxEnded}
	if !slices.Equal(kinds, want) {
		t.Errorf("%v", kinds)
	}

	// A subscriber that takes nothing holds nobody up, and is told what it missed.
	sb = create(t, rt, belljar.Spec{})
	const runs = 1000
	for range runs {
		if _, err := sb.Command("true").Run(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	got, missed := int64(0), int64(0)
	drain := func() {
		for len(slow) > 0 {
			e := <-slow
			if missed += e.Missed; e.Kind != belljar.EventOverflow {
				got++
			}
		}
	}
	drain()
	if _, err := sb.Command("true").Run(t.Context()); err != nil { // with which the loss is told
		t.Fatal(err)
	}
	drain()
	if total := int64(4 + 1 + 2*(runs+1)); missed == 0 || got+missed != total {
		t.Errorf("%d came and %d were missed of %d", got, missed, total)
	}
}
