package keeper

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A mode is who runs the keeper.
type mode struct {
	name   string
	nobody bool
}

var modes = []mode{{"root", false}, {"nobody", true}}

// live runs a test against the real program as root and as an ordinary user.
func live(t *testing.T, f func(t *testing.T, n *testNursery)) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to become nobody and to look at what is left")
	}
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) { f(t, startTest(t, m.nobody)) })
	}
}

// testNursery is a nursery whose processes carry a mark in their arguments.
type testNursery struct {
	*Conn
	t      *testing.T
	proc   *os.Process
	nobody bool
	mark   string
	ended  bool
}

func startTest(t *testing.T, nobody bool) *testNursery {
	t.Helper()
	prog, err := Program()
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	c, fd, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	peer := os.NewFile(uintptr(fd), "peer")
	defer peer.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	n := &testNursery{Conn: c, t: t, nobody: nobody, mark: fmt.Sprintf("belljar-test-%x", rand.Uint64())}
	attr := &os.ProcAttr{Dir: "/", Env: []string{}, Files: []*os.File{null, null, null, peer}, Sys: &syscall.SysProcAttr{}}
	var uid uint32
	if nobody {
		uid = 65534
		attr.Sys.Credential = &syscall.Credential{Uid: uid, Gid: uid}
	}
	if n.proc, err = os.StartProcess(fmt.Sprintf("/proc/self/fd/%d", prog.Fd()), []string{n.mark}, attr); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.end)
	var flags uint32
	if nobody {
		flags = InitRootless
	}
	if h, b := n.ask(NewMsg(MInit, 1).U32(flags, uid, uid, 1000)); h.Type != MOK {
		if f, err := ParseFail(b); err == nil && nobody {
			t.Skipf("no user namespaces for ordinary users: %s: %v", f.Step, unix.Errno(f.Errno))
		}
		t.Fatalf("M_INIT: %+v %x", h, b)
	}
	return n
}

// ask sends to the nursery and returns its answer; type 0 when it is gone.
func (n *testNursery) ask(m *Msg) (Hdr, []byte) {
	n.t.Helper()
	if err := n.Send(m); err != nil {
		return Hdr{}, nil
	}
	h, b, fds, err := n.Recv(make([]byte, 4096))
	closeAll(fds)
	if err != nil {
		return Hdr{}, nil
	}
	return h, b
}

// left lists the processes that carry the mark.
func (n *testNursery) left() []int {
	var out []int
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		if b, err := os.ReadFile(d + "/cmdline"); err == nil && bytes.Contains(b, []byte(n.mark)) {
			pid, _ := strconv.Atoi(filepath.Base(d))
			out = append(out, pid)
		}
	}
	return out
}

// end closes the connection and wants everything to go, the nursery reaped.
func (n *testNursery) end() {
	n.t.Helper()
	if n.ended {
		return
	}
	n.ended = true
	n.Conn.Close()
	if st, err := n.proc.Wait(); err != nil || !st.Exited() || st.ExitCode() != 0 {
		n.t.Errorf("nursery: %v, %v", st, err)
	}
	n.gone()
}

// gone waits, at most 10 s, until no marked process is left but the nursery.
func (n *testNursery) gone() {
	n.t.Helper()
	limit := time.Now().Add(10 * time.Second)
	for {
		left := n.left()
		if !n.ended {
			for i, p := range left {
				if p == n.proc.Pid {
					left = append(left[:i], left[i+1:]...)
					break
				}
			}
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(limit) {
			for _, p := range left {
				st, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p))
				n.t.Errorf("left behind:\n%s", st)
				_ = unix.Kill(p, unix.SIGKILL)
			}
			return
		}
		if fd, err := unix.PidfdOpen(left[0], 0); err == nil {
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 1000)
			unix.Close(fd)
		}
	}
}

// template makes template 1: the host's /usr and what init mounts upon.
func (n *testNursery) template() {
	n.t.Helper()
	var ops []Op
	for _, d := range []string{"proc", "sys", "tmp", "dev", "dev/shm", "dev/pts", "var", "var/empty", "usr", "workspace"} {
		ops = append(ops, Op{Kind: OpDir, Mode: 0o755, A: d})
	}
	for _, l := range []string{"bin", "lib", "lib64", "sbin"} {
		ops = append(ops, Op{Kind: OpLink, A: l, B: "usr/" + l})
	}
	ops = append(ops,
		Op{Kind: OpFile, Mode: 0o644, A: "dev/null"}, Op{Kind: OpBind, A: "dev/null", B: "/dev/null", Attr: AttrNoSuid | AttrNoExec},
		Op{Kind: OpBind, A: "usr", B: "/usr", Attr: AttrReadOnly | AttrNoSuid | AttrNoDev})
	if h, b := n.ask(NewMsg(MTemplate, 2).U32(1, uint32(len(ops))).Ops(ops...)); h.Type != MOK {
		f, _ := ParseFail(b)
		n.t.Fatalf("M_TEMPLATE: %+v, %s of %d: %v", h, f.Step, f.Arg, unix.Errno(f.Errno))
	}
}

const nsBase = unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP

// sandboxMsg is an ordinary M_SANDBOX; the peer is its first descriptor.
func (n *testNursery) sandboxMsg(flags uint32, fds ...int) *Msg {
	ns, uidmap := uint32(nsBase|unix.CLONE_NEWUSER), "0 1000000 65536"
	if n.nobody {
		ns, uidmap = nsBase, "-"
		flags |= SBRootless
	}
	m := NewMsg(MSandbox, 0)
	m.FDs = fds
	m.U32(flags|SBLo|SBNoDevpts, 1, ns, 0).U64(0).U32(1000, 1000, 65533, 0, 1, 2, uint32(2*len(uidmap)+2), 0)
	m.Str(uidmap, uidmap).Str("test", "size=1m,nr_inodes=100,mode=0755", "tmp")
	return m.Ops(
		Op{Kind: OpDir, Mode: 0o755, A: "workspace", B: "workspace"}, Op{Kind: OpDir, Mode: 0o1777, A: "tmp", B: "tmp"},
		Op{Kind: OpDir, A: "proc/keys"})
}

// box is a live sandbox.
type box struct {
	*Conn
	n     *testNursery
	ready Ready
	id    uint64
}

// box makes a sandbox and waits until it is up.
func (n *testNursery) box(flags uint32, fds ...int) *box {
	n.t.Helper()
	c, peer, err := Pair()
	if err != nil {
		n.t.Fatal(err)
	}
	err = n.Send(n.sandboxMsg(flags, append([]int{peer}, fds...)...))
	unix.Close(peer)
	if err != nil {
		n.t.Fatal(err)
	}
	b := &box{Conn: c, n: n}
	n.t.Cleanup(func() { c.Close() })
	h, body, got := b.recv()
	if h.Type != MReady || len(got) != 2 {
		f, _ := ParseFail(body)
		n.t.Fatalf("M_SANDBOX: %+v, %s: %v", h, f.Step, unix.Errno(f.Errno))
	}
	closeAll(got)
	if b.ready, err = ParseReady(body); err != nil {
		n.t.Fatal(err)
	}
	return b
}

// recv returns the next message; type 0 at the end.
func (b *box) recv() (Hdr, []byte, []int) {
	b.n.t.Helper()
	h, body, fds, err := b.Recv(make([]byte, 4096))
	if err == io.EOF {
		return Hdr{}, nil, nil
	}
	if err != nil {
		b.n.t.Fatal(err)
	}
	return h, body, fds
}

// send sends; a sandbox that has ended is not an error here.
func (b *box) send(m *Msg) {
	if err := b.Send(m); err != nil && err != unix.EPIPE && err != unix.ECONNRESET {
		b.n.t.Error(err)
	}
}

func (b *box) confine() *box {
	lock := uint32(LockNNP | LockCaps)
	if !b.n.nobody {
		lock |= LockIDs | LockGroups
	}
	b.send(NewMsg(MConfine, 0).U32(lock, 0))
	return b
}

type run struct {
	flags, set uint32
	uid        uint32
	timeout    time.Duration
	paths      []string
	args, env  []string
	fds        []int // stdin, stdout, stderr
}

// exec asks for an execution and returns its id.
func (b *box) exec(r run) uint64 {
	b.n.t.Helper()
	b.id++
	b.send(b.execMsg(b.id, r))
	return b.id
}

func (b *box) execMsg(id uint64, r run) *Msg {
	b.n.t.Helper()
	if r.paths == nil {
		r.paths = r.args[:1]
	}
	if r.uid == 0 {
		r.uid = 1000
	}
	if r.flags&(ExSet|ExFresh|ExOwnPid) == 0 {
		r.flags |= ExOwnPid // without a group the namespace is the kill domain
	}
	null := -1
	if r.fds == nil {
		var err error
		if null, err = unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
			b.n.t.Fatal(err)
		}
		r.fds = []int{null, null, null}
		b.n.t.Cleanup(func() { unix.Close(null) })
	}
	blob := NewMsg(0, 0).Str("/workspace").Str(r.paths...).Str(r.args...).Str(r.env...).Body()
	m := NewMsg(MExec, 0)
	m.FDs = r.fds
	m.U64(id, uint64(r.timeout)).U32(r.flags, r.set, r.uid, r.uid)
	m.U32(0, uint32(len(r.paths)), uint32(len(r.args)), uint32(len(r.env)), uint32(len(blob)), 0o022).Fixed(fmt.Sprint("x", id), IDLen)
	if r.flags&ExBlob == 0 {
		return m.Raw(blob)
	}
	fd, err := unix.MemfdCreate("blob", unix.MFD_CLOEXEC)
	if err != nil {
		b.n.t.Fatal(err)
	}
	b.n.t.Cleanup(func() { unix.Close(fd) })
	if _, err := unix.Pwrite(fd, blob, 0); err != nil {
		b.n.t.Fatal(err)
	}
	m.FDs = append([]int{fd}, m.FDs...)
	return m
}

// exited waits for the end of an execution.
func (b *box) exited(id uint64) Exited {
	b.n.t.Helper()
	h, body, fds := b.recv()
	closeAll(fds)
	x, err := ParseExited(body)
	if h.Type != MExited || err != nil || x.ID != id {
		f, _ := ParseFail(body)
		b.n.t.Fatalf("want the end of %d, got %+v %+v (%s: %v)", id, h, x, f.Step, unix.Errno(f.Errno))
	}
	return x
}

// ends wants the keeper to hang up, whatever it says before.
func (b *box) ends() (said []Type) {
	b.n.t.Helper()
	for {
		h, _, fds := b.recv()
		closeAll(fds)
		if h.Type == 0 {
			return said
		}
		said = append(said, h.Type)
	}
}

func pipe(t *testing.T) (r, w int) {
	t.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	return p[0], p[1]
}

// output runs a program and returns what it wrote and how it ended.
func (b *box) output(r run) (string, Exited) {
	b.n.t.Helper()
	pr, pw := pipe(b.n.t)
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		b.n.t.Fatal(err)
	}
	r.fds = []int{null, pw, pw}
	id := b.exec(r)
	unix.Close(pw)
	unix.Close(null)
	f := os.NewFile(uintptr(pr), "pipe")
	defer f.Close()
	out, err := io.ReadAll(f)
	if err != nil {
		b.n.t.Error(err)
	}
	return string(out), b.exited(id)
}

func keeperFDs(t *testing.T, pid int32) int {
	t.Helper()
	ents, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(ents)
}

func sh(script string) []string { return []string{"/bin/sh", "-c", script} }

func TestLiveRun(t *testing.T) {
	live(t, func(t *testing.T, n *testNursery) {
		n.template()
		b := n.box(0).confine()
		out, x := b.output(run{args: sh("echo $X; id -u; grep -E '^(Cap|NoNew)' /proc/self/status; ls /proc/self/fd; exit 3"), env: []string{"X=hello"}})
		if x.Step != 0 || x.Status>>8 != 3 || !strings.HasPrefix(out, "hello\n1000\n") {
			t.Errorf("%+v %q", x, out)
		}
		if c := strings.Count(out, "\t0000000000000000\n"); c != 5 || !strings.Contains(out, "NoNewPrivs:\t1\n") {
			t.Errorf("capabilities are left: %q", out)
		}
		if !strings.HasSuffix(out, "0\n1\n2\n3\n") { // 3 is the directory that ls reads
			t.Errorf("descriptors: %q", out)
		}
		if x := b.exited(b.exec(run{args: []string{"/nowhere/prog"}})); x.Step != StepExec || unix.Errno(x.Errno) != unix.ENOENT {
			t.Errorf("a program that is not there: %s %v", x.Step, unix.Errno(x.Errno))
		}
		if x := b.exited(b.exec(run{args: []string{"/usr"}})); x.Step != StepExec || unix.Errno(x.Errno) != unix.EACCES {
			t.Errorf("a directory: %s %v", x.Step, unix.Errno(x.Errno))
		}
		if x := b.exited(b.exec(run{args: []string{"true"}, paths: []string{"/none/true", "/usr/true", "/usr/bin/true"}})); x.Step != 0 || x.Status != 0 {
			t.Errorf("the third candidate: %+v", x)
		}
		b.send(NewMsg(MEnd, 0))
		if said := b.ends(); len(said) != 1 || said[0] != MBye {
			t.Errorf("M_END was answered by %v", said)
		}
	})
}

// TestLiveSignals: to an execution, to its own init when it has one, and to nobody.
func TestLiveSignals(t *testing.T) {
	live(t, func(t *testing.T, n *testNursery) {
		n.template()
		for name, flags := range map[string][2]uint32{"own pid": {SBOwnPids, ExOwnPid}, "fresh": {SBOwnPids, ExFresh}} {
			t.Run(name, func(t *testing.T) {
				b := n.box(flags[0]).confine()
				for _, typ := range []Type{MKill, MSignal, MRelease} {
					b.send(NewMsg(typ, 0).U64(12345).U32(9, 0)) // unknown ids are ignored
				}
				pr, pw := pipe(t)
				null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
				if err != nil {
					t.Fatal(err)
				}
				id := b.exec(run{flags: flags[1], args: sh("trap 'exit 7' TERM; sleep 1000 & echo; wait"), fds: []int{null, pw, null}})
				unix.Close(null)
				unix.Close(pw)
				if k, err := unix.Read(pr, make([]byte, 1)); k != 1 { // the trap is set
					t.Errorf("the program says nothing: %v", err)
				}
				unix.Close(pr)
				b.send(NewMsg(MSignal, 0).U64(id).U32(15, 0))
				if x := b.exited(id); x.Status>>8 != 7 {
					t.Errorf("SIGTERM did not arrive: %+v", x)
				}
				id = b.exec(run{flags: flags[1], args: []string{"/usr/bin/sleep", "1000"}})
				b.send(NewMsg(MKill, 0).U64(id).U32(0, 0))
				if x := b.exited(id); x.Status != 9 {
					t.Errorf("M_KILL: %+v", x)
				}
				id = b.exec(run{flags: flags[1], args: []string{"/usr/bin/sleep", "1000"}, timeout: 50 * time.Millisecond})
				if x := b.exited(id); x.Status != 9 || x.Flags&ExfTimeout == 0 {
					t.Errorf("deadline: %+v", x)
				}
			})
		}
	})
}

// TestLiveRefusals: what a supervisor with a bug could send, and must not get.
func TestLiveRefusals(t *testing.T) {
	live(t, func(t *testing.T, n *testNursery) {
		n.template()
		sleep := run{args: []string{"/usr/bin/sleep", "1000"}}
		for name, f := range map[string]func(b *box){
			"exec before confine": func(b *box) { b.exec(sleep) },
			"confine twice":       func(b *box) { b.confine().confine() },
			"confine with a filter of odd length": func(b *box) {
				b.send(NewMsg(MConfine, 0).U32(LockSeccomp, 5).Raw(make([]byte, 5)))
				b.exec(sleep)
			},
			"confine with a filter that is none": func(b *box) {
				b.send(NewMsg(MConfine, 0).U32(LockSeccomp|LockNNP, 8).Raw(bytes.Repeat([]byte{0xff}, 8)))
				b.exec(run{args: []string{"/usr/bin/true"}})
			},
			"set out of range": func(b *box) { b.confine().send(NewMsg(MSet, 0).U32(MaxSets, 0, 0, 0)) },
			"set without its descriptors": func(b *box) {
				b.confine().send(NewMsg(MSet, 0).U32(0, SetClone|SetKill, 0, 0))
			},
		} {
			t.Run(name, func(t *testing.T) {
				b := n.box(0)
				f(b)
				for _, s := range b.drain(t) {
					if s.Type == MExited && s.x.Step == 0 {
						t.Errorf("something ran: %+v", s.x)
					}
				}
				b.Close()
				n.gone()
			})
		}
		t.Run("executions", func(t *testing.T) {
			b := n.box(0).confine()
			id := b.exec(sleep)
			for name, m := range map[string]*Msg{
				"the id of another": b.execMsg(id, sleep),
				"uid -1":            b.execMsg(100, run{args: sleep.args, uid: ^uint32(0)}),
				"no arguments":      b.execMsg(101, run{paths: []string{"/usr/bin/true"}}),
				"set never given":   b.execMsg(102, run{args: sleep.args, flags: ExSet, set: 3}),
				"set out of range":  b.execMsg(103, run{args: sleep.args, flags: ExSet, set: ^uint32(0)}),
				"no kept ends":      b.execMsg(104, run{args: sleep.args, flags: ExKeep}),
				"blob too short":    longer(b.execMsg(105, run{args: sleep.args, flags: ExBlob})),
			} {
				b.send(m)
				h, body, _ := b.recv()
				if f, err := ParseFail(body); h.Type != MFail || err != nil || f.Step != StepProtocol {
					t.Errorf("%s: %+v %+v", name, h, f)
				}
			}
			b.send(NewMsg(MKill, 0).U64(id).U32(0, 0))
			b.exited(id) // it is still the first one's
		})
	})
}

// longer makes the blob of an execution longer than its file.
func longer(m *Msg) *Msg {
	le.PutUint32(m.b[hdrLen+48:], 1<<20)
	return m
}

type said struct {
	Type Type
	x    Exited
}

// drain reads until the keeper hangs up, or has said nothing for a while: then the
// caller closes, which must be enough.
func (b *box) drain(t *testing.T) []said {
	t.Helper()
	var out []said
	stop := time.AfterFunc(2*time.Second, func() { b.Close() })
	defer stop.Stop()
	for {
		h, body, fds := b.recv()
		closeAll(fds)
		if h.Type == 0 {
			return out
		}
		x, _ := ParseExited(body)
		out = append(out, said{h.Type, x})
	}
}

// bodies are what no message should look like.
func bodies(rng *rand.Rand) [][]byte {
	random := make([]byte, 200)
	for i := range random {
		random[i] = byte(rng.Uint32())
	}
	return [][]byte{{}, {1}, make([]byte, 8), make([]byte, 24), bytes.Repeat([]byte{0xff}, 152), random, bytes.Repeat([]byte{0xff}, 5000)}
}

// TestLiveMalformedNursery sends every type with bodies that fit none, then raw bytes.
func TestLiveMalformedNursery(t *testing.T) {
	live(t, func(t *testing.T, n *testNursery) {
		n.template()
		rng := rand.New(rand.NewPCG(1, 2))
		answers := 0
		for typ := range Type(42) {
			for _, body := range bodies(rng) {
				m := NewMsg(typ, 9).Raw(body)
				if typ == MForget || typ == MTemplate || typ == MSandbox || typ == MTops {
					continue // below: they answer elsewhere, or succeed
				}
				if h, _ := n.ask(m); h.Type != MFail {
					t.Fatalf("type %d with %d bytes: answered by %d", typ, len(body), h.Type)
				}
				answers++
			}
		}
		for _, body := range bodies(rng) {
			c, peer, err := Pair()
			if err != nil {
				t.Fatal(err)
			}
			m := NewMsg(MSandbox, 0).Raw(body)
			m.FDs = []int{peer}
			if err := n.Send(m); err != nil {
				t.Fatal(err)
			}
			unix.Close(peer)
			h, _, _, err := c.Recv(make([]byte, 4096))
			if h.Type != MFail || err != nil {
				t.Errorf("a sandbox of %d bytes: %+v, %v", len(body), h, err)
			}
			c.Close()
		}
		n.gone()
		// It still works, and has kept nothing.
		before := keeperFDs(t, int32(n.proc.Pid))
		b := n.box(0).confine()
		if out, x := b.output(run{args: sh("echo ok")}); out != "ok\n" {
			t.Errorf("after %d malformed messages: %q %+v", answers, out, x)
		}
		b.Close()
		n.gone()
		if after := keeperFDs(t, int32(n.proc.Pid)); after > before {
			t.Errorf("the nursery had %d descriptors, and has %d", before, after)
		}
		// Bytes that are no message end it.
		if err := n.Send(&Msg{b: []byte("not of this protocol, not at all")}); err != nil {
			t.Fatal(err)
		}
		if h, _, _, err := n.Recv(make([]byte, 64)); err != io.EOF {
			t.Errorf("garbage was answered by %+v, %v", h, err)
		}
	})
}

// TestLiveMalformedKeeper: a malformed message never leaves anything behind.
func TestLiveMalformedKeeper(t *testing.T) {
	live(t, func(t *testing.T, n *testNursery) {
		n.template()
		rng := rand.New(rand.NewPCG(3, 4))
		for typ := Type(14); typ < 28; typ++ {
			for i, body := range bodies(rng) {
				if i%2 == int(typ)%2 && i < 5 {
					continue // half of them: a sandbox each
				}
				b := n.box(0)
				if typ != MConfine {
					b.confine()
				}
				m := NewMsg(typ, 1).Raw(body)
				if i > 3 {
					null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
					if err != nil {
						t.Fatal(err)
					}
					for range 1 + 5*i {
						m.FDs = append(m.FDs, null)
					}
					b.send(m)
					unix.Close(null)
				} else {
					b.send(m)
				}
				if typ != MExec && typ != MHello && typ != MExpire && typ != MSocket {
					b.ends()
				}
				b.Close()
			}
		}
		n.gone()
		b := n.box(0)
		b.send(&Msg{b: []byte("not of this protocol, not at all")})
		if said := b.ends(); len(said) > 1 {
			t.Errorf("garbage was answered by %v", said)
		}
	})
}

// TestLiveClose: the supervisor goes away at every step of a sandbox's life.
func TestLiveClose(t *testing.T) {
	live(t, func(t *testing.T, n *testNursery) {
		n.template()
		rng := rand.New(rand.NewPCG(5, 6))
		steps := 0
		for range 40 { // during set-up, at whatever step it has reached
			c, peer, err := Pair()
			if err != nil {
				t.Fatal(err)
			}
			if err := n.Send(n.sandboxMsg(0, peer)); err != nil {
				t.Fatal(err)
			}
			unix.Close(peer)
			pfd := []unix.PollFd{{Fd: 0, Events: 0}}
			_, _ = unix.Ppoll(pfd[:0], &unix.Timespec{Nsec: rng.Int64N(6e6)}, nil)
			c.Close()
			steps++
		}
		for i := range 6 {
			b := n.box(0)
			if i > 0 {
				b.confine()
			}
			for range i - 1 {
				b.exec(run{args: sh("setsid sleep 1000 & exec sleep 1000")})
			}
			if i == 5 {
				b.send(NewMsg(MKill, 0).U64(1).U32(0, 0))
				b.send(NewMsg(MEnd, 0))
			}
			b.Close()
			steps++
		}
		n.gone()
		if steps != 46 {
			t.Errorf("%d steps", steps)
		}
	})
}

// TestLiveMany: 300 executions at once; descriptors do not pile up; no message is
// lost when the supervisor does not read for a while.
func TestLiveMany(t *testing.T) {
	live(t, func(t *testing.T, n *testNursery) {
		n.template()
		b := n.box(0).confine()
		before := keeperFDs(t, b.ready.Keeper)
		pr, pw := pipe(t)
		null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(null)
		const many = 300
		for range many {
			b.exec(run{args: []string{"/usr/bin/cat"}, fds: []int{pr, null, null}})
		}
		unix.Close(pr)
		b.send(NewMsg(MHello, 77))
		h, body, fds := b.recv()
		closeAll(fds)
		r, err := ParseReady(body)
		if h.Type != MState || err != nil || r.Tasks != many || len(fds) != 2 {
			t.Fatalf("M_HELLO: %+v %+v %v", h, r, err)
		}
		unix.Close(pw) // all end now, while the answer is still on its way
		told, ended := map[uint64]bool{}, map[uint64]bool{}
		for len(told) < many || len(ended) < many {
			h, body, fds := b.recv()
			closeAll(fds)
			x, err := ParseExited(body)
			if err != nil {
				t.Fatalf("%+v after %d told, %d ended", h, len(told), len(ended))
			}
			switch h.Type {
			case MTask:
				told[x.ID] = true
				if x.Flags&ExfRunning == 0 {
					ended[x.ID] = true
					b.send(NewMsg(MRelease, 0).U64(x.ID).U32(0, 0))
				}
			case MExited:
				if len(told) < many {
					t.Fatal("an end before the whole answer to M_HELLO")
				}
				ended[x.ID] = true
			default:
				t.Fatalf("%+v", h)
			}
		}
		b.send(NewMsg(MHello, 78))
		for {
			h, body, fds := b.recv()
			closeAll(fds)
			if h.Type != MState {
				continue
			}
			if r, err := ParseReady(body); err != nil || r.Tasks != 0 {
				t.Errorf("%d tasks are left, %v", r.Tasks, err)
			}
			break
		}
		if after := keeperFDs(t, b.ready.Keeper); after != before {
			t.Errorf("the keeper had %d descriptors, and has %d", before, after)
		}
	})
}

// TestLiveBlob: more arguments than a message holds.
func TestLiveBlob(t *testing.T) {
	live(t, func(t *testing.T, n *testNursery) {
		n.template()
		b := n.box(0).confine()
		args := append(sh("echo $#"), "sh")
		for range 100000 {
			args = append(args, "x")
		}
		if out, x := b.output(run{flags: ExBlob, args: args}); out != "100000\n" || x.Step != 0 {
			t.Errorf("%q %+v", out, x)
		}
		for range 4000 {
			args = append(args, strings.Repeat("y", 4000))
		}
		if out, x := b.output(run{flags: ExBlob, args: args}); x.Step != StepExec || unix.Errno(x.Errno) != unix.E2BIG {
			t.Errorf("%d bytes of output, %+v", len(out), x)
		}
	})
}

// TestLivePersist: a keeper that outlives its supervisor keeps deadlines, answers
// the next one, and ends when its time is over.
func TestLivePersist(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	n := startTest(t, false) // an ordinary user's keeper wants its own user to connect
	n.template()
	dir := t.TempDir()
	l, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	addr := &unix.SockaddrUnix{Name: filepath.Join(dir, "s")}
	if err := unix.Bind(l, addr); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(l, 8); err != nil {
		t.Fatal(err)
	}
	b := n.box(SBPersist, l).confine()
	unix.Close(l)
	pr, pw := pipe(t)
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(null)
	late := b.exec(run{args: []string{"/usr/bin/sleep", "1000"}, timeout: 100 * time.Millisecond, fds: []int{null, pw, null}})
	kr, kw := pipe(t)
	m := b.execMsg(50, run{args: []string{"/usr/bin/cat"}, flags: ExKeep, fds: []int{kr, null, null}})
	m.FDs = append(m.FDs, kw, null, null)
	b.send(m)
	unix.Close(pw)
	unix.Close(kr)
	unix.Close(kw)
	b.Close()
	// Nobody is connected: the deadline holds, seen by the end of the pipe.
	f := os.NewFile(uintptr(pr), "pipe")
	if _, err := io.ReadAll(f); err != nil {
		t.Error(err)
	}
	f.Close()

	connect := func() *box {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Connect(fd, addr); err != nil {
			t.Fatal(err)
		}
		c, err := NewConn(fd)
		if err != nil {
			t.Fatal(err)
		}
		return &box{Conn: c, n: n}
	}
	b = connect()
	b.send(NewMsg(MHello, 5))
	h, body, fds := b.recv()
	closeAll(fds)
	r, err := ParseReady(body)
	if h.Type != MState || h.Seq != 5 || err != nil || r.Tasks != 2 || len(fds) != 2 {
		t.Fatalf("M_HELLO: %+v %+v %v, %d descriptors", h, r, err, len(fds))
	}
	var kept int
	var reaped bool
	for range 2 {
		h, body, fds := b.recv()
		x, err := ParseExited(body)
		switch {
		case h.Type != MTask || err != nil:
			t.Fatalf("%+v %v", h, err)
		case x.ID == late && x.Flags&ExfTimeout == 0:
			t.Errorf("the late one: %+v", x)
		case x.ID == late:
			reaped = x.Flags&ExfRunning == 0 // its pipe ends a moment before itself
		case x.ID == 50 && (x.Flags&ExfRunning == 0 || x.Keep != 7 || len(fds) != 3 || x.Name != "x50"):
			t.Errorf("the kept one: %+v, %d descriptors", x, len(fds))
		case x.ID == 50:
			kept = fds[0]
			fds = fds[1:]
		}
		closeAll(fds)
	}
	// A second supervisor while there is one is turned away.
	other := connect()
	other.send(NewMsg(MHello, 6))
	if said := other.ends(); len(said) != 0 {
		t.Errorf("a second supervisor heard %v", said)
	}
	other.Close()
	if !reaped {
		if x := b.exited(late); x.Status != 9 || x.Flags&ExfTimeout == 0 {
			t.Errorf("the late one: %+v", x)
		}
	} else {
		b.send(NewMsg(MRelease, 0).U64(late).U32(0, 0))
	}
	unix.Close(kept) // but the keeper holds one, so it goes on
	b.send(NewMsg(MKill, 0).U64(50).U32(0, 0))
	if x := b.exited(50); x.Status != 9 {
		t.Errorf("%+v", x)
	}
	b.Close()
	b = connect()
	b.send(NewMsg(MHello, 7))
	h, body, fds = b.recv()
	closeAll(fds)
	if r, err := ParseReady(body); err != nil || r.Tasks != 1 {
		t.Errorf("%+v: %d tasks, %v; the kept end was not released", h, r.Tasks, err)
	}
	if h, _, fds := b.recv(); h.Type != MTask {
		t.Errorf("%+v", h)
	} else {
		closeAll(fds)
	}
	b.send(NewMsg(MExpire, 0).U64(1))
	if said := b.ends(); len(said) != 1 || said[0] != MBye {
		t.Errorf("M_EXPIRE: %v", said)
	}
	b.Close()
	n.gone()
}

// TestLiveSetReuse: a set cannot be replaced under an execution that runs in it.
func TestLiveSetReuse(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	root := ""
	for _, d := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(d + "/cgroup.procs"); err == nil {
			root = d
			break
		}
	}
	if root == "" {
		t.Skip("no cgroup v2 tree")
	}
	n := startTest(t, false)
	n.template()
	set := func(leaf string) *Msg {
		dir := filepath.Join(root, n.mark+leaf)
		if err := os.Mkdir(dir, 0o755); err != nil && !os.IsExist(err) {
			t.Skip(err)
		}
		t.Cleanup(func() {
			n.end()
			if err := os.Remove(dir); err != nil && !os.IsNotExist(err) {
				t.Error(err)
			}
		})
		open := func(name string, flags int) int {
			fd, err := unix.Open(filepath.Join(dir, name), flags|unix.O_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { unix.Close(fd) })
			return fd
		}
		m := NewMsg(MSet, 0).U32(4, SetClone|SetKill, 1, 0)
		m.FDs = []int{open("", unix.O_RDONLY|unix.O_DIRECTORY), open("cgroup.kill", unix.O_WRONLY), open("cgroup.events", unix.O_RDONLY), open("cgroup.procs", unix.O_WRONLY)}
		return m
	}
	b := n.box(0).confine()
	b.send(set("a"))
	out, x := b.output(run{flags: ExSet, set: 4, args: sh("(setsid sleep 1000 >/dev/null 2>&1 &) ; echo $$")})
	if x.Step != 0 || x.Status != 0 || out == "" || x.Set != 4 {
		t.Fatalf("%q %+v", out, x)
	}
	if x.Flags&ExfBurned == 0 {
		t.Errorf("the child that stayed was not killed by its group: %+v", x)
	}
	b.send(set("b")) // nobody is in it: fine; a group that was killed cannot be cloned into
	b.exec(run{flags: ExSet, set: 4, args: []string{"/usr/bin/sleep", "1000"}})
	b.send(set("b"))
	last := b.drain(t)
	if len(last) == 0 || last[0].Type != MFail {
		t.Errorf("replaced under a running execution: %+v", last)
	}
	b.Close()
	n.gone()
}
