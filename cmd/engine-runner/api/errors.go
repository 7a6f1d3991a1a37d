package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/client/wire"
	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/service"
)

// statuses are those of kinds that have one of their own. All others have their class's.
var statuses = map[string]int{
	"unauthorised":     http.StatusUnauthorized,
	"forbidden":        http.StatusForbidden,
	"not_approved":     http.StatusForbidden,
	"approval_refused": http.StatusForbidden,
	"egress_refused":   http.StatusForbidden,
	"not_found":        http.StatusNotFound,
	"no_project":       http.StatusNotFound,
	"unknown_route":    http.StatusNotFound,
	"bad_method":       http.StatusMethodNotAllowed,
	"exists":           http.StatusConflict,
	"running":          http.StatusConflict,
	"not_running":      http.StatusConflict,
	"approval_used":    http.StatusConflict,
	"name_conflict":    http.StatusConflict,
	"not_ready":        http.StatusConflict,
	"paused":           http.StatusConflict,
	"no_file":          http.StatusNotFound,
	"file_denied":      http.StatusForbidden,
	"sandbox_full":     http.StatusInsufficientStorage,
	"no_websocket":     http.StatusUpgradeRequired,
	"quota":            http.StatusTooManyRequests,
	"too_often":        http.StatusTooManyRequests,
	"queue_full":       http.StatusServiceUnavailable,
	"body_too_large":   http.StatusRequestEntityTooLarge,
	"not_available":    http.StatusNotImplemented,
	"draining":         http.StatusServiceUnavailable,
	"disk_full":        http.StatusServiceUnavailable,
	"no_memory":        http.StatusServiceUnavailable,
	"no_uids":          http.StatusServiceUnavailable,
	"timeout":          http.StatusGatewayTimeout,
	"no_capability":    http.StatusNotFound,
}

// statusOf is the one place where a failure becomes an HTTP status.
func statusOf(e *engine.Error) int {
	if status, ok := statuses[e.Kind]; ok {
		return status
	}
	if e.Class == engine.ClassRequest {
		return http.StatusBadRequest
	}
	return http.StatusInternalServerError
}

func wireError(e *engine.Error) wire.Error {
	return wire.Error{Class: string(e.Class), Kind: e.Kind, Message: e.Message, Fix: e.Fix}
}

// statusBecause is statusOf a failure whose cause has a kind of its own: a full disk is no
// bug.
func statusBecause(e *engine.Error, cause string) int {
	if status, ok := statuses[cause]; ok && statuses[e.Kind] == 0 {
		return status
	}
	return statusOf(e)
}

// failure is the body of an answer that reports err.
func failure(err error) (wire.Failure, int) {
	e := engine.AsError(err)
	f := wire.Failure{Error: wireError(e)}
	var violations capability.Violations
	if errors.As(err, &violations) {
		for _, v := range violations {
			f.Violations = append(f.Violations, wire.Violation(v))
		}
	}
	var concerns *service.Failure
	if errors.As(err, &concerns) {
		f.Sandbox = &wire.SandboxFailure{
			Operation: concerns.Operation, Sandbox: concerns.Sandbox, ID: concerns.ID, Owner: concerns.Owner, Status: concerns.Status,
		}
		return f, statusBecause(e, concerns.Status)
	}
	return f, statusOf(e)
}

// encode writes one line of JSON, as a person would read it.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return b.Bytes(), err
}

// writeJSON sends v as the whole body of an answer.
func writeJSON(w http.ResponseWriter, status int, v any) error {
	data, err := encode(v)
	if err != nil {
		return engine.Failed("internal", "internal error: an answer has no JSON form: %w", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	// Whoever does not read it is gone; there is nobody else to tell.
	_, _ = w.Write(data)
	return nil
}
