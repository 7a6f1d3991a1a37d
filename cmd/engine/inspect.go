package main

import (
	"encoding/json"

	"github.com/spf13/cobra"
)

func (a *app) inspectCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "inspect ID",
		Short: "print all that is on record about a run, as JSON",
		Args:  exactly(1),
		RunE: func(_ *cobra.Command, args []string) error {
			record, err := a.host.Load(args[0])
			if err != nil {
				return err
			}
			if record.Result != nil {
				a.host.FillOutput(record.Result)
			}
			return a.printIndented(record)
		},
	}
}

// printIndented prints v as JSON for a person.
func (a *app) printIndented(v any) error {
	enc := json.NewEncoder(a.stdout)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return written(enc.Encode(v))
}
