package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/moby/profiles/seccomp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

var update = flag.Bool("update", false, "write the lists of unknown calls")

// TestGeneratedFilesAreCurrent fails when moby's profile, the table of calls or
// the compiler has changed and go generate has not been run.
func TestGeneratedFilesAreCurrent(t *testing.T) {
	for _, a := range architectures {
		files, err := generate(a)
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range files {
			got, err := os.ReadFile(filepath.Join("..", name))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("oci/%s differs from what filtergen writes; run go generate ./oci and read the difference", name)
			}
		}
	}
}

// TestDefaultsAreMobys compares our own choice of moby's rules, which works for
// any architecture, with what moby chooses on this machine.
func TestDefaultsAreMobys(t *testing.T) {
	want, err := seccomp.GetDefaultProfile(&specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{}}})
	if err != nil {
		t.Fatal(err)
	}
	got, _ := json.Marshal(defaults(runtime.GOARCH))
	wanted, _ := json.Marshal(want.Syscalls)
	if !bytes.Equal(got, wanted) {
		t.Errorf("defaults = %s\nwant what moby has: %s", got, wanted)
	}
}

// TestUnknownNames lists what the profile allows and has no number. Each is a
// call of another architecture; a new one here may be a call that we miss.
func TestUnknownNames(t *testing.T) {
	for _, a := range architectures {
		t.Run(a.name, func(t *testing.T) {
			numbers, err := a.numbers()
			if err != nil {
				t.Fatal(err)
			}
			var unknown []string
			for _, call := range defaults(a.name) {
				for _, name := range call.Names {
					if _, ok := numbers[name]; !ok {
						unknown = append(unknown, name)
					}
				}
			}
			slices.Sort(unknown)
			got, _ := json.MarshalIndent(slices.Compact(unknown), "", " ")
			file := filepath.Join("testdata", "unknown_"+a.name+".json")
			if *update {
				if err := os.WriteFile(file, append(got, '\n'), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(append(got, '\n'), want) {
				t.Errorf("calls without a number are %s\nwant those in %s", got, file)
			}
		})
	}
}

// wanted is the policy once more, by hand: the profile's JSON, read word for word,
// behind the guard.
func wanted(profile *specs.LinuxSeccomp, names map[uint32]string, nr uint32, args [6]uint64) uint32 {
	const eperm, enosys = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM), unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	name := names[nr]
	if name == "" {
		return enosys
	}
	if guarded(name, args) {
		return eperm
	}
	for _, call := range profile.Syscalls {
		if !slices.Contains(call.Names, name) {
			continue
		}
		holds := true
		for _, arg := range call.Args {
			switch arg.Op {
			case specs.OpEqualTo:
				holds = holds && args[arg.Index] == arg.Value
			case specs.OpMaskedEqual:
				holds = holds && args[arg.Index]&arg.Value == arg.ValueTwo
			default:
				panic("operator " + arg.Op)
			}
		}
		if !holds {
			continue
		}
		if call.Action == specs.ActAllow {
			return unix.SECCOMP_RET_ALLOW
		}
		return unix.SECCOMP_RET_ERRNO | uint32(*call.ErrnoRet)
	}
	return eperm
}

func guarded(name string, args [6]uint64) bool {
	a, b, c := int32(args[0]), int32(args[1]), int32(args[2])
	switch name {
	case "kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_open", "prlimit64",
		"sched_setaffinity", "sched_setparam", "sched_setscheduler", "sched_setattr":
		return a == 1
	case "setpriority":
		return b == 1 || a == 2
	case "ioprio_set":
		return b == 1 || a == 3
	case "pidfd_send_signal":
		return true
	case "fcntl":
		return b == 8 && (c == 1 || c == -1) || b == 15
	case "ioctl":
		return b == 0x8901 || b == 0x8902 || b == 0x5412 || b == 0x541c
	}
	return false
}

// interesting are argument values at the edges of what the policy compares.
var interesting = []uint64{
	0, 1, 2, 3, 5, 6, 8, 9, 10, unix.SOCK_STREAM | unix.SOCK_CLOEXEC, 132, 15, 16, 17, 38, 40, 0x20000, 0x5412, 0x541c, 0x8901, 0x8902,
	1 << 32, 1<<32 | 1, 1<<32 | 2, 1<<32 | 8, 1<<32 | 10, 1<<32 | 16, 0xffffffff00000001,
	0xffffffff, 0xffffffffffffffff, 0x7fffffff, 0x80000000, 0x80000001,
	unix.CLONE_NEWNS, unix.CLONE_NEWUTS, unix.CLONE_NEWIPC, unix.CLONE_NEWUSER, unix.CLONE_NEWPID, unix.CLONE_NEWNET, unix.CLONE_NEWCGROUP,
	unix.CLONE_VM | unix.CLONE_VFORK | 17, unix.CLONE_VM | unix.CLONE_NEWUSER, 1<<32 | unix.CLONE_NEWUSER,
}

// TestFilterAgreesWithPolicy runs the committed program for every call and many
// arguments against the policy, and for foreign ABIs.
func TestFilterAgreesWithPolicy(t *testing.T) {
	for _, a := range architectures {
		t.Run(a.name, func(t *testing.T) { agrees(t, a) })
	}
}

func agrees(t *testing.T, a architecture) {
	run := machine(t, a)
	numbers, err := a.numbers()
	if err != nil {
		t.Fatal(err)
	}
	names := map[uint32]string{}
	for name, number := range numbers {
		names[number] = name
	}
	text, err := os.ReadFile(filepath.Join("..", "seccomp_"+a.name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var profile specs.LinuxSeccomp
	if err := json.Unmarshal(text, &profile); err != nil {
		t.Fatal(err)
	}
	check := func(nr uint32, args [6]uint64) {
		t.Helper()
		if got, want := run(nr, a.audit, args), wanted(&profile, names, nr, args); got != want {
			t.Fatalf("%s (%d) with %x = %#x, want %#x", names[nr], nr, args, got, want)
		}
	}
	for nr := range uint32(601) {
		for _, x := range interesting {
			for _, y := range interesting {
				check(nr, [6]uint64{x, y, x})
				check(nr, [6]uint64{x, x, y})
			}
		}
	}
	check(numbers["kill"], [6]uint64{0x100000001, 9})
	for _, nr := range []uint32{0x3fffffff, 100000} {
		check(nr, [6]uint64{})
	}
	for _, audit := range []uint32{0, unix.AUDIT_ARCH_I386, unix.AUDIT_ARCH_ARM, a.audit ^ 1} {
		if got := run(numbers["getppid"], audit, [6]uint64{}); got != unix.SECCOMP_RET_KILL_PROCESS {
			t.Errorf("call of architecture %#x = %#x, want it killed", audit, got)
		}
	}
	if a.secondABI != 0 {
		for _, nr := range []uint32{a.secondABI, a.secondABI | 1, a.secondABI | 520, 0x80000000, 0xfffffffe} {
			if got := run(nr, a.audit, [6]uint64{}); got != unix.SECCOMP_RET_KILL_PROCESS {
				t.Errorf("call %#x = %#x, want it killed", nr, got)
			}
		}
	}
	check(0xffffffff, [6]uint64{})
}

// machine returns an interpreter of the committed program.
func machine(t *testing.T, a architecture) func(nr, audit uint32, args [6]uint64) uint32 {
	blob, err := os.ReadFile(filepath.Join("..", "seccomp_"+a.name+".bpf"))
	if err != nil {
		t.Fatal(err)
	}
	raw := make([]bpf.RawInstruction, len(blob)/8)
	if err := binary.Read(bytes.NewReader(blob), binary.LittleEndian, raw); err != nil {
		t.Fatal(err)
	}
	if len(blob)%8 != 0 || len(raw) > 4096 {
		t.Fatalf("filter of %d bytes, want whole instructions and at most 4096", len(blob))
	}
	program, whole := bpf.Disassemble(raw)
	if !whole {
		t.Fatal("filter holds an instruction that nobody knows")
	}
	vm, err := bpf.NewVM(program)
	if err != nil {
		t.Fatal(err)
	}
	return func(nr, audit uint32, args [6]uint64) uint32 {
		// The interpreter reads packets, which are big endian; a word of the
		// kernel's struct is the same word here.
		data := binary.BigEndian.AppendUint32(nil, nr)
		data = binary.BigEndian.AppendUint32(data, audit)
		data = append(data, make([]byte, 8)...)
		for _, arg := range args {
			data = binary.BigEndian.AppendUint32(data, uint32(arg))
			data = binary.BigEndian.AppendUint32(data, uint32(arg>>32))
		}
		got, err := vm.Run(data)
		if err != nil {
			t.Fatal(err)
		}
		return uint32(got)
	}
}
