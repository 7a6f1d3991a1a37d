#!/bin/bash
# Makes the disk of the tests under systemd: Debian 13 with systemd, dbus, curl and crun, and
# nothing running. It is kept until this script changes. As root, with network.
#
#   hack/systemd.sh IMAGE
set -euo pipefail
cd "$(dirname "$0")/.."

. hack/debian.sh
image=$1
stamp=$image.of
now=$(cat "$0" hack/debian.sh | sha256sum)
[ -e "$image" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$now" ] && exit

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
debian "$work/root" systemd,dbus,curl,procps,crun
rm -rf "$work"/root/var/cache/* "$work"/root/var/lib/apt/lists/*
# What a machine that lives for seconds has no use for.
for unit in ldconfig systemd-{firstboot,hwdb-update,journal-catalog-update,machine-id-commit,network-generator,networkd,pcrphase,pcrphase-sysinit,resolved} \
	systemd-{sysctl,sysusers,timesyncd,tmpfiles-setup,tmpfiles-setup-dev,tmpfiles-setup-dev-early,udevd,update-done,user-sessions,logind,modules-load} \
	modprobe@configfs modprobe@dm_mod modprobe@drm modprobe@efi_pstore modprobe@fuse modprobe@loop; do
	ln -sf /dev/null "$work/root/etc/systemd/system/$unit.service"
done
for unit in {apt-daily,apt-daily-upgrade,dpkg-db-backup,fstrim,systemd-tmpfiles-clean}.timer {dev-hugepages,dev-mqueue,run-lock,sys-kernel-debug,sys-kernel-tracing,sys-fs-fuse-connections,sys-kernel-config}.mount \
	getty.target systemd-{hostnamed,sysext,creds}.socket; do
	ln -sf /dev/null "$work/root/etc/systemd/system/$unit"
done
ln -sf /usr/lib/systemd/system/multi-user.target "$work/root/etc/systemd/system/default.target"
echo 0123456789abcdef0123456789abcdef >"$work/root/etc/machine-id"
mkdir -p "$work/root/run/lock"
PATH=$PATH:/usr/sbin:/sbin mkfs.ext4 -q -O ^has_journal -d "$work/root" "$image.new" 600M
mv "$image.new" "$image"
echo "$now" >"$stamp"
