//go:build !unix

package belljar

import (
	"errors"
	"io/fs"
	"os"
)

const (
	lockSupported = false
	oNonblock     = 0
)

func ownedByUs(fs.FileInfo) bool { return false }

func tryLock(*os.File) error { return errors.ErrUnsupported }
