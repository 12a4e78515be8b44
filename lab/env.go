package lab

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"belljar"
	"belljar/lab/attack"
)

// inside is where the probe and what belongs to it are seen in a sandbox.
const inside = "/lab"

// laboratory is what the entries of one run share.
type laboratory struct {
	Options
	dir   string   // on the host, 0755, world-readable
	probe string   // the attacker's program, in dir/probe
	args  []string // its first arguments
}

func open(o Options) (_ *laboratory, err error) {
	l := &laboratory{Options: o}
	from := ""
	if len(o.Probe) > 0 {
		from, l.args = o.Probe[0], o.Probe[1:]
	} else {
		if from, err = os.Executable(); err != nil {
			return nil, err
		}
		l.args = []string{attack.Verb}
	}
	if len(o.Supervisor) == 0 {
		exe, err := os.Executable()
		if err != nil {
			return nil, err
		}
		l.Supervisor = []string{exe, SuperviseVerb}
	}
	if l.dir, err = os.MkdirTemp("", "belljar-lab-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	if l.dir, err = filepath.EvalSymlinks(l.dir); err != nil {
		return nil, err
	}
	dir := filepath.Join(l.dir, "probe")
	if err := errors.Join(os.Chmod(l.dir, 0o755), os.Mkdir(dir, 0o755)); err != nil {
		return nil, err
	}
	l.probe = filepath.Join(dir, "probe")
	return l, copyFile(l.probe, from, 0o755)
}

func (l *laboratory) close() { _ = os.RemoveAll(l.dir) }

func copyFile(to, from string, perm os.FileMode) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Chmod(perm), dst.Close())
}

// way is one of the ways to run an entry.
type way struct {
	others bool // the entry's other layers are off
	weak   bool // its layer or knob is, too
}

// Env is what an entry works with during one run.
type Env struct {
	lab      *laboratory
	entry    *Entry
	way      way
	dir      string
	report   belljar.Report
	evidence []string
	broken   bool
	controls int
	uncontrl bool
	undo     []func()
}

// Weak reports whether this is the counter-run, in which an entry with a Knob
// leaves its protection out.
func (e *Env) Weak() bool { return e.way.weak }

func (e *Env) direct() bool { return e.way.weak && e.entry.Direct }

// Note adds a line of evidence.
func (e *Env) Note(format string, args ...any) {
	s := fmt.Sprintf(format, args...)
	if len(s) > 600 {
		s = s[:600] + "..."
	}
	e.evidence = append(e.evidence, s)
}

// Broken says that the attack had its effect.
func (e *Env) Broken(format string, args ...any) {
	e.broken = true
	e.Note("broken: "+format, args...)
}

// Check says that the attack had its effect unless ok.
func (e *Env) Check(ok bool, format string, args ...any) {
	if !ok {
		e.Broken(format, args...)
	}
}

// Control says whether the same act succeeded where it is allowed.
func (e *Env) Control(ok bool, format string, args ...any) {
	e.controls++
	if !ok {
		e.uncontrl = true
		e.Note("control failed: "+format, args...)
		return
	}
	e.Note("control: "+format, args...)
}

func (e *Env) verdict(err error) Verdict {
	v := Verdict{Control: e.controls > 0 && !e.uncontrl, Evidence: e.evidence}
	switch {
	case e.broken:
		v.Outcome = Broken
		// The line that says so comes last, where summaries look.
		slices.SortStableFunc(v.Evidence, func(a, b string) int {
			return bool2int(strings.HasPrefix(a, "broken")) - bool2int(strings.HasPrefix(b, "broken"))
		})
	case errors.Is(err, belljar.ErrIsolationUnavailable) && !e.way.weak:
		// It refused instead of doing without: as it should, but nothing was attacked.
		v.Outcome = Skipped
		v.Evidence = append(v.Evidence, "refused here: "+brief(err))
	case err != nil:
		v.Outcome = Failed
		v.Evidence = append(v.Evidence, err.Error())
	case !v.Control:
		v.Outcome = Invalid
		if e.controls == 0 {
			v.Evidence = append(v.Evidence, "there was no control")
		}
	default:
		v.Outcome = Held
	}
	return v
}

// brief is the first part of an error that explains at length.
func brief(err error) string {
	s := err.Error()
	if len(s) > 160 {
		s = s[:160] + "..."
	}
	return s
}

func bool2int(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (e *Env) later(f func()) { e.undo = append(e.undo, f) }

func (e *Env) cleanup() {
	for _, f := range slices.Backward(e.undo) {
		f()
	}
}

// Dir is a directory of this run on the host that everybody may enter.
func (e *Env) Dir() (string, error) {
	if e.dir != "" {
		return e.dir, nil
	}
	d, err := os.MkdirTemp(e.lab.dir, "run-")
	if err != nil {
		return "", err
	}
	e.dir = d
	e.later(func() { _ = os.RemoveAll(d) })
	return d, os.Chmod(d, 0o755)
}

// Runtime makes a runtime for this run.
func (e *Env) Runtime(ctx context.Context, cfg belljar.Config) (*belljar.Runtime, error) {
	rt, err := e.lab.Runtime(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("runtime: %w", err)
	}
	e.later(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		_ = rt.Close(ctx)
	})
	return rt, nil
}

// Box is a sandbox, or in a direct counter-run the bare host.
type Box struct {
	env *Env
	sb  *belljar.Sandbox // nil: the host
	// Lab is where the probe's directory is seen from inside, Work a writable one.
	Lab, Work string
	dir       string // of commands
}

// spec is the base, with the layers as this run has them.
func (e *Env) spec(mod func(*belljar.Spec)) belljar.Spec {
	s := e.lab.Spec
	layers := map[belljar.Layer]belljar.Want{}
	for l, w := range s.Isolation.Layers {
		layers[l] = w
	}
	if e.way.others {
		for _, l := range e.entry.Others {
			layers[l] = belljar.Off
		}
	}
	if e.way.weak && e.entry.Layer != "" {
		layers[e.entry.Layer] = belljar.Off
	}
	s.Isolation.Layers = layers
	if layers[belljar.LayerMount] == belljar.Off {
		layers[belljar.LayerRootfs] = belljar.Off
	}
	if e.entry.Layer != "" && !e.way.weak && e.entry.Layer != belljar.LayerCgroup {
		layers[e.entry.Layer] = belljar.Require // a layer that is not there cannot be what held
	}
	if layers[belljar.LayerRootfs] != belljar.Off {
		s.Mounts = append(slices.Clone(s.Mounts), belljar.Mount{Source: filepath.Dir(e.lab.probe), Target: inside})
	}
	if s.Timeout == 0 {
		s.Timeout = 30 * time.Second
	}
	if mod != nil {
		mod(&s)
	}
	return s
}

// Box makes a sandbox of a runtime of its own.
func (e *Env) Box(ctx context.Context, mod func(*belljar.Spec)) (*Box, error) {
	if e.direct() {
		return e.bare()
	}
	rt, err := e.Runtime(ctx, belljar.Config{})
	if err != nil {
		return nil, err
	}
	return e.BoxOf(ctx, rt, mod)
}

// BoxOf makes a sandbox of the given runtime.
func (e *Env) BoxOf(ctx context.Context, rt *belljar.Runtime, mod func(*belljar.Spec)) (*Box, error) {
	spec := e.spec(mod)
	sb, err := rt.Create(ctx, spec)
	if err != nil {
		return nil, fmt.Errorf("sandbox: %w", err)
	}
	e.later(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		_ = sb.Destroy(ctx)
	})
	e.report = sb.Report()
	b := &Box{env: e, sb: sb, Lab: inside, Work: "/workspace", dir: "/workspace"}
	if spec.Isolation.Layers[belljar.LayerRootfs] == belljar.Off {
		bare, err := e.bare()
		if err != nil {
			return nil, err
		}
		b.Lab, b.Work, b.dir = bare.Lab, bare.Work, bare.Work
	}
	return b, nil
}

func (e *Env) bare() (*Box, error) {
	dir, err := e.Dir()
	if err != nil {
		return nil, err
	}
	work := filepath.Join(dir, "work")
	if err := os.MkdirAll(work, 0o755); err != nil {
		return nil, err
	}
	return &Box{env: e, Lab: filepath.Dir(e.lab.probe), Work: work, dir: work}, os.Chmod(work, 0o777)
}

// Command is the command line of an act of the probe.
func (b *Box) command(args []string) []string {
	return append(append([]string{b.Lab + "/probe"}, b.env.lab.args...), args...)
}

// Cmd makes the sandboxed command of an act of the probe. There is none on the bare host.
func (b *Box) Cmd(args ...string) *belljar.Cmd {
	argv := b.command(args)
	c := b.sb.Command(argv[0], argv[1:]...)
	c.Dir = b.dir
	return c
}

// Exec runs an act of the probe to its end.
func (b *Box) Exec(ctx context.Context, args ...string) (*belljar.Result, error) {
	if b.sb == nil {
		return b.execBare(ctx, args)
	}
	res, err := b.Cmd(args...).Run(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", args[0], err)
	}
	if res.Cause == belljar.CauseInfra {
		return nil, fmt.Errorf("%s: %w", args[0], res.Error)
	}
	return res, nil
}

// execBare runs an act as an ordinary process of this host, without root's privileges.
func (b *Box) execBare(ctx context.Context, args []string) (*belljar.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	argv := b.command(args)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = b.dir
	cmd.WaitDelay = time.Second
	demote(cmd)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var ee *exec.ExitError
	if err != nil && !errors.As(err, &ee) && !errors.Is(err, exec.ErrWaitDelay) {
		return nil, fmt.Errorf("%s: %w", args[0], err)
	}
	return &belljar.Result{State: belljar.Completed, Cause: belljar.CauseExit, ExitCode: cmd.ProcessState.ExitCode(), Stdout: out.Bytes(), Stderr: errs.Bytes()}, nil
}

// Attack runs an attack and returns what it claims.
func (b *Box) Attack(ctx context.Context, args ...string) (*attack.Report, *belljar.Result, error) {
	res, err := b.Exec(ctx, args...)
	if err != nil {
		return nil, nil, err
	}
	rep, err := claim(res)
	if err != nil {
		return nil, res, fmt.Errorf("%s: %w", args[0], err)
	}
	for _, s := range rep.Steps {
		if s.Reached {
			b.env.Note("%s: %s: %s", rep.Attack, s.Name, s.Result)
		}
	}
	return rep, res, nil
}

func claim(res *belljar.Result) (*attack.Report, error) {
	var rep attack.Report
	if err := json.Unmarshal(bytes.TrimSpace(res.Stdout), &rep); err != nil {
		return nil, fmt.Errorf("no report: state %s, cause %s, exit %d %s, stdout %q, stderr %q: %w", res.State, res.Cause, res.ExitCode, res.Signal, cut(res.Stdout), cut(res.Stderr), err)
	}
	return &rep, nil
}

func cut(b []byte) []byte { return b[:min(len(b), 200)] }

// reached lists the routes that worked.
func reached(r *attack.Report) string {
	var s []string
	for _, x := range r.Steps {
		if x.Reached {
			s = append(s, x.Name+" ("+x.Result+")")
		}
	}
	return strings.Join(s, ", ")
}

// step finds a step by name.
func step(r *attack.Report, name string) attack.Step {
	for _, s := range r.Steps {
		if s.Name == name {
			return s
		}
	}
	return attack.Step{Name: name, Result: "not tried"}
}

// secret is something that is known nowhere else.
func secret() string { return "secret-" + strings.ToLower(rand.Text()) }

// Canary is a file on the host that must not be read or changed.
type Canary struct {
	Path, Secret string
	before       string
}

// Canary plants a file that everybody on the host may read and write, in a
// directory where everybody may do everything: only the sandbox protects it.
func (e *Env) Canary() (*Canary, error) {
	base, err := e.Dir()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(base, "canary-")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		return nil, err
	}
	c := &Canary{Path: filepath.Join(dir, "file"), Secret: secret()}
	if err := os.WriteFile(c.Path, []byte(c.Secret+"\n"), 0o666); err != nil {
		return nil, err
	}
	if err := os.Chmod(c.Path, 0o666); err != nil {
		return nil, err
	}
	old := time.Unix(1_000_000_000, 0)
	if err := errors.Join(os.Chtimes(c.Path, old, old), os.Chtimes(dir, old, old)); err != nil {
		return nil, err
	}
	c.before = c.look()
	return c, nil
}

// look describes the canary and its directory: content, mode, owner, times, names.
func (c *Canary) look() string {
	b, err := os.ReadFile(c.Path)
	s := fmt.Sprintf("content %q %v", cut(b), err)
	for _, p := range []string{c.Path, filepath.Dir(c.Path)} {
		fi, err := os.Lstat(p)
		if err != nil {
			s += fmt.Sprintf("; %v", err)
			continue
		}
		s += fmt.Sprintf("; %s mode %v mtime %d %s", filepath.Base(p), fi.Mode(), fi.ModTime().UnixNano(), owner(fi))
	}
	ents, err := os.ReadDir(filepath.Dir(c.Path))
	s += fmt.Sprintf("; entries %v %v", ents, err)
	return s
}

// Changed returns how the canary changed, or "".
func (c *Canary) Changed() string {
	if now := c.look(); now != c.before {
		return "before " + c.before + ", now " + now
	}
	return ""
}

// In reports whether the canary's secret is in any of these outputs.
func (c *Canary) In(res ...*belljar.Result) bool {
	for _, r := range res {
		if r != nil && (bytes.Contains(r.Stdout, []byte(c.Secret)) || bytes.Contains(r.Stderr, []byte(c.Secret))) {
			return true
		}
	}
	return false
}

// Own plants a file with a secret beside the probe, where a sandbox may read:
// the control of everything that reads.
func (e *Env) Own() (name, content string, err error) {
	content = secret()
	f, err := os.CreateTemp(filepath.Dir(e.lab.probe), "own-")
	if err != nil {
		return "", "", err
	}
	e.later(func() { _ = os.Remove(f.Name()) })
	_, err = f.WriteString(content + "\n")
	return filepath.Base(f.Name()), content, errors.Join(err, f.Chmod(0o644), f.Close())
}
