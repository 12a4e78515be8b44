package conformance

import (
	"archive/tar"
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"

	"belljar"
)

type entry struct {
	name, data, link string
	kind             byte
	mode             int64
}

// archive makes a tar stream.
func archive(entries ...entry) *bytes.Buffer {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Linkname: e.link, Typeflag: e.kind, Mode: e.mode, Size: int64(len(e.data)), ModTime: time.Unix(1e9, 0)}
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(h); err != nil {
			panic(err)
		}
		_, _ = w.Write([]byte(e.data))
	}
	_ = w.Close()
	return &b
}

// listing reads a tar stream back.
func listing(s *suite, b *bytes.Buffer) map[string]string {
	s.Helper()
	got := map[string]string{}
	r := tar.NewReader(b)
	for {
		h, err := r.Next()
		if err != nil {
			if err.Error() != "EOF" {
				s.Fatal(err)
			}
			return got
		}
		var data bytes.Buffer
		_, _ = data.ReadFrom(r)
		switch h.Typeflag {
		case tar.TypeDir:
			got[h.Name] = "dir"
		case tar.TypeSymlink:
			got[h.Name] = "-> " + h.Linkname
		default:
			got[h.Name] = data.String()
		}
	}
}

func (s *suite) empty(sb *belljar.Sandbox, dir string) {
	s.Helper()
	if list, err := sb.List(dir); err != nil || len(list) > 0 {
		s.Errorf("%s has %q, %v", dir, names(list), err)
	}
}

var treeCases = []testCase{
	{name: "tar there and back", f: func(s *suite) {
		sb := s.sandbox()
		err := sb.UploadTar(s.ctx, archive(
			entry{name: "./", kind: tar.TypeDir, mode: 0o755},
			entry{name: "d/", kind: tar.TypeDir, mode: 0o750},
			entry{name: "d/f", data: "in d", mode: 0o4755},
			entry{name: "no/parent", data: "made"},
			entry{name: "link", kind: tar.TypeSymlink, link: "d/f"},
			entry{name: "hard", kind: tar.TypeLink, link: "d/f"},
			entry{name: "\xff\xfe", data: "not UTF-8"},
			entry{name: "empty"},
		), "up")
		if err != nil {
			s.Fatal(err)
		}
		s.reads(sb, "up/link", "in d")
		s.reads(sb, "up/hard", "in d")
		if fi, err := sb.Stat("up/d/f"); err != nil || fi.Mode() != 0o755 || fi.ModTime().Unix() != 1e9 {
			s.Errorf("mode %v, time %v, %v", fi.Mode(), fi.ModTime(), err)
		}
		if fi, err := sb.Stat("up/d"); err != nil || fi.Mode().Perm() != 0o750 {
			s.Errorf("directory %v, %v", fi, err)
		}
		var b bytes.Buffer
		if err := sb.DownloadTar(s.ctx, &b, "up"); err != nil {
			s.Fatal(err)
		}
		want := map[string]string{
			"./": "dir", "d/": "dir", "d/f": "in d", "no/": "dir", "no/parent": "made", "link": "-> d/f", "hard": "in d", "\xff\xfe": "not UTF-8", "empty": "",
		}
		if d := cmp.Diff(want, listing(s, &b)); d != "" {
			s.Error(d)
		}
	}},
	{name: "upload merges", f: func(s *suite) {
		sb := s.sandbox()
		if err := sb.MkdirAll("d/old", 0o755); err != nil {
			s.Fatal(err)
		}
		s.write(sb, "d/same", "old")
		err := sb.UploadTar(s.ctx, archive(entry{name: "d/same", data: "new"}, entry{name: "d/new/x", data: "x"}), ".")
		if err != nil {
			s.Fatal(err)
		}
		s.reads(sb, "d/same", "new")
		s.reads(sb, "d/new/x", "x")
		if _, err := sb.Stat("d/old"); err != nil {
			s.Error(err)
		}
	}},
	{name: "hostile tar", f: func(s *suite) {
		sb := s.sandbox()
		whole := archive(entry{name: "f", data: strings.Repeat("x", 5000)}).Bytes()
		huge := &bytes.Buffer{}
		if err := tar.NewWriter(huge).WriteHeader(&tar.Header{Name: "huge", Typeflag: tar.TypeReg, Size: 1 << 45, Format: tar.FormatPAX}); err != nil {
			s.Fatal(err)
		}
		for name, b := range map[string]*bytes.Buffer{
			"up":                   archive(entry{name: "ok", data: "x"}, entry{name: "../escaped", data: "x"}),
			"up inside":            archive(entry{name: "a/../../escaped", data: "x"}),
			"absolute":             archive(entry{name: "/tmp/escaped", data: "x"}),
			"below a link":         archive(entry{name: "l", kind: tar.TypeSymlink, link: "/tmp"}, entry{name: "l/escaped", data: "x"}),
			"below a relative one": archive(entry{name: "l", kind: tar.TypeSymlink, link: ".."}, entry{name: "l/escaped", data: "x"}),
			"directory over link":  archive(entry{name: "l", kind: tar.TypeSymlink, link: "/tmp"}, entry{name: "l", kind: tar.TypeDir}, entry{name: "l/escaped", data: "x"}),
			"below a file":         archive(entry{name: "f", data: "x"}, entry{name: "f/g", data: "x"}),
			"file over directory":  archive(entry{name: "d/f", data: "x"}, entry{name: "d", data: "x"}),
			"hard link out":        archive(entry{name: "h", kind: tar.TypeLink, link: "/etc/passwd"}),
			"hard link up":         archive(entry{name: "h", kind: tar.TypeLink, link: "../../etc/passwd"}),
			"hard link to link":    archive(entry{name: "l", kind: tar.TypeSymlink, link: "/etc/passwd"}, entry{name: "h", kind: tar.TypeLink, link: "l"}),
			"hard link to nothing": archive(entry{name: "h", kind: tar.TypeLink, link: "later"}, entry{name: "later", data: "x"}),
			"device":               archive(entry{name: "dev", kind: tar.TypeChar}),
			"block device":         archive(entry{name: "dev", kind: tar.TypeBlock}),
			"FIFO":                 archive(entry{name: "fifo", kind: tar.TypeFifo}),
			"deep":                 archive(entry{name: strings.Repeat("d/", 1000) + "f", data: "x"}),
			"huge":                 huge,
			"cut":                  bytes.NewBuffer(whole[:3000]),
			"no tar":               bytes.NewBufferString(strings.Repeat("not a tar stream ", 100)),
		} {
			s.fails(name, sb.UploadTar(s.ctx, b, "up"), nil)
			s.empty(sb, "up")
		}
		for _, name := range []string{"/tmp/escaped", "escaped", "/escaped"} {
			if _, err := sb.Lstat(name); err == nil {
				s.Errorf("%s exists", name)
			}
		}
		s.healthy(sb)
	}},
	{name: "upload over something else", f: func(s *suite) {
		sb := s.sandbox()
		if err := sb.MkdirAll("d", 0o755); err != nil {
			s.Fatal(err)
		}
		s.write(sb, "f", "old")
		s.fails("file over directory", sb.UploadTar(s.ctx, archive(entry{name: "a", data: "x"}, entry{name: "d", data: "x"}), "."), nil)
		s.fails("directory over file", sb.UploadTar(s.ctx, archive(entry{name: "a", data: "x"}, entry{name: "f/x", data: "x"}), "."), nil)
		list, err := sb.List(".")
		if d := cmp.Diff([]string{"d", "f"}, names(list)); d != "" || err != nil {
			s.Errorf("left %v: %s", err, d)
		}
	}},
	{name: "copy there and back", f: func(s *suite) {
		sb := s.sandbox()
		src := s.TempDir()
		for name, data := range map[string]string{"a": "A", "d/b": "B", "d/e/c": "C"} {
			p := filepath.Join(src, filepath.FromSlash(name))
			if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
				s.Fatal(err)
			}
			if err := os.WriteFile(p, []byte(data), 0o640); err != nil {
				s.Fatal(err)
			}
		}
		if err := os.Symlink("d/b", filepath.Join(src, "l")); err != nil {
			s.Fatal(err)
		}
		if err := sb.CopyIn(s.ctx, src, "copy"); err != nil {
			s.Fatal(err)
		}
		s.reads(sb, "copy/l", "B")
		if err := sb.CopyIn(s.ctx, filepath.Join(src, "a"), "single"); err != nil {
			s.Fatal(err)
		}
		s.reads(sb, "single", "A")
		out := filepath.Join(s.TempDir(), "out")
		if err := sb.CopyOut(s.ctx, "copy", out); err != nil {
			s.Fatal(err)
		}
		for name, want := range map[string]string{"a": "A", "d/b": "B", "d/e/c": "C", "l": "B"} {
			if got, err := os.ReadFile(filepath.Join(out, name)); err != nil || string(got) != want {
				s.Errorf("%s: %q, %v", name, got, err)
			}
		}
		if fi, err := os.Stat(filepath.Join(out, "a")); err != nil || fi.Mode() != 0o640 {
			s.Errorf("mode %v, %v", fi, err)
		}
		s.fails("onto a tree", sb.CopyOut(s.ctx, "copy", out), fs.ErrExist)
		if err := sb.CopyOut(s.ctx, "single", out+"1"); err != nil {
			s.Error(err)
		}
	}},
	{name: "copy out of a hostile tree", f: func(s *suite) {
		for _, target := range []string{"/etc/passwd", "../../x", "d/../../x"} {
			sb := s.sandbox()
			s.write(sb, "a", "A")
			s.run(s.probe(sb, "link", target, "/workspace/l"))
			dir := s.TempDir()
			s.fails(target, sb.CopyOut(s.ctx, ".", filepath.Join(dir, "out")), nil)
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				s.Errorf("left %v, %v", left, err)
			}
		}
	}},
}
