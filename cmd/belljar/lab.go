package main

import (
	"fmt"
	"os"
	"path"
	"strings"

	"belljar/cmd/belljar/internal/term"
	"belljar/lab"

	"github.com/spf13/cobra"
)

const labLong = `The laboratory has an entry for each attack on a guarantee. An entry holds only
when the attack failed with the protection on, the same act succeeded where it
is allowed, and the attack succeeded with the protection off.`

func newLab() *cobra.Command {
	c := &cobra.Command{
		Use:     "lab",
		Short:   "Attack the guarantees, and report what held",
		Long:    labLong,
		Example: "  belljar lab list\n  belljar lab run A1-rootfs 'C2-*'\n  belljar lab run all --json > evidence.json",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(newLabList(), newLabRun())
	return c
}

func newLabList() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "list",
		Short: "List the attacks",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			type item struct {
				ID         string `json:"id"`
				Guarantee  string `json:"guarantee"`
				Capability string `json:"capability,omitempty"`
				Title      string `json:"title"`
			}
			items := []item{}
			rows := [][]string{{"ENTRY", "GUARANTEE", "ATTACK"}}
			for _, e := range lab.Entries() {
				items = append(items, item{e.ID, e.Guarantee, e.Capability, e.Title})
				rows = append(rows, []string{e.ID, e.Guarantee, e.Title})
			}
			if asJSON {
				return printJSON(os.Stdout, items)
			}
			return term.Table(os.Stdout, rows)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	return c
}

func newLabRun() *cobra.Command {
	var asJSON, fast bool
	c := &cobra.Command{
		Use:     "run ENTRY...|all",
		Short:   "Carry out attacks; exit status 1 when a guarantee is broken",
		Long:    labLong + "\n\nENTRY is the id of an entry, or a pattern such as 'C2-*'.",
		Example: "  belljar lab run all\n  belljar lab run A1-rootfs 'C2-*'",
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			ids := []string{"all"}
			for _, e := range lab.Entries() {
				ids = append(ids, e.ID)
			}
			return ids, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := matchEntries(args)
			if err != nil {
				return err
			}
			sig := watchInterrupts()
			defer sig.stop()
			ctx, cancel := sig.context(cmd.Context())
			defer cancel()
			rep, err := runLab(ctx, ids, lab.Options{NoCounter: fast})
			if err != nil {
				return interrupted(err, sig)
			}
			if asJSON {
				err = rep.JSON(os.Stdout)
			} else {
				err = rep.Table(os.Stdout)
			}
			if err != nil {
				return err
			}
			if rep.Failed() {
				return &exitError{code: exitFailed}
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "write JSON, with all evidence")
	c.Flags().BoolVar(&fast, "no-counter", false, "leave out the runs with the protection off: a quick look, no evidence")
	return c
}

// matchEntries returns the ids that the patterns name, each once.
func matchEntries(patterns []string) ([]string, error) {
	if len(patterns) == 0 {
		return nil, usageError("lab run", "no entry given", "belljar lab run all, or see belljar lab list")
	}
	var ids []string
	used := make([]bool, len(patterns))
	for _, e := range lab.Entries() {
		match := false
		for i, p := range patterns {
			ok, err := path.Match(strings.ToLower(p), strings.ToLower(e.ID))
			if err != nil {
				return nil, usageError("lab run", fmt.Sprintf("%q is not a pattern", p), "")
			}
			if ok || p == "all" {
				match, used[i] = true, true
			}
		}
		if match {
			ids = append(ids, e.ID)
		}
	}
	for i, u := range used {
		if !u {
			return nil, usageError("lab run", fmt.Sprintf("no entry matches %q", patterns[i]), "see belljar lab list")
		}
	}
	return ids, nil
}
