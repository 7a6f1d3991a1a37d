package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/direct-oci/engine/capability/secret"
	"github.com/direct-oci/engine/cmd/cli"
	"github.com/direct-oci/engine/cmd/engine-runner/api"
	"github.com/direct-oci/engine/cmd/engine-runner/config"
	"github.com/direct-oci/engine/cmd/engine-runner/link"
	"github.com/direct-oci/engine/cmd/engine-runner/link/wire"
	"github.com/direct-oci/engine/engine"
)

func (a *app) configCommand() *cobra.Command {
	secrets := false
	check := &cobra.Command{
		Use:   "check [FILE]",
		Short: "say everything that is wrong with the config",
		Long: "check reads the config as the runner would and says everything that is wrong with\n" +
			"it, with lines, and whether users, groups and certificates that it names are on this\n" +
			"host. It warns of files of secrets that everybody may read. With --secrets it also\n" +
			"reads every secret, commands included, and says which cannot be had. No value is\n" +
			"ever printed.",
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
	if err := a.checkHost(c); err != nil {
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

// checkHost says what of this host the service could not use, and warns of secrets that
// lie open.
func (a *app) checkHost(c config.Config) error {
	var problems []error
	_, err := api.NewPolicy(c)
	problems = append(problems, err)
	_, err = api.NewTLS(c.Serve().TCP)
	problems = append(problems, err)
	if c.ControlPlane != nil {
		_, err = link.Roots(c.ControlPlane.CAFile)
		problems = append(problems, err)
	}
	problems = slices.DeleteFunc(problems, func(err error) bool { return err == nil })
	files := map[string]string{}
	if t := c.Serve().TCP; t != nil {
		files["service.tcp.key"] = t.Key
	}
	for name, s := range secretsOf(c) {
		files[name] = s.File
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if openToAll(files[name]) {
			a.Say("a warning: everybody on this host may read "+name+" in "+files[name], "run chmod o-rwx "+files[name])
		}
	}
	if len(problems) <= 1 {
		return errors.Join(problems...)
	}
	for _, err := range problems {
		a.Say(asError(err).Message, asError(err).Fix)
	}
	return engine.Refused("bad_config", "cannot use %d things that the config names", len(problems))
}

// openToAll tells whether every user of the host may read a file.
func openToAll(path string) bool {
	want := fs.FileMode(0o004)
	for filepath.IsAbs(path) {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm()&want == 0 {
			return false
		}
		if path == "/" {
			return true
		}
		path, want = filepath.Dir(path), 0o001
	}
	return false
}

// signingSecret is the key of the secret that is shared with a control plane.
const signingSecret = "controlPlane.signingSecret"

// secretsOf are all secrets of a config, by their keys.
func secretsOf(c config.Config) map[string]secret.Source {
	all := map[string]secret.Source{}
	if c.ControlPlane != nil {
		all[signingSecret] = c.ControlPlane.SigningSecret
	}
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
	return all
}

// checkSecrets reads every secret and says which of them cannot be had.
func (a *app) checkSecrets(ctx context.Context, c config.Config) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	all := secretsOf(c)
	missing := 0
	for _, name := range slices.Sorted(maps.Keys(all)) {
		value, err := all[name].Read(ctx, os.Getenv("CREDENTIALS_DIRECTORY"))
		if err == nil && name == signingSecret && len(value) < wire.MinSecret {
			err = fmt.Errorf("it has %d bytes, want %d at least", len(value), wire.MinSecret)
		}
		if err != nil {
			a.Say(fmt.Sprintf("cannot get %s from %s: %v", name, all[name], err), "")
			missing++
		}
	}
	if missing > 0 {
		return engine.Refused("no_secret", "cannot get %d of %d secrets", missing, len(all))
	}
	return nil
}
