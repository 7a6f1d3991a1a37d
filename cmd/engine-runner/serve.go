package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/cmd/cli"
	"github.com/direct-oci/engine/cmd/engine-runner/api"
	"github.com/direct-oci/engine/cmd/engine-runner/config"
	"github.com/direct-oci/engine/cmd/engine-runner/link"
	"github.com/direct-oci/engine/cmd/engine-runner/lock"
	"github.com/direct-oci/engine/engine"
	sandboxes "github.com/direct-oci/engine/service" // a test of this program has the name itself
)

func (a *app) serveCommand() *cobra.Command {
	verbose := false
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "the service: an API to start and follow runs, for programs",
		Long: "serve answers the API on a Unix socket and, if the config says so, over TLS. It holds\n" +
			"nothing that a run needs: stop it, kill it or replace it, and every run goes on.\n\n" +
			"SIGHUP reads the config again; one that is wrong, or changes what needs a restart, changes\n" +
			"nothing, and the log says why. SIGTERM and SIGINT end it in order: nothing new is accepted,\n" +
			"requests under way are given their time. It tells systemd when it is ready, and logs JSON\n" +
			"to stderr.",
		Args: cli.Exactly(0),
		RunE: func(*cobra.Command, []string) error { return a.serve(verbose) },
	}
	cmd.Flags().BoolVar(&verbose, "verbose", false, "log every request, also those of probes")
	return cmd
}

// serving is one engine serve.
type serving struct {
	app    *app
	log    *slog.Logger
	live   *config.Live
	server *api.Server
	boxes  *sandboxes.Manager
	http   *http.Server
	tls    *api.TLS // nil: no address besides the socket
	notify notifier

	ctx    context.Context           // of what goes on in the background
	link   atomic.Pointer[link.Link] // nil: no config has had a control plane yet
	unlink chan struct{}             // closed to stop it
	linked chan struct{}             // closed once it has ended
}

func (a *app) serve(verbose bool) error {
	// Taken before anything else: a signal that comes while it starts is not lost.
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	c, err := a.loadConfig()
	if err != nil {
		return err
	}
	level := slog.LevelInfo
	if verbose {
		level = slog.LevelDebug
	}
	s := &serving{
		app: a, log: slog.New(slog.NewJSONHandler(a.stderr, &slog.HandlerOptions{Level: level})), notify: newNotifier(),
		unlink: make(chan struct{}), linked: make(chan struct{}),
	}
	lock, err := lockState(c.State())
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := s.prepare(c); err != nil {
		return err
	}
	defer s.boxes.Close()
	listeners, err := api.Listen(c.Serve(), s.tls)
	if err != nil {
		return err
	}
	return s.run(listeners, signals)
}

// prepare makes everything of the config but the listeners.
func (s *serving) prepare(c config.Config) error {
	key, err := receiptKey(c)
	if err != nil {
		return err
	}
	policy, err := api.NewPolicy(c)
	if err != nil {
		return err
	}
	if s.tls, err = api.NewTLS(c.Serve().TCP); err != nil {
		return err
	}
	if s.boxes, err = sandboxes.New(s.sandboxes(c), sandboxes.OnHost(c.Host())); err != nil {
		return err
	}
	s.live = config.NewLive(c, s.app.loadConfig, s.accept, config.Means{
		Receipts: key, Credentials: os.Getenv("CREDENTIALS_DIRECTORY"), Admit: s.boxes.AdmitCall,
	})
	s.server = api.New(api.Options{
		Host: c.Host(), Runner: s.live.Runner, Policy: policy, Sandboxes: s.boxes, Link: s.linkFigures, Log: s.log,
		Keep: func(_ context.Context, reply capability.Reply) error {
			return s.app.keepReceipt(s.live.Config(), &callFlags{}, reply)
		},
	})
	s.http = s.server.HTTP()
	return nil
}

// sandboxes is how sandboxes are kept by this config, on this host.
func (s *serving) sandboxes(c config.Config) sandboxes.Config {
	boxes := c.Sandboxes()
	boxes.Log = s.log
	var err error
	if boxes.Cgroup, err = c.Host().Cgroup(); err != nil {
		s.log.Warn("limits of the cgroup of all runs are not known", "message", err.Error()) // nothing can start either
	}
	return boxes
}

// accept puts a config that was read again into force, or says why that cannot be.
func (s *serving) accept(c config.Config) error {
	old := s.live.Config()
	for _, v := range []struct{ key, was, is string }{
		{"stateDir", old.State(), c.State()},
		{"runDir", old.Host().RunDir, c.Host().RunDir},
		{"cgroupRoot", old.CgroupRoot, c.CgroupRoot},
		{"minFreeDiskMb", fmt.Sprint(old.MinFreeDiskMB), fmt.Sprint(c.MinFreeDiskMB)},
		{"minFreeMemoryMb", fmt.Sprint(old.MinFreeMemoryMB), fmt.Sprint(c.MinFreeMemoryMB)},
		{"service.socket", old.Serve().Socket, c.Serve().Socket},
		{"service.tcp.listen", address(old), address(c)},
		{"service.gcSeconds", old.Serve().GCEvery().String(), c.Serve().GCEvery().String()},
	} {
		if v.was != v.is {
			return fixed(v.key, v.was, v.is)
		}
	}
	policy, err := api.NewPolicy(c)
	if err != nil {
		return err
	}
	certificates, err := s.tls.Change(c.Serve().TCP)
	if err != nil {
		return err
	}
	boxes, err := s.boxes.Change(s.sandboxes(c))
	if err != nil {
		return err
	}
	plane, err := s.changeLink(old, c) // the last one: it may take hold of something
	if err != nil {
		return err
	}
	s.server.SetPolicy(policy)
	certificates()
	boxes()
	plane()
	return nil
}

func address(c config.Config) string {
	if t := c.Serve().TCP; t != nil {
		return t.Listen
	}
	return ""
}

// run serves until it is told to stop.
func (s *serving) run(listeners []net.Listener, signals <-chan os.Signal) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s.ctx = ctx
	plane, err := s.changeLink(config.Config{}, s.live.Config())
	if err != nil {
		return err
	}
	plane()
	failed := make(chan error, len(listeners))
	for _, l := range listeners {
		s.log.Info("listening", "address", l.Addr().String(), "version", engine.Version)
		go func() { failed <- s.http.Serve(l) }()
	}
	go s.server.Collect(ctx, s.live.Config().Serve().GCEvery())
	go s.server.Retain(ctx, func() time.Duration { return s.live.Config().Serve().KeepRuns() })
	go s.server.Follow(ctx)
	go s.notify.watch(ctx, func(ctx context.Context) error { return s.answers(ctx, listeners[0].Addr()) })
	s.notify.send("READY=1\nSTATUS=serving")
	for {
		select {
		case err := <-failed:
			return engine.Failed("no_socket", "cannot go on to accept connections: %w", err)
		case sig := <-signals:
			if sig != syscall.SIGHUP {
				s.log.Info("stopping", "signal", sig.String())
				return s.stop()
			}
			s.reload()
		}
	}
}

// reload reads the config again, and says what came of it.
func (s *serving) reload() {
	s.notify.reloading()
	err := s.live.Reload()
	s.server.Reloaded(err)
	if err != nil {
		e := asError(err)
		s.log.Error("the old config stays in force", "kind", e.Kind, "message", e.Message, "fix", e.Fix)
		s.notify.send("READY=1\nSTATUS=serving, with the old config: the new one is refused")
		return
	}
	s.log.Info("a new config is in force")
	s.notify.send("READY=1\nSTATUS=serving")
}

// stop ends the service and leaves every run alone.
func (s *serving) stop() error {
	s.notify.send("STOPPING=1")
	bound := s.live.Config().Serve().StopBound()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	s.server.StopStreams()
	defer s.stopLink(ctx)()
	if err := s.http.Shutdown(ctx); err != nil {
		s.log.Warn("requests were still under way", "after", bound.String(), "message", err.Error())
		s.http.Close() // their runs go on
	}
	s.log.Info("stopped")
	return nil
}

// answers asks the service itself for its version, as anybody would.
func (s *serving) answers(ctx context.Context, at net.Addr) error {
	if at.Network() != "unix" {
		return nil // its certificate is for others
	}
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", at.String())
		},
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://engine/v1/version", nil)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d", res.StatusCode)
	}
	return errors.Join(err, res.Body.Close())
}

// lockState keeps a second service away from the same state directory.
func lockState(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, engine.Failed("no_directory", "cannot make directory=%s: %w", dir, err)
	}
	path := filepath.Join(dir, "service.lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, engine.Failed("no_directory", "cannot open lock=%s: %w", path, err)
	}
	if err := lock.Hold(f); err != nil {
		pid := make([]byte, 32)
		n, _ := f.Read(pid) // it only says who, if it can
		f.Close()
		return nil, engine.Failed("already_serving", "cannot serve state-dir=%s: process %s does so already", dir, string(pid[:n])).
			WithFix("stop the other one, or choose another stateDir")
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = fmt.Fprint(f, os.Getpid())
	}
	if err != nil {
		f.Close()
		return nil, engine.Failed("no_directory", "cannot write lock=%s: %w", path, err)
	}
	return f, nil
}

// tokenCommand makes tokens for the config.
func (a *app) tokenCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "token",
		Short: "make a token for the API, and what the config has of it",
		Long: "token prints a new token, which whoever calls the API over TLS keeps to themselves, and\n" +
			"its hash, which is all that the config has: service.tcp.tokens.NAME.sha256.",
		Args: cli.Exactly(0),
		RunE: func(*cobra.Command, []string) error {
			random := make([]byte, 32)
			rand.Read(random)
			token := base64.RawURLEncoding.EncodeToString(random)
			hash := sha256.Sum256([]byte(token))
			return a.Print("token:  " + token + "\nsha256: " + hex.EncodeToString(hash[:]) + "\n")
		},
	}
}
