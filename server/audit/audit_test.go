package audit

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"belljar"
)

func filled(t testing.TB, n int) string {
	t.Helper()
	dir := t.TempDir()
	l, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if err := l.Append(Entry{Tenant: "a", Act: "exec", Object: fmt.Sprint(i), Detail: "<&>"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.Append(Entry{}); !errors.Is(err, belljar.ErrUnavailable) {
		t.Errorf("append after close: %v", err)
	}
	return dir
}

func TestChain(t *testing.T) {
	dir := filled(t, 20)
	rep, err := Verify(dir)
	if err != nil || rep.Broken() || rep.Entries != 20 || rep.Last != 20 {
		t.Fatalf("%+v, %v", rep, err)
	}
	// It goes on where it was.
	l, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Append(Entry{Act: "gc"}); err != nil {
		t.Fatal(err)
	}
	if rep, err := Verify(dir); err != nil || rep.Broken() || rep.Last != 21 {
		t.Errorf("%+v, %v", rep, err)
	}
	if err := l.Append(Entry{Act: strings.Repeat("x", maxLine)}); !errors.Is(err, belljar.ErrInvalidSpec) {
		t.Errorf("a huge entry: %v", err)
	}
	l.Close()
}

// Whatever is done to a line is found, and where.
func TestTampering(t *testing.T) {
	for name, c := range map[string]struct {
		f    func(lines [][]byte) [][]byte
		line int
	}{
		"change":          {func(l [][]byte) [][]byte { l[4] = bytes.Replace(l[4], []byte(`"4"`), []byte(`"5"`), 1); return l }, 5},
		"change a space":  {func(l [][]byte) [][]byte { l[4] = bytes.Replace(l[4], []byte(`,"t`), []byte(`, "t`), 1); return l }, 5},
		"cut":             {func(l [][]byte) [][]byte { return append(l[:4:4], l[5:]...) }, 5},
		"cut the first":   {func(l [][]byte) [][]byte { return l[1:] }, 1},
		"cut the last":    {func(l [][]byte) [][]byte { return l[:8] }, 0},
		"cut all":         {func([][]byte) [][]byte { return nil }, 0},
		"insert":          {func(l [][]byte) [][]byte { return append(append(l[:4:4], l[2]), l[4:]...) }, 5},
		"swap":            {func(l [][]byte) [][]byte { l[3], l[4] = l[4], l[3]; return l }, 4},
		"repeat the last": {func(l [][]byte) [][]byte { return append(l, l[9]) }, 11},
		"garbage":         {func(l [][]byte) [][]byte { l[6] = []byte("garbage\n"); return l }, 7},
		"a key twice":     {func(l [][]byte) [][]byte { l[6] = bytes.Replace(l[6], []byte(`{`), []byte(`{"act":"x",`), 1); return l }, 7},
	} {
		dir := filled(t, 10)
		file := filepath.Join(dir, logName)
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		lines := c.f(bytes.SplitAfter(bytes.TrimSuffix(b, nil), []byte("\n"))[:10:10])
		if err := os.WriteFile(file, bytes.Join(lines, nil), 0o600); err != nil {
			t.Fatal(err)
		}
		rep, err := Verify(dir)
		if err != nil || !rep.Broken() || rep.Faults[0].Line != c.line {
			t.Errorf("%s: %+v, %v", name, rep, err)
		}
		if _, err := Open(dir); !errors.Is(err, belljar.ErrUnavailable) {
			t.Errorf("%s: the log was opened: %v", name, err)
		}
	}
}

func TestTorn(t *testing.T) {
	dir := filled(t, 3)
	f, err := os.OpenFile(filepath.Join(dir, logName), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"seq":4,"time":"20`); err != nil {
		t.Fatal(err)
	}
	f.Close()
	rep, err := Verify(dir)
	if err != nil || rep.Broken() || !rep.Torn || rep.Last != 3 {
		t.Fatalf("%+v, %v", rep, err)
	}
	l, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Append(Entry{Act: "after"}); err != nil {
		t.Fatal(err)
	}
	l.Close()
	if rep, err := Verify(dir); err != nil || rep.Broken() || rep.Torn || rep.Last != 4 {
		t.Errorf("%+v, %v", rep, err)
	}
}

func FuzzVerify(f *testing.F) {
	dir := filled(f, 3)
	b, _ := os.ReadFile(filepath.Join(dir, logName))
	f.Add(b)
	f.Add([]byte("{}\n"))
	f.Add([]byte(`{"seq":1}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		rep, err := verify(bytes.NewReader(in))
		if err != nil {
			t.Fatal(err)
		}
		if !rep.Broken() && !rep.Torn && rep.Entries != bytes.Count(in, []byte("\n")) {
			t.Errorf("%d entries in %q", rep.Entries, in)
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	l, err := Open(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	for b.Loop() {
		if err := l.Append(Entry{Tenant: "default", Key: "k", Act: "exec", Object: "sb-aaaaaaaaaaaaaaaaaaaa"}); err != nil {
			b.Fatal(err)
		}
	}
}
