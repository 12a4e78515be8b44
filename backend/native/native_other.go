//go:build !linux

package native

import (
	"context"

	"belljar"
)

// Backend exists so that programs compile everywhere; it refuses.
type Backend struct{}

var _ belljar.Backend = (*Backend)(nil)

var errPlatform = &belljar.Error{
	Code: belljar.CodeUnsupported, Op: "native", Message: "the native backend needs Linux", Hint: "run belljar on Linux, or in a Linux virtual machine",
}

// New returns a backend that refuses.
func New(Config) *Backend { return new(Backend) }

func (b *Backend) Name() string                                 { return "native" }
func (b *Backend) Probe(context.Context) (belljar.Probe, error) { return belljar.Probe{}, errPlatform }

func (b *Backend) Create(context.Context, *belljar.Plan) (belljar.Instance, error) {
	return nil, errPlatform
}
func (b *Backend) Close(context.Context) error { return nil }
