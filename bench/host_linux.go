package bench

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

func fingerprint() Fingerprint {
	f := Fingerprint{Arch: runtime.GOARCH, CPUs: runtime.NumCPU(), UID: os.Geteuid(), Go: runtime.Version(), LoadBefore: load()}
	cpu := fields("/proc/cpuinfo", ":")
	for _, k := range []string{"model name", "CPU part", "Processor"} {
		if f.CPU == "" {
			f.CPU = cpu[k]
		}
	}
	f.Virtual = strings.Contains(" "+cpu["flags"]+" ", " hypervisor ")
	f.Governor = text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
	f.MemoryMiB = meminfo()["MemTotal"] >> 10
	f.OS = strings.Trim(fields("/etc/os-release", "=")["PRETTY_NAME"], `"`)
	var u unix.Utsname
	_ = unix.Uname(&u) // cannot fail with a valid pointer
	f.Kernel = unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:])
	f.Cgroups = cgroupKind()
	f.Commit = commit()
	return f
}

// commit is that of the binary, as far as it was stamped.
func commit() string {
	rev, dirty := "", ""
	if b, ok := debug.ReadBuildInfo(); ok {
		for _, s := range b.Settings {
			switch {
			case s.Key == "vcs.revision":
				rev = s.Value[:min(12, len(s.Value))]
			case s.Key == "vcs.modified" && s.Value == "true":
				dirty = "+dirty"
			}
		}
	}
	if rev == "" {
		return "unknown"
	}
	return rev + dirty
}

func cgroupKind() string {
	var st unix.Statfs_t
	if unix.Statfs("/sys/fs/cgroup", &st) != nil {
		return "none"
	}
	if int64(st.Type) == unix.CGROUP2_SUPER_MAGIC {
		return "v2"
	}
	v1, v2 := false, false
	for _, l := range lines("/proc/self/mountinfo") {
		_, after, _ := strings.Cut(l, " - ")
		v1 = v1 || strings.HasPrefix(after, "cgroup ")
		v2 = v2 || strings.HasPrefix(after, "cgroup2 ")
	}
	switch {
	case v1 && v2:
		return "hybrid"
	case v1:
		return "v1"
	case v2:
		return "v2"
	}
	return "none"
}

func text(path string) string {
	b, _ := os.ReadFile(path)
	return strings.TrimSpace(string(b))
}

func lines(path string) []string {
	b, _ := os.ReadFile(path)
	return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
}

// fields reads "key SEP value" lines; the first of a key wins.
func fields(path, sep string) map[string]string {
	m := map[string]string{}
	for _, l := range lines(path) {
		k, v, ok := strings.Cut(l, sep)
		k = strings.TrimSpace(k)
		if _, have := m[k]; ok && !have {
			m[k] = strings.TrimSpace(v)
		}
	}
	return m
}

func load() (l [3]float64) {
	for i, s := range strings.Fields(text("/proc/loadavg")) {
		if i < 3 {
			l[i], _ = strconv.ParseFloat(s, 64)
		}
	}
	return l
}

// meminfo is /proc/meminfo or a file like it, in KiB.
func meminfo() map[string]int64 { return kib("/proc/meminfo") }

func kib(path string) map[string]int64 {
	m := map[string]int64{}
	for k, v := range fields(path, ":") {
		n, _, _ := strings.Cut(v, " ")
		m[k], _ = strconv.ParseInt(n, 10, 64)
	}
	return m
}

// kernelKiB is what the kernel holds for itself that grows with sandboxes.
func kernelKiB() int64 {
	m := meminfo()
	return m["Slab"] + m["KernelStack"] + m["PageTables"] + m["SecPageTables"] + m["Percpu"]
}

type process struct {
	pid  int
	comm string
}

// descendants lists the processes below this one.
func descendants() []process {
	names, _ := filepath.Glob("/proc/[0-9]*/stat")
	parent := map[int]int{}
	comm := map[int]string{}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // it ended
		}
		open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
		if open < 0 || end < 0 {
			continue
		}
		pid, _ := strconv.Atoi(strings.TrimSpace(string(b[:open])))
		rest := strings.Fields(string(b[end+1:]))
		if len(rest) < 2 {
			continue
		}
		comm[pid] = string(b[open+1 : end])
		parent[pid], _ = strconv.Atoi(rest[1])
	}
	self := os.Getpid()
	var out []process
	for pid := range parent {
		for p := parent[pid]; p > 0; p = parent[p] {
			if p == self {
				out = append(out, process{pid, comm[pid]})
				break
			}
		}
	}
	return out
}

// pssKiB is a process's proportional share of what it maps.
func pssKiB(pid int) (int64, error) {
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/smaps_rollup")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for s.Scan() {
		if v, ok := strings.CutPrefix(s.Text(), "Pss:"); ok {
			return strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 10, 64)
		}
	}
	return 0, s.Err()
}

func count(dir string) int {
	e, _ := os.ReadDir(dir)
	return len(e)
}
