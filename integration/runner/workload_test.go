package runner

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/direct-oci/engine/integration/testenv"
)

// TestWorkload goes the whole way: review, approval, run, result, receipt, audit log.
func TestWorkload(t *testing.T) {
	eachRuntime(t, func(t *testing.T, b *bed) {
		script := `echo "on the way" >&2
stat -c '%n %a %u' /workload/main.sh /workload/lib/data.txt /workload/lib /workload/tool $KEY
cat lib/data.txt; ./tool; pwd; id -u
test "$TOKEN" = ` + token + ` && echo token
grep -c canary $KEY
`
		contents, err := json.Marshal(script)
		if err != nil {
			t.Fatal(err)
		}
		spec := b.write("job.json", `{"title":"whole","files":[{"path":"main.sh","contents":`+string(contents)+`},
			{"path":"lib/data.txt","contents":"data \ud83d\ude00 \ud800\n"},{"path":"tool","contents":"#!/bin/sh\necho tool\n"}],
			"entrypoint":"main.sh","secrets":["TOKEN","KEY"],"limits":{"timeoutSeconds":30}}`)
		digest := strings.TrimSpace(b.engine(0, "digest", "@"+spec).Stdout)

		review := b.governed(0, "approve", "shop", "workload.execute", "@"+spec).Stdout
		for _, want := range []string{digest, "KEY, TOKEN", "network      none", "grep -c canary", "Nothing was approved under this title before"} {
			if !strings.Contains(review, want) {
				t.Errorf("the review lacks %q:\n%s", want, review)
			}
		}
		refused := b.governed(125, "call", "shop", "workload.execute", "@"+spec, "--json")
		if !strings.Contains(refused.Stdout, `"kind":"not_approved"`) {
			t.Errorf("%s\nwant a refusal without approval", refused)
		}
		approval := b.approve("workload.execute", spec)
		call := b.governed(0, "call", "shop", "workload.execute", "@"+spec, "--approval", approval, "--receipt", b.path("receipt.json"))
		var o output
		if err := json.Unmarshal([]byte(call.Stdout), &o); err != nil {
			t.Fatalf("%s\n%v", call, err)
		}
		want := "/workload/main.sh 644 65532\n/workload/lib/data.txt 644 65532\n/workload/lib 755 65532\n/workload/tool 755 65532\n" +
			"/run/secrets/KEY 400 65532\ndata \U0001F600 \ufffd\ntool\n/workload\n65532\ntoken\n1\n"
		if !o.OK || o.Stdout != want || o.Digest != digest || o.Reason != "exited" || o.Network.Mode != "none" || o.Actuals.BusyCPUSecs == nil || o.Timing.SandboxMs == nil {
			t.Errorf("%s\nwant stdout %q", call, want)
		}
		if !strings.Contains(call.Stderr, "on the way\n") {
			t.Errorf("%s\nwant progress on stderr", call)
		}
		again := b.governed(125, "call", "shop", "workload.execute", "@"+spec, "--approval", approval, "--json")
		if !strings.Contains(again.Stdout, `"kind":"approval_used"`) {
			t.Errorf("%s\nwant a refusal the second time", again)
		}
		// Offline: the receipt and the public key are enough.
		public := b.path("state/receipts/key.pub")
		if r := b.engine(0, "verify", b.path("receipt.json"), "--key", public, "--json").Stdout; !strings.Contains(r, `"approver":"alice"`) || !strings.Contains(r, digest) {
			t.Errorf("the receipt says %s", r)
		}
		program := map[string]string{"embedded": "engine-monitor"}[b.runtime]
		if program == "" {
			program = b.runtime
		}
		data, err := os.ReadFile(testenv.Binary(t, program))
		if err != nil {
			t.Fatal(err)
		}
		if r := b.engine(0, "verify", b.path("receipt.json"), "--key", public, "--json").Stdout; !strings.Contains(r, fmt.Sprintf(`"sha256":"%x"`, sha256.Sum256(data))) {
			t.Errorf("the receipt has not the hash of %s: %s", program, r)
		}
		b.governed(0, "audit", "verify", "--receipt", b.path("receipt.json"))
		if review := b.governed(0, "approve", "shop", "workload.execute", "@"+spec).Stdout; !strings.Contains(review, "3 of 3 files are as they were approved") {
			t.Errorf("the next review:\n%s", review)
		}
	})
}

// TestEnds proves how a workload's end is told.
func TestEnds(t *testing.T) {
	eachRuntime(t, func(t *testing.T, b *bed) {
		if o, call := b.run(1, "echo out; exit 3", ""); o.OK || o.ExitCode != 3 || o.Stdout != "out\n" || o.TimedOut {
			t.Errorf("%s\nwant exit code 3", call)
		}
		if o, call := b.run(1, "trap '' TERM; sleep 60", `,"limits":{"timeoutSeconds":0.5}`); o.OK || o.ExitCode != -1 || !o.TimedOut || o.Reason != "timeout" || o.DurationMs > 30000 {
			t.Errorf("%s\nwant a timeout", call)
		}
		if o, call := b.run(1, "kill -9 $$", ""); o.OK || o.ExitCode != -1 || o.Reason != "signal" {
			t.Errorf("%s\nwant a signal", call)
		}
		// The cap is of bytes and never within a character.
		o, call := b.run(0, `yes 'ééééééé' | head -c 1200000`, "")
		if !o.StdoutTruncated || o.StdoutBytes != 1200000 || len(o.Stdout) > 1000000 || strings.ContainsRune(o.Stdout, '\ufffd') {
			t.Errorf("%d of %d bytes, truncated %v\n%.300s", len(o.Stdout), o.StdoutBytes, o.StdoutTruncated, call)
		}
		if o, call := b.run(0, "echo "+token+"; cat $KEY", `,"secrets":["TOKEN","KEY"]`); strings.Contains(call.Stdout+call.Stderr, "canary") || !strings.Contains(o.Stdout, "[redacted:TOKEN]") {
			t.Errorf("%s\nwant it redacted", call)
		}
		spec := b.write("py.json", `{"files":[{"path":"a.py","contents":""}],"entrypoint":"a.py"}`)
		missing := b.governed(125, "call", "shop", "workload.execute", "@"+spec, "--json", "--approval", b.approve("workload.execute", spec))
		if !strings.Contains(missing.Stdout, `"class":"request","kind":"command_not_found"`) {
			t.Errorf("%s\nwant the request's error: the image has no python3", missing)
		}
	})
}

// TestRefusedBeforeAnythingStarts proves that a refusal leaves no run behind.
func TestRefusedBeforeAnythingStarts(t *testing.T) {
	b := newBed(t, "embedded", "")
	spec := b.spec("echo", "")
	approval := b.approve("workload.execute", spec)
	for name, tt := range map[string]struct{ project, spec, kind string }{
		"another script":            {"shop", b.write("a.json", `{"files":[{"path":"main.sh","contents":"echo "}],"entrypoint":"main.sh"}`), "approval_refused"},
		"another project":           {"other", spec, "approval_refused"},
		"more limits":               {"shop", b.write("b.json", `{"files":[{"path":"main.sh","contents":"echo"}],"entrypoint":"main.sh","limits":{"cpus":1}}`), "approval_refused"},
		"a secret more":             {"shop", b.write("c.json", `{"files":[{"path":"main.sh","contents":"echo"}],"entrypoint":"main.sh","secrets":["TOKEN"]}`), "approval_refused"},
		"another project's":         {"shop", b.write("d.json", `{"files":[{"path":"main.sh","contents":"echo"}],"entrypoint":"main.sh","secrets":["OTHER"]}`), "no_secret"},
		"the runner's own":          {"shop", b.write("e.json", `{"files":[{"path":"main.sh","contents":"echo"}],"entrypoint":"main.sh","secrets":["PATH"]}`), "no_secret"},
		"egress without ceiling":    {"shop", b.write("f.json", `{"files":[{"path":"main.sh","contents":"echo"}],"entrypoint":"main.sh","egress":true}`), "egress_refused"},
		"dependencies":              {"shop", b.write("g.json", `{"files":[{"path":"main.js","contents":""},{"path":"package.json","contents":"{\"dependencies\":{\"a\":\"1\"}}"}],"entrypoint":"main.js"}`), "no_dependencies"},
		"a path above":              {"shop", b.write("h.json", `{"files":[{"path":"../main.sh","contents":""}],"entrypoint":"../main.sh"}`), "bad_path"},
		"all that is wrong at once": {"shop", b.write("i.json", `{"files":[],"limits":{"cpus":-1}}`), "bad_arguments"},
	} {
		call := b.governed(125, "call", tt.project, "workload.execute", "@"+tt.spec, "--approval", approval, "--json")
		if !strings.Contains(call.Stdout, `"kind":"`+tt.kind+`"`) {
			t.Errorf("%s: %s\nwant kind %s", name, call, tt.kind)
		}
		if tt.kind == "bad_arguments" && strings.Count(call.Stdout, `"pointer"`) != 3 {
			t.Errorf("%s\nwant three violations", call)
		}
	}
	// The image is exchanged under its name.
	other := testenv.CopyOfRoot(t)
	if err := os.WriteFile(filepath.Join(other, "new"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	b.engine(0, "image", "rm", "--state-dir", b.path("state"), "box")
	b.engine(0, "image", "import", "--state-dir", b.path("state"), other, "box")
	call := b.governed(125, "call", "shop", "workload.execute", "@"+spec, "--approval", approval, "--json")
	if !strings.Contains(call.Stdout, "approval_refused") || !strings.Contains(call.Stdout, "/imageDigest") {
		t.Errorf("%s\nwant it refused for its image", call)
	}
	if ps := b.engine(0, "ps", "--json", "--state-dir", b.path("state")).Stdout; strings.TrimSpace(ps) != "[]" {
		t.Errorf("runs are left of what was refused: %s", ps)
	}
}

// TestKilledAfterTheBurn kills the runner as soon as a run of its approval is used up:
// whatever became of it, it is not run again.
func TestKilledAfterTheBurn(t *testing.T) {
	b := newBed(t, "embedded", "")
	for range 5 {
		spec := b.spec("echo ran; sleep 0.2", "")
		approval := b.approve("workload.execute", spec)
		used := func() int {
			files, err := filepath.Glob(b.path("state/approvals/used/*/1"))
			if err != nil {
				t.Fatal(err)
			}
			return len(files)
		}
		runs := func() int {
			var list []struct{ ID string }
			if err := json.Unmarshal([]byte(b.engine(0, "ps", "--json", "--state-dir", b.path("state")).Stdout), &list); err != nil {
				t.Fatal(err)
			}
			return len(list)
		}
		usedBefore, runsBefore := used(), runs()
		p := testenv.Start(t, nil, "engine", "call", "shop", "workload.execute", "@"+spec, "--approval", approval, "--config", b.path("config.yaml"))
		testenv.WaitFor(t, testenv.Patience, "the nonce to be burned", func() bool { return used() > usedBefore })
		p.Signal(t, os.Kill)
		p.Wait(t)
		again := b.governed(125, "call", "shop", "workload.execute", "@"+spec, "--approval", approval, "--json")
		if !strings.Contains(again.Stdout, `"kind":"approval_used"`) {
			t.Errorf("%s\nwant it refused", again)
		}
		if n := runs() - runsBefore; n > 1 {
			t.Errorf("%d runs of one approval", n)
		}
	}
	b.governed(0, "audit", "verify")
}
