package api

import (
	"net/http"
	"strings"

	"github.com/direct-oci/engine/client/wire"
	"github.com/direct-oci/engine/engine"
)

// route is one row of the API.
type route struct {
	method  string
	path    string // of http.ServeMux, without the method
	class   Class
	summary string
	query   []parameter
	headers []parameter
	body    any     // of JSON, nil: none
	bytes   bool    // the body is of any bytes
	maxBody int64   // bytes
	status  int     // of success
	also    []int   // other statuses with the same body
	reply   any     // of JSON; nil: none
	plain   string  // content type of an answer that is no JSON
	events  []event // that it sends instead, to who asks for text/event-stream
	long    bool    // may take long, and does not count for the API's own time
	quiet   bool    // is asked so often that a success is not worth a line
	serve   func(*Server, *exchange) error
}

type parameter struct{ name, typ, doc string }

// event is one kind of server-sent event.
type event struct {
	name string
	data any
	doc  string
}

// Bounds of bodies.
const (
	smallBody = 64 << 10
	runBody   = 72 << 20 // files and secrets, in base64
	callBody  = 80 << 20 // the arguments' own bound, and an approval
)

var (
	outputEvents = []event{
		{"output", wire.OutputRecord{}, "a piece of output; its id is the cursor behind it"},
		{"done", wire.OutputDone{}, "nothing will follow; a stream that ends without it was cut: take it up again"},
		{"error", wire.Failure{}, "why there is no more"},
	}
	callEvents = []event{
		{"progress", wire.Progress{}, "a line that it has to say"},
		{"reply", wire.Reply{}, "what came of it; the last event"},
		{"error", wire.Failure{}, "why nothing came of it; the last event"},
	}
	resume = []parameter{{"Last-Event-ID", "string", "cursor to go on from"}}
)

// routes is the API.
func routes() []route {
	return append(append(runRoutes(), sandboxRoutes()...), serviceRoutes()...)
}

func runRoutes() []route {
	return []route{
		{method: "POST", path: "/v1/runs", class: Run, summary: "start a run, or join the one that has this id already (200)", body: wire.RunRequest{}, maxBody: runBody, status: 201, also: []int{200}, reply: wire.Run{}, serve: (*Server).startRun},
		{method: "GET", path: "/v1/runs", class: Read, summary: "list runs, the newest first", query: []parameter{
			{"state", "string", "only those in this state"},
			{"label", "string", "only those with this label, KEY=VALUE"},
			{"after", "string", "next of the page before"},
			{"limit", "integer", "runs of a page; default 100, at most 1000"},
		}, status: 200, reply: wire.RunList{}, serve: (*Server).listRuns},
		{method: "GET", path: "/v1/runs/{id}", class: Read, summary: "one run, with its output once it has ended", status: 200, reply: wire.Run{}, serve: (*Server).getRun},
		{method: "GET", path: "/v1/runs/{id}/wait", class: Read, summary: "the same once it has ended, or when the time is over: then result is null", query: []parameter{
			{"seconds", "integer", "how long to wait; default 60, at most 600"},
		}, status: 200, reply: wire.Run{}, long: true, serve: (*Server).waitRun},
		{method: "POST", path: "/v1/runs/{id}/kill", class: Run, summary: "end a run, with reason cancelled", maxBody: smallBody, status: 200, reply: wire.Run{}, long: true, serve: (*Server).killRun},
		{method: "DELETE", path: "/v1/runs/{id}", class: Run, summary: "delete what is on record of a run that has ended", status: 200, reply: wire.RunID{}, long: true, serve: (*Server).deleteRun},
		{method: "GET", path: "/v1/runs/{id}/logs", class: Read, summary: "what it wrote, from a cursor on; as events it is followed to its end", query: []parameter{
			{"offset", "integer", "cursor to begin at; default 0, the beginning"}, {"limit", "integer", "bytes of one answer, about; default 1 MiB, at most 4 MiB"},
		}, headers: resume, status: 200, reply: wire.Output{}, events: outputEvents, long: true, serve: (*Server).runLogs},
	}
}

func serviceRoutes() []route {
	list := []route{
		{method: "GET", path: "/v1/capabilities", class: Read, summary: "what may be asked for", query: []parameter{
			{"project", "string", "only those of this project"},
		}, status: 200, reply: wire.CapabilityList{}, serve: (*Server).listCapabilities},
		{method: "POST", path: "/v1/projects/{project}/capabilities/{name}/call", class: Run, summary: "do one thing of what may be asked for; as events with its progress. It ends with its caller", body: wire.Call{}, maxBody: callBody, status: 200, reply: wire.Reply{}, events: callEvents, long: true, serve: (*Server).call},
		{method: "GET", path: "/v1/images", class: Read, summary: "list the images; engine image pull and import bring them in", status: 200, reply: wire.ImageList{}, serve: (*Server).listImages},
		{method: "GET", path: "/v1/images/{name...}", class: Read, summary: "one image", status: 200, reply: wire.Image{}, serve: (*Server).getImage},
		{method: "GET", path: "/v1/drain", class: Read, summary: "whether nothing new may start", status: 200, reply: wire.Drain{}, serve: (*Server).getDrain},
		{method: "PUT", path: "/v1/drain", class: Admin, summary: "begin or end to let nothing new start", body: wire.DrainRequest{}, maxBody: smallBody, status: 200, reply: wire.Drain{}, serve: (*Server).setDrain},
		{method: "POST", path: "/v1/gc", class: Admin, summary: "collect what dead runs left", body: wire.GCRequest{}, maxBody: smallBody, status: 200, reply: wire.GCReport{}, long: true, serve: (*Server).collectNow},
		{method: "GET", path: "/v1/version", class: Read, summary: "who answers, and who asks", status: 200, reply: wire.VersionInfo{}, quiet: true, serve: (*Server).version},
		{method: "GET", path: "/v1/openapi.json", class: Read, summary: "this description", status: 200, plain: "application/json", serve: (*Server).openAPI},
	}
	// Where probes and scrapers look by themselves, and below the version as all else.
	for _, prefix := range []string{"", "/v1"} {
		list = append(list,
			route{method: "GET", path: prefix + "/healthz", class: Read, summary: "whether a run could start now; 503 if not", status: 200, also: []int{503}, reply: wire.Health{}, quiet: true, serve: (*Server).healthz},
			route{method: "GET", path: prefix + "/readyz", class: Read, summary: "whether new work should be sent here: healthz, and neither draining nor stopping; 503 if not", status: 200, also: []int{503}, reply: wire.Health{}, quiet: true, serve: (*Server).readyz},
			route{method: "GET", path: prefix + "/metrics", class: Read, summary: "figures for Prometheus", status: 200, plain: "text/plain", quiet: true, serve: (*Server).serveMetrics},
		)
	}
	return list
}

// mux makes the handler of all routes.
func (s *Server) mux() http.Handler {
	mux := http.NewServeMux()
	table := routes()
	for i := range table {
		mux.Handle(table[i].method+" "+table[i].path, s.handle(&table[i]))
	}
	mux.HandleFunc("/", func(_ http.ResponseWriter, r *http.Request) {
		x := r.Context().Value(exchangeKey{}).(*exchange)
		err := x.identify() // what there is, is nobody's business whom the config grants nothing
		if err == nil {
			err = unknownRoute(mux, table, x)
		}
		x.fail(err)
	})
	return mux
}

// unknownRoute explains a request that no route takes.
func unknownRoute(mux *http.ServeMux, table []route, x *exchange) error {
	var allowed []string
	for _, method := range []string{"GET", "POST", "PUT", "DELETE"} {
		other := x.r.Clone(x.r.Context())
		other.Method = method
		if _, pattern := mux.Handler(other); pattern != "/" {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) > 0 {
		x.w.Header().Set("Allow", strings.Join(allowed, ", "))
		return engine.Refused("bad_method", "cannot %s %s: want %s", clip(x.r.Method), clip(x.r.URL.Path), strings.Join(allowed, " or "))
	}
	e := engine.Refused("unknown_route", "cannot find path=%q: the API has no such one", clip(x.r.URL.Path))
	var paths []string
	for _, rt := range table {
		paths = append(paths, rt.path)
	}
	if best := nearest(x.r.URL.Path, paths); best != "" {
		return e.WithFix("did you mean " + best + "?")
	}
	return e.WithFix("see /v1/openapi.json")
}
