#!/bin/bash
# Installs what building and testing need and this host lacks, on Debian 12 and 13.
# Where nothing is missing it changes nothing and needs no root.
set -euo pipefail
cd "$(dirname "$0")/.."

# Building: gcc musl-tools libseccomp-dev pkg-config. The test machine: qemu,
# e2fsprogs, zstd, xz-utils, and the tools that are copied into it. Images: mmdebstrap
# makes them, and skopeo, umoci and buildah are other tools that have to read ours.
packages=(
	ca-certificates git make gcc libc6-dev musl-tools libseccomp-dev pkg-config
	qemu-system-x86 e2fsprogs zstd xz-utils
	bash busybox-static crun iproute2 nftables strace jq procps util-linux
	mmdebstrap debian-archive-keyring skopeo umoci buildah
)
# node and npm are for tests: digests as JavaScript computes them, the TypeScript client,
# which the test machine runs with this node, and Firestore's
# emulator. Other packages than Debian's bring both along, and conflict with its own.
command -v node >/dev/null && command -v npm >/dev/null || packages+=(nodejs npm)
oldest=1.21 # the first Go that can fetch the toolchain named in go.mod

fail() {
	echo "setup: $*" >&2
	exit 1
}

# go_works: a Go that is new enough is on PATH or where its archive unpacks to.
go_works() {
	local found
	found=$(PATH="$PATH:/usr/local/go/bin" GOTOOLCHAIN=local go env GOVERSION 2>/dev/null) || return 1
	at_least "${found#go}" "$oldest"
}

at_least() {
	[ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}

missing=()
for p in "${packages[@]}"; do
	# The status alone is not enough: a removed package leaves an entry too.
	[ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing+=("$p")
done
need_go=false
go_works || need_go=true
# The test machine's kernel is downloaded on first use; that needs fresh lists.
need_lists=false
if [ "$(id -u)" -eq 0 ] && [ ! -e build/vm/lists-updated ] && ! compgen -G 'build/vm/kernel-*' >/dev/null; then
	need_lists=true
fi

if [ ${#missing[@]} -eq 0 ] && ! $need_go && ! $need_lists; then
	exit 0
fi
[ "$(id -u)" -eq 0 ] || fail "root is needed to install: ${missing[*]} $($need_go && echo Go)"

export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
mkdir -p build/vm
touch build/vm/lists-updated

if $need_go; then
	candidate=$(apt-cache policy golang-go | sed -n 's/ *Candidate: *//p')
	candidate=${candidate#*:} # without the epoch
	at_least "${candidate:-0}" "$oldest" ||
		fail "Go $oldest or newer is needed and this Debian has ${candidate:-none}: unpack one to /usr/local/go (https://go.dev/doc/install)"
	missing+=(golang-go)
fi
if [ ${#missing[@]} -gt 0 ]; then
	echo "setup: installing ${missing[*]}" >&2
	apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
fi
go_works || fail "Go $oldest or newer is needed: unpack one to /usr/local/go (https://go.dev/doc/install)"
