package fake_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"belljar"
	"belljar/backend/fake"
)

func newRuntime(t *testing.T, cfg belljar.Config, b *fake.Backend) *belljar.Runtime {
	t.Helper()
	rt, err := belljar.New(t.Context(), cfg, b)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rt.Close(context.Background()); err != nil {
			t.Errorf("close: %v", err)
		}
		if left := b.Instances(); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	})
	return rt
}

func create(t *testing.T, rt *belljar.Runtime, spec belljar.Spec) *belljar.Sandbox {
	t.Helper()
	sb, err := rt.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

func TestBuiltins(t *testing.T) {
	sb := create(t, newRuntime(t, belljar.Config{}, fake.New(fake.Config{})), belljar.Spec{Env: map[string]string{"A": "b"}})
	for _, tt := range []struct {
		args   []string
		stdin  string
		code   int
		stdout string
	}{
		{[]string{"true"}, "", 0, ""},
		{[]string{"/bin/false"}, "", 1, ""},
		{[]string{"echo", "a", "b"}, "", 0, "a b\n"},
		{[]string{"cat"}, "", 0, ""},
		{[]string{"cat"}, "in\x00put", 0, "in\x00put"},
		{[]string{"cat"}, strings.Repeat("x", 300_000), 0, strings.Repeat("x", 300_000)},
		{[]string{"pwd"}, "", 0, "/workspace\n"},
	} {
		cmd := sb.Command(tt.args[0], tt.args[1:]...)
		if tt.stdin != "" {
			cmd.Stdin = strings.NewReader(tt.stdin)
		}
		var live bytes.Buffer
		cmd.Stdout = &live
		res, err := cmd.Run(t.Context())
		if err != nil {
			t.Fatalf("%q: %v", tt.args, err)
		}
		if res.ExitCode != tt.code || string(res.Stdout) != tt.stdout || live.String() != tt.stdout {
			t.Errorf("%q = %d, %d bytes kept, %d live", tt.args, res.ExitCode, len(res.Stdout), live.Len())
		}
	}
	out, _, err := sb.Command("env").Output(t.Context())
	if err != nil || !bytes.Contains(out, []byte("A=b\n")) || bytes.Contains(out, []byte("GO")) {
		t.Errorf("env = %q, %v", out, err)
	}
}

func TestNotFound(t *testing.T) {
	sb := create(t, newRuntime(t, belljar.Config{}, fake.New(fake.Config{})), belljar.Spec{})
	res, err := sb.Command("nothing").Run(t.Context())
	if !errors.Is(err, belljar.ErrExecFailed) {
		t.Errorf("err = %v", err)
	}
	if res == nil || res.Cause != belljar.CauseInfra || res.ExitCode != -1 {
		t.Errorf("res = %+v", res)
	}
}
