package oci

import _ "embed"

var (
	//go:embed seccomp_amd64.json
	profileJSON []byte
	//go:embed seccomp_amd64.bpf
	filterProgram []byte
)
