package lab

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"belljar"
)

// accepted counts what arrived at a listener.
type accepted struct{ n atomic.Int64 }

func (a *accepted) count() int64 { return a.n.Load() }

// wait gives something d to arrive, and returns what did.
func (a *accepted) wait(d time.Duration) int64 {
	start, before := time.Now(), a.count()
	for time.Since(start) < d && a.count() == before {
		time.Sleep(5 * time.Millisecond)
	}
	return a.count()
}

func accepts(l net.Listener) *accepted {
	a := &accepted{}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			a.n.Add(1)
			_ = c.Close()
		}
	}()
	return a
}

func receives(c net.PacketConn) *accepted {
	a := &accepted{}
	go func() {
		buf := make([]byte, 2048)
		for {
			if _, _, err := c.ReadFrom(buf); err != nil {
				return
			}
			a.n.Add(1)
		}
	}()
	return a
}

// targets listens on every address of the host for TCP and UDP.
func (e *Env) targets() (addrs []string, seen []*accepted, err error) {
	ips := []string{"127.0.0.1", "::1"}
	ifs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, nil, err
	}
	for _, a := range ifs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && !p.Addr().IsLoopback() && !p.Addr().IsLinkLocalUnicast() {
			ips = append(ips, p.Addr().String())
		}
	}
	for _, ip := range ips {
		l, err := net.Listen("tcp", net.JoinHostPort(ip, "0"))
		if err != nil {
			e.Note("no listener on %s: %v", ip, err)
			continue
		}
		e.later(func() { _ = l.Close() })
		addrs = append(addrs, l.Addr().String())
		seen = append(seen, accepts(l))
		c, err := net.ListenPacket("udp", l.Addr().String())
		if err != nil {
			e.Note("no UDP socket on %s: %v", l.Addr(), err)
			continue
		}
		e.later(func() { _ = c.Close() })
		seen = append(seen, receives(c))
	}
	if len(addrs) == 0 {
		return nil, nil, fmt.Errorf("no listener on any of %v", ips)
	}
	return addrs, seen, nil
}

func arrived(seen []*accepted) (n int64) {
	for _, a := range seen {
		n += a.count()
	}
	return n
}

func networkEntries() []Entry {
	return []Entry{
		{ID: "D1-connect", Guarantee: "D1", Capability: "networkIsolation", Title: "TCP, UDP and DNS to services of the host, its addresses, metadata and the world", Layer: belljar.LayerNet, Run: func(ctx context.Context, e *Env) error {
			addrs, seen, err := e.targets()
			if err != nil {
				return err
			}
			b, err := e.Box(ctx, nil)
			if err != nil {
				return err
			}
			args := append([]string{"connect"}, addrs...)
			if !e.Weak() {
				args = append(args, "world")
			}
			rep, _, err := b.Attack(ctx, args...)
			if err != nil {
				return err
			}
			time.Sleep(50 * time.Millisecond) // what was sent may still be on its way
			e.Check(arrived(seen) == 0, "%d connections and packets arrived", arrived(seen))
			e.Check(!rep.Succeeded, "%s", reached(rep))
			bare, err := e.bare()
			if err != nil {
				return err
			}
			before := arrived(seen)
			if _, err := bare.Exec(ctx, append([]string{"connect"}, addrs...)...); err != nil {
				return err
			}
			_, ok := until(ctx, 2*time.Second, func() bool { return arrived(seen)-before >= int64(len(seen)) })
			e.Control(ok, "from the host all %d listeners are reached (%d)", len(seen), arrived(seen)-before)
			return nil
		}},
		{ID: "D1-background", Guarantee: "D1", Capability: "networkIsolation", Title: "the same from a child in another session, after its parent ended", Layer: belljar.LayerNet, Run: func(ctx context.Context, e *Env) error {
			addrs, seen, err := e.targets()
			if err != nil {
				return err
			}
			b, err := e.Box(ctx, nil)
			if err != nil {
				return err
			}
			cmd := b.sb.Command("/bin/sh", append([]string{"-c", `(setsid "$0" "$@" >/dev/null 2>&1 &) ; sleep 1`}, b.command(append([]string{"connect"}, addrs...))...)...)
			cmd.Dir = b.dir
			if _, err := cmd.Run(ctx); err != nil {
				return err
			}
			e.Check(arrived(seen) == 0, "%d connections and packets arrived", arrived(seen))
			bare, err := e.bare()
			if err != nil {
				return err
			}
			before := arrived(seen)
			if _, err := bare.Exec(ctx, append([]string{"connect"}, addrs...)...); err != nil {
				return err
			}
			_, ok := until(ctx, 2*time.Second, func() bool { return arrived(seen) > before })
			e.Control(ok, "from the host they are reached")
			return nil
		}},
		{ID: "D1-raw", Guarantee: "D1", Capability: "networkIsolation", Title: "ICMP, raw sockets, frames, tun; interfaces of the host", Layer: belljar.LayerNet, Others: []belljar.Layer{belljar.LayerSeccomp}, Run: func(ctx context.Context, e *Env) error {
			b, err := e.Box(ctx, nil)
			if err != nil {
				return err
			}
			rep, _, err := b.Attack(ctx, "ping", "1.1.1.1", "2606:4700:4700::1111")
			if err != nil {
				return err
			}
			e.Check(!rep.Succeeded, "%s", reached(rep))
			return controlLoopback(ctx, e, b)
		}},
		{ID: "D6-neighbour", Guarantee: "D6", Capability: "networkIsolation", Title: "connect to a service in another sandbox", Layer: belljar.LayerNet, Run: func(ctx context.Context, e *Env) error {
			rt, err := e.Runtime(ctx, belljar.Config{})
			if err != nil {
				return err
			}
			victim, err := e.BoxOf(ctx, rt, nil)
			if err != nil {
				return err
			}
			thief, err := e.BoxOf(ctx, rt, nil)
			if err != nil {
				return err
			}
			l, err := net.Listen("tcp", "127.0.0.1:0") // a port that is free on the host too
			if err != nil {
				return err
			}
			addr := l.Addr().String()
			if err := l.Close(); err != nil {
				return err
			}
			_, port, err := net.SplitHostPort(addr)
			if err != nil {
				return err
			}
			_, stop, err := victim.resident(ctx, "serve", port)
			if err != nil {
				return err
			}
			defer stop()
			rep, _, err := victim.Attack(ctx, "connect", addr)
			if err != nil {
				return err
			}
			e.Control(rep.Succeeded, "its own sandbox reaches it: %+v", rep.Steps)
			if rep, _, err = thief.Attack(ctx, "connect", addr); err != nil {
				return err
			}
			e.Check(!rep.Succeeded, "%s", reached(rep))
			return nil
		}},
	}
}

// controlLoopback: the sandbox's own loopback works.
func controlLoopback(ctx context.Context, e *Env, b *Box) error {
	rep, _, err := b.Attack(ctx, "loopback")
	if err != nil {
		return err
	}
	e.Control(rep.Succeeded, "its own loopback works: %s", reached(rep))
	return nil
}
