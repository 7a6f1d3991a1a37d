package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/direct-oci/engine/capability/secret"
	"github.com/direct-oci/engine/cmd/cli"
	"github.com/direct-oci/engine/cmd/engine-runner/config"
	"github.com/direct-oci/engine/engine"
)

func (a *app) configCommand() *cobra.Command {
	secrets := false
	check := &cobra.Command{
		Use:   "check [FILE]",
		Short: "say everything that is wrong with the config",
		Long: "check reads the config as the runner would and says everything that is wrong with\n" +
			"it, with lines. With --secrets it also reads every secret, commands included, and\n" +
			"says which cannot be had. No value is ever printed.",
		Args: cli.Between(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.checkConfig(cmd.Context(), args, secrets) },
	}
	check.Flags().BoolVar(&secrets, "secrets", false, "read every secret too")
	check.Flags().BoolVar(&a.json, "json", false, "print the config, without secrets, or what is wrong with it as JSON")
	schema := &cobra.Command{
		Use:   "schema",
		Short: "print the JSON Schema of the config",
		Args:  cli.Between(0, 0),
		RunE: func(*cobra.Command, []string) error {
			text, err := json.MarshalIndent(config.Schema(), "", "  ")
			if err != nil {
				return err
			}
			return a.Print(string(text) + "\n")
		},
	}
	return cli.Group("config", "the runner's config", check, schema, a.tokenCommand())
}

func (a *app) checkConfig(ctx context.Context, args []string, readSecrets bool) error {
	if len(args) == 1 {
		a.configPath = args[0]
	}
	c, err := a.loadConfig()
	if err != nil {
		return err
	}
	if readSecrets {
		if err := a.checkSecrets(ctx, c); err != nil {
			return err
		}
	}
	if a.json {
		return a.PrintJSON(c)
	}
	return a.Print(fmt.Sprintf("the config is well: %d projects, %d approvers\n", len(c.Projects), len(c.Approvers)))
}

// checkSecrets reads every secret and says which of them cannot be had.
func (a *app) checkSecrets(ctx context.Context, c config.Config) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	all := map[string]secret.Source{}
	for name, s := range c.Secrets {
		all["secrets."+name] = s
	}
	for slug, p := range c.Projects {
		for name, s := range p.Secrets {
			all["projects."+slug+".secrets."+name] = s
		}
		for name, e := range p.Environments {
			if e.Firestore != nil && e.Firestore.Credentials != nil {
				all["projects."+slug+".environments."+name+".firestore.credentials"] = *e.Firestore.Credentials
			}
		}
	}
	var names []string
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	missing := 0
	for _, name := range names {
		if _, err := all[name].Read(ctx, os.Getenv("CREDENTIALS_DIRECTORY")); err != nil {
			a.Say(fmt.Sprintf("cannot get %s from %s: %v", name, all[name], err), "")
			missing++
		}
	}
	if missing > 0 {
		return engine.Refused("no_secret", "cannot get %d of %d secrets", missing, len(all))
	}
	return nil
}
