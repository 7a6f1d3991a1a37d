package config

import (
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/service"
	"github.com/direct-oci/engine/service/admission"
	"github.com/direct-oci/engine/service/callback"
)

// Sandboxes is how sandboxes that stay are kept.
type Sandboxes struct {
	Image            string               `json:"image" doc:"of a sandbox that names none"`
	Runtime          string               `json:"runtime" doc:"of a sandbox that names none; default auto"`
	MaxCPUs          float64              `json:"maxCpus" doc:"what is more is cut down; default 64"`
	MaxMemoryMB      int64                `json:"maxMemoryMb" doc:"MiB; likewise; default 262144"`
	MaxPids          int64                `json:"maxPids" doc:"likewise; default 4096"`
	MaxTTLSeconds    float64              `json:"maxTtlSeconds" doc:"likewise; default a day"`
	TTLSeconds       float64              `json:"ttlSeconds" doc:"time to live of a sandbox that names none; default an hour"`
	IdleSeconds      float64              `json:"idleSeconds" doc:"after so long without anything to do a sandbox ends that says nothing else; default never"`
	KeepEndedSeconds float64              `json:"keepEndedSeconds" doc:"how long one that has ended stays on record; default an hour"`
	StartSeconds     float64              `json:"startSeconds" doc:"for a sandbox to answer; default a minute"`
	Classes          map[string]SizeClass `json:"classes" doc:"sizes by name; default small, large and heavy"`
	Total            Bounds               `json:"total" doc:"of all sandboxes of the host at once; default nine tenths of its memory, eight times its CPUs and half of its processes, and never more than cgroupRoot has"`
	Tenant           Share                `json:"tenant" doc:"of each tenant that is not named below; default the total alone bounds them"`
	Tenants          map[string]Share     `json:"tenants" doc:"of tenants by name"`
	Queue            int64                `json:"queue" doc:"who may wait for room at once; default 1000"`
	WaitSeconds      float64              `json:"waitSeconds" doc:"the longest wait for room; default 30"`
	Stores           Stores               `json:"stores" doc:"directories of the host that sandboxes may see; default none"`
	Callbacks        Callbacks            `json:"callbacks" doc:"where events may be sent to"`
}

// SizeClass is a size that can be asked for by name.
type SizeClass struct {
	CPUs     float64 `json:"cpus" required:"true"`
	MemoryMB int64   `json:"memoryMb" doc:"MiB" required:"true"`
}

// Bounds are of what is held at once. Zero is no bound.
type Bounds struct {
	Sandboxes int64   `json:"sandboxes"`
	CPUs      float64 `json:"cpus"`
	MemoryMB  float64 `json:"memoryMb" doc:"MiB"`
	Pids      int64   `json:"pids"`
}

// Share is one tenant's part.
type Share struct {
	Sandboxes int64   `json:"sandboxes"`
	CPUs      float64 `json:"cpus"`
	MemoryMB  float64 `json:"memoryMb" doc:"MiB"`
	Pids      int64   `json:"pids"`
	Weight    float64 `json:"weight" doc:"its part of what gets free; default 1"`
}

// Stores are directories of the host.
type Stores struct {
	Trees      string   `json:"trees" doc:"holds a directory for each resource"`
	Steps      string   `json:"steps" doc:"directory of the steps' directories in a tree; default steps"`
	StepDirs   []string `json:"stepDirs" doc:"made in each step before it starts; default input, output and tmp"`
	Libraries  string   `json:"libraries" doc:"the library store"`
	References string   `json:"references" doc:"the reference store"`
	UID        int64    `json:"uid" doc:"who owns what is made for steps in a tree of root's"`
	GID        int64    `json:"gid" doc:"likewise"`
}

// Callbacks are rules for the addresses that events are sent to.
type Callbacks struct {
	Off   bool     `json:"off" doc:"no sandbox may have one"`
	HTTP  bool     `json:"http" doc:"also without TLS"`
	Allow []string `json:"allow" doc:"ranges that are not public and may be sent to, 10.1.2.0/24"`
}

// Sandboxes is how sandboxes are kept by this config, for package service.
func (c Config) Sandboxes() service.Config {
	s := Sandboxes{}
	if c.Service != nil {
		s = c.Service.Sandboxes
	}
	out := service.Config{
		StateDir: c.State(), Image: s.Image, Runtime: s.Runtime,
		MaxCPUs: s.MaxCPUs, MaxMemoryMB: s.MaxMemoryMB, MaxPids: s.MaxPids,
		MaxTTL: seconds(s.MaxTTLSeconds), TTL: seconds(s.TTLSeconds), Idle: seconds(s.IdleSeconds),
		KeepEnded: seconds(s.KeepEndedSeconds), StartWithin: seconds(s.StartSeconds),
		BestEffortLimits: c.Serve().BestEffortLimits,
		Admission: admission.Config{
			Total: s.Total.limits(), Default: s.Tenant.tenant(), Tenants: map[string]admission.Tenant{},
			Queue: int(s.Queue), Wait: seconds(s.WaitSeconds),
		},
		Stores: service.Stores{
			Trees: s.Stores.Trees, Steps: s.Stores.Steps, StepDirs: s.Stores.StepDirs,
			Libraries: s.Stores.Libraries, References: s.Stores.References, UID: uint32(s.Stores.UID), GID: uint32(s.Stores.GID),
		},
		Callbacks: callback.Config{Off: s.Callbacks.Off, HTTP: s.Callbacks.HTTP},
	}
	for name, share := range s.Tenants {
		out.Admission.Tenants[name] = share.tenant()
	}
	if s.Classes != nil {
		out.Classes = map[string]service.Class{}
		for name, class := range s.Classes {
			out.Classes[name] = service.Class(class)
		}
	}
	for _, text := range s.Callbacks.Allow {
		if prefix, err := netip.ParsePrefix(text); err == nil { // check has seen to it
			out.Callbacks.Allow = append(out.Callbacks.Allow, prefix)
		}
	}
	return out
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func (b Bounds) limits() admission.Limits {
	return admission.Limits{Sandboxes: int(b.Sandboxes), CPUs: b.CPUs, Memory: int64(b.MemoryMB * (1 << 20)), Pids: b.Pids}
}

func (s Share) tenant() admission.Tenant {
	return admission.Tenant{Limits: Bounds{s.Sandboxes, s.CPUs, s.MemoryMB, s.Pids}.limits(), Weight: s.Weight}
}

func (k *checker) sandboxes(s Sandboxes) {
	numbers := map[string]float64{
		"maxCpus": s.MaxCPUs, "maxMemoryMb": float64(s.MaxMemoryMB), "maxPids": float64(s.MaxPids), "maxTtlSeconds": s.MaxTTLSeconds,
		"ttlSeconds": s.TTLSeconds, "idleSeconds": s.IdleSeconds, "keepEndedSeconds": s.KeepEndedSeconds, "startSeconds": s.StartSeconds,
		"queue": float64(s.Queue), "waitSeconds": s.WaitSeconds,
	}
	bounds := func(at string, b Bounds) {
		maps.Copy(numbers, map[string]float64{
			at + ".sandboxes": float64(b.Sandboxes), at + ".cpus": b.CPUs, at + ".memoryMb": b.MemoryMB, at + ".pids": float64(b.Pids),
		})
	}
	bounds("total", s.Total)
	shares := map[string]Share{"tenant": s.Tenant}
	for name, share := range s.Tenants {
		k.tenantName("service.sandboxes.tenants."+name, name)
		shares["tenants."+name] = share
	}
	for at, share := range shares {
		bounds(at, Bounds{share.Sandboxes, share.CPUs, share.MemoryMB, share.Pids})
		numbers[at+".weight"] = share.Weight
	}
	for name, class := range s.Classes {
		if class.CPUs <= 0 || class.MemoryMB <= 0 {
			k.bad("service.sandboxes.classes."+name, "is of no size", "give it cpus and memoryMb above zero")
		}
	}
	for key, dir := range map[string]string{"trees": s.Stores.Trees, "libraries": s.Stores.Libraries, "references": s.Stores.References} {
		if dir != "" && !filepath.IsAbs(dir) {
			k.bad("service.sandboxes.stores."+key, "is not an absolute path", "")
		}
	}
	for i, dir := range s.Stores.StepDirs {
		if !filepath.IsLocal(dir) {
			k.bad(fmt.Sprintf("service.sandboxes.stores.stepDirs[%d]", i), "leads out of the step", "write it as input, or data/raw")
		}
	}
	numbers["stores.uid"], numbers["stores.gid"] = float64(s.Stores.UID), float64(s.Stores.GID)
	for i, text := range s.Callbacks.Allow {
		if _, err := netip.ParsePrefix(text); err != nil {
			k.bad(fmt.Sprintf("service.sandboxes.callbacks.allow[%d]", i), "is no range of addresses", "write it as 10.1.2.0/24, one address as 10.1.2.3/32")
		}
	}
	k.runtime("service.sandboxes.runtime", s.Runtime, engine.Runtimes)
	if s.MaxTTLSeconds > 0 && s.TTLSeconds > s.MaxTTLSeconds {
		k.bad("service.sandboxes.ttlSeconds", "is more than maxTtlSeconds", "")
	}
	for key, v := range numbers {
		if v < 0 || v > 1e9 {
			k.bad("service.sandboxes."+key, "is negative, or absurdly large", "")
		}
	}
}
