package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/direct-oci/engine/cmd/cli"
	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/rootfs/image"
	"github.com/direct-oci/engine/rootfs/image/job"
)

func (a *app) imageCommand() *cobra.Command {
	return cli.Group("image", "keep the images that programs run in",
		a.imagePullCommand(), a.imageImportCommand(), a.imageListCommand(), a.imageInspectCommand(),
		a.imageExportCommand(), a.imageRemoveCommand(), a.imagePruneCommand())
}

func (a *app) images() image.Store {
	return image.Store{Dir: filepath.Join(a.host.StateDir, "images")}
}

func (a *app) imagePullCommand() *cobra.Command {
	j := job.Job{Do: job.Pull}
	cmd := &cobra.Command{
		Use:   "pull REFERENCE [NAME]",
		Short: "get an image from a registry",
		Long: "pull gets an image from a registry: its layers are checked, unpacked and kept, and\n" +
			"nothing keeps running. NAME is what the store calls it, the reference by default.\n\n" +
			"Credentials come from docker's config.json, its helpers, or podman's auth.json;\n" +
			"the proxy variables of the environment are followed.",
		Example: "  engine image pull node:20\n  engine image pull registry.example:5000/team/app@sha256:... app",
		Args:    cli.Between(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if j.Source = args[0]; len(args) == 2 {
				j.Name = args[1]
			}
			return a.takeImage(cmd, j)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	addPlatformFlag(cmd, &j)
	flags.StringVar(&j.AuthFile, "authfile", "", "`FILE` of credentials, as docker login writes it")
	flags.StringArrayVar(&j.Mirrors, "mirror", nil, "`HOST` to ask before docker.io, or REGISTRY=HOST before another; repeatable")
	flags.StringVar(&j.CAFile, "ca-file", "", "`FILE` of certificates to trust besides the system's")
	flags.StringArrayVar(&j.PlainHTTP, "plain-http", nil, "`HOST` to speak to without encryption; repeatable")
	flags.StringArrayVar(&j.TokenHosts, "token-host", nil, "`HOST` of another domain that the registry may send its credentials to; repeatable")
	a.addImageOutputFlags(cmd)
	return cmd
}

func addPlatformFlag(cmd *cobra.Command, j *job.Job) {
	cmd.Flags().StringVar(&j.Platform, "platform", "", "`OS/ARCH` of the image, as in linux/arm64 (default this host's)")
}

func (a *app) addImageOutputFlags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&a.json, "json", false, "print the image as JSON")
	cmd.Flags().BoolVar(&a.Quiet, "quiet", false, "show no progress on a terminal")
}

func (a *app) imageImportCommand() *cobra.Command {
	j := job.Job{Do: job.Import}
	cmd := &cobra.Command{
		Use:   "import SOURCE NAME",
		Short: "make an image of a directory or an archive",
		Long: "import makes an image of a directory, a tar archive of one (plain, gzip, zstd or\n" +
			"xz), an OCI layout, which may be a directory or an archive, or what docker save\n" +
			"wrote. SOURCE - is an archive on standard input.",
		Example: "  engine image import /srv/debian debian\n  engine image import root.tar.zst team/node:20\n" +
			"  docker save app | engine image import - app",
		Args: cli.Exactly(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			j.Source, j.Name = args[0], args[1]
			return a.takeImage(cmd, j)
		},
	}
	cmd.Flags().SortFlags = false
	addPlatformFlag(cmd, &j)
	cmd.Flags().StringVar(&j.Ref, "ref", "", "`NAME` of one image, where SOURCE has several")
	a.addImageOutputFlags(cmd)
	return cmd
}

// takeImage lets engine-image bring an image into the store, and says which.
func (a *app) takeImage(cmd *cobra.Command, j job.Job) error {
	answer, err := a.imageJob(cmd.Context(), j)
	if err != nil {
		return err
	}
	img := *answer.Image
	if a.json {
		return a.PrintJSON(img)
	}
	return a.Print(fmt.Sprintf("%s  %s  %s\n", img.Name, img.Digest, bytesOf(img.Size)))
}

func (a *app) imageExportCommand() *cobra.Command {
	j := job.Job{Do: job.Export}
	cmd := &cobra.Command{
		Use:   "export NAME -o FILE",
		Short: "write an image to an archive that other tools read",
		Long: "export writes an archive that is an OCI layout and one of docker save at once. It\n" +
			"holds what the store keeps of the image, so its digest is not the one that was pulled.",
		Example: "  engine image export node:20 -o node.tar\n  skopeo inspect oci-archive:node.tar",
		Args:    cli.Exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if j.Name = args[0]; j.Output == "" {
				return engine.Refused("bad_arguments", "cannot export to nowhere: want %s", cmd.UseLine())
			}
			answer, err := a.imageJob(cmd.Context(), j)
			if err != nil {
				return err
			}
			if a.json {
				return a.PrintJSON(map[string]string{"output": j.Output, "digest": answer.Digest})
			}
			return a.Print(answer.Digest + "\n")
		},
	}
	cmd.Flags().StringVarP(&j.Output, "output", "o", "", "`FILE` to write")
	cmd.Flags().BoolVar(&a.json, "json", false, "print the file and the digest as JSON")
	return cmd
}

func (a *app) imageListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "list the images",
		Args:  cli.Exactly(0),
		RunE: func(*cobra.Command, []string) error {
			images, err := a.images().List()
			if err != nil {
				return imageError(err)
			}
			if a.json {
				if images == nil {
					images = []image.Image{}
				}
				return a.PrintJSON(images)
			}
			return a.Print(imageTable(images, time.Now()))
		},
	}
	cmd.Flags().BoolVar(&a.json, "json", false, "print the images as one JSON array")
	return cmd
}

func imageTable(images []image.Image, now time.Time) string {
	rows := [][]string{{"NAME", "DIGEST", "SIZE", "SHARED", "AGE", "SOURCE"}}
	for _, img := range images {
		digest := img.Digest[:min(len(img.Digest), len("sha256:")+12)]
		rows = append(rows, []string{cli.Cell(img.Name), cli.Cell(digest), bytesOf(img.Size), bytesOf(img.Shared), cli.Age(now.Sub(img.Created)), cli.Cell(img.Source)})
	}
	return cli.Table(rows)
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
	return a.addEachFlags(&cobra.Command{
		Use:   "rm NAME...",
		Short: "delete images that no run uses",
		Args:  cli.AtLeastOne,
		RunE: func(_ *cobra.Command, args []string) error {
			return a.each(args, func(name string) error {
				_, err := a.images().Remove(name)
				return imageError(err)
			})
		},
	})
}

func (a *app) imagePruneCommand() *cobra.Command {
	all := false
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "delete what no image needs any more, and what killed imports left",
		Args:  cli.Exactly(0),
		RunE: func(*cobra.Command, []string) error {
			freed, err := a.images().Prune(all)
			if err != nil {
				return imageError(err)
			}
			if a.json {
				return a.PrintJSON(freed)
			}
			var b strings.Builder
			for _, name := range freed.Names {
				fmt.Fprintln(&b, name)
			}
			fmt.Fprintf(&b, "%d images, %d layers, %s\n", freed.Images, freed.Layers, bytesOf(freed.Bytes))
			return a.Print(b.String())
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "also the images that have a name and that no run uses")
	cmd.Flags().BoolVar(&a.json, "json", false, "print what was deleted as JSON")
	return cmd
}

func (a *app) imageInspectCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "inspect NAME",
		Short: "print what is known of an image, as JSON",
		Args:  cli.Exactly(1),
		RunE: func(_ *cobra.Command, args []string) error {
			img, err := a.images().Open(args[0])
			if err != nil {
				return imageError(err)
			}
			return a.show(img)
		},
	}
	a.addShowFlags(cmd)
	return cmd
}
