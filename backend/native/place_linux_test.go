package native_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path"
	"strconv"
	"strings"
	"testing"
	"time"

	"belljar"
	"belljar/backend/native"

	"golang.org/x/sys/unix"
)

// pidfdOf opens a process.
func pidfdOf(t *testing.T, pid int) *os.File {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	t.Cleanup(func() { f.Close() })
	return f
}

// TestPlace: a process of the sandbox gets a group of its own, which ends alone; a
// process of anybody else is left where it is.
func TestPlace(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	rt, err := belljar.New(ctx, belljar.Config{}, native.New(native.Config{}))
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close(context.Background())
	sb, err := rt.Create(ctx, belljar.Spec{Limits: belljar.Limits{Memory: 256 * belljar.MiB}})
	if err != nil {
		t.Skipf("no control groups here: %v", err)
	}
	before := membership(t, os.Getpid())
	if _, err := sb.Place(ctx, pidfdOf(t, os.Getpid()), belljar.Limits{}); err == nil {
		t.Error("the supervisor itself was placed")
	}
	stranger := exec.Command("/bin/sleep", "60")
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stranger.Process.Kill(); _ = stranger.Wait() }()
	if _, err := sb.Place(ctx, pidfdOf(t, stranger.Process.Pid), belljar.Limits{}); !errors.Is(err, belljar.ErrNotFound) {
		t.Errorf("a process of the host: %v, want NOT_FOUND", err)
	}
	if now := membership(t, os.Getpid()); now != before {
		t.Errorf("the supervisor was moved: %s", now)
	}

	cmd := sb.Shell("sleep 61 & echo; sleep 62")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	pid := find(t, "61")
	p, err := sb.Place(ctx, pidfdOf(t, pid), belljar.Limits{Memory: 64 * belljar.MiB})
	if err != nil {
		t.Fatal(err)
	}
	if membership(t, pid) == membership(t, find(t, "62")) {
		t.Error("the placed process is where its sibling is")
	}
	if u, err := p.Usage(ctx); err != nil || u.CPUTimeMs == nil {
		t.Errorf("usage %+v, %v", u, err)
	}
	if u, err := cmd.Usage(ctx); err != nil || u.CPUTimeMs == nil {
		t.Errorf("usage of the execution %+v, %v", u, err)
	}
	if err := p.Close(ctx); err != nil {
		t.Error(err)
	}
	if cmd.State() != belljar.Running {
		t.Errorf("the execution is %s after the end of a placed process", cmd.State())
	}
	// What is not closed ends with the sandbox.
	q, err := sb.Place(ctx, pidfdOf(t, find(t, "62")), belljar.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Destroy(ctx); err != nil {
		t.Error(err)
	}
	if err := q.Kill(ctx); err != nil {
		t.Error(err)
	}
	if err := q.Close(ctx); err != nil {
		t.Error(err)
	}
	if _, err := sb.Place(ctx, pidfdOf(t, os.Getpid()), belljar.Limits{}); !errors.Is(err, belljar.ErrDestroyed) {
		t.Errorf("place in a destroyed sandbox: %v", err)
	}
}

func membership(t *testing.T, pid int) string {
	t.Helper()
	b, err := os.ReadFile(path.Join("/proc", strconv.Itoa(pid), "cgroup"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// find returns the process that sleeps so many seconds.
func find(t *testing.T, seconds string) int {
	t.Helper()
	for limit := time.Now().Add(5 * time.Second); time.Now().Before(limit); { // the shell may not have got so far
		procs, err := os.ReadDir("/proc")
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range procs {
			pid, err := strconv.Atoi(p.Name())
			if err != nil {
				continue
			}
			b, err := os.ReadFile(path.Join("/proc", p.Name(), "cmdline"))
			if err == nil && strings.HasSuffix(string(b), "sleep\x00"+seconds+"\x00") {
				return pid
			}
		}
	}
	t.Fatalf("nobody sleeps %s s", seconds)
	return 0
}
