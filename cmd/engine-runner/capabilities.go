package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/capability/review"
	"github.com/direct-oci/engine/cmd/cli"
)

func (a *app) capabilitiesCommand() *cobra.Command {
	project := ""
	cmd := &cobra.Command{
		Use:   "capabilities",
		Short: "list what may be asked for",
		Long:  "capabilities lists what may be asked for: [project] name  [kind/hazard]  description.",
		Args:  cli.Between(0, 0),
		RunE: func(*cobra.Command, []string) error {
			r, _, err := a.runner()
			if err != nil {
				return err
			}
			list, problems, err := r.Capabilities(project)
			if err != nil {
				return err
			}
			for _, p := range problems {
				a.Say(fmt.Sprintf("cannot offer %s of project=%s: %s", p.Name, p.Project, p.Message), "")
			}
			if a.json {
				return a.PrintJSON(struct {
					Capabilities []capability.Listed  `json:"capabilities"`
					Problems     []capability.Problem `json:"problems"`
				}{list, problems})
			}
			var b strings.Builder
			for _, c := range list {
				fmt.Fprintf(&b, "[%s] %s  [%s/%s]  %s\n", c.Project, c.Name, c.Kind, c.Hazard, review.Line(c.Description))
			}
			return a.Print(b.String())
		},
	}
	cmd.Flags().StringVar(&project, "project", "", "only those of project `SLUG`")
	cmd.Flags().BoolVar(&a.json, "json", false, "print JSON, with the schemas of the arguments")
	return cmd
}
