//go:build !linux

// Command main is the conformance probe as a process; it is for Linux sandboxes.
package main

import "os"

func main() { os.Exit(64) }
