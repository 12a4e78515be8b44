package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"belljar"
	"belljar/cmd/belljar/internal/term"
	"belljar/lab"

	"github.com/spf13/cobra"
)

// diagnosis is what doctor found.
type diagnosis struct {
	belljar.Probe
	UID   int          `json:"uid"`
	Grade *grade       `json:"grade,omitempty"`
	Tests []lab.Record `json:"tests"`
	Ms    int64        `json:"ms"`
}

// grade is a score over the guarantees: each point is an attack that was tried on
// this host and failed, while the same act succeeded where it is allowed.
type grade struct {
	Score  int         `json:"score"` // percent of the points that can be had
	Points int         `json:"points"`
	Of     int         `json:"of"`
	Lost   []lostPoint `json:"lost,omitempty"`
}

type lostPoint struct {
	Entry   string      `json:"entry"`
	Outcome lab.Outcome `json:"outcome"`
	Reason  string      `json:"reason,omitempty"`
}

const doctorLong = `doctor says which layers of confinement this machine has, how to get those that
are missing, and which promises hold here. A promise counts as supported only
when it was attacked now, the attack failed, and the same act succeeded where it
is allowed; unknown is no guarantee.

--grade tries every attack of the laboratory and gives a score: the percentage
of attacks that failed as they should. An attack that cannot be tried here is a
point lost, with its reason.`

func newDoctor() *cobra.Command {
	var asJSON, graded bool
	var least int
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this machine can enforce, and prove it",
		Long:  doctorLong,
		Example: `  belljar doctor
  belljar doctor --grade --min 90
  belljar doctor --json | jq '.capabilities[] | select(.support != "supported")'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("min") {
				graded = true
				if least < 0 || least > 100 {
					return usageError("doctor --min", fmt.Sprintf("%d is not between 0 and 100", least), "")
				}
			}
			d, err := diagnose(cmd.Context(), graded)
			if err != nil {
				return err
			}
			if asJSON {
				err = printJSON(os.Stdout, d)
			} else {
				err = d.print()
			}
			if err != nil {
				return err
			}
			if graded && d.Grade.Score < least {
				return fmt.Errorf("doctor: the grade is %d, below %d", d.Grade.Score, least)
			}
			return nil
		},
	}
	fs := c.Flags()
	fs.SortFlags = false
	fs.BoolVar(&graded, "grade", false, "try every attack and give a score from 0 to 100")
	fs.IntVar(&least, "min", 0, "with a grade below `N` the exit status is 1; implies --grade")
	fs.BoolVar(&asJSON, "json", false, "write JSON, with the evidence of every test")
	return c
}

// chosen are the ids of the entries that doctor tries: all for a grade, else the
// first two that are evidence for each capability.
func chosen(all bool) []string {
	var ids []string
	seen := map[string]int{}
	for _, e := range lab.Entries() {
		if all || e.Capability != "" && seen[e.Capability] < 2 {
			ids = append(ids, e.ID)
		}
		seen[e.Capability]++
	}
	return ids
}

func diagnose(ctx context.Context, graded bool) (*diagnosis, error) {
	start := time.Now()
	sig := watchInterrupts()
	defer sig.stop()
	ctx, cancel := sig.context(ctx)
	defer cancel()

	rt, err := newRuntime(ctx, belljar.Config{})
	if err != nil {
		return nil, err
	}
	probes, err := rt.Probe(ctx)
	if err = errors.Join(err, rt.Close(context.WithoutCancel(ctx))); err != nil {
		return nil, err
	}
	d := &diagnosis{Probe: probes[0], UID: os.Getuid()}

	rep, err := runLab(ctx, chosen(graded), lab.Options{NoCounter: true})
	if err != nil {
		return nil, interrupted(err, sig)
	}
	d.Tests = rep.Records
	d.judge()
	if graded {
		d.grade()
	}
	d.Ms = time.Since(start).Milliseconds()
	return d, nil
}

// runLab carries out the entries with these ids, and shows on a terminal which.
func runLab(ctx context.Context, ids []string, o lab.Options) (*lab.Report, error) {
	quoted := make([]string, len(ids))
	for i, id := range ids {
		quoted[i] = regexp.QuoteMeta(id)
	}
	o.Match = regexp.MustCompile("^(" + strings.Join(quoted, "|") + ")$")
	o.Runtime = newRuntime
	started, show := time.Now(), term.Is(os.Stderr)
	n := 0
	tell := o.Progress
	o.Progress = func(r lab.Record) {
		n++
		if show && time.Since(started) > time.Second {
			fmt.Fprintf(os.Stderr, "\r\x1b[K%d of %d attacks tried, last %s", n, len(ids), r.ID)
		}
		if tell != nil {
			tell(r)
		}
	}
	rep, err := lab.Run(ctx, o)
	if show {
		fmt.Fprint(os.Stderr, "\r\x1b[K")
	}
	return rep, err
}

// judge derives the capabilities from the tests: supported when at least one
// held and none failed.
func (d *diagnosis) judge() {
	for i := range d.Capabilities {
		c := &d.Capabilities[i]
		if c.Support == belljar.Unsupported {
			continue
		}
		var held, skipped, bad []string
		for _, r := range d.Tests {
			if r.Capability != c.Name {
				continue
			}
			switch r.Outcome {
			case lab.Held:
				held = append(held, r.ID)
			case lab.Skipped:
				skipped = append(skipped, r.ID+": "+r.Reason)
			default:
				bad = append(bad, fmt.Sprintf("%s: %s: %s", r.ID, r.Outcome, r.Reason))
			}
		}
		c.Evidence = held
		switch {
		case len(bad) > 0:
			c.Support, c.Reason = belljar.Unsupported, bad[0]
		case len(held) > 0:
			c.Support, c.Reason = belljar.Supported, ""
		case len(skipped) > 0:
			c.Support, c.Reason = belljar.Unknown, skipped[0]
		default:
			c.Support, c.Reason = belljar.Unknown, "no attack on it is built"
		}
	}
}

func (d *diagnosis) grade() {
	g := &grade{Of: len(d.Tests)}
	for _, r := range d.Tests {
		if r.Outcome == lab.Held {
			g.Points++
			continue
		}
		g.Lost = append(g.Lost, lostPoint{r.ID, r.Outcome, r.Reason})
	}
	if g.Of > 0 {
		g.Score = g.Points * 100 / g.Of
	}
	d.Grade = g
}

func (d *diagnosis) print() error {
	who := "an ordinary user"
	if d.UID == 0 {
		who = "root"
	}
	fmt.Printf("%s, backend %s, as %s\n\n", d.Host, d.Backend, who)
	rows := [][]string{{"LAYER", "HERE", "WHY NOT, AND HOW TO GET IT"}}
	for _, l := range d.Layers {
		here, why := "yes", ""
		if l.Status != belljar.LayerApplied {
			here = "no"
			why = l.Reason
			if l.Detail != "" {
				why += ": " + l.Detail
			}
		}
		rows = append(rows, []string{string(l.Layer), here, why})
	}
	if err := term.Table(os.Stdout, rows); err != nil {
		return err
	}
	fmt.Println()
	rows = [][]string{{"CAPABILITY", "SUPPORT", "EVIDENCE"}}
	for _, c := range d.Capabilities {
		evidence := c.Reason
		if n := len(c.Evidence); n > 0 && c.Reason == "" {
			evidence = "held against " + strings.Join(c.Evidence[:min(n, 4)], " ")
			if n > 4 {
				evidence += fmt.Sprintf(" and %d more", n-4)
			}
		}
		rows = append(rows, []string{c.Name, string(c.Support), evidence})
	}
	if err := term.Table(os.Stdout, rows); err != nil {
		return err
	}
	if g := d.Grade; g != nil {
		fmt.Printf("\nGrade %d: %d of %d attacks failed as they should.\n", g.Score, g.Points, g.Of)
		for _, l := range g.Lost {
			fmt.Printf("  %s: %s: %s\n", l.Entry, l.Outcome, cmp.Or(l.Reason, "no reason given"))
		}
	}
	fmt.Printf("\n%d attacks were tried in %.1f s.\n", len(d.Tests), float64(d.Ms)/1000)
	return nil
}
