package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"belljar"
	"belljar/backend/native/keeper"
	"belljar/internal/linux/cgroup"

	"golang.org/x/sys/unix"
)

// create makes a sandbox without a supervisor.
func create(t *testing.T, b *Backend, spec belljar.Spec, edit func(*belljar.Plan)) (*instance, error) {
	t.Helper()
	plan, err := belljar.Compile(spec)
	if err != nil {
		t.Fatal(err)
	}
	plan.ID = "sb-aaaaaaaaaaaaaaaaaaaa"
	if edit != nil {
		edit(plan)
	}
	in, err := b.Create(t.Context(), plan)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = in.Close(context.Background()) })
	return in.(*instance), nil
}

func newBackend(t *testing.T) *Backend {
	t.Helper()
	b := New(Config{})
	t.Cleanup(func() {
		if err := b.Close(context.Background()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return b
}

// image makes a directory that can be told apart from others.
func image(t *testing.T, name string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestRootAfterLostTemplate: a template that could not be made leaves a gap in the
// table of ids, and the next root must not be mistaken for another's.
func TestRootAfterLostTemplate(t *testing.T) {
	b := newBackend(t)
	has := func(name string) {
		t.Helper()
		in, err := create(t, b, belljar.Spec{Image: image(t, name)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := in.Files().Lstat("/" + name); err != nil {
			t.Errorf("the image's own file: %v", err)
		}
		if err := in.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	has("one")
	has("two")
	b.mu.Lock()
	for k, x := range b.templates {
		if x.id == 0 {
			delete(b.templates, k)
			if err := b.nursery.Send(keeper.NewMsg(keeper.MForget, 0).U32(0, 0)); err != nil {
				t.Error(err)
			}
		}
	}
	b.mu.Unlock()
	has("three")
}

// TestUnkeptLimits: what a command writes is kept or refused.
func TestUnkeptLimits(t *testing.T) {
	rt := newRuntime(t)
	for _, c := range []struct {
		name   string
		off    belljar.Layer
		limits belljar.Limits
	}{
		{"memory", belljar.LayerCgroup, belljar.Limits{Memory: 64 * belljar.MiB}},
		{"cpu", belljar.LayerCgroup, belljar.Limits{CPU: 0.5}},
		{"cpuTime", belljar.LayerCgroup, belljar.Limits{CPUTime: time.Second}},
		{"openFiles", belljar.LayerRlimits, belljar.Limits{OpenFiles: 16}},
		{"fileSize", belljar.LayerRlimits, belljar.Limits{FileSize: belljar.MiB}},
	} {
		t.Run(c.name, func(t *testing.T) {
			sb, err := rt.Create(t.Context(), belljar.Spec{Isolation: belljar.Isolation{Layers: map[belljar.Layer]belljar.Want{c.off: belljar.Off}}})
			if err != nil {
				t.Fatal(err)
			}
			defer sb.Destroy(t.Context())
			cmd := sb.Command("true")
			cmd.Limits = c.limits
			var e *belljar.Error
			if _, err := cmd.Run(t.Context()); !errors.As(err, &e) || e.Code != belljar.CodeIsolationUnavailable || !e.Recoverable {
				t.Errorf("got %v, want a recoverable ISOLATION_UNAVAILABLE", err)
			}
			if res, err := sb.Command("true").Run(t.Context()); err != nil || res.ExitCode != 0 {
				t.Errorf("without the limit: %v %+v", err, res)
			}
		})
	}
}

// TestNothingEndsTheTree: without pid namespace and cgroup a background child would
// outlive its execution.
func TestNothingEndsTheTree(t *testing.T) {
	off := map[belljar.Layer]belljar.Want{belljar.LayerPid: belljar.Off, belljar.LayerCgroup: belljar.Off}
	_, err := newRuntime(t).Create(t.Context(), belljar.Spec{Isolation: belljar.Isolation{Layers: off}})
	if !errors.Is(err, belljar.ErrIsolationUnavailable) {
		t.Errorf("got %v, want ISOLATION_UNAVAILABLE", err)
	}
}

// TestCreateError: what a caller is told.
func TestCreateError(t *testing.T) {
	for _, c := range []struct {
		err  error
		want belljar.Code
	}{
		{context.Canceled, belljar.CodeCancelled},
		{context.DeadlineExceeded, belljar.CodeCancelled},
		{&cgroup.UnsupportedError{Feature: "cpu rate limit", Needs: "a controller"}, belljar.CodeIsolationUnavailable},
		{&StepError{Step: keeper.StepUnshareUser, Errno: unix.ENOSPC}, belljar.CodeUnavailable},
		{unix.EIO, belljar.CodeInternal},
		{errors.Join(errClosed, unix.EIO), belljar.CodeUnavailable},
	} {
		if got := refusal(c.err); got == nil || got.Code != c.want {
			t.Errorf("%v: %v, want %s", c.err, got, c.want)
		}
	}
}

// TestCreateGivenUp: whenever the caller gives up, that is what it is told.
func TestCreateGivenUp(t *testing.T) {
	b := newBackend(t)
	for i := range 12 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*500*time.Microsecond)
		plan, err := belljar.Compile(belljar.Spec{})
		if err != nil {
			t.Fatal(err)
		}
		plan.ID = "sb-aaaaaaaaaaaaaaaaaaaa"
		in, err := b.Create(ctx, plan)
		cancel()
		if err == nil {
			err = in.Close(t.Context())
		} else if errors.Is(err, context.DeadlineExceeded) {
			err = nil
		}
		if err != nil {
			t.Errorf("after %d half milliseconds: %v", i, err)
		}
	}
}

// TestNurseryKilled: the nursery is needed again after something killed it.
func TestNurseryKilled(t *testing.T) {
	b := newBackend(t)
	old, err := create(t, b, belljar.Spec{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(b.nursery.Pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for range 50 {
		var in *instance
		if in, err = create(t, b, belljar.Spec{}, nil); err == nil {
			err = in.Close(t.Context())
			break
		}
		if !errors.Is(err, belljar.ErrUnavailable) && !errors.Is(err, belljar.ErrInternal) {
			t.Fatalf("meanwhile: %v", err)
		}
	}
	if err != nil {
		t.Errorf("no sandbox any more: %v", err)
	}
	if err := old.Alive(t.Context()); err != nil {
		t.Errorf("the older sandbox: %v", err)
	}
}

// TestCloseAgain: a Close that failed may be tried again.
func TestCloseAgain(t *testing.T) {
	dir := t.TempDir()
	in, err := create(t, newBackend(t), belljar.Spec{}, func(p *belljar.Plan) { p.Persist, p.StateDir = true, dir })
	if err != nil {
		t.Fatal(err)
	}
	sock := filepath.Join(dir, "keeper.sock")
	if err := errors.Join(os.Remove(sock), os.MkdirAll(filepath.Join(sock, "x"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := in.Close(t.Context()); err == nil {
		t.Fatal("closed, with its socket still there")
	}
	if err := os.Remove(filepath.Join(sock, "x")); err != nil {
		t.Fatal(err)
	}
	if err := in.Close(t.Context()); err != nil {
		t.Errorf("again: %v", err)
	}
}

// TestCloseBesideUse: descriptors are not used once they are closed, when their
// numbers may stand for something else.
func TestCloseBesideUse(t *testing.T) {
	in, err := create(t, newBackend(t), belljar.Spec{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for {
				_, ferr := in.Files().Lstat("/workspace")
				if aerr := in.Alive(context.Background()); ferr != nil && aerr != nil {
					if !errors.Is(ferr, belljar.ErrDestroyed) || !errors.Is(aerr, belljar.ErrDestroyed) {
						t.Errorf("got %v and %v, want DESTROYED", ferr, aerr)
					}
					return
				}
			}
		})
	}
	if err := in.Close(t.Context()); err != nil {
		t.Error(err)
	}
	wg.Wait()
}

// TestCloseBesideCreate: a backend that is closed has no sandbox.
func TestCloseBesideCreate(t *testing.T) {
	for range 4 {
		b := New(Config{})
		made := make(chan *instance, 1)
		go func() {
			in, err := create(t, b, belljar.Spec{}, nil)
			if err != nil {
				in = nil
			}
			made <- in
		}()
		time.Sleep(time.Millisecond) // anywhere in it
		err := b.Close(t.Context())
		if in := <-made; in != nil && in.Alive(t.Context()) == nil {
			t.Error("a sandbox has outlived its backend")
		} else if err != nil {
			t.Errorf("close: %v", err)
		}
	}
}

// TestSignalAfterTheEnd: once the set was given back, another execution may be in it.
func TestSignalAfterTheEnd(t *testing.T) {
	x := &task{in: &instance{}, set: new(cgroup.Set), given: true}
	if err := x.SignalTree(t.Context(), syscall.SIGTERM); err != nil {
		t.Error(err) // it would not even get here: the set is empty
	}
}

// TestUntoldEnd: a SIGKILL beside a memory counter that cannot be read is neither the
// program's own signal nor, for certain, the limit.
func TestUntoldEnd(t *testing.T) {
	b := newBackend(t)
	in, err := create(t, b, belljar.Spec{Limits: belljar.Limits{Memory: 64 * belljar.MiB}}, nil)
	if errors.Is(err, belljar.ErrIsolationUnavailable) {
		t.Skip("no memory limits here")
	}
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	dup := func() *os.File {
		fd, err := unix.FcntlInt(null.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		return os.NewFile(uintptr(fd), "null")
	}
	defer null.Close()
	x, err := in.Start(t.Context(), &belljar.Process{ID: "x", Args: []string{"sleep", "1000"}, Dir: "/", Env: []string{"PATH=/bin"}, Limits: in.plan.Spec.Limits},
		belljar.Stdio{Stdin: dup(), Stdout: dup(), Stderr: dup()})
	if err != nil {
		t.Fatal(err)
	}
	set := x.(*task).set
	if set == nil {
		t.Skip("no groups here")
	}
	if err := x.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-x.(*task).done
	removed := false
	for _, dir := range set.Paths() {
		if _, err := os.Stat(filepath.Join(dir, "memory.oom_control")); err == nil {
			removed = os.Remove(dir) == nil
		}
	}
	if !removed {
		t.Skip("the group of the counter cannot be removed by itself here")
	}
	if e, err := x.Wait(t.Context()); err == nil || !strings.Contains(err.Error(), "what ended the execution") {
		t.Errorf("ended %+v, %v", e, err)
	}
}

// TestIDRanges: no two tenants with sandboxes have one range, and there is an end to it.
func TestIDRanges(t *testing.T) {
	b := New(Config{})
	seen := map[uint32]string{}
	take := func(tenant string) error {
		b.mu.Lock()
		defer b.mu.Unlock()
		base, err := b.idBase(tenant)
		if err != nil {
			return err
		}
		if base < 0x40000000 || base >= 0x60000000 || base&0xffff != 0 {
			t.Fatalf("%s: range %#x", tenant, base)
		}
		if other := seen[base]; other != "" && other != tenant {
			t.Fatalf("%#x belongs to %s and %s", base, other, tenant)
		}
		seen[base] = tenant
		in := newInstance(b, &belljar.Plan{Spec: belljar.Spec{Tenant: tenant}})
		in.base = base
		if len(b.live) < idRanges/2 {
			b.live[in] = struct{}{}
		} else {
			b.making[in] = struct{}{}
		}
		return nil
	}
	// One of them was adopted, with a range that is no longer its name's.
	adopted := newInstance(b, &belljar.Plan{Spec: belljar.Spec{Tenant: "adopted"}})
	adopted.base = 0x40000000 + 17<<16
	b.live[adopted] = struct{}{}
	seen[adopted.base] = "adopted"
	for i := range idRanges - 1 {
		if err := take(fmt.Sprintf("t%d", i)); err != nil {
			t.Fatalf("tenant %d: %v", i, err)
		}
	}
	if err := take("one-too-many"); !errors.Is(err, belljar.ErrUnavailable) {
		t.Errorf("one more than there are ranges: %v", err)
	}
	for in := range b.making {
		seen[in.base] = ""
		delete(b.making, in)
		break
	}
	if err := take("the-next"); err != nil {
		t.Errorf("after one was given back: %v", err)
	}
}

// TestImageSource: an image is refused where a mount's source is.
func TestImageSource(t *testing.T) {
	state := t.TempDir()
	own := filepath.Join(state, "sandboxes", "sb-aaaaaaaaaaaaaaaaaaaa")
	link := filepath.Join(t.TempDir(), "link")
	file := filepath.Join(t.TempDir(), "file")
	if err := errors.Join(os.MkdirAll(own, 0o700), os.Symlink(state, link), os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	b := newBackend(t)
	for _, stateDir := range []string{own, filepath.Join(link, "sandboxes", filepath.Base(own))} {
		for name, dir := range map[string]string{
			"the state directory": state, "in it": own, "above it": filepath.Dir(state), "by a link": link, "a file": file, "missing": state + "/none",
		} {
			for field, spec := range map[string]belljar.Spec{
				"spec image":            {Image: dir},
				"spec mounts[0].source": {Mounts: []belljar.Mount{{Source: dir, Target: "/data"}}},
			} {
				if name == "a file" && spec.Image == "" {
					continue // may be mounted
				}
				_, err := create(t, b, spec, func(p *belljar.Plan) { p.StateDir = stateDir })
				var e *belljar.Error
				if !errors.As(err, &e) || e.Code != belljar.CodeInvalidSpec || e.Op != field || e.Hint == "" {
					t.Errorf("%s %s: %v, want INVALID_SPEC", field, name, err)
				}
			}
		}
		if _, err := create(t, b, belljar.Spec{Image: image(t, "ok")}, func(p *belljar.Plan) { p.StateDir = stateDir }); err != nil {
			t.Errorf("another image: %v", err)
		}
	}
}

// TestWatchNobodyReads: a watcher whose events nobody takes ends with its sandbox.
func TestWatchNobodyReads(t *testing.T) {
	in, err := create(t, newBackend(t), belljar.Spec{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	events, err := in.Files().Watch(t.Context(), "/workspace")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 200 { // more than are kept
		if err := in.Files().Mkdir(fmt.Sprintf("/workspace/%d", i), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := in.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	n := 0
	for range events {
		n++
	}
	if n == 0 || n > 66 {
		t.Errorf("%d events", n)
	}
}
