package native

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"belljar"
)

// staticTrue is a program without libc: what an execution costs without the
// start-up of the program itself.
func staticTrue(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	p := filepath.Join(dir, "true")
	src := filepath.Join(dir, "t.c")
	if err := os.WriteFile(src, []byte(`void _start(void){__asm__ volatile("syscall"::"a"(231),"D"(0));}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-nostdlib", "-static", "-O2", "-o", p, src).CombinedOutput(); err != nil {
		t.Skipf("gcc: %v %s", err, out)
	}
	os.Chmod(dir, 0o755)
	for d := dir; d != filepath.Clean(os.TempDir()) && d != "/"; d = filepath.Dir(d) {
		os.Chmod(d, 0o755)
	}
	return p
}

func limited() belljar.Limits {
	return belljar.Limits{Memory: 256 * belljar.MiB, Pids: 64, CPUTime: 10 * time.Second}
}

func BenchmarkBare(b *testing.B) {
	p := staticTrue(b)
	for b.Loop() {
		if err := exec.Command(p).Run(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkWarm(b *testing.B) {
	p := staticTrue(b)
	for _, prog := range []string{p, "/bin/true"} {
		for _, fresh := range []bool{false, true} {
			name := filepath.Base(filepath.Dir(prog))
			if prog == p {
				name = "static"
			}
			if fresh {
				name += "-fresh"
			}
			b.Run(name, func(b *testing.B) {
				rt := newRuntime(b)
				sb, err := rt.Create(context.Background(), belljar.Spec{
					Limits: limited(), Mounts: []belljar.Mount{{Source: p, Target: "/true"}}, Isolation: belljar.Isolation{Fresh: fresh},
				})
				if err != nil {
					b.Fatal(err)
				}
				in := prog
				if prog == p {
					in = "/true"
				}
				for b.Loop() {
					res, err := sb.Command(in).Run(context.Background())
					if err != nil || res.ExitCode != 0 {
						b.Fatal(err, res)
					}
				}
			})
		}
	}
}

func BenchmarkWarmParallel8(b *testing.B) {
	p := staticTrue(b)
	rt := newRuntime(b)
	sb, err := rt.Create(context.Background(), belljar.Spec{Limits: limited(), Mounts: []belljar.Mount{{Source: p, Target: "/true"}}})
	if err != nil {
		b.Fatal(err)
	}
	b.SetParallelism(4)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			res, err := sb.Command("/true").Run(context.Background())
			if err != nil || res.ExitCode != 0 {
				b.Error(err, res)
				return
			}
		}
	})
}

func BenchmarkCold(b *testing.B) {
	p := staticTrue(b)
	rt := newRuntime(b)
	for b.Loop() {
		sb, err := rt.Create(context.Background(), belljar.Spec{Limits: limited(), Mounts: []belljar.Mount{{Source: p, Target: "/true"}}})
		if err != nil {
			b.Fatal(err)
		}
		res, err := sb.Command("/true").Run(context.Background())
		if err != nil || res.ExitCode != 0 {
			b.Fatal(err, res)
		}
		if err := sb.Destroy(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}
