package state

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"belljar"

	"github.com/google/go-cmp/cmp"
)

const envWriter = "STATE_TEST_WRITER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(envWriter); dir != "" {
		s, err := Open(dir)
		for i := 0; err == nil; i++ {
			if err = s.AddTenant(Tenant{Name: fmt.Sprintf("t%d", i)}); err == nil {
				_, err = fmt.Println(i) // acknowledged
			}
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func open0(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestStays(t *testing.T) {
	dir := t.TempDir()
	s := open0(t, dir)
	secret, err := s.Secret()
	if err != nil || len(secret) != 32 {
		t.Fatalf("secret of %d bytes, %v", len(secret), err)
	}
	at := time.Now().UTC().Truncate(time.Second)
	tenant := Tenant{Name: "acme", Quota: Quota{Sandboxes: 3, CPU: 1.5, MaxTTL: time.Hour}, Created: at}
	key := Key{ID: "k1", Tenant: "acme", Name: "ci", Hash: []byte{1}, Scopes: []string{"exec"}, Created: at, Expires: at.Add(time.Hour)}
	for _, err := range []error{s.AddTenant(tenant), s.AddKey(key), s.PutCreate("acme", "once", Create{Sum: []byte{2}, Sandbox: "sb", At: at}, at.Add(-time.Hour))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := s.AddTenant(tenant); !errors.Is(err, belljar.ErrConflict) {
		t.Errorf("a tenant twice: %v", err)
	}
	if err := s.AddTenant(Tenant{Name: "../x"}); !errors.Is(err, belljar.ErrInvalidSpec) {
		t.Errorf("a bad name: %v", err)
	}
	if err := s.AddKey(Key{ID: "k2", Tenant: "nobody"}); !errors.Is(err, belljar.ErrNotFound) {
		t.Errorf("a key of nobody: %v", err)
	}
	if _, err := Open(dir); !errors.Is(err, belljar.ErrUnavailable) {
		t.Errorf("opened twice: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open0(t, dir)
	again, _ := s.Secret()
	got, err := s.Tenant("acme")
	if diff := cmp.Diff(tenant, got); diff != "" || err != nil || string(again) != string(secret) {
		t.Errorf("%s %v", diff, err)
	}
	k, ok, err := s.Key("k1")
	if diff := cmp.Diff(key, k); diff != "" || !ok || err != nil {
		t.Errorf("%s %v", diff, err)
	}
	if c, ok, err := s.Create("acme", "once"); !ok || err != nil || c.Sandbox != "sb" {
		t.Errorf("%+v %v %v", c, ok, err)
	}
	if _, ok, _ := s.Create("default", "once"); ok {
		t.Error("another tenant has the idempotency key")
	}
	if err := s.PutCreate("acme", "next", Create{At: at.Add(time.Hour)}, at.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, ok, _ := s.Create("acme", "once"); ok {
		t.Error("an old idempotency key is still there")
	}
	if err := s.Revoke("k1"); err != nil {
		t.Fatal(err)
	}
	if k, _, _ := s.Key("k1"); !k.Revoked {
		t.Error("not revoked")
	}
	if err := s.RemoveTenant("acme"); err != nil {
		t.Fatal(err)
	}
	if keys, _ := s.Keys(""); len(keys) != 0 {
		t.Errorf("keys outlive their tenant: %v", keys)
	}
	if err := s.RemoveTenant("default"); !errors.Is(err, belljar.ErrConflict) {
		t.Errorf("the default tenant: %v", err)
	}
}

func TestRefusesFiles(t *testing.T) {
	for name, make := range map[string]func(string) error{
		"link": func(f string) error { return os.Symlink("/dev/null", f) },
		"open": func(f string) error { return os.WriteFile(f, nil, 0o644) },
		"damaged": func(f string) error {
			return os.WriteFile(f, []byte("not a database, but long enough to be looked at"), 0o600)
		},
		"dir": func(f string) error { return os.Mkdir(f, 0o700) },
	} {
		dir := t.TempDir()
		f := filepath.Join(dir, "state.db")
		if err := make(f); err != nil {
			t.Fatal(err)
		}
		before, _ := os.ReadFile(f)
		if _, err := Open(dir); !errors.Is(err, belljar.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
		if after, _ := os.ReadFile(f); string(before) != string(after) {
			t.Errorf("%s: the file was changed", name)
		}
	}
}

// Whatever was acknowledged is there after a SIGKILL.
func TestKilledWriter(t *testing.T) {
	for range 3 {
		dir := t.TempDir()
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		c := exec.Command(exe)
		c.Env = append(os.Environ(), envWriter+"="+dir)
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		last := -1
		for range 50 {
			if _, err := fmt.Fscan(out, &last); err != nil {
				t.Fatal(err)
			}
		}
		_ = c.Process.Kill()
		_ = c.Wait()
		s := open0(t, dir)
		for i := range last + 1 {
			if _, err := s.Tenant(fmt.Sprintf("t%d", i)); err != nil {
				t.Errorf("tenant %d: %v", i, err)
			}
		}
		s.Close()
	}
}
