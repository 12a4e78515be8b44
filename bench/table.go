package bench

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Table prints the report for people: columns aligned, one blank line between
// groups.
func (r *Report) Table(w io.Writer) error {
	f := &r.Fingerprint
	var b strings.Builder
	commit := f.Commit
	fmt.Fprintf(&b, "%s, %s\n", r.Date.UTC().Format(time.DateOnly), r.Command)
	fmt.Fprintf(&b, "%s, %d CPUs, %d MiB, %s, %s, cgroups %s, uid %d, %s, commit %s\n", f.CPU, f.CPUs, f.MemoryMiB, f.Kernel, f.OS, f.Cgroups, f.UID, f.Go, commit)
	fmt.Fprintf(&b, "load before %.2f, after %.2f", f.LoadBefore[0], f.LoadAfter[0])
	if f.Virtual {
		b.WriteString("; virtual machine")
	}
	if f.Governor != "" {
		b.WriteString("; governor " + f.Governor)
	}
	if r.Quick {
		b.WriteString("; quick: too few samples to quote")
	}
	fmt.Fprintf(&b, "\nsandboxes: %s\npercentiles: %s\n\n", r.Limits, r.Percentiles)

	head := []string{"row", "contender", "n", "min", "p10", "median", "p99", "x", "over", "/s"}
	cells := [][]string{head}
	for _, x := range r.Rows {
		name := x.Group
		if x.Clients > 1 {
			name += " x" + strconv.Itoa(x.Clients)
		}
		if x.Skipped != "" {
			cells = append(cells, []string{name, x.Name, "-"})
			continue
		}
		c := []string{name, x.Name, strconv.Itoa(x.N), value(x.Min, x.Unit), value(x.P10, x.Unit), value(x.Median, x.Unit), value(x.P99, x.Unit), "", "", ""}
		if x.Baseline != "" && x.Baseline != x.Name {
			c[7] = strconv.FormatFloat(x.Ratio, 'f', 2, 64)
			c[8] = value(x.Over, x.Unit)
		}
		if x.PerSecond > 0 {
			c[9] = strconv.FormatFloat(x.PerSecond, 'f', 0, 64)
		}
		cells = append(cells, c)
	}
	width := make([]int, len(head))
	for _, c := range cells {
		for i, s := range c {
			width[i] = max(width[i], utf8.RuneCountInString(s))
		}
	}
	last := ""
	for n, c := range cells {
		if n > 0 {
			if g := r.Rows[n-1].Group; g != last {
				b.WriteByte('\n')
				last = g
			}
		}
		var line strings.Builder
		for i, s := range c {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(s))
			if i < 2 {
				line.WriteString(s + pad)
			} else {
				line.WriteString(pad + s)
			}
			line.WriteString("  ")
		}
		text := strings.TrimRight(line.String(), " ")
		if n > 0 {
			if x := r.Rows[n-1]; x.Skipped != "" {
				text += "  skipped: " + x.Skipped
			} else if x.Note != "" {
				text = line.String() + x.Note
			}
		}
		b.WriteString(text + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// value prints three digits with the unit that keeps them short.
func value(v float64, unit string) string {
	sign := ""
	if v < 0 {
		sign, v = "-", -v
	}
	digits := func(v float64) string {
		switch {
		case v >= 100 || v == 0:
			return strconv.FormatFloat(v, 'f', 0, 64)
		case v >= 10:
			return strconv.FormatFloat(v, 'f', 1, 64)
		}
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	switch unit {
	case Micros, Nanos:
		ns := v
		if unit == Micros {
			ns *= 1e3
		}
		switch {
		case ns >= 999.5e6:
			return sign + digits(ns/1e9) + " s"
		case ns >= 999.5e3:
			return sign + digits(ns/1e6) + " ms"
		case ns >= 999.5:
			return sign + digits(ns/1e3) + " us"
		}
		return sign + digits(ns) + " ns"
	case Count:
		return sign + strconv.FormatFloat(v, 'f', -1, 64)
	}
	return sign + digits(v) + " " + unit
}
