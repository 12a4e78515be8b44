package keeper

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// goConsts reads the integer constants of proto.go, names in lower case.
func goConsts(t *testing.T) map[string]uint64 {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "proto.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]uint64{}
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, s := range g.Specs {
			v := s.(*ast.ValueSpec)
			for i, n := range v.Names {
				lit, ok := v.Values[i].(*ast.BasicLit)
				if !ok {
					t.Fatalf("%s is not a literal", n.Name)
				}
				x, err := strconv.ParseUint(lit.Value, 0, 64)
				if err != nil {
					t.Fatal(err)
				}
				out[strings.ToLower(n.Name)] = x
			}
		}
	}
	return out
}

var define = regexp.MustCompile(`(?m)^#define (\w+) (0x[0-9a-fA-F]+|\d+)u?\b`)

// cConsts reads the integer constants of a header by name.
func cConsts(t *testing.T, file string) map[string]uint64 {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("src", file))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]uint64{}
	for _, m := range define.FindAllStringSubmatch(string(b), -1) {
		x, err := strconv.ParseUint(m[2], 0, 64)
		if err != nil {
			t.Fatal(err)
		}
		out[m[1]] = x
	}
	return out
}

func flat(s string) string { return strings.ToLower(strings.ReplaceAll(s, "_", "")) }

// TestConstants compares both sides' constants, whole and both ways.
func TestConstants(t *testing.T) {
	g, c := goConsts(t), cConsts(t, "proto.h")
	if len(c) < 60 {
		t.Fatalf("only %d constants found in proto.h", len(c))
	}
	if c["SB_PROCS_MASK"] != 0xf<<SBProcsShift {
		t.Errorf("SB_PROCS_MASK = %#x is not four bits at SBProcsShift", c["SB_PROCS_MASK"])
	}
	delete(c, "SB_PROCS_MASK")
	for name, v := range c {
		if got, ok := g[flat(name)]; !ok || got != v {
			t.Errorf("%s is %d in proto.h and %d (present: %v) in proto.go", name, v, got, ok)
		}
		delete(g, flat(name))
	}
	delete(g, "hdrlen")
	for name := range g {
		if strings.HasPrefix(name, "attr") || strings.HasPrefix(name, "step") {
			delete(g, name) // compared below
		}
	}
	if len(g) > 0 {
		t.Errorf("only in proto.go: %v", g)
	}
	s, err := os.ReadFile("src/sys.h")
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range map[string]int{"RDONLY": AttrReadOnly, "NOSUID": AttrNoSuid, "NODEV": AttrNoDev, "NOEXEC": AttrNoExec} {
		if !regexp.MustCompile(fmt.Sprintf(`\bMOUNT_ATTR_%s( =)? %d\b`, name, v)).Match(s) {
			t.Errorf("MOUNT_ATTR_%s is not %d in sys.h", name, v)
		}
	}
}

// TestSteps compares the numbers of the steps and their count, and looks at names.
func TestSteps(t *testing.T) {
	b, err := os.ReadFile("src/proto.h")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?s)enum \{(.*?)\}`).FindSubmatch(b)
	if m == nil {
		t.Fatal("no enum in proto.h")
	}
	steps := map[string]uint64{}
	var order []string
	for _, w := range strings.Split(string(m[1]), ",") {
		w = strings.TrimSpace(w)
		steps[strings.TrimPrefix(w, "ST_")] = uint64(len(order))
		order = append(order, w)
	}
	if order[len(order)-1] != "ST_LAST" || len(order)-1 != len(stepNames) {
		t.Errorf("%d steps in proto.h, %d names in proto.go", len(order)-1, len(stepNames))
	}
	for name, v := range goConsts(t) {
		n, ok := strings.CutPrefix(name, "step")
		if !ok {
			continue
		}
		found := false
		for c, x := range steps {
			if flat(c) == n {
				found = x == v
			}
		}
		if !found {
			t.Errorf("%s = %d has another number in proto.h", name, v)
		}
	}
	// One name out of every row, so that a step in the middle cannot shift the rest.
	for c, want := range map[string]string{
		"NONE": "none", "OP_LINK": "make link", "FORK": "fork keeper", "PROC": "mount proc", "MOUNT_TARGET": "mount target", "LOOPBACK": "loopback up",
		"ENTER": "enter namespaces", "NO_SLOT": "execution table full", "TTY": "controlling terminal", "RLIMIT": "set rlimit", "NNP": "no_new_privs",
		"DIR": "working directory", "EXEC": "execve", "EPOLL": "epoll",
	} {
		if i, ok := steps[c]; !ok || Step(i).String() != want {
			t.Errorf("ST_%s (%d) is called %q, want %q", c, i, Step(i), want)
		}
	}
	seen := map[string]bool{}
	for _, n := range stepNames {
		if n == "" || seen[n] {
			t.Errorf("step name %q is empty or not unique", n)
		}
		seen[n] = true
	}
	for _, s := range []Step{-1, Step(len(stepNames)), 1 << 30} {
		if want := fmt.Sprintf("step %d", int32(s)); s.String() != want {
			t.Errorf("%q, want %q", s, want)
		}
	}
	// Every step that is declared is used, or it tells nobody anything.
	src, err := os.ReadFile("src/keeper.c")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range order {
		if s != "ST_NONE" && s != "ST_LAST" && !regexp.MustCompile(`\b`+s+`\b`).Match(src) {
			t.Errorf("%s is never reported", s)
		}
	}
}

func gcc(t *testing.T) string {
	t.Helper()
	p, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("no gcc: ", err)
	}
	return p
}

const layoutC = `
#include "proto.h"
int printf(const char *, ...);
static void out(const char *name, const void *p, unsigned n) {
	const unsigned char *b = p;
	printf("%s ", name);
	for (unsigned i = 0; i < n; i++) printf("%02x", b[i]);
	printf("\n");
}
#define HDR(m, t) m.h.magic = MAGIC; m.h.version = VERSION; m.h.type = t; m.h.len = sizeof m; m.h.seq = 7
int main(void) {
	static struct ok_msg o; HDR(o, M_OK); o.value = 0x01020304; out("ok", &o, sizeof o);
	static struct fail_msg f; HDR(f, M_FAIL); f.step = 53; f.err = 2; f.id = 0x1122334455667788ULL; f.arg = 9; out("fail", &f, sizeof f);
	static struct ready_msg r; HDR(r, M_READY); r.keeper = 11; r.init = 12; for (int i = 0; i < 8; i++) r.ns[i] = 100 + i; r.ntasks = 13; out("ready", &r, sizeof r);
	static struct task_msg t; HDR(t, M_OOM); t.id = 0xa1a2a3a4a5a6a7a8ULL; t.sig = 15; t.tree = 1; out("task", &t, sizeof t);
	static struct exited_msg x; HDR(x, M_EXITED);
	x.id = 1; x.started = 2; x.exited = 3; x.reaped = 4; x.utime = 5; x.stime = 6; x.maxrss = 7; x.pid = 8; x.status = 9; x.step = 10; x.err = 11;
	x.flags = 12; x.set = 13; x.keep = 14; memcpy(x.name, "name", 4); out("exited", &x, sizeof x);
	static struct { struct op o; char a[4], b[4]; } op = {{OP_BIND, 0750, 5, 4, 4, 77, 88, OP_NONREC, 2}, "/a/", "/b/"}; out("op", &op, sizeof op);
	static struct { struct exec_msg m; struct rlim r; } e; HDR(e.m, M_EXEC); e.m.h.len = sizeof e;
	e.m.id = 1; e.m.timeout = 2; e.m.flags = 3; e.m.set = 4; e.m.uid = 5; e.m.gid = 6; e.m.nlimits = 1; e.m.npaths = 7; e.m.nargs = 8; e.m.nenv = 9; e.m.bloblen = 10; e.m.umask = 11;
	memcpy(e.m.name, "exec", 4); e.r.which = 12; e.r.cur = 13; e.r.max = 14; out("exec", &e, sizeof e);
	static struct sandbox_msg s; HDR(s, M_SANDBOX);
	s.flags = 1; s.template = 2; s.nsflags = 3; s.nmounts = 4; s.expire = 5; s.uid = 6; s.gid = 7; s.initid = 8; s.owner = 9; s.nmasks = 10; s.nrwdirs = 11; s.maplen = 12; s.nsowner = 13;
	out("sandbox", &s, sizeof s);
	static struct confine_msg c; HDR(c, M_CONFINE); c.lock = 1; c.filterlen = 2; out("confine", &c, sizeof c);
	static struct set_msg g; HDR(g, M_SET); g.index = 1; g.flags = 2; g.nprocs = 3; out("set", &g, sizeof g);
	static struct expire_msg p; HDR(p, M_EXPIRE); p.when = 0x1112131415161718ULL; out("expire", &p, sizeof p);
	static struct socket_msg k; HDR(k, M_SOCKET); k.domain = 1; k.type = 2; k.protocol = 3; out("socket", &k, sizeof k);
	static struct init_msg n; HDR(n, M_INIT); n.flags = 1; n.uid = 2; n.gid = 3; n.inner = 4; out("init", &n, sizeof n);
	return 0;
}
`

// TestLayouts lets a C program fill every struct, and compares the bytes with what
// the encoders make of the same values, and the values with what the parsers read.
func TestLayouts(t *testing.T) {
	cc := gcc(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "layout.c"), []byte(layoutC), 0o600); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "layout")
	if out, err := exec.Command(cc, "-w", "-fno-builtin", "-Isrc", "-o", bin, filepath.Join(dir, "layout.c")).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.Command(bin).Output()
	if err != nil {
		t.Fatal(err)
	}
	c := map[string][]byte{}
	for line := range strings.Lines(string(out)) {
		name, h, _ := strings.Cut(strings.TrimSpace(line), " ")
		if c[name], err = hex.DecodeString(h); err != nil {
			t.Fatal(err)
		}
	}
	// What the keeper sends.
	body := func(name string, want Type) []byte {
		t.Helper()
		h, b, err := ParseHdr(c[name])
		if err != nil || h.Type != want || h.Seq != 7 {
			t.Fatalf("%s: %+v, %v", name, h, err)
		}
		return b
	}
	same := func(name string, got, want any, err error) {
		t.Helper()
		if d := cmp.Diff(want, got); d != "" || err != nil {
			t.Errorf("%s: %v %s", name, err, d)
		}
	}
	v, err := ParseOK(body("ok", MOK))
	same("ok", v, uint32(0x01020304), err)
	f, err := ParseFail(body("fail", MFail))
	same("fail", f, Fail{StepExec, 2, 0x1122334455667788, 9}, err)
	r, err := ParseReady(body("ready", MReady))
	same("ready", r, Ready{11, 12, [8]uint64{100, 101, 102, 103, 104, 105, 106, 107}, 13}, err)
	id, err := ParseTask(body("task", MOOM))
	same("task", id, uint64(0xa1a2a3a4a5a6a7a8), err)
	x, err := ParseExited(body("exited", MExited))
	same("exited", x, Exited{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, "name"}, err)
	// What the supervisor sends.
	for name, m := range map[string]*Msg{
		"task":    NewMsg(MOOM, 7).U64(0xa1a2a3a4a5a6a7a8).U32(15, 1),
		"exec":    NewMsg(MExec, 7).U64(1, 2).U32(3, 4, 5, 6, 1, 7, 8, 9, 10, 11).Fixed("exec", IDLen).U32(12, 0).U64(13, 14),
		"sandbox": NewMsg(MSandbox, 7).U32(1, 2, 3, 4).U64(5).U32(6, 7, 8, 9, 10, 11, 12, 13),
		"confine": NewMsg(MConfine, 7).U32(1, 2),
		"set":     NewMsg(MSet, 7).U32(1, 2, 3, 0),
		"expire":  NewMsg(MExpire, 7).U64(0x1112131415161718),
		"socket":  NewMsg(MSocket, 7).U32(1, 2, 3, 0),
		"init":    NewMsg(MInit, 7).U32(1, 2, 3, 4),
	} {
		if !bytes.Equal(m.Bytes(), c[name]) {
			t.Errorf("%s:\n go %x\n c  %x", name, m.Bytes(), c[name])
		}
	}
	op := NewMsg(0, 0).Ops(Op{Kind: OpBind, Mode: 0o750, Attr: 5, A: "/a/", B: "/b/", Dev: 77, Ino: 88, Flags: OpNonRec, IDMap: 2}).Body()
	if !bytes.Equal(op, c["op"]) {
		t.Errorf("op:\n go %x\n c  %x", op, c["op"])
	}
}

// TestEncoders checks the parts that have no struct.
func TestEncoders(t *testing.T) {
	if got := NewMsg(MExec, 3).Fixed("abcdef", 4).Body(); string(got) != "abc\x00" {
		t.Errorf("a long string in a field of 4: %q", got)
	}
	m := NewMsg(0, 0).Str("x").Ops(Op{Kind: OpFile, A: "f", B: "data"}, Op{Kind: OpLink, A: "l", B: "to"}, Op{Kind: OpDir, A: "d"})
	if string(m.Body()[:2]) != "x\x00" {
		t.Errorf("strings: %q", m.Body()[:2])
	}
	b := m.Bytes()
	at := hdrLen + 8 // the first op is aligned
	for _, want := range []struct {
		kind       uint16
		alen, blen uint32
		text       string
	}{{OpFile, 2, 4, "f\x00data"}, {OpLink, 2, 3, "l\x00to\x00"}, {OpDir, 2, 0, "d\x00"}} {
		k, al, bl := le.Uint16(b[at:]), le.Uint32(b[at+8:]), le.Uint32(b[at+12:])
		text := b[at+40 : at+40+int(al+bl)]
		if k != want.kind || al != want.alen || bl != want.blen || string(text) != want.text {
			t.Errorf("op %d: lengths %d %d, %q; want %+v", k, al, bl, text, want)
		}
		at = (at + 40 + int(al+bl) + 7) &^ 7
	}
	if le.Uint32(b[8:]) != uint32(len(b)) || m.Len() != len(b) {
		t.Errorf("length in the head %d, of the message %d, %d bytes", le.Uint32(b[8:]), m.Len(), len(b))
	}
}

// TestParsersRefuse tries each parser with every length but the right one.
func TestParsersRefuse(t *testing.T) {
	for _, p := range []struct {
		name  string
		n     int
		parse func([]byte) error
	}{
		{"ok", 8, func(b []byte) error { _, err := ParseOK(b); return err }},
		{"fail", 24, func(b []byte) error { _, err := ParseFail(b); return err }},
		{"ready", 80, func(b []byte) error { _, err := ParseReady(b); return err }},
		{"task", 16, func(b []byte) error { _, err := ParseTask(b); return err }},
		{"exited", 88 + IDLen, func(b []byte) error { _, err := ParseExited(b); return err }},
	} {
		for n := range 200 {
			if err := p.parse(make([]byte, n)); (err == nil) != (n == p.n) || err != nil && !errors.Is(err, ErrProtocol) {
				t.Errorf("%s of %d bytes: %v", p.name, n, err)
			}
		}
	}
	good := NewMsg(MOK, 1).U32(1, 0).Bytes()
	for i := range 12 {
		if i == 6 || i == 7 {
			continue // the type is the caller's to judge
		}
		bad := bytes.Clone(good)
		bad[i] ^= 0x40
		if _, _, err := ParseHdr(bad); err != ErrProtocol {
			t.Errorf("byte %d of the head changed: %v", i, err)
		}
	}
	for n := range good {
		if _, _, err := ParseHdr(good[:n]); err != ErrProtocol {
			t.Errorf("cut to %d bytes: %v", n, err)
		}
	}
}

func FuzzParseHdr(f *testing.F) {
	f.Add(NewMsg(MOK, 1).U32(1, 0).Bytes())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		h, body, err := ParseHdr(b)
		if err != nil {
			if err != ErrProtocol || body != nil || h != (Hdr{}) {
				t.Fatalf("%v with %v %v", err, h, body)
			}
			return
		}
		m := NewMsg(h.Type, h.Seq).Raw(body)
		if !bytes.Equal(m.Bytes(), b) {
			t.Fatalf("%x came back as %x", b, m.Bytes())
		}
	})
}

func FuzzParseFail(f *testing.F) {
	f.Add(make([]byte, 24))
	f.Fuzz(func(t *testing.T, b []byte) {
		x, err := ParseFail(b)
		if (err == nil) != (len(b) == 24) {
			t.Fatalf("%d bytes: %v", len(b), err)
		}
		if x.Step.String() == "" {
			t.Fatal("a step without a name")
		}
	})
}

func FuzzParseReady(f *testing.F) {
	f.Add(make([]byte, 80))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ParseReady(b)
		if (err == nil) != (len(b) == 80) {
			t.Fatalf("%d bytes: %v", len(b), err)
		}
		if err == nil {
			back := NewMsg(0, 0).U32(uint32(r.Keeper), uint32(r.Init)).U64(r.NS[:]...).U32(r.Tasks).Body()
			if !bytes.Equal(back, b[:76]) {
				t.Fatalf("%x came back as %x", b, back)
			}
		}
	})
}

func FuzzParseExited(f *testing.F) {
	f.Add(make([]byte, 88+IDLen))
	f.Add(bytes.Repeat([]byte{0xff}, 88+IDLen))
	f.Fuzz(func(t *testing.T, b []byte) {
		x, err := ParseExited(b)
		if (err == nil) != (len(b) == 88+IDLen) {
			t.Fatalf("%d bytes: %v", len(b), err)
		}
		if len(x.Name) > IDLen || strings.Contains(x.Name, "\x00") {
			t.Fatalf("name %q", x.Name)
		}
	})
}

func FuzzParseTask(f *testing.F) {
	f.Add(make([]byte, 16))
	f.Fuzz(func(t *testing.T, b []byte) {
		id, err := ParseTask(b)
		if (err == nil) != (len(b) == 16) || err == nil && id != le.Uint64(b) {
			t.Fatalf("%x: %d, %v", b, id, err)
		}
	})
}
