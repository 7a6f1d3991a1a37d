package api

import "github.com/direct-oci/engine/client/wire"

const (
	// maxUpload bounds a file, an archive, or what is written to a program at once.
	maxUpload   = 4 << 30
	sandboxBody = 8 << 20 // an environment and secrets
)

var (
	execEvents = []event{
		{"exec", wire.ExecEvent{}, "something that it wrote, or its exit; its id is the cursor behind it"},
		{"done", wire.ExecDone{}, "nothing will follow; a stream that ends without it was cut: take it up again"},
		{"error", wire.Failure{}, "why there is no more"},
	}
	statsEvents = []event{{"stats", wire.Stats{}, "figures of this moment"}, {"error", wire.Failure{}, "why there are no more"}}
	fileEvents  = []event{{"file", wire.FileEvent{}, "something that happened"}, {"error", wire.Failure{}, "why there is no more"}}

	filters = []parameter{
		{"owner", "string", "only those of this owner"},
		{"label", "string", "only those with this label, KEY=VALUE; repeatable"},
		{"state", "string", "only those in this state; repeatable"},
	}
	whichFile = parameter{"path", "string", "absolute, inside the sandbox; a byte that is no UTF-8 as %XX"}
	seconds   = []parameter{{"seconds", "integer", "how long to wait; default 60, at most 600"}}
)

func sandboxRoutes() []route {
	return []route{
		{method: "POST", path: "/v1/sandboxes", class: Run, summary: "create a sandbox that stays, or adopt the one that its owner has under this name (200); returns once it answers", body: wire.SandboxRequest{}, maxBody: sandboxBody, status: 201, also: []int{200}, reply: wire.Sandbox{}, long: true, serve: (*Server).createSandbox},
		{method: "GET", path: "/v1/sandboxes", class: Read, summary: "list sandboxes, the newest first", query: filters, status: 200, reply: wire.SandboxList{}, serve: (*Server).listSandboxes},
		{method: "DELETE", path: "/v1/sandboxes", class: Run, summary: "tear down all that an owner or a label chooses", query: filters, status: 200, reply: wire.Removed{}, long: true, serve: (*Server).removeSandboxes},
		{method: "GET", path: "/v1/sandboxes/{id}", class: Read, summary: "one sandbox, by its name or id", status: 200, reply: wire.Sandbox{}, serve: (*Server).getSandbox},
		{method: "DELETE", path: "/v1/sandboxes/{id}", class: Run, summary: "tear one down; one that is gone is a success", status: 200, reply: wire.Removed{}, long: true, serve: (*Server).removeSandbox},
		{method: "GET", path: "/v1/sandboxes/{id}/liveness", class: Read, summary: "whether it lives, when nothing is heard of it", status: 200, reply: wire.Liveness{}, serve: (*Server).liveness},
		{method: "POST", path: "/v1/sandboxes/{id}/renew", class: Run, summary: "give it a time to live from now on", body: wire.RenewRequest{}, maxBody: smallBody, status: 200, reply: wire.Renewed{}, serve: (*Server).renewSandbox},
		{method: "POST", path: "/v1/sandboxes/{id}/pause", class: Run, summary: "stop every process where it stands; deadlines go on", maxBody: smallBody, status: 200, reply: wire.Sandbox{}, serve: (*Server).pauseSandbox},
		{method: "POST", path: "/v1/sandboxes/{id}/resume", class: Run, summary: "let them go on", maxBody: smallBody, status: 200, reply: wire.Sandbox{}, serve: (*Server).resumeSandbox},
		{method: "GET", path: "/v1/sandboxes/{id}/stats", class: Read, summary: "what it uses; as events, again and again", query: []parameter{
			{"every", "integer", "seconds between two events; default 1"},
		}, status: 200, reply: wire.Stats{}, events: statsEvents, long: true, serve: (*Server).sandboxStats},
		{method: "POST", path: "/v1/estimate", class: Read, summary: "the size that files ask for", body: wire.EstimateRequest{}, maxBody: bulkBody, status: 200, reply: wire.Estimate{}, serve: (*Server).estimate},

		{method: "POST", path: "/v1/sandboxes/{id}/execs", class: Run, summary: "start a program, or join the one that has this id already; returns once it runs", body: wire.ExecRequest{}, maxBody: 4 << 20, status: 200, reply: wire.Exec{}, serve: (*Server).startExec},
		{method: "GET", path: "/v1/sandboxes/{id}/execs", class: Read, summary: "list its programs", status: 200, reply: wire.ExecList{}, serve: (*Server).listExecs},
		{method: "GET", path: "/v1/sandboxes/{id}/execs/{exec}", class: Read, summary: "one program", status: 200, reply: wire.Exec{}, serve: (*Server).getExec},
		{method: "GET", path: "/v1/sandboxes/{id}/execs/{exec}/wait", class: Read, summary: "the same once it has ended, or when the time is over: then result is null", query: seconds, status: 200, reply: wire.Exec{}, long: true, serve: (*Server).waitExec},
		{method: "GET", path: "/v1/sandboxes/{id}/execs/{exec}/events", class: Read, summary: "what it wrote and its exit, from a cursor on; as events it is followed to its end", query: []parameter{
			{"cursor", "string", "where to begin; default the beginning"}, {"limit", "integer", "bytes of one answer, about; default 1 MiB, at most 4 MiB"},
		}, headers: resume, status: 200, reply: wire.ExecEvents{}, events: execEvents, long: true, serve: (*Server).execEvents},
		{method: "POST", path: "/v1/sandboxes/{id}/execs/{exec}/stdin", class: Run, summary: "write the body to its stdin, as it comes", query: []parameter{
			{"close", "boolean", "end its stdin after that"},
		}, bytes: true, maxBody: maxUpload, status: 200, reply: wire.StdinReply{}, long: true, serve: (*Server).writeStdin},
		{method: "POST", path: "/v1/sandboxes/{id}/execs/{exec}/signal", class: Run, summary: "send a signal to its process group", body: wire.SignalRequest{}, maxBody: smallBody, status: 200, reply: wire.Exec{}, serve: (*Server).signalExec},
		{method: "POST", path: "/v1/sandboxes/{id}/execs/{exec}/resize", class: Run, summary: "give its terminal another size", body: wire.WindowSize{}, maxBody: smallBody, status: 200, reply: wire.Exec{}, serve: (*Server).resizeExec},
		{method: "GET", path: "/v1/sandboxes/{id}/execs/{exec}/attach", class: Run, summary: "a WebSocket: stdin, signals and sizes go in, events come out", query: []parameter{
			{"cursor", "string", "where to begin; default the beginning"},
		}, status: 101, plain: "application/json", long: true, serve: (*Server).attachExec},

		{method: "GET", path: "/v1/sandboxes/{id}/files/content", class: Run, summary: "read a file", query: []parameter{
			whichFile, {"offset", "integer", "default 0"}, {"limit", "integer", "bytes; default all"},
		}, status: 200, plain: "application/octet-stream", long: true, serve: (*Server).readFile},
		{method: "PUT", path: "/v1/sandboxes/{id}/files/content", class: Run, summary: "write a file: it appears complete, in place of what was there", query: []parameter{
			whichFile,
			{"mode", "string", "permissions, 0644; default those of what it replaces"},
			{"parents", "boolean", "make the directories that are missing"},
			{"exclusive", "boolean", "nothing may be there yet"},
		}, bytes: true, maxBody: maxUpload, status: 200, reply: wire.FileInfo{}, long: true, serve: (*Server).writeFile},
		{method: "GET", path: "/v1/sandboxes/{id}/files/stat", class: Run, summary: "look at a file", query: []parameter{whichFile, {"follow", "boolean", "what a link leads to"}}, status: 200, reply: wire.FileInfo{}, serve: (*Server).statFile},
		{method: "GET", path: "/v1/sandboxes/{id}/files/list", class: Run, summary: "list a directory", query: []parameter{
			whichFile, {"after", "string", "next of the page before"}, {"limit", "integer", "files of a page, at most 1000"},
		}, status: 200, reply: wire.FileList{}, serve: (*Server).listFiles},
		{method: "POST", path: "/v1/sandboxes/{id}/files/mkdir", class: Run, summary: "make a directory", body: wire.MkdirRequest{}, maxBody: smallBody, status: 200, reply: wire.FilePath{}, serve: (*Server).makeDirectory},
		{method: "POST", path: "/v1/sandboxes/{id}/files/move", class: Run, summary: "move a file or directory", body: wire.MoveRequest{}, maxBody: smallBody, status: 200, reply: wire.FilePath{}, serve: (*Server).moveFile},
		{method: "DELETE", path: "/v1/sandboxes/{id}/files", class: Run, summary: "remove a file or directory", query: []parameter{whichFile, {"recursive", "boolean", "with all that is below"}}, status: 200, reply: wire.FilePath{}, serve: (*Server).removeFile},
		{method: "GET", path: "/v1/sandboxes/{id}/files/watch", class: Run, summary: "what happens in a directory, as events, until the client leaves", query: []parameter{whichFile, {"recursive", "boolean", "and below"}}, status: 200, events: fileEvents, long: true, serve: (*Server).watchFiles},
		{method: "GET", path: "/v1/sandboxes/{id}/files/archive", class: Run, summary: "a tar archive of a directory", query: []parameter{whichFile}, status: 200, plain: "application/x-tar", long: true, serve: (*Server).exportFiles},
		{method: "PUT", path: "/v1/sandboxes/{id}/files/archive", class: Run, summary: "unpack a tar archive into a directory", query: []parameter{whichFile}, bytes: true, maxBody: maxUpload, status: 200, reply: wire.Archived{}, long: true, serve: (*Server).importFiles},
	}
}
