#!/bin/bash
# Boots the Debian at /debian in the test machine: systemd as process 1 of namespaces
# and of a cgroup of its own. Prints the process's number once systemd is up.
set -euo pipefail

mkdir -p /sys/fs/cgroup/box
echo $$ >/sys/fs/cgroup/box/cgroup.procs
# shellcheck disable=SC2016
unshare --mount --pid --cgroup --uts --ipc --fork --propagation private bash -euc '
	mount --bind /debian /debian
	mkdir -p "/debian$BIN"
	mount --bind "$BIN" "/debian$BIN"
	mount --rbind /dev /debian/dev
	mount -t proc proc /debian/proc
	mount -t sysfs sysfs /debian/sys
	mount -t cgroup2 cgroup2 /debian/sys/fs/cgroup
	mount -t tmpfs -o mode=0755 tmpfs /debian/run
	mount -t tmpfs tmpfs /debian/tmp
	cd /debian
	pivot_root . mnt
	umount -l mnt
	hostname box
	exec env -i container=engine PATH=/usr/sbin:/usr/bin /usr/lib/systemd/systemd --system --log-target=kmsg --show-status=no </dev/null >/dev/null 2>&1
' &
helper=$!
for _ in $(seq 300); do
	pid=$(cat "/proc/$helper/task/$helper/children" 2>/dev/null || true)
	pid=${pid%% *}
	if [ -n "$pid" ] && [ "$(cat "/proc/$pid/comm")" = systemd ]; then
		state=$(nsenter --target "$pid" --all systemctl is-system-running 2>/dev/null || true)
		case $state in running | degraded) echo "$pid"; exit ;; esac
	fi
	sleep 0.3
done
echo "boot.sh: systemd is not up: $state" >&2
exit 1
