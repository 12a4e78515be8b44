// Package keeper carries the keeper, a static program without libc that is the
// parent of PID 1 and of every execution of a sandbox, and speaks its protocol.
//
// The source is src/keeper.c, the layouts are in src/proto.h; src/build.sh makes
// the committed ELF files. This package encodes and decodes messages and starts the
// program from a sealed memory file. What to send is decided by backend/native.
package keeper

//go:generate ./src/build.sh
