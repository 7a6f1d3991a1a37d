package runner

import (
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"
)

// answers listens on the far side and answers every connection with a word. It returns
// its port.
func answers(t *testing.T, word string) int {
	t.Helper()
	l, err := net.Listen("tcp", farAddr+":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Write([]byte(word + "\n"))
			c.Close()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

// TestEgress runs workloads that reach a live destination: with a grant of it and
// nothing else, and without any. The receipt says what was reached and what was denied.
func TestEgress(t *testing.T) {
	for _, rt := range runtimes {
		t.Run(rt, func(t *testing.T) {
			ownNetwork(t)
			open, shut := answers(t, "reached"), answers(t, "never")
			b := newBed(t, rt, fmt.Sprintf("  egress: {allow: ['%s/32:%d']}\n", farAddr, open))
			script := fmt.Sprintf("nc -w 5 %s %d </dev/null; nc -w 5 %s %d </dev/null; echo done", farAddr, open, farAddr, shut)
			for name, tt := range map[string]struct{ egress, stdout string }{
				"all that is granted": {`true`, "reached\ndone\n"},
				"by its address":      {fmt.Sprintf(`["%s/32:%d"]`, farAddr, open), "reached\ndone\n"},
				"none":                {`false`, "done\n"},
			} {
				o, call := b.run(0, script, `,"egress":`+tt.egress)
				if o.Stdout != tt.stdout {
					t.Errorf("%s: %s\nwant stdout %q", name, call, tt.stdout)
				}
				var receipt struct {
					Observed struct {
						Network struct {
							Mode            string
							Allowed, Denied []map[string]any
						}
					}
				}
				text := b.engine(0, "verify", b.path("receipt.json"), "--key", b.path("state/receipts/key.pub"), "--json").Stdout
				if err := json.Unmarshal([]byte(text), &receipt); err != nil {
					t.Fatal(err)
				}
				n := receipt.Observed.Network
				reached, denied := fmt.Sprint(n.Allowed), fmt.Sprint(n.Denied)
				if tt.egress != "false" && (!strings.Contains(reached, fmt.Sprint(open)) || strings.Contains(reached, fmt.Sprint(shut)) || !strings.Contains(denied, fmt.Sprint(shut))) {
					t.Errorf("%s: the receipt has reached %s and denied %s", name, reached, denied)
				}
				if tt.egress == "false" && len(n.Allowed) > 0 {
					t.Errorf("%s: the receipt has reached %s", name, reached)
				}
			}
			spec := b.spec(script, fmt.Sprintf(`,"egress":["%s/32:%d"]`, farAddr, shut))
			if call := b.governed(125, "approve", "shop", "workload.execute", "@"+spec); !strings.Contains(call.Stderr, "cannot") {
				t.Errorf("%s", call)
			}
		})
	}
}
