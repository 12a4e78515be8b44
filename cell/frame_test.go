package cell

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/jsonschema-go/jsonschema"
)

func TestReadFrame(t *testing.T) {
	for _, c := range []struct{ name, in, want, fault string }{
		{"one", "2\n{}", "{}", ""},
		{"empty", "", "", "EOF"},
		{"zero", "0\n", "", "the byte '0'"},
		{"leading zero", "02\n{}", "", "the byte '0'"},
		{"negative", "-2\n{}", "", "the byte '-'"},
		{"no length", "\n{}", "", `the byte '\n'`},
		{"binary", "\x00\x00\x00\x02{}", "", `the byte '\x00'`},
		{"huge", "99999999999999999999999999\n", "", "more than 100 bytes"},
		{"above the bound", "101\n", "", "more than 100 bytes"},
		{"cut length", "12", "", "ended within a length"},
		{"cut frame", "12\n{}", "", "after 2 of 12 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := readFrame(bufio.NewReader(strings.NewReader(c.in)), 100, nil)
			if string(got) != c.want || (c.fault == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.fault) {
				t.Errorf("%q, %v; want %q, %q", got, err, c.want, c.fault)
			}
		})
	}
}

func TestDecode(t *testing.T) {
	deep := strings.Repeat("[", maxDepth+1) + strings.Repeat("]", maxDepth+1)
	for _, c := range []struct{ in, fault string }{
		{`{"t":"hello","v":1,"language":"python","version":"3.11.2"}`, ""},
		{`{"t":"done","id":7,"ok":true}`, ""},
		{` { "id" : 7 , "ok" : true , "t" : "done" , "value" : [1, -0.5e+3, null, "ü\n"] } `, ""},
		{`{"t":"done","id":7,"ok":false,"error":{"name":"E","message":"m","traceback":["a"]}}`, ""},
		{`{"t":"display","id":1,"data":{"text/plain":"x"}}`, ""},
		{`{"t":"post","value":null}`, ""},
		{`{"t":"log","level":"info","message":"","fields":{}}`, ""},
		{`{"t":"metric","name":"n","value":-1.5,"tags":{"a":"null"}}`, ""},
		{`{"t":"request","id":1,"capability":"c","action":"a"}`, ""},

		{``, "no object"},
		{`[]`, "no object"},
		{`"x"`, "no object"},
		{`{}`, `no frame of type ""`},
		{`{"t":"exec","id":1}`, `no frame of type "exec"`},
		{`{"t":1}`, "t is no string"},
		{`{"t":"done","id":7,"ok":true} x`, "1 bytes after"},
		{`{"t":"done","id":7,"id":7,"ok":true}`, "duplicate key"},
		{`{"t":"done","id":7,"\u0069d":7,"ok":true}`, "duplicate key"},
		{`{"t":"post","value":{"a":1,"b":{"c":1,"c":2}}}`, "duplicate key"},
		{`{"t":"done","id":7}`, "lacks a member"},
		{`{"t":"done","id":7,"ok":true,"cell":"ce-other"}`, `no member "cell"`},
		{`{"t":"done","ID":7,"ok":true}`, `no member "ID"`},
		{`{"t":"done","id":0,"ok":true}`, "wrong id"},
		{`{"t":"done","id":-1,"ok":true}`, "wrong id"},
		{`{"t":"done","id":1.0,"ok":true}`, "wrong id"},
		{`{"t":"done","id":"7","ok":true}`, "wrong id"},
		{`{"t":"done","id":9007199254740992,"ok":true}`, "wrong id"},
		{`{"t":"done","id":99999999999999999999,"ok":true}`, "wrong id"},
		{`{"t":"done","id":7,"ok":1}`, "wrong ok"},
		{`{"t":"done","id":7,"ok":false}`, "not both and not neither"},
		{`{"t":"done","id":7,"ok":true,"error":{"name":"E"}}`, "not both and not neither"},
		{`{"t":"done","id":7,"ok":false,"error":{}}`, "wrong error"},
		{`{"t":"done","id":7,"ok":false,"error":{"name":"E","x":1}}`, "wrong error"},
		{`{"t":"done","id":7,"ok":false,"error":{"name":"E","traceback":[null]}}`, "wrong error"},
		{`{"t":"done","id":7,"ok":true,"result":[]}`, "wrong result"},
		{`{"t":"done","id":7,"ok":true,"result":null}`, "wrong result"},
		{`{"t":"post"}`, "lacks a member"},
		{`{"t":"post","value":NaN}`, "malformed"},
		{`{"t":"post","value":01}`, "malformed"},
		{`{"t":"post","value":1.}`, "malformed"},
		{`{"t":"post","value":tru}`, "malformed"},
		{`{"t":"post","value":[1,]}`, "malformed"},
		{`{"t":"post","value":{"a":1,}}`, "missing string"},
		{`{"t":"post","value":"a` + "\n" + `"}`, "control character"},
		{`{"t":"post","value":"\x"}`, "bad escape"},
		{`{"t":"post","value":"\u12"}`, "bad escape"},
		{`{"t":"post","value":"a}`, "unfinished string"},
		{"{\"t\":\"post\",\"value\":\"\xff\"}", "not UTF-8"},
		{`{"t":"post","value":` + deep + `}`, "levels"},
		{`{"t":"log","level":"fatal","message":""}`, "wrong level"},
		{`{"t":"log","level":"info","message":"","fields":[]}`, "wrong fields"},
		{`{"t":"metric","name":"","value":1}`, "wrong name"},
		{`{"t":"metric","name":"n","value":null}`, "wrong value"},
		{`{"t":"metric","name":"n","value":1e999}`, "wrong value"},
		{`{"t":"metric","name":"n","value":1,"tags":{"a":null}}`, "wrong tags"},
		{`{"t":"request","id":1,"capability":"","action":"a"}`, "wrong capability"},
		{`{"t":"request","id":1,"capability":"` + strings.Repeat("c", 129) + `","action":"a"}`, "wrong capability"},
	} {
		_, err := decode([]byte(c.in))
		switch {
		case c.fault == "" && err != nil:
			t.Errorf("%s: %v", c.in, err)
		case c.fault != "" && (!errors.Is(err, ErrProtocol) || !strings.Contains(err.Error(), c.fault)):
			t.Errorf("%.80s: %v, want %q", c.in, err, c.fault)
		}
	}
}

// schema is the published schema.
func schema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	s := &jsonschema.Schema{}
	if err := json.Unmarshal(Schema, s); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSchema: what is read is what is published, member by member.
func TestSchema(t *testing.T) {
	s := schema(t)
	for typ, members := range guestFrames {
		name := typ
		if typ == tPost {
			name = "guestPost"
		}
		def := s.Defs[name]
		if def == nil {
			t.Errorf("no definition of %s", name)
			continue
		}
		have, required := []string{"t"}, []string{"t"}
		for k, m := range members {
			have = append(have, k)
			if m.required {
				required = append(required, k)
			}
		}
		slices.Sort(have)
		if d := cmp.Diff(have, slices.Sorted(maps.Keys(def.Properties))); d != "" {
			t.Errorf("%s: members (-read +published):\n%s", typ, d)
		}
		slices.Sort(required)
		published := slices.Sorted(slices.Values(def.Required))
		if d := cmp.Diff(required, published); d != "" {
			t.Errorf("%s: required (-read +published):\n%s", typ, d)
		}
	}
	r, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	one := json.RawMessage("1")
	for _, f := range []any{
		openFrame{T: "open", V: 1, ID: 1, Frame: DefaultFrame},
		openFrame{T: "open", V: 1, ID: 1, Cell: "c", Dir: "/", Env: map[string]string{"A": "b"}, Imports: []string{"os"}, Frame: DefaultFrame},
		execFrame{T: "exec", ID: 1},
		callFrame{T: "call", ID: 1, Args: []json.RawMessage{one}, Kwargs: map[string]json.RawMessage{"a": one}},
		postFrame{T: "post", Value: one},
		replyFrame{T: "reply", ID: 1, OK: true, Value: one},
		replyFrame{T: "reply", ID: 1, Error: "no"},
	} {
		raw, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		var v any
		if err := json.Unmarshal(raw, &v); err != nil {
			t.Fatal(err)
		}
		if err := r.Validate(v); err != nil {
			t.Errorf("%s: %v", raw, err)
		}
	}
	for _, bad := range []string{`{"t":"exec","id":1,"context":""}`, `{"t":"done","id":0,"ok":true}`, `{"t":"x"}`, `[]`} {
		var v any
		if err := json.Unmarshal([]byte(bad), &v); err != nil {
			t.Fatal(err)
		}
		if r.Validate(v) == nil {
			t.Errorf("the schema takes %s", bad)
		}
	}
}

// FuzzGuestFrames reads what a guest may send: whatever it is, it is read as a frame
// that the standard library reads too, or it is a protocol error.
func FuzzGuestFrames(f *testing.F) {
	for _, s := range []string{
		"2\n{}", `29` + "\n" + `{"t":"done","id":7,"ok":true}`, `23` + "\n" + `{"t":"post","value":[]}`, "9999999\n", "\x00\x01",
		`62` + "\n" + `{"t":"done","id":7,"ok":false,"error":{"name":"E","x":"\u00"}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		r := bufio.NewReader(bytes.NewReader(in))
		for {
			b, err := readFrame(r, 1<<16, nil)
			if err != nil {
				return
			}
			m, err := decode(b)
			if err != nil {
				if !errors.Is(err, ErrProtocol) {
					t.Errorf("%q: %v is no protocol error", b, err)
				}
				continue
			}
			var v struct {
				T  string
				ID uint64
			}
			if err := json.Unmarshal(b, &v); err != nil {
				t.Fatalf("%q was read, but is no JSON: %v", b, err)
			}
			if v.T != m.t || m.id != 0 && v.ID != m.id {
				t.Errorf("%q was read as %s %d", b, m.t, m.id)
			}
		}
	})
}

// TestPythonDecoder drives the Python host's side with frames that are broken at
// random: it answers each with a dict or its own error, and never with another.
func TestPythonDecoder(t *testing.T) {
	py, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 on this host")
	}
	host := pythonHost[:strings.LastIndex(pythonHost, "\n{\"process\"")]
	const driver = `
import sys
ns = {"__name__": "belljar"}
exec(compile(sys.argv[1], "<belljar>", "exec"), ns)
w = ns["Wire"](0, 1 << 16)
taken = broken = 0
for line in sys.stdin.buffer:
    w.buf = bytes.fromhex(line.decode())
    try:
        while True:
            f = w.frame()
            if f is None:
                break
            assert type(f) is dict and f["t"] in ns["SHAPES"], f
            taken += 1
    except ns["Broken"]:
        broken += 1
print(taken, broken)
`
	var in bytes.Buffer
	seeds := []any{
		execFrame{T: "exec", ID: 1, Source: "1+1 # \u2028"},
		postFrame{T: "post", Value: json.RawMessage(`{"a":[1,2.5e3,null]}`)},
		replyFrame{T: "reply", ID: 1, OK: true},
		openFrame{T: "open", V: 1, ID: 1, Frame: 4096},
		callFrame{T: "call", ID: 2, Args: []json.RawMessage{}, Kwargs: map[string]json.RawMessage{}},
	}
	rng := rand.New(rand.NewPCG(1, 2))
	n := 0
	add := func(b []byte) { fmt.Fprintf(&in, "%x\n", b); n++ }
	for _, s := range seeds {
		b, err := appendFrame(nil, s, 1<<16)
		if err != nil {
			t.Fatal(err)
		}
		add(b)
	}
	for range 4000 {
		b, _ := appendFrame(nil, seeds[rng.IntN(len(seeds))], 1<<16)
		for range 1 + rng.IntN(4) {
			at := rng.IntN(len(b))
			switch rng.IntN(4) {
			case 0:
				b[at] = byte(rng.Uint32())
			case 1:
				b = slices.Insert(b, at, []byte(`{}[]",:0`)[rng.IntN(8)])
			case 2:
				b = slices.Delete(b, at, min(len(b), at+1+rng.IntN(3)))
			case 3:
				b = append(b, b[at:]...)
			}
			if len(b) == 0 {
				b = []byte{'0'}
			}
		}
		add(b)
	}
	for _, s := range []string{strings.Repeat("[", 60000), `{"t":"exec","id":1,"id":1,"context":"","source":""}`, `{"t":"post","value":NaN}`, `{"t":"exec","id":true,"context":"","source":""}`, `[]`, `{"t":["exec"]}`} {
		add(fmt.Appendf(nil, "%d\n%s", len(s), s))
	}
	cmd := exec.Command(py, "-I", "-c", driver, host)
	cmd.Stdin = &in
	out, err := cmd.CombinedOutput()
	var taken, broken int
	if _, serr := fmt.Sscan(string(out), &taken, &broken); err != nil || serr != nil {
		t.Fatalf("%v, %v\n%s", err, serr, out)
	}
	if taken < len(seeds) || broken < 1000 {
		t.Errorf("%d frames of %d inputs were taken, %d broken", taken, n, broken)
	}
}

func TestTail(t *testing.T) {
	tl := tail{most: 4}
	for _, s := range []string{"ab", "cd", "e", "fghijklm", "", "n"} {
		_, _ = tl.Write([]byte(s))
	}
	if got := string(tl.bytes()); got != "klmn" || tl.dropped != 10 {
		t.Errorf("%q, %d dropped", got, tl.dropped)
	}
}
