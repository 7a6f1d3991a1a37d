package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/rootfs/image"
)

func (a *app) imageCommand() *cobra.Command {
	const noRegistry = "talks to no registry; import a directory or a tar archive"
	return group("image", "keep the images that programs run in",
		a.imageImportCommand(), a.imageListCommand(), a.imageRemoveCommand(), a.imageInspectCommand(),
		absentCommand("pull", noRegistry), absentCommand("prune", "removes images by name only, with engine image rm"))
}

func (a *app) images() image.Store {
	return image.Store{Dir: filepath.Join(a.host.StateDir, "images")}
}

func (a *app) imageImportCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "import DIR|TAR NAME",
		Short:   "make an image of a directory or a tar archive",
		Example: "  engine image import /srv/debian debian\n  engine image import root.tar.zst team/node:20",
		Args:    exactly(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			img, err := a.images().Import(cmd.Context(), args[0], args[1])
			if err != nil {
				return imageError(err)
			}
			if a.json {
				return a.printJSON(img)
			}
			return a.print(fmt.Sprintf("%s  %s  %s\n", img.Name, img.Digest, bytesOf(img.Size)))
		},
	}
	cmd.Flags().BoolVar(&a.json, "json", false, "print the image as JSON")
	return cmd
}

func (a *app) imageListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "list the images",
		Args:  exactly(0),
		RunE: func(*cobra.Command, []string) error {
			images, err := a.images().List()
			if err != nil {
				return imageError(err)
			}
			if a.json {
				if images == nil {
					images = []image.Image{}
				}
				return a.printJSON(images)
			}
			return a.print(imageTable(images, time.Now()))
		},
	}
	cmd.Flags().BoolVar(&a.json, "json", false, "print the images as one JSON array")
	return cmd
}

func imageTable(images []image.Image, now time.Time) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tDIGEST\tSIZE\tAGE\tSOURCE")
	for _, img := range images {
		digest := img.Digest[:min(len(img.Digest), len("sha256:")+12)]
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", cell(img.Name), cell(digest), bytesOf(img.Size), age(now.Sub(img.Created)), cell(img.Source))
	}
	w.Flush() // into memory
	return b.String()
}

// bytesOf writes a size for a person.
func bytesOf(n int64) string {
	const units = "kMGTP"
	if n < 1000 {
		return fmt.Sprintf("%dB", n)
	}
	size := float64(n)
	i := -1
	for size >= 999.5 && i < len(units)-1 {
		size /= 1000
		i++
	}
	return fmt.Sprintf("%.3g%cB", size, units[i])
}

func (a *app) imageRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "rm NAME...",
		Short: "delete images that no run uses",
		Args:  atLeastOne,
		RunE: func(_ *cobra.Command, args []string) error {
			return a.each(args, func(name string) error { return imageError(a.images().Remove(name)) })
		},
	}
}

func (a *app) imageInspectCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "inspect NAME",
		Short: "print what is known of an image, as JSON",
		Args:  exactly(1),
		RunE: func(_ *cobra.Command, args []string) error {
			img, err := a.images().Open(args[0])
			if err != nil {
				return imageError(err)
			}
			return a.printIndented(img)
		},
	}
}

// imageError says whose turn it is: the caller's where the store knows what is
// wrong with what it was given.
func imageError(err error) error {
	var (
		name   *image.NameError
		exists *image.ExistsError
		none   *image.NotFoundError
		held   *image.HeldError
		source *image.SourceError
		entry  *image.EntryError
		limit  *image.LimitError
		arch   *image.ArchError
	)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &none):
		return engine.Refused("not_found", "%w", err)
	case errors.As(err, &name), errors.As(err, &exists), errors.As(err, &held), errors.As(err, &source),
		errors.As(err, &entry), errors.As(err, &limit), errors.As(err, &arch):
		return engine.Refused("bad_image", "%w", err)
	}
	return engine.Failed("image_store", "%w", err)
}
