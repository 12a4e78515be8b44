//go:build amd64 || arm64

package seccomp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A filter cannot be taken off again, so everything that installs one happens
// in a process of its own: this test binary with a mode in the environment.
const (
	envMode    = "SECCOMP_TEST_MODE"
	envProfile = "SECCOMP_TEST_PROFILE" // empty: no filter, the control
)

func TestMain(m *testing.M) {
	switch mode := os.Getenv(envMode); mode {
	case "":
		os.Exit(m.Run())
	case "exec", "calls", "controls", "kill":
		if err := child(mode); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(125)
		}
	case "innocent":
		if err := innocentGo(); err != nil {
			fmt.Fprintln(os.Stderr, "innocent:", err)
			os.Exit(1)
		}
	default:
		fmt.Fprintln(os.Stderr, "unknown mode", mode)
		os.Exit(125)
	}
}

func child(mode string) error {
	runtime.LockOSThread()
	p := Profile(os.Getenv(envProfile))
	if p != "" {
		if err := install(p); err != nil {
			return err
		}
	}
	switch mode {
	case "exec":
		path, err := exec.LookPath(os.Args[1])
		if err != nil {
			return err
		}
		env := slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "SECCOMP_TEST") })
		if path == os.Args[0] {
			env = append(env, envMode+"=innocent", envProfile+"="+string(p))
		}
		return fmt.Errorf("exec %s: %w", path, syscall.Exec(path, os.Args[1:], env))
	case "calls":
		return json.NewEncoder(os.Stdout).Encode(run(deniedRows(p)))
	case "controls":
		return json.NewEncoder(os.Stdout).Encode(run(controlRows()))
	case "kill":
		nr := 0
		if _, err := fmt.Sscan(os.Args[1], &nr); err != nil {
			return err
		}
		_, _, errno := unix.RawSyscall(uintptr(nr), 0, 0, 0)
		fmt.Println(int(errno))
	}
	return nil
}

// install confines the calling thread, and so what it executes.
func install(p Profile) error {
	prog, err := Compile(p, thisArch)
	if err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	b := prog.Bytes()
	fprog := unix.SockFprog{Len: uint16(prog.Len()), Filter: (*unix.SockFilter)(unsafe.Pointer(&b[0]))}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&fprog)))
	runtime.KeepAlive(b)
	if errno != 0 {
		return fmt.Errorf("install filter: %w", errno)
	}
	return nil
}

func lookup(name string) int {
	for _, s := range syscalls {
		if s.name == name {
			return s.nr[thisArch]
		}
	}
	return absent
}

// deniedRows are the rows of the policy that fail, so are safe to call. Linux
// 6.14 and later take uretprobe and uprobe past every filter, and raise SIGILL
// when their own trampoline is not the caller.
func deniedRows(p Profile) []policyRow {
	return slices.DeleteFunc(rows(), func(r policyRow) bool {
		if r.call == "uretprobe" || r.call == "uprobe" {
			return true
		}
		return r.want.Errno() == 0 || r.in != nil && !slices.Contains(r.in, p) || lookup(r.call) == absent
	})
}

func run(rows []policyRow) []int {
	out := make([]int, 0, len(rows))
	for _, r := range rows {
		v := r.args
		_, _, errno := unix.RawSyscall6(uintptr(lookup(r.call)), uintptr(v[0]), uintptr(v[1]), uintptr(v[2]), uintptr(v[3]), uintptr(v[4]), uintptr(v[5]))
		out = append(out, int(errno))
	}
	return out
}

// controlRows are calls whose arguments make them harmless or fail without a
// filter, too, but with another error, so that both worlds can be compared.
func controlRows() []policyRow {
	const bad, none, neg = 1, 0, ^uint64(0) // a bad pointer, null, -1
	r := []policyRow{
		{call: "unshare", args: args{0xffffffff}},
		{call: "setns", args: args{neg}},
		{call: "mount", args: args{bad, bad, bad, 0, bad}},
		{call: "umount2", args: args{bad, 0xffff}},
		{call: "pivot_root", args: args{bad, bad}},
		{call: "chroot", args: args{bad}},
		{call: "open_tree", args: args{neg, bad, 0xffffffff}},
		{call: "move_mount", args: args{neg, bad, neg, bad, 0xffffffff}},
		{call: "fsopen", args: args{bad, 0xff}},
		{call: "fsconfig", args: args{neg, 99}},
		{call: "fsmount", args: args{neg, 0xff, 0}},
		{call: "fspick", args: args{neg, bad, 0xffff}},
		{call: "mount_setattr", args: args{neg, bad, 0xffffffff, bad, 0}},
		{call: "swapon", args: args{bad, 0xffffffff}},
		{call: "swapoff", args: args{bad}},
		{call: "quotactl", args: args{0xffffffff, bad, 0, 0}},
		{call: "quotactl_fd", args: args{neg, 0, 0, 0}},
		{call: "acct", args: args{bad}},
		{call: "open_by_handle_at", args: args{neg, bad, 0}},
		{call: "name_to_handle_at", args: args{neg, bad, bad, bad, 0xffffffff}},
		{call: "fanotify_init", args: args{0xffffffff, 0}},
		{call: "fanotify_mark", args: args{neg, 0xffffffff, 0, neg, bad}},
		{call: "sysfs", args: args{99}},
		{call: "ustat", args: args{0, bad}},
		{call: "io_uring_setup", args: args{0, bad}},
		{call: "io_uring_enter", args: args{neg, 0, 0, 0xffffffff}},
		{call: "io_uring_register", args: args{neg, 0x7fffffff}},
		{call: "bpf", args: args{0xffff, bad, 8}},
		{call: "userfaultfd", args: args{0xffffffff}},
		{call: "perf_event_open", args: args{bad, neg, neg, neg, 0}},
		{call: "add_key", args: args{bad, bad, bad, 1, 0}},
		{call: "request_key", args: args{bad, bad, bad, 0}},
		{call: "keyctl", args: args{0xffff}},
		{call: "kcmp", args: args{neg, neg, 99}},
		{call: "pidfd_getfd", args: args{neg, 0, 0}},
		{call: "process_mrelease", args: args{neg, 0}},
		{call: "migrate_pages", args: args{0x7ffffffe, 0, 0, 0}},
		{call: "memfd_secret", args: args{0xffff}},
		{call: "modify_ldt", args: args{99, 0, 0}},
		{call: "iopl", args: args{99}},
		{call: "ioperm", args: args{neg, 1, 0}},
		{call: "reboot", args: args{0, 0, 0, 0}},
		{call: "kexec_load", args: args{0, 0x7fffffff, 0, 0xff}},
		{call: "kexec_file_load", args: args{neg, neg, 0, 0, 0xffff}},
		{call: "init_module", args: args{bad, 0, bad}},
		{call: "finit_module", args: args{neg, bad, 0xffff}},
		{call: "delete_module", args: args{bad, 0}},
		{call: "syslog", args: args{99}},
		{call: "settimeofday", args: args{bad, bad}},
		{call: "clock_settime", args: args{99, bad}},
		{call: "adjtimex", args: args{bad}},
		{call: "clock_adjtime", args: args{99, bad}},
		{call: "sethostname", args: args{bad, 5}},
		{call: "setdomainname", args: args{bad, 5}},
		{call: "ptrace", args: args{99999, 0x7ffffffe}},
		{call: "process_vm_readv", args: args{0x7ffffffe, bad, 1, bad, 1, 0}},
		{call: "process_vm_writev", args: args{0x7ffffffe, bad, 1, bad, 1, 0}},
		{call: "clone3", args: args{none, 0}},
		{call: "statmount", args: args{bad, bad, 0, 0}},
		{call: "listmount", args: args{bad, bad, 0, 0}},
		{call: "lsm_list_modules", args: args{bad, bad, 0}},
		{call: "file_getattr", args: args{neg, bad, bad, 0, 0}},
		{call: "memfd_create", args: args{bad, 0xffff}},
		{call: "execveat", args: args{neg, bad, bad, bad, 0x1000}},
		{call: "shmget", args: args{0, 0, 0}},
		{call: "semget", args: args{0, neg, 0}},
		{call: "msgrcv", args: args{neg, bad, 0, 0, 0}},
		{call: "mq_open", args: args{bad, 0, 0, 0}},
		{call: "mq_unlink", args: args{bad}},

		// CLONE_THREAD without CLONE_SIGHAND is no clone that any kernel makes.
		{call: "clone", args: args{0x10000}},
		{call: "clone", args: args{0x10000 | 0x8000}},
		{call: "clone", args: args{0x10000 | 0x10000000}},
		{call: "clone", args: args{0x10000 | 0x00020000}},
		{call: "clone", args: args{junk | 0x10000 | 0x40000000}},
		{call: "socket", args: args{1, 1, 0}},
		{call: "socket", args: args{2, 1, 0}},
		{call: "socket", args: args{2, 1, 262}},
		{call: "socket", args: args{2, 3, 1}},
		{call: "socket", args: args{2, 10, 3}},
		{call: "socket", args: args{10, 2, 0}},
		{call: "socket", args: args{16, 3, 0}},
		{call: "socket", args: args{16, 3, 9}},  // audit
		{call: "socket", args: args{16, 3, 12}}, // netfilter
		{call: "socket", args: args{17, 3, 0}},  // packet
		{call: "socket", args: args{38, 5, 0}},  // alg
		{call: "socket", args: args{40, 1, 0}},  // vsock
		{call: "socketpair", args: args{1, 1, 0, bad}},
		{call: "socketpair", args: args{2, 1, 0, bad}},
		{call: "ioctl", args: args{neg, 0x5412, bad}},
		{call: "ioctl", args: args{neg, junk | 0x5412, bad}},
		{call: "ioctl", args: args{neg, 0x541c, bad}},
		{call: "ioctl", args: args{neg, 0x540e, 0}},
		{call: "ioctl", args: args{neg, 0x5401, bad}},
		{call: "setrlimit", args: args{4, bad}},
		{call: "setrlimit", args: args{7, bad}},
		{call: "prlimit64", args: args{0, 4, bad, 0}},
		{call: "prlimit64", args: args{0, 4, 0, 0}},
		{call: "personality", args: args{0x400000}},
		{call: "personality", args: args{0x40000}},
		{call: "personality", args: args{0}},
		{call: "seccomp", args: args{1, 8, bad}},
		{call: "seccomp", args: args{1, 0, bad}},
		{call: "prctl", args: args{35, 99, 0, 0, 0}},
		{call: "prctl", args: args{28, 1}},
		{call: "prctl", args: args{59, 99}},
		{call: "prctl", args: args{3}},
		{call: "prctl", args: args{38, 1}},
		{call: "landlock_create_ruleset", args: args{0, 0, 1}},
		{call: "getpid"},
		{call: "madvise", args: args{0, 0, 0}},
	}
	return slices.DeleteFunc(r, func(r policyRow) bool { return lookup(r.call) == absent })
}

// spawn runs this binary in a mode.
func spawn(t *testing.T, mode string, p Profile, argv ...string) (stdout string, stderr string, state *os.ProcessState) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, argv...)
	cmd.Env = append(os.Environ(), envMode+"="+mode, envProfile+"="+string(p))
	cmd.Dir = t.TempDir()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState
}

func needSupport(t *testing.T) {
	t.Helper()
	if err := Supported(); err != nil {
		t.Skip(err)
	}
}

func errnos(t *testing.T, mode string, p Profile) []int {
	t.Helper()
	out, errs, state := spawn(t, mode, p)
	var got []int
	if err := json.Unmarshal([]byte(out), &got); err != nil || !state.Success() {
		t.Fatalf("%s under %q: %v, %v\n%s%s", mode, p, state, err, out, errs)
	}
	return got
}

// The kernel must answer every refused row of the policy as designed.
func TestKernelRefuses(t *testing.T) {
	needSupport(t)
	for _, p := range Profiles() {
		t.Run(string(p), func(t *testing.T) {
			rows := deniedRows(p)
			got := errnos(t, "calls", p)
			if len(got) != len(rows) || len(rows) < 200 {
				t.Fatalf("%d answers to %d calls", len(got), len(rows))
			}
			for i, r := range rows {
				if syscall.Errno(got[i]) != r.want.Errno() {
					t.Errorf("%s(%#x): errno %d, want %v", r.call, r.args, got[i], r.want)
				}
			}
		})
	}
}

// The same calls without the filter must end otherwise where it refuses, or
// nothing was shown, and the same where it allows.
func TestKernelControls(t *testing.T) {
	needSupport(t)
	rows := controlRows()
	free := errnos(t, "controls", "")
	for _, p := range Profiles() {
		t.Run(string(p), func(t *testing.T) {
			prog := mustCompile(t, p, thisArch)
			got := errnos(t, "controls", p)
			refusals, same := make(map[string]bool), 0
			for i, r := range rows {
				action := prog.Simulate(thisArch.Audit(), lookup(r.call), r.args)
				switch {
				case action == Allow:
					if same++; got[i] != free[i] {
						t.Errorf("%s(%#x) is allowed: errno %d, without the filter %d", r.call, r.args, got[i], free[i])
					}
				case syscall.Errno(got[i]) != action.Errno():
					t.Errorf("%s(%#x): errno %d, want %v", r.call, r.args, got[i], action)
				case got[i] == free[i]:
					t.Logf("%s(%#x): errno %d with and without the filter", r.call, r.args, got[i])
				default:
					refusals[r.call] = true
				}
			}
			t.Logf("%d system calls refused that fail otherwise without the filter, %d calls alike", len(refusals), same)
			if len(refusals) < 45 || same < 10 {
				t.Errorf("only %d system calls were shown to be refused, %d to be allowed", len(refusals), same)
			}
		})
	}
}

func TestKernelKillsForeignABI(t *testing.T) {
	needSupport(t)
	if thisArch == AMD64 {
		const x32Getpid = "1073741863" // x32Bit + 39
		for _, p := range Profiles() {
			if _, _, state := spawn(t, "kill", p, x32Getpid); signal(state) != unix.SIGSYS {
				t.Errorf("%s: x32 getpid: %v, want SIGSYS", p, state)
			}
			if out, _, state := spawn(t, "kill", p, "-1"); !state.Success() || strings.TrimSpace(out) != "38" {
				t.Errorf("%s: system call -1: %v, errno %s, want 38", p, state, out)
			}
		}
		if out, _, state := spawn(t, "kill", "", x32Getpid); !state.Success() {
			t.Errorf("without a filter: %v %s", state, out)
		}
		bin := compileC(t, "gcc", `int main(void) {
			int r; __asm__ volatile("int $0x80" : "=a"(r) : "a"(20) : "memory"); return r > 0 || r == -38 ? 0 : 1; }`)
		if _, errs, state := spawn(t, "exec", "", bin); signal(state) == unix.SIGSYS {
			t.Errorf("int 0x80 without a filter: %v %s", state, errs)
		}
		for _, p := range Profiles() {
			if _, _, state := spawn(t, "exec", p, bin); signal(state) != unix.SIGSYS {
				t.Errorf("%s: int 0x80: %v, want SIGSYS", p, state)
			}
		}
	}
}

func signal(s *os.ProcessState) syscall.Signal {
	ws := s.Sys().(syscall.WaitStatus)
	if !ws.Signaled() {
		return 0
	}
	return ws.Signal()
}

func compileC(t *testing.T, cc, source string, flags ...string) string {
	t.Helper()
	if _, err := exec.LookPath(cc); err != nil {
		t.Skipf("no C compiler: %v", err)
	}
	bin := filepath.Join(t.TempDir(), "prog")
	cmd := exec.Command(cc, append([]string{"-O1", "-o", bin, "-x", "c", "-"}, flags...)...)
	cmd.Stdin = strings.NewReader(source)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cc, err, out)
	}
	return bin
}

const innocentC = `
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static void *work(void *p) { *(int *)p = 21; return 0; }
extern char **environ;
int main(void) {
	pthread_t t; int v = 0, fd[2], st; char c = 0;
	if (pthread_create(&t, 0, work, &v) || pthread_join(t, 0)) return 1;
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, fd)) return 2;
	pid_t p = fork();
	if (p < 0) return 3;
	if (p == 0) { if (write(fd[1], "x", 1) != 1) _exit(1); _exit(v); }
	if (read(fd[0], &c, 1) != 1 || c != 'x') return 4;
	if (waitpid(p, &st, 0) != p || WEXITSTATUS(st) != 21) return 5;
	char *argv[] = {"true", 0};
	if (posix_spawnp(&p, "true", 0, 0, argv, environ) || waitpid(p, &st, 0) != p || st) return 6;
	if (system("exit 3") >> 8 != 3) return 7;
	struct timespec ts = {0, 1000};
	if (nanosleep(&ts, 0)) return 8;
	if (printf("%d\n", 2 * v) < 0) return 9;
	return 0;
}`

const innocentPython = `
import json, mmap, os, socket, ssl, sqlite3, subprocess, tempfile, threading, time, select, random, ctypes
r = []
t = threading.Thread(target=lambda: r.append(1)); t.start(); t.join()
assert r == [1]
assert subprocess.run(["sh", "-c", "echo a | cat"], capture_output=True).stdout == b"a\n"
a, b = socket.socketpair(); a.send(b"x"); assert b.recv(1) == b"x"
with tempfile.NamedTemporaryFile(dir=".") as f: f.write(b"x" * 10000); f.flush(); mmap.mmap(f.fileno(), 0).close()
pid = os.fork()
if pid == 0: os._exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
sqlite3.connect("x.db").execute("create table t(a)")
import asyncio
async def main():
    p = await asyncio.create_subprocess_exec("true"); assert await p.wait() == 0
asyncio.run(main())
`

const innocentPythonNet = innocentPython + `
import multiprocessing
s = socket.create_server(("127.0.0.1", 0)); c = socket.create_connection(s.getsockname()); c.sendall(b"x"); assert s.accept()[0].recv(1) == b"x"
socket.getaddrinfo("localhost", 80)
assert socket.if_nameindex()
multiprocessing.set_start_method("fork")
with multiprocessing.Pool(2) as p: assert p.map(abs, [-1, -2]) == [1, 2]
`

const innocentNode = `
const fs = require('fs'), cp = require('child_process'), {Worker} = require('worker_threads'), crypto = require('crypto');
fs.writeFileSync('a', 'x'); if (fs.readFileSync('a') != 'x') process.exit(1);
if (cp.execSync('echo a') != 'a\n') process.exit(2);
crypto.randomBytes(8);
fs.watch('.').close();
const w = new Worker("require('worker_threads').parentPort.postMessage(42)", {eval: true});
w.on('message', async m => { await fs.promises.readFile('a'); NET; });`

const innocentJava = `
import java.nio.file.*; import java.util.concurrent.*;
public class Hello { public static void main(String[] a) throws Exception {
	var pool = Executors.newFixedThreadPool(4);
	int v = pool.submit(() -> 42).get(); pool.shutdown();
	Files.writeString(Path.of("x"), "y");
	if (new ProcessBuilder("true").start().waitFor() != 0) System.exit(1);
	NET
	System.out.println(v);
}}`

// innocentGo is what the filtered Go program does.
func innocentGo() error {
	if err := exec.Command("true").Run(); err != nil {
		return err
	}
	if Profile(os.Getenv(envProfile)) != Strict {
		l, err := net.Listen("tcp", "127.0.0.1:0") // tries MPTCP first
		if err != nil {
			return err
		}
		go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hi") }))
		res, err := http.Get("http://" + l.Addr().String())
		if err != nil {
			return err
		}
		if b, err := io.ReadAll(res.Body); err != nil || string(b) != "hi" {
			return fmt.Errorf("body %q, %v", b, err)
		}
		if _, err := net.InterfaceAddrs(); err != nil { // NETLINK_ROUTE
			return err
		}
	}
	fmt.Println(42)
	return nil
}

// TestInnocents runs programs of every kind that a sandbox is for.
func TestInnocents(t *testing.T) {
	needSupport(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range Profiles() {
		python, nodeNet, javaNet := innocentPythonNet,
			`require('http').createServer((q, r) => r.end('hi')).listen(0, '127.0.0.1', async function () {
				const r = await fetch('http://127.0.0.1:' + this.address().port); require('os').networkInterfaces();
				if (await r.text() != 'hi') process.exit(3); console.log(m); process.exit(0) })`,
			`try (var s = new java.net.ServerSocket(0); var c = new java.net.Socket("127.0.0.1", s.getLocalPort())) { s.accept().close(); }`
		if p == Strict {
			python, nodeNet, javaNet = innocentPython, `console.log(m); process.exit(0)`, ``
		}
		// The JVM reads its source from a file.
		java := filepath.Join(t.TempDir(), "Hello.java")
		if err := os.WriteFile(java, []byte(strings.Replace(innocentJava, "NET", javaNet, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		cases := []struct {
			name string
			argv []string
			want string
		}{
			{"true", []string{"/bin/true"}, ""},
			{"shell", []string{"sh", "-c", "seq 3 | while read i; do : $i; done; (echo 4; echo 2) | tr -d '\\n' > f; cat f; rm f"}, "42"},
			{"coreutils", []string{"sh", "-c", "mkdir d && cp /etc/passwd d/a && ln -s a d/b && mv d/b d/c && sort d/c | head -1 >d/e && tar cf - d | tar tf - | wc -l && find d -type f | xargs ls -l >/dev/null && rm -r d"}, "4"},
			{"pty", []string{"script", "-qec", "stty size >/dev/null; tty", "/dev/null"}, "/dev/pts/"},
			{"python", []string{"python3", "-c", python + "print(6*7)"}, "42"},
			{"node", []string{"node", "-e", strings.Replace(innocentNode, "NET", nodeNet, 1)}, "42"},
			{"java", []string{"java", "-XX:TieredStopAtLevel=1", java}, "42"},
			{"go", []string{self}, "42"},
			{"rust", []string{"rustc", "--version"}, "rustc"},
			{"perl", []string{"perl", "-e", "print 6*7"}, "42"},
			{"git", []string{"git", "-c", "init.defaultBranch=m", "init", "."}, "Initialized"},
			{"gcc", []string{"sh", "-c", "echo 'int main(void){return 0;}' >a.c && gcc a.c && ./a.out && echo 42"}, "42"},
			{"gpg", []string{"sh", "-c", "mkdir -m 700 h && gpg --homedir h -k && echo 42"}, "42"},
			{"busybox", []string{"busybox", "expr", "6", "*", "7"}, "42"},
		}
		for _, c := range cases {
			t.Run(string(p)+"/"+c.name, func(t *testing.T) {
				if _, err := exec.LookPath(c.argv[0]); err != nil {
					t.Skip(err)
				}
				expect(t, p, c.want, c.argv...)
			})
		}
		t.Run(string(p)+"/glibc", func(t *testing.T) { expect(t, p, "42", compileC(t, "gcc", innocentC, "-pthread")) })
		t.Run(string(p)+"/musl", func(t *testing.T) { expect(t, p, "42", compileC(t, "musl-gcc", innocentC, "-static")) })
	}
}

func expect(t *testing.T, p Profile, want string, argv ...string) {
	t.Helper()
	out, errs, state := spawn(t, "exec", p, argv...)
	if state.Success() && strings.Contains(out, want) {
		return
	}
	// A program that does not run here at all says nothing about the filter.
	if o, e, free := spawn(t, "exec", "", argv...); !free.Success() {
		t.Skipf("fails without the filter, too: %v\n%s%s", free, o, e)
	}
	t.Errorf("%s: %v\n%s%s", argv[0], state, out, errs)
}

// What the profiles differ in, with real programs.
func TestProfilesDiffer(t *testing.T) {
	needSupport(t)
	gdbLike := `
#include <signal.h>
#include <stdio.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
	pid_t p = fork(); int st;
	if (p == 0) { if (ptrace(PTRACE_TRACEME, 0, 0, 0)) _exit(7); raise(SIGSTOP); _exit(0); }
	waitpid(p, &st, 0);
	if (WIFEXITED(st)) return WEXITSTATUS(st);
	ptrace(PTRACE_CONT, p, 0, 0);
	waitpid(p, &st, 0);
	return WEXITSTATUS(st);
}`
	memfd := `
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int argc, char **argv) {
	char b[65536]; long n; int in, m = memfd_create("x", MFD_CLOEXEC);
	if (argc == 1) return 0;
	if (m < 0) return 7;
	if ((in = open(argv[0], O_RDONLY)) < 0) return 8;
	while ((n = read(in, b, sizeof b)) > 0) if (write(m, b, n) != n) return 9;
	char *a[] = {"x", 0};
	syscall(SYS_execveat, m, "", a, a + 1, 0x1000);
	return 10;
}`
	for _, c := range []struct {
		name, source string
		arg          []string
		exit         map[Profile]int
	}{
		{"ptrace", gdbLike, nil, map[Profile]int{"": 0, Default: 7, Strict: 7, Debug: 0}},
		{"memfd exec", memfd, []string{"go"}, map[Profile]int{"": 0, Default: 0, Strict: 7, Debug: 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bin := compileC(t, "gcc", c.source)
			for p, want := range c.exit {
				if _, errs, state := spawn(t, "exec", p, append([]string{bin}, c.arg...)...); state.ExitCode() != want {
					t.Errorf("%q: %v, want %d %s", p, state, want, errs)
				}
			}
		})
	}
}

func TestDebugger(t *testing.T) {
	needSupport(t)
	if _, err := exec.LookPath("gdb"); err != nil {
		t.Skip(err)
	}
	expect(t, Debug, "exited normally", "gdb", "-nx", "-batch", "-ex", "run", "/bin/true")
	if out, _, _ := spawn(t, "exec", Default, "gdb", "-nx", "-batch", "-ex", "run", "/bin/true"); strings.Contains(out, "exited normally") {
		t.Errorf("a debugger works in the default profile: %s", out)
	}
}
