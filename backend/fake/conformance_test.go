//go:build linux

package fake_test

import (
	"context"
	"runtime"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"belljar"
	"belljar/backend/fake"
	"belljar/conformance"
	"belljar/conformance/inside"
)

// probeProgram runs the conformance probe as a function.
func probeProgram() fake.Program {
	var run func(ctx context.Context, p *fake.Proc, args []string) int
	run = func(ctx context.Context, p *fake.Proc, args []string) int {
		return inside.Main(&inside.Sys{
			Args: args, Env: p.Env, Stdin: p.Stdin, Stdout: p.Stdout, Stderr: p.Stderr,
			Dir:   func() (string, error) { return p.Dir, nil },
			Catch: p.Notify,
			Die:   p.Die,
			Spawn: func(args ...string) error {
				return p.Spawn(func(ctx context.Context, p *fake.Proc) int { return run(ctx, p, args) })
			},
			Sleep: func(d time.Duration) bool { return p.Sleep(ctx, d) },
			Spin: func() {
				for ctx.Err() == nil {
					p.Burn(time.Millisecond)
					runtime.Gosched()
				}
			},
			Alloc: func(n int64) {
				p.Burn(time.Microsecond)
				p.Alloc(n)
			},
			Fill: func(string) error {
				p.Report(func(e *belljar.Exit) { e.DiskFull = true })
				f, err := p.Files.OpenFile("/workspace/full", unix.O_WRONLY|unix.O_CREAT, 0o600)
				if err == nil {
					_ = f.Close()
				}
				return syscall.ENOSPC
			},
			Append: func(name string, data []byte) error {
				f, err := p.Files.OpenFile(name, unix.O_WRONLY|unix.O_CREAT|unix.O_APPEND, 0o644)
				if err != nil {
					return err
				}
				defer f.Close()
				_, err = f.Write(data)
				return err
			},
			Read: func(name string) ([]byte, error) {
				f, err := p.Files.OpenFile(name, unix.O_RDONLY, 0)
				if err != nil {
					return nil, err
				}
				defer f.Close()
				b := make([]byte, 1<<16)
				n, err := f.Read(b)
				return b[:n], err
			},
			Symlink: p.Files.Symlink,
			Remove:  p.Files.RemoveAll,
			Mkdir:   func(name string) error { return p.Files.Mkdir(name, 0o755) },
			Mkfifo:  p.Mkfifo,
			Sparse: func(name string, size int64) error {
				f, err := p.Files.OpenFile(name, unix.O_WRONLY|unix.O_CREAT, 0o644)
				if err != nil {
					return err
				}
				defer f.Close()
				return f.Truncate(size)
			},
			Size: p.TTYSize,
		})
	}
	return func(ctx context.Context, p *fake.Proc) int { return run(ctx, p, p.Args[1:]) }
}

func TestConformance(t *testing.T) {
	defer goleak.VerifyNone(t)
	b := fake.New(fake.Config{Programs: map[string]fake.Program{"probe": probeProgram()}, Dir: t.TempDir()})
	conformance.Run(t, func(t *testing.T, cfg belljar.Config) conformance.Subject {
		rt, err := belljar.New(t.Context(), cfg, b)
		if err != nil {
			t.Fatal(err)
		}
		return conformance.Subject{
			Runtime: rt,
			Spec:    belljar.Spec{Backend: fake.Name},
			Probe:   []string{"probe"},
			Lacks: map[conformance.Feature]string{
				conformance.Shell:    "programs are Go functions",
				conformance.Extra:    "programs in memory have no descriptors",
				conformance.CPURate:  "its programs are not throttled",
				conformance.Network:  "its programs have none",
				conformance.AbsLinks: "os.Root refuses absolute links",
				conformance.Layers:   "it isolates nothing",
				conformance.Mounts:   "its files are a directory of their own",
			},
			Left: b.Instances,
		}
	})
}
