//go:build !unix

package belljar

import (
	"fmt"
	"syscall"
)

const sigSys = syscall.Signal(31)

func signalName(s syscall.Signal) string { return fmt.Sprintf("SIG%d", int(s)) }
