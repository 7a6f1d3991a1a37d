package tree

import (
	"context"
	"fmt"
	"os"
)

// Copy copies the tree below the directory src into the new directory dst, by the
// rules of a Writer. After an error dst may hold a part of it.
func Copy(ctx context.Context, src, dst string) error {
	source, err := os.Open(src)
	if err != nil {
		return fmt.Errorf("cannot open directory=%s: %w", src, err)
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
	w, err := NewWriter(ctx, root, Limits{})
	if err != nil {
		return err
	}
	return w.Finish(w.PutDir(source))
}
