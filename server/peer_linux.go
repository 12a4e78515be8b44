package server

import (
	"net"

	"golang.org/x/sys/unix"
)

// peerUID is the user of the process that connected to a unix socket (unix(7),
// SO_PEERCRED: as it was at connect(2)); -1 for other connections.
func peerUID(c net.Conn) int {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return -1
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return -1
	}
	uid := -1
	if err := raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			uid = int(cred.Uid)
		}
	}); err != nil {
		return -1
	}
	return uid
}
