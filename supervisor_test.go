package belljar_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"belljar"
	"belljar/backend/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var programs = map[string]fake.Program{
	"counter": counter,
	"hang": func(ctx context.Context, p *fake.Proc) int {
		_, _ = io.WriteString(p.Stdout, "ready\n")
		<-ctx.Done()
		return 0
	},
	"zeros": func(_ context.Context, p *fake.Proc) int {
		b := make([]byte, 64<<10)
		for range 64 << 20 / len(b) {
			if _, err := p.Stdout.Write(b); err != nil {
				return 1
			}
			if _, err := p.Stderr.Write(b); err != nil {
				return 1
			}
		}
		return 0
	},
}

// open makes a runtime whose end leaves nothing.
func open(t testing.TB, cfg belljar.Config, fc fake.Config) (*belljar.Runtime, *fake.Backend) {
	t.Helper()
	fc.Programs, fc.Dir = programs, t.TempDir()
	b := fake.New(fc)
	rt, err := belljar.New(context.Background(), cfg, b)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rt.Close(context.Background()); err != nil {
			t.Errorf("close: %v", err)
		}
		if left := b.Instances(); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	})
	return rt, b
}

func create(t testing.TB, rt *belljar.Runtime, spec belljar.Spec) *belljar.Sandbox {
	t.Helper()
	sb, err := rt.Create(context.Background(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

func TestNewRefuses(t *testing.T) {
	b := fake.New(fake.Config{})
	for name, f := range map[string]func() (*belljar.Runtime, error){
		"no backend": func() (*belljar.Runtime, error) { return belljar.New(t.Context(), belljar.Config{}) },
		"two of one": func() (*belljar.Runtime, error) { return belljar.New(t.Context(), belljar.Config{}, b, b) },
		"negative": func() (*belljar.Runtime, error) {
			return belljar.New(t.Context(), belljar.Config{MaxSandboxes: -1}, b)
		},
		"admission": func() (*belljar.Runtime, error) {
			return belljar.New(t.Context(), belljar.Config{Admission: "maybe"}, b)
		},
		"persistent nowhere": func() (*belljar.Runtime, error) { return belljar.New(t.Context(), belljar.Config{Persist: true}, b) },
	} {
		if _, err := f(); !errors.Is(err, belljar.ErrInvalidSpec) {
			t.Errorf("%s: %v, want INVALID_SPEC", name, err)
		}
	}
}

func TestUnknownBackend(t *testing.T) {
	rt, _ := open(t, belljar.Config{}, fake.Config{})
	if _, err := rt.Create(t.Context(), belljar.Spec{Backend: "microvm"}); !errors.Is(err, belljar.ErrInvalidBackend) {
		t.Errorf("%v, want INVALID_BACKEND", err)
	}
}

// faults fails one step, once it is armed.
type faults struct{ step atomic.Value }

var errFault = errors.New("injected fault")

func (f *faults) fault(step string) error {
	if s, _ := f.step.Load().(string); s == step {
		return errFault
	}
	return nil
}

func TestFaultAtEveryStep(t *testing.T) {
	ctx := context.Background()
	exec := func(rt *belljar.Runtime, sb *belljar.Sandbox) error {
		_, err := sb.Command("true").Run(ctx)
		return err
	}
	for step, op := range map[string]func(*belljar.Runtime, *belljar.Sandbox) error{
		"probe": func(rt *belljar.Runtime, _ *belljar.Sandbox) error { _, err := rt.Probe(ctx); return err },
		"create": func(rt *belljar.Runtime, _ *belljar.Sandbox) error {
			_, err := rt.Create(ctx, belljar.Spec{})
			return err
		},
		"start": exec,
		"wait":  exec,
		"files": func(_ *belljar.Runtime, sb *belljar.Sandbox) error { return sb.WriteFile("x", nil, 0o600) },
		"usage": func(_ *belljar.Runtime, sb *belljar.Sandbox) error { _, err := sb.Usage(ctx); return err },
		"alive": func(_ *belljar.Runtime, sb *belljar.Sandbox) error { return sb.Alive(ctx) },
		"pause": func(_ *belljar.Runtime, sb *belljar.Sandbox) error { return sb.Pause(ctx) },
		"close": func(_ *belljar.Runtime, sb *belljar.Sandbox) error { return sb.Destroy(ctx) },
		"signal": func(_ *belljar.Runtime, sb *belljar.Sandbox) error {
			c := sb.Command("hang")
			if err := c.Start(ctx); err != nil {
				return err
			}
			err := c.Signal(ctx, 10)
			// A tree that cannot be signalled is killed.
			if cerr := c.Cancel(ctx); cerr != nil {
				return cerr
			}
			return err
		},
	} {
		t.Run(step, func(t *testing.T) {
			var f faults
			rt, b := open(t, belljar.Config{StateDir: t.TempDir() + "/state"}, fake.Config{Fault: f.fault})
			sb := create(t, rt, belljar.Spec{})
			f.step.Store(step)
			err := op(rt, sb)
			if !errors.Is(err, errFault) {
				t.Fatalf("%v, want the fault", err)
			}
			var e *belljar.Error
			if step != "probe" && !errors.As(err, &e) {
				t.Errorf("%v is not typed", err)
			}
			f.step.Store("")
			if got := b.Instances(); !slices.Equal(got, []string{sb.ID()}) {
				t.Errorf("exist: %q", got)
			}
			if step == "close" {
				if sb.State() != belljar.SandboxEnding {
					t.Errorf("state %s", sb.State())
				}
				if err := sb.Destroy(ctx); err != nil {
					t.Errorf("second attempt: %v", err)
				}
				return
			}
			if res, err := sb.Command("true").Run(ctx); err != nil || res.ExitCode != 0 {
				t.Errorf("afterwards: %+v, %v", res, err)
			}
		})
	}
}

func TestInfrastructureResult(t *testing.T) {
	var f faults
	rt, _ := open(t, belljar.Config{}, fake.Config{Fault: f.fault})
	sb := create(t, rt, belljar.Spec{})
	for _, step := range []string{"start", "wait"} {
		f.step.Store(step)
		c := sb.Command("true")
		c.ID = "infra-" + step
		res, err := c.Run(t.Context())
		if res == nil || res.State != belljar.Failed || res.Cause != belljar.CauseInfra || res.ExitCode != -1 || !errors.Is(err, belljar.ErrInternal) {
			t.Errorf("%s: %+v, %v", step, res, err)
		}
		f.step.Store("")
		again := sb.Command("true")
		again.ID = c.ID
		if res2, _ := again.Run(t.Context()); res2 != res {
			t.Errorf("%s: the id ran twice", step)
		}
	}
}

func TestPrecedence(t *testing.T) {
	for _, tt := range []struct {
		name  string
		exit  belljar.Exit
		state belljar.State
		cause belljar.Cause
		code  int
	}{
		{"timeout before memory", belljar.Exit{TimedOut: true, OOM: true, Signal: 9}, belljar.TimedOut, belljar.CauseTimeout, -1},
		{"cpu before memory", belljar.Exit{CPUSpent: true, OOM: true, Signal: 9}, belljar.Failed, belljar.CauseCPU, -1},
		{"memory before pids", belljar.Exit{OOM: true, PidsHit: true, Signal: 9}, belljar.Failed, belljar.CauseMemory, -1},
		{"pids, and failed", belljar.Exit{PidsHit: true, DiskFull: true, Code: 1}, belljar.Failed, belljar.CausePids, -1},
		{"pids, and coped", belljar.Exit{PidsHit: true}, belljar.Completed, belljar.CauseExit, 0},
		{"disk, and failed", belljar.Exit{DiskFull: true, Code: 3}, belljar.Failed, belljar.CauseDisk, -1},
		{"disk, and coped", belljar.Exit{DiskFull: true}, belljar.Completed, belljar.CauseExit, 0},
		{"SIGSYS", belljar.Exit{Signal: 31}, belljar.Failed, belljar.CausePolicy, 159},
		{"unkillable", belljar.Exit{Unkillable: 2}, belljar.Completed, belljar.CauseExit, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := fake.New(fake.Config{Dir: t.TempDir(), Programs: map[string]fake.Program{"end": func(_ context.Context, p *fake.Proc) int {
				p.Report(func(e *belljar.Exit) {
					e.TimedOut, e.OOM, e.CPUSpent, e.PidsHit, e.DiskFull = tt.exit.TimedOut, tt.exit.OOM, tt.exit.CPUSpent, tt.exit.PidsHit, tt.exit.DiskFull
					e.Signal, e.Unkillable = tt.exit.Signal, tt.exit.Unkillable
				})
				return tt.exit.Code
			}}})
			rt, err := belljar.New(t.Context(), belljar.Config{}, b)
			if err != nil {
				t.Fatal(err)
			}
			defer rt.Close(context.Background())
			res, err := create(t, rt, belljar.Spec{}).Command("end").Run(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if res.State != tt.state || res.Cause != tt.cause || res.ExitCode != tt.code {
				t.Errorf("%s/%s exit %d", res.State, res.Cause, res.ExitCode)
			}
			if tt.exit.Unkillable > 0 && (res.Error == nil || !strings.Contains(res.Error.Message, "state D")) {
				t.Errorf("error %v", res.Error)
			}
		})
	}
}

func TestTimersInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := fake.New(fake.Config{Dir: t.TempDir()})
		rt, err := belljar.New(t.Context(), belljar.Config{}, b)
		if err != nil {
			t.Fatal(err)
		}
		defer rt.Close(context.Background())
		state := func(sb *belljar.Sandbox, after time.Duration, want belljar.SandboxState) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if got := sb.State(); got != want {
				t.Errorf("state %s, want %s", got, want)
			}
		}
		ttl := create(t, rt, belljar.Spec{TTL: time.Hour})
		state(ttl, time.Hour-time.Second, belljar.SandboxReady)
		if err := ttl.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		state(ttl, 24*time.Hour, belljar.SandboxPaused) // paused time does not count
		if err := ttl.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		state(ttl, time.Second/2, belljar.SandboxReady)
		state(ttl, time.Second, belljar.SandboxDestroyed)
		if ttl.Reason() != belljar.ReasonTTL {
			t.Errorf("reason %s", ttl.Reason())
		}

		idle := create(t, rt, belljar.Spec{IdleTimeout: time.Minute})
		for range 3 { // each use begins the minute anew
			state(idle, 50*time.Second, belljar.SandboxReady)
			if err := idle.WriteFile("x", nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := idle.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		state(idle, time.Hour, belljar.SandboxPaused)
		if err := idle.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		state(idle, 59*time.Second, belljar.SandboxReady)
		state(idle, 2*time.Second, belljar.SandboxDestroyed)
		if idle.Reason() != belljar.ReasonIdle {
			t.Errorf("reason %s", idle.Reason())
		}
	})
}

func TestPoolInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := fake.New(fake.Config{Dir: t.TempDir()})
		rt, err := belljar.New(t.Context(), belljar.Config{}, b)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := rt.Close(context.Background()); err != nil {
				t.Error(err)
			}
			if left := b.Instances(); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
		}()
		spec := belljar.Spec{Pool: &belljar.Pool{Size: 3, MaxIdle: time.Minute}}
		exist := func(want int) {
			t.Helper()
			synctest.Wait()
			if got := len(b.Instances()); got != want {
				t.Errorf("%d exist, want %d", got, want)
			}
		}
		first := create(t, rt, spec)
		exist(4)
		ready := b.Instances()
		second := create(t, rt, spec)
		if !slices.Contains(ready, second.ID()) {
			t.Error("not taken from the pool")
		}
		exist(5)
		other := create(t, rt, belljar.Spec{Pool: spec.Pool, WorkDir: "/elsewhere"})
		if slices.Contains(ready, other.ID()) {
			t.Error("taken from the pool of another spec")
		}
		exist(5 + 1 + 3)

		// A member that was killed from outside is not handed out.
		mine := []string{first.ID(), second.ID(), other.ID()}
		for _, id := range b.Instances() {
			if !slices.Contains(mine, id) {
				b.Break(id)
			}
		}
		third := create(t, rt, spec)
		if err := third.Alive(t.Context()); err != nil {
			t.Errorf("handed out: %v", err)
		}
		synctest.Wait()

		time.Sleep(2 * time.Minute) // nobody came: the pools run empty
		exist(4)
		for _, sb := range []*belljar.Sandbox{first, second, third, other} {
			if err := sb.Destroy(t.Context()); err != nil {
				t.Error(err)
			}
		}
		exist(0)
	})
}

func TestFloodCostsLittle(t *testing.T) {
	rt, _ := open(t, belljar.Config{}, fake.Config{})
	sb := create(t, rt, belljar.Spec{})
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	res, err := sb.Command("zeros").Run(t.Context())
	if err != nil || res.ExitCode != 0 {
		t.Fatalf("%+v, %v", res, err)
	}
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 33<<20 {
		t.Errorf("64 MiB on each stream allocated %d bytes in total", got)
	}
	if res.DroppedBytes != int64(128<<20-len(res.Stdout)-len(res.Stderr)) {
		t.Errorf("dropped %d", res.DroppedBytes)
	}
}

func TestRememberedOutputIsBounded(t *testing.T) {
	rt, _ := open(t, belljar.Config{}, fake.Config{})
	sb := create(t, rt, belljar.Spec{})
	run := func(i int) *belljar.Result {
		c := sb.Command("echo", "x")
		c.ID = fmt.Sprintf("n%d", i)
		res, err := c.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	for i := range 100 {
		run(i)
	}
	if res := run(99); len(res.Stdout) == 0 {
		t.Error("the last one's output is gone")
	}
	res := run(0)
	if len(res.Stdout) != 0 || !res.Truncated || res.DroppedBytes != 2 || res.ExitCode != 0 {
		t.Errorf("the first: %+v", res)
	}
}

func TestCreateRacesClose(t *testing.T) {
	rt, b := open(t, belljar.Config{StateDir: t.TempDir() + "/s"}, fake.Config{})
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			_, err := rt.Create(context.Background(), belljar.Spec{Pool: &belljar.Pool{Size: 2}})
			if err != nil && !errors.Is(err, belljar.ErrUnavailable) && !errors.Is(err, belljar.ErrCancelled) {
				t.Errorf("create: %v", err)
			}
		})
	}
	wg.Go(func() {
		if err := rt.Close(context.Background()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	wg.Wait()
	if left := b.Instances(); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestContextEndsInCreate(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	rt, b := open(t, belljar.Config{StateDir: t.TempDir() + "/s"}, fake.Config{Fault: func(step string) error {
		if step == "create" {
			cancel()
		}
		return nil
	}})
	if _, err := rt.Create(ctx, belljar.Spec{Name: "n"}); !errors.Is(err, belljar.ErrCancelled) {
		t.Errorf("%v, want CANCELLED", err)
	}
	if left := b.Instances(); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	create(t, rt, belljar.Spec{Name: "n"}) // the name is free
}

func TestExhaustedDescriptors(t *testing.T) {
	rt, _ := open(t, belljar.Config{}, fake.Config{Fault: func(step string) error {
		if step == "start" {
			return os.NewSyscallError("pipe2", errors.New("too many open files"))
		}
		return nil
	}})
	sb := create(t, rt, belljar.Spec{})
	before := openFiles(t)
	for range 50 {
		if _, err := sb.Command("true").Run(t.Context()); err == nil {
			t.Fatal("started")
		}
	}
	if after := openFiles(t); after > before {
		t.Errorf("%d open files, %d before", after, before)
	}
}

func TestNothingAccumulates(t *testing.T) {
	rt, _ := open(t, belljar.Config{}, fake.Config{})
	sb := create(t, rt, belljar.Spec{})
	if _, err := sb.Command("true").Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := openFiles(t)
	for range 200 {
		c := sb.Command("cat")
		c.Stdin = strings.NewReader("x")
		if _, err := c.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if after := openFiles(t); after > before {
		t.Errorf("%d open files, %d before", after, before)
	}
	if ids := sb.Executions(); len(ids) > 0 {
		t.Errorf("executions %q", ids)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	l, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("no /proc/self/fd on this platform")
	}
	return len(l)
}

func BenchmarkExecution(b *testing.B) {
	rt, _ := open(b, belljar.Config{}, fake.Config{})
	sb := create(b, rt, belljar.Spec{})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := sb.Command("true").Run(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}
