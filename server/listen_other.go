//go:build !linux

package server

import (
	"net"

	"belljar"
)

var errListen = &belljar.Error{Code: belljar.CodeUnsupported, Op: "listen", Message: "the daemon runs on Linux"}

// ListenUnix refuses.
func ListenUnix(string) (net.Listener, error) { return nil, errListen }

// Inherited finds none.
func Inherited() ([]net.Listener, error) { return nil, nil }
