package main

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

	"belljar"
	"belljar/cmd/belljar/internal/term"

	"github.com/spf13/cobra"
)

// versionInfo says what this binary was built from.
type versionInfo struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Time     string `json:"commitTime,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Keeper   string `json:"keeperSha256,omitempty"`
}

func readVersion() versionInfo {
	v := versionInfo{Version: belljar.SpecVersion, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, Keeper: keeperHash()}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				v.Commit = s.Value
			case "vcs.time":
				v.Time = s.Value
			case "vcs.modified":
				v.Modified = s.Value == "true"
			}
		}
	}
	return v
}

func newVersion() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:     "version",
		Short:   "Say what this binary was built from",
		Example: "  belljar version --json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := readVersion()
			if asJSON {
				return printJSON(os.Stdout, v)
			}
			commit := cmp.Or(v.Commit, "unknown (built without version control)")
			if v.Modified {
				commit += " (modified)"
			}
			return term.Table(os.Stdout, [][]string{
				{"belljar", v.Version},
				{"commit", commit},
				{"go", fmt.Sprintf("%s %s", v.Go, v.Platform)},
				{"keeper", cmp.Or(v.Keeper, "none for this platform")},
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	return c
}
