package service

import (
	"context"

	"github.com/direct-oci/engine/engine"
)

// OnHost is the engine of this host.
func OnHost(h engine.Host) Engine { return onHost{h} }

type onHost struct{ engine.Host }

func (h onHost) Start(ctx context.Context, req engine.Request, secrets []engine.Secret) error {
	_, err := h.Host.Start(ctx, req, secrets, engine.Stdio{})
	return err
}

func (h onHost) Exec(ctx context.Context, id string, e engine.Exec) (Conn, error) {
	c, err := h.Host.Exec(ctx, id, e)
	if err != nil {
		return nil, err // not a Conn that holds a nil pointer
	}
	return c, nil
}

func (h onHost) Attach(ctx context.Context, id, execID string) (Conn, error) {
	c, err := h.Host.Attach(ctx, id, execID)
	if err != nil {
		return nil, err
	}
	return c, nil
}
