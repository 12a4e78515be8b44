package server_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"belljar"
	v1 "belljar/api/belljar/v1"
	"belljar/backend/remote"
	"belljar/bench"

	"google.golang.org/protobuf/types/known/structpb"
)

// BenchmarkRun times an execution through the daemon on a unix socket beside one
// by the library and a plain fork and exec, in turns within the same seconds.
// Limits are set as in the table of targets.
func BenchmarkRun(b *testing.B) {
	static, err := bench.StaticTrue()
	if err != nil {
		b.Skip(err)
	}
	file := filepath.Join(b.TempDir(), "true")
	if err := os.WriteFile(file, static, 0o755); err != nil {
		b.Fatal(err)
	}
	url, _ := near(b, belljar.Config{})
	far, err := remote.New(remote.Config{URL: url})
	if err != nil {
		b.Fatal(err)
	}
	defer far.Close(context.Background())
	spec, err := structpb.NewStruct(map[string]any{
		"limits": map[string]any{"memory": "256MiB", "pids": 64, "cpuTime": "10s"},
		"mounts": []any{map[string]any{"source": file, "target": "/true"}},
	})
	if err != nil {
		b.Fatal(err)
	}
	made, err := far.Sandboxes.Create(b.Context(), &v1.CreateSandboxRequest{Spec: spec})
	if err != nil {
		b.Fatal(err)
	}
	run := func(program string) {
		m, err := far.Executions.Run(b.Context(), &v1.RunRequest{Sandbox: made.Sandbox.Id, Command: &v1.Command{Args: []string{program}}, OmitConfinement: true})
		if err != nil || m.Result.State != "completed" {
			b.Error(m, err)
		}
	}
	for name, program := range map[string][2]string{"static": {"/true", file}, "dynamic": {"/bin/true", "/bin/true"}} {
		b.Run(name, func(b *testing.B) {
			var bare time.Duration
			for b.Loop() {
				run(program[0])
				b.StopTimer()
				start := time.Now()
				if err := exec.Command(program[1]).Run(); err != nil {
					b.Fatal(err)
				}
				bare += time.Since(start)
				b.StartTimer()
			}
			b.ReportMetric(float64(bare.Nanoseconds())/float64(b.N), "bare-ns/op")
		})
		b.Run(name+"/8 clients", func(b *testing.B) {
			b.SetParallelism(4) // of two processors
			var n atomic.Int64
			start := time.Now()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					run(program[0])
					n.Add(1)
				}
			})
			b.ReportMetric(float64(n.Load())/time.Since(start).Seconds(), "runs/s")
		})
	}
	b.Run("stream", func(b *testing.B) {
		if b.N > 1 {
			b.Skip("a stream is timed once: -benchtime 1x")
		}
		const size = 256 << 20
		for b.Loop() {
			id, err := far.Executions.Start(b.Context(), &v1.StartRequest{Sandbox: made.Sandbox.Id, Command: &v1.Command{Shell: "head -c 268435456 /dev/zero"}})
			if err != nil {
				b.Fatal(err)
			}
			s, err := far.Executions.Stream(b.Context(), &v1.StreamRequest{Sandbox: made.Sandbox.Id, Execution: id.Execution.Id, OmitOutput: true})
			if err != nil {
				b.Fatal(err)
			}
			got := 0
			for {
				m, err := s.Receive()
				if err != nil {
					b.Fatal(err)
				}
				got += len(m.GetChunk().GetData())
				if m.GetResult() != nil {
					break
				}
			}
			if got != size {
				b.Fatalf("%d bytes of %d", got, size)
			}
		}
		b.SetBytes(size)
	})
}
