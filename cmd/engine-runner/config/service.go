package config

import (
	"encoding/hex"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/direct-oci/engine/capability/sandbox"
	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/engine/spelling"
)

// Service is how engine serve listens, to whom, and the most that it grants.
type Service struct {
	Socket           string    `json:"socket" doc:"path of the Unix socket; default api.sock in runDir. systemd's socket wins"`
	Access           []Access  `json:"access" doc:"who may use the socket besides root; the first entry that fits a caller counts"`
	TCP              *TCP      `json:"tcp" doc:"listen on an address too, always with TLS"`
	Limits           Maxima    `json:"limits" doc:"maxima of one run of a caller who is no admin; default none"`
	Egress           Egress    `json:"egress" doc:"the most that a caller who is no admin can be granted; default nothing"`
	BestEffortLimits bool      `json:"bestEffortLimits" doc:"start runs even where this host cannot enforce a limit; results list which"`
	GCSeconds        float64   `json:"gcSeconds" doc:"between two collections of what dead runs left; default 60"`
	KeepRunsSeconds  float64   `json:"keepRunsSeconds" doc:"after which the record of a run that is over is deleted, output included; default never"`
	PerSecond        float64   `json:"requestsPerSecond" doc:"of each tenant, or caller without one who is no admin; what is more is held back for up to five seconds, then refused; default 200"`
	Sandboxes        Sandboxes `json:"sandboxes" doc:"sandboxes that stay: defaults, ceilings, room"`
	StopSeconds      float64   `json:"stopSeconds" doc:"for requests under way when the service is told to stop; default 20"`
}

// Maxima are the most that may be asked for.
type Maxima struct {
	CPUs           float64 `json:"cpus" doc:"default no maximum"`
	MemoryMB       float64 `json:"memoryMb" doc:"MiB; likewise"`
	Pids           int64   `json:"pids" doc:"processes and threads; likewise"`
	TimeoutSeconds float64 `json:"timeoutSeconds" doc:"likewise"`
}

// Access lets somebody use the socket.
type Access struct {
	User   string `json:"user" doc:"name, or number in quotes; user and group: both must fit"`
	Group  string `json:"group" doc:"name, or number in quotes"`
	Allow  string `json:"allow" doc:"read, run or admin" required:"true"`
	Tenant string `json:"tenant" doc:"confine them to what belongs to this tenant; default they see all"`
}

// TCP is an address to listen on.
type TCP struct {
	Listen      string               `json:"listen" doc:"ADDRESS:PORT" required:"true"`
	Certificate string               `json:"certificate" doc:"file of the certificate and its chain, PEM; read again at SIGHUP" required:"true"`
	Key         string               `json:"key" doc:"file of its private key" required:"true"`
	ClientCA    string               `json:"clientCA" doc:"file of the certificates that sign clients; without it no client certificate counts"`
	Clients     map[string]TLSClient `json:"clients" doc:"who may do what, by the common name of their certificate"`
	Tokens      map[string]Token     `json:"tokens" doc:"who may do what, by a token; see engine config token"`
}

// TLSClient is somebody with a certificate.
type TLSClient struct {
	Allow  string `json:"allow" doc:"read, run or admin" required:"true"`
	Tenant string `json:"tenant" doc:"confine them to what belongs to this tenant; default they see all"`
}

// Token is somebody who knows one.
type Token struct {
	SHA256 string `json:"sha256" doc:"of the token, in hexadecimal; see engine config token" required:"true"`
	Allow  string `json:"allow" doc:"read, run or admin" required:"true"`
	Tenant string `json:"tenant" doc:"confine them to what belongs to this tenant; default they see all"`
}

// DefaultRunDir is where what does not outlive a boot is unless the config says otherwise.
const DefaultRunDir = "/run/engine"

// Host is where the engine lives by this config.
func (c Config) Host() engine.Host {
	h := engine.Host{
		StateDir: c.State(), RunDir: c.RunDir, CgroupRoot: c.CgroupRoot,
		MinFreeDisk: int64(c.MinFreeDiskMB * (1 << 20)), MinFreeMemory: int64(c.MinFreeMemoryMB * (1 << 20)),
	}
	if h.RunDir == "" {
		h.RunDir = DefaultRunDir
	}
	return h
}

// Serve is the service's part of the config, with everything filled in.
func (c Config) Serve() Service {
	s := Service{}
	if c.Service != nil {
		s = *c.Service
	}
	if s.Socket == "" {
		s.Socket = filepath.Join(c.Host().RunDir, "api.sock")
	}
	if s.GCSeconds == 0 {
		s.GCSeconds = 60
	}
	if s.PerSecond == 0 {
		s.PerSecond = 200
	}
	if s.StopSeconds == 0 {
		s.StopSeconds = 20
	}
	return s
}

// GCEvery is the time between two collections.
func (s Service) GCEvery() time.Duration { return time.Duration(s.GCSeconds * float64(time.Second)) }

// KeepRuns is how long records of runs are kept that are over; 0: until somebody deletes them.
func (s Service) KeepRuns() time.Duration {
	return time.Duration(s.KeepRunsSeconds * float64(time.Second))
}

// minKeepRuns is for callers who come back for a result after a restart.
const minKeepRuns = time.Hour

// StopBound is for requests under way at the end.
func (s Service) StopBound() time.Duration {
	return time.Duration(s.StopSeconds * float64(time.Second))
}

var classes = []string{"read", "run", "admin"}

func (k *checker) allow(at, class string) {
	if slices.Contains(classes, class) {
		return
	}
	fix := ""
	if best := spelling.Nearest(class, classes); best != "" {
		fix = "did you mean " + best + "?"
	}
	k.bad(at+".allow", "is none of "+strings.Join(classes, ", "), fix)
}

func (k *checker) tenant(at, tenant string) {
	if tenant != "" {
		k.tenantName(at+".tenant", tenant)
	}
}

func (k *checker) tenantName(at, name string) {
	if !slugForm.MatchString(name) {
		k.bad(at, "is no name of a tenant", "use lower-case letters, digits, dots, _ and -")
	}
}

func (k *checker) service(s Service) {
	if s.Socket != "" && !filepath.IsAbs(s.Socket) {
		k.bad("service.socket", "is not an absolute path", "")
	}
	if len(s.Socket) > 100 {
		k.bad("service.socket", "is longer than the path of a socket can be", "choose a shorter one")
	}
	for i, a := range s.Access {
		at := fmt.Sprintf("service.access[%d]", i)
		if a.User == "" && a.Group == "" {
			k.bad(at, "names nobody", "give it a user, a group, or both")
		}
		k.allow(at, a.Allow)
		k.tenant(at, a.Tenant)
	}
	for name, v := range map[string]float64{
		"limits.cpus": s.Limits.CPUs, "limits.memoryMb": s.Limits.MemoryMB, "limits.pids": float64(s.Limits.Pids),
		"limits.timeoutSeconds": s.Limits.TimeoutSeconds, "gcSeconds": s.GCSeconds, "keepRunsSeconds": s.KeepRunsSeconds, "stopSeconds": s.StopSeconds,
		"requestsPerSecond": s.PerSecond,
	} {
		if v < 0 || v > 1e9 {
			k.bad("service."+name, "is negative, or absurdly large", "")
		}
	}
	if s.GCSeconds > 0 && s.GCSeconds < 1 {
		k.bad("service.gcSeconds", "is less than a second", "")
	}
	if s.KeepRunsSeconds > 0 && s.KeepRuns() < minKeepRuns {
		k.bad("service.keepRunsSeconds", "is less than an hour", "give those time who come back for a result")
	}
	if _, err := sandbox.ParseGrants(s.Egress.Allow); err != nil {
		k.bad("service.egress.allow", "is no list of grants: "+err.Error(), engine.AsError(err).Fix)
	}
	k.sandboxes(s.Sandboxes)
	if s.TCP != nil {
		k.tcp(*s.TCP)
	}
}

func (k *checker) tcp(t TCP) {
	if _, _, err := net.SplitHostPort(t.Listen); err != nil {
		k.bad("service.tcp.listen", "is no ADDRESS:PORT", "")
	}
	for name, path := range map[string]string{"certificate": t.Certificate, "key": t.Key, "clientCA": t.ClientCA} {
		if path != "" && !filepath.IsAbs(path) {
			k.bad("service.tcp."+name, "is not an absolute path", "")
		}
	}
	for name, c := range t.Clients {
		k.allow("service.tcp.clients."+name, c.Allow)
		k.tenant("service.tcp.clients."+name, c.Tenant)
	}
	if len(t.Clients) > 0 && t.ClientCA == "" {
		k.bad("service.tcp.clients", "needs clientCA, or no certificate counts", "name the file of the CA that signs them")
	}
	for name, token := range t.Tokens {
		at := "service.tcp.tokens." + name
		k.allow(at, token.Allow)
		k.tenant(at, token.Tenant)
		if hash, err := hex.DecodeString(token.SHA256); err != nil || len(hash) != 32 {
			k.bad(at+".sha256", "is not 64 hexadecimal digits", "make a token with engine config token")
		}
	}
}
