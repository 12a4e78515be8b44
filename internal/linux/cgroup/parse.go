package cgroup

import (
	"path"
	"strconv"
	"strings"
)

// hierarchy is one mounted tree of control groups.
type hierarchy struct {
	name        string // "unified" or the v1 controllers as mounted: "cpu,cpuacct"
	v2          bool
	mount       string              // mount point
	root        string              // the directory of the tree that is mounted there
	own         string              // the caller's group, absolute on the host; empty when not below mount
	controllers map[Controller]bool // v1: from the mount; v2: from cgroup.controllers
	readOnly    bool
}

// parseMounts returns the cgroup mounts of a /proc/<pid>/mountinfo, in order,
// without named v1 hierarchies. See proc_pid_mountinfo(5).
func parseMounts(mountinfo string) []hierarchy {
	var out []hierarchy
	for line := range strings.Lines(mountinfo) {
		left, right, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " - ")
		if !ok {
			continue
		}
		l, r := strings.Fields(left), strings.Fields(right)
		if len(l) < 6 || len(r) < 3 {
			continue
		}
		h := hierarchy{root: unescape(l[3]), mount: unescape(l[4]), controllers: map[Controller]bool{}}
		for o := range strings.SplitSeq(l[5]+","+r[2], ",") {
			h.readOnly = h.readOnly || o == "ro"
		}
		switch r[0] {
		case "cgroup2":
			h.name, h.v2 = string(Unified), true
		case "cgroup":
			var names []string
			for o := range strings.SplitSeq(r[2], ",") {
				switch c := Controller(o); c {
				case CPU, CPUAcct, Memory, Pids, Freezer:
					h.controllers[c] = true
					names = append(names, o)
				}
			}
			if len(names) == 0 {
				continue
			}
			h.name = strings.Join(names, ",")
		default:
			continue
		}
		out = append(out, h)
	}
	return out
}

// unescape undoes the octal escapes of mountinfo (space, tab, newline, backslash).
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// parseSelf returns the group of each v1 controller, and under Unified that of
// the v2 tree, of a /proc/<pid>/cgroup. See cgroups(7).
func parseSelf(text string) map[Controller]string {
	out := map[Controller]string{}
	for line := range strings.Lines(text) {
		p := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(p) != 3 || !strings.HasPrefix(p[2], "/") {
			continue
		}
		dir := strings.TrimSuffix(p[2], " (deleted)")
		if p[0] == "0" && p[1] == "" {
			out[Unified] = dir
			continue
		}
		for c := range strings.SplitSeq(p[1], ",") {
			out[Controller(c)] = dir
		}
	}
	return out
}

// ownDir returns where a group of /proc/self/cgroup is on the host, given the
// root and the mount point of its hierarchy; empty when it is not below the
// mount, as with "/.." paths seen from within another cgroup namespace.
func ownDir(mount, root, group string) string {
	rel := group
	if root != "/" {
		var ok bool
		if rel, ok = strings.CutPrefix(group, root); !ok || rel != "" && rel[0] != '/' {
			return ""
		}
	}
	for e := range strings.SplitSeq(rel, "/") {
		if e == ".." {
			return ""
		}
	}
	return path.Join(mount, rel)
}

// hierarchies joins mounts and own groups: the first usable mount of each tree.
func hierarchies(mountinfo, self string) []hierarchy {
	own := parseSelf(self)
	var out []hierarchy
	seen := map[string]int{}
	for _, h := range parseMounts(mountinfo) {
		key := Unified
		if !h.v2 {
			for c := range h.controllers {
				key = c
			}
		}
		if g, ok := own[key]; ok {
			h.own = ownDir(h.mount, h.root, g)
		}
		if i, ok := seen[h.name]; ok {
			if old := &out[i]; old.readOnly && !h.readOnly || old.own == "" && h.own != "" && h.readOnly == old.readOnly {
				*old = h
			}
			continue
		}
		seen[h.name] = len(out)
		out = append(out, h)
	}
	return out
}

// field returns the number after key in a flat keyed file ("key number\n").
func field(b []byte, key string) (uint64, bool) {
	for len(b) > 0 {
		line := b
		if i := indexByte(b, '\n'); i >= 0 {
			line, b = b[:i], b[i+1:]
		} else {
			b = nil
		}
		if len(line) > len(key) && line[len(key)] == ' ' && string(line[:len(key)]) == key {
			return number(line[len(key)+1:])
		}
	}
	return 0, false
}

// number parses decimal digits up to the end or a line's end.
func number(b []byte) (uint64, bool) {
	var n uint64
	var any bool
	for _, c := range b {
		if c == '\n' {
			break
		}
		if c < '0' || c > '9' || n > (1<<64-1-9)/10 {
			return 0, false
		}
		n, any = n*10+uint64(c-'0'), true
	}
	return n, any
}

func indexByte(b []byte, c byte) int {
	for i := range b {
		if b[i] == c {
			return i
		}
	}
	return -1
}

// ioBytes sums rbytes and wbytes of an io.stat over all devices.
func ioBytes(b []byte) (read, write uint64) {
	for f := range strings.FieldsSeq(string(b)) {
		k, v, _ := strings.Cut(f, "=")
		n, err := strconv.ParseUint(v, 10, 64)
		switch {
		case err != nil:
		case k == "rbytes":
			read += n
		case k == "wbytes":
			write += n
		}
	}
	return read, write
}

// pidList parses a cgroup.procs. Zero stands for a process outside of the
// reader's pid namespace and is left out.
func pidList(b []byte) []int {
	var out []int
	for f := range strings.FieldsSeq(string(b)) {
		if n, err := strconv.Atoi(f); err == nil && n > 0 {
			out = append(out, n)
		}
	}
	return out
}

// validTag reports whether s can be the tag of a top group.
func validTag(s string) bool {
	if len(s) == 0 || len(s) > 63 || s[0] == '-' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

// numbered reports whether s is prefix followed by decimal digits: the name of
// a sandbox's group ("g12") or of a set ("s3").
func numbered(s string, prefix byte) bool {
	if len(s) < 2 || len(s) > 20 || s[0] != prefix {
		return false
	}
	for i := 1; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}

const (
	topPrefix = "belljar-"
	selfLeaf  = "belljar-self"
	initLeaf  = "init"
)

// topTag returns the tag of the name of a top group.
func topTag(name string) (string, bool) {
	tag, ok := strings.CutPrefix(name, topPrefix)
	return tag, ok && validTag(tag) && name != selfLeaf
}
