//go:build unix

package remote

import "syscall"

const noFollow = syscall.O_NOFOLLOW
