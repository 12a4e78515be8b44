// Vmlane runs the tests of packages in a software-emulated virtual machine with
// a distribution kernel and a plain cgroup v2 tree, as root and as an ordinary
// user: the host that a developer's machine or CI runner may not be.
//
//	go run ./internal/vmlane [flags] -- ./backend/native ./lab
//
// It needs qemu-system-x86_64, busybox (static), zstd, xz and, the first time,
// apt-get and dpkg to fetch the kernel, which is kept under .cache/vm. No
// hardware virtualisation is used, so a guest is ten to twenty times slower
// than the host: tests that measure time belong elsewhere.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"belljar/internal/vmlane/plan"
)

type config struct {
	mem, cpus int
	timeout   time.Duration
	testTime  time.Duration
	run       string
	short     bool
	verbose   bool
	users     string
	env       string
	keep      string
	args      string
	cmdline   string
	log       string
	long      string
	skip      string
}

func main() {
	var c config
	flag.IntVar(&c.mem, "mem", 1536, "memory of the guest in MiB")
	flag.IntVar(&c.cpus, "cpus", 2, "processors of the guest")
	flag.DurationVar(&c.timeout, "timeout", 15*time.Minute, "wall clock of the whole run")
	flag.DurationVar(&c.testTime, "test-timeout", 8*time.Minute, "wall clock of one test binary")
	flag.StringVar(&c.run, "run", "", "only tests that match (-test.run)")
	flag.StringVar(&c.skip, "skip", "", "no tests that match (-test.skip)")
	flag.BoolVar(&c.short, "short", true, "pass -test.short")
	flag.StringVar(&c.long, "long", "", "never pass -test.short to packages that match this regular expression")
	flag.BoolVar(&c.verbose, "v", false, "show the kernel's messages and every test")
	flag.StringVar(&c.users, "users", "root,user", "as whom to run: root, user or both")
	flag.StringVar(&c.env, "env", "", "space-separated K=V for the tests")
	flag.StringVar(&c.args, "args", "", "more arguments for the test binaries, space-separated")
	flag.StringVar(&c.log, "log", "", "write all that the guest says to this file")
	flag.StringVar(&c.keep, "keep", "", "leave kernel command line and initramfs in this directory")
	flag.StringVar(&c.cmdline, "append", "lsm=landlock,lockdown,yama,bpf psi=1", "more kernel parameters")
	flag.Parse()
	if err := run(context.Background(), c, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "vmlane:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, c config, pkgs []string) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	if len(pkgs) == 0 {
		return fmt.Errorf("no packages named")
	}
	long, err := regexp.Compile(c.long)
	if err != nil {
		return fmt.Errorf("-long: %w", err)
	}
	root, err := output(ctx, "", "go", "list", "-m", "-f", "{{.Dir}}")
	if err != nil {
		return err
	}
	k, err := getKernel(ctx, filepath.Join(root, ".cache", "vm"))
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp("", "vmlane-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	img := newImage()
	p := plan.Plan{Verbose: c.verbose}
	if err := img.base(); err != nil {
		return err
	}
	if err := img.addProgram("mkfs.ext4"); err != nil {
		return err
	}
	for _, m := range []string{"loop", "overlay", "dummy"} {
		files, err := k.module(ctx, m)
		if err != nil {
			return err
		}
		for _, f := range files {
			name := filepath.Base(f)
			if err := img.addFile("usr/lib/modules/"+name, f, 0o644); err != nil {
				return err
			}
			p.Modules = append(p.Modules, "/usr/lib/modules/"+name)
		}
	}
	init := filepath.Join(tmp, "init")
	if err := goBuild(ctx, root, "build", "-trimpath", "-ldflags=-s -w", "-o", init, "./internal/vmlane/guest"); err != nil {
		return err
	}
	if err := img.rootFile("init", init, 0o755); err != nil {
		return err
	}
	// The program that the conformance suite runs inside: there is no Go in the guest.
	probe := filepath.Join(tmp, "probe")
	if err := goBuild(ctx, root, "build", "-trimpath", "-ldflags=-s -w", "-o", probe, "./conformance/probe"); err != nil {
		return err
	}
	if err := img.addFile("srv/probe", probe, 0o755); err != nil {
		return err
	}
	env := append([]string{"BELLJAR_PROBE=/srv/probe", "BELLJAR_MAY_SET_CLOCK=1"}, strings.Fields(c.env)...)
	list, err := output(ctx, root, "go", append([]string{"list", "-f", "{{.ImportPath}}\t{{.Dir}}\t{{len .TestGoFiles}}\t{{len .XTestGoFiles}}"}, pkgs...)...)
	if err != nil {
		return err
	}
	for l := range strings.Lines(list) {
		f := strings.Split(strings.TrimSpace(l), "\t")
		if len(f) != 4 || f[2] == "0" && f[3] == "0" {
			continue
		}
		name := strings.ReplaceAll(strings.TrimPrefix(f[0], "belljar/"), "/", "_")
		bin := filepath.Join(tmp, name+".test")
		if err := goBuild(ctx, root, "test", "-c", "-trimpath", "-ldflags=-s -w", "-o", bin, f[0]); err != nil {
			return err
		}
		rel, err := filepath.Rel(root, f[1])
		if err != nil {
			return err
		}
		dir := "src/" + rel
		if err := img.addFile(dir+"/"+name+".test", bin, 0o755); err != nil {
			return err
		}
		if err := img.addTree(dir, f[1]); err != nil {
			return err
		}
		args := []string{"-test.v", "-test.timeout=" + c.testTime.String()}
		if c.short && (c.long == "" || !long.MatchString(f[0])) {
			args = append(args, "-test.short")
		}
		if c.run != "" {
			args = append(args, "-test.run="+c.run)
		}
		if c.skip != "" {
			args = append(args, "-test.skip="+c.skip)
		}
		args = append(args, strings.Fields(c.args)...)
		for _, u := range strings.Split(c.users, ",") {
			if u != "root" && u != "user" {
				return fmt.Errorf("-users: %q is neither root nor user", u)
			}
			p.Tests = append(p.Tests, plan.Test{Name: name + " as " + u, Dir: "/" + dir, Args: append([]string{"./" + name + ".test"}, args...), Root: u == "root", Env: env})
		}
	}
	if len(p.Tests) == 0 {
		return fmt.Errorf("none of the packages has tests")
	}
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	img.rootBytes("plan.json", b, 0o644)
	initrd := filepath.Join(tmp, "initramfs")
	if c.keep != "" {
		initrd = filepath.Join(c.keep, "initramfs")
	}
	if err := img.write(initrd); err != nil {
		return err
	}
	return boot(ctx, c, k.vmlinux, initrd, p)
}

func boot(ctx context.Context, c config, vmlinux, initrd string, p plan.Plan) error {
	cmdline := "console=ttyS0 reboot=t panic=-1 oops=panic " + c.cmdline
	if !c.verbose {
		cmdline += " quiet loglevel=3"
	}
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", "-accel", "tcg", "-cpu", "max", "-machine", "microvm,acpi=off", "-smp", fmt.Sprint(c.cpus),
		"-m", fmt.Sprint(c.mem), "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio",
		"-kernel", vmlinux, "-initrd", initrd, "-append", cmdline)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	log := io.Discard
	if c.log != "" {
		f, err := os.Create(c.log)
		if err != nil {
			return err
		}
		defer f.Close()
		log = f
	}
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return err
	}
	codes, readErr := follow(io.TeeReader(out, log), os.Stdout, c.verbose)
	err = cmd.Wait()
	if ctx.Err() != nil {
		return fmt.Errorf("the guest was still running after %s", c.timeout)
	}
	if err != nil {
		return fmt.Errorf("qemu: %w", err)
	}
	if readErr != nil {
		return readErr
	}
	var bad []string
	for _, t := range p.Tests {
		code, ok := codes[t.Name]
		switch {
		case !ok:
			bad = append(bad, t.Name+": did not finish")
		case code != "0":
			bad = append(bad, t.Name+": "+code)
		}
	}
	fmt.Printf("vmlane: %d runs, %d failed, %.1f s\n", len(p.Tests), len(bad), time.Since(start).Seconds())
	if len(bad) > 0 {
		return fmt.Errorf("failed: %s", strings.Join(bad, "; "))
	}
	return nil
}

// follow copies the serial console to w and collects the results from its
// marker lines. Unless all is wanted, the boot and the start and success of
// single subtests are left out.
func follow(r io.Reader, w io.Writer, all bool) (map[string]string, error) {
	codes := map[string]string{}
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 64<<10), 16<<20)
	inTest := all
	for s.Scan() {
		l := strings.TrimRight(s.Text(), "\r")
		if rest, ok := strings.CutPrefix(l, plan.End); ok {
			name, code, _ := strings.Cut(rest, ": ")
			codes[name] = code
		}
		if strings.HasPrefix(l, plan.Begin) {
			inTest = true
		}
		if !inTest {
			continue
		}
		t := strings.TrimSpace(l)
		if !all && (l != t && strings.HasPrefix(t, "--- PASS") || strings.HasPrefix(t, "=== RUN") || strings.HasPrefix(t, "=== PAUSE") || strings.HasPrefix(t, "=== CONT") || strings.HasPrefix(t, "=== NAME")) {
			continue
		}
		if _, err := fmt.Fprintln(w, l); err != nil {
			return codes, err
		}
	}
	return codes, s.Err()
}

func goBuild(ctx context.Context, dir string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Stderr = os.Stderr
	b, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(b)), nil
}
