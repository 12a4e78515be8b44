package cgroup

// layout says which hierarchy serves what.
type layout struct {
	kind    Kind
	uni     *hierarchy // v2 tree, also when it has no controllers
	mem     *hierarchy
	pids    *hierarchy
	cpu     *hierarchy // nil: no cpu rate limits
	acct    *hierarchy // V1 only
	freezer *hierarchy // V1 only, may be nil
}

// all returns each hierarchy once, the v2 tree first.
func (l *layout) all() []*hierarchy {
	var out []*hierarchy
	for _, h := range []*hierarchy{l.uni, l.mem, l.pids, l.cpu, l.acct, l.freezer} {
		dup := h == nil
		for _, o := range out {
			dup = dup || o == h
		}
		if !dup {
			out = append(out, h)
		}
	}
	return out
}

// controls reports whether the v2 tree has to provide controllers.
func (l *layout) controls(h *hierarchy) bool {
	return h.v2 && (h == l.mem || h == l.pids || h == l.cpu)
}

// newLayout chooses hierarchies. The v2 trees' controllers are already filled in.
func newLayout(hs []hierarchy) (*layout, error) {
	l := &layout{}
	v1 := map[Controller]*hierarchy{}
	for i := range hs {
		h := &hs[i]
		if h.v2 {
			if l.uni == nil {
				l.uni = h
			}
			continue
		}
		for c := range h.controllers {
			v1[c] = h
		}
	}
	home := func(c Controller) *hierarchy {
		if l.uni != nil && l.uni.controllers[c] {
			return l.uni
		}
		return v1[c]
	}
	l.mem, l.pids, l.cpu = home(Memory), home(Pids), home(CPU)
	if l.mem == nil || l.pids == nil {
		return nil, &UnsupportedError{"control groups", "the memory and pids controllers, mounted below /sys/fs/cgroup (kernel options CONFIG_MEMCG, CONFIG_CGROUP_PIDS; on some boards cgroup_enable=memory on the kernel's command line)"}
	}
	switch {
	case l.uni == nil:
		l.kind = V1
		l.acct, l.freezer = v1[CPUAcct], v1[Freezer]
	case l.mem.v2 && l.pids.v2:
		l.kind = V2
	default:
		l.kind = Hybrid
	}
	return l, nil
}
