#!/bin/bash
# Runs the example programs of examples/ in sandboxes, under gVisor and embedded, and
# shows what came out and what held them in. As root, after make build and tools.
# Where this host has no pure cgroup v2 it runs in the test machine instead.
set -euo pipefail
cd "$(dirname "$0")/.."

[ "$(id -u)" -eq 0 ] || { echo "demo: root is needed: sudo make demo" >&2; exit 1; }
hack/image.sh
CGO_ENABLED=0 go build -buildvcs=false -trimpath -o build/demo/demo ./integration/demo

# qualifies: this host lets the engine enforce every limit.
qualifies() {
	[ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ] || return 1
	local controller
	for controller in cpu memory pids; do
		grep -qw "$controller" /sys/fs/cgroup/cgroup.controllers || return 1
	done
}

if qualifies; then
	exec build/demo/demo -engine "$PWD/bin/engine" -state-dir "$PWD/build/demo/state"
fi

echo "demo: this host has no pure cgroup v2, so the programs run in the test machine. Where it"
echo "      is emulated that takes minutes: the results are right, the times are not the engine's"
disk=build/demo/state.ext4
if [ ! -e "$disk" ] || [ build/demo/key -nt "$disk" ]; then
	rm -f "$disk"
	truncate -s 2G "$disk.new" # sparse
	mke2fs -q -t ext4 -m 0 -d build/demo/state "$disk.new"
	mv "$disk.new" "$disk"
fi
# shellcheck disable=SC2016
exec build/vm/vm run -memory 3072 -timeout 20m -disk "$disk:/mnt/state" \
	-add build/demo/demo -add examples/orders/orders.csv \
	'/job/demo -engine "$(command -v engine)" -state-dir /mnt/state -orders /job/orders.csv'
