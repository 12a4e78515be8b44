package wire

import (
	"strconv"
	"strings"
	"syscall"

	"belljar"
)

// signals are Linux's, by number (signal(7), the same on amd64 and arm64):
// sandboxes run there, whatever the client runs on.
var signals = strings.Fields(`- HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM STKFLT CHLD
	CONT STOP TSTP TTIN TTOU URG XCPU XFSZ VTALRM PROF WINCH IO PWR SYS`)

// Signal reads "SIGTERM", "TERM" or "15".
func Signal(s string) (syscall.Signal, error) {
	if n, err := strconv.Atoi(s); err == nil && n > 0 && n <= 64 {
		return syscall.Signal(n), nil
	}
	name := strings.TrimPrefix(strings.ToUpper(s), "SIG")
	for n, known := range signals[1:] {
		if known == name {
			return syscall.Signal(n + 1), nil
		}
	}
	return 0, &belljar.Error{
		Code: belljar.CodeInvalidSpec, Op: "request signal", Message: "not a signal: " + strconv.Quote(s[:min(len(s), 20)]),
		Recoverable: true, Hint: "write SIGTERM, TERM or 15",
	}
}
