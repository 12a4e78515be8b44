package cell_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"belljar"
	"belljar/cell"
)

// forge lets code in a cell write frames of its own.
const forge = `
import os, json
def frame(s):
    b = s.encode() if isinstance(s, str) else s
    os.write(3, b"%d\n%s" % (len(b), b))
`

// TestHostile: a guest that speaks to the trusted side by itself loses its cell, with a
// typed error, and its sibling in the same worker notices nothing.
func TestHostile(t *testing.T) {
	sb := sandbox(t, belljar.Spec{Limits: belljar.Limits{Memory: 2 * belljar.GiB}})
	has(t, sb, "python3")
	w, err := cell.NewWorker(within(t), sb, cell.Spec{Limits: cell.Limits{Memory: 256 * belljar.MiB}}, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close(context.Background())
	sibling, err := w.Open(within(t), cell.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	exec(t, sibling, "import os\nkept = 'safe'\ndef procs(): return sum(p.isdigit() for p in os.listdir('/proc'))")
	const wait = "\nimport time; time.sleep(30)"
	for _, c := range []struct {
		name, source string
		want         error
	}{
		{"done of another operation", `frame('{"t":"done","id":999,"ok":true}')` + wait, cell.ErrProtocol},
		{"done of an earlier operation", `frame('{"t":"done","id":1,"ok":true}')` + wait, cell.ErrProtocol},
		{"another cell's id", `frame('{"t":"done","id":3,"ok":true,"cell":"SIBLING"}')` + wait, cell.ErrProtocol},
		{"a second hello", `frame('{"t":"hello","v":1,"language":"python","version":"root"}')` + wait, cell.ErrProtocol},
		{"confinement", `frame('{"t":"confinement","mode":"hardened"}')` + wait, cell.ErrProtocol},
		{"a reply", `frame('{"t":"reply","id":1,"ok":true}')` + wait, cell.ErrProtocol},
		{"huge length", `os.write(3, b"99999999\n")` + wait, cell.ErrProtocol},
		{"endless length", `os.write(3, b"1" * 100000)` + wait, cell.ErrProtocol},
		{"length of zero", `os.write(3, b"0\n")` + wait, cell.ErrProtocol},
		{"no object", `frame("[]")` + wait, cell.ErrProtocol},
		{"no JSON", `frame(b"\x00\xff" * 50)` + wait, cell.ErrProtocol},
		{"deep JSON", `frame('{"t":"post","value":' + '[' * 100000 + ']' * 100000 + '}')` + wait, cell.ErrProtocol},
		{"duplicate keys", `frame('{"t":"post","value":1,"value":2}')` + wait, cell.ErrProtocol},
		{"display of the future", `frame('{"t":"display","id":77,"data":{}}')` + wait, cell.ErrProtocol},
		{"flood of posts", "while True: frame('{\"t\":\"post\",\"value\":1}')", belljar.ErrQuotaExceeded},
		{"large posts", "while True: frame('{\"t\":\"post\",\"value\":\"' + 'x' * 1000000 + '\"}')", belljar.ErrQuotaExceeded},
		{"half a frame, then exit", `os.write(3, b"100\n{"); os._exit(0)`, cell.ErrExited},
		{"early close", `os.close(3)` + wait, cell.ErrProtocol},
		{"exit", `os._exit(0)`, cell.ErrExited},
		{"fork keeps the descriptor", "pid = os.fork()\nif pid == 0:\n    os.setsid()\n    if os.fork() == 0:\n        while True: time.sleep(1) if 'time' in globals() else None\n    os._exit(0)\nos._exit(0)", cell.ErrExited},
		{"segmentation fault", "import ctypes; ctypes.string_at(0)", cell.ErrExited},
		{"memory", "x = bytearray(1 << 30)", belljar.ErrOOM},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, err := w.Open(within(t), cell.Spec{})
			if err != nil {
				t.Fatal(err)
			}
			before := eval(t, sibling, "procs()")
			exec(t, v, forge)
			got := make(chan error, 2)
			go func() {
				if errors.Is(c.want, belljar.ErrQuotaExceeded) {
					<-v.Done() // nobody receives
					got <- v.Err()
					return
				}
				_, err := v.Recv(within(t)) // a waiter beside the operation
				got <- err
			}()
			start := time.Now()
			_, err = v.Exec(within(t), strings.ReplaceAll(c.source, "SIBLING", sibling.ID()))
			got <- err
			for range 2 {
				err := <-got
				var e *belljar.Error
				if !errors.Is(err, c.want) || !errors.As(err, &e) || e.Code == belljar.CodeInternal {
					t.Errorf("%v, want %v with a code", err, c.want)
				}
			}
			if d := time.Since(start); d > 10*time.Second {
				t.Errorf("it took %v", d)
			}
			<-v.Done()
			if _, err := v.Exec(within(t), "1"); !errors.Is(err, c.want) {
				t.Errorf("afterwards: %v", err)
			}
			if err := v.Close(within(t)); err != nil {
				t.Error(err)
			}
			if got := eval(t, sibling, "kept"); got != `"safe"` {
				t.Errorf("the sibling has %s", got)
			}
			if c.name != "fork keeps the descriptor" {
				return
			}
			// The victim itself and all that it forked are gone; a spare may have come.
			if now := eval(t, sibling, "procs()"); now > before {
				t.Errorf("%s processes before, %s after", before, now)
			}
		})
	}
	if w.Done() == nil || sibling.Err() != nil {
		t.Errorf("the sibling: %v", sibling.Err())
	}
}

// TestGuestBreaksItself: what a guest does to its own interpreter is its own loss.
func TestGuestBreaksItself(t *testing.T) {
	sb := sandbox(t, belljar.Spec{})
	has(t, sb, "python3")
	w, err := cell.NewWorker(within(t), sb, cell.Spec{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close(context.Background())
	for name, source := range map[string]string{
		"builtins":     "import builtins\nfor n in ('len', 'dict', 'isinstance', 'type', 'getattr', 'print', 'repr'): setattr(builtins, n, None)",
		"json":         "import json\njson.JSONEncoder.iterencode = json.JSONDecoder.decode = json.dumps = None",
		"traceback":    "import traceback, linecache\ntraceback.TracebackException = None; linecache.cache = None",
		"modules":      "import sys\nsys.modules.clear()",
		"os":           "import os\nos.read = os.write = os.getpid = os.fstat = None",
		"stdout":       "import sys\nsys.stdout = sys.stderr = sys.stdin = None",
		"host objects": "import gc\nfor o in gc.get_objects():\n    if type(o).__name__ == 'State': o.__dict__.clear(); break",
		"signals":      "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)",
		"recursion":    "import sys\nsys.setrecursionlimit(60)",
	} {
		t.Run(name, func(t *testing.T) {
			c, err := w.Open(within(t), cell.Spec{Limits: cell.Limits{Timeout: 5 * time.Second}})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close(context.Background())
			for _, source := range []string{source, "1/0", "1+1"} {
				_, err := c.Exec(within(t), source)
				var e *belljar.Error
				if err != nil && (!errors.As(err, &e) || e.Code == belljar.CodeInternal || c.Err() == nil) {
					t.Errorf("%s: %v, and the cell %v", source, err, c.Err())
				}
			}
			other, err := w.Open(within(t), cell.Spec{})
			if err != nil {
				t.Fatal(err)
			}
			if got := eval(t, other, "len([1]) + 1"); got != "2" {
				t.Errorf("another cell says %s", got)
			}
			if err := other.Close(within(t)); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestLimits: budgets are kept from outside, and end one cell.
func TestLimits(t *testing.T) {
	sb := sandbox(t, belljar.Spec{})
	has(t, sb, "python3")
	for _, engine := range []cell.Engine{cell.Zygote, cell.Process} {
		t.Run(string(engine), func(t *testing.T) {
			w, err := cell.NewWorker(within(t), sb, cell.Spec{Engine: engine}, 1)
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close(context.Background())
			sibling, err := w.Open(within(t), cell.Spec{})
			if err != nil {
				t.Fatal(err)
			}
			const deaf = "import signal\nfor s in (2, 15): signal.signal(s, signal.SIG_IGN)\n"
			for _, c := range []struct {
				name, source string
				limits       cell.Limits
				want         error
			}{
				{"timeout", deaf + "while True: pass", cell.Limits{Timeout: 200 * time.Millisecond}, belljar.ErrTimeout},
				{"timeout of a sleeper", deaf + "import time\ntime.sleep(60)", cell.Limits{Timeout: 200 * time.Millisecond}, belljar.ErrTimeout},
				{"cpu", deaf + "while True: pass", cell.Limits{CPUTime: 200 * time.Millisecond}, belljar.ErrCPU},
				{"cpu of children", deaf + "import os\nfor _ in range(3):\n    if os.fork() == 0:\n        os.setsid()\n        while True: pass\nimport time; time.sleep(60)", cell.Limits{CPUTime: 300 * time.Millisecond}, belljar.ErrCPU},
				{"output", "while True: print('x' * 1000)", cell.Limits{Output: belljar.MiB}, belljar.ErrOutput},
			} {
				t.Run(c.name, func(t *testing.T) {
					v, err := w.Open(within(t), cell.Spec{Limits: c.limits})
					if err != nil {
						t.Fatal(err)
					}
					start := time.Now()
					res, err := v.Exec(within(t), "print('begun')\n"+c.source)
					if !errors.Is(err, c.want) {
						t.Errorf("%v, want %v", err, c.want)
					}
					if d := time.Since(start); d > 5*time.Second {
						t.Errorf("after %v", d)
					}
					if res == nil || c.limits.Output == 0 && string(res.Stdout) != "begun\n" {
						t.Errorf("result %+v", res)
					}
					<-v.Done()
					if got := eval(t, sibling, "2+2"); got != "4" {
						t.Errorf("the sibling says %s", got)
					}
				})
			}
			// A budget is one operation's.
			v, err := w.Open(within(t), cell.Spec{Limits: cell.Limits{CPUTime: 300 * time.Millisecond}})
			if err != nil {
				t.Fatal(err)
			}
			for range 4 {
				res := exec(t, v, "import time\nend = time.process_time() + 0.12\nwhile time.process_time() < end: pass")
				if res.CPUTimeMs == nil || *res.CPUTimeMs < 100 || *res.CPUTimeMs > 300 {
					t.Errorf("used %v ms", res.CPUTimeMs)
				}
			}
		})
	}
}

// TestFloodOfOutput: what nobody reads costs the supervisor nothing.
func TestFloodOfOutput(t *testing.T) {
	sb := sandbox(t, belljar.Spec{})
	has(t, sb, "python3")
	c := open(t, sb, cell.Spec{})
	res := exec(t, c, "import sys\nb = 'x' * (1 << 20)\nfor _ in range(1024): sys.stdout.write(b)\nprint('end')")
	const total = 1<<30 + 4
	if int64(len(res.Stdout))+res.DroppedBytes != total || len(res.Stdout) != 1<<20 || !strings.HasSuffix(string(res.Stdout), "xend\n") {
		t.Errorf("%d bytes kept, %d dropped", len(res.Stdout), res.DroppedBytes)
	}
}

// TestSiblings: cells of one worker cannot signal, trace or read each other, nor each
// other's files. The controls show that each act works on what is one's own.
func TestSiblings(t *testing.T) {
	sb := sandbox(t, belljar.Spec{})
	has(t, sb, "python3")
	w, err := cell.NewWorker(within(t), sb, cell.Spec{Private: true}, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close(context.Background())
	var cells [2]*cell.Cell
	for i := range cells {
		if cells[i], err = w.Open(within(t), cell.Spec{}); err != nil {
			t.Fatal(err)
		}
	}
	victim, attacker := cells[0], cells[1]
	exec(t, victim, `
import os, socket
secret = "hunter2" * 10
open("note", "w").write(secret)
s = socket.socket(socket.AF_UNIX); s.bind("\0victim"); s.listen()
u = socket.socket(socket.AF_UNIX); u.bind("sock"); u.listen()
os.environ["SECRET"] = secret`)
	pid := eval(t, victim, "os.getpid()")
	zygote := eval(t, victim, "os.getppid()")
	dir := eval(t, victim, "os.getcwd()")
	exec(t, attacker, fmt.Sprintf(`
import os, socket, signal, ctypes, errno
victim, zygote, dir = %s, %s, %s
def tried(f, *a):
    try:
        f(*a)
    except OSError as e:
        return errno.errorcode.get(e.errno, str(e))
    return "done"
def connect(name):
    socket.socket(socket.AF_UNIX).connect(name)
libc = ctypes.CDLL(None, use_errno=True)
def raw(f, *a):
    if f(*a) == -1:
        raise OSError(ctypes.get_errno(), "")
def own():
    pid = os.fork()
    if pid == 0:
        signal.pause()
    os.kill(pid, 9); os.waitpid(pid, 0)
`, pid, zygote, dir))
	for source, want := range map[string]string{
		"tried(os.kill, victim, 9)":                                        "EPERM",
		"tried(os.kill, victim, 0)":                                        "EPERM",
		"tried(os.kill, zygote, 9)":                                        "EPERM",
		"tried(os.kill, 1, 15)":                                            "EPERM",
		"tried(own)":                                                       "done",
		"tried(open, f'/proc/{victim}/mem', 'rb')":                         "EACCES",
		"tried(open, f'/proc/{victim}/environ')":                           "EACCES",
		"tried(os.listdir, f'/proc/{victim}/fd')":                          "EACCES",
		"tried(open, f'/proc/{zygote}/mem', 'rb')":                         "EACCES",
		"tried(open, f'/proc/{victim}/status')":                            "done",
		"tried(os.listdir, f'/proc/self/fd')":                              "done",
		"tried(raw, libc.ptrace, 16, victim, 0, 0)":                        "EPERM",
		"tried(open, dir + '/note')":                                       "EACCES",
		"tried(os.listdir, dir)":                                           "EACCES",
		"tried(os.listdir, '/workspace')":                                  "EACCES",
		"tried(open, '/tmp/x', 'w')":                                       "EACCES",
		"tried(open, '/dev/shm/x', 'w')":                                   "EACCES",
		"tried(os.unlink, dir + '/note')":                                  "EACCES",
		"tried(open, 'mine', 'w')":                                         "done",
		"tried(lambda: (open('m', 'w').close(), os.rename('m', 'tmp/m')))": "done",
		"tried(connect, '\\0victim')":                                      "EPERM",
		"tried(raw, libc.shmget, 77, 4096, 0o1600)":                        "EPERM",
		"tried(raw, libc.msgget, 77, 0o1600)":                              "EPERM",
		"tried(raw, libc.semget, 77, 1, 0o1600)":                           "EPERM",
		"tried(open, '/dev/null', 'w')":                                    "done",
		"tried(open, '/etc/passwd')":                                       "done",
		"tried(lambda: __import__('subprocess').check_call('true'))":       "done",
	} {
		if got := eval(t, attacker, source); got != `"`+want+`"` {
			t.Errorf("%s: %s, want %s", source, got, want)
		}
	}
	// A program that the attacker starts has no more.
	res := exec(t, attacker, fmt.Sprintf("import subprocess; subprocess.run(['sh', '-c', 'kill -9 %s; cat %s/note; ls /tmp'])", pid, strings.Trim(dir, `"`)))
	if strings.Contains(string(res.Stdout), "hunter2") {
		t.Errorf("it read %q", res.Stdout)
	}
	if got := eval(t, victim, "secret[:7]"); got != `"hunter2"` {
		t.Errorf("the victim has %s", got)
	}
	// The victim's own directory goes with it.
	if err := victim.Close(within(t)); err != nil {
		t.Error(err)
	}
	if _, err := sb.Stat(strings.Trim(dir, `"`)); !errors.Is(err, belljar.ErrFS) && err == nil {
		t.Errorf("%s is left", dir)
	}
	if got := eval(t, attacker, "1+1"); got != "2" {
		t.Errorf("the other cell says %s", got)
	}
}

// TestUnisolated shows that the parting is what parts: another execution of the same
// sandbox, which is in no domain of its own, can signal a cell.
func TestUnisolated(t *testing.T) {
	sb := sandbox(t, belljar.Spec{})
	has(t, sb, "python3")
	c := open(t, sb, cell.Spec{Private: true})
	pid := eval(t, c, "import os; os.getpid()")
	res, err := sb.Shell("kill -9 " + pid).Run(within(t))
	if err != nil || res.ExitCode != 0 {
		t.Fatalf("%+v, %v", res, err)
	}
	<-c.Done()
	if !errors.Is(c.Err(), cell.ErrExited) {
		t.Errorf("the cell: %v", c.Err())
	}
	// Its memory nobody reads, all the same: it is not dumpable.
	c = open(t, sb, cell.Spec{Engine: cell.Zygote})
	pid = eval(t, c, "import os; os.getpid()")
	if res, err := sb.Shell("cat /proc/" + pid + "/environ").Run(within(t)); err != nil || res.ExitCode == 0 {
		t.Errorf("another execution reads a cell's environment: %+v, %v", res, err)
	}
	if res, err := sb.Shell("cat /proc/self/environ").Run(within(t)); err != nil || res.ExitCode != 0 {
		t.Errorf("control: %+v, %v", res, err)
	}
}

// TestWorkerDies: every waiter hears of it.
func TestWorkerDies(t *testing.T) {
	for name, kill := range map[string]func(t *testing.T, sb *belljar.Sandbox, zygote string){
		"zygote": func(t *testing.T, sb *belljar.Sandbox, zygote string) {
			if res, err := sb.Shell("kill -9 " + zygote).Run(within(t)); err != nil || res.ExitCode != 0 {
				t.Errorf("%+v, %v", res, err)
			}
		},
		"sandbox": func(t *testing.T, sb *belljar.Sandbox, _ string) {
			if err := sb.Destroy(within(t)); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			sb := sandbox(t, belljar.Spec{})
			has(t, sb, "python3")
			w, err := cell.NewWorker(within(t), sb, cell.Spec{}, 2)
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close(context.Background())
			got := make(chan error, 6)
			var zygote string
			for range 3 {
				c, err := w.Open(within(t), cell.Spec{})
				if err != nil {
					t.Fatal(err)
				}
				zygote = eval(t, c, "import os, time; os.getppid()")
				go func() {
					_, err := c.Exec(within(t), "time.sleep(60)")
					got <- err
				}()
				go func() {
					_, err := c.Recv(within(t))
					got <- err
				}()
			}
			kill(t, sb, zygote)
			for range 6 {
				if err := <-got; !errors.Is(err, cell.ErrWorkerDied) || !errors.Is(err, belljar.ErrUnavailable) {
					t.Errorf("a waiter got %v", err)
				}
			}
			if _, err := w.Open(within(t), cell.Spec{}); !errors.Is(err, cell.ErrWorkerDied) && !errors.Is(err, belljar.ErrUnavailable) {
				t.Errorf("open: %v", err)
			}
		})
	}
}
