//go:build !linux

package cgroup

// Detect returns that there are no control groups.
func Detect() Host {
	return Host{Reason: "not Linux", Remedy: "a Linux host"}
}

// Supported returns an [*UnsupportedError].
func Supported() error {
	return &UnsupportedError{Feature: "control groups", Needs: "Linux"}
}
