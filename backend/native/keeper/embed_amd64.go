package keeper

import _ "embed"

// ELF is the keeper for this machine.
//
//go:embed keeper_amd64.elf
var ELF []byte
