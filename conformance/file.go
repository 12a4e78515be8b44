package conformance

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"belljar"
)

// fails checks that a file operation failed as the contract says.
func (s *suite) fails(what string, err error, also error) {
	s.Helper()
	if !errors.Is(err, belljar.ErrFS) {
		s.Errorf("%s: %v, want FS_ERROR", what, err)
	}
	if also != nil && !errors.Is(err, also) {
		s.Errorf("%s: %v, want %v too", what, err, also)
	}
}

func (s *suite) write(sb *belljar.Sandbox, name, data string) {
	s.Helper()
	if err := sb.WriteFile(name, []byte(data), 0o644); err != nil {
		s.Fatal(err)
	}
}

func (s *suite) reads(sb *belljar.Sandbox, name, want string) {
	s.Helper()
	if got, err := sb.ReadFile(name); err != nil || string(got) != want {
		s.Errorf("%s: %.100q, %v, want %.100q", name, got, err, want)
	}
}

func names(list []fs.DirEntry) []string {
	var ns []string
	for _, e := range list {
		ns = append(ns, e.Name())
	}
	return ns
}

var fileCases = []testCase{
	{name: "both sides see the same", f: func(s *suite) {
		sb := s.sandbox()
		s.write(sb, "in", "from outside")
		if res := s.run(s.probe(sb, "read", "/workspace/in")); string(res.Stdout) != "from outside" {
			s.Errorf("%q; %s", res.Stdout, describe(res))
		}
		if res := s.run(s.probe(sb, "append", "/workspace/out", "from inside")); res.ExitCode != 0 {
			s.Error(describe(res))
		}
		s.reads(sb, "/workspace/out", "from inside")
		// The program may change what was written from outside.
		if res := s.run(s.probe(sb, "append", "/workspace/in", "!")); res.ExitCode != 0 {
			s.Error(describe(res))
		}
		s.reads(sb, "in", "from outside!")
	}},
	{name: "operations", f: func(s *suite) {
		sb := s.sandbox()
		if err := sb.MkdirAll("a/b/c", 0o755); err != nil {
			s.Fatal(err)
		}
		if err := sb.MkdirAll("a/b/c", 0o755); err != nil {
			s.Errorf("again: %v", err)
		}
		s.fails("mkdir again", sb.Mkdir("a", 0o755), fs.ErrExist)
		s.write(sb, "a/f", "one")
		s.write(sb, "a/f", "two")
		s.reads(sb, "a/f", "two")
		s.fails("mkdir over a file", sb.MkdirAll("a/f/x", 0o755), nil)
		if err := sb.Rename("a/f", "a/g"); err != nil {
			s.Error(err)
		}
		if err := sb.Chmod("a/g", 0o640); err != nil {
			s.Error(err)
		}
		fi, err := sb.Stat("a/g")
		if err != nil || fi.Name() != "g" || fi.Size() != 3 || fi.Mode() != 0o640 || fi.IsDir() {
			s.Errorf("stat %v, %v", fi, err)
		}
		list, err := sb.List("a")
		if d := cmp.Diff([]string{"b", "g"}, names(list)); d != "" || err != nil {
			s.Errorf("list %v: %s", err, d)
		}
		s.fails("remove a full directory", sb.Remove("a"), nil)
		if err := sb.Remove("a/g"); err != nil {
			s.Error(err)
		}
		for range 2 {
			if err := sb.RemoveAll("a"); err != nil {
				s.Error(err)
			}
		}
		list, err = sb.List(".")
		if len(list) != 0 || err != nil {
			s.Errorf("left %q, %v", names(list), err)
		}
	}},
	{name: "open file", f: func(s *suite) {
		sb := s.sandbox()
		f, err := sb.Create("f")
		if err != nil {
			s.Fatal(err)
		}
		if _, err := io.WriteString(f, "0123456789"); err != nil {
			s.Fatal(err)
		}
		if _, err := f.WriteAt([]byte("ab"), 2); err != nil {
			s.Error(err)
		}
		if err := f.Truncate(6); err != nil {
			s.Error(err)
		}
		if _, err := f.Seek(1, io.SeekStart); err != nil {
			s.Error(err)
		}
		if got, err := io.ReadAll(f); err != nil || string(got) != "1ab45" {
			s.Errorf("%q, %v", got, err)
		}
		if err := f.Close(); err != nil {
			s.Error(err)
		}
		_, err = f.Read(make([]byte, 1))
		s.fails("read after close", err, fs.ErrClosed)
	}},
	{name: "errors", f: func(s *suite) {
		sb := s.sandbox()
		s.write(sb, "f", "")
		_, err := sb.ReadFile("missing")
		s.fails("read", err, fs.ErrNotExist)
		_, err = sb.Stat("missing")
		s.fails("stat", err, fs.ErrNotExist)
		_, err = sb.List("f")
		s.fails("list", err, nil)
		_, err = sb.ReadFile(".")
		s.fails("read a directory", err, nil)
		s.fails("write to a directory", sb.WriteFile("/tmp", nil, 0o600), nil)
		s.fails("write below a file", sb.WriteFile("f/x", nil, 0o600), nil)
		s.fails("remove", sb.Remove("missing"), fs.ErrNotExist)
		s.fails("rename", sb.Rename("missing", "x"), fs.ErrNotExist)
		for _, name := range []string{"", "a\x00b", strings.Repeat("x/", 4000), strings.Repeat("x", 300)} {
			s.fails("name", sb.WriteFile(name, nil, 0o600), nil)
		}
		// Nothing half made is left.
		list, err := sb.List(".")
		if d := cmp.Diff([]string{"f"}, names(list)); d != "" || err != nil {
			s.Errorf("left %v: %s", err, d)
		}
	}},
	{name: "names never leave the root", f: func(s *suite) {
		sb := s.sandbox()
		s.write(sb, "/workspace/../../../tmp/x", "in the sandbox's /tmp")
		s.reads(sb, "/tmp/x", "in the sandbox's /tmp")
	}},
	{name: "links", needs: []Feature{AbsLinks}, f: func(s *suite) {
		sb := s.sandbox()
		s.write(sb, "/tmp/real", "real")
		if err := sb.Symlink("/tmp/real", "abs"); err != nil {
			s.Fatal(err)
		}
		s.reads(sb, "abs", "real")
		s.write(sb, "abs", "replaced")
		s.reads(sb, "/tmp/real", "real")
		s.reads(sb, "abs", "replaced")
	}},
	{name: "hostile links", f: func(s *suite) {
		sb := s.sandbox()
		for target, name := range map[string]string{
			"nowhere": "dangling", "loop": "loop", "../../../../../../etc/shadow": "up", "/proc/1/root/etc/shadow": "magic",
		} {
			if res := s.run(s.probe(sb, "link", target, "/workspace/"+name)); res.ExitCode != 0 {
				s.Fatal(describe(res))
			}
			if got, err := sb.ReadFile(name); err == nil {
				s.Errorf("%s read %q", name, got)
			} else {
				s.fails(name, err, nil)
			}
			_, err := sb.Open(name)
			s.fails(name, err, nil)
			if got, err := sb.Readlink(name); err != nil || got != target {
				s.Errorf("readlink %q, %v", got, err)
			}
			fi, err := sb.Lstat(name)
			if err != nil || fi.Mode().Type() != fs.ModeSymlink {
				s.Errorf("lstat %v, %v", fi, err)
			}
			s.write(sb, name, "now a file")
			s.reads(sb, name, "now a file")
		}
	}},
	{name: "directory swapped for a link in a loop", f: func(s *suite) {
		outside := s.TempDir()
		canary := filepath.Join(outside, "f")
		if err := os.WriteFile(canary, []byte("of the host"), 0o644); err != nil {
			s.Fatal(err)
		}
		sb := s.sandbox()
		c := s.started(sb, "swap", "/workspace/d", outside)
		ok := func(what string, err error) {
			if err != nil && !errors.Is(err, belljar.ErrFS) {
				s.Errorf("%s: %v, want nothing or FS_ERROR", what, err)
			}
		}
		for range 200 {
			got, err := sb.ReadFile("d/f")
			ok("read", err)
			if string(got) == "of the host" {
				s.Fatal("a file of the host was read")
			}
			ok("write", sb.WriteFile("d/f", []byte("x"), 0o644))
			ok("chmod", sb.Chmod("d", 0o777))
			ok("rename", sb.Rename("d/f", "d/g"))
			_, err = sb.List("d")
			ok("list", err)
			ok("upload", sb.UploadTar(s.ctx, archive(entry{name: "d/up", data: "x"}), "."))
			var b bytes.Buffer
			ok("download", sb.DownloadTar(s.ctx, &b, "d"))
			if bytes.Contains(b.Bytes(), []byte("of the host")) {
				s.Fatal("a file of the host was downloaded")
			}
			ok("remove", sb.RemoveAll("d"))
		}
		if err := c.Cancel(s.ctx); err != nil {
			s.Fatal(err)
		}
		left, err := os.ReadDir(outside)
		if d := cmp.Diff([]string{"f"}, names(left)); d != "" || err != nil {
			s.Errorf("the host's directory: %v: %s", err, d)
		}
		if fi, err := os.Stat(canary); err != nil || fi.Mode() != 0o644 {
			s.Errorf("the host's file: %v, %v", fi, err)
		}
		if fi, err := os.Stat(outside); err != nil || fi.Mode().Perm() == 0o777 {
			s.Errorf("the host's directory: %v, %v", fi, err)
		}
	}},
	{name: "FIFO", needs: []Feature{FIFO}, f: func(s *suite) {
		sb := s.sandbox()
		if res := s.run(s.probe(sb, "fifo", "/workspace/p")); res.ExitCode != 0 {
			s.Fatal(describe(res))
		}
		_, err := sb.ReadFile("p")
		s.fails("read", err, nil)
		_, err = sb.OpenFile("p", 1, 0)
		s.fails("open for writing", err, nil)
		s.fails("download", sb.DownloadTar(s.ctx, io.Discard, "."), nil)
		s.write(sb, "p", "now a file")
		s.reads(sb, "p", "now a file")
	}},
	{name: "huge file", f: func(s *suite) {
		sb := s.sandbox()
		if res := s.run(s.probe(sb, "sparse", "/workspace/huge", "1000000000000")); res.ExitCode != 0 {
			s.Fatal(describe(res))
		}
		_, err := sb.ReadFile("huge")
		s.fails("read", err, nil)
		s.fails("download", sb.DownloadTar(s.ctx, io.Discard, "."), nil)
		f, err := sb.Open("huge")
		if err != nil {
			s.Fatal(err)
		}
		defer f.Close()
		var b [10]byte
		if n, err := f.ReadAt(b[:], 999999999990); n != 10 || err != nil {
			s.Errorf("in parts: %d, %v", n, err)
		}
	}},
	{name: "io/fs", f: func(s *suite) {
		sb := s.sandbox()
		if err := sb.MkdirAll("tree/d/e", 0o755); err != nil {
			s.Fatal(err)
		}
		s.write(sb, "tree/f", "f")
		s.write(sb, "tree/d/g", "g")
		if err := fstest.TestFS(sb.FS("tree"), "f", "d/g", "d/e"); err != nil {
			s.Error(err)
		}
		if _, err := fs.ReadFile(sb.FS("tree"), "../x"); !errors.Is(err, fs.ErrInvalid) {
			s.Errorf("escape: %v", err)
		}
	}},
	{name: "watch", f: func(s *suite) {
		sb := s.sandbox()
		events, err := sb.Watch(s.ctx, ".")
		if err != nil {
			s.Fatal(err)
		}
		s.write(sb, "new", "x")
		s.sees(events, "new")
		_, err = sb.Watch(s.ctx, "missing")
		s.fails("watch", err, fs.ErrNotExist)
		if err := sb.Destroy(s.ctx); err != nil {
			s.Fatal(err)
		}
		for range events { // ends with the sandbox
		}
	}},
	{name: "watch programs", needs: []Feature{Watch}, f: func(s *suite) {
		sb := s.sandbox()
		events, err := sb.Watch(s.ctx, ".")
		if err != nil {
			s.Fatal(err)
		}
		s.run(s.probe(sb, "append", "/workspace/byprogram", "x"))
		s.sees(events, "byprogram")
	}},
}

// sees waits for an event on a name.
func (s *suite) sees(events <-chan belljar.FileEvent, name string) {
	s.Helper()
	for {
		select {
		case e, ok := <-events:
			if !ok {
				s.Fatal("events ended")
			}
			if e.Name == name {
				return
			}
		case <-s.ctx.Done():
			s.Fatalf("no event for %s", name)
		}
	}
}
