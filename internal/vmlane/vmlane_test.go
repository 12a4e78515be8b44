package main

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPayload(t *testing.T) {
	img := make([]byte, 4096)
	copy(img[0x202:], "HdrS")
	binary.LittleEndian.PutUint16(img[0x206:], 0x20f)
	img[0x1f1] = 1
	binary.LittleEndian.PutUint32(img[0x248:], 16)
	binary.LittleEndian.PutUint32(img[0x24c:], 12)
	copy(img[1024+16:], "payload!size")
	got, err := payload(img)
	if err != nil || string(got) != "payload!" {
		t.Errorf("payload = %q, %v", got, err)
	}
	for name, spoil := range map[string]func([]byte){
		"no magic":     func(b []byte) { b[0x202] = 0 },
		"old protocol": func(b []byte) { b[0x207] = 1 },
		"outside":      func(b []byte) { binary.LittleEndian.PutUint32(b[0x24c:], 1<<30) },
	} {
		b := bytes.Clone(img)
		spoil(b)
		if _, err := payload(b); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestDependencies(t *testing.T) {
	for in, want := range map[string][]string{
		"\x00license=GPL\x00depends=a,b\x00x": {"a", "b"},
		"\x00depends=\x00":                    nil,
		"\x00depends=cut":                     nil,
		"":                                    nil,
	} {
		if d := cmp.Diff(want, dependencies([]byte(in))); d != "" {
			t.Errorf("%q: %s", in, d)
		}
	}
}

func TestCompareVersions(t *testing.T) {
	a, b := "linux-image-6.12.9-cloud-amd64", "linux-image-6.12.117+deb12-cloud-amd64"
	if compareVersions(a, b) >= 0 || compareVersions(b, a) <= 0 || compareVersions(a, a) != 0 {
		t.Error("6.12.9 must come before 6.12.117")
	}
}

func TestFollow(t *testing.T) {
	in := "boot\r\n--- vmlane begin: x as root\r\n=== RUN   TestA\r\nsome log\r\n--- vmlane end: x as root: 1 (exit status 1)\r\n"
	var out strings.Builder
	codes, err := follow(strings.NewReader(in), &out, false)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[string]string{"x as root": "1 (exit status 1)"}, codes); d != "" {
		t.Error(d)
	}
	if s := out.String(); strings.Contains(s, "boot") || strings.Contains(s, "=== RUN") || !strings.Contains(s, "some log\n") {
		t.Errorf("log = %q", s)
	}
}

func TestImage(t *testing.T) {
	m := newImage()
	m.rootBytes("a/b/file", []byte("12345"), 0o644)
	m.rootBytes("a/b/other", nil, 0o644)
	name := filepath.Join(t.TempDir(), "initramfs")
	if err := m.write(name); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(b, []byte("070701")); n != 5 || len(b)%4 != 0 {
		t.Errorf("%d headers, %d bytes, want a, a/b, two files and the trailer in whole words", n, len(b))
	}
}
