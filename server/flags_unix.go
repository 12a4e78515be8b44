//go:build unix

package server

import "syscall"

const noFollow = syscall.O_NOFOLLOW
