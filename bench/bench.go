// Package bench measures what belljar costs, always beside what the same program
// costs without it, or with another tool, in the same run.
//
// Ratios travel from machine to machine, absolute times do not. So the
// contenders of a group take turns, run by run, after a warm-up, and a report
// carries the fingerprint of the machine and the command that made it. Nothing
// here judges: there are no thresholds, and no test fails because a machine was
// slow.
//
// Percentiles are by nearest rank: the p-th of n sorted samples is number
// ceil(p*n/100), so each is a sample that really occurred.
package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"belljar"
)

// Options say what to measure and with what.
type Options struct {
	// Rows selects groups by name or by the part before the slash; empty: all of [Groups].
	Rows []string
	// Quick takes few samples: enough to see that everything works, not to quote.
	Quick bool
	// Runtime makes the runtime that is measured. It is called once for each group
	// and closed after it.
	Runtime func(context.Context) (*belljar.Runtime, error)
	// Self is a program that calls [MaybeMain] first thing and understands
	// `run -- PROGRAM`: the belljar binary. Default: the running one.
	Self string
	// Command is what the report says it was made by; default: the command line.
	Command string
	// Log gets a line of progress for each group; default: nothing.
	Log io.Writer
}

// Report is one run.
type Report struct {
	Date        time.Time   `json:"date"`
	Command     string      `json:"command"`
	Quick       bool        `json:"quick,omitempty"`
	Fingerprint Fingerprint `json:"fingerprint"`
	Percentiles string      `json:"percentiles"` // the method
	Limits      string      `json:"limits"`      // of the sandboxes, or why there were none
	Rows        []Row       `json:"rows"`
}

// Fingerprint is the machine, as far as it changes numbers.
type Fingerprint struct {
	OS         string     `json:"os"` // of the distribution
	Arch       string     `json:"arch"`
	CPU        string     `json:"cpu"`
	CPUs       int        `json:"cpus"`
	Virtual    bool       `json:"virtual"` // the processor says that there is a hypervisor
	Governor   string     `json:"governor,omitempty"`
	MemoryMiB  int64      `json:"memoryMiB"`
	Kernel     string     `json:"kernel"`
	Cgroups    string     `json:"cgroups"` // v1, v2, hybrid or none
	UID        int        `json:"uid"`
	Go         string     `json:"go"`
	Commit     string     `json:"commit"` // "+dirty" when the tree was changed
	LoadBefore [3]float64 `json:"loadBefore"`
	LoadAfter  [3]float64 `json:"loadAfter"`
}

// Kind is a short name of the kind of machine, for file names.
func (f *Fingerprint) Kind() string {
	kind, who := "metal", "user"
	if f.Virtual {
		kind = "vm"
	}
	if f.UID == 0 {
		who = "root"
	}
	return fmt.Sprintf("%s-%dcpu-%s-%s-%s", f.Arch, f.CPUs, kind, f.Cgroups, who)
}

// Units of a row.
const (
	Micros = "us"
	Nanos  = "ns"
	MiB    = "MiB"
	KiB    = "KiB"
	MBps   = "MB/s"
	Count  = "count"
)

// Row is what one contender of a group did.
type Row struct {
	Group   string `json:"group"` // "warm/static"
	Name    string `json:"name"`  // the contender
	Clients int    `json:"clients,omitempty"`
	Unit    string `json:"unit"`
	N       int    `json:"n"` // samples; 0 only with Skipped

	Min    float64 `json:"min"`
	P10    float64 `json:"p10"`
	Median float64 `json:"median"`
	P99    float64 `json:"p99"`

	Baseline  string  `json:"baseline,omitempty"` // contender of the same group and clients
	Ratio     float64 `json:"ratio,omitempty"`    // median by the baseline's median
	Over      float64 `json:"over,omitempty"`     // median less the baseline's median
	PerSecond float64 `json:"perSecond,omitempty"`

	Note    string `json:"note,omitempty"`
	Skipped string `json:"skipped,omitempty"` // why there is no number
}

// Groups lists what can be measured, in order.
func Groups() []string {
	names := make([]string, len(groups))
	for i, g := range groups {
		names[i] = g.name
	}
	return names
}

// choose resolves Options.Rows.
func choose(rows []string) ([]group, error) {
	if len(rows) == 0 {
		return groups, nil
	}
	var out []group
	known := map[string]bool{}
	for _, g := range groups {
		for _, r := range rows {
			head, _, _ := strings.Cut(g.name, "/")
			if r == g.name || r == head {
				known[r] = true
				if len(out) == 0 || out[len(out)-1].name != g.name {
					out = append(out, g)
				}
			}
		}
	}
	for _, r := range rows {
		if !known[r] {
			return nil, &belljar.Error{
				Code: belljar.CodeInvalidSpec, Op: "bench rows", Message: fmt.Sprintf("no row %q", r),
				Hint: "one of " + strings.Join(Groups(), " "),
			}
		}
	}
	return out, nil
}

// rank is the p-th percentile of sorted samples, by nearest rank.
func rank(sorted []float64, p float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	i := int(math.Ceil(p * float64(len(sorted)) / 100))
	return sorted[min(max(i, 1), len(sorted))-1]
}

// summary makes a row of samples, which it sorts.
func summary(group, name, unit string, samples []float64) Row {
	slices.Sort(samples)
	return Row{
		Group: group, Name: name, Unit: unit, N: len(samples),
		Min: rank(samples, 0), P10: rank(samples, 10), Median: rank(samples, 50), P99: rank(samples, 99),
	}
}

// against fills in what a row is by its baseline.
func (r *Row) against(base Row) {
	r.Baseline = base.Name
	if base.Median > 0 {
		r.Ratio = r.Median / base.Median
	}
	r.Over = r.Median - base.Median
}

// Save writes the report to dir as <date>-<kind>.json and .txt and returns the
// name without the suffix.
func (r *Report) Save(dir string) (string, error) {
	b, err := r.MarshalIndent()
	if err != nil {
		return "", err
	}
	var text bytes.Buffer
	if err := r.Table(&text); err != nil {
		return "", err
	}
	kind := r.Fingerprint.Kind()
	if r.Quick {
		kind += "-quick"
	}
	name := filepath.Join(dir, r.Date.UTC().Format(time.DateOnly)+"-"+kind)
	return name, errors.Join(os.WriteFile(name+".json", b, 0o644), os.WriteFile(name+".txt", text.Bytes(), 0o644))
}

// MarshalIndent is the report as the JSON of a results file.
func (r *Report) MarshalIndent() ([]byte, error) {
	b, err := json.MarshalIndent(r, "", "\t")
	return append(b, '\n'), err
}
