package main

import (
	"fmt"
	"math"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// action is a filter's return value, SECCOMP_RET_*.
type action uint32

const (
	actAllow action = unix.SECCOMP_RET_ALLOW
	actKill  action = unix.SECCOMP_RET_KILL_PROCESS
	actEPERM action = unix.SECCOMP_RET_ERRNO | action(unix.EPERM)
	actNoSys action = unix.SECCOMP_RET_ERRNO | action(unix.ENOSYS)
)

// condition holds when the argument, masked, equals value.
type condition struct {
	arg         uint
	mask, value uint64
}

// rule holds when all its conditions do.
type rule struct {
	conditions []condition
	action     action
}

// policy is what a filter says about each known call; the first rule that holds
// wins, and EPERM is what follows the last. A number that is not in it is ENOSYS:
// a C library then falls back to an older call.
type policy map[uint32][]rule

// policyOf joins the guard of PID 1 and the profile.
func policyOf(profile *specs.LinuxSeccomp, numbers map[string]uint32) (policy, error) {
	p := policy{}
	for _, number := range numbers {
		p[number] = nil
	}
	for _, g := range guards {
		for _, name := range g.calls {
			number, ok := numbers[name]
			if !ok {
				return nil, fmt.Errorf("cannot guard %s: no such call", name)
			}
			p[number] = append(p[number], rule{g.conditions, actEPERM})
		}
	}
	for _, call := range profile.Syscalls {
		r := rule{}
		switch {
		case call.Action == specs.ActAllow:
			r.action = actAllow
		case call.Action == specs.ActErrno && call.ErrnoRet != nil:
			r.action = unix.SECCOMP_RET_ERRNO | action(*call.ErrnoRet)
		default:
			return nil, fmt.Errorf("cannot compile action %s of %v", call.Action, call.Names)
		}
		for _, arg := range call.Args {
			c := condition{arg: arg.Index}
			switch arg.Op {
			case specs.OpEqualTo:
				c.mask, c.value = math.MaxUint64, arg.Value
			case specs.OpMaskedEqual:
				c.mask, c.value = arg.Value, arg.ValueTwo
			default:
				return nil, fmt.Errorf("cannot compile comparison %s of %v", arg.Op, call.Names)
			}
			r.conditions = append(r.conditions, c)
		}
		for _, name := range call.Names {
			p[numbers[name]] = append(p[numbers[name]], r)
		}
	}
	return p, nil
}

// guard refuses calls under conditions, before the profile is asked.
type guard struct {
	calls      []string
	conditions []condition
}

// low compares an argument that the kernel reads as a 32-bit number.
func low(arg uint, value uint32) condition {
	return condition{arg, math.MaxUint32, uint64(value)}
}

// Requests that package unix does not name.
const (
	ioprioWhoUser = 3
	fioSetOwn     = 0x8901
	siocSetPgrp   = 0x8902
)

// guards keep the job's hands off PID 1, which has its user, and off a terminal
// that the caller lent it.
var guards = []guard{
	{[]string{
		"kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_open", "prlimit64",
		"sched_setaffinity", "sched_setparam", "sched_setscheduler", "sched_setattr",
	}, []condition{low(0, 1)}},
	{[]string{"setpriority", "ioprio_set"}, []condition{low(1, 1)}},
	// Of a whole user, PID 1 included.
	{[]string{"setpriority"}, []condition{low(0, unix.PRIO_USER)}},
	{[]string{"ioprio_set"}, []condition{low(0, ioprioWhoUser)}},
	// An open directory of /proc is as good as a pidfd, and under gVisor kills PID 1.
	{[]string{"pidfd_send_signal"}, nil},
	// So does a file's owner: F_SETSIG chooses the signal that it is sent.
	{[]string{"fcntl"}, []condition{low(1, unix.F_SETOWN), low(2, 1)}},
	{[]string{"fcntl"}, []condition{low(1, unix.F_SETOWN), low(2, math.MaxUint32)}},
	{[]string{"fcntl"}, []condition{low(1, unix.F_SETOWN_EX)}},
	{[]string{"ioctl"}, []condition{low(1, fioSetOwn)}},
	{[]string{"ioctl"}, []condition{low(1, siocSetPgrp)}},
	// Typing into the terminal on behalf of who sits there.
	{[]string{"ioctl"}, []condition{low(1, unix.TIOCSTI)}},
	{[]string{"ioctl"}, []condition{low(1, unix.TIOCLINUX)}},
}
