// Package landlock makes rulesets of the Landlock security module from open
// descriptors.
//
// A ruleset handles every file right that this kernel and this package both
// know, so what no rule grants is denied; the caller learns from [Info] which
// rights those were. Rules name files by descriptor, never by path. Landlock
// only takes away: it cannot express a denial below a grant, and it does not
// look at stat, chdir, chmod, chown, extended attributes, locks or times.
//
//	ABI  Linux  adds
//	1    5.13   files and directories; moving a file to another directory is always denied
//	2    5.19   REFER: moving and linking across directories
//	3    6.2    TRUNCATE
//	4    6.7    TCP ports (not handled here: the network namespace does that)
//	5    6.10   IOCTL_DEV
//	6    6.12   scopes: abstract unix sockets (used), signals (not used, since the executions
//	            of one sandbox may signal each other)
//	7    6.15   audit flags (not used)
//
// With an ABI below 3 files that are not writable can be truncated; below 5,
// device ioctls are free; below 6, abstract sockets are reachable as far as the
// network namespace lets them be.
//
// The scope also parts processes that were restricted one by one: they cannot
// connect to each other's abstract sockets, nor trace each other, although
// their rules are the same.
package landlock

// Access is a set of rights on files (LANDLOCK_ACCESS_FS_*).
type Access uint64

// The rights. Those of the second group mean something on directories only.
const (
	Execute   Access = 1 << 0
	WriteFile Access = 1 << 1
	ReadFile  Access = 1 << 2
	Truncate  Access = 1 << 14 // ABI 3
	IoctlDev  Access = 1 << 15 // ABI 5

	ReadDir    Access = 1 << 3
	RemoveDir  Access = 1 << 4
	RemoveFile Access = 1 << 5
	MakeChar   Access = 1 << 6
	MakeDir    Access = 1 << 7
	MakeReg    Access = 1 << 8
	MakeSock   Access = 1 << 9
	MakeFifo   Access = 1 << 10
	MakeBlock  Access = 1 << 11
	MakeSym    Access = 1 << 12
	Refer      Access = 1 << 13 // ABI 2
)

// onFiles are the rights that a rule on something else than a directory may have.
const onFiles = Execute | WriteFile | ReadFile | Truncate | IoctlDev

// scopeAbstractUnix is LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET.
const scopeAbstractUnix = 1 << 0

// ABIs from which on fields of struct landlock_ruleset_attr exist.
const (
	abiNet   = 4
	abiScope = 6
)

// Handled returns all rights that an ABI and this package know.
func Handled(abi int) Access {
	var a Access
	if abi >= 1 {
		a = 1<<13 - 1
	}
	if abi >= 2 {
		a |= Refer
	}
	if abi >= 3 {
		a |= Truncate
	}
	if abi >= 5 {
		a |= IoctlDev
	}
	return a
}

// ReadOnly returns the rights to read files and list directories.
func ReadOnly(abi int) Access { return (ReadFile | ReadDir) & Handled(abi) }

// ReadExec returns ReadOnly and the right to execute.
func ReadExec(abi int) Access { return (ReadFile | ReadDir | Execute) & Handled(abi) }

// ReadWrite returns what a program may do in a tree of its own: everything,
// programs included, but for making device nodes and speaking to them.
func ReadWrite(abi int) Access { return Handled(abi) &^ (MakeChar | MakeBlock | IoctlDev) }

// DeviceRW returns the rights to use devices: a single one, or those in a
// directory like /dev/pts.
func DeviceRW(abi int) Access {
	return (ReadFile | WriteFile | ReadDir | IoctlDev) & Handled(abi)
}

// Rule grants rights on a file, or on everything below a directory.
type Rule struct {
	// FD is open on the file; O_PATH is enough. It stays the caller's.
	FD int
	// Access is cut to what the running ABI knows and, unless FD is a directory,
	// to what a file can have. Nothing left is an error.
	Access Access
}

// Info says what a ruleset holds.
type Info struct {
	ABI       int    // of the kernel
	Rules     int    // how many were added
	HandledFS Access // denied unless granted
	Scoped    bool   // abstract unix sockets of other domains are out of reach
}

// UnsupportedError says that this host lacks what the package needs.
type UnsupportedError struct {
	Feature string // what is missing
	Needs   string // what would provide it
}

func (e *UnsupportedError) Error() string {
	return e.Feature + " is not supported here (needs " + e.Needs + ")"
}
