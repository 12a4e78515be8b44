package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	osexec "os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"belljar"
	"belljar/backend/native"
)

// The test binary is its own probe, and as much of the command line as the
// benchmarks call.
func TestMain(m *testing.M) {
	MaybeMain()
	if len(os.Args) > 2 && os.Args[1] == "run" {
		os.Exit(runOnce(os.Args[2:]))
	}
	os.Exit(m.Run())
}

func runOnce(args []string) int {
	for len(args) > 0 && args[0] != "--" {
		args = args[1:]
	}
	ctx := context.Background()
	rt, err := newRuntime(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 125
	}
	defer rt.Close(ctx)
	sb, err := rt.Create(ctx, belljar.Spec{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 125
	}
	if err := exec(ctx, sb, args[1:]...); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 125
	}
	return 0
}

func newRuntime(ctx context.Context) (*belljar.Runtime, error) {
	return belljar.New(ctx, belljar.Config{}, native.New(native.Config{}))
}

// skipWithout skips where this host lets nobody make a sandbox.
func skipWithout(t testing.TB) {
	t.Helper()
	ctx := context.Background()
	rt, err := newRuntime(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close(ctx)
	if _, err := rt.Create(ctx, belljar.Spec{}); errors.Is(err, belljar.ErrIsolationUnavailable) {
		t.Skipf("no sandbox can be made here: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
}

// tiny is enough to go through every row once or twice.
var tiny = scale{
	static: 2, dynamic: 2, python: 1, node: 1, quiet: 1, cold: 2, process: 1, slice: time.Millisecond, rounds: 1,
	wall: 1, cpu: 1, floodMiB: 8, floods: 1, idle: 5, churn: 3, inside: 1, loop: 100,
}

func TestRun(t *testing.T) {
	skipWithout(t)
	var log strings.Builder
	rep, err := run(context.Background(), Options{Runtime: newRuntime, Log: &log}, tiny)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, r := range rep.Rows {
		seen[r.Group] = true
		switch {
		case r.Skipped != "" && r.N == 0:
			t.Logf("%s %s skipped: %s", r.Group, r.Name, r.Skipped)
		case r.N < 1 || r.Skipped != "":
			t.Errorf("%s %s: n = %d, skipped %q", r.Group, r.Name, r.N, r.Skipped)
		case r.Min > r.P10 || r.P10 > r.Median || r.Median > r.P99:
			t.Errorf("%s %s: min %v, p10 %v, median %v, p99 %v are out of order", r.Group, r.Name, r.Min, r.P10, r.Median, r.P99)
		}
		if strings.HasSuffix(r.Name, " left") || strings.HasSuffix(r.Name, " at the end") {
			if r.Median != 0 {
				t.Errorf("%s %s: %v", r.Group, r.Name, r.Median)
			}
		}
	}
	for _, g := range Groups() {
		if !seen[g] {
			t.Errorf("no row of %s", g)
		}
		if !strings.Contains(log.String(), " "+g+" ") {
			t.Errorf("no progress about %s", g)
		}
	}
	if f := rep.Fingerprint; f.CPUs < 1 || f.Kernel == "" || f.Cgroups == "" || f.Go != runtime.Version() {
		t.Errorf("fingerprint %+v", f)
	}
	if rep.Command == "" || rep.Limits == "" || rep.Percentiles == "" {
		t.Errorf("command %q, limits %q, percentiles %q", rep.Command, rep.Limits, rep.Percentiles)
	}
}

func TestRowsAreChosen(t *testing.T) {
	got, err := choose([]string{"cold/true", "inside"})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, g := range got {
		names = append(names, g.name)
	}
	if s := strings.Join(names, " "); s != "cold/true inside/syscall inside/stat inside/open inside/cpu" {
		t.Errorf("chosen: %s", s)
	}
	if _, err := Run(context.Background(), Options{Rows: []string{"warm", "tepid"}, Runtime: newRuntime}); !errors.Is(err, belljar.ErrInvalidSpec) {
		t.Errorf("an unknown row: %v, want INVALID_SPEC", err)
	}
}

func TestCancelled(t *testing.T) {
	skipWithout(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := run(ctx, Options{Rows: []string{"warm/static"}, Runtime: newRuntime}, tiny); err == nil {
		t.Error("a cancelled run succeeded")
	}
}

// setup gives the program, a runtime and its sandbox.
func setup(b *testing.B) (program string, rt *belljar.Runtime, spec belljar.Spec) {
	b.Helper()
	skipWithout(b)
	code, err := staticTrue(runtime.GOARCH)
	if err != nil {
		b.Skip(err)
	}
	program = b.TempDir() + "/true"
	if err := os.WriteFile(program, code, 0o755); err != nil {
		b.Fatal(err)
	}
	ctx := context.Background()
	if rt, err = newRuntime(ctx); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := rt.Close(ctx); err != nil {
			b.Error(err)
		}
	})
	r := runner{opt: Options{Self: program, Runtime: newRuntime}, rep: &Report{}, static: program}
	if err := r.settle(ctx); err != nil {
		b.Fatal(err)
	}
	b.Log(r.rep.Limits)
	return program, rt, r.spec()
}

func BenchmarkBare(b *testing.B) {
	program, _, _ := setup(b)
	for name, argv := range map[string]string{"static": program, "true": "/bin/true"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := osexec.Command(argv).Run(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkWarm(b *testing.B) {
	_, rt, spec := setup(b)
	ctx := context.Background()
	for _, fresh := range []bool{false, true} {
		spec.Isolation.Fresh = fresh
		sb, err := rt.Create(ctx, spec)
		if err != nil {
			b.Fatal(err)
		}
		suffix := map[bool]string{true: "-fresh"}[fresh]
		for name, argv := range map[string]string{"static": insideTrue, "true": "/bin/true"} {
			b.Run(name+suffix, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if err := exec(ctx, sb, argv); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkWarmParallel(b *testing.B) {
	_, rt, spec := setup(b)
	ctx := context.Background()
	sb, err := rt.Create(ctx, spec)
	if err != nil {
		b.Fatal(err)
	}
	for _, clients := range []int{8, 32} {
		b.Run(fmt.Sprint(clients), func(b *testing.B) {
			b.SetParallelism(max(clients/runtime.GOMAXPROCS(0), 1))
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := exec(ctx, sb, insideTrue); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}

func BenchmarkCold(b *testing.B) {
	_, rt, spec := setup(b)
	ctx := context.Background()
	for name, argv := range map[string]string{"static": insideTrue, "true": "/bin/true"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				sb, err := rt.Create(ctx, spec)
				if err != nil {
					b.Fatal(err)
				}
				if err := errors.Join(exec(ctx, sb, argv), sb.Destroy(ctx)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
