package direct

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// What a program of a cgroup is asked about a device, from struct bpf_cgroup_dev_ctx.
const (
	deviceTypeChar = 2       // BPF_DEVCG_DEV_CHAR, the low half of the first word
	accessMknod    = 1 << 16 // BPF_DEVCG_ACC_MKNOD, in the high half
	offsetAccess   = 0
	offsetMajor    = 4
	offsetMinor    = 8
	devicesAtMost  = 64
	terminalMajor  = 136 // of pseudo-terminals, of which each has a minor number
)

// allowDevices lets the processes of a cgroup open the devices of these rules, and no
// other. The first rule has to forbid all, and each later one to allow one device.
func allowDevices(dir string, rules []specs.LinuxDeviceCgroup) error {
	code, err := deviceProgram(rules)
	if err != nil {
		return err
	}
	p, err := ebpf.NewProgramWithOptions(&ebpf.ProgramSpec{Type: ebpf.CGroupDevice, Instructions: code, License: "Apache-2.0"}, ebpf.ProgramOptions{LogDisabled: true})
	if err != nil {
		return fmt.Errorf("cannot load the rules of devices: %w", err)
	}
	defer p.Close()
	f, err := os.Open(dir) // the kernel refuses an O_PATH descriptor here
	if err != nil {
		return fmt.Errorf("cannot open cgroup: %w", err)
	}
	defer f.Close()
	err = link.RawAttachProgram(link.RawAttachProgramOptions{Target: int(f.Fd()), Program: p, Attach: ebpf.AttachCGroupDevice, Flags: unix.BPF_F_ALLOW_MULTI})
	if err != nil {
		return fmt.Errorf("cannot attach the rules of devices: %w", err)
	}
	return nil
}

func deviceProgram(rules []specs.LinuxDeviceCgroup) (asm.Instructions, error) {
	if len(rules) == 0 || len(rules) > devicesAtMost || rules[0].Allow || rules[0].Type != "" || rules[0].Major != nil || rules[0].Minor != nil || rules[0].Access != "rwm" {
		return nil, errors.New("cannot keep the rules of devices: the first has to forbid all")
	}
	code := asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, offsetAccess, asm.Word),
		asm.LoadMem(asm.R3, asm.R1, offsetMajor, asm.Word),
		asm.LoadMem(asm.R4, asm.R1, offsetMinor, asm.Word),
		asm.Mov.Reg(asm.R5, asm.R2),
		asm.And.Imm(asm.R5, accessMknod),
		asm.JNE.Imm(asm.R5, 0, "refuse"),
		asm.And.Imm(asm.R2, 0xffff),
		asm.JNE.Imm(asm.R2, deviceTypeChar, "refuse"),
	}
	for i, r := range rules[1:] {
		if !r.Allow || r.Type != "c" || r.Access != "rw" || r.Major == nil || r.Minor == nil && *r.Major != terminalMajor {
			return nil, fmt.Errorf("cannot keep rule %d of devices: want one character device, or the terminals, to be read and written", i+1)
		}
		label := fmt.Sprintf("rule%d", i+1)
		allowed := asm.Ja.Label("allow")
		if r.Minor != nil {
			allowed = asm.JEq.Imm(asm.R4, int32(*r.Minor), "allow")
		}
		code = append(code, asm.JNE.Imm(asm.R3, int32(*r.Major), label), allowed, asm.Mov.Imm(asm.R5, 0).WithSymbol(label))
	}
	return append(code,
		asm.Mov.Imm(asm.R0, 0).WithSymbol("refuse"),
		asm.Return(),
		asm.Mov.Imm(asm.R0, 1).WithSymbol("allow"),
		asm.Return(),
	), nil
}
