package belljar

import "time"

// SpecVersion is the version of the spec, the API and the result (SemVer).
const SpecVersion = "0.1.0"

// Size is a number of bytes. In JSON and YAML it is an integer, or a string
// with one of the units B KB MB GB KiB MiB GiB, all of them 1024-based.
type Size int64

// Units of [Size].
const (
	KiB Size = 1 << 10
	MiB Size = 1 << 20
	GiB Size = 1 << 30
)

// Network is the network mode of a sandbox.
type Network string

// Network modes. Only NetworkDisabled is implemented by the native backend so
// far; the others answer [CodeUnsupported].
const (
	NetworkDisabled Network = "disabled" // the sandbox's own loopback only
	NetworkAllow    Network = "allow"    // public Internet, no private ranges
	NetworkProxy    Network = "proxy"    // only what the policy lists
)

// Mode says what happens when a layer of confinement is missing on the host.
type Mode string

// Isolation modes.
const (
	Hardened Mode = "hardened" // every required layer, or refuse
	Compat   Mode = "compat"   // layers named `prefer` may be missing; the report says so
	Dev      Mode = "dev"      // anything may be missing; every command warns
)

// Layer names one mechanism of confinement.
type Layer string

// The layers, in the order in which reports list them.
const (
	LayerUser       Layer = "user"     // user namespace
	LayerMount      Layer = "mount"    // mount namespace
	LayerPid        Layer = "pid"      // pid namespace
	LayerNet        Layer = "net"      // network namespace
	LayerIPC        Layer = "ipc"      // System V and POSIX message queue namespace
	LayerUTS        Layer = "uts"      // host name namespace
	LayerCgroupNS   Layer = "cgroupns" // cgroup namespace
	LayerRootfs     Layer = "rootfs"   // own root, old root detached
	LayerSeccomp    Layer = "seccomp"  // system call allow-list
	LayerLandlock   Layer = "landlock" // second layer on files
	LayerNoNewPrivs Layer = "nnp"      // no_new_privs
	LayerCaps       Layer = "caps"     // no capability in any set
	LayerRlimits    Layer = "rlimits"  // setrlimit(2)
	LayerCgroup     Layer = "cgroup"   // memory, pids, cpu limits and the kill domain
)

// Layers lists every layer in report order.
var Layers = []Layer{
	LayerUser, LayerMount, LayerPid, LayerNet, LayerIPC, LayerUTS, LayerCgroupNS, LayerRootfs,
	LayerSeccomp, LayerLandlock, LayerNoNewPrivs, LayerCaps, LayerRlimits, LayerCgroup,
}

// Want says how much a layer is wanted.
type Want string

// How much a layer is wanted. The zero value means: as the mode says.
const (
	Require Want = "require" // refuse to start without it
	Prefer  Want = "prefer"  // use it where the host has it
	Off     Want = "off"     // do not apply it; shows in the report
)

// Spec describes a sandbox. The same fields, names and defaults are used in Go,
// in YAML and JSON files, by the command line and by the API. The zero value is
// a hardened native sandbox without network.
type Spec struct {
	// Backend names what isolates; default "native". Aliases: process, docker, firecracker.
	Backend string `json:"backend,omitempty"`
	// Image is empty for the host's runtime read-only, or an absolute directory.
	// OCI references and layouts answer UNSUPPORTED so far.
	Image string `json:"image,omitempty"`
	// WorkDir is the working directory inside the sandbox; default /workspace.
	WorkDir string `json:"workDir,omitempty"`
	// Env overlays the fixed PATH, HOME, TMPDIR and LANG. The host's environment is never inherited.
	Env map[string]string `json:"env,omitempty"`
	// Timeout is the wall clock of each execution; 0 = none.
	Timeout time.Duration `json:"timeout,omitempty"`
	// TTL and IdleTimeout bound the sandbox's life; 0 = none (the daemon has its own default).
	TTL         time.Duration `json:"ttl,omitempty"`
	IdleTimeout time.Duration `json:"idleTimeout,omitempty"`
	// Limits bound what the sandbox and its executions may use.
	Limits Limits `json:"limits,omitzero"`
	// Network defaults to NetworkDisabled.
	Network Network `json:"network,omitempty"`
	// Mounts are host paths made visible inside.
	Mounts []Mount `json:"mounts,omitempty"`
	// Isolation chooses mode and layers.
	Isolation Isolation `json:"isolation,omitzero"`
	// Pool takes the sandbox from, or keeps, a warm pool of this spec.
	Pool *Pool `json:"pool,omitempty"`
	// Policy names or holds a policy document; answers UNSUPPORTED so far.
	Policy any `json:"policy,omitempty"`
	// Tenant owns the sandbox; default "default".
	Tenant string `json:"tenant,omitempty"`
	// Labels are free-form and can be filtered by.
	Labels map[string]string `json:"labels,omitempty"`
	// Name matches ^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$; default: generated.
	Name string `json:"name,omitempty"`
}

// Limits bound resources. Zero means: not written by the caller, use the default.
type Limits struct {
	// CPU is a rate in cores (0.5 = half a core): it throttles and never kills. Default none.
	CPU float64 `json:"cpu,omitempty"`
	// CPUTime is the CPU budget of an execution's whole tree; exceeding it kills
	// (ERR_CPU_EXCEEDED). Default none.
	CPUTime time.Duration `json:"cpuTime,omitempty"`
	// Memory caps each execution and the sandbox, tmpfs included, swap excluded;
	// exceeding it kills the execution's tree (ERR_OOM_EXCEEDED). Default none.
	Memory Size `json:"memory,omitempty"`
	// Pids caps processes and threads of the whole sandbox; default 512.
	Pids int64 `json:"pids,omitempty"`
	// Disk caps everything writable together; default 1 GiB, or Memory/2 when Memory is set.
	Disk Size `json:"disk,omitempty"`
	// Inodes caps files and directories; default 200 000.
	Inodes int64 `json:"inodes,omitempty"`
	// DiskBacking is "memory" (default) or "disk".
	DiskBacking string `json:"diskBacking,omitempty"`
	// Output caps stdout+stderr in bytes; exceeding it kills (ERR_OUTPUT_EXCEEDED). Default none.
	Output Size `json:"output,omitempty"`
	// OpenFiles is RLIMIT_NOFILE; default 1024.
	OpenFiles int64 `json:"openFiles,omitempty"`
	// FileSize is RLIMIT_FSIZE; default none.
	FileSize Size `json:"fileSize,omitempty"`
	// Core is RLIMIT_CORE; default 0.
	Core Size `json:"core,omitempty"`
}

// Disk backings.
const (
	DiskMemory = "memory"
	DiskDisk   = "disk"
)

// Mount makes one host path visible inside.
type Mount struct {
	// Source is an absolute host path without symbolic links.
	Source string `json:"source"`
	// Target is an absolute path inside the sandbox.
	Target string `json:"target"`
	// ReadOnly defaults to true; only an explicit false makes the mount writable.
	ReadOnly *bool `json:"readOnly,omitempty"`
}

// Isolation chooses how strictly a sandbox is confined.
type Isolation struct {
	// Mode defaults to Hardened.
	Mode Mode `json:"mode,omitempty"`
	// Layers overrides the mode's choice for single layers.
	Layers map[Layer]Want `json:"layers,omitempty"`
	// Seccomp is the profile: "default", "strict" or "debug".
	Seccomp string `json:"seccomp,omitempty"`
	// Fresh gives each execution its own pid, mount and ipc namespaces.
	Fresh bool `json:"fresh,omitempty"`
}

// Pool describes a warm pool.
type Pool struct {
	// Size is how many ready sandboxes are kept; 1 to 1000.
	Size int `json:"size"`
	// MaxIdle is how long an unused member is kept; default 5 min.
	MaxIdle time.Duration `json:"maxIdle,omitempty"`
}
