package main

import (
	"reflect"
	"testing"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/oci"
)

func TestBundleBecomesTheRequest(t *testing.T) {
	r := newRequest()
	r.Limits.TmpSize, r.Limits.Memory = 1<<20, 64<<20
	r.takeBundle(oci.Bundle{
		Root: "/b/rootfs", Args: []string{"sh", "-c", "true"}, Env: []string{"A=b"}, Cwd: "/srv", UID: 7, GID: 8, Hostname: "h",
		Tmpfs:   []oci.Tmpfs{{Path: "/a", Size: 4096}, {Path: "/b"}},
		Rlimits: []oci.Rlimit{{Type: "RLIMIT_NOFILE", Soft: 10, Hard: 20}},
	})
	want := newRequest().Request
	want.Limits.TmpSize, want.Limits.Memory = 1<<20, 64<<20
	want.Rootfs, want.Command, want.Env, want.Workdir = "/b/rootfs", []string{"sh", "-c", "true"}, []string{"A=b"}, "/srv"
	want.UID, want.GID, want.Hostname = 7, 8, "h"
	want.Tmpfs = []engine.Tmpfs{{Path: "/a", Size: 4096}, {Path: "/b", Size: 1 << 20}}
	want.Rlimits = []engine.Rlimit{{Type: "RLIMIT_NOFILE", Soft: 10, Hard: 20}}
	if !reflect.DeepEqual(r.Request, want) {
		t.Errorf("request = %+v\nwant %+v", r.Request, want)
	}
	if err := r.Validate(); err != nil {
		t.Errorf("the request of a bundle is refused: %v", err)
	}
}
