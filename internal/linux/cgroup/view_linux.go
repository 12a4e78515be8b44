package cgroup

import (
	"os"
	"path"
	"sync"
)

// Views returns the places below /sys/fs/cgroup where a sandbox's groups are to be
// shown, and the [View]s that have to be in the list of mounts without anything in
// them. Both are the same for every sandbox.
func Views() (shown, covered []View) {
	v := theViews()
	return v[0], v[1]
}

var theViews = sync.OnceValue(func() (out [2][]View) {
	l, err := theLayout()
	if err != nil {
		return out
	}
	out[0], _ = l.views()
	mi, err1 := os.ReadFile("/proc/self/mountinfo")
	self, err2 := os.ReadFile("/proc/self/cgroup")
	if err1 == nil && err2 == nil { // else the runtimes that need them do without
		out[1] = placeholders(l, string(mi), string(self))
	}
	return out
})

// Views returns the sandbox's groups where programs look for them.
func (g *Group) Views() []View {
	var out []View
	for _, role := range []struct {
		t    *tree
		name string
	}{{g.r.mem, "memory"}, {g.r.cpu, "cpu"}} {
		switch {
		case role.t == nil || role.t.v2:
		default:
			out = append(out, View{Name: role.name, Path: path.Join(role.t.path, g.name)})
		}
	}
	if g.r.kind == V2 {
		out = append(out, View{Path: path.Join(g.r.uni.path, g.name)})
	}
	return out
}
