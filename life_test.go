package belljar_test

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"belljar"
	"belljar/backend/fake"
)

// modelled is what the model knows of a sandbox.
type modelled struct {
	sb      *belljar.Sandbox
	files   map[string]string
	hanging []*belljar.Cmd
	paused  bool
	gone    bool
}

// TestLife drives sandboxes through random lives and compares them with a model.
func TestLife(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		ctx := context.Background()
		b := fake.New(fake.Config{Programs: programs, Dir: dir})
		rt, err := belljar.New(ctx, belljar.Config{MaxSandboxes: 3}, b)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := rt.Close(ctx); err != nil {
				t.Errorf("close: %v", err)
			}
			if left := b.Instances(); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
		}()
		var all []*modelled
		pick := func(t *rapid.T) *modelled {
			if len(all) == 0 {
				t.Skip("no sandbox yet")
			}
			return rapid.SampledFrom(all).Draw(t, "sandbox")
		}
		// destroyed reports whether err is right for a sandbox that may be gone.
		destroyed := func(t *rapid.T, m *modelled, err error) bool {
			if m.gone && !errors.Is(err, belljar.ErrDestroyed) {
				t.Fatalf("%v, want DESTROYED", err)
			}
			return m.gone
		}
		name := rapid.SampledFrom([]string{"a", "b", "c"})
		t.Repeat(map[string]func(*rapid.T){
			"create": func(t *rapid.T) {
				alive := 0
				for _, m := range all {
					if !m.gone {
						alive++
					}
				}
				sb, err := rt.Create(ctx, belljar.Spec{})
				if alive == 3 {
					if !errors.Is(err, belljar.ErrQuotaExceeded) {
						t.Fatalf("%v, want QUOTA_EXCEEDED", err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, &modelled{sb: sb, files: map[string]string{}})
			},
			"destroy": func(t *rapid.T) {
				m := pick(t)
				if err := m.sb.Destroy(ctx); err != nil {
					t.Fatal(err)
				}
				for _, c := range m.hanging {
					if res, err := c.Wait(ctx); err != nil || res.State != belljar.Cancelled {
						t.Fatalf("%+v, %v", res, err)
					}
				}
				m.gone, m.hanging = true, nil
			},
			"run": func(t *rapid.T) {
				m := pick(t)
				code := rapid.IntRange(0, 1).Draw(t, "code")
				res, err := m.sb.Command([]string{"true", "false"}[code]).Run(ctx)
				if destroyed(t, m, err) {
					return
				}
				if err != nil || res.ExitCode != code || (res.State == belljar.Completed) != (code == 0) {
					t.Fatalf("%+v, %v", res, err)
				}
			},
			"hang": func(t *rapid.T) {
				m := pick(t)
				c := m.sb.Command("hang")
				if err := c.Start(ctx); !destroyed(t, m, err) {
					if err != nil {
						t.Fatal(err)
					}
					m.hanging = append(m.hanging, c)
				}
			},
			"cancel": func(t *rapid.T) {
				m := pick(t)
				if len(m.hanging) == 0 {
					t.Skip("nothing runs")
				}
				c := m.hanging[0]
				m.hanging = m.hanging[1:]
				if err := c.Cancel(ctx); err != nil {
					t.Fatal(err)
				}
				if res, err := c.Wait(ctx); err != nil || res.State != belljar.Cancelled || c.State() != belljar.Cancelled {
					t.Fatalf("%+v, %v", res, err)
				}
			},
			"pause": func(t *rapid.T) {
				m := pick(t)
				if err := m.sb.Pause(ctx); !destroyed(t, m, err) {
					if err != nil {
						t.Fatal(err)
					}
					m.paused = true
				}
			},
			"resume": func(t *rapid.T) {
				m := pick(t)
				if err := m.sb.Resume(ctx); !destroyed(t, m, err) {
					if err != nil {
						t.Fatal(err)
					}
					m.paused = false
				}
			},
			"write": func(t *rapid.T) {
				m, n, data := pick(t), name.Draw(t, "name"), rapid.String().Draw(t, "data")
				if err := m.sb.WriteFile(n, []byte(data), 0o600); !destroyed(t, m, err) {
					if err != nil {
						t.Fatal(err)
					}
					m.files[n] = data
				}
			},
			"read": func(t *rapid.T) {
				m, n := pick(t), name.Draw(t, "name")
				got, err := m.sb.ReadFile(n)
				if destroyed(t, m, err) {
					return
				}
				want, there := m.files[n]
				if there != (err == nil) || !there && !errors.Is(err, fs.ErrNotExist) || string(got) != want {
					t.Fatalf("%q, %v; want %q, %v", got, err, want, there)
				}
			},
			"rename": func(t *rapid.T) {
				m, from, to := pick(t), name.Draw(t, "from"), name.Draw(t, "to")
				err := m.sb.Rename(from, to)
				if destroyed(t, m, err) {
					return
				}
				data, there := m.files[from]
				if there != (err == nil) {
					t.Fatal(err)
				}
				if there && from != to {
					m.files[to] = data
					delete(m.files, from)
				}
			},
			"": func(t *rapid.T) {
				var alive []string
				for _, m := range all {
					want := belljar.SandboxReady
					switch {
					case m.gone:
						want = belljar.SandboxDestroyed
					case m.paused:
						want = belljar.SandboxPaused
					}
					if got := m.sb.State(); got != want {
						t.Fatalf("state %s, want %s", got, want)
					}
					if got := len(m.sb.Executions()); got != len(m.hanging) {
						t.Fatalf("%d executions, want %d", got, len(m.hanging))
					}
					if !m.gone {
						alive = append(alive, m.sb.ID())
					}
				}
				slices.Sort(alive)
				if got := b.Instances(); !slices.Equal(got, alive) {
					t.Fatalf("exist %q, want %q", got, alive)
				}
			},
		})
	})
}
