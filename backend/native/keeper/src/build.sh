#!/bin/sh
# Builds the keeper for both architectures. The ELF files are committed; a check
# rebuilds them with the compiler named in keeper.txt and compares.
set -eu
cd "$(dirname "$0")"
out=${1:-..}
flags="-std=gnu11 -O2 -Wall -Wextra -Werror -ffreestanding -nostdlib -static -fno-stack-protector
 -fno-asynchronous-unwind-tables -fno-builtin -fno-tree-loop-distribute-patterns -fno-pie -no-pie
 -ffile-prefix-map=$PWD=. -Wl,-z,noexecstack -Wl,--build-id=none -Wl,-z,norelro -s"
gcc $flags -fcf-protection=none -o "$out/keeper_amd64.elf" keeper.c
aarch64-linux-gnu-gcc $flags -mno-outline-atomics -o "$out/keeper_arm64.elf" keeper.c
for f in keeper_amd64.elf keeper_arm64.elf; do
	objcopy=objcopy
	[ "$f" = keeper_arm64.elf ] && objcopy=aarch64-linux-gnu-objcopy
	$objcopy --remove-section .comment --remove-section .note.gnu.property "$out/$f"
done
{
	gcc --version | head -1
	aarch64-linux-gnu-gcc --version | head -1
	(cd "$out" && sha256sum keeper_amd64.elf keeper_arm64.elf)
} >"$out/keeper.txt"
