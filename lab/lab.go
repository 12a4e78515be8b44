// Package lab is the guarantee laboratory: every promise of the sandbox has an
// entry that attacks it, standing alone, with a positive control, and judged
// from the trusted side wherever the effect can be seen from there.
//
// An entry is green only when three things are true of it on this host: the
// attack failed with the protection on, the same act succeeded where it is
// allowed (the control), and the attack succeeded with the protection switched
// off (the counter-run). An entry whose counter-run holds tests nothing and
// fails; one without a control is invalid.
//
// Where two layers stop the same attack there is an entry for each, in which
// the others are off.
package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"text/tabwriter"
	"time"

	"belljar"
)

// Outcome is what came of an entry.
type Outcome string

// Outcomes. Everything but Held and Skipped is a failure.
const (
	Held    Outcome = "held"
	Broken  Outcome = "broken"
	Skipped Outcome = "skipped"
	Invalid Outcome = "invalid"       // no positive control, or it failed
	Nothing Outcome = "tests nothing" // the attack fails without the protection, too
	Failed  Outcome = "error"         // the machinery failed before there was a verdict
)

// Entry is one attack on one guarantee.
type Entry struct {
	ID        string // "A1-rootfs"
	Title     string // the attack, in a few words
	Guarantee string // row of the guarantees: "A1"
	// Capability is what the entry is evidence for, if it is one of [belljar.CapabilityNames].
	Capability string
	// Layer is off in the counter-run.
	Layer belljar.Layer
	// Others stop the same attack and are off in a second run, which must hold by
	// Layer alone, and in the counter-run.
	Others []belljar.Layer
	// Knob says what is weakened in the counter-run instead of a layer; Run
	// asks [Env.Weak].
	Knob string
	// Direct: in the counter-run the attack is carried out without any sandbox, as
	// an ordinary process on this host.
	Direct bool
	// Needs returns why the entry cannot be run here, or "".
	Needs func(e *Env) string
	// Run carries out the attack and reports to e. An error is the machinery's.
	Run func(ctx context.Context, e *Env) error
}

// Verdict is what one run of an entry found.
type Verdict struct {
	Outcome  Outcome  `json:"outcome"`
	Control  bool     `json:"control"`            // the positive control succeeded
	Evidence []string `json:"evidence,omitempty"` // one line each
}

// Record is an entry with everything that was found.
type Record struct {
	ID         string         `json:"id"`
	Title      string         `json:"title"`
	Guarantee  string         `json:"guarantee"`
	Capability string         `json:"capability,omitempty"`
	Off        string         `json:"off"` // what is off in the counter-run
	Outcome    Outcome        `json:"outcome"`
	Reason     string         `json:"reason,omitempty"`
	Full       *Verdict       `json:"full,omitempty"`    // everything on
	Alone      *Verdict       `json:"alone,omitempty"`   // with the other layers off
	Counter    *Verdict       `json:"counter,omitempty"` // with the protection off
	Ms         int64          `json:"ms"`
	Confined   belljar.Report `json:"confinement"`
}

// Report is the outcome of a run of the laboratory.
type Report struct {
	Started time.Time `json:"started"`
	Host    string    `json:"host"`
	UID     int       `json:"uid"`
	Records []Record  `json:"records"`
}

// Options configure [Run].
type Options struct {
	// Runtime makes the runtime under test. Persist is asked for by entries about
	// sandboxes that outlive their supervisor, a state directory by entries about recovery.
	Runtime func(ctx context.Context, cfg belljar.Config) (*belljar.Runtime, error)
	// Spec is the base of every sandbox; usually empty.
	Spec belljar.Spec
	// Match selects entries by id; nil: all.
	Match *regexp.Regexp
	// Probe is the command line of the attacker. Default: this program, which then
	// has to call [belljar/lab/attack.MaybeMain] first thing in main.
	Probe []string
	// Supervisor is the command line of a program that calls [Supervise]. Default:
	// this program with the argument [SuperviseVerb].
	Supervisor []string
	// NoCounter leaves out the counter-runs: for a quick look, never for evidence.
	NoCounter bool
	// Progress is called with each record as it is there.
	Progress func(Record)
}

// Run carries out the entries one after the other. The error is about the
// laboratory itself; what was found is in the report.
func Run(ctx context.Context, o Options) (*Report, error) {
	if o.Runtime == nil {
		return nil, &belljar.Error{Code: belljar.CodeInvalidSpec, Op: "lab", Message: "no runtime given"}
	}
	l, err := open(o)
	if err != nil {
		return nil, err
	}
	defer l.close()
	rep := &Report{Started: time.Now(), Host: hostName(), UID: os.Getuid()}
	for _, entry := range Entries() {
		if err := ctx.Err(); err != nil {
			return rep, err
		}
		if o.Match != nil && !o.Match.MatchString(entry.ID) {
			continue
		}
		rec := l.record(ctx, entry)
		rep.Records = append(rep.Records, rec)
		if o.Progress != nil {
			o.Progress(rec)
		}
	}
	if len(rep.Records) == 0 {
		return rep, &belljar.Error{Code: belljar.CodeNotFound, Op: "lab", Message: "no entry matches"}
	}
	return rep, nil
}

// record runs an entry in its two or three ways and judges.
func (l *laboratory) record(ctx context.Context, entry Entry) (rec Record) {
	start := time.Now()
	rec = Record{ID: entry.ID, Title: entry.Title, Guarantee: entry.Guarantee, Capability: entry.Capability, Off: entry.off()}
	defer func() { rec.Ms = time.Since(start).Milliseconds() }()

	full, report := l.run(ctx, &entry, way{})
	rec.Full, rec.Confined = &full, report
	if rec.Outcome, rec.Reason = full.Outcome, last(full.Evidence); rec.Outcome != Held {
		return rec
	}
	if len(entry.Others) > 0 {
		alone, _ := l.run(ctx, &entry, way{others: true})
		rec.Alone = &alone
		if rec.Outcome = alone.Outcome; rec.Outcome != Held {
			rec.Reason = fmt.Sprintf("by %s alone: %s", entry.Layer, last(alone.Evidence))
			return rec
		}
	}
	if l.NoCounter {
		rec.Reason = "no counter-run was made"
		return rec
	}
	counter, _ := l.run(ctx, &entry, way{others: true, weak: true})
	rec.Counter = &counter
	switch counter.Outcome {
	case Broken:
		rec.Reason = ""
	case Held, Invalid:
		rec.Outcome, rec.Reason = Nothing, "it also holds with "+rec.Off+" off: "+last(counter.Evidence)
	default:
		rec.Outcome, rec.Reason = Nothing, fmt.Sprintf("counter-run without %s: %s: %s", rec.Off, counter.Outcome, last(counter.Evidence))
	}
	return rec
}

func (e *Entry) off() string {
	switch {
	case e.Layer != "":
		s := string(e.Layer)
		for _, o := range e.Others {
			s += "+" + string(o)
		}
		return s
	case e.Direct:
		return "the sandbox"
	default:
		return e.Knob
	}
}

// run carries out an entry once.
func (l *laboratory) run(ctx context.Context, entry *Entry, w way) (Verdict, belljar.Report) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	e := &Env{lab: l, entry: entry, way: w}
	defer e.cleanup()
	if entry.Needs != nil {
		if why := entry.Needs(e); why != "" {
			return Verdict{Outcome: Skipped, Evidence: []string{why}}, e.report
		}
	}
	err := entry.Run(ctx, e)
	return e.verdict(err), e.report
}

func last(s []string) string {
	if len(s) == 0 {
		return ""
	}
	return s[len(s)-1]
}

// Failed reports whether anything is neither held nor skipped.
func (r *Report) Failed() bool {
	for _, rec := range r.Records {
		if rec.Outcome != Held && rec.Outcome != Skipped {
			return true
		}
	}
	return false
}

// JSON writes the report with all evidence.
func (r *Report) JSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// Table writes one line per entry, and the reason of what is not green.
func (r *Report) Table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	count := map[Outcome]int{}
	_, _ = fmt.Fprintln(t, "ENTRY\tOUTCOME\tBROKEN WITHOUT\tMS\tATTACK") // errors stay in t until Flush
	for _, rec := range r.Records {
		count[rec.Outcome]++
		off := "-"
		if rec.Counter != nil && rec.Counter.Outcome == Broken {
			off = rec.Off
		}
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\n", rec.ID, rec.Outcome, off, rec.Ms, rec.Title)
		if rec.Reason != "" && rec.Outcome != Held {
			_, _ = fmt.Fprintf(t, "\t%s\t\t\t\n", "  "+strings.ReplaceAll(rec.Reason, "\n", " "))
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%d entries: %d held, %d broken, %d tests nothing, %d invalid, %d error, %d skipped\n",
		len(r.Records), count[Held], count[Broken], count[Nothing], count[Invalid], count[Failed], count[Skipped])
	return err
}
