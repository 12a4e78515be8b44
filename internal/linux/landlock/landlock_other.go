//go:build !linux

package landlock

import "os"

var errUnsupported = &UnsupportedError{Feature: "landlock", Needs: "Linux"}

// Supported returns an *UnsupportedError: Landlock is of Linux only.
func Supported() error { return errUnsupported }

// ABI returns 0.
func ABI() int { return 0 }

// NewRuleset returns an *UnsupportedError.
func NewRuleset([]Rule) (*os.File, Info, error) { return nil, Info{}, errUnsupported }

// RestrictSelf returns an *UnsupportedError.
func RestrictSelf(int) error { return errUnsupported }
