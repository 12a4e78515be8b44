package native_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"belljar"
	"belljar/backend/native"
	"belljar/conformance"
)

var probeDir string

// probe builds the program that plays inside, once.
var probe = sync.OnceValues(func() (string, error) {
	if p := os.Getenv("BELLJAR_PROBE"); p != "" {
		return p, nil // where there is no Go to build it with
	}
	dir, err := os.MkdirTemp("", "belljar-probe-")
	if err != nil {
		return "", err
	}
	probeDir = dir
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

func TestMain(m *testing.M) {
	code := m.Run()
	if probeDir != "" {
		os.RemoveAll(probeDir)
	}
	os.Exit(code)
}

func TestConformance(t *testing.T) {
	for _, fresh := range []bool{false, true} {
		name := "shared"
		if fresh {
			name = "fresh"
		}
		t.Run(name, func(t *testing.T) { conformance.Run(t, factory(fresh)) })
	}
}

func factory(fresh bool) conformance.Factory {
	others := left() // other supervisors' sandboxes may live on this host
	return func(t *testing.T, cfg belljar.Config) conformance.Subject {
		p, err := probe()
		if err != nil {
			t.Fatal(err)
		}
		b := native.New(native.Config{})
		rt, err := belljar.New(t.Context(), cfg, b)
		if err != nil {
			t.Fatal(err)
		}
		s := conformance.Subject{
			Runtime: rt, Probe: []string{"/probe"},
			Spec:  belljar.Spec{Mounts: []belljar.Mount{{Source: p, Target: "/probe"}}, Isolation: belljar.Isolation{Fresh: fresh}},
			Lacks: map[conformance.Feature]string{},
			Left: func() []string {
				return slices.DeleteFunc(left(), func(h string) bool { return slices.Contains(others, h) })
			},
		}
		pr, err := b.Probe(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range pr.Layers {
			if l.Layer == belljar.LayerCgroup && l.Status != belljar.LayerApplied {
				for _, f := range []conformance.Feature{conformance.CPUTime, conformance.CPURate, conformance.Memory, conformance.Pids, conformance.Pause} {
					s.Lacks[f] = "no cgroup: " + l.Reason
				}
			}
		}
		return s
	}
}

// left lists processes and groups of this backend on the host.
func left() []string {
	var out []string
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids", "/sys/fs/cgroup/cpu"} {
		hits, _ := filepath.Glob(dir + "/belljar-*")
		for _, h := range hits {
			if strings.Contains(h, "belljar-p-") {
				out = append(out, h)
			}
		}
	}
	return out
}
