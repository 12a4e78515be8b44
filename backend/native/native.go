// Package native isolates programs with the Linux kernel's own means:
// namespaces, a private root, cgroups, Landlock and seccomp, without a daemon of
// its own and without being root (as root it isolates more: ids that are nobody
// on the host, control groups, disk-backed quotas).
//
// A sandbox has a keeper, a small static program outside its pid namespace that
// is the parent of PID 1 and of every execution; this package compiles a
// [belljar.Plan] to what the keeper carries out, and reads back from the kernel
// what became of it. It does not protect against faults of the kernel itself,
// nor against side channels of shared hardware.
package native

import "log/slog"

// Config says how the backend works on this host. The zero value is useful.
type Config struct {
	// CgroupParent is an absolute path within the cgroup hierarchies below which
	// groups are made; empty: below the caller's own where possible.
	CgroupParent string
	// Tag names this runtime's top cgroup, "belljar-<tag>"; empty: a random one.
	Tag string
	// IDBase is the first host id of the ranges that sandboxes are mapped to when
	// root runs them, 65 536 ids for each tenant; default 0x40000000.
	IDBase uint32
	// Logger gets what nobody else is told; default: none.
	Logger *slog.Logger
}
