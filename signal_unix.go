//go:build unix

package belljar

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

const sigSys = syscall.SIGSYS

// signalName returns "SIGSEGV".
func signalName(s syscall.Signal) string {
	if n := unix.SignalName(s); n != "" {
		return n
	}
	return fmt.Sprintf("SIG%d", int(s))
}
