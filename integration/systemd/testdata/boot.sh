#!/bin/bash
# Boots the Debian in the directory $1: systemd as process 1 of namespaces and of the
# cgroup $2, all its own. Prints the number of that process once systemd is up.
set -euo pipefail

export root=$1 group=$2
mkdir -p "$group"
# Only process 1 moves into the cgroup: one with processes of somebody else's in it hands
# no controllers down.
# shellcheck disable=SC2016
unshare --mount --pid --net --uts --ipc --fork --propagation private bash -euc '
	echo 0 >"$group/cgroup.procs"
	exec unshare --cgroup bash -euc "
		mount --bind $root $root
		mount --rbind /dev $root/dev
		mount -t proc proc $root/proc
		mount -t sysfs sysfs $root/sys
		mount -t cgroup2 cgroup2 $root/sys/fs/cgroup
		mount -t tmpfs -o mode=0755 tmpfs $root/run
		mount -t tmpfs tmpfs $root/tmp
		cd $root
		pivot_root . mnt
		umount -l mnt
		hostname box
		exec env -i container=engine PATH=/usr/sbin:/usr/bin \
			/usr/lib/systemd/systemd --system --log-target=journal --show-status=no >/dev/null 2>&1
	"
' </dev/null >"$root/boot.log" 2>&1 & # with our own streams, who reads them would wait for its end
state="no process 1"
for _ in $(seq 400); do
	for pid in $(cat "$group/cgroup.procs" "$group/init.scope/cgroup.procs" 2>/dev/null); do
		[ "$(cat "/proc/$pid/comm" 2>/dev/null)" = systemd ] || continue
		state=$(nsenter --target "$pid" --all systemctl is-system-running 2>/dev/null || true)
		case $state in running | degraded) echo "$pid"; exit ;; esac
	done
	sleep 0.3
done
echo "boot.sh: systemd is not up: $state: $(cat "$root/boot.log")" >&2
exit 1
