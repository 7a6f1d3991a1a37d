package service

import (
	"maps"
	"math"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/direct-oci/engine/engine"
)

// Class is a size that can be asked for by name.
type Class struct {
	CPUs     float64 `json:"cpus"`
	MemoryMB int64   `json:"memoryMb"` // MiB
}

// DefaultClasses are those of a config that names none.
var DefaultClasses = map[string]Class{
	"small": {1, 1024},
	"large": {2, 2048},
	"heavy": {4, 8192},
}

// Estimated is what a sandbox needs for its files, as far as that can be told from their
// names and sizes.
type Estimated struct {
	CPUs     float64 `json:"cpus"`
	MemoryGB int64   `json:"memoryGb"` // 10^9 bytes
}

// expansion is by how much a file's content grows in memory, by the end of its name.
var expansion = func() map[string]float64 {
	table := map[string]float64{}
	for factor, endings := range map[float64]string{
		8:  "csv tsv txt json jsonl ndjson",
		15: "xlsx xls",
		12: "gz bz2 zip xz zst",
		4:  "parquet feather arrow orc h5 hdf5 nc mat npy npz",
		2:  "bam cram sam vcf bcf bed gff gtf fastq fasta fa fq",
		6:  "rds rdata rda",
		1:  "pdf png jpg jpeg svg html md",
	} {
		for ending := range strings.FieldsSeq(endings) {
			table[ending] = factor
		}
	}
	return table
}()

const unknownExpansion = 6

// Estimate tells what a sandbox needs that works on these files: memory for the largest
// one once it is read, CPUs by the size of all.
func Estimate(files []InputFile) Estimated {
	if len(files) == 0 {
		return Estimated{CPUs: 1, MemoryGB: 2}
	}
	var total, largest, memory float64
	for _, f := range files {
		size := float64(max(f.Size, 0))
		total += size
		if size < largest {
			continue
		}
		factor, known := expansion[strings.TrimPrefix(strings.ToLower(path.Ext(f.Name)), ".")]
		if !known {
			factor = unknownExpansion
		}
		// Of files of one size the one that grows most counts.
		need := size * factor
		if size > largest || need > memory {
			largest, memory = size, need
		}
	}
	e := Estimated{CPUs: 8, MemoryGB: int64(max(2, math.Ceil(2+memory/1e9)))}
	switch {
	case total < 100e6:
		e.CPUs = 1
	case total < 1e9:
		e.CPUs = 2
	case total < 10e9:
		e.CPUs = 4
	}
	if len(files) >= 8 {
		e.CPUs++
	}
	return e
}

// resources are the limits of a sandbox: declared, or of a class, or estimated, in this
// order, and never above the ceilings.
func (c Config) resources(s Spec) (engine.Limits, []Clamped, *Estimated, error) {
	cpus, memoryMB := s.CPUs, float64(s.MemoryMB)
	var estimate *Estimated
	if s.Class != "" {
		class, ok := c.Classes[s.Class]
		if !ok {
			return engine.Limits{}, nil, nil, engine.Refused("no_resources", "cannot size sandbox=%s: there is no class=%q", s.Name, s.Class).
				WithFix("name one of " + strings.Join(slices.Sorted(maps.Keys(c.Classes)), ", ") + ", or cpus and memoryMb")
		}
		cpus, memoryMB = orElse(cpus, class.CPUs), orElse(memoryMB, float64(class.MemoryMB))
	} else if len(s.Files) > 0 {
		e := Estimate(s.Files)
		estimate = &e
		cpus, memoryMB = orElse(cpus, e.CPUs), orElse(memoryMB, math.Ceil(float64(e.MemoryGB)*1e9/(1<<20)))
	}
	if !(cpus > 0) || !(memoryMB > 0) {
		return engine.Limits{}, nil, nil, engine.Refused("no_resources", "cannot size sandbox=%s: cpus=%v and memoryMb=%v, and both must be known", s.Name, cpus, memoryMB).
			WithFix("declare cpus and memoryMb, or a class, or the files that it will work on")
	}
	if s.TTL < 0 {
		return engine.Limits{}, nil, nil, engine.Refused("bad_limit", "cannot keep sandbox=%s for %v: want more than 0, or 0 for the default", s.Name, s.TTL)
	}
	if s.Pids < 0 {
		return engine.Limits{}, nil, nil, engine.Refused("bad_limit", "cannot size sandbox=%s: pids=%d, want more than 0, or 0 for the default", s.Name, s.Pids)
	}
	clamped := []Clamped{}
	clamp := func(limit string, asked, most float64) float64 {
		if asked <= most {
			return asked
		}
		clamped = append(clamped, Clamped{limit, asked, most})
		return most
	}
	l := engine.DefaultLimits()
	l.CPUs = clamp("cpus", cpus, c.MaxCPUs)
	l.Memory = int64(clamp("memoryMb", memoryMB, float64(c.MaxMemoryMB))) << 20
	l.Pids = int64(clamp("pids", float64(orElse(s.Pids, c.Pids)), float64(c.MaxPids)))
	l.Timeout = time.Duration(clamp("ttlSeconds", orElse(s.TTL, c.TTL).Seconds(), c.MaxTTL.Seconds()) * float64(time.Second))
	// What is written there counts as memory.
	l.TmpSize = min(l.TmpSize, l.Memory/4)
	l.WorkspaceSize = l.Memory / 2
	return l, clamped, estimate, nil
}

// idle is how long a sandbox may be without anything to do; zero: for ever.
func (c Config) idle(s Spec) time.Duration {
	switch {
	case s.Idle < 0:
		return 0
	case s.Idle == 0:
		return c.Idle
	default:
		return s.Idle
	}
}

// orElse is asked, or otherwise where nothing was.
func orElse[T int64 | float64 | time.Duration](asked, otherwise T) T {
	if asked == 0 {
		return otherwise
	}
	return asked
}

// completed is c with its defaults.
func (c Config) completed() Config {
	c.MaxCPUs = orElse(c.MaxCPUs, 64)
	c.MaxMemoryMB = orElse(c.MaxMemoryMB, 256<<10)
	c.MaxPids = orElse(c.MaxPids, 4096)
	c.MaxTTL = orElse(c.MaxTTL, 24*time.Hour)
	c.TTL = min(orElse(c.TTL, time.Hour), c.MaxTTL)
	c.Pids = min(orElse(c.Pids, 512), c.MaxPids)
	c.KeepEnded = orElse(c.KeepEnded, time.Hour)
	c.StartWithin = orElse(c.StartWithin, time.Minute)
	if c.Classes == nil {
		c.Classes = DefaultClasses
	}
	if c.Stores.Steps == "" {
		c.Stores.Steps = "steps"
	}
	if c.Stores.StepDirs == nil {
		c.Stores.StepDirs = DefaultStepDirs
	}
	if c.Runtime == "" {
		c.Runtime = "auto"
	}
	c.Callbacks = c.Callbacks.Completed()
	return c
}
