package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/direct-oci/engine/client"
	"github.com/direct-oci/engine/client/wire"
	"github.com/direct-oci/engine/cmd/cli"
	"github.com/direct-oci/engine/cmd/engine-runner/config"
	"github.com/direct-oci/engine/engine"
)

func (a *app) sandboxCommand() *cobra.Command {
	f := &serviceFlags{}
	cmd := cli.Group("sandbox", "sandboxes that stay: make them, work in them, end them",
		a.sandboxCreateCommand(f), a.sandboxListCommand(f), a.sandboxInspectCommand(f),
		a.sandboxExecCommand(f), a.sandboxLogsCommand(f), a.sandboxKillCommand(f), a.sandboxCopyCommand(f),
		a.sandboxStatsCommand(f), a.sandboxPauseCommand(f), a.sandboxResumeCommand(f), a.sandboxRenewCommand(f), a.sandboxRemoveCommand(f))
	cmd.Long = "sandbox works with sandboxes that stay, over the API of a service: engine serve. It finds\n" +
		"the service by its Unix socket, or by a URL and a token. A sandbox is named by its name or\n" +
		"its id.\n\n" +
		"Exit status: 0, or 125 when something was refused or failed; exec has its program's own."
	cmd.Example = "  engine sandbox create dev --image debian --memory 1GiB\n" +
		"  engine sandbox exec -it dev -- bash\n" +
		"  engine sandbox cp ./src dev:/workload && engine sandbox exec dev -- make -C /workload/src\n" +
		"  engine sandbox rm dev"
	flags := cmd.PersistentFlags()
	flags.StringVar(&f.socket, "socket", "", "`PATH` of the service's socket (default the config's, or "+client.DefaultSocket+")")
	flags.StringVar(&f.url, "url", "", "`URL` of a service, as https://host:7443, instead of a socket")
	flags.StringVar(&f.tokenFile, "token-file", "", "`FILE` of the token for --url")
	flags.StringVar(&f.ca, "ca-file", "", "`FILE` of the certificates that --url is trusted by (default the system's)")
	return cmd
}

// serviceFlags say where the service is.
type serviceFlags struct {
	socket, url, tokenFile, ca string
}

// atOnce bounds how long a command looks for a service that does not answer: one that is
// being restarted is waited for, one that is not there is soon told.
const atOnce = time.Second

// onService makes the function of a command of one that needs a service.
func (a *app) onService(f *serviceFlags, do func(ctx context.Context, c *client.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := a.dial(f)
		if err != nil {
			return err
		}
		defer c.Close()
		c.Patience = atOnce
		return fromService(do(cmd.Context(), c, args))
	}
}

// dial makes a client of what the flags and the config say.
func (a *app) dial(f *serviceFlags) (*client.Client, error) {
	if f.url != "" {
		return f.remote()
	}
	if f.tokenFile != "" || f.ca != "" {
		return nil, engine.Refused("bad_flag", "cannot use a token or certificates on a socket: the kernel says who calls").WithFix("name the service with --url")
	}
	socket, err := a.socket(f)
	if err != nil {
		return nil, err
	}
	return client.Unix(socket), nil
}

// socket is that of the flags, of a config that was named or may be read, or the usual one.
func (a *app) socket(f *serviceFlags) (string, error) {
	if f.socket != "" {
		return f.socket, nil
	}
	if a.configPath == "" && a.inline == nil && os.Getenv(config.Variable) == "" {
		file, err := os.Open(config.DefaultPath)
		if err != nil { // it is root's, and its readers are few
			return filepath.Join(cmp.Or(a.runDir, filepath.Dir(client.DefaultSocket)), filepath.Base(client.DefaultSocket)), nil
		}
		file.Close()
	}
	c, err := a.loadConfig()
	if err != nil {
		return "", err
	}
	return c.Serve().Socket, nil
}

// remote makes a client of a service behind TLS.
func (f *serviceFlags) remote() (*client.Client, error) {
	u, err := url.Parse(f.url)
	if err != nil || u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.User != nil || f.socket != "" {
		return nil, engine.Refused("bad_flag", "cannot accept --url=%q: want https://HOST:PORT, and no --socket", f.url)
	}
	settings := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.ca != "" {
		pem, err := readSmall(f.ca)
		if err != nil {
			return nil, engine.Refused("bad_flag", "cannot read --ca-file: %w", err)
		}
		settings.RootCAs = x509.NewCertPool()
		if !settings.RootCAs.AppendCertsFromPEM(pem) {
			return nil, engine.Refused("bad_flag", "cannot read --ca-file=%s: it holds no certificate in PEM", f.ca)
		}
	}
	token, err := f.token()
	if err != nil {
		return nil, err
	}
	return client.TLS(u.Host, token, settings), nil
}

// token reads the token from its file: on a command line every user of the host could
// read it.
func (f *serviceFlags) token() (string, error) {
	if f.tokenFile == "" {
		return "", nil
	}
	text, err := readSmall(f.tokenFile)
	if err != nil {
		return "", engine.Refused("bad_flag", "cannot read --token-file: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if token == "" || strings.ContainsAny(token, " \t\r\n") {
		return "", engine.Refused("bad_flag", "cannot use --token-file=%s: want one line, the token", f.tokenFile)
	}
	return token, nil
}

// readSmall reads a file of a token or of certificates.
func readSmall(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(file, 1<<20))
	return data, errors.Join(err, file.Close())
}

// fromService makes an *engine.Error of what the client returned: the service's own words,
// or that there is none.
func fromService(err error) error {
	var known *engine.Error // it may have the client's as its cause
	var failure *client.Error
	var unreached *url.Error
	switch {
	case errors.As(err, &known):
	case errors.As(err, &failure):
		e := fromWire(wire.Error{Class: failure.Class, Kind: failure.Kind, Message: failure.Message, Fix: failure.Fix})
		if e.Kind == "unauthorised" {
			e.Fix = "name a file with a token of the service's by --token-file"
		}
		return e
	case errors.As(err, &unreached) && errors.As(err, new(*tls.CertificateVerificationError)):
		return engine.Failed("no_service", "cannot trust the service: %w", unreached.Err).
			WithFix("name the certificates that have signed its own with --ca-file, and a host that it is for with --url")
	case errors.As(err, &unreached):
		return engine.Failed("no_service", "cannot reach the service: %w", unreached.Err).
			WithFix("start it with engine serve, or name another with --socket or --url")
	}
	return err
}

func fromWire(e wire.Error) *engine.Error {
	return &engine.Error{Class: engine.Class(e.Class), Kind: e.Kind, Message: e.Message, Fix: e.Fix}
}

// pairsFlag defines a repeatable flag of KEY=VALUE.
func pairsFlag(flags *pflag.FlagSet, to *map[string]string, name, usage string) {
	flags.Func(name, usage, func(text string) error {
		key, val, ok := strings.Cut(text, "=")
		if !ok || key == "" {
			return engine.Refused("bad_flag", "cannot accept --%s=%q: want NAME=VALUE", name, text)
		}
		if *to == nil {
			*to = map[string]string{}
		}
		(*to)[key] = val
		return nil
	})
}

// timeFlag defines a flag of a time. Without it, to stays as it is.
func timeFlag(flags *pflag.FlagSet, to *time.Duration, name, usage string) {
	flags.Func(name, usage, func(text string) error {
		d, err := cli.ParseDuration(text)
		if err != nil || d < 0 {
			return engine.Refused("bad_limit", "cannot accept --%s=%q: want a time like 120s, 2m or 1h30m", name, text)
		}
		*to = d
		return nil
	})
}
