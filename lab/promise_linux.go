package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"belljar"
)

// promiseEntries attack what is promised beyond confinement: streams, terminals,
// pausing, and that a neighbour goes on living.
func promiseEntries() []Entry {
	return []Entry{
		{ID: "C5-lossless", Guarantee: "C5", Capability: "streaming", Title: "outrun a slow reader with more than is retained", Knob: "a live stream", Run: func(ctx context.Context, e *Env) error {
			b, err := e.Box(ctx, nil)
			if err != nil {
				return err
			}
			f, err := os.CreateTemp(filepath.Dir(e.lab.probe), "stream-")
			if err != nil {
				return err
			}
			e.later(func() { _ = os.Remove(f.Name()) })
			want := make([]byte, 20<<20) // a stream retains 16 MiB
			for i := range want {
				want[i] = byte(i>>16) ^ byte(i*7)
			}
			_, err = f.Write(want)
			if err = errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
				return err
			}
			var got bytes.Buffer
			cmd := b.Cmd("cat", inside+"/"+filepath.Base(f.Name()))
			if !e.Weak() {
				cmd.Stdout = slowly{&got}
			}
			res, err := cmd.Run(ctx)
			if err != nil {
				return err
			}
			if e.Weak() {
				got.Write(res.Stdout)
			}
			e.Control(res.State == belljar.Completed, "it wrote all of it: %s", ended(res))
			e.Check(bytes.Equal(got.Bytes(), want), "%d of %d bytes arrived, or others", got.Len(), len(want))
			return nil
		}},
		{ID: "B4-foreign", Guarantee: "B4", Capability: "tty", Title: "open a terminal that was not given", Knob: "no terminal given", Run: func(ctx context.Context, e *Env) error {
			b, err := e.Box(ctx, nil)
			if err != nil {
				return err
			}
			open := func(tty *belljar.TTY) (string, error) {
				cmd := b.sb.Shell("(: < /dev/tty) 2>/dev/null && echo opened $(stty size < /dev/tty) || echo none")
				cmd.TTY = tty
				res, err := cmd.Run(ctx)
				if err != nil {
					return "", err
				}
				return strings.TrimSpace(string(res.Stdout)), nil
			}
			given := &belljar.TTY{Rows: 31, Cols: 97}
			own, err := open(given)
			if err != nil {
				return err
			}
			e.Control(own == "opened 31 97", "with a terminal of its own: %q", own)
			if !e.Weak() {
				given = nil
			}
			got, err := open(given)
			if err != nil {
				return err
			}
			e.Check(got == "none", "%q", got)
			return nil
		}},
		{ID: "C6-pause", Guarantee: "C6", Capability: "pause", Title: "run on while the sandbox is paused", Knob: "the pause", Needs: needsCgroup, Run: func(ctx context.Context, e *Env) error {
			b, err := e.Box(ctx, nil)
			if err != nil {
				return err
			}
			cmd := b.Cmd("spin", "20000")
			if err := cmd.Start(ctx); err != nil {
				return err
			}
			used := func() float64 {
				u, err := b.sb.Usage(ctx)
				if err != nil || u.CPUTimeMs == nil {
					return -1
				}
				return *u.CPUTimeMs
			}
			base := used()
			_, ok := until(ctx, 5*time.Second, func() bool { return used() > base+20 })
			e.Control(ok && base >= 0, "before it runs: %.0f ms, then %.0f", base, used())
			if !e.Weak() {
				if err := b.sb.Pause(ctx); err != nil {
					return err
				}
			}
			start := used()
			_, ran := until(ctx, time.Second, func() bool { return used() > start+10 })
			e.Check(!ran, "it used %.0f ms of processor time", used()-start)
			if !e.Weak() {
				if err := b.sb.Resume(ctx); err != nil {
					return err
				}
				_, ok = until(ctx, 5*time.Second, func() bool { return used() > start+20 })
				e.Control(ok, "after the pause it runs on")
			}
			return cmd.Cancel(ctx)
		}},
		{ID: "B8-groups", Guarantee: "B8", Title: "list control groups of others and change one's own", Direct: true, Needs: func(e *Env) string {
			if e.direct() {
				return "" // there is no sandbox to ask
			}
			return needsCgroup(e)
		}, Run: func(ctx context.Context, e *Env) error {
			rt, err := e.Runtime(ctx, belljar.Config{})
			if err != nil {
				return err
			}
			other, err := e.BoxOf(ctx, rt, nil)
			if err != nil {
				return err
			}
			ps, stop, err := other.resident(ctx, "sleep")
			if err != nil {
				return err
			}
			defer stop()
			var names []string // the tops of that runtime
			for _, dir := range cgroupsOf(ps[0].pid) {
				for p := range strings.SplitSeq(dir, "/") {
					if strings.HasPrefix(p, "belljar-") {
						names = append(names, p)
					}
				}
			}
			if len(names) == 0 {
				return errors.New("no group of the other sandbox is known")
			}
			script := "find /sys/fs/cgroup; cat /proc/self/mountinfo /proc/self/cgroup; find /sys/fs/cgroup -name memory.limit_in_bytes -o -name memory.max | xargs cat; " +
				"for f in $(find /sys/fs/cgroup -type f); do (: >> $f) 2>/dev/null && echo writable=$f; done; true"
			var out string
			if e.direct() {
				out, err = shellAsNobody(ctx, script)
			} else {
				var b *Box
				if b, err = e.Box(ctx, func(s *belljar.Spec) { s.Limits.Memory = 96 * belljar.MiB }); err != nil {
					return err
				}
				var res *belljar.Result
				if res, err = b.sb.Shell(script).Run(ctx); err == nil {
					out = string(res.Stdout)
					e.Control(strings.Contains(out, "\n"+fmt.Sprint(96<<20)+"\n"), "its own limit can be read")
				}
			}
			if err != nil {
				return err
			}
			e.Check(!strings.Contains(out, names[0]), "%s is seen", names[0])
			e.Check(!strings.Contains(out, "writable="), "a file is writable")
			return nil
		}},
		{ID: "C3-neighbour", Guarantee: "C3", Title: "starve another sandbox by a bomb of forks", Knob: "limits.pids", Needs: needsCgroup, Run: func(ctx context.Context, e *Env) error {
			if e.Weak() {
				e.Note("without a limit a bomb is not for this host: what is tried is one sandbox for both")
			}
			rt, err := e.Runtime(ctx, belljar.Config{})
			if err != nil {
				return err
			}
			small := func(s *belljar.Spec) { s.Limits.Pids = 48 }
			bomber, err := e.BoxOf(ctx, rt, small)
			if err != nil {
				return err
			}
			victim := bomber
			if !e.Weak() {
				if victim, err = e.BoxOf(ctx, rt, small); err != nil {
					return err
				}
			}
			// One execution needs some threads; in the bomber's own sandbox there are none left.
			try := func(n int) (ok int, worst time.Duration) {
				for range n {
					start := time.Now()
					rep, _, err := victim.Attack(ctx, "forks", "10", "0")
					if err == nil && rep.Succeeded {
						ok++
					}
					worst = max(worst, time.Since(start))
				}
				return ok, worst
			}
			alone, quiet := try(10)
			e.Control(alone == 10, "without the bomb %d of 10 executions completed, the slowest in %v", alone, quiet)
			bomb := bomber.Cmd("forks", "400", "20000")
			if err := bomb.Start(ctx); err != nil {
				return err
			}
			_, full := until(ctx, 5*time.Second, func() bool {
				u, err := bomber.sb.Usage(ctx)
				return err == nil && u.PeakPids != nil && *u.PeakPids >= 45
			})
			e.Control(full, "the bomb reached its limit")
			done, busy := try(10)
			e.Check(done == 10, "%d of 10 executions completed", done)
			e.Note("the slowest took %v, %.1f times as long as without the bomb", busy, float64(busy)/float64(quiet))
			return bomb.Cancel(ctx)
		}},
	}
}

// slowly is a reader that cannot keep up.
type slowly struct{ to *bytes.Buffer }

func (s slowly) Write(p []byte) (int, error) {
	time.Sleep(200 * time.Microsecond)
	return s.to.Write(p)
}

// shellAsNobody runs a script as an ordinary process of the host.
func shellAsNobody(ctx context.Context, script string) (string, error) {
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", script)
	demote(cmd)
	out, err := cmd.Output()
	return string(out), err
}
