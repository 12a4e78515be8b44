// Package celltest is the suite of what a cell does, whatever interpreter it has and
// however that is made. It tests behaviour, not containment: the hostile guests are in
// the tests of package cell.
package celltest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"belljar"
	"belljar/cell"
)

const limit = 60 * time.Second

// subject is a language with an engine, and how it says the same things.
type subject struct {
	language cell.Language
	engine   cell.Engine
	set, get string // a variable
	print    string // "out" and "err" on the two streams
	raise    string
	name     string // of what it raises
	spin     string
	echo     string // posts back what it receives, until told to stop
	log      string // logs "hello", measures 1.5
	granted  string // prints what the capability says
	denied   string
	define   string // a function f that joins its two arguments by a dash
	show     string // shows something as HTML
}

var subjects = []subject{
	{
		language: cell.Python, engine: cell.Zygote, set: "x = 41", get: "print(x + 1)",
		print: "import sys; print('out'); print('err', file=sys.stderr)", raise: "def g():\n    raise ValueError('bad')\ng()", name: "ValueError",
		spin: "while True: pass", echo: "while (m := cell.recv()) != 'stop': cell.post(m)",
		log:     "cell.log('info', 'hello', a=1); cell.metric('m', 1.5, unit='s')",
		granted: "print(cell.request('fs', 'read', 'name'))", denied: "cell.request('fs', 'write', 'name')",
		define: "def f(a, b): return a + '-' + b", show: "class H:\n    def _repr_html_(self): return '<b>'\ndisplay(H())",
	},
	{
		language: cell.JavaScript, engine: cell.Process, set: "let x = 41", get: "console.log(x + 1)",
		print: "console.log('out'); console.error('err')", raise: "function g() { throw new RangeError('bad') }\ng()", name: "RangeError",
		spin: "while (true) {}", echo: "for (let m; (m = await cell.recv()) !== 'stop';) cell.post(m)",
		log:     "cell.log('info', 'hello', {a: 1}); cell.metric('m', 1.5, {unit: 's'})",
		granted: "console.log(await cell.request('fs', 'read', 'name'))", denied: "await cell.request('fs', 'write', 'name')",
		define: "function f(a, b) { return a + '-' + b }", show: "display.html('<b>')",
	},
	{
		language: cell.Shell, engine: cell.Process, set: "x=41", get: "echo $((x + 1))",
		print: "echo out; echo err >&2", raise: "g() { return 3; }; g", name: "status",
		spin: "while :; do :; done", echo: `while cell recv && [ "$REPLY" != stop ]; do cell post "$REPLY"; done`,
		log:     "cell log info hello; cell metric m 1.5",
		granted: `cell request fs read '"name"'; echo "$REPLY"`, denied: "cell request fs write",
		define: `f() { printf '%s-%s' "$1" "$2"; }`,
	},
}

// Run runs the suite for each language whose interpreter the sandbox has, and for each
// engine that it can have there.
func Run(t *testing.T, sb *belljar.Sandbox) {
	fresh := subjects[0]
	fresh.engine = cell.Process
	for _, s := range append([]subject{fresh}, subjects...) {
		t.Run(string(s.language)+"/"+string(s.engine), func(t *testing.T) {
			w, err := cell.NewWorker(within(t), sb, cell.Spec{Language: s.language, Engine: s.engine}, 0)
			if errors.Is(err, belljar.ErrUnsupported) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := w.Close(within(t)); err != nil {
					t.Error(err)
				}
			}()
			program := map[cell.Language]string{cell.Python: "python3", cell.JavaScript: "node", cell.Shell: "bash"}[s.language]
			if res, err := sb.Command(program, "--version").Run(within(t)); err != nil || res.ExitCode != 0 {
				t.Skipf("no %s in the sandbox: %v", program, err)
			}
			operations(t, sb, s)
		})
	}
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return ctx
}

func open(t *testing.T, sb *belljar.Sandbox, spec cell.Spec) *cell.Cell {
	t.Helper()
	c, err := cell.Open(within(t), sb, spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) }) // the test closes it, or has failed
	return c
}

func exec(t *testing.T, c *cell.Cell, source string) *cell.Result {
	t.Helper()
	res, err := c.Exec(within(t), source)
	if err != nil {
		t.Fatalf("%.100s: %v", source, err)
	}
	if res.Exception != nil {
		t.Fatalf("%.100s: %v\n%s\n%s", source, res.Exception, strings.Join(res.Exception.Traceback, "\n"), res.Stderr)
	}
	return res
}

func operations(t *testing.T, sb *belljar.Sandbox, s subject) {
	t.Helper()
	ctx := within(t)
	var mu sync.Mutex
	var said []string
	note := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		said = append(said, fmt.Sprintf(format, args...))
	}
	asked := 0
	c := open(t, sb, cell.Spec{
		Language: s.language, Engine: s.engine, Env: map[string]string{"GREETING": "é \"q\" \\ $x\n"}, Dir: "/tmp",
		Log:    func(r cell.Record) { note("%s %s", r.Level, r.Message) },
		Metric: func(m cell.Measure) { note("%s %g", m.Name, m.Value) },
		Grants: map[string][]string{"fs": {"read"}},
		Request: func(_ context.Context, r cell.Request) (any, error) {
			asked++
			return r.Action + " " + string(r.Payload), nil
		},
	})
	if c.Engine() != s.engine || c.Language() != s.language {
		t.Errorf("made as %s %s", c.Language(), c.Engine())
	}

	exec(t, c, s.set)
	if got := string(exec(t, c, s.get).Stdout); got != "42\n" {
		t.Errorf("the variable gives %q", got)
	}
	var live bytes.Buffer
	res, err := c.Run(ctx, cell.Exec{Source: s.print, Stdout: &live})
	if err != nil || string(res.Stdout) != "out\n" || string(res.Stderr) != "err\n" || live.String() != "out\n" {
		t.Errorf("%q %q %q, %v", res.Stdout, res.Stderr, live.String(), err)
	}
	if res, err := c.Exec(ctx, s.raise); err != nil || res.Exception == nil || res.Exception.Name != s.name {
		t.Errorf("raised %+v, %v", res.Exception, err)
	}
	exec(t, c, s.log)
	mu.Lock()
	if strings.Join(said, ", ") != "info hello, m 1.5" {
		t.Errorf("it said %q", said)
	}
	mu.Unlock()
	if got := string(exec(t, c, s.granted).Stdout); got != "read \"name\"\n" {
		t.Errorf("the capability says %q", got)
	}
	if res, err := c.Exec(ctx, s.denied); err != nil || res.Exception == nil || !strings.Contains(res.Exception.Message+string(res.Stderr), "refused") || asked != 1 {
		t.Errorf("what is not granted gives %+v, %v; the handler was asked %d times", res, err, asked)
	}

	exec(t, c, s.define)
	if v, err := c.Call(ctx, "f", []any{"a <&>\n\\\"", "é"}, nil); err != nil || string(v) == "" || unquote(t, v) != "a <&>\n\\\"-é" {
		t.Errorf("call gives %s, %v", v, err)
	}
	if _, err := c.Call(ctx, "no_such", nil, nil); err == nil || errors.Is(err, belljar.ErrInternal) {
		t.Errorf("call of nothing: %v", err)
	}

	echo(t, c, s.echo)

	if s.show != "" {
		var shown []cell.Bundle
		res, err := c.Run(ctx, cell.Exec{Source: s.show, Display: func(b cell.Bundle) { shown = append(shown, b) }})
		if err != nil || len(shown) != 1 || len(res.Displays) != 1 || shown[0].Text("text/html") != "<b>" {
			t.Errorf("%v, %v, %v", shown, res.Displays, err)
		}
	}

	// An interrupt ends the operation, and the cell remembers.
	ended := make(chan error, 1)
	go func() {
		res, err := c.Exec(ctx, s.spin)
		if err == nil && res.Exception == nil {
			err = errors.New("the loop ended by itself")
		}
		ended <- err
	}()
	for done := false; !done; {
		if err := c.Interrupt(ctx); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-ended:
			if err != nil {
				t.Fatal(err)
			}
			done = true
		case <-time.After(20 * time.Millisecond): // it may not have begun
		}
	}
	if got := string(exec(t, c, s.get).Stdout); got != "42\n" {
		t.Errorf("after an interrupt the variable gives %q", got)
	}
	// So does the end of a context.
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	_, err = c.Exec(short, s.spin)
	cancel()
	if !errors.Is(err, belljar.ErrCancelled) || c.Err() != nil {
		t.Errorf("cancelled: %v, the cell: %v", err, c.Err())
	}

	if err := c.Reset(ctx); err != nil {
		t.Fatal(err)
	}
	if res, err := c.Exec(ctx, s.get); err != nil || string(res.Stdout) == "42\n" {
		t.Errorf("after a reset the variable gives %q, %v", res.Stdout, err)
	}
	if err := c.Close(ctx); err != nil {
		t.Error(err)
	}
	if _, err := c.Exec(ctx, s.get); !errors.Is(err, cell.ErrClosed) || !errors.Is(err, belljar.ErrDestroyed) {
		t.Errorf("after close: %v", err)
	}
	if err := c.Close(ctx); err != nil {
		t.Error(err)
	}
}

func unquote(t *testing.T, raw json.RawMessage) (s string) {
	t.Helper()
	if err := json.Unmarshal(raw, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

func echo(t *testing.T, c *cell.Cell, source string) {
	t.Helper()
	ctx := within(t)
	ended := make(chan error, 1)
	go func() {
		_, err := c.Exec(ctx, source)
		ended <- err
	}()
	for _, want := range []string{"a", "ü \\ \" /\t.", strings.Repeat("x", 5000)} {
		if err := c.Post(ctx, want); err != nil {
			t.Fatal(err)
		}
		got, err := c.Recv(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if unquote(t, got) != want {
			t.Errorf("%.40q came back as %.40q", want, got)
		}
	}
	if err := c.Post(ctx, "stop"); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
