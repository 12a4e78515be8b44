package cgroup

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPlaceholders(t *testing.T) {
	const (
		apart = `31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw
32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
33 31 0:30 / /sys/fs/cgroup/cpuacct rw - cgroup cgroup rw,cpuacct
34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset
35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
`
		together = `32 31 0:29 /c /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
34 31 0:31 /c /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset
34 31 0:31 /c /mnt/again rw - cgroup cgroup rw,cpuset
`
		self = "3:cpuset:/c/x\n2:cpuacct:/a\n1:cpu:/\n"
	)
	mem := &hierarchy{controllers: map[Controller]bool{Memory: true}}
	cpu := &hierarchy{controllers: map[Controller]bool{CPU: true}}
	both := &hierarchy{controllers: map[Controller]bool{CPU: true, CPUAcct: true}}
	for name, x := range map[string]struct {
		l         *layout
		mountinfo string
		want      []View
	}{
		"apart":    {&layout{kind: Hybrid, mem: mem, cpu: cpu}, apart, []View{{Name: "cpuacct", Path: "/sys/fs/cgroup/cpuacct/a"}, {Name: "cpuset", Path: "/sys/fs/cgroup/cpuset/c/x"}}},
		"together": {&layout{kind: V1, mem: mem, cpu: both}, together, []View{{Name: "cpuset", Path: "/sys/fs/cgroup/cpuset/x"}}},
		"v2":       {&layout{kind: V2}, apart, nil},
	} {
		if d := cmp.Diff(x.want, placeholders(x.l, x.mountinfo, self)); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

func TestViews(t *testing.T) {
	v1 := func(cs ...Controller) *hierarchy {
		h := &hierarchy{controllers: map[Controller]bool{}}
		for _, c := range cs {
			h.controllers[c] = true
		}
		return h
	}
	for name, x := range map[string]struct {
		l    *layout
		want []View
	}{
		"v1":      {&layout{kind: V1, mem: v1(Memory), cpu: v1(CPU, CPUAcct)}, []View{{Name: "memory"}, {Name: "cpu", Alias: []string{"cpu,cpuacct", "cpuacct"}}}},
		"no cpu":  {&layout{kind: Hybrid, mem: v1(Memory)}, []View{{Name: "memory"}}},
		"unified": {&layout{kind: V2, uni: v1(), mem: &hierarchy{v2: true}}, []View{{}}},
	} {
		got, hs := x.l.views()
		if d := cmp.Diff(x.want, got); d != "" || len(hs) != len(got) {
			t.Errorf("%s: %s", name, d)
		}
	}
}
