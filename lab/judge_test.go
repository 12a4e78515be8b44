package lab

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"belljar"
)

// TestJudge checks what the laboratory makes of entries whose outcome is known,
// without any sandbox.
func TestJudge(t *testing.T) {
	refused := &belljar.Error{Code: belljar.CodeIsolationUnavailable, Message: "no such layer"}
	for name, tc := range map[string]struct {
		run   func(e *Env) error
		needs string
		want  Outcome
	}{
		"holds and breaks without": {want: Held, run: func(e *Env) error {
			e.Control(true, "works")
			e.Check(!e.Weak(), "broken without")
			return nil
		}},
		"broken": {want: Broken, run: func(e *Env) error {
			e.Control(true, "works")
			e.Broken("effect")
			return nil
		}},
		"broken outweighs an error": {want: Broken, run: func(e *Env) error {
			e.Broken("effect")
			return errors.New("and then")
		}},
		"no control": {want: Invalid, run: func(e *Env) error { return nil }},
		"failed control": {want: Invalid, run: func(e *Env) error {
			e.Control(true, "one works")
			e.Control(false, "another does not")
			return nil
		}},
		"holds without the protection": {want: Nothing, run: func(e *Env) error {
			e.Control(true, "works")
			return nil
		}},
		"counter-run fails": {want: Nothing, run: func(e *Env) error {
			e.Control(true, "works")
			if e.Weak() {
				return errors.New("cannot be switched off")
			}
			return nil
		}},
		"machinery": {want: Failed, run: func(e *Env) error { return errors.New("broken tool") }},
		"refused":   {want: Skipped, run: func(e *Env) error { return refused }},
		"needs":     {want: Skipped, needs: "another host", run: func(e *Env) error { e.Broken("must not run"); return nil }},
	} {
		t.Run(name, func(t *testing.T) {
			l := &laboratory{}
			rec := l.record(t.Context(), Entry{
				ID: "X1", Knob: "it", Needs: func(*Env) string { return tc.needs },
				Run: func(_ context.Context, e *Env) error { return tc.run(e) },
			})
			if rec.Outcome != tc.want {
				t.Errorf("outcome %s (%s), want %s", rec.Outcome, rec.Reason, tc.want)
			}
			if rec.Outcome != Held && rec.Reason == "" {
				t.Error("no reason given")
			}
			rep := Report{Records: []Record{rec}}
			if want := tc.want != Held && tc.want != Skipped; rep.Failed() != want {
				t.Errorf("Failed = %v, want %v", rep.Failed(), want)
			}
		})
	}
}

// TestAlone checks that an entry with other layers is run by its layer alone,
// and that the layers of the spec are what the way of the run says.
func TestAlone(t *testing.T) {
	var ways []string
	entry := Entry{ID: "X2", Layer: belljar.LayerNet, Others: []belljar.Layer{belljar.LayerLandlock}, Run: func(_ context.Context, e *Env) error {
		s := e.spec(nil)
		ways = append(ways, string(s.Isolation.Layers[belljar.LayerNet])+"/"+string(s.Isolation.Layers[belljar.LayerLandlock]))
		e.Control(true, "works")
		e.Check(!e.Weak(), "broken without")
		return nil
	}}
	l := &laboratory{probe: "/x/probe"}
	if rec := l.record(t.Context(), entry); rec.Outcome != Held || rec.Off != "net+landlock" {
		t.Errorf("outcome %s, off %q", rec.Outcome, rec.Off)
	}
	if got := strings.Join(ways, " "); got != "require/ require/off off/off" {
		t.Errorf("ways %q", got)
	}
}

// TestEntries checks the table itself: every entry can fail and says what it is for.
func TestEntries(t *testing.T) {
	seen := map[string]bool{}
	for _, e := range Entries() {
		if seen[e.ID] || !strings.HasPrefix(e.ID, e.Guarantee+"-") || e.Title == "" || e.Run == nil {
			t.Errorf("entry %q: twice, misnamed or incomplete", e.ID)
		}
		seen[e.ID] = true
		kinds := 0
		for _, is := range []bool{e.Layer != "", e.Knob != "", e.Direct} {
			kinds += bool2int(is)
		}
		if kinds != 1 {
			t.Errorf("entry %s: %d ways of a counter-run, want one", e.ID, kinds)
		}
	}
}

func TestTable(t *testing.T) {
	rep := Report{Records: []Record{
		{ID: "A1-x", Title: "read", Outcome: Held, Off: "rootfs", Counter: &Verdict{Outcome: Broken}},
		{ID: "A2-x", Title: "write", Outcome: Broken, Reason: "it was\nwritten"},
	}}
	var b bytes.Buffer
	if err := rep.Table(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"A1-x", "rootfs", "it was written", "2 entries: 1 held, 1 broken"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}
