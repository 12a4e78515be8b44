package main

import (
	"context"
	"os"

	"belljar"
	"belljar/bench"
	"belljar/cmd/belljar/internal/term"

	"github.com/spf13/cobra"
)

func newBench() *cobra.Command {
	var quick, list, asJSON bool
	c := &cobra.Command{
		Use:   "bench [group...]",
		Short: "Measure what confinement costs on this machine",
		Long: `bench measures warm and cold runs, output, memory and churn beside the same
program without belljar and beside other tools that are installed, with the
machine's fingerprint. It judges nothing.`,
		Example: "  belljar bench --quick\n  belljar bench cold --json > cold.json",
		Args:    cobra.ArbitraryArgs,
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return bench.Groups(), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if list {
				rows := [][]string{}
				for _, g := range bench.Groups() {
					rows = append(rows, []string{g})
				}
				return term.Table(os.Stdout, rows)
			}
			sig := watchInterrupts()
			defer sig.stop()
			ctx, cancel := sig.context(cmd.Context())
			defer cancel()
			o := bench.Options{Rows: args, Quick: quick, Runtime: func(ctx context.Context) (*belljar.Runtime, error) {
				return newRuntime(ctx, belljar.Config{})
			}}
			if term.Is(os.Stderr) {
				o.Log = os.Stderr
			}
			rep, err := bench.Run(ctx, o)
			if err != nil {
				return interrupted(err, sig)
			}
			if !asJSON {
				return rep.Table(os.Stdout)
			}
			b, err := rep.MarshalIndent()
			if err != nil {
				return err
			}
			_, err = os.Stdout.Write(b)
			return err
		},
	}
	fs := c.Flags()
	fs.BoolVar(&quick, "quick", false, "few samples: to see that everything works, not to quote")
	fs.BoolVar(&list, "list", false, "list the groups")
	fs.BoolVar(&asJSON, "json", false, "write JSON")
	return c
}
