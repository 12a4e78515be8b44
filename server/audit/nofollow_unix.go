//go:build unix

package audit

import "syscall"

const oNofollow = syscall.O_NOFOLLOW
