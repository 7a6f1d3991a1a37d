package intake

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/rootfs/image"
	"github.com/direct-oci/engine/rootfs/image/tree"
)

// Options say how an image is taken in.
type Options struct {
	Store    image.Store
	Unpacker Unpacker
	Name     string   // under which the store has it then
	Platform Platform // zero: this host's, and an image for another is refused
	Ref      string   // which image of a layout or archive that has several
	Origin   string   // what the image's record says of where it came from
	Notify   func(Event)
}

// Event is a step of the work, for a person who waits. Layers come in parallel.
type Event struct {
	Layer  int    // from 1; 0: the image as a whole
	Layers int    // how many there are
	Digest string // of the layer's blob
	State  State
	Done   int64 // bytes of the blob, while it is coming
	Total  int64
}

// State is what is happening to a layer.
type State string

// The states.
const (
	Waiting  State = "waiting"  // another process is at it
	Fetching State = "fetching" // and unpacking at the same time
	Syncing  State = "syncing"  // to the disk
	Finished State = "finished"
	Present  State = "present" // the store had it
)

// parallel is how many layers are worked on at once: one is mostly decompression, the
// other mostly writing.
const parallel = 3

func (o Options) notify(e Event) {
	if o.Notify != nil {
		o.Notify(e)
	}
}

// want is the platform an image has to be for.
func (o Options) want() Platform {
	if o.Platform == (Platform{}) {
		return HostPlatform()
	}
	return o.Platform
}

// taking is one image on its way into the store.
type taking struct {
	Options
	stage *image.Stage
	src   Source
	kind  string

	mu    sync.Mutex
	total tree.Counts // of the layers unpacked so far
}

// Take makes an image of a source that has documents and blobs. A name that is taken is
// given to the new image if replace says so, otherwise *image.ExistsError is
// returned. What the store has is neither fetched nor unpacked again.
func Take(ctx context.Context, o Options, src Source, kind string, replace bool) (image.Image, error) {
	stage, err := o.Store.Begin()
	if err != nil {
		return image.Image{}, spaceError(o.Store.Dir, err)
	}
	t := &taking{Options: o, stage: stage, src: src, kind: kind}
	img, err := t.take(ctx, replace)
	err = errors.Join(err, stage.Close())
	if ctx.Err() != nil {
		err = errors.Join(ctx.Err(), err)
	}
	return img, spaceError(o.Store.Dir, err)
}

func (t *taking) take(ctx context.Context, replace bool) (image.Image, error) {
	none := image.Image{}
	img := image.Image{Name: t.Name, Kind: t.kind, Source: t.Origin}
	doc, err := t.resolve(ctx, &img)
	if err != nil {
		return none, err
	}
	if doc.isIndex() { // and so one of which the store has the right image
		there, _, err := t.stage.Retag(t.Name, t.id(img), img)
		return there, err
	}
	raw, err := t.config(ctx, doc)
	if err != nil {
		return none, err
	}
	config, clean, err := parseConfig(raw, len(doc.Layers))
	if err != nil {
		return none, err
	}
	if !config.suits(t.want()) {
		return none, platformError([]string{config.Platform.String()}, t.want(), "")
	}
	id := t.id(img)
	if _, err := t.Store.Open(t.Name); err == nil && !replace {
		return none, &image.ExistsError{Name: t.Name}
	}
	if there, ok, err := t.stage.Retag(t.Name, id, img); err != nil || ok {
		return there, err
	}
	img.Platform, img.Config = config.normal().String(), clean
	if img.Layers, err = t.layers(ctx, doc, config.RootFS.DiffIDs); err != nil {
		return none, err
	}
	patch, err := patchImplied(ctx, t.stage, t.Store, img.Layers)
	if err != nil {
		return none, err
	}
	img.Layers = append(img.Layers, patch...)
	for _, l := range img.Layers {
		img.Counts = img.Counts.Add(l.Counts)
	}
	return t.stage.Commit(img, id, replace)
}

// id is the image's name in the store. A docker archive has no manifest, and its
// configuration's digest stands for it.
func (t *taking) id(img image.Image) string {
	kind := "sha256-"
	if t.kind == "docker" {
		kind = "config-"
	}
	return kind + strings.TrimPrefix(img.Digest, "sha256:")
}

// resolve follows indexes to the manifest of the platform. When the name stands for
// what the same index led to before, it goes no further and returns the index.
func (t *taking) resolve(ctx context.Context, img *image.Image) (document, error) {
	if a, ok := t.src.(*dockerSource); ok {
		img.Digest = a.doc.Config.Digest
		return a.doc, nil
	}
	d, raw, err := t.src.Root(ctx)
	for nesting := 0; err == nil; nesting++ {
		if d.Digest != "" && digestOf(raw) != d.Digest {
			return document{}, &BlobError{d.Digest, "its digest is " + digestOf(raw)}
		}
		var doc document
		if doc, err = parseDocument(raw, d.MediaType); err != nil {
			break
		}
		if !doc.isIndex() {
			img.Digest = digestOf(raw)
			return doc, nil
		}
		if nesting == 0 && d.Digest != "" {
			img.Index = d.Digest
			if old, err := t.Store.Open(t.Name); err == nil && old.Index == d.Digest && old.Platform == t.want().normal().String() {
				img.Digest = old.Digest
				return doc, nil
			}
		}
		if nesting == maxNesting {
			return document{}, &image.FormatError{What: "index", Why: "indexes lead to indexes without end"}
		}
		if d, err = doc.choose(t.want()); err == nil {
			raw, err = readDocument(ctx, t.src, d)
		}
	}
	return document{}, err
}

func (t *taking) config(ctx context.Context, doc document) ([]byte, error) {
	return readDocument(ctx, t.src, *doc.Config)
}

// layers brings all layers into the store, several at a time.
func (t *taking) layers(ctx context.Context, doc document, diffIDs []string) ([]image.Layer, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	layers := make([]image.Layer, len(doc.Layers))
	places := make(chan struct{}, parallel)
	var wg sync.WaitGroup
	for i, d := range doc.Layers {
		places <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			defer func() { <-places }()
			e := Event{Layer: i + 1, Layers: len(layers), Digest: d.Digest, Total: d.Size}
			l, err := t.layer(ctx, d, diffIDs[i], e)
			if err != nil {
				cancel(err) // the first one is the reason, others follow from it
				return
			}
			layers[i] = l
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	return layers, nil
}

func (t *taking) layer(ctx context.Context, d Descriptor, diffID string, e Event) (image.Layer, error) {
	state := func(s State) {
		e.State = s
		t.notify(e)
	}
	made := false
	l, err := t.stage.Layer(ctx, "sha256-"+strings.TrimPrefix(diffID, "sha256:"), func() { state(Waiting) }, func(dir string) (image.Layer, error) {
		made = true
		state(Fetching)
		blob, err := t.src.Blob(ctx, d)
		if err != nil {
			return image.Layer{}, err
		}
		in := verify(ctx, blob, d, func(n int64) {
			e.Done = n
			state(Fetching)
		})
		l, err := t.unpack(ctx, dir, in, diffID)
		if err = errors.Join(err, blob.Close()); err != nil {
			return image.Layer{}, err
		}
		l.Digest, l.DiffID = d.Digest, diffID
		state(Syncing)
		return l, settle(dir, &l)
	})
	if err != nil {
		return l, err
	}
	if made {
		state(Finished)
	} else {
		state(Present)
	}
	return l, nil
}

// unpack fills dir from a layer's blob, and checks what the blob unpacks to.
func (t *taking) unpack(ctx context.Context, dir string, in *verified, diffID string) (image.Layer, error) {
	plain, _, err := decompress(ctx, in)
	if err != nil {
		return image.Layer{}, in.blame(err)
	}
	defer plain.Close()
	h := sha256.New()
	limits := t.Store.Limits
	limits.Layer = true
	rep, err := t.Unpacker.Unpack(ctx, dir, limits, t.stage.Lock(), io.TeeReader(plain, h))
	if err == nil {
		// What follows the compressed archive belongs to the blob's digest too.
		_, err = io.Copy(io.Discard, in)
	}
	if err != nil {
		return image.Layer{}, in.blame(err)
	}
	if got := "sha256:" + hex.EncodeToString(h.Sum(nil)); got != diffID {
		return image.Layer{}, &BlobError{diffID, "the layer unpacks to " + got}
	}
	if err := t.add(rep.Counts); err != nil {
		return image.Layer{}, err
	}
	l := image.Layer{Counts: rep.Counts}
	root, err := os.Open(dir)
	if err != nil {
		return l, fmt.Errorf("cannot open layer: %w", err)
	}
	defer root.Close()
	marks := rep.marks()
	l.HidesAll, err = tree.SetMarks(root, marks)
	for name := range marks.Implied {
		if name != "." {
			l.Implied = append(l.Implied, []byte(name))
		}
	}
	return l, err
}

// add counts one more layer, and refuses an image that has become too large.
func (t *taking) add(c tree.Counts) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.total = t.total.Add(c)
	return t.Store.Limits.Check(t.total)
}

// settle brings a finished layer to the disk and measures it.
func settle(dir string, l *image.Layer) error {
	root, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("cannot open layer: %w", err)
	}
	defer root.Close()
	if err := unix.Syncfs(int(root.Fd())); err != nil {
		return fmt.Errorf("cannot sync layer: %w", err)
	}
	l.Size, err = tree.Disk(root)
	return err
}

// dockerSource is a docker archive as a Source.
type dockerSource struct{ *dockerArchive }

func (dockerSource) Root(context.Context) (Descriptor, []byte, error) {
	return Descriptor{}, nil, errors.New("internal error: a docker archive has no root document")
}

func (d dockerSource) Blob(_ context.Context, want Descriptor) (io.ReadCloser, error) {
	if want.Digest == d.doc.Config.Digest {
		return io.NopCloser(strings.NewReader(string(d.config))), nil
	}
	return d.layer(want)
}

// Import makes an image of what is at src: a directory with a root file system or an
// OCI layout, or an archive of either or of docker save, plain or compressed; "-" is
// an archive on standard input. It returns *image.NameError, *image.ExistsError,
// *SourceError, *tree.EntryError, *tree.LimitError, *BlobError, *image.FormatError,
// *image.PlatformError or *SpaceError for what the caller can change.
func Import(ctx context.Context, o Options, src string) (image.Image, error) {
	none := image.Image{}
	name, err := image.CanonicalName(o.Name)
	if err != nil {
		return none, err
	}
	o.Name = name
	source, err := openSource(src)
	if err != nil {
		return none, err
	}
	defer source.Close()
	if o.Origin == "" {
		if o.Origin, err = filepath.Abs(src); err != nil {
			return none, fmt.Errorf("cannot make src=%s absolute: %w", src, err)
		}
	}
	if _, err := o.Store.Open(name); err == nil {
		return none, &image.ExistsError{Name: name}
	}
	img, err := importFrom(ctx, o, source, src)
	return img, spaceError(o.Store.Dir, sourceError(src, err))
}

func importFrom(ctx context.Context, o Options, source *os.File, src string) (image.Image, error) {
	none := image.Image{}
	st, err := source.Stat()
	if err != nil {
		return none, err
	}
	if st.IsDir() {
		if r, _, err := (directory{source}).open("oci-layout"); err == nil {
			if err := r.Close(); err != nil {
				return none, err
			}
			return Take(ctx, o, layout{directory{source}, o.Ref}, "oci", false)
		}
		return importRoot(ctx, o, source, nil, "directory")
	}
	plain, kind, err := decompress(ctx, source)
	if err != nil {
		return none, err
	}
	defer plain.Close()
	const enough = 64 << 10
	stream := bufio.NewReaderSize(plain, 1<<20)
	start, err := stream.Peek(enough)
	if err != nil && !errors.Is(err, io.EOF) {
		return none, err
	}
	if !holdsLayers(start) {
		return importRoot(ctx, o, source, stream, kind)
	}
	if kind == "tar" && st.Mode().IsRegular() {
		return importArchive(ctx, o, source, src)
	}
	spooled, err := spool(o, stream)
	plain.Close() // its layers need the memory
	if err != nil {
		return none, err
	}
	defer spooled.Close()
	return importArchive(ctx, o, spooled, src)
}

// spool unpacks an archive of layers into a file without a name, so that it can be
// read at any place.
func spool(o Options, stream io.Reader) (*os.File, error) {
	stage, err := o.Store.Begin()
	if err != nil {
		return nil, err
	}
	defer stage.Close()
	f, err := stage.Temp()
	if err != nil {
		return nil, err
	}
	limit := o.Store.Limits.MaxBytes
	if limit == 0 {
		limit = 64 << 30
	}
	limit += maxOverhead
	if _, err := io.Copy(f, &boundedReader{r: stream, left: limit, limit: limit}); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func importArchive(ctx context.Context, o Options, f *os.File, src string) (image.Image, error) {
	a, err := indexArchive(f)
	if err != nil {
		return image.Image{}, err
	}
	if a.has("oci-layout") && a.has("index.json") {
		return Take(ctx, o, layout{a, o.Ref}, "oci", false)
	}
	if a.has("manifest.json") {
		d, err := openDocker(a, o.Ref)
		if err != nil {
			return image.Image{}, err
		}
		return Take(ctx, o, &dockerSource{d}, "docker", false)
	}
	return image.Image{}, &SourceError{
		Source: src, Why: "it looks like an archive of image layers and has neither an index.json nor a manifest.json",
		Fix: "write it again with skopeo copy, podman save or docker save",
	}
}

func openSource(src string) (*os.File, error) {
	if src == "-" {
		return os.Stdin, nil
	}
	f, err := os.OpenFile(src, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, &SourceError{Source: src, Why: "it does not exist", cause: err}
	}
	if err != nil {
		return nil, &SourceError{Source: src, Why: err.Error(), cause: err}
	}
	st, err := f.Stat()
	if err == nil && !st.IsDir() && !st.Mode().IsRegular() {
		err = errors.New("it is neither a directory nor a file")
	}
	if err != nil {
		return nil, errors.Join(&SourceError{Source: src, Why: err.Error(), cause: err}, f.Close())
	}
	return f, nil
}
