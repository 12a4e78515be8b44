package cell

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
)

// The frames that the supervisor sends.
type (
	openFrame struct {
		T       string            `json:"t"` // "open"
		V       int               `json:"v"`
		ID      uint64            `json:"id"`
		Cell    string            `json:"cell"`
		Dir     string            `json:"dir"`
		Env     map[string]string `json:"env"`
		Imports []string          `json:"imports"` // null: all
		Frame   int               `json:"frame"`
	}
	execFrame struct {
		T       string `json:"t"` // "exec"
		ID      uint64 `json:"id"`
		Context string `json:"context"`
		Source  string `json:"source"`
	}
	callFrame struct {
		T       string                     `json:"t"` // "call"
		ID      uint64                     `json:"id"`
		Context string                     `json:"context"`
		Target  string                     `json:"target"`
		Args    []json.RawMessage          `json:"args"`
		Kwargs  map[string]json.RawMessage `json:"kwargs"`
	}
	postFrame struct {
		T     string          `json:"t"` // "post"
		Value json.RawMessage `json:"value"`
	}
	replyFrame struct {
		T     string          `json:"t"` // "reply"
		ID    uint64          `json:"id"`
		OK    bool            `json:"ok"`
		Value json.RawMessage `json:"value,omitempty"`
		Error string          `json:"error,omitempty"`
	}
)

// appendTo puts the value, which is JSON in order, into its frame without reading it
// once more.
func (f postFrame) appendTo(b []byte) []byte {
	b = append(b, `{"t":"post","value":`...)
	b = append(b, f.Value...)
	return append(b, '}')
}

// Types of the frames that a guest sends.
const (
	tHello   = "hello"
	tDone    = "done"
	tDisplay = "display"
	tPost    = "post"
	tLog     = "log"
	tMetric  = "metric"
	tRequest = "request"
)

// message is a guest's frame. What it holds was checked for its form and nothing else.
// Raw members are copies.
type message struct {
	t          string
	v          int
	id         uint64
	ok         bool
	language   string
	version    string
	level      string
	text       string
	name       string
	number     float64
	capability string
	action     string
	value      json.RawMessage
	bundle     map[string]json.RawMessage // result, data
	fields     json.RawMessage
	tags       map[string]string
	fault      *Exception
}

// member says how a member of a frame is read.
type member struct {
	required bool
	read     func(m *message, raw []byte) bool
}

var (
	readID    = func(m *message, raw []byte) bool { return number(raw, maxID, &m.id) && m.id > 0 }
	readValue = func(m *message, raw []byte) bool { m.value = bytes.Clone(raw); return true }
	readData  = func(m *message, raw []byte) bool { return json.Unmarshal(raw, &m.bundle) == nil && m.bundle != nil }
)

// guestFrames are all members of all frames that a guest may send. It is what
// abi/v1.schema.json says; a test compares them.
var guestFrames = map[string]map[string]member{
	tHello: {
		"v": {true, func(m *message, raw []byte) bool {
			var v uint64
			ok := number(raw, 1<<16, &v)
			m.v = int(v)
			return ok
		}},
		"language": {true, func(m *message, raw []byte) bool { return text(raw, 32, &m.language) }},
		"version":  {true, func(m *message, raw []byte) bool { return text(raw, 64, &m.version) }},
	},
	tDone: {
		"id":     {true, readID},
		"ok":     {true, func(m *message, raw []byte) bool { m.ok = raw[0] == 't'; return raw[0] == 't' || raw[0] == 'f' }},
		"value":  {false, readValue},
		"result": {false, readData},
		"error":  {false, readFault},
	},
	tDisplay: {
		"id":   {true, readID},
		"data": {true, readData},
	},
	tPost: {
		"value": {true, readValue},
	},
	tLog: {
		"level": {true, func(m *message, raw []byte) bool {
			return text(raw, 16, &m.level) && slices.Contains([]string{"debug", "info", "warning", "error"}, m.level)
		}},
		"message": {true, func(m *message, raw []byte) bool { return text(raw, maxFrame, &m.text) }},
		"fields":  {false, func(m *message, raw []byte) bool { m.fields = bytes.Clone(raw); return raw[0] == '{' }},
	},
	tMetric: {
		"name": {true, func(m *message, raw []byte) bool { return text(raw, 128, &m.name) && m.name != "" }},
		"value": {true, func(m *message, raw []byte) bool {
			return raw[0] != 'n' && json.Unmarshal(raw, &m.number) == nil && !math.IsInf(m.number, 0)
		}},
		"tags": {false, func(m *message, raw []byte) bool {
			return stringMap(raw, &m.tags)
		}},
	},
	tRequest: {
		"id":         {true, readID},
		"capability": {true, func(m *message, raw []byte) bool { return text(raw, 128, &m.capability) && m.capability != "" }},
		"action":     {true, func(m *message, raw []byte) bool { return text(raw, 128, &m.action) && m.action != "" }},
		"payload":    {false, readValue},
	},
}

// decode reads a guest's frame.
func decode(b []byte) (*message, error) {
	fields, err := parseObject(b)
	if err != nil {
		return nil, err
	}
	m := &message{}
	for _, f := range fields {
		if f.key == "t" && !text(f.raw, 16, &m.t) {
			return nil, broken("t is no string")
		}
	}
	spec, ok := guestFrames[m.t]
	if !ok {
		return nil, broken("no frame of type %q", m.t)
	}
	n := 0
	for _, f := range fields {
		if f.key == "t" {
			continue
		}
		mem, ok := spec[f.key]
		if !ok {
			return nil, broken("%s has no member %.40q", m.t, f.key)
		}
		if !mem.read(m, f.raw) {
			return nil, broken("%s has a wrong %s", m.t, f.key)
		}
		if mem.required {
			n++
		}
	}
	for _, mem := range spec {
		if mem.required {
			n--
		}
	}
	if n != 0 {
		return nil, broken("%s lacks a member", m.t)
	}
	if m.t == tDone && m.ok == (m.fault != nil) {
		return nil, broken("done has an error or is ok, not both and not neither")
	}
	return m, nil
}

// readFault reads the error of a done frame.
func readFault(m *message, raw []byte) bool {
	if raw[0] != '{' {
		return false
	}
	fields, err := parseObject(raw)
	if err != nil {
		return false
	}
	f := &Exception{}
	for _, x := range fields {
		ok := false
		switch x.key {
		case "name":
			ok = text(x.raw, 256, &f.Name)
		case "message":
			ok = text(x.raw, maxFrame, &f.Message)
		case "traceback":
			ok = stringList(x.raw, &f.Traceback)
		}
		if !ok {
			return false
		}
	}
	m.fault = f
	return f.Name != ""
}

// text reads a string of at most most bytes.
func text(raw []byte, most int, s *string) bool {
	return raw[0] == '"' && len(raw) <= 6*most+2 && json.Unmarshal(raw, s) == nil && len(*s) <= most
}

// stringMap reads an object of strings; null is none.
func stringMap(raw []byte, m *map[string]string) bool {
	var got map[string]*string
	if raw[0] != '{' || json.Unmarshal(raw, &got) != nil {
		return false
	}
	*m = map[string]string{}
	for k, v := range got {
		if v == nil {
			return false
		}
		(*m)[k] = *v
	}
	return true
}

// stringList reads an array of strings; null is none.
func stringList(raw []byte, l *[]string) bool {
	var got []*string
	if raw[0] != '[' || json.Unmarshal(raw, &got) != nil {
		return false
	}
	for _, v := range got {
		if v == nil {
			return false
		}
		*l = append(*l, *v)
	}
	return true
}

// number reads a whole number from 0 to most.
func number(raw []byte, most uint64, n *uint64) bool {
	if len(raw) > 16 {
		return false
	}
	*n = 0
	for _, c := range raw {
		if c < '0' || c > '9' {
			return false
		}
		*n = *n*10 + uint64(c-'0')
	}
	return *n <= most
}
