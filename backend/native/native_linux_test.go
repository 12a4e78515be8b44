package native

import (
	"context"
	"testing"

	"belljar"
)

func newRuntime(t testing.TB) *belljar.Runtime {
	t.Helper()
	rt, err := belljar.New(context.Background(), belljar.Config{}, New(Config{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rt.Close(context.Background()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return rt
}

func TestRun(t *testing.T) {
	rt := newRuntime(t)
	sb, err := rt.Create(context.Background(), belljar.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	res, err := sb.Command("/bin/sh", "-c", "echo hello; id; pwd; ls -la / /workspace; cat /proc/self/status | grep -E 'Cap|Secc|NoNew'; exit 3").Run(context.Background())
	if err != nil {
		t.Fatalf("%v %+v", err, res)
	}
	t.Logf("%+v\n%s\n%s", res, res.Stdout, res.Stderr)
	if res.ExitCode != 3 {
		t.Fatalf("exit %d", res.ExitCode)
	}
}
