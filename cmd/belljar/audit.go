package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"

	"belljar/server/audit"

	"github.com/spf13/cobra"
)

func newAudit() *cobra.Command {
	c := &cobra.Command{
		Use:   "audit",
		Short: "Look at the daemon's audit log",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(newAuditVerify())
	return c
}

func newAuditVerify() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "verify [state-dir]",
		Short: "Find whatever was changed or cut out of the log",
		Long: `verify reads the audit log of a state directory (default: that of serve) and says
which lines do not fit: changed, cut out, put in, reordered, or missing at the end.
Its exit status is 1 when anything does not.`,
		Example: "  belljar audit verify /var/lib/belljar",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, _, err := daemonDirs()
			if err != nil {
				return err
			}
			if len(args) == 1 {
				if dir, err = filepath.Abs(args[0]); err != nil {
					return err
				}
			}
			rep, err := audit.Verify(dir)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if asJSON {
				err = json.NewEncoder(out).Encode(rep)
			} else {
				_, err = fmt.Fprintf(out, "%d entries, head %s\n", rep.Entries, rep.Head)
				for _, f := range rep.Faults {
					_, err = fmt.Fprintln(out, f)
				}
			}
			if err == nil && rep.Broken() {
				err = &exitError{code: exitFailed}
			}
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return c
}
