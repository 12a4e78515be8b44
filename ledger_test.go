package belljar

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// sweeper is a backend that only notes what it is asked to sweep and adopt.
type sweeper struct {
	Backend
	mu    sync.Mutex
	swept []string
	fail  error
}

func (*sweeper) Name() string                { return "sweeper" }
func (*sweeper) Close(context.Context) error { return nil }
func (*sweeper) Adopt(context.Context, *Plan) (Instance, []AdoptedTask, error) {
	return nil, nil, errors.New("nobody answers")
}

func (b *sweeper) Sweep(_ context.Context, id, dir string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if filepath.Base(dir) != id {
		return errors.New("directory of another sandbox")
	}
	b.swept = append(b.swept, id)
	return b.fail
}

// state makes a state directory in which a dead supervisor left one sandbox.
func state(t *testing.T, change func(*record)) (dir, id string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "state")
	l, err := openLedger(dir)
	if err != nil {
		t.Fatal(err)
	}
	r := &record{Version: recordVersion, ID: newID("sb-"), Backend: "sweeper", Created: time.Now()}
	if change != nil {
		change(r)
	}
	if _, err := l.begin(r); err != nil {
		t.Fatal(err)
	}
	// As the kernel does when a process is killed: the locks are gone, the files stay.
	if err := errors.Join(l.lock.Close(), l.root.Close()); err != nil {
		t.Fatal(err)
	}
	return dir, r.ID
}

func supervise(t *testing.T, dir string) (*Runtime, *sweeper) {
	t.Helper()
	b := &sweeper{}
	rt, err := New(t.Context(), Config{StateDir: dir}, b)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rt.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return rt, b
}

func entries(t *testing.T, dir string) []string {
	t.Helper()
	l, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var ns []string
	for _, e := range l {
		ns = append(ns, e.Name())
	}
	return ns
}

func TestSweepAtStart(t *testing.T) {
	for name, tt := range map[string]struct {
		change  func(*record)
		removed bool
	}{
		"plain":              {nil, true},
		"persistent":         {func(r *record) { r.Persist = true }, false},
		"persistent, future": {func(r *record) { r.Persist, r.Expires = true, time.Now().Add(time.Hour) }, false},
		"expired":            {func(r *record) { r.Persist, r.Expires = true, time.Now().Add(-time.Second) }, true},
		"of a pool":          {func(r *record) { r.Persist, r.Pooled = true, true }, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir, id := state(t, tt.change)
			_, b := supervise(t, dir)
			want := []string{id}
			if tt.removed {
				want = nil
				if !slices.Equal(b.swept, []string{id}) {
					t.Errorf("swept %q", b.swept)
				}
			}
			if got := entries(t, filepath.Join(dir, "sandboxes")); !slices.Equal(got, want) {
				t.Errorf("left %q, want %q", got, want)
			}
			// The dead supervisor's own entry stays as long as it owns something.
			if got := len(entries(t, filepath.Join(dir, "runtimes"))); got != 1+len(want) {
				t.Errorf("%d runtimes", got)
			}
		})
	}
}

func TestRecoverRemovesWhatDoesNotAnswer(t *testing.T) {
	dir, id := state(t, func(r *record) { r.Persist = true })
	rt, b := supervise(t, dir)
	out, err := rt.Recover(t.Context())
	if err != nil || !slices.Equal(out.Removed, []string{id}) || !slices.Equal(b.swept, []string{id}) {
		t.Errorf("%+v, %v; swept %q", out, err, b.swept)
	}
}

func TestSweepKeepsWhatCannotBeSwept(t *testing.T) {
	dir, id := state(t, func(r *record) { r.Persist = true })
	rt, b := supervise(t, dir)
	b.fail = errors.New("busy")
	out, err := rt.Recover(t.Context())
	if !errors.Is(err, b.fail) || out.Skipped[id] == "" {
		t.Errorf("%+v, %v", out, err)
	}
	if got := entries(t, filepath.Join(dir, "sandboxes")); !slices.Equal(got, []string{id}) {
		t.Errorf("left %q: a directory in use was removed", got)
	}
}

func TestHostileLedger(t *testing.T) {
	outside := t.TempDir()
	precious := filepath.Join(outside, "precious")
	write := func(t *testing.T, name, data string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(t, precious, "kept")
	rewrite := func(t *testing.T, dir, id string, change func(map[string]any)) {
		t.Helper()
		name := filepath.Join(dir, "sandboxes", id, recordName)
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		m := map[string]any{}
		if err := json.Unmarshal(data, &m); err != nil {
			t.Fatal(err)
		}
		change(m)
		if data, err = json.Marshal(m); err != nil {
			t.Fatal(err)
		}
		write(t, name, string(data))
	}
	set := func(k string, v any) func(t *testing.T, dir, id string) {
		return func(t *testing.T, dir, id string) {
			rewrite(t, dir, id, func(m map[string]any) { m[k] = v })
		}
	}
	record := func(dir, id string) string { return filepath.Join(dir, "sandboxes", id, recordName) }
	for name, attack := range map[string]func(t *testing.T, dir, id string){
		"other id":      set("id", newID("sb-")),
		"path as id":    set("id", "../../"+filepath.Base(outside)),
		"path as owner": set("owner", "../../x"),
		"no owner":      set("owner", ""),
		"version":       set("version", 2),
		"unknown field": set("command", "rm -rf /"),
		"backend":       set("backend", "../x"),
		"spec":          set("spec", map[string]any{"mounts": "x"}),
		"truncated": func(t *testing.T, dir, id string) {
			if err := os.Truncate(record(dir, id), 20); err != nil {
				t.Fatal(err)
			}
		},
		"empty": func(t *testing.T, dir, id string) { write(t, record(dir, id), "") },
		"two":   func(t *testing.T, dir, id string) { write(t, record(dir, id), "{}{}") },
		"huge": func(t *testing.T, dir, id string) {
			if err := os.Truncate(record(dir, id), 1<<40); err != nil {
				t.Fatal(err)
			}
		},
		"record is a link": func(t *testing.T, dir, id string) {
			if err := errors.Join(os.Remove(record(dir, id)), os.Symlink(precious, record(dir, id))); err != nil {
				t.Fatal(err)
			}
		},
		"record is a directory": func(t *testing.T, dir, id string) {
			if err := errors.Join(os.Remove(record(dir, id)), os.Mkdir(record(dir, id), 0o700)); err != nil {
				t.Fatal(err)
			}
		},
		"sandbox is a link": func(t *testing.T, dir, id string) {
			sb := filepath.Join(dir, "sandboxes", id)
			if err := errors.Join(os.RemoveAll(sb), os.Symlink(outside, sb)); err != nil {
				t.Fatal(err)
			}
		},
		"sandbox open to others": func(t *testing.T, dir, id string) {
			if err := os.Chmod(filepath.Join(dir, "sandboxes", id), 0o777); err != nil {
				t.Fatal(err)
			}
		},
		"sandbox of another user": func(t *testing.T, dir, id string) {
			if err := os.Chown(filepath.Join(dir, "sandboxes", id), 12345, 12345); err != nil {
				t.Skip("needs root: ", err)
			}
		},
		"other name": func(t *testing.T, dir, id string) {
			if err := os.Rename(filepath.Join(dir, "sandboxes", id), filepath.Join(dir, "sandboxes", "sb-..")); err != nil {
				t.Fatal(err)
			}
		},
		"owner's directory is a link": func(t *testing.T, dir, _ string) {
			rt := filepath.Join(dir, "runtimes", entries(t, filepath.Join(dir, "runtimes"))[0])
			if err := errors.Join(os.RemoveAll(rt), os.Symlink(outside, rt)); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, id := state(t, nil)
			attack(t, dir, id)
			before := entries(t, filepath.Join(dir, "sandboxes"))
			_, b := supervise(t, dir)
			if len(b.swept) > 0 {
				t.Errorf("swept %q", b.swept)
			}
			if got := entries(t, filepath.Join(dir, "sandboxes")); !slices.Equal(got, before) {
				t.Errorf("entries %q, before %q", got, before)
			}
			if got := entries(t, outside); !slices.Equal(got, []string{"precious"}) {
				t.Errorf("outside: %q", got)
			}
			if got, err := os.ReadFile(precious); err != nil || string(got) != "kept" {
				t.Errorf("outside: %q, %v", got, err)
			}
		})
	}
}

// The content of a sandbox's directory may be links to anywhere.
func TestSweepFollowsNoLinks(t *testing.T) {
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "precious"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dir, id := state(t, nil)
	if err := os.Symlink(outside, filepath.Join(dir, "sandboxes", id, "link")); err != nil {
		t.Fatal(err)
	}
	supervise(t, dir)
	if got := entries(t, filepath.Join(dir, "sandboxes")); len(got) > 0 {
		t.Errorf("left %q", got)
	}
	if got := entries(t, outside); len(got) != 1 {
		t.Errorf("outside: %q", got)
	}
}

func TestHalfEntered(t *testing.T) {
	dir, id := state(t, nil)
	rt := entries(t, filepath.Join(dir, "runtimes"))[0]
	sandboxes := filepath.Join(dir, "sandboxes")
	half := newPrefix + id + "-" + rt
	if err := os.Rename(filepath.Join(sandboxes, id), filepath.Join(sandboxes, half)); err != nil {
		t.Fatal(err)
	}
	supervise(t, dir)
	if got := entries(t, sandboxes); len(got) > 0 {
		t.Errorf("left %q", got)
	}
}

func TestStateDirectory(t *testing.T) {
	base := t.TempDir()
	mk := func(name string, f func(string) error) string {
		p := filepath.Join(base, name)
		if err := f(p); err != nil {
			t.Fatal(err)
		}
		return p
	}
	for name, dir := range map[string]string{
		"relative": "state",
		"open":     mk("open", func(p string) error { return errors.Join(os.Mkdir(p, 0o755), os.Chmod(p, 0o755)) }),
		"file":     mk("file", func(p string) error { return os.WriteFile(p, nil, 0o600) }),
		"link":     mk("link", func(p string) error { return errors.Join(os.Mkdir(p+"-to", 0o700), os.Symlink(p+"-to", p)) }),
		"orphan":   filepath.Join(base, "missing", "state"),
		"planted": mk("planted", func(p string) error {
			return errors.Join(os.Mkdir(p, 0o700), os.Symlink(base, filepath.Join(p, "sandboxes")))
		}),
	} {
		if l, err := openLedger(dir); !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: %v, want UNAVAILABLE", name, err)
			if err == nil {
				_ = l.close()
			}
		}
	}
}

func TestTwoSweepAtOnce(t *testing.T) {
	dir, id := state(t, nil)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var swept []string
	for range 8 {
		wg.Go(func() {
			b := &sweeper{}
			rt, err := New(context.Background(), Config{StateDir: dir}, b)
			if err != nil {
				t.Error(err)
				return
			}
			if err := rt.Close(context.Background()); err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			swept = append(swept, b.swept...)
		})
	}
	wg.Wait()
	if !slices.Equal(swept, []string{id}) {
		t.Errorf("swept %q, want %s once", swept, id)
	}
}

func FuzzRecord(f *testing.F) {
	id := "sb-" + strings.Repeat("a", 20)
	good, err := json.Marshal(record{Version: 1, ID: id, Owner: "rt-" + strings.Repeat("b", 20), Backend: "native", Created: time.Unix(0, 0)})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"version":1}`))
	f.Add([]byte(`[]`))
	if _, err := parseRecord(id, good); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := parseRecord(id, data)
		if err != nil {
			return
		}
		if r.ID != id || !validID("rt-", r.Owner) || !isName(r.Backend) || r.Version != recordVersion {
			t.Errorf("accepted %+v", r)
		}
		again, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parseRecord(id, again); err != nil {
			t.Errorf("not the same twice: %v", err)
		}
	})
}
