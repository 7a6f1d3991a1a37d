package main

import (
	"maps"
	"math"
	"reflect"
	"slices"

	"golang.org/x/net/bpf"
)

// Offsets into struct seccomp_data.
const (
	offNumber = 0
	offArch   = 4
	offArgs   = 16
)

// compile turns a policy into a program. A call costs a few comparisons: two for
// its ABI and then a binary search among ranges of numbers that are treated alike.
func compile(a architecture, p policy) []bpf.Instruction {
	program := []bpf.Instruction{
		bpf.LoadAbsolute{Off: offArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: a.audit, SkipTrue: 1},
		ret(actKill),
		bpf.LoadAbsolute{Off: offNumber, Size: 4},
	}
	if a.secondABI != 0 {
		program = append(program,
			bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: a.secondABI, SkipFalse: 3},
			// -1 is what programs ask for on purpose, to see ENOSYS.
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: math.MaxUint32, SkipFalse: 1},
			ret(actNoSys),
			ret(actKill),
		)
	}
	return append(program, search(segments(p))...)
}

func ret(a action) bpf.Instruction { return bpf.RetConstant{Val: uint32(a)} }

// segment is a range of numbers, up to the next segment's first, with the same rules.
type segment struct {
	first uint32
	rules []rule
}

// segments covers all numbers from 0 on.
func segments(p policy) []segment {
	var list []segment
	add := func(first uint32, rules []rule) {
		if len(list) == 0 || !reflect.DeepEqual(list[len(list)-1].rules, rules) {
			list = append(list, segment{first, rules})
		}
	}
	unknown := []rule{{nil, actNoSys}}
	next := uint32(0)
	for _, number := range slices.Sorted(maps.Keys(p)) {
		if number > next {
			add(next, unknown)
		}
		add(number, effective(p[number]))
		next = number + 1
	}
	add(next, unknown)
	return list
}

// effective ends the rules with the first that always holds, at last with EPERM.
func effective(rules []rule) []rule {
	for i, r := range rules {
		if len(r.conditions) == 0 {
			return rules[:i+1]
		}
	}
	return append(slices.Clone(rules), rule{nil, actEPERM})
}

// search is a balanced tree of comparisons; the number is in the accumulator.
func search(list []segment) []bpf.Instruction {
	if len(list) == 1 {
		return decide(list[0].rules)
	}
	middle := len(list) / 2
	below, above := search(list[:middle]), search(list[middle:])
	at := list[middle].first
	var node []bpf.Instruction
	if len(below) <= math.MaxUint8 {
		node = []bpf.Instruction{bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: at, SkipTrue: uint8(len(below))}}
	} else {
		// A conditional jump reaches 255 instructions.
		node = []bpf.Instruction{
			bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: at, SkipFalse: 1},
			bpf.Jump{Skip: uint32(len(below))},
		}
	}
	return slices.Concat(node, below, above)
}

// decide tries the rules in order. The last has no condition.
func decide(rules []rule) []bpf.Instruction {
	var program []bpf.Instruction
	for _, r := range rules {
		program = append(program, test(r.conditions, ret(r.action))...)
	}
	return program
}

// test runs then when all conditions hold, and otherwise goes past it. A 64-bit
// argument is compared as its two words; a word whose mask is zero is not looked at.
func test(conditions []condition, then bpf.Instruction) []bpf.Instruction {
	program := []bpf.Instruction{then}
	for _, c := range slices.Backward(conditions) {
		for _, word := range []struct {
			offset      uint32
			mask, value uint32
		}{
			{offArgs + 8*uint32(c.arg) + 4, uint32(c.mask >> 32), uint32(c.value >> 32)},
			{offArgs + 8*uint32(c.arg), uint32(c.mask), uint32(c.value)},
		} {
			if word.mask == 0 {
				continue
			}
			check := []bpf.Instruction{bpf.LoadAbsolute{Off: word.offset, Size: 4}}
			if word.mask != math.MaxUint32 {
				check = append(check, bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: word.mask})
			}
			check = append(check, bpf.JumpIf{Cond: bpf.JumpEqual, Val: word.value, SkipFalse: uint8(len(program))})
			program = append(check, program...)
		}
	}
	return program
}
