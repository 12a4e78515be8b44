package attack

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// int80 makes a system call without arguments through the 32-bit gate.
func int80(nr uint32) int64

var foreignKinds = []string{"x32 getpid", "x32 openat", "int80 getpid", "int80 unknown"}

// foreignCall exits 0 when the call was carried out.
func foreignCall(kind string) int {
	var res int64
	switch kind {
	case "x32 getpid":
		r, _, e := unix.RawSyscall(0x40000000|unix.SYS_GETPID, 0, 0, 0)
		res = int64(r)
		if e != 0 {
			res = -int64(e)
		}
	case "x32 openat":
		name := [2]byte{'/', 0}
		_ = name
		r, _, e := unix.RawSyscall6(0x40000000|unix.SYS_OPENAT, ^uintptr(99), cstr("/"), unix.O_RDONLY, 0, 0, 0)
		res = int64(r)
		if e != 0 {
			res = -int64(e)
		}
	case "int80 getpid":
		res = int64(int32(int80(20)))
	case "int80 unknown":
		res = int64(int32(int80(9999)))
		if res == -int64(unix.ENOSYS) {
			fmt.Println("ENOSYS, as it should")
			return 1
		}
	default:
		return 64
	}
	fmt.Println("result", res)
	if res < 0 {
		return 1
	}
	return 0
}

// archMatrix are system calls that only amd64 has.
func archMatrix() []probed {
	return []probed{
		{"iopl", unix.SYS_IOPL, [6]uintptr{9}},
		{"ioperm", unix.SYS_IOPERM, [6]uintptr{bad, bad, 0}},
		{"modify_ldt", unix.SYS_MODIFY_LDT, [6]uintptr{0, 0, 0}},
		{"kexec_file_load", unix.SYS_KEXEC_FILE_LOAD, [6]uintptr{bad, bad, 0, 0, bad}},
		{"create_module", unix.SYS_CREATE_MODULE, [6]uintptr{}},
		{"query_module", unix.SYS_QUERY_MODULE, [6]uintptr{}},
		{"get_kernel_syms", unix.SYS_GET_KERNEL_SYMS, [6]uintptr{}},
		{"uselib", unix.SYS_USELIB, [6]uintptr{0}},
		{"ustat", unix.SYS_USTAT, [6]uintptr{bad, 0}},
		{"sysfs", unix.SYS_SYSFS, [6]uintptr{99}},
		{"_sysctl", unix.SYS__SYSCTL, [6]uintptr{0}},
	}
}
