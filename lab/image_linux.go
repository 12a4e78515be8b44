package lab

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"belljar"
)

// lyingImage lets set-up meet links to the host at every place where it makes or
// mounts something. What is refused is as good as what is contained.
func lyingImage(ctx context.Context, e *Env) error {
	c, err := e.Canary()
	if err != nil {
		return err
	}
	base, err := e.Dir()
	if err != nil {
		return err
	}
	target := filepath.Dir(c.Path)
	image := func(name string, links ...string) (string, error) {
		dir := filepath.Join(base, name)
		errs := []error{os.MkdirAll(filepath.Join(dir, "usr", "share"), 0o755)}
		for _, l := range links {
			to := filepath.Join(dir, l)
			errs = append(errs, os.MkdirAll(filepath.Dir(to), 0o755), os.Symlink(target, to))
		}
		return dir, errors.Join(errs...)
	}
	rt, err := e.Runtime(ctx, belljar.Config{})
	if err != nil {
		return err
	}
	honest, err := image("honest")
	if err != nil {
		return err
	}
	with := func(dir string) func(*belljar.Spec) {
		return func(s *belljar.Spec) {
			s.Image = dir
			s.Mounts = append(s.Mounts, belljar.Mount{Source: filepath.Dir(e.lab.probe), Target: "/data/sub"})
		}
	}
	b, err := e.BoxOf(ctx, rt, with(honest))
	if err != nil {
		return err
	}
	_, err = b.sb.Stat("/data/sub/probe")
	e.Control(err == nil, "an honest image is shown, and what is mounted in it: %v", err)
	all := []string{"proc", "sys", "dev", "tmp", "etc", "var", "home", "workspace", "data", "lab", "bin", "home/user", "var/tmp", "var/empty", "etc/passwd", "dev/null", "dev/shm", "dev/pts", "usr/share/x"}
	if e.Weak() {
		dir, err := image("naive", "data")
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Join(dir, "data", "sub"), 0o755); err != nil {
			return err
		}
		e.Check(c.Changed() == "", "making a mount's target by its path: %s", c.Changed())
		return nil
	}
	try := func(what, dir string) error {
		sb, err := rt.Create(ctx, e.spec(with(dir)))
		if err != nil {
			var be *belljar.Error
			e.Check(errors.As(err, &be) && be.Code == belljar.CodeInvalidSpec, "%s: %v", what, err)
			e.Check(c.Changed() == "", "%s, refused: %s", what, c.Changed())
			return nil
		}
		for _, name := range []string{c.Path, "/data/file", "/etc/file", "/etc/passwd/file", "/var/file", "/home/user/file", "/usr/share/x/file", "/bin/file"} {
			got, _ := sb.ReadFile(name) // refused or the sandbox's own
			e.Check(!strings.Contains(string(got), c.Secret), "%s: read %s: the canary's secret", what, name)
			_ = sb.WriteFile(name, []byte("x"), 0o600)
		}
		_ = sb.WriteFile("/var/tmp/x", []byte("x"), 0o600) // contained or refused: the canary tells
		_ = sb.WriteFile("/data/x", []byte("x"), 0o600)
		e.Check(c.Changed() == "", "%s: %s", what, c.Changed())
		return sb.Destroy(ctx)
	}
	for _, l := range all {
		dir, err := image("lies-"+strings.ReplaceAll(l, "/", "-"), l)
		if err != nil {
			return err
		}
		if err := try("link at "+l, dir); err != nil {
			return err
		}
	}
	// And one that is a directory when it is looked at, and a link when it is used.
	dir, err := image("swapped", "data.link")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(dir, "data", "sub"), 0o755); err != nil {
		return err
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, dir+"/data", unix.AT_FDCWD, dir+"/data.link", unix.RENAME_EXCHANGE)
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	made := 0
	for begin := time.Now(); time.Since(begin) < time.Second; made++ {
		if err := try("swapped", dir); err != nil {
			return err
		}
	}
	e.Note("%d tries with a directory that is being swapped", made)
	return nil
}
