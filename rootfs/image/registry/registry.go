// Package registry pulls images: it is an intake.Source that speaks to a registry, by
// go-containerregistry's references, credentials and token handshake. It keeps
// nothing, and checks nothing that intake checks anyway: digests, sizes, documents.
//
// Credentials are those of docker's config.json, with its helpers, or podman's
// auth.json. Proxy variables of the environment are followed.
package registry

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/docker/cli/cli/config"
	"github.com/docker/cli/cli/config/types"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/direct-oci/engine/rootfs/image/intake"
)

// Options say how registries are reached.
type Options struct {
	AuthFile   string   // a config.json; empty: the usual places
	Mirrors    []string // HOST, tried before docker.io, or REGISTRY=HOST
	CAFile     string   // certificates that are trusted besides the system's
	PlainHTTP  []string // HOST[:PORT] that is spoken to without TLS
	TokenHosts []string // hosts that a registry may send its credentials to
}

// Source is one image in a registry.
type Source struct {
	endpoints []*endpoint // mirrors first
	digest    string      // that the reference names, or ""

	mu     sync.Mutex
	chosen *endpoint // what Root came from
}

// endpoint is a registry that may have the image.
type endpoint struct {
	reference string // as the caller gave it
	repo      name.Repository
	id        string // tag or digest
	keys      authn.Keychain
	guard     *guard

	once   sync.Once
	client *http.Client
	err    error
	known  bool // there are credentials for it
}

// Open reads a reference. It talks to nobody yet.
func Open(reference string, o Options) (*Source, error) {
	bad := func(err error) (*Source, error) {
		return nil, &Error{Kind: BadReference, Reference: reference, Why: err.Error(), Fix: "write it as in node:20, team/app@sha256:… or registry.example:5000/app:1", cause: err}
	}
	ref, err := name.ParseReference(reference)
	if err != nil {
		return bad(err)
	}
	keys, err := keychain(o.AuthFile)
	if err != nil {
		return nil, &Error{Kind: BadReference, Reference: reference, Why: "cannot read the credentials: " + err.Error(), cause: err}
	}
	var hosts []string
	for _, m := range o.Mirrors {
		of, host, ok := strings.Cut(m, "=")
		if !ok {
			of, host = name.DefaultRegistry, m
		}
		if of == "docker.io" {
			of = name.DefaultRegistry
		}
		if of == ref.Context().RegistryStr() {
			hosts = append(hosts, host)
		}
	}
	hosts = append(hosts, ref.Context().RegistryStr())
	g, err := newGuard(o, hosts)
	if err != nil {
		return nil, &Error{Kind: BadReference, Reference: reference, Why: "cannot read the certificates: " + err.Error(), cause: err}
	}
	s := &Source{}
	if d, ok := ref.(name.Digest); ok {
		s.digest = d.DigestStr()
	}
	for _, host := range hosts {
		var opts []name.Option
		if g.plain[withPort(host, "http")] {
			opts = append(opts, name.Insecure)
		}
		reg, err := name.NewRegistry(host, opts...)
		if err != nil {
			return bad(err)
		}
		s.endpoints = append(s.endpoints, &endpoint{
			reference: reference, repo: reg.Repo(ref.Context().RepositoryStr()), id: ref.Identifier(), keys: keys, guard: g,
		})
	}
	return s, nil
}

// fileKeys are the credentials of one file.
type fileKeys struct {
	get func(host string) (types.AuthConfig, error)
}

func keychain(path string) (authn.Keychain, error) {
	if path == "" {
		return authn.DefaultKeychain, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	cf, err := config.LoadFromReader(f)
	if err != nil {
		return nil, err
	}
	return fileKeys{cf.GetAuthConfig}, nil
}

// Resolve implements authn.Keychain.
func (k fileKeys) Resolve(r authn.Resource) (authn.Authenticator, error) {
	for _, key := range []string{r.String(), r.RegistryStr()} {
		if key == name.DefaultRegistry {
			key = authn.DefaultAuthKey
		}
		c, err := k.get(key)
		if err != nil {
			return nil, err
		}
		if c.ServerAddress = ""; c != (types.AuthConfig{}) {
			return authn.FromConfig(authn.AuthConfig{
				Username: c.Username, Password: c.Password, Auth: c.Auth, IdentityToken: c.IdentityToken, RegistryToken: c.RegistryToken,
			}), nil
		}
	}
	return authn.Anonymous, nil
}

// connect does the handshake with the registry, once.
func (e *endpoint) connect(ctx context.Context) (*http.Client, error) {
	e.once.Do(func() {
		auth, err := e.keys.Resolve(e.repo)
		if err != nil {
			e.err = fmt.Errorf("error getting credentials: %w", err)
			return
		}
		e.known = auth != authn.Anonymous
		rt, err := transport.NewWithContext(ctx, e.repo.Registry, auth, e.guard, []string{e.repo.Scope(transport.PullScope)})
		if err != nil {
			e.err = err
			return
		}
		e.client = &http.Client{Transport: rt}
	})
	return e.client, e.err
}

// get sends one request for something below the repository.
func (e *endpoint) get(ctx context.Context, path string, header http.Header) (*http.Response, error) {
	client, err := e.connect(ctx)
	if err != nil {
		return nil, e.explain(err)
	}
	url := fmt.Sprintf("%s://%s/v2/%s/%s", e.repo.Scheme(), e.repo.RegistryStr(), e.repo.RepositoryStr(), path)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, e.explain(err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, e.explain(err)
	}
	if err := transport.CheckError(resp, http.StatusOK, http.StatusPartialContent); err != nil {
		return nil, e.explain(errors.Join(err, resp.Body.Close()))
	}
	return resp, nil
}

// Root implements intake.Source: it asks the mirrors first, and remembers who answered.
func (s *Source) Root(ctx context.Context) (intake.Descriptor, []byte, error) {
	var first error
	for i, e := range s.endpoints {
		d, raw, err := e.root(ctx)
		if err == nil {
			if s.digest != "" {
				d.Digest = s.digest
			}
			s.mu.Lock()
			s.chosen = e
			s.mu.Unlock()
			return d, raw, nil
		}
		if ctx.Err() != nil {
			return d, nil, ctx.Err()
		}
		if first = err; i == len(s.endpoints)-1 {
			break
		}
	}
	return intake.Descriptor{}, nil, first
}

func (e *endpoint) root(ctx context.Context) (intake.Descriptor, []byte, error) {
	resp, err := e.get(ctx, "manifests/"+e.id, http.Header{"Accept": {strings.Join(intake.MediaTypes, ", ")}})
	if err != nil {
		return intake.Descriptor{}, nil, err
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, intake.MaxDocument+1))
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return intake.Descriptor{}, nil, e.explain(err)
	}
	mediaType, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	sum := sha256.Sum256(raw)
	return intake.Descriptor{MediaType: strings.TrimSpace(mediaType), Digest: "sha256:" + hex.EncodeToString(sum[:]), Size: int64(len(raw))}, raw, nil
}

// Blob implements intake.Source. A connection that breaks is taken up where it broke.
func (s *Source) Blob(ctx context.Context, d intake.Descriptor) (io.ReadCloser, error) {
	s.mu.Lock()
	e := s.chosen
	s.mu.Unlock()
	if e == nil {
		return nil, errors.New("internal error: a blob was asked for before its manifest")
	}
	path := "blobs/" + d.Digest
	for _, t := range intake.MediaTypes {
		if t == d.MediaType {
			path = "manifests/" + d.Digest
		}
	}
	b := &blob{ctx: ctx, e: e, path: path}
	return b, b.reopen()
}

// blob is a stream that survives broken connections.
type blob struct {
	ctx   context.Context
	e     *endpoint
	path  string
	at    int64
	tries int
	body  io.ReadCloser
	stall *stalled
}

const maxTries = 5 // in a row without a byte

func (b *blob) reopen() error {
	for {
		ctx, stall := watchStall(b.ctx)
		header := http.Header{"Accept": {"*/*"}}
		if strings.HasPrefix(b.path, "manifests/") {
			header.Set("Accept", strings.Join(intake.MediaTypes, ", "))
		}
		if b.at > 0 {
			header.Set("Range", "bytes="+strconv.FormatInt(b.at, 10)+"-")
		}
		resp, err := b.e.get(ctx, b.path, header)
		if err == nil {
			b.body, b.stall = resp.Body, stall
			if b.at > 0 && resp.StatusCode != http.StatusPartialContent {
				// It sends all of it again.
				_, err = io.CopyN(io.Discard, resp.Body, b.at)
			}
		}
		if err == nil {
			return nil
		}
		stall.stop()
		if !b.again(err) {
			return err
		}
	}
}

// again decides whether to try once more, and waits before that.
func (b *blob) again(err error) bool {
	var known *Error
	if errors.As(err, &known) && known.Kind != NoRoute && known.Kind != Busy || b.ctx.Err() != nil {
		return false
	}
	if b.tries++; b.tries >= maxTries {
		return false
	}
	select {
	case <-b.ctx.Done():
		return false
	case <-time.After(100 * time.Millisecond << (2 * (b.tries - 1))):
		return true
	}
}

func (b *blob) Read(p []byte) (int, error) {
	for {
		n, err := b.body.Read(p)
		b.at += int64(n)
		if n > 0 {
			b.tries = 0
			b.stall.alive()
		}
		if err == nil || err == io.EOF { //nolint:errorlint // an unexpected end wraps another
			return n, err
		}
		if n > 0 {
			return n, nil // what is wrong shows again at the next call
		}
		if cerr := b.Close(); cerr != nil || !b.again(err) {
			return 0, b.e.explain(err)
		}
		if err := b.reopen(); err != nil {
			return 0, err
		}
	}
}

// Close implements io.Closer.
func (b *blob) Close() error {
	if b.body == nil {
		return nil
	}
	body := b.body
	b.body = nil
	b.stall.stop()
	return body.Close()
}
