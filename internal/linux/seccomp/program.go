package seccomp

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"syscall"
)

// Action is what a filter answers: a SECCOMP_RET value.
type Action uint32

// Actions. [Errno] makes the others.
const (
	Allow Action = 0x7fff0000 // SECCOMP_RET_ALLOW
	Kill  Action = 0x80000000 // SECCOMP_RET_KILL_PROCESS

	retErrno Action = 0x00050000 // SECCOMP_RET_ERRNO
)

// Errno returns the action that makes a call fail with e, which must be in
// 1..4095, without running it.
func Errno(e syscall.Errno) Action { return retErrno | Action(e&0xfff) }

// Errno returns the error that a call fails with, or 0.
func (a Action) Errno() syscall.Errno {
	if a&0xffff0000 != retErrno {
		return 0
	}
	return syscall.Errno(a & 0xffff)
}

// String returns "allow", "kill" or "errno N".
func (a Action) String() string {
	switch {
	case a == Allow:
		return "allow"
	case a == Kill:
		return "kill"
	case a&0xffff0000 == retErrno:
		return fmt.Sprintf("errno %d", uint32(a&0xffff))
	}
	return fmt.Sprintf("action %#x", uint32(a))
}

// Operation codes of classic BPF (linux/bpf_common.h), those that are used here.
const (
	opLoad   = 0x20 // BPF_LD|BPF_W|BPF_ABS
	opAnd    = 0x54 // BPF_ALU|BPF_AND|BPF_K
	opJump   = 0x05 // BPF_JMP|BPF_JA
	opIfEq   = 0x15 // BPF_JMP|BPF_JEQ|BPF_K
	opIfGe   = 0x35 // BPF_JMP|BPF_JGE|BPF_K
	opIfBits = 0x45 // BPF_JMP|BPF_JSET|BPF_K
	opRet    = 0x06 // BPF_RET|BPF_K
)

// maxInstructions is BPF_MAXINSNS.
const maxInstructions = 4096

// insn is struct sock_filter.
type insn struct {
	code   uint16
	jt, jf uint8
	k      uint32
}

// Program is a compiled filter.
type Program struct {
	insns []insn
	rules int
	hash  string
}

func newProgram(insns []insn, rules int) *Program {
	p := &Program{insns: insns, rules: rules}
	sum := sha256.Sum256(p.Bytes())
	p.hash = hex.EncodeToString(sum[:8])
	return p
}

// Bytes returns the program as an array of struct sock_filter, 8 bytes each,
// in the layout of the two architectures, which are both little-endian.
func (p *Program) Bytes() []byte {
	b := make([]byte, 0, 8*len(p.insns))
	for _, in := range p.insns {
		b = binary.LittleEndian.AppendUint16(b, in.code)
		b = append(b, in.jt, in.jf)
		b = binary.LittleEndian.AppendUint32(b, in.k)
	}
	return b
}

// Len returns the number of instructions.
func (p *Program) Len() int { return len(p.insns) }

// Hash returns the first 16 hexadecimal digits of the SHA-256 of [Program.Bytes].
func (p *Program) Hash() string { return p.hash }

// Rules returns how many system calls the program lets through, with or
// without a condition on the arguments.
func (p *Program) Rules() int { return p.rules }

// Offsets in struct seccomp_data (linux/seccomp.h).
const (
	offNr   = 0
	offArch = 4
	offArgs = 16
)

// loArg and hiArg are the offsets of the halves of an argument.
func loArg(i int) uint32 { return uint32(offArgs + 8*i) }
func hiArg(i int) uint32 { return loArg(i) + 4 }

// Simulate interprets the program for one system call, as the kernel would.
// arch is an AUDIT_ARCH value, see [Arch.Audit].
func (p *Program) Simulate(arch uint32, nr int, args [6]uint64) Action {
	action, _ := p.run(arch, nr, args)
	return action
}

// run also returns how many instructions were executed. A malformed program,
// which the kernel would refuse to install, answers Kill.
func (p *Program) run(arch uint32, nr int, args [6]uint64) (Action, int) {
	var data [offArgs + 6*8]byte
	binary.LittleEndian.PutUint32(data[offNr:], uint32(int32(nr)))
	binary.LittleEndian.PutUint32(data[offArch:], arch)
	for i, v := range args {
		binary.LittleEndian.PutUint64(data[loArg(i):], v)
	}
	var acc uint32
	steps := 0
	branch := func(in insn, taken bool) int {
		if taken {
			return int(in.jt)
		}
		return int(in.jf)
	}
	for pc := 0; pc >= 0 && pc < len(p.insns); pc++ {
		steps++
		in := p.insns[pc]
		switch in.code {
		case opLoad:
			if in.k%4 != 0 || int(in.k)+4 > len(data) {
				return Kill, steps
			}
			acc = binary.LittleEndian.Uint32(data[in.k:])
		case opAnd:
			acc &= in.k
		case opJump:
			pc += int(in.k)
		case opIfEq:
			pc += branch(in, acc == in.k)
		case opIfGe:
			pc += branch(in, acc >= in.k)
		case opIfBits:
			pc += branch(in, acc&in.k != 0)
		case opRet:
			return Action(in.k), steps
		default:
			return Kill, steps
		}
	}
	return Kill, steps
}
