package keeper

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Constants of proto.h. A test compares them with that file.
const (
	Magic    = 0x314b4a42
	Version  = 1
	MaxMsg   = 131072
	MaxFDs   = 32
	MaxExec  = 1024
	MaxSets  = 256
	MaxProcs = 8
	IDLen    = 64
)

// Type is the kind of a message.
type Type uint16

// Message types.
const (
	MInit     Type = 1
	MTemplate Type = 2
	MSandbox  Type = 3
	MForget   Type = 4
	MTops     Type = 5
	MConfine  Type = 16
	MSet      Type = 17
	MExec     Type = 18
	MKill     Type = 19
	MSignal   Type = 20
	MRelease  Type = 21
	MExpire   Type = 22
	MHello    Type = 23
	MSocket   Type = 24
	MEnd      Type = 25
	MOK       Type = 32
	MFail     Type = 33
	MReady    Type = 34
	MOOM      Type = 35
	MExited   Type = 36
	MState    Type = 37
	MTask     Type = 38
	MBye      Type = 39
	MFD       Type = 40
)

// Flags of M_INIT, of a template op, of a sandbox, of the lock-down, of a set, of
// an execution, and of its end.
const (
	InitRootless = 1

	OpDir  = 1
	OpFile = 2
	OpLink = 3
	OpBind = 4

	OpOptional = 1
	OpNonRec   = 2

	SBPersist    = 1
	SBCgroup     = 2
	SBRWFD       = 4
	SBHostProc   = 8
	SBNoDevpts   = 16
	SBLo         = 32
	SBRootless   = 64
	SBOwnPids    = 128
	SBOwnIPC     = 0x1000
	SBProcsShift = 8

	LockNNP      = 1
	LockCaps     = 2
	LockIDs      = 4
	LockGroups   = 8
	LockLandlock = 16
	LockSeccomp  = 32
	LockKeepCaps = 64

	SetClone = 1
	SetKill  = 2
	SetOOM   = 4
	SetOnce  = 8

	ExTTY    = 1
	ExFresh  = 2
	ExKeep   = 4
	ExBlob   = 8
	ExSet    = 16
	ExOwnPid = 32
	// ExExtra is a shift: so many further descriptors follow the streams, at most 8.
	ExExtra = 16

	ExfTimeout = 1
	ExfBurned  = 2
	ExfOOM     = 4
	ExfStuck   = 8
	ExfRunning = 16
)

// Mount attributes of mount_setattr(2).
const (
	AttrReadOnly = 1
	AttrNoSuid   = 2
	AttrNoDev    = 4
	AttrNoExec   = 8
)

// Step names what the keeper was doing when something failed.
type Step int32

// Steps that callers tell apart; the rest are only named.
const (
	StepProtocol     Step = 1
	StepUnshareUser  Step = 2
	StepMountSource  Step = 13
	StepMountChanged Step = 14
	StepMountTarget  Step = 25
	StepClone        Step = 35
	StepDir          Step = 50
	StepExec         Step = 53
)

var stepNames = [...]string{
	"none", "protocol", "unshare user namespace", "write id map", "unshare mount namespace", "set mount propagation", "mount base",
	"mount template", "make directory", "make file", "make link", "bind mount", "clone template", "open mount source", "mount source changed", "fork keeper",
	"clone init", "attach init to cgroup", "set init ids", "cgroup namespace", "attach root", "mount proc", "mount writable file system", "bind writable directory", "mount devpts", "mount target",
	"mask proc", "set host name", "loopback up", "pivot root", "open root", "lock init", "init", "enter namespaces", "execution table full",
	"clone", "stdio", "setsid", "controlling terminal", "attach to cgroup", "mount fresh proc", "fork in fresh namespaces", "enter user namespace", "set rlimit", "drop bounding set", "drop groups", "set ids", "drop capabilities", "no_new_privs",
	"landlock", "working directory", "close descriptors", "seccomp", "execve", "socket", "epoll", "ipc limits",
}

func (s Step) String() string {
	if s < 0 || int(s) >= len(stepNames) {
		return fmt.Sprintf("step %d", int32(s))
	}
	return stepNames[s]
}

const hdrLen = 16

var le = binary.LittleEndian

// Msg builds one message.
type Msg struct {
	b   []byte
	FDs []int
}

// NewMsg starts a message of a type.
func NewMsg(t Type, seq uint32) *Msg {
	m := &Msg{b: make([]byte, hdrLen, 512)}
	le.PutUint32(m.b, Magic)
	le.PutUint16(m.b[4:], Version)
	le.PutUint16(m.b[6:], uint16(t))
	le.PutUint32(m.b[12:], seq)
	return m
}

// U32 appends 32-bit words.
func (m *Msg) U32(v ...uint32) *Msg {
	for _, x := range v {
		m.b = le.AppendUint32(m.b, x)
	}
	return m
}

// U64 appends 64-bit words.
func (m *Msg) U64(v ...uint64) *Msg {
	for _, x := range v {
		m.b = le.AppendUint64(m.b, x)
	}
	return m
}

// Str appends strings, each with a NUL.
func (m *Msg) Str(v ...string) *Msg {
	for _, s := range v {
		m.b = append(append(m.b, s...), 0)
	}
	return m
}

// Fixed appends s in a field of n bytes, NUL terminated.
func (m *Msg) Fixed(s string, n int) *Msg {
	f := make([]byte, n)
	copy(f[:n-1], s)
	m.b = append(m.b, f...)
	return m
}

// Raw appends bytes.
func (m *Msg) Raw(b []byte) *Msg { m.b = append(m.b, b...); return m }

// Len is the length so far.
func (m *Msg) Len() int { return len(m.b) }

// Bytes finishes the message.
func (m *Msg) Bytes() []byte {
	le.PutUint32(m.b[8:], uint32(len(m.b)))
	return m.b
}

// Op is one step of building a template or a list of mounts.
type Op struct {
	Kind     uint16
	Mode     uint16
	Attr     uint32 // mount attributes
	A        string // path inside
	B        string // content, link target, or source
	Dev, Ino uint64 // what the source must still be
	Flags    uint32
	IDMap    uint32 // 0, or 1 + index of a user namespace among the last descriptors
}

// Ops appends operations, each aligned to 8 bytes.
func (m *Msg) Ops(ops ...Op) *Msg {
	for _, o := range ops {
		for len(m.b)%8 != 0 {
			m.b = append(m.b, 0)
		}
		blen := len(o.B)
		if o.Kind != OpFile && blen > 0 {
			blen++
		}
		m.b = le.AppendUint16(m.b, o.Kind)
		m.b = le.AppendUint16(m.b, o.Mode)
		m.U32(o.Attr, uint32(len(o.A)+1), uint32(blen)).U64(o.Dev, o.Ino).U32(o.Flags, o.IDMap)
		m.Str(o.A)
		if o.Kind == OpFile {
			m.b = append(m.b, o.B...)
		} else if blen > 0 {
			m.Str(o.B)
		}
	}
	return m
}

// Hdr is the head of a received message.
type Hdr struct {
	Type Type
	Seq  uint32
}

// ErrProtocol is a message that is not of this protocol.
var ErrProtocol = errors.New("keeper: malformed message")

// Fail is a step that failed.
type Fail struct {
	Step  Step
	Errno int32
	ID    uint64
	Arg   uint32
}

// Ready describes a sandbox that is up.
type Ready struct {
	Keeper, Init int32
	NS           [8]uint64 // inode numbers: user mnt pid net ipc uts cgroup
	Tasks        uint32
}

// Exited is the end, or the present state, of an execution.
type Exited struct {
	ID, Started, Exited, Reaped uint64 // CLOCK_MONOTONIC ns
	UTime, STime, MaxRSS        uint64 // us, us, KiB
	Pid, Status                 int32
	Step                        Step
	Errno                       int32
	Flags, Set, Keep            uint32
	Name                        string
}

// ParseHdr checks a received message's head and returns its body.
func ParseHdr(b []byte) (Hdr, []byte, error) {
	if len(b) < hdrLen || le.Uint32(b) != Magic || le.Uint16(b[4:]) != Version || le.Uint32(b[8:]) != uint32(len(b)) {
		return Hdr{}, nil, ErrProtocol
	}
	return Hdr{Type(le.Uint16(b[6:])), le.Uint32(b[12:])}, b[hdrLen:], nil
}

// ParseOK reads the body of M_OK and M_FD.
func ParseOK(b []byte) (uint32, error) {
	if len(b) != 8 {
		return 0, ErrProtocol
	}
	return le.Uint32(b), nil
}

// ParseFail reads the body of M_FAIL.
func ParseFail(b []byte) (Fail, error) {
	if len(b) != 24 {
		return Fail{}, ErrProtocol
	}
	return Fail{Step(le.Uint32(b)), int32(le.Uint32(b[4:])), le.Uint64(b[8:]), le.Uint32(b[16:])}, nil
}

// ParseReady reads the body of M_READY and M_STATE.
func ParseReady(b []byte) (Ready, error) {
	var r Ready
	if len(b) != 80 {
		return r, ErrProtocol
	}
	r.Keeper, r.Init = int32(le.Uint32(b)), int32(le.Uint32(b[4:]))
	for i := range r.NS {
		r.NS[i] = le.Uint64(b[8+8*i:])
	}
	r.Tasks = le.Uint32(b[72:])
	return r, nil
}

// ParseTask reads the body of M_OOM: the execution's id.
func ParseTask(b []byte) (uint64, error) {
	if len(b) != 16 {
		return 0, ErrProtocol
	}
	return le.Uint64(b), nil
}

// ParseExited reads the body of M_EXITED and M_TASK.
func ParseExited(b []byte) (Exited, error) {
	var x Exited
	if len(b) != 88+IDLen {
		return x, ErrProtocol
	}
	x.ID, x.Started, x.Exited, x.Reaped = le.Uint64(b), le.Uint64(b[8:]), le.Uint64(b[16:]), le.Uint64(b[24:])
	x.UTime, x.STime, x.MaxRSS = le.Uint64(b[32:]), le.Uint64(b[40:]), le.Uint64(b[48:])
	x.Pid, x.Status = int32(le.Uint32(b[56:])), int32(le.Uint32(b[60:]))
	x.Step, x.Errno = Step(le.Uint32(b[64:])), int32(le.Uint32(b[68:]))
	x.Flags, x.Set, x.Keep = le.Uint32(b[72:]), le.Uint32(b[76:]), le.Uint32(b[80:])
	name := b[88:]
	for i, c := range name {
		if c == 0 {
			name = name[:i]
			break
		}
	}
	x.Name = string(name)
	return x, nil
}

// Body is what follows the head.
func (m *Msg) Body() []byte { return m.b[hdrLen:] }
