package intake

import (
	"runtime"
	"strings"

	"github.com/direct-oci/engine/rootfs/image"
)

// Platform is the kind of machine an image is for.
type Platform struct {
	OS           string `json:"os"`
	Architecture string `json:"architecture"` // as Go calls it
	Variant      string `json:"variant,omitempty"`
}

// HostPlatform is this machine's.
func HostPlatform() Platform { return Platform{OS: "linux", Architecture: runtime.GOARCH} }

// ParsePlatform reads "linux/arm64", "linux/arm/v7" or an architecture alone.
func ParsePlatform(text string) (Platform, error) {
	parts := strings.Split(text, "/")
	if len(parts) == 1 {
		parts = []string{"linux", text}
	}
	bad := len(parts) > 3
	for _, p := range parts {
		bad = bad || p == "" || len(p) > 32 || strings.Trim(p, "abcdefghijklmnopqrstuvwxyz0123456789_.-") != ""
	}
	if bad || parts[0] != "linux" {
		return Platform{}, &SourceError{Source: text, Why: "it is no platform", Fix: "write it as in linux/amd64 or linux/arm/v7"}
	}
	p := Platform{OS: parts[0], Architecture: parts[1]}
	if len(parts) == 3 {
		p.Variant = parts[2]
	}
	return p.normal(), nil
}

// normal gives names that mean the same one spelling.
func (p Platform) normal() Platform {
	switch p.Architecture {
	case "x86_64", "x86-64":
		p.Architecture = "amd64"
	case "aarch64":
		p.Architecture = "arm64"
	}
	if p.Architecture == "arm64" && p.Variant == "v8" || p.Architecture == "amd64" && p.Variant == "v1" {
		p.Variant = ""
	}
	return p
}

func (p Platform) String() string {
	text := p.OS + "/" + p.Architecture
	if p.Variant != "" {
		text += "/" + p.Variant
	}
	return text
}

// suits reports whether an image for p runs where want is wanted. A variant that
// nobody named is any.
func (p Platform) suits(want Platform) bool {
	p, want = p.normal(), want.normal()
	return p.OS == want.OS && p.Architecture == want.Architecture && (p.Variant == want.Variant || p.Variant == "" || want.Variant == "")
}

func platformError(has []string, want Platform, seen string) error {
	return &image.PlatformError{Has: has, Want: want.String(), Seen: seen}
}
