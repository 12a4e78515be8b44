package main

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// rtSigaction sets the action for a signal (rt_sigaction(2)).
func rtSigaction(s syscall.Signal, act *[4]uintptr) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(act)), 0, 8, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
