package registry

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/direct-oci/engine/rootfs/image/tree"
)

// Kind says what kept an image from being pulled.
type Kind string

// The kinds.
const (
	BadReference Kind = "bad_reference" // it is no reference, or an option is wrong
	NotFound     Kind = "not_found"
	Unauthorised Kind = "unauthorised"
	NoRoute      Kind = "no_route"    // the host cannot be reached
	NotTrusted   Kind = "not_trusted" // its certificate, or what it asks for
	Busy         Kind = "busy"        // it answers, and not now
)

// Error reports an image that could not be pulled.
type Error struct {
	Kind      Kind
	Reference string
	Why       string
	Fix       string
	cause     error
}

func (e *Error) Error() string {
	return "cannot pull image=" + tree.Quote(e.Reference) + ": " + e.Why
}

// Remedy returns the cure, or "" when none is known.
func (e *Error) Remedy() string { return e.Fix }

// Unwrap returns the cause, if there was one.
func (e *Error) Unwrap() error { return e.cause }

// explain makes an *Error of what went wrong with one endpoint.
func (e *endpoint) explain(err error) error {
	var done *Error
	if err == nil || errors.As(err, &done) || errors.Is(err, context.Canceled) {
		return err
	}
	host := e.repo.RegistryStr()
	out := &Error{Kind: NoRoute, Reference: e.reference, Why: tree.Quote(err.Error()), cause: err}
	var refused *refusedError
	var status *transport.Error
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.As(err, &refused):
		out.Kind, out.Why, out.Fix = NotTrusted, refused.why, refused.fix
	case errors.As(err, &status):
		e.explainStatus(out, status)
	case errors.As(err, &certificate):
		out.Kind, out.Why = NotTrusted, "the certificate of "+host+" is not trusted: "+tree.Quote(certificate.Err.Error())
		out.Fix = "if it is yours, name the authority that signed it with --ca-file"
	case strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		out.Kind, out.Why = NotTrusted, host+" speaks plain HTTP"
		out.Fix = "give it a certificate; where nobody can listen, write --plain-http " + host
	case strings.Contains(err.Error(), "error getting credentials"):
		out.Kind, out.Why = Unauthorised, "the credential helper failed: "+tree.Quote(err.Error())
		out.Fix = "log in to " + host + " again, or name another file with --authfile"
	default:
		explainRoute(out, host, err)
	}
	return out
}

func (e *endpoint) explainStatus(out *Error, status *transport.Error) {
	host := e.repo.RegistryStr()
	login := "log in to " + host + " (skopeo login, docker login), or name a config.json with --authfile"
	if e.known {
		login = "check that the credentials for " + host + " are still valid and may read the repository"
	}
	switch status.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		out.Kind, out.Fix = Unauthorised, login
		out.Why = host + " lets nobody in without the right credentials, or has no such image"
		if e.known {
			out.Why = host + " does not accept the credentials for it, or has no such image"
		}
	case http.StatusNotFound:
		out.Kind, out.Why = NotFound, host+" has no such image"
		out.Fix = "check the name and the tag"
	case http.StatusTooManyRequests:
		out.Kind, out.Why = Busy, host+" says that there were too many requests"
		out.Fix = "try again later, log in, or name a mirror with --mirror"
	default:
		out.Kind, out.Why = NotTrusted, fmt.Sprintf("%s answers with status %d", host, status.StatusCode)
		if status.StatusCode >= http.StatusInternalServerError {
			out.Kind, out.Fix = Busy, "try again later"
		}
	}
}

func explainRoute(out *Error, host string, err error) {
	var dns *net.DNSError
	out.Fix = "check the network of this host and its proxy variables, or name a mirror with --mirror"
	switch {
	case errors.As(err, &dns) && dns.IsNotFound:
		out.Why, out.Fix = "there is no host "+tree.Quote(dns.Name), "check the name of the registry and this host's DNS"
	case errors.As(err, &dns):
		out.Why = "the name " + tree.Quote(dns.Name) + " cannot be looked up"
	case errors.Is(err, syscall.ECONNREFUSED):
		out.Why = "nobody listens at " + host
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		out.Why = "there is no route to " + host
	case errors.Is(err, context.DeadlineExceeded), isTimeout(err):
		out.Why = host + " does not answer"
	}
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}
