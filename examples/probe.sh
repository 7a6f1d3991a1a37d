#!/bin/sh
# Tells on stderr, one key=value a line, what this sandbox looks like from the inside,
# then becomes the command it is given: sh probe.sh COMMAND [ARG...]
# Only builtins of the shell, so that it adds next to nothing to what is measured.

tell() { echo "$1=$2" >&2; }

read -r kernel </proc/sys/kernel/osrelease
tell kernel "$kernel"

while read -r key value rest; do
	case $key in
	Uid:) tell uid "$value" ;;
	CapInh: | CapPrm: | CapEff: | CapBnd: | CapAmb:) tell "${key%:}" "$value" ;;
	NoNewPrivs: | Seccomp:) tell "${key%:}" "$value" ;;
	esac
done </proc/self/status

processes=0
for dir in /proc/[0-9]*; do
	processes=$((processes + 1))
done
tell processes "$processes"

interfaces=
while read -r name rest; do
	case $name in
	*:*) interfaces="$interfaces ${name%%:*}" ;;
	esac
done </proc/net/dev
tell interfaces "${interfaces# }"

# What may be written to, of the places a program might try.
writable=
for dir in / /bin /etc /opt /usr/lib /var /sys /proc/sys/kernel /root /tmp /workload; do
	if (: >"$dir/.probe") 2>/dev/null; then
		writable="$writable $dir"
		: # left behind: it lives in memory and dies with the sandbox
	fi
done
tell writable "${writable# }"

exec "$@"
