package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"path/filepath"

	"github.com/direct-oci/engine/capability"
	"github.com/direct-oci/engine/capability/signed"
	"github.com/direct-oci/engine/client/wire"
	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/rootfs/image"
)

// project checks that the caller may see a project: one of a tenant sees that of the same
// name alone.
func (x *exchange) project(slug string) error {
	if x.caller.sees(slug) {
		return nil
	}
	return engine.Refused("no_project", "cannot find project=%q: the runner's config has none of this name", clip(slug))
}

func (s *Server) listCapabilities(x *exchange) error {
	slug := x.r.URL.Query().Get("project")
	if slug == "" {
		slug = x.caller.Tenant
	}
	if err := x.project(slug); err != nil {
		return err
	}
	found, problems, err := s.runner().Capabilities(slug)
	if err != nil {
		return err
	}
	reply := wire.CapabilityList{Capabilities: []wire.Capability{}, Problems: []wire.Problem{}}
	for _, c := range found {
		reply.Capabilities = append(reply.Capabilities, wire.Capability{
			Project: c.Project, Name: c.Name, Description: c.Description, Hazard: string(c.Hazard), Kind: string(c.Kind), Params: c.Params,
		})
	}
	for _, p := range problems {
		reply.Problems = append(reply.Problems, wire.Problem(p))
	}
	return x.reply(reply)
}

func (s *Server) call(x *exchange) error {
	var ask wire.Call
	if err := x.body(&ask); err != nil {
		return err
	}
	call := capability.Call{
		Project: x.r.PathValue("project"), Capability: x.r.PathValue("name"), Environment: ask.Environment,
		Args: ask.Args, ApproveLocally: ask.ApproveLocally, Caller: "API, " + x.caller.Name,
	}
	if ask.Approval != nil {
		envelope := signed.Envelope(*ask.Approval)
		call.Approval = &envelope
	}
	if err := x.project(call.Project); err != nil {
		return err
	}
	if err := s.drain.refuse(s.stopping); err != nil {
		return err
	}
	if !x.wantsEvents() {
		reply, err := s.dispatch(x, call)
		if err != nil {
			return err
		}
		return x.reply(reply)
	}
	events := x.stream()
	lines := make(chan string, 64)
	sent := make(chan struct{})
	go func() { // a client that does not read holds up nothing but its own progress
		defer close(sent)
		for line := range lines {
			if events.send("", "progress", wire.Progress{Line: line}) == nil && len(lines) == 0 {
				_ = events.flush() // seen at the next write
			}
		}
	}()
	call.Log = func(line string) {
		select {
		case lines <- line:
		default:
		}
	}
	reply, err := s.dispatch(x, call)
	call.Log = nil
	close(lines)
	<-sent
	if err != nil {
		return events.fail(err)
	}
	if events.send("", "reply", reply) == nil {
		_ = events.flush() // there is nobody else to tell
	}
	return nil
}

// dispatch makes the call and keeps its receipt.
func (s *Server) dispatch(x *exchange, call capability.Call) (wire.Reply, error) {
	reply, err := s.runner().Call(x.r.Context(), call)
	if reply.Receipt.Payload != nil {
		err = errors.Join(err, s.keep(x.r.Context(), reply))
	}
	if err != nil {
		return wire.Reply{}, err
	}
	out, err := capability.EncodeOutput(reply.Output)
	if err != nil {
		return wire.Reply{}, engine.Failed("internal", "internal error: the output has no JSON form: %w", err)
	}
	w := wire.Reply{ID: reply.ID, Output: json.RawMessage(bytes.TrimSpace(out))}
	if reply.Receipt.Payload != nil {
		receipt := wire.Envelope(reply.Receipt)
		w.Receipt = &receipt
	}
	return w, nil
}

func (s *Server) images() image.Store {
	return image.Store{Dir: filepath.Join(s.host.StateDir, "images")}
}

func (s *Server) listImages(x *exchange) error {
	images, err := s.images().List()
	if err != nil {
		return imageError(err)
	}
	reply := wire.ImageList{Images: []wire.Image{}}
	for _, img := range images {
		reply.Images = append(reply.Images, imageOf(img))
	}
	return x.reply(reply)
}

func (s *Server) getImage(x *exchange) error {
	img, err := s.images().Open(x.r.PathValue("name"))
	if err != nil {
		return imageError(err)
	}
	return x.reply(imageOf(img))
}

func imageOf(img image.Image) wire.Image {
	w := wire.Image{
		Name: img.Name, Digest: img.Digest, Kind: img.Kind, Source: img.Source, Platform: img.Platform,
		Size: img.Size, Shared: img.Shared, Created: img.Created, Layers: []wire.Layer{},
		Config: wire.ImageConfig{
			Entrypoint: list(img.Config.Entrypoint), Cmd: list(img.Config.Cmd), Env: list(img.Config.Env),
			Workdir: img.Config.Workdir, User: img.Config.User,
		},
	}
	for _, l := range img.Layers {
		w.Layers = append(w.Layers, wire.Layer{Digest: l.Digest, DiffID: l.DiffID, Size: l.Size})
	}
	return w
}

func imageError(err error) error {
	var (
		name *image.NameError
		none *image.NotFoundError
	)
	switch {
	case errors.As(err, &none):
		return engine.Refused("not_found", "%w", err)
	case errors.As(err, &name):
		return engine.Refused("bad_image", "%w", err)
	}
	return engine.Failed("image_store", "%w", err)
}
