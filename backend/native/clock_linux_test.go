package native

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"belljar"

	"golang.org/x/sys/unix"
)

// TestClockJump sets the machine's clock, so it runs only where that hurts nobody:
// internal/vmlane says so to its guest.
func TestClockJump(t *testing.T) {
	if os.Getenv("BELLJAR_MAY_SET_CLOCK") == "" || os.Geteuid() != 0 {
		t.Skip("sets the clock of the whole machine: BELLJAR_MAY_SET_CLOCK=1 and root")
	}
	jump := func(d time.Duration) {
		t.Helper()
		ts := unix.NsecToTimespec(time.Now().Add(d).UnixNano())
		if err := unix.ClockSettime(unix.CLOCK_REALTIME, &ts); err != nil {
			t.Fatal(err)
		}
	}
	start := time.Now()
	defer func() { // by the monotonic clock
		should := start.Round(0).Add(time.Since(start))
		jump(should.Sub(time.Now().Round(0)))
	}()

	t.Run("within its lifetime", func(t *testing.T) { clockJumps(t, jump, 3*time.Hour) })
	t.Run("beyond its lifetime", func(t *testing.T) { clockJumps(t, jump, 30*time.Hour) })
}

// clockJumps jumps while a supervisor is there, and by last while there is none.
func clockJumps(t *testing.T, jump func(time.Duration), last time.Duration) {
	cfg := belljar.Config{StateDir: filepath.Join(t.TempDir(), "state"), Persist: true}
	rt, err := belljar.New(t.Context(), cfg, New(Config{}))
	if err != nil {
		t.Fatal(err)
	}
	sb, err := rt.Create(t.Context(), belljar.Spec{TTL: time.Hour, IdleTimeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []time.Duration{25 * time.Hour, -50 * time.Hour} {
		cmd := sb.Command("sleep", "1000")
		cmd.Timeout = 500 * time.Millisecond
		begin := time.Now()
		if err := cmd.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		jump(d)
		res, err := cmd.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); res.State != belljar.TimedOut || took < 500*time.Millisecond || took > 5*time.Second {
			t.Errorf("jump of %v: %s after %v", d, res.State, took)
		}
		if res.DurationMs < 400 || res.DurationMs > 5000 || res.FinishedAt.Before(res.StartedAt) {
			t.Errorf("jump of %v: %v ms from %v to %v", d, res.DurationMs, res.StartedAt, res.FinishedAt)
		}
		if err := sb.Alive(t.Context()); err != nil {
			t.Errorf("jump of %v: the sandbox has %v", d, err)
		}
		if res, err := sb.Command("true").Run(t.Context()); err != nil || res.State != belljar.Completed || res.FinishedAt.Before(res.StartedAt) {
			t.Errorf("after a jump of %v: %v, %+v", d, err, res)
		}
	}
	// Without a supervisor, and for the next one: adopted or swept, never half of it.
	if err := rt.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	jump(last)
	rt, err = belljar.New(t.Context(), cfg, New(Config{}))
	if err != nil {
		t.Fatal(err)
	}
	out, err := rt.Recover(t.Context())
	t.Logf("recovered %+v, %v", out, err)
	if err != nil || len(out.Adopted)+len(out.Removed) > 1 {
		t.Errorf("recovered %+v, %v", out, err)
	}
	for _, sb := range rt.List() {
		if res, err := sb.Command("true").Run(t.Context()); err != nil || res.State != belljar.Completed {
			t.Errorf("adopted: %v, %+v", err, res)
		}
		if err := sb.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if err := rt.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if list, err := os.ReadDir(filepath.Join(cfg.StateDir, "sandboxes")); err != nil || len(list) > 0 {
		t.Errorf("records left: %v, %v", list, err)
	}
	if hits, err := filepath.Glob("/sys/fs/cgroup/belljar-p-*"); err != nil || len(hits) > 0 {
		t.Errorf("groups left: %q, %v", hits, err)
	}
}
