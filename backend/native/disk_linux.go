package native

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"belljar"

	"golang.org/x/sys/unix"
)

// diskMount makes an ext4 file system in a sparse file without a name and mounts
// it through a loop device, detached; the descriptor is the mount. The device and
// the file end with the mount (LO_FLAGS_AUTOCLEAR), whoever is killed.
func (in *instance) diskMount() (int, error) {
	if !in.b.root {
		return -1, diskUnsupported("a disk-backed quota needs a loop device, which only root can set up", "limits.diskBacking: memory, or run belljar as root")
	}
	mkfs, err := exec.LookPath("mkfs.ext4")
	if err != nil {
		return -1, diskUnsupported("mkfs.ext4 is not installed", "install e2fsprogs, or limits.diskBacking: memory")
	}
	l := in.plan.Spec.Limits
	dir := in.plan.StateDir
	if dir == "" {
		dir = os.TempDir()
	}
	ffd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return -1, fmt.Errorf("disk image in %s: %w", dir, err)
	}
	img := os.NewFile(uintptr(ffd), filepath.Join(dir, "disk"))
	defer img.Close()
	// There it would be memory after all: cgroup v2 charges it to the sandbox for good.
	var st unix.Statfs_t
	if err := unix.Fstatfs(ffd, &st); err != nil {
		return -1, fmt.Errorf("disk image in %s: %w", dir, err)
	}
	if st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC {
		return -1, diskUnsupported("the state directory "+dir+" is in memory", "a state directory on a disk, or limits.diskBacking: memory")
	}
	// The file system's own tables come on top of what the caller may fill.
	inodes := l.Inodes + 32
	size := int64(l.Disk) + inodes*256 + int64(l.Disk)/128 + 1<<20
	size = (size + 4095) &^ 4095
	if err := img.Truncate(size); err != nil {
		return -1, fmt.Errorf("disk image: %w", err)
	}
	var out bytes.Buffer
	cmd := exec.Command(mkfs, "-q", "-F", "-O", "^has_journal,^resize_inode", "-m", "0", "-N", strconv.FormatInt(inodes, 10),
		"-E", fmt.Sprintf("nodiscard,lazy_itable_init=1,root_owner=%d:%d", in.base, in.base), "/proc/self/fd/3")
	cmd.ExtraFiles = []*os.File{img}
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return -1, fmt.Errorf("mkfs.ext4: %w: %s", err, bytes.TrimSpace(out.Bytes()))
	}
	dev, loop, err := attachLoop(img)
	if err != nil {
		return -1, err
	}
	defer loop.Close() // the mount holds the device from here on
	return mountDetached("ext4", dev)
}

func diskUnsupported(msg, hint string) error {
	return &belljar.Error{Code: belljar.CodeUnsupported, Op: "create limits.diskBacking", Message: msg, Hint: hint}
}

// attachLoop puts a file behind a free loop device.
func attachLoop(img *os.File) (string, *os.File, error) {
	ctl, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return "", nil, diskUnsupported("no loop devices: "+err.Error(), "a kernel with loop devices, or limits.diskBacking: memory")
	}
	defer ctl.Close()
	for range 64 {
		n, err := unix.IoctlRetInt(int(ctl.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return "", nil, fmt.Errorf("loop device: %w", err)
		}
		dev := "/dev/loop" + strconv.Itoa(n)
		if _, err := os.Lstat(dev); errors.Is(err, os.ErrNotExist) {
			// Without a devtmpfs the node is ours to make (major 7).
			if err := unix.Mknod(dev, unix.S_IFBLK|0o600, int(unix.Mkdev(7, uint32(n)))); err != nil && err != unix.EEXIST {
				return "", nil, fmt.Errorf("mknod %s: %w", dev, err)
			}
		}
		f, err := os.OpenFile(dev, os.O_RDWR, 0)
		if err != nil {
			return "", nil, fmt.Errorf("loop device: %w", err)
		}
		cfg := unix.LoopConfig{Fd: uint32(img.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}}
		copy(cfg.Info.File_name[:], "belljar")
		err = unix.IoctlLoopConfigure(int(f.Fd()), &cfg)
		if err == nil {
			return dev, f, nil
		}
		f.Close()
		if err != unix.EBUSY {
			return "", nil, fmt.Errorf("configure %s: %w", dev, err)
		}
		// Somebody else took it between the two calls.
	}
	return "", nil, errors.New("no loop device could be had")
}

// mountDetached mounts a device without a place in any tree.
func mountDetached(fstype, dev string) (int, error) {
	fs, err := unix.Fsopen(fstype, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fsopen %s: %w", fstype, err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigSetString(fs, "source", dev); err != nil {
		return -1, fmt.Errorf("fsconfig source: %w", err)
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, fmt.Errorf("mount %s: %w", dev, err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return -1, fmt.Errorf("fsmount: %w", err)
	}
	return fd, nil
}
