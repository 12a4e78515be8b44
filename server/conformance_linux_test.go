package server_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"belljar"
	"belljar/backend/native"
	"belljar/backend/remote"
	"belljar/conformance"
	"belljar/server"
)

// probe builds the program that plays inside, once.
var probe = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "belljar-probe-")
	if err != nil {
		return "", err
	}
	cleanups = append(cleanups, func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(dir, "probe")
	c := exec.Command("go", "build", "-trimpath", "-o", path, "belljar/conformance/probe")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		return "", &exec.Error{Name: string(out), Err: err}
	}
	return path, os.Chmod(path, 0o755)
})

var cleanups []func()

func TestMain(m *testing.M) {
	if dir := os.Getenv(envDaemon); dir != "" {
		if err := daemonMain(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	for _, f := range cleanups {
		f()
	}
	os.Exit(code)
}

// near is a daemon in this process on a unix socket, with the native backend.
func near(t testing.TB, cfg belljar.Config) (url string, b *native.Backend) {
	t.Helper()
	b = native.New(native.Config{})
	rt, err := belljar.New(context.Background(), cfg, b)
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.New(server.Config{Runtime: rt, Auth: server.Local{UIDs: []int{os.Geteuid()}}, TTL: 10 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "s")
	l, err := server.ListenUnix(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l, time.Second) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		if err := rt.Close(context.Background()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return "unix://" + socket, b
}

// The API on far sandboxes behaves as on near ones: the suite of every backend,
// through the daemon.
func TestConformance(t *testing.T) {
	conformance.Run(t, func(t *testing.T, cfg belljar.Config) conformance.Subject {
		p, err := probe()
		if err != nil {
			t.Fatal(err)
		}
		url, nb := near(t, belljar.Config{})
		b, err := remote.New(remote.Config{URL: url})
		if err != nil {
			t.Fatal(err)
		}
		rt, err := belljar.New(t.Context(), cfg, b)
		if err != nil {
			t.Fatal(err)
		}
		s := conformance.Subject{
			Runtime: rt, Probe: []string{"/probe"},
			Spec:  belljar.Spec{Mounts: []belljar.Mount{{Source: p, Target: "/probe"}}},
			Lacks: map[conformance.Feature]string{conformance.Persist: "a client takes nothing back", conformance.Extra: "descriptors do not travel"},
		}
		pr, err := nb.Probe(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range pr.Layers {
			if l.Layer == belljar.LayerCgroup && l.Status != belljar.LayerApplied {
				for _, f := range []conformance.Feature{conformance.CPUTime, conformance.Memory, conformance.Pids, conformance.CPURate, conformance.Pause} {
					s.Lacks[f] = l.Reason
				}
			}
		}
		return s
	})
}
