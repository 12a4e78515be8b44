//go:build !unix

package main

// watchSize does nothing: there is no signal for it.
func watchSize(func(rows, cols uint16)) (stop func()) { return func() {} }
