package main

import (
	"strings"
	"testing"
)

// good is an outcome that keeps every promise.
func good() outcome {
	o := outcome{job: jobs[0], inside: map[string]string{
		"uid": "65532", "NoNewPrivs": "1", "Seccomp": "2", "interfaces": "lo", "writable": "/tmp /workload",
	}}
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		o.inside[set] = noCaps
	}
	o.result.Stdout = "{}"
	o.result.Actuals.BusyCPUSecs, o.result.Actuals.PeakMemBytes = 1, 1
	o.outside = view{
		uids: map[int]bool{1879113724: true}, seccomp: map[string]bool{"2": true},
		limits: map[string]string{"memory.max": "536870912", "memory.swap.max": "0", "cpu.max": "100000 100000", "pids.max": "257"},
	}
	return o
}

func TestCheck(t *testing.T) {
	tests := []struct {
		name  string
		spoil func(*outcome)
		want  string // part of the error, "" for none
	}{
		{"all is kept", func(*outcome) {}, ""},
		{"a capability is left", func(o *outcome) { o.inside["CapBnd"] = "0000000000000400" }, "CapBnd 0000000000000400"},
		{"the probe said nothing", func(o *outcome) { o.inside = nil }, "Linux caps"},
		{"a process is root on the host", func(o *outcome) { o.outside.uids[0] = true }, `user is "0 1879113724"`},
		{"the host saw no process", func(o *outcome) { o.outside = view{} }, "seccomp mode"},
		{"there is a second interface", func(o *outcome) { o.inside["interfaces"] = "lo eth0" }, "lo eth0"},
		{"a limit was not enforced", func(o *outcome) { o.result.Unenforced = []string{"memory"} }, "peak memory"},
		{"the summaries differ", func(o *outcome) { o.result.Stdout = "[]" }, "differs"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := good()
			tt.spoil(&o)
			err := check([]outcome{good(), o})
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("check = %v, want none", err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("check = %v, want an error with %q", err, tt.want)
			}
		})
	}
}
