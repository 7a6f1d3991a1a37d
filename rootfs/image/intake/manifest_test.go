package intake

import (
	"testing"

	"github.com/direct-oci/engine/rootfs/image"
)

// FuzzDocuments reads arbitrary bytes as every kind of document. Whatever is accepted
// has to hold the promises that the rest relies on.
func FuzzDocuments(f *testing.F) {
	f.Add([]byte(`{"schemaVersion":2,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:x","size":1},"layers":[]}`))
	f.Add([]byte(`{"schemaVersion":2,"manifests":[{"platform":{"os":"linux","architecture":"arm"}}]}`))
	f.Add([]byte(`{"os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":["sha256:x"]},"config":{"Env":["A=1"],"User":"1"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if d, err := parseDocument(data, ""); err == nil {
			if d.isIndex() == (d.Config != nil) {
				t.Errorf("%q is an index and a manifest, or neither", data)
			}
			for _, l := range d.Layers {
				if !image.ValidDigest(l.Digest) || l.Size < 0 {
					t.Errorf("%q has the layer %+v", data, l)
				}
			}
			if m, err := d.choose(HostPlatform()); err == nil && !image.ValidDigest(m.Digest) {
				t.Errorf("%q leads to %+v", data, m)
			}
		}
		if _, c, err := parseConfig(data, 1); err == nil {
			if uid, gid, ok := c.IDs(); ok && (uid == 0 || gid == 0) {
				t.Errorf("%q has root as its user", data)
			}
		}
		if p, err := ParsePlatform(string(data)); err == nil {
			if again, err := ParsePlatform(p.String()); err != nil || again != p {
				t.Errorf("platform %v reads back as %v, %v", p, again, err)
			}
		}
		if name, err := image.CanonicalName(string(data)); err == nil {
			if again, err := image.CanonicalName(name); err != nil || again != name {
				t.Errorf("name %q becomes %q and then %q, %v", data, name, again, err)
			}
		}
	})
}
