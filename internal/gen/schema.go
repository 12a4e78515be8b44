package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"

	"belljar"

	"github.com/google/jsonschema-go/jsonschema"
)

const dialect = "https://json-schema.org/draft/2020-12/schema"

// builder makes schemas of Go types.
type builder struct {
	src   *source
	input bool // what callers write: empty strings are refused, sizes and durations may be strings
	// rules refine a field's schema, by its path.
	rules map[string]func(*jsonschema.Schema)
	used  map[string]bool
	defs  map[string]*jsonschema.Schema
}

func specSchema(src *source) ([]byte, error) {
	b := &builder{src: src, input: true, rules: specRules, used: map[string]bool{}, defs: map[string]*jsonschema.Schema{
		"size":     sizeSchema(),
		"duration": durationSchema(),
	}}
	return b.build(reflect.TypeFor[belljar.Spec](), "belljar sandbox spec")
}

func resultSchema(src *source) ([]byte, error) {
	b := &builder{src: src, rules: resultRules, used: map[string]bool{}}
	return b.build(reflect.TypeFor[belljar.Result](), "belljar execution result")
}

func (b *builder) build(t reflect.Type, title string) ([]byte, error) {
	s, err := b.of(t, "")
	if err != nil {
		return nil, err
	}
	for path := range b.rules {
		if !b.used[path] {
			return nil, fmt.Errorf("rule for %q, which no field has", path)
		}
	}
	s.Schema, s.Title, s.Comment = dialect, title, "Generated from the Go types by go generate. Version "+belljar.SpecVersion+"."
	s.Description = b.src.types[t.Name()]
	s.Defs = b.defs
	return marshal(s)
}

func marshal(v any) ([]byte, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := json.Indent(&out, raw, "", "  "); err != nil {
		return nil, err
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

// of returns the schema of a type; path is where it stands, with [] and * for elements.
func (b *builder) of(t reflect.Type, path string) (*jsonschema.Schema, error) {
	s := &jsonschema.Schema{}
	switch {
	case b.input && t == reflect.TypeFor[time.Duration]():
		s.Ref = "#/$defs/duration"
	case b.input && t == reflect.TypeFor[belljar.Size]():
		s.Ref = "#/$defs/size"
	case t == reflect.TypeFor[time.Time]():
		s.Type, s.Format = "string", "date-time"
	case t == reflect.TypeFor[[]byte]():
		s.Type, s.ContentEncoding = "string", "base64"
	case t.Kind() == reflect.Pointer:
		return b.of(t.Elem(), path)
	case t.Kind() == reflect.Struct:
		return b.structure(t, path)
	case t.Kind() == reflect.Map:
		e, err := b.of(t.Elem(), path+".*")
		if err != nil {
			return nil, err
		}
		s.Type, s.AdditionalProperties = "object", e
		if words := b.src.words[t.Key().Name()]; words != nil {
			s.PropertyNames = &jsonschema.Schema{Enum: anys(words)}
		}
	case t.Kind() == reflect.Slice:
		e, err := b.of(t.Elem(), path+"[]")
		if err != nil {
			return nil, err
		}
		s.Type, s.Items = "array", e
	case t.Kind() == reflect.String:
		s.Type = "string"
		if words := b.src.words[t.Name()]; words != nil {
			s.Enum = anys(words)
		}
	case t.Kind() == reflect.Bool:
		s.Type = "boolean"
	case t.Kind() == reflect.Int, t.Kind() == reflect.Int64:
		s.Type = "integer"
	case t.Kind() == reflect.Float64:
		s.Type = "number"
	case t.Kind() == reflect.Interface:
		// Any value but null.
		s.Types = []string{"object", "array", "string", "number", "boolean"}
	default:
		return nil, fmt.Errorf("%s: no schema for %s", path, t)
	}
	return s, nil
}

func (b *builder) structure(t reflect.Type, path string) (*jsonschema.Schema, error) {
	s := &jsonschema.Schema{Type: "object", Properties: map[string]*jsonschema.Schema{}, AdditionalProperties: &jsonschema.Schema{Not: &jsonschema.Schema{}}}
	for i := range t.NumField() {
		f := t.Field(i)
		name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" {
			continue
		}
		at := strings.TrimPrefix(path+"."+name, ".")
		fs, err := b.of(f.Type, at)
		if err != nil {
			return nil, err
		}
		fs.Description = b.src.fields[t.Name()+"."+f.Name]
		if b.input && fs.Type == "string" && fs.Enum == nil {
			fs.MinLength = jsonschema.Ptr(1)
		}
		if rule := b.rules[at]; rule != nil {
			rule(fs)
			b.used[at] = true
		}
		s.Properties[name] = fs
		s.PropertyOrder = append(s.PropertyOrder, name)
		if opts != "omitempty" && opts != "omitzero" {
			s.Required = append(s.Required, name)
		}
	}
	return s, nil
}

func anys(words []string) []any {
	l := make([]any, len(words))
	for i, w := range words {
		l[i] = w
	}
	return l
}

func sizeSchema() *jsonschema.Schema {
	return &jsonschema.Schema{
		Description: "Whole bytes, or a string with one of the units B KB MB GB KiB MiB GiB, all of them 1024-based.",
		AnyOf: []*jsonschema.Schema{
			{Type: "integer", Minimum: jsonschema.Ptr(0.0)},
			{Type: "string", MaxLength: jsonschema.Ptr(64), Pattern: `^(0|[1-9][0-9]*)$|^(0|[1-9][0-9]*)(\.[0-9]+)?(B|KB|MB|GB|KiB|MiB|GiB)$`},
		},
		Examples: []any{268435456, "256MiB", "1.5GiB"},
	}
}

func durationSchema() *jsonschema.Schema {
	return &jsonschema.Schema{
		Description: "Whole milliseconds, or a string in Go's syntax of durations.",
		AnyOf: []*jsonschema.Schema{
			{Type: "integer", Minimum: jsonschema.Ptr(0.0)},
			{Type: "string", MaxLength: jsonschema.Ptr(64), Pattern: `^(0|[1-9][0-9]*)$|^(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$`},
		},
		Examples: []any{1500, "1.5s", "2h45m"},
	}
}

// between bounds a number.
func between(lo, hi float64) func(*jsonschema.Schema) {
	return func(s *jsonschema.Schema) { s.Minimum, s.Maximum = &lo, &hi }
}

// sizes and durations keep their forms and get bounds where they are integers. A
// bound applies to numbers only, so strings stay free.
func atLeast(lo float64) func(*jsonschema.Schema) {
	return func(s *jsonschema.Schema) { s.Minimum = &lo }
}

func pattern(p string) func(*jsonschema.Schema) {
	return func(s *jsonschema.Schema) { s.Pattern = p }
}

func words(w ...string) func(*jsonschema.Schema) {
	return func(s *jsonschema.Schema) { s.Enum, s.MinLength = anys(w), nil }
}

func def(v string, then ...func(*jsonschema.Schema)) func(*jsonschema.Schema) {
	return func(s *jsonschema.Schema) {
		s.Default = json.RawMessage(v)
		for _, f := range then {
			f(s)
		}
	}
}

const (
	namePattern  = `^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`
	labelPattern = `^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$`
	pathPattern  = `^/`
	maxBytes     = 1 << 50
	maxMillis    = 365 * 24 * 3600 * 1000
)

// specRules are the bounds that Compile checks, as far as a schema can say them.
var specRules = map[string]func(*jsonschema.Schema){
	"backend":     def(`"native"`, pattern(namePattern)),
	"workDir":     def(`"/workspace"`, pattern(pathPattern)),
	"timeout":     between(0, maxMillis),
	"ttl":         between(0, maxMillis),
	"idleTimeout": between(0, maxMillis),
	"env": func(s *jsonschema.Schema) {
		s.PropertyNames = &jsonschema.Schema{MinLength: jsonschema.Ptr(1), Pattern: `^[^=\x00]*$`}
		s.AdditionalProperties.Pattern = `^[^\x00]*$`
	},
	"labels": func(s *jsonschema.Schema) {
		s.PropertyNames = &jsonschema.Schema{Pattern: labelPattern}
		s.AdditionalProperties.MaxLength = jsonschema.Ptr(256)
		s.MaxProperties = jsonschema.Ptr(64)
	},
	"network":            def(`"disabled"`),
	"mounts":             func(s *jsonschema.Schema) { s.MaxItems = jsonschema.Ptr(64) },
	"mounts[].source":    pattern(`^/.`),
	"mounts[].target":    pattern(`^/.`),
	"mounts[].readOnly":  def(`true`),
	"tenant":             def(`"default"`, pattern(namePattern)),
	"name":               pattern(namePattern),
	"isolation.mode":     def(`"hardened"`),
	"isolation.seccomp":  def(`"default"`, words("default", "strict", "debug")),
	"isolation.fresh":    def(`false`),
	"pool.size":          between(1, 1000),
	"pool.maxIdle":       def(`"5m"`, between(1, maxMillis)),
	"limits.cpu":         between(0.01, 1024),
	"limits.cpuTime":     between(1, maxMillis),
	"limits.memory":      between(4<<20, maxBytes),
	"limits.pids":        def(`512`, between(1, 4194304)),
	"limits.disk":        between(64<<10, maxBytes),
	"limits.inodes":      def(`200000`, between(64, 1e9)),
	"limits.diskBacking": def(`"memory"`, words(belljar.DiskMemory, belljar.DiskDisk)),
	"limits.output":      between(1, maxBytes),
	"limits.openFiles":   def(`1024`, between(4, 1<<20)),
	"limits.fileSize":    between(1, maxBytes),
	"limits.core":        def(`0`, between(0, maxBytes)),
}

var resultRules = map[string]func(*jsonschema.Schema){
	"exitCode":     between(-1, 255),
	"droppedBytes": atLeast(0),
	"durationMs":   atLeast(0),
}
