package attack

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// connectOut connects to each address:port in args by TCP and sends to it by
// UDP; the argument "world" stands for what hosts and clouds usually offer and
// for resolvers, and is left out where the attack is meant to get through.
func connectOut(r *Report, args []string) {
	world := false
	for _, a := range args {
		if a == "world" {
			world = true
			continue
		}
		ap, err := netip.ParseAddrPort(a)
		if err != nil {
			r.note(a, errText(err))
			continue
		}
		err = dialTCP(ap)
		r.step("tcp "+a, err == nil, errText(err))
		err = sendUDP(ap, []byte("from the attack"), false)
		r.note("udp "+a, errText(err)) // sent is not arrived: the listener knows
	}
	if !world {
		return
	}
	for _, a := range []string{"169.254.169.254:80", "[fd00:ec2::254]:80", "100.100.100.200:80", "1.1.1.1:443", "8.8.8.8:853", "[2606:4700:4700::1111]:443", "[::ffff:169.254.169.254]:80", "0.0.0.0:22"} {
		err := dialTCP(netip.MustParseAddrPort(a))
		r.step("tcp "+a, err == nil, errText(err))
	}
	for _, a := range []string{"127.0.0.1:53", "127.0.0.53:53", "8.8.8.8:53", "[2001:4860:4860::8888]:53", "169.254.169.254:53"} {
		for typ, name := range map[uint16]string{1: "A", 28: "AAAA", 12: "PTR", 16: "TXT"} {
			err := sendUDP(netip.MustParseAddrPort(a), query("secret.example.com", typ), true)
			r.step("dns "+name+" "+a, err == nil, errText(err))
		}
	}
	for _, a := range []string{"224.0.0.251:5353", "255.255.255.255:67", "[ff02::1]:5353"} {
		err := sendUDP(netip.MustParseAddrPort(a), []byte("x"), false)
		r.step("send "+a, err == nil, errText(err))
	}
}

// ifname fills in the name of the interface whose index is in req.
func ifname(fd int, req *[40]byte) error {
	return errno(unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCGIFNAME, uintptr(unsafe.Pointer(req))))
}

func sockaddr(ap netip.AddrPort) (int, unix.Sockaddr) {
	if ap.Addr().Is4() {
		return unix.AF_INET, &unix.SockaddrInet4{Port: int(ap.Port()), Addr: ap.Addr().As4()}
	}
	return unix.AF_INET6, &unix.SockaddrInet6{Port: int(ap.Port()), Addr: ap.Addr().As16()}
}

const patience = 300 * time.Millisecond

func wait(fd int, events int16) error {
	p := []unix.PollFd{{Fd: int32(fd), Events: events}}
	n, err := unix.Poll(p, int(patience/time.Millisecond))
	if err == nil && n == 0 {
		err = unix.ETIMEDOUT
	}
	return err
}

func dialTCP(ap netip.AddrPort) error {
	fam, sa := sockaddr(ap)
	fd, err := unix.Socket(fam, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	err = unix.Connect(fd, sa)
	if err == unix.EINPROGRESS {
		if err = wait(fd, unix.POLLOUT); err == nil {
			var so int
			if so, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err == nil && so != 0 {
				err = unix.Errno(so)
			}
		}
	}
	if err == nil {
		_, err = unix.Write(fd, []byte("from the attack\n"))
	}
	return err
}

func sendUDP(ap netip.AddrPort, msg []byte, answer bool) error {
	fam, sa := sockaddr(ap)
	fd, err := unix.Socket(fam, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1)
	if err = unix.Sendto(fd, msg, 0, sa); err != nil || !answer {
		return err
	}
	if err = wait(fd, unix.POLLIN); err != nil {
		return err
	}
	_, err = unix.Read(fd, make([]byte, 512))
	return err
}

// query is a DNS question.
func query(name string, typ uint16) []byte {
	b := []byte{0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}
	for _, l := range strings.Split(name, ".") {
		b = append(append(b, byte(len(l))), l...)
	}
	b = append(b, 0)
	b = binary.BigEndian.AppendUint16(b, typ)
	return append(b, 0, 1)
}

// rawPackets sends what needs no connection: ICMP by ping and raw sockets, and
// frames, to each address in args.
func rawPackets(r *Report, args []string) {
	for _, a := range args {
		ip, err := netip.ParseAddr(a)
		if err != nil {
			r.note(a, errText(err))
			continue
		}
		fam, sa := sockaddr(netip.AddrPortFrom(ip, 0))
		icmp, echo := unix.IPPROTO_ICMP, byte(8)
		if fam == unix.AF_INET6 {
			icmp, echo = unix.IPPROTO_ICMPV6, 128
		}
		for name, typ := range map[string]int{"ping": unix.SOCK_DGRAM, "raw": unix.SOCK_RAW} {
			fd, err := unix.Socket(fam, typ|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, icmp)
			if err == nil {
				err = unix.Sendto(fd, []byte{echo, 0, 0, 0, 0, 1, 0, 1}, 0, sa)
				if err == nil {
					err = wait(fd, unix.POLLIN)
				}
				_ = unix.Close(fd)
			}
			r.step(name+" "+a, err == nil, errText(err))
		}
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0x0300)
	if err == nil {
		_ = unix.Close(fd)
	}
	r.step("packet socket", err == nil, errText(err))
	fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	r.step("tun device", err == nil, errText(err))
	// Interfaces other than lo would mean that the namespace is shared.
	ifs := ""
	for i := 1; i < 64; i++ {
		var req [40]byte
		binary.NativeEndian.PutUint32(req[16:], uint32(i))
		s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			break
		}
		if ifname(s, &req) == nil {
			ifs += unix.ByteSliceToString(req[:16]) + " "
		}
		_ = unix.Close(s)
	}
	r.step("interfaces besides lo", strings.TrimSpace(ifs) != "lo" && ifs != "", fmt.Sprintf("%q", ifs))
}

// loopback is no attack but the control of one: a server and a client inside.
func loopback(r *Report, args []string) {
	for _, ip := range []string{"127.0.0.1", "::1"} {
		fam, sa := sockaddr(netip.AddrPortFrom(netip.MustParseAddr(ip), 0))
		fd, err := unix.Socket(fam, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Bind(fd, sa)
		}
		if err == nil {
			err = unix.Listen(fd, 1)
		}
		port := 0
		if err == nil {
			var name unix.Sockaddr
			name, err = unix.Getsockname(fd)
			switch n := name.(type) {
			case *unix.SockaddrInet4:
				port = n.Port
			case *unix.SockaddrInet6:
				port = n.Port
			}
		}
		if err == nil {
			err = dialTCP(netip.AddrPortFrom(netip.MustParseAddr(ip), uint16(port)))
		}
		r.try(ip, err)
	}
}
