package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"

	"belljar"
	"belljar/cmd/belljar/internal/term"
)

// exitCode is the status by which belljar tells how a program ended. interrupted
// is that of a cancelled one.
func exitCode(res *belljar.Result, interrupted int) int {
	switch res.Cause {
	case belljar.CauseExit, belljar.CauseSignal, belljar.CausePolicy:
		return res.ExitCode
	case belljar.CauseTimeout:
		return exitTimeout
	case belljar.CauseCPU, belljar.CauseMemory, belljar.CauseOutput, belljar.CausePids, belljar.CauseDisk:
		return exitLimit
	case belljar.CauseCancelled:
		return interrupted
	}
	return failureCode(res.Error)
}

// failureCode is the status for a program that was not run.
func failureCode(err error) int {
	e := (*belljar.Error)(nil)
	if !errors.As(err, &e) || e.Code != belljar.CodeExecFailed || !strings.HasPrefix(e.Op, "exec: exec") {
		return exitInfra
	}
	if errors.Is(e, syscall.ENOENT) {
		return exitNotFound
	}
	return exitNotExecutable
}

// reason is one line on how a program ended, if that was not by itself.
func reason(res *belljar.Result) string {
	switch res.Cause {
	case belljar.CauseExit:
		if res.Error != nil { // something of its tree cannot be killed
			return oneLine(res.Error)
		}
		return ""
	case belljar.CauseSignal:
		return "killed by " + res.Signal
	}
	if res.Error == nil {
		return string(res.Cause)
	}
	e := *res.Error
	var more []string
	if e.Limit != "" {
		more = append(more, "limit "+humanLimit(e.Limit))
	}
	if e.Observed != "" {
		more = append(more, "observed "+humanLimit(e.Observed))
	}
	if len(more) > 0 {
		e.Message += ": " + strings.Join(more, ", ")
	}
	if e.Op == "exec" {
		e.Op = ""
	}
	return oneLine(&e)
}

// humanLimit writes whole multiples of KiB and more as such.
func humanLimit(s string) string {
	var n int64
	var unit string
	if c, err := fmt.Sscanf(s, "%d %s", &n, &unit); err != nil || c != 2 || unit != "B" || fmt.Sprintf("%d B", n) != s {
		return s
	}
	return humanBytes(n)
}

// humanBytes is a number of bytes in three digits or so.
func humanBytes(n int64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	v, u := float64(n)/1024, 0
	for v >= 1023.5 && u < len(units)-1 {
		v /= 1024
		u++
	}
	digits := fmt.Sprintf("%.1f", v)
	if v >= 100 {
		digits = fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%s %ciB", strings.TrimSuffix(digits, ".0"), units[u])
}

// printJSON writes v with indentation.
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// printReport writes a confinement report as a table.
func printReport(w io.Writer, r belljar.Report) error {
	rows := [][]string{{"LAYER", "STATUS", "SAID BY", "DETAIL"}}
	for _, l := range r.Layers {
		detail := l.Detail
		if l.Reason != "" {
			detail = strings.TrimSpace(detail + " " + l.Reason)
		}
		if detail == "" {
			detail = "-"
		}
		rows = append(rows, []string{string(l.Layer), string(l.Status), l.Source, detail})
	}
	return term.Table(w, rows)
}

// warnDev says on every command what isolation mode dev left out.
func warnDev(w io.Writer, r belljar.Report) {
	if r.Mode != belljar.Dev {
		return
	}
	var missing []string
	for _, l := range r.Layers {
		if l.Status != belljar.LayerApplied {
			missing = append(missing, string(l.Layer))
		}
	}
	what := "every layer is applied, but none is required"
	if len(missing) > 0 {
		what = "not applied: " + strings.Join(missing, ", ")
	}
	fmt.Fprintf(w, "belljar: warning: isolation mode dev is no protection against hostile programs (%s)\n", what)
}
