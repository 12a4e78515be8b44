package rules

import (
	"context"
	"go/ast"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"belljar"
	"belljar/backend/native"
	"belljar/lab"
)

// evidence says by which cases of the conformance suite the behaviour behind a
// capability is shown: "group/case".
var evidence = map[string][]string{
	"filesystem":            {"file/both sides see the same", "file/names never leave the root", "life/sandboxes do not share files"},
	"osFilesystemIsolation": {"file/hostile links", "file/names never leave the root"},
	"networkIsolation":      {"life/sandboxes do not share networks"},
	"cpuLimits":             {"result/CPU budget"},
	"cpuQuota":              {"result/CPU rate"},
	"memoryLimits":          {"result/memory", "result/memory spares innocents"},
	"diskLimits":            {"result/disk"},
	"pidsLimits":            {"result/processes"},
	"streaming":             {"stream/4 MiB on both, byte for byte", "stream/back-pressure"},
	"tty":                   {"stream/terminal"},
	"pause":                 {"life/pause"},
}

// TestClaims: doctor calls a capability supported when entries of the laboratory
// named it and held. What no entry names is never claimed, and what one names
// has a case in the conformance suite as well.
func TestClaims(t *testing.T) {
	attacked := map[string]int{}
	ids := map[string]bool{}
	for _, e := range lab.Entries() {
		if ids[e.ID] {
			t.Errorf("two entries named %s", e.ID)
		}
		ids[e.ID] = true
		if e.Capability == "" {
			continue
		}
		attacked[e.Capability]++
		if !slices.Contains(belljar.CapabilityNames, e.Capability) {
			t.Errorf("entry %s speaks of an unknown capability %q", e.ID, e.Capability)
		}
	}
	if len(attacked) < 5 {
		t.Fatalf("only %v are attacked", attacked)
	}
	cases := conformanceCases(t)
	for c := range attacked {
		if !covered(cases, evidence[c]) {
			t.Errorf("%s can be claimed, and the conformance suite lacks one of %q", c, evidence[c])
		}
	}
	// A backend may say unknown or unsupported by itself. Supported is doctor's to say.
	b := native.New(native.Config{})
	defer b.Close(context.Background())
	probe, err := b.Probe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(probe.Capabilities) != len(belljar.CapabilityNames) {
		t.Errorf("native speaks of %d capabilities of %d", len(probe.Capabilities), len(belljar.CapabilityNames))
	}
	for _, c := range probe.Capabilities {
		if c.Support == belljar.Supported {
			t.Errorf("native calls %s supported without having attacked it", c.Name)
		}
		if c.Support == belljar.Unsupported && attacked[c.Name] > 0 {
			t.Errorf("%s is attacked in the laboratory, and native calls it unsupported", c.Name)
		}
	}
}

func covered(cases map[string]bool, want []string) bool {
	return len(want) > 0 && !slices.ContainsFunc(want, func(c string) bool { return !cases[c] })
}

// conformanceCases reads the names of the suite's cases from its source.
func conformanceCases(t *testing.T) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	for _, s := range sources(t) {
		if path.Dir(s.name) != "conformance" {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			v, ok := n.(*ast.ValueSpec)
			if !ok || len(v.Names) != 1 || !strings.HasSuffix(v.Names[0].Name, "Cases") || len(v.Values) != 1 {
				return true
			}
			group := strings.TrimSuffix(v.Names[0].Name, "Cases")
			for _, elt := range v.Values[0].(*ast.CompositeLit).Elts {
				for _, f := range elt.(*ast.CompositeLit).Elts {
					kv := f.(*ast.KeyValueExpr)
					if kv.Key.(*ast.Ident).Name != "name" {
						continue
					}
					name, err := strconv.Unquote(kv.Value.(*ast.BasicLit).Value)
					if err != nil {
						t.Fatal(err)
					}
					out[group+"/"+name] = true
				}
			}
			return false
		})
	}
	if len(out) < 50 {
		t.Fatalf("only %d cases were found", len(out))
	}
	return out
}
