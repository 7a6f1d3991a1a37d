package spelling

import "testing"

func TestNearest(t *testing.T) {
	names := []string{"run", "rm", "logs", "memory", "memory-max", "timeout"}
	for typed, want := range map[string]string{"rnu": "run", "log": "logs", "memmory": "memory", "tiemout": "timeout", "x": "", "frobnicate": "", "": ""} {
		if got := Nearest(typed, names); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", typed, got, want)
		}
	}
}
