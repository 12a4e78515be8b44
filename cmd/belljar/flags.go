package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"belljar"

	"github.com/spf13/pflag"
)

// parsed is a flag whose value is checked when it is met.
type parsed struct {
	kind string
	set  func(string) error
}

func (p *parsed) String() string     { return "" }
func (p *parsed) Set(v string) error { return p.set(v) }
func (p *parsed) Type() string       { return p.kind }

// specFlags collects edits of a spec in the order of the command line. They are
// applied to what the file says.
type specFlags struct {
	file  string
	edits []func(*belljar.Spec)
}

func (f *specFlags) edit(e func(*belljar.Spec)) { f.edits = append(f.edits, e) }

// flag declares a flag that checks its value and then edits the spec.
func (f *specFlags) flag(fs *pflag.FlagSet, name, short, kind, usage string, parse func(string) (func(*belljar.Spec), error)) {
	fs.VarP(&parsed{kind: kind, set: func(v string) error {
		e, err := parse(v)
		if err == nil {
			f.edit(e)
		}
		return err
	}}, name, short, usage)
}

func (f *specFlags) size(fs *pflag.FlagSet, name, usage string, field func(*belljar.Spec) *belljar.Size) {
	f.flag(fs, name, "", "size", usage, func(v string) (func(*belljar.Spec), error) {
		n, err := belljar.ParseSize(v)
		if err == nil && n == 0 {
			err = usageError("size", "must be more than zero", "leave the flag out for no limit")
		}
		return func(s *belljar.Spec) { *field(s) = n }, err
	})
}

func (f *specFlags) duration(fs *pflag.FlagSet, name, usage string, field func(*belljar.Spec) *time.Duration) {
	f.flag(fs, name, "", "duration", usage, func(v string) (func(*belljar.Spec), error) {
		d, err := positive(v)
		return func(s *belljar.Spec) { *field(s) = d }, err
	})
}

func (f *specFlags) count(fs *pflag.FlagSet, name, usage string, field func(*belljar.Spec) *int64) {
	f.flag(fs, name, "", "int", usage, func(v string) (func(*belljar.Spec), error) {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil || n <= 0 {
			err = usageError("number", fmt.Sprintf("%q is not a whole number above zero", v), "leave the flag out for the default")
		}
		return func(s *belljar.Spec) { *field(s) = n }, err
	})
}

func (f *specFlags) text(fs *pflag.FlagSet, name, kind, usage string, field func(*belljar.Spec, string)) {
	f.flag(fs, name, "", kind, usage, func(v string) (func(*belljar.Spec), error) {
		if v == "" {
			return nil, usageError("value", "is empty", "leave the flag out for the default")
		}
		return func(s *belljar.Spec) { field(s, v) }, nil
	})
}

func positive(v string) (time.Duration, error) {
	d, err := belljar.ParseDuration(v)
	if err == nil && d == 0 {
		err = usageError("duration", "must be more than zero", "leave the flag out for no limit")
	}
	return d, err
}

// declare declares the flags that describe a sandbox.
func (f *specFlags) declare(fs *pflag.FlagSet) {
	fs.SortFlags = false
	fs.StringVarP(&f.file, "file", "f", "", "read the spec from a YAML or JSON `file` (- for stdin); flags override it")

	f.flag(fs, "cpu", "", "cores", "CPU rate: 0.5 is half a core; throttles, never kills", func(v string) (func(*belljar.Spec), error) {
		n, err := strconv.ParseFloat(v, 64)
		if err != nil || !(n > 0) || n > 1<<20 {
			err = usageError("number", fmt.Sprintf("%q is not a number of cores above zero", v), "such as 0.5 or 2")
		}
		return func(s *belljar.Spec) { s.Limits.CPU = n }, err
	})
	f.duration(fs, "cpu-time", "CPU time of the whole process tree; then it is killed", func(s *belljar.Spec) *time.Duration { return &s.Limits.CPUTime })
	f.size(fs, "memory", "memory of program and files in memory together; then it is killed", func(s *belljar.Spec) *belljar.Size { return &s.Limits.Memory })
	f.count(fs, "pids", "processes and threads (default 512)", func(s *belljar.Spec) *int64 { return &s.Limits.Pids })
	f.size(fs, "disk", "everything writable together (default 1GiB, or half the memory)", func(s *belljar.Spec) *belljar.Size { return &s.Limits.Disk })
	f.count(fs, "inodes", "files and directories (default 200000)", func(s *belljar.Spec) *int64 { return &s.Limits.Inodes })
	f.text(fs, "disk-backing", "memory|disk", "where files are kept (default memory)", func(s *belljar.Spec, v string) { s.Limits.DiskBacking = v })
	f.size(fs, "output", "stdout and stderr together; then it is killed", func(s *belljar.Spec) *belljar.Size { return &s.Limits.Output })
	f.count(fs, "open-files", "open files of a process (default 1024)", func(s *belljar.Spec) *int64 { return &s.Limits.OpenFiles })
	f.size(fs, "file-size", "size of one file", func(s *belljar.Spec) *belljar.Size { return &s.Limits.FileSize })
	f.duration(fs, "timeout", "wall clock; then it is killed", func(s *belljar.Spec) *time.Duration { return &s.Timeout })

	f.flag(fs, "env", "e", "K=V", "environment variable (repeat); nothing is inherited", func(v string) (func(*belljar.Spec), error) {
		k, val, ok := strings.Cut(v, "=")
		if !ok || k == "" {
			return nil, usageError("env", fmt.Sprintf("%q is not NAME=VALUE", v), "the host's environment is never inherited: write the value, as in --env HOME=/tmp")
		}
		return func(s *belljar.Spec) { put(&s.Env, k, val) }, nil
	})
	f.flag(fs, "mount", "v", "src:dst[:rw]", "make a host path visible, read-only unless :rw (repeat)", func(v string) (func(*belljar.Spec), error) {
		m, err := parseMount(v)
		return func(s *belljar.Spec) {
			s.Mounts = append(slices.DeleteFunc(slices.Clone(s.Mounts), func(o belljar.Mount) bool { return o.Target == m.Target }), m)
		}, err
	})
	f.text(fs, "image", "dir", "root directory (default: the host's runtime, read-only)", func(s *belljar.Spec, v string) { s.Image = v })
	f.text(fs, "workdir", "dir", "working directory inside (default /workspace)", func(s *belljar.Spec, v string) { s.WorkDir = v })
	f.text(fs, "network", "mode", "disabled, allow or proxy (default disabled)", func(s *belljar.Spec, v string) { s.Network = belljar.Network(v) })
	f.text(fs, "backend", "name", "what isolates (default native)", func(s *belljar.Spec, v string) { s.Backend = v })

	f.text(fs, "mode", "mode", "hardened, compat or dev (default hardened)", func(s *belljar.Spec, v string) { s.Isolation.Mode = belljar.Mode(v) })
	f.flag(fs, "layer", "", "layer=want", "off, prefer or require a single layer (repeat)", func(v string) (func(*belljar.Spec), error) {
		l, w, ok := strings.Cut(v, "=")
		if !ok || !slices.Contains(belljar.Layers, belljar.Layer(l)) {
			return nil, usageError("layer", fmt.Sprintf("%q does not name a layer", v), "layers: "+layerNames())
		}
		return func(s *belljar.Spec) { put(&s.Isolation.Layers, belljar.Layer(l), belljar.Want(w)) }, nil
	})
	f.text(fs, "seccomp", "profile", "default, strict or debug", func(s *belljar.Spec, v string) { s.Isolation.Seccomp = v })
	f.flag(fs, "fresh", "", "bool", "new pid, mount and ipc namespaces for each program", func(v string) (func(*belljar.Spec), error) {
		b, err := strconv.ParseBool(v)
		if err != nil {
			err = usageError("fresh", fmt.Sprintf("%q is not true or false", v), "")
		}
		return func(s *belljar.Spec) { s.Isolation.Fresh = b }, err
	})
	fs.Lookup("fresh").NoOptDefVal = "true"

	f.text(fs, "name", "name", "name of the sandbox (default: its id)", func(s *belljar.Spec, v string) { s.Name = v })
	f.flag(fs, "label", "l", "K=V", "label (repeat)", func(v string) (func(*belljar.Spec), error) {
		k, val, ok := strings.Cut(v, "=")
		if !ok || k == "" {
			return nil, usageError("label", fmt.Sprintf("%q is not NAME=VALUE", v), "")
		}
		return func(s *belljar.Spec) { put(&s.Labels, k, val) }, nil
	})
}

// lifetime declares the flags that only sandboxes that outlive a command need.
func (f *specFlags) lifetime(fs *pflag.FlagSet) {
	f.duration(fs, "ttl", "lifetime of the sandbox (default: until belljar rm)", func(s *belljar.Spec) *time.Duration { return &s.TTL })
	f.duration(fs, "idle-timeout", "end it when nothing ran for so long", func(s *belljar.Spec) *time.Duration { return &s.IdleTimeout })
}

// put sets an entry without touching a map that something else may hold.
func put[K comparable, V any](m *map[K]V, k K, v V) {
	c := make(map[K]V, len(*m)+1)
	for k, v := range *m {
		c[k] = v
	}
	c[k] = v
	*m = c
}

func layerNames() string {
	names := make([]string, len(belljar.Layers))
	for i, l := range belljar.Layers {
		names[i] = string(l)
	}
	return strings.Join(names, " ")
}

// spec returns what file and flags say together.
func (f *specFlags) spec() (belljar.Spec, error) {
	var s belljar.Spec
	if f.file != "" {
		name, data, err := f.file, []byte(nil), error(nil)
		if f.file == "-" {
			name = "stdin"
			data, err = readAll(os.Stdin)
		} else {
			data, err = os.ReadFile(f.file)
		}
		if err != nil {
			return s, &belljar.Error{Code: belljar.CodeInvalidSpec, Op: "read spec", Message: err.Error(), Err: err}
		}
		if s, err = belljar.ParseSpec(data, name); err != nil {
			return s, err
		}
	}
	for _, e := range f.edits {
		e(&s)
	}
	return s, nil
}

// parseMount reads src:dst[:rw|:ro].
func parseMount(v string) (belljar.Mount, error) {
	const hint = "write /host/path:/inside, or /host/path:/inside:rw; paths with a colon only fit into a spec file"
	parts := strings.Split(v, ":")
	bad := func() (belljar.Mount, error) {
		return belljar.Mount{}, usageError("mount", fmt.Sprintf("%q is not src:dst[:rw]", v), hint)
	}
	if len(parts) < 2 || len(parts) > 3 || parts[0] == "" || parts[1] == "" {
		return bad()
	}
	m := belljar.Mount{Target: parts[1]}
	if len(parts) == 3 {
		switch parts[2] {
		case "rw":
			m.ReadOnly = new(false)
		case "ro":
		default:
			return bad()
		}
	}
	src, err := filepath.Abs(parts[0])
	if err != nil {
		return m, err
	}
	m.Source = src
	return m, nil
}

// pair is src:dst of a copy.
type pair struct{ src, dst string }

func parsePair(v string) (pair, error) {
	i := strings.LastIndex(v, ":")
	if i <= 0 || i == len(v)-1 {
		return pair{}, usageError("copy", fmt.Sprintf("%q is not src:dst", v), "both name the copy itself, as in data.csv:/workspace/data.csv")
	}
	return pair{v[:i], v[i+1:]}, nil
}

// pairs declares a repeatable flag of copies.
func pairs(fs *pflag.FlagSet, to *[]pair, name, usage string) {
	fs.Var(&parsed{kind: "src:dst", set: func(v string) error {
		p, err := parsePair(v)
		*to = append(*to, p)
		return err
	}}, name, usage)
}
