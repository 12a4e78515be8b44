package native

import (
	"fmt"
	"os"
	"syscall"

	"belljar/backend/native/keeper"

	"golang.org/x/sys/unix"
)

// A writable mount belongs to somebody on the host, whom the sandbox's user is
// not. As root the mount is id-mapped (mount_setattr(2), Linux 5.12): the owner
// of the source is the sandbox's user inside and on disk stays who it is.

type idmapKey struct{ uid, gid, base uint32 }

// idmap returns a user namespace that maps the owner of a source to the
// sandbox's user; b.mu is held.
func (b *Backend) idmap(uid, gid, base uint32) (int, error) {
	key := idmapKey{uid, gid, base}
	if fd, ok := b.idmaps[key]; ok {
		return fd, nil
	}
	fd, err := keeper.UserNamespace(
		[]syscall.SysProcIDMap{{ContainerID: int(uid), HostID: int(base) + userID, Size: 1}},
		[]syscall.SysProcIDMap{{ContainerID: int(gid), HostID: int(base) + userID, Size: 1}},
	)
	if err != nil {
		return -1, fmt.Errorf("id map: %w", err)
	}
	if len(b.idmaps) >= 64 {
		for k, old := range b.idmaps {
			unix.Close(old)
			delete(b.idmaps, k)
		}
	}
	b.idmaps[key] = fd
	return fd, nil
}

// owner returns whose a mount's source is.
func owner(path string) (uid, gid uint32, err error) {
	st, err := os.Lstat(path)
	if err != nil {
		return 0, 0, err
	}
	s := st.Sys().(*syscall.Stat_t)
	return s.Uid, s.Gid, nil
}
