package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

const trackedCount = "/proc/sys/net/netfilter/nf_conntrack_count"

func needsTracking(e *Env) string {
	if why := needsRoot(e); why != "" {
		return why
	}
	return needsFile(trackedCount)(e)
}

// inNet runs f on a thread of its own in a net namespace: that of a process, or with
// pid 0 a new one. The thread ends with it.
func inNet(pid int, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked
		enter := func() error {
			if pid == 0 {
				return unix.Unshare(unix.CLONE_NEWNET)
			}
			fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/net", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Setns(fd, unix.CLONE_NEWNET)
		}
		if err := enter(); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

// connectionTable counts what the kernel tracks in the namespace of a program that
// holds 200 connections, and on the host.
func connectionTable(ctx context.Context, e *Env) error {
	const many = 200
	if e.Weak() {
		return inNet(0, func() error { return e.trackedConnections(ctx, many) })
	}
	b, err := e.Box(ctx, nil)
	if err != nil {
		return err
	}
	before := hostNumber(trackedCount)
	ps, stop, err := b.resident(ctx, "hold", "connections", fmt.Sprint(many))
	if err != nil {
		return err
	}
	defer stop()
	inside, sockets := -1, 0
	if err := inNet(ps[0].pid, func() error {
		inside = hostNumber(trackedCount)
		b, err := os.ReadFile("/proc/thread-self/net/tcp")
		sockets = strings.Count(string(b), "\n")
		return err
	}); err != nil {
		return err
	}
	now := hostNumber(trackedCount)
	e.Note("the host tracks %d connections, before %d; the sandbox %d", now, before, inside)
	e.Check(inside == 0, "%d connections of the sandbox are tracked", inside)
	e.Check(now-before < many/2, "the host tracks %d connections more", now-before)
	e.Control(sockets > 2*many, "there are %d sockets in the sandbox", sockets)
	return nil
}

// trackedConnections is the same where a rule asks for the state of connections.
func (e *Env) trackedConnections(ctx context.Context, many int) error {
	if err := errors.Join(loopbackUp(), trackAll()); err != nil {
		return err
	}
	bare, err := e.bare()
	if err != nil {
		return err
	}
	argv := bare.command([]string{"hold", "connections", fmt.Sprint(many)})
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	demote(cmd)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	_, err = out.Read(make([]byte, 16))
	n := hostNumber(trackedCount)
	e.Check(n == 0, "%d connections are tracked", n)
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // killed
	return err
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr)
}

// trackAll adds the smallest rule that needs connection tracking to this thread's net
// namespace: `ct state` in a chain on the output hook (linux/netfilter/nf_tables.h).
func trackAll() error {
	attr := func(typ uint16, value []byte) []byte {
		b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
		b = append(binary.NativeEndian.AppendUint16(b, typ), value...)
		return append(b, make([]byte, -len(b)&3)...)
	}
	nest := func(typ uint16, attrs ...[]byte) []byte { return attr(typ|unix.NLA_F_NESTED, joined(attrs)) }
	text := func(typ uint16, s string) []byte { return attr(typ, append([]byte(s), 0)) }
	num := func(typ uint16, v uint32) []byte { return attr(typ, binary.BigEndian.AppendUint32(nil, v)) }
	seq := uint32(0)
	msg := func(typ, flags uint16, family byte, res uint16, attrs ...[]byte) []byte {
		body := binary.BigEndian.AppendUint16([]byte{family, unix.NFNETLINK_V0}, res)
		body = append(body, joined(attrs)...)
		b := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
		b = binary.NativeEndian.AppendUint16(b, typ)
		b = binary.NativeEndian.AppendUint16(b, flags|unix.NLM_F_REQUEST)
		b = binary.NativeEndian.AppendUint32(b, seq)
		seq++
		return append(append(b, 0, 0, 0, 0), body...)
	}
	const (
		nft    = unix.NFNL_SUBSYS_NFTABLES << 8
		create = unix.NLM_F_CREATE | unix.NLM_F_ACK
	)
	batch := joined([][]byte{
		msg(unix.NFNL_MSG_BATCH_BEGIN, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES),
		msg(nft|unix.NFT_MSG_NEWTABLE, create, unix.NFPROTO_INET, 0, text(unix.NFTA_TABLE_NAME, "t")),
		msg(nft|unix.NFT_MSG_NEWCHAIN, create, unix.NFPROTO_INET, 0, text(unix.NFTA_CHAIN_TABLE, "t"), text(unix.NFTA_CHAIN_NAME, "c"),
			nest(unix.NFTA_CHAIN_HOOK, num(unix.NFTA_HOOK_HOOKNUM, unix.NF_INET_LOCAL_OUT), num(unix.NFTA_HOOK_PRIORITY, 0)), text(unix.NFTA_CHAIN_TYPE, "filter")),
		msg(nft|unix.NFT_MSG_NEWRULE, create|unix.NLM_F_APPEND, unix.NFPROTO_INET, 0, text(unix.NFTA_RULE_TABLE, "t"), text(unix.NFTA_RULE_CHAIN, "c"),
			nest(unix.NFTA_RULE_EXPRESSIONS, nest(unix.NFTA_LIST_ELEM, text(unix.NFTA_EXPR_NAME, "ct"),
				nest(unix.NFTA_EXPR_DATA, num(unix.NFTA_CT_DREG, unix.NFT_REG_1), num(unix.NFTA_CT_KEY, unix.NFT_CT_STATE))))),
		msg(unix.NFNL_MSG_BATCH_END, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES),
	})
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	buf := make([]byte, 4096)
	for range 3 { // one answer for each of what it makes
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			return err
		}
		if n < unix.SizeofNlMsghdr+4 {
			return errors.New("nftables: a short answer")
		}
		if e := int32(binary.NativeEndian.Uint32(buf[unix.SizeofNlMsghdr:])); e != 0 {
			return fmt.Errorf("nftables: %w", unix.Errno(-e))
		}
	}
	return nil
}

func joined(parts [][]byte) (all []byte) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}
