package rootfs

import "testing"

func TestAtLeast(t *testing.T) {
	for release, want := range map[string]bool{
		"6.1.0-57-cloud-amd64": false, "6.7.12": false, "5.15.0": false, "": false, "six": false,
		"6.8.0": true, "6.18.44": true, "7.0-rc1": true, "10.2": true,
	} {
		if got := atLeast(release, 6, 8); got != want {
			t.Errorf("atLeast(%q, 6, 8) = %v, want %v", release, got, want)
		}
	}
}
