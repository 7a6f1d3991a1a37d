#!/bin/bash
# Makes the demo's image, a small Debian 13 with Node 20, tsx, Python 3 and a shell,
# and imports it: build/demo/state is then a state directory with the image "demo",
# which holds the programs of examples/ in /opt/examples. As root, with network.
#
# What is slow is kept in build/image, under a name made from the recipe.
set -euo pipefail
cd "$(dirname "$0")/.."

. hack/debian.sh
packages=nodejs,python3,ca-certificates

recipe=$(cat hack/image.sh hack/debian.sh hack/image/*.json | sha256sum | cut -c 1-16)
root=build/image/$recipe
state=build/demo/state
mkdir -p build/image build/demo

# tsx puts node_modules with tsx, as pinned by the lock file, into directory $1: with
# this host's npm, or with Debian's in a root that is then thrown away.
tsx() {
	local npm=(npm ci --ignore-scripts --no-audit --no-fund --loglevel=error) ca=${NODE_EXTRA_CA_CERTS:-}
	mkdir -p "$1"
	cp hack/image/package.json hack/image/package-lock.json "$1"
	if command -v npm >/dev/null; then
		(cd "$1" && "${npm[@]}")
		return
	fi
	# A network that needs a certificate of its own needs it in there too.
	# shellcheck disable=SC2016
	debian "$1/npm" npm --customize-hook="
		mkdir -p \"\$1/tsx\"
		cp '$1'/package*.json \"\$1/tsx\"
		${ca:+cp '$ca' \"\$1/tsx/ca.pem\"}
		chroot \"\$1\" env ${ca:+NODE_EXTRA_CA_CERTS=/tsx/ca.pem} HOME=/tsx sh -c 'cd /tsx && ${npm[*]}'"
	mv "$1/npm/tsx/node_modules" "$1/node_modules"
	rm -rf "$1/npm"
}

build() {
	local work=$root.new started=$SECONDS
	rm -rf "$work" "$work.tsx"
	echo "image: making a Debian 13 with Node 20, tsx and Python 3 ..."
	debian "$work" "$packages"
	tsx "$PWD/$work.tsx"
	mkdir -p "$work/usr/local/lib"
	cp -r "$work.tsx/node_modules" "$work/usr/local/lib/node_modules"
	ln -s ../lib/node_modules/.bin/tsx "$work/usr/local/bin/tsx"
	rm -rf "$work.tsx" "${work:?}"/var/cache/* "$work"/var/lib/apt/* "$work"/var/log/* "${work:?}"/dev/*
	mv "$work" "$root"
	echo "image: $(du -sh "$root" | cut -f 1) in $((SECONDS - started)) s"
}

[ "$(id -u)" -eq 0 ] || fail "root is needed"
[ -d "$root" ] || build

# The programs change more often than the system below them.
contents=$(cd examples && find . -type f -name '*.[tps][syh]' -print0 | sort -z | xargs -0 sha256sum)
key=$(printf '%s\n%s' "$recipe" "$contents" | sha256sum | cut -c 1-16)
if [ "$(cat build/demo/key 2>/dev/null)" != "$key" ]; then
	rm -rf "$root/opt/examples" "$state" build/demo/key
	cp -r examples "$root/opt/examples"
	bin/engine --state-dir "$state" image import "$root" demo
	echo "$key" >build/demo/key
fi
