package intake

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/direct-oci/engine/rootfs/image"
	"github.com/direct-oci/engine/rootfs/image/tree"
)

// Descriptor points at a blob.
type Descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Platform    *Platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Media types that are understood.
const (
	ociIndex       = "application/vnd.oci.image.index.v1+json"
	ociManifest    = "application/vnd.oci.image.manifest.v1+json"
	ociConfig      = "application/vnd.oci.image.config.v1+json"
	ociLayer       = "application/vnd.oci.image.layer.v1.tar"
	dockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	dockerConfig   = "application/vnd.docker.container.image.v1+json"
	dockerLayer    = "application/vnd.docker.image.rootfs.diff.tar"
)

// MediaTypes are what a registry is asked for.
var MediaTypes = []string{ociIndex, dockerList, ociManifest, dockerManifest}

// Bounds of documents. Real ones stay far below them.
const (
	MaxDocument  = 4 << 20 // bytes of a manifest, an index or a configuration
	maxLayers    = 450     // what an overlay can hold, with room for the engine's own
	maxManifests = 4096
	maxNesting   = 3 // indexes that lead to indexes
	maxJSONDepth = 64
)

// document is an index or a manifest.
type document struct {
	SchemaVersion int             `json:"schemaVersion"`
	MediaType     string          `json:"mediaType"`
	ArtifactType  string          `json:"artifactType"`
	Config        *Descriptor     `json:"config"`
	Layers        []Descriptor    `json:"layers"`
	Manifests     []Descriptor    `json:"manifests"`
	FSLayers      json.RawMessage `json:"fsLayers"`
}

func (d document) isIndex() bool { return d.Manifests != nil }

// parseDocument reads an index or a manifest, which a descriptor or a registry says is
// of mediaType; "" says nothing.
//
// SECURITY: a document means one thing, whoever reads it.
// One that is an index to some and a manifest to others, or that has a key twice, passes a check in
// one form and is used in another (CVE-2021-41190).
// Holds because: keys of both kinds together, repeated keys, keys that differ by case only, and media
// types that contradict each other are refused.
// Not covered: what annotations say; they are not read but for a reference's name. Checked by: TestDocuments.
func parseDocument(raw []byte, mediaType string) (document, error) {
	var d document
	what := "manifest"
	bad := func(format string, args ...any) (document, error) {
		return d, &image.FormatError{What: what, Why: fmt.Sprintf(format, args...)}
	}
	if len(raw) > MaxDocument {
		return bad("it is longer than %d bytes", MaxDocument)
	}
	if err := checkKeys(raw, "annotations", "data"); err != nil {
		return bad("%v", err)
	}
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(raw, &keys); err != nil {
		return bad("%v", err)
	}
	if err := json.Unmarshal(raw, &d); err != nil {
		return bad("%v", err)
	}
	for key := range keys {
		for _, known := range []string{"schemaVersion", "mediaType", "config", "layers", "manifests", "fsLayers"} {
			if key != known && strings.EqualFold(key, known) {
				return bad("its key %s is one that others take for %s", tree.Quote(key), known)
			}
		}
	}
	_, index := keys["manifests"]
	_, layers := keys["layers"]
	_, config := keys["config"]
	_, old := keys["fsLayers"]
	switch {
	case old:
		return d, &image.FormatError{What: what, Why: "it is of Docker's first kind", Fix: "push the image again with a tool of this decade"}
	case index && (layers || config):
		return bad("it is an index and a manifest at once")
	case !index && !layers:
		return bad("it is neither an index nor a manifest")
	case d.MediaType != "" && mediaType != "" && d.MediaType != mediaType:
		return bad("it says it is of type %s, and what leads to it says %s", tree.Quote(d.MediaType), tree.Quote(mediaType))
	}
	if mediaType == "" {
		mediaType = d.MediaType
	}
	want := []string{"", ociManifest, dockerManifest}
	if index {
		what, want = "index", []string{"", ociIndex, dockerList}
	}
	known := false
	for _, w := range want {
		known = known || w == mediaType
	}
	if !known {
		return bad("it is of type %s", tree.Quote(mediaType))
	}
	if index && d.Manifests == nil {
		d.Manifests = []Descriptor{}
	}
	return d, d.check(what)
}

func (d document) check(what string) error {
	bad := func(format string, args ...any) error {
		return &image.FormatError{What: what, Why: fmt.Sprintf(format, args...)}
	}
	if d.isIndex() {
		if len(d.Manifests) > maxManifests {
			return bad("it lists more than %d manifests", maxManifests)
		}
		return nil // each is checked when it is chosen
	}
	if d.Config == nil {
		return bad("it has no configuration")
	}
	if err := d.Config.check(); err != nil {
		return err
	}
	if d.Config.MediaType != ociConfig && d.Config.MediaType != dockerConfig {
		return bad("it is no image: its configuration is of type %s", tree.Quote(d.Config.MediaType))
	}
	if len(d.Layers) == 0 || len(d.Layers) > maxLayers {
		return bad("it has %d layers, and between 1 and %d are possible", len(d.Layers), maxLayers)
	}
	for _, l := range d.Layers {
		if err := l.check(); err != nil {
			return err
		}
		if !layerType(l.MediaType) {
			return bad("a layer is of type %s, which no unpacker knows", tree.Quote(l.MediaType))
		}
	}
	return nil
}

// layerType accepts layers that come with the image; those that would have to be
// fetched from elsewhere have types of their own.
func layerType(mediaType string) bool {
	for _, base := range []string{ociLayer, dockerLayer} {
		switch suffix, ok := strings.CutPrefix(mediaType, base); {
		case !ok:
		case suffix == "", suffix == "+gzip", suffix == "+zstd", suffix == ".gzip", suffix == ".zstd":
			return true
		}
	}
	return false
}

func (d Descriptor) check() error {
	if !image.ValidDigest(d.Digest) {
		return &image.FormatError{What: "manifest", Why: "it names a blob by " + tree.Quote(d.Digest) + ", which is no SHA-256 digest"}
	}
	const maxBlob = 1 << 40
	if d.Size < 0 || d.Size > maxBlob {
		return &image.FormatError{What: "manifest", Why: fmt.Sprintf("it says that a blob has %d bytes", d.Size)}
	}
	return nil
}

// choose returns the manifest for a platform.
func (d document) choose(want Platform) (Descriptor, error) {
	var has []string
	for _, m := range d.Manifests {
		if m.Platform == nil {
			continue
		}
		if m.Platform.suits(want) {
			return m, m.check()
		}
		if p := m.Platform.String(); m.Platform.OS != "unknown" && len(has) < 32 {
			has = append(has, p)
		}
	}
	if len(d.Manifests) == 1 && d.Manifests[0].Platform == nil {
		return d.Manifests[0], d.Manifests[0].check() // its configuration tells
	}
	if len(has) == 0 {
		return Descriptor{}, &image.FormatError{What: "index", Why: "it lists no image for any platform"}
	}
	return Descriptor{}, platformError(has, want, "")
}

// configuration is what is read of an image's.
type configuration struct {
	Platform
	Config struct {
		Entrypoint, Cmd, Env []string
		WorkingDir, User     string
	} `json:"config"`
	RootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

func parseConfig(raw []byte, layers int) (configuration, image.Config, error) {
	var c configuration
	bad := func(format string, args ...any) (configuration, image.Config, error) {
		return c, image.Config{}, &image.FormatError{What: "configuration", Why: fmt.Sprintf(format, args...)}
	}
	if err := checkKeys(raw, "Labels", "history", "ExposedPorts", "Volumes"); err != nil {
		return bad("%v", err)
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return bad("%v", err)
	}
	if c.OS == "" || c.Architecture == "" {
		return bad("it does not say for which platform it is")
	}
	if c.RootFS.Type != "layers" || len(c.RootFS.DiffIDs) != layers {
		return bad("it speaks of %d layers, and the manifest of %d", len(c.RootFS.DiffIDs), layers)
	}
	for _, id := range c.RootFS.DiffIDs {
		if !image.ValidDigest(id) {
			return bad("it names a layer by %s, which is no SHA-256 digest", tree.Quote(id))
		}
	}
	clean, err := image.Config{
		Entrypoint: c.Config.Entrypoint, Cmd: c.Config.Cmd, Env: c.Config.Env, Workdir: c.Config.WorkingDir, User: c.Config.User,
	}.Sanitize()
	return c, clean, err
}

// checkKeys refuses a JSON object with two keys that are equal, or that Go's decoder
// takes for equal, anywhere but below the keys named in free.
func checkKeys(raw []byte, free ...string) error {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if err := checkValue(dec, free, true, 0); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more after its end")
	}
	return nil
}

// checkKey admits a key of letters that have no relatives, once.
func checkKey(name string, seen map[string]bool) error {
	folded := strings.ToLower(name)
	if strings.IndexFunc(name, func(r rune) bool { return r < ' ' || r > '~' }) >= 0 {
		return fmt.Errorf("it has the key %s", tree.Quote(name))
	}
	if seen[folded] {
		return fmt.Errorf("it has the key %s twice", tree.Quote(name))
	}
	seen[folded] = true
	return nil
}

func checkValue(dec *json.Decoder, free []string, strict bool, depth int) error {
	if depth > maxJSONDepth {
		return errors.New("it is nested too deep")
	}
	token, err := dec.Token()
	if err != nil {
		return err
	}
	delim, ok := token.(json.Delim)
	if !ok {
		return nil
	}
	seen := map[string]bool{}
	for dec.More() {
		inner := strict
		if delim == '{' {
			key, err := dec.Token()
			if err != nil {
				return err
			}
			name, _ := key.(string) // the decoder accepts no other
			if strict {
				if err := checkKey(name, seen); err != nil {
					return err
				}
			}
			for _, f := range free {
				inner = inner && name != f
			}
		}
		if err := checkValue(dec, free, inner, depth+1); err != nil {
			return err
		}
	}
	_, err = dec.Token() // the end of it
	return err
}
