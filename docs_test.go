package engine_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/netns"
	"github.com/direct-oci/engine/netns/egress"
)

// documents are all pages that are held against the code.
func documents(t *testing.T) []string {
	t.Helper()
	var pages []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/adr/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}
	if len(pages) < 10 {
		t.Fatalf("found only %d documents: %q", len(pages), pages)
	}
	return pages
}

func text(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// section is what stands below a heading, up to the next one of the same level.
func section(t *testing.T, page, heading string) string {
	t.Helper()
	_, rest, ok := strings.Cut(text(t, page), "\n"+heading+"\n")
	if !ok {
		t.Fatalf("%s has no section %q", page, heading)
	}
	level, _, _ := strings.Cut(heading, " ")
	rest, _, _ = strings.Cut(rest, "\n"+level+" ")
	return rest
}

// rows are the cells of all tables in a text, without their heads.
func rows(markdown string) [][]string {
	var all [][]string
	head := true
	for line := range strings.Lines(markdown) {
		line = strings.TrimSpace(line)
		switch {
		case !strings.HasPrefix(line, "|"):
			head = true
		case strings.HasPrefix(line, "|---"):
			head = false
		case !head:
			cells := strings.Split(strings.Trim(line, "|"), "|")
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			all = append(all, cells)
		}
	}
	return all
}

var backticks = regexp.MustCompile("`([^`]+)`")

// quoted are the words in backticks.
func quoted(s string) []string {
	var words []string
	for _, m := range backticks.FindAllStringSubmatch(s, -1) {
		words = append(words, m[1])
	}
	return words
}

// sources calls f for every source file with one of the extensions, tests included.
func sources(t *testing.T, f func(path string), extensions ...string) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (path == "bin" || path == "build" || path == ".git") {
			return filepath.SkipDir
		}
		if d.Type().IsRegular() && slices.Contains(extensions, filepath.Ext(path)) {
			f(path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

var testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)

// tests are the names of all tests there are, as package.TestName, those of the module's
// root without a package; and the same without any package.
func tests(t *testing.T) (qualified, bare map[string]bool) {
	t.Helper()
	qualified, bare = map[string]bool{}, map[string]bool{}
	sources(t, func(path string) {
		if !strings.HasSuffix(path, "_test.go") {
			return
		}
		prefix := filepath.ToSlash(filepath.Dir(path)) + "."
		if prefix == ".." {
			prefix = ""
		}
		for _, m := range testFunc.FindAllStringSubmatch(text(t, path), -1) {
			qualified[prefix+m[1]], bare[m[1]] = true, true
		}
	}, ".go")
	return qualified, bare
}

var testName = regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w*`)

// TestNamedTestsExist wants every test that a document or a SECURITY comment names.
func TestNamedTestsExist(t *testing.T) {
	qualified, bare := tests(t)
	for _, page := range documents(t) {
		for _, name := range quoted(text(t, page)) {
			switch at := testName.FindStringIndex(name); {
			case at == nil || at[1] != len(name):
			case at[0] == 0 && !bare[name]:
				t.Errorf("%s names the test %s, which does not exist", page, name)
			case at[0] > 0 && name[at[0]-1] == '.' && !qualified[name]:
				t.Errorf("%s names the test %s, which does not exist there", page, name)
			}
		}
	}
	comments := 0
	sources(t, func(path string) {
		for _, c := range securityComments(text(t, path)) {
			comments++
			_, checked, ok := strings.Cut(c, "Checked by:")
			names := testName.FindAllString(checked, -1)
			if !ok || len(names) == 0 {
				t.Errorf("%s: a SECURITY comment without a test: %.80s", path, c)
			}
			for _, name := range names {
				if !bare[name] {
					t.Errorf("%s: a SECURITY comment names the test %s, which does not exist", path, name)
				}
			}
		}
	}, ".go", ".c", ".h")
	if comments < 20 {
		t.Errorf("found only %d SECURITY comments: is the form still the same?", comments)
	}
}

// securityComments are the comments of the fixed form, each on one line.
func securityComments(source string) []string {
	var all []string
	inside := false
	for line := range strings.Lines(source) {
		line = strings.TrimSpace(line)
		comment := strings.HasPrefix(line, "//") || strings.HasPrefix(line, "*") || strings.HasPrefix(line, "/*")
		words := strings.TrimSpace(strings.Trim(line, "/* "))
		switch {
		case comment && strings.HasPrefix(words, "SECURITY:"):
			all, inside = append(all, words), true
		case !comment:
			inside = false
		case inside:
			all[len(all)-1] += " " + words
			inside = !strings.HasSuffix(line, "*/") && words != ""
		}
	}
	return all
}

var promise = regexp.MustCompile(`^\* \*\*(\d+)\.(\d+)\*\* .*`)

// TestPromisesAreNumberedAndProved wants every promise to have its number in the row and
// a test, or to say that it has none.
func TestPromisesAreNumberedAndProved(t *testing.T) {
	chapter, number, proved, open := 0, 0, 0, 0
	for line := range strings.Lines(text(t, "docs/SPEC.md")) {
		if heading, ok := strings.CutPrefix(line, "## "); ok {
			chapter, number = chapter+1, 0
			if !strings.HasPrefix(heading, strconv.Itoa(chapter)+". ") {
				t.Errorf("the chapter %q has not the number %d", strings.TrimSpace(heading), chapter)
			}
		}
		m := promise.FindStringSubmatch(line)
		if m == nil {
			if strings.HasPrefix(line, "* ") {
				t.Errorf("a promise without a number: %.60s", line)
			}
			continue
		}
		number++
		if want := fmt.Sprintf("%d.%d", chapter, number); m[1]+"."+m[2] != want {
			t.Errorf("promise %s.%s stands where %s should", m[1], m[2], want)
		}
		named := testName.MatchString(line)
		switch none := strings.Contains(line, "*no test*"); {
		case named == none:
			t.Errorf("promise %s.%s must name a test, or say *no test*, and not both", m[1], m[2])
		case named:
			proved++
		default:
			open++
		}
	}
	t.Logf("%d promises with a test, %d without", proved, open)
	if proved < 50 {
		t.Errorf("found only %d promises with a test: is the form still the same?", proved)
	}
}

// TestImportTableIsDocumented compares ARCHITECTURE with the table in layout_test.go.
func TestImportTableIsDocumented(t *testing.T) {
	documented := map[string]bool{}
	for _, r := range rows(section(t, "docs/ARCHITECTURE.md", "## Who imports whom")) {
		name := strings.Trim(r[0], "`")
		documented[name] = true
		row, ok := allowed[name]
		if !ok {
			t.Errorf("ARCHITECTURE has package %s, which the import table has not", name)
			continue
		}
		got, want := quoted(r[1]), slices.Clone(row.imports)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("ARCHITECTURE lets %s import %q, the table %q", name, got, want)
		}
		if r[2] != row.why {
			t.Errorf("ARCHITECTURE gives for %s the reason %q, the table %q", name, r[2], row.why)
		}
	}
	for name := range allowed {
		if !documented[name] {
			t.Errorf("ARCHITECTURE lacks package %s of the import table", name)
		}
	}
}

// TestRulesAreTheCodes compares the rules in NETWORK with those that the command line
// prints.
func TestRulesAreTheCodes(t *testing.T) {
	page := section(t, "docs/NETWORK.md", "## Rules as loaded")
	name, err := egress.ParseAllow("example.com")
	if err != nil {
		t.Fatal(err)
	}
	cidr, err := egress.ParseAllowCIDR("198.51.100.0/24:5432")
	if err != nil {
		t.Fatal(err)
	}
	policy := egress.Policy{Names: []egress.NameRule{name}, CIDRs: []egress.CIDRRule{cidr}}
	want, err := netns.Rules(netns.GatewayConfig{Policy: policy.Kernel(), Limits: policy.KernelLimits()})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(page, "```\n"+strings.TrimSpace(want)+"\n```") {
		t.Errorf("NETWORK has other rules than\n%s", want)
	}
}

// TestStateDiagramIsTheCodes compares ARCHITECTURE with the comment in records.go.
func TestStateDiagramIsTheCodes(t *testing.T) {
	var want []string
	for line := range strings.Lines(text(t, "engine/records.go")) {
		if drawn, ok := strings.CutPrefix(strings.TrimRight(line, "\n"), "//\t"); ok {
			want = append(want, drawn)
		} else if len(want) > 0 {
			break
		}
	}
	_, got, _ := strings.Cut(section(t, "docs/ARCHITECTURE.md", "## States"), "```\n")
	got, _, _ = strings.Cut(got, "\n```")
	if want := strings.Join(want, "\n"); got != want {
		t.Errorf("ARCHITECTURE draws\n%s\nand engine/records.go\n%s", got, want)
	}
}

// TestStepsOfARequestExist wants the functions that ARCHITECTURE leads its reader to.
func TestStepsOfARequestExist(t *testing.T) {
	steps := rows(section(t, "docs/ARCHITECTURE.md", "## One request"))
	if len(steps) < 20 {
		t.Fatalf("found only %d steps", len(steps))
	}
	for i, r := range steps {
		file, name := strings.Trim(r[3], "`"), strings.Trim(r[4], "`")
		if r[0] != strconv.Itoa(i+1) {
			t.Errorf("step %s is the %dth", r[0], i+1)
		}
		declared := regexp.MustCompile(`(?m)^(func (\([^)]*\) )?|(static )?int )` + name + `\(`)
		if !declared.MatchString(text(t, file)) {
			t.Errorf("step %s: %s declares no function %s", r[0], file, name)
		}
	}
}

// TestErrorKindsAreDocumented compares the kinds that the code can give, each with its
// class, with OPERATIONS.
func TestErrorKindsAreDocumented(t *testing.T) {
	inCode, carried := errorKinds(t), carriedKinds(t)
	inDocs := map[string]bool{}
	for _, r := range rows(section(t, "docs/OPERATIONS.md", "## Errors")) {
		key := strings.Trim(r[0], "`") + " " + r[1]
		if inDocs[key] {
			t.Errorf("OPERATIONS has %s twice", key)
		}
		if inDocs[key] = true; len(r) != 4 || r[2] == "" || r[3] == "" {
			t.Errorf("OPERATIONS does not say what %s means or what to do: %q", key, r)
		}
		kind, _, _ := strings.Cut(key, " ")
		if inCode[key] == "" && !carried[kind] {
			t.Errorf("OPERATIONS has %s, which no code gives", key)
		}
		delete(carried, kind)
	}
	for kind := range carried {
		t.Errorf("OPERATIONS lacks %s, which engine-image gives", kind)
	}
	for _, key := range slices.Sorted(maps.Keys(inCode)) {
		if !inDocs[key] {
			t.Errorf("OPERATIONS lacks %s, which %s gives", key, inCode[key])
		}
	}
	if len(inCode) < 40 {
		t.Errorf("found only %d kinds in the code: is the form still the same?", len(inCode))
	}
}

// composers are files that give kinds which are no constant text: one composes them,
// one passes on what engine-image said.
var composers = []string{"engine/validate.go", "cmd/engine/imagejob.go"}

// carriedKinds are those that engine-image gives, as text.
func carriedKinds(t *testing.T) map[string]bool {
	t.Helper()
	kinds := map[string]bool{}
	assigned := regexp.MustCompile(`\bKind(?:\s*=\s*|: )(?:true, )?"([a-z_]+)"`)
	for _, path := range []string{"cmd/engine-image/failure.go", "rootfs/image/registry/errors.go"} {
		found := assigned.FindAllStringSubmatch(text(t, path), -1)
		if len(found) < 3 {
			t.Errorf("%s gives only %d kinds: is the form still the same?", path, len(found))
		}
		for _, m := range found {
			kinds[m[1]] = true
		}
	}
	return kinds
}

// errorKinds finds the calls that make errors, and returns "kind class" with a place
// where it is given.
func errorKinds(t *testing.T) map[string]string {
	t.Helper()
	kinds := map[string]string{}
	classes := map[string]engine.Class{"Refused": engine.ClassRequest, "Failed": engine.ClassEngine}
	sources(t, func(path string) {
		if strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "integration/") {
			return
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			kind, isText := literal(call.Args[0])
			switch name := called(call); {
			case name == "validateInside" && isText: // composes its kind
				kinds["bad_"+kind+" request"] = path
			case classes[name] != "" && isText:
				kinds[kind+" "+string(classes[name])] = path
			case classes[name] != "" && !slices.Contains(composers, path):
				t.Errorf("%v: a kind that is no constant text", set.Position(call.Pos()))
			}
			return true
		})
	}, ".go")
	return kinds
}

func called(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}

func literal(e ast.Expr) (string, bool) {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	s, err := strconv.Unquote(lit.Value)
	return s, err == nil
}

// TestResultIsDocumented compares the fields of a result with OPERATIONS.
func TestResultIsDocumented(t *testing.T) {
	want := jsonFields("", reflect.TypeFor[engine.Result]())
	var got []string
	for _, r := range rows(section(t, "docs/OPERATIONS.md", "## The result")) {
		got = append(got, strings.Trim(r[0], "`"))
	}
	if !slices.Equal(got, want) {
		t.Errorf("OPERATIONS has the fields\n%q\nand a result\n%q", got, want)
	}
}

// jsonFields are the paths of a struct's fields, in order. A struct is not listed itself
// unless it may be null or a list.
func jsonFields(prefix string, typ reflect.Type) []string {
	var fields []string
	for i := range typ.NumField() {
		name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
		if name == "" {
			continue
		}
		name = prefix + name
		inner := typ.Field(i).Type
		if inner.Kind() != reflect.Struct {
			fields = append(fields, name)
		}
		for inner.Kind() == reflect.Pointer || inner.Kind() == reflect.Slice {
			inner = inner.Elem()
		}
		if inner.Kind() == reflect.Struct {
			fields = append(fields, jsonFields(name+".", inner)...)
		}
	}
	return fields
}

var (
	link       = regexp.MustCompile(`\]\(([^)#:]+)(?:#([^)]*))?\)`)
	sourcePath = regexp.MustCompile(`^[\w./-]+/[\w.-]+\.(go|c|h|sh|md|json|mod)$`)
	makeTarget = regexp.MustCompile("`(?:sudo )?make ([a-z-]+)")
)

// TestDocumentsPointToWhatIsThere wants every link, path and make target in documents.
func TestDocumentsPointToWhatIsThere(t *testing.T) {
	makefile := text(t, "Makefile")
	for _, page := range documents(t) {
		content := text(t, page)
		for _, m := range link.FindAllStringSubmatch(content, -1) {
			target := filepath.Join(filepath.Dir(page), m[1])
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s, which is not there", page, m[1])
			} else if m[2] != "" && !slices.Contains(anchors(text(t, target)), m[2]) {
				t.Errorf("%s links to #%s, which %s has not", page, m[2], m[1])
			}
		}
		for _, path := range quoted(content) {
			if _, err := os.Stat(path); sourcePath.MatchString(path) && !strings.HasPrefix(path, "/") && err != nil {
				t.Errorf("%s names the file %s, which is not there", page, path)
			}
		}
		for _, m := range makeTarget.FindAllStringSubmatch(content, -1) {
			if !strings.Contains(makefile, "\n"+m[1]+":") {
				t.Errorf("%s names the target %q, which the Makefile has not", page, m[1])
			}
		}
	}
}

// anchors are the names by which links reach a page's headings.
func anchors(page string) []string {
	var names []string
	for line := range strings.Lines(page) {
		if heading, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && line[0] == '#' {
			keep := func(r rune) rune {
				switch {
				case r == ' ':
					return '-'
				case r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z':
					return r
				}
				return -1
			}
			names = append(names, strings.Map(keep, strings.ToLower(strings.TrimSpace(heading))))
		}
	}
	return names
}

// TestDecisionsHaveTheirForm wants the four parts of each decision, and a line for it in
// the list.
func TestDecisionsHaveTheirForm(t *testing.T) {
	pages, err := filepath.Glob("docs/adr/0*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("found no decisions (%v)", err)
	}
	list := strings.Join(strings.Fields(text(t, "docs/adr/README.md")), " ") // lines may break anywhere
	for i, page := range pages {
		content := text(t, page)
		number := fmt.Sprintf("# %d. ", i+1)
		title, _, _ := strings.Cut(strings.TrimPrefix(content, number), "\n")
		if !strings.HasPrefix(content, number) || !strings.Contains(list, fmt.Sprintf("%d. [%s](%s)", i+1, title, filepath.Base(page))) {
			t.Errorf("%s is not number %d, or the list has it not as %q", page, i+1, title)
		}
		at := 0
		for _, part := range []string{"## Context", "## Options", "## Choice", "## Consequence"} {
			next := strings.Index(content, "\n"+part+"\n")
			if next < at {
				t.Errorf("%s has no part %q in its place", page, part)
			}
			at = next
		}
	}
}

// TestCuresAreWrittenAlike wants the cure of every error in one form: an imperative
// sentence in lower case without a full stop, as it follows "fix: ".
func TestCuresAreWrittenAlike(t *testing.T) {
	cure := regexp.MustCompile(`\b(?:Fix: |Fix = |fix = |WithFix\(|Remedy\(\) string \{ return )"((?:[^"\\]|\\.)*)"( \+)?`)
	found := 0
	sources(t, func(path string) {
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		for _, m := range cure.FindAllStringSubmatch(text(t, path), -1) {
			fix := m[1]
			if fix == "" {
				continue
			}
			found++
			if unicode.IsUpper(rune(fix[0])) || m[2] == "" && strings.HasSuffix(fix, ".") {
				t.Errorf("%s has the cure %q: begin it in lower case and end it without a full stop", path, fix)
			}
		}
	}, ".go")
	if found < 50 {
		t.Errorf("only %d cures were found: the search is wrong", found)
	}
}
