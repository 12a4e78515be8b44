package lab

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"belljar"
	"belljar/lab/attack"
)

func fileEntries() []Entry {
	readers := func(ctx context.Context, e *Env) error {
		c, err := e.Canary()
		if err != nil {
			return err
		}
		own, content, err := e.Own()
		if err != nil {
			return err
		}
		b, err := e.Box(ctx, nil)
		if err != nil {
			return err
		}
		_, res, err := b.Attack(ctx, "read", c.Path, "/etc/shadow", "/root/.ssh/id_ed25519")
		if err != nil {
			return err
		}
		e.Check(!c.In(res), "the canary's secret came back")
		e.Check(!bytes.Contains(res.Stdout, []byte("root:*")) && !bytes.Contains(res.Stdout, []byte("root:$")) && !bytes.Contains(res.Stdout, []byte("root:!")), "a shadow file came back")
		_, res, err = b.Attack(ctx, "read", b.Lab+"/"+own)
		if err != nil {
			return err
		}
		e.Control(bytes.Contains(res.Stdout, []byte(content)), "a file that is mounted can be read")
		return nil
	}
	// With the root of the host in sight and only Landlock between, the probe
	// itself cannot be executed: the shell and its tools carry out the attack.
	byShell := func(ctx context.Context, e *Env) error {
		c, err := e.Canary()
		if err != nil {
			return err
		}
		b, err := e.Box(ctx, nil)
		if err != nil {
			return err
		}
		sh := func(script string, args ...string) (*belljar.Result, error) {
			cmd := b.sb.Command("/bin/sh", append([]string{"-c", script, "sh"}, args...)...)
			cmd.Dir = "/"
			return cmd.Run(ctx)
		}
		res, err := sh(`for p in "$1" "/proc/self/root$1" "/proc/1/root$1" "../../../..$1" "/usr/..$1"; do cat "$p"; while read -r l; do echo "$l"; done < "$p"; done; ls "${1%/*}" /root /home /var`, c.Path)
		if err != nil {
			return err
		}
		e.Check(!c.In(res), "the canary's secret came back")
		e.Check(!bytes.Contains(res.Stdout, []byte("file\n")), "the canary's directory was listed")
		_, err = sh(`echo x >> "$1"; : > "$1"; cp /usr/bin/env "$1"; echo x > "${1%/*}/new"; mkdir "${1%/*}/d"; ln -s / "${1%/*}/l"; ln "$1" "${1%/*}/h"; mkfifo "${1%/*}/f"; mv "$1" "${1%/*}/moved"; rm -rf "${1%/*}"`, c.Path)
		if err != nil {
			return err
		}
		e.Check(c.Changed() == "", "%s", c.Changed())
		res, err = sh(`echo works | cat; echo x > /dev/null && ls /usr/bin | head -n 1`)
		if err != nil {
			return err
		}
		e.Control(bytes.HasPrefix(res.Stdout, []byte("works\n")) && len(res.Stdout) > 6, "what is granted can be used: %q %q", cut(res.Stdout), cut(res.Stderr))
		return nil
	}
	linked := func(ctx context.Context, e *Env) error {
		c, err := e.Canary()
		if err != nil {
			return err
		}
		own, content, err := e.Own()
		if err != nil {
			return err
		}
		b, err := e.Box(ctx, nil)
		if err != nil {
			return err
		}
		_, res, err := b.Attack(ctx, "links", c.Path, b.Work)
		if err != nil {
			return err
		}
		e.Check(!c.In(res), "the canary's secret came back through a link")
		e.Check(c.Changed() == "", "%s", c.Changed())
		_, res, err = b.Attack(ctx, "links", b.Lab+"/"+own, b.Work)
		if err != nil {
			return err
		}
		e.Control(bytes.Contains(res.Stdout, []byte(content)), "a link to a mounted file can be read")
		return nil
	}
	writers := func(ctx context.Context, e *Env) error {
		c, err := e.Canary()
		if err != nil {
			return err
		}
		b, err := e.Box(ctx, nil)
		if err != nil {
			return err
		}
		if _, _, err := b.Attack(ctx, "write", c.Path); err != nil {
			return err
		}
		e.Check(c.Changed() == "", "%s", c.Changed())
		if _, err := b.Exec(ctx, "fill", "write", b.Work, "1"); err != nil {
			return err
		}
		rep, _, err := b.Attack(ctx, "write", b.Work+"/lab-fill")
		if err != nil {
			return err
		}
		e.Control(step(rep, "append").Reached && step(rep, "chmod").Reached, "a file of its own can be changed")
		return nil
	}
	mounters := func(ctx context.Context, e *Env) error {
		b, err := e.Box(ctx, nil)
		if err != nil {
			return err
		}
		rep, _, err := b.Attack(ctx, "mount", "/tmp")
		if err != nil {
			return err
		}
		e.Check(!rep.Succeeded, "%s", reached(rep))
		return controlRuns(ctx, e, b)
	}
	return []Entry{
		{
			ID: "A1-rootfs", Guarantee: "A1", Capability: "filesystem", Title: "read host files by every route: paths, /proc links, descriptors, loader, shell, python",
			Layer: belljar.LayerRootfs, Others: []belljar.Layer{belljar.LayerLandlock}, Run: readers,
		},
		{
			ID: "A1-landlock", Guarantee: "A1", Capability: "osFilesystemIsolation", Title: "read and write host files against the second layer alone",
			Layer: belljar.LayerLandlock, Others: []belljar.Layer{belljar.LayerRootfs}, Run: byShell,
		},
		{
			ID: "A1-neighbour", Guarantee: "A1", Title: "read another sandbox's workspace", Knob: "two sandboxes",
			Run: func(ctx context.Context, e *Env) error {
				rt, err := e.Runtime(ctx, belljar.Config{})
				if err != nil {
					return err
				}
				victim, err := e.BoxOf(ctx, rt, nil)
				if err != nil {
					return err
				}
				thief := victim
				if !e.Weak() {
					if thief, err = e.BoxOf(ctx, rt, nil); err != nil {
						return err
					}
				}
				s := secret()
				for _, dir := range []string{victim.Work, "/tmp", "/dev/shm"} {
					if err := writeInside(ctx, victim, dir+"/note", s); err != nil {
						return err
					}
				}
				_, res, err := thief.Attack(ctx, "read", victim.Work+"/note", "/tmp/note", "/dev/shm/note")
				if err != nil {
					return err
				}
				e.Check(!bytes.Contains(res.Stdout, []byte(s)), "the neighbour's secret came back")
				res, err = victim.Exec(ctx, "cat", victim.Work+"/note")
				if err != nil {
					return err
				}
				e.Control(bytes.Contains(res.Stdout, []byte(s)), "its owner can read it")
				return nil
			},
		},
		{
			ID: "A2-rootfs", Guarantee: "A2", Capability: "filesystem", Title: "write, chmod, chown, utimes, xattr, rename, link, unlink on the host",
			Layer: belljar.LayerRootfs, Others: []belljar.Layer{belljar.LayerLandlock}, Run: writers,
		},
		{
			ID: "A2-mount", Guarantee: "A2", Title: "change a host directory that is mounted read-only", Knob: "readOnly",
			Run: func(ctx context.Context, e *Env) error {
				c, err := e.Canary()
				if err != nil {
					return err
				}
				b, err := e.Box(ctx, func(s *belljar.Spec) {
					ro := !e.Weak()
					s.Mounts = append(s.Mounts, belljar.Mount{Source: filepath.Dir(c.Path), Target: "/data", ReadOnly: &ro})
				})
				if err != nil {
					return err
				}
				_, res, err := b.Attack(ctx, "read", "/data/file")
				if err != nil {
					return err
				}
				e.Control(c.In(res), "it can be read")
				if _, _, err := b.Attack(ctx, "write", "/data/file"); err != nil {
					return err
				}
				e.Check(c.Changed() == "", "%s", c.Changed())
				return nil
			},
		},
		{
			ID: "A3-links", Guarantee: "A3", Title: "symbolic links, live, dangling, chained and to directories, and hard links to the host",
			Layer: belljar.LayerRootfs, Others: []belljar.Layer{belljar.LayerLandlock}, Run: linked,
		},
		{
			ID: "A3-fds", Guarantee: "A3", Title: "use descriptors that were inherited from the supervisor", Direct: true,
			Run: func(ctx context.Context, e *Env) error {
				c, err := e.Canary()
				if err != nil {
					return err
				}
				// Left open across exec on purpose, as careless code in the same process may.
				fd, err := unix.Open(c.Path, unix.O_RDWR, 0)
				if err != nil {
					return err
				}
				defer unix.Close(fd)
				b, err := e.Box(ctx, nil)
				if err != nil {
					return err
				}
				rep, res, err := b.Attack(ctx, "fds")
				if err != nil {
					return err
				}
				e.Check(!c.In(res), "the canary's secret came back by descriptor")
				e.Check(!rep.Succeeded, "%s", reached(rep))
				e.Control(step(rep, "fd 1").Result != "not tried", "its own streams are seen")
				return nil
			},
		},
		{
			ID: "A3-handle", Guarantee: "A3", Title: "open host inodes by handle", Knob: "the sandbox, as root of the host",
			Needs: needsRoot,
			Run: func(ctx context.Context, e *Env) error {
				b, err := e.Box(ctx, nil)
				if err != nil {
					return err
				}
				var rep *attack.Report
				if e.Weak() {
					bare, err := e.bare()
					if err != nil {
						return err
					}
					out, err := exec.CommandContext(ctx, e.lab.probe, bare.command([]string{"handle"})[1:]...).Output()
					if err != nil {
						return err
					}
					rep, err = claim(&belljar.Result{Stdout: out})
					if err != nil {
						return err
					}
				} else if rep, _, err = b.Attack(ctx, "handle"); err != nil {
					return err
				}
				e.Check(!rep.Succeeded, "%s", reached(rep))
				return controlRuns(ctx, e, b)
			},
		},
		{
			ID: "A3-mount-caps", Guarantee: "A3", Title: "mount by the old and the new interface", Layer: belljar.LayerCaps,
			Others: []belljar.Layer{belljar.LayerSeccomp, belljar.LayerLandlock, belljar.LayerNoNewPrivs}, Run: mounters,
		},
		{
			ID: "A3-mount-seccomp", Guarantee: "A3", Title: "the same against seccomp alone", Layer: belljar.LayerSeccomp,
			Others: []belljar.Layer{belljar.LayerCaps, belljar.LayerLandlock, belljar.LayerNoNewPrivs}, Run: mounters,
		},
		{
			ID: "A4-tree", Guarantee: "A4", Title: "hostile tree against the file operations of the trusted side", Knob: "contained resolution",
			Run: hostileTree,
		},
		{
			ID: "A4-swap", Guarantee: "A4", Title: "directory swapped with a link to the host while the trusted side reads and writes", Knob: "contained resolution",
			Run: swapRace,
		},
		{
			ID: "A5-setuid", Guarantee: "A5", Title: "execute a set-user-id program of root", Direct: true, Needs: needsSetuidFS,
			Run: func(ctx context.Context, e *Env) error {
				dir, err := e.Dir()
				if err != nil {
					return err
				}
				dir = filepath.Join(dir, "suid")
				if err := os.Mkdir(dir, 0o755); err != nil {
					return err
				}
				name := filepath.Join(dir, "probe")
				if err := copyFile(name, e.lab.probe, 0o755); err != nil {
					return err
				}
				if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(name, 0o755|os.ModeSetuid|os.ModeSetgid)); err != nil {
					return err
				}
				b, err := e.Box(ctx, func(s *belljar.Spec) {
					s.Mounts = append(s.Mounts, belljar.Mount{Source: dir, Target: "/suid"})
				})
				if err != nil {
					return err
				}
				seen := "/suid/probe"
				if e.direct() {
					seen = name
				}
				rep, _, err := b.Attack(ctx, append([]string{"setuid"}, seen)...)
				if err != nil {
					return err
				}
				e.Check(!rep.Succeeded, "%s", reached(rep))
				e.Control(strings.Contains(step(rep, seen).Result, "Uid:"), "the program ran: %s", step(rep, seen).Result)
				return nil
			},
		},
		{
			ID: "A6-kernelfiles", Guarantee: "A6", Title: "kernel interfaces for administrators in /proc, /sys and /dev", Layer: belljar.LayerRootfs,
			Others: []belljar.Layer{belljar.LayerLandlock},
			Run: func(ctx context.Context, e *Env) error {
				b, err := e.Box(ctx, nil)
				if err != nil {
					return err
				}
				rep, _, err := b.Attack(ctx, "kernelfiles")
				if err != nil {
					return err
				}
				var bad []string
				for _, s := range rep.Steps {
					if s.Reached && !harmless[s.Name] {
						bad = append(bad, s.Name)
					}
				}
				e.Check(len(bad) == 0, "%s", strings.Join(bad, ", "))
				res, err := b.Exec(ctx, "cat", "/proc/self/status", "/dev/null")
				if err != nil {
					return err
				}
				e.Control(res.ExitCode == 0 && len(res.Stdout) > 0, "/proc/self and /dev/null work")
				return nil
			},
		},
		{
			ID: "A6-processes", Guarantee: "A6", Title: "see processes of the host in /proc", Layer: belljar.LayerPid,
			Needs: needsCgroup, // without, the pid namespace is what ends a tree, and cannot be off
			Run: func(ctx context.Context, e *Env) error {
				by, err := e.bystander(ctx)
				if err != nil {
					return err
				}
				b, err := e.Box(ctx, nil)
				if err != nil {
					return err
				}
				res, err := b.Exec(ctx, "processes", "control-mark")
				if err != nil {
					return err
				}
				e.Check(!bytes.Contains(res.Stdout, []byte(by.secret)), "the bystander's command line was read")
				e.Check(!bytes.Contains(res.Stdout, []byte(filepath.Base(os.Args[0]))) || bytes.Contains([]byte(e.lab.probe), []byte(filepath.Base(os.Args[0]))), "the supervisor's command line was read")
				e.Control(bytes.Contains(res.Stdout, []byte("control-mark")), "its own process is seen")
				return nil
			},
		},
		{
			ID: "A6-mountinfo", Guarantee: "A6", Title: "learn the host's mounts from mountinfo", Layer: belljar.LayerRootfs, Others: []belljar.Layer{belljar.LayerLandlock},
			Run: func(ctx context.Context, e *Env) error {
				b, err := e.Box(ctx, nil)
				if err != nil {
					return err
				}
				res, err := b.Exec(ctx, "mountinfo")
				if err != nil {
					return err
				}
				points := map[string]bool{}
				for l := range strings.Lines(string(res.Stdout)) {
					if f := strings.Fields(l); len(f) > 4 {
						points[f[4]] = true
						if strings.Contains(f[3], e.lab.dir) {
							e.Note("the source of a mount can be read: %s", f[3])
						}
					}
				}
				for host := range mountsNow() {
					p := strings.Fields(host)[2]
					if points[p] && p != "/" && !strings.HasPrefix(p, "/proc") && !strings.HasPrefix(p, "/dev") && !strings.HasPrefix(p, "/tmp") && !strings.HasPrefix(p, "/var/tmp") && !strings.HasPrefix(p, "/usr") && !strings.HasPrefix(p, "/etc") &&
						!strings.HasPrefix(p, "/sys/fs/cgroup") { // B8-groups is about what is shown there
						e.Broken("mount point %s of the host is listed", p)
					}
				}
				e.Control(len(points) > 0, "%d mounts of its own are listed", len(points))
				return nil
			},
		},
		{
			ID: "A7-image", Guarantee: "A7", Title: "an image whose directories are links to the host, or become links during set-up", Knob: "resolution that follows no links",
			Run: lyingImage,
		},
		{
			ID: "A8-options", Guarantee: "A8", Title: "find a mount with suid, with devices, or writable where it should not be", Direct: true,
			Run: func(ctx context.Context, e *Env) error {
				b, err := e.Box(ctx, nil)
				if err != nil {
					return err
				}
				res, err := b.Exec(ctx, "mountinfo")
				if err != nil {
					return err
				}
				n := 0
				for l := range strings.Lines(string(res.Stdout)) {
					f := strings.Fields(l)
					if len(f) < 6 {
						continue
					}
					n++
					opts := "," + f[5] + ","
					e.Check(strings.Contains(opts, ",nosuid,"), "%s is not nosuid: %s", f[4], f[5])
					// A device's own node, and /dev/null over what is masked.
					device := strings.HasPrefix(f[4], "/dev/") && !strings.HasPrefix(f[4], "/dev/shm") || strings.HasSuffix(f[3], "/null")
					e.Check(strings.Contains(opts, ",nodev,") || device, "%s is not nodev: %s", f[4], f[5])
				}
				e.Control(n > 1, "%d mounts were read", n)
				return nil
			},
		},
		{
			ID: "A9-dir", Guarantee: "A9", Title: "a working directory outside of the root", Layer: belljar.LayerRootfs, Others: []belljar.Layer{belljar.LayerLandlock},
			Run: func(ctx context.Context, e *Env) error {
				c, err := e.Canary()
				if err != nil {
					return err
				}
				fd, err := unix.Open(filepath.Dir(c.Path), unix.O_PATH|unix.O_DIRECTORY, 0)
				if err != nil {
					return err
				}
				defer unix.Close(fd)
				b, err := e.Box(ctx, nil)
				if err != nil {
					return err
				}
				dirs := []string{filepath.Dir(c.Path), "/proc/1/root" + filepath.Dir(c.Path), "/proc/self/cwd", "/proc/1/cwd", "/../../.."}
				for i := 0; i < 32; i++ {
					dirs = append(dirs, fmt.Sprintf("/proc/self/fd/%d", i))
				}
				dirs = append(dirs, fmt.Sprintf("/proc/self/fd/%d", fd))
				refused := 0
				for _, d := range dirs {
					cmd := b.Cmd("cwd", c.Path)
					cmd.Dir = d
					res, err := cmd.Run(ctx)
					if err != nil || res.Cause == belljar.CauseInfra {
						refused++
						continue
					}
					e.Check(!c.In(res), "in %s the canary's secret came back", d)
					if rep, err := claim(res); err == nil {
						e.Check(!step(rep, "cwd is unreachable").Reached, "%s is outside of the root: %s", d, step(rep, "cwd is unreachable").Result)
					}
				}
				e.Note("%d of %d directories were refused", refused, len(dirs))
				cmd := b.Cmd("cwd")
				cmd.Dir = "/tmp"
				res, err := cmd.Run(ctx)
				if err != nil {
					return err
				}
				e.Control(strings.Contains(string(res.Stdout), "/tmp"), "/tmp can be the working directory")
				return nil
			},
		},
		{
			ID: "A9-core", Guarantee: "A9", Title: "dump core, so that a helper of the host runs", Layer: belljar.LayerRlimits,
			Run: func(ctx context.Context, e *Env) error {
				b, err := e.Box(ctx, nil)
				if err != nil {
					return err
				}
				rep, _, err := b.Attack(ctx, "rlimits")
				if err != nil {
					return err
				}
				pattern, _ := os.ReadFile("/proc/sys/kernel/core_pattern")
				e.Note("limit %q, core_pattern %q", step(rep, "core").Result, pattern)
				e.Check(!rep.Succeeded, "%s", reached(rep))
				if strings.HasPrefix(string(pattern), "|") {
					e.Check(strings.HasPrefix(step(rep, "core").Result, "1 1 "), "the limit must be 1 byte where cores are piped, is %s", step(rep, "core").Result)
				}
				e.Control(strings.Contains(step(rep, "crash").Result, "signal 11"), "the program crashes: %s", step(rep, "crash").Result)
				return nil
			},
		},
	}
}

// harmless are interfaces that tell nothing of the host beyond its load, or
// that are the program's own.
var harmless = map[string]bool{
	"read /proc/interrupts": true, "read /proc/partitions": true, "read /proc/diskstats": true, "read /proc/1/environ": true, "read /proc/1/maps": true, "read /proc/1/exe": true,
	"read /proc/config.gz": true,
	"list /sys/class/net":  true, "open for writing /proc/1/oom_score_adj": true,
}

func needsRoot(*Env) string {
	if os.Getuid() != 0 {
		return "only root has what this attack needs"
	}
	return ""
}

// needsSetuidFS: the direct counter-run needs a set-user-id file to have its effect.
func needsSetuidFS(e *Env) string {
	if why := needsRoot(e); why != "" {
		return why
	}
	var st unix.Statfs_t
	if unix.Statfs(e.lab.dir, &st) == nil && st.Flags&unix.ST_NOSUID != 0 {
		return e.lab.dir + " is mounted nosuid: set TMPDIR to a directory where set-user-id programs work"
	}
	return ""
}

// controlRuns is the control of attacks that are only calls: the program can do
// ordinary work.
func controlRuns(ctx context.Context, e *Env, b *Box) error {
	res, err := b.Exec(ctx, "echo", "works")
	if err != nil {
		return err
	}
	e.Control(string(res.Stdout) == "works\n", "an ordinary program works")
	return nil
}

// writeInside puts content into a file by a program inside.
func writeInside(ctx context.Context, b *Box, name, content string) error {
	cmd := b.sb.Command("/bin/sh", "-c", `cat > "$0"`, name)
	cmd.Stdin = strings.NewReader(content)
	res, err := cmd.Run(ctx)
	if err != nil {
		return err
	}
	if res.ExitCode != 0 {
		return fmt.Errorf("write %s inside: exit %d %s", name, res.ExitCode, cut(res.Stderr))
	}
	return nil
}

func hash(name string) string {
	f, err := os.Open(name)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// bounded runs one operation of the trusted side with a time limit: a hang is the finding.
func bounded(e *Env, what string, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-time.After(5 * time.Second):
		e.Broken("%s hangs", what)
		return errors.New("hangs")
	}
}
