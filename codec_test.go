package belljar

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

func TestParseSpecReadsEveryField(t *testing.T) {
	no := false
	want := Spec{
		Backend: "process", Image: "/srv/image", WorkDir: "/work", Env: map[string]string{"A": "1", "EMPTY": "", "YES": "yes"},
		Timeout: 1500 * time.Millisecond, TTL: time.Hour, IdleTimeout: 250 * time.Millisecond,
		Limits: Limits{
			CPU: 0.5, CPUTime: 2 * time.Second, Memory: 256 * MiB, Pids: 64, Disk: 64 * MiB, Inodes: 1000, DiskBacking: DiskMemory,
			Output: 1536, OpenFiles: 256, FileSize: MiB, Core: 4096,
		},
		Network: NetworkDisabled,
		Mounts:  []Mount{{Source: "/srv/data", Target: "/data"}, {Source: "/srv/out", Target: "/out", ReadOnly: &no}},
		Isolation: Isolation{
			Mode: Compat, Layers: map[Layer]Want{LayerLandlock: Off, LayerUser: Prefer}, Seccomp: "strict", Fresh: true,
		},
		Pool: &Pool{Size: 4, MaxIdle: time.Minute}, Tenant: "acme", Labels: map[string]string{"team/x": "blue"}, Name: "job-1",
	}
	yaml := `
backend: process
image: /srv/image
workDir: /work
env: {A: "1", EMPTY: "", YES: yes}
timeout: 1500
ttl: 1h
idleTimeout: "250"
limits:
  cpu: 0.5
  cpuTime: 2s
  memory: 256MiB
  pids: 64
  disk: 67108864
  inodes: 1000
  diskBacking: memory
  output: 1.5KB
  openFiles: 256
  fileSize: "1048576"
  core: 4096
network: disabled
mounts:
  - source: /srv/data
    target: /data
  - {source: /srv/out, target: /out, readOnly: false}
isolation:
  mode: compat
  layers: {landlock: off, user: prefer}
  seccomp: strict
  fresh: true
pool:
  size: 4
  maxIdle: 1m
tenant: acme
labels:
  team/x: blue
name: job-1
`
	got, err := ParseSpec([]byte(yaml), "job.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("YAML (-want +got):\n%s", diff)
	}
	data, err := json.MarshalIndent(want, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(data), `"cpuTime": "2s"`) || !strings.Contains(string(data), `"memory": 268435456`) {
		t.Errorf("JSON has no durations as strings and sizes as integers:\n%s", data)
	}
	got, err = ParseSpec(data, "job.json")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("JSON (-want +got):\n%s", diff)
	}
	// A field that this test forgets would be a field that nothing reads.
	for _, v := range reflect.VisibleFields(reflect.TypeOf(want)) {
		if v.Name != "Policy" && reflect.ValueOf(want).FieldByIndex(v.Index).IsZero() {
			t.Errorf("the test does not cover Spec.%s", v.Name)
		}
	}
}

func TestParseSpecRefuses(t *testing.T) {
	for _, c := range []struct {
		name, in, op, message, hint string
	}{
		{"unknown field", "name: a\nlimitz: {}\n", "spec limitz", "job:2:1: unknown field", "did you mean limits?"},
		{"snake case", "work_dir: /a\n", "spec work_dir", "job:1:1: unknown field", "did you mean workDir?"},
		{"field of another struct", "\nmemory: 1GiB\n", "spec memory", "job:2:1: unknown field", "did you mean limits.memory?"},
		{"nested unknown", "limits:\n  memroy: 1GiB\n", "spec limits.memroy", "job:2:3: unknown field", "did you mean memory?"},
		{"nothing similar", "pool:\n  flavour: x\n", "spec pool.flavour", "job:2:3: unknown field", "the fields of pool are size, maxIdle"},
		{"case matters", "Name: a\n", "spec Name", "job:1:1: unknown field", "did you mean name?"},
		{"duplicate", "name: a\nnetwork: disabled\nname: b\n", "spec name", "job:3:1: is written twice, first on line 1", "keep one"},
		{"duplicate in JSON", `{"name": "a", "name": "b"}`, "spec name", "job:1:15: is written twice, first on line 1", "keep one"},
		{"duplicate in a map", "env: {A: x, A: y}\n", "spec env.A", "job:1:13: is written twice", "keep one"},
		{"number for string", "name: 12\n", "spec name", `job:1:7: expected a string, got the number 12`, `"12"`},
		{"number for env", "env:\n  PORT: 8080\n", "spec env.PORT", "job:2:9: expected a string, got the number 8080", `"8080"`},
		{"bool for env", "env: {A: true}\n", "spec env.A", "expected a string, got the boolean true", "quotes"},
		{"number as key", "env: {1: x}\n", "spec env", "expected a string as key, got the number 1", "quotes"},
		{"string for mapping", "limits: big\n", "spec limits", `expected a mapping, got the string "big"`, ""},
		{"mapping for list", "mounts: {}\n", "spec mounts", "expected a list, got a mapping", ""},
		{"list for the whole", "- a\n", "spec", "job:1:1: expected a mapping, got a list", ""},
		{"string for bool", "isolation: {fresh: yes}\n", "spec isolation.fresh", `expected a boolean, got the string "yes"`, "true or false"},
		{"quoted number", "limits: {pids: \"5\"}\n", "spec limits.pids", `expected a whole number, got the string "5"`, "without quotes"},
		{"fraction", "limits: {pids: 1.5}\n", "spec limits.pids", "expected a whole number, got the number 1.5", ""},
		{"octal", "limits: {pids: 0777}\n", "spec limits.pids", "expected a whole number", "decimal"},
		{"hexadecimal", "limits: {memory: 0x10000000}\n", "spec limits.memory", "expected a size, got the number 0x10000000", "whole bytes"},
		{"underscores", "limits: {pids: 1_000}\n", "spec limits.pids", `got the string "1_000"`, ""},
		{"exponent size", "limits: {memory: 1e9}\n", "spec limits.memory", "expected a size, got the number 1e9", ""},
		{"overflow", "limits: {pids: 99999999999999999999}\n", "spec limits.pids", "expected a whole number", ""},
		{"NaN", "limits: {cpu: .nan}\n", "spec limits.cpu", "expected a finite number, got the number .nan", ""},
		{"Inf", "limits: {cpu: -.inf}\n", "spec limits.cpu", "expected a finite number", ""},
		{"huge float", "limits: {cpu: 1e999}\n", "spec limits.cpu", "expected a finite number", ""},
		{"zero", "limits: {memory: 0}\n", "spec limits.memory", "job:1:18: is 0", "leave the field out"},
		{"zero with unit", "limits: {memory: 0MiB}\n", "spec limits.memory", "is 0", "leave the field out"},
		{"zero cpu", "limits: {cpu: 0.0}\n", "spec limits.cpu", "is 0", ""},
		{"zero cpuTime", "limits: {cpuTime: 0s}\n", "spec limits.cpuTime", "is 0", ""},
		{"zero pool", "pool: {size: 0}\n", "spec pool.size", "is 0", ""},
		{"negative", "limits: {pids: -1}\n", "spec limits.pids", "job:1:16: is negative", ""},
		{"negative cpu", "limits: {cpu: -0.5}\n", "spec limits.cpu", "is negative", ""},
		{"negative size", "limits: {memory: -1}\n", "spec limits.memory", `job:1:18: "-1" is not a size`, "256MiB"},
		{"negative duration", "timeout: -1s\n", "spec timeout", `"-1s" has a sign`, "1.5s"},
		{"junk size", "limits: {memory: lots}\n", "spec limits.memory", `"lots" is not a size`, "256MiB"},
		{"junk duration", "timeout: soon\n", "spec timeout", `"soon" is not a duration`, "1.5s"},
		{"empty string", "name: \"\"\n", "spec name", "is an empty string", "leave the field out"},
		{"null", "limits:\n", "spec limits", "expected a mapping, got null", "leave the field out"},
		{"null in JSON", `{"name": null}`, "spec name", "job:1:10: expected a string, got null", ""},
		{"missing", "mounts:\n  - source: /srv\n", "spec mounts[0].target", "job:2:5: is missing", ""},
		{"alias", "env: &e {A: x}\nlabels: *e\n", "spec env", "job:1:6: anchors are not allowed", ""},
		{"merge key", "env: {<<: {A: x}}\n", "spec env", "merge keys are not allowed", ""},
		{"tag", "name: !!str 1\n", "spec name", "tags are not allowed", "!!str"},
		{"local tag", "env: !x {A: y}\n", "spec env", "tags are not allowed", "!x"},
		{"documents", "name: a\n---\nname: b\n", "spec", "several documents", "one spec"},
		{"empty", "", "spec", "input is empty", "{}"},
		{"only a comment", "# nothing\n", "spec", "input is empty", "{}"},
		{"not YAML", "name: [a\n", "spec", "job:2:1: not valid YAML", ""},
		{"long key", "x" + strings.Repeat("y", 500) + ": 1\n", "spec x" + strings.Repeat("y", 78) + "...", "unknown field", ""},
		{"not UTF-8", "name: \xff\n", "spec", "not valid UTF-8", ""},
		{"half a surrogate pair", `{"env": {"A": "\ud83d"}}`, "spec", "half of a surrogate pair", ""},
		{"deep YAML", "policy: " + strings.Repeat("[", 40) + strings.Repeat("]", 40) + "\n", "spec policy" + strings.Repeat("[0]", 32), "nested deeper than 32", ""},
		{"deep JSON", `{"policy": ` + strings.Repeat("[", 40) + strings.Repeat("]", 40) + "}", "spec", "nested deeper than 32", ""},
		{"large", "#" + strings.Repeat(" ", 1<<20), "spec", "input has 1048577 bytes", ""},
		{"checked by Compile", "\nlimits:\n  memory: 1MiB\n", "spec limits.memory", "job:3:11: 1MiB is not between 4MiB", "about 1 MiB"},
		{"checked by Compile, in a list", "mounts:\n  - {source: /, target: /data}\n", "spec mounts[0].source", "job:2:14: is the root of the host", ""},
		{"checked by Compile, default at fault", "name: a\nmounts:\n  - {source: /srv, target: /workspace}\n", "spec mounts[0].target", "job:3:28: /workspace would hide /workspace", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := ParseSpec([]byte(c.in), "job")
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("got %+v, %v; want an *Error", got, err)
			}
			if e.Code != CodeInvalidSpec || e.Op != c.op || !strings.Contains(e.Message, c.message) || !strings.Contains(e.Hint, c.hint) {
				t.Errorf("got %s, op %q, message %q, hint %q\nwant op %q, message with %q, hint with %q", e.Code, e.Op, e.Message, e.Hint, c.op, c.message, c.hint)
			}
			if !reflect.ValueOf(got).IsZero() {
				t.Errorf("a refused spec is not zero: %+v", got)
			}
		})
	}
}

func TestParseSpecJSONErrorPosition(t *testing.T) {
	_, err := ParseSpec([]byte("{\n  \"name\": \"a\",\n  \"limits\" {}\n}"), "x.json")
	if err == nil || !strings.Contains(err.Error(), "x.json:3:") || !strings.Contains(err.Error(), "not valid JSON") {
		t.Errorf("got %v, want a JSON error on line 3", err)
	}
	for _, in := range []string{`{} {}`, `{`, `[`, ``, `{"a"`} {
		if _, err := ParseSpec([]byte(in), "x.json"); !errors.Is(err, ErrInvalidSpec) {
			t.Errorf("%q: got %v, want INVALID_SPEC", in, err)
		}
	}
}

func TestParseSpecAllows(t *testing.T) {
	for name, in := range map[string]string{
		"nothing but defaults":     "{}",
		"zero timeouts mean none":  "timeout: 0\nttl: 0s\nidleTimeout: \"0\"\n",
		"zero core":                "limits: {core: 0}\n",
		"empty collections":        "env: {}\nmounts: []\nlabels: {}\nlimits: {}\nisolation: {layers: {}}\n",
		"document start and end":   "---\nname: a\n...\n",
		"byte order mark":          "\ufeffname: a\n",
		"what is not built":        "policy: {version: 1}\n",
		"an OCI image":             "image: python:3.12\n",
		"other networks":           "network: proxy\n",
		"block scalars":            "env:\n  A: |\n    two\n    lines\n",
		"tabs and pairs, in JSON":  "{\n\t\"env\": {\"A\": \"\\ud83d\\ude00\\/\"}\n}",
		"replacement character":    `{"env": {"A": "\uFFFD\ud83d\ude00"}}`,
		"quoted merge key is text": "env: {\"<<\": a}\n",
	} {
		if _, err := ParseSpec([]byte(in), "job"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestUnmarshalJSONIsStrictAndReplaces(t *testing.T) {
	s := Spec{Name: "old", Limits: Limits{Memory: GiB}}
	if err := json.Unmarshal([]byte(`{"timeout": "1s"}`), &s); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Spec{Timeout: time.Second}, s); diff != "" {
		t.Errorf("fields of an earlier value survive (-want +got):\n%s", diff)
	}
	for in, op := range map[string]string{
		`{"limit": {}}`:                "spec limit",
		`{"limits": {"memory": null}}`: "spec limits.memory",
		`{"limits": {"pids": 0}}`:      "spec limits.pids",
	} {
		before := s
		var e *Error
		if err := json.Unmarshal([]byte(in), &s); !errors.As(err, &e) || e.Op != op {
			t.Errorf("%s: got %v, want op %q", in, err, op)
		}
		if diff := cmp.Diff(before, s); diff != "" {
			t.Errorf("%s changed the value:\n%s", in, diff)
		}
	}
	var l Limits
	var e *Error
	if err := json.Unmarshal([]byte(`{"memory": "1GiB", "cpus": 1}`), &l); !errors.As(err, &e) || e.Op != "spec limits.cpus" {
		t.Errorf("limits: got %v, want op %q", err, "spec limits.cpus")
	}
	if err := json.Unmarshal([]byte(`{"memory": "1GiB", "cpuTime": 1500}`), &l); err != nil || l.Memory != GiB || l.CPUTime != 1500*time.Millisecond {
		t.Errorf("limits: got %+v, %v", l, err)
	}
	var p Pool
	if err := json.Unmarshal([]byte(`{"maxIdle": "1s"}`), &p); !errors.As(err, &e) || e.Op != "spec pool.size" {
		t.Errorf("pool: got %v, want a missing size", err)
	}
}

// genSpec draws specs that Compile accepts or answers with UNSUPPORTED.
func genSpec(t *rapid.T) Spec {
	maybe := func(name string) bool { return rapid.Bool().Draw(t, name) }
	text := rapid.StringMatching(`[^\x00]{0,20}`)
	duration := func(name string) time.Duration {
		return time.Duration(rapid.Int64Range(int64(time.Millisecond), int64(1000*time.Hour)).Draw(t, name))
	}
	var s Spec
	if maybe("backend") {
		s.Backend = rapid.SampledFrom([]string{"native", "docker", "fake"}).Draw(t, "backend value")
	}
	if maybe("image") {
		s.Image = rapid.SampledFrom([]string{"/srv/x", "alpine:3", "oci:dir"}).Draw(t, "image value")
	}
	if maybe("env") {
		s.Env = rapid.MapOfN(rapid.StringMatching(`[^=\x00]{1,8}`), text, 0, 4).Draw(t, "env value")
	}
	if maybe("times") {
		s.Timeout, s.TTL, s.IdleTimeout = duration("timeout"), duration("ttl"), duration("idle")
	}
	if maybe("limits") {
		s.Limits = Limits{
			CPU: rapid.Float64Range(0.01, 1024).Draw(t, "cpu"), CPUTime: duration("cpuTime"), Memory: Size(rapid.Int64Range(4<<20, 1<<50).Draw(t, "memory")),
			Pids: rapid.Int64Range(1, 4194304).Draw(t, "pids"), Core: Size(rapid.Int64Range(0, 1<<20).Draw(t, "core")),
			OpenFiles: rapid.Int64Range(4, 1<<20).Draw(t, "openFiles"), DiskBacking: rapid.SampledFrom([]string{"", "memory", "disk"}).Draw(t, "backing"),
		}
	}
	for i := range rapid.IntRange(0, 3).Draw(t, "mounts") {
		m := Mount{Source: fmt.Sprintf("/srv/%d", i), Target: fmt.Sprintf("/mnt/%d", i)}
		if maybe("readOnly") {
			ro := maybe("readOnly value")
			m.ReadOnly = &ro
		}
		s.Mounts = append(s.Mounts, m)
	}
	if maybe("isolation") {
		s.Isolation = Isolation{
			Mode: rapid.SampledFrom([]Mode{"", Compat, Dev}).Draw(t, "mode"), Fresh: maybe("fresh"), Seccomp: rapid.SampledFrom([]string{"", "debug"}).Draw(t, "seccomp"),
			Layers: rapid.MapOfN(rapid.SampledFrom([]Layer{LayerLandlock, LayerCgroupNS, LayerSeccomp}), rapid.SampledFrom([]Want{Require, Off}), 0, 3).Draw(t, "layers"),
		}
	}
	if maybe("pool") {
		s.Pool = &Pool{Size: rapid.IntRange(1, 1000).Draw(t, "size")}
		if maybe("maxIdle") {
			s.Pool.MaxIdle = duration("maxIdle value")
		}
	}
	if maybe("labels") {
		s.Labels = map[string]string{"a/b": rapid.StringMatching(`[a-zé"\\]{0,9}`).Draw(t, "label")}
	}
	if maybe("name") {
		s.Name, s.Tenant = "a-1", "t"
	}
	return s
}

func TestSpecRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := genSpec(t)
		data, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseSpec(data, "x.json")
		if err != nil {
			t.Fatalf("%s: %v", data, err)
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("%s (-want +got):\n%s", data, diff)
		}
		var again Spec
		if err := json.Unmarshal(data, &again); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(got, again); diff != "" {
			t.Fatalf("UnmarshalJSON differs from ParseSpec:\n%s", diff)
		}
	})
}

func TestMarshalRefusesWhatJSONCannotSay(t *testing.T) {
	if data, err := json.Marshal(Spec{Limits: Limits{CPU: math.NaN()}}); err == nil {
		t.Errorf("got %s, want an error", data)
	}
}

// A plan is recorded as JSON; what Compile filled in must read back.
func TestCompiledSpecRoundTrips(t *testing.T) {
	p, err := Compile(Spec{Limits: Limits{Memory: GiB}, Pool: &Pool{Size: 1}, Mounts: []Mount{{Source: "/srv", Target: "/data"}}})
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	var got Plan
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(*p, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A long key must not be repeated for each of the many nodes below it.
func TestParseSpecMemoryIsBounded(t *testing.T) {
	key := strings.Repeat("k", 400_000)
	for name, in := range map[string]string{
		"JSON": `{"policy": {"` + key + `": [` + strings.Repeat("1,", 150_000) + `1]}}`,
		"env":  `{"env": {"` + key + `": ` + strings.Repeat("[", 20) + strings.Repeat("]", 20) + `}}`,
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := ParseSpec([]byte(in), "job")
		runtime.ReadMemStats(&after)
		if name == "env" && (err == nil || len(err.Error()) > 1000) {
			t.Errorf("%s: got an error of %d bytes", name, len(fmt.Sprint(err)))
		}
		if mib := (after.TotalAlloc - before.TotalAlloc) >> 20; mib > 512 {
			t.Errorf("%s: %d bytes of input made %d MiB of garbage", name, len(in), mib)
		}
	}
}

func FuzzParseSpec(f *testing.F) {
	for _, in := range []string{
		"{}", "name: a\nlimits: {memory: 256MiB, cpu: 0.5}\n", `{"env": {"A": "\u0000"}, "timeout": "1s"}`, "a: &a [*a]\n", "mounts:\n- {source: /srv, target: /x}\n",
		"policy: {a: [1, 1.0, true, null, x, 1e5]}\n", "? [a]\n: b\n", "env:\n  <<: {A: b}\n",
	} {
		f.Add([]byte(in))
	}
	files, err := filepath.Glob("testdata/spec/*/*")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		s, err := ParseSpec(in, "")
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Code != CodeInvalidSpec || e.Op == "" || e.Message == "" {
				t.Fatalf("not a full INVALID_SPEC: %#v", err)
			}
			return
		}
		data, err := json.Marshal(s)
		if err != nil {
			t.Fatalf("%+v: %v", s, err)
		}
		back, err := ParseSpec(data, "")
		if err != nil {
			t.Fatalf("%s: %v", data, err)
		}
		if diff := cmp.Diff(s, back, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("%s:\n%s", data, diff)
		}
	})
}
