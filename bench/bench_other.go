//go:build !linux

package bench

import (
	"context"

	"belljar"
)

type group struct{ name string }

var groups []group

// Run measures nothing here: every row is about the native backend of Linux.
func Run(context.Context, Options) (Report, error) {
	return Report{}, &belljar.Error{Code: belljar.CodeUnsupported, Op: "bench", Message: "the benchmarks are about the Linux backend", Hint: "run them on Linux"}
}

// MaybeMain does nothing here.
func MaybeMain() {}
