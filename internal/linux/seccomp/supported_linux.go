package seccomp

import (
	"errors"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Supported returns nil when this kernel can run the filters of this package
// (Linux 4.14 with CONFIG_SECCOMP_FILTER), else an *UnsupportedError. The
// answer is found once, without confining anything.
func Supported() error { return supported() }

var supported = sync.OnceValue(func() error {
	if _, err := Native(); err != nil {
		return err
	}
	for _, a := range []Action{Kill, retErrno} {
		value := uint32(a)
		_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_ACTION_AVAIL, 0, uintptr(unsafe.Pointer(&value)))
		if errors.Is(errno, unix.EPERM) {
			return &UnsupportedError{Feature: "seccomp", Needs: "a host that does not itself refuse seccomp(2)"}
		}
		if errno != 0 {
			return &UnsupportedError{Feature: "seccomp", Needs: "Linux 4.14 with CONFIG_SECCOMP_FILTER"}
		}
	}
	return nil
})
