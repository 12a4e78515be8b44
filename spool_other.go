//go:build !linux

package belljar

import (
	"errors"
	"os"
)

// spool is for persistent sandboxes, which no backend has here.
type spool struct{ size int64 }

func openSpool(string, bool) (*spool, error)            { return nil, errors.ErrUnsupported }
func (s *spool) read(r *os.File, p []byte) (int, error) { return r.Read(p) }
func (s *spool) kept(int64) ([]byte, error)             { return nil, errors.ErrUnsupported }
func (s *spool) close()                                 {}
func (s *spool) remove()                                {}
