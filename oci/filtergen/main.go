// Command filtergen writes the seccomp profiles and filters that package oci
// embeds. It is run by go generate; its tests fail when what is committed is not
// what it would write.
//
// The numbers of system calls come from the source of golang.org/x/sys/unix, the
// profile from github.com/moby/profiles/seccomp. Nothing depends on the kernel or
// the architecture that it runs on.
package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/net/bpf"
)

func main() {
	dir := flag.String("dir", ".", "folder to write into")
	flag.Parse()
	for _, a := range architectures {
		files, err := generate(a)
		if err != nil {
			fmt.Fprintln(os.Stderr, "filtergen:", err)
			os.Exit(1)
		}
		for name, data := range files {
			if err := os.WriteFile(filepath.Join(*dir, name), data, 0o644); err != nil {
				fmt.Fprintln(os.Stderr, "filtergen:", err)
				os.Exit(1)
			}
		}
	}
}

// generate returns the files of one architecture by their name.
func generate(a architecture) (map[string][]byte, error) {
	numbers, err := a.numbers()
	if err != nil {
		return nil, err
	}
	profile := narrowed(a, numbers)
	text, err := json.MarshalIndent(profile, "", " ")
	if err != nil {
		return nil, err
	}
	policy, err := policyOf(profile, numbers)
	if err != nil {
		return nil, err
	}
	program, err := bpf.Assemble(compile(a, policy))
	if err != nil {
		return nil, fmt.Errorf("cannot assemble filter of %s: %w", a.name, err)
	}
	var blob bytes.Buffer
	if err := binary.Write(&blob, binary.LittleEndian, program); err != nil {
		return nil, err
	}
	return map[string][]byte{
		"seccomp_" + a.name + ".json": append(text, '\n'),
		"seccomp_" + a.name + ".bpf":  blob.Bytes(),
	}, nil
}
