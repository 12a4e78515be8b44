package belljar

import (
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Defaults of a spec.
const (
	defaultBackend   = "native"
	defaultWorkDir   = "/workspace"
	defaultTenant    = "default"
	defaultSeccomp   = "default"
	defaultPids      = 512
	defaultDisk      = GiB
	defaultInodes    = 200_000
	defaultOpenFiles = 1024
	defaultMaxIdle   = 5 * time.Minute
)

// Bounds of a spec. Outside of them is INVALID_SPEC, so that no kernel interface
// gets to clamp, round or wrap a limit silently.
const (
	minDuration  = time.Millisecond
	maxDuration  = 8760 * time.Hour // 365 days
	minCPU       = 0.01             // cfs_quota_us is at least 1 ms of a period of 100 ms
	maxCPU       = 1024.0
	minMemory    = 4 * MiB
	maxBytes     = Size(1) << 50
	maxPids      = 4_194_304 // PID_MAX_LIMIT
	minDisk      = 64 * KiB
	minInodes    = 64 // the sandbox's own directories take some
	maxInodes    = 1_000_000_000
	minOpenFiles = 4 // the three streams and the dynamic loader's
	maxOpenFiles = 1 << 20
	maxPool      = 1000
	maxEnvBytes  = 128 << 10
	maxArgBytes  = 1 << 20
	maxArgLen    = 128<<10 - 1 // MAX_ARG_STRLEN without the NUL
	maxMounts    = 60          // a backend has some of its own
	maxLabels    = 64
	maxLabelLen  = 256
	maxPathLen   = 4095 // PATH_MAX without the NUL
)

// backendAliases are other names of backends, accepted on input.
var backendAliases = map[string]string{
	"process": "native", "docker": "container", "firecracker": "microvm",
}

// Compile checks a spec, fills in every default, resolves aliases and decides how
// much each layer is wanted. Nothing is created, and the plan shares no memory with
// s. It is for specs as callers write them: what Compile returned has every
// limit written.
//
// Errors are [CodeInvalidSpec] with the field in Op ("spec limits.memory") and,
// for what is valid but not built, [CodeUnsupported]. The caller gives the plan its ID.
func Compile(s Spec) (*Plan, error) {
	s = cloneSpec(s)
	for _, check := range []func(*Spec) *Error{
		checkNames, checkEnv, checkPaths, checkMounts, checkTimes, checkIsolation, checkLimitsOfSpec, checkPool, checkSupport,
	} {
		if err := check(&s); err != nil {
			return nil, err
		}
	}
	p := &Plan{
		Spec:        withDefaults(s),
		Wants:       wants(s),
		PidsWritten: s.Limits.Pids != 0,
	}
	return p, nil
}

// cloneSpec copies everything but Policy, which no compiled spec has.
func cloneSpec(s Spec) Spec {
	s.Env = maps.Clone(s.Env)
	s.Labels = maps.Clone(s.Labels)
	s.Isolation.Layers = maps.Clone(s.Isolation.Layers)
	s.Mounts = slices.Clone(s.Mounts)
	for i, m := range s.Mounts {
		if m.ReadOnly != nil {
			ro := *m.ReadOnly
			s.Mounts[i].ReadOnly = &ro
		}
	}
	if s.Pool != nil {
		p := *s.Pool
		s.Pool = &p
	}
	return s
}

// withDefaults fills in every default of a valid spec that is the caller's own copy.
func withDefaults(s Spec) Spec {
	for i := range s.Mounts {
		if s.Mounts[i].ReadOnly == nil {
			ro := true
			s.Mounts[i].ReadOnly = &ro
		}
	}
	if s.Pool != nil {
		setDefault(&s.Pool.MaxIdle, defaultMaxIdle)
	}
	if a, ok := backendAliases[s.Backend]; ok {
		s.Backend = a
	}
	setDefault(&s.Backend, defaultBackend)
	setDefault(&s.WorkDir, defaultWorkDir)
	setDefault(&s.Network, NetworkDisabled)
	setDefault(&s.Tenant, defaultTenant)
	setDefault(&s.Isolation.Mode, Hardened)
	setDefault(&s.Isolation.Seccomp, defaultSeccomp)
	l := &s.Limits
	setDefault(&l.Pids, defaultPids)
	if l.Memory > 0 {
		setDefault(&l.Disk, l.Memory/2)
	}
	setDefault(&l.Disk, defaultDisk)
	setDefault(&l.Inodes, defaultInodes)
	setDefault(&l.DiskBacking, DiskMemory)
	setDefault(&l.OpenFiles, defaultOpenFiles)
	return s
}

func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// invalid is an INVALID_SPEC error for a field.
func invalid(field, message, hint string) *Error {
	return &Error{Code: CodeInvalidSpec, Op: "spec " + field, Message: message, Hint: hint}
}

// isName reports whether s matches ^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$.
func isName(s string) bool {
	if s == "" || len(s) > 63 || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for _, c := range []byte(s) {
		if !('a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-') {
			return false
		}
	}
	return true
}

// isToken reports whether s matches ^[A-Za-z0-9][<more>A-Za-z0-9._-]{0,n-1}$.
func isToken(s, more string, n int) bool {
	if s == "" || len(s) > n {
		return false
	}
	for i, c := range []byte(s) {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !letter && (i == 0 || strings.IndexByte("._-"+more, c) < 0) {
			return false
		}
	}
	return true
}

const nameHint = "use 1 to 63 of a-z, 0-9 and -, not - at either end"

func checkNames(s *Spec) *Error {
	if s.Backend != "" && !isName(s.Backend) {
		return invalid("backend", strconv.Quote(shorten(s.Backend))+" is not a backend's name", "use native, or another backend that the runtime was given")
	}
	if s.Name != "" && !isName(s.Name) {
		return invalid("name", strconv.Quote(shorten(s.Name))+" is not a valid name", nameHint)
	}
	if s.Tenant != "" && !isName(s.Tenant) {
		return invalid("tenant", strconv.Quote(shorten(s.Tenant))+" is not a valid tenant", nameHint)
	}
	if len(s.Labels) > maxLabels {
		return invalid("labels", fmt.Sprintf("has %d labels, more than %d", len(s.Labels), maxLabels), "")
	}
	for _, k := range slices.Sorted(maps.Keys(s.Labels)) {
		if !isToken(k, "/", 63) {
			return invalid("labels", strconv.Quote(shorten(k))+" is not a label's key", "use 1 to 63 of A-Z, a-z, 0-9, . _ / and -, beginning with a letter or digit")
		}
		v := s.Labels[k]
		if len(v) > maxLabelLen || !utf8.ValidString(v) || strings.ContainsFunc(v, unicode.IsControl) {
			return invalid("labels."+k, "is not a label's value", fmt.Sprintf("use at most %d bytes of UTF-8 text without control characters", maxLabelLen))
		}
	}
	return nil
}

func checkEnv(s *Spec) *Error {
	if e := checkEnvMap(s.Env); e != nil {
		e.Op = "spec " + e.Op
		return e
	}
	return nil
}

// checkEnvMap checks what execve(2) and the JSON form of a spec both can carry. The Op is
// relative: "env" or "env.KEY".
func checkEnvMap(env map[string]string) *Error {
	bad := func(op, message, hint string) *Error {
		return &Error{Code: CodeInvalidSpec, Op: op, Message: message, Hint: hint}
	}
	total := 0
	for _, k := range slices.Sorted(maps.Keys(env)) {
		v := env[k]
		if k == "" {
			return bad("env", "has an empty name", "name every variable")
		}
		if strings.ContainsAny(k, "=\x00") || !utf8.ValidString(k) {
			return bad("env", strconv.Quote(shorten(k))+" is not a variable's name", "use UTF-8 text without = and NUL")
		}
		if strings.Contains(v, "\x00") || !utf8.ValidString(v) {
			return bad("env."+shorten(k), "has NUL or invalid UTF-8 in its value", "pass bytes in a file or on standard input")
		}
		total += len(k) + len(v) + 2
	}
	if total > maxEnvBytes {
		return bad("env", fmt.Sprintf("has %d bytes, more than %d", total, maxEnvBytes), "pass large values in a file or on standard input")
	}
	return nil
}

// within reports whether p is dir or below it. Both are clean and absolute.
func within(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir+"/")
}

// checkPath checks an absolute clean path.
func checkPath(field, p string) *Error {
	switch {
	case len(p) > maxPathLen:
		return invalid(field, fmt.Sprintf("has %d bytes, more than %d", len(p), maxPathLen), "")
	case strings.Contains(p, "\x00") || !utf8.ValidString(p):
		return invalid(field, "has NUL or invalid UTF-8", "use a path of UTF-8 text")
	case !strings.HasPrefix(p, "/"):
		return invalid(field, strconv.Quote(shorten(p))+" is not an absolute path", "begin it with /")
	case path.Clean(p) != p:
		return invalid(field, strconv.Quote(shorten(p))+" is not a clean path", "write "+shorten(path.Clean(p)))
	}
	for _, name := range strings.Split(p, "/") {
		if len(name) > 255 {
			return invalid(field, "has a name of more than 255 bytes", "")
		}
	}
	return nil
}

var (
	// kernelDirs are views of the kernel.
	kernelDirs = []string{"/proc", "/sys", "/dev"}
	// systemDirs hold what programs need in order to start.
	systemDirs = []string{"/etc", "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"}
	// runtimeSockets give whoever reaches them the host. The final look at what a
	// source is happens by descriptor, in the backend.
	runtimeSockets = []string{
		"/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock", "/var/run/containerd/containerd.sock",
		"/run/crio/crio.sock", "/var/run/crio/crio.sock", "/run/podman/podman.sock", "/var/run/podman/podman.sock",
		"/run/dbus/system_bus_socket", "/var/run/dbus/system_bus_socket", "/run/systemd/private", "/run/user",
	}
	runtimeSocketNames = []string{"docker.sock", "containerd.sock", "crio.sock", "podman.sock"}
)

func checkPaths(s *Spec) *Error {
	if s.WorkDir != "" {
		if err := checkPath("workDir", s.WorkDir); err != nil {
			return err
		}
		if s.WorkDir == "/" {
			return invalid("workDir", "is the root directory", "use a directory of its own, such as /workspace")
		}
		for _, d := range slices.Concat(kernelDirs, systemDirs, []string{"/tmp"}) {
			if within(s.WorkDir, d) {
				return invalid("workDir", s.WorkDir+" is in "+d+", which the sandbox provides", "use a directory of its own, such as /workspace")
			}
		}
	}
	return checkImage(s.Image)
}

// checkImage refuses what is neither a directory nor the name of an image.
func checkImage(image string) *Error {
	hint := "give an absolute directory, or leave it out for the host's runtime"
	switch {
	case image == "":
		return nil
	case strings.HasPrefix(image, "/"):
		if err := checkPath("image", image); err != nil {
			return err
		}
		for _, d := range kernelDirs {
			if image == "/" || within(image, d) {
				return invalid("image", image+" is not the root of an image", hint)
			}
		}
		return nil
	case len(image) > maxPathLen || strings.Contains(image, "\x00") || !utf8.ValidString(image):
		return invalid("image", "is too long, or has NUL or invalid UTF-8", hint)
	case isImageName(image):
		return nil
	}
	return invalid("image", strconv.Quote(shorten(image))+" is neither an absolute directory nor an image reference", hint)
}

// isImageName reports whether s looks like an OCI reference or a transport and
// something ("oci:dir:tag", "docker://alpine").
func isImageName(s string) bool {
	for _, t := range []string{"oci:", "oci-archive:", "docker-archive:", "docker://"} {
		if rest, ok := strings.CutPrefix(s, t); ok {
			return rest != ""
		}
	}
	if s == "" || strings.Contains(s, "//") {
		return false
	}
	for i, c := range []byte(s) {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !letter && (i == 0 || i == len(s)-1 || strings.IndexByte("._-/:@+", c) < 0) {
			return false
		}
	}
	return true
}

func checkMounts(s *Spec) *Error {
	if len(s.Mounts) > maxMounts {
		return invalid("mounts", fmt.Sprintf("has %d mounts, more than %d", len(s.Mounts), maxMounts), "mount a common parent")
	}
	workDir := s.WorkDir
	setDefault(&workDir, defaultWorkDir)
	for i, m := range s.Mounts {
		field := fmt.Sprintf("mounts[%d]", i)
		if err := checkMountSource(field+".source", m.Source); err != nil {
			return err
		}
		if err := checkMountTarget(field+".target", m.Target, workDir); err != nil {
			return err
		}
		for j, other := range s.Mounts[:i] {
			if within(m.Target, other.Target) || within(other.Target, m.Target) {
				return invalid(field+".target", fmt.Sprintf("%s is the same as, above or below the target of mounts[%d], %s", m.Target, j, other.Target),
					"use targets beside each other")
			}
		}
	}
	return nil
}

func checkMountSource(field, p string) *Error {
	if p == "" {
		return invalid(field, "is missing", "give an absolute host path")
	}
	if err := checkPath(field, p); err != nil {
		return err
	}
	if p == "/" {
		return invalid(field, "is the root of the host", "mount the directory that the program needs")
	}
	for _, d := range kernelDirs {
		if within(p, d) {
			return invalid(field, p+" is in "+d+", a view of the kernel", "the sandbox has a "+d+" of its own")
		}
	}
	for _, sock := range runtimeSockets {
		if within(sock, p) || within(p, sock) {
			return invalid(field, p+" would show "+sock+", which gives away the host", "mount the directory that the program needs")
		}
	}
	if slices.Contains(runtimeSocketNames, path.Base(p)) {
		return invalid(field, p+" is named like a runtime's socket, which gives away the host", "mount the directory that the program needs")
	}
	return nil
}

func checkMountTarget(field, p, workDir string) *Error {
	if p == "" {
		return invalid(field, "is missing", "give an absolute path inside the sandbox")
	}
	if err := checkPath(field, p); err != nil {
		return err
	}
	for _, d := range kernelDirs {
		if within(p, d) {
			return invalid(field, p+" is in "+d+", which the sandbox provides", "use a directory of its own, such as /data")
		}
	}
	for _, d := range slices.Concat([]string{workDir, "/tmp"}, kernelDirs, systemDirs) {
		if within(d, p) {
			return invalid(field, p+" would hide "+d+", which the sandbox provides", "use a directory of its own, such as /data")
		}
	}
	return nil
}

// checkDuration checks a time that may be zero.
func checkDuration(field string, d time.Duration) *Error {
	switch {
	case d == 0:
		return nil
	case d < 0:
		return invalid(field, d.String()+" is negative", durationHint)
	case d < minDuration || d > maxDuration:
		return invalid(field, fmt.Sprintf("%s is not between %s and %s", d, minDuration, maxDuration), durationHint)
	}
	return nil
}

func checkTimes(s *Spec) *Error {
	if err := checkDuration("timeout", s.Timeout); err != nil {
		return err
	}
	if err := checkDuration("ttl", s.TTL); err != nil {
		return err
	}
	return checkDuration("idleTimeout", s.IdleTimeout)
}

// checkLimits checks each limit by itself. The prefix is that of the Op.
func checkLimits(prefix string, l Limits) *Error {
	in := func(field string, v, lo, hi int64, hint string) *Error {
		switch {
		case v == 0:
			return nil
		case v < 0:
			return invalid(field, strconv.FormatInt(v, 10)+" is negative", "leave it out for its default")
		case v < lo || v > hi:
			return invalid(field, fmt.Sprintf("%d is not between %d and %d", v, lo, hi), hint)
		}
		return nil
	}
	bytesIn := func(field string, v, lo Size, hint string) *Error {
		switch {
		case v == 0:
			return nil
		case v < 0:
			return invalid(field, v.String()+" is negative", "leave it out for its default")
		case v < lo || v > maxBytes:
			return invalid(field, fmt.Sprintf("%s is not between %s and %s", v, lo, maxBytes), hint)
		}
		return nil
	}
	cpu := func(field string, v float64) *Error {
		if v != 0 && (math.IsNaN(v) || v < minCPU || v > maxCPU) {
			return invalid(field, fmt.Sprintf("%v is not between %v and %v", v, minCPU, maxCPU), "give a number of cores, such as 0.5 or 2")
		}
		return nil
	}
	backing := func(field, v string) *Error {
		return oneOf(field, v, DiskMemory, DiskDisk)
	}
	for _, err := range []*Error{
		cpu(prefix+".cpu", l.CPU),
		checkDuration(prefix+".cpuTime", l.CPUTime),
		bytesIn(prefix+".memory", l.Memory, minMemory, "a program and its page tables need about 1 MiB to start, an interpreter about 10 MiB"),
		in(prefix+".pids", l.Pids, 1, maxPids, "give a number of processes and threads"),
		bytesIn(prefix+".disk", l.Disk, minDisk, sizeHint),
		in(prefix+".inodes", l.Inodes, minInodes, maxInodes, "give a number of files and directories; the sandbox's own count too"),
		backing(prefix+".diskBacking", l.DiskBacking),
		bytesIn(prefix+".output", l.Output, 1, sizeHint),
		in(prefix+".openFiles", l.OpenFiles, minOpenFiles, maxOpenFiles, "give a number of descriptors"),
		bytesIn(prefix+".fileSize", l.FileSize, 1, sizeHint),
		bytesIn(prefix+".core", l.Core, 1, sizeHint),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

// oneOf checks a word that may be empty.
func oneOf[T ~string](field string, v T, allowed ...T) *Error {
	if v == "" || slices.Contains(allowed, v) {
		return nil
	}
	words := make([]string, len(allowed))
	for i, a := range allowed {
		words[i] = string(a)
	}
	return invalid(field, strconv.Quote(shorten(string(v)))+" is unknown", "use "+strings.Join(words, ", "))
}

func checkLimitsOfSpec(s *Spec) *Error {
	l := s.Limits
	if err := checkLimits("limits", l); err != nil {
		return err
	}
	if l.Memory > 0 && l.Disk >= l.Memory && l.DiskBacking != DiskDisk {
		return invalid("limits.disk", fmt.Sprintf("%s in memory is not less than limits.memory, %s", l.Disk, l.Memory),
			"memory-backed files count as memory: lower limits.disk, raise limits.memory, or set limits.diskBacking to disk")
	}
	if written := l.needCgroup(); len(written) > 0 && s.Isolation.Layers[LayerCgroup] == Off {
		return invalid("isolation.layers.cgroup", "is off, but limits."+written[0]+" needs it", "remove the limit or the override")
	}
	if s.Isolation.Layers[LayerRlimits] == Off {
		for _, f := range []struct {
			name    string
			written bool
		}{{"openFiles", l.OpenFiles != 0}, {"fileSize", l.FileSize != 0}, {"core", l.Core != 0}} {
			if f.written {
				return invalid("isolation.layers.rlimits", "is off, but limits."+f.name+" needs it", "remove the limit or the override")
			}
		}
	}
	return nil
}

// needCgroup names the limits written in l that only a cgroup can enforce.
func (l Limits) needCgroup() []string {
	var names []string
	for _, f := range []struct {
		name    string
		written bool
	}{{"cpu", l.CPU != 0}, {"cpuTime", l.CPUTime != 0}, {"memory", l.Memory != 0}, {"pids", l.Pids != 0}} {
		if f.written {
			names = append(names, f.name)
		}
	}
	return names
}

// preferred are the layers that hardened and compat do without where the host has none.
var preferred = []Layer{LayerCgroupNS, LayerLandlock, LayerCgroup}

func checkIsolation(s *Spec) *Error {
	i := s.Isolation
	if err := oneOf("network", s.Network, NetworkDisabled, NetworkAllow, NetworkProxy); err != nil {
		return err
	}
	if err := oneOf("isolation.mode", i.Mode, Hardened, Compat, Dev); err != nil {
		return err
	}
	if err := oneOf("isolation.seccomp", i.Seccomp, "default", "strict", "debug"); err != nil {
		return err
	}
	for _, l := range slices.Sorted(maps.Keys(i.Layers)) {
		field := "isolation.layers." + shorten(string(l))
		if !slices.Contains(Layers, l) {
			return invalid("isolation.layers", strconv.Quote(shorten(string(l)))+" is not a layer", "the layers are "+layerNames())
		}
		w := i.Layers[l]
		if err := oneOf(field, w, Require, Prefer, Off); err != nil {
			return err
		}
		if w == "" {
			return invalid(field, "is an empty string", "use require, prefer or off")
		}
		if w == Prefer && (i.Mode == "" || i.Mode == Hardened) && !slices.Contains(preferred, l) {
			return invalid(field, "is prefer, but the mode hardened requires this layer", "set isolation.mode to compat, or the layer to off")
		}
	}
	off := func(l Layer) bool { return i.Layers[l] == Off }
	if off(LayerMount) && !off(LayerRootfs) {
		return invalid("isolation.layers.mount", "is off, but the layer rootfs needs it", "set isolation.layers.rootfs to off too")
	}
	if len(s.Mounts) > 0 && off(LayerRootfs) {
		return invalid("mounts", "needs the layer rootfs, which is off", "remove the mounts or the override")
	}
	if s.Image != "" && off(LayerRootfs) {
		return invalid("image", "needs the layer rootfs, which is off", "remove the image or the override")
	}
	if i.Fresh {
		for _, l := range []Layer{LayerPid, LayerMount, LayerIPC} {
			if off(l) {
				return invalid("isolation.fresh", "needs the layer "+string(l)+", which is off", "remove fresh or the override")
			}
		}
	}
	return nil
}

func layerNames() string {
	names := make([]string, len(Layers))
	for i, l := range Layers {
		names[i] = string(l)
	}
	return strings.Join(names, ", ")
}

// wants decides for every layer of a valid spec. The mode comes first, then the
// caller's overrides; a written limit that needs a cgroup requires one in every
// mode, because a limit that is not there is worse than a refusal.
func wants(s Spec) map[Layer]Want {
	w := make(map[Layer]Want, len(Layers))
	for _, l := range Layers {
		w[l] = Require
		if s.Isolation.Mode == Dev || slices.Contains(preferred, l) {
			w[l] = Prefer
		}
		if o := s.Isolation.Layers[l]; o != "" {
			w[l] = o
		}
	}
	if len(s.Limits.needCgroup()) > 0 {
		w[LayerCgroup] = Require
	}
	return w
}

func checkPool(s *Spec) *Error {
	if s.Pool == nil {
		return nil
	}
	if s.Pool.Size < 1 || s.Pool.Size > maxPool {
		return invalid("pool.size", fmt.Sprintf("%d is not between 1 and %d", s.Pool.Size, maxPool), "give the number of ready sandboxes to keep")
	}
	return checkDuration("pool.maxIdle", s.Pool.MaxIdle)
}

// checkSupport answers for what is valid but not built, last, so that
// UNSUPPORTED is never said of an invalid spec.
func checkSupport(s *Spec) *Error {
	if s.Policy != nil {
		return &Error{Code: CodeUnsupported, Op: "spec policy", Message: "policies are not supported yet", Hint: "remove the field"}
	}
	if s.Image != "" && !strings.HasPrefix(s.Image, "/") {
		return &Error{
			Code: CodeUnsupported, Op: "spec image", Message: strconv.Quote(shorten(s.Image)) + " names an OCI image, which is not supported yet",
			Hint: "unpack it and give the absolute directory, or leave it out for the host's runtime",
		}
	}
	return nil
}

// CompileLimits returns the limits of one execution: those of its sandbox's
// compiled spec, with what override writes in their place. An execution may
// lower cpu, cpuTime, memory, output, openFiles, fileSize and core, or set them
// where the sandbox has none. Raising one is [CodeInvalidSpec], never
// clamped, and so are pids, disk, inodes and diskBacking, which count for the whole
// sandbox. A backend may keep one of the others for the sandbox as a whole and answer
// [CodeUnsupported]: the native one does so for core. The Op is "command limits.memory",
// and the sandbox is none the worse.
func CompileLimits(base, override Limits) (Limits, error) {
	l, err := stricter(base, override)
	if err != nil {
		err.Op = "command " + strings.TrimPrefix(err.Op, "spec ")
		err.Recoverable = true
		return Limits{}, err
	}
	return l, nil
}

func stricter(base, override Limits) (Limits, *Error) {
	if err := checkLimits("limits", override); err != nil {
		return Limits{}, err
	}
	for _, f := range []struct {
		name    string
		written bool
	}{
		{"pids", override.Pids != 0},
		{"disk", override.Disk != 0},
		{"inodes", override.Inodes != 0},
		{"diskBacking", override.DiskBacking != ""},
	} {
		if f.written {
			return Limits{}, invalid("limits."+f.name, "counts for the whole sandbox, not for one execution", "write it in the sandbox's spec")
		}
	}
	l := base
	for _, err := range []*Error{
		lower("cpu", &l.CPU, override.CPU, true),
		lower("cpuTime", &l.CPUTime, override.CPUTime, true),
		lower("memory", &l.Memory, override.Memory, true),
		lower("output", &l.Output, override.Output, true),
		lower("openFiles", &l.OpenFiles, override.OpenFiles, true),
		lower("fileSize", &l.FileSize, override.FileSize, true),
		// Zero core dumps is a limit, not the lack of one.
		lower("core", &l.Core, override.Core, false),
	} {
		if err != nil {
			return Limits{}, err
		}
	}
	return l, nil
}

// lower replaces a limit by a stricter one.
func lower[T int64 | float64 | Size | time.Duration](name string, limit *T, override T, zeroIsNone bool) *Error {
	if override == 0 {
		return nil
	}
	if override > *limit && (*limit != 0 || !zeroIsNone) {
		e := invalid("limits."+name, fmt.Sprintf("%v is more than the sandbox's %v", override, *limit), "an execution may lower a limit; raise it in the sandbox's spec")
		e.Limit, e.Observed = fmt.Sprint(*limit), fmt.Sprint(override)
		return e
	}
	*limit = override
	return nil
}

// checkCommand checks what a caller asked to run. Empty dir, user and id stand for their defaults.
func checkCommand(args []string, env map[string]string, dir, user, id string) error {
	bad := func(field, message, hint string) error {
		return &Error{Code: CodeInvalidSpec, Op: "command " + field, Message: message, Recoverable: true, Hint: hint}
	}
	if len(args) == 0 || args[0] == "" {
		return bad("args", "has no program", "give the program's name or path first")
	}
	total := 0
	for i, a := range args {
		if strings.Contains(a, "\x00") {
			return bad(fmt.Sprintf("args[%d]", i), "has a NUL byte", "pass bytes in a file or on standard input")
		}
		if len(a) > maxArgLen {
			return bad(fmt.Sprintf("args[%d]", i), fmt.Sprintf("has %d bytes, more than %d", len(a), maxArgLen), "pass large values in a file or on standard input")
		}
		total += len(a) + 1
	}
	if total > maxArgBytes {
		return bad("args", fmt.Sprintf("has %d bytes, more than %d", total, maxArgBytes), "pass large values in a file or on standard input")
	}
	if e := checkEnvMap(env); e != nil {
		return bad(e.Op, e.Message, e.Hint)
	}
	if dir != "" && (!strings.HasPrefix(dir, "/") || strings.Contains(dir, "\x00") || len(dir) > maxPathLen) {
		return bad("dir", strconv.Quote(shorten(dir))+" is not an absolute path", "give an absolute path inside the sandbox")
	}
	if user != "" && user != "user" && user != "root" {
		return bad("user", strconv.Quote(shorten(user))+" is unknown", "use user or root")
	}
	if id != "" && !isToken(id, "", 64) {
		return bad("id", strconv.Quote(shorten(id))+" is not an execution's id", "use 1 to 64 of A-Z, a-z, 0-9, . _ and -, beginning with a letter or digit")
	}
	return nil
}
