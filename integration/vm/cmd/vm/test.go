package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/direct-oci/engine/integration/vm"
)

// pkg is what go list tells of a package.
type pkg struct{ ImportPath, Dir, Name string }

// count is how many tests ended how, and the verdicts of those that failed.
type count struct {
	pass, fail, skip int
	failed           []string
}

// tests runs the tests of packages in one machine, prints what go test -v would,
// and a last line with the numbers. No test at all is a failure.
func (o *options) tests(ctx context.Context, patterns []string) (status int, err error) {
	dir, err := os.MkdirTemp("", "vm-test-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	packages, err := o.compile(ctx, dir, patterns)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	m, err := vm.Boot(ctx, o.config)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	o.tell("booted", start)

	var total count
	var failed []string
	for i, p := range packages {
		ok, err := o.testPackage(m, i, p, &total)
		if err != nil {
			return 0, err
		}
		if !ok {
			failed = append(failed, p.ImportPath)
		}
	}
	fmt.Printf("\ntests in the virtual machine: %d passed, %d failed, %d skipped, in %d packages\n",
		total.pass, total.fail, total.skip, len(packages))
	switch {
	case len(failed) > 0:
		for _, verdict := range total.failed {
			fmt.Println(verdict)
		}
		fmt.Println("FAIL", strings.Join(failed, " "))
		return 1, nil
	case total.pass == 0:
		fmt.Println("FAIL: no test ran")
		return 1, nil
	}
	fmt.Println("PASS")
	return 0, nil
}

// compile builds the test binaries of the packages that have tests into dir and
// adds them, with the packages' testdata, to the machine's files.
func (o *options) compile(ctx context.Context, dir string, patterns []string) ([]pkg, error) {
	list := exec.CommandContext(ctx, "go", append([]string{"list", "-json=ImportPath,Dir,Name,TestGoFiles,XTestGoFiles"}, patterns...)...)
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("cannot list packages: %w", err)
	}
	var packages []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			pkg
			TestGoFiles, XTestGoFiles []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("cannot list packages: %w", err)
		}
		if len(p.TestGoFiles)+len(p.XTestGoFiles) == 0 {
			continue
		}
		binary := filepath.Join(dir, fmt.Sprintf("p%d.test", len(packages)))
		build := exec.CommandContext(ctx, "go", "test", "-c", "-trimpath", "-o", binary, p.ImportPath)
		build.Stdout, build.Stderr = os.Stderr, os.Stderr
		if err := build.Run(); err != nil {
			return nil, fmt.Errorf("cannot compile the tests of %s: %w", p.ImportPath, err)
		}
		home := fmt.Sprintf("p%d", len(packages))
		o.config.Files = append(o.config.Files, vm.File{Host: binary, Name: home + "/" + p.Name + ".test"})
		if data := filepath.Join(p.Dir, "testdata"); exists(data) {
			o.config.Files = append(o.config.Files, vm.File{Host: data, Name: home + "/testdata"})
		}
		packages = append(packages, p.pkg)
	}
	return packages, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// testPackage runs the tests of the i-th package and reports whether all is well.
func (o *options) testPackage(m *vm.Machine, i int, p pkg, total *count) (bool, error) {
	dir := fmt.Sprintf("%s/p%d", vm.JobDir, i)
	counter := &counter{out: os.Stdout, pkg: p.ImportPath, total: total}
	start := time.Now()
	fmt.Printf("=== %s\n", p.ImportPath)
	status, err := m.Run(vm.Job{
		Argv:   []string{dir + "/" + p.Name + ".test", "-test.v", "-test.timeout=0", "-test.run=" + o.run},
		Dir:    dir,
		Env:    append(o.env, "ENGINE_BIN="+vm.BinDir),
		Stdout: counter, Stderr: os.Stdout,
	})
	if err != nil {
		return false, err
	}
	verdict := "ok  "
	if status != 0 {
		verdict = "FAIL"
	}
	fmt.Printf("%s\t%s\t%.3fs\n", verdict, p.ImportPath, time.Since(start).Seconds())
	return status == 0, nil
}

// counter passes a test's output on and counts the verdicts in it.
type counter struct {
	out   io.Writer
	pkg   string
	total *count
	line  []byte
}

func (c *counter) Write(p []byte) (int, error) {
	for _, b := range p {
		if b != '\n' {
			c.line = append(c.line, b)
			continue
		}
		switch line := bytes.TrimLeft(c.line, " "); {
		case bytes.HasPrefix(line, []byte("--- PASS:")):
			c.total.pass++
		case bytes.HasPrefix(line, []byte("--- FAIL:")):
			c.total.fail++
			c.total.failed = append(c.total.failed, c.pkg+" "+string(line))
		case bytes.HasPrefix(line, []byte("--- SKIP:")):
			c.total.skip++
		}
		c.line = c.line[:0]
	}
	return c.out.Write(p)
}
