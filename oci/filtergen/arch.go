package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// architecture is one ABI that the engine runs on. All are little endian.
type architecture struct {
	name  string // GOARCH, which is also moby's name for it
	spec  specs.Arch
	audit uint32 // AUDIT_ARCH_*, as the kernel gives it to a filter

	// secondABI is the bit that marks a call of x32, which shares amd64's
	// AUDIT_ARCH; 0 where there is none.
	secondABI uint32

	// aliases are calls that golang.org/x/sys/unix names otherwise than libseccomp.
	aliases map[string]string
}

var architectures = []architecture{
	{name: "amd64", spec: specs.ArchX86_64, audit: unix.AUDIT_ARCH_X86_64, secondABI: 0x40000000},
	{name: "arm64", spec: specs.ArchAARCH64, audit: unix.AUDIT_ARCH_AARCH64, aliases: map[string]string{"fstatat": "newfstatat"}},
}

// numbers reads the architecture's system calls from the source of x/sys/unix:
// its constants are compiled in for the machine's own architecture alone.
func (a architecture) numbers() (map[string]uint32, error) {
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", "golang.org/x/sys/unix").Output()
	if err != nil {
		return nil, fmt.Errorf("cannot find the source of golang.org/x/sys/unix: %w", err)
	}
	name := filepath.Join(strings.TrimSpace(string(dir)), "zsysnum_linux_"+a.name+".go")
	file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot read system calls of %s: %w", a.name, err)
	}
	numbers := map[string]uint32{}
	var bad error
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		literal, ok := spec.Values[0].(*ast.BasicLit)
		if !ok {
			bad = fmt.Errorf("cannot read system call %s of %s: not a number", spec.Names[0].Name, a.name)
			return false
		}
		number, err := strconv.ParseUint(literal.Value, 0, 32)
		if err != nil {
			bad = fmt.Errorf("cannot read system call %s of %s: %w", spec.Names[0].Name, a.name, err)
		}
		call := strings.ToLower(strings.TrimPrefix(spec.Names[0].Name, "SYS_"))
		if alias := a.aliases[call]; alias != "" {
			call = alias
		}
		numbers[call] = uint32(number)
		return false
	})
	return numbers, bad
}
