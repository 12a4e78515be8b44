package native

import (
	"path"
	"strings"

	"belljar"
	"belljar/backend/native/keeper"
	"belljar/internal/linux/cgroup"
)

const (
	cgroupDir   = "/sys/fs/cgroup"
	nurseryDir  = "/sys/c" // the same in the nursery's mount namespace
	emptyDir    = "/sys/n" // empty there, until a sandbox's root is attached in a copy
	cgroupFlags = roFlags | keeper.AttrNoExec
)

// viewed reports whether a sandbox sees its own control groups: language
// runtimes size their heaps and threads by them.
func viewed(on map[belljar.Layer]bool) bool {
	return on[belljar.LayerCgroup] && on[belljar.LayerRootfs]
}

// inNursery is where the nursery finds a directory of a control group; empty when
// it does not.
func inNursery(dir string) string {
	rest, ok := strings.CutPrefix(dir, cgroupDir)
	if !ok || rest != "" && rest[0] != '/' {
		return ""
	}
	return nurseryDir + rest
}

// groupDirs makes the places of the view, and covers what only has to be in the
// list of mounts.
func (t *tree) groupDirs() {
	shown, covered := cgroup.Views()
	for _, v := range shown {
		t.dir(path.Join(cgroupDir, v.Name), 0o555)
		for _, a := range v.Alias {
			t.link(path.Join(cgroupDir, a), v.Name)
		}
	}
	for _, v := range covered {
		src := inNursery(v.Path)
		if src == "" {
			continue
		}
		at := path.Join(cgroupDir, v.Name)
		t.dir(at, 0o555)
		for _, src := range []string{src, emptyDir} {
			t.ops = append(t.ops, keeper.Op{
				Kind: keeper.OpBind, A: strings.TrimPrefix(at, "/"), B: src, Attr: cgroupFlags, Flags: keeper.OpNonRec | keeper.OpOptional,
			})
		}
	}
}

// groupOps binds the sandbox's own groups where programs look for them.
func (in *instance) groupOps() (ops []keeper.Op) {
	for _, v := range in.group.Views() {
		if src := inNursery(v.Path); src != "" {
			ops = append(ops, keeper.Op{
				Kind: keeper.OpBind, A: strings.TrimPrefix(path.Join(cgroupDir, v.Name), "/"), B: src, Attr: cgroupFlags, Flags: keeper.OpNonRec,
			})
		}
	}
	return ops
}
