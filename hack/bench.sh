#!/bin/bash
# Measures the engine beside the bare runtimes, on this host. As root, after make
# build and tools. Figures of different invocations are not to be compared.
#
#   hack/bench.sh [FLAG...]    flags of integration/bench, such as -n 100
set -euo pipefail
cd "$(dirname "$0")/.."

[ "$(id -u)" -eq 0 ] || { echo "bench: root is needed: sudo make bench" >&2; exit 1; }
mkdir -p build/bench
CGO_ENABLED=0 go build -buildvcs=false -trimpath -o build/bench/bench ./integration/bench

# A mount namespace of its own: the bare runtimes look for cgroup v2 at
# /sys/fs/cgroup, and a host that also has v1 keeps it elsewhere.
# shellcheck disable=SC2016
exec unshare --mount --propagation private bash -euc '
	v2=$(findmnt --noheadings --first-only --types cgroup2 --output TARGET)
	[ "$v2" = /sys/fs/cgroup ] || mount --bind "$v2" /sys/fs/cgroup
	mkdir -p /run/engine-bench
	mount -t tmpfs -o mode=0711 tmpfs /run/engine-bench
	trap "umount /run/engine-bench; rmdir /run/engine-bench /sys/fs/cgroup/engine-bench/{run,mon,}" EXIT
	build/bench/bench "$@"' bench "$@"
