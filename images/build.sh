#!/bin/bash
# Makes the project's own images, or those named, as OCI layouts in build/images/NAME:
# a layer of Debian 13 with the recipe's packages, and one with tsx where it wants it.
# As root, with network. mmdebstrap, npm, tar and umoci do the work.
#
# The same input gives the same digest: times are the one below or a package's own,
# names are sorted, and nothing of this host or this moment is left in a layer. The input is
# this directory and the versions that Debian has now, which packages.txt beside the
# layout lists. What was made is kept until one of the two changes.
set -euo pipefail
cd "$(dirname "$0")/.."

. hack/debian.sh
export SOURCE_DATE_EPOCH=1756684800 # 2025-09-01
export TZ=UTC LC_ALL=C
created=$(date -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
out=build/images

# base makes the archive $1 of the recipe's packages, and lists their versions in $2.
base() {
	# shellcheck disable=SC2016
	debian "$1" "$packages" \
		--customize-hook='chroot "$1" dpkg-query -W >'"'$2'" \
		--customize-hook='rm -rf "$1"/var/cache/* "$1"/var/lib/apt/lists/* "$1"/var/log/* "$1"/etc/machine-id "$1"/etc/hostname "$1"/etc/resolv.conf' \
		--customize-hook='find "$1" -xdev -path "$1"/proc -prune -o -path "$1"/sys -prune -o -path "$1"/dev -prune -o -newermt "@$SOURCE_DATE_EPOCH" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +'
}

# tsx makes the archive $1 of node_modules with tsx, as the lock file pins it: with this
# host's npm, or with Debian's in a root that is then thrown away.
tsx() {
	local npm=(npm ci --ignore-scripts --no-audit --no-fund --loglevel=error) ca=${NODE_EXTRA_CA_CERTS:-} root=$1.d
	local lib=$root/usr/local/lib
	mkdir -p "$lib" "$root/usr/local/bin"
	cp images/package.json images/package-lock.json "$lib"
	if command -v npm >/dev/null; then
		(cd "$lib" && "${npm[@]}")
	else
		# A network that needs a certificate of its own needs it in there too.
		# shellcheck disable=SC2016
		debian "$1.npm" npm --customize-hook="
			mkdir -p \"\$1/tsx\"
			cp images/package*.json \"\$1/tsx\"
			${ca:+cp '$ca' \"\$1/tsx/ca.pem\"}
			chroot \"\$1\" env ${ca:+NODE_EXTRA_CA_CERTS=/tsx/ca.pem} HOME=/tsx sh -c 'cd /tsx && ${npm[*]}'"
		mv "$1.npm/tsx/node_modules" "$lib/node_modules"
		rm -rf "$1.npm"
	fi
	rm "$lib"/package*.json
	ln -s ../lib/node_modules/.bin/tsx "$root/usr/local/bin/tsx"
	pack "$root" "$1"
}

# pack makes the archive $2 of what is below the directory $1.
pack() {
	find "$1" -type d -exec chmod 755 {} +
	tar --directory "$1" --create --file "$2" --format=posix --pax-option='delete=atime,delete=ctime' \
		--sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner usr
	rm -rf "$1"
}

# build makes the layout of the recipe $1.
build() {
	local name=$1 work=$out/.$1.new started=$SECONDS packages='' tsx=no command=()
	# shellcheck disable=SC1090
	. "images/$name.recipe"
	rm -rf "$work"
	mkdir -p "$work"
	echo "images: making $name of Debian's $packages ..."
	base "$work/base.tar" "$work/packages.txt"
	local image=$work/oci:$name history=(--history.created "$created" --history.created_by "images/build.sh $name")
	umoci init --layout "$work/oci"
	umoci new --image "$image"
	umoci raw add-layer --image "$image" "${history[@]}" "$work/base.tar"
	if [ "$tsx" = yes ]; then
		tsx "$work/tsx.tar"
		umoci raw add-layer --image "$image" "${history[@]}" "$work/tsx.tar"
	fi
	local arguments=(--created "$created" --no-history --config.workingdir /workload
		--config.env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin)
	local word
	for word in "${command[@]}"; do
		arguments+=(--config.cmd "$word")
	done
	umoci config --image "$image" "${arguments[@]}"
	umoci gc --layout "$work/oci" >/dev/null
	rm -f "$work"/*.tar
	rm -rf "${out:?}/$name"
	mv "$work" "$out/$name"
	echo "images: $name is $(digest "$name"), $(du -sh "$out/$name/oci" | cut -f 1), made in $((SECONDS - started)) s"
}

digest() {
	jq -r '.manifests[0].digest' "$out/$1/oci/index.json"
}

# key is what an image is made from, as far as it is in this directory.
key() {
	cat images/build.sh hack/debian.sh "images/$1.recipe" images/package*.json | sha256sum | cut -c 1-16
}

[ "$(id -u)" -eq 0 ] || fail "root is needed"
mkdir -p "$out"
if [ $# -eq 0 ]; then
	set -- node python both
fi
for name; do
	[ -e "images/$name.recipe" ] || fail "there is no recipe images/$name.recipe"
	if [ "$(cat "$out/$name/key" 2>/dev/null)" != "$(key "$name")" ]; then
		build "$name"
		key "$name" >"$out/$name/key"
	fi
done
