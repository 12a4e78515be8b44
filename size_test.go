package belljar

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestParseSize(t *testing.T) {
	for in, want := range map[string]Size{
		"0": 0, "1": 1, "1000": 1000, "0B": 0, "7B": 7, "1KB": 1024, "1KiB": 1024, "2MB": 2 << 20, "2MiB": 2 << 20,
		"3GB": 3 << 30, "3GiB": 3 << 30, "1.5GiB": 1536 << 20, "0.5KiB": 512, "1.0B": 1, "0.25MB": 256 << 10,
		"9223372036854775807": math.MaxInt64, "8589934591GiB": 8589934591 << 30,
		"0.000000000931322574615478515625GiB": 1,
	} {
		got, err := ParseSize(in)
		if err != nil || got != want {
			t.Errorf("ParseSize(%q) = %d, %v; want %d", in, got, err, want)
		}
	}
	for _, in := range []string{
		"", " ", "-1", "+1", "-1MiB", "1 MiB", " 1", "1 ", "1.5", "1.", ".5GiB", "1.GiB", "1.3B", "0.0001KiB", "1e3", "0x10", "0b1", "1_000", "010",
		"1kb", "1mib", "1M", "1K", "1TiB", "1TB", "MiB", "NaN", "Inf", "infinity", "1/2GiB", "9223372036854775808", "8589934592GiB", "1MiBs", "١MiB",
		"1MiB\x00", strings.Repeat("9", 65), "1." + strings.Repeat("0", 70) + "GiB",
	} {
		got, err := ParseSize(in)
		var e *Error
		if !errors.As(err, &e) || e.Code != CodeInvalidSpec || e.Hint == "" || got != 0 {
			t.Errorf("ParseSize(%q) = %d, %v; want INVALID_SPEC with a hint", in, got, err)
		}
	}
}

func TestSizeForms(t *testing.T) {
	for s, want := range map[Size]string{0: "0B", 1: "1B", 1000: "1000B", KiB: "1KiB", 1536 * MiB: "1536MiB", 4 * GiB: "4GiB", -KiB: "-1KiB"} {
		if got := s.String(); got != want {
			t.Errorf("Size(%d).String() = %q, want %q", int64(s), got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		s := Size(rapid.Int64Min(0).Draw(t, "size"))
		if got, err := ParseSize(s.String()); err != nil || got != s {
			t.Fatalf("ParseSize(%q) = %d, %v; want %d", s.String(), got, err, s)
		}
		data, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var back Size
		if err := json.Unmarshal(data, &back); err != nil || back != s {
			t.Fatalf("JSON %s reads back as %d, %v", data, back, err)
		}
	})
	var s Size
	if err := json.Unmarshal([]byte(`"1.5KiB"`), &s); err != nil || s != 1536 {
		t.Errorf(`JSON "1.5KiB" = %d, %v`, s, err)
	}
	for _, in := range []string{`-1`, `1.5`, `1e3`, `null`, `true`, `{}`, `"-1"`, `"1 KiB"`} {
		s = 7
		if err := json.Unmarshal([]byte(in), &s); err == nil && in != "null" || s != 7 {
			t.Errorf("JSON %s = %d, %v; want an error and no change", in, s, err)
		}
	}
}

func TestParseDuration(t *testing.T) {
	for in, want := range map[string]time.Duration{
		"0": 0, "0s": 0, "1": time.Millisecond, "1500": 1500 * time.Millisecond, "1.5s": 1500 * time.Millisecond, "2h45m": 165 * time.Minute,
		"1ns": 1, "3us": 3 * time.Microsecond, "3µs": 3 * time.Microsecond, ".5s": 500 * time.Millisecond, "9223372036854": 9223372036854 * time.Millisecond,
	} {
		got, err := ParseDuration(in)
		if err != nil || got != want {
			t.Errorf("ParseDuration(%q) = %v, %v; want %v", in, got, err, want)
		}
	}
	for _, in := range []string{
		"", "-1", "-1s", "+1s", "-0", "1 s", " 1s", "1.5", "1e3", "010", "00", "s", "1d", "1w", "1S", "NaN", "Inf", "infinity", "9223372036855",
		"9223372036854775808", "2562048h", "0.1ns", "1s\x00", strings.Repeat("1", 65), "1h-1m",
	} {
		got, err := ParseDuration(in)
		var e *Error
		if !errors.As(err, &e) || e.Code != CodeInvalidSpec || e.Hint == "" || got != 0 {
			t.Errorf("ParseDuration(%q) = %v, %v; want INVALID_SPEC with a hint", in, got, err)
		}
	}
}

func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"0", "1.5GiB", "512KB", "-1", "1e9", "9223372036854775807", "0.000000000931322574615478515625GiB"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		s, err := ParseSize(in)
		if err != nil {
			if !errors.Is(err, ErrInvalidSpec) || s != 0 {
				t.Fatalf("ParseSize(%q) = %d, %v", in, s, err)
			}
			return
		}
		if back, err := ParseSize(s.String()); s < 0 || err != nil || back != s {
			t.Fatalf("ParseSize(%q) = %d, reads back as %d, %v", in, s, back, err)
		}
	})
}

func FuzzParseDuration(f *testing.F) {
	for _, s := range []string{"0", "1.5s", "250", "2h45m3.5us", "-1s", "1e9", ".5h"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		d, err := ParseDuration(in)
		if err != nil {
			if !errors.Is(err, ErrInvalidSpec) || d != 0 {
				t.Fatalf("ParseDuration(%q) = %d, %v", in, d, err)
			}
			return
		}
		if back, err := ParseDuration(d.String()); d < 0 || err != nil || back != d {
			t.Fatalf("ParseDuration(%q) = %v, reads back as %v, %v", in, d, back, err)
		}
	})
}
