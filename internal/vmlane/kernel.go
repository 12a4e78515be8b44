package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// kernel is an unpacked distribution kernel in the cache.
type kernel struct {
	vmlinux string
	modules string // .../lib/modules/<release>
}

var imageName = regexp.MustCompile(`^linux-image-[0-9]+\.[0-9]+\.[0-9]+.*-cloud-amd64$`)

// getKernel returns the kernel of the cache, fetching the newest one that the
// distribution offers when there is none.
func getKernel(ctx context.Context, cache string) (*kernel, error) {
	k, err := cached(cache)
	if !errors.Is(err, fs.ErrNotExist) {
		return k, err
	}
	list, err := output(ctx, "", "apt-cache", "search", "--names-only", "^linux-image-.*-cloud-amd64$")
	if err != nil {
		return nil, err
	}
	var names []string
	for l := range strings.Lines(list) {
		if f := strings.Fields(l); len(f) > 0 && imageName.MatchString(f[0]) {
			names = append(names, f[0])
		}
	}
	if len(names) == 0 {
		return nil, errors.New("no linux-image-*-cloud-amd64 is known to apt (run apt-get update)")
	}
	newest := slices.MaxFunc(names, compareVersions)
	tmp, err := os.MkdirTemp("", "vmlane-kernel-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	if _, err := output(ctx, tmp, "apt-get", "-q", "download", newest); err != nil {
		return nil, err
	}
	debs, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if err != nil || len(debs) != 1 {
		return nil, fmt.Errorf("apt-get download %s: %d files, %v", newest, len(debs), err)
	}
	dest := filepath.Join(tmp, "x")
	if _, err := output(ctx, tmp, "dpkg", "-x", debs[0], dest); err != nil {
		return nil, err
	}
	images, err := filepath.Glob(filepath.Join(dest, "boot", "vmlinuz-*"))
	if err != nil || len(images) != 1 {
		return nil, fmt.Errorf("%s holds %d kernels, %v", newest, len(images), err)
	}
	elf, err := unpackBzImage(ctx, images[0])
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dest, "vmlinux"), elf, 0o644); err != nil {
		return nil, err
	}
	if err := os.Remove(images[0]); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, err
	}
	// Copied beside its final name and renamed, so that a cut run leaves no half cache.
	part := filepath.Join(cache, "part")
	if err := os.RemoveAll(part); err != nil {
		return nil, err
	}
	if err := os.CopyFS(part, os.DirFS(dest)); err != nil {
		return nil, err
	}
	if err := os.Rename(part, filepath.Join(cache, newest)); err != nil {
		return nil, err
	}
	return cached(cache)
}

func cached(cache string) (*kernel, error) {
	dirs, err := filepath.Glob(filepath.Join(cache, "linux-image-*"))
	if err != nil {
		return nil, err
	}
	if len(dirs) == 0 {
		return nil, fs.ErrNotExist
	}
	dir := slices.MaxFunc(dirs, compareVersions)
	mods, err := filepath.Glob(filepath.Join(dir, "lib", "modules", "*"))
	if err != nil {
		return nil, err
	}
	if len(mods) != 1 {
		return nil, fmt.Errorf("%s has %d module trees", dir, len(mods))
	}
	return &kernel{filepath.Join(dir, "vmlinux"), mods[0]}, nil
}

// compareVersions orders names by the numbers in them.
func compareVersions(a, b string) int {
	num := regexp.MustCompile(`[0-9]+`)
	x, y := num.FindAllString(a, -1), num.FindAllString(b, -1)
	for i := range min(len(x), len(y)) {
		m, _ := strconv.Atoi(x[i])
		n, _ := strconv.Atoi(y[i])
		if m != n {
			return m - n
		}
	}
	return len(x) - len(y)
}

// unpackBzImage returns the ELF image inside a compressed x86 kernel: the
// payload that the setup header points at (Documentation/arch/x86/boot.rst,
// protocol 2.08 and later).
func unpackBzImage(ctx context.Context, name string) ([]byte, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	p, err := payload(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	var tool []string
	switch {
	case bytes.HasPrefix(p, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		tool = []string{"zstd", "-dcq"}
	case bytes.HasPrefix(p, []byte{0xfd, '7', 'z', 'X', 'Z'}):
		tool = []string{"xz", "-dcq"}
	case bytes.HasPrefix(p, []byte{0x1f, 0x8b}):
		tool = []string{"gzip", "-dcq"}
	default:
		return nil, fmt.Errorf("%s: payload starts with % x, which is no known compression", name, p[:4])
	}
	cmd := exec.CommandContext(ctx, tool[0], tool[1:]...)
	cmd.Stdin = bytes.NewReader(p)
	cmd.Stderr = os.Stderr
	elf, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", tool[0], err)
	}
	if !bytes.HasPrefix(elf, []byte("\x7fELF")) {
		return nil, fmt.Errorf("%s: the payload is no ELF image", name)
	}
	return elf, nil
}

// payload cuts the compressed kernel out of a bzImage, without the four bytes
// of its unpacked size that the build appends.
func payload(b []byte) ([]byte, error) {
	if len(b) < 0x250 || string(b[0x202:0x206]) != "HdrS" {
		return nil, errors.New("not a bzImage")
	}
	if v := binary.LittleEndian.Uint16(b[0x206:]); v < 0x208 {
		return nil, fmt.Errorf("boot protocol %#x has no payload offset", v)
	}
	setup := int64(b[0x1f1])
	if setup == 0 {
		setup = 4
	}
	off := (setup+1)*512 + int64(binary.LittleEndian.Uint32(b[0x248:]))
	n := int64(binary.LittleEndian.Uint32(b[0x24c:]))
	if n < 8 || off+n > int64(len(b)) {
		return nil, fmt.Errorf("payload of %d bytes at %d is outside the file", n, off)
	}
	return b[off : off+n-4], nil
}

// module returns the files of a module and of what it depends on, in the order
// in which they are to be loaded. A module that the kernel has built in, or does
// not have, yields none.
func (k *kernel) module(ctx context.Context, name string) ([]string, error) {
	var found string
	err := filepath.WalkDir(filepath.Join(k.modules, "kernel"), func(p string, d fs.DirEntry, err error) error {
		base := strings.ReplaceAll(filepath.Base(p), "-", "_")
		if err == nil && (base == name+".ko" || base == name+".ko.xz" || base == name+".ko.zst") {
			found = p
		}
		return err
	})
	if err != nil || found == "" {
		return nil, err
	}
	out := found
	if ext := filepath.Ext(found); ext != ".ko" {
		out = strings.TrimSuffix(found, ext)
		if _, err := os.Stat(out); errors.Is(err, fs.ErrNotExist) {
			tool := map[string]string{".xz": "xz", ".zst": "zstd"}[ext]
			b, err := exec.CommandContext(ctx, tool, "-dcq", found).Output()
			if err != nil {
				return nil, fmt.Errorf("%s %s: %w", tool, found, err)
			}
			if err := os.WriteFile(out, b, 0o644); err != nil {
				return nil, err
			}
		}
	}
	b, err := os.ReadFile(out)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, dep := range dependencies(b) {
		fs, err := k.module(ctx, dep)
		if err != nil {
			return nil, err
		}
		for _, f := range fs {
			if !slices.Contains(files, f) {
				files = append(files, f)
			}
		}
	}
	return append(files, out), nil
}

// dependencies reads "depends=a,b" out of a module's .modinfo.
func dependencies(ko []byte) []string {
	i := bytes.Index(ko, []byte("\x00depends="))
	if i < 0 {
		return nil
	}
	v := ko[i+len("\x00depends="):]
	v = v[:max(bytes.IndexByte(v, 0), 0)]
	if len(v) == 0 {
		return nil
	}
	return strings.Split(string(v), ",")
}
