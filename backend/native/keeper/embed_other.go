//go:build !amd64 && !arm64

package keeper

// ELF is empty: there is no keeper for this machine.
var ELF []byte
