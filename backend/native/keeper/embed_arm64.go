package keeper

import _ "embed"

// ELF is the keeper for this machine.
//
//go:embed keeper_arm64.elf
var ELF []byte
