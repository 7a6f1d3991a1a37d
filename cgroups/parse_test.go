package cgroups

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

func TestParseFlatKeyed(t *testing.T) {
	tests := []struct {
		name, data string
		want       map[string]int64
		wantErr    bool
	}{
		{"nothing", "", map[string]int64{}, false},
		{"cpu.stat", "usage_usec 12\nuser_usec 7\nsystem_usec 5\n", map[string]int64{"usage_usec": 12, "user_usec": 7, "system_usec": 5}, false},
		{"no newline at the end", "max 0", map[string]int64{"max": 0}, false},
		{"largest value", "a 9223372036854775807\n", map[string]int64{"a": 1<<63 - 1}, false},
		{"beyond int64", "a 9223372036854775808\n", nil, true},
		{"negative", "a -1\n", nil, true},
		{"not a number", "a max\n", nil, true},
		{"key alone", "a\n", nil, true},
		{"three fields", "a 1 2\n", nil, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseFlatKeyed([]byte(tt.data))
			if (err != nil) != tt.wantErr || !maps.Equal(got, tt.want) {
				t.Errorf("parseFlatKeyed(%q) = %v, %v, want %v, error %v", tt.data, got, err, tt.want, tt.wantErr)
			}
		})
	}
}

func TestParseIOStat(t *testing.T) {
	tests := []struct {
		name, data    string
		read, written int64
		wantErr       bool
	}{
		{"no device", "", 0, 0, false},
		{"two devices", "8:0 rbytes=10 wbytes=3 rios=1 wios=1 dbytes=0 dios=0\n254:0 rbytes=5 wbytes=0\n", 15, 3, false},
		{"device without figures", "7:0 \n8:0 rbytes=1 wbytes=2\n", 1, 2, false},
		{"other keys", "8:0 rbytes=1 cost.usage=7 cost.vrate=x\n", 1, 0, false},
		{"not a number", "8:0 rbytes=x\n", 0, 0, true},
		{"sum beyond int64", "8:0 rbytes=9223372036854775807\n8:1 rbytes=1\n", 0, 0, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			read, written, err := parseIOStat([]byte(tt.data))
			if (err != nil) != tt.wantErr || read != tt.read || written != tt.written {
				t.Errorf("parseIOStat(%q) = %d, %d, %v, want %d, %d, error %v", tt.data, read, written, err, tt.read, tt.written, tt.wantErr)
			}
		})
	}
}

func TestParseCPUList(t *testing.T) {
	tests := []struct {
		list    string
		want    []int
		wantErr bool
	}{
		{"", nil, false},
		{"0", []int{0}, false},
		{"0-3,6", []int{0, 1, 2, 3, 6}, false},
		{"2,1", []int{1, 2}, false},
		{"3-1", nil, true},
		{"0-8192", nil, true},
		{"1,", nil, true},
		{"-1", nil, true},
		{"0-3:2/4", nil, true},
	}
	for _, tt := range tests {
		got, err := parseCPUList(tt.list)
		if sorted := slices.Sorted(maps.Keys(got)); (err != nil) != tt.wantErr || !slices.Equal(sorted, tt.want) {
			t.Errorf("parseCPUList(%q) = %v, %v, want %v, error %v", tt.list, sorted, err, tt.want, tt.wantErr)
		}
	}
}

func TestParsePids(t *testing.T) {
	pids, foreign, err := parsePids([]byte("12\n0\n345\n0\n"))
	if !slices.Equal(pids, []int{12, 345}) || foreign != 2 || err != nil {
		t.Errorf("parsePids = %v, %d foreign, %v, want [12 345], 2 foreign", pids, foreign, err)
	}
	if _, _, err := parsePids([]byte("-1\n")); err == nil {
		t.Error("parsePids took -1, which is every process to kill(2)")
	}
}

func FuzzParseFlatKeyed(f *testing.F) {
	f.Add([]byte("usage_usec 12\nuser_usec 7\n"))
	f.Add([]byte("max 18446744073709551615"))
	f.Fuzz(func(t *testing.T, data []byte) {
		values, err := parseFlatKeyed(data)
		if err != nil {
			return
		}
		var text strings.Builder
		for key, v := range values {
			if v < 0 {
				t.Errorf("%q gave %s=%d", data, key, v)
			}
			fmt.Fprintf(&text, "%s %d\n", key, v)
		}
		again, err := parseFlatKeyed([]byte(text.String()))
		if err != nil || !maps.Equal(values, again) {
			t.Errorf("%q gave %v, printed and read again %v, %v", data, values, again, err)
		}
	})
}

func FuzzParseIOStat(f *testing.F) {
	f.Add([]byte("8:0 rbytes=10 wbytes=3\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if read, written, _ := parseIOStat(data); read < 0 || written < 0 {
			t.Errorf("%q gave %d, %d", data, read, written)
		}
	})
}

func FuzzParseCPUList(f *testing.F) {
	f.Add("0-3,6")
	f.Fuzz(func(t *testing.T, list string) {
		cpus, err := parseCPUList(list)
		for cpu := range cpus {
			if cpu < 0 || cpu > maxCPU || err != nil {
				t.Errorf("%q gave CPU %d, %v", list, cpu, err)
			}
		}
	})
}

func FuzzParsePids(f *testing.F) {
	f.Add([]byte("1\n0\n77\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		pids, _, _ := parsePids(data)
		for _, pid := range pids {
			if pid <= 0 {
				t.Errorf("%q gave process %d", data, pid)
			}
		}
	})
}
