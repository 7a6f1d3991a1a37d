package oci

import _ "embed"

var (
	//go:embed seccomp_arm64.json
	profileJSON []byte
	//go:embed seccomp_arm64.bpf
	filterProgram []byte
)
