//go:build !linux

// Command probe is the program of the conformance suite, for Linux sandboxes.
package main

import "os"

func main() { os.Exit(64) }
