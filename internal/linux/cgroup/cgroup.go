// Package cgroup gives each sandbox and each execution control groups of its
// own: limits, counters, and the group of processes that can be killed, frozen
// and waited for as one.
//
// Three arrangements of the host are known ([Kind]): cgroup v2, hybrid (v1
// controllers beside a v2 tree without controllers) and v1 only. What a [Set]
// and a [Group] consist of follows from the price, measured on Linux 6.18:
// a process that attaches itself pays about 9 µs for the first v1 hierarchy and
// 3 µs for each further one, a directory made and removed costs 15 µs in v1 and
// 20 µs in v2, and being cloned into a v2 group costs nothing. So:
//
//   - the limits of a sandbox (cpu rate, pids, memory) are on its Group, and
//     every process of it is below that Group in every hierarchy;
//   - an execution has its own v2 leaf (kill, events, cpu.stat) where there is a
//     v2 tree, and its own memory group (limit, peak, OOM attribution);
//   - in the v1 cpu and pids hierarchies it shares the Group's, unless
//     it has a limit of its own there. On v1 only, it has a cpuacct group too;
//   - sets and whole trees are recycled. A v2 leaf to which cgroup.kill was written
//     is replaced: on Linux 6.18 whatever is cloned into it later is killed
//     at once.
//
// The package only ever writes to groups that it made, with two exceptions on
// cgroup v2: the cgroup.subtree_control of the group it hangs its own top below,
// where a controller may have to be switched on, and, if [Config.MoveSelf] is set,
// the calling process's own place. It mounts nothing and starts no goroutines.
//
// It does not fork: the caller clones into [Set.CloneFD], and the child writes
// "0" to each of [Set.ProcsFDs] before it gives up its privileges.
package cgroup

import (
	"errors"
	"fmt"
	"time"
)

// Kind is the arrangement of control groups on a host.
type Kind int

// The arrangements.
const (
	None   Kind = iota // no usable control groups
	V2                 // every needed controller is on the v2 tree
	Hybrid             // v1 controllers, and a v2 tree with cgroup.kill
	V1                 // v1 controllers only
)

// String returns "none", "v2", "hybrid" or "v1".
func (k Kind) String() string {
	switch k {
	case V2:
		return "v2"
	case Hybrid:
		return "hybrid"
	case V1:
		return "v1"
	}
	return "none"
}

// Controller names a controller, or with [Unified] the v2 tree.
type Controller string

// The controllers that this package uses.
const (
	Unified Controller = "unified"
	CPU     Controller = "cpu"
	CPUAcct Controller = "cpuacct"
	Memory  Controller = "memory"
	Pids    Controller = "pids"
	Freezer Controller = "freezer"
	IO      Controller = "io"
)

// Host is what [Detect] found.
type Host struct {
	Kind Kind
	// Mounts has the mount point of each controller's hierarchy, and of the v2
	// tree under Unified.
	Mounts map[Controller]string
	// Parents has the directory below which a group could be made in each
	// hierarchy; it was tried.
	Parents map[Controller]string
	// Reason says why control groups cannot be used by this process, Remedy how to
	// change that. Both are empty when they can.
	Reason, Remedy string
}

// UnsupportedError says that the host, or this process's authority on it, lacks
// something.
type UnsupportedError struct {
	Feature string // what cannot be had
	Needs   string // what is missing, and how to get it
}

// Error returns "feature: unsupported: needs ...".
func (e *UnsupportedError) Error() string {
	return e.Feature + ": unsupported: needs " + e.Needs
}

// OpError is a failed operation on a group.
type OpError struct {
	Op        string // "mkdir", "write", "read", "rmdir", "open", "read back"
	Hierarchy string // "unified", or the v1 controllers of the hierarchy: "cpu,cpuacct"
	Group     string // directory
	File      string // file in it, or empty
	Err       error  // an errno, mostly
}

// Error returns "op hierarchy group/file: err".
func (e *OpError) Error() string {
	p := e.Group
	if e.File != "" {
		p += "/" + e.File
	}
	return fmt.Sprintf("cgroup %s %s %s: %v", e.Op, e.Hierarchy, p, e.Err)
}

// Unwrap returns the cause.
func (e *OpError) Unwrap() error { return e.Err }

// Errors for errors.Is.
var (
	ErrBusy   = errors.New("group still has processes")
	ErrClosed = errors.New("group is closed")
	ErrInUse  = errors.New("owned by a live runtime")
)

// Config says where a runtime's groups go.
type Config struct {
	// Parent is an absolute path within the hierarchies ("/belljar.slice") that
	// exists in each of them and below which the runtime's top group is made.
	// Empty: the caller's own group where possible.
	Parent string
	// Tag makes the top group's name, "belljar-<tag>". It matches
	// ^[a-z0-9][a-z0-9-]{0,62}$ and belongs to one live runtime at a time.
	Tag string
	// Idle is how many idle sandbox trees are kept for reuse; 0 means 16, negative none.
	Idle int
	// MoveSelf allows, on cgroup v2, to move the calling process from its own group into a
	// child "belljar-self" when that group is delegated to it and holds no
	// other process: a group with processes cannot hand controllers to children.
	MoveSelf bool
}

// Limits of a sandbox or of an execution. Zero means none.
type Limits struct {
	CPU    float64 // cores, a rate: throttles
	Memory int64   // bytes, swap excluded
	Pids   int64   // processes and threads
}

// Usage is what the kernel counted. A negative number was not measured.
type Usage struct {
	CPU, User, System time.Duration
	PeakMemory        int64 // bytes, with what earlier users left in the group
	PeakPids          int64
	IORead, IOWrite   int64 // bytes
}

// SetState is what a later supervisor needs to go on counting for a set.
type SetState struct {
	Name    string        `json:"name"`
	Limits  Limits        `json:"limits"`
	CPU     time.Duration `json:"cpu"`
	User    time.Duration `json:"user"`
	System  time.Duration `json:"system"`
	OOM     uint64        `json:"oom"`
	PidsMax uint64        `json:"pidsMax"`
	Pids    uint64        `json:"pids"`
	IORead  uint64        `json:"ioRead"`
	IOWrite uint64        `json:"ioWrite"`
}
