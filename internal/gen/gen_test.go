package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"belljar"

	"github.com/google/jsonschema-go/jsonschema"
	"go.yaml.in/yaml/v4"
	"pgregory.net/rapid"
)

const root = "../.."

func TestGeneratedFilesAreCurrent(t *testing.T) {
	files, err := generate(root)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Error(err)
			continue
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what its source says: run go generate", name)
		}
	}
}

func TestEveryFieldIsDescribed(t *testing.T) {
	src, err := parseSource(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, typ := range []string{"Spec", "Limits", "Mount", "Isolation", "Pool"} {
		n := 0
		for field, text := range src.fields {
			if strings.HasPrefix(field, typ+".") {
				n++
				if text == "" {
					t.Errorf("%s has no comment, so its schema has no description", field)
				}
			}
		}
		if n == 0 {
			t.Errorf("no fields of %s were found", typ)
		}
	}
}

func load(t *testing.T, name string) *jsonschema.Resolved {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, "spec", name))
	if err != nil {
		t.Fatal(err)
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(data, &s); err != nil {
		t.Fatal(err)
	}
	r, err := s.Resolve(&jsonschema.ResolveOptions{ValidateDefaults: true})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// instance reads YAML or JSON as JSON's data model.
func instance(t *testing.T, data []byte) any {
	t.Helper()
	var y any
	if err := yaml.Load(data, &y); err != nil {
		t.Fatal(err)
	}
	j, err := json.Marshal(y)
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, j)
}

func decode(t interface{ Fatal(...any) }, data []byte) any {
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// TestSchemaAndParserAgree reads every example with both. What only the parser
// can refuse is in a directory of its own, so that the schema's reach is visible.
func TestSchemaAndParserAgree(t *testing.T) {
	schema := load(t, "spec.schema.json")
	for dir, want := range map[string]struct{ schema, parser bool }{
		"valid": {true, true}, "invalid": {false, false}, "beyond-schema": {true, false},
	} {
		files, err := filepath.Glob(filepath.Join(root, "testdata/spec", dir, "*"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d examples, %v", dir, len(files), err)
		}
		for _, name := range files {
			data, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			base := filepath.Base(name)
			if err := schema.Validate(instance(t, data)); (err == nil) != want.schema {
				t.Errorf("%s/%s: the schema says %v", dir, base, err)
			}
			_, err = belljar.ParseSpec(data, base)
			if (err == nil) != want.parser {
				t.Errorf("%s/%s: ParseSpec says %v", dir, base, err)
			}
			if err != nil && (!errors.Is(err, belljar.ErrInvalidSpec) || !strings.Contains(err.Error(), base+":1:") && !strings.Contains(err.Error(), base+":2:")) {
				t.Errorf("%s/%s: %v is no INVALID_SPEC with a position", dir, base, err)
			}
		}
	}
}

// TestBoundsAgree tries each rule's bounds with both, so that a bound changed in
// one place only is found.
func TestBoundsAgree(t *testing.T) {
	schema := load(t, "spec.schema.json")
	tried := 0
	for path, rule := range specRules {
		var s jsonschema.Schema
		s.AdditionalProperties = &jsonschema.Schema{}
		rule(&s)
		if s.Minimum == nil || s.Maximum == nil {
			continue
		}
		step := 1.0
		if path == "limits.cpu" {
			step = 0.001
		}
		for _, c := range []struct {
			v  float64
			ok bool
		}{{*s.Minimum, true}, {*s.Minimum - step, false}, {*s.Maximum, true}, {*s.Maximum + step, false}} {
			tried++
			v := fmt.Sprint(c.v)
			if c.v == math.Trunc(c.v) {
				v = fmt.Sprintf("%.0f", c.v)
			}
			doc := fmt.Sprintf(`{%q: %s}`, path, v)
			if outer, inner, nested := strings.Cut(path, "."); nested {
				size := ""
				if path == "pool.maxIdle" {
					size = `"size": 1, `
				}
				doc = fmt.Sprintf(`{%q: {%s%q: %s}}`, outer, size, inner, v)
			}
			if err := schema.Validate(decode(t, []byte(doc))); (err == nil) != c.ok {
				t.Errorf("%s: the schema says %v", doc, err)
			}
			if _, err := belljar.ParseSpec([]byte(doc), ""); (err == nil) != c.ok {
				t.Errorf("%s: ParseSpec says %v", doc, err)
			}
		}
	}
	if tried < 60 {
		t.Errorf("only %d bounds were tried", tried)
	}
}

// TestWordsAgree offers strings to the forms that have a pattern. What the parser
// takes, the schema must take, and what the schema refuses, the parser must refuse.
func TestWordsAgree(t *testing.T) {
	schema := load(t, "spec.schema.json")
	word := rapid.OneOf(
		rapid.StringMatching(`-?[0-9]{0,3}(\.[0-9]{0,3})?(B|KB|KiB|MiB|GB|TB|kb| MiB)?`),
		rapid.StringMatching(`-?([0-9]{0,2}(\.[0-9]?)?(ns|us|µs|ms|s|m|h|d|S)?){1,2}`),
		rapid.StringMatching(`[a-zA-Z0-9/_.-]{0,5}`),
		rapid.String(),
	)
	rapid.Check(t, func(t *rapid.T) {
		w, err := json.Marshal(word.Draw(t, "word"))
		if err != nil {
			t.Fatal(err)
		}
		for _, form := range []string{
			`{"timeout": %s}`, `{"limits": {"fileSize": %s}}`, `{"name": %s}`, `{"backend": %s}`, `{"tenant": %s}`, `{"workDir": %s}`, `{"labels": {%s: "x"}}`,
			`{"env": {%s: "x"}}`, `{"network": %s}`, `{"isolation": {"layers": {"user": %s}}}`, `{"mounts": [{"source": %s, "target": "/data"}]}`,
		} {
			doc := fmt.Sprintf(form, w)
			_, parser := belljar.ParseSpec([]byte(doc), "")
			if err := schema.Validate(decode(t, []byte(doc))); err != nil && parser == nil {
				t.Fatalf("%s: ParseSpec takes what the schema refuses: %v", doc, err)
			}
			// These forms are wholly expressible.
			whole := strings.Contains(form, "name") || strings.Contains(form, "network") || strings.Contains(form, "backend") || strings.Contains(form, "labels")
			if err := schema.Validate(decode(t, []byte(doc))); err == nil && parser != nil && whole {
				t.Fatalf("%s: the schema takes what ParseSpec refuses: %v", doc, parser)
			}
		}
	})
}

func TestResultSchema(t *testing.T) {
	schema := load(t, "result.schema.json")
	cpu, peak := 1.5, int64(4096)
	r := belljar.Result{
		ID: "x", State: belljar.Failed, Cause: belljar.CauseMemory, ExitCode: -1, Signal: "SIGKILL", Stdout: []byte{0, 255}, Stderr: []byte("e"), Truncated: true, DroppedBytes: 7,
		StartedAt: time.Unix(1, 5), FinishedAt: time.Unix(2, 0), DurationMs: 999.5, Timings: belljar.Timings{SpawnUs: 3},
		Usage: belljar.Usage{CPUTimeMs: &cpu, PeakMemoryBytes: &peak},
		Confinement: belljar.Report{Mode: belljar.Hardened, Layers: []belljar.LayerReport{
			{Layer: belljar.LayerSeccomp, Status: belljar.LayerApplied, Detail: "filter", Source: "supervisor"},
		}},
		Backend: "native", SpecVersion: belljar.SpecVersion, Error: &belljar.Error{Code: belljar.CodeOOM, Message: "m", Limit: "1MiB"},
	}
	data, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := schema.Validate(decode(t, data)); err != nil {
		t.Errorf("%s: %v", data, err)
	}
	for _, c := range []struct{ from, to string }{
		{`"state":"failed"`, `"state":"broken"`},
		{`"cause":"memory"`, `"cause":"bad luck"`},
		{`"exitCode":-1`, `"exitCode":256`},
		{`"id":"x"`, `"id":"x","extra":1`},
		{`"code":"ERR_OOM_EXCEEDED"`, `"code":"OOPS"`},
		{`"layer":"seccomp"`, `"layer":"apparmor"`},
		{`"exitCode":-1,`, ``},
	} {
		bad := strings.Replace(string(data), c.from, c.to, 1)
		if bad == string(data) {
			t.Fatalf("%s is not in %s", c.from, data)
		}
		if err := schema.Validate(decode(t, []byte(bad))); err == nil {
			t.Errorf("%s instead of %s passes", c.to, c.from)
		}
	}
}
