package native

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"belljar"
	"belljar/internal/linux/cgroup"

	"golang.org/x/sys/unix"
)

func newRuntime(t testing.TB) *belljar.Runtime {
	t.Helper()
	rt, err := belljar.New(context.Background(), belljar.Config{}, New(Config{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rt.Close(context.Background()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return rt
}

func TestRun(t *testing.T) {
	rt := newRuntime(t)
	sb, err := rt.Create(context.Background(), belljar.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	res, err := sb.Command("/bin/sh", "-c", "echo hello; id; pwd; ls -la / /workspace; cat /proc/self/status | grep -E 'Cap|Secc|NoNew'; exit 3").Run(context.Background())
	if err != nil {
		t.Fatalf("%v %+v", err, res)
	}
	t.Logf("%+v\n%s\n%s", res, res.Stdout, res.Stderr)
	if res.ExitCode != 3 {
		t.Fatalf("exit %d", res.ExitCode)
	}
}

func TestWritableMount(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "secret"), []byte("mine\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for d := dir; d != filepath.Clean(os.TempDir()) && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	rw := false
	rt := newRuntime(t)
	sb, err := rt.Create(t.Context(), belljar.Spec{Mounts: []belljar.Mount{{Source: dir, Target: "/data", ReadOnly: &rw}}})
	if err != nil {
		t.Fatal(err)
	}
	res, err := sb.Shell("echo new > /data/new && cat /data/secret && stat -c %u /data/new").Run(t.Context())
	if err != nil || res.ExitCode != 0 {
		t.Fatalf("%v %+v %s", err, res.ExitCode, res.Stderr)
	}
	if got := string(res.Stdout); got != "mine\n1000\n" {
		t.Errorf("inside: %q", got)
	}
	st, err := os.Stat(filepath.Join(dir, "new"))
	if err != nil {
		t.Fatal(err)
	}
	if uid := st.Sys().(*syscall.Stat_t).Uid; int(uid) != os.Getuid() {
		t.Errorf("the new file belongs to %d on the host, want %d", uid, os.Getuid())
	}
}

func TestDiskBacking(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("loop devices are root's")
	}
	rt := newRuntime(t)
	sb, err := rt.Create(t.Context(), belljar.Spec{Limits: belljar.Limits{Disk: 32 * belljar.MiB, DiskBacking: belljar.DiskDisk, Memory: 24 * belljar.MiB}})
	if err != nil {
		var st unix.Statfs_t
		var refused *belljar.Error
		if unix.Statfs(os.TempDir(), &st) == nil && st.Type == unix.TMPFS_MAGIC {
			if !errors.As(err, &refused) || refused.Code != belljar.CodeUnsupported {
				t.Fatal(err)
			}
			t.Skip(err)
		}
		t.Fatal(err)
	}
	// More than the memory limit fits, more than the disk limit does not.
	res, err := sb.Shell("df -k /workspace; head -c 30000000 /dev/zero > a && rm a && head -c 60000000 /dev/zero > b").Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if res.Cause != belljar.CauseDisk || !strings.Contains(string(res.Stderr), "No space left") {
		t.Errorf("cause %s, exit %d: %s%s", res.Cause, res.ExitCode, res.Stdout, res.Stderr)
	}
	res, err = sb.Shell("rm -f b; echo ok > c; cat c; stat -c %U c").Run(t.Context())
	if err != nil || string(res.Stdout) != "ok\nuser\n" {
		t.Errorf("afterwards: %v %q %q", err, res.Stdout, res.Stderr)
	}
	if err := sb.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	out, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, f := range out {
		if b, _ := os.ReadFile(f); strings.Contains(string(b), "belljar") {
			t.Errorf("loop device left: %s %s", f, b)
		}
	}
}

func TestClean(t *testing.T) {
	if err := cgroup.Supported(); err != nil {
		t.Skip(err)
	}
	b := New(Config{})
	t.Cleanup(func() { b.Close(context.Background()) })
	var dead, young, live []string
	old := time.Now().Add(-time.Hour)
	for _, p := range cgroup.Detect().Parents {
		dead = append(dead, filepath.Join(p, "belljar-test-dead"))
		young = append(young, filepath.Join(p, "belljar-test-young"))
	}
	for _, d := range append(append([]string(nil), dead...), young...) {
		if err := os.Mkdir(d, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Remove(d) })
	}
	for _, d := range dead {
		if err := os.Chtimes(d, old, old); err != nil {
			t.Fatal(err)
		}
	}
	r, err := cgroup.Open(cgroup.Config{Tag: "test-live"})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, d := range r.Tops() {
		live = append(live, d)
		if err := os.Chtimes(d, old, old); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Clean(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, d := range dead {
		if _, err := os.Stat(d); err == nil {
			t.Errorf("%s of a dead runtime is still there", d)
		}
	}
	for _, d := range append(young, live...) {
		if _, err := os.Stat(d); err != nil {
			t.Errorf("%s was removed", d)
		}
	}
}
