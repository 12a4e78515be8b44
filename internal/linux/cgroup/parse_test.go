package cgroup

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestHierarchies(t *testing.T) {
	type want struct {
		Name, Mount, Own string
		V2, ReadOnly     bool
	}
	for _, tc := range []struct {
		name, mountinfo, self string
		want                  []want
		kind                  Kind
		v2                    []Controller // offered by the v2 tree
	}{
		{
			name: "v2",
			mountinfo: "24 1 0:22 / /proc rw - proc proc rw\n" +
				"35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
			self: "0::/user.slice/user-1000.slice/session-2.scope\n",
			want: []want{{"unified", "/sys/fs/cgroup", "/sys/fs/cgroup/user.slice/user-1000.slice/session-2.scope", true, false}},
			kind: V2,
			v2:   []Controller{CPU, Memory, Pids},
		},
		{
			name:      "v2 without memory",
			mountinfo: "35 24 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
			self:      "0::/\n",
			want:      []want{{"unified", "/sys/fs/cgroup", "/sys/fs/cgroup", true, false}},
			kind:      None,
			v2:        []Controller{CPU, Pids},
		},
		{
			name: "hybrid",
			mountinfo: "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:1 master:2 - cgroup cgroup rw,cpu,cpuacct\n" +
				"35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n" +
				"39 31 0:36 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n" +
				"38 31 0:35 / /sys/fs/cgroup/blkio rw - cgroup cgroup rw,blkio\n" +
				"40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n" +
				"41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
			self: "8:pids:/\n4:memory:/a/b\n1:cpu,cpuacct:/\n9:name=systemd:/x\n0::/init.scope\n",
			want: []want{
				{"cpu,cpuacct", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpu,cpuacct", false, false},
				{"memory", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/memory/a/b", false, false},
				{"pids", "/sys/fs/cgroup/pids", "/sys/fs/cgroup/pids", false, false},
				{"unified", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/unified/init.scope", true, false},
			},
			kind: Hybrid,
		},
		{
			name: "v1 in a container that sees the host's paths",
			mountinfo: "32 31 0:29 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n" +
				"33 31 0:30 /docker/abc /sys/fs/cgroup/pids ro - cgroup cgroup rw,pids\n",
			self: "4:memory:/docker/abc\n3:pids:/docker/abcd\n",
			want: []want{
				{"memory", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/memory", false, true},
				{"pids", "/sys/fs/cgroup/pids", "", false, true},
			},
			kind: V1,
		},
		{
			name:      "namespaced, own group outside of the namespace's root",
			mountinfo: "35 24 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n",
			self:      "0::/../sibling\n",
			want:      []want{{"unified", "/sys/fs/cgroup", "", true, false}},
			kind:      V2,
			v2:        []Controller{Memory, Pids},
		},
		{
			name:      "mounted from above the namespace's root",
			mountinfo: "35 24 0:30 /../.. /mnt/cg rw - cgroup2 cgroup rw\n",
			self:      "0::/\n",
			want:      []want{{"unified", "/mnt/cg", "", true, false}},
			kind:      V2,
			v2:        []Controller{Memory, Pids},
		},
		{
			name: "mounted twice: the writable one, where the own group is; escapes; a deleted group",
			mountinfo: "35 24 0:30 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n" +
				"36 24 0:30 / /mnt/a\\040b rw - cgroup2 cgroup rw\n",
			self: "0::/gone (deleted)\n",
			want: []want{{"unified", "/mnt/a b", "/mnt/a b/gone", true, false}},
			kind: V2,
			v2:   []Controller{Memory, Pids},
		},
		{name: "nothing", mountinfo: "24 1 0:22 / /proc rw - proc proc rw\nshort - cgroup\n\n", self: "x\n", kind: None},
	} {
		t.Run(tc.name, func(t *testing.T) {
			hs := hierarchies(tc.mountinfo, tc.self)
			var got []want
			for _, h := range hs {
				got = append(got, want{h.name, h.mount, h.own, h.v2, h.readOnly})
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("hierarchies (-want +got):\n%s", d)
			}
			for i := range hs {
				for _, c := range tc.v2 {
					hs[i].controllers[c] = true
				}
			}
			kind := None
			if l, err := newLayout(hs); err == nil {
				kind = l.kind
			}
			if kind != tc.kind {
				t.Errorf("kind %v, want %v", kind, tc.kind)
			}
		})
	}
}

func TestField(t *testing.T) {
	for _, tc := range []struct {
		text, key string
		want      uint64
		ok        bool
	}{
		{"usage_usec 12\nuser_usec 7\n", "user_usec", 7, true},
		{"usage_usec 12\nuser_usec 7", "user_usec", 7, true},
		{"oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", "oom_kill", 3, true},
		{"oom_group_kill 4\noom_kill 3\n", "oom_kill", 3, true},
		{"max 18446744073709551\n", "max", 18446744073709551, true},
		{"max 99999999999999999999999\n", "max", 0, false},
		{"max x\n", "max", 0, false},
		{"max \n", "max", 0, false},
		{"max", "max", 0, false},
		{"", "max", 0, false},
	} {
		if got, ok := field([]byte(tc.text), tc.key); got != tc.want || ok != tc.ok {
			t.Errorf("field(%q, %q) = %d, %v; want %d, %v", tc.text, tc.key, got, ok, tc.want, tc.ok)
		}
	}
}

func TestNames(t *testing.T) {
	for name, want := range map[string]bool{"belljar-a": true, "belljar-a-1": true, "belljar-": false, "belljar-self": false, "belljar-A": false, "belljar--a": false, "belljar-a/b": false, "belljar-..": false, "x": false, "belljar-probe_1": false} {
		if _, ok := topTag(name); ok != want {
			t.Errorf("topTag(%q) = %v", name, ok)
		}
	}
	for name, want := range map[string]bool{"g1": true, "g12345": true, "g": false, "s1": false, "g1x": false, "g-1": false, "..": false, "g1/..": false} {
		if ok := numbered(name, 'g'); ok != want {
			t.Errorf("numbered(%q) = %v", name, ok)
		}
	}
}

func TestIOBytes(t *testing.T) {
	r, w := ioBytes([]byte("8:0 rbytes=10 wbytes=20 rios=1 wios=2 dbytes=0 dios=0\n7:1 rbytes=5 wbytes=0\n"))
	if r != 15 || w != 20 {
		t.Errorf("ioBytes = %d, %d; want 15, 20", r, w)
	}
}

func FuzzHierarchies(f *testing.F) {
	f.Add("35 24 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n", "0::/a\n")
	f.Add("32 31 0:29 /docker /s\\040 ro - cgroup cgroup rw,memory\n", "4:memory:/docker/x\n")
	f.Fuzz(func(t *testing.T, mi, self string) {
		for _, h := range hierarchies(mi, self) {
			if h.name == "" || h.own != "" && h.mount != "" && h.mount[0] == '/' && h.own[0] != '/' {
				t.Errorf("%+v", h)
			}
		}
	})
}
