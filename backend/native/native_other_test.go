//go:build !linux

package native

import (
	"errors"
	"testing"

	"belljar"
)

func TestRefuses(t *testing.T) {
	b := New(Config{})
	_, perr := b.Probe(t.Context())
	_, cerr := b.Create(t.Context(), &belljar.Plan{})
	if !errors.Is(perr, belljar.ErrUnsupported) || !errors.Is(cerr, belljar.ErrUnsupported) {
		t.Errorf("probe: %v, create: %v, want UNSUPPORTED", perr, cerr)
	}
}
