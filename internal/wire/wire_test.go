package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"syscall"
	"testing"
	"time"

	"belljar"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Every field of a result survives the trip. One that is added later and not
// given here makes the test fail, for the sample is looked through as JSON.
func TestResult(t *testing.T) {
	f, n := 1.5, int64(7)
	want := &belljar.Result{
		ID: "ex-1", State: belljar.Failed, Cause: belljar.CauseMemory, ExitCode: -1, Signal: "SIGKILL",
		Stdout: []byte{0, 255}, Stderr: []byte("x"), Truncated: true, DroppedBytes: 9,
		StartedAt: time.Unix(1, 2).UTC(), FinishedAt: time.Unix(3, 4).UTC(), DurationMs: 2.5,
		Timings:     belljar.Timings{QueueUs: 1, SpawnUs: 2, RunUs: 3, ReapUs: 4, DrainUs: 5},
		Usage:       belljar.Usage{CPUTimeMs: &f, UserMs: &f, SystemMs: &f, PeakMemoryBytes: &n, PeakPids: &n, IOReadBytes: &n, IOWriteBytes: &n},
		Confinement: belljar.Report{Mode: belljar.Hardened, Layers: []belljar.LayerReport{{Layer: belljar.LayerNet, Status: belljar.LayerApplied, Detail: "d", Reason: "r", Source: "s"}}},
		Backend:     "native", SpecVersion: "1",
		Error: &belljar.Error{Code: belljar.CodeOOM, Op: "exec", Message: "m", Limit: "l", Observed: "o", Recoverable: true, Hint: "h"},
	}
	b, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var keys map[string]any
	if err := json.Unmarshal(b, &keys); err != nil {
		t.Fatal(err)
	}
	for k, v := range keys {
		if v == nil || v == "" || v == 0.0 || v == false {
			t.Errorf("the sample lacks %s", k)
		}
	}
	if diff := cmp.Diff(want, FromResult(Result(want))); diff != "" {
		t.Error(diff)
	}
	if FromResult(Result(nil)) != nil {
		t.Error("no result became one")
	}
	empty := FromResult(Result(&belljar.Result{}))
	if empty.Usage.CPUTimeMs != nil || empty.Error != nil || !empty.StartedAt.IsZero() {
		t.Errorf("what was absent is there: %+v", empty)
	}
}

func TestError(t *testing.T) {
	for _, c := range []struct {
		err  error
		code belljar.Code
		is   error
	}{
		{&belljar.Error{Code: belljar.CodeFS, Op: "open x", Message: "no such file", Err: &fs.PathError{Op: "open", Path: "x", Err: syscall.ENOENT}}, belljar.CodeFS, fs.ErrNotExist},
		{&belljar.Error{Code: belljar.CodeFS, Err: fmt.Errorf("a: %w", fs.ErrExist)}, belljar.CodeFS, fs.ErrExist},
		{&belljar.Error{Code: belljar.CodeFS, Err: syscall.ENOSPC}, belljar.CodeFS, syscall.ENOSPC},
		{fmt.Errorf("wrapped: %w", &belljar.Error{Code: belljar.CodeConflict, Message: "m"}), belljar.CodeConflict, belljar.ErrConflict},
		{errors.New("plain"), belljar.CodeInternal, belljar.ErrInternal},
	} {
		got := FromError(Error(c.err))
		if got.Code != c.code || !errors.Is(got, c.is) || got.Message == "" {
			t.Errorf("%v became %+v", c.err, got)
		}
	}
	if FromError(Error(nil)) != nil {
		t.Error("no error became one")
	}
}

func TestSpec(t *testing.T) {
	want := belljar.Spec{Limits: belljar.Limits{Memory: 1 << 40, CPU: 0.5, CPUTime: 1500 * time.Millisecond}, Labels: map[string]string{"a": "b"}, WorkDir: "/w"}
	m, err := Struct(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Spec(m)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	m.Fields["unknown"] = m.Fields["workDir"]
	if _, err := Spec(m); !errors.Is(err, belljar.ErrInvalidSpec) {
		t.Errorf("an unknown field: %v", err)
	}
	l, err := Limits(m.Fields["limits"].GetStructValue())
	if err != nil || l != want.Limits {
		t.Errorf("limits %+v, %v", l, err)
	}
}

func TestDuration(t *testing.T) {
	for _, d := range []*durationpb.Duration{{Seconds: -1}, {Nanos: -5}, {Seconds: math.MaxInt64}, {Seconds: 1, Nanos: 2e9}} {
		if _, err := FromDuration("ttl", d); !errors.Is(err, belljar.ErrInvalidSpec) {
			t.Errorf("%v was taken: %v", d, err)
		}
	}
	if d, err := FromDuration("ttl", Duration(time.Minute)); err != nil || d != time.Minute {
		t.Errorf("%v, %v", d, err)
	}
}

type fakeInfo struct{ mode fs.FileMode }

func (fakeInfo) Name() string        { return "n" }
func (fakeInfo) Size() int64         { return 3 }
func (f fakeInfo) Mode() fs.FileMode { return f.mode }
func (fakeInfo) ModTime() time.Time  { return time.Unix(5, 0) }
func (f fakeInfo) IsDir() bool       { return f.mode.IsDir() }
func (fakeInfo) Sys() any            { return nil }

func TestFileInfo(t *testing.T) {
	for _, m := range []fs.FileMode{
		0o644, fs.ModeDir | fs.ModeSticky | 0o777, fs.ModeSymlink | 0o777, fs.ModeNamedPipe, fs.ModeSocket | 0o600,
		fs.ModeDevice | 0o660, 0o755 | fs.ModeSetuid | fs.ModeSetgid,
	} {
		got, err := FromFileInfo(FileInfo(fakeInfo{m}, ""))
		if err != nil {
			t.Fatal(err)
		}
		if got.Mode() != m || got.Size() != 3 || got.Name() != "n" || got.ModTime().Unix() != 5 || got.IsDir() != m.IsDir() {
			t.Errorf("%v became %v", m, got.Mode())
		}
	}
	if _, err := FromFileInfo(nil); err == nil {
		t.Error("nothing was taken for a file")
	}
}

func TestSignal(t *testing.T) {
	for in, want := range map[string]syscall.Signal{"SIGTERM": 15, "term": 15, "9": 9, "SYS": 31, "64": 64} {
		if got, err := Signal(in); err != nil || got != want {
			t.Errorf("%s: %v, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "-", "0", "65", "-1", "SIGNOTHING", "9 "} {
		if got, err := Signal(in); !errors.Is(err, belljar.ErrInvalidSpec) {
			t.Errorf("%q: %v, %v", in, got, err)
		}
	}
}
