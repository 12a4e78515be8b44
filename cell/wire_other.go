//go:build !linux

package cell

import (
	"os"

	"belljar"
)

var errPlatform = &belljar.Error{Code: belljar.CodeUnsupported, Op: "cell", Message: "cells need descriptors that are passed on, which this platform lacks"}

const (
	maxPacket = 64 << 10
	maxHello  = 4096
)

func scoped() bool                                    { return false }
func channelPair() (mine, theirs *os.File, err error) { return nil, nil, errPlatform }
func packetPair() (mine, theirs *os.File, err error)  { return nil, nil, errPlatform }
func outputPair() (r, w *os.File, err error)          { return nil, nil, errPlatform }
func sendPacket(*os.File, []byte, ...*os.File) error  { return errPlatform }
func identify(*os.File) ([]byte, *os.File, error)     { return nil, nil, errPlatform }
func awaitExit(*os.File) error                        { return errPlatform }
func hasExited(*os.File) bool                         { return true }
func interruptGroup(*os.File) error                   { return errPlatform }
func killProcess(*os.File)                            {}
func concealed(*os.File) (bool, error)                { return false, errPlatform }
func (o *outlet) readSome() bool                      { return false }
func (o *outlet) drain()                              {}
