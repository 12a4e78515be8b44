//go:build !linux

package seccomp

// Supported returns an *UnsupportedError: filters run on Linux only.
func Supported() error { return &UnsupportedError{Feature: "seccomp", Needs: "Linux"} }
