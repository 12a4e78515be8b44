package native

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	"belljar"
)

// TestFreshNamespacesAreUsedOnce looks for what a namespace that was made ahead would
// show if it had been used before: a program that is not its second process.
func TestFreshNamespacesAreUsedOnce(t *testing.T) {
	rt := newRuntime(t)
	sb, err := rt.Create(t.Context(), belljar.Spec{Isolation: belljar.Isolation{Fresh: true}})
	if err != nil {
		t.Skipf("no sandboxes here: %v", err)
	}
	for i := range 12 {
		c := sb.Shell("true & echo $$ $(ls /proc | grep -c '^[0-9]'); wait")
		if i%4 == 3 { // killed with its groups, which are replaced then
			c = sb.Shell("sleep 1000")
			c.Timeout = 20 * time.Millisecond
		}
		res, err := c.Run(t.Context())
		switch {
		case err != nil:
			t.Fatal(err)
		case i%4 == 3:
			if res.Cause != belljar.CauseTimeout {
				t.Errorf("run %d: %s", i, res.Cause)
			}
		case !strings.HasPrefix(string(res.Stdout), "2 "):
			t.Errorf("run %d: process id and number of processes %q", i, res.Stdout)
		}
	}
}

// TestSignalBeforeBirth: a signal that is sent at once arrives, whoever is not born yet.
func TestSignalBeforeBirth(t *testing.T) {
	for _, fresh := range []bool{false, true} {
		rt := newRuntime(t)
		sb, err := rt.Create(t.Context(), belljar.Spec{Isolation: belljar.Isolation{Fresh: fresh}})
		if err != nil {
			t.Skipf("no sandboxes here: %v", err)
		}
		for range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			c := sb.Command("/bin/sleep", "1000")
			if err := c.Start(ctx); err != nil {
				t.Fatal(err)
			}
			if err := c.Signal(ctx, syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			res, err := c.Wait(ctx)
			cancel()
			if err != nil || res.Signal != "SIGTERM" {
				t.Fatalf("fresh %t: %+v, %v", fresh, res, err)
			}
		}
	}
}
