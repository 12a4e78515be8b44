// Package conformance is the suite that every backend passes: what a user of
// belljar can rely on, whatever isolates. It tests behaviour, not containment:
// the attacks are in the laboratory.
package conformance

import (
	"bufio"
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"belljar"
)

// Feature is something that a backend may lack on a host.
type Feature string

// Features.
const (
	Shell    Feature = "shell"    // /bin/sh inside
	CPUTime  Feature = "cpuTime"  // limits.cpuTime ends an execution
	Memory   Feature = "memory"   // limits.memory ends an execution
	Pids     Feature = "pids"     // limits.pids refuses a fork
	Disk     Feature = "disk"     // limits.disk is reached
	Seccomp  Feature = "seccomp"  // SIGSYS is what a refused system call ends with
	TTY      Feature = "tty"      // terminals
	Pause    Feature = "pause"    // Pause and Resume
	Persist  Feature = "persist"  // sandboxes that outlive their supervisor
	FIFO     Feature = "fifo"     // programs can make FIFOs
	AbsLinks Feature = "absLinks" // absolute links are resolved at the sandbox's root
	CPURate  Feature = "cpuRate"  // limits.cpu throttles
	Network  Feature = "network"  // programs have a loopback of their own
	Extra    Feature = "extra"    // Cmd.ExtraFiles
	Watch    Feature = "watch"    // changes made by programs are seen
	Layers   Feature = "layers"   // confinement can be switched off
	Mounts   Feature = "mounts"   // directories of the host can be mounted
)

// Subject is a backend to test.
type Subject struct {
	// Runtime is on the backend alone. The suite closes it.
	Runtime *belljar.Runtime
	// Spec is what every sandbox of the suite is made of. It must leave limits,
	// lifetimes, name, labels and pool alone.
	Spec belljar.Spec
	// Probe is how the program conformance/probe is started inside.
	Probe []string
	// Lacks says why the backend does not have a feature here. Cases that need it
	// are skipped with that reason, and for no other.
	Lacks map[Feature]string
	// Left, when set, lists what the backend has left on the host.
	Left func() []string
}

// Factory makes a subject with this configuration. Called again with the same
// state directory, it makes the supervisor that comes after.
type Factory func(t *testing.T, cfg belljar.Config) Subject

// limit is how long a case may take that hangs.
const limit = 30 * time.Second

// Run runs the suite.
func Run(t *testing.T, factory Factory) {
	for _, group := range []struct {
		name  string
		cases []testCase
	}{
		{"result", resultCases},
		{"stream", streamCases},
		{"command", commandCases},
		{"life", lifeCases},
		{"file", fileCases},
		{"tree", treeCases},
		{"persist", persistCases},
		{"promise", promiseCases},
	} {
		t.Run(group.name, func(t *testing.T) {
			for _, c := range group.cases {
				t.Run(c.name, func(t *testing.T) {
					ctx, cancel := context.WithTimeout(t.Context(), limit)
					defer cancel()
					s := &suite{T: t, ctx: ctx, factory: factory}
					s.open(c.config)
					for _, f := range c.needs {
						if why, lacks := s.Lacks[f]; lacks {
							t.Skipf("no %s: %s", f, why)
						}
					}
					c.f(s)
				})
			}
		})
	}
}

type testCase struct {
	name   string
	needs  []Feature
	config belljar.Config
	f      func(*suite)
}

// suite is what a case works with.
type suite struct {
	*testing.T
	Subject
	ctx     context.Context
	factory Factory
}

// open makes the subject of a case.
func (s *suite) open(cfg belljar.Config) {
	s.Helper()
	s.Subject = s.factory(s.T, cfg)
	rt, left := s.Runtime, s.Left
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		if err := rt.Close(ctx); err != nil {
			s.Errorf("close runtime: %v", err)
		}
		if left != nil && !cfg.Persist {
			if l := left(); len(l) > 0 {
				s.Errorf("left behind: %q", l)
			}
		}
	})
}

// sandbox makes one, with the changes to the base spec.
func (s *suite) sandbox(change ...func(*belljar.Spec)) *belljar.Sandbox {
	s.Helper()
	sb, err := s.Runtime.Create(s.ctx, s.spec(change...))
	if err != nil {
		s.Fatalf("create: %v", err)
	}
	return sb
}

func (s *suite) spec(change ...func(*belljar.Spec)) belljar.Spec {
	spec := s.Spec
	for _, f := range change {
		f(&spec)
	}
	return spec
}

// probe is a command of the probe.
func (s *suite) probe(sb *belljar.Sandbox, args ...string) *belljar.Cmd {
	c := sb.Command(s.Probe[0], s.Probe[1:]...)
	c.Args = append(c.Args, args...)
	return c
}

// run runs a command and fails when the machinery does.
func (s *suite) run(c *belljar.Cmd) *belljar.Result {
	s.Helper()
	res, err := c.Run(s.ctx)
	if err != nil {
		s.Fatalf("run %q: %v", c.Args, err)
	}
	return res
}

// started is a running probe that has said its first line.
func (s *suite) started(sb *belljar.Sandbox, args ...string) *belljar.Cmd {
	s.Helper()
	c := s.probe(sb, args...)
	s.start(c)
	return c
}

// start starts a command and waits for its first line; the others are thrown away.
func (s *suite) start(c *belljar.Cmd) {
	s.Helper()
	out, err := c.StdoutPipe()
	if err != nil {
		s.Fatal(err)
	}
	if err := c.Start(s.ctx); err != nil {
		s.Fatalf("start %q: %v", c.Args, err)
	}
	r := bufio.NewReader(out)
	if line, err := r.ReadString('\n'); err != nil {
		res, werr := c.Wait(s.ctx)
		s.Fatalf("first line of %q: %q, %v; %+v, %v", c.Args, line, err, res, werr)
	}
	go func() { _, _ = io.Copy(io.Discard, r) }() // ends with the execution
}

// wait waits for a result.
func (s *suite) wait(c *belljar.Cmd) *belljar.Result {
	s.Helper()
	res, err := c.Wait(s.ctx)
	if err != nil {
		s.Fatalf("wait %q: %v", c.Args, err)
	}
	return res
}

// await waits for a channel, but not for ever.
func await[T any](s *suite, c <-chan T) (v T) {
	s.Helper()
	select {
	case v = <-c:
	case <-s.ctx.Done():
		s.Fatal("it never happens")
	}
	return v
}

// healthy runs something innocent.
func (s *suite) healthy(sb *belljar.Sandbox) {
	s.Helper()
	if res := s.run(s.probe(sb, "exit", "0")); res.State != belljar.Completed {
		s.Errorf("the sandbox is not usable afterwards: %s", describe(res))
	}
}

func describe(r *belljar.Result) string {
	var b strings.Builder
	b.WriteString(string(r.State) + "/" + string(r.Cause))
	if r.Error != nil {
		b.WriteString(" error " + string(r.Error.Code) + ": " + r.Error.Error())
	}
	if len(r.Stderr) > 0 {
		b.WriteString(" stderr " + string(r.Stderr[:min(len(r.Stderr), 500)]))
	}
	return b.String()
}
