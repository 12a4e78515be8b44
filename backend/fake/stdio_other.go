//go:build !unix

package fake

import (
	"errors"
	"os"
)

const nonblock = 0

func interruptible(*os.File) (*os.File, error) { return nil, errors.ErrUnsupported }

func duplicate(*os.File) (*os.File, error) { return nil, errors.ErrUnsupported }
