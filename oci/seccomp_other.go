//go:build !amd64 && !arm64

package oci

// There is no seccomp filter for this architecture, and no sandbox without one.
var profileJSON, filterProgram = onlyAmd64AndArm64AreSupported, onlyAmd64AndArm64AreSupported
