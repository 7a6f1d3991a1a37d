package image

import (
	"context"
	"fmt"
	"os"
)

// Copy copies the tree below the directory src into the new directory dst, by the
// rules of Import. After an error dst may hold a part of it.
func Copy(ctx context.Context, src, dst string) error {
	source, err := openSource(src)
	if err != nil {
		return err
	}
	defer source.Close()
	if err := os.Mkdir(dst, 0o755); err != nil {
		return fmt.Errorf("cannot create directory=%s: %w", dst, err)
	}
	root, err := os.Open(dst)
	if err != nil {
		return fmt.Errorf("cannot open directory=%s: %w", dst, err)
	}
	defer root.Close()
	t := &tree{ctx: ctx, root: root, buf: make([]byte, 1<<20)}
	if err := t.limit(); err != nil {
		return err
	}
	if err := finishRoot(root); err != nil {
		return err
	}
	_, err = Store{}.unpack(t, source, src)
	return err
}
