package lab_test

import (
	"bytes"
	"context"
	"flag"
	"os"
	"regexp"
	"testing"
	"time"

	"belljar"
	"belljar/backend/native"
	"belljar/lab"
	"belljar/lab/attack"
)

func newRuntime(ctx context.Context, cfg belljar.Config) (*belljar.Runtime, error) {
	return belljar.New(ctx, cfg, native.New(native.Config{}))
}

func TestMain(m *testing.M) {
	attack.MaybeMain()
	lab.MaybeSupervise(newRuntime)
	os.Exit(m.Run())
}

var (
	match  = flag.String("entry", "", "only entries whose id matches")
	asJSON = flag.String("json", "", "write the report to this file")
)

// known are guarantees that do not hold yet, each with what is missing. An entry
// leaves the list with the commit that makes it hold; the test fails until it does.
var known = map[string]string{}

// TestNative carries out every entry against the native backend. In short mode
// the counter-runs are left out.
func TestNative(t *testing.T) {
	o := lab.Options{Runtime: newRuntime, NoCounter: testing.Short()}
	if *match != "" {
		o.Match = regexp.MustCompile(*match)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	o.Progress = func(r lab.Record) {
		if r.Outcome == lab.Held {
			return
		}
		t.Logf("%s: %s: %s", r.ID, r.Outcome, r.Reason)
	}
	rep, err := lab.Run(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	if *asJSON != "" {
		f, err := os.Create(*asJSON)
		if err != nil {
			t.Fatal(err)
		}
		if err := rep.JSON(f); err != nil {
			t.Error(err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	var table bytes.Buffer
	if err := rep.Table(&table); err != nil {
		t.Error(err)
	}
	t.Logf("%s, uid %d\n%s", rep.Host, rep.UID, table.String())
	for _, r := range rep.Records {
		if why := known[r.ID]; why != "" {
			if r.Outcome == lab.Held {
				t.Errorf("%s is %s: take it from the list of what does not hold yet", r.ID, r.Outcome)
			}
			t.Logf("%s: does not hold yet: %s", r.ID, why)
			continue
		}
		if r.Outcome != lab.Held && r.Outcome != lab.Skipped {
			t.Errorf("%s: %s: %s", r.ID, r.Outcome, r.Reason)
		}
	}
}
