package service

import "testing"

func TestEstimate(t *testing.T) {
	files := func(n int, size int64, name string) []InputFile {
		var all []InputFile
		for range n {
			all = append(all, InputFile{name, size})
		}
		return all
	}
	const mb, gb = 1_000_000, 1_000_000_000
	tests := []struct {
		name  string
		files []InputFile
		cpus  float64
		gb    int64
	}{
		{"no files", nil, 1, 2},
		{"an empty file", files(1, 0, "x.csv"), 1, 2},
		{"a little text", files(1, mb, "x.csv"), 1, 3},
		{"a gigabyte of text", files(1, gb, "x.TSV"), 4, 10},
		{"a sheet", files(1, 100*mb, "x.xlsx"), 2, 4},
		{"compressed, whatever it was before", files(1, 500*mb, "x.csv.gz"), 2, 8},
		{"columns", files(1, gb, "x.parquet"), 4, 6},
		{"sequences", files(1, 10*gb, "x.bam"), 8, 22},
		{"of R", files(1, gb, "x.rds"), 4, 8},
		{"a picture", files(1, gb, "x.png"), 4, 3},
		{"an unknown ending", files(1, gb, "x.xyz"), 4, 8},
		{"no ending", files(1, gb, "README"), 4, 8},
		{"just below a hundred megabytes", files(1, 100*mb-1, "x.md"), 1, 3},
		{"just below a gigabyte", files(1, gb-1, "x.md"), 2, 3},
		{"just below ten", files(1, 10*gb-1, "x.md"), 4, 12},
		{"seven files", files(7, mb, "x.md"), 1, 3},
		{"eight files", files(8, mb, "x.md"), 2, 3},
		{"eight large files: the largest counts, not all", files(8, 2*gb, "x.bam"), 9, 6},
		{"the largest file's factor, not the worst", []InputFile{{"a.png", 2 * gb}, {"b.csv", gb}}, 4, 4},
		{"a size that cannot be", files(1, -5, "x.csv"), 1, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Estimate(tt.files); got != (Estimated{tt.cpus, tt.gb}) {
				t.Errorf("Estimate = %+v, want %v CPUs and %d GB", got, tt.cpus, tt.gb)
			}
		})
	}
}

func FuzzEstimate(f *testing.F) {
	f.Add("x.csv", int64(1), int64(1<<60))
	f.Fuzz(func(t *testing.T, name string, a, b int64) {
		e := Estimate([]InputFile{{name, a}, {name, b}})
		if e.MemoryGB < 2 || e.CPUs < 1 || e.CPUs > 9 {
			t.Errorf("Estimate = %+v", e)
		}
	})
}
