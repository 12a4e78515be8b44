//go:build !linux

package belljar

import (
	"errors"
	"os"
)

const oNofollow = 0

func outPipe() (r, w *os.File, err error) { return os.Pipe() }

func inPipe() (r, w *os.File, err error) { return os.Pipe() }

func emptyPipe() (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	return r, w.Close()
}

func resizeTTY(*os.File, uint16, uint16) error { return errors.ErrUnsupported }
