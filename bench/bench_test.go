package bench

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"belljar"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite golden files")

func TestRank(t *testing.T) {
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(i + 1)
	}
	for _, tt := range []struct {
		name   string
		sorted []float64
		p      float64
		want   float64
	}{
		{"none", nil, 50, 0},
		{"one", []float64{7}, 99, 7},
		{"least", hundred, 0, 1},
		{"tenth", hundred, 10, 10},
		{"median", hundred, 50, 50},
		{"nearly last", hundred, 99, 99},
		{"last", hundred, 100, 100},
		{"median of two is the lower", []float64{1, 2}, 50, 1},
		{"p99 of few is the last", []float64{1, 2, 3}, 99, 3},
	} {
		if got := rank(tt.sorted, tt.p); got != tt.want {
			t.Errorf("%s: rank(p%v) = %v, want %v", tt.name, tt.p, got, tt.want)
		}
	}
}

func TestValue(t *testing.T) {
	for _, tt := range []struct {
		v    float64
		unit string
		want string
	}{
		{0, Micros, "0 ns"},
		{0.1234, Micros, "123 ns"},
		{129.41, Micros, "129 us"},
		{1234, Micros, "1.23 ms"},
		{12345, Micros, "12.3 ms"},
		{2.5e6, Micros, "2.50 s"},
		{-3.4, Micros, "-3.40 us"},
		{85, Nanos, "85.0 ns"},
		{999.9, Nanos, "1.00 us"},
		{540.2, KiB, "540 KiB"},
		{0.5, MiB, "0.50 MiB"},
		{0, Count, "0"},
		{3, Count, "3"},
	} {
		if got := value(tt.v, tt.unit); got != tt.want {
			t.Errorf("value(%v, %s) = %q, want %q", tt.v, tt.unit, got, tt.want)
		}
	}
}

func TestStaticTrue(t *testing.T) {
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		b, err := staticTrue(arch)
		if err != nil {
			t.Fatal(err)
		}
		f, err := elf.NewFile(bytes.NewReader(b))
		if err != nil {
			t.Fatalf("%s: %v", arch, err)
		}
		if f.Machine != machine || f.Type != elf.ET_EXEC || len(f.Progs) != 1 {
			t.Errorf("%s: machine %v, type %v, %d program headers", arch, f.Machine, f.Type, len(f.Progs))
		}
		if p := f.Progs[0]; f.Entry < p.Vaddr || f.Entry >= p.Vaddr+p.Filesz || p.Filesz != uint64(len(b)) {
			t.Errorf("%s: entry %#x outside of the segment %#x+%#x of %d bytes", arch, f.Entry, p.Vaddr, p.Filesz, len(b))
		}
	}
	if _, err := staticTrue("pdp11"); !errors.Is(err, belljar.ErrUnsupported) {
		t.Errorf("an unknown machine: %v, want UNSUPPORTED", err)
	}
}

// sample is a report with every form that a row can have.
func sample() Report {
	base := Row{Group: "warm/static", Name: "bare", Unit: Micros, N: 200, Min: 74, P10: 80, Median: 100, P99: 400, PerSecond: 8500, Note: "os/exec"}
	base.against(base)
	row := Row{Group: "warm/static", Name: "belljar", Unit: Micros, N: 200, Min: 120, P10: 150, Median: 250, P99: 900, PerSecond: 3600.4}
	row.against(base)
	loaded := row
	loaded.Clients = 8
	return Report{
		Date: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Command: "belljar bench --quick", Quick: true,
		Percentiles: "nearest rank", Limits: "hardened",
		Fingerprint: Fingerprint{
			OS: "Debian GNU/Linux 12", Arch: "amd64", CPU: "A processor", CPUs: 2, Virtual: true, MemoryMiB: 24105, Kernel: "Linux 6.18",
			Cgroups: "hybrid", Go: "go1.26", Commit: "0123456789ab", LoadBefore: [3]float64{0.1, 0.2, 0.3}, LoadAfter: [3]float64{1, 2, 3},
		},
		Rows: []Row{
			base, row, loaded,
			{Group: "process/true", Name: "nsjail", Skipped: "not installed"},
			{Group: "idle", Name: "memory, all in", Unit: KiB, N: 1, Min: 600, P10: 600, Median: 600, P99: 600, Note: "processes and kernel"},
		},
	}
}

func TestTable(t *testing.T) {
	rep := sample()
	var got bytes.Buffer
	if err := rep.Table(&got); err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "table.txt")
	if *update {
		if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got.String()); d != "" {
		t.Errorf("table (-want +got), -update to accept:\n%s", d)
	}
}

func TestJSON(t *testing.T) {
	rep := sample()
	b, err := rep.MarshalIndent()
	if err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(rep, back); d != "" {
		t.Errorf("after a round trip (-want +got):\n%s", d)
	}
}

func TestSave(t *testing.T) {
	rep := sample()
	dir := t.TempDir()
	name, err := rep.Save(dir)
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(dir, "2026-01-02-amd64-2cpu-vm-hybrid-root-quick"); name != want {
		t.Errorf("saved as %s, want %s", name, want)
	}
	b, err := os.ReadFile(name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(rep, back); d != "" {
		t.Errorf("saved JSON (-want +got):\n%s", d)
	}
	text, err := os.ReadFile(name + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	var want bytes.Buffer
	if err := rep.Table(&want); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(text, want.Bytes()) {
		t.Errorf("saved text differs from the table:\n%s", text)
	}
}

func TestKind(t *testing.T) {
	f := sample().Fingerprint
	if got, want := f.Kind(), "amd64-2cpu-vm-hybrid-root"; got != want {
		t.Errorf("Kind() = %q, want %q", got, want)
	}
}
