package cell_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"belljar"
	"belljar/backend/native"
	"belljar/cell"
	"belljar/cell/celltest"
)

const limit = 60 * time.Second

// newRuntime makes a runtime that is closed with the test.
func newRuntime(t testing.TB) *belljar.Runtime {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("cells are placed in control groups, which needs root or a delegated cgroup")
	}
	rt, err := belljar.New(context.Background(), belljar.Config{}, native.New(native.Config{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rt.Close(context.Background()); err != nil {
			t.Errorf("close the runtime: %v", err)
		}
	})
	return rt
}

func sandbox(t testing.TB, spec belljar.Spec) *belljar.Sandbox {
	t.Helper()
	sb, err := newRuntime(t).Create(context.Background(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

// has skips where the sandbox lacks a program.
func has(t testing.TB, sb *belljar.Sandbox, name string) {
	t.Helper()
	if res, err := sb.Command(name, "-c", "").Run(context.Background()); err != nil || res.ExitCode != 0 && name == "python3" {
		t.Skipf("no %s in the sandbox: %v", name, err)
	}
}

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return ctx
}

func open(t testing.TB, sb *belljar.Sandbox, spec cell.Spec) *cell.Cell {
	t.Helper()
	c, err := cell.Open(within(t), sb, spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// exec runs source that has to come to its end without raising.
func exec(t testing.TB, c *cell.Cell, source string) *cell.Result {
	t.Helper()
	res, err := c.Exec(within(t), source)
	if err != nil {
		t.Fatalf("%.100s: %v", source, err)
	}
	if res.Exception != nil {
		t.Fatalf("%.100s: %v\n%s\n%s", source, res.Exception, strings.Join(res.Exception.Traceback, "\n"), res.Stderr)
	}
	return res
}

func eval(t testing.TB, c *cell.Cell, source string) string {
	t.Helper()
	return string(exec(t, c, source).Value)
}

// TestConformance is what every language and engine does alike.
func TestConformance(t *testing.T) {
	celltest.Run(t, sandbox(t, belljar.Spec{}))
}

// TestPython is what Python does beyond the others.
func TestPython(t *testing.T) {
	sb := sandbox(t, belljar.Spec{})
	has(t, sb, "python3")
	c := open(t, sb, cell.Spec{Imports: []string{"math", "asyncio", "os", "sys"}})
	ctx := within(t)

	if res := exec(t, c, "import math\n[math.floor(2.5), None]"); res.Data.Text("text/plain") != "[2, None]" || string(res.Value) != "[2,null]" {
		t.Errorf("%v %s", res.Data, res.Value)
	}
	if got := eval(t, c, "import asyncio\nawait asyncio.sleep(0, 7)"); got != "7" {
		t.Errorf("await gives %s", got)
	}
	raises := func(source, name, message string) *cell.Exception {
		t.Helper()
		res, err := c.Exec(ctx, source)
		if err != nil || res.Exception == nil || res.Exception.Name != name || !strings.Contains(res.Exception.Message, message) {
			t.Errorf("%s: %+v, %v", source, res.Exception, err)
			return &cell.Exception{}
		}
		return res.Exception
	}
	raises("import socket", "ImportError", "not among the imports")
	raises("input('name? ')", "EOFError", "no input")
	raises("import sys; sys.exit(3)", "SystemExit", "3")
	raises("def f(:", "SyntaxError", "")
	raises("float('nan'); cell.post(float('nan'))", "ValueError", "")
	raises("cell.post('x' * (1 << 21))", "ValueError", "fit into a frame")
	raises("def deep(): return deep()\ndeep()", "RecursionError", "")
	x := raises("def a():\n    1/0\ndef b():\n    a()\nb()", "ZeroDivisionError", "division")
	text := strings.Join(x.Traceback, "\n")
	if !strings.Contains(text, "in a") || !strings.Contains(text, "1/0") || strings.Contains(text, "belljar") || strings.Count(text, "File ") != 3 {
		t.Errorf("the traceback is not that of user code:\n%s", text)
	}
	if res := exec(t, c, "'x' * 3_000_000"); len(res.Data.Text("text/plain")) > 1<<17 || res.Value != nil {
		t.Errorf("a large value has %d characters", len(res.Data.Text("text/plain")))
	}
	// Contexts have variables of their own.
	if _, err := c.Run(ctx, cell.Exec{Source: "y = 1", Context: "other"}); err != nil {
		t.Error(err)
	}
	raises("y", "NameError", "y")
	if got := strings.Join(c.Contexts(), ","); got != ",other" {
		t.Errorf("contexts %q", got)
	}
	// Output of children, and of a fork that comes back into the host.
	res := exec(t, c, "import os\nif os.fork() == 0:\n    print('child')\nelse:\n    os.wait(); print('parent')")
	if string(res.Stdout) != "child\nparent\n" {
		t.Errorf("%q", res.Stdout)
	}
	if got := eval(t, c, "1 + 1"); got != "2" {
		t.Errorf("after a fork of user code 1 + 1 is %s", got)
	}
	// What is closed is there again for the next.
	exec(t, c, "import os\nos.close(1)")
	if got := string(exec(t, c, "print('again')").Stdout); got != "again\n" {
		t.Errorf("%q", got)
	}
	if got := eval(t, c, "import sys\nsys.argv"); got != `[""]` {
		t.Errorf("argv is %s", got)
	}
}

// TestPythonVersions runs the host on interpreters of other versions, which the
// environment names as directories separated by colons.
func TestPythonVersions(t *testing.T) {
	dirs := os.Getenv("BELLJAR_PYTHONS")
	if dirs == "" {
		t.Skip("BELLJAR_PYTHONS names no installation prefixes")
	}
	for dir := range strings.SplitSeq(dirs, ":") {
		t.Run(dir[strings.LastIndex(dir, "/")+1:], func(t *testing.T) {
			sb := sandbox(t, belljar.Spec{Mounts: []belljar.Mount{{Source: dir, Target: "/opt/python"}}, Env: map[string]string{"LD_LIBRARY_PATH": "/opt/python/lib"}})
			for _, engine := range []cell.Engine{cell.Zygote, cell.Process} {
				c := open(t, sb, cell.Spec{Program: "/opt/python/bin/python3", Engine: engine, Private: true})
				exec(t, c, "import asyncio\nasync def f(): return 5")
				for source, want := range map[string]string{"1+1": "2", "await f()": "5", "import os; os.getcwd().startswith('/workspace/.cell-')": "true"} {
					if got := eval(t, c, source); got != want {
						t.Errorf("%s: %s is %s", engine, source, got)
					}
				}
				res, err := c.Exec(within(t), "try:\n    1/0\nexcept Exception as e:\n    raise KeyError('k') from e")
				if err != nil || res.Exception == nil || strings.Contains(strings.Join(res.Exception.Traceback, ""), "belljar") {
					t.Errorf("%s: %+v, %v", engine, res, err)
				}
			}
		})
	}
}

// TestForkHazards: what a fork would share with its siblings, it does not.
func TestForkHazards(t *testing.T) {
	sb := sandbox(t, belljar.Spec{})
	has(t, sb, "python3")
	w, err := cell.NewWorker(within(t), sb, cell.Spec{Preload: []string{"random", "uuid", "tempfile", "logging", "secrets"}}, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close(context.Background())
	const source = `import random, uuid, tempfile, logging, time, os
def look():
    return [random.random(), str(uuid.uuid4()), next(tempfile._get_candidate_names())]
def state():
    fds = sorted(int(f) for f in os.listdir("/proc/self/fd"))
    r = logging.makeLogRecord({})
    return dict(fds=fds, cpu=time.process_time(), threads=len(os.listdir("/proc/self/task")), sid=os.getsid(0) == os.getpid(),
        born=logging.LogRecord("n", 20, "p", 1, "m", (), None).relativeCreated)`
	seen := map[string]bool{}
	time.Sleep(1100 * time.Millisecond) // the zygote gets old
	for range 5 {
		c, err := w.Open(within(t), cell.Spec{})
		if err != nil {
			t.Fatal(err)
		}
		exec(t, c, source)
		var got []any
		if err := json.Unmarshal([]byte(eval(t, c, "look()")), &got); err != nil {
			t.Fatal(err)
		}
		for _, v := range got {
			k := fmt.Sprint(v)
			if seen[k] {
				t.Errorf("two forks have %s", k)
			}
			seen[k] = true
		}
		var s struct {
			Fds     []int
			CPU     float64
			Threads int
			Sid     bool
			Born    float64
		}
		if err := json.Unmarshal([]byte(eval(t, c, "state()")), &s); err != nil {
			t.Fatal(err)
		}
		// Streams, channel, two spares, and the directory that is being listed.
		if want := fmt.Sprint([]int{0, 1, 2, 3, 4, 100, 101}); fmt.Sprint(s.Fds) != want {
			t.Errorf("descriptors %v, want %s", s.Fds, want)
		}
		if s.CPU > 0.05 || s.Threads != 1 || !s.Sid {
			t.Errorf("%+v", s)
		}
		if err := c.Close(within(t)); err != nil {
			t.Error(err)
		}
	}
}

// TestPreloadRefused: what cannot be forked is refused with its name.
func TestPreloadRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"threaded.py": "import threading, time\nthreading.Thread(target=time.sleep, args=(100,), daemon=True).start()\n",
		"faulty.py":   "raise RuntimeError('not today')\n",
		"fatal.py":    "import os, sys\nprint('good bye', file=sys.stderr, flush=True)\nos._exit(3)\n",
	} {
		if err := os.WriteFile(dir+"/"+name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	plain := sandbox(t, belljar.Spec{})
	has(t, plain, "python3")
	where, _, err := plain.Command("python3", "-I", "-c", "import sys; print([p for p in sys.path if p.endswith('-packages')][-1], end='')").Output(within(t))
	if err != nil || len(where) == 0 {
		t.Skipf("no place for packages: %v", err)
	}
	sb := sandbox(t, belljar.Spec{Mounts: []belljar.Mount{{Source: dir, Target: string(where)}}})
	for module, why := range map[string]string{
		"threaded":       "preload threaded: it started 1 threads",
		"faulty":         "preload faulty: RuntimeError: not today",
		"fatal":          "ended before it was ready: good bye",
		"no_such_module": "preload no_such_module: ModuleNotFoundError",
	} {
		_, err := cell.Open(within(t), sb, cell.Spec{Preload: []string{module}})
		if !errors.Is(err, belljar.ErrExecFailed) || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, want %q", module, err, why)
		}
	}
}

// TestSpecRefused: nothing is guessed and nothing left out.
func TestSpecRefused(t *testing.T) {
	sb := sandbox(t, belljar.Spec{})
	for name, c := range map[string]struct {
		spec cell.Spec
		want error
	}{
		"language":      {cell.Spec{Language: "perl"}, belljar.ErrInvalidSpec},
		"engine":        {cell.Spec{Engine: "thread"}, belljar.ErrInvalidSpec},
		"zygote":        {cell.Spec{Language: cell.Shell, Engine: cell.Zygote}, belljar.ErrInvalidSpec},
		"private":       {cell.Spec{Language: cell.JavaScript, Private: true}, belljar.ErrInvalidSpec},
		"imports":       {cell.Spec{Language: cell.Shell, Imports: []string{"os"}}, belljar.ErrInvalidSpec},
		"dotted import": {cell.Spec{Imports: []string{"os.path"}}, belljar.ErrInvalidSpec},
		"preload":       {cell.Spec{Preload: []string{"os; import sys"}}, belljar.ErrInvalidSpec},
		"no preload":    {cell.Spec{Engine: cell.Process, Preload: []string{"os"}}, belljar.ErrInvalidSpec},
		"negative":      {cell.Spec{Limits: cell.Limits{Timeout: -1}}, belljar.ErrInvalidSpec},
		"frame":         {cell.Spec{Limits: cell.Limits{Frame: 10}}, belljar.ErrInvalidSpec},
		"env":           {cell.Spec{Env: map[string]string{"A=B": ""}}, belljar.ErrInvalidSpec},
		"dir":           {cell.Spec{Dir: "/no/such"}, belljar.ErrExecFailed},
		"program":       {cell.Spec{Engine: cell.Process, Program: "/no/such"}, belljar.ErrExecFailed},
		"no zygote":     {cell.Spec{Engine: cell.Zygote, Program: "/no/such"}, belljar.ErrExecFailed},
		"no python":     {cell.Spec{Engine: cell.Process, Program: "/bin/false"}, belljar.ErrExecFailed},
	} {
		if _, err := cell.Open(within(t), sb, c.spec); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if n := len(sb.Executions()); n != 0 {
		t.Errorf("%d executions are left", n)
	}
}

// TestIdleMemory is what a cell costs that does nothing.
func TestIdleMemory(t *testing.T) {
	sb := sandbox(t, belljar.Spec{})
	has(t, sb, "python3")
	c := open(t, sb, cell.Spec{Engine: cell.Zygote})
	exec(t, c, "x = 1")
	private, err := strconv.Atoi(eval(t, c, `sum(int(l.split()[1]) for l in open("/proc/self/smaps_rollup") if l.startswith("Private_"))
`))
	if err != nil {
		t.Skipf("smaps: %v", err)
	}
	t.Logf("%d KiB private", private)
	if private > 6<<10 {
		t.Errorf("%d KiB private, at most 6 MiB", private)
	}
}

// TestRichLibraries shows what libraries for figures and tables make, from a directory
// of packages that the environment names.
func TestRichLibraries(t *testing.T) {
	dir := os.Getenv("BELLJAR_PYTHON_PACKAGES")
	if dir == "" {
		t.Skip("BELLJAR_PYTHON_PACKAGES names no directory")
	}
	plain := sandbox(t, belljar.Spec{})
	where, _, err := plain.Command("python3", "-I", "-c", "import sys; print([p for p in sys.path if p.endswith('-packages')][0], end='')").Output(within(t))
	if err != nil {
		t.Fatal(err)
	}
	sb := sandbox(t, belljar.Spec{Mounts: []belljar.Mount{{Source: dir, Target: string(where)}}})
	c := open(t, sb, cell.Spec{Preload: []string{"numpy", "pandas", "matplotlib.pyplot"}, Private: true})
	res := exec(t, c, "import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.figure(); plt.plot([2, 1])\nNone")
	if len(res.Displays) != 2 || !strings.HasPrefix(res.Displays[1].Text("image/png"), "iVBOR") {
		t.Errorf("%d figures", len(res.Displays))
	}
	if res := exec(t, c, "None"); len(res.Displays) != 0 {
		t.Errorf("%d figures are shown again", len(res.Displays))
	}
	if res := exec(t, c, "import pandas as pd\npd.DataFrame({'a': [1]})"); !strings.Contains(res.Data.Text("text/html"), "<table") {
		t.Errorf("%v", res.Data)
	}
	if res := exec(t, c, "import plotly.graph_objects as go\ngo.Figure(go.Scatter(y=[1]))"); res.Data["application/vnd.plotly.v1+json"] == nil {
		t.Errorf("%v", res.Data.Text("text/plain"))
	}
	if got := eval(t, c, "import numpy as np\nsum(np.arange(4).tolist())"); got != "6" {
		t.Errorf("%s", got)
	}
	if v, err := c.Call(within(t), "np.arange", []any{3}, nil); err != nil || string(v) != "[0,1,2]" {
		t.Errorf("%s, %v", v, err)
	}
	other := eval(t, c, "float(np.random.random())")
	if err := c.Reset(within(t)); err != nil {
		t.Fatal(err)
	}
	if got := eval(t, c, "import numpy as np\nfloat(np.random.random())"); got == other {
		t.Errorf("two forks have the random number %s", got)
	}
}

// TestNothingLeft: cells that came and went leave neither descriptors nor goroutines nor
// processes, however they ended.
func TestNothingLeft(t *testing.T) {
	sb := sandbox(t, belljar.Spec{})
	has(t, sb, "python3")
	count := func() (fds, routines int) {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries), runtime.NumGoroutine()
	}
	round := func(n int) {
		for _, engine := range []cell.Engine{cell.Zygote, cell.Process} {
			w, err := cell.NewWorker(within(t), sb, cell.Spec{Engine: engine}, 2)
			if err != nil {
				t.Fatal(err)
			}
			for i := range n {
				c, err := w.Open(within(t), cell.Spec{Limits: cell.Limits{Timeout: 100 * time.Millisecond}})
				if err != nil {
					t.Fatal(err)
				}
				source := []string{"1", "while True: pass", "import os; os._exit(1)", "import os; os.write(3, b'x')", "raise KeyError"}[i%5]
				_, _ = c.Exec(within(t), source) // how it ends is tested elsewhere
				if i%2 == 0 {
					if err := c.Close(within(t)); err != nil {
						t.Error(err)
					}
				}
			}
			if err := w.Close(within(t)); err != nil {
				t.Error(err)
			}
		}
	}
	round(1) // what is made once
	fds, routines := count()
	round(10)
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		f, r := count()
		// Control groups that are kept for the next hold some descriptors each.
		if f <= fds+60 && r <= routines+1 {
			break
		}
		if time.Now().After(end) {
			t.Errorf("%d descriptors and %d goroutines, %d and %d before", f, r, fds, routines)
			break
		}
	}
	if n := len(sb.Executions()); n != 0 {
		t.Errorf("%d executions are left", n)
	}
	res, err := sb.Shell("for p in /proc/[0-9]*; do echo; done").Run(within(t))
	if err != nil || strings.Count(string(res.Stdout), "\n") > 2 {
		t.Errorf("processes are left: %q, %v", res.Stdout, err)
	}
}
