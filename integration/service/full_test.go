package service

import (
	"errors"
	"io"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/direct-oci/engine/client"
	"github.com/direct-oci/engine/integration/testenv"
)

// TestServiceOutlivesAFullDisk fills the disk of the records. Runs are refused, whether or
// not a minimum is kept; all else is answered as before, by the same service, and runs
// start again once there is room.
func TestServiceOutlivesAFullDisk(t *testing.T) {
	for name, kept := range map[string]bool{"a minimum is kept": true, "none is kept": false} {
		t.Run(name, func(t *testing.T) {
			config := "minFreeDiskMb: -1\n"
			if kept {
				config = "minFreeDiskMb: 1\n"
			}
			b := newBed(t, config)
			b.small("state", 24<<20)
			c, ctx := b.start(), patient(t)
			works := func(word string) string {
				run, err := c.StartRun(ctx, script("echo "+word))
				if err == nil {
					run, err = c.WaitRun(ctx, run.ID)
				}
				if err != nil || !run.Result.OK || run.Result.Stdout != word+"\n" {
					t.Fatalf("a run that has room: %+v, %v\n%s", run.Result, err, b.log)
				}
				return run.ID
			}
			before := works("before")
			filler := b.path("state/filler")
			fill(t, filler)
			c.Patience = -1 // no second try
			_, err := c.StartRun(ctx, script("echo during"))
			var refusal *client.Error
			if !errors.As(err, &refusal) || refusal.Class != "engine" || kept && refusal.Kind != "disk_full" {
				t.Errorf("a run without room: %v", err)
			}
			if run, err := c.Run(ctx, before); err != nil || run.Result == nil || run.Result.Stdout != "before\n" {
				t.Errorf("the run before: %+v, %v", run.Result, err)
			}
			if list, err := c.Runs(ctx, client.RunFilter{}); err != nil || len(list.Runs) == 0 {
				t.Errorf("the runs: %+v, %v", list, err)
			}
			if health, err := c.Health(ctx); err != nil || health.OK == kept {
				t.Errorf("health: %+v, %v; want it to tell that no run would start, if it knows", health, err)
			}
			c.Patience = 0
			if err := os.Remove(filler); err != nil {
				t.Fatal(err)
			}
			works("after")
			b.stop()
		})
	}
}

// small makes a directory of the bed a file system of its own, of so many bytes, and
// imports the image again, in case it was in there.
func (b *bed) small(dir string, bytes int) {
	b.t.Helper()
	if err := errors.Join(os.RemoveAll(b.path(dir)), os.Mkdir(b.path(dir), 0o700)); err != nil {
		b.t.Fatal(err)
	}
	if err := unix.Mount("service", b.path(dir), "tmpfs", 0, "mode=0700,size="+strconv.Itoa(bytes)); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		b.kill()
		b.groups.Group("").Kill()
		unix.Unmount(b.path(dir), unix.MNT_DETACH)
	})
	if call := testenv.Exec(b.t, "image", "import", "--state-dir", b.path("state"), testenv.BusyboxRoot(b.t), "box"); call.Status != 0 {
		b.t.Fatalf("%s", call)
	}
}

// fill writes until there is no room left.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for chunk := 1 << 20; chunk > 0; chunk /= 2 {
		for err = nil; err == nil; {
			_, err = io.CopyN(f, zeros{}, int64(chunk))
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
	}
}

// zeros never end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
