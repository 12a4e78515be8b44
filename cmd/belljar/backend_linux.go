package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"

	"belljar"
	"belljar/backend/native"
	"belljar/backend/native/keeper"
)

// newRuntime makes a runtime on the backends that this binary has.
func newRuntime(ctx context.Context, cfg belljar.Config) (*belljar.Runtime, error) {
	return belljar.New(ctx, cfg, native.New(native.Config{Logger: cfg.Logger}))
}

// keeperHash is the SHA-256 of the keeper in this binary.
func keeperHash() string {
	sum := sha256.Sum256(keeper.ELF)
	return hex.EncodeToString(sum[:])
}
