//go:build !linux

package main

import (
	"context"

	"belljar"
)

// newRuntime refuses: no backend is built for this platform.
func newRuntime(context.Context, belljar.Config) (*belljar.Runtime, error) {
	return nil, &belljar.Error{
		Code: belljar.CodeUnsupported, Op: "belljar", Message: "no backend is built for this platform", Hint: "run it on Linux",
	}
}

// keeperHash is empty: there is no keeper for this platform.
func keeperHash() string { return "" }
