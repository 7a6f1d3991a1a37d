package runner

import (
	"strings"
	"testing"
)

// TestActions goes from a new action to a call of it.
func TestActions(t *testing.T) {
	for _, rt := range runtimes {
		t.Run(rt, func(t *testing.T) {
			b := newBed(t, rt, "development: true\n")
			b.engine(0, "action", "new", b.path("actions/hello"))
			b.engine(0, "action", "check", b.path("actions/hello"))
			b.engine(125, "action", "new", b.path("actions/hello"))
			b.write("actions/broken/action.json", `{"name":"broken"}`)
			list := b.governed(0, "capabilities", "--project", "shop")
			want := "[shop] hello  [action/read]  say hello to somebody\n[shop] workload.execute  [workload/unknown]  run a program that comes with the call, once, in a sandbox of its own\n"
			if list.Stdout != want || !strings.Contains(list.Stderr, "cannot offer broken of project=shop") {
				t.Errorf("%s\nwant %q and the broken one on stderr", list, want)
			}
			call := b.governed(0, "call", "shop", "hello", `{"name":"Ada"}`)
			if !strings.Contains(call.Stdout, `"output":{"greeting":"hello, Ada"}`) || !strings.Contains(call.Stderr, "saying hello\n") {
				t.Errorf("%s\nwant a greeting, and progress", call)
			}
			wrong := b.governed(125, "call", "shop", "hello", `{"name":5,"more":1}`, "--json")
			if strings.Count(wrong.Stdout, `"pointer"`) != 2 {
				t.Errorf("%s\nwant two violations", wrong)
			}
			// The action changes: what it prints does not fit its schema, and it writes.
			b.write("actions/hello/main.sh", `echo '{"greeting":5}'`)
			if bad := b.governed(1, "call", "shop", "hello", `{"name":"Ada"}`); !strings.Contains(bad.Stdout, "does not fit its schema: /greeting") {
				t.Errorf("%s\nwant its output refused", bad)
			}
			b.write("actions/hello/action.json", `{"name":"hello","description":"d","input":{},"output":{},"secrets":{"TOKEN":"to ask"},"entrypoint":"main.sh"}`)
			b.write("actions/hello/main.sh", `test "$TOKEN" = `+token+` && cat`)
			args := b.write("args.json", `{"a":[1,2]}`)
			if refused := b.governed(125, "call", "shop", "hello", "@"+args, "--json"); !strings.Contains(refused.Stdout, "not_approved") {
				t.Errorf("%s\nwant an approval to be needed", refused)
			}
			done := b.governed(0, "call", "shop", "hello", "@"+args, "--approval", b.approve("hello", args))
			if !strings.Contains(done.Stdout, `"output":{"a":[1,2]}`) {
				t.Errorf("%s\nwant its input back", done)
			}
			local := b.governed(0, "action", "test", b.path("actions/hello"), "@"+args, "--project", "shop")
			if !strings.Contains(local.Stderr, "nobody has approved this") {
				t.Errorf("%s\nwant it said that nobody approved", local)
			}
			b.governed(0, "audit", "verify")
		})
	}
}
