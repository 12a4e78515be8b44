package seccomp

import (
	"fmt"
	"runtime"
	"sync"
)

// Arch is a processor architecture that filters can be compiled for.
type Arch int

// The architectures. Only the 64-bit ABI of each is served: system calls of
// the 32-bit and x32 ABIs kill the process.
const (
	AMD64 Arch = iota
	ARM64

	archCount
)

// auditArch is what the kernel puts into seccomp_data.arch (linux/audit.h).
var auditArch = [archCount]uint32{AMD64: 0xc000003e, ARM64: 0xc00000b7}

// String returns the architecture's name as Go spells it.
func (a Arch) String() string {
	switch a {
	case AMD64:
		return "amd64"
	case ARM64:
		return "arm64"
	}
	return fmt.Sprintf("arch(%d)", int(a))
}

// Audit returns the AUDIT_ARCH value by which the kernel calls the architecture.
func (a Arch) Audit() uint32 { return auditArch[a] }

// Native returns the architecture that this program runs on, or an
// *UnsupportedError.
func Native() (Arch, error) {
	switch runtime.GOARCH {
	case "amd64":
		return AMD64, nil
	case "arm64":
		return ARM64, nil
	}
	return 0, &UnsupportedError{Feature: "seccomp profiles on " + runtime.GOARCH, Needs: "amd64 or arm64"}
}

// Profile names a policy.
type Profile string

// The profiles; the package documentation has the table of their differences.
const (
	Default Profile = "default"
	Strict  Profile = "strict"
	Debug   Profile = "debug"
)

// Profiles lists the profiles.
func Profiles() []Profile { return []Profile{Default, Strict, Debug} }

// UnsupportedError says that this host lacks what the package needs.
type UnsupportedError struct {
	Feature string // what is missing
	Needs   string // what would provide it
}

func (e *UnsupportedError) Error() string {
	return e.Feature + " is not supported here (needs " + e.Needs + ")"
}

var compiled struct {
	sync.Mutex
	programs map[programKey]*Program
}

type programKey struct {
	profile Profile
	arch    Arch
	noSetID bool
}

// Compile returns the filter of a profile for an architecture, which need not
// be the one that this program runs on. Programs are immutable and made once.
func Compile(p Profile, a Arch) (*Program, error) {
	return compileFor(programKey{p, a, false})
}

// CompileNoSetID is Compile for a sandbox that writes to files of the host, which are
// its owner's there: the filter lets no file get set-user-id or set-group-id bits, which
// no mount option inside takes away for the users of the host.
func CompileNoSetID(p Profile, a Arch) (*Program, error) {
	return compileFor(programKey{p, a, true})
}

func compileFor(key programKey) (*Program, error) {
	p, a := key.profile, key.arch
	if a < 0 || a >= archCount {
		return nil, fmt.Errorf("compile seccomp profile %q: unknown architecture %d", p, int(a))
	}
	compiled.Lock()
	defer compiled.Unlock()
	if prog := compiled.programs[key]; prog != nil {
		return prog, nil
	}
	table, err := policy(p)
	if err != nil {
		return nil, err
	}
	if key.noSetID {
		restrictSetID(table)
	}
	prog, err := compile(table, a)
	if err != nil {
		return nil, fmt.Errorf("compile seccomp profile %q for %v: %w", p, a, err)
	}
	if compiled.programs == nil {
		compiled.programs = make(map[programKey]*Program)
	}
	compiled.programs[key] = prog
	return prog, nil
}
