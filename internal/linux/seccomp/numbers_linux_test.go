//go:build amd64 || arm64

package seccomp

import "testing"

func TestNumbers(t *testing.T) {
	mine := make(map[string]int)
	for _, s := range syscalls {
		if s.nr[thisArch] != absent {
			mine[s.name] = s.nr[thisArch]
		}
	}
	for name, nr := range kernelNumbers {
		if got, ok := mine[name]; !ok || got != nr {
			t.Errorf("%s has number %d, the table says %d (present: %v)", name, nr, got, ok)
		}
	}
	if len(mine) != len(kernelNumbers) {
		t.Errorf("the table has %d calls, the kernel's headers %d", len(mine), len(kernelNumbers))
	}
}
