package config

import (
	"path/filepath"
	"time"

	"github.com/direct-oci/engine/capability/dependency"
	"github.com/direct-oci/engine/capability/install"
	"github.com/direct-oci/engine/capability/sandbox"
	"github.com/direct-oci/engine/engine"
)

// Dependencies is what programs may have installed.
type Dependencies struct {
	NPM      *Registry `json:"npm" doc:"where packages for node come from; without it none are installed"`
	Pip      *Registry `json:"pip" doc:"where packages for Python come from; without it none are installed"`
	CA       string    `json:"ca" doc:"file of certificates (PEM) that the registries are checked against; default what the image trusts"`
	Scripts  bool      `json:"scripts" doc:"install scripts may be asked for, and are then part of what is approved"`
	Unlocked bool      `json:"unlocked" doc:"programs may do without a lock; one is then made and reported"`
	Shared   bool      `json:"shared" doc:"all projects use the same installed files, those with install scripts excepted; default each has its own"`
	Limits   Install   `json:"limits" doc:"of installing; what is installed lies in its memory meanwhile"`
	MaxMB    int64     `json:"maxMb" doc:"MiB of the files of one program's dependencies; default 1024"`
	MaxFiles int64     `json:"maxFiles" doc:"files, directories and links of them; default 200000"`
	KeepMB   int64     `json:"keepMb" doc:"MiB that each project keeps on disk, the longest unused going first; default 8192"`
	KeepDays int64     `json:"keepDays" doc:"days that what nobody uses is kept; default 30"`
}

// Install is Limits with other defaults.
type Install struct {
	CPUs           float64 `json:"cpus" doc:"default that of sandbox.limits"`
	MemoryMB       float64 `json:"memoryMb" doc:"MiB; default 1024"`
	TimeoutSeconds float64 `json:"timeoutSeconds" doc:"default 300"`
	Pids           int64   `json:"pids" doc:"processes and threads; default that of sandbox.limits"`
}

// Registry is where packages of one kind come from.
type Registry struct {
	Registry string   `json:"registry" doc:"its URL; for pip that of its simple index" required:"true"`
	Hosts    []string `json:"hosts" doc:"HOST[:PORT] and CIDR:PORT that it sends the installer to for files"`
}

// Defaults of what a config leaves open.
const (
	defaultInstallMB      = 1024
	defaultInstallSeconds = 300
	defaultMaxMB          = 1024
	defaultMaxFiles       = 200_000
	defaultKeepMB         = 8192
	defaultKeepDays       = 30
)

// Installer is how dependencies are installed; nil if they are not.
func (c Config) Installer() *install.Installer {
	if c.Sandbox == nil || c.Sandbox.Dependencies == nil {
		return nil
	}
	d := *c.Sandbox.Dependencies
	profile := c.Profile()
	return &install.Installer{
		Profile: profile, NPM: d.NPM.registry(), Pip: d.Pip.registry(), CAFile: d.CA,
		Scripts: d.Scripts, Unlocked: d.Unlocked, Shared: d.Shared,
		Max: sandbox.Limits{
			CPUs: or(d.Limits.CPUs, profile.Max.CPUs), MemoryMB: or(d.Limits.MemoryMB, defaultInstallMB),
			TimeoutSeconds: or(d.Limits.TimeoutSeconds, defaultInstallSeconds), Pids: or(d.Limits.Pids, profile.Max.Pids),
		},
		MaxBytes: or(d.MaxMB, defaultMaxMB) << 20, MaxFiles: or(d.MaxFiles, defaultMaxFiles),
		KeepBytes: or(d.KeepMB, defaultKeepMB) << 20, KeepFor: time.Duration(or(d.KeepDays, defaultKeepDays)) * 24 * time.Hour,
	}
}

// or is the value, or what it is if none was given.
func or[T float64 | int64](value, otherwise T) T {
	if value > 0 {
		return value
	}
	return otherwise
}

func (r *Registry) registry() *dependency.Registry {
	if r == nil {
		return nil
	}
	return &dependency.Registry{URL: r.Registry, Hosts: r.Hosts}
}

const dependenciesKey = "sandbox.dependencies"

func (k *checker) dependencies(d Dependencies) {
	if d.NPM == nil && d.Pip == nil {
		k.bad(dependenciesKey, "names no registry", "name one for npm, for pip or for both, or leave it out")
	}
	for name, r := range map[string]*Registry{"npm": d.NPM, "pip": d.Pip} {
		if r == nil {
			continue
		}
		at := dependenciesKey + "." + name
		if why := r.registry().Check(); why != "" {
			k.bad(at+".registry", why, "write it as https://registry.example.org/path/")
			continue
		}
		if d.Unlocked && !r.registry().Encrypted() {
			k.bad(at+".registry", "is not encrypted, and without a lock nothing tells what comes from it", "use https, or leave unlocked out")
		}
		if _, err := sandbox.ParseGrants(r.registry().Grants()); err != nil {
			k.bad(at, "cannot be reached: "+err.Error(), engine.AsError(err).Fix)
		}
	}
	if d.CA != "" && !filepath.IsAbs(d.CA) {
		k.bad(dependenciesKey+".ca", "is not an absolute path", "")
	}
	k.limits(dependenciesKey+".limits", Limits(d.Limits))
	for name, v := range map[string]int64{"maxMb": d.MaxMB, "maxFiles": d.MaxFiles, "keepMb": d.KeepMB, "keepDays": d.KeepDays} {
		if v < 0 || v > 1<<30 {
			k.bad(dependenciesKey+"."+name, "is negative, or more than anybody has", "")
		}
	}
}

func (k *checker) limits(at string, l Limits) {
	for name, v := range map[string]float64{"cpus": l.CPUs, "memoryMb": l.MemoryMB, "timeoutSeconds": l.TimeoutSeconds, "pids": float64(l.Pids)} {
		if v < 0 {
			k.bad(at+"."+name, "is negative", "")
		}
	}
}
