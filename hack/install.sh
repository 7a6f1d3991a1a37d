#!/bin/bash
# Puts the programs of the directory $1 below DESTDIR/PREFIX/bin, each as a new file in the
# old one's place, and systemd's units and a first config below DESTDIR/etc. It starts
# nothing and enables nothing.
set -euo pipefail

programs=$(cd "${1:-bin}" && pwd)
prefix=${PREFIX:-/usr/local} dest=${DESTDIR:-}
cd "$(dirname "$0")/.."

mkdir -p "$dest$prefix/bin" "$dest/etc/systemd/system"
[ -d "$dest/etc/engine" ] || mkdir -m 0700 "$dest/etc/engine"
for program in engine engine-runner engine-image engine-monitor engine-init engine-guest engine-launch runsc runc; do
	case $program in runsc | runc) [ -e "$programs/$program" ] || continue ;; esac
	cp "$programs/$program" "$dest$prefix/bin/.$program.new"
	chmod 0755 "$dest$prefix/bin/.$program.new"
	mv "$dest$prefix/bin/.$program.new" "$dest$prefix/bin/$program"
done
for unit in systemd/engine*; do
	sed "s#/usr/local/bin#$prefix/bin#" "$unit" >"$dest/etc/systemd/system/${unit##*/}"
done
if [ ! -e "$dest/etc/engine/config.yaml" ]; then
	(umask 077 && cp systemd/config.yaml "$dest/etc/engine/config.yaml")
fi
if [ -z "$dest" ] && version=$(systemctl --version 2>/dev/null | sed -n '1s/^systemd \([0-9]*\).*/\1/p') && [ "${version:-254}" -lt 254 ]; then
	echo "this host has systemd $version: see \"Older systemd\" in docs/OPERATIONS.md before the first start" >&2
fi
