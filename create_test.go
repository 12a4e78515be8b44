package belljar_test

import (
	"strings"
	"sync"
	"testing"

	"belljar"
	"belljar/backend/fake"
)

// TestCreateErrorSaidOnce: the ledger does not make an error repeat itself.
func TestCreateErrorSaidOnce(t *testing.T) {
	refused := &belljar.Error{Code: belljar.CodeIsolationUnavailable, Op: "create", Message: "no such layer", Hint: "get it"}
	b := fake.New(fake.Config{Dir: t.TempDir(), Fault: func(step string) error {
		if step == "create" {
			return refused
		}
		return nil
	}})
	rt, err := belljar.New(t.Context(), belljar.Config{StateDir: t.TempDir() + "/state"}, b)
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close(t.Context())
	if _, err = rt.Create(t.Context(), belljar.Spec{}); err == nil || strings.Count(err.Error(), "get it") != 1 {
		t.Errorf("got %v, want the hint once", err)
	}
}

// TestFreezeState: the state is that of the backend, whoever came last.
func TestFreezeState(t *testing.T) {
	var mu sync.Mutex
	frozen := false
	b := fake.New(fake.Config{Dir: t.TempDir(), Fault: func(step string) error {
		if step == "pause" || step == "resume" {
			mu.Lock()
			frozen = step == "pause"
			mu.Unlock()
		}
		return nil
	}})
	rt, err := belljar.New(t.Context(), belljar.Config{}, b)
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close(t.Context())
	sb, err := rt.Create(t.Context(), belljar.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	for range 500 {
		var wg sync.WaitGroup
		wg.Go(func() { _ = sb.Pause(t.Context()) })
		wg.Go(func() { _ = sb.Resume(t.Context()) })
		wg.Wait()
		if paused := sb.State() == belljar.SandboxPaused; paused != frozen {
			t.Fatalf("state %s, but frozen is %t", sb.State(), frozen)
		}
	}
}
