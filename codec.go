package belljar

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// Bounds on what [ParseSpec] reads.
const (
	maxSpecBytes = 1 << 20
	maxSpecDepth = 32
)

// ParseSpec reads a spec in YAML or JSON; filename appears in errors only.
//
// It is strict: unknown and duplicate fields, wrong types, null, an explicit
// zero or negative limit, an explicit empty string, aliases, anchors, tags, merge
// keys, several documents, more than 1 MiB and nesting deeper than 32 are
// [CodeInvalidSpec], with the field in Op, the position as file:line:column in the
// message and a hint. Numbers are decimal as in JSON, and a plain number where a
// string is wanted is not taken for one. What [Compile] would refuse with
// [CodeInvalidSpec] is refused here too; what it answers with another code passes.
func ParseSpec(data []byte, filename string) (Spec, error) {
	if filename == "" {
		filename = "spec"
	}
	d := &decoder{root: "spec", file: filename, at: map[string]mark{}}
	var s Spec
	n, err := d.parse(data, strings.HasSuffix(filename, ".json"))
	if err != nil {
		return Spec{}, err
	}
	if err := d.value("", n, reflect.ValueOf(&s).Elem()); err != nil {
		return Spec{}, err
	}
	if _, err := Compile(s); errors.Is(err, ErrInvalidSpec) {
		return Spec{}, d.locate(err)
	}
	return s, nil
}

// decodeJSON reads JSON into v, a pointer to a struct of the spec. The root names it in errors.
func decodeJSON(data []byte, root string, v any) error {
	d := &decoder{root: root, at: map[string]mark{}}
	n, err := d.parse(data, true)
	if err != nil {
		return err
	}
	// A fresh value: a field that data leaves out must not keep what was there.
	fresh := reflect.New(reflect.TypeOf(v).Elem()).Elem()
	if err := d.value("", n, fresh); err != nil {
		return err
	}
	reflect.ValueOf(v).Elem().Set(fresh)
	return nil
}

// UnmarshalJSON is as strict as [ParseSpec], but leaves the checks of [Compile] to it.
func (s *Spec) UnmarshalJSON(data []byte) error { return decodeJSON(data, "spec", s) }

// UnmarshalJSON is as strict as [ParseSpec].
func (l *Limits) UnmarshalJSON(data []byte) error { return decodeJSON(data, "spec limits", l) }

// UnmarshalJSON is as strict as [ParseSpec].
func (p *Pool) UnmarshalJSON(data []byte) error { return decodeJSON(data, "spec pool", p) }

// MarshalJSON writes what [ParseSpec] reads back: durations as Go strings, sizes
// as integers, unset fields left out.
func (s Spec) MarshalJSON() ([]byte, error) { return encodeJSON(reflect.ValueOf(s)) }

// MarshalJSON writes durations as Go strings and sizes as integers.
func (l Limits) MarshalJSON() ([]byte, error) { return encodeJSON(reflect.ValueOf(l)) }

// MarshalJSON writes durations as Go strings.
func (p Pool) MarshalJSON() ([]byte, error) { return encodeJSON(reflect.ValueOf(p)) }

var (
	durationType = reflect.TypeFor[time.Duration]()
	sizeType     = reflect.TypeFor[Size]()
)

// encodeJSON writes the struct v by its json tags.
func encodeJSON(v reflect.Value) ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for _, f := range fieldsOf(v.Type()) {
		fv := v.Field(f.index)
		if !f.required && fv.IsZero() || !f.required && (fv.Kind() == reflect.Map || fv.Kind() == reflect.Slice) && fv.Len() == 0 {
			continue
		}
		var enc []byte
		var err error
		if fv.Type() == durationType {
			enc, err = json.Marshal(fv.Interface().(time.Duration).String())
		} else {
			enc, err = json.Marshal(fv.Interface())
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
		if b.Len() > 1 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Quote(f.name))
		b.WriteByte(':')
		b.Write(enc)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// field is a struct field as its json tag describes it.
type field struct {
	name     string
	index    int
	required bool // neither omitempty nor omitzero
}

func fieldsOf(t reflect.Type) []field {
	fs := make([]field, 0, t.NumField())
	for i := range t.NumField() {
		name, opts, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		fs = append(fs, field{name, i, opts != "omitempty" && opts != "omitzero"})
	}
	return fs
}

// mark is a position in the input, from 1.
type mark struct{ line, column int }

// decoder reads nodes into Go values by reflection, so that the types of the
// spec need no code of their own.
type decoder struct {
	root string          // what errors call the whole: "spec"
	file string          // empty: positions are left out
	at   map[string]mark // where each path was seen
}

// fail is an error about path at n.
func (d *decoder) fail(path string, n *yaml.Node, message, hint string) *Error {
	e := &Error{Code: CodeInvalidSpec, Op: d.op(path), Message: message, Hint: hint}
	if n != nil {
		e.Message = d.position(mark{n.Line, n.Column}) + message
		if n.Kind == yaml.ScalarNode {
			e.Observed = shorten(n.Value)
		}
	}
	return e
}

func (d *decoder) op(path string) string {
	switch {
	case path == "":
		return d.root
	case strings.Contains(d.root, " "):
		return d.root + "." + path
	}
	return d.root + " " + path
}

func (d *decoder) position(m mark) string {
	if d.file == "" {
		return ""
	}
	return fmt.Sprintf("%s:%d:%d: ", d.file, m.line, m.column)
}

// locate adds the position of its field to an error of Compile.
func (d *decoder) locate(err error) error {
	var e *Error
	if !errors.As(err, &e) {
		return err
	}
	c := *e
	path := strings.TrimPrefix(e.Op, "spec ")
	for {
		if m, ok := d.at[path]; ok {
			c.Message = d.position(m) + c.Message
			return &c
		}
		// The nearest written parent; "" is always there.
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
}

// shorten keeps hostile input from filling an error.
func shorten(s string) string {
	if len(s) <= 80 {
		return s
	}
	return strings.ToValidUTF8(s[:80], "") + "..."
}

// parse reads data into one tree.
func (d *decoder) parse(data []byte, isJSON bool) (*yaml.Node, error) {
	if len(data) > maxSpecBytes {
		return nil, d.fail("", nil, fmt.Sprintf("input has %d bytes, more than %d", len(data), maxSpecBytes), "make the spec smaller")
	}
	if !utf8.Valid(data) {
		return nil, d.fail("", nil, "input is not valid UTF-8", "save the file as UTF-8")
	}
	// JSON is read as JSON: YAML refuses its escaped surrogate pairs, and tabs in places.
	if trimmed := bytes.TrimLeft(data, " \t\r\n"); isJSON || len(trimmed) > 0 && trimmed[0] == '{' && json.Valid(data) {
		return d.parseJSON(data)
	}
	var doc yaml.Node
	if err := yaml.Load(data, &doc); err != nil {
		return nil, d.yamlError(err)
	}
	if doc.Kind != yaml.DocumentNode || len(doc.Content) != 1 {
		return nil, d.fail("", nil, "input is empty", "write {} for a spec with every default")
	}
	return doc.Content[0], nil
}

func (d *decoder) yamlError(err error) *Error {
	e := d.fail("", nil, "", "")
	e.Err = err
	var le *yaml.LoadError
	switch {
	case strings.Contains(err.Error(), "no documents"):
		e.Message, e.Hint = "input is empty", "write {} for a spec with every default"
	case strings.Contains(err.Error(), "expected single document"):
		e.Message, e.Hint = "input has several documents", "one file holds one spec: remove the --- line"
	case errors.As(err, &le):
		e.Message, e.Hint = d.position(mark{le.Mark.Line, le.Mark.Column})+"not valid YAML: "+le.Message, "check indentation and quotes there"
	default:
		e.Message, e.Hint = "not valid YAML: "+err.Error(), "check indentation and quotes"
	}
	return e
}

// parseJSON reads JSON into the nodes that YAML is read into.
func (d *decoder) parseJSON(data []byte) (*yaml.Node, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	p := &jsonParser{data: data, dec: dec, line: 1, column: 1}
	n, err := p.node(0)
	if err == nil {
		if _, err = dec.Token(); err == nil {
			err = errors.New("more after the end of the value")
		} else if err == io.EOF {
			return n, nil
		}
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	var se *json.SyntaxError
	if errors.As(err, &se) {
		p.advance(int(min(se.Offset, int64(len(data)))))
	}
	e := d.fail("", nil, d.position(mark{p.line, p.column})+"not valid JSON: "+err.Error(), "check commas, quotes and brackets there")
	e.Err = err
	return nil, e
}

// jsonParser builds nodes from JSON tokens and keeps track of positions.
type jsonParser struct {
	data         []byte
	dec          *json.Decoder
	offset       int // of line and column
	line, column int
}

// advance moves line and column to offset.
func (p *jsonParser) advance(offset int) {
	for ; p.offset < offset; p.offset++ {
		if p.data[p.offset] == '\n' {
			p.line, p.column = p.line+1, 1
		} else {
			p.column++
		}
	}
}

func (p *jsonParser) node(depth int) (*yaml.Node, error) {
	if depth > maxSpecDepth {
		return nil, fmt.Errorf("nested deeper than %d", maxSpecDepth)
	}
	start := int(p.dec.InputOffset())
	for start < len(p.data) && strings.IndexByte(" \t\r\n,:", p.data[start]) >= 0 {
		start++
	}
	p.advance(start)
	t, err := p.dec.Token()
	if err != nil {
		return nil, err
	}
	n := &yaml.Node{Kind: yaml.ScalarNode, Line: p.line, Column: p.column}
	switch t := t.(type) {
	case json.Delim:
		n.Kind = yaml.MappingNode
		if t == '[' {
			n.Kind = yaml.SequenceNode
		}
		for p.dec.More() {
			c, err := p.node(depth + 1)
			if err != nil {
				return nil, err
			}
			n.Content = append(n.Content, c)
		}
		_, err = p.dec.Token()
	case string:
		n.Value, n.Style = t, yaml.DoubleQuotedStyle
		raw := string(p.data[start:p.dec.InputOffset()])
		if strings.Contains(t, "\uFFFD") && !strings.Contains(raw, "\uFFFD") && !strings.Contains(strings.ToLower(raw), `\ufffd`) {
			err = errors.New("half of a surrogate pair in a string")
		}
	case json.Number:
		n.Value = t.String()
	case bool:
		n.Value = strconv.FormatBool(t)
	case nil:
		n.Value = "null"
	}
	return n, err
}

// scalarKind is what a scalar is by YAML 1.2's core schema, decided here so
// that `off` and `yes` stay words and `1_000` stays one.
type scalarKind string

const (
	aString scalarKind = "string"
	aNumber scalarKind = "number"
	aBool   scalarKind = "boolean"
	aNull   scalarKind = "null"
)

func kindOf(n *yaml.Node) scalarKind {
	if n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0 {
		return aString
	}
	switch n.Value {
	case "", "~", "null", "Null", "NULL":
		return aNull
	case "true", "True", "TRUE", "false", "False", "FALSE":
		return aBool
	}
	unsigned := strings.TrimLeft(n.Value, "+-")
	switch strings.ToLower(unsigned) {
	case ".inf", ".nan":
		return aNumber
	}
	if len(n.Value)-len(unsigned) > 1 {
		return aString
	}
	if strings.HasPrefix(unsigned, "0x") || strings.HasPrefix(unsigned, "0o") {
		if _, err := strconv.ParseUint(unsigned, 0, 64); err == nil {
			return aNumber
		}
		return aString
	}
	if strings.Trim(unsigned, "0123456789.eE+-") == "" && strings.ContainsAny(unsigned, "0123456789") {
		if _, err := strconv.ParseFloat(unsigned, 64); err == nil || errors.Is(err, strconv.ErrRange) {
			return aNumber
		}
	}
	return aString
}

// describe says what a node is, for "expected ..., got ...".
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	switch k := kindOf(n); k {
	case aNull:
		return "null"
	case aString:
		return "the string " + strconv.Quote(shorten(n.Value))
	default:
		return "the " + string(k) + " " + shorten(n.Value)
	}
}

// plain refuses what YAML has beyond JSON's data model.
func (d *decoder) plain(path string, n *yaml.Node) *Error {
	switch {
	case n.Kind == yaml.AliasNode:
		return d.fail(path, n, "aliases are not allowed", "write the value out")
	case n.Anchor != "":
		return d.fail(path, n, "anchors are not allowed", "write the value out where it is used")
	case n.Style&yaml.TaggedStyle != 0:
		return d.fail(path, n, "tags are not allowed", "remove "+shorten(n.Tag))
	}
	return nil
}

// value reads n into v.
func (d *decoder) value(path string, n *yaml.Node, v reflect.Value) error {
	return d.valueAt(path, n, v, 0)
}

func (d *decoder) valueAt(path string, n *yaml.Node, v reflect.Value, depth int) error {
	if err := d.plain(path, n); err != nil {
		return err
	}
	d.at[path] = mark{n.Line, n.Column}
	expected := func(what, hint string) error {
		return d.fail(path, n, "expected "+what+", got "+describe(n), hint)
	}
	if n.Kind == yaml.ScalarNode && kindOf(n) == aNull {
		return expected(wanted(v.Type()), "leave the field out for its default")
	}
	switch v.Type() {
	case durationType, sizeType:
		return d.quantity(path, n, v)
	}
	switch v.Kind() {
	case reflect.Pointer:
		p := reflect.New(v.Type().Elem())
		if err := d.valueAt(path, n, p.Elem(), depth); err != nil {
			return err
		}
		v.Set(p)
	case reflect.Struct:
		if n.Kind != yaml.MappingNode {
			return expected(wanted(v.Type()), "")
		}
		return d.structure(path, n, v, depth)
	case reflect.Map:
		if n.Kind != yaml.MappingNode {
			return expected(wanted(v.Type()), "")
		}
		if len(n.Content) == 0 {
			return nil
		}
		v.Set(reflect.MakeMap(v.Type()))
		return d.pairs(path, n, func(key string, at string, c *yaml.Node) error {
			e := reflect.New(v.Type().Elem()).Elem()
			if err := d.valueAt(at, c, e, depth+1); err != nil {
				return err
			}
			v.SetMapIndex(reflect.ValueOf(key).Convert(v.Type().Key()), e)
			return nil
		})
	case reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			return expected(wanted(v.Type()), "")
		}
		for i, c := range n.Content {
			e := reflect.New(v.Type().Elem()).Elem()
			if err := d.valueAt(child(path, fmt.Sprintf("[%d]", i)), c, e, depth+1); err != nil {
				return err
			}
			v.Set(reflect.Append(v, e))
		}
	case reflect.Interface:
		x, err := d.any(path, n, depth)
		if err != nil {
			return err
		}
		v.Set(reflect.ValueOf(x))
	case reflect.String:
		switch {
		case n.Kind != yaml.ScalarNode:
			return expected("a string", "")
		case kindOf(n) != aString:
			return expected("a string", "put it in quotes: "+strconv.Quote(shorten(n.Value)))
		}
		v.SetString(n.Value)
	case reflect.Bool:
		if n.Kind != yaml.ScalarNode || kindOf(n) != aBool {
			return expected("a boolean", "write true or false, without quotes")
		}
		v.SetBool(strings.EqualFold(n.Value, "true"))
	case reflect.Int, reflect.Int64:
		i, err := strconv.ParseInt(n.Value, 10, 64)
		if !isNumber(n) || !isDecimal(n.Value) || err != nil || v.OverflowInt(i) {
			return expected("a whole number", "write it in decimal digits, without quotes")
		}
		v.SetInt(i)
	case reflect.Float64:
		f, err := strconv.ParseFloat(n.Value, 64)
		if !isNumber(n) || !json.Valid([]byte(n.Value)) || err != nil || math.IsInf(f, 0) {
			return expected("a finite number", "write it as 2 or 0.5, without quotes")
		}
		v.SetFloat(f)
	default:
		return d.fail(path, n, "cannot be read into "+v.Type().String(), "")
	}
	return nil
}

func isNumber(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && kindOf(n) == aNumber }

// isDecimal reports whether s is an integer as JSON writes it.
func isDecimal(s string) bool {
	digits, rest := leadingDigits(strings.TrimPrefix(s, "-"))
	return digits != "" && rest == "" && (digits == "0" || digits[0] != '0')
}

// wanted describes the type for "expected ...".
func wanted(t reflect.Type) string {
	switch t {
	case durationType:
		return "a duration"
	case sizeType:
		return "a size"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return wanted(t.Elem())
	case reflect.Struct, reflect.Map:
		return "a mapping"
	case reflect.Slice:
		return "a list"
	case reflect.Bool:
		return "a boolean"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Float64:
		return "a finite number"
	case reflect.Interface:
		return "a value"
	}
	return "a string"
}

// quantity reads a size or a duration.
func (d *decoder) quantity(path string, n *yaml.Node, v reflect.Value) error {
	what, hint := "a size", sizeHint
	if v.Type() == durationType {
		what, hint = "a duration", durationHint
	}
	kind := kindOf(n)
	if n.Kind != yaml.ScalarNode || kind == aBool || kind == aNumber && !isDecimal(n.Value) {
		return d.fail(path, n, "expected "+what+", got "+describe(n), hint)
	}
	var i int64
	var err error
	if v.Type() == durationType {
		var x time.Duration
		x, err = ParseDuration(n.Value)
		i = int64(x)
	} else {
		var x Size
		x, err = ParseSize(n.Value)
		i = int64(x)
	}
	var e *Error
	if errors.As(err, &e) {
		f := d.fail(path, n, e.Message, e.Hint)
		f.Err = e.Err
		return f
	}
	v.SetInt(i)
	return nil
}

// child is the path of a part. It stays short, because every node below a long
// key would repeat it.
func child(path, suffix string) string {
	const enough = 256
	suffix = shorten(suffix)
	switch {
	case len(path)+len(suffix) <= enough:
		return strings.TrimPrefix(path+suffix, ".")
	case len(path) > enough || strings.HasSuffix(path, "..."):
		return path
	}
	return path + "..."
}

// pairs calls f for each pair of a mapping, with the path of the value.
func (d *decoder) pairs(path string, n *yaml.Node, f func(key, at string, c *yaml.Node) error) error {
	seen := make(map[string]int, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, c := n.Content[i], n.Content[i+1]
		if err := d.plain(path, k); err != nil {
			return err
		}
		if k.Kind != yaml.ScalarNode || kindOf(k) != aString {
			return d.fail(path, k, "expected a string as key, got "+describe(k), "put the key in quotes")
		}
		if k.Value == "<<" && k.Style == 0 {
			return d.fail(path, k, "merge keys are not allowed", "write the values out")
		}
		at := child(path, "."+k.Value)
		if line, twice := seen[k.Value]; twice {
			return d.fail(at, k, fmt.Sprintf("is written twice, first on line %d", line), "keep one of them")
		}
		seen[k.Value] = k.Line
		d.at[at] = mark{k.Line, k.Column}
		if err := f(k.Value, at, c); err != nil {
			return err
		}
	}
	return nil
}

// structure reads a mapping into a struct of the spec.
func (d *decoder) structure(path string, n *yaml.Node, v reflect.Value, depth int) error {
	fields := fieldsOf(v.Type())
	seen := map[string]bool{}
	err := d.pairs(path, n, func(key, at string, c *yaml.Node) error {
		i := slices.IndexFunc(fields, func(f field) bool { return f.name == key })
		if i < 0 {
			pos := d.at[at]
			e := d.fail(at, nil, d.position(pos)+"unknown field", didYouMean(key, v.Type(), path))
			e.Observed = shorten(key)
			return e
		}
		seen[key] = true
		fv := v.Field(fields[i].index)
		if err := d.valueAt(at, c, fv, depth+1); err != nil {
			return err
		}
		return d.explicit(at, c, fv, v.Type(), key)
	})
	if err != nil {
		return err
	}
	for _, f := range fields {
		if f.required && !seen[f.name] {
			return d.fail(child(path, "."+f.name), n, "is missing", "")
		}
	}
	return nil
}

// explicit refuses written values that Go could not tell from unset ones. A zero
// duration outside the limits means none, and zero core dumps are the default.
func (d *decoder) explicit(path string, n *yaml.Node, v reflect.Value, parent reflect.Type, name string) error {
	switch v.Kind() {
	case reflect.String:
		if v.Len() == 0 {
			return d.fail(path, n, "is an empty string", "leave the field out for its default")
		}
	case reflect.Int, reflect.Int64, reflect.Float64:
		strict := parent == reflect.TypeFor[Limits]() && name != "core" || parent == reflect.TypeFor[Pool]()
		if strict && v.IsZero() {
			return d.fail(path, n, "is 0", "leave the field out for its default")
		}
		if v.CanInt() && v.Int() < 0 || v.CanFloat() && v.Float() < 0 {
			return d.fail(path, n, "is negative", "")
		}
	}
	return nil
}

// any reads a value that has no Go type yet. Numbers stay as they are written.
func (d *decoder) any(path string, n *yaml.Node, depth int) (any, error) {
	if depth > maxSpecDepth {
		return nil, d.fail(path, n, fmt.Sprintf("nested deeper than %d", maxSpecDepth), "make the spec flatter")
	}
	if err := d.plain(path, n); err != nil {
		return nil, err
	}
	switch n.Kind {
	case yaml.MappingNode:
		m := make(map[string]any, len(n.Content)/2)
		return m, d.pairs(path, n, func(key, at string, c *yaml.Node) (err error) {
			m[key], err = d.any(at, c, depth+1)
			return err
		})
	case yaml.SequenceNode:
		l := make([]any, len(n.Content))
		for i, c := range n.Content {
			var err error
			if l[i], err = d.any(child(path, fmt.Sprintf("[%d]", i)), c, depth+1); err != nil {
				return nil, err
			}
		}
		return l, nil
	}
	switch kindOf(n) {
	case aBool:
		return strings.EqualFold(n.Value, "true"), nil
	case aNull:
		return nil, nil
	case aNumber:
		if !json.Valid([]byte(n.Value)) {
			return nil, d.fail(path, n, "expected a decimal number, got "+describe(n), "write it as JSON does, or put it in quotes")
		}
		return json.Number(n.Value), nil
	}
	return n.Value, nil
}

// didYouMean suggests a field of t, or one of a nested struct.
func didYouMean(key string, t reflect.Type, path string) string {
	flat := func(s string) string {
		return strings.ToLower(strings.NewReplacer("_", "", "-", "", ".", "").Replace(s))
	}
	want := flat(shorten(key))
	best, bestDistance := "", 3
	for _, f := range fieldsOf(t) {
		if dist := distance(want, flat(f.name)); dist < bestDistance && dist < len(f.name) {
			best, bestDistance = f.name, dist
		}
	}
	if bestDistance > 0 {
		for _, f := range fieldsOf(t) {
			nested := t.Field(f.index).Type
			if nested.Kind() == reflect.Pointer {
				nested = nested.Elem()
			}
			if nested.Kind() != reflect.Struct {
				continue
			}
			for _, g := range fieldsOf(nested) {
				if flat(g.name) == want {
					best, bestDistance = f.name+"."+g.name, 0
				}
			}
		}
	}
	if best != "" {
		return "did you mean " + best + "?"
	}
	names := make([]string, 0, 16)
	for _, f := range fieldsOf(t) {
		names = append(names, f.name)
	}
	if path == "" {
		return "the fields are " + strings.Join(names, ", ")
	}
	return "the fields of " + path + " are " + strings.Join(names, ", ")
}

// distance is Levenshtein's.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}
