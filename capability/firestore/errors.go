package firestore

import (
	"context"
	"errors"
	"regexp"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/direct-oci/engine/engine"
)

// consoleLink is what Firestore puts into its message where an index is missing.
var consoleLink = regexp.MustCompile(`https://console\.[^\s]+`)

// explain says of a failed call what there is to do. what is the call, like
// "query collection=users".
func explain(ctx context.Context, what, environment string, c Config, err error) *engine.Error {
	message := strings.TrimSpace(status.Convert(cause(err)).Message())
	const form = "cannot %s of environment=%s: %s"
	switch code := codeOf(ctx, err); code {
	case codes.FailedPrecondition:
		if link := strings.TrimRight(consoleLink.FindString(message), ".,;)"); link != "" {
			return engine.Refused("no_index", form, what, environment, message).
				WithFix("have the index made, by somebody who may change the database: " + link)
		}
		if strings.Contains(message, "index") {
			return engine.Refused("no_index", form, what, environment, message).
				WithFix("have the index made, by somebody who may change the database")
		}
		return engine.Refused("bad_query", form, what, environment, message)
	case codes.InvalidArgument, codes.OutOfRange:
		return engine.Refused("bad_query", form, what, environment, message)
	case codes.PermissionDenied:
		return engine.Failed("no_permission", form, what, environment, message).
			WithFix("grant the credentials' account the role roles/datastore.viewer in project=" + c.Project)
	case codes.Unauthenticated:
		return engine.Failed("no_credentials", form, what, environment, message).
			WithFix("look at firestore.credentials of the environment in the config: the key may be deleted, expired or of another project")
	case codes.NotFound:
		return engine.Failed("no_database", form, what, environment, message).
			WithFix("look at project and database of the environment in the config: they are " + c.Project + " and " + c.Database)
	case codes.ResourceExhausted:
		return engine.Failed("busy", form, what, environment, message).WithFix("try again later, or have the quota raised")
	case codes.Unavailable:
		return engine.Failed("unavailable", form, what, environment, message).
			WithFix("try again; if it stays so, look at the host's own network: connectors use it, and no egress policy")
	case codes.DeadlineExceeded:
		return engine.Failed("deadline", form, what, environment, "it took longer than "+c.Timeout.String()+": "+message).
			WithFix("ask for less, or raise firestore.limits.timeoutSeconds of the environment in the config")
	case codes.Canceled:
		return engine.Refused("cancelled", form, what, environment, "the caller gave up")
	default:
		return engine.Failed("firestore", form, what, environment, message)
	}
}

// explained is err if it says all there is to say, and otherwise explain's.
func explained(ctx context.Context, what, environment string, c Config, err error) *engine.Error {
	var e *engine.Error
	if errors.As(err, &e) {
		return e
	}
	return explain(ctx, what, environment, c, err)
}

// ranOut reports whether a call came to the end of its time.
func ranOut(ctx context.Context, err error) bool {
	if ctx.Err() != nil {
		return errors.Is(ctx.Err(), context.DeadlineExceeded)
	}
	// The server counts the same time, and its end of a stream may come before ours.
	code := status.Code(cause(err))
	return code == codes.DeadlineExceeded || code == codes.Canceled
}

// codeOf is what a call failed by. The call's own end counts before what it led to.
func codeOf(ctx context.Context, err error) codes.Code {
	switch {
	case ranOut(ctx, err), errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	case errors.Is(ctx.Err(), context.Canceled), errors.Is(err, context.Canceled):
		return codes.Canceled
	}
	return status.Code(cause(err))
}

// cause takes off the layers that have no status of their own.
func cause(err error) error {
	var s interface{ GRPCStatus() *status.Status }
	if errors.As(err, &s) && s.GRPCStatus() != nil {
		return s.GRPCStatus().Err()
	}
	return err
}
