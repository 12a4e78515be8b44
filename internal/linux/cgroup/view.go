package cgroup

import (
	"path"
	"slices"
	"strings"
)

// View is a group's directory as programs look for it: language runtimes size
// themselves by what they find at fixed places below /sys/fs/cgroup.
type View struct {
	Name  string   // below /sys/fs/cgroup; empty: /sys/fs/cgroup itself
	Alias []string // other names of the same
	Path  string   // the directory on the host; empty in what a layout says of all sandboxes
}

// views says what is to be seen of a sandbox's groups in this arrangement, with
// the hierarchy of each.
func (l *layout) views() (vs []View, hs []*hierarchy) {
	if l.kind == V2 {
		return []View{{}}, []*hierarchy{l.uni}
	}
	if !l.mem.v2 {
		vs, hs = append(vs, View{Name: "memory"}), append(hs, l.mem)
	}
	if l.cpu != nil && !l.cpu.v2 {
		v := View{Name: "cpu", Alias: []string{"cpu,cpuacct"}}
		if l.cpu.controllers[CPUAcct] {
			v.Alias = append(v.Alias, "cpuacct")
		}
		vs, hs = append(vs, v), append(hs, l.cpu)
	}
	return vs, hs
}

// placeholders are the v1 hierarchies without which some runtimes (the JVM)
// take no notice of the others, and in which sandboxes have no group of their
// own: the caller's own group, to be mounted and covered, so that it is in the
// list of mounts and nothing of it can be read.
func placeholders(l *layout, mountinfo, self string) []View {
	if l.kind == V2 {
		return nil
	}
	ours, _ := l.views()
	own := parseSelf(self)
	var out []View
	for line := range strings.Lines(mountinfo) {
		left, right, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " - ")
		at, of := strings.Fields(left), strings.Fields(right)
		if !ok || len(at) < 6 || len(of) < 3 || of[0] != "cgroup" {
			continue
		}
		options := strings.Split(of[2], ",")
		for _, name := range []string{"cpuset", "cpuacct"} {
			if !slices.Contains(options, name) || slices.ContainsFunc(slices.Concat(ours, out), func(v View) bool { return v.Name == name || slices.Contains(v.Alias, name) }) {
				continue
			}
			if dir := ownDir(unescape(at[4]), unescape(at[3]), own[Controller(name)]); dir != "" {
				out = append(out, View{Name: name, Path: path.Clean(dir)})
			}
		}
	}
	return out
}
