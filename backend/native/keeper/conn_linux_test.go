package keeper

import (
	"errors"
	"io"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// openFDs counts this process's descriptors.
func openFDs(t testing.TB) int {
	t.Helper()
	ents, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(ents)
}

// hostile sends raw bytes and n descriptors as a keeper would.
func hostile(t testing.TB, fd int, b []byte, nfds int) error {
	t.Helper()
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(null)
	var oob []byte
	if nfds > 0 {
		fds := make([]int, nfds)
		for i := range fds {
			fds[i] = null
		}
		oob = unix.UnixRights(fds...)
	}
	return unix.Sendmsg(fd, b, oob, nil, unix.MSG_NOSIGNAL)
}

func TestRecvHostile(t *testing.T) {
	good := NewMsg(MOK, 1).U32(5, 0).Bytes()
	for _, tt := range []struct {
		name string
		b    []byte
		nfds int
		buf  int
		want error
		fds  int
	}{
		{"good", good, 0, 4096, nil, 0},
		{"good with descriptors", good, 3, 4096, nil, 3},
		{"as many as allowed", good, MaxFDs, 4096, nil, MaxFDs},
		{"more than allowed", good, 100, 4096, ErrProtocol, 0},
		{"the kernel's maximum", good, 253, 4096, ErrProtocol, 0},
		{"garbage", []byte("garbage that is no message"), 3, 4096, ErrProtocol, 0},
		{"one byte", []byte{0x42}, 1, 4096, ErrProtocol, 0},
		{"longer than the buffer", NewMsg(MOK, 1).Raw(make([]byte, 5000)).Bytes(), 2, 4096, ErrProtocol, 0},
		{"longer than it says", append(NewMsg(MOK, 1).U32(1, 0).Bytes(), 0), 2, 4096, ErrProtocol, 0},
		{"nothing", nil, 0, 4096, io.EOF, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, peer, err := Pair()
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(peer)
			defer c.Close()
			before := openFDs(t)
			if err := hostile(t, peer, tt.b, tt.nfds); err != nil {
				t.Fatal(err)
			}
			_, _, fds, err := c.Recv(make([]byte, tt.buf))
			if !errors.Is(err, tt.want) || len(fds) != tt.fds {
				t.Errorf("%v with %d descriptors, want %v with %d", err, len(fds), tt.want, tt.fds)
			}
			closeAll(fds)
			if after := openFDs(t); after != before {
				t.Errorf("%d descriptors before, %d after", before, after)
			}
		})
	}
}

// TestRecvEnds: a peer that goes, or a Close here, ends a blocked Recv.
func TestRecvEnds(t *testing.T) {
	for name, end := range map[string]func(c *Conn, peer int){
		"peer":  func(_ *Conn, peer int) { unix.Close(peer) },
		"close": func(c *Conn, _ int) { c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			c, peer, err := Pair()
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() {
				_, _, _, err := c.Recv(make([]byte, 64))
				done <- err
			}()
			runtime.Gosched()
			end(c, peer)
			if err := <-done; err != io.EOF {
				t.Errorf("%v, want EOF", err)
			}
			c.Close()
			if name == "close" {
				unix.Close(peer)
			}
		})
	}
}

func TestSendRefuses(t *testing.T) {
	c, peer, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(peer)
	defer c.Close()
	if err := c.Send(NewMsg(MExec, 0).Raw(make([]byte, MaxMsg))); err == nil {
		t.Error("a message that is too long was sent")
	}
	m := NewMsg(MExec, 0)
	m.FDs = make([]int, MaxFDs+1)
	if err := c.Send(m); err == nil {
		t.Error("too many descriptors were sent")
	}
	if err := c.Send(NewMsg(MEnd, 0)); err != nil {
		t.Error(err)
	}
}

func FuzzRecv(f *testing.F) {
	f.Add(NewMsg(MOK, 1).U32(5, 0).Bytes(), uint8(0))
	f.Add(NewMsg(MState, 1).Raw(make([]byte, 80)).Bytes(), uint8(2))
	f.Add([]byte{}, uint8(1))
	f.Add([]byte("BJK1"), uint8(40))
	f.Fuzz(func(t *testing.T, b []byte, nfds uint8) {
		if len(b) > 60000 {
			return
		}
		c, peer, err := Pair()
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(peer)
		defer c.Close()
		before := openFDs(t)
		if err := hostile(t, peer, b, int(nfds)); err != nil {
			return
		}
		h, body, fds, err := c.Recv(make([]byte, 4096))
		if err == nil && (len(body) != len(b)-hdrLen || len(fds) != int(nfds) || h.Type != Type(le.Uint16(b[6:]))) {
			t.Fatalf("%x with %d descriptors was read as %+v, %d bytes, %d descriptors", b, nfds, h, len(body), len(fds))
		}
		if err != nil && (fds != nil || body != nil) {
			t.Fatalf("%v and %d descriptors", err, len(fds))
		}
		closeAll(fds)
		if after := openFDs(t); after != before {
			t.Fatalf("%d descriptors before, %d after", before, after)
		}
	})
}
