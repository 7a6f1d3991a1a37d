package main

import (
	"slices"

	"github.com/moby/profiles/seccomp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// removed are calls that Docker's default allows and a program of ours has no
// business with: looking into other processes, handles that step round a mount,
// kernel interfaces with a record of holes, and the host's clock.
var removed = []string{
	"acct",
	"adjtimex",
	"clock_adjtime",
	"clock_adjtime64",
	"fanotify_init",
	"fanotify_mark",
	"kcmp",
	"listmount",
	"lookup_dcookie",
	"memfd_secret",
	"modify_ldt",
	"name_to_handle_at",
	"open_by_handle_at",
	"personality",
	"pidfd_getfd",
	"process_madvise",
	"process_vm_readv",
	"process_vm_writev",
	"ptrace",
	"quotactl",
	"quotactl_fd",
	"seccomp",
	"socket",
	"socketcall",
	"socketpair",
	"statmount",
	"swapoff",
	"swapon",
	"syslog",
	"vmsplice",
}

// sockets are the sockets a program may make, by the type and protocol of each family.
// Netlink is for reading routes and addresses only.
//
// SECURITY: no program makes the kernel load a module for a protocol of the internet.
// Any process may ask for SCTP, DCCP, L2TP, SMC or MPTCP, by protocol or type, and gets
// the module of a protocol that nobody uses here and that has its holes like others.
// Holds because: only TCP and UDP have a row, for pairs of sockets none of them.
// Not covered: what the host has loaded itself. Checked by: TestFilterBlocksOnThisKernel.
var sockets = []struct{ family, kind, protocol uint64 }{
	{unix.AF_INET, unix.SOCK_STREAM, 0},
	{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_TCP},
	{unix.AF_INET, unix.SOCK_DGRAM, 0},
	{unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_UDP},
	{unix.AF_INET6, unix.SOCK_STREAM, 0},
	{unix.AF_INET6, unix.SOCK_STREAM, unix.IPPROTO_TCP},
	{unix.AF_INET6, unix.SOCK_DGRAM, 0},
	{unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_UDP},
}

// typeMask is the part of socket's second argument that is no flag.
const typeMask = 0xf

// narrowed is moby's default profile for a container with no capability on any
// kernel of 4.8 or later, for the native ABI alone, narrowed.
func narrowed(a architecture, numbers map[string]uint32) *specs.LinuxSeccomp {
	eperm := uint(unix.EPERM)
	profile := &specs.LinuxSeccomp{
		DefaultAction:   specs.ActErrno,
		DefaultErrnoRet: &eperm,
		Architectures:   []specs.Arch{a.spec},
	}
	for _, call := range defaults(a.name) {
		call.Names = slices.DeleteFunc(slices.Clone(call.Names), func(name string) bool {
			_, known := numbers[name]
			return !known || slices.Contains(removed, name)
		})
		if len(call.Names) > 0 {
			profile.Syscalls = append(profile.Syscalls, call)
		}
	}
	for _, s := range sockets {
		profile.Syscalls = append(profile.Syscalls, allow("socket", equal(0, s.family), masked(1, typeMask, s.kind), equal(2, s.protocol)))
	}
	profile.Syscalls = append(profile.Syscalls,
		allow("socket", equal(0, unix.AF_UNIX)),
		allow("socket", equal(0, unix.AF_NETLINK), equal(2, unix.NETLINK_ROUTE)),
		allow("socketpair", equal(0, unix.AF_UNIX)),
		allow("personality", equal(0, 0)),
	)
	return profile
}

// defaults are the rules of moby's profile that hold without any capability.
func defaults(arch string) []specs.LinuxSyscall {
	var rules []specs.LinuxSyscall
	for _, call := range seccomp.DefaultProfile().Syscalls {
		if x := call.Excludes; x != nil && (slices.Contains(x.Arches, arch) || x.MinKernel != nil) {
			continue
		}
		if i := call.Includes; i != nil && (len(i.Caps) > 0 || len(i.Arches) > 0 && !slices.Contains(i.Arches, arch)) {
			continue
		}
		rules = append(rules, call.LinuxSyscall)
	}
	return rules
}

func allow(name string, args ...specs.LinuxSeccompArg) specs.LinuxSyscall {
	return specs.LinuxSyscall{Names: []string{name}, Action: specs.ActAllow, Args: args}
}

func equal(arg uint, value uint64) specs.LinuxSeccompArg {
	return specs.LinuxSeccompArg{Index: arg, Value: value, Op: specs.OpEqualTo}
}

func masked(arg uint, mask, value uint64) specs.LinuxSeccompArg {
	return specs.LinuxSeccompArg{Index: arg, Value: mask, ValueTwo: value, Op: specs.OpMaskedEqual}
}
