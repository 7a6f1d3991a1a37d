package oci

import (
	"testing"
)

func TestParseSize(t *testing.T) {
	tests := []struct {
		in   string
		want int64 // -1: refused
	}{
		{"0", 0},
		{"1048576", 1 << 20},
		{"10B", 10},
		{"1kB", 1000},
		{"1MB", 1e6},
		{"2GB", 2e9},
		{"1TB", 1e12},
		{"1KiB", 1024},
		{"512MiB", 512 << 20},
		{"1GiB", 1 << 30},
		{"1.5GiB", 3 << 29},
		{"0.5k", 512},
		{"2 GiB", 2 << 30},
		{"256m", 256 << 20},
		{"2g", 2 << 30},
		{"2G", 2 << 30},
		{"64k", 64 << 10},
		{"1t", 1 << 40},
		{"1Gi", 1 << 30},
		{"512Mi", 512 << 20},
		{"1Ki", 1024},
		{"512mib", 512 << 20},
		{"1024TiB", 1 << 50},
		{"", -1},
		{"MiB", -1},
		{"-1", -1},
		{"-1MiB", -1},
		{"+1", -1},
		{"1.", -1},
		{".5GiB", -1},
		{"1.5", -1},
		{"0.3KiB", -1},
		{"1e3", -1},
		{"0x10", -1},
		{"1_000", -1},
		{"1  MiB", -1},
		{" 1MiB", -1},
		{"1MiB ", -1},
		{"1PiB", -1},
		{"1025TiB", -1},
		{"9223372036854775808", -1},
		{"99999999999999999999GiB", -1},
		{"1/2", -1},
		{"5%", -1},
		{"١MiB", -1},
	}
	for _, tt := range tests {
		t.Run(tt.in, func(t *testing.T) {
			got, err := ParseSize(tt.in)
			if err != nil {
				got = -1
			}
			if got != tt.want {
				t.Errorf("ParseSize(%q) = %d, %v, want %d", tt.in, got, err, tt.want)
			}
		})
	}
}

func TestFormatSize(t *testing.T) {
	for bytes, want := range map[int64]string{0: "0B", 1: "1B", 1000: "1000B", 1024: "1KiB", 1536: "1536B", 512 << 20: "512MiB", 3 << 29: "1536MiB", 1 << 50: "1024TiB"} {
		if got := FormatSize(bytes); got != want {
			t.Errorf("FormatSize(%d) = %q, want %q", bytes, got, want)
		}
	}
}

func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"512MiB", "1.5g", "1 kB", "0", "-1", "99999999999999999999", "1e9", ".", "1024TiB"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseSize(s)
		if err != nil {
			return
		}
		if n < 0 || n > MaxSize {
			t.Errorf("ParseSize(%q) = %d, want a size within bounds", s, n)
		}
		if again, err := ParseSize(FormatSize(n)); err != nil || again != n {
			t.Errorf("ParseSize(FormatSize(%d)) = %d, %v", n, again, err)
		}
	})
}
