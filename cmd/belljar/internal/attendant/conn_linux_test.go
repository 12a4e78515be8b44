package attendant

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"belljar"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func pair(t *testing.T) (a, b *conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ends := make([]*conn, 2)
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		t.Cleanup(func() { _ = c.Close() })
		ends[i] = &conn{c: c.(*net.UnixConn)}
	}
	return ends[0], ends[1]
}

// TestFrames: a message arrives whole with its descriptors, one that is longer
// than what a socket takes at once included.
func TestFrames(t *testing.T) {
	a, b := pair(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	want := Request{Version: Version, Op: OpExec, Sandbox: "box", Command: &Command{
		Args: []string{"echo", strings.Repeat("x", 1<<20)}, Limits: belljar.Limits{Memory: belljar.MiB}, TTY: &belljar.TTY{Rows: 3, Cols: 4},
	}}
	sent := make(chan error, 1)
	go func() { sent <- a.send(&want, w) }()
	var got Request
	files, err := b.recv(&got, 3)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if len(files) != 1 {
		t.Fatalf("%d descriptors", len(files))
	}
	if _, err := files[0].WriteString("through"); err != nil {
		t.Fatal(err)
	}
	closeAll(files)
	if out, err := io.ReadAll(r); err != nil || string(out) != "through" {
		t.Errorf("%q, %v", out, err)
	}
}

// TestTooManyDescriptors: what was not expected is refused and closed.
func TestTooManyDescriptors(t *testing.T) {
	a, b := pair(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := a.send(&Request{Op: OpCancel}, w, w, w, w); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	var got Request
	if files, err := b.recv(&got, 0); err == nil {
		t.Errorf("%d descriptors were taken", len(files))
	}
	if _, err := io.ReadAll(r); err != nil { // ends only when every copy is closed
		t.Error(err)
	}
}

// FuzzFrame: no bytes make the reader take more than a message may have, or panic.
func FuzzFrame(f *testing.F) {
	good, err := encodeFrame(&Request{Op: OpList})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(binary.BigEndian.AppendUint32(nil, 1<<31))
	f.Add([]byte{0, 0, 0, 2, '{'})
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) < 4 {
			return
		}
		var req Request
		err := decodeFrame([4]byte(in), bytes.NewReader(in[4:]), &req)
		if n := binary.BigEndian.Uint32(in); err == nil && (n > maxFrame || int(n) > len(in)-4) {
			t.Errorf("%d bytes of %d were a message", n, len(in)-4)
		}
	})
}

// TestOpenDir: a state directory is this user's alone.
func TestOpenDir(t *testing.T) {
	base := t.TempDir()
	fresh := filepath.Join(base, "a", "b")
	f, _, err := openDir(fresh, true)
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	if fi, err := os.Stat(fresh); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", fi, err)
	}
	open := filepath.Join(base, "open")
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o750); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(base, "link")
	if err := os.Symlink(fresh, link); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(base, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{open, link, file} {
		if f, _, err := openDir(dir, true); err == nil {
			_ = f.Close()
			t.Errorf("%s was taken", dir)
		}
	}
}
