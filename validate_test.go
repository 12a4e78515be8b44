package belljar

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestCompileDefaults(t *testing.T) {
	p, err := Compile(Spec{})
	if err != nil {
		t.Fatal(err)
	}
	want := &Plan{
		Spec: Spec{
			Backend: "native", WorkDir: "/workspace", Network: NetworkDisabled, Tenant: "default",
			Limits:    Limits{Pids: 512, Disk: GiB, Inodes: 200_000, DiskBacking: DiskMemory, OpenFiles: 1024},
			Isolation: Isolation{Mode: Hardened, Seccomp: "default"},
		},
		Wants: map[Layer]Want{
			LayerUser: Require, LayerMount: Require, LayerPid: Require, LayerNet: Require, LayerIPC: Require, LayerUTS: Require,
			LayerRootfs: Require, LayerSeccomp: Require, LayerNoNewPrivs: Require, LayerCaps: Require, LayerRlimits: Require,
			LayerCgroupNS: Prefer, LayerLandlock: Prefer, LayerCgroup: Prefer,
		},
	}
	if diff := cmp.Diff(want, p); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestCompileFillsIn(t *testing.T) {
	p, err := Compile(Spec{
		Backend: "firecracker", Limits: Limits{Memory: 256 * MiB}, Pool: &Pool{Size: 2},
		Mounts: []Mount{{Source: "/srv/a", Target: "/data"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	s := p.Spec
	if s.Backend != "microvm" || s.Limits.Disk != 128*MiB || s.Pool.MaxIdle != 5*time.Minute || s.Mounts[0].ReadOnly == nil || !*s.Mounts[0].ReadOnly {
		t.Errorf("got backend %s, disk %s, maxIdle %s, readOnly %v", s.Backend, s.Limits.Disk, s.Pool.MaxIdle, s.Mounts[0].ReadOnly)
	}
	for alias, name := range map[string]string{"process": "native", "docker": "container", "firecracker": "microvm", "wasi": "wasi", "fake": "fake"} {
		if p, err := Compile(Spec{Backend: alias}); err != nil || p.Spec.Backend != name {
			t.Errorf("backend %s: got %+v, %v; want %s", alias, p, err, name)
		}
	}
}

func TestCompileSharesNothing(t *testing.T) {
	rw := false
	s := Spec{
		Env: map[string]string{"A": "1"}, Labels: map[string]string{"a": "1"}, Pool: &Pool{Size: 1},
		Mounts:    []Mount{{Source: "/srv/a", Target: "/data", ReadOnly: &rw}},
		Isolation: Isolation{Layers: map[Layer]Want{LayerLandlock: Off}},
	}
	p, err := Compile(s)
	if err != nil {
		t.Fatal(err)
	}
	s.Env["A"], s.Labels["a"], s.Pool.Size, s.Mounts[0].Target, rw = "2", "2", 2, "/etc", true
	s.Isolation.Layers[LayerSeccomp] = Off
	got := p.Spec
	if got.Env["A"] != "1" || got.Labels["a"] != "1" || got.Pool.Size != 1 || got.Mounts[0].Target != "/data" || *got.Mounts[0].ReadOnly || len(got.Isolation.Layers) != 1 {
		t.Errorf("the caller's changes reach the plan: %+v", got)
	}
	p.Spec.Env["A"], *p.Spec.Mounts[0].ReadOnly = "3", false
	if s.Env["A"] != "2" || !rw {
		t.Error("the plan's changes reach the caller")
	}
}

func TestCompileWants(t *testing.T) {
	base, err := Compile(Spec{})
	if err != nil {
		t.Fatal(err)
	}
	with := func(m map[Layer]Want) map[Layer]Want {
		w := maps.Clone(base.Wants)
		maps.Copy(w, m)
		return w
	}
	allPrefer := map[Layer]Want{}
	for _, l := range Layers {
		allPrefer[l] = Prefer
	}
	devWithCgroup := maps.Clone(allPrefer)
	devWithCgroup[LayerCgroup] = Require
	layers := func(m Mode, w map[Layer]Want) Spec { return Spec{Isolation: Isolation{Mode: m, Layers: w}} }
	for _, c := range []struct {
		name string
		spec Spec
		want map[Layer]Want
	}{
		{"compat", layers(Compat, nil), base.Wants},
		{"compat with a named layer", layers(Compat, map[Layer]Want{LayerUser: Prefer}), with(map[Layer]Want{LayerUser: Prefer})},
		{"dev", layers(Dev, nil), allPrefer},
		{"off", layers(Hardened, map[Layer]Want{LayerSeccomp: Off}), with(map[Layer]Want{LayerSeccomp: Off})},
		{"required by name", layers("", map[Layer]Want{LayerLandlock: Require}), with(map[Layer]Want{LayerLandlock: Require})},
		{"preferred anyway", layers("", map[Layer]Want{LayerLandlock: Prefer}), base.Wants},
		{"cpu", Spec{Limits: Limits{CPU: 1}}, with(map[Layer]Want{LayerCgroup: Require})},
		{"cpuTime", Spec{Limits: Limits{CPUTime: time.Second}}, with(map[Layer]Want{LayerCgroup: Require})},
		{"memory", Spec{Limits: Limits{Memory: GiB}}, with(map[Layer]Want{LayerCgroup: Require})},
		{"pids", Spec{Limits: Limits{Pids: 10}}, with(map[Layer]Want{LayerCgroup: Require})},
		{"memory in dev", Spec{Limits: Limits{Memory: GiB}, Isolation: Isolation{Mode: Dev}}, devWithCgroup},
		{"limits without cgroup", Spec{Limits: Limits{Disk: GiB, Output: 1, OpenFiles: 64, FileSize: 1, Inodes: 100}}, base.Wants},
		{"cgroup off without such limits", layers("", map[Layer]Want{LayerCgroup: Off}), with(map[Layer]Want{LayerCgroup: Off})},
	} {
		p, err := Compile(c.spec)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if diff := cmp.Diff(c.want, p.Wants); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
		if p.PidsWritten != (c.spec.Limits.Pids != 0) {
			t.Errorf("%s: PidsWritten is %v", c.name, p.PidsWritten)
		}
	}
}

func TestCompileRefuses(t *testing.T) {
	mount := func(source, target string) Spec { return Spec{Mounts: []Mount{{Source: source, Target: target}}} }
	layers := func(w map[Layer]Want) Spec { return Spec{Isolation: Isolation{Layers: w}} }
	limits := func(l Limits) Spec { return Spec{Limits: l} }
	manyLabels := map[string]string{}
	for i := range 65 {
		manyLabels[fmt.Sprint(i)] = ""
	}
	for _, c := range []struct {
		op   string
		spec Spec
	}{
		{"backend", Spec{Backend: "Native"}},
		{"backend", Spec{Backend: "a b"}},
		{"name", Spec{Name: "-a"}},
		{"name", Spec{Name: "a-"}},
		{"name", Spec{Name: "A"}},
		{"name", Spec{Name: "a.b"}},
		{"name", Spec{Name: strings.Repeat("a", 64)}},
		{"name", Spec{Name: "a\n"}},
		{"name", Spec{Name: "../x"}},
		{"name", Spec{Name: "é"}},
		{"tenant", Spec{Tenant: "a/b"}},
		{"tenant", Spec{Tenant: ".."}},
		{"labels", Spec{Labels: map[string]string{"": "a"}}},
		{"labels", Spec{Labels: map[string]string{"a b": "a"}}},
		{"labels", Spec{Labels: manyLabels}},
		{"labels.a", Spec{Labels: map[string]string{"a": "x\ny"}}},
		{"labels.a", Spec{Labels: map[string]string{"a": strings.Repeat("x", 257)}}},
		{"labels.a", Spec{Labels: map[string]string{"a": "\xff"}}},
		{"env", Spec{Env: map[string]string{"": "a"}}},
		{"env", Spec{Env: map[string]string{"A=B": "a"}}},
		{"env", Spec{Env: map[string]string{"A\x00": "a"}}},
		{"env.A", Spec{Env: map[string]string{"A": "x\x00"}}},
		{"env.A", Spec{Env: map[string]string{"A": "\xff"}}},
		{"env", Spec{Env: map[string]string{"A": strings.Repeat("x", 128<<10)}}},
		{"workDir", Spec{WorkDir: "a"}},
		{"workDir", Spec{WorkDir: "/"}},
		{"workDir", Spec{WorkDir: "/a/"}},
		{"workDir", Spec{WorkDir: "/a/../b"}},
		{"workDir", Spec{WorkDir: "//a"}},
		{"workDir", Spec{WorkDir: "/proc"}},
		{"workDir", Spec{WorkDir: "/proc/self"}},
		{"workDir", Spec{WorkDir: "/dev/shm"}},
		{"workDir", Spec{WorkDir: "/usr/local"}},
		{"workDir", Spec{WorkDir: "/etc"}},
		{"workDir", Spec{WorkDir: "/tmp"}},
		{"workDir", Spec{WorkDir: "/a\x00"}},
		{"workDir", Spec{WorkDir: "/" + strings.Repeat("a", 256)}},
		{"workDir", Spec{WorkDir: strings.Repeat("/aaaa", 1000)}},
		{"image", Spec{Image: "./x"}},
		{"image", Spec{Image: "../x"}},
		{"image", Spec{Image: "a\x00"}},
		{"image", Spec{Image: "/a\x00"}},
		{"image", Spec{Image: "/"}},
		{"image", Spec{Image: "/proc/1/root"}},
		{"image", Spec{Image: "/a/"}},
		{"image", Spec{Image: "a b"}},
		{"image", Spec{Image: "~/x"}},
		{"image", Spec{Image: "oci:"}},
		{"mounts[0].source", mount("", "/data")},
		{"mounts[0].source", mount("srv", "/data")},
		{"mounts[0].source", mount("/", "/data")},
		{"mounts[0].source", mount("/srv/", "/data")},
		{"mounts[0].source", mount("/proc", "/data")},
		{"mounts[0].source", mount("/sys/fs/cgroup", "/data")},
		{"mounts[0].source", mount("/dev/kvm", "/data")},
		{"mounts[0].source", mount("/var/run/docker.sock", "/data")},
		{"mounts[0].source", mount("/run", "/data")},
		{"mounts[0].source", mount("/home/u/.docker/docker.sock", "/data")},
		{"mounts[0].source", mount("/run/user/1000", "/data")},
		{"mounts[0].source", mount("/srv/../etc", "/data")},
		{"mounts[0].target", mount("/srv", "")},
		{"mounts[0].target", mount("/srv", "data")},
		{"mounts[0].target", mount("/srv", "/")},
		{"mounts[0].target", mount("/srv", "/workspace")},
		{"mounts[0].target", mount("/srv", "/tmp")},
		{"mounts[0].target", mount("/srv", "/proc/x")},
		{"mounts[0].target", mount("/srv", "/dev")},
		{"mounts[0].target", mount("/srv", "/usr")},
		{"mounts[0].target", mount("/srv", "/etc")},
		{"mounts[0].target", Spec{WorkDir: "/a/b", Mounts: []Mount{{Source: "/srv", Target: "/a"}}}},
		{"mounts[1].target", Spec{Mounts: []Mount{{Source: "/srv", Target: "/a"}, {Source: "/srv", Target: "/a"}}}},
		{"mounts[1].target", Spec{Mounts: []Mount{{Source: "/srv", Target: "/a/b"}, {Source: "/srv", Target: "/a"}}}},
		{"mounts[1].target", Spec{Mounts: []Mount{{Source: "/srv", Target: "/a"}, {Source: "/srv", Target: "/a/b"}}}},
		{"mounts", Spec{Mounts: make([]Mount, 65)}},
		{"timeout", Spec{Timeout: -1}},
		{"timeout", Spec{Timeout: 1}},
		{"timeout", Spec{Timeout: 8761 * time.Hour}},
		{"ttl", Spec{TTL: -1}},
		{"idleTimeout", Spec{IdleTimeout: math.MaxInt64}},
		{"network", Spec{Network: "open"}},
		{"isolation.mode", Spec{Isolation: Isolation{Mode: "soft"}}},
		{"isolation.seccomp", Spec{Isolation: Isolation{Seccomp: "none"}}},
		{"isolation.layers", layers(map[Layer]Want{"apparmor": Require})},
		{"isolation.layers.user", layers(map[Layer]Want{LayerUser: "maybe"})},
		{"isolation.layers.user", layers(map[Layer]Want{LayerUser: ""})},
		{"isolation.layers.user", layers(map[Layer]Want{LayerUser: Prefer})},
		{"isolation.layers.mount", layers(map[Layer]Want{LayerMount: Off})},
		{"isolation.fresh", Spec{Isolation: Isolation{Fresh: true, Layers: map[Layer]Want{LayerPid: Off}}}},
		{"mounts", Spec{Mounts: []Mount{{Source: "/srv", Target: "/a"}}, Isolation: Isolation{Layers: map[Layer]Want{LayerRootfs: Off}}}},
		{"image", Spec{Image: "/srv/x", Isolation: Isolation{Layers: map[Layer]Want{LayerRootfs: Off}}}},
		{"isolation.layers.cgroup", Spec{Limits: Limits{Memory: GiB}, Isolation: Isolation{Layers: map[Layer]Want{LayerCgroup: Off}}}},
		{"isolation.layers.rlimits", Spec{Limits: Limits{OpenFiles: 64}, Isolation: Isolation{Layers: map[Layer]Want{LayerRlimits: Off}}}},
		{"isolation.layers.rlimits", Spec{Limits: Limits{FileSize: GiB}, Isolation: Isolation{Layers: map[Layer]Want{LayerRlimits: Off}}}},
		{"isolation.layers.cgroup", Spec{Limits: Limits{Pids: 5}, Isolation: Isolation{Mode: Dev, Layers: map[Layer]Want{LayerCgroup: Off}}}},
		{"limits.cpu", limits(Limits{CPU: -1})},
		{"limits.cpu", limits(Limits{CPU: math.NaN()})},
		{"limits.cpu", limits(Limits{CPU: math.Inf(1)})},
		{"limits.cpu", limits(Limits{CPU: math.Inf(-1)})},
		{"limits.cpu", limits(Limits{CPU: 0.001})},
		{"limits.cpu", limits(Limits{CPU: 1025})},
		{"limits.cpu", limits(Limits{CPU: 5e-324})},
		{"limits.cpuTime", limits(Limits{CPUTime: -time.Second})},
		{"limits.cpuTime", limits(Limits{CPUTime: math.MaxInt64})},
		{"limits.memory", limits(Limits{Memory: -1})},
		{"limits.memory", limits(Limits{Memory: MiB})},
		{"limits.memory", limits(Limits{Memory: math.MaxInt64})},
		{"limits.pids", limits(Limits{Pids: -1})},
		{"limits.pids", limits(Limits{Pids: 4194305})},
		{"limits.disk", limits(Limits{Disk: -1})},
		{"limits.disk", limits(Limits{Disk: 1})},
		{"limits.disk", limits(Limits{Disk: GiB, Memory: GiB})},
		{"limits.inodes", limits(Limits{Inodes: -1})},
		{"limits.inodes", limits(Limits{Inodes: 1})},
		{"limits.diskBacking", limits(Limits{DiskBacking: "tape"})},
		{"limits.output", limits(Limits{Output: -1})},
		{"limits.openFiles", limits(Limits{OpenFiles: 1048577})},
		{"limits.openFiles", limits(Limits{OpenFiles: 1})},
		{"limits.fileSize", limits(Limits{FileSize: math.MinInt64})},
		{"limits.core", limits(Limits{Core: -1})},
		{"pool.size", Spec{Pool: &Pool{}}},
		{"pool.size", Spec{Pool: &Pool{Size: 1001}}},
		{"pool.size", Spec{Pool: &Pool{Size: -1}}},
		{"pool.maxIdle", Spec{Pool: &Pool{Size: 1, MaxIdle: -1}}},
		// Invalid beats unsupported.
		{"limits.pids", Spec{Policy: "x", Limits: Limits{Pids: -1}}},
	} {
		p, err := Compile(c.spec)
		var e *Error
		if !errors.As(err, &e) || e.Code != CodeInvalidSpec || e.Op != "spec "+c.op || e.Message == "" || p != nil {
			t.Errorf("%+v\n got %v, %v; want INVALID_SPEC, op %q", c.spec, p, err, "spec "+c.op)
		}
	}
}

func TestCompileUnsupported(t *testing.T) {
	for op, s := range map[string]Spec{
		"spec policy": {Policy: map[string]any{}},
		"spec image":  {Image: "docker.io/library/python:3.12@sha256:0123"},
	} {
		_, err := Compile(s)
		var e *Error
		if !errors.As(err, &e) || e.Code != CodeUnsupported || e.Op != op || e.Hint == "" {
			t.Errorf("got %v, want UNSUPPORTED, op %q, with a hint", err, op)
		}
	}
	for _, image := range []string{"alpine", "oci:/srv/layout:tag", "docker://alpine", "host:5000/a/b"} {
		if _, err := Compile(Spec{Image: image}); !errors.Is(err, ErrUnsupported) {
			t.Errorf("image %s: got %v, want UNSUPPORTED", image, err)
		}
	}
}

func TestCompileAllows(t *testing.T) {
	for _, s := range []Spec{
		{Name: "a"},
		{Name: strings.Repeat("a", 63)},
		{WorkDir: "/home/user/app"},
		{WorkDir: "/users"},
		{Image: "/srv/rootfs"},
		{Network: NetworkAllow},
		{Network: NetworkProxy},
		{Mounts: []Mount{{Source: "/srv", Target: "/workspace/data"}, {Source: "/srv", Target: "/workspace/data2"}}},
		{Mounts: []Mount{{Source: "/etc/ssl", Target: "/etc/ssl"}, {Source: "/devel", Target: "/devel"}}},
		{Limits: Limits{Memory: 4 * MiB, Pids: 1, OpenFiles: 1 << 20, CPU: 0.01}},
		{Limits: Limits{Memory: GiB, Disk: 2 * GiB, DiskBacking: DiskDisk}},
		{Isolation: Isolation{Mode: Compat, Layers: map[Layer]Want{LayerMount: Off, LayerRootfs: Off}}},
		{Timeout: time.Millisecond, TTL: 8760 * time.Hour},
		{Env: map[string]string{"a.b-c": "", "é": "\x7f\n"}},
	} {
		if _, err := Compile(s); err != nil {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

func TestCompileLimits(t *testing.T) {
	base := Limits{CPU: 2, Memory: GiB, Pids: 512, Disk: GiB, Inodes: 200_000, DiskBacking: DiskMemory, OpenFiles: 1024, Output: MiB}
	got, err := CompileLimits(base, Limits{})
	if diff := cmp.Diff(base, got); err != nil || diff != "" {
		t.Errorf("without overrides: %v (-want +got):\n%s", err, diff)
	}
	want := base
	want.CPU, want.Memory, want.OpenFiles, want.Output, want.CPUTime, want.FileSize = 0.5, 64*MiB, 1024, 1, time.Second, 5
	got, err = CompileLimits(base, Limits{CPU: 0.5, Memory: 64 * MiB, OpenFiles: 1024, Output: 1, CPUTime: time.Second, FileSize: 5})
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("lower: %v (-want +got):\n%s", err, diff)
	}
	base.CPUTime, base.FileSize = time.Second, MiB
	for op, override := range map[string]Limits{
		"limits.cpu": {CPU: 3}, "limits.cpuTime": {CPUTime: time.Minute}, "limits.memory": {Memory: 2 * GiB}, "limits.output": {Output: GiB},
		"limits.openFiles": {OpenFiles: 1025}, "limits.fileSize": {FileSize: GiB}, "limits.core": {Core: 1},
		"limits.pids": {Pids: 1}, "limits.disk": {Disk: MiB}, "limits.inodes": {Inodes: 100}, "limits.diskBacking": {DiskBacking: DiskDisk},
	} {
		got, err := CompileLimits(base, override)
		var e *Error
		if !errors.As(err, &e) || e.Code != CodeInvalidSpec || e.Op != "command "+op || e.Hint == "" || !e.Recoverable || got != (Limits{}) {
			t.Errorf("%+v: got %+v, %v; want INVALID_SPEC, op %q", override, got, err, op)
		}
	}
	if _, err := CompileLimits(base, Limits{CPU: math.NaN()}); !errors.Is(err, ErrInvalidSpec) {
		t.Errorf("NaN: got %v", err)
	}
	if _, err := CompileLimits(base, Limits{Memory: -1}); !errors.Is(err, ErrInvalidSpec) {
		t.Errorf("negative: got %v", err)
	}
}

func TestCheckCommand(t *testing.T) {
	ok := []string{"true"}
	for _, c := range []struct {
		op            string
		args          []string
		env           map[string]string
		dir, user, id string
	}{
		{op: "args"},
		{op: "args", args: []string{""}},
		{op: "args[1]", args: []string{"a", "b\x00"}},
		{op: "args[1]", args: []string{"a", strings.Repeat("x", 128<<10)}},
		{op: "args", args: append([]string{"a"}, strings.Split(strings.Repeat("x", 600_000), "")...)},
		{op: "env", args: ok, env: map[string]string{"A=": ""}},
		{op: "env.A", args: ok, env: map[string]string{"A": "\x00"}},
		{op: "dir", args: ok, dir: "a"},
		{op: "dir", args: ok, dir: "/a\x00"},
		{op: "user", args: ok, user: "nobody"},
		{op: "user", args: ok, user: "0"},
		{op: "id", args: ok, id: "-a"},
		{op: "id", args: ok, id: ".."},
		{op: "id", args: ok, id: "a/b"},
		{op: "id", args: ok, id: strings.Repeat("a", 65)},
		{op: "id", args: ok, id: "a\n"},
	} {
		err := checkCommand(c.args, c.env, c.dir, c.user, c.id)
		var e *Error
		if !errors.As(err, &e) || e.Code != CodeInvalidSpec || e.Op != "command "+c.op || e.Hint == "" || !e.Recoverable {
			t.Errorf("%.60v: got %v, want INVALID_SPEC, op %q", c, err, "command "+c.op)
		}
	}
	for _, c := range []struct{ dir, user, id string }{{}, {"/a/../b", "user", "A.b_c-1"}, {"/", "root", strings.Repeat("a", 64)}} {
		if err := checkCommand([]string{"sh", "-c", "", "\xff"}, map[string]string{"A": "b"}, c.dir, c.user, c.id); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
