package landlock

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

type abiAnswer struct {
	abi int
	err error
}

// The kernel is asked by the system call: securityfs may be unmounted, or be
// another kernel's in a container.
var ask = sync.OnceValue(func() abiAnswer {
	const version = 1 // LANDLOCK_CREATE_RULESET_VERSION
	n, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, version)
	switch errno {
	case 0:
		return abiAnswer{abi: int(n)}
	case unix.EOPNOTSUPP:
		return abiAnswer{err: &UnsupportedError{Feature: "landlock", Needs: "landlock in the kernel's lsm= boot parameter"}}
	case unix.ENOSYS:
		return abiAnswer{err: &UnsupportedError{Feature: "landlock", Needs: "Linux 5.13 with CONFIG_SECURITY_LANDLOCK"}}
	}
	return abiAnswer{err: &UnsupportedError{Feature: "landlock", Needs: "a host that does not itself refuse landlock_create_ruleset(2): " + errno.Error()}}
})

// Supported returns nil when this kernel has Landlock, else an *UnsupportedError.
func Supported() error { return ask().err }

// ABI returns the kernel's Landlock ABI version, 0 without Landlock. Versions
// above those that this package knows are returned as they are.
func ABI() int { return ask().abi }

// rulesetAttr is struct landlock_ruleset_attr.
type rulesetAttr struct {
	handledFS  uint64
	handledNet uint64
	scoped     uint64
}

// pathBeneathAttr is struct landlock_path_beneath_attr, which is packed.
type pathBeneathAttr [12]byte

func newPathBeneath(a Access, fd int) *pathBeneathAttr {
	var p pathBeneathAttr
	*(*[8]byte)(p[0:8]) = *(*[8]byte)(unsafe.Pointer(&a))
	fd32 := int32(fd)
	*(*[4]byte)(p[8:12]) = *(*[4]byte)(unsafe.Pointer(&fd32))
	return &p
}

// NewRuleset returns the descriptor of a ruleset, close-on-exec, with the rules
// in it. Without Landlock the error is an *UnsupportedError.
func NewRuleset(rules []Rule) (*os.File, Info, error) {
	if err := Supported(); err != nil {
		return nil, Info{}, err
	}
	return newRuleset(ABI(), rules)
}

// newRuleset keeps to an ABI, which may be older than the kernel's.
func newRuleset(abi int, rules []Rule) (_ *os.File, _ Info, err error) {
	info := Info{ABI: abi, HandledFS: Handled(abi)}
	attr := rulesetAttr{handledFS: uint64(info.HandledFS)}
	// Kernels refuse a structure with fields that they do not know, unless zero;
	// the size says which ones are meant.
	size := unsafe.Sizeof(attr.handledFS)
	if abi >= abiNet {
		size = unsafe.Offsetof(attr.scoped)
	}
	if abi >= abiScope {
		size = unsafe.Sizeof(attr)
		attr.scoped = scopeAbstractUnix
		info.Scoped = true
	}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), size, 0)
	if errno != 0 {
		return nil, Info{}, fmt.Errorf("create landlock ruleset: %w", errno)
	}
	f := os.NewFile(fd, "landlock-ruleset")
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	for i, r := range rules {
		if err := addRule(int(fd), info.HandledFS, r); err != nil {
			return nil, Info{}, fmt.Errorf("landlock rule %d (fd %d): %w", i, r.FD, err)
		}
		info.Rules++
	}
	return f, info, nil
}

func addRule(ruleset int, handled Access, r Rule) error {
	var st unix.Stat_t
	if err := unix.Fstat(r.FD, &st); err != nil {
		return fmt.Errorf("fstat: %w", err)
	}
	access := r.Access & handled
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		access &= onFiles
	}
	if access == 0 {
		return fmt.Errorf("none of the rights %#x can be granted on it", uint64(r.Access))
	}
	const pathBeneath = 1 // LANDLOCK_RULE_PATH_BENEATH
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset), pathBeneath,
		uintptr(unsafe.Pointer(newPathBeneath(access, r.FD))), 0, 0, 0)
	if errno != 0 {
		return fmt.Errorf("add: %w", errno)
	}
	return nil
}

// RestrictSelf confines the calling thread and what it will start, for good.
// The caller has locked the goroutine to its thread and set no_new_privs, or
// has CAP_SYS_ADMIN. It exists for tests: sandboxes are confined by the keeper.
func RestrictSelf(fd int) error {
	if err := Supported(); err != nil {
		return err
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(fd), 0, 0); errno != 0 {
		return fmt.Errorf("landlock restrict self: %w", errno)
	}
	return nil
}
