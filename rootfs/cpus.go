package rootfs

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maskBytes holds 8192 CPUs, the most a Linux kernel can be built for.
const maskBytes = 1024

// AffinityCPUs chooses ceil(n) of the CPUs that this process may use, at least one
// and at most all of them, in ascending order. Sandboxes that pass different values
// of start spread over the host; any value is fine.
func AffinityCPUs(n float64, start int) ([]int, error) {
	allowed, err := allowedCPUs()
	if err != nil {
		return nil, err
	}
	return chooseCPUs(allowed, n, start), nil
}

func chooseCPUs(allowed []int, n float64, start int) []int {
	want := len(allowed)
	if n < float64(want) {
		want = max(1, int(math.Ceil(n)))
	}
	first := start % len(allowed)
	if first < 0 {
		first += len(allowed)
	}
	chosen := make([]int, want)
	for i := range chosen {
		chosen[i] = allowed[(first+i)%len(allowed)]
	}
	slices.Sort(chosen)
	return chosen
}

// CPUMask returns the mask of cpus in the form of sched_setaffinity(2): whole
// little-endian words of 64 bits. It is empty for no CPU.
func CPUMask(cpus []int) []byte {
	if len(cpus) == 0 {
		return nil
	}
	mask := make([]byte, (slices.Max(cpus)/64+1)*8)
	for _, cpu := range cpus {
		mask[cpu/8] |= 1 << (cpu % 8)
	}
	return mask
}

// allowedCPUs asks the kernel itself: the fixed-size set of the usual wrapper is
// refused on hosts of more than 1024 CPUs.
func allowedCPUs() ([]int, error) {
	var mask [maskBytes / 8]uint64
	n, _, errno := unix.RawSyscall(unix.SYS_SCHED_GETAFFINITY, 0, maskBytes, uintptr(unsafe.Pointer(&mask)))
	if errno != 0 {
		return nil, fmt.Errorf("cannot read own CPU affinity: %w", errno)
	}
	var cpus []int
	for i, word := range mask[:n/8] {
		for ; word != 0; word &= word - 1 {
			cpus = append(cpus, i*64+bits.TrailingZeros64(word))
		}
	}
	if len(cpus) == 0 {
		return nil, fmt.Errorf("internal error: the kernel names no CPU that this process may use")
	}
	return cpus, nil
}
