package attack

import "golang.org/x/sys/unix"

// foreignKinds is empty: a 64-bit program on arm64 has no gate to the 32-bit
// table short of executing a 32-bit program.
var foreignKinds []string

func foreignCall(string) int { return 64 }

func archMatrix() []probed {
	return []probed{{"kexec_file_load", unix.SYS_KEXEC_FILE_LOAD, [6]uintptr{bad, bad, 0, 0, bad}}}
}
