package runner

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/direct-oci/engine/integration/testenv"
)

// TestTypeScript runs TypeScript as it is, of each of its endings, with types, JSX and a
// module of its own, in the project's image for that.
func TestTypeScript(t *testing.T) {
	layout := ""
	for _, name := range []string{"node", "both"} {
		path, err := filepath.Abs("../../build/images/" + name + "/oci")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(path); err == nil {
			layout = path
		}
	}
	if layout == "" {
		t.Skip("needs an image with node and tsx: run make images")
	}
	testenv.RequireRoot(t)
	b := newBed(t, "embedded", "")
	b.engine(0, "image", "rm", "--state-dir", b.path("state"), "box")
	b.engine(0, "image", "import", "--state-dir", b.path("state"), layout, "box")
	config, err := os.ReadFile(b.path("config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, rt := range runtimes {
		t.Run(rt, func(t *testing.T) {
			b.write("config.yaml", strings.Replace(string(config), "runtime: embedded", "runtime: "+rt, 1))
			for name, files := range map[string]map[string]string{
				".tsx": {
					"main.tsx":      "import {Price} from './lib/price'\nconst h = (tag: string, _: unknown, ...c: unknown[]) => `<${tag}>${c.join('')}</${tag}>`\nconst view: string = <b>{new Price(4200).text()}</b> as unknown as string\nconsole.log(view)\n",
					"lib/price.tsx": "export class Price {\n  constructor(private readonly cents: number) {}\n  text(): string { return (this.cents / 100).toFixed(2) }\n}\n",
					"tsconfig.json": `{"compilerOptions": {"jsx": "react", "jsxFactory": "h"}}`,
				},
				".ts": {"main.ts": "enum Kind { A = 'one' }\nconst view: Record<Kind, string> = {[Kind.A]: '<b>42.00</b>'}\nconsole.log(view[Kind.A] satisfies string)\n"},
			} {
				o, call := b.callFor(0, "shop", b.job("", files))
				if o.Stdout != "<b>42.00</b>\n" {
					t.Errorf("%s under %s: %s", name, rt, call)
				}
			}
		})
	}
}
