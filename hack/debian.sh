# Makes small Debian roots. To be sourced, with the root of the repository as directory.
# shellcheck shell=bash

suite=trixie

fail() {
	echo "$(basename "$0"): $*" >&2
	exit 1
}

# mirror is where this host gets its own Debian from.
mirror() {
	# shellcheck disable=SC1091
	. /etc/os-release
	# shellcheck disable=SC2016
	apt-get indextargets --format '$(CODENAME) $(RELEASE) $(REPO_URI)' 'Created-By: Packages' |
		awk -v name="$VERSION_CODENAME" '$1 == name || $2 == name { print $NF; exit }'
}

# debian makes a Debian root in $1 with the packages $2 and what further arguments of
# mmdebstrap say, without what nobody reads in a sandbox.
debian() {
	local target=$1 include=$2 uri
	shift 2
	uri=$(mirror)
	[ -n "$uri" ] || fail "found no Debian mirror in apt's sources"
	mmdebstrap --quiet --mode=root --variant=minbase --include="$include" \
		--aptopt='APT::Install-Recommends "false"' \
		--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
		--dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/info/*' \
		"$@" "$suite" "$target" "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri $suite main"
}
