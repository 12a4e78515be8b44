//go:build !unix

package remote

import (
	"os"

	"belljar"
)

// OpenTTY refuses: terminals are carried by socket pairs.
func (in *instance) OpenTTY(uint16, uint16) (master, slave *os.File, err error) {
	return nil, nil, &belljar.Error{Code: belljar.CodeUnsupported, Op: "open terminal", Message: "not on this platform"}
}
